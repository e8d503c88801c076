//! An HTTP/1.1 server whose replies are known byte by byte, but for `Date` and chunk boundaries, and a client that checks
//! them. It shares no code with [`proto::restart::http`].

mod client;
mod server;

use std::time::Duration;

use crate::exchange::Stream;

pub use client::{Client, Planned};
pub use server::Server;

/// How the end of a reply's body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// `Content-Length`.
    Length,
    /// The chunked coding; each server cuts its chunks in another way.
    Chunked,
    /// The connection ends with it.
    Close,
}

/// A request for `body`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// HEAD instead of GET.
    pub head_only: bool,
    /// Of the reply.
    pub framing: Framing,
    /// What is asked for.
    pub body: Stream,
    /// `Connection: close`.
    pub close: bool,
}

impl Request {
    /// As it is sent.
    pub fn text(&self) -> String {
        let method = if self.head_only { "HEAD" } else { "GET" };
        let framing = match self.framing {
            Framing::Length => "length",
            Framing::Chunked => "chunked",
            Framing::Close => "close",
        };
        let close = if self.close { "Connection: close\r\n" } else { "" };
        let Stream { seed, len } = self.body;
        format!("{method} /{framing}/{len}/{seed} HTTP/1.1\r\nHost: service\r\n{close}\r\n")
    }

    /// Of a header section without its blank line; `None` if it is none of ours.
    fn parse(head: &str) -> Option<Self> {
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let head_only = match words.next()? {
            "GET" => false,
            "HEAD" => true,
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
        let close = lines.any(|line| line == "Connection: close");
        Some(Self {
            head_only,
            framing,
            body: Stream::new(seed, len),
            close,
        })
    }

    /// Whether the connection ends with the reply.
    fn is_last(&self) -> bool {
        self.close || self.framing == Framing::Close
    }

    /// The reply's header lines, without `Date`.
    fn reply_lines(&self) -> Vec<String> {
        let Stream { seed, len } = self.body;
        let mut lines = vec![format!("ETag: \"{len}-{seed}\"")];
        lines.extend(match self.framing {
            Framing::Length => Some(format!("Content-Length: {len}")),
            Framing::Chunked => Some("Transfer-Encoding: chunked".to_owned()),
            Framing::Close => None,
        });
        if self.is_last() {
            lines.push("Connection: close".to_owned());
        }
        lines
    }
}

/// The blank line that ends a header section, with the end of the line before it.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// Takes a header section from the front of `bytes`, without its end; `None` as long as it is not complete.
fn take_head(bytes: &mut Vec<u8>) -> Option<String> {
    let end = bytes
        .windows(HEAD_END.len())
        .position(|window| window == HEAD_END)?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    bytes.drain(..end + HEAD_END.len());
    Some(head)
}

/// A node's own way to serve: what differs between two executions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Its dates and thoughts come from this.
    pub seed: u64,
    /// Its chunk sizes come from this.
    pub chunk_seed: u64,
    /// The longest time that it thinks about a request.
    pub think: Duration,
    /// Its longest chunk, in bytes.
    pub chunk_max: u32,
}
