//! One service on one node: a state machine of its own. [`Node`](crate::node::Node) has a list of them.
//!
//! [`handle`](Service::handle) takes an event. The resulting work comes in two queues. Its *actions* are carried out in
//! their order, before anything else that the node wants. The steps of its takeover ([`crate::takeover`]) follow when
//! no service has an action, so that they do not delay another service, or the node's heartbeat. While the node has no
//! right to speak, those steps wait.
//!
//! A service learns about the peer from the node's [`Detector`] and from what the peer's heartbeats say about this service.

mod annex;
mod asks;
mod direct;
mod doubt;
mod failure;
mod found;
mod migration;
mod older;
mod orphans;
mod packets;
mod path;
mod poll;
mod prefix;
pub(crate) mod replica;
mod retry;
mod roles;
mod snapshots;
mod sync;
mod view;

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

#[doc(hidden)]
pub use self::found::InheritedService;
pub use self::view::{OrderRefusal, PathFault, PathView, Simplex};
use crate::action::{ApplicationState, Gate, OperatorReport, ServiceAction, ServiceBeat};
use crate::annex::{AnnexId, Annexes, ServingNode};
use crate::carried::CarriedConnections;
use crate::census::CensusPage;
use crate::census::ClientTerms;
use crate::claim::Claim;
use crate::detector::{Detector, DetectorConfig};
use crate::doubt::ServiceDoubt;
use crate::export::{ExportPlace, Exports, PartReceipt, SnapshotArrivals, SnapshotPart};
use crate::migration::{IncomingMigrations, OutgoingMigrations};
use crate::orphans::ServiceOrphans;
use crate::path::ServicePath;
use crate::restart::prefix::PrefixAnswer;
use crate::reversal::Reversed;
use crate::role::{Role, RoleHistory};
use crate::standing::{ArbiterVerdict, Standing, StandingConfig};
use crate::state_sync::{StateSync, StateSyncEvent};
use crate::table::{ConnectionId, Table, TableConfig};
use crate::takeover::{Repeats, Reports, Takeover};
use crate::{Instant, Offset};
use asks::PrefixAsks;
use retry::FailedStep;

/// One service of a [`NodeConfig`](crate::node::NodeConfig).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceConfig {
    /// Configuration of its connection table.
    pub table: TableConfig,
    /// This node is the service's primary at first.
    pub is_primary: bool,
    /// This node's MAC address on the service's interface.
    pub mac: [u8; 6],
    /// The state that an earlier agent left, if any.
    pub found: Option<InheritedService>,
    /// Maximum time that clients' input is held while the operator's hook copies the primary's server state (policy `replica`, server with
    /// state). `None`: a server that has just started has all the state that matters.
    pub state_sync: Option<Duration>,
}

/// Segments that were not followed, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unfollowed {
    /// Malformed packets and wrong checksums.
    pub malformed: u64,
    /// Segments of connections whose beginning was not seen.
    pub unknown: u64,
}

