//! Keeps a flickering path from moving a service back and forth. After a loss, the path must work for some time without a break. This
//! time doubles with each further loss that comes soon. RFC 2439 has the same purpose, but uses a figure of merit instead of a timer.

use std::time::Duration;

use crate::Instant;

/// Time that a path must work after a single loss before it is trusted again.
const HOLD: Duration = Duration::from_secs(1);
/// Upper bound of the time that a path must work. This time doubles with each repeated loss.
const HOLD_MAX: Duration = Duration::from_secs(32);
/// Time without a loss after which a loss counts as single again.
const CALM: Duration = Duration::from_secs(60);

/// The history of one path.
#[derive(Debug, Default)]
pub(crate) struct Damping {
    losses: u64,
    is_bad: bool,
    /// The path has worked before.
    was_good: bool,
    lost_at: Option<Instant>,
    good_since: Option<Instant>,
    hold: Duration,
}

impl Damping {
    /// The history of a path that was lost at `at` and must work for `hold` before it is trusted again. It does not work yet.
    pub(crate) const fn after_loss(at: Instant, hold: Duration) -> Self {
        Self {
            losses: 1,
            is_bad: true,
            was_good: true,
            lost_at: Some(at),
            good_since: None,
            hold,
        }
    }

    /// The arguments with which [`after_loss`](Self::after_loss) continues this history. `None` without a loss.
    pub(crate) fn last_loss(&self) -> Option<(Instant, Duration)> {
        Some((self.lost_at?, self.hold))
    }

    /// Notes whether the path works now. `is_known`: there was enough time to find out. A path that has never worked cannot be lost.
    pub(crate) fn on_look(&mut self, now: Instant, is_good: bool, is_known: bool) {
        if is_good && (self.is_bad || !self.was_good) {
            (self.is_bad, self.was_good, self.good_since) = (false, true, Some(now));
        } else if !is_good && is_known && !self.is_bad {
            let was_steady = self.is_steady(now);
            self.is_bad = true;
            if !self.was_good {
                return;
            }
            // A break before the path is trusted again does not lengthen the hold.
            if was_steady {
                let is_again = self.lost_at.is_some_and(|at| now.since(at) < CALM);
                self.hold = if is_again { self.hold * 2 } else { HOLD };
                self.hold = self.hold.min(HOLD_MAX);
            }
            self.lost_at = Some(now);
            self.losses += 1;
        }
    }

    /// Whether the path has worked for long enough since the last loss.
    pub(crate) fn is_steady(&self, now: Instant) -> bool {
        let has_held = || self.good_since.is_some_and(|since| now.since(since) >= self.hold);
        !self.is_bad && (self.losses == 0 || has_held())
    }

    /// Number of losses.
    pub(crate) const fn losses(&self) -> u64 {
        self.losses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn each_loss_holds_twice_as_long_until_there_was_calm() {
        let mut damping = Damping::default();
        damping.on_look(at(0), true, true);
        assert!(damping.is_steady(at(0)), "it was never lost");
        let mut holds = Vec::new();
        let mut now = 0;
        for _ in 0..8 {
            for _ in 0..3 {
                now += 100;
                damping.on_look(at(now), false, true);
                assert!(!damping.is_steady(at(now)));
                now += 100;
                damping.on_look(at(now), true, true);
            }
            let steady = (now..).step_by(500).find(|&later| damping.is_steady(at(later)));
            let steady = steady.expect("it is steady in the end");
            holds.push(steady - now);
            now = steady;
        }
        assert_eq!(holds, [1000, 2000, 4000, 8000, 16_000, 32_000, 32_000, 32_000]);
        now += 60_000;
        damping.on_look(at(now), false, true);
        damping.on_look(at(now + 1), true, true);
        assert!(!damping.is_steady(at(now + 1000)) && damping.is_steady(at(now + 1001)));
        assert_eq!(damping.losses(), 25);
    }

    #[test]
    fn a_history_that_is_continued_holds_as_long() {
        let mut damping = Damping::default();
        assert_eq!(damping.last_loss(), None);
        for second in 0..4 {
            damping.on_look(at(10_000 * second), true, true);
            damping.on_look(at(10_000 * second + 9000), false, true);
        }
        let (lost_at, hold) = damping.last_loss().expect("it was lost");
        assert_eq!((lost_at, hold), (at(39_000), Duration::from_secs(8)));
        let mut later = Damping::after_loss(lost_at, hold);
        assert!(!later.is_steady(at(60_000)));
        for one in [&mut damping, &mut later] {
            one.on_look(at(60_000), true, true);
            assert!(!one.is_steady(at(67_999)) && one.is_steady(at(68_000)));
            one.on_look(at(90_000), false, true);
            assert_eq!(one.last_loss(), Some((at(90_000), Duration::from_secs(16))));
        }
    }

    #[test]
    fn what_never_worked_is_not_lost() {
        let mut damping = Damping::default();
        damping.on_look(at(0), false, false);
        damping.on_look(at(100), false, true);
        assert_eq!(damping.losses(), 0);
        damping.on_look(at(200), true, true);
        assert!(damping.is_steady(at(200)));
    }
}
