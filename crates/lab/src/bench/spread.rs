//! A distribution of latencies.

use serde::Serialize;

use super::target::median;

/// A distribution, as Table 1 of the FT-TCP paper gives it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LatencySpread {
    count: usize,
    minimum: f64,
    mean: f64,
    pub median: f64,
    maximum: f64,
    standard_deviation: f64,
}

impl LatencySpread {
    /// The distribution of these values.
    pub fn of(values: &[f64]) -> Self {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Self {
            count,
            minimum: values.iter().copied().fold(f64::INFINITY, f64::min),
            mean,
            median: median(values.to_vec()),
            maximum: values.iter().copied().fold(0.0, f64::max),
            standard_deviation: (squares / (count as f64 - 1.0)).sqrt(),
        }
    }

    /// The columns of the paper's table, and the median.
    pub fn figures(&self) -> [(&'static str, f64); 5] {
        [
            ("minimum", self.minimum),
            ("mean", self.mean),
            ("median", self.median),
            ("maximum", self.maximum),
            ("deviation", self.standard_deviation),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_that_of_its_values() {
        let spread = LatencySpread::of(&[1.0, 2.0, 6.0]);
        assert_eq!(
            (spread.minimum, spread.mean, spread.median, spread.maximum),
            (1.0, 3.0, 2.0, 6.0)
        );
        assert!((spread.standard_deviation - 7_f64.sqrt()).abs() < 1e-9);
    }
}
