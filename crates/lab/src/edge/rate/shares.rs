//! The shares of flows, as the capture at the receivers shows them.

use std::time::Duration;

use serde::Serialize;

use crate::edge::flows::TransferDirection;
use crate::edge::trace::{EdgeTrace, TO_CLIENT, TO_SERVER};

/// Length of a bin of [`FlowShares::jain_of_bins`].
const BIN: Duration = Duration::from_millis(500);

/// The flows' shares of the received bytes in a span of time. Only flows that began before the span are included.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct FlowShares {
    /// Number of included flows.
    pub flows: usize,
    /// Jain's index of the bytes that each flow received in the whole span.
    pub jain: f64,
    /// Mean, over all half seconds, of Jain's index of the bytes that each flow received in the half second.
    pub jain_of_bins: f64,
    /// The smallest and the largest number of bytes that a flow received, divided by an equal share.
    pub least_and_most: [f64; 2],
}

impl FlowShares {
    /// The shares from `from_ns` to `to_ns` of the captures' clock.
    pub fn of(trace: &EdgeTrace, direction: TransferDirection, (from_ns, to_ns): (u64, u64)) -> Self {
        let way = match direction {
            TransferDirection::Upload => TO_SERVER,
            TransferDirection::Download => TO_CLIENT,
        };
        let bin_ns = BIN.as_nanos() as u64;
        let bins = (to_ns.saturating_sub(from_ns) / bin_ns) as usize;
        let mut rows: Vec<Vec<f64>> = Vec::new();
        for flow in &trace.flows {
            let mut row = vec![0.0; bins];
            for &(at_ns, bytes) in &flow.directions[way].news {
                let Some(after) = at_ns.checked_sub(from_ns) else {
                    continue;
                };
                if let Some(slot) = row.get_mut((after / bin_ns) as usize) {
                    *slot += bytes as f64;
                }
            }
            // A flow that begins later has no share. A flow that receives nothing for a while has a low share.
            if flow.opened_ns < from_ns {
                rows.push(row);
            }
        }
        let totals: Vec<f64> = rows.iter().map(|row| row.iter().sum()).collect();
        let equal = totals.iter().sum::<f64>() / totals.len() as f64;
        let of_bin = |bin: usize| jain(rows.iter().map(|row| row[bin]));
        Self {
            flows: rows.len(),
            jain: jain(totals.iter().copied()),
            jain_of_bins: (0..bins).map(of_bin).sum::<f64>() / bins as f64,
            least_and_most: [
                totals.iter().copied().fold(f64::INFINITY, f64::min) / equal,
                totals.iter().copied().fold(0.0, f64::max) / equal,
            ],
        }
    }
}

/// Jain's fairness index: 1 if all values are equal, 1/n if all but one are zero.
fn jain(values: impl Iterator<Item = f64>) -> f64 {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for value in values {
        count += 1.0;
        sum += value;
        squares += value * value;
    }
    if squares == 0.0 {
        return 0.0;
    }
    sum * sum / (count * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_shares_are_fair() {
        assert!((jain([2.0; 7].into_iter()) - 1.0).abs() < 1e-12);
        assert!((jain([4.0, 0.0, 0.0, 0.0].into_iter()) - 0.25).abs() < 1e-12);
        assert!(jain([0.0; 3].into_iter()).abs() < 1e-12);
    }
}
