//! Compares each byte of a server's stream with the expected replies, as the byte arrives.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use pattern::PatternMismatch;

/// The beginning of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// Exactly these bytes.
    Exactly(Vec<u8>),
    /// An HTTP/1.1 head of status 201 or 204 that keeps the connection open. An interim head (100) may precede it. If the request may
    /// be refused, a head of status 503 without content that ends the connection and says `Retry-After: 1` is correct too.
    Stored {
        /// Whether the request may be refused, because a survivor must not or cannot execute it again.
        may_be_refused: bool,
    },
    /// An HTTP/1.1 head of status 200 that keeps the connection open and announces the content by its length
    /// (RFC 9112 §6.3).
    Http,
    /// As [`Http`](Self::Http), with random content whose SHA-256 the head announces (`X-Sha256`). A head of status 503 as with
    /// [`Stored`](Self::Stored) is correct too.
    Random,
}

/// A part of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternRange {
    /// Seed of the pattern.
    pub seed: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// A reply that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueReply {
    /// Its beginning.
    pub head: Head,
    /// Its content.
    pub content: Option<PatternRange>,
    /// Its end.
    pub tail: &'static [u8],
    /// Number of the client's content bytes that this reply confirms.
    pub confirms: u64,
}

/// A difference between the received bytes and the replies that are due.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wrong {
    /// The content differs.
    #[error("content of the pattern {seed}: {mismatch}")]
    Content {
        /// The pattern that was due.
        seed: u64,
        /// The first difference.
        mismatch: PatternMismatch,
    },
    /// The bytes around the content differ.
    #[error("reply {index}: found {found:?}, expected {expected:?}")]
    Framing {
        /// Replies completed before this one.
        index: u64,
        /// The beginning of the received bytes.
        found: String,
        /// The beginning of the bytes that were due.
        expected: String,
    },
    /// Random content that is not what its own head announces: it is of two executions, or damaged.
    #[error("reply {index}: the head announces the hash {announced}, but the content has {received}")]
    Hash {
        /// Replies completed before this one.
        index: u64,
        /// SHA-256 that the head announces.
        announced: String,
        /// SHA-256 of the received content.
        received: String,
    },
    /// An HTTP head that does not fit the request.
    #[error("reply {index}: {what}")]
    HttpHead {
        /// Replies completed before this one.
        index: u64,
        /// The fault of the head.
        what: String,
    },
    /// Bytes came, but no reply was due.
    #[error("{found:?} came after the last of {index} replies")]
    Unasked {
        /// Replies completed.
        index: u64,
        /// The beginning of the received bytes.
        found: String,
    },
}

/// The replies that are due on one connection, and how much of them has been received.
#[derive(Debug, Default)]
pub struct Replies {
    due: VecDeque<DueReply>,
    part: DueReplyPart,
    completed: u64,
    bytes_received: u64,
    bytes_confirmed: u64,
    hash: Option<Sha256>,
    /// SHA-256 that the head of the present reply announces, and the hash of its content so far.
    announced: Option<(String, Sha256)>,
    /// SHA-256 of each random content that came.
    random: Vec<String>,
    was_refused: bool,
}

/// The next part of the first due reply, and how much of this part has been received.
#[derive(Debug)]
enum DueReplyPart {
    /// The head. `gathered` has the received bytes of the head. An HTTP head is parsed from them. For a literal head,
    /// only their number is used.
    Head {
        gathered: Vec<u8>,
    },
    Content {
        done: u64,
    },
    Tail {
        done: usize,
    },
}

impl Default for DueReplyPart {
    fn default() -> Self {
        Self::Head { gathered: Vec::new() }
    }
}

const HTTP_HEAD_MAX: usize = 16 << 10;
const HTTP_HEADERS_MAX: usize = 64;
const EXCERPT_MAX: usize = 80;

impl Replies {
    /// Adds a reply at the end.
    pub fn expect(&mut self, reply: DueReply) {
        self.due.push_back(reply);
    }

    /// Computes SHA-256 over the content from here on.
    pub fn start_hash(&mut self) {
        self.hash = Some(Sha256::new());
    }

    /// Number of replies still due, including one that is partly received.
    pub fn due(&self) -> usize {
        self.due.len()
    }

