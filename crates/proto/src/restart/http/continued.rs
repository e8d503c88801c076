//! Continues a body that was cut: compares the regenerated body with the part that the client has, then passes on the rest.

use std::fmt;

use super::body::{Body, BodyPiece, BodyPosition, ChunkPosition, SizeLine, take};
use super::lines::Volatile;
use super::reason::HttpMismatch;
use super::resume::BodyPrefix;
use crate::restart::digest::Digest;

/// Follows a regenerated body.
pub(super) struct Continued {
    body: Body,
    client: ClientPosition,
}

/// The client's position in the same body, relative to the application's position.
enum ClientPosition {
    /// At the same payload byte, but with other chunk boundaries.
    Apart(ChunkPosition),
    /// The client has all that the application has regenerated so far, and more.
    Ahead(Box<Ahead>),
    /// At the same place: bytes pass unchanged.
    Level,
}

struct Ahead {
    regenerated: Digest,
    prefix: BodyPrefix,
}

impl Continued {
    /// Starts at the beginning of `body`, of which the client has `prefix`.
    pub fn new(
        body: Body,
        prefix: Option<BodyPrefix>,
        to_client: &mut Vec<u8>,
    ) -> Result<Self, HttpMismatch> {
        let Some(prefix) = prefix else {
            return Ok(Self {
                body,
                client: ClientPosition::Level,
            });
        };
        match (&body, &prefix.position) {
            (Body::Chunked(_), BodyPosition::Chunked(_))
            | (Body::Length { .. }, BodyPosition::Length)
            | (Body::UntilClose, BodyPosition::UntilClose) => {}
            _ => return Err(HttpMismatch::Framing),
        }
        let ahead = Ahead {
            regenerated: Digest::new(),
            prefix,
        };
        let mut continued = Self {
            body,
            client: ClientPosition::Ahead(Box::new(ahead)),
        };
        continued.on_payload(&[], to_client)?; // in case the client has no payload yet
        Ok(continued)
    }

    /// Whether the message has ended.
    pub const fn is_complete(&self) -> bool {
        self.body.is_complete()
    }

    /// Whether all bytes up to the stream's end belong to this body and pass unchanged.
    pub const fn is_open_ended(&self) -> bool {
        matches!(
            (&self.body, &self.client),
            (Body::UntilClose, ClientPosition::Level)
        )
    }

    /// The mismatch to report if the application closes before the body is complete.
    pub fn ended_early(&self) -> HttpMismatch {
        match (&self.body, &self.client) {
            (Body::UntilClose, ClientPosition::Ahead(_)) => HttpMismatch::BodyTooShort,
            _ => HttpMismatch::EndedEarly,
        }
    }

    /// Takes one piece from the front of `bytes`.
    pub fn step(
        &mut self,
        bytes: &mut &[u8],
        volatile: &Volatile,
        to_client: &mut Vec<u8>,
    ) -> Result<(), HttpMismatch> {
        let before = *bytes;
        let piece = self.body.next(bytes)?;
        if matches!(self.client, ClientPosition::Level) {
            to_client.extend_from_slice(&before[..before.len() - bytes.len()]);
            return Ok(());
        }
        match piece {
            None | Some(BodyPiece::DataEnd) => Ok(()),
            Some(BodyPiece::Payload(payload)) => self.on_payload(payload, to_client),
            Some(BodyPiece::SizeLine(size, line)) => self.on_size_line(size, &line, to_client),
            Some(BodyPiece::Trailer(lines)) => self.on_trailer(&lines, volatile, to_client),
        }
    }

    fn on_payload(&mut self, mut payload: &[u8], to_client: &mut Vec<u8>) -> Result<(), HttpMismatch> {
        if let ClientPosition::Ahead(ahead) = &mut self.client {
            ahead.take(&mut payload);
            if ahead.regenerated.bytes() < ahead.prefix.bytes {
                return Ok(());
            }
            self.client = ahead.arrive(to_client)?;
        }
        while let ClientPosition::Apart(position) = &mut self.client
            && !payload.is_empty()
        {
            match position {
                ChunkPosition::Data { left } => {
                    to_client.extend_from_slice(take(left, &mut payload));
                    if *left == 0 {
                        to_client.extend_from_slice(b"\r\n");
                        *position = ChunkPosition::START;
                    }
                }
                ChunkPosition::SizeLine(said) => {
                    let in_chunk = self.body.left_in_chunk() + payload.len() as u64;
                    self.client = open_chunk(said, in_chunk, to_client)?;
                }
                ChunkPosition::DataEnd { .. } | ChunkPosition::Trailer(_) => {
                    return Err(HttpMismatch::BodyTooLong);
                }
            }
        }
        to_client.extend_from_slice(payload);
        Ok(())
    }

