//! Actions that a [`Node`](crate::node::Node) asks its caller to carry out. The caller carries them out strictly in order. This order
//! guarantees that a packet is logged before it is released, and that a gate is closed before connections are restored.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

use crate::Instant;
use crate::annex::{AnnexId, ServingNode};
use crate::census::PageQuery;
use crate::connection::Cap;
use crate::export::{ExportOutcome, PartReceipt, SnapshotPart};
use crate::migration::MigrationBeat;
use crate::orphans::Orphans;
use crate::path::PathWord;
use crate::restart::prefix::PrefixAsk;
use crate::role::Role;
use crate::seq::in_reach;
use crate::table::ConnectionId;

/// Index of a service. The eBPF programs use the same index.
pub type ServiceIndex = u16;

/// How the wire treats a service's packets. The eBPF programs keep one gate per service: `enum gate` of `bpf/abi.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gate {
    /// Does nothing with the packets.
    Off,
    /// Logs each packet, then releases it to the other side.
    Wire,
    /// Nothing of the old primary passes; a client's packet goes to its restored socket, or into the log.
    Takeover,
    /// Every connection is local: clients' packets go to the local stack, and nothing of the old primary passes.
    /// Connections that existed only on the other node do not continue here.
    Sole,
    /// The application is here. Its output goes to the peer's wire only.
    Primary,
    /// Nothing passes: the peer speaks alone.
    Mute,
}

impl Gate {
    /// All gates.
    pub const ALL: [Self; 6] = [
        Self::Off,
        Self::Wire,
        Self::Takeover,
        Self::Sole,
        Self::Primary,
        Self::Mute,
    ];
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Do this for a service.
    Service(ServiceIndex, ServiceAction),
    /// Send this to the peer.
    Send(Heartbeat),
    /// Ask the peer's kernel for a sign of life. When the kernel answers, call `handle_answer`.
    Probe,
}

