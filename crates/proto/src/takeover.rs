//! A takeover, step by step (DESIGN.md §3, "The primary dies").
//!
//! ```text
//!   declared ─▶ gate closed ─▶ log drained ─▶ for each connection (busy, then idle, then mere handshakes):
//!                                               restore ─▶ make ready ─▶ drain ─▶ activate ─▶ hand over
//!                                             ─▶ all decided: settled, speech allowed, one RST for each lost connection
//! ```
//!
//! Among the busy connections, those that have been silent longest come first.
//!
//! After the first 64 connections, idle connections wait, so that busy connections get the CPUs: 250 µs for each busy connection, at most
//! 150 ms in all. Then 32 idle connections follow every 4 ms. An idle connection follows sooner if its client sends something. The steps
//! after "all decided" wait for the idle connections too.
//!
//! If only some connections have lost their server's process, the same steps are taken for them alone. The gate is closed for each of these
//! connections ([`ServiceAction::Hold`]), and the node remains the wire of all other connections.
//!
//! The phases of a takeover ([`TakeoverPhase`]), and the pace of its idle connections ([`IdlePace`]):
//!
//! ```text
//!               drain popped            drained                   last connection decided
//!   GateClosed ─────────────▶ Draining ─────────▶ Deciding ────────────────────────────────▶ Decided
//!                                                    │ ▲ a connection's own drain
//!                                                    └─┘
//!                                     timer                      last of a portion
//!   Unlimited            Resting ─────────────────▶ Portion ──────────────────────┐
//!   no head start           ▲                        │   ▲ planned                │
//!                           │                        └───┘                        │
//!                           └─────────────────────────────────────────────────────┘
//! ```
//!
//! *Make ready, then drain*: as soon as a socket is ready, the wire passes packets to it. The drain finds what the wire
//! logged before. So every byte reaches the socket by exactly one of the two ways.

mod socketless;
mod wake;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use crate::Instant;
use crate::action::{OperatorReport, ServiceAction};
use crate::connection::Connection;
use crate::follower::RestartPolicy;
use crate::table::{ConnectionId, Table};
pub use socketless::HandedOver;
pub use socketless::repeat;
use socketless::reset_of;
pub(crate) use socketless::{Repeats, refuse};
pub use wake::{wake, wake_from};

/// The result of a takeover, and the times of its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeoverReport {
    /// When the peer was declared dead.
    pub declared: Instant,
    /// When the log was read to its end behind the closed gate.
    pub gate_closed: Instant,
    /// When the first restored socket was live.
    pub first_live: Option<Instant>,
    /// When the last restored socket was live.
    pub last_live: Option<Instant>,
    /// When all connections were decided.
    pub decided: Instant,
    /// Number of connections to decide.
    pub connections: usize,
    /// Number of connections that go on.
    pub restored: usize,
    /// Number of connections that could not be restored.
    pub reset: usize,
    /// The connections that went live, and when.
    pub live: Vec<(ConnectionId, Instant)>,
}

/// Maximum number of reports that are kept. A worker that crashes repeatedly causes one report each time.
const REPORTS_MAX: usize = 16;

/// The takeovers of a service.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// The last [`REPORTS_MAX`] reports.
    last: Vec<TakeoverReport>,
    sums: TakeoverSums,
}

/// Sums over all takeovers of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakeoverSums {
    /// Number of takeovers.
    pub takeovers: u64,
    /// Connections that went on.
    pub restored: u64,
    /// Connections that could not be restored.
    pub reset: u64,
}

impl Reports {
    pub(crate) fn push(&mut self, report: TakeoverReport) {
        self.sums.takeovers += 1;
        self.sums.restored += report.restored as u64;
        self.sums.reset += report.reset as u64;
        if self.last.len() == REPORTS_MAX {
            self.last.remove(0);
        }
        self.last.push(report);
    }

    pub(crate) fn last(&self) -> &[TakeoverReport] {
        &self.last
    }

    pub(crate) fn sums(&self) -> TakeoverSums {
        self.sums
    }
}