    fn on_size_line(&mut self, size: u64, line: &[u8], to_client: &mut Vec<u8>) -> Result<(), HttpMismatch> {
        match &self.client {
            ClientPosition::Apart(ChunkPosition::SizeLine(said)) => {
                self.client = if let Some(rest) = line.strip_prefix(said.as_slice()) {
                    to_client.extend_from_slice(rest);
                    ClientPosition::Level
                } else if size == 0 {
                    close_chunks(said, to_client)?
                } else {
                    open_chunk(said, size, to_client)?
                };
                Ok(())
            }
            ClientPosition::Apart(ChunkPosition::Trailer(_)) if size > 0 => Err(HttpMismatch::BodyTooLong),
            ClientPosition::Apart(ChunkPosition::Trailer(_)) => Ok(()),
            ClientPosition::Apart(_) | ClientPosition::Ahead(_) if size == 0 => {
                Err(HttpMismatch::BodyTooShort)
            }
            ClientPosition::Apart(_) | ClientPosition::Ahead(_) | ClientPosition::Level => Ok(()),
        }
    }

    fn on_trailer(
        &self,
        lines: &[u8],
        volatile: &Volatile,
        to_client: &mut Vec<u8>,
    ) -> Result<(), HttpMismatch> {
        if let ClientPosition::Apart(ChunkPosition::Trailer(said)) = &self.client {
            to_client.extend_from_slice(&volatile.continue_section(said, lines)?);
        }
        Ok(())
    }
}

impl Ahead {
    /// Hashes the part of `payload` that the client has, and removes it from `payload`.
    fn take(&mut self, payload: &mut &[u8]) {
        let mut missing = self.prefix.bytes - self.regenerated.bytes();
        self.regenerated.write(take(&mut missing, payload));
    }

    /// Call this when the application has regenerated as many bytes as the client has. If these bytes are the same, the
    /// client gets the bytes that follow.
    fn arrive(&self, to_client: &mut Vec<u8>) -> Result<ClientPosition, HttpMismatch> {
        if self.regenerated.of_all() != self.prefix.digest {
            let bytes = self.prefix.bytes;
            return Err(HttpMismatch::Body { bytes });
        }
        Ok(match &self.prefix.position {
            BodyPosition::Length | BodyPosition::UntilClose => ClientPosition::Level,
            BodyPosition::Chunked(ChunkPosition::DataEnd { has_cr }) => {
                to_client.extend_from_slice(if *has_cr { b"\n" } else { b"\r\n" });
                ClientPosition::Apart(ChunkPosition::START)
            }
            BodyPosition::Chunked(position) => ClientPosition::Apart(position.clone()),
        })
    }
}

/// Completes a size line of which the client has `said`. `in_chunk` more payload bytes belong to the application's chunk. If the line can
/// be completed to that number, the client's and the application's chunk end at the same place. Otherwise the digits in `said` become the
/// length of the client's chunk. The size that the primary was sending begins with these digits, so the rest of the primary's body is at
/// least as long as they say.
fn open_chunk(said: &[u8], in_chunk: u64, to_client: &mut Vec<u8>) -> Result<ClientPosition, HttpMismatch> {
    let line = SizeLine::split(said);
    let size = format!("{in_chunk:x}");
    if line.rest.is_empty() {
        let is_open = line.digits.iter().all(|&digit| digit == b'0'); // no digits, or leading zeros: any size may follow
        let rest = if is_open {
            Some(size.as_bytes())
        } else {
            size.as_bytes().strip_prefix(line.digits)
        };
        if let Some(rest) = rest {
            to_client.extend_from_slice(rest);
            to_client.extend_from_slice(b"\r\n");
            return Ok(ClientPosition::Level);
        }
    }
    match line.size() {
        _ if line.has_extension() => Err(HttpMismatch::ChunkExtension),
        Some(left) if left > 0 => {
            to_client.extend_from_slice(line_end(said));
            Ok(ClientPosition::Apart(ChunkPosition::Data { left }))
        }
        Some(_) => Err(HttpMismatch::BodyTooLong),
        None => Err(HttpMismatch::Framing),
    }
}

/// Completes a size line of which the client has `said`, when the application's payload has ended.
fn close_chunks(said: &[u8], to_client: &mut Vec<u8>) -> Result<ClientPosition, HttpMismatch> {
    let line = SizeLine::split(said);
    match line.size() {
        _ if line.has_extension() => Err(HttpMismatch::ChunkExtension),
        Some(0) => {
            to_client.extend_from_slice(line_end(said));
            Ok(ClientPosition::Level)
        }
        Some(_) => Err(HttpMismatch::BodyTooShort),
        None => Err(HttpMismatch::Framing),
    }
}

fn line_end(said: &[u8]) -> &'static [u8] {
    if said.ends_with(b"\r") { b"\n" } else { b"\r\n" }
}

impl fmt::Debug for Continued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Continued({:?})", self.body)
    }
}
