//! The checkable claims of the HALR thesis and of the papers on SCTP failover, Migratory TCP, FT-TCP and CoRAL, one row each, and our results
//! for them. Also our own claims.

mod claim;
mod closed_forms;
mod compare;
mod completion;
mod coral;
mod ft_tcp;
mod kernel;
mod machines;
mod measured;
mod paths;
mod rate;
mod sessions;
mod timeouts;
mod today;
mod unit;

use std::fmt;

pub use self::claim::{ClaimEvidence, Expected, FigureClaim, FigureClaimResult};
use super::results::Results;

/// The verdict about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureClaimVerdict {
    /// Our result confirms the claim.
    Holds,
    /// Our result differs from the claim, for this known reason.
    Differs(&'static str),
    /// Our result is not the expected one.
    Surprising,
    /// The claim needs runs that were not made.
    NotRun,
    /// No run measures the claim, for this reason.
    NotMeasured(&'static str),
}

impl fmt::Display for FigureClaimVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds => write!(f, "holds"),
            Self::Differs(why) => write!(f, "differs ({why})"),
            Self::Surprising => write!(f, "SURPRISING: not the expected result"),
            Self::NotRun => write!(f, "not run"),
            Self::NotMeasured(why) => write!(f, "not measured ({why})"),
        }
    }
}

/// A claim with its result and verdict.
pub struct Judged {
    /// The claim.
    pub claim: &'static FigureClaim,
    /// The result of the runs.
    pub found: Option<FigureClaimResult>,
    /// The verdict.
    pub verdict: FigureClaimVerdict,
}

/// All claims: first those of the thesis, by subject; then our own about today's hosts and unequal strings; then those of the SCTP failover
/// paper, with our own about its networks; then those that are judged on the kernel, the last ones about
/// Migratory TCP, FT-TCP and CoRAL.
pub fn all() -> impl Iterator<Item = &'static FigureClaim> {
    [
        unit::CLAIMS,
        completion::CLAIMS,
        timeouts::CLAIMS,
        completion::MODEL_CLAIMS,
        rate::CLAIMS,
        today::CLAIMS,
        closed_forms::CLAIMS,
        paths::CLAIMS,
        machines::CLAIMS,
        kernel::CLAIMS,
        sessions::CLAIMS,
        ft_tcp::CLAIMS,
        coral::CLAIMS,
    ]
    .into_iter()
    .flatten()
}

/// Judges the claims that these figures show.
pub fn judge(results: &Results, figures: &[&str]) -> Vec<Judged> {
    let of = all().filter(|claim| figures.contains(&claim.figure));
    of.map(|claim| {
        let found = (claim.find)(results);
        let verdict = match (&found, claim.expected) {
            (None, Expected::NotMeasured(why)) => FigureClaimVerdict::NotMeasured(why),
            (None, _) => FigureClaimVerdict::NotRun,
            (Some(found), Expected::Holds) if found.holds => FigureClaimVerdict::Holds,
            (Some(found), Expected::Differs(why)) if !found.holds => FigureClaimVerdict::Differs(why),
            // Only flows that arrive between the thesis' times show the known difference. With few seeds, there may be no such flow, and
            // then the claim holds for all flows.
            (Some(found), Expected::DiffersBetween(_)) if found.holds && found.holds_first => {
                FigureClaimVerdict::Holds
            }
            (Some(found), Expected::DiffersBetween(why)) if found.holds_first => {
                FigureClaimVerdict::Differs(why)
            }
            (Some(_), _) => FigureClaimVerdict::Surprising,
        };
        Judged {
            claim,
            found,
            verdict,
        }
    })
    .collect()
}
