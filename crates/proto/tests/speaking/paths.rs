//! What the modelled nodes may know of their paths.

use proto::path::Reachability;
use steadfast_proto as proto;

/// A node's possible knowledge of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knows {
    /// Everything works.
    Whole,
    /// The nodes reach each other through another link only.
    Apart,
    /// Clients do not reach this node.
    CutOff,
    /// Clients reach this node, and not the peer.
    Chosen,
}

impl Knows {
    pub const ALL: [Self; 4] = [Self::Whole, Self::Apart, Self::CutOff, Self::Chosen];

    /// Whether the nodes meet, and whether clients reach this node and the peer.
    pub fn sides(self) -> (bool, Reachability, Reachability) {
        match self {
            Self::Whole => (true, Reachability::Reached, Reachability::Reached),
            Self::Apart => (false, Reachability::Reached, Reachability::Reached),
            Self::CutOff => (false, Reachability::Lost, Reachability::Reached),
            Self::Chosen => (false, Reachability::Reached, Reachability::Lost),
        }
    }
}
