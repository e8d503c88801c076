//! Storage for connections of which the cache holds only one packet, and this packet is small.
//!
//! ```text
//!   blocks    ┌ length, packet, length, packet, … ┐  ┌ length, packet, … ┐       in the order of the connections
//! ```
//!
//! A length has two bytes. The packet's connection and sequence numbers are read from the packet itself, so nothing else is stored. A flood
//! of SYNs costs little more than the SYNs' bytes.

use crate::Seq;
use crate::edge::EdgeSegment;

/// Maximum size in bytes of a block. The search within a block is linear.
const BLOCK_BYTES: usize = 4096;
/// Maximum length in bytes of a packet that is packed. The bookkeeping of a longer packet is small compared with the packet.
const PACKET_BYTES: usize = 512;
/// Two neighbouring blocks that have at most this many bytes together are merged.
const MERGED_BYTES: usize = BLOCK_BYTES / 4 * 3;
/// The allocation of a block grows and shrinks in steps of this many bytes, except when blocks are split or merged.
const STEP_BYTES: usize = 128;
/// Size in bytes of the length before each packet.
const LENGTH: usize = 2;

/// Functions that convert packets to bytes and back, and that read from the bytes the parts which the cache needs.
#[derive(Debug)]
pub struct PacketBytes<K, P> {
    /// A packet's bytes.
    pub bytes: fn(&P) -> &[u8],
    /// The packet with these bytes.
    pub packet: fn(&[u8]) -> P,
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
    blocks: Vec<Vec<u8>>,
    packets: usize,
    packet_bytes: usize,
    /// Bytes that are allocated for blocks.
    block_bytes: usize,
}

/// The place of a connection's packet, or the place at which it would be inserted.
struct PackedPlace {
    block: usize,
    at: usize,
    is_held: bool,
}

/// The packet whose length field is at `at`.
fn packet_at(block: &[u8], at: usize) -> Option<&[u8]> {
    let (length, rest) = block.get(at..)?.split_first_chunk::<LENGTH>()?;
    rest.get(..usize::from(u16::from_ne_bytes(*length)))
}

