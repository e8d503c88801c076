//! The failover policies, which decide where new data goes: the policies of the paper (Caro, Amer, Stewart, "Rethinking End-to-End Failover
//! with Transport Layer Multihoming"), the policy of RFC 7829, and [`FailoverPolicy::Informed`].
//!
//! A policy is a table: state and event in, state and [`event::FailoverMove`] out. [`FailoverState`] holds the state. `paths` translates
//! timeouts and answers into events, and carries out the move.

pub mod event;
pub mod proposed;
pub mod quality;
pub mod quick;
pub mod temporary;
#[cfg(test)]
mod tests;

use event::{FailoverEvent, FailoverMove};
use proposed::ProposedPhase;
use temporary::{DormantAction, TemporaryPhase};

/// How an association fails over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverPolicy {
    /// New data goes to an alternate destination when the primary has failed, and back when the primary answers (paper, Figures 1 and 7).
    /// With a change-over threshold (CPT), the alternate becomes the primary when the old primary has more errors in a row than CPT (Figure
    /// 9).
    Temporary {
        /// Behaviour when all destinations have failed.
        dormant: DormantAction,
        /// CPT. `None`: no failover is permanent.
        change_over: Option<u32>,
    },
    /// New data leaves the primary on its first timeout; PMR only says which destinations are skipped (paper, Figure 13).
    Proposed,
    /// A destination with more errors in a row than `max_retrans` (PFMR) is potentially failed. It gets no new data while another
    /// destination is active (RFC 7829).
    PotentiallyFailed {
        /// PFMR.
        max_retrans: u32,
    },
    /// As `Temporary` with Dormant Hop. The primary changes for good when the measured round-trip times and loss rates say that another
    /// destination carries more (paper, section IV.2 and its future work): [`quality`].
    Informed,
}

/// The state of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailoverState {
    /// [`FailoverPolicy::Temporary`] and [`FailoverPolicy::Informed`].
    Temporary(TemporaryPhase, DormantAction),
    /// [`FailoverPolicy::Proposed`].
    Proposed(ProposedPhase),
    /// [`FailoverPolicy::PotentiallyFailed`]: each destination has a state of its own, [`quick::Reach`].
    PotentiallyFailed,
}

impl FailoverState {
    /// The state at the beginning.
    pub const fn new(policy: FailoverPolicy) -> Self {
        match policy {
            FailoverPolicy::Temporary { dormant, .. } => Self::Temporary(TemporaryPhase::I, dormant),
            FailoverPolicy::Informed => Self::Temporary(TemporaryPhase::I, DormantAction::Hop),
            FailoverPolicy::Proposed => Self::Proposed(ProposedPhase::I),
            FailoverPolicy::PotentiallyFailed { .. } => Self::PotentiallyFailed,
        }
    }

    /// The state after an event, and the move of new data.
    pub const fn after(self, event: FailoverEvent) -> (Self, FailoverMove) {
        match self {
            Self::Temporary(phase, dormant) => {
                let (next, step) = phase.after(event, dormant);
                (Self::Temporary(next, dormant), step)
            }
            Self::Proposed(phase) => {
                let (next, step) = phase.after(event);
                (Self::Proposed(next), step)
            }
            Self::PotentiallyFailed => (self, FailoverMove::Rank),
        }
    }

    /// The initial state of the same policy. Used when the application chooses another primary.
    pub const fn restarted(self) -> Self {
        match self {
            Self::Temporary(_, dormant) => Self::Temporary(TemporaryPhase::I, dormant),
            Self::Proposed(_) => Self::Proposed(ProposedPhase::I),
            Self::PotentiallyFailed => Self::PotentiallyFailed,
        }
    }

    /// The phase as the paper numbers it, for reports. [`FailoverPolicy::PotentiallyFailed`], which the paper does not have, is always
    /// in I.
    pub const fn phase(self) -> &'static str {
        match self {
            Self::Temporary(TemporaryPhase::I, _)
            | Self::Proposed(ProposedPhase::I)
            | Self::PotentiallyFailed => "I",
            Self::Temporary(TemporaryPhase::II, _) | Self::Proposed(ProposedPhase::II) => "II",
            Self::Temporary(TemporaryPhase::III, _) | Self::Proposed(ProposedPhase::III) => "III",
        }
    }
}
