//! The nodes that may serve a connection of which another node is the wire ([`crate::annex`]).

use serde::{Deserialize, Serialize};

/// Identifies an annex in messages: a hash of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AnnexId(pub u32);

impl AnnexId {
    /// The annex called `name`: FNV-1a of the name (Fowler, Noll, Vo).
    pub fn of(name: &str) -> Self {
        let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        Self(name.as_bytes().iter().fold(0x811c_9dc5, step))
    }
}

/// The node whose packets a wire passes for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ServingNode {
    /// The primary.
    Primary,
    /// An annex.
    Annex(AnnexId),
}

impl ServingNode {
    /// The annex, if it is one.
    pub const fn annex(self) -> Option<AnnexId> {
        match self {
            Self::Primary => None,
            Self::Annex(annex) => Some(annex),
        }
    }
}

impl From<Option<AnnexId>> for ServingNode {
    fn from(annex: Option<AnnexId>) -> Self {
        annex.map_or(Self::Primary, Self::Annex)
    }
}
