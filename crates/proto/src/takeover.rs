//! A takeover, step by step (DESIGN.md §3, "The primary dies").
//!
//! ```text
//!   declared ─▶ gate closed ─▶ log drained ─▶ for each connection, the busy ones first, of these who has waited longest; mere handshakes last:
//!                                               restore ─▶ make ready ─▶ drain ─▶ activate ─▶ hand over
//!                                             ─▶ all decided: settled, speech allowed, one RST to each that is lost
//! ```
//!
//! Of a service's connections those behind the first 64 that are not busy wait 250 µs for each that is, at most 150 ms, and then come 32 every
//! 4 ms; or as soon as their client says something. What comes when all is decided waits with them.
//!
//! When only some connections have lost their server's process, the same is done for them alone: the gate is closed for each of them
//! ([`Action::Hold`]), and for the others the node goes on being the wire.
//!
//! *Make ready, then drain*: from the moment a socket is ready, the wire passes packets to it; what the wire logged before
//! is found by the drain. So every byte reaches the socket exactly by one of the two ways.

mod socketless;
mod wake;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use crate::Instant;
use crate::action::{Action, Report, ServiceIndex};
use crate::connection::Connection;
use crate::follower::Policy;
use crate::table::{ConnectionId, Table};
pub use socketless::HandedOver;
pub use socketless::repeat;
use socketless::reset_of;
pub(crate) use socketless::{Repeats, refuse};
pub(crate) use wake::clock_at;
pub use wake::{timestamp_at, wake};

/// What a takeover did, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeoverReport {
    /// The peer was declared dead.
    pub declared: Instant,
    /// The gate was closed, and the log read to its end behind it.
    pub gate_closed: Instant,
    /// The first connection's socket was live.
    pub first_live: Option<Instant>,
    /// The last one's was.
    pub last_live: Option<Instant>,
    /// Everything was decided.
    pub decided: Instant,
    /// How many connections there were.
    pub connections: usize,
    /// How many of them go on.
    pub restored: usize,
    /// How many got a RST.
    pub reset: usize,
    /// Which ones went live, and when.
    pub live: Vec<(ConnectionId, Instant)>,
}

/// So many reports are kept: a worker that crashes again and again makes one each time.
const REPORTS_MAX: usize = 16;

/// The takeovers of a service.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// The last ones.
    last: Vec<TakeoverReport>,
    sums: TakeoverSums,
}

/// All takeovers of a service together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakeoverSums {
    /// How many there were.
    pub takeovers: u64,
    /// Connections that went on.
    pub restored: u64,
    /// Connections that got a RST.
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

/// So many connections go on before the wire is told which ones are being decided. Until then nobody's SYN passes.
const BEFORE_HOLD: usize = 64;

/// For each connection on which a client waits, the others wait so long, but never longer than [`HEAD_START_MAX`]: the keeper and the
/// application need the CPUs for its answer, and nobody needs the others.
pub(crate) const HEAD_START_EACH: Duration = Duration::from_micros(250);
/// See [`HEAD_START_EACH`].
pub(crate) const HEAD_START_MAX: Duration = Duration::from_millis(150);
/// After that so many of the others are taken over every [`PORTION_EVERY`]: who is at work needs the CPUs as long as it talks.
pub(crate) const PORTION: usize = 32;
/// See [`PORTION`].
pub(crate) const PORTION_EVERY: Duration = Duration::from_millis(4);

/// What is taken over.
#[derive(Debug)]
enum Scope {
    /// The service.
    Service,
    /// The connections of these clients.
    Clients(Vec<SocketAddr>),
}

/// A takeover under way.
#[derive(Debug)]
pub(crate) struct Takeover {
    scope: Scope,
    declared: Instant,
    drained: Option<Instant>,
    undecided: BTreeSet<ConnectionId>,
    /// Of those whose steps are not planned yet, who waits for something, in order.
    hurried: VecDeque<ConnectionId>,
    /// The others.
    unhurried: BTreeSet<ConnectionId>,
    /// Their order, and that of those who were among them.
    in_turn: VecDeque<ConnectionId>,
    /// Until then these wait.
    rest_from: Option<Instant>,
    /// Then so many of them come, and the next ones not before this; `None`: nobody is at work, and all come.
    portion: Option<(usize, Instant)>,
    /// Connections whose client may not have got the SYN-ACK, with that.
    half_open: BTreeMap<ConnectionId, Vec<u8>>,
    connections: usize,
    reset: usize,
    live: Vec<(ConnectionId, Instant)>,
    refusals: Vec<Vec<u8>>,
    /// Connections of a dead worker whose steps an earlier takeover has planned, and which are not decided yet.
    begun: BTreeSet<ConnectionId>,
}

