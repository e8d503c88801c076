//! The part of a sender's state that only RACK, the modern sender, has.

use super::prr::Prr;
use super::scoreboard::Scoreboard;

/// Kind of the early timer, which runs before the retransmission timeout. Only one kind runs at a time (RFC 8985 §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Early {
    /// Waits for a segment that may be late or lost (the reordering timer).
    Reordering,
    /// Waits before a tail loss probe is sent.
    Probe,
}

/// A tail loss probe whose result is not known yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct TailProbe {
    /// TLP.end_seq.
    pub end: u64,
    /// The probe repeated the last segment.
    pub again: bool,
}

/// The part of the sender's state that only `TcpVariant::Rack` uses.
#[derive(Clone, Debug, Default)]
pub(super) struct RackState {
    pub board: Scoreboard,
    pub prr: Prr,
    pub early: Option<(u64, Early)>,
    pub probe: Option<TailProbe>,
    /// Whether a round trip was measured since the last probe.
    pub measured: bool,
}

impl RackState {
    /// Time at which the early timer expires, in nanoseconds. The retransmission timeout is separate.
    pub fn deadline(&self) -> Option<u64> {
        self.early.map(|(at, _)| at)
    }
}
