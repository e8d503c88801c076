//! The arbiter, which decides which node may speak when the nodes do not hear each other: a witness (etcd) or a fence.

use std::time::Duration;

use proto::Instant;
use proto::standing::ArbiterVerdict;
use serde::{Deserialize, Serialize};

/// Kind of arbiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimArbiterKind {
    /// A register outside the pair (etcd). A transaction sets the register if the register holds an older epoch.
    Witness,
    /// A command that switches the other node off.
    Fence,
}

impl SimArbiterKind {
    /// The value for the core's configuration.
    pub(super) const fn of_core(self) -> proto::standing::Arbiter {
        match self {
            Self::Witness => proto::standing::Arbiter::Witness,
            Self::Fence => proto::standing::Arbiter::Fence,
        }
    }
}

/// A node's request for an epoch. A request for epoch 0 only asks which epoch was granted last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpochRequest {
    pub node: usize,
    pub epoch: u64,
}

/// The arbiter's answer, and when it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedAnswer {
    pub at: Instant,
    pub epoch: u64,
    pub verdict: ArbiterVerdict,
}

/// A fence command that runs. At its end, the command switches the other node off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningFence {
    pub question: EpochRequest,
    /// Number of the agent that asked.
    pub agent: u64,
    pub due: Instant,
}

/// An outage of the arbiter, as one node sees it: each question that the node asks before `until` gets the answer `Failed`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    pub until: Instant,
    /// Whether a witness still decides every second question during the outage, though the answer is lost.
    pub decides: bool,
}

/// The arbiter of a pair.
#[derive(Debug)]
pub(crate) struct SimArbiter {
    kind: SimArbiterKind,
    /// Time from a question to its answer.
    delay: Duration,
    /// The last epoch that the witness granted, and to which node.
    held: Option<EpochRequest>,
    /// The outage that each node sees.
    outages: [Outage; 2],
    asked: u64,
    /// The fence commands that run. The swarm carries them out.
    pub fences: Vec<RunningFence>,
}

impl SimArbiter {
    pub const fn new(kind: SimArbiterKind, delay: Duration) -> Self {
        Self {
            kind,
            delay,
            held: None,
            outages: [Outage {
                until: Instant::ZERO,
                decides: false,
            }; 2],
            asked: 0,
            fences: Vec::new(),
        }
    }

    /// Begins an outage for one node, or for both if `node` is `None`.
    pub fn fail(&mut self, node: Option<usize>, outage: Outage) {
        for (number, last) in self.outages.iter_mut().enumerate() {
            if node.is_none_or(|node| node == number) {
                *last = outage;
            }
        }
    }

    /// Answers a question. Returns `None` for a fence outside of an outage, because such a fence answers later, when the other node is off.
    /// If the same agent repeats its question to a fence, no second command is started.
    pub fn ask(&mut self, now: Instant, question: EpochRequest, agent: u64) -> Option<TimedAnswer> {
        self.asked += 1;
        let outage = self.outages[question.node];
        let is_out = now < outage.until;
        let is_lost = !outage.decides || self.asked % 2 == 1;
        let verdict = match self.kind {
            _ if is_out && is_lost => ArbiterVerdict::Failed,
            SimArbiterKind::Witness => self.decide(question),
            SimArbiterKind::Fence if is_out => ArbiterVerdict::Failed,
            SimArbiterKind::Fence => {
                let is_same = |fence: &RunningFence| fence.question == question && fence.agent == agent;
                if !self.fences.iter().any(is_same) {
                    let due = now + self.delay;
                    self.fences.push(RunningFence { question, agent, due });
                }
                return None;
            }
        };
        Some(TimedAnswer {
            at: now + self.delay,
            epoch: question.epoch,
            verdict: if is_out { ArbiterVerdict::Failed } else { verdict },
        })
    }

    fn decide(&mut self, question: EpochRequest) -> ArbiterVerdict {
        match self.held {
            Some(held)
                if held.epoch > question.epoch
                    || held.epoch == question.epoch && held.node != question.node =>
            {
                let is_own = held.node == question.node;
                let epoch = held.epoch;
                ArbiterVerdict::Refused { epoch, is_own }
            }
            _ => {
                if question.epoch > 0 {
                    self.held = Some(question);
                }
                ArbiterVerdict::Granted
            }
        }
    }
}
