//! Who decides which node may speak, when the nodes do not hear each other: a witness (etcd), or a fence.

use std::collections::VecDeque;
use std::time::Duration;

use proto::Instant;
use proto::standing::Verdict;
use serde::{Deserialize, Serialize};

/// What is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArbiterKind {
    /// A register elsewhere: it is set in one transaction, if what it holds is older.
    Witness,
    /// A command that switches the other node off.
    Fence,
}

impl ArbiterKind {
    /// What the core is told of it.
    pub(super) const fn of_core(self) -> proto::standing::Arbiter {
        match self {
            Self::Witness => proto::standing::Arbiter::Witness,
            Self::Fence => proto::standing::Arbiter::Fence,
        }
    }
}

/// A node asks for an epoch; for 0, only to know which one was given away last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub node: usize,
    pub epoch: u64,
}

/// What it is told, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub at: Instant,
    pub epoch: u64,
    pub verdict: Verdict,
}

/// The arbiter of a pair.
#[derive(Debug)]
pub(crate) struct Arbiter {
    kind: ArbiterKind,
    /// From a question to its answer.
    delay: Duration,
    /// The last epoch that it gave away, and to whom.
    held: Option<Question>,
    /// It does not answer a node before.
    out_until: [Instant; 2],
    asked: u64,
    /// Who is to be switched off for whom: the scene does it.
    pub fences: VecDeque<Question>,
}

impl Arbiter {
    pub const fn new(kind: ArbiterKind, delay: Duration) -> Self {
        Self {
            kind,
            delay,
            held: None,
            out_until: [Instant::ZERO; 2],
            asked: 0,
            fences: VecDeque::new(),
        }
    }

    /// It is out of order until then, for one node or both: every second question is decided all the same, and nobody hears of it.
    pub fn fail(&mut self, node: Option<usize>, until: Instant) {
        for (number, out_until) in self.out_until.iter_mut().enumerate() {
            if node.is_none_or(|node| node == number) {
                *out_until = until.max(*out_until);
            }
        }
    }

    /// The answer; of a fence it comes when the other node is off.
    pub fn ask(&mut self, now: Instant, question: Question) -> Option<Answer> {
        self.asked += 1;
        let is_out = now < self.out_until[question.node];
        let verdict = match self.kind {
            _ if is_out && self.asked % 2 == 1 => Verdict::Failed,
            ArbiterKind::Witness => self.decide(question),
            ArbiterKind::Fence if is_out => Verdict::Failed,
            ArbiterKind::Fence => {
                self.fences.push_back(question);
                return None;
            }
        };
        Some(Answer {
            at: now + self.delay,
            epoch: question.epoch,
            verdict: if is_out { Verdict::Failed } else { verdict },
        })
    }

    fn decide(&mut self, question: Question) -> Verdict {
        match self.held {
            Some(held)
                if held.epoch > question.epoch
                    || held.epoch == question.epoch && held.node != question.node =>
            {
                Verdict::Refused { epoch: held.epoch }
            }
            _ => {
                if question.epoch > 0 {
                    self.held = Some(question);
                }
                Verdict::Granted
            }
        }
    }

    /// When somebody who asked to fence is told that it is done.
    pub fn fenced(&self, now: Instant, question: Question) -> Answer {
        Answer {
            at: now + self.delay,
            epoch: question.epoch,
            verdict: Verdict::Granted,
        }
    }
}
