//! What an edge reads of a packet that passes it.

use crate::Seq;

/// Which way a packet passes an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// From outside into the cluster.
    Entering,
    /// Out of the cluster.
    Leaving,
}

/// What an edge reads of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The first number.
    pub seq: Seq,
    /// Bytes of data.
    pub len: u32,
    /// What it acknowledges.
    pub ack: Option<Seq>,
    /// Opens a connection.
    pub syn: bool,
    /// Nothing follows.
    pub fin: bool,
    /// Ends the connection at once.
    pub rst: bool,
}

impl Segment {
    /// Sequence numbers that it takes: what its receiver will acknowledge.
    pub const fn numbers(&self) -> u32 {
        self.len + self.syn as u32 + self.fin as u32
    }

    /// The first number behind it.
    pub fn end(&self) -> Seq {
        self.seq + self.numbers()
    }
}
