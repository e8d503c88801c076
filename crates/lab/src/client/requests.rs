//! The requests of a workload, each with the expected replies.

use super::replies::{DueReply, Head, PatternRange};

/// A request, ready to be sent.
pub struct PreparedRequest {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The expected replies, in order.
    pub replies: Vec<DueReply>,
}

/// GET of the first `len` bytes of the pattern `seed`, with `padding` more bytes of headers. `rate`: the rate in bytes
/// per second that the server is asked to keep.
pub fn http_get(host: &str, seed: u64, len: u64, padding: usize, rate: Option<u64>) -> PreparedRequest {
    let rate = rate.map_or_else(String::new, |rate| format!("?rate={rate}"));
    let mut text = format!(
        "GET /{}{rate} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: steadfast-lab\r\n",
        pattern::file_name(seed, len)
    );
    if padding > 0 {
        let mut bytes = vec![0; padding.div_ceil(2)];
        pattern::fill(seed, 0, &mut bytes);
        text += &format!("X-Padding: {}\r\n", &pattern::hex(&bytes)[..padding]);
    }
    text += "\r\n";
    PreparedRequest {
        bytes: text.into_bytes(),
        replies: vec![DueReply {
            head: Head::Http,
            content: Some(PatternRange { seed, offset: 0, len }),
            tail: b"",
            confirms: padding as u64,
        }],
    }
}

/// GET of `len` random bytes, which are different each time.
pub fn http_random(host: &str, len: u64) -> PreparedRequest {
    let text = format!("GET /random.cgi?{len} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: steadfast-lab\r\n\r\n");
    PreparedRequest {
        bytes: text.into_bytes(),
        replies: vec![DueReply {
            head: Head::Random,
            content: Some(PatternRange {
                seed: 0,
                offset: 0,
                len,
            }),
            tail: b"",
            confirms: 0,
        }],
    }
}

/// How content is stored over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMethod {
    /// PUT with a length.
    Put,
    /// PUT in chunks with `Expect: 100-continue`. The client does not wait for the interim reply (RFC 9110 §10.1.1 allows this).
    PutChunks,
    /// POST with an `Idempotency-Key`.
    KeyedPost,
    /// POST that must not be executed twice.
    Post,
}

/// Payload bytes of a chunk of an upload.
const CHUNK: usize = 10_000;

/// Stores `content` under `name`. A [`StoreMethod::Post`] may always be refused. `refusable`: the other kinds may be refused too.
pub fn http_store(
    host: &str,
    store: StoreMethod,
    name: &str,
    content: PatternRange,
    refusable: bool,
) -> PreparedRequest {
    let mut body = vec![0; content.len as usize];
    pattern::fill(content.seed, content.offset, &mut body);
    let (line, field) = match store {
        StoreMethod::Put | StoreMethod::PutChunks => (format!("PUT /uploads/{name}"), String::new()),
        StoreMethod::KeyedPost => (
            format!("POST /post/{name}"),
            format!("Idempotency-Key: \"{name}\"\r\n"),
        ),
        StoreMethod::Post => (format!("POST /post/{name}"), String::new()),
    };
    let length = match store {
        StoreMethod::PutChunks => "Expect: 100-continue\r\nTransfer-Encoding: chunked".to_owned(),
        _ => format!("Content-Length: {}", content.len),
    };
    let head =
        format!("{line} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: steadfast-lab\r\n{field}{length}\r\n\r\n");
    let mut bytes = head.into_bytes();
    if store == StoreMethod::PutChunks {
        for chunk in body.chunks(CHUNK) {
            bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
    } else {
        bytes.extend(body);
    }
    PreparedRequest {
        bytes,
        replies: vec![DueReply {
            head: Head::Stored {
                may_be_refused: refusable || store == StoreMethod::Post,
            },
            content: None,
            tail: b"",
            confirms: content.len,
        }],
    }
}

/// Reads back the content stored under `name`.
pub fn http_stored(host: &str, name: &str, content: PatternRange) -> PreparedRequest {
    let text = format!("GET /uploads/{name} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: steadfast-lab\r\n\r\n");
    PreparedRequest {
        bytes: text.into_bytes(),
        replies: vec![DueReply {
            head: Head::Http,
            content: Some(content),
            tail: b"",
            confirms: 0,
        }],
    }
}

/// Appends `content` to the Redis value `key`, which has `position` bytes so far.
///
/// SET begins a value. Then APPEND and SETRANGE alternate, so that all three commands are tested.
pub fn redis_put(key: &str, position: u64, content: PatternRange) -> PreparedRequest {
    let position_text = position.to_string();
    let words: &[&str] = match (position, content.offset / content.len.max(1) % 2) {
        (0, _) => &["SET", key],
        (_, 0) => &["APPEND", key],
        _ => &["SETRANGE", key, &position_text],
    };
    let reply = match position {
        0 => "+OK\r\n".into(),
        _ => format!(":{}\r\n", position + content.len),
    };
    let mut bytes = format!("*{}\r\n", words.len() + 1);
    words.iter().for_each(|word| push_bulk(&mut bytes, word));
    bytes += &format!("${}\r\n", content.len);
    let mut bytes = bytes.into_bytes();
    let start = bytes.len();
    bytes.resize(start + content.len as usize, 0);
    pattern::fill(content.seed, content.offset, &mut bytes[start..]);
    bytes.extend_from_slice(b"\r\n");
    PreparedRequest {
        bytes,
        replies: vec![line(reply, content.len)],
    }
}

/// Reads `content` back from `position` of the value `key`.
pub fn redis_get(key: &str, position: u64, content: PatternRange) -> PreparedRequest {
    let (first, last) = (position.to_string(), (position + content.len - 1).to_string());
    PreparedRequest {
        bytes: command(&["GETRANGE", key, &first, &last]),
        replies: vec![DueReply {
            head: Head::Exactly(format!("${}\r\n", content.len).into_bytes()),
            content: Some(content),
            tail: b"\r\n",
            confirms: 0,
        }],
    }
}

/// Asks for the length of the value `key`, which is `len`.
pub fn redis_length(key: &str, len: u64) -> PreparedRequest {
    PreparedRequest {
        bytes: command(&["STRLEN", key]),
        replies: vec![line(format!(":{len}\r\n"), 0)],
    }
}

/// Removes the values `keys`, which exist.
pub fn redis_delete(keys: &[&str]) -> PreparedRequest {
    let words: Vec<_> = std::iter::once("DEL").chain(keys.iter().copied()).collect();
    PreparedRequest {
        bytes: command(&words),
        replies: vec![line(format!(":{}\r\n", keys.len()), 0)],
    }
}

/// Sets the value `key` to `content` and reads the value back. Both commands are sent in one write, so that requests and replies carry the
/// same number of content bytes.
pub fn redis_exchange(key: &str, content: PatternRange) -> PreparedRequest {
    let mut request = redis_put(key, 0, content);
    let get = redis_get(key, 0, content);
    request.bytes.extend(get.bytes);
    request.replies.extend(get.replies);
    request
}

/// Sets the value `key` to `text`.
pub fn redis_note(key: &str, text: &str) -> PreparedRequest {
    PreparedRequest {
        bytes: command(&["SET", key, text]),
        replies: vec![line("+OK\r\n".into(), 0)],
    }
}

/// Reads `text` back from the value `key`.
pub fn redis_noted(key: &str, text: &str) -> PreparedRequest {
    PreparedRequest {
        bytes: command(&["GET", key]),
        replies: vec![line(format!("${}\r\n{text}\r\n", text.len()), 0)],
    }
}

fn line(text: String, confirms: u64) -> DueReply {
    DueReply {
        head: Head::Exactly(text.into_bytes()),
        content: None,
        tail: b"",
        confirms,
    }
}

fn command(words: &[&str]) -> Vec<u8> {
    let mut text = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| push_bulk(&mut text, word));
    text.into_bytes()
}

