//! An HTTP/1.1 server whose replies are known byte by byte, except for `Date` and chunk boundaries, and a client that checks
//! them. This module shares no code with [`proto::restart::http`].

mod client;
mod ledger;
mod line;
mod server;
mod upload;

use std::time::Duration;

use crate::exchange::SeededStream;

pub use client::{HttpClient, PlannedRequest};
pub use ledger::Ledger;
pub use server::HttpServer;
pub use upload::RequestBody;

use upload::Sum;

/// How the end of a reply's body is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// `Content-Length`.
    Length,
    /// The chunked coding. Each server chooses its own chunk sizes.
    Chunked,
    /// The connection ends with the body.
    Close,
}

/// Method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpMethod {
    /// Asks for the body.
    Get,
    /// Asks for the reply's header section only.
    Head,
    /// May be executed again.
    Put,
    /// Must not be executed again, unless the request has a key.
    Post,
}

/// A request whose reply has the body `body`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// Number of the request, unique in a `SimPair`.
    pub id: u64,
    /// Method of the request.
    pub method: HttpMethod,
    /// Body of the request.
    pub upload: Option<RequestBody>,
    /// The request carries an `Idempotency-Key`.
    pub has_key: bool,
    /// A server dies when it is given this request for re-execution.
    pub is_poison: bool,
    /// Framing of the reply.
    pub framing: Framing,
    /// Body of the reply.
    pub body: SeededStream,
    /// The request says `Connection: close`.
    pub close: bool,
}

impl HttpRequest {
    /// A plain GET that asks for `body`.
    pub const fn get(id: u64, body: SeededStream) -> Self {
        Self {
            id,
            method: HttpMethod::Get,
            upload: None,
            has_key: false,
            is_poison: false,
            framing: Framing::Length,
            body,
            close: false,
        }
    }

    /// The request's header section, as it is sent.
    pub fn head(&self) -> String {
        let method = match self.method {
            HttpMethod::Get => "GET",
            HttpMethod::Head => "HEAD",
            HttpMethod::Put => "PUT",
            HttpMethod::Post => "POST",
        };
        let framing = match self.framing {
            Framing::Length => "length",
            Framing::Chunked => "chunked",
            Framing::Close => "close",
        };
        let line = |is_there: bool, line: &'static str| if is_there { line } else { "" };
        let close = line(self.close, "Connection: close\r\n");
        let key = line(self.has_key, "Idempotency-Key: \"a\"\r\n");
        let poison = line(self.is_poison, "Poison: yes\r\n");
        let upload = self.upload.map(|upload| upload.lines()).unwrap_or_default();
        let SeededStream { seed, len } = self.body;
        format!(
            "{method} /{framing}/{len}/{seed}/{} HTTP/1.1\r\nHost: service\r\n{close}{key}{poison}{upload}\r\n",
            self.id
        )
    }

    /// Whether the pair may execute the request again.
    pub const fn is_repeatable(&self) -> bool {
        self.has_key || !matches!(self.method, HttpMethod::Post)
    }

    /// Parses a header section without its blank line. `None` if [`head`](Self::head) does not make such a section.
    fn parse(head: &str) -> Option<Self> {
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let method = match words.next()? {
            "GET" => HttpMethod::Get,
            "HEAD" => HttpMethod::Head,
            "PUT" => HttpMethod::Put,
            "POST" => HttpMethod::Post,
            _ => return None,
        };
        let mut path = words.next()?.strip_prefix('/')?.split('/');
        let framing = match path.next()? {
            "length" => Framing::Length,
            "chunked" => Framing::Chunked,
            "close" => Framing::Close,
            _ => return None,
        };
        let len = path.next()?.parse().ok()?;
        let seed = path.next()?.parse().ok()?;
        let id = path.next()?.parse().ok()?;
        let has = |name: &str| lines.clone().any(|line| line.starts_with(name));
        let length = lines
            .clone()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let chunked = has("Transfer-Encoding: ");
        let length = length.map_or(Some(0), |length| length.parse().ok())?;
        let upload = RequestBody {
            body: SeededStream::new(0, length),
            chunked,
            expects: has("Expect: "),
        };
        Some(Self {
            id,
            method,
            upload: (chunked || has("Content-Length: ")).then_some(upload),
            has_key: has("Idempotency-Key: "),
            is_poison: has("Poison: "),
            framing,
            body: SeededStream::new(seed, len),
            close: has("Connection: close"),
        })
    }

    /// Whether the connection ends with the reply.
    fn is_last(&self) -> bool {
        self.close || self.framing == Framing::Close
    }

    fn etag(&self) -> String {
        let SeededStream { seed, len } = self.body;
        format!("\"{len}-{seed}\"")
    }

    /// Offset of the part that the header section `head` asks for; 0 for the whole body.
    fn part(&self, head: &str) -> u64 {
        let value = |name: &str| head.split("\r\n").find_map(|line| line.strip_prefix(name));
        let from = value("Range: bytes=").and_then(|range| range.strip_suffix('-')?.parse().ok());
        let is_same = value("If-Range: ") == Some(&self.etag()) && self.framing == Framing::Length;
        from.filter(|&from| is_same && from < self.body.len).unwrap_or(0)
    }

    /// The reply's header lines, without `Date`. The reply's body begins at offset `from` of the whole body. `sum` is the sum of the
    /// upload.
    fn reply_lines(&self, from: u64, sum: Sum) -> Vec<String> {
        let len = self.body.len;
        let mut lines = vec![format!("ETag: {}", self.etag()), format!("Uploaded: {sum}")];
        if from > 0 {
            lines.push(format!("Content-Range: bytes {from}-{}/{len}", len - 1));
        } else if self.framing == Framing::Length {
            lines.push("Accept-Ranges: bytes".to_owned());
        }
        lines.extend(match self.framing {
            Framing::Length => Some(format!("Content-Length: {}", len - from)),
            Framing::Chunked => Some("Transfer-Encoding: chunked".to_owned()),
            Framing::Close => None,
        });
        if self.is_last() {
            lines.push("Connection: close".to_owned());
        }
        lines
    }
}

/// Parameters of a node's server. Two executions of a request differ only because of these parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Number of the node.
    pub node: u64,
    /// Seed of the node's dates and of the time that its server takes for each request.
    pub seed: u64,
    /// Seed of the node's chunk sizes.
    pub chunk_seed: u64,
    /// Longest time that the server takes for a request.
    pub think: Duration,
    /// Size of the longest chunk, in bytes.
    pub chunk_max: u32,
}
