//! Copying the primary's server state to the replica's server (DESIGN.md §3, reintegration): when the operator's hook runs, when clients'
//! input is held back for the hook, and what follows if the hook fails.
//!
//! ```text
//!  is the wire, server alive   prepared           the log is read to its end          finished in time
//!  Idle ────────────▶ Preparing ────────▶ Holding ──────────────────────────▶ Finishing ───────────────▶ Synced
//!                      ▲    │ failed         │ too late                           │ failed, too late
//!         after a rest │    └────────────┐   │                                    │
//!                      │                 ▼   ▼                                    │
//!                   Resting ◀───────── Abandoning ◀──────────────────────────────┘
//! ```
//!
//! *Prepare* copies while clients go on. Then the wire holds back what clients send, so the primary's state stands still, and *finish*
//! copies the rest and ends the copying. All that clients send afterwards is in the log. A replica follows each connection that opens
//! during *finish* or later, because none of the connection's input is part of the copied state. *Abandon* ends the copying early. The
//! kernel enforces the end of the hold.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Instant;
use crate::action::StateSyncPhase;
use crate::action::{OperatorReport, ServiceAction};
use crate::table::ConnectionId;

/// Rest after the first failure. Each further failure doubles the rest.
const REST_MIN: Duration = Duration::from_secs(1);
/// The longest rest.
const REST_MAX: Duration = Duration::from_secs(60);

/// Progress of the copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSyncProgress {
    /// This node is not the wire, or the replica's server is dead.
    Idle,
    /// The hook copies.
    Preparing,
    /// Input is held; the log of earlier input is being read.
    Holding,
    /// Input is held; the hook copies the rest.
    Finishing,
    /// The copying failed; the hook stops copying.
    Abandoning,
    /// The copying is tried again later.
    Resting,
    /// The replica's state equals the primary's.
    Synced,
}

/// An event that may change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSyncEvent {
    /// This node is the wire and the replica's server is alive, or packets have passed unlogged.
    Begin,
    /// This node is no longer the wire, or the replica's server has died.
    Leave,
    /// The hook's current run has succeeded.
    Succeeded,
    /// The hook has failed.
    Failed,
    /// The log is read to its end.
    Drained,
    /// The hold has ended, or the rest after a failure has ended.
    Expired,
}

impl StateSyncProgress {
    /// All states, for tables.
    pub const ALL: [Self; 7] = [
        Self::Idle,
        Self::Preparing,
        Self::Holding,
        Self::Finishing,
        Self::Abandoning,
        Self::Resting,
        Self::Synced,
    ];

    /// The state after `event`. `None` if `event` does not change the state.
    pub fn after(self, event: StateSyncEvent) -> Option<Self> {
        use StateSyncEvent::{Begin, Drained, Expired, Failed, Leave, Succeeded};
        match (self, event) {
            (Self::Idle, Begin) => Some(Self::Preparing),
            (Self::Idle, Leave | Succeeded | Failed | Drained | Expired) => None,

            (Self::Preparing, Succeeded) => Some(Self::Holding),
            (Self::Preparing, Failed) => Some(Self::Abandoning),
            (Self::Preparing, Leave) => Some(Self::Idle),
            (Self::Preparing, Begin | Drained | Expired) => None,

            (Self::Holding, Drained) => Some(Self::Finishing),
            (Self::Holding, Begin | Expired) => Some(Self::Abandoning),
            (Self::Holding, Leave) => Some(Self::Idle),
            (Self::Holding, Succeeded | Failed) => None,

            (Self::Finishing, Succeeded) => Some(Self::Synced),
            (Self::Finishing, Begin | Failed | Expired) => Some(Self::Abandoning),
            (Self::Finishing, Leave) => Some(Self::Idle),
            (Self::Finishing, Drained) => None,

            (Self::Abandoning, Succeeded | Failed) => Some(Self::Resting),
            (Self::Abandoning, Leave) => Some(Self::Idle),
            (Self::Abandoning, Begin | Drained | Expired) => None,

            (Self::Resting, Expired) => Some(Self::Preparing),
            (Self::Resting, Leave) => Some(Self::Idle),
            (Self::Resting, Begin | Succeeded | Failed | Drained) => None,

            (Self::Synced, Begin) => Some(Self::Preparing),
            (Self::Synced, Leave) => Some(Self::Idle),
            (Self::Synced, Succeeded | Failed | Drained | Expired) => None,
        }
    }