/// Something that happened to a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServiceInput {
    /// The log has been read to its end, as [`ServiceAction::Drain`] asked.
    Drained,
    /// The socket of a restored connection is live.
    Live {
        /// The connection.
        connection: ConnectionId,
    },
    /// A connection could not be restored, so it gets a valid RST.
    Unrestorable {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        reason: String,
    },
    /// The relay has a connection of an earlier agent, and its client has not been heard yet. This agent must go on repeating its SYN-ACK.
    Unheard {
        /// The SYN-ACK, from its IP header on.
        syn_ack: Vec<u8>,
    },
    /// An outside host answered what [`ServiceAction::Announce`] asked.
    Reached,
    /// The arbiter's answer to [`ServiceAction::Confirm`].
    Verdict {
        /// The epoch that was asked for.
        epoch: u64,
        /// The answer.
        verdict: ArbiterVerdict,
    },
    /// A step failed in this node's network, or the network could not be restored. Handle this before carrying out any further
    /// action: the actions that were to follow the step are dropped.
    Failed {
        /// The step that failed, and the reason.
        why: String,
    },
    /// The network works again. The failed step is taken again.
    Mended {
        /// The MAC address that the service's interface has now.
        mac: [u8; 6],
    },
    /// The operator wants this node to have no part in the service (`true`), or to have one again.
    Leave(bool),
    /// The operator wants the connections of these clients to move from this node, the primary, to the backup.
    /// [`Service::migrations`] tells what becomes of them.
    Migrate {
        /// The clients.
        clients: Vec<SocketAddr>,
        /// The node to which they move. `None`: the other node of the pair. On a wire, the connections of annexes move, and `None` means the
        /// primary.
        #[serde(default)]
        annex: Option<AnnexId>,
        /// A connection that has not moved by then stays.
        until: Instant,
    },
    /// A node can take connections from now on, or not any more ([`crate::annex`]).
    AnnexIsUp {
        /// The node.
        node: ServingNode,
        /// Whether it can.
        is_up: bool,
    },
    /// A node has made the socket, as [`AnnexStep::RestoreAt`](crate::action::AnnexStep::RestoreAt) asked.
    RestoredAt {
        /// The client.
        client: SocketAddr,
        /// The node.
        node: ServingNode,
        /// The number of the latest snapshot that the node has exported.
        exported: u64,
    },
    /// A node cannot have the connection, or has lost it.
    RefusedAt {
        /// The client.
        client: SocketAddr,
        /// The node.
        node: ServingNode,
        /// Why.
        reason: String,
    },
    /// A node was asked to let the socket speak, as [`AnnexStep::StartAt`](crate::action::AnnexStep::StartAt) says.
    StartedAt {
        /// The connection.
        connection: ConnectionId,
    },
    /// A node has let the socket speak. The primary is asked for this again if the link to it was lost meanwhile.
    SpeaksAt {
        /// The client.
        client: SocketAddr,
        /// The node.
        node: ServingNode,
    },
    /// On the wire: there is a link to the primary again. It has dropped all sockets that it had made and not started.
    Doubted {
        /// Clients whose connections live there, of those that [`Service::unconfirmed`] names.
        live: Vec<SocketAddr>,
    },
    /// A node has no socket of this client's connection any more, as [`AnnexStep::DropAt`](crate::action::AnnexStep::DropAt) asked.
    DroppedAt {
        /// The client.
        client: SocketAddr,
        /// The node.
        node: ServingNode,
    },
    /// The frozen sockets of these connections go on, or do not, as [`Thaw`](crate::action::ServiceAction::Thaw) asked.
    Thawed {
        /// Clients whose connections go on.
        thawed: Vec<SocketAddr>,
        /// Clients on whose connections the other node has spoken.
        spoken: Vec<SocketAddr>,
    },
    /// The kernel says whether this node has a connection, as [`LookFor`](crate::action::ServiceAction::LookFor) asked.
    LookedFor {
        /// The client.
        client: SocketAddr,
        /// Whether its socket is here.
        is_here: bool,
    },
    /// On the primary: the wire says where connections live.
    LiveAt {
        /// Clients, and the nodes that have their connections.
        places: Vec<(SocketAddr, ServingNode)>,
        /// These are all that do not live on the primary.
        is_all: bool,
    },
    /// On a primary without its wire: an annex says which connections it has.
    Claimed {
        /// The annex.
        annex: AnnexId,
        /// Their clients.
        clients: Vec<SocketAddr>,
    },
    /// On the wire: the link to an annex has ended, and there is a new one.
    Relinked {
        /// The annex.
        annex: AnnexId,
        /// The clients whose connections it has.
        clients: Vec<SocketAddr>,
    },
    /// The application on this node is in this state now.
    Server(ApplicationState),
    /// The processes of these clients' connections died on this node, but the service lives.
    Orphans(Vec<SocketAddr>),
    /// These clients' connections have ended. Only the connections were taken over, not the service. So the clients' next packets go to
    /// the primary.
    Forgotten(Vec<SocketAddr>),
    /// A heartbeat or a packet of the service came from the peer through the service's interface.
    Sign {
        /// When.
        at: Instant,
    },
    /// Whether one of the links to the peer uses the service's interface.
    HasLink(bool),
    /// An outside host has answered a question of [`ServiceAction::AskOutside`].
    Outside {
        /// When the question was asked.
        asked: Instant,
    },
    /// There is no host that [`ServiceAction::AskOutside`] could ask.
    NoOutside,
    /// Packets passed without being logged, so nothing about the connections is certain now. Handle this after reading what was logged
    /// before the gap. Otherwise connections in that log would be taken for connections that began after the gap.
    LogGap,
    /// A page of the primary's connections, as [`ServiceAction::AskAll`] asked. Handle this after reading the log.
    Page(CensusPage),
    /// The answer of the primary's kernel about some connections, as [`ServiceAction::Ask`] asked. Handle this after
    /// reading the log.
    Told(Vec<ClientTerms>),
    /// The answer to [`AnnexStep::Ask`](crate::action::AnnexStep::Ask).
    ToldAt {
        /// The annex.
        annex: AnnexId,
        /// The terms of connections.
        told: Vec<ClientTerms>,
    },
    /// A run of the hook for the replica's state has ended ([`ServiceAction::RunSync`]).
    Synced {
        /// The number of the run.
        run: u64,
        /// Why it failed, if it did.
        outcome: Result<(), String>,
    },
    /// Whether the replica's server has left the primary's record because it diverged from it (`on_divergence = "unprotect"`). Its data may
    /// differ from the primary's, so no connection of the service is protected.
    ReplicaDiverged(bool),
    /// A connection's replica was given input.
    Fed {
        /// The connection.
        connection: ConnectionId,
        /// The replica has the input up to here.
        to: Offset,
        /// The replica has the end of input too.
        ended: bool,
    },
    /// A connection's replica failed, so the connection is not protected.
    ReplicaFailed {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        reason: String,
    },
    /// The application on this node has exported its state for a connection. The outcome follows as
    /// [`ServiceAction::Exported`].
    Export(ExportCall),
    /// A part of a snapshot came from the primary. Handle this after reading the log.
    Part(SnapshotPart),
    /// A part of a snapshot came from an annex. Handle this after reading the log.
    PartAt {
        /// The annex.
        annex: AnnexId,
        /// The part.
        part: SnapshotPart,
    },
    /// The backup has answered a part of a snapshot.
    Receipt(PartReceipt),
    /// The primary has answered [`ServiceAction::AskPrefix`]. Handle this after reading the log.
    Prefix(PrefixAnswer),
}

