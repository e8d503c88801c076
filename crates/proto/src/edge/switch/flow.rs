//! Names of flows, and measurements of their traffic.

use std::net::SocketAddr;

/// A flow, identified by the addresses and ports of its two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// The end on this edge's own side of the cluster.
    pub near: SocketAddr,
    /// The end on the other edge's side.
    pub far: SocketAddr,
}

/// The data path's measurement of one string's traffic. All values except `active` are totals since the data path started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficSample {
    /// Bytes of the packets that entered the string.
    pub entering_bytes: u64,
    /// Number of flows with an entering packet in the last second.
    pub active: u64,
    /// Number of TCP handshakes that were measured.
    pub handshakes: u64,
    /// Sum of these handshakes' durations, from the SYN to the handshake's end, in nanoseconds.
    pub handshake_ns: u64,
}
