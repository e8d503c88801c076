//! The agent's thread. Its work takes time. It naps between two readings of the log, and sleeps when the log is empty.
//! It can be paused or killed.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use agent::TurnStep;
use proto::Instant;
use proto::action::{Action, Heartbeat, ServiceAction};
use proto::census::ClientTerms;
use proto::census::{CensusPage, PageQuery};
use proto::export::{PartReceipt, SnapshotPart};
use proto::pause::PauseWatch;
use proto::restart::prefix::{PrefixAnswer, PrefixAsk};
use serde::{Deserialize, Serialize};

/// Time that each kind of work takes the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// To make a socket.
    pub restore: Duration,
    /// To begin to read the log.
    pub drain: Duration,
    /// To read one record of the log.
    pub record: Duration,
    /// To let a socket speak.
    pub activate: Duration,
    /// To give a socket to the relay.
    pub hand_over: Duration,
    /// To change addresses, routes and rules.
    pub assume: Duration,
    /// Any other action.
    pub other: Duration,
}

impl Costs {
    /// Costs measured on Linux (docs/KERNEL.md: 24 µs for a full restore), times `factor`. Only `assume` is an estimate, for some dozen
    /// netlink messages, and is not multiplied.
    pub fn measured(factor: u32) -> Self {
        let micros = |count: u64| Duration::from_micros(count) * factor;
        Self {
            restore: micros(24),
            drain: micros(2),
            record: Duration::from_nanos(300) * factor,
            activate: micros(6),
            hand_over: micros(5),
            assume: Duration::from_micros(500),
            other: micros(1),
        }
    }

    pub(super) fn of(&self, action: &Action, unread: u64) -> Duration {
        let Action::Service(_, action) = action else {
            return self.other;
        };
        match action {
            ServiceAction::Drain => self.drain + self.record * u32::try_from(unread).unwrap_or(u32::MAX),
            ServiceAction::Restore { .. } => self.restore,
            ServiceAction::Activate { .. } => self.activate,
            ServiceAction::HandOver { .. } => self.hand_over,
            ServiceAction::Assume { .. } => self.assume,
            _ => self.other,
        }
    }
}

/// A message from one agent to the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum AgentMessage {
    Heartbeat(Heartbeat),
    Ask(Vec<SocketAddr>),
    Told(Vec<ClientTerms>),
    AskAll(PageQuery),
    Page(CensusPage),
    Part(SnapshotPart),
    Receipt(PartReceipt),
    AskPrefix(PrefixAsk),
    Prefix(PrefixAnswer),
}

/// A message in transit. The network may deliver it more than once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct AgentDatagram {
    /// [`AgentThread::number`] of the sending agent.
    pub incarnation: u64,
    /// Number of the message, counting up.
    pub number: u64,
    pub word: AgentMessage,
}

/// Number of messages that are remembered, to recognise copies.
const HEARD_MAX: u64 = 128;

/// State of the agent's thread.
pub(super) struct AgentThread {
    /// When the agent continues.
    pub due: Instant,
    /// The action that is under way until `due`.
    pub doing: Option<Action>,
    /// The step of its turn that the agent takes next.
    pub turn: TurnStep,
    /// The agent sleeps until something happens.
    pub is_asleep: bool,
    /// The agent does not run before this time.
    pub paused_until: Instant,
    /// The agent was killed; a new agent starts at `due`.
    pub is_dead: bool,
    /// `(until, times)`: until then, all work of the agent takes `times` times as long.
    pub late: (Instant, u32),
    /// Number of the agent. It is one larger than the number of the node's previous agent.
    pub number: u64,
    pub words: VecDeque<AgentMessage>,
    pub pauses: PauseWatch,
    /// The peer's kernel has answered the probe.
    pub is_answered: bool,
    /// Number of messages that the agent has sent.
    pub said: u64,
    /// The peer's agent that was heard last, and the numbers of its last messages.
    heard: (u64, BTreeSet<u64>),
    /// When the last packet of the peer came through the service's network. `None`: none since the agent last looked.
    pub seen_here: Option<Instant>,
    /// Time of the latest question that an outside host has answered. `None`: no answer since the agent last looked.
    pub reached_outside: Option<Instant>,
    /// The agent is in the middle of the calls of the peer's wire.
    pub answers_wire: bool,
}

impl AgentThread {
    /// An agent that starts now.
    pub fn new(now: Instant, number: u64) -> Self {
        Self {
            due: now,
            doing: None,
            turn: TurnStep::default(),
            is_asleep: false,
            paused_until: now,
            is_dead: false,
            late: (now, 1),
            number,
            words: VecDeque::new(),
            pauses: PauseWatch::default(),
            is_answered: false,
            said: 0,
            heard: (0, BTreeSet::new()),
            seen_here: None,
            reached_outside: None,
            answers_wire: false,
        }
    }

    /// Remembers a message of the peer by its number. Returns false if the message is a copy, or if an earlier agent of the peer sent it
    /// and a later agent has been heard. (`proto::anti_replay` does this in the daemon.)
    pub fn number_heard(&mut self, incarnation: u64, number: u64) -> bool {
        if incarnation < self.heard.0 {
            return false;
        }
        if incarnation > self.heard.0 {
            self.heard = (incarnation, BTreeSet::new());
        }
        let numbers = &mut self.heard.1;
        let is_first = numbers.insert(number);
        let newest = numbers.last().copied().unwrap_or(number);
        numbers.retain(|number| number + HEARD_MAX > newest);
        is_first
    }

    /// Wakes a sleeping agent at `at`. An agent that does not sleep reads news in its next turn.
    pub fn wake(&mut self, at: Instant) {
        if self.is_asleep {
            self.due = self.due.min(at).max(self.paused_until);
        }
    }

    /// Whether the agent would notice that its clock stood still, if the machine's time-stamp counter went on.
    pub const fn notices_pauses(&self) -> bool {
        self.pauses.knows_rate()
    }

    pub fn slowed(&self, now: Instant, cost: Duration) -> Duration {
        match self.late {
            (until, times) if now < until => cost * times,
            _ => cost,
        }
    }
}
