//! One node: its services, its view of the peer, and what it wants done.
//!
//! Methods are of four kinds. *Getters* take `&self`. `handle_*` take what happened: packets of the wire's log, heartbeats,
//! time, and the outcome of actions. [`Node::poll_action`] gives the next action, in order; drain it to `None` after every
//! `handle_*`. [`Node::poll_timeout`] says when `handle_timeout` is due at the latest; earlier calls do no harm. If a takeover has
//! more to do, `handle_timeout` is due at once, but the caller should handle all other input first.

mod doubt;
mod failure;
#[cfg(test)]
mod fixture;
mod found;
mod limit;
mod older;
mod orphans;
mod path;
mod pause;
mod replica;
mod roles;
mod sync;
#[cfg(test)]
mod tests;
mod turn;
mod view;

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use rustc_hash::FxSeededState;

#[doc(hidden)]
pub use self::found::Found;
pub use self::view::{PathFault, PathView};
use crate::action::{Action, Echo, Gate, Report, Server, ServiceBeat, ServiceIndex};
use crate::claim::Claim;
use crate::connection::Endpoint;
use crate::detector::{Detector, DetectorConfig};
use crate::follower::follow_replica;
use crate::orphans::{Hearing, Telling};
use crate::packet::{Checksum, Segment};
use crate::path::{Path, PathWord};
use crate::role::Role;
use crate::standing::{Arbiter, Standing, StandingConfig};
use crate::state_sync::{Event, StateSync};
use crate::stream::{OnShelf, Shelf};
use crate::table::{Change, ConnectionId, Direction, Table, TableConfig};
use crate::takeover::{self, HandedOver, Repeats, Reports, Takeover};
use crate::{Instant, Offset};
use failure::Failure;
use turn::Turn;

/// Configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its name.
    pub name: String,
    /// Drawn anew at each start.
    pub incarnation: u64,
    /// Whether to serve without a peer, if none is there at the start.
    pub without_peer: bool,
    /// When the peer counts as dead; also the rhythm of our own heartbeats.
    pub detector: DetectorConfig,
    /// Lease: after the backup was last heard, it may take over without having asked for this long, plus 1/16 for clock drift. Only
    /// after that may the VIP be claimed.
    pub lease: Duration,
    /// The arbiter that a node asks for the right to speak alone ([`Action::Confirm`]).
    pub arbiter: Arbiter,
    /// Time that this node waits before it has a silent peer fenced.
    pub fence_delay: Duration,
    /// The services. A [`ServiceIndex`] is an index into this list.
    pub services: Vec<ServiceConfig>,
}

/// One service of a [`NodeConfig`].
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// Configuration of its connection table.
    pub table: TableConfig,
    /// This node is its primary at first.
    pub is_primary: bool,
    /// This node's MAC address on its interface.
    pub mac: [u8; 6],
    /// What an earlier agent left of the service, if any.
    pub found: Option<Found>,
    /// Longest hold of clients' input while the operator's hook copies the primary's server state (policy `replica`, server with
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

/// A role that a node took, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleSince {
    /// When.
    pub at: Instant,
    /// The role.
    pub role: Role,
    /// Its epoch.
    pub epoch: u64,
}

/// Most roles that are remembered.
const ROLES_MAX: usize = 16;

pub(crate) struct Service {
    pub(crate) config: ServiceConfig,
    standing: Standing,
    /// The last roles, the present one last.
    roles: VecDeque<RoleSince>,
    gate: Gate,
    pub(crate) table: Table,
    pub(crate) takeover: Option<Takeover>,
    pub(crate) reports: Reports,
    repeats: Repeats,
    claim: Option<Claim>,
    path: Path,
    /// The report on the path that the peer was last told.
    path_told: PathWord,
    /// This node is a wire with a broken path: the primary is to go on without it.
    gives_way: bool,
    /// The operator wants this node to have no part in the service.
    is_withdrawn: bool,
    peer: Option<ServiceBeat>,
    server: Server,
    telling: Telling,
    hearing: Hearing,
    /// Clients whose connections wait to be taken over.
    orphans: Vec<SocketAddr>,
    /// Clients whose last connection was taken over, while the service was not.
    taken: HashSet<SocketAddr, FxSeededState>,
    unfollowed: Unfollowed,
    sync: Option<StateSync>,
    /// The step that failed in this node's network for the service, if any.
    failure: Failure,
    /// When this node came into doubt whether the other node has gone on alone; `None` if it is not in doubt.
    doubted: Option<Instant>,
    /// When the agent came back, if it was away for too long during a takeover. The takeover's steps wait until the other node has said what
    /// it did meanwhile.
    interrupted: Option<Instant>,
    hands_over: bool,
    is_contradicted: bool,
    is_alarmed: bool,
}

