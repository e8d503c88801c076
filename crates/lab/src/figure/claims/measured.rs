//! The values that the claims about measured papers compare.

use super::claim::{ClaimEvidence, Expected, FigureClaim, FigureClaimResult};
use crate::bench::target::median;
use crate::figure::results::Results;
use crate::figure::rows::Rows;

/// The measurements of one scenario.
#[derive(Clone, Copy)]
pub struct MeasuredValues<'a>(&'a Rows);

impl<'a> MeasuredValues<'a> {
    /// The measurements of the scenario named `scenario`. `None` if there are none.
    pub fn of(results: &'a Results, scenario: &str) -> Option<Self> {
        let (_, rows) = results.scenarios.get(scenario)?;
        (!rows.measurements.is_empty()).then_some(Self(rows))
    }

    /// All values of one quantity and variant, in the order of the rounds.
    pub fn all(self, what: &str, variant: &str) -> Option<Vec<f64>> {
        let of = self.0.measurements.iter();
        let of = of.filter(|row| row.what == what && row.variant == variant);
        let values: Vec<_> = of.map(|row| row.value).collect();
        (!values.is_empty()).then_some(values)
    }

    /// Their median.
    pub fn middle(self, what: &str, variant: &str) -> Option<f64> {
        self.all(what, variant).map(median)
    }

    /// The median of one variant, divided by that of another one.
    pub fn ratio(self, what: &str, variant: &str, other: &str) -> Option<f64> {
        Some(self.middle(what, variant)? / self.middle(what, other)?)
    }
}

/// A claim that measurements on the kernel decide.
pub(super) const fn claim(
    id: &'static str,
    section: &'static str,
    (statement, paper): (&'static str, &'static str),
    figure: &'static str,
    expected: Expected,
    find: fn(&Results) -> Option<FigureClaimResult>,
) -> FigureClaim {
    FigureClaim {
        id,
        section,
        statement,
        paper,
        figure,
        evidence: ClaimEvidence::Kernel,
        expected,
        find,
    }
}

/// A claim that no measurement here can answer.
pub(super) const fn unmeasured(
    id: &'static str,
    section: &'static str,
    what: (&'static str, &'static str),
    figure: &'static str,
    why: &'static str,
) -> FigureClaim {
    claim(id, section, what, figure, Expected::NotMeasured(why), |_| None)
}
