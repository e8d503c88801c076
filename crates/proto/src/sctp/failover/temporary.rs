//! Temporary and permanent failovers (paper, Figures 1, 7 and 9).
//!
//! ```text
//!                UsedFailed: next active                  LastFailed
//!          ┌────────────────────────────▶          ┌──────────────────────▶
//!   Phase I  primary active            Phase II  an alternate           Phase III  dormant: all failed
//!          ◀────────────────────────────┤  ↺ UsedFailed  ◀──────────────┤  ↺ UsedTimeout: hop (Dormant Hop)
//!          │     PrimaryAnswers         │                AlternateAnswers │
//!          ◀──── ChangeOver: promote ───┘                                 │  ↺ ChangeOver: promote
//!          ◀──────────────────────── PrimaryAnswers ──────────────────────┘
//! ```
//!
//! Figure 1 has no Phase III. Figures 1 and 7 have no ChangeOver: without a change-over threshold (CPT) this event never occurs. If only
//! one destination is active in Phase I, its failure leads to Phase III directly.

use super::event::{FailoverEvent, FailoverMove};

/// Behaviour in Phase III (paper, section III.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DormantAction {
    /// New data stays where it was (Dormant LastDest).
    LastDest,
    /// New data goes to the primary (Dormant Primary).
    Primary,
    /// New data moves on after each timeout (Dormant Hop, Figure 7).
    Hop,
    /// New data moves on once, when the last destination fails, and stays there until the primary answers. ns-2 calls this Dormant Hop.
    HopOnce,
}

/// The phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TemporaryPhase {
    /// New data goes to the primary.
    I,
    /// The primary has failed; new data goes to an alternate.
    II,
    /// All destinations have failed.
    III,
}

impl TemporaryPhase {
    /// All phases.
    pub const ALL: [Self; 3] = [Self::I, Self::II, Self::III];

    /// The phase after an event.
    pub const fn after(self, event: FailoverEvent, dormant: DormantAction) -> (Self, FailoverMove) {
        use FailoverEvent::{
            AlternateAnswers, ChangeOver, LastFailed, PrimaryAnswers, ProbeFailed, ProbeTimeout, UsedFailed,
            UsedTimeout,
        };
        use FailoverMove::{Answerer, Hop, Next, Primary, Promote, Stay};
        let (falls_asleep, turns_over) = match dormant {
            DormantAction::LastDest => (Stay, Stay),
            DormantAction::Primary => (Primary, Stay),
            DormantAction::Hop => (Hop, Hop),
            DormantAction::HopOnce => (Hop, Stay),
        };
        match (self, event) {
            (Self::I | Self::II, UsedFailed) => (Self::II, Next),
            (Self::I | Self::II, LastFailed) => (Self::III, falls_asleep),
            // New data has not left the primary, so `ChangeOver` finds no failover that it could make permanent.
            (
                Self::I,
                UsedTimeout | ProbeTimeout | ProbeFailed | PrimaryAnswers | AlternateAnswers | ChangeOver,
            ) => (Self::I, Stay),
            (Self::II, ChangeOver) => (Self::I, Promote),
            // The alternate in use is active, so an answer of another alternate makes no difference.
            (Self::II, UsedTimeout | ProbeTimeout | ProbeFailed | AlternateAnswers) => (Self::II, Stay),
            (Self::II | Self::III, PrimaryAnswers) => (Self::I, Primary),
            (Self::III, AlternateAnswers) if matches!(dormant, DormantAction::HopOnce) => (Self::III, Stay),
            (Self::III, AlternateAnswers) => (Self::II, Answerer),
            (Self::III, UsedTimeout) => (Self::III, turns_over),
            // All destinations have failed. A new primary does not change that.
            (Self::III, ChangeOver) => (Self::III, Promote),
            (Self::III, UsedFailed | ProbeTimeout | ProbeFailed | LastFailed) => (Self::III, Stay),
        }
    }
}
