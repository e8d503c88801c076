//! The time that a failover adds to a flow's completion time (HALR thesis, 5.1, Figure 9).
//!
//! A sender whose packets are lost waits T, 2T, 4T, …: its timer fires at (2^x − 1)·T after the packet that was not acknowledged.
//! The first retransmission at or after the end of the failover gets through. Between the end and that retransmission the path
//! works but the flow does not use it. This is the unused flow time, a sawtooth over the down time.

use crate::failover::FlowRecovery;

/// Number of timeouts in a row until a timeout comes at or after the end of the failover: the smallest x with (2^x − 1)·T ≥ down time.
///
/// `down_s` is the down time of this flow, seconds: from the first packet without an acknowledgement until the failover ends.
/// `timeout_s` is the first timeout T, seconds. A flow without down time has no timeout.
pub fn timeouts(down_s: f64, timeout_s: f64) -> u32 {
    assert!(
        timeout_s.is_finite() && timeout_s > 0.0,
        "a timeout is positive: {timeout_s}"
    );
    assert!(down_s.is_finite(), "a failover ends: {down_s}");
    (0..)
        .find(|&x| series_s(x, timeout_s) >= down_s)
        .expect("doubling ends")
}

/// The sum of x timeouts, each twice the previous one: (2^x − 1)·T, seconds. The upper bound of a timeout (60 s or more) is not
/// modelled, because the failovers of the thesis (at most 12 s) do not reach it.
pub fn series_s(x: u32, timeout_s: f64) -> f64 {
    (f64::from(x).exp2() - 1.0) * timeout_s
}

/// Time that the failover adds to the completion time, seconds: the sum of the timeouts, or with local recovery the down time.
pub fn additional_delay_s(down_s: f64, timeout_s: f64, recovery: FlowRecovery) -> f64 {
    match recovery {
        FlowRecovery::Timeout => series_s(timeouts(down_s, timeout_s), timeout_s),
        FlowRecovery::Local => down_s.max(0.0),
    }
}

/// The time during which the path works again and the flow still waits, seconds (the sawtooth of Figure 9).
pub fn unused_flow_time_s(down_s: f64, timeout_s: f64, recovery: FlowRecovery) -> f64 {
    additional_delay_s(down_s, timeout_s, recovery) - down_s.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Thesis, 5.1: with T = 1.5 s, the sawtooth jumps after down times of 0, 1.5, 4.5 and 10.5 s.
    #[test]
    fn the_sawtooth_has_its_teeth_where_the_timer_fires() {
        for (down_s, expected) in [
            (0.0, 0),
            (0.01, 1),
            (1.5, 1),
            (1.51, 2),
            (4.5, 2),
            (4.51, 3),
            (10.5, 3),
            (10.51, 4),
        ] {
            assert_eq!(timeouts(down_s, 1.5), expected, "down for {down_s} s");
        }
        assert_eq!(unused_flow_time_s(1.5, 1.5, FlowRecovery::Timeout), 0.0);
        assert!((unused_flow_time_s(1.6, 1.5, FlowRecovery::Timeout) - 2.9).abs() < 1e-12);
    }

    /// Thesis, 7.2.2, Figures 13 and 14: SYN timeouts of 3 s delay a flow by 3 s or by 9 s.
    #[test]
    fn lost_syns_wait_for_3_or_9_seconds() {
        assert_eq!(additional_delay_s(0.5, 3.0, FlowRecovery::Timeout), 3.0);
        assert_eq!(additional_delay_s(3.0, 3.0, FlowRecovery::Timeout), 3.0);
        assert_eq!(additional_delay_s(3.1, 3.0, FlowRecovery::Timeout), 9.0);
        assert_eq!(additional_delay_s(5.0, 3.0, FlowRecovery::Timeout), 9.0);
    }

    /// Thesis, 7.2.2, Figure 14: 40 % of the flows that arrive during a failover of 5 s wait for 9 s, the others for 3 s.
    #[test]
    fn of_a_failover_of_5_seconds_40_percent_wait_for_9_seconds() {
        let arrivals = 5000;
        let down_s = |arrival: i32| 5.0 * (1.0 - f64::from(arrival) / f64::from(arrivals));
        let delayed =
            (0..arrivals).map(|arrival| additional_delay_s(down_s(arrival), 3.0, FlowRecovery::Timeout));
        let (nine, three): (Vec<f64>, Vec<f64>) = delayed.partition(|delay_s| *delay_s == 9.0);
        assert_eq!(nine.len(), 2000);
        assert!(three.iter().all(|delay_s| *delay_s == 3.0));
    }

    proptest! {
        #[test]
        fn the_series_is_the_least_that_covers_the_down_time(down_s in 0.001..100.0, timeout_s in 0.1..5.0) {
            let x = timeouts(down_s, timeout_s);
            prop_assert!(series_s(x, timeout_s) >= down_s);
            prop_assert!(series_s(x - 1, timeout_s) < down_s);
        }

        /// The unused flow time is never longer than the last timeout, and never negative.
        #[test]
        fn unused_flow_time_is_less_than_the_last_timeout(down_s in 0.001..100.0, timeout_s in 0.1..5.0) {
            let last_s = f64::from(timeouts(down_s, timeout_s) - 1).exp2() * timeout_s;
            let unused_s = unused_flow_time_s(down_s, timeout_s, FlowRecovery::Timeout);
            prop_assert!((0.0..last_s + 1e-9).contains(&unused_s), "{unused_s} of {last_s}");
            prop_assert_eq!(unused_flow_time_s(down_s, timeout_s, FlowRecovery::Local), 0.0);
        }

        #[test]
        fn a_longer_failover_never_delays_less(a_s in 0.0..50.0, b_s in 0.0..50.0, timeout_s in 0.1..5.0) {
            let (shorter_s, longer_s) = if a_s < b_s { (a_s, b_s) } else { (b_s, a_s) };
            for recovery in [FlowRecovery::Timeout, FlowRecovery::Local] {
                let delay = |down_s| additional_delay_s(down_s, timeout_s, recovery);
                prop_assert!(delay(shorter_s) <= delay(longer_s));
            }
        }
    }
}