/// An application's call of `export_state`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportCall {
    /// Identifies the call. The caller chooses it.
    pub call: u64,
    /// Whether the application waits for the outcome.
    pub waits: bool,
    /// The client of the connection.
    pub client: SocketAddr,
    /// How far the application has read and written.
    pub place: ExportPlace,
    /// The state.
    #[serde(with = "crate::whole")]
    pub state: Arc<[u8]>,
}

/// One service of a [`Node`](crate::node::Node).
pub struct Service {
    config: ServiceConfig,
    standing: Standing,
    roles: RoleHistory,
    gate: Gate,
    table: Table,
    takeover: Option<Takeover>,
    reports: Reports,
    repeats: Repeats,
    claim: Option<Claim>,
    path: ServicePath,
    leaving: ServiceLeaving,
    peer: Option<ServiceBeat>,
    server: ApplicationState,
    orphans: ServiceOrphans,
    /// Connections that move from this node to its backup.
    outgoing: OutgoingMigrations,
    /// Connections that move to this node from the primary.
    incoming: IncomingMigrations,
    /// Connections for which the two nodes' parts are exchanged.
    reversed: Reversed,
    /// Nodes outside of the pair that have some connections.
    annexes: Annexes,
    carried: CarriedConnections,
    unfollowed: Unfollowed,
    sync: Option<StateSync>,
    /// The replica's server has diverged from the primary's record, and was not started again since.
    has_diverged: bool,
    /// Snapshots that this node sends, as the primary.
    exports: Exports,
    /// Snapshots that this node receives, as the backup.
    arrivals: SnapshotArrivals,
    /// Connections of an earlier takeover whose first input this node asks the primary for.
    prefixes: PrefixAsks,
    /// The step that failed in this node's network for the service, if any.
    failure: FailedStep,
    doubt: ServiceDoubt,
    alarms: Alarms,
    /// Actions to carry out next, in order. The takeover has its own queue of steps.
    actions: VecDeque<ServiceAction>,
    /// Until when the kernel lets this primary send output past the wire.
    direct_until: Option<Instant>,
    /// Whether this wire's kernel passes packets unlogged while the log is full.
    is_immediate: bool,
    /// Time of the latest change of this service that the peer has not been told about yet.
    news: Option<Instant>,
    /// The rule that this node breaks on purpose, for the simulator.
    broken: Option<BrokenRule>,
}

