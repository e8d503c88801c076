//! The two clocks of a run: events have times of the monotonic clock, captures have times of the wall clock.

use nix::time::{ClockId, clock_gettime};
use proto::Instant;
use serde::{Serialize, Serializer};

/// The kernel's monotonic clock. Nodes and clients report times of this clock.
pub fn monotonic() -> Instant {
    Instant::from_nanos(read(ClockId::CLOCK_MONOTONIC))
}

/// Difference of the two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClockOffset {
    /// Wall clock minus monotonic clock, in nanoseconds.
    pub realtime_minus_monotonic_ns: i64,
}

impl ClockOffset {
    /// Reads both clocks several times and uses the attempt that took the least time.
    pub fn measure() -> Self {
        let reading = || {
            let before = monotonic().as_nanos();
            let realtime = read(ClockId::CLOCK_REALTIME);
            let after = monotonic().as_nanos();
            let between = before + (after - before) / 2;
            (after - before, realtime.cast_signed() - between.cast_signed())
        };
        let best = (0..READINGS).map(|_| reading()).min_by_key(|&(took, _)| took);
        Self {
            realtime_minus_monotonic_ns: best.map_or(0, |(_, offset)| offset),
        }
    }

    /// The wall clock's reading (nanoseconds since 1970) at `instant` of the monotonic clock.
    pub fn realtime_ns(&self, instant: Instant) -> u64 {
        instant
            .as_nanos()
            .saturating_add_signed(self.realtime_minus_monotonic_ns)
    }

    /// The monotonic clock's reading when the wall clock reads `realtime_ns`.
    pub fn monotonic(&self, realtime_ns: u64) -> Instant {
        Instant::from_nanos(realtime_ns.saturating_add_signed(-self.realtime_minus_monotonic_ns))
    }
}

/// Milliseconds from one moment to another. Negative if the second moment is earlier.
pub fn ms(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns as f64 - from_ns as f64) / 1e6
}

/// Serialises a time as nanoseconds of the monotonic clock.
pub fn as_nanos<S: Serializer>(instant: &Instant, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(instant.as_nanos())
}

/// Serialises a time as nanoseconds of the monotonic clock, or as null.
pub fn as_optional_nanos<S: Serializer>(instant: &Option<Instant>, serializer: S) -> Result<S::Ok, S::Error> {
    instant.map(Instant::as_nanos).serialize(serializer)
}

/// Number of attempts to measure the offset.
const READINGS: usize = 8;

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("both clocks exist on every Linux");
    // Neither clock is negative.
    time.tv_sec().cast_unsigned() * 1_000_000_000 + time.tv_nsec().cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_turns_one_clock_into_the_other() {
        let offset = ClockOffset::measure();
        let before = read(ClockId::CLOCK_REALTIME);
        let now = offset.realtime_ns(monotonic());
        let after = read(ClockId::CLOCK_REALTIME);
        // The error of the measurement is below a millisecond, also on a busy machine.
        assert!(
            now + 1_000_000 >= before && now <= after + 1_000_000,
            "{before} {now} {after}"
        );
        let moment = Instant::from_nanos(77);
        assert_eq!(offset.monotonic(offset.realtime_ns(moment)), moment);
    }
}