/// Number of steps that follow a connection's `Restore`.
const STEPS_AFTER_RESTORE: usize = 4;
/// Number of connections whose steps come before the [`Hold`](ServiceAction::Hold) that tells the wire which clients are held. Until then
/// no SYN passes.
const BEFORE_HOLD: usize = 64;

/// Time for which idle connections wait per busy connection, up to [`HEAD_START_MAX`] in all. Meanwhile the keeper and the application need
/// the CPUs to answer on the busy connections.
pub(crate) const HEAD_START_EACH: Duration = Duration::from_micros(250);
/// The longest such wait. See [`HEAD_START_EACH`].
pub(crate) const HEAD_START_MAX: Duration = Duration::from_millis(150);
/// Number of idle connections that are taken over every [`PORTION_EVERY`] after the head start. Busy connections still need the CPUs.
pub(crate) const PORTION: usize = 32;
/// Time between two portions of idle connections. See [`PORTION`].
pub(crate) const PORTION_EVERY: Duration = Duration::from_millis(4);

/// How far a takeover is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TakeoverPhase {
    /// The gate is closed. The takeover's own drain is planned. A drain that was begun before the gate closed does not count.
    GateClosed,
    /// The log is being read to its end.
    Draining,
    /// All connections are known, and some are not decided.
    Deciding,
    /// All connections are decided.
    Decided,
}

/// Events that change the phase of a takeover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TakeoverEvent {
    /// A planned drain was popped.
    DrainBegun,
    /// The log was read to its end.
    Drained,
    /// The last known connection is decided.
    AllDecided,
}

impl TakeoverPhase {
    const fn after(self, event: TakeoverEvent) -> Self {
        use TakeoverEvent::{AllDecided, DrainBegun, Drained};
        match (self, event) {
            (Self::GateClosed, DrainBegun) => Self::Draining,
            (Self::GateClosed, Drained) => Self::GateClosed, // this drain was begun for a replica's copy, before the gate closed
            (Self::GateClosed, AllDecided) => Self::GateClosed,
            (Self::Draining, DrainBegun) => Self::Draining,
            (Self::Draining, Drained) => Self::Deciding,
            (Self::Draining, AllDecided) => Self::Draining,
            (Self::Deciding, DrainBegun | Drained) => Self::Deciding, // a drain among one connection's steps
            (Self::Deciding, AllDecided) => Self::Decided,
            (Self::Decided, DrainBegun | Drained | AllDecided) => Self::Decided,
        }
    }
}

/// How fast the idle connections follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdlePace {
    /// Without a pause.
    Unlimited,
    /// No idle connection follows until this time.
    Resting {
        /// The time.
        until: Instant,
    },
    /// A portion of the idle connections follows.
    Portion {
        /// Number of connections of this portion that may still follow.
        left: usize,
        /// When the next portion may begin.
        next: Instant,
    },
}

/// Events that change the pace of the idle connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PaceEvent {
    /// The time has advanced to this value.
    Timer(Instant),
    /// The steps of an idle connection were planned, and other idle connections still wait.
    Planned,
    /// The steps of the last idle connection were planned.
    PlannedLast,
    /// At this time, a client has spoken on an idle connection of the service.
    Spoken(Instant),
}

impl IdlePace {
    fn after(self, event: PaceEvent) -> Self {
        use PaceEvent::{Planned, PlannedLast, Spoken, Timer};
        match (self, event) {
            (Self::Unlimited, Timer(_) | Planned | PlannedLast) => Self::Unlimited,
            (Self::Unlimited, Spoken(now)) => Self::Portion {
                left: PORTION,
                next: now + PORTION_EVERY,
            },
            (Self::Resting { until }, Timer(now)) if now < until => Self::Resting { until },
            (Self::Resting { .. }, Timer(now)) => Self::Portion {
                left: PORTION,
                next: now + PORTION_EVERY,
            },
            (Self::Resting { until }, Planned | PlannedLast | Spoken(_)) => Self::Resting { until },
            (Self::Portion { left, next }, Timer(_) | Spoken(_)) => Self::Portion { left, next },
            (Self::Portion { left: 0 | 1, next }, Planned) => Self::Resting { until: next },
            (Self::Portion { left, next }, Planned) => Self::Portion { left: left - 1, next },
            (Self::Portion { left, next }, PlannedLast) => Self::Portion { left, next },
        }
    }
}

