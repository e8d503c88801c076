//! Names of flows, and measurements of their traffic.

use std::net::SocketAddr;

/// A flow, named by its two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// The end that is outside, at this edge.
    pub near: SocketAddr,
    /// The end behind the other edge.
    pub far: SocketAddr,
}

/// A measurement of the data path, for one string. Everything counts from the start of the data path, except `active`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficSample {
    /// Bytes of packets that entered it.
    pub entering_bytes: u64,
    /// Number of flows with an entering packet in the last second.
    pub active: u64,
    /// Number of handshakes that were measured.
    pub handshakes: u64,
    /// Sum of the times from their SYNs to their ends, in nanoseconds.
    pub handshake_ns: u64,
}
