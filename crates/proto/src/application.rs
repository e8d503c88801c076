//! The state of a service's application on this node, derived from its listeners' deaths, from checks of its address, and from its
//! answers to the health probe.
//!
//! ```text
//!   alive ── listeners have died, and none is left ────▶ dead ── a process listens again ──▶ alive
//!     └───── not serving, and no process listens ──────▶ dead
//!     └───── `failures` answers in a row are missing ──▶ hung ── one good answer ──▶ alive
//! ```

use std::time::Duration;

use crate::Instant;

/// Time between two checks of a dead application's address. The application may have been started again.
const LOOK: Duration = Duration::from_millis(100);
/// Time between two checks of the address of an application that does not serve yet. The checks are needed because the
/// eBPF programs count no listener deaths on a backup.
const LOOK_AHEAD: Duration = Duration::from_secs(1);

/// Whether a process listens at the service's address.
#[derive(Clone, Debug)]
pub struct ListenerPresence {
    /// Number of listener deaths at the last check, if no listener was left then; else 0.
    found: u32,
    /// No process listened at the last check, and the application was not serving when its absence was first seen.
    is_absent: bool,
    looked: Instant,
}

impl ListenerPresence {
    /// The state before the first check: a process listens, as far as is known.
    pub const fn new(now: Instant) -> Self {
        Self {
            found: 0,
            is_absent: false,
            looked: now,
        }
    }

    /// Whether the application is dead: no process listens. `deaths` is the number of the application's listeners that have died. `is_left`
    /// checks whether a process listens. A death alone is no proof: one of several listeners may have died (SO_REUSEPORT), or the service
    /// manager may have started the program again.
    ///
    /// While the application `serves`, an orderly end is the operator's decision and does not count. An application that does not serve
    /// yet is dead whenever no process listens, even after an orderly end. It stays dead when it begins to serve, until a process listens.
    pub fn is_dead(
        &mut self,
        now: Instant,
        deaths: u32,
        serves: bool,
        is_left: impl FnOnce() -> bool,
    ) -> bool {
        let is_suspect = deaths > 0 || self.is_absent;
        let often = if is_suspect { LOOK } else { LOOK_AHEAD };
        let is_known = deaths == self.found && now.since(self.looked) < often;
        if is_known || serves && !is_suspect {
            return is_suspect;
        }
        let is_left = is_left();
        self.found = if is_left { 0 } else { deaths };
        self.is_absent = !is_left && (self.is_absent || !serves);
        self.looked = now;
        !is_left
    }
}

/// Answers to the health probe.
#[derive(Clone, Copy, Debug, Default)]
pub struct HealthAnswers {
    /// Number of missing or wrong answers since the last good one.
    missing: u32,
}

impl HealthAnswers {
    /// Notes an answer, good or not. Returns whether the application hangs: `failures` answers in a row were bad.
    pub fn hangs_after(&mut self, is_good: bool, failures: u32) -> bool {
        self.missing = if is_good {
            0
        } else {
            self.missing.saturating_add(1)
        };
        self.missing >= failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Instant = Instant::from_nanos(1_000_000_000);

    /// A worker's connections die before its listener does. The agent may check in between, when no listener death is counted yet.
    #[test]
    fn no_death_counts_before_it_was_looked_who_is_left() {
        let mut presence = ListenerPresence::new(BEGIN);
        let mut is_dead = |after: Duration, deaths: u32, is_left: Option<bool>| {
            let mut looked = false;
            let is_dead = presence.is_dead(BEGIN + after, deaths, true, || {
                looked = true;
                is_left.expect("no check is due")
            });
            assert_eq!(looked, is_left.is_some());
            is_dead
        };
        let soon = LOOK / 10;
        assert!(!is_dead(soon, 0, None));
        assert!(!is_dead(soon, 1, Some(true)), "another worker listens");
        assert!(
            is_dead(soon * 2, 1, Some(false)),
            "the last listener has died as well"
        );
        assert!(is_dead(soon * 3, 1, None));
        assert!(
            is_dead(soon * 4, 2, Some(false)),
            "a new listener came and has died"
        );
        assert!(!is_dead(soon * 20, 2, Some(true)), "it was started again");
    }

    /// If an application was stopped in an orderly way, or never started, the eBPF programs count no listener death.
    #[test]
    fn an_application_that_would_go_on_must_be_there() {
        let mut presence = ListenerPresence::new(BEGIN);
        let mut is_dead = |after: Duration, serves: bool, is_left: bool| {
            presence.is_dead(BEGIN + after, 0, serves, || is_left)
        };
        let (soon, later) = (LOOK * 2, LOOK_AHEAD * 2);
        assert!(!is_dead(later, true, false), "the operator stopped it");
        assert!(!is_dead(later, false, true));
        assert!(is_dead(later * 2, false, false), "the next check is due");
        assert!(
            is_dead(later * 2 + soon, true, false),
            "no process at the takeover"
        );
        assert!(is_dead(later * 2 + soon * 2, true, false));
        assert!(!is_dead(later * 2 + soon * 3, true, true), "it was started");
        assert!(!is_dead(later * 3, true, false), "and stopped");
    }

    #[test]
    fn only_failures_in_a_row_count() {
        let mut answers = HealthAnswers::default();
        let hangs = [true, false, true, false, false, false, true, false]
            .map(|is_good| answers.hangs_after(is_good, 2));
        assert_eq!(hangs, [false, false, false, false, true, true, false, false]);
    }
}