/// Why a node gives up its part in a service.
#[derive(Debug, Default)]
struct ServiceLeaving {
    /// The operator wants this node to have no part in the service.
    is_withdrawn: bool,
    /// Until then, this wire brings the connections of annexes back to the primary before it leaves.
    brings_back_until: Option<Instant>,
    /// This node is a wire with a broken path: the primary is to go on without it.
    gives_way: bool,
    /// The operator wants this primary to swap roles with its backup.
    hands_over: bool,
}

/// Contradictions between the two nodes that the operator was told of. Each is reported once.
#[derive(Debug, Default)]
struct Alarms {
    /// Both nodes are, or neither is, the configured primary.
    is_contradicted: bool,
    /// Both nodes spoke in the same epoch.
    are_two_voices: bool,
}

/// A rule that a node breaks on purpose ([`Node::break_rule`](crate::node::Node::break_rule)).
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenRule {
    /// The steps of a takeover go on although the right to speak has ended.
    DecideMute,
    /// The silence of the other node's agent counts as death, although that node's kernel answers.
    ClaimInDoubt,
    /// A connection of a dead process is taken over although it is on its way to an annex.
    AdoptMoving,
}

impl Service {
    /// A service that knows nothing of the peer, or only what an earlier agent left.
    pub(crate) fn new(
        config: &ServiceConfig,
        standing: StandingConfig,
        detector: DetectorConfig,
        offers_max: usize,
        now: Instant,
    ) -> Self {
        let found = config.found.as_ref();
        let standing = Standing::new(standing, found.map(found::behind), now);
        let has_peer = matches!(standing.role(), Role::Primary | Role::Backup);
        let told = found.filter(|_| standing.role() == Role::Primary);
        let orphans = ServiceOrphans::new(
            config.table.hash_seed,
            told.into_iter().flat_map(|found| found.orphans.iter().copied()),
            found.into_iter().flat_map(|found| found.taken.iter().copied()),
        );
        let gate = found.map_or(Gate::Off, |found| found.gate);
        let annexed = || found.into_iter().flat_map(|found| found.annexed.iter().copied());
        let frozen = || found.into_iter().flat_map(|found| found.frozen.iter().copied());
        let mut outgoing = OutgoingMigrations::new(now, offers_max);
        if matches!(standing.role(), Role::Primary | Role::Backup) {
            outgoing.resume(frozen());
        }
        let mut service = Self {
            config: config.clone(),
            standing,
            roles: RoleHistory::default(),
            gate,
            table: Table::new(config.table.clone()),
            takeover: None,
            reports: Reports::default(),
            repeats: Repeats::default(),
            claim: None,
            path: ServicePath::new(detector, has_peer, now),
            leaving: ServiceLeaving::default(),
            peer: None,
            server: ApplicationState::Alive,
            orphans,
            outgoing,
            incoming: IncomingMigrations::default(),
            reversed: Reversed::new(
                config.table.hash_seed,
                found
                    .into_iter()
                    .flat_map(|found| found.reversed_here.iter().copied()),
                found
                    .into_iter()
                    .filter(|_| gate != Gate::Wire)
                    .flat_map(|found| found.reversed_there.iter().copied()),
                frozen(),
            ),
            annexes: Annexes::new(now, annexed().filter(|_| gate == Gate::Wire)),
            carried: CarriedConnections::new(
                now,
                gate == Gate::Sole,
                annexed().filter(|_| gate != Gate::Wire),
            ),
            unfollowed: Unfollowed::default(),
            sync: config.state_sync.map(StateSync::new),
            has_diverged: false,
            exports: Exports::new(now),
            arrivals: SnapshotArrivals::default(),
            prefixes: PrefixAsks::default(),
            failure: FailedStep::default(),
            doubt: ServiceDoubt::default(),
            alarms: Alarms::default(),
            actions: VecDeque::new(),
            direct_until: None,
            is_immediate: false,
            news: None,
            broken: None,
        };
        if service.config.found.is_some() {
            service.go_on_as_found(now, detector.agent_timeout);
        }
        service
    }

