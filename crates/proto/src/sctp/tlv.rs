//! Fields of a packet. Parameters and error causes have a type, a length and a value (RFC 9260 §3.2.1, §3.3.10).
//!
//! ```text
//!    2 bytes   2 bytes    length − 4 bytes    up to 3 bytes
//!   ┌────────┬──────────┬───────────────────┬──────────────┐
//!   │ type   │ length   │ value             │ padding      │   the length counts type, length and value
//!   └────────┴──────────┴───────────────────┴──────────────┘
//! ```
//!
//! The writer pads in front of the next field, not behind the last one: the length of a chunk does not count the padding of its last
//! parameter (RFC 9260 §3.2).

use bytes::{Buf, Bytes};
use thiserror::Error;

/// Why a packet is dropped before it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MalformedSctp {
    /// The bytes end inside of a field.
    #[error("the packet ends inside of {0}")]
    Truncated(&'static str),
    /// A length that no such field has.
    #[error("{0} has an impossible length")]
    Length(&'static str),
    /// The CRC32c is wrong (RFC 9260 §6.8).
    #[error("the checksum is wrong")]
    Checksum,
    /// INIT, INIT ACK or SHUTDOWN COMPLETE beside another chunk (RFC 9260 §6.10).
    #[error("a chunk that must be alone is not alone")]
    Bundled,
    /// No chunk at all.
    #[error("the packet has no chunk")]
    Empty,
}

/// Bytes of one chunk that are read from front to back. `of` names the chunk in errors.
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

    /// Refuses bytes behind the last field.
    pub fn end(&self) -> Result<(), MalformedSctp> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(MalformedSctp::Length(self.of))
        }
    }

    /// The type and the value of the next parameter or cause. `None` at the end. The last one may lack its padding.
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

/// Bytes of type and length.
pub(super) const TLV_HEADER: usize = 4;

/// Number of bytes behind `length` bytes up to the next multiple of four.
pub(super) const fn padding(length: usize) -> usize {
    length.wrapping_neg() % 4
}

/// `length` with its padding.
pub(super) const fn padded(length: usize) -> usize {
    length + padding(length)
}

/// Pads `out` to a multiple of four.
pub(super) fn align(out: &mut Vec<u8>) {
    out.resize(padded(out.len()), 0);
}

/// Begins a field at the next multiple of four: `head` is the field's first two bytes. Returns the field's place for [`close`].
pub(super) fn open(out: &mut Vec<u8>, head: u16) -> usize {
    align(out);
    let start = out.len();
    out.extend_from_slice(&head.to_be_bytes());
    out.extend_from_slice(&[0; 2]);
    start
}

/// Ends the field that began at `start`: writes its length.
///
/// # Panics
/// If the field is longer than 65,535 bytes. The association never builds one: its packets fit the path's MTU.
pub(super) fn close(out: &mut [u8], start: usize) {
    let length = u16::try_from(out.len() - start).expect("a field of less than 64 KiB");
    out[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// Writes a parameter or cause.
pub(super) fn put_tlv(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let start = open(out, kind);
    out.extend_from_slice(value);
    close(out, start);
}

/// Reaction to a chunk or parameter of an unknown type: the two highest bits of the type say it (RFC 9260 §3.2, §3.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownReaction {
    /// Continue behind it. Otherwise the rest of the packet or chunk is not processed.
    pub continues: bool,
    /// Tell the peer that it was not recognised.
    pub reports: bool,
}

impl UnknownReaction {
    /// From the two highest bits of a type.
    pub(super) const fn of(bits: u8) -> Self {
        Self {
            continues: bits & 2 != 0,
            reports: bits & 1 != 0,
        }
    }
}
