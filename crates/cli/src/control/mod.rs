//! The control socket: an operator's requests to a running node.
//!
//! It is a Unix stream socket, `control.sock` in the node's state directory, that only root can use. A client sends one
//! request as one line of JSON and gets one line of JSON back: `{"ok": …}` or `{"error": "…"}`. Then the connection ends.
//! Requests and answers are bounded in size and time, so no client can delay the node.

mod annex;
mod chosen;
mod client;
mod connect;
mod edge;
mod line;
#[cfg(test)]
pub mod samples;
mod server;
#[cfg(test)]
mod tests;
mod tunnel;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use proto::action::ApplicationState as Application;
use proto::follower::RestartPolicy;
use proto::path::Reachability;
use proto::role::Role as State;
use serde::{Deserialize, Serialize};

use crate::config::{Commit, NodeRole};

pub use annex::{AnnexDaemonStatus, HostedServiceStatus, RegistrationStatus};
pub use chosen::{ChosenClient, NoClientError};
pub use client::{
    ControlClientError, accept_status, annex_status, connect_status, connections, edge_status, order,
    restored, status, tunnel_status,
};
pub use connect::{
    AcceptServiceStatus, AcceptStatus, AcceptedSessionStatus, ConnectServiceStatus, ConnectStatus,
    SessionStatus,
};
pub use edge::{CounterStatus, EdgeStatus, StringStatus};
pub use server::{Asker, Call, CallReply, ControlServer, ControlServerError, ExportRequest};
pub use tunnel::{TunnelAssociationStatus, TunnelPathStatus, TunnelServiceStatus, TunnelStatus};

/// The path of the control socket of the node whose state directory is `state_dir`.
pub fn socket(state_dir: &Path) -> PathBuf {
    state_dir.join("control.sock")
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "lowercase", deny_unknown_fields)]
enum ControlRequest {
    /// Asks for a [`NodeStatus`].
    Status,
    /// Asks for [`Connections`].
    Connections,
    /// Asks for [`RestoredConnections`].
    Restored,
    /// Asks for the [`EdgeStatus`].
    Edge,
    /// Asks for the [`AnnexDaemonStatus`].
    Annex,
    /// Asks for the [`TunnelStatus`].
    Tunnel,
    /// Asks for the [`ConnectStatus`].
    Connect,
    /// Asks for the [`AcceptStatus`].
    Accept,
    /// Gives the node an order.
    Order(Order),
}

/// An order of the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "lowercase", deny_unknown_fields)]
pub enum Order {
    /// The primary and the backup of a service swap their roles.
    Handover {
        /// The service's name.
        service: String,
    },
    /// Live connections move from this node, the primary, to the service's other node.
    Migrate {
        /// The service's name.
        service: String,
        /// The other node's name.
        to: String,
        /// Only the connections of this client: its address, with or without a port. `None`: all.
        client: Option<ChosenClient>,
        /// A connection that has not moved by then, counted from now in milliseconds, stays.
        within_ms: u64,
    },
    /// The node gives up its part in a service, or takes part again. A server's half asks its sessions to leave, or takes new ones again.
    Leave {
        /// The service's name. `None` means all services.
        service: Option<String>,
        /// True: the node gives its part up. False: it takes part again.
        leaves: bool,
    },
}

/// The answer to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Response<T> {
    Ok(T),
    Error(String),
}

/// The status of the whole node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// This node's name.
    pub node: String,
    /// The other node.
    pub peer: PeerStatus,
    /// The services, in the order of the configuration.
    pub services: Vec<ServiceStatus>,
    /// The kernel's rings.
    pub rings: RingsStatus,
    /// The arbiter, which decides whether this node may speak beyond its lease.
    pub arbiter: ArbiterKind,
    /// The witness, if there is one.
    pub witness: Option<WitnessStatus>,
}

/// The kind of arbiter. The arbiter decides whether a node may speak beyond its lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArbiterKind {
    /// No arbiter: a node that is silent counts as dead.
    #[default]
    FailStop,
    /// The witness, an etcd cluster.
    Etcd,
    /// The operator's command that makes sure that the other node is off.
    Fence,
}

/// The witness, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WitnessStatus {
    /// Whether the witness answered the last question. A node that speaks already does not depend on the witness.
    pub reachable: bool,
    /// Time since its last answer, in nanoseconds; `None` before the first.
    pub answer_age_ns: Option<u64>,
    /// Reason why the witness does not answer; `None` if it answers.
    pub error: Option<String>,
    /// For each service: the latest epoch that was granted, and the epoch's owner.
    pub owners: BTreeMap<String, OwnerStatus>,
    /// The nodes that the witness counts as alive: their keys in the store have not expired.
    pub nodes: Vec<String>,
}

