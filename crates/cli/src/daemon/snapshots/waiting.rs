//! The applications' calls that wait for their outcome, and counters of calls and imports.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

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
    moved: MovedSockets,
}

/// Maximum number of sockets in [`MovedSockets`].
const MOVED_MAX: usize = 16_384;

/// The latest sockets whose connections have moved to the other node, by the kernel's numbers of sockets. An application may still have their
/// descriptors. Clones share the sockets.
#[derive(Clone, Default)]
pub struct MovedSockets(Arc<Mutex<(BTreeSet<u64>, VecDeque<u64>)>>);

impl MovedSockets {
    pub fn note(&self, sockets: impl IntoIterator<Item = u64>) {
        let mut moved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, in_order) = &mut *moved;
        for socket in sockets {
            if known.insert(socket) {
                in_order.push_back(socket);
            }
            if in_order.len() > MOVED_MAX
                && let Some(oldest) = in_order.pop_front()
            {
                known.remove(&oldest);
            }
        }
    }

    pub fn contains(&self, socket: u64) -> bool {
        let moved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        moved.0.contains(&socket)
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
    /// Begins a call. With `reply`, somebody waits for its outcome. Returns its number.
    pub fn begin(&mut self, reply: Option<oneshot::Sender<ExportOutcome>>) -> u64 {
        self.last += 1;
        if let Some(reply) = reply {
            self.waiting.insert(self.last, reply);
        }
        self.last
    }

    /// The counter for the thread that serves applications.
    pub fn import_counter(&self) -> ImportCounter {
        self.imported.clone()
    }

    /// The sockets whose connections have moved, for the thread that serves applications.
    pub fn moved_sockets(&self) -> MovedSockets {
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
    fn the_latest_sockets_are_known() {
        let moved = MovedSockets::default();
        let last = MOVED_MAX as u64;
        moved.clone().note(0..=last);
        moved.note([last]); // known already
        let known = [0, 1, last, last + 1].map(|socket| moved.contains(socket));
        assert_eq!(known, [false, true, true, false]);
    }
}
