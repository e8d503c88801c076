//! The arbiter says whether this node may speak beyond its lease. The arbiter is a witness (`[witness]`), a command that switches the peer
//! off (`[fence]`), or nobody (`assume = "fail-stop"`: this node grants the right to itself).
//!
//! The agent asks and goes on. The answer comes later, within a bounded time, and wakes the agent. `proto` decides whether to ask, and what
//! an answer means.

mod fence;
pub(crate) mod members;
mod question;
mod record;
pub mod witness;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use proto::standing::ArbiterVerdict;

use crate::config::{self, Config};
use crate::control::{ArbiterKind, WitnessStatus};
use fence::Fence;
use question::ArbiterNames;
pub use question::{ArbiterAnswer, ArbiterOutbox, ArbiterQuestion};
pub use witness::AnnexEntries;
use witness::Witness;

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
    /// Opens the arbiter that `config` names. `wake` is called when there is an answer.
    ///
    /// # Errors
    /// If the witness's certificates cannot be read, or no thread can be started.
    pub fn open(config: &Config, wake: impl Fn() + Send + Sync + 'static) -> anyhow::Result<Self> {
        let (sender, answers) = channel();
        let outbox = ArbiterOutbox::new(sender, wake);
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

    /// The next answer of the arbiter, if one has come.
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

    /// The annexes that have registered, as the witness last had them.
    pub fn annexes(&self) -> Option<Arc<AnnexEntries>> {
        match &self.judge {
            ArbiterBackend::Witness(witness) => witness.annexes(),
            ArbiterBackend::FailStop | ArbiterBackend::Fence(_) => None,
        }
    }
}