/// The owner of the latest epoch that the witness granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerStatus {
    /// The epoch.
    pub epoch: u64,
    /// The node that has it.
    pub owner: String,
}

/// The kernel's rings. They hold the packets that the wire has logged and the agent has not read yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingsStatus {
    /// The ring of the segments of known clients.
    pub connections: RingStatus,
    /// The ring of SYNs, SYN-ACKs, and packets of strangers: clients that the wire does not know.
    pub opening: RingStatus,
}

/// One ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingStatus {
    /// Bytes not read yet.
    pub fill_bytes: u64,
    /// Its capacity in bytes.
    pub size_bytes: u64,
}

/// The other node, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Its address on the service interface.
    pub address: IpAddr,
    /// Whether its heartbeats arrive.
    pub alive: bool,
    /// Time since the last heartbeat, in nanoseconds; `None` before the first.
    pub heartbeat_age_ns: Option<u64>,
    /// Whether its messages are authenticated.
    pub authenticated: bool,
    /// The links to it, one for each of its addresses.
    pub links: Vec<LinkStatus>,
    /// Number of refused datagrams from these addresses, by reason. With several links, the reason `a copy` is usual, because each datagram
    /// is sent over every link.
    pub refused: BTreeMap<String, u64>,
    /// The SCTP association with the other node; `None` if the nodes' questions and answers are datagrams (`[peer] transport`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<ChannelStatus>,
}

/// The SCTP association with the other node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelStatus {
    /// Whether it is established. While it is not, questions and answers are datagrams.
    pub established: bool,
    /// Whether the association is still not established although the peer has been heard for 10 s.
    #[serde(default)]
    pub overdue: bool,
    /// Number of associations since the agent's start.
    pub associations: u64,
    /// Its paths.
    pub paths: Vec<ChannelPathStatus>,
    /// Number of packets with data that were sent again in this association.
    pub retransmissions: u64,
}

/// A path of the channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelPathStatus {
    /// The other node's address.
    pub address: IpAddr,
    /// Whether the path works.
    pub usable: bool,
}

/// One link to the other node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The other node's address on this link.
    pub address: IpAddr,
    /// Time since the other node was heard over this link, in nanoseconds; `None` before the first time.
    pub heard_age_ns: Option<u64>,
}

/// Whether both nodes do their part for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceMode {
    /// Both do: a failure of either node is masked.
    Duplex,
    /// One node is on its own: the next failure is not masked.
    Simplex,
}

