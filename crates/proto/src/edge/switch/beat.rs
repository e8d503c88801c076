//! The heartbeats between the edges.

use serde::{Deserialize, Serialize};

/// A heartbeat of an edge, sent over one string.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeBeat {
    /// The string by which it is sent.
    pub string: String,
    /// The sender's knowledge of each string.
    pub strings: Vec<StringBeat>,
}

/// A string in an [`EdgeBeat`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StringBeat {
    /// Its name.
    pub name: String,
    /// Number of its failures that the edges have counted.
    pub epoch: u64,
    /// Whether flows of the sender may be on it.
    pub is_usable: bool,
    /// Whether the sender hears it.
    pub is_heard: bool,
    /// Whether the sender has heard it for long enough after its last failure.
    pub is_steady: bool,
}