    /// Correct content bytes received.
    pub fn bytes_received(&self) -> u64 {
        self.bytes_received
    }

    /// Content bytes sent and confirmed by replies.
    pub fn bytes_confirmed(&self) -> u64 {
        self.bytes_confirmed
    }

    /// Whether a reply was a refusal. No reply follows a refusal.
    pub fn was_refused(&self) -> bool {
        self.was_refused
    }

    /// Takes back a refusal, because the client connects anew.
    pub fn forgive(&mut self) {
        self.was_refused = false;
    }

    /// SHA-256 of each random content that came, in hexadecimal.
    pub fn random(&self) -> &[String] {
        &self.random
    }

    /// SHA-256 of the content received since [`Self::start_hash`], in hexadecimal.
    pub fn sha256(&self) -> Option<String> {
        self.hash.clone().map(|hash| pattern::hex(&hash.finalize()))
    }

    /// Takes bytes in the order of arrival.
    ///
    /// # Errors
    /// The first difference. The connection is unusable after it.
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<(), Wrong> {
        loop {
            let Some(reply) = self.due.front() else {
                if bytes.is_empty() {
                    return Ok(());
                }
                return Err(Wrong::Unasked {
                    index: self.completed,
                    found: excerpt(bytes),
                });
            };
            let advance = match &mut self.part {
                DueReplyPart::Head { gathered } => {
                    let advance = take_head(gathered, reply, bytes, self.completed)?;
                    self.was_refused |= advance.is_refusal;
                    if advance.done && reply.head == Head::Random {
                        self.announced = announced(gathered).map(|hash| (hash, Sha256::new()));
                    }
                    advance
                }
                DueReplyPart::Content { done } => {
                    let content = reply.content.expect("only replies with content get here");
                    let count = (bytes.len() as u64).min(content.len - *done) as usize;
                    if let Some((_, hash)) = &mut self.announced {
                        hash.update(&bytes[..count]);
                    } else {
                        pattern::check(content.seed, content.offset + *done, &bytes[..count]).map_err(
                            |mismatch| Wrong::Content {
                                seed: content.seed,
                                mismatch,
                            },
                        )?;
                    }
                    if let Some(hash) = &mut self.hash {
                        hash.update(&bytes[..count]);
                    }
                    *done += count as u64;
                    self.bytes_received += count as u64;
                    Advance::new(count, *done == content.len)
                }
                DueReplyPart::Tail { done } => take_literal(reply.tail, *done, bytes, self.completed)
                    .inspect(|advance| *done += advance.count)?,
            };
            bytes = &bytes[advance.count..];
            if !advance.done {
                return Ok(()); // all bytes are used
            }
            if matches!(self.part, DueReplyPart::Content { .. }) {
                self.compare_hash()?;
            }
            self.next_part();
        }
    }

    /// Compares random content that is complete with what its head has announced.
    fn compare_hash(&mut self) -> Result<(), Wrong> {
        if let Some((announced, hash)) = self.announced.take() {
            let received = pattern::hex(&hash.finalize());
            if received != announced {
                return Err(Wrong::Hash {
                    index: self.completed,
                    announced,
                    received,
                });
            }
            self.random.push(received);
        }
        Ok(())
    }

    fn next_part(&mut self) {
        let reply = self.due.front().expect("a part of it was just completed");
        self.part = match (&self.part, reply.content) {
            (DueReplyPart::Head { .. }, Some(content)) if content.len > 0 && !self.was_refused => {
                DueReplyPart::Content { done: 0 }
            }
            (DueReplyPart::Head { .. } | DueReplyPart::Content { .. }, _) => DueReplyPart::Tail { done: 0 },
            (DueReplyPart::Tail { .. }, _) => {
                self.completed += 1;
                if !self.was_refused {
                    self.bytes_confirmed += reply.confirms;
                }
                self.due.pop_front();
                DueReplyPart::default()
            }
        };
    }
}

/// Progress of a part: the number of bytes used, and whether the part is complete.
struct Advance {
    count: usize,
    done: bool,
    is_refusal: bool,
}

impl Advance {
    const fn new(count: usize, done: bool) -> Self {
        Self {
            count,
            done,
            is_refusal: false,
        }
    }
}

