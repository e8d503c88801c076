//! One node: its services, its view of the peer, and what it wants done.
//!
//! Methods are of four kinds. *Getters* take `&self`. `handle_*` take what happened: packets of the wire's log, heartbeats,
//! time, and the outcome of actions. [`Node::poll_action`] gives what is to be done, in order; drain it to `None` after
//! every `handle_*`. [`Node::poll_timeout`] says when `handle_timeout` is due at the latest; earlier calls do no harm.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::action::{Action, Gate, Heartbeat, Report, ServiceBeat, ServiceIndex};
use crate::connection::Connection;
use crate::detector::{Detector, DetectorConfig};
use crate::follower::{Policy, follow_replica};
use crate::packet::{Checksum, Segment};
use crate::role::{Event, Role};
use crate::stream::{OnShelf, Shelf};
use crate::table::{Change, ConnectionId, Direction, Table, TableConfig};
use crate::takeover::{self, Repeats, Takeover, TakeoverReport};
use crate::{Instant, Offset};

/// What a node is told at its start.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its name.
    pub name: String,
    /// When the peer counts as dead; also the rhythm of our own heartbeats.
    pub detector: DetectorConfig,
    /// The services; an index into this list names one.
    pub services: Vec<ServiceConfig>,
}

/// One service of a [`NodeConfig`].
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// What is kept of its connections.
    pub table: TableConfig,
    /// This node is its primary at first.
    pub is_primary: bool,
    /// This node's MAC address on its interface.
    pub mac: [u8; 6],
}

/// Segments that were not followed, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unfollowed {
    /// Malformed packets and wrong checksums.
    pub malformed: u64,
    /// Segments of connections whose beginning was not seen.
    pub unknown: u64,
}

pub(crate) struct Service {
    pub(crate) config: ServiceConfig,
    pub(crate) role: Role,
    pub(crate) epoch: u64,
    pub(crate) table: Table,
    pub(crate) takeover: Option<Takeover>,
    pub(crate) reports: Vec<TakeoverReport>,
    repeats: Repeats,
    peer: Option<ServiceBeat>,
    server_dead: bool,
    unfollowed: Unfollowed,
    contradicted: bool,
}

/// One node of a pair.
pub struct Node {
    config: NodeConfig,
    detector: Detector,
    beat_due: Instant,
    beat_sequence: u64,
    services: Vec<Service>,
    actions: VecDeque<Action>,
}

impl Node {
    /// A node that has not yet heard of its peer.
    pub fn new(config: NodeConfig, now: Instant) -> Self {
        let services = config
            .services
            .iter()
            .map(|service| Service {
                config: service.clone(),
                role: Role::Joining,
                epoch: 0,
                table: Table::new(service.table),
                takeover: None,
                reports: Vec::new(),
                repeats: Repeats::default(),
                peer: None,
                server_dead: false,
                unfollowed: Unfollowed::default(),
                contradicted: false,
            })
            .collect();
        let detector = Detector::new(config.detector, now);
        Self {
            config,
            detector,
            beat_due: now,
            beat_sequence: 0,
            services,
            actions: VecDeque::new(),
        }
    }

    /// What the node was told.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// Whether the peer is heard of in time.
    pub fn peer_is_alive(&self, now: Instant) -> bool {
        self.detector.is_alive(now)
    }

    /// Role and epoch of a service.
    pub fn role(&self, service: ServiceIndex) -> (Role, u64) {
        let service = self.service(service);
        (service.role, service.epoch)
    }

    /// Whether both nodes do their part for a service.
    pub fn is_duplex(&self, now: Instant, service: ServiceIndex) -> bool {
        let service = self.service(service);
        let complement = match service.role {
            Role::Primary => Role::Backup,
            Role::Backup => Role::Primary,
            Role::Joining | Role::TakingOver | Role::Sole | Role::Standby => return false,
        };
        self.detector.is_alive(now) && service.peer.as_ref().is_some_and(|peer| peer.role == complement)
    }

    /// The connections of a service.
    pub fn table(&self, service: ServiceIndex) -> &Table {
        &self.service(service).table
    }

    /// The takeovers of a service so far, the last one first to be complete.
    pub fn takeovers(&self, service: ServiceIndex) -> &[TakeoverReport] {
        &self.service(service).reports
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

    /// A packet that the wire logged at `now`, from its IP header on, with its place if it lies on a shelf: then
    /// [`keep`](Self::keep) is to be called before anything else than further packets of that shelf.
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
        let change = service.table.on_packet(now, direction, &segment, source);
        if service.config.table.policy == Policy::Replica {
            follow_replica(&mut service.table, index, change, &mut self.actions);
        }
        match change {
            Change::Unknown => {
                service.unfollowed.unknown += 1;
                if service.role.speaks_alone() && direction == Direction::In {
                    self.actions
                        .extend(takeover::refuse(&segment).map(|reset| Action::Transmit(reset.emit())));
                }
            }
            Change::Old if service.role.speaks_alone() && direction == Direction::In => {
                let answer = service.table.answer_to_old(now, &segment);
                self.actions
                    .extend(answer.map(|answer| Action::Transmit(answer.emit())));
            }
            Change::Ended(connection) => self.decide(now, index, connection),
            Change::Old | Change::Handshake | Change::Connection(_) | Change::Opened(_) => {}
        }
    }