/// The connections that are taken over.
#[derive(Debug)]
enum Scope {
    /// All connections of the service.
    Service,
    /// Only the connections of these clients, whose worker died.
    Clients(Vec<SocketAddr>),
    /// The connections of these clients, which move here from a living primary ([`crate::migration`]).
    Migration(Vec<SocketAddr>),
}

/// A takeover under way.
#[derive(Debug)]
pub(crate) struct Takeover {
    scope: Scope,
    phase: TakeoverPhase,
    declared: Instant,
    /// When the log was read to its end.
    drained: Option<Instant>,
    undecided: BTreeSet<ConnectionId>,
    /// Connections on which a side waits for something and whose steps are not planned yet, in order.
    hurried: VecDeque<ConnectionId>,
    /// The other connections whose steps are not planned yet.
    unhurried: BTreeSet<ConnectionId>,
    /// The order of `unhurried`. It may still contain connections that have left that set.
    in_turn: VecDeque<ConnectionId>,
    /// How fast the unhurried connections follow.
    pace: IdlePace,
    /// Connections whose client may not have got the SYN-ACK, with that SYN-ACK.
    half_open: BTreeMap<ConnectionId, Vec<u8>>,
    connections: usize,
    reset: usize,
    live: Vec<(ConnectionId, Instant)>,
    refusals: Vec<Vec<u8>>,
    /// Connections of a dead worker, or of a migration, that are not decided yet, and whose steps an earlier takeover has planned.
    begun: BTreeSet<ConnectionId>,
    /// Connections of a migration that the primary has released.
    released: BTreeSet<ConnectionId>,
    /// The planned steps, in order.
    steps: VecDeque<(ServiceAction, Urgency)>,
}

/// Whether a step of a takeover can wait for other work that needs the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// A side of the step's connection waits for something, or the step concerns all connections.
    Hurried,
    /// No side of the step's connection waits for anything.
    Unhurried,
}

impl Takeover {
    /// Begins the takeover of the whole service: the gate is closed, and the log must be read to its end. If the takeover of a dead
    /// worker's connections is under way (`adoption`), its remaining steps follow and are not planned again.
    pub(crate) fn begin(now: Instant, adoption: Option<Self>) -> Self {
        let mut takeover = Self::declared(now, Scope::Service);
        takeover.adopt(adoption);
        takeover
    }

    /// Begins the takeover of the connections of `clients`, which have lived on the other node. If some of them are moving here
    /// (`adoption`), their remaining steps follow and are not planned again.
    pub(crate) fn begin_reversed(
        now: Instant,
        mut clients: Vec<SocketAddr>,
        adoption: Option<Self>,
        actions: &mut VecDeque<ServiceAction>,
    ) -> Self {
        if let Some(Scope::Migration(moving)) = adoption.as_ref().map(|adoption| &adoption.scope) {
            clients.extend(moving);
            clients.sort_unstable();
            clients.dedup();
        }
        let mut takeover = Self::begin_for(now, clients, actions);
        takeover.adopt(adoption);
        takeover
    }

    fn adopt(&mut self, adoption: Option<Self>) {
        let connection = |(step, _): &(ServiceAction, Urgency)| match *step {
            ServiceAction::HandOver { connection } => Some(connection),
            _ => None,
        };
        if let Some(mut adoption) = adoption {
            adoption.release_all();
            self.begun = adoption.steps.iter().filter_map(connection).collect();
            self.steps.extend(adoption.steps);
            (self.refusals, self.live) = (adoption.refusals, adoption.live);
        }
    }