/// What has become of the connections that the operator wanted to move ([`Order::Migrate`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationStatus {
    /// Number of connections that are still to move.
    pub pending: usize,
    /// Number of connections that have moved.
    pub moved: u64,
    /// Number of connections that stayed here, because they could not move in time.
    pub stayed: u64,
    /// The latest connections that stayed, newest first, each with the reason.
    pub reasons: Vec<(SocketAddr, String)>,
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
    /// How its application continues connections after a takeover.
    pub policy: RestartPolicy,
    /// Its commit mode, by this node's configuration.
    #[serde(default)]
    pub commit: Commit,
    /// This node's role, in the operator's terms.
    pub role: NodeRole,
    /// Whether a failure would be masked.
    pub mode: ServiceMode,
    /// The epoch. It grows by one whenever a pair begins, a node begins to speak alone, or a node that came back is accepted as the wire.
    pub epoch: u64,
    /// Numbers of its connections, by protection.
    pub connections: ConnectionCounts,
    /// Whether `connections` counts all connections. False on a wire until the primary has listed the connected clients. Until then, some
    /// connections may be missing, and the missing connections are not protected.
    pub connections_complete: bool,
    /// Bytes of its logs in memory.
    pub log_bytes: u64,
    /// Unread bytes in both of the wire's rings together, over all services.
    pub ring_fill_bytes: u64,
    /// The last sixteen takeovers, oldest first.
    pub takeovers: Vec<TakeoverStatus>,
    /// Sums over all takeovers since the agent's start.
    pub takeover_sums: TakeoverTotals,
    /// Connections that were to move from this node to the other one, since the agent's start.
    #[serde(default)]
    pub migrations: MigrationStatus,
    /// The service's annexes, as this node knows them if it is the wire.
    #[serde(default)]
    pub annexes: Vec<AnnexStatus>,
    /// The list of annexes that have registered. `None` without `registered_annexes`.
    #[serde(default)]
    pub registry: Option<RegistryStatus>,
    /// Connections whose application is on the backup, while the primary logs them, because they have moved there.
    #[serde(default)]
    pub reversed: u64,
    /// Event counters by name.
    pub counters: BTreeMap<String, u64>,
    /// This node's exact role.
    pub state: State,
    /// This node's last roles, the present one last. Empty if the present role was adopted from an earlier agent.
    pub history: Vec<StateSince>,
    /// The peer's role, as last reported by the peer.
    pub peer_state: Option<State>,
    /// Reason why the service is simplex; `None` if it is duplex.
    pub simplex_reason: Option<String>,
    /// The step that failed in this node's network, with the error. Because of this failure, this node is mute for the service. `None` if
    /// no step failed.
    pub failure: Option<String>,
    /// State of the application on this node.
    pub application: Application,
    /// State of the application on the peer, as last reported by the peer.
    pub peer_application: Option<Application>,
    /// Number of connections that are not protected, by reason. The sum is `unprotected` + `ambiguous` of [`ConnectionCounts`].
    pub reasons: BTreeMap<String, u64>,
    /// Number of connections that were taken over and that the keeper relays. They are counted as unprotected.
    pub relayed: u64,
    /// Number of bytes by which this node is behind the primary, over all connections.
    pub lag: Lag,
    /// Limit of [`Self::log_bytes`].
    pub log_limit_bytes: u64,
    /// Bytes of the largest log of one connection.
    pub connection_log_bytes: u64,
    /// Limit of [`Self::connection_log_bytes`].
    pub connection_log_limit_bytes: u64,
    /// Bytes of the logs in files, in addition to [`Self::log_bytes`].
    pub spilled_bytes: u64,
    /// Limit of [`Self::spilled_bytes`]; 0 if nothing goes to files.
    pub spill_limit_bytes: u64,
    /// Number of connections whose clients are slowed, because the connections' logs are nearly full.
    pub slowed: u64,
    /// Time until this node may claim the VIP, and time for which this node may speak.
    pub lease: LeaseStatus,
    /// State of the replica's server, compared with the primary's; `None` without `state_sync`, or if this node is not the wire.
    pub state_sync: Option<StateSyncStatus>,
    /// What recorded order does on this node; `None` without `recorded_order`.
    #[serde(default)]
    pub recorded_order: Option<RecordedOrderStatus>,
    /// State of the service's path: whether clients reach the nodes.
    pub path: PathStatus,
}

/// A service's path: this node's interface for the service, and the network between this interface and the clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// The broken part; `None` if all works.
    pub fault: Option<String>,
    /// Whether the service's interface has a carrier.
    pub carrier: bool,
    /// Whether outside hosts answer this node: `unknown` (no host has ever answered), `reached`, `suspected` (hosts are being asked again),
    /// `lost`.
    pub outside: Reachability,
    /// Whether outside hosts answer the peer, as last reported by the peer.
    pub peer_outside: Reachability,
    /// Whether this node hears the peer through the service's interface; `None` if no link uses it.
    pub hears_peer: Option<bool>,
    /// Whether the peer hears this node through the service's interface.
    pub peer_hears: Option<bool>,
    /// Number of times that the path broke since the agent's start.
    pub losses: u64,
}

/// Recorded order on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedOrderStatus {
    /// What this node's server does.
    pub activity: OrderActivity,
    /// Why the record is off, or what it waits for; else empty.
    pub reason: String,
    /// Time since this began, in nanoseconds.
    pub age_ns: u64,
}

/// What a node's server does with the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrderActivity {
    /// Its order is recorded, and the backup takes the record.
    Records,
    /// It plays the primary's record back.
    Plays,
    /// It is recorded but no backup takes the record, or it waits for a record that it can follow.
    Waits,
    /// It runs without a record, or no server runs.
    Off,
}

/// The state of a replica's server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSyncStatus {
    /// Whether the replica's state is equal to the primary's. New connections are protected only if it is.
    pub synced: bool,
    /// Progress of the operator's hook, which copies the state.
    pub state: String,
    /// Reason of the hook's last failure, if it has failed since its last success.
    pub error: Option<String>,
    /// Bytes that connections without a replica have sent since the last copy. The replica's server lacks the changes that these bytes
    /// made.
    pub missed_bytes: u64,
}

/// An annex of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnexStatus {
    /// Its name.
    pub name: String,
    /// Whether it can take connections.
    pub is_up: bool,
    /// Number of connections that it has.
    pub connections: u64,
    /// Where this node connects. `None` from an agent of an earlier version.
    #[serde(default)]
    pub address: Option<SocketAddr>,
    /// Whether the configuration names it.
    #[serde(default)]
    pub is_configured: bool,
    /// Whether it had an entry in the registry when the registry was last read.
    #[serde(default)]
    pub is_registered: bool,
}