impl Takeover {
    /// The gate is closed: asks for the log. The takeover of a dead worker's connections may be under way (`adoption`): its remaining
    /// `steps` follow, and are not planned again.
    pub(crate) fn begin(
        now: Instant,
        service: ServiceIndex,
        adoption: Option<Self>,
        steps: &[Action],
        actions: &mut VecDeque<Action>,
    ) -> Self {
        actions.push_back(Action::Drain { service });
        let connection = |action: &Action| match *action {
            Action::HandOver { connection, .. } => Some(connection),
            _ => None,
        };
        let (refusals, live) =
            adoption.map_or_else(Default::default, |adoption| (adoption.refusals, adoption.live));
        Self {
            begun: steps.iter().filter_map(connection).collect(),
            refusals,
            live,
            ..Self::declared(now, Scope::Service)
        }
    }

    /// The same for the connections of `clients`.
    pub(crate) fn begin_for(
        now: Instant,
        service: ServiceIndex,
        clients: Vec<SocketAddr>,
        actions: &mut VecDeque<Action>,
    ) -> Self {
        actions.push_back(Action::Hold {
            service,
            clients: clients.clone(),
        });
        actions.push_back(Action::Drain { service });
        Self::declared(now, Scope::Clients(clients))
    }

    fn declared(now: Instant, scope: Scope) -> Self {
        Self {
            scope,
            declared: now,
            drained: None,
            undecided: BTreeSet::new(),
            hurried: VecDeque::new(),
            unhurried: BTreeSet::new(),
            in_turn: VecDeque::new(),
            rest_from: None,
            portion: None,
            half_open: BTreeMap::new(),
            connections: 0,
            reset: 0,
            live: Vec::new(),
            refusals: Vec::new(),
            begun: BTreeSet::new(),
        }
    }

    /// After the first drain, everything is known: puts the connections in order and plans the steps of the first ones.
    pub(crate) fn on_drained(
        &mut self,
        now: Instant,
        service: ServiceIndex,
        table: &mut Table,
        actions: &mut VecDeque<Action>,
    ) {
        if self.drained.is_some() {
            return;
        }
        self.drained = Some(now);
        let connections: Vec<ConnectionId> = match &self.scope {
            Scope::Service => {
                self.open_pending(service, table, actions);
                table.iter().map(|(id, _)| id).collect()
            }
            Scope::Clients(clients) => {
                let mut seen = BTreeSet::new(); // a primary's new agent tells again what was told before
                let known = clients.iter().filter_map(|&client| table.find(client));
                known.filter(|&connection| seen.insert(connection)).collect()
            }
        };
        self.connections = connections.len();
        self.undecided = connections.iter().copied().collect();
        let hold = self.is_whole().then(|| {
            let clients = table.iter().map(|(_, connection)| connection.client()).collect();
            Action::Hold { service, clients }
        });
        // Who is known to be there comes first: of a flood, only handshakes are.
        let (mut idle, mut opening) = (Vec::new(), Vec::new());
        for connection in connections {
            let entry = table.get_mut(connection).expect("in the table");
            entry.hold_input();
            if self.begun.contains(&connection) {
                continue; // its steps are planned
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
            let next = self.hurried.pop_front().or_else(|| self.next_in_turn());
            self.plan(service, next, table, actions);
        }
        // While a worker's are taken over, the service's other clients wait for nothing but the end of that.
        let waits = at_work > 0 && self.is_whole();
        self.rest_from = waits.then(|| now + head_start);
        actions.extend(hold);
    }

    /// The next of those on which nobody waits.
    fn next_in_turn(&mut self) -> Option<ConnectionId> {
        std::iter::from_fn(|| self.in_turn.pop_front()).find(|id| self.unhurried.remove(id))
    }

    /// Plans the steps of `connection`, if there is one; of one that cannot go on, says so. It is asked here, since to ask ten
    /// thousand takes milliseconds.
    fn plan(
        &mut self,
        service: ServiceIndex,
        connection: Option<ConnectionId>,
        table: &mut Table,
        actions: &mut VecDeque<Action>,
    ) {
        let Some(connection) = connection else {
            return;
        };
        match table.get(connection).map(Connection::restarts) {
            Some(Ok(())) => actions.extend([
                Action::Restore { service, connection },
                Action::MakeReady { service, connection },
                Action::Drain { service },
                Action::Activate { service, connection },
                Action::HandOver { service, connection },
            ]),
            Some(Err(reason)) => self.on_unrestorable(service, connection, table, reason, actions),
            None => {} // it ended meanwhile
        }
    }

    /// Plans the steps of the next connection on which someone waits for something; false if there is none. One at a time: the steps of
    /// ten thousand are megabytes, and the first of them would wait until the last is written down.
    pub(crate) fn plan_hurried(
        &mut self,
        service: ServiceIndex,
        table: &mut Table,
        actions: &mut VecDeque<Action>,
    ) -> bool {
        let next = self.hurried.pop_front();
        self.plan(service, next, table, actions);
        next.is_some()
    }

    /// As [`plan_hurried`](Self::plan_hurried), for the others, unless it is too early for them.
    pub(crate) fn plan_unhurried(
        &mut self,
        service: ServiceIndex,
        table: &mut Table,
        actions: &mut VecDeque<Action>,
    ) -> bool {
        if self.rest_from.is_some() {
            return false;
        }
        let next = self.next_in_turn();
        if let Some((left, next_from)) = &mut self.portion {
            *left = left.saturating_sub(1);
            self.rest_from = (*left == 0 && !self.unhurried.is_empty()).then_some(*next_from);
        }
        self.plan(service, next, table, actions);
        next.is_some()
    }

    /// Whether there is a connection to be planned now.
    pub(crate) fn has_next(&self) -> bool {
        !self.hurried.is_empty() || (self.rest_from.is_none() && !self.unhurried.is_empty())
    }

    /// Whether there is one on which someone waits for something.
    pub(crate) fn is_in_a_hurry(&self) -> bool {
        !self.hurried.is_empty()
    }

    /// Whether a connection waits until those are planned on which someone waits for something.
    pub(crate) fn is_unhurried(&self, connection: ConnectionId) -> bool {
        self.unhurried.contains(&connection)
    }

    /// Someone waits for something on a connection now: if it was thought that nobody does, it comes next.
    pub(crate) fn hurry(&mut self, connection: ConnectionId) {
        if self.unhurried.remove(&connection) {
            self.hurried.push_back(connection);
        }
    }

    /// When those on which nobody waits are to be taken over, or the next of them, if that is still to come.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.rest_from
    }

