//! What a [`Node`](crate::node::Node) wants done: one queue, to be carried out strictly in order. "Logged, then
//! released" and "gate closed, then restored" are orders of this queue.

use serde::{Deserialize, Deserializer, Serialize, de};
use std::net::SocketAddr;
use std::time::Duration;

use crate::Instant;
use crate::census::PageQuery;
use crate::connection::Cap;
use crate::orphans::Orphans;
use crate::path::PathWord;
use crate::role::Role;
use crate::state_sync::Phase;
use crate::table::ConnectionId;

/// Index of a service, the same on the wire and here.
pub type ServiceIndex = u16;

/// What the wire does with a service's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Nothing.
    Off,
    /// Logs, then releases them to the other side.
    Wire,
    /// Nothing of the old primary passes; a client's packet goes to its restored socket, or into the log.
    Takeover,
    /// Every connection is local, and so is every packet; the old wire's or primary's are not ours.
    Sole,
    /// The application is here; its output passes to the peer's wire only.
    Primary,
    /// Nothing passes: the peer speaks alone.
    Mute,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sets up the network for what a gate lets pass, before it opens: addresses, routes, guards. Of a node that speaks already
    /// nothing is lost meanwhile. Not on a takeover's way. If it fails, call `handle_failed` before the next action.
    Assume {
        /// For this service.
        service: ServiceIndex,
        /// The gate.
        gate: Gate,
        /// The peer's MAC address on the service interface.
        peer_mac: [u8; 6],
    },
    /// One store.
    SetGate {
        /// Of this service.
        service: ServiceIndex,
        /// To this.
        gate: Gate,
        /// The epoch in which it holds, for the agent that may have to go on from there.
        epoch: u64,
        /// As [`SetUntil`](Self::SetUntil).
        until: Option<Instant>,
    },
    /// What a node says alone, or for connections that it took over as a wire, is dropped by the kernel after this moment, packet by
    /// packet.
    SetUntil {
        /// For this service.
        service: ServiceIndex,
        /// The moment; `None`: there is no end.
        until: Option<Instant>,
    },
    /// Ask the arbiter for the right to speak alone in this epoch; then call `handle_verdict`.
    Confirm {
        /// For this service.
        service: ServiceIndex,
        /// The epoch.
        epoch: u64,
    },
    /// The connections of these clients are being decided: their SYNs wait. While the gate is [`Gate::Wire`] it is closed to the
    /// primary for these connections, as [`Gate::Takeover`] closes it for all.
    Hold {
        /// Of this service.
        service: ServiceIndex,
        /// The clients.
        clients: Vec<SocketAddr>,
    },
    /// Those connections are decided: they stay local, and their clients may open new ones.
    Settle {
        /// Of this service.
        service: ServiceIndex,
    },
    /// Another node goes on with the connections of these clients, or nobody can: the kernel's sockets, which nobody owns any more,
    /// are to go without a word.
    Destroy {
        /// Of this service.
        service: ServiceIndex,
        /// The clients.
        clients: Vec<SocketAddr>,
    },
    /// Bring the VIP to the service interface and let what it sends go out there: the wire is gone. If it fails, call
    /// `handle_failed` before the next action.
    TakeAddress {
        /// Of this service.
        service: ServiceIndex,
    },
    /// A step for the service has failed (`handle_failed`). Look whether its interface is there, and put the network back; then call
    /// `handle_mended`, or `handle_failed` again.
    Mend {
        /// For this service.
        service: ServiceIndex,
    },
    /// Tell the neighbours that the VIP is here, and ask outside hosts from it; each time one answers, call `handle_reached`.
    Announce {
        /// Of this service.
        service: ServiceIndex,
    },
    /// Ask outside hosts through the service's interface, from this node's own address; each time one answers, call
    /// `handle_outside` with the time of that question.
    AskOutside {
        /// For this service.
        service: ServiceIndex,
        /// Answers to questions that were asked before do not count: such a question cannot stand for this one.
        since: Option<Instant>,
    },
    /// The peer speaks alone. Give up the VIP, end what sockets and replicas have it without a word.
    StandDown {
        /// Of this service.
        service: ServiceIndex,
        /// This node served: tell the operator's hook.
        is_deposed: bool,
    },
    /// Read the wire's log to its end, records that are being written too; then call `handle_drained`.
    Drain {
        /// On behalf of this service.
        service: ServiceIndex,
    },
    /// Make a socket of the connection's [`endpoint`](crate::connection::Connection::endpoint), deaf and mute as yet,
    /// with its unacknowledged output loaded. On failure call `handle_unrestorable` and leave out the next steps.
    Restore {
        /// Of this service.
        service: ServiceIndex,
        /// The connection.
        connection: ConnectionId,
    },
    /// From now on the connection's packets go to the socket. A `Drain` follows: what came before is in the log.
    MakeReady {
        /// Of this service.
        service: ServiceIndex,
        /// The connection.
        connection: ConnectionId,
    },
    /// Feed the socket the input that was logged since `Restore`, let it speak, wake the client; then call
    /// `handle_live`.
    Activate {
        /// Of this service.
        service: ServiceIndex,
        /// The connection.
        connection: ConnectionId,
    },
    /// Give the socket to the relay, with the logs ([`Node::hand_over`](crate::node::Node::hand_over)).
    HandOver {
        /// Of this service.
        service: ServiceIndex,
        /// The connection.
        connection: ConnectionId,
    },
    /// Lift the guard that lets no RST out: this node has the right to speak.
    AllowSpeech {
        /// Of this service.
        service: ServiceIndex,
    },
    /// Put this IP packet on the wire.
    Transmit(Vec<u8>),
    /// Send this to the peer.
    Send(Heartbeat),
    /// Ask the primary which connections of the service there are; when it answers, read the log to its end and call `handle_page`.
    AskAll {
        /// Of this service.
        service: ServiceIndex,
        /// Which page of the list.
        query: PageQuery,
    },
    /// Ask the primary what its kernel knows of the connections of these clients; when it answers, read the log to its end and call
    /// `handle_told`.
    Ask {
        /// Of this service.
        service: ServiceIndex,
        /// The clients, at most [`QUESTION_MAX`](crate::learn::QUESTION_MAX).
        clients: Vec<SocketAddr>,
    },
    /// Ask the peer's kernel whether it is there; when it answers, call `handle_answer`.
    Probe,
    /// Connect to the local application from the client's address, for a replica.
    OpenReplica {
        /// Of this service.
        service: ServiceIndex,
        /// The connection.
        connection: ConnectionId,
        /// The client.
        client: SocketAddr,
    },
    /// Give the replica the input that the primary has acknowledged; then call `handle_fed`.
    FeedReplica {
        /// Of this service.
        service: ServiceIndex,
        /// The connection.
        connection: ConnectionId,
    },
    /// The connection is over; close the replica's.
    CloseReplica {
        /// Of this service.
        service: ServiceIndex,
        /// The connection.
        connection: ConnectionId,
    },
    /// Run the operator's hook for the state of a replica's server; then call `handle_synced`. Earlier runs are over, or are ended.
    RunSync {
        /// Of this service.
        service: ServiceIndex,
        /// What it is to do.
        phase: Phase,
        /// The number of this run.
        run: u64,
        /// It is of no use any more then; `None`: the operator has said how long it may take.
        until: Option<Instant>,
    },
    /// Until then the wire drops what clients send, but handshakes and acknowledgements; `None`: no more.
    HoldInput {
        /// Of this service.
        service: ServiceIndex,
        /// The end, which the kernel keeps if nobody says an earlier one.
        until: Option<Instant>,
    },
    /// The wire withholds from a client what the primary offers beyond this; `None`: nothing any more.
    CapWindow {
        /// Of this service.
        service: ServiceIndex,
        /// The client.
        client: SocketAddr,
        /// How far it may send.
        cap: Option<Cap>,
    },
    /// Something that people want to know.
    Report(Report),
}

