//! A claim about a figure, and its result.

use crate::figure::results::Results;

/// Value of [`FigureClaim::paper`] for our own claims.
pub const OURS: &str = "ours";

/// A claim of the HALR thesis or of one of the papers, or a claim of our own.
pub struct FigureClaim {
    /// The claim's name in the table of claims: the figure's number and a letter.
    pub id: &'static str,
    /// The section of the thesis or of the paper.
    pub section: &'static str,
    /// The claim in our words.
    pub statement: &'static str,
    /// The number that the thesis or the paper gives. Empty if no number is given. [`OURS`] for our own claims.
    pub paper: &'static str,
    /// The figure that shows the claim.
    pub figure: &'static str,
    /// The kind of runs from which the result is computed.
    pub evidence: ClaimEvidence,
    /// The expected verdict.
    pub expected: Expected,
    /// Computes the result from the runs. `None` if the necessary runs are missing.
    pub find: fn(&Results) -> Option<FigureClaimResult>,
}

/// The kind of runs from which a result is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimEvidence {
    /// Simulated runs.
    Simulation,
    /// Simulated runs, compared with the closed-form models of the thesis.
    Model,
    /// Runs on this machine's kernel.
    Kernel,
}

impl ClaimEvidence {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Simulation, Self::Model, Self::Kernel];

    /// The kind's name in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Simulation => "by simulation",
            Self::Model => "by a model against simulation",
            Self::Kernel => "on the kernel",
        }
    }
}

/// The expected verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The claim holds.
    Holds,
    /// The claim does not hold, for this reason.
    Differs(&'static str),
    /// The claim holds for flows that arrive at the thesis' arrival times, but not for flows that arrive between these times, for this
    /// reason.
    DiffersBetween(&'static str),
    /// Nothing here measures the claim, for this reason.
    NotMeasured(&'static str),
}

/// The runs' result for a claim.
#[derive(Clone, Debug)]
pub struct FigureClaimResult {
    /// Our result, as text.
    pub here: String,
    /// A result for comparison, as text, if there is one. It comes from ns-2, or from the simulator if the claim is judged on the kernel.
    pub beside: Option<String>,
    /// Whether the claim's rule holds for all flows.
    pub holds: bool,
    /// Whether the rule holds for the first seed's flows, which arrive at the thesis' times.
    pub holds_first: bool,
}

impl FigureClaimResult {
    pub fn new(here: impl Into<String>, holds: bool) -> Self {
        Self {
            here: here.into(),
            beside: None,
            holds,
            holds_first: holds,
        }
    }

    pub fn first(self, holds_first: bool) -> Self {
        Self { holds_first, ..self }
    }

    pub fn beside(self, other: impl Into<String>) -> Self {
        Self {
            beside: Some(other.into()),
            ..self
        }
    }
}

impl FigureClaim {
    /// Whether this is a claim of the thesis or of the paper, not a claim of our own.
    pub fn is_of_thesis(&self) -> bool {
        self.paper != OURS
    }
}

/// A value in the form `0.59 s`.
pub fn seconds(value: f64) -> String {
    format!("{value:.2} s")
}

/// A fraction in the form `12 %`.
pub fn percent(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}
