//! The thesis' sentences that can be checked, one row each, and what is found here; and ours, where the thesis' figures are drawn again
//! for today's hosts.

mod completion;
mod rate;
mod timeouts;
mod today;
mod unit;

use std::fmt;

use super::results::Results;

/// A sentence of the thesis.
pub struct Claim {
    /// Its name in the table: figure, dot, letter.
    pub id: &'static str,
    /// Its section.
    pub section: &'static str,
    /// What it says, in our words.
    pub statement: &'static str,
    /// The number it states, if it states one.
    pub paper: &'static str,
    /// The figure that shows it.
    pub figure: &'static str,
    /// What we know of it.
    pub expected: Expected,
    /// Computes it from the runs; nothing if they are not there.
    pub find: fn(&Results) -> Option<Found>,
}

/// Whether a claim is known to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It does.
    Holds,
    /// It does not, and why.
    Differs(&'static str),
    /// It does for the thesis' arrivals; flows that arrive between them find otherwise, and why.
    DiffersBetween(&'static str),
}

/// What the runs say about a claim.
#[derive(Clone, Debug)]
pub struct Found {
    /// Our number.
    pub here: String,
    /// ns-2's, if it has one.
    pub ns2: Option<String>,
    /// By the claim's rule.
    pub holds: bool,
    /// The same, of the first seed's flows alone, which arrive as the thesis' do.
    pub holds_first: bool,
}

impl Found {
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

/// How a claim came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As the thesis says.
    Holds,
    /// Not as the thesis says, for this reason.
    Differs(&'static str),
    /// Other than what is known of it.
    Surprising,
    /// It needs runs that were not made.
    NotRun,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds => write!(f, "holds"),
            Self::Differs(why) => write!(f, "differs ({why})"),
            Self::Surprising => write!(f, "SURPRISING: not what is known of it"),
            Self::NotRun => write!(f, "not run"),
        }
    }
}

impl Claim {
    /// Whether the thesis says so, not we.
    pub fn is_of_thesis(&self) -> bool {
        self.paper != today::OURS
    }
}

/// A claim, what was found, and how it came out.
pub struct Judged {
    /// The claim.
    pub claim: &'static Claim,
    /// What the runs say.
    pub found: Option<Found>,
    /// How it came out.
    pub verdict: Verdict,
}

/// All claims in the order of the thesis, and ours about today's hosts.
pub fn all() -> impl Iterator<Item = &'static Claim> {
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
            (None, _) => Verdict::NotRun,
            (Some(found), Expected::Holds) if found.holds => Verdict::Holds,
            (Some(found), Expected::Differs(why)) if !found.holds => Verdict::Differs(why),
            // Few seeds may have no such flow.
            (Some(found), Expected::DiffersBetween(_)) if found.holds && found.holds_first => Verdict::Holds,
            (Some(found), Expected::DiffersBetween(why)) if found.holds_first => Verdict::Differs(why),
            (Some(_), _) => Verdict::Surprising,
        };
        Judged {
            claim,
            found,
            verdict,
        }
    })
    .collect()
}

/// `0.592 s`.
fn seconds(value: f64) -> String {
    format!("{value:.2} s")
}

/// `12 %`.
fn percent(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}
