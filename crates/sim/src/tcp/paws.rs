//! Timestamps (RFC 7323): our clock, the peer's, and the protection against wrapped sequence numbers.

use std::time::Duration;

use proto::Instant;
use proto::packet::Timestamps;

/// Time without a segment after which the peer's last timestamp is void (RFC 7323 §5.5).
const OUTDATED: Duration = Duration::from_secs(24 * 24 * 60 * 60);

/// The timestamps of one connection.
#[derive(Clone, Debug)]
pub(super) struct Paws {
    offset: u32,
    tick: Tick,
    /// `TS.Recent` and when it came. `None` before the peer's first segment, or after a restore.
    recent: Option<(u32, Instant)>,
}

/// Unit of our clock. Linux keeps this choice in bit 0 of a restored timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tick {
    Millisecond,
    Microsecond,
}

impl Paws {
    /// A clock that shows `offset` at the origin of time.
    pub const fn new(offset: u32) -> Self {
        Self {
            offset,
            tick: Tick::Millisecond,
            recent: None,
        }
    }

    /// A clock that shows `value` at `now`. As in Linux, bit 0 makes it count microseconds.
    pub const fn restore(value: u32, now: Instant) -> Self {
        let tick = if value & 1 == 0 {
            Tick::Millisecond
        } else {
            Tick::Microsecond
        };
        Self {
            offset: value.wrapping_sub(tick.count(now)),
            tick,
            recent: None,
        }
    }

    /// Value of our clock.
    pub const fn clock(&self, now: Instant) -> u32 {
        self.offset.wrapping_add(self.tick.count(now))
    }

    /// Value that a restored endpoint needs to continue this clock, with the unit in bit 0.
    pub const fn export(&self, now: Instant) -> u32 {
        match self.tick {
            Tick::Millisecond => self.clock(now) & !1,
            Tick::Microsecond => self.clock(now) | 1,
        }
    }

    /// The option of a segment that leaves now.
    pub fn option(&self, now: Instant) -> Timestamps {
        Timestamps {
            value: self.clock(now),
            echo: self.recent.map_or(0, |(value, _)| value),
        }
    }

    /// Whether a segment with this timestamp may be new (RFC 7323 §5.3).
    pub fn accepts(&self, now: Instant, value: u32) -> bool {
        self.recent.is_none_or(|(recent, at)| {
            value.wrapping_sub(recent).cast_signed() >= 0 || now.since(at) > OUTDATED
        })
    }

    /// Notes `value`, the timestamp of an accepted segment that starts at or before our last acknowledgement.
    pub fn on_accepted(&mut self, now: Instant, value: u32) {
        self.recent = Some((value, now));
    }

    /// Returns the time since our clock showed `echo`, at least one tick. `None` if `echo` is later than our clock, or is 0: a peer that
    /// has seen no timestamp echoes 0.
    pub fn round_trip(&self, now: Instant, echo: u32) -> Option<Duration> {
        let ticks = self.clock(now).wrapping_sub(echo);
        (echo != 0 && ticks.cast_signed() >= 0).then(|| self.tick.duration() * ticks.max(1))
    }
}

impl Tick {
    const fn duration(self) -> Duration {
        match self {
            Self::Millisecond => Duration::from_millis(1),
            Self::Microsecond => Duration::from_micros(1),
        }
    }

    // The cast wraps, as a timestamp does.
    const fn count(self, now: Instant) -> u32 {
        (now.as_nanos() / self.duration().as_nanos() as u64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn an_older_timestamp_is_refused_also_across_the_wrap() {
        let mut paws = Paws::new(0);
        assert!(paws.accepts(at(0), 5));
        paws.on_accepted(at(0), u32::MAX);
        assert!(paws.accepts(at(1), u32::MAX) && paws.accepts(at(1), 3));
        assert!(!paws.accepts(at(1), u32::MAX - 1));
        assert!(paws.accepts(at(0) + OUTDATED + OUTDATED, u32::MAX - 1));
    }

    #[test]
    fn the_echo_tells_the_round_trip() {
        let paws = Paws::new(u32::MAX - 10);
        let sent = paws.option(at(5)).value;
        assert_eq!(paws.round_trip(at(30), sent), Some(Duration::from_millis(25)));
        assert_eq!(paws.round_trip(at(5), sent), Some(Duration::from_millis(1)));
        assert_eq!(paws.round_trip(at(30), 0), None);
        assert_eq!(paws.round_trip(at(30), paws.clock(at(31))), None);
    }

    #[test]
    fn a_restored_clock_goes_on_and_an_odd_value_counts_microseconds() {
        let old = Paws::new(1_000_001);
        let restored = Paws::restore(old.export(at(500)), at(777));
        assert_eq!(restored.clock(at(777)), 1_000_500);
        assert_eq!(restored.clock(at(778)), 1_000_501);
        let odd = Paws::restore(1_000_501, at(777));
        assert_eq!(odd.clock(at(778)), 1_001_501);
        assert_eq!(odd.export(at(777)), 1_000_501);
    }
}
