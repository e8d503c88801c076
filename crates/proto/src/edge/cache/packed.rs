//! Storage for connections of which the cache holds only one packet, and this packet is small.
//!
//! ```text
//!   blocks    ┌ arrival, packet, arrival, packet, … ┐  ┌ arrival, packet, … ┐       in the order of the connections
//! ```
//!
//! An arrival is the connection's number in the order in which the cache began to hold packets; of this number, the low three bytes are
//! stored. The packet's length, connection and sequence numbers are read from the packet itself. So a flood of SYNs costs little more than
//! the SYNs' bytes.

use crate::Seq;
use crate::edge::EdgeSegment;

/// Maximum size in bytes of a block. The search within a block is linear.
const BLOCK_BYTES: usize = 2048;
/// Maximum length in bytes of a packet that is packed. The bookkeeping of a longer packet is small compared with the packet.
const PACKET_BYTES: usize = 512;
/// Two neighbouring blocks that have at most this many bytes together are merged.
const MERGED_BYTES: usize = BLOCK_BYTES / 4 * 3;
/// The allocation of a block grows and shrinks in steps of this many bytes, except when blocks are split or merged.
const STEP_BYTES: usize = 64;
/// Size in bytes of the arrival before each packet.
const ARRIVAL: usize = 3;
/// The bits of an arrival that are stored. No more connections than this arrive while a packet is held: the cache holds a packet for some
/// seconds.
const ARRIVAL_MASK: u32 = (1 << (8 * ARRIVAL)) - 1;

/// Functions that convert packets to bytes and back, and that read from the bytes the parts which the cache needs.
#[derive(Debug)]
pub struct PacketBytes<K, P> {
    /// A packet's bytes.
    pub bytes: fn(&P) -> &[u8],
    /// The packet with these bytes.
    pub packet: fn(&[u8]) -> P,
    /// The length of the packet with which these bytes begin.
    pub length: fn(&[u8]) -> Option<usize>,
    /// The connection of a packet that enters.
    pub key: fn(&[u8]) -> Option<K>,
    /// The parts of a packet.
    pub segment: fn(&[u8]) -> Option<EdgeSegment>,
}

impl<K, P> Clone for PacketBytes<K, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, P> Copy for PacketBytes<K, P> {}

/// The sequence numbers of a held packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldNumbers {
    pub seq: Seq,
    pub end: Seq,
    pub syn: bool,
}

/// Packets in blocks.
#[derive(Clone, Debug)]
pub(super) struct PackedPackets<K, P> {
    form: PacketBytes<K, P>,
    blocks: Vec<PackedBlock>,
    packets: usize,
    packet_bytes: usize,
    /// Bytes that are allocated for blocks.
    block_bytes: usize,
    /// The highest arrival so far.
    latest: u64,
}

/// A block.
#[derive(Clone, Debug, Default)]
struct PackedBlock {
    bytes: Vec<u8>,
    /// The highest arrival in the block.
    newest: u64,
}

/// The place of a connection's packet, or the place at which it would be inserted.
struct PackedPlace {
    block: usize,
    at: usize,
    is_held: bool,
}

/// A packet in a block.
#[derive(Clone, Copy)]
struct PackedRecord<'a> {
    arrival: u64,
    packet: &'a [u8],
}

impl PackedRecord<'_> {
    /// Size in bytes of the record.
    const fn len(&self) -> usize {
        ARRIVAL + self.packet.len()
    }
}

/// The records of a block from `at` on. `length` and `latest`: see [`PacketBytes`] and [`PackedPackets`].
fn records(
    block: &[u8],
    mut at: usize,
    length: fn(&[u8]) -> Option<usize>,
    latest: u64,
) -> impl Iterator<Item = PackedRecord<'_>> {
    std::iter::from_fn(move || {
        let (low, rest) = block.get(at..)?.split_first_chunk::<ARRIVAL>()?;
        // The stored bytes are those of `latest`, or of a number before it.
        let [low, middle, high] = *low;
        let before = (latest as u32).wrapping_sub(u32::from_le_bytes([low, middle, high, 0])) & ARRIVAL_MASK;
        let record = PackedRecord {
            arrival: latest.saturating_sub(before.into()),
            packet: rest.get(..length(rest)?)?,
        };
        at += record.len();
        Some(record)
    })
}

/// Inserts a packet.
fn insert_at(block: &mut Vec<u8>, at: usize, arrival: u64, packet: &[u8]) {
    let needed = block.len() + ARRIVAL + packet.len();
    block.reserve_exact(needed.next_multiple_of(STEP_BYTES) - block.len());
    block.extend(&arrival.to_le_bytes()[..ARRIVAL]);
    block.extend(packet);
    block[at..].rotate_right(ARRIVAL + packet.len());
}

/// Frees the memory that a block no longer needs.
fn shrink(block: &mut Vec<u8>) {
    let needed = block.len().next_multiple_of(STEP_BYTES);
    if block.capacity() >= needed + STEP_BYTES {
        block.shrink_to(needed);
    }
}

