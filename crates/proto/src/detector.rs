//! Is the peer alive? Heartbeats in a fixed rhythm; silence for several of them declares it dead (CoRAL §3, HALR §3.3).
//!
//! A detector that was itself not running (paused, starved) heard nothing in that time. It must not blame the peer for this, because
//! the peer's heartbeats may still wait in the socket. So silence counts only while the detector is seen to run in time.
//!
//! A node is not dead if its packets come through the wire, or its kernel answers a probe, although its heartbeats may be late on a
//! busy machine. So packets and answers are signs of life too, but only for a while: an agent that stays away is a failure of its own.
//! The probe is sent when half of the patience is used up, so it delays nothing.

use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::Instant;

/// When silence counts as death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetectorConfig {
    /// Time between two heartbeats of the peer.
    pub interval: Duration,
    /// Number of heartbeats in a row that must be missing.
    pub missed: u32,
    /// How long after the last heartbeat the peer's traffic and its kernel's answers are signs of life.
    pub agent_timeout: Duration,
}

impl DetectorConfig {
    /// Length of a silence that is declared a failure.
    pub fn patience(&self) -> Duration {
        self.interval * self.missed
    }
}

/// Watches one peer.
#[derive(Clone, Copy, Debug)]
pub struct Detector {
    config: DetectorConfig,
    /// The last sign of life, or the moment up to which our own absence excuses the peer.
    heard: Option<Instant>,
    /// The last heartbeat.
    beat: Option<Instant>,
    /// The last sign of life of the peer's kernel.
    kernel: Option<Instant>,
    checked: Instant,
    probed: Instant,
}

impl Detector {
    /// A detector that has never heard the peer. It declares no failure before it has heard the peer.
    pub fn new(config: DetectorConfig, now: Instant) -> Self {
        Self {
            config,
            heard: None,
            beat: None,
            kernel: None,
            checked: now,
            probed: now,
        }
    }

    /// The detector of a new agent whose predecessor had heard the peer, so a peer that is gone must be declared dead. Silence counts only
    /// after the agent timeout has passed. Until the peer's first heartbeat, the peer's traffic and its kernel's answers are signs of life
    /// without a limit.
    pub fn expecting(config: DetectorConfig, now: Instant) -> Self {
        Self {
            heard: Some(now + config.agent_timeout),
            ..Self::new(config, now)
        }
    }

    /// The detector's configuration.
    pub const fn config(&self) -> &DetectorConfig {
        &self.config
    }

    /// The peer said that it is alive.
    pub fn on_heartbeat(&mut self, now: Instant) {
        self.heard = Some(now);
        self.beat = Some(now);
    }

    /// Nothing could be heard until now: grants the peer another full period.
    pub fn excuse(&mut self, now: Instant) {
        self.heard = self.heard.map(|heard| heard.max(now));
    }

    /// Whether half of the patience is used up.
    pub fn is_late(&self, now: Instant) -> bool {
        self.heard
            .is_some_and(|heard| now.since(heard) >= self.config.patience() / 2)
    }

    /// Whether the peer's kernel should be asked now whether it is there.
    pub fn wants_probe(&mut self, now: Instant) -> bool {
        let wants = self.heard.is_some_and(|heard| {
            let silent = now.since(heard);
            self.config.patience() / 2 <= silent && silent < self.config.patience()
        }) && now.since(self.probed) >= self.config.interval / 2;
        if wants {
            self.probed = now;
        }
        wants
    }

    /// As [`wants_probe`](Self::wants_probe), but also after the patience, for as long as the peer's agent is silent. For a node that waits
    /// for that agent while the peer's kernel answers.
    pub fn wants_answer(&mut self, now: Instant) -> bool {
        let wants = self.is_late(now) && now.since(self.probed) >= self.config.interval / 2;
        if wants {
            self.probed = now;
        }
        wants
    }

    /// Whether the peer's kernel has given a sign of life within the last `patience`, however long its agent has been silent.
    pub fn hears_kernel(&self, now: Instant, patience: Duration) -> bool {
        self.kernel.is_some_and(|at| now.since(at) < patience)
    }

    /// A packet of the peer came through the wire, or the peer's kernel answered, at `now`. This may be some time ago.
    pub fn on_traffic(&mut self, now: Instant) {
        self.kernel = self.kernel.max(Some(now));
        if self
            .beat
            .is_none_or(|beat| now.since(beat) < self.config.agent_timeout)
        {
            self.heard = self.heard.map(|heard| heard.max(now));
        }
    }

    /// Whether the peer has been silent for too long. Call this at least once per heartbeat interval. A later call grants the
    /// peer another full period.
    pub fn is_silent(&mut self, now: Instant) -> bool {
        let late = now.since(self.checked) > self.config.interval;
        self.checked = now;
        let Some(heard) = self.heard else { return false };
        if late && now.since(heard) >= self.config.interval {
            self.heard = Some(now);
            return false;
        }
        now.since(heard) >= self.config.patience()
    }