    /// Begins the takeover of the connections of `clients` only.
    pub(crate) fn begin_for(
        now: Instant,
        clients: Vec<SocketAddr>,
        actions: &mut VecDeque<ServiceAction>,
    ) -> Self {
        let held = clients.clone();
        actions.push_back(ServiceAction::Hold { clients: held });
        Self::declared(now, Scope::Clients(clients))
    }

    /// Begins to move the connections of `clients` here from a living primary. Each is prepared, and then waits until the primary has
    /// released it ([`release`](Self::release)), or keeps it ([`give_back`](Self::give_back)).
    pub(crate) fn begin_migration(
        now: Instant,
        clients: Vec<SocketAddr>,
        actions: &mut VecDeque<ServiceAction>,
    ) -> Self {
        let reserved = clients.clone();
        actions.push_back(ServiceAction::Reserve { clients: reserved });
        Self::declared(now, Scope::Migration(clients))
    }

    fn declared(now: Instant, scope: Scope) -> Self {
        Self {
            scope,
            phase: TakeoverPhase::GateClosed,
            declared: now,
            drained: None,
            undecided: BTreeSet::new(),
            hurried: VecDeque::new(),
            unhurried: BTreeSet::new(),
            in_turn: VecDeque::new(),
            pace: IdlePace::Unlimited,
            half_open: BTreeMap::new(),
            connections: 0,
            reset: 0,
            live: Vec::new(),
            refusals: Vec::new(),
            begun: BTreeSet::new(),
            released: BTreeSet::new(),
            steps: VecDeque::from([(ServiceAction::Drain, Urgency::Hurried)]),
        }
    }

    /// The next planned step.
    pub(crate) fn pop_step(&mut self) -> Option<(ServiceAction, Urgency)> {
        let step = self.steps.pop_front()?;
        if step.0 == ServiceAction::Drain {
            self.phase = self.phase.after(TakeoverEvent::DrainBegun);
        }
        Some(step)
    }

    /// Removes the planned `Hold` and returns it, if it was not popped yet. The wire must hold the clients before their connections count
    /// as decided.
    pub(crate) fn take_hold(&mut self) -> Option<ServiceAction> {
        let is_hold = |(step, _): &(ServiceAction, Urgency)| matches!(step, ServiceAction::Hold { .. });
        let place = self.steps.iter().position(is_hold)?;
        self.steps.remove(place).map(|(step, _)| step)
    }

    /// A popped step could not be carried out now. It is the next step again.
    pub(crate) fn put_back(&mut self, step: ServiceAction, urgency: Urgency) {
        self.steps.push_front((step, urgency));
    }

    /// Handles the end of a drain. After the takeover's own drain all connections are known: puts them in order, and plans the steps of the
    /// first ones.
    pub(crate) fn on_drained(
        &mut self,
        now: Instant,
        table: &mut Table,
        actions: &mut VecDeque<ServiceAction>,
    ) {
        let before = self.phase;
        self.phase = before.after(TakeoverEvent::Drained);
        if before != TakeoverPhase::Draining {
            return;
        }
        self.drained = Some(now);
        let connections: Vec<ConnectionId> = match &self.scope {
            Scope::Service => {
                self.open_pending(table, actions);
                table.iter().map(|(id, _)| id).collect()
            }
            Scope::Clients(clients) | Scope::Migration(clients) => {
                let mut seen = BTreeSet::new(); // a new agent of the primary repeats orphans that the earlier agent has reported
                let known = clients.iter().filter_map(|&client| table.find(client));
                known.filter(|&connection| seen.insert(connection)).collect()
            }
        };
        self.connections = connections.len();
        self.undecided = connections.iter().copied().collect();
        let hold = self.is_whole().then(|| {
            let clients = table.iter().map(|(_, connection)| connection.client()).collect();
            ServiceAction::Hold { clients }
        });
        // Mere handshakes come last: a SYN flood consists of nothing else.
        let (mut idle, mut opening) = (Vec::new(), Vec::new());
        for connection in connections {
            let entry = table.get_mut(connection).expect("in the table");
            entry.expect_unreleased();
            if self.begun.contains(&connection) {
                continue; // its steps are planned already
            }
            if self.half_open.contains_key(&connection) {
                opening.push(connection);
            } else if entry.is_busy() {
                self.hurried.push_back(connection);
            } else {
                idle.push(connection);
            }
        }
        let silent_since = |id: &ConnectionId| table.get(*id).map(Connection::silent_since);
        self.hurried.make_contiguous().sort_by_key(silent_since);
        self.in_turn = idle.into_iter().chain(opening).collect();
        self.unhurried = self.in_turn.iter().copied().collect();
        let at_work = u32::try_from(self.hurried.len()).unwrap_or(u32::MAX);
        let head_start = HEAD_START_EACH.saturating_mul(at_work).min(HEAD_START_MAX);
        for _ in 0..BEFORE_HOLD {
            if let Some(next) = self.hurried.pop_front() {
                self.plan(next, Urgency::Hurried, table, actions);
            } else if let Some(next) = self.next_in_turn() {
                self.plan(next, Urgency::Unhurried, table, actions);
            }
        }
        // If only a dead worker's connections are taken over, idle ones need not wait: the sooner the takeover ends, the better for the
        // service's other clients.
        if at_work > 0 && self.is_whole() {
            let until = now + head_start;
            self.pace = IdlePace::Resting { until };
        }
        self.steps.extend(hold.map(|hold| (hold, Urgency::Hurried)));
        self.look_for_end();
    }