impl Service {
    fn new(config: &ServiceConfig, standing: StandingConfig, detector: DetectorConfig, now: Instant) -> Self {
        let found = config.found.as_ref();
        let mut taken = HashSet::with_hasher(FxSeededState::with_seed(config.table.hash_seed));
        taken.extend(found.into_iter().flat_map(|found| &found.taken));
        let standing = Standing::new(standing, found.map(found::behind), now);
        let has_peer = matches!(standing.role(), Role::Primary | Role::Backup);
        Self {
            config: config.clone(),
            telling: found.map_or_else(Telling::default, |found| found.telling(standing.role())),
            standing,
            roles: VecDeque::new(),
            gate: found.map_or(Gate::Off, |found| found.gate),
            table: Table::new(config.table.clone()),
            takeover: None,
            reports: Reports::default(),
            repeats: Repeats::default(),
            claim: None,
            path: Path::new(detector, has_peer, now),
            path_told: PathWord::default(),
            gives_way: false,
            is_withdrawn: false,
            peer: None,
            server: Server::Alive,
            hearing: Hearing::default(),
            orphans: Vec::new(),
            taken,
            unfollowed: Unfollowed::default(),
            sync: config.state_sync.map(StateSync::new),
            failure: Failure::default(),
            doubted: None,
            interrupted: None,
            hands_over: false,
            is_contradicted: false,
            is_alarmed: false,
        }
    }

    fn role(&self) -> Role {
        self.standing.role()
    }

    /// Whether the earlier agent had a peer. Then the peer's silence counts, although this agent has never heard it.
    fn expects_peer(&self) -> bool {
        matches!(self.role(), Role::Primary | Role::Backup)
    }

    /// Whether the connections of a dead worker are being taken over. No other takeover begins meanwhile.
    fn is_busy(&self) -> bool {
        self.takeover.is_some() && self.role() == Role::Backup
    }

    /// When the claim of a VIP that a working wire gives up is complete, even if no outside host answers. `None` for any other claim, and
    /// if this node has no right to the VIP.
    fn given_at(&self) -> Option<Instant> {
        let given_at = self.claim.as_ref().and_then(Claim::given_at)?;
        Some(given_at.max(self.standing.claims_at()?))
    }

    /// If a client speaks on a connection that waits to be taken over, that connection comes next. A segment that the connection does not
    /// take has no effect, because anybody can send such a segment.
    fn hurry_speaker(&mut self, direction: Direction, segment: &Segment<'_>) {
        let (Direction::In, Some(takeover)) = (direction, &mut self.takeover) else {
            return;
        };
        let said_on = self.table.find(segment.source);
        let waits = said_on.filter(|&id| takeover.is_unhurried(id));
        let is_taken = |id: &ConnectionId| self.table.get(*id).is_some_and(|entry| entry.takes(segment));
        if let Some(connection) = waits.filter(is_taken) {
            takeover.hurry(connection);
        }
    }
}

/// One node of a pair.
pub struct Node {
    config: NodeConfig,
    detector: Detector,
    since: Instant,
    /// When `handle_timeout` or `handle_heartbeat` was last called.
    ran: Instant,
    beat_due: Instant,
    beat_sequence: u64,
    /// Names the peer's last heartbeat, for the next heartbeat to the peer.
    echo: Option<Echo>,
    /// The sequence number of the peer's last heartbeat.
    heard: u64,
    services: Vec<Service>,
    actions: VecDeque<Action>,
    turn: Turn,
    /// The steps of a takeover go on though the right to speak has ended: a defect, for the simulator.
    decides_mute: bool,
}

