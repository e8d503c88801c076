//! The expected completion time of a short flow, without and with a failover (HALR thesis, 5.2, Eq. 1–4).
//!
//! The recursion is that of Mellia, Stoica and Zhang ("TCP model for short lived flows", IEEE Communications Letters 6(2), 2002)
//! as the thesis describes it. T(m, w) is the expected time to send m segments with a window of w. Its formula is a
//! sum over k, where the k-th segment of the round is the first one lost. A table holds T, so a flow of D segments
//! costs D·W_max² steps instead of exponentially many.
//! `docs/model-halr.md` has the derivation.

use crate::failover::{Failover, FlowRecovery, Range};
use crate::parameters::Parameters;
use crate::unused_flow_time::additional_delay_s;

/// Number of duplicate ACKs that cause a fast retransmission.
const DUPLICATE_ACKS: usize = 3;

/// Window, in segments, after the ACK of a retransmission that a timeout caused. Slow start begins with one segment.
const WINDOW_AFTER_TIMEOUT: usize = 2;

/// The model of one flow.
#[derive(Clone, Debug)]
pub struct ShortFlow {
    parameters: Parameters,
    /// T(m, w) at `[m][w]`, seconds, for m ≤ D and w ≤ min(m, W_max).
    transfer_s: Vec<Vec<f64>>,
}

/// How a failover interrupts a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Interruption {
    /// The flow is not interrupted.
    None,
    /// The SYN or its answer is lost.
    Handshake {
        /// Time from when the SYN passes the cluster to the end of the failover, seconds.
        down_s: f64,
    },
    /// A data segment or its ACK is lost.
    Data {
        /// Segments whose ACKs have passed the cluster (i).
        acknowledged: usize,
        /// Time from when the first segment without an ACK passes the cluster to the end of the failover, seconds.
        down_s: f64,
    },
}

/// A window of segments, sent in one round.
#[derive(Clone, Copy)]
struct WindowRound {
    /// Number of segments in the earlier rounds.
    sent_before: usize,
    /// Time from when the SYN passes the cluster until this round passes it, seconds.
    offset_s: f64,
    /// Time for which the receiver delays this round's ACK, seconds.
    ack_delay_s: f64,
}

impl ShortFlow {
    /// The flow with these parameters.
    pub fn new(parameters: Parameters) -> Self {
        parameters.assert_in_domain();
        let mut flow = Self {
            parameters,
            transfer_s: vec![vec![0.0]],
        };
        for m in 1..=parameters.segments {
            let widest = m.min(parameters.max_window);
            // A window of 0 never occurs.
            let mut by_window = vec![f64::INFINITY];
            by_window.extend((1..=widest).map(|w| flow.round_s(m, w)));
            flow.transfer_s.push(by_window);
        }
        flow
    }

    /// T(m, w): expected time to send m segments with a window of w, seconds. `m` must not exceed the flow's segments.
    pub fn transfer_s(&self, m: usize, w: usize) -> f64 {
        let by_window = &self.transfer_s[m];
        by_window[w.min(by_window.len() - 1)]
    }

    /// The flow's completion time without a failover (F_n), seconds.
    pub fn normal_s(&self) -> f64 {
        self.before_s(self.parameters.segments)
    }

    /// Completion time in Case 2, seconds: the failover comes after `acknowledged` segments (i < D) and lasts `down_s` for this
    /// flow. Eq. 1 without local recovery, Eq. 2 with local recovery.
    pub fn data_loss_s(&self, acknowledged: usize, down_s: f64, recovery: FlowRecovery) -> f64 {
        assert!(
            acknowledged < self.parameters.segments,
            "a completed flow is not interrupted"
        );
        let rest_s = self.transfer_s(self.parameters.segments - acknowledged, 1);
        self.before_s(acknowledged) + additional_delay_s(down_s, self.parameters.timeout_s, recovery) + rest_s
    }

    /// Completion time in Case 3, seconds: the SYN is lost and the failover lasts `down_s` from then on. Eq. 3 without local
    /// recovery, Eq. 4 with local recovery.
    pub fn syn_loss_s(&self, down_s: f64, recovery: FlowRecovery) -> f64 {
        additional_delay_s(down_s, self.parameters.syn_timeout_s, recovery) + self.normal_s()
    }

