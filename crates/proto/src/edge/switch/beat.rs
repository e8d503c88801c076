//! The heartbeats between the edges.

use serde::{Deserialize, Serialize};

/// A heartbeat of an edge, sent over one string.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeBeat {
    /// The string over which the heartbeat is sent.
    pub string: String,
    /// The sender's knowledge of each string.
    pub strings: Vec<StringBeat>,
}

/// A string in an [`EdgeBeat`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StringBeat {
    /// Its name.
    pub name: String,
    /// Number of the string's failures that the edges have counted.
    pub epoch: u64,
    /// Whether the sender's flows may use the string.
    pub is_usable: bool,
    /// Whether the sender hears the string.
    pub is_heard: bool,
    /// Whether the sender has heard the string for long enough after the string's last failure.
    pub is_steady: bool,
}
