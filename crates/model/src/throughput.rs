//! The steady-state throughput of a TCP-like sender under random loss: Padhye, Firoiu, Towsley, Kurose, "Modeling TCP Throughput",
//! SIGCOMM 1998. The SCTP failover paper (IV.2) suggests a shorter rule for comparing paths. This module has both.

/// A path as its sender sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TcpPath {
    /// Round-trip time, seconds.
    pub round_trip_s: f64,
    /// Probability that a packet is lost, given that no earlier packet of its round was lost (p).
    pub loss: f64,
    /// First retransmission timeout, seconds (T_0).
    pub timeout_s: f64,
    /// Maximum window, packets (W_max).
    pub max_window: f64,
    /// Packets that one ACK acknowledges (b).
    pub packets_per_ack: f64,
}

impl TcpPath {
    /// The SCTP paper's rule, packets per second: 1/RTT · √(3/4p). It is Padhye's 1/RTT · √(3/2bp) with b = 2. The rule considers
    /// neither timeouts nor W_max. Without loss the result is infinite.
    pub fn square_root_rule(&self) -> f64 {
        (3.0 / (4.0 * self.loss)).sqrt() / self.round_trip_s
    }

    /// The full formula: packets per second that arrive (Padhye et al., section II.C; Cardwell et al., Eq. 22). Without loss the
    /// result is W_max per round trip. The formula has one form for a window that loss limits, and one for a window that W_max
    /// limits. If b = 2, the two forms give the same value at the limit. If b = 1, the values differ by up to 4 %.
    pub fn throughput(&self) -> f64 {
        let Self {
            round_trip_s,
            loss: p,
            timeout_s,
            max_window,
            packets_per_ack: b,
        } = *self;
        assert!((0.0..1.0).contains(&p), "a loss is in [0, 1): {p}");
        if p == 0.0 {
            return max_window / round_trip_s;
        }
        let unlimited = unlimited_window(p, b);
        let window = unlimited.min(max_window);
        let rounds = if unlimited < max_window {
            b / 2.0 * window + 1.0
        } else {
            b / 8.0 * window + (1.0 - p) / (p * window) + 2.0
        };
        let by_timeout = timeout_probability(p, window);
        let packets = (1.0 - p) / p + window / 2.0 + by_timeout;
        packets / (round_trip_s * rounds + by_timeout * timeouts_s(p, timeout_s))
    }

    /// Whether a sender gains if it makes this alternate path its primary path, according to the SCTP paper's rule.
    pub fn beats(&self, primary: &Self) -> bool {
        self.square_root_rule() > primary.square_root_rule()
    }
}

/// `E[W]`: the window at the end of a congestion-avoidance period, packets, if only loss limits the window.
pub fn unlimited_window(p: f64, b: f64) -> f64 {
    let constant = (2.0 + b) / (3.0 * b);
    constant + (8.0 * (1.0 - p) / (3.0 * b * p) + constant * constant).sqrt()
}

/// Q̂(p, w): the probability that a loss in a window of w packets leads to a timeout, not to three duplicate ACKs.
pub fn timeout_probability(p: f64, window: f64) -> f64 {
    if window <= 3.0 {
        return 1.0;
    }
    if p == 0.0 {
        return 3.0 / window;
    }
    let arrives = 1.0 - p;
    let few = 1.0 - arrives.powi(3);
    let some = 1.0 - arrives.powf(window);
    (few * (1.0 + arrives.powi(3) * (1.0 - arrives.powf(window - 3.0))) / some).min(1.0)
}

