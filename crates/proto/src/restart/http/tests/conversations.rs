//! Conversations for the tests: requests and their replies. The replies have a placeholder for the date, and chunk boundaries that a test
//! chooses.

/// One request and its reply.
pub struct HttpExchange {
    pub request: &'static str,
    /// Header lines, including those of interim replies before the final one, with `DATE` for the date.
    pub head: &'static str,
    pub body: Payload,
}

pub enum Payload {
    None,
    Plain(&'static [u8]),
    Chunked {
        payload: &'static [u8],
        size_line: fn(usize) -> String,
        trailer: &'static str,
    },
}

pub struct HttpConversation {
    pub name: &'static str,
    pub exchanges: Vec<HttpExchange>,
}

/// The dates of the primary's execution and of the survivor's. They have the same length, as all dates in HTTP do.
pub const DATES: [&str; 2] = ["Tue, 03 Mar 2026 09:59:58 GMT", "Wed, 04 Mar 2026 10:00:01 GMT"];

const BODY: &[u8] = b"The quick brown fox jumps over the lazy dog; 0123456789 abcdef, and again the dog.";

impl HttpConversation {
    pub fn input(&self) -> Vec<u8> {
        self.exchanges
            .iter()
            .flat_map(|exchange| exchange.request.bytes())
            .collect()
    }

    /// The input offset at which request `index` begins.
    pub fn start(&self, index: usize) -> u64 {
        self.exchanges[..index]
            .iter()
            .map(|exchange| exchange.request.len() as u64)
            .sum()
    }

    /// The replies to all requests from `first` on.
    pub fn output(&self, first: usize, date: &str, chunk: usize) -> Vec<u8> {
        self.exchanges[first..]
            .iter()
            .flat_map(|exchange| exchange.reply(date, chunk))
            .collect()
    }
}

impl HttpExchange {
    pub fn reply(&self, date: &str, chunk: usize) -> Vec<u8> {
        let mut reply = self.head.replace("DATE", date).into_bytes();
        match &self.body {
            Payload::None => {}
            Payload::Plain(payload) => reply.extend_from_slice(payload),
            Payload::Chunked {
                payload,
                size_line,
                trailer,
            } => {
                for data in payload.chunks(chunk) {
                    reply.extend_from_slice(size_line(data.len()).as_bytes());
                    reply.extend_from_slice(data);
                    reply.extend_from_slice(b"\r\n");
                }
                reply.extend_from_slice(size_line(0).as_bytes());
                reply.extend_from_slice(trailer.as_bytes());
            }
        }
        reply
    }
}

fn chunked(size_line: fn(usize) -> String, trailer: &'static str) -> Payload {
    Payload::Chunked {
        payload: BODY,
        size_line,
        trailer,
    }
}

fn conversation(name: &'static str, exchanges: Vec<HttpExchange>) -> HttpConversation {
    HttpConversation { name, exchanges }
}

pub fn with_length() -> HttpExchange {
    HttpExchange {
        request: "GET /file HTTP/1.1\r\nHost: a\r\n\r\n",
        head: "HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: DATE\r\nContent-Length: 82\r\nETag: \"5-e\"\r\n\r\n",
        body: Payload::Plain(BODY),
    }
}

pub fn with_chunks(size_line: fn(usize) -> String, trailer: &'static str) -> HttpExchange {
    HttpExchange {
        request: "GET /made HTTP/1.1\r\nHost: a\r\n\r\n",
        head: "HTTP/1.1 200 OK\r\nDate: DATE\r\nTransfer-Encoding: chunked\r\nSet-Cookie: a=b\r\n\r\n",
        body: chunked(size_line, trailer),
    }
}

pub fn until_close() -> HttpExchange {
    HttpExchange {
        request: "GET /old HTTP/1.0\r\n\r\n",
        head: "HTTP/1.1 200 OK\r\nDate: DATE\r\nConnection: close\r\n\r\n",
        body: Payload::Plain(BODY),
    }
}

fn without_body(request: &'static str, head: &'static str) -> HttpExchange {
    HttpExchange {
        request,
        head,
        body: Payload::None,
    }
}

/// Conversations with every framing, alone and pipelined.
pub fn all() -> Vec<HttpConversation> {
    let plain: fn(usize) -> String = |size| format!("{size:x}\r\n");
    let head = || {
        without_body(
            "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99\r\nDate: DATE\r\n\r\n",
        )
    };
    let not_modified = || {
        without_body(
            "GET / HTTP/1.1\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\nDate: DATE\r\nContent-Length: 7\r\n\r\n",
        )
    };
    let empty = || {
        without_body(
            "GET / HTTP/1.1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        )
    };
    let hints = || HttpExchange {
        head: "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nDate: DATE\r\nContent-Length: 82\r\n\r\n",
        ..with_length()
    };
    let http_1_0 = || HttpExchange {
        request: "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
        head: "HTTP/1.0 200 OK\r\nContent-Length: 82\r\nConnection: keep-alive\r\nDate: DATE\r\n\r\n",
        body: Payload::Plain(BODY),
    };
    let bare_feeds = || HttpExchange {
        request: "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        head: "HTTP/1.1 200 OK\nDate: DATE\nContent-Length: 82\n\n",
        body: Payload::Plain(BODY),
    };
    let closing = || HttpExchange {
        head: "HTTP/1.1 200 OK\r\nConnection: close\r\nDate: DATE\r\nContent-Length: 82\r\n\r\n",
        ..with_length()
    };
    vec![
        conversation("length", vec![with_length()]),
        conversation("chunked", vec![with_chunks(plain, "\r\n")]),
        conversation(
            "chunked, trailer",
            vec![with_chunks(plain, "X-Sum: 1\r\nDate: 0\r\n\r\n")],
        ),
        conversation(
            "chunked, padded",
            vec![with_chunks(|size| format!("{size:04X}  \r\n"), "\r\n")],
        ),
        conversation(
            "chunked, extension",
            vec![with_chunks(|size| format!("{size:x};n=\"v\"\r\n"), "\r\n")],
        ),
        conversation("until close", vec![until_close()]),
        conversation("HEAD", vec![head(), with_length()]),
        conversation("not modified, empty", vec![not_modified(), empty(), empty()]),
        conversation("interim", vec![hints(), hints()]),
        conversation("HTTP/1.0 keep-alive", vec![http_1_0(), http_1_0()]),
        conversation("bare line feeds", vec![bare_feeds(), bare_feeds()]),
        conversation("close after length", vec![with_length(), closing()]),
        conversation(
            "pipeline",
            vec![
                with_length(),
                with_chunks(plain, "\r\n"),
                head(),
                with_length(),
                until_close(),
            ],
        ),
    ]
}
