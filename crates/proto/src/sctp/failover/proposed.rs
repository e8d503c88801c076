//! The mechanism that the paper proposes, for n destinations (paper, Figure 13).
//!
//! ```text
//!                one timeout: next                     probes exceed PMR
//!          ┌──────────────────────▶             ┌──────────────────────────▶
//!   Phase I  primary            Phase II  primary probed              Phase III  primary failed
//!          ◀───── PrimaryAnswers ┤  ↺ UsedTimeout, UsedFailed: next         │  ↺ UsedTimeout, UsedFailed: next
//!          ◀────────────────────── PrimaryAnswers ──────────────────────────┘
//! ```
//!
//! PMR decides only which destinations are skipped. If all have failed, new data hops through all of them; the paper leaves this open. With
//! PMR = 0 the first timeout leads to Phase III.

use super::event::{FailoverEvent, FailoverMove};

/// The phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProposedPhase {
    /// New data goes to the primary.
    I,
    /// The primary had a timeout and is probed; new data goes to another destination.
    II,
    /// The primary has failed; new data goes to another destination.
    III,
}

impl ProposedPhase {
    /// All phases.
    pub const ALL: [Self; 3] = [Self::I, Self::II, Self::III];

    /// The phase after an event.
    pub const fn after(self, event: FailoverEvent) -> (Self, FailoverMove) {
        use FailoverEvent::{
            AlternateAnswers, ChangeOver, LastFailed, PrimaryAnswers, ProbeFailed, ProbeTimeout, UsedFailed,
            UsedTimeout,
        };
        use FailoverMove::{Hop, Next, Primary, Stay};
        match (self, event) {
            (Self::I, UsedTimeout) => (Self::II, Next),
            (Self::I, UsedFailed) => (Self::III, Next),
            (Self::I | Self::II | Self::III, LastFailed) => (Self::III, Hop),
            (Self::I, ProbeTimeout | ProbeFailed | PrimaryAnswers | AlternateAnswers | ChangeOver) => {
                (Self::I, Stay)
            }
            (Self::II, UsedTimeout | UsedFailed) => (Self::II, Next),
            (Self::II, ProbeFailed) => (Self::III, Stay),
            (Self::II, ProbeTimeout | AlternateAnswers | ChangeOver) => (Self::II, Stay),
            (Self::II | Self::III, PrimaryAnswers) => (Self::I, Primary),
            (Self::III, UsedTimeout | UsedFailed) => (Self::III, Next),
            (Self::III, ProbeTimeout | ProbeFailed | AlternateAnswers | ChangeOver) => (Self::III, Stay),
        }
    }
}
