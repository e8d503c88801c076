//! The hysteresis of all policies: a session moves only after several bad samples in a row, and not soon after its last move.

use std::time::Duration;

use crate::Instant;

/// Number of moves in a row after which silence of the new owner causes no other move. The session may have nothing to say.
pub(super) const SILENT_MOVES: u32 = 3;

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
