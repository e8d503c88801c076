//! The wire's log: several pinned rings that are read as one.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{Ordering, fence};

use proto::stream::{OnShelf, Shelf};

use super::abi::Record;
use crate::bpf::ring::{NextRecord, RecordLocation, Ring};

/// Number of bytes that are read before their space in the ring is freed. Large enough that freeing is rare. Small enough
/// that the bytes stay in the CPU's caches.
const BATCH_BYTES: u64 = 2 << 20;
/// Number of low bits of a place ([`OnShelf`]) that hold the position in a ring. The higher bits hold the ring's
/// number.
const RING_SHIFT: u32 = 60;

/// Several rings that together are one log. If there are two rings, each record contains a position in the other ring: the other ring's
/// records before that position must be read first.
pub struct RingLog {
    rings: Vec<Ring>,
}

impl RingLog {
    /// For each ring, the position up to which records are reserved now. If the agent closed a gate before this call, every record of a
    /// packet that passed the gate is before these positions. The memory barrier is the counterpart of `publish_before_looking` in
    /// `bpf/log.h` (docs/wire.md, The gate and the ring's end).
    pub fn ends(&self) -> Vec<u64> {
        fence(Ordering::SeqCst);
        self.rings.iter().map(Ring::end).collect()
    }

    /// Bytes logged and not yet handled.
    pub fn fill(&self) -> u64 {
        self.rings.iter().map(Ring::fill).sum()
    }

    /// Sum of the rings' sizes, in bytes.
    pub fn size(&self) -> u64 {
        self.rings.iter().map(|ring| ring.size()).sum()
    }

    /// Hands the records before `ends` to `reader`, at most `records_max` of them, and frees their space in the rings batch by
    /// batch. Stops at a record that is still being written. With `wait`, waits for that record instead: a takeover does so,
    /// because the program that writes the record will not take long. Returns the number of handled records, and whether `ends` were
    /// reached.
    pub fn drain(
        &self,
        ends: &[u64],
        records_max: usize,
        wait: bool,
        reader: &mut impl RecordReader,
    ) -> (usize, bool) {
        let mut handled = 0;
        loop {
            let batch = self.read(ends, records_max - handled, wait, reader);
            reader.keep(self);
            for (ring, position) in self.rings.iter().zip(&batch.positions) {
                ring.consumer().store(*position, Ordering::SeqCst);
            }
            handled += batch.records;
            if batch.records == 0 || batch.at_end || handled == records_max {
                return (handled, batch.at_end);
            }
        }
    }

    fn read(
        &self,
        ends: &[u64],
        records_max: usize,
        wait: bool,
        reader: &mut impl RecordReader,
    ) -> RingBatch {
        let mut batch = RingBatch {
            records: 0,
            positions: self.rings.iter().map(Ring::handled).collect(),
            at_end: false,
            found: vec![None; self.rings.len()],
        };
        let mut bytes = 0;
        while batch.records < records_max && bytes < BATCH_BYTES {
            let Some((index, place)) = self.next(ends, wait, &mut batch) else {
                break;
            };
            let (record, packet) = split(self.rings[index].data(place.at, place.len as usize));
            let at = place.at + size_of::<Record>() as u64;
            let source = OnShelf {
                shelf: self,
                place: at | (index as u64) << RING_SHIFT,
            };
            reader.record(&record, packet, source);
            batch.records += 1;
            batch.positions[index] = place.next;
            bytes += place.next - place.at;
        }
        batch
    }

    /// Returns the next record before `ends` that may be read now: it does not have to wait for a record in another ring.
    fn next(&self, ends: &[u64], wait: bool, batch: &mut RingBatch) -> Option<(usize, RecordLocation)> {
        batch.at_end = true;
        let positions = &mut batch.positions;
        for (index, ring) in self.rings.iter().enumerate() {
            batch.found[index] = match ring.look(&mut positions[index], ends[index], wait) {
                NextRecord::Record(place) => Some((index, place)),
                NextRecord::Busy => {
                    batch.at_end = false;
                    None
                }
                NextRecord::End => None,
            };
        }
        let next = batch.found.iter().flatten().find(|(index, place)| {
            let (record, _) = split(self.rings[*index].data(place.at, place.len as usize));
            let mut others = positions.iter().enumerate();
            others.all(|(other, &position)| other == *index || position >= record.after)
        });
        batch.at_end &= next.is_none();
        next.copied()
    }
}

