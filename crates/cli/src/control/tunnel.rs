//! The status of a tunnel, as the control socket gives it.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::CounterStatus;

/// The status of one end of a tunnel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunnelStatus {
    /// Its name.
    pub name: String,
    /// `opening` or `serving`.
    pub role: String,
    /// Whether messages are sealed with a key.
    pub sealed: bool,
    /// Its services, in the order of the configuration.
    pub services: Vec<TunnelServiceStatus>,
    /// Its associations. An opening end has one at most.
    pub associations: Vec<TunnelAssociationStatus>,
    /// Maximum number of connections that an association can have at a time.
    pub connections_limit: u64,
    /// Connections that were opened.
    pub opened: u64,
    /// Connections that ended by a reset: either program sent one, or the association ended.
    pub reset: u64,
    /// Connections that were refused: there was no association or no room, or the server could not be reached.
    pub refused: u64,
    /// Bytes from local programs.
    pub sent_bytes: u64,
    /// Bytes to local programs.
    pub received_bytes: u64,
    /// Associations that ended.
    pub associations_ended: u64,
    /// Counts of packets, chunks, calls (SCTP INIT) and system calls, by event.
    pub counters: CounterStatus,
}

/// A service in a [`TunnelStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelServiceStatus {
    /// Its name.
    pub name: String,
    /// Address at which clients connect (opening end), or of the server (serving end).
    pub address: SocketAddr,
}

/// An association in a [`TunnelStatus`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunnelAssociationStatus {
    /// Whether connections can be opened: the handshake is done.
    pub ready: bool,
    /// Number of its open connections.
    pub connections: u64,
    /// Bytes that were handed to it and are not acknowledged.
    pub unacknowledged_bytes: u64,
    /// Its paths.
    pub paths: Vec<TunnelPathStatus>,
}

/// A path: an address of the peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunnelPathStatus {
    /// The peer's address.
    pub address: IpAddr,
    /// `active`, `doubtful`, `failed`, or `unconfirmed`: the address is not known to belong to the peer yet.
    pub state: String,
    /// Whether new data goes to this address.
    pub current: bool,
    /// Smoothed round-trip time in milliseconds, once it was measured.
    pub rtt_ms: Option<f64>,
    /// Retransmission timeout in milliseconds.
    pub rto_ms: f64,
    /// Congestion window in bytes.
    pub window_bytes: u64,
    /// Largest packet that is known to fit, with all headers.
    pub mtu: u64,
    /// Timeouts in a row.
    pub errors: u64,
    /// Times that it failed.
    pub failures: u64,
    /// Times that its retransmission timer ran out.
    pub timeouts: u64,
    /// Packets with retransmitted data.
    pub retransmissions: u64,
    /// Heartbeats that were not answered in time, without those of the watch.
    pub lost_heartbeats: u64,
    /// Bytes of SCTP packets that were sent to it.
    pub sent_bytes: u64,
    /// Bytes of SCTP packets that came from it.
    pub received_bytes: u64,
}