    /// The shelf that packets came from will be cleared: copies from it what is still needed.
    pub fn keep(&mut self, shelf: &dyn Shelf) {
        for service in &mut self.services {
            service.table.keep(shelf);
        }
    }

    /// The peer's sign of life.
    pub fn handle_heartbeat(&mut self, now: Instant, heartbeat: Heartbeat) {
        self.detector.on_heartbeat(now);
        for beat in heartbeat.services {
            let Some(index) = self
                .indices()
                .find(|&index| self.service(index).table.config().vip == beat.vip)
            else {
                continue;
            };
            let service = &mut self.services[usize::from(index)];
            let event = if beat.configured_primary == service.config.is_primary {
                if !std::mem::replace(&mut service.contradicted, true) {
                    let what = "both nodes are, or neither is, the configured primary".into();
                    self.actions
                        .push_back(Action::Report(Report::Contradiction { service: index, what }));
                }
                None
            } else {
                event_of(service, &beat)
            };
            service.peer = Some(beat);
            if let Some(event) = event {
                self.transition(now, index, event);
            }
        }
    }

    /// The peer's kernel answered a probe.
    pub fn handle_answer(&mut self, now: Instant) {
        self.detector.on_traffic(now);
    }

    /// Time has passed: heartbeats are sent and missed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now >= self.beat_due {
            self.beat_due = now + self.config.detector.interval;
            self.send_heartbeat();
        }
        for service in &mut self.services {
            service.repeats.on_timeout(now, &mut self.actions);
        }
        if self.detector.wants_probe(now) {
            self.actions.push_back(Action::Probe);
        }
        if self.detector.is_silent(now) {
            for index in self.indices() {
                self.transition(now, index, Event::PeerSilent);
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Instant {
        let repeats = self
            .services
            .iter()
            .filter_map(|service| service.repeats.poll_timeout());
        repeats.fold(self.beat_due.min(self.detector.poll_timeout()), Instant::min)
    }

    /// The process that listens for the service on this node died.
    pub fn handle_server_dead(&mut self, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        if service.role == Role::Primary && !std::mem::replace(&mut service.server_dead, true) {
            self.send_heartbeat(); // at once, not in the usual rhythm
        }
    }

    fn send_heartbeat(&mut self) {
        self.beat_sequence += 1;
        let services = self
            .services
            .iter()
            .map(|service| ServiceBeat {
                vip: service.table.config().vip,
                role: service.role,
                epoch: service.epoch,
                configured_primary: service.config.is_primary,
                mac: service.config.mac,
                server_dead: service.server_dead,
            })
            .collect();
        let heartbeat = Heartbeat {
            node: self.config.name.clone(),
            sequence: self.beat_sequence,
            services,
        };
        self.actions.push_back(Action::Send(heartbeat));
    }

    fn transition(&mut self, now: Instant, index: ServiceIndex, event: Event) {
        let service = &mut self.services[usize::from(index)];
        let from = service.role;
        let Some(role) = from.after(event) else { return };
        service.role = role;
        match role {
            Role::Primary | Role::Backup => {
                let peer_mac = service.peer.as_ref().expect("paired by its heartbeat").mac;
                let gate = if role == Role::Primary {
                    Gate::Primary
                } else {
                    Gate::Wire
                };
                service.epoch = 1;
                self.actions.push_back(Action::Assume {
                    service: index,
                    role,
                    peer_mac,
                });
                self.actions.push_back(Action::SetGate { service: index, gate });
            }
            Role::TakingOver => {
                service.epoch += 1;
                service.takeover = Some(Takeover::begin(now, index, &mut self.actions));
            }
            Role::Standby => {
                service.epoch = service.peer.as_ref().map_or(service.epoch, |peer| peer.epoch);
                self.actions.push_back(Action::SetGate {
                    service: index,
                    gate: Gate::Mute,
                });
            }
            Role::Sole | Role::Joining => {}
        }
        let report = Report::Role {
            service: index,
            from,
            to: role,
            epoch: service.epoch,
        };
        self.actions.push_back(Action::Report(report));
        self.send_heartbeat(); // the peer should know at once
    }

    /// The log has been read to its end, as [`Action::Drain`] asked.
    pub fn handle_drained(&mut self, now: Instant, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        if let Some(takeover) = service.takeover.as_mut() {
            takeover.on_drained(now, index, &mut service.table, &mut self.actions);
        }
        self.conclude(now, index);
    }

    /// A restored connection's socket is live.
    pub fn handle_live(&mut self, now: Instant, index: ServiceIndex, connection: ConnectionId) {
        let service = &mut self.services[usize::from(index)];
        if let Some(takeover) = service.takeover.as_mut() {
            takeover.on_live(now, connection);
        }
    }

    /// A connection could not be restored, for `reason`: it gets one valid RST.
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

    /// Takes a connection that is live out of the table, with its logs, for the relay. `None` if it ended meanwhile.
    pub fn hand_over(
        &mut self,
        now: Instant,
        index: ServiceIndex,
        connection: ConnectionId,
    ) -> Option<Connection> {
        let service = &mut self.services[usize::from(index)];
        let taken = service.table.hand_over(connection);
        if let (Some(takeover), Some(taken)) = (&mut service.takeover, &taken)
            && let Some(syn_ack) = takeover.half_open(connection, taken)
        {
            service.repeats.add(now, syn_ack, &mut self.actions);
        }
        self.decide(now, index, connection);
        taken
    }

    fn decide(&mut self, now: Instant, index: ServiceIndex, connection: ConnectionId) {
        if let Some(takeover) = &mut self.services[usize::from(index)].takeover {
            takeover.on_decided(connection);
        }
        self.conclude(now, index);
    }

    fn conclude(&mut self, now: Instant, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        if let Some(takeover) = service.takeover.take_if(|takeover| takeover.is_decided()) {
            service.reports.push(takeover.report(now));
            self.actions.push_back(Action::AllowSpeech { service: index });
            for refusal in takeover.into_refusals() {
                service.repeats.add(now, refusal, &mut self.actions);
            }
            self.actions
                .push_back(Action::Report(Report::TakenOver { service: index }));
            self.transition(now, index, Event::Decided);
        }
    }

    /// A connection's replica was given the input up to `to`, and the end of input too if `ended`.
    pub fn handle_fed(&mut self, index: ServiceIndex, connection: ConnectionId, to: Offset, ended: bool) {
        self.with_replica(index, connection, |replica| replica.on_fed(to, ended));
    }

    /// A connection's replica said `bytes`; `None`: it closed its stream. Returns how far it is ahead of the primary:
    /// while that is much, do not read from it.
    pub fn handle_replica_output(
        &mut self,
        index: ServiceIndex,
        connection: ConnectionId,
        bytes: Option<&[u8]>,
    ) -> usize {
        let mut ahead = 0;
        self.with_replica(index, connection, |replica| {
            match bytes {
                Some(bytes) => replica.on_output(bytes),
                None => replica.on_output_end(),
            }
            ahead = replica.ahead();
        });
        ahead
    }

    /// A connection's replica failed: the connection is not protected.
    pub fn handle_replica_failure(&mut self, index: ServiceIndex, connection: ConnectionId, reason: String) {
        self.with_replica(index, connection, |replica| replica.on_failure(reason));
    }

    fn with_replica(
        &mut self,
        index: ServiceIndex,
        id: ConnectionId,
        change: impl FnOnce(&mut crate::follower::Replica),
    ) {
        let table = &mut self.services[usize::from(index)].table;
        let Some(connection) = table.get_mut(id) else {
            return;
        };
        let before = connection.memory();
        if let Some(replica) = connection.follower_mut().replica_mut() {
            change(replica);
        }
        connection.release();
        table.account(id, before);
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        let action = self.actions.pop_front()?;
        if let Action::Restore { service, connection } = action
            && let Some(connection) = self.services[usize::from(service)].table.get_mut(connection)
        {
            connection.hold_input_end();
        }
        Some(action)
    }

    /// The address of a service's clients' peer.
    pub fn vip(&self, index: ServiceIndex) -> SocketAddr {
        self.service(index).table.config().vip
    }
}

/// What the peer's word about a service means for this node's role.
fn event_of(service: &Service, beat: &ServiceBeat) -> Option<Event> {
    match (service.role, beat.role) {
        (Role::Joining, role) if role.speaks_alone() => Some(Event::PeerSpeaks),
        (_, role) if role.speaks_alone() && beat.epoch > service.epoch => Some(Event::PeerSpeaks),
        (Role::Joining, Role::Joining | Role::Primary | Role::Backup) if service.config.is_primary => {
            Some(Event::PairedAsPrimary)
        }
        (Role::Joining, Role::Joining | Role::Primary | Role::Backup) => Some(Event::PairedAsBackup),
        (Role::Backup, Role::Primary) if beat.server_dead => Some(Event::PeerServerDead),
        _ => None,
    }
}
