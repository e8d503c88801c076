//! The control socket: what an operator can ask a running node.
//!
//! A Unix stream socket, `control.sock` in the node's state directory, for root only. A client sends one request
//! as one line of JSON and gets one line of JSON back: `{"ok": …}` or `{"error": "…"}`; then the connection ends.
//! Requests and answers are bounded in size and time, so nobody can hold up the node from here.

mod client;
mod line;
#[cfg(test)]
pub mod samples;
mod server;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use proto::action::Server as Application;
use proto::path::Outside;
use proto::role::Role as State;
use serde::{Deserialize, Serialize};

use crate::config::{Policy, Role};

pub use client::{ClientError, connections, order, restored, status};
pub use server::{Asker, Call, Reply, Server, ServerError};

/// The control socket of the node whose state directory is `state_dir`.
pub fn socket(state_dir: &Path) -> PathBuf {
    state_dir.join("control.sock")
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "lowercase", deny_unknown_fields)]
enum Request {
    /// For a [`Status`].
    Status,
    /// For [`Connections`].
    Connections,
    /// For [`Restored`].
    Restored,
    /// To do something.
    Order(Order),
}

/// What the operator wants the node to do. Naming no service means all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "lowercase", deny_unknown_fields)]
pub enum Order {
    /// Primary and backup are to change places.
    Handover {
        /// The service's name.
        service: String,
    },
    /// To have no part in a service, or to have one again.
    Leave {
        /// The service's name.
        service: Option<String>,
        /// Whether to have none.
        leaves: bool,
    },
}

/// What a client gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Response<T> {
    Ok(T),
    Error(String),
}

/// The node in whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// This node's name.
    pub node: String,
    /// The other node.
    pub peer: PeerStatus,
    /// In the order of the configuration.
    pub services: Vec<ServiceStatus>,
    /// The kernel's rings.
    pub rings: RingsStatus,
    /// Who says that this node may speak beyond its lease.
    pub arbiter: ArbiterKind,
    /// The witness, if there is one.
    pub witness: Option<WitnessStatus>,
}

/// Who says that a node may speak beyond its lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArbiterKind {
    /// Nobody: a node that is silent counts as dead.
    #[default]
    FailStop,
    /// The witness, an etcd cluster.
    Etcd,
    /// The operator's command.
    Fence,
}

/// The witness, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WitnessStatus {
    /// Whether it answered the last question. Who speaks now does not depend on it.
    pub reachable: bool,
    /// Time since its last answer, in nanoseconds; nothing before the first.
    pub answer_age_ns: Option<u64>,
    /// Why it gives no answer; nothing if it does.
    pub error: Option<String>,
    /// By service, the latest epoch that was given away, and to whom.
    pub owners: BTreeMap<String, OwnerStatus>,
    /// The nodes that say that they are there.
    pub nodes: Vec<String>,
}

/// Who has the latest epoch that the witness gave away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerStatus {
    /// That epoch.
    pub epoch: u64,
    /// The node that has it.
    pub owner: String,
}

/// The kernel's rings: what the wire has logged and the agent has not read yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingsStatus {
    /// Of segments of connections.
    pub connections: RingStatus,
    /// Of SYNs and SYN-ACKs.
    pub opening: RingStatus,
}

/// One ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingStatus {
    /// Bytes that are not read yet.
    pub fill_bytes: u64,
    /// Bytes that fit into it.
    pub size_bytes: u64,
}

/// The other node, as this one sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Its address on the service interface.
    pub address: IpAddr,
    /// Whether its heartbeats arrive.
    pub alive: bool,
    /// Time since the last heartbeat, in nanoseconds; nothing before the first.
    pub heartbeat_age_ns: Option<u64>,
    /// Whether what it says is authenticated.
    pub authenticated: bool,
    /// Its addresses.
    pub links: Vec<LinkStatus>,
    /// Datagrams from these addresses that did not count, by reason. `a copy` is usual where there are several links.
    pub refused: BTreeMap<String, u64>,
}

/// One way to the other node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The other node's address there.
    pub address: IpAddr,
    /// Time since it was heard there, in nanoseconds; nothing before the first time.
    pub heard_age_ns: Option<u64>,
}