/// One thing to do for a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceAction {
    /// Before a gate opens, set up the addresses, routes and guards that the gate needs. If the node already speaks, it loses no packets
    /// during this step. A takeover does not need this step. If the step fails, give the node
    /// [`Failed`](crate::service::ServiceInput::Failed) before the next action.
    Assume {
        /// The gate.
        gate: Gate,
        /// The peer's MAC address on the service interface.
        peer_mac: [u8; 6],
    },
    /// Set the gate. This is one store to memory.
    SetGate {
        /// The new gate.
        gate: Gate,
        /// The epoch in which the gate holds. A later agent may have to continue from this epoch.
        epoch: u64,
        /// As [`SetUntil`](Self::SetUntil).
        until: Option<Instant>,
    },
    /// Set the end of this node's right to speak. After this moment, the kernel drops the VIP's packets that the node
    /// sends while it speaks alone. On a wire, this concerns the packets of connections that the wire took over.
    SetUntil {
        /// The moment. `None`: the right to speak has no end.
        until: Option<Instant>,
    },
    /// Commit mode `pr`: set the time until which this primary sends segments straight to their clients. The kernel checks it for each
    /// segment.
    SetDirect {
        /// The time. `None`: everything goes through the wire.
        until: Option<Instant>,
    },
    /// Commit mode `immediate`: set whether this wire passes packets unlogged while its log is full. The node then gets
    /// [`LogGap`](crate::service::ServiceInput::LogGap) for packets that passed in this way.
    PassUnlogged {
        /// Whether packets pass.
        may: bool,
    },
    /// Ask the arbiter for the right to speak alone in this epoch; then give the node [`Verdict`](crate::service::ServiceInput::Verdict).
    Confirm {
        /// The epoch.
        epoch: u64,
    },
    /// The connections of these clients are being decided: each is either restored or lost. Until then, SYNs of these
    /// clients wait. If the gate is [`Gate::Wire`], nothing of the primary passes on these connections any more. With
    /// [`Gate::Takeover`], this already holds for all connections.
    Hold {
        /// The clients.
        clients: Vec<SocketAddr>,
    },
    /// The held connections are decided: they stay local, and their clients may open new connections.
    Settle,
    /// The connections of these clients are to move here from a living primary. Nothing passes on them any more, in either direction, and
    /// what the clients send is logged. Their SYNs wait. If this agent dies, they are the primary's again.
    Reserve {
        /// The clients.
        clients: Vec<SocketAddr>,
    },
    /// A connection that was reserved stays with the primary. Drop its socket, if one was made, without sending anything. Then let its
    /// packets pass again.
    GiveBack {
        /// The connection.
        connection: ConnectionId,
        /// Its client.
        client: SocketAddr,
    },
    /// The connections of these clients are the other node's. Destroy their sockets without sending anything. On a wire, their packets pass like
    /// those of the primary's other connections afterwards.
    Release {
        /// The clients.
        clients: Vec<SocketAddr>,
    },
    /// The connections of these clients are about to move to the other node, which has prepared them. From now on their sockets say nothing. This
    /// node logs the connections' segments, which pass it, and sends them on. It notices the first segment of the other node's socket.
    Freeze {
        /// The clients.
        clients: Vec<SocketAddr>,
        /// Clients whose earlier connections have ended: their segments need not be logged any more.
        ended: Vec<SocketAddr>,
    },
    /// The other node does not have the connections of these clients. If its sockets have said nothing, the frozen sockets go on. Then give the
    /// node [`Thawed`](crate::service::ServiceInput::Thawed).
    Thaw {
        /// The clients.
        clients: Vec<SocketAddr>,
    },
    /// The other node has released the connections of these clients to an earlier agent of this node. Look whether their sockets are here. If a
    /// socket is not, forget what that agent has left of the connection. Give the node
    /// [`LookedFor`](crate::service::ServiceInput::LookedFor) for each.
    LookFor {
        /// The clients.
        clients: Vec<SocketAddr>,
    },
    /// The sockets of these clients' connections, which move here, are ready, and the primary logs the connections' segments. From now on all
    /// their segments pass the primary: a client's before it reaches the socket, the socket's before it reaches the client.
    Reverse {
        /// The clients.
        clients: Vec<SocketAddr>,
    },
    /// A step of a connection's move from one node to another. This node is the connection's wire ([`crate::annex`]).
    Elsewhere(AnnexStep),
    /// Destroy the kernel's sockets of these clients' connections without sending anything. No process owns these
    /// sockets. Either the other node continues the connections, or no node can.
    Destroy {
        /// The clients.
        clients: Vec<SocketAddr>,
    },
    /// Hide the ends of these clients' connections no longer. Their processes have died on this node, the backup, and no node can continue
    /// them. The kernel repeats the FIN of a socket that it still has. If it has none, the client's next packet gets a RST.
    ShowEnds {
        /// The clients.
        clients: Vec<SocketAddr>,
    },
    /// The wire is gone. Bring the VIP to the service interface, and let the VIP's packets leave through this interface. If this fails,
    /// give the node [`Failed`](crate::service::ServiceInput::Failed) before the next action.
    TakeAddress,
    /// A step for the service has failed. Check whether the service's interface is there, and restore the network. Then give the node
    /// [`Mended`](crate::service::ServiceInput::Mended), or [`Failed`](crate::service::ServiceInput::Failed) again.
    Mend,
    /// Tell the neighbours that the VIP is here, and ask outside hosts with the VIP as source address. Give the node
    /// [`Reached`](crate::service::ServiceInput::Reached) for each answer.
    Announce,
    /// Ask outside hosts through the service's interface, from this node's own address. For each answer, give the node
    /// [`Outside`](crate::service::ServiceInput::Outside).
    AskOutside {
        /// Only answers to questions that were asked at this time or later count. So this question is asked even if the same hosts were
        /// asked earlier, for example for another service.
        since: Option<Instant>,
    },
    /// The peer speaks alone. Give up the VIP. End the sockets and replicas that use the VIP, without sending anything to clients.
    StandDown {
        /// This node has served until now, so run the operator's hook for deposed nodes.
        is_deposed: bool,
    },
    /// Read the wire's log to its end, including records that are being written. Then give the node
    /// [`Drained`](crate::service::ServiceInput::Drained).
    Drain,
    /// Make a socket from the connection's [`endpoint`](crate::connection::Connection::endpoint), with its unacknowledged output
    /// loaded. The socket does not send or receive yet. On failure give the node
    /// [`Unrestorable`](crate::service::ServiceInput::Unrestorable), and skip the next steps.
    Restore {
        /// The connection.
        connection: ConnectionId,
    },
    /// From now on the connection's packets go to the socket. A `Drain` follows, because earlier packets are in the log.
    MakeReady {
        /// The connection.
        connection: ConnectionId,
    },
    /// Feed the socket the input that was logged since `Restore`, let it speak, and wake the client. Then give the node
    /// [`Live`](crate::service::ServiceInput::Live).
    Activate {
        /// The connection.
        connection: ConnectionId,
    },
    /// Give the socket and the logs to the relay ([`Node::hand_over`](crate::node::Node::hand_over)).
    HandOver {
        /// The connection.
        connection: ConnectionId,
    },
    /// This node has the right to speak. Lift the guard that drops outgoing RSTs.
    AllowSpeech,
    /// Send this IP packet through a raw socket.
    Transmit(Vec<u8>),
    /// Ask the primary which connections the service has. When it answers, read the log to its end and give the node
    /// [`Page`](crate::service::ServiceInput::Page).
    AskAll {
        /// The page of the list.
        query: PageQuery,
    },
    /// Ask the primary what its kernel knows of these clients' connections. When it answers, read the log to its end and give
    /// the node [`Told`](crate::service::ServiceInput::Told).
    Ask {
        /// The clients, at most [`QUESTION_MAX`](crate::census::QUESTION_MAX).
        clients: Vec<SocketAddr>,
    },
    /// Connect to the local application from the client's address, for a replica.
    OpenReplica {
        /// The connection.
        connection: ConnectionId,
        /// The client.
        client: SocketAddr,
    },
    /// Give the replica the input that the primary has acknowledged. Then give the node [`Fed`](crate::service::ServiceInput::Fed).
    FeedReplica {
        /// The connection.
        connection: ConnectionId,
    },
    /// The connection is over. Close the replica's connection.
    CloseReplica {
        /// The connection.
        connection: ConnectionId,
    },
    /// Run the operator's hook for the state of a replica's server. Then give the node [`Synced`](crate::service::ServiceInput::Synced). If
    /// an earlier run has not ended, end it.
    RunSync {
        /// The step that the hook carries out.
        phase: StateSyncPhase,
        /// The number of this run.
        run: u64,
        /// Time after which the run is of no use. `None`: the operator's configuration says how long it may take.
        until: Option<Instant>,
    },
    /// The wire drops what clients send, except handshakes and acknowledgements.
    HoldInput {
        /// The time at which the kernel stops dropping by itself. A later `HoldInput` may set an earlier time. `None`: stop now.
        until: Option<Instant>,
    },
    /// The wire hides from a client the part of the primary's window that lies beyond the cap.
    CapWindow {
        /// The client.
        client: SocketAddr,
        /// How far the client may send. `None`: as far as the primary allows.
        cap: Option<Cap>,
    },
    /// Send a part of a snapshot to the peer.
    SendPart(SnapshotPart),
    /// Answer a part of a snapshot.
    SendReceipt(PartReceipt),
    /// Ask the primary for the first input of a connection that it relays. Then give the node
    /// [`Prefix`](crate::service::ServiceInput::Prefix).
    AskPrefix(PrefixAsk),
    /// Tell the application the outcome of its calls of `export_state`.
    Exported {
        /// The calls.
        calls: Vec<u64>,
        /// Their outcome.
        outcome: ExportOutcome,
    },
    /// Log an event for the operator.
    Report(OperatorReport),
}

