//! The thesis' checkable claims, one row each, and our results for them. Also our own claims about the figures for today's hosts.

mod completion;
mod rate;
mod timeouts;
mod today;
mod unit;

use std::fmt;

use super::results::Results;

/// A claim of the thesis, or of ours.
pub struct FigureClaim {
    /// The claim's name in the table: figure and letter.
    pub id: &'static str,
    /// The section of the thesis.
    pub section: &'static str,
    /// The claim in our words.
    pub statement: &'static str,
    /// The number in the thesis, if there is one.
    pub paper: &'static str,
    /// The figure that shows it.
    pub figure: &'static str,
    /// The expected verdict.
    pub expected: Expected,
    /// Computes the result from the runs. `None` if they are missing.
    pub find: fn(&Results) -> Option<FigureClaimResult>,
}

/// Whether a claim is known to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It holds.
    Holds,
    /// It does not hold, for this reason.
    Differs(&'static str),
    /// It holds for the thesis' arrival times, but not for flows that arrive between them, for this reason.
    DiffersBetween(&'static str),
}

/// The runs' result for a claim.
#[derive(Clone, Debug)]
pub struct FigureClaimResult {
    /// Our result.
    pub here: String,
    /// ns-2's result, if there is one.
    pub ns2: Option<String>,
    /// Whether the claim's rule holds for all flows.
    pub holds: bool,
    /// Whether the rule holds for the first seed's flows, which arrive at the thesis' times.
    pub holds_first: bool,
}

impl FigureClaimResult {
    fn new(here: impl Into<String>, holds: bool) -> Self {
        Self {
            here: here.into(),
            ns2: None,
            holds,
            holds_first: holds,
        }
    }

    fn first(self, holds_first: bool) -> Self {
        Self { holds_first, ..self }
    }

    fn beside(self, ns2: impl Into<String>) -> Self {
        Self {
            ns2: Some(ns2.into()),
            ..self
        }
    }
}

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
}

impl fmt::Display for FigureClaimVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds => write!(f, "holds"),
            Self::Differs(why) => write!(f, "differs ({why})"),
            Self::Surprising => write!(f, "SURPRISING: not what is known of it"),
            Self::NotRun => write!(f, "not run"),
        }
    }
}

impl FigureClaim {
    /// Whether this is a claim of the thesis, not one of ours.
    pub fn is_of_thesis(&self) -> bool {
        self.paper != today::OURS
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

/// All claims in the order of the thesis, then ours about today's hosts.
pub fn all() -> impl Iterator<Item = &'static FigureClaim> {
    [
        unit::CLAIMS,
        completion::CLAIMS,
        timeouts::CLAIMS,
        completion::MODEL_CLAIMS,
        rate::CLAIMS,
        today::CLAIMS,
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
            (None, _) => FigureClaimVerdict::NotRun,
            (Some(found), Expected::Holds) if found.holds => FigureClaimVerdict::Holds,
            (Some(found), Expected::Differs(why)) if !found.holds => FigureClaimVerdict::Differs(why),
            // With few seeds there may be no flow that differs.
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

/// A value in the form `0.59 s`.
fn seconds(value: f64) -> String {
    format!("{value:.2} s")
}

/// A fraction in the form `12 %`.
fn percent(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}