fn push_bulk(text: &mut String, word: &str) {
    *text += &format!("${}\r\n{word}\r\n", word.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: PatternRange = PatternRange {
        seed: 1,
        offset: 0,
        len: 4,
    };

    fn text(request: &PreparedRequest) -> String {
        request.bytes.escape_ascii().to_string()
    }

    fn head(request: &PreparedRequest) -> String {
        match &request.replies[0].head {
            Head::Exactly(bytes) => bytes.escape_ascii().to_string(),
            Head::Http | Head::Random | Head::Stored { .. } => "http".into(),
        }
    }

    #[test]
    fn a_value_is_set_then_grown_by_both_commands() {
        let mut content = [0; 12];
        pattern::fill(1, 0, &mut content);
        let piece = |index: usize| content[index * 4..][..4].escape_ascii().to_string();
        let put = |index: u64| {
            let content = PatternRange {
                offset: index * 4,
                ..CONTENT
            };
            redis_put("k", index * 4, content)
        };
        assert_eq!(
            text(&put(0)),
            format!(r"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n{}\r\n", piece(0))
        );
        assert_eq!(head(&put(0)), r"+OK\r\n");
        assert_eq!(
            text(&put(1)),
            format!(
                r"*4\r\n$8\r\nSETRANGE\r\n$1\r\nk\r\n$1\r\n4\r\n$4\r\n{}\r\n",
                piece(1)
            )
        );
        assert_eq!(head(&put(1)), r":8\r\n");
        assert!(text(&put(2)).starts_with(r"*3\r\n$6\r\nAPPEND\r\n"));
        assert_eq!(head(&put(2)), r":12\r\n");
    }

    #[test]
    fn reading_names_the_last_byte_not_the_length() {
        let get = redis_get("key", 8, CONTENT);
        assert_eq!(
            text(&get),
            r"*4\r\n$8\r\nGETRANGE\r\n$3\r\nkey\r\n$1\r\n8\r\n$2\r\n11\r\n"
        );
        assert_eq!(head(&get), r"$4\r\n");
    }

    #[test]
    fn padding_is_as_long_as_asked_for() {
        let get = |padding| http_get("h", 255, 9, padding, Some(7)).bytes;
        assert_eq!(
            String::from_utf8(get(0)).unwrap(),
            "GET /pattern-00000000000000ff-9?rate=7 HTTP/1.1\r\nHost: h\r\nUser-Agent: steadfast-lab\r\n\r\n"
        );
        assert_eq!(get(1025).len(), get(0).len() + 1025 + "X-Padding: \r\n".len());
    }
}
