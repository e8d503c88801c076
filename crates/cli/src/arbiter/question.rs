//! A question to the arbiter, and the sender that passes its answer to the agent.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use proto::action::ServiceIndex;
use proto::standing::ArbiterVerdict;

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
    pub(super) fn new(answers: Sender<ArbiterAnswer>, wake: impl Fn() + Send + Sync + 'static) -> Self {
        let wake = Arc::new(wake);
        Self { answers, wake }
    }

    /// Passes an outcome to the agent.
    pub(super) fn tell(&self, question: ArbiterQuestion, verdict: ArbiterVerdict) {
        // Fails only if the agent has ended.
        let _ = self.answers.send((question, verdict));
        (self.wake)();
    }
}

/// The names that the witness and the fence use for this node, its peer and the services.
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
