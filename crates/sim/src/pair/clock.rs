//! A node's own clock.

use std::time::Duration;

use proto::Instant;

const MILLION: i128 = 1_000_000;

/// A node's clock. It differs from the world's time by an offset, and may run faster or slower.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeClock {
    /// World time at which the clock was last set.
    origin: Instant,
    /// The clock's time at `origin`.
    shown: Instant,
    /// How much faster the clock runs than the world's time, in millionths. Negative if it runs slower.
    drift: i64,
    /// Total time for which the machine's counter has stood still.
    stood: Duration,
}

impl NodeClock {
    /// A clock that is ahead of the world's time by `ahead`.
    pub fn new(ahead: Duration) -> Self {
        Self {
            origin: Instant::ZERO,
            shown: Instant::ZERO + ahead,
            drift: 0,
            stood: Duration::ZERO,
        }
    }

    /// Sets the clock's speed: from now on it runs `drift` millionths faster than the world's time.
    pub fn set_drift(&mut self, now: Instant, drift: i32) {
        self.shown = self.read(now);
        self.origin = self.origin.max(now);
        self.drift = drift.into();
    }

    /// Stops the clock until `until`, as when a hypervisor pauses the machine. The counter stops too, unless `counter_goes_on`.
    pub fn stand_still(&mut self, now: Instant, until: Instant, counter_goes_on: bool) {
        self.shown = self.read(now);
        if !counter_goes_on {
            self.stood += until.since(self.origin.max(now));
        }
        self.origin = self.origin.max(until);
    }

    /// Value in nanoseconds of the machine's counter (like a CPU's time-stamp counter) when the clock shows `time`.
    pub fn counter(&self, time: Instant) -> u64 {
        (self.when(time) - self.stood).as_nanos()
    }

    /// The clock's time at the world time `now`.
    pub fn read(&self, now: Instant) -> Instant {
        let passed = i128::from(now.as_nanos().saturating_sub(self.origin.as_nanos()));
        let shown = i128::from(self.shown.as_nanos())
            + passed
            + (passed * i128::from(self.drift)).div_euclid(MILLION);
        Instant::from_nanos(u64::try_from(shown.max(0)).unwrap_or(u64::MAX))
    }

    /// The first world time, not before the clock was last set, at which the clock shows `time` or more.
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
            let mut clock = NodeClock::new(Duration::from_nanos(ahead));
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