impl<K: Copy + Ord, P> PackedPackets<K, P> {
    pub const fn new(form: PacketBytes<K, P>) -> Self {
        Self {
            form,
            blocks: Vec::new(),
            packets: 0,
            packet_bytes: 0,
            block_bytes: 0,
            latest: 0,
        }
    }

    /// Number of packets.
    pub const fn len(&self) -> usize {
        self.packets
    }

    /// Bytes of the packets.
    pub const fn packet_bytes(&self) -> usize {
        self.packet_bytes
    }

    /// Bytes that are allocated.
    pub const fn memory(&self) -> usize {
        self.block_bytes + self.blocks.capacity() * size_of::<PackedBlock>()
    }

    /// Whether a packet can be packed: it is small, and its bytes say all that the cache knows of it.
    pub fn can_hold(&self, key: K, numbers: HeldNumbers, bytes: usize, packet: &P) -> bool {
        let packet = (self.form.bytes)(packet);
        packet.len() == bytes
            && bytes <= PACKET_BYTES
            && (self.form.length)(packet) == Some(bytes)
            && (self.form.key)(packet) == Some(key)
            && self.numbers_of(packet) == Some(numbers)
    }

    /// The records of a block from `at` on.
    fn records<'a>(
        &self,
        block: &'a PackedBlock,
        at: usize,
    ) -> impl Iterator<Item = PackedRecord<'a>> + use<'a, K, P> {
        records(&block.bytes, at, self.form.length, self.latest)
    }

    fn record(&self, place: &PackedPlace) -> Option<PackedRecord<'_>> {
        let block = place.is_held.then(|| &self.blocks[place.block])?;
        self.records(block, place.at).next()
    }

    /// The sequence numbers of a connection's packet.
    pub fn numbers(&self, key: K) -> Option<HeldNumbers> {
        self.numbers_of(self.record(&self.find(key))?.packet)
    }

    /// Size in bytes of a connection's packet. 0 if the connection has no packet here.
    pub fn bytes_of(&self, key: K) -> usize {
        self.record(&self.find(key))
            .map_or(0, |record| record.packet.len())
    }

    /// A connection's arrival.
    pub fn arrival(&self, key: K) -> Option<u64> {
        Some(self.record(&self.find(key))?.arrival)
    }

    /// The connection with the highest arrival.
    pub fn newest(&self) -> Option<(u64, K)> {
        let block = self.blocks.iter().max_by_key(|block| block.newest)?;
        let newest = self.records(block, 0).max_by_key(|record| record.arrival)?;
        Some((newest.arrival, (self.form.key)(newest.packet)?))
    }

    /// Number of blocks.
    pub const fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The connections of a block that have arrived before `arrival`.
    pub fn older(&self, block: usize, arrival: u64) -> Vec<K> {
        let records = self.blocks.get(block).map(|block| self.records(block, 0));
        let old = records
            .into_iter()
            .flatten()
            .filter(|record| record.arrival < arrival);
        old.filter_map(|record| (self.form.key)(record.packet)).collect()
    }

    /// Adds the packet of a connection that has no packet here.
    pub fn insert(&mut self, key: K, arrival: u64, packet: &P) {
        let packet = (self.form.bytes)(packet);
        let mut place = self.find(key);
        if self.blocks.is_empty() {
            self.blocks.push(PackedBlock::default());
        }
        if !self.has_room(place.block, packet) {
            place = self.make_room(key, place, packet);
        }
        self.latest = self.latest.max(arrival);
        self.change(place.block, |block| insert_at(block, place.at, arrival, packet));
        let newest = &mut self.blocks[place.block].newest;
        *newest = arrival.max(*newest);
        self.packets += 1;
        self.packet_bytes += packet.len();
    }

    /// Takes out the packet of a connection. Returns it with the connection's arrival.
    pub fn remove(&mut self, key: K) -> Option<(u64, P)> {
        let place = self.find(key);
        let record = self.record(&place)?;
        let (arrival, length, packet) = (record.arrival, record.len(), (self.form.packet)(record.packet));
        self.packets -= 1;
        self.packet_bytes -= length - ARRIVAL;
        self.change(place.block, |block| {
            block.drain(place.at..place.at + length);
            shrink(block);
        });
        self.note_newest(place.block);
        self.merge(place.block);
        Some((arrival, packet))
    }

    /// Takes out all packets, in the order of their connections.
    pub fn take_all(&mut self) -> impl Iterator<Item = (K, P)> + use<K, P> {
        let (form, latest) = (self.form, self.latest);
        (self.packets, self.packet_bytes, self.block_bytes) = (0, 0, 0);
        let blocks = std::mem::take(&mut self.blocks).into_iter();
        blocks.flat_map(move |block| {
            let mut at = 0;
            std::iter::from_fn(move || {
                let record = records(&block.bytes, at, form.length, latest).next()?;
                at += record.len();
                (form.key)(record.packet).map(|key| (key, (form.packet)(record.packet)))
            })
        })
    }

    fn numbers_of(&self, packet: &[u8]) -> Option<HeldNumbers> {
        let segment = (self.form.segment)(packet)?;
        Some(HeldNumbers {
            seq: segment.seq,
            end: segment.end(),
            syn: segment.syn,
        })
    }

    fn find(&self, key: K) -> PackedPlace {
        let first_key = |block: &PackedBlock| (self.form.key)(self.records(block, 0).next()?.packet);
        let after = self.blocks.partition_point(|block| first_key(block) <= Some(key));
        let mut place = PackedPlace {
            block: after.saturating_sub(1),
            at: 0,
            is_held: false,
        };
        let Some(block) = self.blocks.get(place.block) else {
            return place;
        };
        for record in self.records(block, 0) {
            let other = (self.form.key)(record.packet);
            if other >= Some(key) {
                place.is_held = other == Some(key);
                break;
            }
            place.at += record.len();
        }
        place
    }

    fn has_room(&self, block: usize, packet: &[u8]) -> bool {
        let block = self.blocks.get(block);
        block.is_some_and(|block| block.bytes.len() + ARRIVAL + packet.len() <= BLOCK_BYTES)
    }

    /// A place for a packet that does not fit into the block of `place`.
    fn make_room(&mut self, key: K, place: PackedPlace, packet: &[u8]) -> PackedPlace {
        let next = place.block + 1;
        let is_last = place.at == self.blocks[place.block].bytes.len();
        if !is_last {
            self.split(place.block);
            return self.find(key);
        }
        // A packet for the end of a full block goes into the next block, without a split. So blocks stay full if connections are inserted
        // in the order of their keys.
        if !self.has_room(next, packet) {
            self.blocks.insert(next, PackedBlock::default());
        }
        PackedPlace {
            block: next,
            at: 0,
            is_held: false,
        }
    }

    /// Divides a block into two of about the same length.
    fn split(&mut self, index: usize) {
        let block = &self.blocks[index];
        let mut middle = 0;
        for record in self.records(block, 0) {
            if middle >= block.bytes.len() / 2 {
                break;
            }
            middle += record.len();
        }
        let mut rest = Vec::new();
        self.change(index, |block| {
            rest = block.split_off(middle);
            shrink(block);
        });
        self.block_bytes += rest.capacity();
        let right = PackedBlock {
            bytes: rest,
            newest: 0,
        };
        self.blocks.insert(index + 1, right);
        self.note_newest(index);
        self.note_newest(index + 1);
    }

    /// Removes a block that is empty, or joins it with a neighbour if both are small.
    fn merge(&mut self, index: usize) {
        if self.blocks[index].bytes.is_empty() {
            self.block_bytes -= self.blocks.remove(index).bytes.capacity();
        } else {
            for left in [Some(index), index.checked_sub(1)].into_iter().flatten() {
                if let Some([one, other]) = self.blocks.get(left..left + 2)
                    && one.bytes.len() + other.bytes.len() <= MERGED_BYTES
                {
                    let right = self.blocks.remove(left + 1).bytes;
                    self.block_bytes -= right.capacity();
                    self.change(left, |block| {
                        block.reserve_exact(right.len());
                        block.extend(right);
                    });
                    self.note_newest(left);
                    break;
                }
            }
        }
        if self.blocks.capacity() > 4 * self.blocks.len().max(4) {
            self.blocks.shrink_to(2 * self.blocks.len());
        }
    }

    /// Finds a block's highest arrival again.
    fn note_newest(&mut self, index: usize) {
        let records = self.records(&self.blocks[index], 0);
        let newest = records.map(|record| record.arrival).max().unwrap_or(0);
        self.blocks[index].newest = newest;
    }

    /// Changes a block, and counts what is allocated for it.
    fn change(&mut self, index: usize, change: impl FnOnce(&mut Vec<u8>)) {
        let block = &mut self.blocks[index].bytes;
        let before = block.capacity();
        change(block);
        self.block_bytes = self.block_bytes + block.capacity() - before;
    }

    /// Panics if a block is empty or out of order, or if a count is wrong.
    #[cfg(test)]
    pub fn check(&self) {
        let mut before = None;
        let (mut packets, mut bytes) = (0, 0);
        for block in &self.blocks {
            let len = block.bytes.len();
            assert!(len > 0 && len <= BLOCK_BYTES, "{len}");
            assert!(block.bytes.capacity() < len.next_multiple_of(STEP_BYTES) + STEP_BYTES);
            let mut read = 0;
            for record in self.records(block, 0) {
                let key = (self.form.key)(record.packet);
                assert!(key > before, "in the order of the connections");
                before = key;
                packets += 1;
                bytes += record.packet.len();
                read += record.len();
            }
            assert_eq!(read, len);
            let newest = self.records(block, 0).map(|record| record.arrival).max();
            assert_eq!(newest, Some(block.newest));
        }
        assert_eq!((packets, bytes), (self.packets, self.packet_bytes));
        let allocated: usize = self.blocks.iter().map(|block| block.bytes.capacity()).sum();
        assert_eq!(allocated, self.block_bytes);
    }
}
