//! The variants of a run that `edge-failover` and `edge-rate` compare, and a parser that their options share.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::run::value_name;

/// A variant of a run, by its edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EdgeVariant {
    /// Edges with the tested mechanism: local recovery or rate control.
    With,
    /// Edges without the tested mechanism.
    Without,
    /// No edges. The lab changes the routes when the failover time has passed.
    #[value(skip)]
    Baseline,
}

impl EdgeVariant {
    /// The variants that are played with these options, in order.
    pub fn of_run(baseline: bool, only: Option<Self>) -> Vec<Self> {
        match (baseline, only) {
            (true, _) => vec![Self::Baseline],
            (false, Some(only)) => vec![only],
            (false, None) => vec![Self::With, Self::Without],
        }
    }

    /// The options that select only this variant.
    pub fn selection(self) -> Vec<(&'static str, String)> {
        match self {
            Self::Baseline => Vec::new(),
            Self::With | Self::Without => vec![("only", value_name(&self))],
        }
    }
}

/// Reads a time such as `3s` or `500ms`.
///
/// # Errors
/// If `text` is no such time. The error is a message for the user.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time from 40ms to 60s, such as 500ms or 3s".to_owned();
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => return Err(expected()),
    };
    let seconds = number.parse::<f64>().map_err(|_| expected())? * unit;
    if !(0.04..=60.0).contains(&seconds) {
        return Err(expected());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("3s"), Ok(Duration::from_secs(3)));
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_time("0.5s"), Ok(Duration::from_millis(500)));
        for wrong in ["3", "s", "1ms", "61s", "NaNs"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
