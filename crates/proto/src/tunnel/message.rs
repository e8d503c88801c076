//! Messages of a tunnel: one byte of kind, then the content.

use bytes::Bytes;
use thiserror::Error;

/// Maximum number of data bytes in one message. With its kind byte and its authentication tag (the seal), the message is smaller than
/// 16 KiB. So an association can carry it if both ends' buffers have at least 32 KiB: a message may have half of the smaller buffer.
pub const DATA_MAX: usize = 16_000;
/// Maximum length of a service's name, in bytes.
pub const SERVICE_MAX: usize = 255;

/// A message about one connection. The stream that carries the message identifies the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelMessage {
    /// Connect to this service.
    Open(String),
    /// Data of the connection.
    Data(Bytes),
    /// No more data follows in this direction.
    End,
    /// The connection is aborted.
    Reset,
    /// The receiver of this message may send this number of further bytes.
    Credit(u32),
    /// Both directions have ended: the last message of this end about the connection.
    Closed,
}

/// A message that a peer of this version does not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a tunnel message of kind {kind} with {length} bytes is malformed")]
pub struct MalformedTunnel {
    kind: u8,
    length: usize,
}

impl TunnelMessage {
    /// The message's bytes.
    pub fn emit(&self) -> Vec<u8> {
        let (kind, content): (u8, &[u8]) = match self {
            Self::Open(service) => (1, service.as_bytes()),
            Self::Data(data) => (2, data),
            Self::End => (3, &[]),
            Self::Reset => (4, &[]),
            Self::Credit(bytes) => (5, &bytes.to_be_bytes()),
            Self::Closed => (6, &[]),
        };
        // Room for the kind byte, the content and the 16-byte authentication tag (the seal).
        let mut out = Vec::with_capacity(1 + content.len() + 16);
        out.push(kind);
        out.extend_from_slice(content);
        out
    }

    /// Reads a message.
    ///
    /// # Errors
    /// If `bytes` is not a valid message.
    pub fn parse(bytes: &Bytes) -> Result<Self, MalformedTunnel> {
        let kind = bytes.first().copied().unwrap_or(0);
        let malformed = MalformedTunnel {
            kind,
            length: bytes.len(),
        };
        let content = bytes.slice(1.min(bytes.len())..);
        match (kind, content.len()) {
            (1, 1..=SERVICE_MAX) => match std::str::from_utf8(&content) {
                Ok(service) => Ok(Self::Open(service.to_owned())),
                Err(_) => Err(malformed),
            },
            (2, 1..=DATA_MAX) => Ok(Self::Data(content)),
            (3, 0) => Ok(Self::End),
            (4, 0) => Ok(Self::Reset),
            (5, 4) => Ok(Self::Credit(u32::from_be_bytes([
                content[0], content[1], content[2], content[3],
            ]))),
            (6, 0) => Ok(Self::Closed),
            _ => Err(malformed),
        }
    }
}