/// A step of a connection's move from one node to another ([`crate::annex`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnnexStep {
    /// Ask another node to make a socket from the connection's endpoint, as for [`Restore`](ServiceAction::Restore). The node's answer is
    /// [`RestoredAt`](crate::service::ServiceInput::RestoredAt) or [`RefusedAt`](crate::service::ServiceInput::RefusedAt).
    RestoreAt {
        /// The connection.
        connection: ConnectionId,
        /// The node.
        node: ServingNode,
    },
    /// From now on the packets of this client's connection go to this node, and only this node's packets reach the client. The wire logs
    /// them, as before. A primary passes them only if it has no wire, or if they come from its wire.
    Guide {
        /// The client.
        client: SocketAddr,
        /// The node.
        node: ServingNode,
    },
    /// Ask another node to let the socket speak that it has made: send it the input that was logged since
    /// [`RestoreAt`](Self::RestoreAt), and what its relay needs. Then give this node
    /// [`StartedAt`](crate::service::ServiceInput::StartedAt). If that fails, give this node
    /// [`RefusedAt`](crate::service::ServiceInput::RefusedAt).
    StartAt {
        /// The connection.
        connection: ConnectionId,
        /// The node.
        node: ServingNode,
    },
    /// Ask another node to close its socket of this client's connection without sending anything. Its answer is
    /// [`DroppedAt`](crate::service::ServiceInput::DroppedAt).
    DropAt {
        /// The client.
        client: SocketAddr,
        /// The node.
        node: ServingNode,
    },
    /// Ask an annex for the terms of its connections of these clients, as [`Ask`](ServiceAction::Ask) asks the primary. Its answer is
    /// [`ToldAt`](crate::service::ServiceInput::ToldAt).
    Ask {
        /// The annex.
        annex: AnnexId,
        /// The clients.
        clients: Vec<SocketAddr>,
    },
    /// Answer an annex's part of a snapshot.
    Receipt {
        /// The annex.
        annex: AnnexId,
        /// The answer.
        receipt: PartReceipt,
    },
}

/// A step that the hook is asked to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSyncPhase {
    /// Copy the state; the primary goes on changing it.
    Prepare,
    /// Copy the rest, while the state no longer changes, and stop copying.
    Finish,
    /// Stop copying at any point, and be ready to serve.
    Abandon,
}

