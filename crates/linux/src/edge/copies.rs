//! Reads the copies of packets that the eBPF programs make for the cache.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use proto::edge::EdgeDirection;
use proto::packet::Checksum;

use super::abi::RECORD_HEADER;
use crate::bpf::checksum::checksum_of;
use crate::bpf::ring::{NextRecord, Ring};

/// Number of bytes that are read before their space in the ring is freed.
const BATCH_BYTES: u64 = 1 << 20;

/// The header of a copied packet's record: time, string, direction, sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeCopy {
    /// When the packet passed: nanoseconds of the monotonic clock.
    pub time_ns: u64,
    /// The string of the packet's flow.
    pub string: u8,
    /// Direction in which the packet passed.
    pub way: EdgeDirection,
    /// How far the packet's checksum can be trusted.
    pub checksum: Checksum,
    /// Payload in bytes of each segment into which the packet would have been cut. 0: the packet is one segment.
    pub gso_size: u16,
    /// Length of the whole packet in bytes. Greater than the length of the copy if only the first segment was copied.
    pub whole_len: u32,
}

/// The ring of copies.
pub struct EdgeCopies {
    ring: Ring,
}

impl EdgeCopies {
    pub(super) fn new(ring: Ring) -> Self {
        Self { ring }
    }

    /// Hands at most `max` copies to `each`. The packet of a copy begins with its IP header. Stops at a copy that is still being written.
    /// Returns the number of handled copies.
    pub fn drain(&mut self, max: usize, mut each: impl FnMut(&EdgeCopy, &[u8])) -> usize {
        let end = self.ring.end();
        let mut position = self.ring.handled();
        let mut freed = position;
        let mut handled = 0;
        while handled < max
            && let NextRecord::Record(place) = self.ring.look(&mut position, end, false)
        {
            let (copy, packet) = split(self.ring.data(place.at, place.len as usize));
            each(&copy, packet);
            handled += 1;
            position = place.next;
            if position - freed > BATCH_BYTES {
                self.free(position);
                freed = position;
            }
        }
        self.free(position);
        handled
    }

    fn free(&self, position: u64) {
        self.ring.consumer().store(position, Ordering::SeqCst);
    }

    /// Bytes in the ring that are not read yet.
    pub fn fill(&self) -> u64 {
        self.ring.fill()
    }
}

impl AsFd for EdgeCopies {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// Splits a `struct edge_record` from its packet, which may be followed by padding.
fn split(body: &[u8]) -> (EdgeCopy, &[u8]) {
    let (head, packet) = body.split_at(RECORD_HEADER);
    let word = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().expect("4 bytes"));
    let copy = EdgeCopy {
        time_ns: u64::from_ne_bytes(head[..8].try_into().expect("8 bytes")),
        string: head[18],
        way: if head[19] == 0 {
            EdgeDirection::Entering
        } else {
            EdgeDirection::Leaving
        },
        checksum: checksum_of(head[20]),
        gso_size: u16::from_ne_bytes([head[16], head[17]]),
        whole_len: word(12),
    };
    (copy, &packet[..word(8) as usize])
}
