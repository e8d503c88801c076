//! The retransmission timeout (RFC 6298), in the arithmetic of Jacobson and Karels 1988 (Appendix A): whole ticks with a few binary places.
//! With a fine tick the timeouts are those of RFC 6298. With a tick of 10 ms they are those of BSD and ns-2.

use proto::Instant;

use super::config::RtoConfig;

/// Number of binary places of the smoothed round trip, and of its variation.
const SMOOTHED_PLACES: u32 = 3;
const VARIATION_PLACES: u32 = 2;

/// Number of doublings after which the round trip is estimated anew, because the path may have changed (RFC 6298 §5, last paragraph). ns-2
/// and BSD do so after the fourth doubling.
const FORGET_AFTER: u32 = 4;

#[derive(Clone, Debug)]
pub(super) struct FlowRto {
    /// 8 × SRTT and 4 × RTTVAR, in ticks. If `smoothed` is 0, there is no estimate: no sample has come yet, or none since the timeout
    /// doubled [`FORGET_AFTER`] times.
    smoothed: i64,
    variation: i64,
    /// The timeout before bounds and backoff, in nanoseconds. With `min_above_round_trip`, it contains that lower bound already.
    base: u64,
    doublings: u32,
    /// Number of further timeouts of the SYN that will not double the timeout.
    linear: u32,
    min: u64,
    min_above_round_trip: bool,
    max: u64,
    tick: u64,
    phase: u64,
}

impl FlowRto {
    pub fn new(config: &RtoConfig) -> Self {
        let nanos = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self {
            smoothed: 0,
            variation: 0,
            base: nanos(config.syn),
            doublings: 0,
            linear: config.linear_syns,
            min: nanos(config.min),
            min_above_round_trip: config.min_above_round_trip,
            max: nanos(config.max),
            tick: nanos(config.tick),
            phase: config.phase.map_or(0, nanos),
        }
    }

    /// Number of ticks of this end's clock until `at`.
    const fn ticks(&self, at: Instant) -> u64 {
        (at.as_nanos() + self.phase) / self.tick
    }

    /// A segment that was sent at `sent` was acknowledged at `now` (RFC 6298 §2.2, §2.3).
    pub fn on_sample(&mut self, sent: Instant, now: Instant) {
        // Counts the round trip in whole ticks, from the last tick before the segment was sent. A clock with such ticks measures the same
        // number.
        let passed = now.as_nanos() + self.phase - self.ticks(sent) * self.tick;
        let measured = i64::try_from(passed / self.tick).unwrap_or(i64::MAX >> 8).max(1);
        if self.smoothed == 0 {
            self.smoothed = measured << SMOOTHED_PLACES;
            self.variation = measured << (VARIATION_PLACES - 1);
        } else {
            let difference = measured - (self.smoothed >> SMOOTHED_PLACES);
            self.smoothed = (self.smoothed + difference).max(1);
            self.variation =
                (self.variation + difference.abs() - (self.variation >> VARIATION_PLACES)).max(1);
        }
        let four_variations = self.variation << (2 + SMOOTHED_PLACES - VARIATION_PLACES);
        let ticks = (four_variations + self.smoothed) >> SMOOTHED_PLACES;
        self.base = ticks.unsigned_abs().saturating_mul(self.tick);
        if self.min_above_round_trip {
            self.base = self.base.max(self.round_trip().saturating_add(self.min));
        }
    }

    /// The SYN was acknowledged. Without a sample, the timeout for data is `initial`. `keep_backoff` keeps the doublings of the SYN's
    /// timeouts.
    pub fn on_opened(&mut self, initial: u64, keep_backoff: bool) {
        if self.smoothed == 0 {
            self.base = initial;
        }
        self.linear = 0;
        if !keep_backoff {
            self.doublings = 0;
        }
    }

    /// Doubles the timeout (RFC 6298 §5.5), unless it has reached its maximum, or this timeout of the SYN is one of the first `linear`.
    pub fn on_timeout(&mut self) {
        if self.linear > 0 {
            self.linear -= 1;
            return;
        }
        if self.current() < self.max {
            self.doublings += 1;
        }
        if self.doublings >= FORGET_AFTER {
            self.smoothed = 0;
        }
    }

    /// A timed segment that was sent only once was acknowledged (Karn's algorithm: RFC 6298 §5, note).
    pub fn end_backoff(&mut self) {
        self.doublings = 0;
    }

