//! The fence: the operator's command that makes sure that the peer is off.

use proto::standing::ArbiterVerdict;

use super::question::{ArbiterNames, ArbiterOutbox, ArbiterQuestion};
use crate::bounded::{self, CommandOutcome, LatePolicy};
use crate::config;

/// Runs the command on a thread of its own, so the agent does not wait for it.
pub struct Fence {
    config: config::FenceSettings,
    names: ArbiterNames,
}

impl Fence {
    pub fn new(config: config::FenceSettings, names: ArbiterNames) -> Self {
        Self { config, names }
    }

    /// Runs the command for `question`. If it exits with 0 in time, the peer is off.
    pub fn run(&self, question: ArbiterQuestion, outbox: ArbiterOutbox) {
        let (config, names, outside) = (self.config.clone(), self.names.clone(), outbox.clone());
        let fence = move || outbox.tell(question, fence(&config, &names, question));
        let spawned = std::thread::Builder::new().name("fence".into()).spawn(fence);
        if let Err(error) = spawned {
            tracing::error!(%error, "the fence command cannot be run: no thread");
            outside.tell(question, ArbiterVerdict::Failed);
        }
    }
}

fn fence(config: &config::FenceSettings, names: &ArbiterNames, question: ArbiterQuestion) -> ArbiterVerdict {
    let service = names.services[usize::from(question.service)].as_str();
    let (peer, program) = (names.peer.as_str(), config.command[0].as_str());
    let (address, epoch) = (names.peer_address.to_string(), question.epoch.to_string());
    let environment = [
        ("STEADFAST_SERVICE", service),
        ("STEADFAST_PEER", peer),
        ("STEADFAST_PEER_ADDRESS", &address),
        ("STEADFAST_EPOCH", &epoch),
    ];
    tracing::warn!(service, peer, epoch, program, "fencing the peer");
    match bounded::run(&config.command, &environment, config.timeout, LatePolicy::Kill) {
        Ok(CommandOutcome::Ended { status, .. }) if status.success() => {
            tracing::warn!(service, peer, "the peer is fenced");
            return ArbiterVerdict::Granted;
        }
        Ok(CommandOutcome::Ended { status, stderr }) => {
            let said = stderr.lines().next();
            tracing::error!(service, peer, program, %status, said, "the fence command failed");
        }
        Ok(CommandOutcome::Late) => {
            tracing::error!(
                service,
                peer,
                program,
                "the fence command was killed after {:?}",
                config.timeout
            );
        }
        Err(error) => tracing::error!(service, peer, program, %error, "the fence command cannot be run"),
    }
    ArbiterVerdict::Failed
}
