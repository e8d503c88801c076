//! One node of a pair: its view of the peer, its services ([`crate::service`]), and the actions that its caller must carry out.
//!
//! Most methods are of three kinds. *Getters* take `&self`. `handle` and `handle_*` take an event: a packet of the wire's log, a heartbeat,
//! the passing of time, or the outcome of an action. `poll_*` return the work that results. [`Node::poll_action`] returns the next action,
//! in order. After every `handle` or `handle_*`, call it until it returns `None`, and then call [`Node::handle_idle`].
//! [`Node::poll_timeout`] returns the latest time for the next call of `handle_timeout`; earlier calls do no harm. If a takeover has more
//! connections to plan, `handle_timeout` is due at once, but the caller should handle all other input first.
//!
//! A heartbeat is made only when no service has an action left, apart from steps of takeovers. So this node has carried out everything that
//! its heartbeat reports.

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
mod turn;

use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::Instant;
use crate::action::{Echo, Heartbeat, ServiceIndex};
use crate::connection::Endpoint;
use crate::detector::{Detector, DetectorConfig};
use crate::migration::{MigrationBeat, offers_max};
use crate::orphans;
use crate::packet::Checksum;
use crate::service::{BrokenRule, OrderRefusal, Service, ServiceConfig, ServiceInput, Simplex};
use crate::standing::{Arbiter, StandingConfig};
use crate::stream::{OnShelf, Shelf};
use crate::table::{ConnectionId, Direction};
use crate::takeover::{HandedOver, Urgency};

/// Configuration of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeConfig {
    /// Its name.
    pub name: String,
    /// Random number, drawn at each start of the agent. It distinguishes this agent from earlier agents.
    pub incarnation: u64,
    /// Whether this node may serve alone if it does not hear a peer after the start.
    pub without_peer: bool,
    /// The silence after which the peer counts as dead, and the interval of this node's own heartbeats.
    pub detector: DetectorConfig,
    /// Lease: time for which the backup may take over without having asked the arbiter. The primary counts the lease from the time
    /// when it last heard the backup, and adds 1/16 for clock drift. The primary may claim the VIP only after this time.
    pub lease: Duration,
    /// The arbiter that a node asks for the right to speak alone ([`ServiceAction::Confirm`](crate::action::ServiceAction::Confirm)).
    pub arbiter: Arbiter,
    /// Delay before this node asks the fence to switch a silent peer off.
    pub fence_delay: Duration,
    /// The services. A [`ServiceIndex`] is an index into this list.
    pub services: Vec<ServiceConfig>,
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
    /// Send time of a heartbeat that is to be sent as soon as no action is left. `None` if no heartbeat is wanted.
    beat: Option<Instant>,
    /// Identifies the peer's last heartbeat. This node's next heartbeat carries this echo.
    echo: Option<Echo>,
    /// The sequence number of the peer's last heartbeat.
    heard: u64,
    /// Whether the peer's kernel is to be probed as soon as no service has an action left.
    probes: bool,
    services: Vec<Service>,
    turn: NodeTurn,
}

/// A turn: the time from one [`handle_timeout`](Node::handle_timeout) to the next.
#[derive(Debug)]
struct NodeTurn {
    began: Instant,
    /// Duration of the turn so far.
    lasted: Duration,
    /// Whether planning has stopped for this turn because the turn lasted `TURN_MAX`, although a takeover has connections left to plan.
    is_over: bool,
    /// Whether the keeper is behind ([`Node::set_behind`]).
    is_behind: bool,
    /// Whether planning has stopped for this turn because the keeper is behind, although a takeover has connections left to plan.
    gives_way: bool,
    /// If the last polled action is a step of a takeover: the urgency of the step.
    step: Option<Urgency>,
}

impl NodeTurn {
    /// A turn that begins at `now`.
    const fn new(now: Instant) -> Self {
        Self {
            began: now,
            lasted: Duration::ZERO,
            is_over: false,
            is_behind: false,
            gives_way: false,
            step: None,
        }
    }

    /// The latest time that the turn has recorded.
    fn now(&self) -> Instant {
        self.began + self.lasted
    }

    /// Begins the next turn.
    fn renew(&mut self, now: Instant) {
        (self.began, self.lasted) = (now, Duration::ZERO);
        (self.is_over, self.gives_way) = (false, false);
    }

