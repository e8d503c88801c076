//! The state of a node's server, and the operator's hook that copies it from the peer's server (docs/state-sync.md).
//!
//! A server's state is how much of each client's input it has read. So two servers are in the same state if they have read the same input.
//! The hook asks the peer's server through the agents' cable. *Finish* ends when two answers in a row are the same, because input that was
//! released before the hold may be on its way to the primary.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use agent::SyncRun;
use proto::Instant;
use proto::action::StateSyncPhase;
use serde::{Deserialize, Serialize};

use super::application::{ApplicationFactory, SimApplication};
use super::machine::{AGENTS, Machine};

/// Bytes of each client's input that a server has read.
pub(super) type SimServerState = BTreeMap<SocketAddr, u64>;

/// Time between two questions of a hook.
const POLL: Duration = Duration::from_millis(5);
/// Time limit of a run that has no other limit. Longer than most faults of the swarm.
const LIMIT: Duration = Duration::from_secs(2);
/// Time that *abandon* takes.
const ABANDON: Duration = Duration::from_millis(1);

/// How a service's server state is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimStateSync {
    /// The longest time for which input is held, in microseconds.
    pub hold_us: u64,
    /// Time that *prepare* takes, in microseconds.
    pub prepare_us: u64,
    /// Number of runs that fail after a node's start.
    pub failures: u32,
}

/// A program of a server whose state is copied.
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

/// The programs of `factory`, which share the state `server`.
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
struct HookRun {
    number: u64,
    phase: StateSyncPhase,
    /// When the run is killed.
    until: Instant,
    /// When the hook does its next step.
    due: Instant,
    /// The peer's latest answer.
    answer: Option<SimServerState>,
}

/// The hook of one node.
#[derive(Debug, Default)]
pub(super) struct SimHook {
    run: Option<HookRun>,
    /// Number of the last question.
    question: u64,
    /// Number of runs that have failed on purpose.
    failed: u32,
    /// Runs that have ended, and how. The agent has not heard of them yet.
    pub outcomes: Vec<(u64, Result<(), String>)>,
}

impl SimHook {
    /// When the hook does its next step, or is killed.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.run.as_ref().map(|run| run.due.min(run.until))
    }

    /// Kills the hook. Nobody hears of it.
    pub fn kill(&mut self) {
        self.run = None;
        self.outcomes.clear();
    }

    fn end(&mut self, outcome: Result<(), String>) {
        if let Some(run) = self.run.take() {
            self.outcomes.push((run.number, outcome));
        }
    }
}

impl Machine {
    /// Starts a run of the hook. A run that has not ended is killed.
    pub(super) fn start_hook(&mut self, run: SyncRun) {
        let Some(config) = self.config.state_sync else {
            return;
        };
        let rest = match run.phase {
            StateSyncPhase::Prepare => Duration::from_micros(config.prepare_us),
            StateSyncPhase::Finish => Duration::ZERO,
            StateSyncPhase::Abandon => ABANDON,
        };
        self.judge.borrow_mut().on_hook(self.config.number, run.phase);
        self.hook.run = Some(HookRun {
            number: run.number,
            phase: run.phase,
            until: run.until.unwrap_or(self.at + LIMIT),
            due: self.at + rest,
            answer: None,
        });
    }

    /// Does the hook's next step, if it is due.
    pub(super) fn continue_hook(&mut self, now: Instant) {
        let (Some(config), Some(run)) = (self.config.state_sync, &mut self.hook.run) else {
            return;
        };
        if now < run.due.min(run.until) {
            return;
        }
        let outcome = if now >= run.until {
            Err("the hook was killed".to_owned())
        } else if run.phase == StateSyncPhase::Abandon {
            Ok(())
        } else if self.hook.failed < config.failures {
            self.hook.failed += 1;
            Err("the hook has failed".to_owned())
        } else if run.phase == StateSyncPhase::Prepare {
            Ok(())
        } else {
            run.due = now + POLL;
            self.hook.question += 1;
            let question = self.hook.question;
            self.say_to_hook(&HookMessage::Ask { question });
            return;
        };
        self.hook.end(outcome);
        self.agent.wake(now);
    }

    /// Handles a message of the peer's server or hook.
    pub(super) fn on_hook_message(&mut self, now: Instant, message: HookMessage) {
        match message {
            HookMessage::Ask { question } if !self.is_server_dead => {
                let state = self.config.server.borrow().clone().into_iter().collect();
                self.say_to_hook(&HookMessage::Answer { question, state });
            }
            HookMessage::Answer { question, state } if question == self.hook.question => {
                self.on_state(now, state.into_iter().collect());
            }
            HookMessage::Ask { .. } | HookMessage::Answer { .. } => {}
        }
    }

    /// The peer's server is in `state`. If it was in this state at the previous question too, the state is copied.
    fn on_state(&mut self, now: Instant, state: SimServerState) {
        let is_finishing = |run: &&mut HookRun| run.phase == StateSyncPhase::Finish && now < run.until;
        let Some(run) = self.hook.run.as_mut().filter(is_finishing) else {
            return;
        };
        if run.answer.as_ref() != Some(&state) {
            run.answer = Some(state);
            return;
        }
        self.judge.borrow_mut().on_copied(self.config.number, &state);
        *self.config.server.borrow_mut() = state;
        self.hook.end(Ok(()));
        self.agent.wake(now);
    }

    fn say_to_hook(&mut self, message: &HookMessage) {
        let packet = serde_json::to_vec(message).expect("a message has a JSON form");
        self.send(AGENTS, &packet);
    }
}
