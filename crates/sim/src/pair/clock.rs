//! A node's own clock.

use std::time::Duration;

use proto::Instant;

const MILLION: i128 = 1_000_000;

/// A clock that started at another time than the world's, and runs at another speed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// At this time of the world, the clock showed `shown`.
    origin: Instant,
    /// What the clock showed at `origin`.
    shown: Instant,
    /// How much faster the clock is, in millionths.
    drift: i64,
    /// For how long the machine's counter has stood still.
    stood: Duration,
}

impl Clock {
    /// A clock that is ahead of the world's time by `ahead`.
    pub fn new(ahead: Duration) -> Self {
        Self {
            origin: Instant::ZERO,
            shown: Instant::ZERO + ahead,
            drift: 0,
            stood: Duration::ZERO,
        }
    }

    /// From now on the clock is faster by `drift` millionths.
    pub fn set_drift(&mut self, now: Instant, drift: i32) {
        self.shown = self.read(now);
        self.origin = self.origin.max(now);
        self.drift = drift.into();
    }

    /// The clock stands still until `until`, because a hypervisor has paused the machine. The machine's counter may go on.
    pub fn stand_still(&mut self, now: Instant, until: Instant, counter_goes_on: bool) {
        self.shown = self.read(now);
        if !counter_goes_on {
            self.stood += until.since(self.origin.max(now));
        }
        self.origin = self.origin.max(until);
    }

    /// The machine's counter, which counts nanoseconds, when the clock shows `time`.
    pub fn counter(&self, time: Instant) -> u64 {
        (self.when(time) - self.stood).as_nanos()
    }

    /// What the clock shows at a time of the world.
    pub fn read(&self, now: Instant) -> Instant {
        let passed = i128::from(now.as_nanos().saturating_sub(self.origin.as_nanos()));
        let shown = i128::from(self.shown.as_nanos())
            + passed
            + (passed * i128::from(self.drift)).div_euclid(MILLION);
        Instant::from_nanos(u64::try_from(shown.max(0)).unwrap_or(u64::MAX))
    }

    /// The first time of the world, since the clock was last set, at which the clock shows `time` or more.
    pub fn when(&self, time: Instant) -> Instant {
        let ahead = i128::from(time.as_nanos()) - i128::from(self.shown.as_nanos());
        let passed = (ahead * MILLION).div_euclid(MILLION + i128::from(self.drift));
        let at = i128::from(self.origin.as_nanos()) + passed;
        let mut at = Instant::from_nanos(u64::try_from(at.max(0)).unwrap_or(u64::MAX)).max(self.origin);
        while self.read(at) < time {
            at += Duration::from_nanos(1);
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_time_is_shown_when_it_is_said_to_be(ahead in 0..1_000_000_u64, drift in -20_000..20_000_i32, time in 0..10_000_000_000_u64) {
            let mut clock = Clock::new(Duration::from_nanos(ahead));
            let begin = Instant::from_nanos(5_000);
            clock.set_drift(begin, drift);
            let time = Instant::from_nanos(time);
            let at = clock.when(time);
            prop_assert!(clock.read(at) >= time);
            if at > begin {
                prop_assert!(clock.read(Instant::from_nanos(at.as_nanos() - 1)) < time);
            }
        }
    }
}
