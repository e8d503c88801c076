//! The parameters of the flow models (HALR thesis, chapter 5, Table I).

/// Parameters of a flow and its path. The thesis' symbols are in parentheses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Probability that a data segment is lost (p). ACKs are never lost.
    pub loss: f64,
    /// Probability that a SYN is lost (p_s). SYN-ACKs are never lost.
    pub syn_loss: f64,
    /// First timeout of a data segment, seconds (T_o).
    pub timeout_s: f64,
    /// First timeout of a SYN, seconds (T_s).
    pub syn_timeout_s: f64,
    /// Average round-trip time, seconds (R).
    pub round_trip_s: f64,
    /// Data segments of the flow; the SYN is not one of them (D).
    pub segments: usize,
    /// Initial congestion window, segments (W).
    pub initial_window: usize,
    /// Maximum congestion window, segments (W_max).
    pub max_window: usize,
    /// Segments that one ACK acknowledges: 1, or 2 with delayed ACKs (b).
    pub segments_per_ack: usize,
    /// Time for which a receiver delays the ACK of a lone segment, seconds: 0.1 s for BSD, 0.15 s for Windows (thesis, 5.3, IV). The delay
    /// occurs once, at the start of a flow whose initial window is one segment.
    pub delayed_ack_s: f64,
}

impl Parameters {
    /// Table I for short flows: a SYN and 9 data segments, which chapter 7 calls 10 segments.
    pub const SHORT: Self = Self {
        loss: 0.001,
        syn_loss: 0.001,
        timeout_s: 1.5,
        syn_timeout_s: 3.0,
        round_trip_s: 0.1,
        segments: 9,
        initial_window: 1,
        max_window: 64,
        segments_per_ack: 2,
        delayed_ack_s: 0.1,
    };

    /// Table I for long flows.
    pub const LONG: Self = Self {
        segments: 1000,
        ..Self::SHORT
    };

    /// Panics if a parameter is outside the models' domain.
    pub(crate) fn assert_in_domain(&self) {
        let times = [self.timeout_s, self.syn_timeout_s, self.round_trip_s];
        assert!(
            times.iter().all(|time| time.is_finite() && *time > 0.0),
            "times are positive: {self:?}"
        );
        assert!(self.delayed_ack_s >= 0.0, "a delay is not negative: {self:?}");
        // Each timeout is twice the previous one, so the expected sum of timeouts is finite only for a loss below one half.
        let losses = [self.loss, self.syn_loss];
        assert!(
            losses.iter().all(|loss| (0.0..0.5).contains(loss)),
            "losses are in [0, 0.5): {self:?}"
        );
        let counts = [self.segments, self.initial_window, self.segments_per_ack];
        assert!(
            counts.iter().all(|count| *count >= 1),
            "counts are at least 1: {self:?}"
        );
        assert!(
            self.max_window >= self.initial_window.max(2),
            "the maximum window is at least 2 and at least the initial window: {self:?}"
        );
    }

    /// Expected time of the handshake, seconds: one round trip and the timeouts of lost SYNs. A SYN lost k times costs
    /// (2^k − 1)·T_s. The expectation of this cost is T_s·p_s / (1 − 2·p_s).
    pub fn handshake_s(&self) -> f64 {
        self.round_trip_s + self.syn_timeout_s * self.syn_loss / (1.0 - 2.0 * self.syn_loss)
    }

    /// Time by which a delayed ACK prolongs the first round, seconds. Zero if the first round has several segments, or if each segment is
    /// acknowledged at once.
    pub fn first_ack_delay_s(&self) -> f64 {
        if self.initial_window == 1 && self.segments_per_ack > 1 {
            self.delayed_ack_s
        } else {
            0.0
        }
    }
}
