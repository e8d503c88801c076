//! The hysteresis of all policies: a session moves only after several bad samples in a row, and not soon after its last move.

use std::time::Duration;

use crate::Instant;

/// The time for which a new owner may be silent. The session may have nothing to say, so the time doubles with each move in a row: a session leaves
/// a server that hangs, however often it has moved before, and a silent session moves ever more rarely.
#[derive(Clone, Copy, Debug)]
pub(super) struct SilenceLimit {
    has_spoken: bool,
    /// Number of moves since the last output.
    moves: u32,
}

impl SilenceLimit {
    /// The limit of a session that has not said anything.
    pub(super) const NONE: Self = Self {
        has_spoken: false,
        moves: 0,
    };
    /// Largest number of doublings. With limits of 50 ms, the longest silence is then 55 minutes.
    const DOUBLINGS: u32 = 16;

    /// Output has arrived.
    pub(super) const fn on_output(&mut self) {
        (self.has_spoken, self.moves) = (true, 0);
    }

    /// Another server owns the session.
    pub(super) const fn on_move(&mut self) {
        self.moves = self.moves.saturating_add(1);
    }

    /// The multiple of the usual limit that counts now. `None`: silence is not bad, because the session has never said anything.
    pub(super) fn factor(self) -> Option<u32> {
        let doublings = self.moves.saturating_sub(1).min(Self::DOUBLINGS);
        self.has_spoken.then_some(1 << doublings)
    }
}

/// Parameters of the hysteresis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HysteresisConfig {
    /// Number of bad samples in a row that cause a move.
    pub strikes: u32,
    /// Time after a move, or after a failed attempt, in which no policy causes another one.
    pub hold: Duration,
}

/// Turns samples into moves.
#[derive(Clone, Copy, Debug)]
pub struct MoveHysteresis {
    config: HysteresisConfig,
    strikes: u32,
    quiet_until: Instant,
}

impl MoveHysteresis {
    /// The hysteresis of a session that begins now.
    pub fn new(now: Instant, config: HysteresisConfig) -> Self {
        Self {
            config,
            strikes: 0,
            quiet_until: now + config.hold,
        }
    }

    /// A sample is good or bad. Returns whether the session should move now.
    pub fn on_sample(&mut self, now: Instant, is_bad: bool) -> bool {
        if !is_bad || now < self.quiet_until {
            self.strikes = 0;
            return false;
        }
        self.strikes += 1;
        self.strikes >= self.config.strikes
    }

    /// The session moves, or has moved, or could not.
    pub fn on_move(&mut self, now: Instant) {
        self.strikes = 0;
        self.quiet_until = now + self.config.hold;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn a_session_does_not_move_back_and_forth() {
        let config = HysteresisConfig {
            strikes: 2,
            hold: Duration::from_millis(100),
        };
        let mut hysteresis = MoveHysteresis::new(at(0), config);
        assert!(!hysteresis.on_sample(at(98), true) && !hysteresis.on_sample(at(99), true));
        assert!(
            !hysteresis.on_sample(at(100), true),
            "samples of the hold do not count"
        );
        assert!(!hysteresis.on_sample(at(101), false));
        assert!(!hysteresis.on_sample(at(102), true));
        assert!(hysteresis.on_sample(at(103), true));
        hysteresis.on_move(at(104));
        assert!(!hysteresis.on_sample(at(203), true) && !hysteresis.on_sample(at(204), true));
        assert!(hysteresis.on_sample(at(205), true));
    }
}
