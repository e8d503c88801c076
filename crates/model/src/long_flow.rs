//! The model of the long flow (HALR thesis, 5.3, Eq. 5–8): the expected completion time of a transfer that leaves slow start, with and
//! without a failover.
//!
//! The phases and their times follow Cardwell, Savage and Anderson ("Modeling TCP Latency", INFOCOM 2000). The phases are the handshake,
//! slow start until a loss, the recovery from this loss, congestion avoidance at the steady state's throughput, and one delayed ACK.
//! `docs/model-halr.md` derives the thesis' additions.

use crate::failover::{FlowRecovery, Range};
use crate::parameters::Parameters;
use crate::throughput::{TcpPath, timeout_probability, timeouts_s, unlimited_window};
use crate::unused_flow_time::additional_delay_s;

/// Minimum slow-start threshold, segments (RFC 5681, Eq. 4).
const THRESHOLD_MIN: f64 = 2.0;

/// The model of one flow.
#[derive(Clone, Copy, Debug)]
pub struct LongFlow {
    parameters: Parameters,
    /// Segments per second in congestion avoidance.
    throughput: f64,
}

impl LongFlow {
    /// The flow with these parameters.
    pub fn new(parameters: Parameters) -> Self {
        parameters.assert_in_domain();
        let path = TcpPath {
            round_trip_s: parameters.round_trip_s,
            loss: parameters.loss,
            timeout_s: parameters.timeout_s,
            max_window: parameters.max_window as f64,
            packets_per_ack: parameters.segments_per_ack as f64,
        };
        Self {
            parameters,
            throughput: path.throughput(),
        }
    }

    /// The flow's completion time without a failover (F_n), seconds.
    pub fn normal_s(&self) -> f64 {
        self.until_s(self.segments())
    }

    /// Completion time in Case 2, seconds. In Case 2 the failover comes after `before` of the flow's segments (the thesis' j, which is less
    /// than the number of segments, D), and lasts `down_s` for this flow. Without local recovery this is Eq. 5. With local recovery it is
    /// Eq. 6-1 if the failover lasts longer than the timeout, else Eq. 6-2.
    pub fn data_loss_s(&self, before: usize, down_s: f64, recovery: FlowRecovery) -> f64 {
        assert!(
            before < self.parameters.segments,
            "a completed flow is not interrupted"
        );
        let before = before as f64;
        let rest = self.segments() - before;
        let timeout_s = self.parameters.timeout_s;
        let kept_its_window = recovery == FlowRecovery::Local && down_s <= timeout_s;
        let rest_s = if kept_its_window {
            rest / self.throughput
        } else {
            self.after_timeout_s(rest, self.window_after(before))
        };
        self.until_s(before) + additional_delay_s(down_s, timeout_s, recovery) + rest_s
    }

    /// Completion time in Case 3, seconds. In Case 3 the SYN is lost, and the failover lasts `down_s` from then on. Without local recovery
    /// this is Eq. 7, with local recovery Eq. 8.
    pub fn syn_loss_s(&self, down_s: f64, recovery: FlowRecovery) -> f64 {
        additional_delay_s(down_s, self.parameters.syn_timeout_s, recovery) + self.normal_s()
    }

    /// Range of the completion times of the flows that a failover of `failover_s` disturbs. Its two ends are the lines of Figure 19. As the
    /// thesis assumes, flows in Case 2 are in congestion avoidance, and the failover hits them at most one round trip after it begins.
    pub fn disturbed_range(&self, failover_s: f64, recovery: FlowRecovery) -> Range {
        let syn = [f64::MIN_POSITIVE, failover_s].map(|down_s| self.syn_loss_s(down_s, recovery));
        Range::of(self.data_losses_s(failover_s, recovery).chain(syn))
    }

    /// The part of [`disturbed_range`](Self::disturbed_range) for the flows in Case 2.
    pub fn data_loss_range(&self, failover_s: f64, recovery: FlowRecovery) -> Range {
        Range::of(self.data_losses_s(failover_s, recovery))
    }

    fn data_losses_s(&self, failover_s: f64, recovery: FlowRecovery) -> impl Iterator<Item = f64> {
        let soonest_end_s = (failover_s - self.parameters.round_trip_s).max(f64::MIN_POSITIVE);
        let first = self.slow_start_segments().ceil() as usize;
        (first..self.parameters.segments).flat_map(move |before| {
            [soonest_end_s, failover_s].map(|down_s| self.data_loss_s(before, down_s, recovery))
        })
    }