/// An event that the operator wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorReport {
    /// A service has a new role.
    Role {
        /// The role before.
        from: Role,
        /// The role now.
        to: Role,
        /// The epoch of the new role.
        epoch: u64,
    },
    /// Connections have moved here from the primary, at the operator's order.
    Migrated {
        /// Their number.
        connections: usize,
    },
    /// This wire takes over connections that an annex had, or was to have.
    LeftAnnex {
        /// Their number.
        connections: usize,
        /// Why.
        reason: String,
    },
    /// A takeover is complete. Its report is in [`Service::takeovers`](crate::service::Service::takeovers).
    TakenOver,
    /// A step for the service failed on this node.
    Failed {
        /// The step, and its error.
        why: String,
    },
    /// The failed step was repaired.
    Mended,
    /// The other node may have gone on alone, because this agent was away or this node had left. Only the other node can tell
    /// (`service::doubt`).
    Doubted {
        /// This node is the service's primary.
        is_primary: bool,
        /// This node's epoch.
        epoch: u64,
    },
    /// The other node has said that it did not go on alone.
    Confirmed,
    /// A connection cannot be continued.
    Unrestorable {
        /// The client.
        client: SocketAddr,
        /// Why.
        reason: String,
    },
    /// Both nodes speak alone for a service. At least one of them does so without the right to speak.
    TwoVoices {
        /// The epoch of both nodes.
        epoch: u64,
    },
    /// The state of a replica's server now equals the primary's.
    Synced {
        /// How long input was held for the copy.
        held: Duration,
    },
    /// The state of a replica's server could not be copied.
    NotSynced {
        /// Why.
        why: String,
    },
    /// The two nodes' configurations contradict each other.
    Contradiction {
        /// The contradiction.
        what: String,
    },
}

/// A node's sign of life, and what it does for each service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The sender's name.
    pub node: String,
    /// A random number that each agent draws when it is started.
    pub incarnation: u64,
    /// The heartbeat's number, counted from 1.
    pub sequence: u64,
    /// When the sender made the heartbeat, by the sender's clock, in nanoseconds.
    pub sent: u64,
    /// The receiver's last heartbeat that the sender has heard.
    pub echo: Option<Echo>,
    /// The sender's services.
    pub services: Vec<ServiceBeat>,
}

/// Tells a node which of its heartbeats the other node heard last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Echo {
    /// The heard heartbeat's [`Heartbeat::incarnation`].
    pub incarnation: u64,
    /// The heard heartbeat's [`Heartbeat::sent`].
    pub sent: u64,
}

/// One service in a [`Heartbeat`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceBeat {
    /// The VIP and port.
    pub vip: SocketAddr,
    /// The sender's role.
    pub role: Role,
    /// The epoch of that role.
    #[serde(deserialize_with = "in_reach")]
    pub epoch: u64,
    /// The sender is the primary by configuration.
    pub configured_primary: bool,
    /// The sender's MAC address on the service interface.
    pub mac: [u8; 6],
    /// State of the application on the sender's node.
    pub server: ApplicationState,
    /// The sender gives up its part. The receiver is to take over from the sender, or go on without the sender.
    pub leaves: bool,
    /// The sender, a healthy primary, wants to become the backup.
    pub hands_over: bool,
    /// Connections that have lost their process on the sender's node.
    pub orphans: Orphans,
    /// Number of the receiver's orphans that the sender has adopted: its wire holds their packets.
    pub adopted: u64,
    /// Connections that move at the operator's order. `None`: not in this heartbeat; nothing has changed.
    #[serde(
        default = "MigrationBeat::unmentioned",
        skip_serializing_if = "is_unmentioned"
    )]
    pub migration: Option<MigrationBeat>,
    /// The sender's side of the service's path. `None`: the sender's version does not know paths.
    #[serde(default)]
    pub path: Option<PathWord>,
    /// Commit mode `pr`: from a primary, it sends output past the wire; from a backup, it would wait for the end of that. An agent whose
    /// version does not know this field does neither. A heartbeat of many services must fit a datagram, so `false` is left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub direct: bool,
    /// The sender's service has commit mode `immediate`. A wire passes packets unlogged only while both nodes say so. `false` is left out,
    /// as for `direct`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub immediate: bool,
    /// From a backup with annexes, the number of its last take-back from an annex; from a primary, the number that it has heard
    /// ([`crate::annex`]). A primary whose version does not know this field carries nothing. `None` is left out, as `false` for `direct`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take_back: Option<u64>,
}

fn is_unmentioned(migration: &Option<MigrationBeat>) -> bool {
    migration.as_ref().is_some_and(MigrationBeat::is_empty)
}

/// State of an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ApplicationState {
    /// No failure is known.
    #[default]
    Alive,
    /// No process listens. On a node that serves, this state also means that the process that listened has died.
    Dead,
    /// The application does not answer the health probe.
    Hung,
}
