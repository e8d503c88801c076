//! SCTP failover (Caro, Amer, Stewart, "Rethinking End-to-End Failover with Transport Layer Multihoming", 2006): how long failure detection
//! takes (section II), and by how many packets a sender with PMR = 0 is ahead of a sender with PMR = 1 (section III.7, Eq. 1–10). PMR is
//! Path.Max.Retrans: a path has failed after PMR + 1 timeouts in a row. `docs/model-sctp.md` says which printed equations this module
//! interprets differently, and why.

/// Factor by which the window grows per round trip in slow start: 1 + 1/b, with one ACK for b = 2 packets.
const GROWTH: f64 = 1.5;

/// Time until a path counts as failed, seconds: PMR + 1 timeouts in a row (section II). The first timeout takes `first_rto_s`. Each later
/// timeout takes twice as long as the previous one, but at most `max_rto_s`.
pub fn failure_detection_s(path_max_retrans: u32, first_rto_s: f64, max_rto_s: f64) -> f64 {
    let timeouts =
        (0..=path_max_retrans).map(|doubled| (first_rto_s * f64::from(doubled).exp2()).min(max_rto_s));
    timeouts.sum()
}

/// Number of round trips on the alternate path until the heartbeat on the primary is answered, in scenario 3 (Eq. 1).
/// Scenario 3: after the timeout, the packet to the primary is lost and the packet to the alternate arrives.
///
/// `second_rto_s` (RTO₁²) is how long the primary's second timeout in a row takes, at least 2 s. All times are in seconds.
pub fn scenario_3_round_trips(second_rto_s: f64, primary_rtt_s: f64, alternate_rtt_s: f64) -> f64 {
    ((second_rto_s + primary_rtt_s) / alternate_rtt_s).max(1.0)
}

/// Number of round trips on the primary path during which a sender with PMR = 1 sends no new data, in scenario 4, by Eq. 10 (an upper
/// bound). Scenario 4: both packets after the timeout are lost.
///
/// `second_rto_s` (RTO₁²) is how long the primary's second timeout in a row takes, at least 2 s. `alternate_rto_s` (RTO₂¹) is how long the
/// alternate's first timeout takes, at least 1 s. All times are in seconds.
pub fn scenario_4_round_trips(second_rto_s: f64, alternate_rto_s: f64, primary_rtt_s: f64) -> f64 {
    ((second_rto_s + alternate_rto_s) / primary_rtt_s).max(1.0)
}

/// Number of the `round_trips` that are in slow start, which ends when the window exceeds `ssthresh` packets (Eq. 3, from Eq. 2).
pub fn slow_start_round_trips(round_trips: f64, ssthresh: f64) -> f64 {
    assert!(ssthresh >= 1.0, "ssthresh is at least one packet: {ssthresh}");
    round_trips.min(1.0 + ssthresh.ln() / GROWTH.ln())
}

/// Packets sent in `round_trips` round trips of slow start (Eq. 4).
pub fn slow_start_packets(round_trips: f64) -> f64 {
    (GROWTH.powf(round_trips) - 1.0) / (GROWTH - 1.0)
}

/// Packets sent in `round_trips` round trips of congestion avoidance. The window begins with `ssthresh` + 1 packets and grows by
/// one packet per round trip (Eq. 6–8).
pub fn congestion_avoidance_packets(round_trips: f64, ssthresh: f64) -> f64 {
    round_trips * ssthresh + (round_trips + round_trips * round_trips) / 2.0
}

/// Packets (d) that PMR = 0 sends in `round_trips` round trips if no packet is lost (Eq. 9).
pub fn packets(round_trips: f64, ssthresh: f64) -> f64 {
    let slow_start = slow_start_round_trips(round_trips, ssthresh);
    slow_start_packets(slow_start) + congestion_avoidance_packets(round_trips - slow_start, ssthresh)
}

