//! A machine runs its operator's hook (docs/state-sync.md).

use std::time::Duration;

use agent::SyncRun;
use proto::Instant;
use proto::action::StateSyncPhase;

use super::machine::{AGENTS, Machine};
use super::state_sync::{HookMessage, HookRun, SimServerState};

/// Time between two questions of a hook.
const POLL: Duration = Duration::from_millis(5);
/// Time limit of a run that has no other limit. Longer than most faults of the swarm.
const LIMIT: Duration = Duration::from_secs(2);
/// Time that *abandon* takes.
const ABANDON: Duration = Duration::from_millis(1);

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
                self.hook.question += 1; // the network may deliver an answer twice, which counts once
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
