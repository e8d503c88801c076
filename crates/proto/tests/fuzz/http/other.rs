//! Parses messages with kawa, the parser of the proxy Sōzu, for comparison.

use kawa::{AsBuffer, Block, Buffer, Kawa, Kind, StatusLine, h1};

/// One message.
#[derive(Debug, PartialEq, Eq)]
pub struct KawaMessage {
    /// Status of a reply.
    pub status: u16,
    pub payload: Vec<u8>,
    pub end: KawaEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KawaEnd {
    /// The message ends after this many bytes.
    At(usize),
    /// The stream does not contain the message's end yet.
    Open,
    /// The message ends with the stream.
    WithStream,
    /// The stream is no valid message.
    Wrong,
}

struct Bytes(Vec<u8>);

impl AsBuffer for Bytes {
    fn as_buffer(&self) -> &[u8] {
        &self.0
    }

    fn as_mut_buffer(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// The request at the beginning of `stream`. `stream` must not begin with blank lines.
pub fn request(stream: &[u8]) -> KawaMessage {
    read(Kind::Request, stream)
}

/// The reply at the beginning of `stream`.
pub fn reply(stream: &[u8], to_head: bool) -> KawaMessage {
    if !to_head {
        return read(Kind::Response, stream);
    }
    // The header of a reply to HEAD describes a body that is not sent, so parse the header only.
    let blank = stream.windows(4).position(|window| window == b"\r\n\r\n");
    let head = blank.map_or(stream, |blank| &stream[..blank + 4]);
    let message = read(Kind::Response, head);
    let is_whole = blank.is_some() && message.end != KawaEnd::Wrong;
    KawaMessage {
        end: if is_whole {
            KawaEnd::At(head.len())
        } else {
            message.end
        },
        ..message
    }
}

fn read(kind: Kind, stream: &[u8]) -> KawaMessage {
    let mut buffer = Buffer::new(Bytes(stream.to_vec()));
    buffer.fill(stream.len());
    let mut kawa = Kawa::new(kind, buffer);
    h1::parse(&mut kawa, &mut h1::NoCallbacks);
    let mut payload = Vec::new();
    for block in &kawa.blocks {
        if let Block::Chunk(chunk) = block {
            payload.extend_from_slice(chunk.data.data(kawa.storage.buffer()));
        }
    }
    let status = match kawa.detached.status_line {
        StatusLine::Response { code, .. } => code,
        _ => 0,
    };
    let is_sized = kawa.body_size != kawa::BodySize::Empty;
    let end = if kawa.is_error() {
        KawaEnd::Wrong
    } else if kawa.is_terminated() {
        KawaEnd::At(kawa.storage.head)
    } else if kawa.is_main_phase() && !is_sized {
        KawaEnd::WithStream
    } else {
        KawaEnd::Open
    };
    KawaMessage { status, payload, end }
}
