//! How far the checksum of a packet in a ring can be trusted.

use proto::packet::Checksum;

/// `RECORD_CHECKSUM_TRUSTED` of `bpf/abi.h`.
const TRUSTED: u8 = 1;
/// `RECORD_CHECKSUM_UNKNOWN` of `bpf/abi.h`.
const UNKNOWN: u8 = 2;

/// `RECORD_CUT` of `bpf/abi.h`.
const CUT: u8 = 4;

/// Returns how far a packet's checksum can be trusted, according to the `flags` of its record.
pub(crate) fn checksum_of(flags: u8) -> Checksum {
    match flags & (TRUSTED | UNKNOWN | CUT) {
        0 => Checksum::Unverified,
        UNKNOWN => Checksum::MaybePartial,
        CUT.. => Checksum::Cut,
        _ => Checksum::Trusted,
    }
}
