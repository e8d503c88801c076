//! What travels: a segment's numbers without its bytes.

use super::FlowId;

/// IP and TCP headers of every packet, in bytes.
pub const HEADER: u32 = 40;

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the sender to the receiver.
    Forward,
    /// Back.
    Backward,
}

/// The flags of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// None.
    pub const NONE: Self = Self(0);
    /// Opens the connection; takes one sequence number.
    pub const SYN: Self = Self(1);
    /// The field `ack` holds.
    pub const ACK: Self = Self(2);
    /// Nothing follows; takes one sequence number.
    pub const FIN: Self = Self(4);

    /// Whether all of `flags` are set.
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Both.
    pub const fn and(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }
}

/// Blocks of received data above the cumulative acknowledgement (RFC 2018 §3), the latest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sack {
    count: u8,
    /// Left and right edge, relative to the packet's `ack`.
    blocks: [(u32, u32); Self::MAX],
}

impl Sack {
    /// As many as fit beside timestamps.
    pub const MAX: usize = 3;

    /// Adds a block, `left..right` above `ack`, if there is room.
    ///
    /// # Panics
    /// If the block begins below `ack`, or ends 4 GiB above it.
    pub fn push(&mut self, ack: u64, left: u64, right: u64) {
        let relative = |seq: u64| u32::try_from(seq - ack).expect("a window is smaller than 4 GiB");
        if let Some(block) = self.blocks.get_mut(usize::from(self.count)) {
            *block = (relative(left), relative(right));
            self.count += 1;
        }
    }

    /// How many blocks there are.
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is no block.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The blocks `left..right` of a packet that acknowledges `ack`.
    pub fn iter(&self, ack: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.blocks[..self.len()]
            .iter()
            .map(move |(left, right)| (ack + u64::from(*left), ack + u64::from(*right)))
    }
}

/// A segment of a flow. Sequence numbers do not wrap: the SYN is 0, the data begin at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Of which flow.
    pub flow: FlowId,
    /// Which way.
    pub direction: Direction,
    /// SYN, ACK, FIN.
    pub flags: Flags,
    /// Bytes of data.
    pub len: u16,
    /// The first byte's number.
    pub seq: u64,
    /// The number expected next; holds with the ACK flag.
    pub ack: u64,
    /// How many bytes from `ack` on may be sent, without scaling.
    pub window: u32,
    /// What was received beyond `ack`.
    pub sack: Sack,
}

impl Packet {
    /// How long it is on the wire, in bytes. A SACK block counts 8; the option's own 2 bytes and padding are not
    /// counted, as in ns-2.
    pub const fn wire_bytes(&self) -> usize {
        HEADER as usize + self.len as usize + 8 * self.sack.count as usize
    }

    /// The first number after this packet's.
    pub const fn end(&self) -> u64 {
        let flags = self.flags.has(Flags::SYN) as u64 + self.flags.has(Flags::FIN) as u64;
        self.seq + self.len as u64 + flags
    }
}