    /// Records, at a step of a takeover, how long the turn has lasted.
    fn pass(&mut self, now: Instant) {
        self.lasted = now.since(self.began);
    }
}

impl Node {
    /// Makes this node break `rule` from now on. The simulator uses this method to show that its judge notices such a defect.
    #[doc(hidden)]
    pub fn break_rule(&mut self, rule: BrokenRule) {
        self.services
            .iter_mut()
            .for_each(|service| service.break_rule(rule));
    }

    /// A node that has not yet heard its peer.
    pub fn new(config: NodeConfig, now: Instant) -> Self {
        let offers_max = offers_max(config.services.len());
        let service = |service: &ServiceConfig| {
            let standing = StandingConfig {
                is_primary: service.is_primary,
                arbiter: config.arbiter,
                lease: config.lease,
                fence_delay: config.fence_delay,
                sends_directly: service.table.sends_directly && !config.lease.is_zero(),
            };
            Service::new(service, standing, config.detector, offers_max, now)
        };
        let services: Vec<_> = config.services.iter().map(service).collect();
        let detector = if services.iter().any(Service::expects_peer) {
            Detector::expecting(config.detector, now)
        } else {
            Detector::new(config.detector, now)
        };
        Self {
            config,
            detector,
            since: now,
            ran: now,
            beat_due: now,
            beat_sequence: 0,
            beat: None,
            echo: None,
            heard: 0,
            probes: false,
            services,
            turn: NodeTurn::new(now),
        }
    }

    /// The node's configuration.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// A service.
    ///
    /// # Panics
    /// If the node has no service with this index.
    pub fn service(&self, index: ServiceIndex) -> &Service {
        &self.services[usize::from(index)]
    }

    /// A service, mutable, and the detector of the peer, which the service reads.
    fn part(&mut self, index: ServiceIndex) -> (&mut Service, &Detector) {
        (&mut self.services[usize::from(index)], &self.detector)
    }

    /// Handles an event of a service.
    pub fn handle(&mut self, now: Instant, index: ServiceIndex, input: ServiceInput) {
        if matches!(input, ServiceInput::Drained) {
            self.turn.pass(now);
        }
        let (service, peer) = self.part(index);
        service.handle(peer, now, input);
    }

