//! Policy `rate`: the rate of the output that arrives has dropped (Sultan et al., section 5). S ← α·M + (1−α)·S, with α = 1/8. A sample is
//! bad if S is more than 25 % below the highest S since the session is served by the present owner.

use std::time::Duration;

use super::hysteresis::SilenceLimit;
use crate::Instant;

/// 1/α: the weight of a new sample is one part of this number.
const PARTS: f64 = 8.0;
/// A rate below this part of the highest one is bad.
const BAD_BELOW: f64 = 0.75;

/// The rate at which output arrives.
#[derive(Clone, Copy, Debug)]
pub struct InboundRate {
    interval: Duration,
    begun: Instant,
    bytes: u64,
    smoothed: Option<f64>,
    highest: f64,
    /// Number of samples without output since the session is served by the present owner.
    silent_samples: u32,
    silence: SilenceLimit,
}

impl InboundRate {
    /// Takes a sample in each interval of this length.
    pub const fn new(now: Instant, interval: Duration) -> Self {
        Self {
            interval,
            begun: now,
            bytes: 0,
            smoothed: None,
            highest: 0.0,
            silent_samples: 0,
            silence: SilenceLimit::NONE,
        }
    }

    /// Output has arrived.
    pub const fn on_output(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.silence.on_output();
    }

    /// When the next sample is due.
    pub fn due(&self) -> Instant {
        self.begun + self.interval
    }

    /// Takes the sample that is due, if one is. Returns whether it is bad. Before the first output, there is no sample. An owner that says
    /// nothing after a move, although an earlier one did, is bad; after several moves without any output, this takes more samples.
    pub fn sample(&mut self, now: Instant) -> Option<bool> {
        if now < self.due() {
            return None;
        }
        let measured = self.bytes as f64 / now.since(self.begun).as_secs_f64();
        (self.begun, self.bytes) = (now, 0);
        let smoothed = match self.smoothed {
            None if measured == 0.0 => {
                self.silent_samples = self.silent_samples.saturating_add(1);
                let most = self.silence.factor()?;
                return (self.silent_samples >= most).then_some(true);
            }
            None => measured,
            Some(before) => before + (measured - before) / PARTS,
        };
        self.smoothed = Some(smoothed);
        self.highest = self.highest.max(smoothed);
        Some(smoothed < BAD_BELOW * self.highest)
    }

    /// Another server owns the session. Its rate is measured from the beginning.
    pub const fn on_move(&mut self, now: Instant) {
        let mut silence = self.silence;
        silence.on_move();
        *self = Self {
            silence,
            ..Self::new(now, self.interval)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_estimator_and_threshold() {
        let at = |sample: u64| Instant::ZERO + Duration::from_millis(10 * sample);
        let mut rate = InboundRate::new(at(0), Duration::from_millis(10));
        assert_eq!(rate.sample(at(1)), None, "no output yet");
        for sample in 2..6 {
            rate.on_output(800);
            assert_eq!(rate.sample(at(sample)), Some(false));
        }
        // Without output: 7/8, (7/8)² = 0.766, (7/8)³ = 0.670.
        assert_eq!(rate.sample(at(6)), Some(false));
        assert_eq!(rate.sample(at(7)), Some(false));
        assert_eq!(rate.sample(at(8)), Some(true));
        rate.on_move(at(9));
        rate.on_output(10);
        assert_eq!(
            rate.sample(at(10)),
            Some(false),
            "the highest rate is the new server's"
        );
    }

    #[test]
    fn a_silent_owner_is_left_after_a_time_that_doubles() {
        let at = |sample: u64| Instant::ZERO + Duration::from_millis(10 * sample);
        let mut rate = InboundRate::new(at(0), Duration::from_millis(10));
        assert_eq!(rate.sample(at(1)), None);
        rate.on_move(at(1));
        assert_eq!(rate.sample(at(2)), None, "the session has never said anything");
        rate.on_output(800);
        assert_eq!(rate.sample(at(3)), Some(false));
        for (moved, samples) in [(10, 1), (20, 2), (30, 4)] {
            rate.on_move(at(moved));
            assert!((1..samples).all(|sample| rate.sample(at(moved + sample)).is_none()));
            assert_eq!(rate.sample(at(moved + samples)), Some(true));
        }
        rate.on_output(800);
        assert_eq!(rate.sample(at(40)), Some(false));
        rate.on_move(at(50));
        assert_eq!(rate.sample(at(51)), Some(true));
    }
}