/// Inserts a packet.
fn insert_at(block: &mut Vec<u8>, at: usize, packet: &[u8]) {
    let length = u16::try_from(packet.len()).expect("PACKET_BYTES is less");
    let needed = block.len() + LENGTH + packet.len();
    block.reserve_exact(needed.next_multiple_of(STEP_BYTES) - block.len());
    block.extend(length.to_ne_bytes());
    block.extend(packet);
    block[at..].rotate_right(LENGTH + packet.len());
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
        self.block_bytes + self.blocks.capacity() * size_of::<Vec<u8>>()
    }

    /// Whether a packet can be packed: it is small, and its bytes say all that the cache knows of it.
    pub fn can_hold(&self, key: K, numbers: HeldNumbers, bytes: usize, packet: &P) -> bool {
        let packet = (self.form.bytes)(packet);
        packet.len() == bytes
            && bytes <= PACKET_BYTES
            && (self.form.key)(packet) == Some(key)
            && self.numbers_of(packet) == Some(numbers)
    }

    fn packet(&self, place: &PackedPlace) -> Option<&[u8]> {
        let block = place.is_held.then(|| &self.blocks[place.block])?;
        packet_at(block, place.at)
    }

    /// The sequence numbers of a connection's packet.
    pub fn numbers(&self, key: K) -> Option<HeldNumbers> {
        self.numbers_of(self.packet(&self.find(key))?)
    }

    /// Size in bytes of a connection's packet. 0 if the connection has no packet here.
    pub fn bytes_of(&self, key: K) -> usize {
        self.packet(&self.find(key)).map_or(0, <[u8]>::len)
    }

    /// Adds the packet of a connection that has no packet here.
    pub fn insert(&mut self, key: K, packet: &P) {
        let packet = (self.form.bytes)(packet);
        let mut place = self.find(key);
        if self.blocks.is_empty() {
            self.blocks.push(Vec::new());
        }
        if !self.has_room(place.block, packet) {
            place = self.make_room(key, place, packet);
        }
        self.change(place.block, |block| insert_at(block, place.at, packet));
        self.packets += 1;
        self.packet_bytes += packet.len();
    }

    /// Takes out the packet of a connection.
    pub fn remove(&mut self, key: K) -> Option<P> {
        let place = self.find(key);
        let bytes = self.packet(&place)?;
        let (length, packet) = (bytes.len(), (self.form.packet)(bytes));
        self.packets -= 1;
        self.packet_bytes -= length;
        self.change(place.block, |block| {
            block.drain(place.at..place.at + LENGTH + length);
            shrink(block);
        });
        self.merge(place.block);
        Some(packet)
    }

    /// Takes out all packets, in the order of their connections.
    pub fn take_all(&mut self) -> impl Iterator<Item = (K, P)> + use<K, P> {
        let form = self.form;
        (self.packets, self.packet_bytes, self.block_bytes) = (0, 0, 0);
        let blocks = std::mem::take(&mut self.blocks).into_iter();
        blocks.flat_map(move |block| {
            let mut at = 0;
            std::iter::from_fn(move || {
                let packet = packet_at(&block, at)?;
                at += LENGTH + packet.len();
                (form.key)(packet).map(|key| (key, (form.packet)(packet)))
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
        let key_at = |block: &[u8], at| packet_at(block, at).and_then(self.form.key);
        let after = self.blocks.partition_point(|block| key_at(block, 0) <= Some(key));
        let mut place = PackedPlace {
            block: after.saturating_sub(1),
            at: 0,
            is_held: false,
        };
        let Some(block) = self.blocks.get(place.block) else {
            return place;
        };
        while let Some(packet) = packet_at(block, place.at) {
            let other = (self.form.key)(packet);
            if other >= Some(key) {
                place.is_held = other == Some(key);
                break;
            }
            place.at += LENGTH + packet.len();
        }
        place
    }

    fn has_room(&self, block: usize, packet: &[u8]) -> bool {
        let block = self.blocks.get(block);
        block.is_some_and(|block| block.len() + LENGTH + packet.len() <= BLOCK_BYTES)
    }

    /// A place for a packet that does not fit into the block of `place`.
    fn make_room(&mut self, key: K, place: PackedPlace, packet: &[u8]) -> PackedPlace {
        let next = place.block + 1;
        let is_last = place.at == self.blocks[place.block].len();
        if !is_last {
            self.split(place.block);
            return self.find(key);
        }
        // A packet for the end of a full block goes into the next block, without a split. So blocks stay full if connections are inserted
        // in the order of their keys.
        if !self.has_room(next, packet) {
            self.blocks.insert(next, Vec::new());
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
        while let Some(packet) = packet_at(block, middle).filter(|_| middle < block.len() / 2) {
            middle += LENGTH + packet.len();
        }
        let mut rest = Vec::new();
        self.change(index, |block| {
            rest = block.split_off(middle);
            shrink(block);
        });
        self.block_bytes += rest.capacity();
        self.blocks.insert(index + 1, rest);
    }

    /// Removes a block that is empty, or joins it with a neighbour if both are small.
    fn merge(&mut self, index: usize) {
        if self.blocks[index].is_empty() {
            self.block_bytes -= self.blocks.remove(index).capacity();
        } else {
            for left in [Some(index), index.checked_sub(1)].into_iter().flatten() {
                if let Some([one, other]) = self.blocks.get(left..left + 2)
                    && one.len() + other.len() <= MERGED_BYTES
                {
                    let right = self.blocks.remove(left + 1);
                    self.block_bytes -= right.capacity();
                    self.change(left, |block| {
                        block.reserve_exact(right.len());
                        block.extend(right);
                    });
                    break;
                }
            }
        }
        if self.blocks.capacity() > 4 * self.blocks.len().max(4) {
            self.blocks.shrink_to(2 * self.blocks.len());
        }
    }

    /// Changes a block, and counts what is allocated for it.
    fn change(&mut self, index: usize, change: impl FnOnce(&mut Vec<u8>)) {
        let block = &mut self.blocks[index];
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
            assert!(!block.is_empty() && block.len() <= BLOCK_BYTES, "{}", block.len());
            assert!(block.capacity() < block.len().next_multiple_of(STEP_BYTES) + STEP_BYTES);
            let mut at = 0;
            while let Some(packet) = packet_at(block, at) {
                let key = (self.form.key)(packet);
                assert!(key > before, "in the order of the connections");
                before = key;
                packets += 1;
                bytes += packet.len();
                at += LENGTH + packet.len();
            }
            assert_eq!(at, block.len());
        }
        assert_eq!((packets, bytes), (self.packets, self.packet_bytes));
        assert_eq!(
            self.blocks.iter().map(Vec::capacity).sum::<usize>(),
            self.block_bytes
        );
    }
}
