//! Message bodies: separates payload from framing, in pieces of any size and without looking at each byte.

use serde::{Deserialize, Serialize};

use super::SIZE_LINE_MAX;
use super::section::{HttpFault, check_trailer, take_line, take_section};

/// Follows one message body. Bytes go in by [`next`](Self::next) until [`is_complete`](Self::is_complete).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    Chunked(Chunked),
    /// Content-Length, with the bytes that are still to come.
    Length {
        left: u64,
    },
    /// Ends with the stream.
    UntilClose,
}

/// Follows the chunked coding (RFC 9112 §7.1).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunked {
    pub position: ChunkPosition,
    is_complete: bool,
}

/// Position in a body's framing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BodyPosition {
    /// Inside the chunked coding.
    Chunked(ChunkPosition),
    /// Inside a body of a known length.
    Length,
    /// Inside a body that ends with the connection.
    UntilClose,
}

/// Position in the chunked coding (RFC 9112 §7.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChunkPosition {
    /// Inside a chunk's data, at least one byte before its end.
    Data {
        /// Payload bytes up to the chunk's end.
        left: u64,
    },
    /// After a chunk's data, before the end of the CRLF.
    DataEnd {
        /// The CR has been sent.
        has_cr: bool,
    },
    /// In or before a size line, with the part of it that was sent.
    SizeLine(Vec<u8>),
    /// After the last chunk's size line, with the part of the trailer that was sent.
    Trailer(Vec<u8>),
}

impl ChunkPosition {
    /// Before the first chunk.
    pub(super) const START: Self = Self::SizeLine(Vec::new());
}

/// A whole element of a body, or a part of its payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyPiece<'a> {
    /// The CRLF after a chunk's data.
    DataEnd,
    Payload(&'a [u8]),
    /// A chunk's size and the whole size line as received. Size 0: the last chunk.
    SizeLine(u64, Vec<u8>),
    /// The lines after the last chunk, with the blank line.
    Trailer(Vec<u8>),
}

impl Body {
    pub const fn chunked() -> Self {
        Self::Chunked(Chunked {
            position: ChunkPosition::START,
            is_complete: false,
        })
    }

    pub const fn is_complete(&self) -> bool {
        match self {
            Self::Chunked(chunked) => chunked.is_complete,
            Self::Length { left } => *left == 0,
            Self::UntilClose => false,
        }
    }

    /// Number of payload bytes that are still missing from the current chunk.
    pub const fn left_in_chunk(&self) -> u64 {
        match self {
            Self::Chunked(Chunked {
                position: ChunkPosition::Data { left },
                ..
            }) => *left,
            _ => 0,
        }
    }

    /// Takes one piece from the front of `bytes`. `None` if the bytes ended before the piece did. In that case the bytes are kept for the
    /// next call. Call this only while the body is not complete.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<BodyPiece<'a>>, HttpFault> {
        if bytes.is_empty() {
            return Ok(None);
        }
        match self {
            Self::Chunked(chunked) => chunked.next(bytes),
            Self::Length { left } => Ok(Some(BodyPiece::Payload(take(left, bytes)))),
            Self::UntilClose => Ok(Some(BodyPiece::Payload(std::mem::take(bytes)))),
        }
    }
}

impl Chunked {
    fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<BodyPiece<'a>>, HttpFault> {
        match &mut self.position {
            ChunkPosition::Data { left } => {
                let payload = take(left, bytes);
                if *left == 0 {
                    self.position = ChunkPosition::DataEnd { has_cr: false };
                }
                Ok(Some(BodyPiece::Payload(payload)))
            }
            ChunkPosition::DataEnd { has_cr } => {
                let wanted = if *has_cr { b'\n' } else { b'\r' };
                if bytes[0] != wanted {
                    return Err(HttpFault::ChunkEnd);
                }
                *bytes = &bytes[1..];
                if !*has_cr {
                    *has_cr = true;
                    return self.next_if_any(bytes);
                }
                self.position = ChunkPosition::START;
                Ok(Some(BodyPiece::DataEnd))
            }
            ChunkPosition::SizeLine(line) => {
                let ended = take_line(line, bytes);
                if line.len() > SIZE_LINE_MAX {
                    return Err(HttpFault::ChunkSize);
                }
                if !ended {
                    return Ok(None);
                }
                let line = std::mem::take(line);
                let size = SizeLine::split(&line).size().ok_or(HttpFault::ChunkSize)?;
                self.position = match size {
                    0 => ChunkPosition::Trailer(Vec::new()),
                    left => ChunkPosition::Data { left },
                };
                Ok(Some(BodyPiece::SizeLine(size, line)))
            }
            ChunkPosition::Trailer(lines) => {
                if !take_section(lines, bytes)? {
                    return Ok(None);
                }
                check_trailer(lines)?;
                self.is_complete = true;
                Ok(Some(BodyPiece::Trailer(std::mem::take(lines))))
            }
        }
    }

    fn next_if_any<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<BodyPiece<'a>>, HttpFault> {
        if bytes.is_empty() {
            Ok(None)
        } else {
            self.next(bytes)
        }
    }
}

/// The parts of a chunk's size line, which may be cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct SizeLine<'a> {
    pub digits: &'a [u8],
    /// Padding, extensions and the line's end, as far as present.
    pub rest: &'a [u8],
}

impl<'a> SizeLine<'a> {
    pub fn split(line: &'a [u8]) -> Self {
        let end = line
            .iter()
            .position(|byte| !byte.is_ascii_hexdigit())
            .unwrap_or(line.len());
        let (digits, rest) = line.split_at(end);
        Self { digits, rest }
    }

    /// Returns the size that the digits give. Returns `None` if there are no digits, or if the bytes after the digits are not allowed
    /// there. A CR or LF that does not end the line is not allowed: receivers disagree about where such a line ends.
    pub fn size(self) -> Option<u64> {
        let cut = self.rest.strip_suffix(b"\r").unwrap_or(self.rest);
        let rest = self.rest.strip_suffix(b"\r\n").unwrap_or(cut);
        let padding = rest
            .iter()
            .take_while(|byte| matches!(byte, b' ' | b'\t'))
            .count();
        let is_text = |byte: &u8| *byte == b'\t' || !byte.is_ascii_control();
        if !matches!(rest.get(padding), None | Some(b';')) || !rest.iter().all(is_text) {
            return None;
        }
        u64::from_str_radix(str::from_utf8(self.digits).ok()?, 16).ok()
    }

    /// Whether an extension has begun.
    pub fn has_extension(self) -> bool {
        self.rest.contains(&b';')
    }
}

/// Splits up to `left` bytes off the front of `bytes` and subtracts them from `left`.
pub(super) fn take<'a>(left: &mut u64, bytes: &mut &'a [u8]) -> &'a [u8] {
    let count = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    *left -= count as u64;
    taken
}