    pub(crate) fn on_timeout(&mut self, now: Instant) {
        if self.rest_from.take_if(|from| *from <= now).is_some() {
            self.portion = Some((PORTION, now + PORTION_EVERY));
        }
    }

    /// Handshakes whose SYN-ACK may have reached the client are connections.
    fn open_pending(&mut self, service: ServiceIndex, table: &mut Table, actions: &mut VecDeque<Action>) {
        for (connection, client, syn, syn_ack) in table.open_pending() {
            let syn_ack = repeat(table.config().vip, client, &syn, &syn_ack).emit();
            self.half_open.insert(connection, syn_ack);
            if table.config().policy == Policy::Replica {
                actions.push_back(Action::OpenReplica {
                    service,
                    connection,
                    client,
                });
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
        service: ServiceIndex,
        connection: ConnectionId,
        table: &mut Table,
        reason: String,
        actions: &mut VecDeque<Action>,
    ) {
        let Some(entry) = table.discard(connection) else {
            return;
        };
        // A client that may still be waiting for the SYN-ACK is not refused: it asks again.
        if entry.has_heard_client() || !self.half_open.contains_key(&connection) {
            self.refusals.push(reset_of(&entry).emit());
        }
        self.reset += 1;
        self.undecided.remove(&connection);
        let client = entry.client();
        actions.push_back(Action::Report(Report::Unrestorable {
            service,
            client,
            reason,
        }));
    }

    /// The connection is the relay's, or ended by itself.
    pub(crate) fn on_decided(&mut self, connection: ConnectionId) {
        self.undecided.remove(&connection);
    }

    /// The SYN-ACK to be repeated for a connection that is the relay's now, if its client was not heard of since.
    pub(crate) fn half_open(&mut self, id: ConnectionId, connection: &Connection) -> Option<Vec<u8>> {
        let syn_ack = self.half_open.remove(&id)?;
        (!connection.has_heard_client()).then_some(syn_ack)
    }

    pub(crate) fn is_decided(&self) -> bool {
        self.drained.is_some() && self.undecided.is_empty()
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