/// Something that people want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A service has a new role.
    Role {
        /// The service.
        service: ServiceIndex,
        /// Before.
        from: Role,
        /// Now.
        to: Role,
        /// Its epoch.
        epoch: u64,
    },
    /// A takeover is complete: its report is in [`Node::takeovers`](crate::node::Node::takeovers).
    TakenOver {
        /// The service.
        service: ServiceIndex,
    },
    /// A step for the service failed on this node.
    Failed {
        /// The service.
        service: ServiceIndex,
        /// Which one, and why.
        why: String,
    },
    /// It was made good.
    Mended {
        /// The service.
        service: ServiceIndex,
    },
    /// The agent was away for so long that the other node may have gone on alone, and only it can tell (`node::doubt`).
    Doubted {
        /// The service.
        service: ServiceIndex,
        /// This node is its primary.
        is_primary: bool,
    },
    /// The other node has said that it did not.
    Confirmed {
        /// The service.
        service: ServiceIndex,
    },
    /// A connection cannot be continued.
    Unrestorable {
        /// The service.
        service: ServiceIndex,
        /// The client.
        client: SocketAddr,
        /// Why.
        reason: String,
    },
    /// Both nodes speak alone for a service: at least one of them had no right to.
    TwoVoices {
        /// The service.
        service: ServiceIndex,
        /// The epoch of both.
        epoch: u64,
    },
    /// The state of a replica's server is the primary's.
    Synced {
        /// The service.
        service: ServiceIndex,
        /// How long input was held for that.
        held: Duration,
    },
    /// It could not be made so.
    NotSynced {
        /// The service.
        service: ServiceIndex,
        /// Why.
        why: String,
    },
    /// The two nodes' configurations contradict each other.
    Contradiction {
        /// The service.
        service: ServiceIndex,
        /// How.
        what: String,
    },
}

/// A sign of life, with what the sender is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The sender's name.
    pub node: String,
    /// Drawn anew by each agent that is started.
    pub incarnation: u64,
    /// Counts up from 1.
    pub sequence: u64,
    /// When it was made, by the sender's clock, in nanoseconds.
    pub sent: u64,
    /// The receiver's last heartbeat that the sender has heard.
    pub echo: Option<Echo>,
    /// Its services.
    pub services: Vec<ServiceBeat>,
}

/// A number that nodes count up from 0, one by one. A number that none can have reached is not read: the next one may not fit.
pub(crate) fn in_reach<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    const REACH: u64 = u64::MAX / 2;
    let number = u64::deserialize(deserializer)?;
    match number {
        0..=REACH => Ok(number),
        _ => Err(de::Error::custom("a count that no node can have reached")),
    }
}

/// Names a heartbeat to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Echo {
    /// Its [`Heartbeat::incarnation`].
    pub incarnation: u64,
    /// Its [`Heartbeat::sent`].
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
    /// How the application on the sender's node is.
    pub server: Server,
    /// The sender gives up its part: take over from it, or go on without it.
    pub leaves: bool,
    /// The sender, a primary that is well, wants to be the backup.
    pub hands_over: bool,
    /// Connections that have lost their process on the sender's node.
    pub orphans: Orphans,
    /// Of the receiver's orphans the sender has taken so many.
    pub adopted: u64,
    /// The sender's side of the service's path. `None`: its program does not know of paths.
    #[serde(default)]
    pub path: Option<PathWord>,
}

/// How an application is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Server {
    /// Nothing is known against it.
    #[default]
    Alive,
    /// The process that listened died.
    Dead,
    /// It does not answer the health probe.
    Hung,
}