fn take_head(gathered: &mut Vec<u8>, reply: &DueReply, bytes: &[u8], index: u64) -> Result<Advance, Wrong> {
    match &reply.head {
        Head::Exactly(literal) => {
            let advance = take_literal(literal, gathered.len(), bytes, index)?;
            gathered.extend_from_slice(&bytes[..advance.count]);
            Ok(advance)
        }
        Head::Http | Head::Random | Head::Stored { .. } => {
            let before = gathered.len();
            let room = HTTP_HEAD_MAX.saturating_sub(before).min(bytes.len());
            gathered.extend_from_slice(&bytes[..room]);
            let wrong = |what| Wrong::HttpHead { index, what };
            let checked = match reply.head {
                Head::Stored { may_be_refused } => check_stored(gathered, may_be_refused),
                Head::Random if gathered.starts_with(b"HTTP/1.1 503 ") => check_stored(gathered, true),
                _ => {
                    let length = reply.content.map_or(0, |content| content.len);
                    check_http_head(gathered, length).map(|whole| whole.map(|whole| (whole, false)))
                }
            };
            match checked.map_err(wrong)? {
                Some((whole, is_refusal)) => Ok(Advance {
                    is_refusal,
                    ..Advance::new(whole - before, true)
                }),
                None if gathered.len() == HTTP_HEAD_MAX => {
                    Err(wrong(format!("the head is longer than {HTTP_HEAD_MAX} bytes")))
                }
                None => Ok(Advance::new(room, false)),
            }
        }
    }
}

/// The hash that a complete head announces.
fn announced(head: &[u8]) -> Option<String> {
    let mut headers = [httparse::EMPTY_HEADER; HTTP_HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    parse_head(&mut response, head).ok()??;
    let hash = response
        .headers
        .iter()
        .find(|one| one.name.eq_ignore_ascii_case("x-sha256"))?;
    Some(String::from_utf8_lossy(hash.value).into_owned())
}

fn take_literal(literal: &[u8], done: usize, bytes: &[u8], index: u64) -> Result<Advance, Wrong> {
    let rest = &literal[done..];
    let count = rest.len().min(bytes.len());
    if bytes[..count] == rest[..count] {
        return Ok(Advance::new(count, count == rest.len()));
    }
    Err(Wrong::Framing {
        index,
        found: excerpt(&[&literal[..done], bytes].concat()),
        expected: excerpt(literal),
    })
}

/// Parses `head`. Returns its length, or `None` if more bytes are needed.
fn parse_head<'b>(
    response: &mut httparse::Response<'_, 'b>,
    head: &'b [u8],
) -> Result<Option<usize>, String> {
    match response.parse(head) {
        Ok(httparse::Status::Complete(len)) => Ok(Some(len)),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(error) => Err(format!("not an HTTP head: {error}: {:?}", excerpt(head))),
    }
}