/// Whether both nodes do their part for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// They do: a failure of either is masked.
    Duplex,
    /// One is on its own: the next failure is not masked.
    Simplex,
}

/// One service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its name.
    pub name: String,
    /// Its virtual address.
    pub address: IpAddr,
    /// Its TCP port.
    pub port: u16,
    /// How its application starts again.
    pub policy: Policy,
    /// What this node is for it now.
    pub role: Role,
    /// Whether a failure would be masked.
    pub mode: Mode,
    /// One more whenever a pair begins, a node begins to speak alone, or a node that came back is accepted as the wire.
    pub epoch: u64,
    /// Its connections by protection.
    pub connections: ConnectionCounts,
    /// Whether these are all. False on a wire to which the primary has not told yet who is connected: some may be missing, and those
    /// are not protected.
    pub connections_complete: bool,
    /// Bytes of its logs in memory.
    pub log_bytes: u64,
    /// Bytes in the kernel's ring that are not read yet.
    pub ring_fill_bytes: u64,
    /// The last sixteen takeovers, oldest first.
    pub takeovers: Vec<TakeoverReport>,
    /// All of them since the agent's start.
    pub takeover_sums: TakeoverSums,
    /// Event counters by name.
    pub counters: BTreeMap<String, u64>,
    /// What this node is for it, in detail.
    pub state: State,
    /// What it was lately, the present state last; nothing if that was taken from an agent before this one.
    pub history: Vec<StateSince>,
    /// What the peer said last that it is for it.
    pub peer_state: Option<State>,
    /// Why it is simplex; nothing if it is duplex.
    pub simplex_reason: Option<String>,
    /// The step that failed in this node's network, so that the service is mute here; nothing if none did.
    pub failure: Option<String>,
    /// How its application on this node is.
    pub application: Application,
    /// How its application on the peer is, as the peer said last.
    pub peer_application: Option<Application>,
    /// Connections that are not protected, by reason. The sum is that of [`ConnectionCounts`], ambiguous ones included.
    pub reasons: BTreeMap<String, u64>,
    /// Connections that were taken over and that the keeper relays; they are among the unprotected ones.
    pub relayed: u64,
    /// How far this node is behind, over all connections.
    pub lag: Lag,
    /// What [`Self::log_bytes`] may be.
    pub log_limit_bytes: u64,
    /// Bytes of the largest log of one connection.
    pub connection_log_bytes: u64,
    /// What [`Self::connection_log_bytes`] may be.
    pub connection_log_limit_bytes: u64,
    /// Bytes of the logs that are in files; they come on top of [`Self::log_bytes`].
    pub spilled_bytes: u64,
    /// What [`Self::spilled_bytes`] may be; 0 if nothing goes to files.
    pub spill_limit_bytes: u64,
    /// Connections whose clients may not send as fast as the primary lets them, since their logs are nearly full.
    pub slowed: u64,
    /// When this node may claim the VIP.
    pub lease: LeaseStatus,
    /// Whether the state of the replica's server is the primary's; nothing without `state_sync`, or if this node is not the wire.
    pub state_sync: Option<StateSyncStatus>,
    /// Whether clients reach the nodes.
    pub path: PathStatus,
}

/// A service's path: its interface, and what lies beyond.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// What is broken; nothing if all works.
    pub fault: Option<String>,
    /// Whether the service's interface has a carrier.
    pub carrier: bool,
    /// Whether outside hosts answer this node: `unknown` (nobody has ever answered), `reached`, `doubted` (being asked anew), `lost`.
    pub outside: Outside,
    /// The same for the peer, as it said last.
    pub peer_outside: Outside,
    /// Whether this node hears the peer through the service's interface; nothing if no link lies there.
    pub hears_peer: Option<bool>,
    /// Whether the peer hears this node there.
    pub peer_hears: Option<bool>,
    /// Number of times that the path broke since the agent's start.
    pub losses: u64,
}