    /// The smoothed round trip, in nanoseconds; 0 without a sample.
    pub fn round_trip(&self) -> u64 {
        (self.smoothed >> SMOOTHED_PLACES).unsigned_abs() * self.tick
    }

    /// The current retransmission timeout, in nanoseconds (RFC 6298 §2.4, §2.5).
    pub fn current(&self) -> u64 {
        let factor = 1_u64.checked_shl(self.doublings).unwrap_or(u64::MAX);
        let floor = 2 * self.tick;
        self.base
            .max(self.min)
            .saturating_mul(factor)
            .min(self.max)
            .max(floor)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * MS)
    }

    fn rto(tick: u64, phase: u64) -> FlowRto {
        FlowRto::new(&RtoConfig {
            min: Duration::from_millis(200),
            max: Duration::from_secs(64),
            tick: Duration::from_nanos(tick),
            phase: Some(Duration::from_nanos(phase)),
            ..RtoConfig::default()
        })
    }

    #[test]
    fn with_a_fine_clock_it_is_rfc_6298() {
        let mut rto = rto(1, 0);
        assert_eq!(rto.current(), 1000 * MS);
        rto.on_sample(at(0), at(300));
        assert_eq!(rto.current(), 900 * MS); // 300 + 4 · 150
        rto.on_sample(at(300), at(680));
        assert_eq!(rto.current(), 840 * MS); // 310 + 4 · (3 · 150 + 80) / 4
    }

    #[test]
    fn with_a_coarse_clock_ticks_are_counted_from_the_agents_own_start() {
        // The sample takes 98.4 ms, from 3 ms to 101.4 ms. Ticks are at 10, 20 … 100 ms, or with a phase of 9 ms at 1, 11 … 101 ms.
        let sample = |phase| {
            let mut rto = rto(10 * MS, phase);
            rto.on_sample(at(3), Instant::from_nanos(101_400_000));
            rto.current()
        };
        assert_eq!(sample(0), 300 * MS); // 10 ticks + 4 · 5
        assert_eq!(sample(9 * MS), 300 * MS); // 10 ticks from the tick at 1 ms
        assert_eq!(sample(MS), 300 * MS);
        let mut rto = rto(10 * MS, 0);
        rto.on_sample(at(0), Instant::from_nanos(98_400_000));
        assert_eq!(rto.current(), 270 * MS); // 9 ticks + 4 · 4.5
    }

    /// Linux: SRTT + max(4 · RTTVAR, 200 ms).
    #[test]
    fn the_least_timeout_may_stand_above_the_round_trip() {
        let mut rto = FlowRto::new(&RtoConfig {
            min: Duration::from_millis(200),
            min_above_round_trip: true,
            ..RtoConfig::default()
        });
        for _ in 0..50 {
            rto.on_sample(at(0), at(100));
        }
        assert_eq!(rto.current(), 300 * MS);
        rto.on_sample(at(0), at(500));
        assert_eq!(rto.current(), 553 * MS); // 150 + 4 · 100, and a remainder of the first sample's variation
    }

    /// Linux: SYNs at 0, 1, 2, 3, 4, 5, 7, 11 s.
    #[test]
    fn the_first_syns_may_wait_equally_long() {
        let mut rto = FlowRto::new(&RtoConfig {
            linear_syns: 4,
            ..RtoConfig::default()
        });
        let waits = [(); 7].map(|()| {
            let wait = rto.current();
            rto.on_timeout();
            wait / (1000 * MS)
        });
        assert_eq!(waits, [1, 1, 1, 1, 1, 2, 4]);
        rto.on_opened(1000 * MS, false);
        rto.on_timeout();
        assert_eq!(rto.current(), 2000 * MS);
    }

    #[test]
    fn it_doubles_to_the_largest_and_forgets_the_path_on_the_way() {
        let mut rto = rto(1, 0);
        rto.on_sample(at(0), at(100));
        for ms in [600, 1200, 2400, 4800, 9600, 19_200, 38_400, 64_000, 64_000] {
            rto.on_timeout();
            assert_eq!(rto.current(), ms * MS);
        }
        rto.end_backoff();
        assert_eq!(rto.current(), 300 * MS);
        rto.on_sample(at(0), at(500));
        assert_eq!(rto.current(), 1500 * MS); // as from a first sample
    }
}