    /// The next connection on which no side waits for anything.
    fn next_in_turn(&mut self) -> Option<ConnectionId> {
        std::iter::from_fn(|| self.in_turn.pop_front()).find(|id| self.unhurried.remove(id))
    }

    /// Plans the steps of `connection`. If it cannot be restored, reports that instead. The check is
    /// made here, one connection at a time, because checking ten thousand at once takes milliseconds.
    fn plan(
        &mut self,
        connection: ConnectionId,
        urgency: Urgency,
        table: &mut Table,
        actions: &mut VecDeque<ServiceAction>,
    ) {
        let restore = (ServiceAction::Restore { connection }, urgency);
        if self.is_migration() {
            return self.steps.push_back(restore); // the other steps follow when the primary has released the connection
        }
        match table.get(connection).map(Connection::restarts) {
            Some(Ok(())) => {
                self.steps.push_back(restore);
                self.plan_rest(connection, urgency, None);
            }
            Some(Err(reason)) => self.on_unrestorable(connection, table, reason, actions),
            None => {} // the connection has ended meanwhile
        }
    }

    /// Plans the steps that follow a connection's `Restore`.
    fn plan_rest(&mut self, connection: ConnectionId, urgency: Urgency, reversing: Option<SocketAddr>) {
        let ready = ServiceAction::MakeReady { connection };
        self.steps.push_back((ready, urgency));
        let reverse = reversing.map(|client| ServiceAction::Reverse {
            clients: vec![client],
        });
        self.steps.extend(reverse.map(|reverse| (reverse, urgency)));
        let steps: [ServiceAction; STEPS_AFTER_RESTORE - 1] = [
            ServiceAction::Drain,
            ServiceAction::Activate { connection },
            ServiceAction::HandOver { connection },
        ];
        self.steps.extend(steps.map(|step| (step, urgency)));
    }

    /// The primary has released a prepared connection of a migration: it is this node's now.
    /// If its segments are to pass the primary (`reversing`: its client), they do so before it speaks.
    pub(crate) fn release(&mut self, connection: ConnectionId, reversing: Option<SocketAddr>) {
        if self.undecided.contains(&connection) && self.released.insert(connection) {
            self.plan_rest(connection, Urgency::Hurried, reversing);
        }
    }

    /// The primary is gone, so the prepared connections of a migration are this node's. Those that are not prepared yet are forgotten: they
    /// are taken over with all others.
    fn release_all(&mut self) {
        if !self.is_migration() {
            return;
        }
        let unprepared = |(step, _): &(ServiceAction, Urgency)| match *step {
            ServiceAction::Restore { connection } => Some(connection),
            _ => None,
        };
        let unprepared: BTreeSet<_> = self.steps.iter().filter_map(unprepared).collect();
        self.steps
            .retain(|(step, _)| !matches!(step, ServiceAction::Restore { .. }));
        if self.is_drained() {
            let prepared: Vec<_> = self.undecided.difference(&unprepared).copied().collect();
            prepared
                .into_iter()
                .for_each(|connection| self.release(connection, None));
        }
    }