    /// Whether the hook may have begun to copy, and has not stopped copying.
    const fn copies(self) -> bool {
        matches!(self, Self::Preparing | Self::Holding | Self::Finishing)
    }
}

impl StateSyncEvent {
    /// All events, for tables.
    pub const ALL: [Self; 6] = [
        Self::Begin,
        Self::Leave,
        Self::Succeeded,
        Self::Failed,
        Self::Drained,
        Self::Expired,
    ];
}

impl std::fmt::Display for StateSyncProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Idle => "idle",
            Self::Preparing => "preparing",
            Self::Holding => "holding",
            Self::Finishing => "finishing",
            Self::Abandoning => "abandoning",
            Self::Resting => "resting",
            Self::Synced => "synced",
        })
    }
}

/// How a connection that is opened now is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// A replica follows the connection.
    Followed,
    /// The decision waits for the end of the hook. Until then, none of the connection's input is released.
    Waits,
    /// The connection is not protected, because the replica's state is not the primary's.
    Refused,
}

/// The connections that waited, by outcome.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// A replica follows these from now on.
    pub followed: Vec<ConnectionId>,
    /// These are not protected.
    pub refused: Vec<ConnectionId>,
}

/// The state of one service's replica on this node.
#[derive(Debug)]
pub struct StateSync {
    /// Longest time for which input is held.
    hold: Duration,
    state: StateSyncProgress,
    /// The end of the hold, or of the rest after a failure.
    due: Option<Instant>,
    held_from: Instant,
    /// Number of the hook's last run. Late outcomes of earlier runs do not count.
    run: u64,
    failures: u32,
    why: Option<String>,
    waiting: Vec<ConnectionId>,
    missed: u64,
}

impl StateSync {
    /// The state of a node that is not the wire. Input is held for at most `hold`.
    pub fn new(hold: Duration) -> Self {
        Self {
            hold,
            state: StateSyncProgress::Idle,
            due: None,
            held_from: Instant::ZERO,
            run: 0,
            failures: 0,
            why: None,
            waiting: Vec::new(),
            missed: 0,
        }
    }

    /// Progress of the copying.
    pub const fn state(&self) -> StateSyncProgress {
        self.state
    }

    /// Why the copying failed last, if it has failed since its last success.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// Bytes that connections without a replica have sent since the state was copied. The copy lacks the changes that these bytes caused.
    pub const fn missed(&self) -> u64 {
        self.missed
    }

    /// A connection that no replica follows has sent `bytes` bytes.
    pub fn on_missed(&mut self, bytes: u64) {
        if self.state == StateSyncProgress::Synced {
            self.missed += bytes;
        }
    }

    /// When [`StateSyncEvent::Expired`] is due.
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// A connection is open: its handshake is complete.
    pub fn on_opened(&mut self, connection: ConnectionId) -> Admission {
        match self.state {
            StateSyncProgress::Synced => Admission::Followed,
            StateSyncProgress::Finishing => {
                self.waiting.push(connection);
                Admission::Waits
            }
            StateSyncProgress::Idle
            | StateSyncProgress::Preparing
            | StateSyncProgress::Holding
            | StateSyncProgress::Abandoning
            | StateSyncProgress::Resting => Admission::Refused,
        }
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Instant, actions: &mut VecDeque<ServiceAction>) -> Decided {
        if self.due.is_none_or(|due| now < due) {
            return Decided::default();
        }
        if self.state != StateSyncProgress::Resting {
            self.why = Some(format!(
                "the copying was not finished within the hold of {:?}",
                self.hold
            ));
        }
        self.on_event(now, StateSyncEvent::Expired, actions)
    }

