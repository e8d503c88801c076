//! Watches one session, and says when it should move.

use std::time::Duration;

use proto::Instant;
use proto::session::policy::delay::ArrivalDelay;
use proto::session::policy::hysteresis::{HysteresisConfig, MoveHysteresis};
use proto::session::policy::rate::InboundRate;
use proto::session::policy::response::ResponseTime;
use proto::session::policy::retransmissions::Retransmissions;

use crate::config::WatchPolicy;

#[derive(Debug)]
enum SessionMetric {
    Manual,
    Rate(InboundRate),
    Response(ResponseTime),
    Delay(ArrivalDelay),
    Retransmissions(Retransmissions),
}

/// Watches one session.
#[derive(Debug)]
pub struct SessionWatch {
    metric: SessionMetric,
    hysteresis: MoveHysteresis,
    /// When a late response or late data was counted last. While it stays late, it counts once in each `SAMPLE`.
    counted: Instant,
}

/// Time between two looks at data that is late.
const SAMPLE: Duration = Duration::from_millis(50);

impl SessionWatch {
    /// Watches a session that begins now.
    pub fn new(now: Instant, policy: WatchPolicy, hysteresis: HysteresisConfig) -> Self {
        let metric = match policy {
            WatchPolicy::Manual => SessionMetric::Manual,
            WatchPolicy::Rate { sample } => SessionMetric::Rate(InboundRate::new(now, sample)),
            WatchPolicy::Response { limit } => SessionMetric::Response(ResponseTime::new(limit)),
            WatchPolicy::Delay { limit, jitter } => SessionMetric::Delay(ArrivalDelay::new(limit, jitter)),
            WatchPolicy::Retransmissions { most, sample } => {
                SessionMetric::Retransmissions(Retransmissions::new(now, sample, most))
            }
        };
        Self {
            metric,
            hysteresis: MoveHysteresis::new(now, hysteresis),
            counted: now,
        }
    }

    /// Whether the watch needs TCP's counter of retransmissions.
    pub const fn needs_retransmissions(&self) -> bool {
        matches!(self.metric, SessionMetric::Retransmissions(_))
    }

    /// The client program has sent something.
    pub fn on_input(&mut self, now: Instant) {
        if let SessionMetric::Response(response) = &mut self.metric {
            response.on_input(now);
        }
    }

    /// Output has arrived. Returns whether the session should move.
    pub fn on_output(&mut self, now: Instant, bytes: usize) -> bool {
        let sample = match &mut self.metric {
            SessionMetric::Rate(rate) => {
                rate.on_output(bytes);
                None
            }
            SessionMetric::Response(response) => response.on_output(now),
            SessionMetric::Delay(delay) => Some(delay.on_output(now)),
            SessionMetric::Manual | SessionMetric::Retransmissions(_) => None,
        };
        sample.is_some_and(|is_bad| self.hysteresis.on_sample(now, is_bad))
    }

    /// Time has passed, and the link has this number of retransmissions. Returns whether the session should move.
    pub fn on_time(&mut self, now: Instant, retransmissions: u32) -> bool {
        let is_due = now.since(self.counted) >= SAMPLE;
        let sample = match &mut self.metric {
            SessionMetric::Manual => None,
            SessionMetric::Rate(rate) => rate.sample(now),
            SessionMetric::Response(response) => (is_due && response.is_late(now)).then_some(true),
            SessionMetric::Delay(delay) => (is_due && delay.is_late(now)).then_some(true),
            SessionMetric::Retransmissions(count) => count.on_counter(now, retransmissions),
        };
        if sample.is_some() {
            self.counted = now;
        }
        sample.is_some_and(|is_bad| self.hysteresis.on_sample(now, is_bad))
    }

    /// The session has moved.
    pub fn on_move(&mut self, now: Instant) {
        self.hysteresis.on_move(now);
        match &mut self.metric {
            SessionMetric::Manual => {}
            SessionMetric::Rate(rate) => rate.on_move(now),
            SessionMetric::Response(response) => response.on_move(now),
            SessionMetric::Delay(delay) => delay.on_move(now),
            SessionMetric::Retransmissions(count) => count.on_move(now),
        }
    }

    /// The session could not move. The policy waits before it tries again.
    pub fn on_failure(&mut self, now: Instant) {
        self.hysteresis.on_move(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_moves_a_session_that_gets_nothing_any_more() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let limit = Duration::from_millis(100);
        let hysteresis = HysteresisConfig {
            strikes: 2,
            hold: Duration::from_millis(10),
        };
        for policy in [
            WatchPolicy::Rate { sample: limit },
            WatchPolicy::Response { limit },
            WatchPolicy::Delay { limit, jitter: None },
        ] {
            let mut watch = SessionWatch::new(at(0), policy, hysteresis);
            for millis in (20..200).step_by(20) {
                watch.on_input(at(millis));
                assert!(!watch.on_output(at(millis), 1000) && !watch.on_time(at(millis), 0));
            }
            watch.on_input(at(200));
            let moves = |watch: &mut SessionWatch, from: u64| {
                (from..from + 1000)
                    .step_by(10)
                    .any(|millis| watch.on_time(at(millis), 0))
            };
            assert!(moves(&mut watch, 200), "{policy:?}");
            watch.on_move(at(1300));
            assert!(!watch.on_time(at(1305), 0));
        }
        let mut manual = SessionWatch::new(at(0), WatchPolicy::Manual, hysteresis);
        assert!((0..1000).all(|millis| !manual.on_time(at(millis), 99)));
    }
}