    /// Handles a packet that the wire logged at `now`. `packet` begins at the IP header. `source` is the packet's place on a [`Shelf`]
    /// (memory of the caller), if the packet stays there after this call. In that case call [`keep`](Self::keep) before any other method,
    /// except for further packets on the same shelf.
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
        service.on_packet(now, direction, packet, checksum, source);
    }

    /// Copies the bytes that the logs still need from `shelf`. After this call, the caller may use the memory of the shelf again.
    pub fn keep(&mut self, shelf: &dyn Shelf) {
        for service in &mut self.services {
            service.keep(shelf);
        }
    }

    /// Removes a restored connection from the table and returns it, with its logs, for the relay. `endpoint` is the state with which the
    /// connection's socket was made. `None` if the connection ended meanwhile, or if the application cannot continue with that socket. In
    /// the second case the node refuses the connection. In both cases the caller must close the socket.
    pub fn hand_over(
        &mut self,
        now: Instant,
        index: ServiceIndex,
        connection: ConnectionId,
        endpoint: &Endpoint,
    ) -> Option<HandedOver> {
        self.part(index).0.hand_over(now, connection, endpoint)
    }

    /// Handles `bytes` that a connection's replica sent, or the end of the replica's stream (`None`). Returns the number of bytes by which
    /// the replica's output is ahead of the primary's. The caller must not read from a replica that is far ahead.
    pub fn handle_replica_output(
        &mut self,
        index: ServiceIndex,
        connection: ConnectionId,
        bytes: Option<&[u8]>,
    ) -> usize {
        self.part(index).0.on_replica_output(connection, bytes)
    }

    /// Sets whether this node's cable for a service carries a signal. A node without a signal hears nothing, although the peer may live.
    /// When the signal is back, the node gives the peer time to be heard again before it declares the peer dead. Returns whether the signal
    /// has just come back.
    pub fn handle_carrier(&mut self, now: Instant, index: ServiceIndex, has_carrier: bool) -> bool {
        let is_back = self.part(index).0.set_carrier(now, has_carrier);
        if is_back {
            self.detector.excuse(now);
        }
        let (service, peer) = self.part(index);
        service.judge_path(peer, now);
        service.judge_direct(now);
        is_back
    }

    /// Handles an order of the operator: the nodes are to swap their roles for a service. This node is the service's primary and is to
    /// become the backup, or the reverse.
    ///
    /// # Errors
    /// The reason why the roles cannot be swapped.
    pub fn handle_handover(&mut self, now: Instant, index: ServiceIndex) -> Result<(), OrderRefusal> {
        let (service, peer) = self.part(index);
        if let Some(why) = service.cannot_hand_over(peer, now) {
            return Err(why);
        }
        service.swap_roles(now);
        Ok(())
    }

    /// Handles an order of the operator: this node is to stop, so it leaves its services to the peer. [`is_free`](Self::is_free) tells when
    /// the node can stop.
    pub fn handle_stop(&mut self, now: Instant) {
        for index in self.indices() {
            self.handle(now, index, ServiceInput::Leave(true));
        }
    }

    /// Handles a pause: this node's clock stood still until `now`, so leases may have ended.
    pub fn handle_pause(&mut self, now: Instant) {
        for service in &mut self.services {
            service.on_pause(now);
        }
    }

    /// Handles an answer of the peer's kernel to a probe.
    pub fn handle_answer(&mut self, now: Instant) {
        self.detector.on_traffic(now);
    }

    /// Handles a heartbeat of the peer. Once a heartbeat of a new agent of the peer has arrived, the caller must drop heartbeats of the
    /// peer's earlier agents ([`crate::anti_replay`]), because the new agent is not bound by the promises of an earlier one.
    pub fn handle_heartbeat(&mut self, now: Instant, heartbeat: Heartbeat) {
        self.look_at_absence(now);
        let incarnation = heartbeat.incarnation;
        let is_known = self.echo.is_some_and(|last| last.incarnation == incarnation);
        if is_known && heartbeat.sequence < self.heard {
            return; // a later heartbeat overtook this one
        }
        self.detector.on_heartbeat(now);
        for service in &mut self.services {
            service.on_heartbeat(now, (!is_known).then_some(incarnation));
        }
        self.heard = heartbeat.sequence;
        let sent = heartbeat.sent;
        self.echo = Some(Echo { incarnation, sent });
        if !is_known {
            self.beat = Some(now); // a new agent should not wait for the next regular heartbeat
        }
        let echo = heartbeat
            .echo
            .filter(|echo| echo.incarnation == self.config.incarnation)
            .map(|echo| Instant::from_nanos(echo.sent))
            .filter(|sent| *sent <= now);
        for beat in heartbeat.services {
            let mut services = self.services.iter_mut();
            if let Some(service) = services.find(|service| service.vip() == beat.vip) {
                service.on_beat(&self.detector, now, echo, beat);
            }
        }
    }

    /// Handles the passing of time: notes that a heartbeat is due, notices missing heartbeats of the peer, and does everything else that is
    /// due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.turn.renew(now);
        self.look_at_absence(now);
        if now >= self.beat_due {
            self.beat_due = now + self.config.detector.interval;
            self.beat = Some(now);
        }
        let Self {
            services, detector, ..
        } = self;
        for service in services.iter_mut() {
            service.on_timeout(detector, now);
        }
        let waits = services
            .iter()
            .any(|service| service.waits_for_agent(detector, now));
        self.probes |= detector.wants_probe(now) || waits && detector.wants_answer(now);
        let is_silent = detector.is_silent(now);
        let is_alone = self.is_alone(now);
        for service in &mut self.services {
            let is_dead = is_silent && service.on_silent(&self.detector, now);
            if is_alone && !is_dead {
                service.on_alone(now);
            }
        }
    }

    /// Time at which this agent last ran. Once the node's actions are carried out, the node has dealt with all events before this time.
    pub const fn ran(&self) -> Instant {
        self.ran
    }

    /// Whether the operator has allowed this node to serve without a peer, and the peer has not been heard since the start. At least the
    /// detector's patience and a lease must have passed since then.
    fn is_alone(&self, now: Instant) -> bool {
        self.config.without_peer
            && !self.detector.has_heard()
            && now.since(self.since) >= self.config.detector.patience() + self.config.lease
    }

    /// Whether the agent was away for the agent timeout.
    fn is_absent(&self, now: Instant) -> bool {
        now.since(self.ran) >= self.config.detector.agent_timeout
    }

    /// Called when the agent runs. If the agent did not run for the agent timeout or longer, each service may come into doubt: it no longer
    /// trusts what it knows, because the peer may have gone on alone.
    fn look_at_absence(&mut self, now: Instant) {
        if self.is_absent(now) {
            self.services
                .iter_mut()
                .for_each(|service| service.on_absence(now));
        }
        self.ran = now;
    }

    fn indices(&self) -> impl Iterator<Item = ServiceIndex> + use<> {
        0..ServiceIndex::try_from(self.services.len()).expect("few services")
    }

    /// This node's next heartbeat, sent at `now`.
    fn heartbeat(&mut self, now: Instant) -> Heartbeat {
        self.beat_sequence += 1;
        let orphans = orphans::share(self.services.iter().map(Service::orphans));
        let migrations = self.migration_beats();
        let services = self.services.iter().zip(orphans.into_iter().zip(migrations));
        let services = services.map(|(service, (orphans, migration))| service.beat(orphans, migration));
        Heartbeat {
            node: self.config.name.clone(),
            incarnation: self.config.incarnation,
            sequence: self.beat_sequence,
            sent: now.as_nanos(),
            echo: self.echo,
            services: services.collect(),
        }
    }

    /// What the next heartbeat says of each service's migrations. A heartbeat has room for one service that has something to say, so these
    /// services take turns.
    fn migration_beats(&self) -> Vec<Option<MigrationBeat>> {
        let mut beats: Vec<_> = self.services.iter().map(|it| Some(it.migration_beat())).collect();
        let has_more = |beat: &Option<MigrationBeat>| beat.as_ref().is_some_and(|beat| !beat.is_empty());
        let talkers: Vec<_> = (0..beats.len())
            .filter(|&index| has_more(&beats[index]))
            .collect();
        let turn = usize::try_from(self.beat_sequence % talkers.len().max(1) as u64).expect("few services");
        for (place, index) in talkers.into_iter().enumerate() {
            if place != turn {
                beats[index] = None;
            }
        }
        beats
    }

    /// Whether the peer is heard and not overdue.
    pub fn peer_is_alive(&self, now: Instant) -> bool {
        self.detector.is_alive(now)
    }

    /// The peer's last heartbeat.
    pub fn last_heartbeat(&self) -> Option<Instant> {
        self.detector.last_heartbeat()
    }

    /// Whether this node's cables should be checked now, because a pulled cable may be the reason for silence.
    pub fn wants_link(&self, now: Instant) -> bool {
        self.detector.is_late(now) || self.services.iter().any(|service| service.wants_link(now))
    }

    /// The reason why a service is simplex. `None` if it is duplex: both nodes do their part.
    pub fn simplex(&self, now: Instant, index: ServiceIndex) -> Option<Simplex> {
        self.service(index).simplex(&self.detector, now)
    }

    /// Whether both nodes do their part for a service.
    pub fn is_duplex(&self, now: Instant, index: ServiceIndex) -> bool {
        self.simplex(now, index).is_none()
    }

    /// The reason why no node would serve if this node gave up its part in a service. `None` if the peer would serve, or if this node does
    /// not serve now.
    pub fn would_be_lost(&self, now: Instant, index: ServiceIndex) -> Option<OrderRefusal> {
        self.service(index).would_be_lost(&self.detector, now)
    }

    /// The reason why no connection of a service can move from this node to the other one. `None` if connections can move.
    pub fn cannot_migrate(&self, now: Instant, index: ServiceIndex) -> Option<OrderRefusal> {
        self.service(index).cannot_migrate(&self.detector, now)
    }

    /// Time at which this node, as a service's primary, may claim the VIP if the wire stays silent. By then, the wire is overdue and its
    /// lease has ended. `None` if this node may not claim the VIP, or has begun to claim it already.
    pub fn may_claim_at(&self, index: ServiceIndex) -> Option<Instant> {
        self.service(index).may_claim_at(&self.detector)
    }

    /// Whether a change of role, a takeover or an adoption of orphans is under way. If the agent ended now, this work would be left half
    /// done.
    pub fn is_deciding(&self) -> bool {
        self.services.iter().any(Service::is_deciding)
    }

    /// Whether this node can stop now. If not, a stop would lose connections that a short wait may save.
    pub fn is_free(&self, now: Instant) -> bool {
        let is_alive = self.detector.is_alive(now);
        self.services.iter().all(|service| service.is_free(is_alive))
    }
}