    /// `E[d_ss]`: expected number of segments sent in slow start, including the first lost segment (Cardwell et al., Eq. 5).
    pub fn slow_start_segments(&self) -> f64 {
        let p = self.parameters.loss;
        if p == 0.0 {
            return self.segments();
        }
        ((1.0 - self.all_arrive()) * (1.0 - p) / p + 1.0).min(self.segments())
    }

    /// `E[T_ss]`: expected time of slow start for `segments` segments, beginning with `first_window`, seconds (Cardwell et al.,
    /// Eq. 15).
    pub fn slow_start_s(&self, segments: f64, first_window: f64) -> f64 {
        let growth = self.growth();
        let max_window = self.parameters.max_window as f64;
        let rounds = if slow_start_window(segments, first_window, growth) > max_window {
            let growing = (growth * max_window - first_window) / (growth - 1.0);
            (max_window / first_window).log(growth) + 1.0 + (segments - growing) / max_window
        } else {
            (segments * (growth - 1.0) / first_window + 1.0).log(growth)
        };
        rounds * self.parameters.round_trip_s
    }

    /// `E[T_loss]`: expected cost of the loss that ends slow start, seconds (Cardwell et al., Eq. 16–20).
    pub fn first_loss_s(&self) -> f64 {
        let Parameters {
            loss,
            timeout_s,
            round_trip_s,
            ..
        } = self.parameters;
        let by_timeout = timeout_probability(loss, self.slow_start_end_window());
        let cost_s = by_timeout * timeouts_s(loss, timeout_s) + (1.0 - by_timeout) * round_trip_s;
        (1.0 - self.all_arrive()) * cost_s
    }

    /// Time for the handshake and the first `segments` segments, seconds.
    fn until_s(&self, segments: f64) -> f64 {
        let start_s = self.parameters.handshake_s() + self.parameters.first_ack_delay_s();
        let slow = self.slow_start_segments();
        let first_window = self.parameters.initial_window as f64;
        if segments < slow {
            return start_s + self.slow_start_s(segments, first_window);
        }
        let steady_s = (segments - slow) / self.throughput;
        start_s + self.slow_start_s(slow, first_window) + self.first_loss_s() + steady_s
    }

    /// T'_ss + T'_ca: time for the rest of the transfer after a timeout, seconds. `window` is the window before the timeout.
    fn after_timeout_s(&self, rest: f64, window: f64) -> f64 {
        let threshold = (window / 2.0).max(THRESHOLD_MIN);
        let slow = rest.min(slow_start_reach(threshold, self.growth()));
        self.slow_start_s(slow, 1.0) + (rest - slow) / self.throughput
    }

    /// The expected window after `segments` segments.
    fn window_after(&self, segments: f64) -> f64 {
        let max_window = self.parameters.max_window as f64;
        if segments < self.slow_start_segments() {
            let first_window = self.parameters.initial_window as f64;
            slow_start_window(segments, first_window, self.growth()).min(max_window)
        } else {
            let segments_per_ack = self.parameters.segments_per_ack as f64;
            unlimited_window(self.parameters.loss, segments_per_ack).min(max_window)
        }
    }

    fn slow_start_end_window(&self) -> f64 {
        let first_window = self.parameters.initial_window as f64;
        let window = slow_start_window(self.slow_start_segments(), first_window, self.growth());
        window.min(self.parameters.max_window as f64)
    }

    fn segments(&self) -> f64 {
        self.parameters.segments as f64
    }

    fn all_arrive(&self) -> f64 {
        (1.0 - self.parameters.loss).powf(self.segments())
    }

    /// γ: factor by which the window grows per round trip in slow start.
    fn growth(&self) -> f64 {
        1.0 + 1.0 / self.parameters.segments_per_ack as f64
    }
}

/// `E[W_ss]`: the window after slow start has sent `segments` segments (Cardwell et al., Eq. 11).
fn slow_start_window(segments: f64, first_window: f64, growth: f64) -> f64 {
    segments * (growth - 1.0) / growth + first_window / growth
}

