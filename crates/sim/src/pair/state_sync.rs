//! The state of a node's server, and the operator's hook that copies it from the peer's server (docs/state-sync.md).
//!
//! A server's state is how much of each client's input it has read. So two servers are in the same state if they have read the same input.
//! The hook asks the peer's server through the agents' cable. *Finish* ends when two answers in a row are the same, because input that was
//! released before the hold may be on its way to the primary.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use proto::Instant;
use proto::action::StateSyncPhase;
use serde::{Deserialize, Serialize};

use super::application::{ApplicationFactory, SimApplication};

/// Bytes of each client's input that a server has read.
pub(super) type SimServerState = BTreeMap<SocketAddr, u64>;

/// How a service's server state is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimStateSync {
    /// The longest time for which input is held, in microseconds.
    pub hold_us: u64,
    /// Time that *prepare* takes, in microseconds.
    pub prepare_us: u64,
    /// Number of the hook's runs that fail on purpose after a node's start. *Abandon* never fails on purpose.
    pub failures: u32,
}

/// The program for one client's connection to a server whose state is copied.
struct StatefulApplication {
    application: Box<dyn SimApplication>,
    client: SocketAddr,
    server: Rc<RefCell<SimServerState>>,
}

impl SimApplication for StatefulApplication {
    fn on_input(&mut self, now: Instant, bytes: &[u8]) {
        *self.server.borrow_mut().entry(self.client).or_default() += bytes.len() as u64;
        self.application.on_input(now, bytes);
    }

    fn on_input_end(&mut self, now: Instant) {
        self.application.on_input_end(now);
    }

    fn speak(&mut self, now: Instant, limit: usize, into: &mut Vec<u8>) {
        self.application.speak(now, limit, into);
    }

    fn is_finished(&self) -> bool {
        self.application.is_finished()
    }

    fn wakes_at(&self) -> Option<Instant> {
        self.application.wakes_at()
    }
}

/// Wraps `factory`. The programs of the returned factory also count the input that they read, in the shared state `server`.
pub(super) fn stateful(
    factory: ApplicationFactory,
    server: &Rc<RefCell<SimServerState>>,
) -> ApplicationFactory {
    let server = Rc::clone(server);
    Rc::new(move |client| {
        Box::new(StatefulApplication {
            application: factory(client),
            client,
            server: Rc::clone(&server),
        })
    })
}

/// A message from one node's hook to the other node's server, or back.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum HookMessage {
    /// Asks for the state.
    Ask { question: u64 },
    /// The state.
    Answer {
        question: u64,
        state: Vec<(SocketAddr, u64)>,
    },
}

/// A run of the hook.
#[derive(Debug)]
pub(super) struct HookRun {
    pub number: u64,
    pub phase: StateSyncPhase,
    /// When the run is killed.
    pub until: Instant,
    /// When the hook does its next step.
    pub due: Instant,
    /// The peer's latest answer.
    pub answer: Option<SimServerState>,
}

/// The hook of one node.
#[derive(Debug, Default)]
pub(super) struct SimHook {
    pub run: Option<HookRun>,
    /// Number of the last question.
    pub question: u64,
    /// Number of runs that have failed on purpose.
    pub failed: u32,
    /// Numbers and outcomes of the ended runs of which the agent has not heard yet.
    pub outcomes: Vec<(u64, Result<(), String>)>,
}

impl SimHook {
    /// When the hook does its next step, or is killed.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.run.as_ref().map(|run| run.due.min(run.until))
    }

    /// Kills the hook. The agent gets no outcome.
    pub fn kill(&mut self) {
        self.run = None;
        self.outcomes.clear();
    }

    /// Ends the run. The agent reads the outcome later.
    pub fn end(&mut self, outcome: Result<(), String>) {
        if let Some(run) = self.run.take() {
            self.outcomes.push((run.number, outcome));
        }
    }
}
