//! NewReno congestion control (RFC 5681, RFC 6582) with limited transmit (RFC 3042).

use proto::Offset;

/// Number of duplicate acknowledgements that mean a loss (RFC 5681 §3.2).
const DUPLICATES: u64 = 3;

/// Number of segments that may be in flight at the start (RFC 6928).
const INITIAL_SEGMENTS: u64 = 10;

#[derive(Clone, Debug)]
pub(super) struct NewReno {
    mss: u64,
    /// Congestion window in bytes.
    window: u64,
    /// Slow start threshold. A window below the threshold grows by slow start, any other window by congestion avoidance.
    threshold: u64,
    /// Whether fast recovery is under way. Then partial acknowledgements deflate the window, and duplicate acknowledgements inflate it.
    recovering: bool,
    /// End of the bytes that had been sent at the last loss. Duplicate acknowledgements up to this offset start no second recovery.
    recover: Option<Offset>,
    duplicates: u64,
    /// Bytes acknowledged in congestion avoidance since the window last grew.
    credit: u64,
}

impl NewReno {
    pub const fn new(mss: u64) -> Self {
        Self {
            mss,
            window: INITIAL_SEGMENTS * mss,
            threshold: u64::MAX,
            recovering: false,
            recover: None,
            duplicates: 0,
            credit: 0,
        }
    }

    /// Number of bytes that may be in flight.
    pub const fn allowance(&self) -> u64 {
        if self.recovering || self.duplicates >= DUPLICATES {
            self.window
        } else {
            self.window + self.duplicates * self.mss // limited transmit
        }
    }

    /// The peer acknowledged `acked` new bytes, up to `una`. Before this acknowledgement `in_flight` bytes were unacknowledged, now `left`
    /// bytes are. Returns whether the first unacknowledged segment is lost too.
    pub fn on_ack(&mut self, una: Offset, acked: u64, in_flight: u64, left: u64) -> bool {
        self.duplicates = 0;
        if !self.recovering {
            self.grow(acked, in_flight);
            return false;
        }
        if self.recover.is_none_or(|recover| una >= recover) {
            self.recovering = false;
            self.window = self.threshold.min(left.max(self.mss) + self.mss);
            return false;
        }
        let inflation = if acked >= self.mss { self.mss } else { 0 };
        self.window = self.window.saturating_sub(acked).max(self.mss) + inflation;
        true
    }

    /// The peer repeated the acknowledgement of `una`, while `in_flight` bytes from `una` to `end` are unacknowledged. Returns whether the
    /// duplicate means that the first unacknowledged segment is lost.
    pub fn on_duplicate(&mut self, una: Offset, end: Offset, in_flight: u64) -> bool {
        self.duplicates += 1;
        if self.recovering {
            self.window += self.mss;
            return false;
        }
        // Segments that arrive twice after a timeout cause duplicate acknowledgements, which show no new loss (RFC 6582 §3.2 step 2).
        if self.duplicates != DUPLICATES || self.recover.is_some_and(|recover| una <= recover) {
            return false;
        }
        self.threshold = self.half(in_flight);
        self.window = self.threshold + DUPLICATES * self.mss;
        self.recovering = true;
        self.recover = Some(end);
        true
    }

    /// The retransmission timer expired, and the `in_flight` unacknowledged bytes before `end` count as lost. `repeated`: the timer expired
    /// for a segment that had been retransmitted already.
    pub fn on_timeout(&mut self, end: Offset, in_flight: u64, repeated: bool) {
        if !repeated {
            self.threshold = self.half(in_flight);
        }
        self.window = self.mss;
        self.recovering = false;
        self.recover = Some(end);
        self.duplicates = 0;
        self.credit = 0;
    }

    /// Half of the bytes in flight, not counting those that limited transmit added (RFC 5681 §3.1 equation 4).
    fn half(&self, in_flight: u64) -> u64 {
        (in_flight.min(self.window) / 2).max(2 * self.mss)
    }

    fn grow(&mut self, acked: u64, in_flight: u64) {
        if in_flight < self.window / 2 {
            return; // the application, not the window, limits the sending, so the window does not grow
        }
        if self.window < self.threshold {
            self.window += acked.min(self.mss);
            return;
        }
        self.credit += acked;
        if self.credit >= self.window {
            self.credit -= self.window;
            self.window += self.mss;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;

    #[test]
    fn slow_start_doubles_and_avoidance_adds_one_segment_per_window() {
        let mut reno = NewReno::new(MSS);
        for count in 1..=10 {
            assert!(!reno.on_ack(Offset(count * MSS), MSS, reno.allowance(), 0));
        }
        assert_eq!(reno.allowance(), 20 * MSS);
        reno.threshold = 20 * MSS;
        for count in 11..=30 {
            reno.on_ack(Offset(count * MSS), MSS, reno.allowance(), 0);
        }
        assert_eq!(reno.allowance(), 21 * MSS);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut reno = NewReno::new(MSS);
        reno.on_ack(Offset(MSS), MSS, MSS, 0);
        assert_eq!(reno.allowance(), 10 * MSS);
    }

    #[test]
    fn three_duplicates_start_a_recovery_that_ends_when_all_is_acknowledged() {
        let mut reno = NewReno::new(MSS);
        let (una, end) = (Offset(5_000), Offset(15_000));
        assert!(!reno.on_duplicate(una, end, 10 * MSS));
        assert_eq!(reno.allowance(), 11 * MSS); // limited transmit
        assert!(!reno.on_duplicate(una, end + MSS, 11 * MSS));
        assert!(reno.on_duplicate(una, end + 2 * MSS, 12 * MSS));
        assert_eq!((reno.threshold, reno.allowance()), (5 * MSS, 8 * MSS));
        assert!(!reno.on_duplicate(una, end + 2 * MSS, 12 * MSS));
        assert_eq!(reno.allowance(), 9 * MSS);
        assert!(reno.on_ack(una + 3 * MSS, 3 * MSS, 12 * MSS, 9 * MSS)); // partial: the next segment is lost, too
        assert_eq!(reno.allowance(), 7 * MSS);
        assert!(!reno.on_ack(end + 2 * MSS, 9 * MSS, 9 * MSS, 0));
        assert_eq!(reno.allowance(), 2 * MSS); // nothing is in flight, so a large window would allow a burst
    }

    #[test]
    fn duplicates_after_a_timeout_start_no_recovery() {
        let mut reno = NewReno::new(MSS);
        reno.on_timeout(Offset(20_000), 10 * MSS, false);
        assert_eq!((reno.threshold, reno.allowance()), (5 * MSS, MSS));
        reno.on_timeout(Offset(20_000), MSS, true);
        assert_eq!(reno.threshold, 5 * MSS);
        for _ in 0..5 {
            assert!(!reno.on_duplicate(Offset(20_000), Offset(25_000), 5 * MSS));
        }
        reno.on_ack(Offset(21_000), MSS, 5 * MSS, 4 * MSS);
        for expected in [false, false, true] {
            assert_eq!(
                reno.on_duplicate(Offset(21_000), Offset(25_000), 4 * MSS),
                expected
            );
        }
    }
}