    /// The peer's last heartbeat.
    pub fn last_heartbeat(&self) -> Option<Instant> {
        self.beat
    }

    /// When the peer will be overdue if it stays silent. `None` before the peer is first heard.
    pub fn overdue_at(&self) -> Option<Instant> {
        self.heard.map(|heard| heard + self.config.patience())
    }

    /// Whether the peer has ever said that it is alive.
    pub fn has_heard(&self) -> bool {
        self.beat.is_some()
    }

    /// Whether the peer was heard and is not overdue.
    pub fn is_alive(&self, now: Instant) -> bool {
        let is_due = |heard| now.since(heard) < self.config.patience();
        self.has_heard() && self.heard.is_some_and(is_due)
    }

    /// When to call [`is_silent`](Self::is_silent) next.
    pub fn poll_timeout(&self) -> Instant {
        let half = self.checked + self.config.interval / 2;
        // If the peer is overdue already, half an interval is soon enough.
        self.overdue_at()
            .filter(|at| *at > self.checked)
            .map_or(half, |at| at.min(half))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: DetectorConfig = DetectorConfig {
        interval: Duration::from_millis(20),
        missed: 4,
        agent_timeout: Duration::from_millis(500),
    };

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn silence_for_four_intervals_is_death_and_not_earlier() {
        let mut detector = Detector::new(CONFIG, at(0));
        detector.on_heartbeat(at(5));
        for millis in (10..85).step_by(10) {
            assert!(!detector.is_silent(at(millis)), "{millis}");
        }
        assert!(!detector.is_silent(at(84)));
        assert!(detector.is_silent(at(85)));
    }

    #[test]
    fn traffic_stands_in_for_heartbeats_for_a_while() {
        let mut detector = Detector::new(CONFIG, at(0));
        detector.on_traffic(at(1));
        detector.on_heartbeat(at(5));
        for millis in (10..580).step_by(10) {
            detector.on_traffic(at(millis));
            assert!(!detector.is_silent(at(millis)), "{millis}");
        }
        assert!(
            detector.is_silent(at(584)),
            "more than 80 ms after the last traffic that counts, at 500 ms"
        );
    }

    #[test]
    fn a_silent_peer_is_probed_in_the_second_half_of_the_patience() {
        let mut detector = Detector::new(CONFIG, at(0));
        assert!(!detector.wants_probe(at(70)), "never heard of");
        detector.on_heartbeat(at(100));
        let probes: Vec<u64> = (100..300)
            .filter(|&millis| detector.wants_probe(at(millis)))
            .collect();
        assert_eq!(probes, [140, 150, 160, 170]);
    }

    #[test]
    fn a_peer_never_heard_of_is_not_declared_dead() {
        let mut detector = Detector::new(CONFIG, at(0));
        assert!((0..100).all(|step| !detector.is_silent(at(step * 10))));
    }

    #[test]
    fn a_peer_that_is_expected_is_missed() {
        let mut detector = Detector::expecting(CONFIG, at(0));
        assert!((0..58).all(|step| !detector.is_silent(at(step * 10))));
        assert!(!detector.has_heard() && !detector.is_alive(at(570)));
        assert!(detector.is_silent(at(580)), "500 + 80 ms");
        let mut detector = Detector::expecting(CONFIG, at(0));
        for millis in (0..2000).step_by(10) {
            detector.on_traffic(at(millis));
            assert!(
                !detector.is_silent(at(millis)),
                "{millis}: it says nothing, but it is there"
            );
        }
        assert!((200..207).all(|step| !detector.is_silent(at(step * 10))));
        assert!(detector.is_silent(at(2070)));
    }

    #[test]
    fn a_peer_that_could_not_be_heard_gets_another_period() {
        let mut detector = Detector::new(CONFIG, at(0));
        detector.excuse(at(1));
        assert!(!detector.has_heard(), "nobody is there to be excused");
        detector.on_heartbeat(at(5));
        assert!(!detector.is_late(at(44)) && detector.is_late(at(45)));
        for millis in (10..1000).step_by(10) {
            detector.is_silent(at(millis));
        }
        assert!(detector.is_silent(at(1000)));
        detector.excuse(at(1000));
        for millis in (1010..1080).step_by(10) {
            assert!(!detector.is_silent(at(millis)), "{millis}");
        }
        assert!(detector.is_silent(at(1080)));
    }

    #[test]
    fn a_detector_that_was_paused_gives_the_peer_another_chance() {
        let mut detector = Detector::new(CONFIG, at(0));
        detector.on_heartbeat(at(5));
        assert!(!detector.is_silent(at(10)));
        assert!(!detector.is_silent(at(5000))); // we were away, not the peer
        for millis in (5010..5080).step_by(10) {
            assert!(!detector.is_silent(at(millis)), "{millis}");
        }
        assert!(detector.is_silent(at(5080)));
    }
}