/// The annexes of a service that have registered, as this node last read them (docs/registry.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistryStatus {
    /// Time since the list was last read, in nanoseconds. `None`: never.
    pub read_age_ns: Option<u64>,
    /// Whether that is too long ago. The annexes stay as they are known.
    pub is_stale: bool,
    /// Why the list could not be taken over, if it was read.
    pub error: Option<String>,
    /// The faults of single entries. Each text names the key or the annex.
    pub problems: Vec<String>,
}

/// A role that a node took for a service, and the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSince {
    /// Time at which the node took the role (CLOCK_MONOTONIC, nanoseconds).
    pub at_ns: u64,
    /// The role.
    pub state: State,
    /// The epoch.
    pub epoch: u64,
}

/// Number of bytes by which the backup is behind the primary. Bytes in the rings are not included, because their connections are not known
/// yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lag {
    /// Bytes that the primary has accepted or sent and that a replica has not read or sent yet. Always 0 without a replica.
    pub unfollowed_bytes: u64,
    /// Bytes of the in-log that the primary has not acknowledged yet.
    pub unacknowledged_bytes: u64,
}

/// Time until a primary may claim the VIP of a silent wire, and time for which this node may speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    /// The configured lease, in nanoseconds. The claim is allowed if the wire's death is declared, and 17/16 of the lease have passed since
    /// the wire was last heard.
    pub configured_ns: u64,
    /// Time until the claim is allowed, in nanoseconds, if the wire stays silent; `None` on a node that has nothing to claim.
    pub left_ns: Option<u64>,
    /// Time for which this node may speak without asking the arbiter, in nanoseconds, if it hears nothing more of its peer. A wire may use
    /// this time to speak for the connections that it takes over. A survivor may speak for this time while it waits for the arbiter's
    /// confirmation. 0: the node must ask the arbiter first. `None` on other nodes, and if the right to speak has no end.
    pub may_speak_ns: Option<u64>,
}

/// Connections by protection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionCounts {
    /// Number of connections that would be taken over.
    pub protected: u64,
    /// Number of connections that would be lost, without those that `ambiguous` counts.
    pub unprotected: u64,
    /// Number of connections that would be lost, because conflicting copies of the same bytes were seen.
    pub ambiguous: u64,
}

/// One takeover. Times are of CLOCK_MONOTONIC, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeoverStatus {
    /// When the primary was declared dead.
    pub declared_ns: u64,
    /// Time from which the old primary could not reach a client.
    pub gate_closed_ns: u64,
    /// When the first connection was restored; `None` if none was.
    pub first_live_ns: Option<u64>,
    /// When the last connection was restored; `None` if none was.
    pub last_live_ns: Option<u64>,
    /// Number of connections that were open.
    pub connections: u64,
    /// Number of connections that continued.
    pub restored: u64,
    /// Number of connections that could not continue and got a RST.
    pub reset: u64,
}

/// Sums over takeovers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeoverTotals {
    /// Number of takeovers.
    pub takeovers: u64,
    /// Number of connections that continued.
    pub restored: u64,
    /// Number of connections that could not continue and got a RST.
    pub reset: u64,
}

/// The connections of all services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// One entry per connection.
    pub connections: Vec<ConnectionStatus>,
}

/// Fate of a connection if the primary failed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProtectionStatus {
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
    /// Its fate if the primary failed now.
    pub protection: ProtectionStatus,
    /// Reason why it is not protected; empty if it is protected.
    pub reason: String,
    /// Bytes from the client that were logged in order, including bytes that the log no longer keeps.
    pub in_offset: u64,
    /// Bytes to the client, counted in the same way as [`Self::in_offset`].
    pub out_offset: u64,
    /// Bytes of its logs in memory.
    pub log_bytes: u64,
    /// Bytes of its logs in a file.
    pub spilled_bytes: u64,
    /// Number of bytes by which this node is behind the primary.
    pub lag: Lag,
}

/// The last 65,536 connections, over all services, that this agent has taken over. They are grouped by service. Within a service, the
/// oldest comes first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredConnections {
    /// One entry per connection.
    pub connections: Vec<RestoredStatus>,
}

/// The fate of a connection that was taken over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredStatus {
    /// Its service's name.
    pub service: String,
    /// The client's address and port.
    pub client: SocketAddr,
    /// When the connection could continue (CLOCK_MONOTONIC, nanoseconds).
    pub live_ns: u64,
    /// Whether it is still open.
    pub lives: bool,
    /// Reason why it was ended; empty if it is open, if it ended normally, or if the end was too long ago.
    pub reason: String,
}