/// Maximum number of packets by which PMR = 0 is ahead of PMR = 1: d − 1, because PMR = 1 sends one packet in the same time
/// (section III.7.3).
pub fn packets_gained(round_trips: f64, ssthresh: f64) -> f64 {
    packets(round_trips, ssthresh) - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The initial ssthresh of the paper's simulations, packets: 65,536 bytes in packets of 1,500 bytes.
    const SSTHRESH: f64 = 65_536.0 / 1_500.0;

    /// Section II: with the defaults (PMR 5, RTO 1 to 60 s), detection takes at least 63 s and at most 360 s.
    #[test]
    fn the_default_detects_in_63_to_360_seconds() {
        assert_eq!(failure_detection_s(5, 1.0, 60.0), 63.0);
        assert_eq!(failure_detection_s(5, 60.0, 60.0), 360.0);
    }

    /// Section III.2: PMR = 6 takes 123 s, PMR = 3 takes 15 s.
    #[test]
    fn robust_thresholds_take_123_and_15_seconds() {
        assert_eq!(failure_detection_s(6, 1.0, 60.0), 123.0);
        assert_eq!(failure_detection_s(3, 1.0, 60.0), 15.0);
    }

    /// Section III.7.3: the second timeout in a row takes at least 2 s. So with 90 ms on both paths, PMR = 0 uses 23 round trips
    /// of the alternate. With 1,040 ms on the alternate, PMR = 0 still uses two round trips and gains.
    #[test]
    fn scenario_3_gains_on_a_fast_and_on_a_slow_alternate() {
        let equal = scenario_3_round_trips(2.0, 0.09, 0.09);
        assert!((equal - 23.22).abs() < 0.01, "{equal}");
        let slow = scenario_3_round_trips(2.0, 0.09, 1.04);
        assert!((slow - 2.01).abs() < 0.01, "{slow}");
        assert!(packets_gained(slow, SSTHRESH) > 1.0);
        assert!(packets_gained(equal, SSTHRESH) > packets_gained(slow, SSTHRESH));
    }

    /// Section III.7.4: scenario 4 counts the primary's round trips. RTOs of 2 s and 1 s make 33 round trips of 90 ms.
    #[test]
    fn scenario_4_counts_the_primarys_round_trips() {
        let round_trips = scenario_4_round_trips(2.0, 1.0, 0.09);
        assert!((round_trips - 33.33).abs() < 0.01, "{round_trips}");
        assert!(packets_gained(round_trips, SSTHRESH) > 0.0);
    }

    /// Section III.7.3: if r (round trips) is 1, then d (packets) is 1. If a path's round trip takes longer than the wait, r is 1.
    #[test]
    fn one_round_trip_is_one_packet() {
        assert_eq!(scenario_3_round_trips(2.0, 0.09, 5.0), 1.0);
        assert_eq!(scenario_4_round_trips(2.0, 1.0, 5.0), 1.0);
        assert_eq!(packets(1.0, SSTHRESH), 1.0);
        assert_eq!(packets_gained(1.0, SSTHRESH), 0.0);
    }

    /// Eq. 4: 1, 1.5, 2.25 packets in the first three round trips.
    #[test]
    fn slow_start_sums_its_rounds() {
        assert!((slow_start_packets(3.0) - 4.75).abs() < 1e-12);
    }

    /// Eq. 8: windows of 11, 12 and 13 after an ssthresh of 10.
    #[test]
    fn congestion_avoidance_sums_its_rounds() {
        assert_eq!(congestion_avoidance_packets(3.0, 10.0), 36.0);
    }

    proptest! {
        /// Section III.7.3: d ≥ 1, and d > 1 when r > 1.
        #[test]
        fn an_aggressive_threshold_never_loses(r in 1.0..200.0, more in 0.01..5.0, ssthresh in 1.0..100.0) {
            prop_assert!(packets_gained(r, ssthresh) >= 0.0);
            prop_assert!(packets_gained(r + more, ssthresh) > packets_gained(r, ssthresh));
        }

        /// The estimate has no step where slow start ends.
        #[test]
        fn the_phases_join(ssthresh in 1.0..100.0) {
            let end = slow_start_round_trips(f64::MAX, ssthresh);
            let step = packets(end + 1e-9, ssthresh) - packets(end, ssthresh);
            prop_assert!(step < 1e-6, "{step}");
        }
    }
}
