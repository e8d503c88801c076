//! Who says that this node may speak beyond its lease: nobody (`assume = "fail-stop"`), a witness (`[witness]`), or a command that
//! switches the peer off (`[fence]`).
//!
//! The agent asks and goes on; the answer comes later, within a bounded time, and wakes it. Whether to ask, and what an answer
//! means, is decided elsewhere (`proto`).

mod fence;
mod members;
mod record;
pub mod witness;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use proto::action::ServiceIndex;
use proto::standing::Verdict;

use crate::config::{self, Config};
use crate::control::{ArbiterKind, WitnessStatus};
use fence::Fence;
use witness::Witness;

/// The wish to speak for `service` in `epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    /// For this service.
    pub service: ServiceIndex,
    /// In this epoch.
    pub epoch: u64,
}

/// A question and its outcome.
pub type Answer = (Question, Verdict);

/// Where outcomes go: to the agent, which is woken.
#[derive(Clone)]
pub struct Outbox {
    answers: Sender<Answer>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl Outbox {
    fn tell(&self, question: Question, verdict: Verdict) {
        // The agent that does not listen any more has ended.
        let _ = self.answers.send((question, verdict));
        (self.wake)();
    }
}

/// The node and its peer, as witness and fence name them.
#[derive(Clone, Debug)]
pub struct Names {
    /// This node.
    pub node: String,
    /// The other one.
    pub peer: String,
    /// Where that is.
    pub peer_address: IpAddr,
    /// The services by index.
    pub services: Vec<String>,
}

/// The one who is asked.
enum Judge {
    FailStop,
    Witness(Witness),
    Fence(Fence),
}

/// Asks for the right to speak.
pub struct Arbiter {
    judge: Judge,
    outbox: Outbox,
    answers: Receiver<Answer>,
    /// What is not answered yet.
    asked: BTreeSet<Question>,
}

impl Arbiter {
    /// The arbiter that `config` names; `wake` is called when there is an answer.
    ///
    /// # Errors
    /// If the witness's certificates cannot be read, or there is no thread.
    pub fn open(config: &Config, wake: impl Fn() + Send + Sync + 'static) -> anyhow::Result<Self> {
        let (sender, answers) = channel();
        let outbox = Outbox {
            answers: sender,
            wake: Arc::new(wake),
        };
        let names = Names {
            node: config.node.name.clone(),
            peer: config.peer.name.clone(),
            peer_address: config.peer.address,
            services: config
                .services
                .iter()
                .map(|service| service.name.clone())
                .collect(),
        };
        let judge = match &config.arbiter {
            config::Arbiter::FailStop => Judge::FailStop,
            config::Arbiter::Witness(witness) => {
                Judge::Witness(Witness::open(witness, names, outbox.clone())?)
            }
            config::Arbiter::Fence(fence) => Judge::Fence(Fence::new(fence.clone(), names)),
        };
        Ok(Self {
            judge,
            outbox,
            answers,
            asked: BTreeSet::new(),
        })
    }

    /// Asks, and does not wait. What is asked already is not asked again.
    pub fn confirm(&mut self, question: Question) {
        if !self.asked.insert(question) {
            return;
        }
        match &self.judge {
            Judge::FailStop => self.outbox.tell(question, Verdict::Granted),
            Judge::Witness(witness) => witness.ask(question),
            Judge::Fence(fence) => fence.run(question, self.outbox.clone()),
        }
    }

    /// The next outcome.
    pub fn poll(&mut self) -> Option<Answer> {
        let (question, verdict) = self.answers.try_recv().ok()?;
        self.asked.remove(&question);
        Some((question, verdict))
    }

    /// Whether it has not answered yet.
    pub fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Who is asked.
    pub fn kind(&self) -> ArbiterKind {
        match self.judge {
            Judge::FailStop => ArbiterKind::FailStop,
            Judge::Witness(_) => ArbiterKind::Etcd,
            Judge::Fence(_) => ArbiterKind::Fence,
        }
    }

    /// How the witness is, if there is one.
    pub fn witness(&self) -> Option<WitnessStatus> {
        match &self.judge {
            Judge::Witness(witness) => Some(witness.status()),
            Judge::FailStop | Judge::Fence(_) => None,
        }
    }
}
