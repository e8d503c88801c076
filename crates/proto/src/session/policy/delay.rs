//! Policy `delay`: the next in-sequence data of a stream comes late, or its intervals vary too much. The variation is estimated as in RFC
//! 3550, section 6.4.1: J ← J + (|D| − J)/16, where D is the difference between two intervals.

use std::time::Duration;

use super::hysteresis::SilenceLimit;
use crate::Instant;

/// The intervals between arrivals of output.
#[derive(Clone, Copy, Debug)]
pub struct ArrivalDelay {
    delay_max: Duration,
    jitter_max: Option<Duration>,
    last: Option<Instant>,
    interval: Option<Duration>,
    jitter: Duration,
    /// When the session has moved to an owner that has said nothing yet.
    silent_since: Option<Instant>,
    silence: SilenceLimit,
}

impl ArrivalDelay {
    /// Longer intervals than `delay_max` are bad. So is a larger variation than `jitter_max`.
    pub const fn new(delay_max: Duration, jitter_max: Option<Duration>) -> Self {
        Self {
            delay_max,
            jitter_max,
            last: None,
            interval: None,
            jitter: Duration::ZERO,
            silent_since: None,
            silence: SilenceLimit::NONE,
        }
    }

    /// Output has arrived. Returns whether it came late or its interval varies too much.
    pub fn on_output(&mut self, now: Instant) -> bool {
        self.silent_since = None;
        self.silence.on_output();
        let Some(last) = self.last.replace(now) else {
            return false;
        };
        let interval = now.since(last);
        if let Some(before) = self.interval.replace(interval) {
            let difference = interval.abs_diff(before);
            self.jitter = self.jitter + difference / 16 - self.jitter / 16;
        }
        interval > self.delay_max || self.jitter_max.is_some_and(|most| self.jitter > most)
    }

    /// Whether the next output is late by now. After a move, the first output is late if it does not come in the same time; after several
    /// moves without any output, the time is longer.
    pub fn is_late(&self, now: Instant) -> bool {
        let since = self.last.or(self.silent_since);
        let late = since.zip(self.silence.factor());
        late.is_some_and(|(since, factor)| now.since(since) > self.delay_max * factor)
    }

    /// Another server owns the session. Its intervals are measured from its first output on.
    pub fn on_move(&mut self, now: Instant) {
        let mut silence = self.silence;
        silence.on_move();
        *self = Self {
            silent_since: Some(now),
            silence,
            ..Self::new(self.delay_max, self.jitter_max)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn late_data_is_bad() {
        let mut delay = ArrivalDelay::new(Duration::from_millis(20), None);
        assert!(!delay.is_late(at(100)) && !delay.on_output(at(100)));
        assert!(!delay.on_output(at(120)) && delay.on_output(at(141)));
        assert!(!delay.is_late(at(161)) && delay.is_late(at(162)));
        delay.on_move(at(162));
        assert!(
            !delay.on_output(at(182)),
            "the interval over the move does not count"
        );
    }

    #[test]
    fn a_silent_owner_is_left_after_a_time_that_doubles() {
        let mut delay = ArrivalDelay::new(Duration::from_millis(20), None);
        delay.on_move(at(0));
        assert!(!delay.is_late(at(999)), "the session has never said anything");
        delay.on_output(at(1000));
        for (moved, limit) in [(1100, 20), (1200, 40), (1300, 80)] {
            delay.on_move(at(moved));
            assert!(!delay.is_late(at(moved + limit)) && delay.is_late(at(moved + limit + 1)));
        }
        delay.on_output(at(2000));
        assert!(delay.is_late(at(2021)));
    }

    #[test]
    fn varying_intervals_are_bad() {
        let mut delay = ArrivalDelay::new(Duration::from_secs(9), Some(Duration::from_millis(2)));
        let mut now = 0;
        let mut play = |interval| {
            now += interval;
            delay.on_output(at(now))
        };
        assert!((0..50).all(|_| !play(10)));
        assert!(!play(26), "J is 1 ms");
        let bad = (0..10)
            .filter(|round| play(if round % 2 == 0 { 5 } else { 45 }))
            .count();
        assert!(bad > 5, "{bad}");
    }
}