/// Returns the length of a complete, correct reply to a request that stores something, and whether the reply is a refusal. `None` if more
/// bytes are needed. At most one `100 Continue` may precede the reply.
fn check_stored(reply: &[u8], may_be_refused: bool) -> Result<Option<(usize, bool)>, String> {
    const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
    let interim = if reply.starts_with(CONTINUE) {
        CONTINUE.len()
    } else {
        0
    };
    let head = &reply[interim..];
    let mut headers = [httparse::EMPTY_HEADER; HTTP_HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let Some(len) = parse_head(&mut response, head)? else {
        return Ok(None);
    };
    let has = |name: &str, value: &str| {
        let mut headers = response.headers.iter();
        headers.any(|one| one.name.eq_ignore_ascii_case(name) && one.value == value.as_bytes())
    };
    let is_empty = has("content-length", "0") || response.code == Some(204);
    let closes = has("connection", "close");
    match response.code.filter(|_| response.version == Some(1)) {
        Some(201 | 204) if is_empty && !closes => Ok(Some((interim + len, false))),
        Some(503) if may_be_refused && is_empty && closes && has("retry-after", "1") => {
            Ok(Some((interim + len, true)))
        }
        _ => Err(format!(
            "neither a correct 201 or 204 nor a correct 503: {:?}",
            excerpt(head)
        )),
    }
}

/// Returns the length of a complete, correct head. `None` if more bytes are needed.
fn check_http_head(head: &[u8], content_length: u64) -> Result<Option<usize>, String> {
    let mut headers = [httparse::EMPTY_HEADER; HTTP_HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let Some(len) = parse_head(&mut response, head)? else {
        return Ok(None);
    };
    if (response.version, response.code) != (Some(1), Some(200)) {
        return Err(format!("not HTTP/1.1 200: {:?}", excerpt(head)));
    }
    let mut lengths = Vec::new();
    for header in response.headers.iter() {
        match header.name.to_ascii_lowercase().as_str() {
            "content-length" => lengths.push(header.value),
            "transfer-encoding" => return Err("Transfer-Encoding instead of Content-Length".into()),
            "connection" if header.value.eq_ignore_ascii_case(b"close") => {
                return Err("the server announces that it closes the connection".into());
            }
            _ => {}
        }
    }
    match lengths[..] {
        [one] if one == content_length.to_string().as_bytes() => Ok(Some(len)),
        _ => {
            let found: Vec<_> = lengths.into_iter().map(excerpt).collect();
            Err(format!(
                "Content-Length {found:?}, expected exactly one: {content_length}"
            ))
        }
    }
}

fn excerpt(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(EXCERPT_MAX)].escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use proto::restart::http::REFUSAL;

    use super::*;

    const LEN: u64 = 1000;

    fn content() -> PatternRange {
        PatternRange {
            seed: 4,
            offset: 7,
            len: LEN,
        }
    }

    fn bulk() -> DueReply {
        DueReply {
            head: Head::Exactly(format!("${LEN}\r\n").into()),
            content: Some(content()),
            tail: b"\r\n",
            confirms: 0,
        }
    }

    fn simple(line: &str, confirms: u64) -> DueReply {
        DueReply {
            head: Head::Exactly(line.into()),
            content: None,
            tail: b"",
            confirms,
        }
    }

    fn http() -> DueReply {
        DueReply {
            head: Head::Http,
            tail: b"",
            ..bulk()
        }
    }

    fn body() -> Vec<u8> {
        let mut body = vec![0; LEN as usize];
        pattern::fill(4, 7, &mut body);
        body
    }

    fn receive_all(replies: Vec<DueReply>, bytes: &[u8], piece: usize) -> Result<Replies, Wrong> {
        let mut due = Replies::default();
        due.start_hash();
        replies.into_iter().for_each(|reply| due.expect(reply));
        for piece in bytes.chunks(piece) {
            due.receive(piece)?;
        }
        Ok(due)
    }

    #[test]
    fn pipelined_replies_are_right_however_they_are_cut() {
        let mut bytes = b"+OK\r\n".to_vec();
        bytes.extend(format!("${LEN}\r\n").bytes());
        bytes.extend(body());
        bytes.extend(b"\r\n:1000\r\n");
        let replies = vec![simple("+OK\r\n", 5), bulk(), simple(":1000\r\n", 10)];
        for piece in [1, 2, 3, 100, 5000] {
            let due = receive_all(replies.clone(), &bytes, piece).unwrap();
            assert_eq!((due.completed, due.due()), (3, 0));
            assert_eq!((due.bytes_received(), due.bytes_confirmed()), (LEN, 15));
            assert_eq!(due.sha256(), Some(pattern::hex(&Sha256::digest(body()))));
        }
    }

    #[test]
    fn every_flipped_byte_of_a_reply_is_noticed() {
        let mut bytes = format!("${LEN}\r\n").into_bytes();
        bytes.extend(body());
        bytes.extend(b"\r\n");
        for at in 0..bytes.len() {
            bytes[at] ^= 0x20;
            assert!(receive_all(vec![bulk()], &bytes, 64).is_err(), "{at}");
            bytes[at] ^= 0x20;
        }
    }

    #[test]
    fn an_error_reply_is_shown() {
        let error = receive_all(vec![simple("+OK\r\n", 0)], b"-ERR no\r\n", 1)
            .err()
            .unwrap();
        assert_eq!(error.to_string(), r#"reply 0: found "-", expected "+OK\\r\\n""#);
    }

    #[test]
    fn bytes_that_nobody_asked_for_are_an_error() {
        let error = receive_all(vec![simple("+OK\r\n", 0)], b"+OK\r\nx", 6)
            .err()
            .unwrap();
        assert!(matches!(error, Wrong::Unasked { index: 1, .. }), "{error}");
    }

    #[test]
    fn http_heads_are_parsed_and_checked() {
        let with = |head: &str| [head.as_bytes(), &body()].concat();
        let good = with("HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 1000\r\n\r\n");
        for piece in [1, 7, 2000] {
            let due = receive_all(vec![http(), http()], &good.repeat(2), piece).unwrap();
            assert_eq!(due.completed, 2);
        }
        for bad in [
            "HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\n",
            "HTTP/1.1 500 No\r\nContent-Length: 1000\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nContent-Length: 1000\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n",
            "garbage\r\n\r\n",
        ] {
            assert!(receive_all(vec![http()], &with(bad), 9).is_err(), "{bad}");
        }
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(HTTP_HEAD_MAX));
        let error = receive_all(vec![http()], endless.as_bytes(), 4000).err().unwrap();
        assert!(error.to_string().contains("longer"), "{error}");
    }

    #[test]
    fn what_is_stored_or_refused_is_told_apart() {
        let stored = |may_be_refused| DueReply {
            head: Head::Stored { may_be_refused },
            content: None,
            tail: b"",
            confirms: 5,
        };
        let after = |may_be_refused, bytes: &[u8]| {
            let mut replies = Replies::default();
            replies.expect(stored(may_be_refused));
            let whole = bytes.chunks(3).try_for_each(|piece| replies.receive(piece));
            whole.map(|()| (replies.due(), replies.was_refused(), replies.bytes_confirmed()))
        };
        let interim = "HTTP/1.1 100 Continue\r\n\r\n";
        let created = format!("{interim}HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(after(false, created.as_bytes()), Ok((0, false, 5)));
        assert_eq!(
            after(false, b"HTTP/1.1 204 No Content\r\n\r\n"),
            Ok((0, false, 5))
        );
        assert!(
            after(false, format!("{interim}{created}").as_bytes()).is_err(),
            "told twice"
        );
        assert_eq!(after(true, REFUSAL), Ok((0, true, 0)));
        assert!(after(false, REFUSAL).is_err());
    }

    fn random(body: &[u8], announced: &str) -> (DueReply, Vec<u8>) {
        let due = DueReply {
            head: Head::Random,
            content: Some(PatternRange {
                seed: 0,
                offset: 0,
                len: body.len() as u64,
            }),
            tail: b"",
            confirms: 0,
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nX-Sha256: {announced}\r\n\r\n",
            body.len()
        );
        (due, [head.as_bytes(), body].concat())
    }

    #[test]
    fn random_content_is_what_its_own_head_announces() {
        let body = body();
        let hash = pattern::hex(&Sha256::digest(&body));
        for piece in [1, 7, 5000] {
            let mut replies = Replies::default();
            let (due, bytes) = random(&body, &hash);
            replies.expect(due);
            for bytes in bytes.chunks(piece) {
                replies.receive(bytes).unwrap();
            }
            assert_eq!((replies.due(), replies.random()), (0, &[hash.clone()][..]));
        }
        let mut damaged = body.clone();
        damaged[500] ^= 1;
        let (due, bytes) = random(&damaged, &hash);
        let mut replies = Replies::default();
        replies.expect(due);
        let wrong = replies.receive(&bytes).unwrap_err();
        assert!(matches!(wrong, Wrong::Hash { .. }), "{wrong}");
    }

    #[test]
    fn a_refused_random_request_is_asked_again() {
        let body = body();
        let hash = pattern::hex(&Sha256::digest(&body));
        let (due, bytes) = random(&body, &hash);
        let mut replies = Replies::default();
        replies.expect(due.clone());
        replies.receive(REFUSAL).unwrap();
        assert!(replies.was_refused() && replies.due() == 0 && replies.random().is_empty());
        replies.forgive();
        replies.expect(due);
        replies.receive(&bytes).unwrap();
        assert_eq!(replies.random(), [hash]);
    }
}
