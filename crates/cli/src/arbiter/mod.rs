//! The arbiter says whether this node may speak beyond its lease. It is nobody (`assume = "fail-stop"`), a witness (`[witness]`), or a
//! command that switches the peer off (`[fence]`).
//!
//! The agent asks and goes on; the answer comes later, within a bounded time, and wakes it. `proto` decides
//! whether to ask, and what an answer means.

mod fence;
mod members;
mod record;
pub mod witness;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use proto::action::ServiceIndex;
use proto::standing::ArbiterVerdict;

use crate::config::{self, Config};
use crate::control::{ArbiterKind, WitnessStatus};
use fence::Fence;
use witness::Witness;

/// The question whether this node may speak for `service` in `epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArbiterQuestion {
    /// The service.
    pub service: ServiceIndex,
    /// The epoch.
    pub epoch: u64,
}

/// A question and its outcome.
pub type ArbiterAnswer = (ArbiterQuestion, ArbiterVerdict);

/// Sends outcomes to the agent, and wakes the agent.
#[derive(Clone)]
pub struct ArbiterOutbox {
    answers: Sender<ArbiterAnswer>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl ArbiterOutbox {
    fn tell(&self, question: ArbiterQuestion, verdict: ArbiterVerdict) {
        // Fails only if the agent has ended.
        let _ = self.answers.send((question, verdict));
        (self.wake)();
    }
}

/// The node and its peer, as witness and fence name them.
#[derive(Clone, Debug)]
pub struct ArbiterNames {
    /// This node.
    pub node: String,
    /// The peer.
    pub peer: String,
    /// The peer's address.
    pub peer_address: IpAddr,
    /// The services by index.
    pub services: Vec<String>,
}

/// The configured kind of arbiter.
enum ArbiterBackend {
    FailStop,
    Witness(Witness),
    Fence(Fence),
}

/// Asks for the right to speak.
pub struct ArbiterClient {
    judge: ArbiterBackend,
    outbox: ArbiterOutbox,
    answers: Receiver<ArbiterAnswer>,
    /// Questions that are not answered yet.
    asked: BTreeSet<ArbiterQuestion>,
}

impl ArbiterClient {
    /// The arbiter that `config` names; `wake` is called when there is an answer.
    ///
    /// # Errors
    /// If the witness's certificates cannot be read, or no thread can be started.
    pub fn open(config: &Config, wake: impl Fn() + Send + Sync + 'static) -> anyhow::Result<Self> {
        let (sender, answers) = channel();
        let outbox = ArbiterOutbox {
            answers: sender,
            wake: Arc::new(wake),
        };
        let names = ArbiterNames {
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
            config::ArbiterSettings::FailStop => ArbiterBackend::FailStop,
            config::ArbiterSettings::Witness(witness) => {
                ArbiterBackend::Witness(Witness::open(witness, names, outbox.clone())?)
            }
            config::ArbiterSettings::Fence(fence) => ArbiterBackend::Fence(Fence::new(fence.clone(), names)),
        };
        Ok(Self {
            judge,
            outbox,
            answers,
            asked: BTreeSet::new(),
        })
    }

    /// Asks without waiting. A question that is still open is not asked again.
    pub fn confirm(&mut self, question: ArbiterQuestion) {
        if !self.asked.insert(question) {
            return;
        }
        match &self.judge {
            ArbiterBackend::FailStop => self.outbox.tell(question, ArbiterVerdict::Granted),
            ArbiterBackend::Witness(witness) => witness.ask(question),
            ArbiterBackend::Fence(fence) => fence.run(question, self.outbox.clone()),
        }
    }

    /// The next outcome.
    pub fn poll(&mut self) -> Option<ArbiterAnswer> {
        let (question, verdict) = self.answers.try_recv().ok()?;
        self.asked.remove(&question);
        Some((question, verdict))
    }

    /// Whether a question is open.
    pub fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    /// The kind of arbiter.
    pub fn kind(&self) -> ArbiterKind {
        match self.judge {
            ArbiterBackend::FailStop => ArbiterKind::FailStop,
            ArbiterBackend::Witness(_) => ArbiterKind::Etcd,
            ArbiterBackend::Fence(_) => ArbiterKind::Fence,
        }
    }

    /// The state of the witness, if there is one.
    pub fn witness(&self) -> Option<WitnessStatus> {
        match &self.judge {
            ArbiterBackend::Witness(witness) => Some(witness.status()),
            ArbiterBackend::FailStop | ArbiterBackend::Fence(_) => None,
        }
    }
}
