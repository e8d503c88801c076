//! The limit for the stalls of busy connections. A stall must be at most the sum of the detection, one round trip, the longest wait without
//! a fault, and a small allowance. After a claim, the limit also includes the wait for a retransmission timeout. The limit holds for
//! takeovers, and for claims after a living wire gives way.

use serde::Serialize;

use super::durations::Durations;
use crate::client::Spread;

/// The allowance: time in milliseconds that a takeover or a claim may add.
const ALLOWANCE_MS: f64 = 20.0;
/// The same for a change of roles by the operator's order. It may add three round trips, too.
const PLANNED_MS: f64 = 5.0;
const PLANNED_RTTS: f64 = 3.0;

/// Linux's shortest retransmission timeout (TCP_RTO_MIN), in milliseconds. Before a claim, the broken path loses the segments in flight.
/// Their sender, client or server, retransmits them only after a timeout (docs/KERNEL.md).
const RETRANSMISSION_MS: f64 = 200.0;

/// The longest wait in milliseconds from the end of the detection until a sender's next timeout. Each timeout is twice
/// as long as the one before (RFC 6298 §5.5). If one timeout ends `t` ms after the loss, the next one ends
/// `2 * t + 200` ms after the loss. With `t <= detection_ms`, that is at most `detection_ms + 200` ms after the
/// detection.
fn until_next_timeout(detection_ms: f64) -> f64 {
    if detection_ms < RETRANSMISSION_MS {
        RETRANSMISSION_MS
    } else {
        detection_ms + RETRANSMISSION_MS
    }
}

/// The limit, and the stalls that were measured. All times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BusyStall {
    /// 99th percentile of (stall − detection), over all connections. A run's detection ends when a takeover is declared or a claim
    /// begins.
    pub beyond_detection_p99_ms: f64,
    /// 99th percentile of each connection's longest wait without a fault. The measurement begins when all clients are connected, and
    /// ends 100 ms before the fault.
    pub fault_free_gap_p99_ms: f64,
    /// The emulated round trip. 0 without an emulator, because the cables' own round trip is only about 0.1 ms.
    pub rtt_ms: f64,
    /// After a claim, the longest wait for the next retransmission timeout; 0 after a takeover.
    pub retransmission_ms: f64,
    /// The sum of `fault_free_gap_p99_ms`, `rtt_ms`, `retransmission_ms` and 20 ms. After an order of the operator: `fault_free_gap_p99_ms`,
    /// three times `rtt_ms`, and 5 ms.
    pub limit_ms: f64,
    /// Whether `beyond_detection_p99_ms` is at most `limit_ms`.
    pub kept: bool,
}

impl BusyStall {
    /// The limit and the stalls, measured in `durations`, with a round trip of `rtt_ms`. `None` if `durations` has no takeover or claim
    /// for which the limit holds.
    pub fn of(durations: &Durations, rtt_ms: f64) -> Option<Self> {
        let p99 = |values: &[f64]| Some(Spread::of(values.iter().copied())?.p99);
        let beyond_detection_p99_ms = p99(&durations.beyond_detection)?;
        let fault_free_gap_p99_ms = p99(&durations.fault_free_gap)?;
        let retransmission_ms = if durations.is_lossy {
            until_next_timeout(p99(&durations.detection)?)
        } else {
            0.0
        };
        let limit_ms = if durations.is_planned {
            fault_free_gap_p99_ms + PLANNED_RTTS * rtt_ms + PLANNED_MS
        } else {
            fault_free_gap_p99_ms + rtt_ms + retransmission_ms + ALLOWANCE_MS
        };
        Some(Self {
            beyond_detection_p99_ms,
            fault_free_gap_p99_ms,
            rtt_ms,
            retransmission_ms,
            limit_ms,
            kept: beyond_detection_p99_ms <= limit_ms,
        })
    }

    /// One line of text for a person.
    pub fn line(&self) -> String {
        format!(
            "busy, p99: stall beyond detection {:.2} ms, limit {:.2} ms (fault-free gap {:.2}, RTT {:.1}, timeout {:.0}): {}",
            self.beyond_detection_p99_ms,
            self.limit_ms,
            self.fault_free_gap_p99_ms,
            self.rtt_ms,
            self.retransmission_ms,
            if self.kept { "kept" } else { "NOT KEPT" },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_about_what_a_takeover_adds() {
        let mut durations = Durations {
            fault_free_gap: vec![5.0; 100],
            beyond_detection: vec![45.0; 100],
            ..Durations::default()
        };
        let at_bound = BusyStall::of(&durations, 20.0).unwrap();
        assert_eq!((at_bound.limit_ms, at_bound.kept), (45.0, true));
        assert!(!BusyStall::of(&durations, 19.0).unwrap().kept);
        durations.beyond_detection[0] = 1000.0; // One connection in a hundred.
        assert!(BusyStall::of(&durations, 20.0).unwrap().kept);
        assert!(!BusyStall::of(&durations, 0.0).unwrap().kept);
        durations.is_lossy = true; // a claim
        for (detection, limit) in [(60.0, 225.0), (340.0, 565.0)] {
            durations.detection = vec![detection; 100];
            let claim = BusyStall::of(&durations, 0.0).unwrap();
            assert_eq!((claim.limit_ms, claim.kept), (limit, true));
        }
        durations.is_planned = true;
        let planned = BusyStall::of(&durations, 10.0).unwrap();
        assert_eq!((planned.limit_ms, planned.kept), (40.0, false));
        durations.beyond_detection.clear();
        assert_eq!(BusyStall::of(&durations, 20.0), None);
    }
}
