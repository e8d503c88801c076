//! The applications' calls that wait for their outcome, and counters of calls and imports.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto::action::ServiceIndex;
use proto::export::ExportOutcome;
use tokio::sync::oneshot;

/// The counters of calls by their outcome.
const OUTCOMES: [&str; 4] = [KEPT, NOT_KEPT, MOVED, TIMED_OUT];
const KEPT: &str = "snapshots_kept";
const NOT_KEPT: &str = "snapshots_not_kept";
const MOVED: &str = "snapshots_moved";
const TIMED_OUT: &str = "snapshots_timed_out";

/// The applications' calls that wait for their outcome, for the agent's loop.
#[derive(Default)]
pub struct WaitingExports {
    last: u64,
    waiting: BTreeMap<u64, oneshot::Sender<ExportOutcome>>,
    /// Number of calls that had an outcome, by service and outcome.
    outcomes: BTreeMap<(ServiceIndex, &'static str), u64>,
    imported: ImportCounter,
    moved: MovedConnections,
}

/// Maximum number of sockets, and of clients, in [`MovedConnections`].
const MOVED_MAX: usize = 16_384;

/// The latest connections that have moved to another node. An application may still have their descriptors. Clones share them.
#[derive(Clone, Default)]
pub struct MovedConnections(Arc<Mutex<LatestMoved>>);

#[derive(Default)]
struct LatestMoved {
    /// By the kernel's numbers of sockets.
    sockets: LatestOf<u64>,
    /// Those that a keeper relayed here.
    clients: LatestOf<(ServiceIndex, SocketAddr)>,
}

/// The latest members of a set, at most [`MOVED_MAX`].
struct LatestOf<T> {
    known: BTreeSet<T>,
    in_order: VecDeque<T>,
}

impl<T> Default for LatestOf<T> {
    fn default() -> Self {
        Self {
            known: BTreeSet::new(),
            in_order: VecDeque::new(),
        }
    }
}

impl<T: Ord + Copy> LatestOf<T> {
    fn add(&mut self, one: T) {
        if self.known.insert(one) {
            self.in_order.push_back(one);
        }
        if self.in_order.len() > MOVED_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    fn remove(&mut self, one: &T) {
        if self.known.remove(one) {
            self.in_order.retain(|other| other != one);
        }
    }
}

impl MovedConnections {
    fn latest(&self) -> MutexGuard<'_, LatestMoved> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connections of these sockets have moved.
    pub fn note(&self, sockets: impl IntoIterator<Item = u64>) {
        let mut latest = self.latest();
        sockets.into_iter().for_each(|socket| latest.sockets.add(socket));
    }

    /// Whether the connection of this socket has moved.
    pub fn contains(&self, socket: u64) -> bool {
        self.latest().sockets.known.contains(&socket)
    }

    /// The connections of these clients are about to leave. Call this before the keeper loses them: an application whose call meets the end of
    /// its connection must not take that for a missing backup.
    pub fn leave(&self, service: ServiceIndex, clients: &[SocketAddr]) {
        let mut latest = self.latest();
        clients
            .iter()
            .for_each(|&client| latest.clients.add((service, client)));
    }

    /// A connection of this client comes to this node's keeper. Call this before the keeper has it.
    pub fn arrive(&self, service: ServiceIndex, client: SocketAddr) {
        self.latest().clients.remove(&(service, client));
    }

    /// Whether this client's latest connection here has moved.
    pub fn has_left(&self, service: ServiceIndex, client: SocketAddr) -> bool {
        self.latest().clients.known.contains(&(service, client))
    }
}

/// Counts the states that applications have imported, by service. Clones share the counts.
#[derive(Clone, Default)]
pub struct ImportCounter(Arc<Mutex<BTreeMap<ServiceIndex, u64>>>);

impl ImportCounter {
    pub fn count(&self, service: ServiceIndex) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(service).or_default() += 1;
    }

    fn of(&self, service: ServiceIndex) -> u64 {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(&service).copied().unwrap_or(0)
    }
}

impl WaitingExports {
    /// Begins a call. The caller gets the outcome, or, if it does not wait, learns at once that this node has the state. Returns the call's
    /// number.
    pub fn begin(&mut self, waits: bool, reply: oneshot::Sender<ExportOutcome>) -> u64 {
        self.last += 1;
        if waits {
            self.waiting.insert(self.last, reply);
        } else {
            let _ = reply.send(ExportOutcome::Kept); // fails only if the application has gone away
        }
        self.last
    }

    /// The counter for the thread that serves applications.
    pub fn import_counter(&self) -> ImportCounter {
        self.imported.clone()
    }

    /// The connections that have moved, for the thread that serves applications.
    pub fn moved(&self) -> MovedConnections {
        self.moved.clone()
    }

    /// Number of calls of a service that had each outcome, and number of imports.
    pub fn counters(&self, service: ServiceIndex) -> impl Iterator<Item = (String, u64)> {
        let outcomes = OUTCOMES.into_iter().map(move |outcome| {
            let count = self.outcomes.get(&(service, outcome));
            (outcome.to_owned(), count.copied().unwrap_or(0))
        });
        let imported = ("snapshots_imported".to_owned(), self.imported.of(service));
        outcomes.chain([imported])
    }

    /// Tells the callers the outcome.
    pub fn finish(&mut self, service: ServiceIndex, calls: &[u64], outcome: &ExportOutcome) {
        let name = match outcome {
            ExportOutcome::Kept => KEPT,
            ExportOutcome::NotKept(_) => NOT_KEPT,
            ExportOutcome::Moved => MOVED,
            ExportOutcome::TimedOut => TIMED_OUT,
        };
        if let ExportOutcome::NotKept(reason) = outcome {
            tracing::debug!(service, reason, "a snapshot is not kept");
        }
        *self.outcomes.entry((service, name)).or_default() += calls.len() as u64;
        for call in calls {
            if let Some(reply) = self.waiting.remove(call) {
                let _ = reply.send(outcome.clone()); // fails only if the application has gone away
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_connections_are_known() {
        let moved = MovedConnections::default();
        let last = MOVED_MAX as u64;
        moved.clone().note(0..=last);
        moved.note([last]); // known already
        let known = [0, 1, last, last + 1].map(|socket| moved.contains(socket));
        assert_eq!(known, [false, true, true, false]);
        let client = SocketAddr::from(([10, 0, 0, 1], 4000));
        moved.leave(3, &[client]);
        assert_eq!(
            [2, 3].map(|service| moved.has_left(service, client)),
            [false, true]
        );
        moved.arrive(3, client);
        assert!(!moved.has_left(3, client));
    }
}
