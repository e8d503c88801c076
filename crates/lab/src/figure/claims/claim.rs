//! A claim about a figure, and its result.

use crate::figure::results::Results;

/// Value of [`FigureClaim::paper`] for our own claims.
pub const OURS: &str = "ours";

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
    /// What the result is computed from.
    pub evidence: ClaimEvidence,
    /// The expected verdict.
    pub expected: Expected,
    /// Computes the result from the runs. `None` if they are missing.
    pub find: fn(&Results) -> Option<FigureClaimResult>,
}

/// What a result is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimEvidence {
    /// Simulated runs.
    Simulation,
    /// Simulated runs, compared with the thesis' closed forms.
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
    /// The result of another program, if there is one: of ns-2, or of the simulator beside the kernel.
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
    /// Whether this is a claim of the thesis, not one of ours.
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
