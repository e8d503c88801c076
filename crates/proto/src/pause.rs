//! Has this node's clock stood still? A hypervisor that pauses a virtual machine usually stops `CLOCK_MONOTONIC`, but not the CPU's
//! time-stamp counter (docs/KERNEL.md). If the counter has advanced further than the clock, the machine was paused.
//!
//! This matters for leases: if the clock that measures a lease stood still, the lease looks valid after it has ended.

use std::time::Duration;

use crate::Instant;

/// The shortest pause that is noticed. Shorter pauses are covered by the 1/16 that a lease allows for clock drift.
const LOST_MIN: Duration = Duration::from_millis(10);
/// Length of one measurement of the counter's rate.
const MEASURED: Duration = Duration::from_secs(1);

/// The clock, read between two readings of the counter. An interruption between the readings can hide a pause, but cannot be mistaken for a
/// pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// The counter, read before the clock.
    pub before: u64,
    /// The clock.
    pub clock: Instant,
    /// The counter, read after the clock.
    pub after: u64,
}

/// Compares the clock with the counter, after learning the counter's rate in the first second.
#[derive(Clone, Copy, Debug, Default)]
pub struct PauseWatch {
    last: Option<ClockReading>,
    /// The reading with which the measurement of the rate began.
    began: Option<ClockReading>,
    rate: Option<CounterRate>,
}

/// The counter's rate: `ticks` in the time `per` of the clock.
#[derive(Clone, Copy, Debug)]
struct CounterRate {
    ticks: u64,
    per: Duration,
}

impl CounterRate {
    /// Returns an upper bound of the rate, so that the times computed from this rate are lower bounds.
    fn between(began: ClockReading, now: ClockReading) -> Self {
        Self {
            ticks: now.after.saturating_sub(began.before).max(1),
            per: now.clock.since(began.clock),
        }
    }

    fn time(self, ticks: u64) -> Duration {
        let nanos = u128::from(ticks) * self.per.as_nanos() / u128::from(self.ticks);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl PauseWatch {
    /// Whether the counter's rate is known. Until then no pause is noticed.
    pub const fn knows_rate(&self) -> bool {
        self.rate.is_some()
    }

    /// The time by which the clock has fallen behind since the last look. `None` if the clock has not stood still.
    pub fn look(&mut self, now: ClockReading) -> Option<Duration> {
        let last = self.last.replace(now)?;
        let began = *self.began.get_or_insert(last);
        let ticks = now.before.saturating_sub(last.after);
        let passed = self.rate.map_or(Duration::ZERO, |rate| rate.time(ticks));
        let lost = passed.saturating_sub(now.clock.since(last.clock));
        if lost >= LOST_MIN {
            self.began = Some(now); // the rate is measured between pauses
            return Some(lost);
        }
        if now.clock.since(began.clock) >= MEASURED {
            self.rate = Some(CounterRate::between(began, now));
            self.began = Some(now);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A machine whose counter makes 5 ticks in 2 ns.
    struct PausedMachine {
        world: u64,
        behind: u64,
        watch: PauseWatch,
    }

    impl PausedMachine {
        fn new() -> Self {
            let mut machine = Self {
                world: 7 * MS,
                behind: 0,
                watch: PauseWatch::default(),
            };
            assert_eq!(machine.look_after(0, 0), None);
            machine
        }

        /// Lets `time` nanoseconds pass, then looks. The look is interrupted for `interrupted` nanoseconds after its first reading of the
        /// counter.
        fn look_after(&mut self, time: u64, interrupted: u64) -> Option<Duration> {
            self.world += time;
            let before = self.world * 5 / 2;
            self.world += interrupted;
            let clock = Instant::from_nanos(self.world - self.behind);
            let after = self.world * 5 / 2;
            self.watch.look(ClockReading { before, clock, after })
        }

        fn pause(&mut self, time: u64) {
            self.world += time;
            self.behind += time;
        }
    }

    #[test]
    fn a_pause_is_noticed_once_and_by_its_length() {
        let mut machine = PausedMachine::new();
        for _ in 0..300 {
            assert_eq!(machine.look_after(4 * MS, 0), None);
        }
        for length in [11, 300, 5_000, 86_400_000] {
            machine.pause(length * MS);
            let lost = machine.look_after(4 * MS, 0).expect("it was paused");
            let length = Duration::from_millis(length);
            assert!(
                length - length / 1000 <= lost && lost <= length,
                "{lost:?} of {length:?}"
            );
            assert_eq!(machine.look_after(4 * MS, 0), None);
        }
    }

    #[test]
    fn being_interrupted_is_no_pause() {
        let mut machine = PausedMachine::new();
        for round in 0..3_000 {
            let interrupted = if round % 7 == 0 { round * MS } else { 0 };
            assert_eq!(
                machine.look_after((round % 50) * MS, interrupted),
                None,
                "{round}"
            );
        }
        assert_eq!(
            machine.look_after(3_600_000 * MS, 0),
            None,
            "the process was stopped, but the clock went on"
        );
    }

    #[test]
    fn a_pause_in_the_first_second_hides_no_later_one_for_long() {
        let mut machine = PausedMachine::new();
        machine.pause(60_000 * MS);
        for _ in 0..2_000 {
            assert_eq!(machine.look_after(MS, 0), None);
        }
        machine.pause(100 * MS);
        assert!(machine.look_after(MS, 0).is_some());
    }

    #[test]
    fn a_counter_that_stands_still_tells_nothing() {
        let mut watch = PauseWatch::default();
        for millis in 0..5_000 {
            let clock = Instant::from_nanos(millis * MS);
            let reading = ClockReading {
                before: 9,
                clock,
                after: 9,
            };
            assert_eq!(watch.look(reading), None);
        }
    }
}
