//! The status of an edge, as the control socket gives it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The status of an edge. Times are those of the monotonic clock, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EdgeStatus {
    /// Its name.
    pub edge: String,
    /// The name of the other edge.
    pub peer: String,
    /// Its strings, in the order of the configuration.
    pub strings: Vec<StringStatus>,
    /// Number of flows in the table.
    pub flows: u64,
    /// Number of flows for which the table has room.
    pub flows_max: u64,
    /// Round-trip time of the connections without queueing delay, in milliseconds, as measured or configured.
    pub rtt_ms: f64,
    /// Bytes of the copies that this process has read from the data path since its start. The copies are for the cache.
    pub copied_bytes: u64,
    /// Bytes that were sent again to the outside, counting each copy.
    pub resent_leaving_bytes: u64,
    /// Limit of the sum of all strings' [`StringStatus::cached_bytes`]; 0 without local recovery.
    pub cache_limit_bytes: u64,
    /// Counters of the data path.
    pub counters: CounterStatus,
    /// Datagrams that were refused as heartbeats, by reason.
    pub refused: CounterStatus,
}

/// Counts by name.
pub type CounterStatus = BTreeMap<String, u64>;

/// A string in an [`EdgeStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StringStatus {
    /// Its name.
    pub name: String,
    /// `up`, `suspect`, `blind`, `failing` or `down` (`docs/edge.md`). `blind`: all strings are silent, so flows stay where they are.
    pub state: String,
    /// Number of its failures that the edges have counted.
    pub epoch: u64,
    /// Whether heartbeats arrive over the string.
    pub heard: bool,
    /// Time since the last heartbeat, in nanoseconds; `None` before the first.
    pub heartbeat_age_ns: Option<u64>,
    /// Number of heartbeats that were sent over the string.
    pub heartbeats_sent: u64,
    /// Number of heartbeats that arrived over the string.
    pub heartbeats_heard: u64,
    /// Number of heartbeats that did not arrive over the string in time, counted from the first heartbeat that arrived.
    pub heartbeats_missed: u64,
    /// When its last failure was declared here.
    pub failed_at_ns: Option<u64>,
    /// When its flows were moved after its last failure.
    pub completed_at_ns: Option<u64>,
    /// The cap on the windows of its flows, in bytes; `None` while no string is missing.
    pub cap: Option<u32>,
    /// Number of flows with an entering packet in the last second.
    pub active: u64,
    /// Bytes that have entered it. All counts of bytes and packets are those on the cable, headers included.
    pub entering_bytes: u64,
    /// Packets that have entered it.
    pub entering_packets: u64,
    /// Bytes that came out of it.
    pub leaving_bytes: u64,
    /// Packets that came out of it.
    pub leaving_packets: u64,
    /// Packets in its cache now.
    pub cached_packets: u64,
    /// Bytes in its cache now.
    pub cached_bytes: u64,
    /// Most bytes in its cache at any time.
    pub cached_bytes_max: u64,
    /// Bytes of memory that its cache takes now: the packets, and what the cache knows of them.
    #[serde(default)]
    pub cache_memory: u64,
    /// Most bytes of memory that its cache took at any time.
    #[serde(default)]
    pub cache_memory_max: u64,
    /// Packets that found no room in its cache, or that were dropped from it to make room.
    pub cache_lost: u64,
    /// Connections all of whose packets were dropped from its cache because the edge's cache was full.
    #[serde(default)]
    pub cache_dropped_connections: u64,
    /// Packets from its cache that were sent again into strings.
    pub resent_entering: u64,
    /// Bytes that were sent again into it, from the caches of all strings.
    pub resent_entering_bytes: u64,
    /// Packets from its cache that were sent again to the outside, counting each copy.
    pub resent_leaving: u64,
    /// Cached packets that were not sent again, because they exceed the cap, or because the string to which their flows were moved failed,
    /// too. Their senders retransmit them.
    pub left_to_senders: u64,
}