    /// A new agent goes on from what the earlier agent left. That agent may have died after setting the gate, but before carrying out the
    /// steps that belong to it: allowing speech, or ending the connections behind a closed gate. Takes those steps again. A wire does not
    /// know its connections, so it asks the primary for them. The wire also does not know whether its replica still has the primary's
    /// state, so it has the state copied again.
    fn go_on_as_found(&mut self, now: Instant, agent_timeout: Duration) {
        let role = self.role();
        self.actions.push_back(ServiceAction::SetDirect { until: None }); // this agent's heartbeats say that nothing goes past the wire
        self.actions.push_back(ServiceAction::PassUnlogged { may: false }); // this agent has not heard what the peer says
        if role.may_speak() {
            self.actions.push_back(ServiceAction::AllowSpeech);
        } else if role == Role::Standby {
            let is_deposed = false;
            self.actions.push_back(ServiceAction::StandDown { is_deposed });
        }
        self.go_on_with_frozen(now);
        if role == Role::Backup {
            self.sync(now, StateSyncEvent::Begin);
            self.begin_census(now);
            let orphans = self.config.found.iter().flat_map(|found| found.orphans.clone());
            self.offer_bereft(now, orphans.collect::<Vec<_>>());
        }
        let found = self.config.found.as_ref();
        if found.is_some_and(|found| found.doubted.is_some() || now.since(found.seen) >= agent_timeout) {
            self.on_absence(now);
        }
    }

    /// Whether the earlier agent had a peer. Then the peer's silence counts, although this agent has never heard it.
    pub(crate) fn expects_peer(&self) -> bool {
        matches!(self.role(), Role::Primary | Role::Backup)
    }

    /// Whether the connections of a dead worker, or released connections of a migration, are being taken over. No other takeover begins
    /// meanwhile.
    fn is_busy(&self) -> bool {
        let is_under_way = |takeover: &Takeover| !takeover.waits_for_primary();
        self.takeover.as_ref().is_some_and(is_under_way) && self.role() == Role::Backup
    }

    /// If a working wire gives the VIP up, returns the time at which this node's claim is complete even without an answer of an outside
    /// host. Returns `None` for any other claim, or if this node has no right to the VIP.
    fn given_at(&self) -> Option<Instant> {
        let given_at = self.claim.as_ref().and_then(Claim::given_at)?;
        Some(given_at.max(self.standing.claims_at()?))
    }

    /// Breaks a rule on purpose from now on.
    pub(crate) const fn break_rule(&mut self, rule: BrokenRule) {
        self.broken = Some(rule);
    }