    /// Range of the completion times of disturbed flows, for a failover of `failover_s` (the lines of Figure 18). A segment's answer passes
    /// the cluster `answer_s` after the segment, as for [`interruption`](Self::interruption). A window passes the cluster at once, so a
    /// Case 2 flow loses whole rounds. The first lost round passes the cluster at the earliest `answer_s` before the failover begins. Then
    /// only the answer to this round is lost. The round passes at the latest `round_trip_s − answer_s` after the failover begins.
    /// Otherwise, the answer to the previous round would be lost. A Case 3 flow loses its SYN at any time during the failover, or it loses
    /// the answer to a SYN that passed the cluster up to `answer_s` before the failover.
    pub fn disturbed_range(&self, failover_s: f64, answer_s: f64, recovery: FlowRecovery) -> Range {
        let rest_s = (self.parameters.round_trip_s - answer_s).max(0.0);
        let soonest_end_s = (failover_s - rest_s).max(f64::MIN_POSITIVE);
        let latest_end_s = failover_s + answer_s;
        let data = self.rounds().into_iter().flat_map(|round| {
            [soonest_end_s, latest_end_s].map(|down_s| self.data_loss_s(round.sent_before, down_s, recovery))
        });
        let syn = [f64::MIN_POSITIVE, latest_end_s].map(|down_s| self.syn_loss_s(down_s, recovery));
        Range::of(data.chain(syn))
    }

    /// How a failover interrupts a flow whose SYN passes the cluster at `arrival_s`, if nothing else is lost. A segment's ACK
    /// passes the cluster `answer_s` after the segment: zero for a cluster next to the receiver, a round trip for a cluster next
    /// to the sender.
    pub fn interruption(&self, arrival_s: f64, failover: &Failover, answer_s: f64) -> Interruption {
        let lost = |moment_s, answer_s| failover.covers(moment_s) || failover.covers(moment_s + answer_s);
        if lost(arrival_s, answer_s) {
            return Interruption::Handshake {
                down_s: failover.end_s() - arrival_s,
            };
        }
        for round in self.rounds() {
            let moment_s = arrival_s + round.offset_s;
            if lost(moment_s, answer_s + round.ack_delay_s) {
                return Interruption::Data {
                    acknowledged: round.sent_before,
                    down_s: failover.end_s() - moment_s,
                };
            }
        }
        Interruption::None
    }

    /// Completion time of a flow that is interrupted as [`interruption`](Self::interruption) says, seconds: the dashed lines of
    /// Figures 12–14. The dots of these figures are simulated times.
    pub fn completion_s(
        &self,
        arrival_s: f64,
        failover: &Failover,
        answer_s: f64,
        recovery: FlowRecovery,
    ) -> f64 {
        match self.interruption(arrival_s, failover, answer_s) {
            Interruption::None => self.normal_s(),
            Interruption::Handshake { down_s } => self.syn_loss_s(down_s, recovery),
            Interruption::Data { acknowledged, down_s } => self.data_loss_s(acknowledged, down_s, recovery),
        }
    }

    /// The rounds of the flow if nothing is lost.
    fn rounds(&self) -> Vec<WindowRound> {
        let mut rounds = Vec::new();
        let (mut sent_before, mut window) = (0, self.parameters.initial_window);
        let mut offset_s = self.parameters.round_trip_s;
        while sent_before < self.parameters.segments {
            let ack_delay_s = if sent_before == 0 {
                self.parameters.first_ack_delay_s()
            } else {
                0.0
            };
            rounds.push(WindowRound {
                sent_before,
                offset_s,
                ack_delay_s,
            });
            offset_s += ack_delay_s + self.parameters.round_trip_s;
            sent_before += window;
            window = self.grown(window, window);
        }
        rounds
    }

    /// Time for the handshake, the first segment's delayed ACK, and the first `segments` segments, seconds.
    fn before_s(&self, segments: usize) -> f64 {
        self.parameters.handshake_s()
            + self.parameters.first_ack_delay_s()
            + self.transfer_s(segments, self.parameters.initial_window)
    }

