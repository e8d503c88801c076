//! The parts of a packet that an edge reads.

use crate::Seq;

/// The direction in which a packet passes an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EdgeDirection {
    /// From outside into the cluster.
    Entering,
    /// Out of the cluster.
    Leaving,
}

/// The parts of a packet that an edge reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeSegment {
    /// The first sequence number.
    pub seq: Seq,
    /// Bytes of data.
    pub len: u32,
    /// The acknowledgement number, if the ACK flag is set.
    pub ack: Option<Seq>,
    /// The SYN flag: opens a connection.
    pub syn: bool,
    /// The FIN flag: ends the sender's stream.
    pub fin: bool,
    /// The RST flag: ends the connection at once.
    pub rst: bool,
}

impl EdgeSegment {
    /// Number of sequence numbers that the segment occupies: data, SYN and FIN.
    pub const fn numbers(&self) -> u32 {
        self.len + self.syn as u32 + self.fin as u32
    }

    /// The first sequence number after the segment.
    pub fn end(&self) -> Seq {
        self.seq + self.numbers()
    }
}