    /// Something happened at `now`. `peer` is the node's detector of the peer.
    pub(crate) fn handle(&mut self, peer: &Detector, now: Instant, input: ServiceInput) {
        match input {
            ServiceInput::Drained => self.on_drained(now),
            ServiceInput::Live { connection } => {
                if let Some(takeover) = self.takeover.as_mut() {
                    takeover.on_live(now, connection);
                }
            }
            ServiceInput::Unrestorable { connection, reason } => {
                self.on_unrestorable(now, connection, reason)
            }
            ServiceInput::Unheard { syn_ack } => {
                if self.role() != Role::Standby {
                    self.repeats.add(now, syn_ack, &mut self.actions);
                }
            }
            ServiceInput::Reached => self.on_reached(peer, now),
            ServiceInput::Verdict { epoch, verdict } => self.on_verdict(now, epoch, verdict),
            ServiceInput::Failed { why } => self.on_failed(now, why),
            ServiceInput::Mended { mac } => self.on_mended(now, mac),
            ServiceInput::Leave(leaves) => self.on_leave(now, leaves),
            ServiceInput::Migrate {
                clients,
                annex,
                until,
            } => self.on_migrate(now, clients, annex, until),
            ServiceInput::Server(server) => self.on_server(now, server),
            ServiceInput::Orphans(clients) => self.on_orphans(now, clients),
            ServiceInput::Forgotten(clients) => self.on_forgotten(&clients),
            ServiceInput::Sign { at } => self.path.on_sign(at),
            ServiceInput::HasLink(has_link) => self.path.set_link(has_link),
            ServiceInput::Outside { asked } => {
                self.path.on_answer(now, asked);
                self.judge_path(peer, now);
            }
            ServiceInput::NoOutside => self.path.on_nobody(),
            ServiceInput::LogGap => self.on_log_gap(now),
            ServiceInput::Page(page) => self.on_page(now, page),
            ServiceInput::Told(told) => self.on_told(now, ServingNode::Primary, told),
            ServiceInput::ToldAt { annex, told } => self.on_told(now, ServingNode::Annex(annex), told),
            ServiceInput::Synced { run, outcome } => self.on_synced(now, run, outcome),
            ServiceInput::ReplicaDiverged(has_diverged) => self.on_divergence(has_diverged),
            ServiceInput::Fed {
                connection,
                to,
                ended,
            } => self.on_fed(connection, to, ended),
            ServiceInput::ReplicaFailed { connection, reason } => self.on_replica_failure(connection, reason),
            ServiceInput::Export(call) => self.on_export(now, call),
            ServiceInput::Part(part) => self.on_part(part, ServingNode::Primary),
            ServiceInput::PartAt { annex, part } => self.on_part(part, ServingNode::Annex(annex)),
            ServiceInput::Receipt(receipt) => self.on_receipt(now, &receipt),
            ServiceInput::Prefix(answer) => self.on_prefix(now, &answer),
            ServiceInput::Thawed { thawed, spoken } => self.on_thawed(now, thawed, spoken),
            ServiceInput::LookedFor { client, is_here } => self.on_looked_for(now, client, is_here),
            ServiceInput::AnnexIsUp { node, is_up } => self.on_annex(now, node, is_up),
            ServiceInput::RestoredAt {
                client,
                node,
                exported,
            } => self.on_restored_at(now, client, (node, exported)),
            ServiceInput::RefusedAt { client, node, reason } => self.on_refused_at(now, client, node, reason),
            ServiceInput::StartedAt { connection } => self.on_started_at(now, connection),
            ServiceInput::SpeaksAt { client, node } => self.on_speaks_at(&client, node),
            ServiceInput::Doubted { live } => self.settle_doubted(now, &live),
            ServiceInput::DroppedAt { client, node } => self.on_dropped_at(now, client, node),
            ServiceInput::LiveAt { places, is_all } => self.on_live_at(&places, is_all),
            ServiceInput::Relinked { annex, clients } => self.on_relinked(now, annex, &clients),
            ServiceInput::Claimed { annex, clients } => self.on_claimed(now, annex, &clients),
        }
        self.judge_direct(now);
    }

    /// The peer was heard. If the heartbeat comes from a new agent of the peer, `incarnation` is that agent's.
    pub(crate) fn on_heartbeat(&mut self, now: Instant, incarnation: Option<u64>) {
        self.path.on_heartbeat();
        if let Some(incarnation) = incarnation {
            self.orphans.begin(incarnation);
            self.on_new_offerer(now);
        }
    }

    /// The peer is to be told of a change immediately, not only with the next regular heartbeat.
    fn tell_peer(&mut self, now: Instant) {
        self.news = Some(now);
    }

    fn report(&mut self, report: OperatorReport) {
        self.actions.push_back(ServiceAction::Report(report));
    }
}

#[cfg(test)]
impl Service {
    pub(crate) fn set_standing(&mut self, standing: Standing) {
        self.standing = standing;
    }

    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubt.exists()
    }

    pub(crate) fn takes_over(&self) -> bool {
        self.takeover.is_some()
    }
}