/// Number of segments that slow start sends until its window has grown from one segment to `window`: Eq. 11 solved
/// for the segments.
fn slow_start_reach(window: f64, growth: f64) -> f64 {
    (growth * window - 1.0) / (growth - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Thesis, Table I: a flow of 1,000 segments leaves slow start after 633 segments on average, at the maximum window.
    #[test]
    fn the_phases_of_table_1() {
        let flow = LongFlow::new(Parameters::LONG);
        assert!(
            (flow.slow_start_segments() - 632.7).abs() < 0.1,
            "{}",
            flow.slow_start_segments()
        );
        assert_eq!(flow.slow_start_end_window(), 64.0);
        let slow_s = flow.slow_start_s(flow.slow_start_segments(), 1.0);
        assert!((slow_s - 1.817).abs() < 0.001, "{slow_s}");
        let sum_s = flow.parameters.handshake_s() + 0.1 + slow_s + flow.first_loss_s();
        let steady_s = (1000.0 - flow.slow_start_segments()) / flow.throughput;
        assert!((flow.normal_s() - sum_s - steady_s).abs() < 1e-9);
    }

    /// Thesis, 7.3: the long flow follows the trend of the short flow. For both flows the maximum has a step at three seconds, because the
    /// timers cause the steps.
    #[test]
    fn the_trend_is_the_short_flows() {
        let flow = LongFlow::new(Parameters::LONG);
        let max_s = |failover_s| flow.disturbed_range(failover_s, FlowRecovery::Timeout).max_s;
        assert!(
            (max_s(2.9) - max_s(1.6)).abs() < 1e-9,
            "failovers of 1.6 s and of 2.9 s both cost 4.5 s of timeouts"
        );
        assert!(
            (max_s(5.0) - max_s(2.9) - 6.0).abs() < 1e-9,
            "a failover of 5 s costs one more timeout, of 6 s"
        );
    }

    #[test]
    fn local_recovery_makes_the_maximum_linear_beyond_the_timeout() {
        let flow = LongFlow::new(Parameters::LONG);
        let max_s = |failover_s| flow.disturbed_range(failover_s, FlowRecovery::Local).max_s;
        for failover_s in [2.0, 3.0, 5.0, 12.0] {
            assert!((max_s(failover_s) - max_s(1.6) - (failover_s - 1.6)).abs() < 1e-9);
        }
    }

    /// Thesis, 5.3: a failover that is over before the timer fires leaves the window unchanged (Eq. 6-2). The time for a longer
    /// failover is Eq. 5 without the unused flow time (Eq. 6-1).
    #[test]
    fn local_recovery_keeps_the_window_only_before_the_timer_fires() {
        let flow = LongFlow::new(Parameters::LONG);
        let kept_s = flow.until_s(800.0) + 1.0 + 200.0 / flow.throughput;
        assert!((flow.data_loss_s(800, 1.0, FlowRecovery::Local) - kept_s).abs() < 1e-9);
        let eq_5_s = flow.data_loss_s(800, 2.0, FlowRecovery::Timeout);
        assert!((flow.data_loss_s(800, 2.0, FlowRecovery::Local) - (eq_5_s - 2.5)).abs() < 1e-9);
    }

    /// Thesis, 5.3: an interrupted flow ends in slow start if few segments are left, else in congestion avoidance. At 0.1 % loss the window
    /// is 37 segments on average. Slow start reaches half of this window after 54 segments.
    #[test]
    fn the_rest_is_sent_in_slow_start_and_then_in_congestion_avoidance() {
        let flow = LongFlow::new(Parameters::LONG);
        let threshold = flow.window_after(800.0) / 2.0;
        let reach = slow_start_reach(threshold, 1.5);
        assert_eq!((threshold * 2.0).round(), 37.0);
        assert_eq!(reach.round(), 54.0);
        assert!((slow_start_window(reach, 1.0, 1.5) - threshold).abs() < 1e-9);
        let little_s = flow.after_timeout_s(10.0, 2.0 * threshold);
        assert!((little_s - flow.slow_start_s(10.0, 1.0)).abs() < 1e-9);
        let much_s = flow.after_timeout_s(reach + 100.0, 2.0 * threshold);
        assert!((much_s - flow.slow_start_s(reach, 1.0) - 100.0 / flow.throughput).abs() < 1e-9);
    }

    /// The phases do not fit together exactly: the slow start of Eq. 5 has no loss, while the steady state of Eq. 6-2 has the
    /// path's loss. At 1 % loss, if the failover ends just when the timer fires, the model says that a restart in slow start is faster than
    /// a kept window. The difference is less than one round trip.
    #[test]
    fn a_restart_without_losses_can_beat_a_kept_window() {
        let flow = LongFlow::new(Parameters {
            loss: 0.01,
            ..Parameters::LONG
        });
        let slower_s = |before| {
            flow.data_loss_s(before, 1.5, FlowRecovery::Local)
                - flow.data_loss_s(before, 1.5, FlowRecovery::Timeout)
        };
        let worst_s = (0..1000).map(slower_s).fold(f64::MIN, f64::max);
        assert!((0.001..0.1).contains(&worst_s), "{worst_s}");
    }

    #[test]
    fn without_loss_slow_start_is_all_there_is() {
        let flow = LongFlow::new(Parameters {
            loss: 0.0,
            syn_loss: 0.0,
            ..Parameters::LONG
        });
        assert_eq!(flow.slow_start_segments(), 1000.0);
        assert_eq!(flow.first_loss_s(), 0.0);
        let nearly = LongFlow::new(Parameters {
            loss: 1e-9,
            syn_loss: 0.0,
            ..Parameters::LONG
        });
        assert!((flow.normal_s() - nearly.normal_s()).abs() < 1e-3);
    }

    fn parameters() -> impl Strategy<Value = Parameters> {
        (
            1e-5..0.02,
            0.0..0.02,
            0.02..0.5,
            3.0..20.0,
            50usize..2000,
            1usize..3,
            1usize..3,
        )
            .prop_map(
                |(loss, syn_loss, round_trip_s, timeouts, segments, initial_window, segments_per_ack)| {
                    Parameters {
                        loss,
                        syn_loss,
                        round_trip_s,
                        timeout_s: round_trip_s * timeouts,
                        segments,
                        initial_window,
                        segments_per_ack,
                        ..Parameters::LONG
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn one_segment_more_never_takes_less(parameters in parameters(), at in 0.0..1.0) {
            let flow = LongFlow::new(parameters);
            let segments = at * (flow.segments() - 1.0);
            prop_assert!(flow.until_s(segments) <= flow.until_s(segments + 1.0) + 1e-9);
        }

        /// This property holds with one ACK for two segments. With other ratios, the throughput formula has a step.
        #[test]
        fn more_loss_never_helps(parameters in parameters(), factor in 1.0..3.0f64) {
            let parameters = Parameters { segments_per_ack: 2, ..parameters };
            let worse = Parameters {
                loss: parameters.loss * factor,
                syn_loss: parameters.syn_loss * factor,
                ..parameters
            };
            let (flow, worse) = (LongFlow::new(parameters), LongFlow::new(worse));
            prop_assert!(flow.normal_s() <= worse.normal_s() + 1e-6);
        }

        /// This property holds up to 0.3 % loss. For more loss, see `a_restart_without_losses_can_beat_a_kept_window`.
        #[test]
        fn local_recovery_is_never_slower(
            parameters in parameters(), loss in 0.0..0.003, at in 0.0..1.0, downs in 0.01..20.0,
        ) {
            let flow = LongFlow::new(Parameters { loss, ..parameters });
            let before = (at * (flow.segments() - 1.0)) as usize;
            // The first value is the worst case for local recovery: the failover ends just when the timer fires.
            for down_s in [parameters.timeout_s, parameters.timeout_s * downs] {
                let data = |recovery| flow.data_loss_s(before, down_s, recovery);
                let syn = |recovery| flow.syn_loss_s(down_s, recovery);
                prop_assert!(data(FlowRecovery::Local) <= data(FlowRecovery::Timeout) + 1e-9);
                prop_assert!(syn(FlowRecovery::Local) <= syn(FlowRecovery::Timeout) + 1e-9);
            }
        }

        #[test]
        fn a_failover_never_helps(parameters in parameters(), at in 0.0..1.0, down_s in 0.001..12.0) {
            let flow = LongFlow::new(parameters);
            let before = (at * (flow.segments() - 1.0)) as usize;
            for recovery in [FlowRecovery::Timeout, FlowRecovery::Local] {
                prop_assert!(flow.syn_loss_s(down_s, recovery) >= flow.normal_s());
                prop_assert!(flow.data_loss_s(before, down_s, recovery) >= flow.until_s(before as f64));
            }
        }

        /// The time of slow start has no step where the window reaches its maximum.
        #[test]
        fn slow_start_has_no_step_at_the_largest_window(parameters in parameters()) {
            let flow = LongFlow::new(parameters);
            let at = slow_start_reach(parameters.max_window as f64, flow.growth());
            let step_s = flow.slow_start_s(at + 1e-6, 1.0) - flow.slow_start_s(at - 1e-6, 1.0);
            prop_assert!((0.0..1e-5).contains(&step_s), "{step_s}");
        }
    }
}
