//! Reads and writes the fields of a packet. Each parameter and each error cause is a TLV: it has a type, a length and a value (RFC 9260
//! §3.2.1, §3.3.10).
//!
//! ```text
//!    2 bytes   2 bytes    length − 4 bytes    up to 3 bytes
//!   ┌────────┬──────────┬───────────────────┬──────────────┐
//!   │ type   │ length   │ value             │ padding      │   the length counts type, length and value
//!   └────────┴──────────┴───────────────────┴──────────────┘
//! ```
//!
//! The writer adds the padding of a field when it begins the next field. So the last field has no padding: the length of a chunk does not
//! count the padding of the chunk's last parameter (RFC 9260 §3.2).

use bytes::{Buf, Bytes};
use thiserror::Error;

/// Why a packet cannot be read as SCTP. Such a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MalformedSctp {
    /// The packet ends in the middle of a field.
    #[error("the packet ends inside {0}")]
    Truncated(&'static str),
    /// A field has a length that is impossible for this kind of field.
    #[error("{0} has an impossible length")]
    Length(&'static str),
    /// The CRC32c is wrong (RFC 9260 §6.8).
    #[error("the checksum is wrong")]
    Checksum,
    /// The packet has an INIT, INIT ACK or SHUTDOWN COMPLETE together with another chunk (RFC 9260 §6.10).
    #[error("a chunk that must be alone is not alone")]
    Bundled,
    /// The packet has no chunk.
    #[error("the packet has no chunk")]
    Empty,
}

/// Reads the bytes of one chunk from front to back. Its errors name the chunk as `of`.
pub(super) struct FieldReader {
    rest: Bytes,
    of: &'static str,
}

impl FieldReader {
    pub const fn new(rest: Bytes, of: &'static str) -> Self {
        Self { rest, of }
    }

    /// The next `length` bytes.
    pub fn take(&mut self, length: usize) -> Result<Bytes, MalformedSctp> {
        if length > self.rest.len() {
            return Err(MalformedSctp::Truncated(self.of));
        }
        Ok(self.rest.split_to(length))
    }

    /// All bytes that are left.
    pub fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.rest)
    }

    pub fn u16(&mut self) -> Result<u16, MalformedSctp> {
        self.rest
            .try_get_u16()
            .map_err(|_| MalformedSctp::Truncated(self.of))
    }

    pub fn u32(&mut self) -> Result<u32, MalformedSctp> {
        self.rest
            .try_get_u32()
            .map_err(|_| MalformedSctp::Truncated(self.of))
    }

    /// Ends the reading. Fails if there are bytes behind the last field.
    pub fn end(&self) -> Result<(), MalformedSctp> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(MalformedSctp::Length(self.of))
        }
    }

    /// Reads the type and the value of the next parameter or cause. `None` at the end of the bytes. The last parameter or cause may lack
    /// its padding.
    pub fn tlv(&mut self) -> Result<Option<(u16, Bytes)>, MalformedSctp> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let kind = self.u16()?;
        let length = usize::from(self.u16()?);
        let of_value = length
            .checked_sub(TLV_HEADER)
            .ok_or(MalformedSctp::Length(self.of))?;
        let value = self.take(of_value)?;
        let padding = padding(length).min(self.rest.len());
        self.rest.advance(padding);
        Ok(Some((kind, value)))
    }
}

/// Length in bytes of the type and length in front of a value.
pub(super) const TLV_HEADER: usize = 4;

/// Number of bytes of padding that follow `length` bytes, up to the next multiple of four.
pub(super) const fn padding(length: usize) -> usize {
    length.wrapping_neg() % 4
}

/// `length`, rounded up to a multiple of four.
pub(super) const fn padded(length: usize) -> usize {
    length + padding(length)
}

/// Pads `out` to a multiple of four.
pub(super) fn align(out: &mut Vec<u8>) {
    out.resize(padded(out.len()), 0);
}

/// Begins a field or a chunk in `out`, at the next multiple of four. `head` is its first two bytes: the type of a field, or the type and
/// the flags of a chunk. Returns the offset in `out` at which it begins, for [`close`].
pub(super) fn open(out: &mut Vec<u8>, head: u16) -> usize {
    align(out);
    let start = out.len();
    out.extend_from_slice(&head.to_be_bytes());
    out.extend_from_slice(&[0; 2]);
    start
}

/// Ends the field or chunk that begins at offset `start`: writes its length.
///
/// # Panics
/// If the field is longer than 65,535 bytes. The association never builds such a field, because its packets fit the path's MTU.
pub(super) fn close(out: &mut [u8], start: usize) {
    let length = u16::try_from(out.len() - start).expect("a field of less than 64 KiB");
    out[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// Writes a whole parameter or cause.
pub(super) fn put_tlv(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let start = open(out, kind);
    out.extend_from_slice(value);
    close(out, start);
}

/// Reaction to a chunk or parameter of an unknown type. The two highest bits of the type tell which reaction its sender wants (RFC 9260
/// §3.2, §3.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownReaction {
    /// Whether processing continues behind an unknown chunk or parameter. If not, the rest of the packet is dropped after an unknown chunk,
    /// and the rest of the chunk after an unknown parameter.
    pub continues: bool,
    /// Whether the peer is told that the chunk or parameter was not recognised.
    pub reports: bool,
}

impl UnknownReaction {
    /// The reaction that the two highest bits of a type tell. `bits` are these two bits, moved to the lowest places.
    pub(super) const fn of(bits: u8) -> Self {
        Self {
            continues: bits & 2 != 0,
            reports: bits & 1 != 0,
        }
    }
}