/// `E[Z^TO]` = G(p)·T_0 / (1 − p): the expected length of a sequence of timeouts, seconds. The timeout doubles at most six times.
pub fn timeouts_s(p: f64, timeout_s: f64) -> f64 {
    let backed_off = (0..6).map(|doubled| f64::from(doubled).exp2() * p.powi(doubled + 1));
    timeout_s * (1.0 + backed_off.sum::<f64>()) / (1.0 - p)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRIMARY: TcpPath = TcpPath {
        round_trip_s: 0.09,
        loss: 0.05,
        timeout_s: 1.0,
        max_window: 45.0,
        packets_per_ack: 2.0,
    };
    const SLOW: TcpPath = TcpPath {
        round_trip_s: 0.21,
        ..PRIMARY
    };

    /// SCTP failover paper, IV.2: √(3/4p) / RTT.
    #[test]
    fn the_rule_is_the_papers() {
        let path = TcpPath {
            loss: 0.0075,
            round_trip_s: 0.1,
            ..PRIMARY
        };
        assert!((path.square_root_rule() - 100.0).abs() < 1e-9);
    }

    /// SCTP failover paper, IV.2: the primary path has a round trip of 90 ms and 5 % loss, the alternate path has 210 ms. Permanent
    /// failover gains if the alternate path's loss is 0 %, and also (by 23 %) if it is 1 %. At all higher losses, permanent failover is
    /// worse. The rule puts the limit at (90/210)²·5 % = 0.918 %. So the rule is right except at 1 %, where its two results differ by less
    /// than 5 %.
    #[test]
    fn where_a_slower_path_is_better() {
        let at = |loss| TcpPath { loss, ..SLOW };
        assert!(at(0.0).beats(&PRIMARY));
        assert!(at(0.0091).beats(&PRIMARY));
        assert!(!at(0.0092).beats(&PRIMARY));
        let tie = at(0.01).square_root_rule() / PRIMARY.square_root_rule();
        assert!((0.95..1.0).contains(&tie), "{tie}");
        for loss in [0.02, 0.03, 0.05, 0.08, 0.1] {
            assert!(!at(loss).beats(&PRIMARY), "alternate loss {loss}");
        }
    }

    /// The full formula includes timeouts, which last at least 1 s and are frequent at 5 % loss. So it puts the limit between 2 and 3 %.
    #[test]
    fn timeouts_favour_the_path_with_less_loss() {
        let ratio = |loss| TcpPath { loss, ..SLOW }.throughput() / PRIMARY.throughput();
        assert!(ratio(0.01) > 1.9 && ratio(0.02) > 1.2 && ratio(0.03) < 1.0);
    }

    /// SCTP failover paper, IV.1: with equal round trips the path with less loss is the better one.
    #[test]
    fn of_equal_paths_the_one_with_less_loss_is_better() {
        let cleaner = TcpPath {
            loss: 0.03,
            ..PRIMARY
        };
        assert!(cleaner.beats(&PRIMARY) && !PRIMARY.beats(&cleaner));
    }

    /// Padhye et al.: G(p) = 1 + p + 2p² + 4p³ + 8p⁴ + 16p⁵ + 32p⁶.
    #[test]
    fn a_timeout_doubles_six_times() {
        assert_eq!(timeouts_s(0.5, 1.0), 8.0);
        assert_eq!(timeouts_s(0.0, 1.0), 1.0);
    }

    #[test]
    fn few_losses_make_the_full_formula_the_rule() {
        let path = TcpPath {
            loss: 1e-6,
            max_window: 1e9,
            timeout_s: 0.1,
            ..PRIMARY
        };
        let ratio = path.throughput() / path.square_root_rule();
        assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
    }

    fn path() -> impl Strategy<Value = TcpPath> {
        (0.01..1.0, 1e-6..0.3, 1.0..10.0, 4.0..100.0, 1.0..2.0).prop_map(
            |(round_trip_s, loss, timeouts, max_window, packets_per_ack): (f64, f64, f64, f64, f64)| {
                let timeout_s = round_trip_s * timeouts;
                TcpPath {
                    round_trip_s,
                    loss,
                    timeout_s,
                    max_window,
                    packets_per_ack,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn no_window_carries_more_than_itself(path in path()) {
            prop_assert!(path.throughput() <= path.max_window / path.round_trip_s * 1.000_001);
        }

        /// This property holds for one ACK per two packets. With another ratio, the published formula has a step where W_max begins to
        /// limit the window.
        #[test]
        fn more_loss_is_never_faster(path in path(), factor in 1.01..3.0f64) {
            let path = TcpPath { packets_per_ack: 2.0, ..path };
            let worse = TcpPath { loss: (path.loss * factor).min(0.5), ..path };
            prop_assert!(worse.throughput() < path.throughput() * 1.000_001);
            prop_assert!(worse.square_root_rule() < path.square_root_rule());
        }

        /// If only loss limits the window, this property holds for any number of packets per ACK.
        #[test]
        fn more_loss_is_never_faster_in_an_unlimited_window(path in path(), factor in 1.01..3.0f64) {
            let path = TcpPath { max_window: 1e9, ..path };
            let worse = TcpPath { loss: (path.loss * factor).min(0.5), ..path };
            prop_assert!(worse.throughput() < path.throughput());
        }

        /// With one ACK for two packets the formula's two forms meet.
        #[test]
        fn the_two_forms_meet_at_the_largest_window(path in path()) {
            let path = TcpPath { packets_per_ack: 2.0, ..path };
            let limit = unlimited_window(path.loss, path.packets_per_ack);
            let below = TcpPath { max_window: limit * 0.999_999, ..path };
            let above = TcpPath { max_window: limit * 1.000_001, ..path };
            prop_assert!((below.throughput() / above.throughput() - 1.0).abs() < 1e-4);
        }

        #[test]
        fn a_timeout_is_a_probability(p in 0.0..1.0, window in 1.0..1000.0) {
            let q = timeout_probability(p, window);
            prop_assert!((0.0..=1.0).contains(&q), "{q}");
        }

        #[test]
        fn timeouts_get_rarer_in_wider_windows(p in 0.0001..0.5, window in 3.0..100.0) {
            prop_assert!(timeout_probability(p, window + 1.0) <= timeout_probability(p, window) + 1e-12);
        }
    }
}
