//! The commit modes, and the copies without payload that the mode `pr` sends to the wire (docs/commit-modes.md, `bpf/cut.h`).

use proto::packet::Segment;
use serde::{Deserialize, Serialize};

/// The commit mode of the simulated service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimCommit {
    /// Both directions go through the wire.
    #[default]
    Prs,
    /// Input goes through the wire. The primary sends output to the clients while it has a lease.
    Pr,
    /// As `Pr`, and packets for which the wire's log has no room pass unlogged.
    Immediate,
}

/// Offset of the byte with the data offset and the reserved bits in an IPv4 packet without IP options.
const RESERVED_AT: usize = 20 + 12;
/// The reserved bit of the TCP header that marks a copy, `CUT_BIT` in `bpf/abi.h`.
const CUT_BIT: u8 = 0x08;

/// A copy of `segment` whose payload is replaced by its length.
pub(super) fn cut(segment: &Segment<'_>) -> Vec<u8> {
    let length = u32::try_from(segment.payload.len()).expect("a packet is short");
    let length = length.to_be_bytes();
    let payload = if segment.payload.is_empty() {
        &[][..]
    } else {
        &length
    };
    let mut packet = Segment { payload, ..*segment }.emit();
    packet[RESERVED_AT] |= CUT_BIT;
    packet
}

/// Whether a TCP packet is a copy without payload.
pub(super) fn is_cut(packet: &[u8]) -> bool {
    packet.get(RESERVED_AT).is_some_and(|bits| bits & CUT_BIT != 0)
}
