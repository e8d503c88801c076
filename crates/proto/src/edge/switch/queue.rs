//! Packets that wait until they may be sent. Small packets share blocks of bytes, because one allocation per packet would need more memory
//! for bookkeeping than for the packets.

use std::collections::VecDeque;

/// Maximum size in bytes of a block of small packets.
const BLOCK_BYTES: usize = 2048;
/// Maximum length in bytes of a packet that shares a block with others.
const SMALL_BYTES: usize = 256;
/// Size in bytes of the length field before each small packet.
const LENGTH: usize = 2;

/// A queue of packets.
#[derive(Debug, Default)]
pub(super) struct PacketQueue {
    blocks: VecDeque<QueueBlock>,
    /// Bytes of the first block that were read.
    read: usize,
    packets: usize,
}

#[derive(Debug)]
enum QueueBlock {
    /// Small packets, each behind its length.
    Small(Vec<u8>),
    /// One packet.
    Large(Vec<u8>),
}

impl PacketQueue {
    /// Number of packets.
    pub const fn len(&self) -> usize {
        self.packets
    }

    pub const fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Drops all packets.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Adds a packet behind the others.
    pub fn push_back(&mut self, packet: Vec<u8>) {
        self.packets += 1;
        if packet.len() > SMALL_BYTES {
            self.blocks.push_back(QueueBlock::Large(packet));
            return;
        }
        let length = u16::try_from(packet.len()).expect("SMALL_BYTES is less");
        let needed = LENGTH + packet.len();
        let block = match self.blocks.back_mut() {
            Some(QueueBlock::Small(block)) if block.len() + needed <= BLOCK_BYTES => block,
            _ => {
                // Allocates only the needed bytes for the first packet, because many queues have one packet.
                let bytes = if self.packets == 1 { needed } else { BLOCK_BYTES };
                self.blocks
                    .push_back(QueueBlock::Small(Vec::with_capacity(bytes)));
                let Some(QueueBlock::Small(block)) = self.blocks.back_mut() else {
                    unreachable!("it was just added");
                };
                block
            }
        };
        block.extend(length.to_ne_bytes());
        block.extend(packet);
    }

    /// Takes out the first packet.
    pub fn pop_front(&mut self) -> Option<Vec<u8>> {
        let packet = match self.blocks.front_mut()? {
            QueueBlock::Large(packet) => std::mem::take(packet),
            QueueBlock::Small(block) => {
                let (length, rest) = block.get(self.read..)?.split_first_chunk::<LENGTH>()?;
                let packet = rest.get(..usize::from(u16::from_ne_bytes(*length)))?.to_vec();
                self.read += LENGTH + packet.len();
                if self.read < block.len() {
                    self.packets -= 1;
                    return Some(packet);
                }
                packet
            }
        };
        self.blocks.pop_front();
        (self.read, self.packets) = (0, self.packets - 1);
        if self.blocks.capacity() > 4 * self.blocks.len().max(4) {
            self.blocks.shrink_to(2 * self.blocks.len());
        }
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets of all lengths come out as they went in, however pushes and pops alternate.
    #[test]
    fn packets_come_out_in_their_order() {
        let lengths = [
            0, 1, 40, 511, 512, 513, 1500, 65_535, 40, 40, 600, 3, 512, 512, 512, 512, 512, 512, 512,
        ];
        let packet = |number: usize| vec![number as u8; lengths[number % lengths.len()]];
        let mut queue = PacketQueue::default();
        let (mut pushed, mut popped) = (0, 0);
        for round in 0..400 {
            for _ in 0..round % 7 {
                queue.push_back(packet(pushed));
                pushed += 1;
            }
            for _ in 0..round % 5 {
                let expected = (popped < pushed).then(|| packet(popped));
                popped += usize::from(expected.is_some());
                assert_eq!(queue.pop_front(), expected);
            }
            assert_eq!(queue.len(), pushed - popped);
        }
        while let Some(next) = queue.pop_front() {
            assert_eq!(next, packet(popped));
            popped += 1;
        }
        assert_eq!(popped, pushed);
        assert!(queue.is_empty() && queue.blocks.is_empty());
    }

    #[test]
    fn a_queue_that_was_cleared_is_like_a_new_one() {
        let mut queue = PacketQueue::default();
        for _ in 0..3 {
            queue.push_back(vec![1; 40]);
        }
        queue.pop_front();
        queue.clear();
        assert!(queue.is_empty() && queue.pop_front().is_none());
        queue.push_back(vec![2; 40]);
        assert_eq!(queue.pop_front(), Some(vec![2; 40]));
    }
}
