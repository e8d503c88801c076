//! Measured values and their targets.

use std::fmt;

use serde::Serialize;

/// A measured value, and the bound that it should keep.
#[derive(Clone, Debug)]
pub struct BenchTarget {
    /// Name of the value, with its unit.
    pub name: &'static str,
    /// The measured value.
    pub value: f64,
    /// The bound.
    pub bound: Bound,
}

/// A target and whether its value keeps the bound.
#[derive(Clone, Debug, Serialize)]
pub struct BenchVerdict {
    name: &'static str,
    value: f64,
    #[serde(flatten)]
    bound: Bound,
    holds: bool,
}

/// The allowed range of a value.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// At this bound or above.
    AtLeast(f64),
    /// At this bound or below.
    AtMost(f64),
}

impl BenchTarget {
    /// Whether the value keeps the bound. NaN does not.
    pub fn holds(&self) -> bool {
        match self.bound {
            Bound::AtLeast(bound) => self.value >= bound,
            Bound::AtMost(bound) => self.value <= bound,
        }
    }
}

impl From<&BenchTarget> for BenchVerdict {
    fn from(target: &BenchTarget) -> Self {
        Self {
            name: target.name,
            value: target.value,
            bound: target.bound,
            holds: target.holds(),
        }
    }
}

impl fmt::Display for BenchTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (relation, bound) = match self.bound {
            Bound::AtLeast(bound) => ("≥", bound),
            Bound::AtMost(bound) => ("≤", bound),
        };
        write!(
            f,
            "{:<48}{:>10.3}  (target {relation} {bound})",
            self.name, self.value
        )
    }
}

/// The missed targets, as text.
pub fn missed(targets: &[BenchTarget]) -> Vec<String> {
    let broken = targets.iter().filter(|target| !target.holds());
    broken.map(ToString::to_string).collect()
}

/// Prints each target on a line of its own, with whether it was met.
pub fn print(targets: &[BenchTarget]) {
    for target in targets {
        let outcome = if target.holds() { "met   " } else { "MISSED" };
        say!("  {outcome} {target}");
    }
}

/// The middle value, or the mean of the two middle values. NaN if there are no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_missed() {
        let target = |value, bound| BenchTarget {
            name: "x",
            value,
            bound,
        };
        let all = [
            target(f64::NAN, Bound::AtLeast(0.0)),
            target(f64::NAN, Bound::AtMost(0.0)),
            target(1.0, Bound::AtLeast(1.0)),
            target(1.1, Bound::AtMost(1.0)),
        ];
        assert_eq!(missed(&all).len(), 3);
        assert!(median(Vec::new()).is_nan());
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