    /// A connection of a migration stays with the primary.
    pub(crate) fn give_back(
        &mut self,
        connection: ConnectionId,
        table: &mut Table,
        actions: &mut VecDeque<ServiceAction>,
    ) {
        let Some(client) = table.get(connection).map(Connection::client) else {
            return;
        };
        self.steps.retain(
            |(step, _)| !matches!(step, ServiceAction::Restore { connection: of } if *of == connection),
        );
        table.change(connection, Connection::expect_released);
        actions.push_back(ServiceAction::GiveBack { connection, client });
        self.on_decided(connection);
    }

    /// Whether this client's connection is to move here and the primary has not released it.
    pub(crate) fn may_give_back(&self, client: SocketAddr, connection: ConnectionId) -> bool {
        let Scope::Migration(clients) = &self.scope else {
            return false;
        };
        let is_open = self.undecided.contains(&connection) || !self.is_drained();
        clients.contains(&client) && is_open && !self.released.contains(&connection)
    }

    /// Whether connections move here from a living primary.
    pub(crate) fn is_migration(&self) -> bool {
        matches!(self.scope, Scope::Migration(_))
    }

    /// Whether the takeover only waits for the primary. Until it has released a connection, no connection of a migration is this node's.
    pub(crate) fn waits_for_primary(&self) -> bool {
        self.is_migration() && self.released.is_disjoint(&self.undecided)
    }

    /// Plans the steps of the next connection on which a side waits for something. Returns false if there is none. Each call plans one
    /// connection. Planning ten thousand connections at once would take megabytes, and would delay the first step.
    pub(crate) fn plan_hurried(&mut self, table: &mut Table, actions: &mut VecDeque<ServiceAction>) -> bool {
        let Some(next) = self.hurried.pop_front() else {
            return false;
        };
        self.plan(next, Urgency::Hurried, table, actions);
        true
    }

    /// As [`plan_hurried`](Self::plan_hurried), for the connections on which no side waits. Returns false also if these connections must
    /// still wait.
    pub(crate) fn plan_unhurried(
        &mut self,
        table: &mut Table,
        actions: &mut VecDeque<ServiceAction>,
    ) -> bool {
        if self.poll_timeout().is_some() {
            return false;
        }
        let next = self.next_in_turn();
        self.pace = self.pace.after(if self.unhurried.is_empty() {
            PaceEvent::PlannedLast
        } else {
            PaceEvent::Planned
        });
        let Some(next) = next else {
            return false;
        };
        self.plan(next, Urgency::Unhurried, table, actions);
        true
    }

    /// Whether there is a connection to be planned now.
    pub(crate) fn has_next(&self) -> bool {
        !self.hurried.is_empty() || (self.poll_timeout().is_none() && !self.unhurried.is_empty())
    }

    /// Whether there is an unplanned connection on which a side waits for something.
    pub(crate) fn is_in_a_hurry(&self) -> bool {
        !self.hurried.is_empty()
    }

    /// Whether the steps of `connection` are not planned yet because no side waits for anything on it.
    pub(crate) fn is_unhurried(&self, connection: ConnectionId) -> bool {
        self.unhurried.contains(&connection)
    }

    /// A side now waits for something on `connection`. If the connection was unhurried, it joins the hurried ones.
    pub(crate) fn hurry(&mut self, connection: ConnectionId) {
        if self.unhurried.remove(&connection) {
            self.hurried.push_back(connection);
        }
    }

    /// A client speaks at `now` on a connection that is unhurried. The connection joins the hurried ones, and the others come in portions:
    /// more clients will speak before all are restored, and will need the CPUs.
    pub(crate) fn on_speaker(&mut self, now: Instant, connection: ConnectionId) {
        self.hurry(connection);
        if self.is_whole() {
            self.pace = self.pace.after(PaceEvent::Spoken(now));
        }
    }