impl Node {
    /// Breaks a rule on purpose from now on: a takeover goes on though the right to speak has ended. The simulator shows by this that its
    /// judge notices.
    #[doc(hidden)]
    pub const fn decide_mute(&mut self) {
        self.decides_mute = true;
    }

    /// A node that has not yet heard of its peer.
    pub fn new(config: NodeConfig, now: Instant) -> Self {
        let service = |service: &ServiceConfig| {
            let standing = StandingConfig {
                is_primary: service.is_primary,
                arbiter: config.arbiter,
                lease: config.lease,
                fence_delay: config.fence_delay,
            };
            Service::new(service, standing, config.detector, now)
        };
        let services: Vec<_> = config.services.iter().map(service).collect();
        let detector = if services.iter().any(Service::expects_peer) {
            Detector::expecting(config.detector, now)
        } else {
            Detector::new(config.detector, now)
        };
        let mut node = Self {
            config,
            detector,
            since: now,
            ran: now,
            beat_due: now,
            beat_sequence: 0,
            echo: None,
            heard: 0,
            services,
            actions: VecDeque::new(),
            turn: Turn::new(now),
            decides_mute: false,
        };
        node.speak_as_found();
        node.sync_what_was_found(now);
        node.count_what_was_found(now);
        node.doubt_what_was_found(now);
        node
    }

    /// The node's configuration.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The connections of a service.
    pub fn table(&self, service: ServiceIndex) -> &Table {
        &self.service(service).table
    }

    /// Segments that were not followed.
    pub fn unfollowed(&self, service: ServiceIndex) -> Unfollowed {
        self.service(service).unfollowed
    }

    fn service(&self, index: ServiceIndex) -> &Service {
        &self.services[usize::from(index)]
    }

    fn indices(&self) -> impl Iterator<Item = ServiceIndex> + use<> {
        0..ServiceIndex::try_from(self.services.len()).expect("few services")
    }