    /// The window after `delivered` segments of a round are acknowledged.
    fn grown(&self, window: usize, delivered: usize) -> usize {
        (window + delivered.div_ceil(self.parameters.segments_per_ack)).min(self.parameters.max_window)
    }

    /// One step of the recursion: no segment of the round is lost, or the k-th segment is the first one lost.
    fn round_s(&self, m: usize, w: usize) -> f64 {
        let sent = m.min(w);
        let arrives = 1.0 - self.parameters.loss;
        let whole_s = self.parameters.round_trip_s + self.transfer_s(m - sent, self.grown(w, sent));
        let mut expected_s = whole_s;
        let mut probability = 1.0;
        for k in 1..=sent {
            let here = probability * self.parameters.loss;
            expected_s += here * (self.loss_s(m, w, k) - whole_s);
            probability *= arrives;
        }
        expected_s
    }

    /// The time for m segments if the k-th segment of the round is the first one lost, seconds.
    fn loss_s(&self, m: usize, w: usize, k: usize) -> f64 {
        let Parameters {
            round_trip_s,
            loss,
            timeout_s,
            ..
        } = self.parameters;
        let timeouts_s = timeout_s / (1.0 - 2.0 * loss);
        let window = self.grown(w, k - 1);
        let after = m.min(k - 1 + window) - k;
        if after >= DUPLICATE_ACKS {
            let in_this_round = m.min(w) - k >= DUPLICATE_ACKS;
            let noticed = if in_this_round { 1.0 } else { 2.0 };
            let halved = after.div_ceil(2).max(WINDOW_AFTER_TIMEOUT);
            (noticed + 1.0) * round_trip_s + loss * timeouts_s + self.transfer_s(m - k - after, halved)
        } else {
            let noticed = if k > 1 { 1.0 } else { 0.0 };
            (noticed + 1.0) * round_trip_s + timeouts_s + self.transfer_s(m - k, WINDOW_AFTER_TIMEOUT)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover::FailoverCase;
    use proptest::prelude::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    /// The worked example of the thesis, 5.2, term by term: three segments, a window of one, and an ACK per segment.
    #[test]
    fn three_segments_and_a_window_of_one() {
        let parameters = Parameters {
            segments: 3,
            segments_per_ack: 1,
            ..Parameters::SHORT
        };
        let flow = ShortFlow::new(parameters);
        let Parameters {
            loss: p,
            syn_loss,
            timeout_s,
            syn_timeout_s,
            round_trip_s,
            ..
        } = parameters;
        let q = 1.0 - p;
        let timeouts_s = timeout_s / (1.0 - 2.0 * p);
        let handshake_s = round_trip_s + syn_timeout_s * syn_loss / (1.0 - 2.0 * syn_loss);
        let one_s = round_trip_s + p * timeouts_s;
        let two_s = q * q * round_trip_s
            + p * (timeouts_s + round_trip_s + one_s)
            + q * p * (2.0 * round_trip_s + timeouts_s);
        let three_s = q * (round_trip_s + two_s) + p * (timeouts_s + round_trip_s + two_s);
        assert!(close(flow.transfer_s(1, 1), one_s));
        assert!(close(flow.transfer_s(2, 2), two_s));
        assert!(close(flow.transfer_s(3, 1), three_s));
        assert!(close(flow.normal_s(), handshake_s + three_s));
        // The sum has two terms: two rounds with the time that losses add to them, and three possible timeouts.
        assert!(close(
            three_s,
            (2.0 + 2.0 * p - p * p) * round_trip_s + 3.0 * p * timeouts_s
        ));
        assert!((flow.normal_s() - 0.307_715).abs() < 1e-6, "{}", flow.normal_s());
    }

    /// Four segments in one round. Three duplicate ACKs reveal the loss of the first segment. Only a timeout reveals the loss of
    /// another segment.
    #[test]
    fn three_duplicate_acks_save_a_timeout() {
        let parameters = Parameters {
            segments: 4,
            segments_per_ack: 1,
            loss: 0.1,
            ..Parameters::SHORT
        };
        let flow = ShortFlow::new(parameters);
        let (p, q, round_trip_s) = (0.1f64, 0.9f64, parameters.round_trip_s);
        let timeouts_s = parameters.timeout_s / (1.0 - 2.0 * p);
        let timeout_s = |left| 2.0 * round_trip_s + timeouts_s + flow.transfer_s(left, 2);
        let expected_s = q.powi(4) * round_trip_s
            + p * (2.0 * round_trip_s + p * timeouts_s)
            + q * p * timeout_s(2)
            + q.powi(2) * p * timeout_s(1)
            + q.powi(3) * p * timeout_s(0);
        assert!(close(flow.transfer_s(4, 4), expected_s));
    }

    /// Thesis, 7.2.2: the normal completion time of 10 segments (the SYN and 9 data segments) is about 0.6 s.
    #[test]
    fn ten_segments_take_about_0_6_seconds() {
        let normal_s = ShortFlow::new(Parameters::SHORT).normal_s();
        assert!((normal_s - 0.6).abs() < 0.05, "{normal_s}");
    }

    /// Thesis, 7.2.2: without local recovery a failover of 0.5 s delays Case 3 flows by the whole SYN timeout. (The thesis
    /// reports 4.01 s from its simulation. The model says 3.6 s.)
    #[test]
    fn a_small_failover_costs_a_syn_timeout() {
        let flow = ShortFlow::new(Parameters::SHORT);
        assert!(close(
            flow.syn_loss_s(0.5, FlowRecovery::Timeout),
            3.0 + flow.normal_s()
        ));
        assert!((flow.syn_loss_s(0.5, FlowRecovery::Timeout) - 3.6).abs() < 0.05);
    }

    /// Thesis, 7.2.2, Figure 12: for a failover of 0.5 s, completion times with local recovery are between 0.8 and 1.9 s.
    #[test]
    fn local_recovery_after_half_a_second_stays_below_1_9_seconds() {
        let range = ShortFlow::new(Parameters::SHORT).disturbed_range(0.5, 0.0, FlowRecovery::Local);
        assert!(range.max_s < 1.9, "{range:?}");
    }

    /// Thesis, 7.2.2, Figure 13: flows that arrive just before a failover of 3 s take about 10 s (9 s of SYN timeouts), or about 4 s
    /// with local recovery. The SYN has passed, but its answer is lost. The sender's timer started before the failover, so it first
    /// fires just before the failover's end.
    #[test]
    fn a_lost_answer_to_a_syn_costs_nine_seconds() {
        let flow = ShortFlow::new(Parameters::SHORT);
        let failover = Failover {
            start_s: 2.0,
            duration_s: 3.0,
        };
        let completion = |recovery| flow.completion_s(1.95, &failover, 0.1, recovery);
        assert_eq!(failover.case(1.95, flow.normal_s()), FailoverCase::DataLoss);
        assert!(
            (completion(FlowRecovery::Timeout) - 10.0).abs() < 0.5,
            "{}",
            completion(FlowRecovery::Timeout)
        );
        assert!(
            (completion(FlowRecovery::Local) - 4.0).abs() < 0.5,
            "{}",
            completion(FlowRecovery::Local)
        );
    }

    /// Thesis, 7.3, Figure 18: for failovers below 3 s the maximum is less than 5.3 s. For a failover of 5 s it is 11.2 s.
    #[test]
    fn three_seconds_are_a_good_failover_time() {
        let flow = ShortFlow::new(Parameters::SHORT);
        for failover_s in [0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 2.5, 2.9] {
            let range = flow.disturbed_range(failover_s, 0.0, FlowRecovery::Timeout);
            assert!(range.max_s < 5.3, "{failover_s}: {range:?}");
        }
        let range = flow.disturbed_range(5.0, 0.0, FlowRecovery::Timeout);
        assert!((range.max_s - 11.2).abs() < 0.05, "{range:?}");
    }

    /// Thesis, 7.3: with local recovery the maximum grows linearly with the failover time.
    #[test]
    fn local_recovery_makes_the_maximum_linear() {
        let flow = ShortFlow::new(Parameters::SHORT);
        let max_s = |failover_s| flow.disturbed_range(failover_s, 0.0, FlowRecovery::Local).max_s;
        for failover_s in [0.5, 1.0, 3.0, 5.0, 12.0] {
            assert!((max_s(failover_s) - max_s(0.05) - (failover_s - 0.05)).abs() < 1e-9);
        }
    }

    #[test]
    fn without_loss_a_flow_takes_its_rounds() {
        let lossless = Parameters {
            loss: 0.0,
            syn_loss: 0.0,
            ..Parameters::SHORT
        };
        // Rounds of 1, 2, 3 and 3 segments, one round trip for the handshake, one delayed ACK.
        assert!(close(ShortFlow::new(lossless).normal_s(), 0.6));
        let doubling = Parameters {
            segments_per_ack: 1,
            segments: 15,
            ..lossless
        };
        assert!(close(ShortFlow::new(doubling).normal_s(), 0.5));
    }

    fn parameters() -> impl Strategy<Value = Parameters> {
        (
            0.0..0.2,
            0.0..0.2,
            0.02..0.5,
            1.0..20.0,
            1usize..40,
            1usize..4,
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
                        ..Parameters::SHORT
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn more_loss_never_helps(parameters in parameters(), more in 0.0..0.1) {
            let worse = Parameters { loss: parameters.loss + more, syn_loss: parameters.syn_loss + more, ..parameters };
            let (flow, worse) = (ShortFlow::new(parameters), ShortFlow::new(worse));
            prop_assert!(flow.normal_s() <= worse.normal_s() + 1e-9);
        }

        #[test]
        fn one_segment_more_never_takes_less(parameters in parameters()) {
            let flow = ShortFlow::new(parameters);
            for m in 1..parameters.segments {
                prop_assert!(flow.transfer_s(m, 1) <= flow.transfer_s(m + 1, 1) + 1e-9);
            }
        }

        #[test]
        fn local_recovery_is_never_slower(
            parameters in parameters(), arrival_s in 0.0..8.0, duration_s in 0.01..5.0, answer_s in 0.0..0.5,
        ) {
            let flow = ShortFlow::new(parameters);
            let failover = Failover { start_s: 2.0, duration_s };
            let completion = |recovery| flow.completion_s(arrival_s, &failover, answer_s, recovery);
            prop_assert!(completion(FlowRecovery::Local) <= completion(FlowRecovery::Timeout) + 1e-9);
        }

        /// With local recovery, the completion time grows continuously with the down time.
        #[test]
        fn local_recovery_has_no_steps(parameters in parameters(), down_s in 0.0..10.0) {
            let flow = ShortFlow::new(parameters);
            let at = |down_s| (flow.syn_loss_s(down_s, FlowRecovery::Local), flow.data_loss_s(0, down_s, FlowRecovery::Local));
            let (before, after) = (at(down_s), at(down_s + 1e-6));
            prop_assert!((after.0 - before.0 - 1e-6).abs() < 1e-9 && (after.1 - before.1 - 1e-6).abs() < 1e-9);
        }

        /// The cases of section 4.1 and the schedule of rounds agree on which flows are disturbed. The cluster is next to the
        /// receiver, and the failover is so long that every flow sends something during it.
        #[test]
        fn cases_and_interruptions_agree(arrival_s in 0.0..8.0, duration_s in 0.25..5.0) {
            let lossless = Parameters { loss: 0.0, syn_loss: 0.0, ..Parameters::SHORT };
            let flow = ShortFlow::new(lossless);
            let failover = Failover { start_s: 2.0, duration_s };
            match (failover.case(arrival_s, flow.normal_s()), flow.interruption(arrival_s, &failover, 0.0)) {
                (FailoverCase::Undisturbed, Interruption::None)
                | (FailoverCase::SynLoss, Interruption::Handshake { .. })
                | (FailoverCase::DataLoss, Interruption::Data { .. }) => {}
                // The flow's last segment has passed the cluster. Only its ACK is still on its way.
                (FailoverCase::DataLoss, Interruption::None) => {
                    prop_assert!(arrival_s + flow.normal_s() - lossless.round_trip_s <= failover.start_s + 1e-9);
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}