    /// A connection's first step was popped, and a side now waits for something on the connection. Makes the connection's other steps,
    /// which are the next ones, hurried.
    pub(crate) fn hurry_begun(&mut self) {
        for (_, urgency) in self.steps.iter_mut().take(STEPS_AFTER_RESTORE) {
            *urgency = Urgency::Hurried;
        }
    }

    /// When the next unhurried connections may be taken over, if they must still wait.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match self.pace {
            IdlePace::Resting { until } => Some(until),
            IdlePace::Unlimited | IdlePace::Portion { .. } => None,
        }
    }

    pub(crate) fn on_timeout(&mut self, now: Instant) {
        self.pace = self.pace.after(PaceEvent::Timer(now));
    }

    /// Treats handshakes as connections, because their SYN-ACK may have reached the client.
    fn open_pending(&mut self, table: &mut Table, actions: &mut VecDeque<ServiceAction>) {
        for (connection, client, syn, syn_ack) in table.open_pending() {
            let syn_ack = repeat(table.config().vip, client, &syn, &syn_ack).emit();
            self.half_open.insert(connection, syn_ack);
            if table.config().policy == RestartPolicy::Replica {
                actions.push_back(ServiceAction::OpenReplica { connection, client });
            }
        }
    }

    /// Whether the service as a whole is taken over.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.scope, Scope::Service)
    }

    pub(crate) fn on_live(&mut self, now: Instant, connection: ConnectionId) {
        self.live.push((connection, now));
    }

    pub(crate) fn on_unrestorable(
        &mut self,
        connection: ConnectionId,
        table: &mut Table,
        reason: String,
        actions: &mut VecDeque<ServiceAction>,
    ) {
        let Some(entry) = table.discard(connection) else {
            return;
        };
        // A client that may still be waiting for the SYN-ACK is not refused, because it repeats its SYN.
        if entry.has_heard_client() || !self.half_open.contains_key(&connection) {
            self.refusals.push(reset_of(&entry).emit());
        }
        self.reset += 1;
        self.on_decided(connection);
        let client = entry.client();
        actions.push_back(ServiceAction::Report(OperatorReport::Unrestorable {
            client,
            reason,
        }));
    }

    /// The connection belongs to the relay now, is lost, or has ended by itself.
    pub(crate) fn on_decided(&mut self, connection: ConnectionId) {
        self.undecided.remove(&connection);
        self.look_for_end();
    }

    fn look_for_end(&mut self) {
        if self.undecided.is_empty() {
            self.phase = self.phase.after(TakeoverEvent::AllDecided);
        }
    }

    /// The SYN-ACK to repeat for a connection that belongs to the relay now, if its client has not been heard since the SYN-ACK was sent.
    pub(crate) fn half_open(&mut self, id: ConnectionId, connection: &Connection) -> Option<Vec<u8>> {
        let syn_ack = self.half_open.remove(&id)?;
        (!connection.has_heard_client()).then_some(syn_ack)
    }

    /// Whether the log has been read to its end.
    pub(crate) fn is_drained(&self) -> bool {
        matches!(self.phase, TakeoverPhase::Deciding | TakeoverPhase::Decided)
    }

    pub(crate) fn is_decided(&self) -> bool {
        self.phase == TakeoverPhase::Decided
    }

    pub(crate) fn report(&self, now: Instant) -> TakeoverReport {
        TakeoverReport {
            declared: self.declared,
            gate_closed: self.drained.unwrap_or(now),
            first_live: self.live.first().map(|&(_, at)| at),
            last_live: self.live.last().map(|&(_, at)| at),
            decided: now,
            connections: self.connections,
            restored: self.live.len(),
            reset: self.reset,
            live: self.live.clone(),
        }
    }

    pub(crate) fn into_refusals(self) -> impl Iterator<Item = Vec<u8>> {
        self.refusals.into_iter()
    }
}

#[cfg(test)]
mod tests;