    /// A packet that the wire logged at `now`, from its IP header on. `source` is its place if it lies on a shelf. In that case call
    /// [`keep`](Self::keep) before any other method, except for further packets of that shelf.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        index: ServiceIndex,
        direction: Direction,
        packet: &[u8],
        checksum: Checksum,
        source: Option<OnShelf<'_>>,
    ) {
        let Some(service) = self.services.get_mut(usize::from(index)) else {
            return;
        };
        if direction == Direction::Out {
            self.detector.on_traffic(now);
        }
        let Ok(segment) = Segment::parse(packet, checksum) else {
            service.unfollowed.malformed += 1;
            return;
        };
        let payload_at = (segment.payload.as_ptr() as usize).wrapping_sub(packet.as_ptr() as usize);
        let source = source
            .filter(|_| payload_at < packet.len())
            .map(|source| source.skip(payload_at));
        service.table.set_wire(service.role() == Role::Backup);
        let missed = service.missed_by_replica(direction, &segment);
        service.hurry_speaker(direction, &segment);
        let change = service.table.on_packet(now, direction, &segment, source);
        self.bury(now, index);
        let service = &mut self.services[usize::from(index)];
        if service.config.table.has_replicas() && service.admits(change, missed) {
            follow_replica(&mut service.table, index, change, &mut self.actions);
        }
        match change {
            Change::Unknown => {
                service.unfollowed.unknown += 1;
                if service.answers(now, direction, &segment) {
                    self.actions
                        .extend(takeover::refuse(&segment).map(|reset| Action::Transmit(reset.emit())));
                }
                self.ask_about_older(now, index);
            }
            Change::Old if service.answers(now, direction, &segment) => {
                let answer = service.table.answer_to_old(now, &segment);
                self.actions
                    .extend(answer.map(|answer| Action::Transmit(answer.emit())));
            }
            Change::Handshake if direction == Direction::In && !service.taken.is_empty() => {
                service.taken.remove(&segment.source); // its next connection is the primary's
            }
            Change::Ended(connection) => self.decide(now, index, connection),
            Change::Old | Change::Handshake | Change::Connection(_) | Change::Opened(_) => {}
        }
        self.tell_wire(index);
    }

    /// The shelf that packets came from will be cleared. Copies what is still needed from it.
    pub fn keep(&mut self, shelf: &dyn Shelf) {
        for service in &mut self.services {
            service.table.keep(shelf);
        }
    }

    /// The log has been read to its end, as [`Action::Drain`] asked.
    pub fn handle_drained(&mut self, now: Instant, index: ServiceIndex) {
        self.turn.pass(now);
        self.distrust_log(index);
        let service = &mut self.services[usize::from(index)];
        if let Some(takeover) = service.takeover.as_mut() {
            takeover.on_drained(now, index, &mut service.table, &mut self.actions);
        }
        self.sync(now, index, Event::Drained);
        self.conclude(now, index);
    }

    /// A restored connection's socket is live.
    pub fn handle_live(&mut self, now: Instant, index: ServiceIndex, connection: ConnectionId) {
        let service = &mut self.services[usize::from(index)];
        if let Some(takeover) = service.takeover.as_mut() {
            takeover.on_live(now, connection);
        }
    }

    /// A connection could not be restored, for `reason`, so it gets a valid RST.
    pub fn handle_unrestorable(
        &mut self,
        now: Instant,
        index: ServiceIndex,
        connection: ConnectionId,
        reason: String,
    ) {
        let service = &mut self.services[usize::from(index)];
        if let Some(takeover) = service.takeover.as_mut() {
            takeover.on_unrestorable(index, connection, &mut service.table, reason, &mut self.actions);
        }
        self.conclude(now, index);
    }

    /// Takes a live connection out of the table, with its logs, for the relay. Its socket was made from `endpoint`. `None` if the
    /// connection ended meanwhile, or if the application cannot go on with that socket. The node then refuses the connection, and the
    /// caller must close the socket.
    pub fn hand_over(
        &mut self,
        now: Instant,
        index: ServiceIndex,
        connection: ConnectionId,
        endpoint: &Endpoint,
    ) -> Option<HandedOver> {
        let service = &mut self.services[usize::from(index)];
        let entry = service.table.get(connection);
        if let Some(Err(reason)) = entry.map(|entry| entry.restarts_on(endpoint)) {
            self.handle_unrestorable(now, index, connection, reason);
            return None;
        }
        let taken = service.table.hand_over(connection).map(|taken| {
            let takeover = service.takeover.as_mut();
            let syn_ack = takeover.and_then(|takeover| takeover.half_open(connection, &taken));
            HandedOver {
                connection: taken,
                syn_ack,
            }
        });
        if let Some(syn_ack) = taken.as_ref().and_then(|taken| taken.syn_ack.as_ref()) {
            service.repeats.add(now, syn_ack.clone(), &mut self.actions);
        }
        self.decide(now, index, connection);
        taken
    }

    /// The relay has a connection of an earlier agent whose client was not heard yet. Goes on repeating its SYN-ACK.
    pub fn handle_unheard(&mut self, now: Instant, index: ServiceIndex, syn_ack: Vec<u8>) {
        let service = &mut self.services[usize::from(index)];
        if service.role() != Role::Standby {
            service.repeats.add(now, syn_ack, &mut self.actions);
        }
    }

    fn decide(&mut self, now: Instant, index: ServiceIndex, connection: ConnectionId) {
        if let Some(takeover) = &mut self.services[usize::from(index)].takeover {
            takeover.on_decided(connection);
        }
        self.conclude(now, index);
    }

    fn conclude(&mut self, now: Instant, index: ServiceIndex) {
        self.bury(now, index);
        self.tell_wire(index);
        let service = &mut self.services[usize::from(index)];
        if let Some(takeover) = service.takeover.take_if(|takeover| takeover.is_decided()) {
            let is_whole = takeover.is_whole();
            service.reports.push(takeover.report(now));
            self.actions.push_back(Action::Settle { service: index });
            if is_whole {
                self.actions.push_back(Action::AllowSpeech { service: index });
            }
            for refusal in takeover.into_refusals() {
                service.repeats.add(now, refusal, &mut self.actions);
            }
            self.actions
                .push_back(Action::Report(Report::TakenOver { service: index }));
            if is_whole {
                let change = self.services[usize::from(index)].standing.on_decided(now);
                self.follow(now, index, change);
            }
            self.adopt_orphans(now, index);
        }
    }

    /// A service's virtual address and port.
    pub fn vip(&self, index: ServiceIndex) -> SocketAddr {
        self.service(index).table.config().vip
    }
}
