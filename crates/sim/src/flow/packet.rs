//! A packet of a flow: the header fields of a TCP segment, without its data.

/// A flow of a network, numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u32);

/// IP and TCP headers of every packet, in bytes.
pub const HEADER: u32 = 40;

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowDirection {
    /// From the sender to the receiver.
    Forward,
    /// From the receiver to the sender.
    Backward,
}

/// The flags of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowFlags(u8);

impl FlowFlags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// Opens the connection; takes one sequence number.
    pub const SYN: Self = Self(1);
    /// The field `ack` is valid.
    pub const ACK: Self = Self(2);
    /// Ends the stream; takes one sequence number.
    pub const FIN: Self = Self(4);

    /// Whether all of `flags` are set.
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// The flags that are set in `self` or in `flags`.
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
    /// Largest number of blocks that fit beside timestamps.
    pub const MAX: usize = 3;

    /// Adds a block, `left..right` above `ack`, if there is room.
    ///
    /// # Panics
    /// If the block begins below `ack`, or ends 4 GiB or more above `ack`.
    pub fn push(&mut self, ack: u64, left: u64, right: u64) {
        let relative = |seq: u64| u32::try_from(seq - ack).expect("a window is smaller than 4 GiB");
        if let Some(block) = self.blocks.get_mut(usize::from(self.count)) {
            *block = (relative(left), relative(right));
            self.count += 1;
        }
    }

    /// Number of blocks.
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
pub struct FlowPacket {
    /// Flow of the packet.
    pub flow: FlowId,
    /// Direction of the packet.
    pub direction: FlowDirection,
    /// SYN, ACK, FIN.
    pub flags: FlowFlags,
    /// Bytes of data.
    pub len: u16,
    /// Sequence number of the first byte.
    pub seq: u64,
    /// The next sequence number that the packet's sender expects. Valid with the ACK flag.
    pub ack: u64,
    /// Number of bytes from `ack` on that may be sent, without scaling.
    pub window: u32,
    /// Blocks that were received beyond `ack`.
    pub sack: Sack,
}

impl FlowPacket {
    /// Length with headers, in bytes. A SACK block counts 8. The option's own 2 bytes and padding are not counted, as
    /// in ns-2.
    pub const fn wire_bytes(&self) -> usize {
        HEADER as usize + self.len as usize + 8 * self.sack.count as usize
    }

    /// The first sequence number after this packet.
    pub const fn end(&self) -> u64 {
        let flags = self.flags.has(FlowFlags::SYN) as u64 + self.flags.has(FlowFlags::FIN) as u64;
        self.seq + self.len as u64 + flags
    }
}
