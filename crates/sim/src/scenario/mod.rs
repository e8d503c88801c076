//! The papers' networks: from a configuration to results.

pub mod cluster;
pub mod dumbbell;
pub mod rate;

use proto::Instant;
use thiserror::Error;

use crate::flow::InvalidConfig;
use crate::link::InvalidLink;
use crate::net::{FlowId, Network};

/// What became of one flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowResult {
    /// When its first SYN left.
    pub start: Instant,
    /// When everything was acknowledged, if it was before the run ended.
    pub end: Option<Instant>,
    /// Expired retransmission timers.
    pub timeouts: u32,
    /// Segments sent more than once.
    pub retransmitted: u64,
    /// Segments sent, the SYN included.
    pub segments: u64,
}

impl FlowResult {
    /// From the first SYN to the last acknowledgement, in seconds.
    pub fn completion_s(&self) -> Option<f64> {
        self.end.map(|end| end.since(self.start).as_secs_f64())
    }

    fn of(network: &Network, flow: FlowId) -> Self {
        let sender = network.sender(flow);
        let counts = sender.counts();
        Self {
            start: sender.started().unwrap_or_default(),
            end: sender.completed(),
            timeouts: counts.timeouts,
            retransmitted: counts.retransmitted,
            segments: counts.segments,
        }
    }
}

/// Which part of a scenario cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum InvalidScenario {
    /// A link's field.
    #[error("link: {0}")]
    Link(#[from] InvalidLink),
    /// A flow's field.
    #[error("tcp.{0}")]
    Flow(#[from] InvalidConfig),
    /// A scenario without anything in it.
    #[error("{0} must be positive")]
    Zero(&'static str),
    /// A time outside the run.
    #[error("{0} must be within the run")]
    Late(&'static str),
}