    /// The run of the hook with the number `run` has ended. A success that is reported after the hold is too late, even if the hook ended
    /// in time: input of clients may have changed the primary's state since the hold.
    pub fn on_ended(
        &mut self,
        now: Instant,
        (run, outcome): (u64, Result<(), String>),
        actions: &mut VecDeque<ServiceAction>,
    ) -> Decided {
        if run != self.run {
            return Decided::default();
        }
        if self.state == StateSyncProgress::Finishing && self.due.is_some_and(|due| now >= due) {
            return self.on_timeout(now, actions);
        }
        let event = match outcome {
            Ok(()) => StateSyncEvent::Succeeded,
            Err(why) => {
                if self.state != StateSyncProgress::Abandoning {
                    self.why = Some(why);
                }
                StateSyncEvent::Failed
            }
        };
        self.on_event(now, event, actions)
    }

    /// Changes the state as `event` demands, and queues the actions that follow.
    pub fn on_event(
        &mut self,
        now: Instant,
        event: StateSyncEvent,
        actions: &mut VecDeque<ServiceAction>,
    ) -> Decided {
        let Some(to) = self.state.after(event) else {
            return Decided::default();
        };
        let from = std::mem::replace(&mut self.state, to);
        self.due = self.due.take().filter(|_| to == StateSyncProgress::Finishing);
        match to {
            StateSyncProgress::Preparing => self.run(StateSyncPhase::Prepare, actions),
            StateSyncProgress::Holding => {
                self.held_from = now;
                self.due = Some(now + self.hold);
                let until = self.due;
                actions.push_back(ServiceAction::HoldInput { until });
                actions.push_back(ServiceAction::Drain);
            }
            StateSyncProgress::Finishing => self.run(StateSyncPhase::Finish, actions),
            StateSyncProgress::Synced => {
                (self.failures, self.why, self.missed) = (0, None, 0);
                let held = now.since(self.held_from);
                release(actions);
                actions.push_back(ServiceAction::Report(OperatorReport::Synced { held }));
            }
            StateSyncProgress::Abandoning | StateSyncProgress::Idle if from.copies() => {
                release(actions);
                self.run(StateSyncPhase::Abandon, actions);
                self.tell_failure(event, actions);
            }
            StateSyncProgress::Resting => self.due = Some(now + self.rest()),
            StateSyncProgress::Abandoning | StateSyncProgress::Idle => {}
        }
        let waited = std::mem::take(&mut self.waiting);
        match to {
            StateSyncProgress::Synced => Decided {
                followed: waited,
                refused: Vec::new(),
            },
            _ => Decided {
                followed: Vec::new(),
                refused: waited,
            },
        }
    }

    fn run(&mut self, phase: StateSyncPhase, actions: &mut VecDeque<ServiceAction>) {
        self.run += 1;
        let (run, until) = (self.run, self.due);
        actions.push_back(ServiceAction::RunSync { phase, run, until });
    }

    /// Reports that `event` has ended the copying. If the hook failed or was late, `why` already contains the reason.
    fn tell_failure(&mut self, event: StateSyncEvent, actions: &mut VecDeque<ServiceAction>) {
        match event {
            StateSyncEvent::Leave => {
                self.why = Some("this node is no longer the wire, or the replica's server is dead".into());
            }
            StateSyncEvent::Begin => self.why = Some("packets passed unlogged".into()),
            StateSyncEvent::Succeeded
            | StateSyncEvent::Failed
            | StateSyncEvent::Drained
            | StateSyncEvent::Expired => {}
        }
        if event != StateSyncEvent::Leave {
            self.failures = self.failures.saturating_add(1);
        }
        let why = self.why.clone().unwrap_or_default();
        actions.push_back(ServiceAction::Report(OperatorReport::NotSynced { why }));
    }

    fn rest(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(16);
        (REST_MIN * 2_u32.pow(doublings)).min(REST_MAX)
    }
}

fn release(actions: &mut VecDeque<ServiceAction>) {
    let until = None;
    actions.push_back(ServiceAction::HoldInput { until });
}

#[cfg(test)]
mod tests;