/// The state of a replica's server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSyncStatus {
    /// Whether it is the primary's: only then are new connections protected.
    pub synced: bool,
    /// How far the hook is.
    pub state: String,
    /// Why it failed last, if it has since it succeeded.
    pub error: Option<String>,
    /// Bytes that connections without a replica have sent since: what they changed is missing.
    pub missed_bytes: u64,
}

/// What a node became for a service, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSince {
    /// When (CLOCK_MONOTONIC, nanoseconds).
    pub at_ns: u64,
    /// What it became.
    pub state: State,
    /// In which epoch.
    pub epoch: u64,
}

/// How far the backup is behind the primary. What is in the rings comes on top: nobody knows yet to whom it belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lag {
    /// Bytes that are logged and that the restart policy has not followed yet: a replica that is behind, or ahead.
    pub unfollowed_bytes: u64,
    /// Bytes of the in-log that the primary has not acknowledged yet.
    pub unacknowledged_bytes: u64,
}

/// When a primary may claim the VIP of a wire that is silent, and for how long this node may speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    /// As configured, in nanoseconds: once 17/16 of it have passed since the wire's last word, and its death is declared.
    pub configured_ns: u64,
    /// So long from now, in nanoseconds, if the wire says nothing more; nothing on a node that has nothing to claim.
    pub left_ns: Option<u64>,
    /// So long from now this node may speak unasked, in nanoseconds, if it hears nothing more: a wire for what it takes over, a survivor until the
    /// arbiter has confirmed it. 0: it has to ask first. Nothing on other nodes, and if the right has no end.
    pub may_speak_ns: Option<u64>,
}

/// Connections by protection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionCounts {
    /// Would be taken over.
    pub protected: u64,
    /// Would be lost.
    pub unprotected: u64,
    /// Unprotected because conflicting copies of the same bytes were seen.
    pub ambiguous: u64,
}

/// One takeover. Times are of CLOCK_MONOTONIC, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeoverReport {
    /// The primary was declared dead.
    pub declared_ns: u64,
    /// From here on the old primary could not reach a client.
    pub gate_closed_ns: u64,
    /// The first connection was restored; nothing if there was none.
    pub first_live_ns: Option<u64>,
    /// The last connection was restored; nothing if there was none.
    pub last_live_ns: Option<u64>,
    /// Connections that were open.
    pub connections: u64,
    /// Connections that went on.
    pub restored: u64,
    /// Connections that could not go on and got a RST.
    pub reset: u64,
}

/// Takeovers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeoverSums {
    /// How many there were.
    pub takeovers: u64,
    /// Connections that went on.
    pub restored: u64,
    /// Connections that could not go on and got a RST.
    pub reset: u64,
}

/// The connections of all services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// One entry per connection.
    pub connections: Vec<ConnectionStatus>,
}

/// What a failure would mean for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protection {
    /// It would be taken over.
    Protected,
    /// It would be lost, because conflicting copies of the same bytes were seen.
    Ambiguous,
    /// It would be lost.
    Unprotected,
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// Its service's name.
    pub service: String,
    /// The client's address and port.
    pub client: SocketAddr,
    /// What a failure would mean for it.
    pub protection: Protection,
    /// Why it is not protected; empty if it is.
    pub reason: String,
    /// Bytes from the client that are in the log or behind the restart point.
    pub in_offset: u64,
    /// Bytes to the client, as [`Self::in_offset`].
    pub out_offset: u64,
    /// Bytes of its logs in memory.
    pub log_bytes: u64,
    /// Bytes of its logs in a file.
    pub spilled_bytes: u64,
    /// How far this node is behind.
    pub lag: Lag,
}

/// The connections that this agent has taken over, the last 65,536 of them, by service and then the oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// All of them.
    pub connections: Vec<RestoredStatus>,
}

/// What became of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredStatus {
    /// Its service's name.
    pub service: String,
    /// The client's address and port.
    pub client: SocketAddr,
    /// When it could go on (CLOCK_MONOTONIC, nanoseconds).
    pub live_ns: u64,
    /// Whether it lives.
    pub lives: bool,
    /// Why it was ended; empty if it lives, if it ended as connections do, or if that was too long ago.
    pub reason: String,
}
