//! Packets: a common header and chunks (RFC 9260 §3.1).
//!
//! ```text
//!   2 bytes       2 bytes            4 bytes             4 bytes
//!  ┌─────────────┬──────────────────┬───────────────────┬──────────────────────┬───────┬───────┬─ ─
//!  │ source port │ destination port │ verification tag  │ CRC32c, little-endian │ chunk │ chunk │
//!  └─────────────┴──────────────────┴───────────────────┴──────────────────────┴───────┴───────┴─ ─
//! ```
//!
//! The state machines and the simulator handle packets as values. Only a real network needs their bytes.

use bytes::Bytes;

use super::chunk::SctpChunk;
use super::tlv::{FieldReader, MalformedSctp, TLV_HEADER, align, padded, padding};

/// An SCTP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SctpPacket {
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    /// The tag that the receiver chose, or 0 in a packet with an INIT.
    pub tag: u32,
    /// The chunks, at least one in a valid packet.
    pub chunks: Vec<SctpChunk>,
}

/// Bytes of the common header.
pub const COMMON_HEADER: usize = 12;
/// The checksum's place.
const CHECKSUM: std::ops::Range<usize> = 8..12;

impl SctpPacket {
    /// Reads a packet: the payload of an IP packet, or of a datagram of UDP port 9899 (RFC 6951). Only data that is less than half of the
    /// packet is copied.
    ///
    /// # Errors
    /// If the packet is malformed. Then drop the whole packet, since no chunk of it can be trusted.
    pub fn parse(bytes: &Bytes) -> Result<Self, MalformedSctp> {
        let mut fields = FieldReader::new(bytes.clone(), "the common header");
        let (source_port, destination_port) = (fields.u16()?, fields.u16()?);
        let tag = fields.u32()?;
        fields.u32()?;
        if bytes[CHECKSUM] != checksum(bytes) {
            return Err(MalformedSctp::Checksum);
        }
        let mut rest = FieldReader::new(fields.rest(), "a chunk");
        let mut chunks = Vec::new();
        while rest.end().is_err() {
            let [kind, flags] = rest.u16()?.to_be_bytes();
            let length = usize::from(rest.u16()?);
            let of_value = length
                .checked_sub(TLV_HEADER)
                .ok_or(MalformedSctp::Length("a chunk"))?;
            let value = rest.take(of_value)?;
            rest.take(padding(length))?;
            chunks.push(SctpChunk::parse(kind, flags, value)?.detached(bytes.len()));
        }
        match chunks.len() {
            0 => return Err(MalformedSctp::Empty),
            1 => {}
            _ if chunks.iter().any(SctpChunk::is_alone) => return Err(MalformedSctp::Bundled),
            _ => {}
        }
        Ok(Self {
            source_port,
            destination_port,
            tag,
            chunks,
        })
    }

    /// The packet's bytes, with its checksum.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.wire_bytes());
        self.emit_behind(&mut out);
        out
    }

    /// Appends the packet to `out`. `out` may hold other packets; its length must be a multiple of four bytes. Returns the packet's length.
    pub fn emit_behind(&self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        out.extend_from_slice(&self.source_port.to_be_bytes());
        out.extend_from_slice(&self.destination_port.to_be_bytes());
        out.extend_from_slice(&self.tag.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        for chunk in &self.chunks {
            chunk.emit(out);
        }
        align(out);
        let packet = &mut out[start..];
        let sum = checksum(packet);
        packet[CHECKSUM].copy_from_slice(&sum);
        packet.len()
    }

    /// Number of bytes that [`emit`](Self::emit) writes.
    pub fn wire_bytes(&self) -> usize {
        let of_chunks: usize = self.chunks.iter().map(|chunk| padded(chunk.wire_bytes())).sum();
        COMMON_HEADER + of_chunks
    }
}

/// The CRC32c of a packet, as the bytes of its checksum field. The field itself counts as zeros (RFC 9260 §6.8).
fn checksum(packet: &[u8]) -> [u8; 4] {
    let before = crc32c::crc32c(&packet[..CHECKSUM.start]);
    let with_field = crc32c::crc32c_append(before, &[0; 4]);
    crc32c::crc32c_append(with_field, &packet[CHECKSUM.end..]).to_le_bytes()
}