/// Receives the records of a ring.
pub trait RecordReader {
    /// Takes a record with its packet. `source` is the packet's place in the ring. The packet stays there until [`keep`](Self::keep) has
    /// returned.
    fn record(&mut self, record: &Record, packet: &[u8], source: OnShelf<'_>);

    /// Called when the records so far are about to be removed from the rings. Copies from `shelf` the packets that the reader still needs.
    fn keep(&mut self, shelf: &dyn Shelf);
}

/// A closure as a reader. It keeps nothing of a record after the call.
impl<F: FnMut(&Record, &[u8])> RecordReader for F {
    fn record(&mut self, record: &Record, packet: &[u8], _: OnShelf<'_>) {
        self(record, packet);
    }

    fn keep(&mut self, _: &dyn Shelf) {}
}

/// Records that were read and are still in the rings.
struct RingBatch {
    records: usize,
    /// Position after these records, in each ring.
    positions: Vec<u64>,
    at_end: bool,
    /// For each ring, the ring's index and the record that was last found at its position, if any.
    found: Vec<Option<(usize, RecordLocation)>>,
}

impl Shelf for RingLog {
    fn bytes(&self, place: u64, len: usize) -> &[u8] {
        let ring = usize::try_from(place >> RING_SHIFT).expect("few rings");
        self.rings[ring].data(place & ((1 << RING_SHIFT) - 1), len)
    }
}

impl AsFd for RingLog {
    /// The descriptor of the first ring. While all rings are empty, the programs write to this ring only.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rings[0].as_fd()
    }
}

/// The two logs: one of known clients' connections, one of SYNs and strangers. The log of SYNs and strangers is read first, because the
/// records of a connection depend on its SYN.
pub struct Rings {
    /// Segments of connections.
    pub connections: RingLog,
    /// SYNs, SYN-ACKs, and segments of clients that are not known.
    pub opening: RingLog,
    /// The ends of the last drain, if it did not reach them. The next drain continues to them.
    under_way: Option<Ends>,
}

struct Ends {
    connections: Vec<u64>,
    opening: Vec<u64>,
}

impl Rings {
    pub(super) fn new(connections: Vec<Ring>, opening: Ring) -> Self {
        Self {
            connections: RingLog { rings: connections },
            opening: RingLog { rings: vec![opening] },
            under_way: None,
        }
    }

    /// Hands what was logged up to now to `reader`, SYNs and strangers first. First looks up the end of the log of connections (E1), then
    /// the end of the log of SYNs and strangers (E2). A client becomes known only after its SYN and its first segments were logged as a
    /// stranger's. So if a connection has records before E1, its SYN and its first segments are before E2. Hands over at most `records_max`
    /// records of each log. The next call goes on to the same ends before it looks for new ones, so a flood of SYNs cannot keep the
    /// connections from being read. With `wait`, takes new ends, and waits for records that are still being written. Returns how many
    /// records were handled.
    pub fn drain(&mut self, records_max: usize, wait: bool, reader: &mut impl RecordReader) -> usize {
        let ends = self.under_way.take().filter(|_| !wait).unwrap_or_else(|| {
            let connections = self.connections.ends();
            let opening = self.opening.ends();
            Ends { connections, opening }
        });
        let (mut handled, all_opened) = self.opening.drain(&ends.opening, records_max, wait, reader);
        if !all_opened {
            self.under_way = Some(ends);
            return handled; // the next call reads the rest of this log first
        }
        let (segments, all) = self
            .connections
            .drain(&ends.connections, records_max, wait, reader);
        handled += segments;
        if !all {
            self.under_way = Some(ends);
        }
        handled
    }

    /// Bytes logged and not yet handled.
    pub fn fill(&self) -> u64 {
        self.connections.fill() + self.opening.fill()
    }
}

/// Splits a record's header from its packet (which may be followed by padding).
fn split(body: &[u8]) -> (Record, &[u8]) {
    let (head, packet) = body.split_at(size_of::<Record>());
    let record = Record {
        time_ns: u64::from_ne_bytes(head[..8].try_into().expect("8 bytes")),
        len: u32::from_ne_bytes(head[8..12].try_into().expect("4 bytes")),
        service: u16::from_ne_bytes(head[12..14].try_into().expect("2 bytes")),
        direction: head[14],
        flags: head[15],
        after: u64::from_ne_bytes(head[16..].try_into().expect("8 bytes")),
    };
    let len = record.len as usize;
    (record, &packet[..len])
}
