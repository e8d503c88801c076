//! The congestion window of one destination (RFC 9260 §7.2).
//!
//! ```text
//!   window
//!     │          slow start: + min(acknowledged, MTU)      congestion avoidance: + MTU per window
//!     │         ╱╲ fast retransmission: half               ╱╲ timeout: half is the threshold, one MTU the window
//!     │        ╱  ╲________                        _______╱  │
//!     │   ____╱            ╲______________________╱          │
//!     └─────────────────────────────────────────────────────────▶ time
//! ```

use std::time::Duration;

use super::config::{IdleDecay, SctpConfig};
use crate::Instant;

/// Congestion window (cwnd), slow start threshold (ssthresh) and bytes in flight of one destination. All are in bytes.
#[derive(Clone, Debug)]
pub struct PathWindow {
    window: u32,
    threshold: u32,
    /// Bytes acknowledged towards the next growth in congestion avoidance (`partial_bytes_acked`).
    partial: u32,
    flight: u32,
    mtu: u32,
    /// Most bytes that one acknowledgement adds in slow start.
    step: u32,
    floor: u32,
    idle: IdleClock,
}

/// The time from which a destination counts as idle.
#[derive(Clone, Copy, Debug)]
enum IdleClock {
    /// [`IdleDecay::BeforeUse`]: new data was sent last at this time.
    BeforeUse(Instant),
    /// [`IdleDecay::ByTimer`]: the window halves next at this time. `None`: no new data was sent since the last timeout.
    ByTimer(Option<Instant>),
}

impl PathWindow {
    /// The window of a destination to which nothing was sent. `threshold` applies if the configuration has none.
    pub fn new(config: &SctpConfig, threshold: u32, now: Instant) -> Self {
        Self {
            window: config.initial_window,
            threshold: config.initial_threshold.unwrap_or(threshold),
            partial: 0,
            flight: 0,
            mtu: config.full_packet(),
            step: config.slow_start_limit * config.full_packet(),
            floor: config.threshold_floor * config.full_packet(),
            idle: match config.idle_decay {
                IdleDecay::BeforeUse => IdleClock::BeforeUse(now),
                IdleDecay::ByTimer => IdleClock::ByTimer(None),
            },
        }
    }

    /// The congestion window.
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// The slow start threshold.
    pub const fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Bytes in flight.
    pub const fn flight(&self) -> u32 {
        self.flight
    }

    /// Whether a packet may be sent (RFC 9260 §6.1 B): the window may be exceeded by less than one packet.
    pub const fn has_room(&self) -> bool {
        self.flight < self.window
    }

    /// New data is about to be sent. The window decays if the destination was idle.
    pub fn on_use(&mut self, now: Instant, rto: Duration) {
        self.decay(now, rto);
        self.idle = match self.idle {
            IdleClock::BeforeUse(used_at) => {
                self.decay_before_use(now.since(used_at), rto);
                IdleClock::BeforeUse(now)
            }
            IdleClock::ByTimer(_) => IdleClock::ByTimer(Some(now + rto)),
        };
    }

    /// Each RTO without data halves the window, but not below the floor of the slow start threshold. Then slow start leads back to the old
    /// window (§7.2.1).
    fn decay_before_use(&mut self, mut idle: Duration, rto: Duration) {
        if self.flight == 0 && idle > rto && self.window > self.floor {
            self.threshold = self.window;
        }
        while self.flight == 0 && idle > rto && self.window > self.floor {
            self.window = (self.window / 2).max(self.floor);
            idle -= rto;
        }
    }

    /// With [`IdleDecay::ByTimer`]: the timer has run out as often as the time that has passed says. Call this before all other changes.
    pub fn decay(&mut self, now: Instant, rto: Duration) {
        while let IdleClock::ByTimer(Some(at)) = self.idle
            && at <= now
        {
            if self.window > self.floor {
                self.window = (self.window / 2).max(self.floor);
            }
            self.idle = IdleClock::ByTimer(Some(at + rto));
        }
    }

    /// A chunk was sent.
    pub const fn on_sent(&mut self, bytes: u32) {
        self.flight += bytes;
    }

    /// A chunk is no longer in flight: it was acknowledged, or marked for retransmission.
    pub const fn on_landed(&mut self, bytes: u32) {
        debug_assert!(bytes <= self.flight, "more bytes land than are in flight");
        self.flight = self.flight.saturating_sub(bytes);
    }

    /// A SACK moved the cumulative TSN and acknowledged `acked` bytes sent here, outside of fast recovery (§7.2.1, §7.2.2).
    /// `flight_before` is the number of bytes in flight before this SACK.
    pub fn on_acked(&mut self, acked: u32, flight_before: u32) {
        let is_full = flight_before >= self.window;
        if self.window <= self.threshold {
            if is_full {
                self.window = self.window.saturating_add(acked.min(self.step));
            }
            return;
        }
        self.partial = self.partial.saturating_add(acked);
        if self.partial >= self.window {
            if is_full {
                self.partial -= self.window;
                self.window = self.window.saturating_add(self.mtu);
            } else {
                self.partial = self.window;
            }
        }
        if self.flight == 0 {
            self.partial = 0;
        }
    }

    /// A chunk sent here is fast retransmitted, and fast recovery begins (§7.2.3, §7.2.4).
    pub fn on_fast_retransmission(&mut self) {
        self.threshold = (self.window / 2).max(self.floor);
        self.window = self.threshold;
        self.partial = 0;
    }

    /// The retransmission timer ran out (§7.2.3).
    pub fn on_timeout(&mut self) {
        self.threshold = (self.window / 2).max(self.floor);
        self.window = self.mtu;
        self.partial = 0;
        if let IdleClock::ByTimer(halves_at) = &mut self.idle {
            *halves_at = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window() -> PathWindow {
        let config = SctpConfig {
            initial_window: 2936,
            initial_threshold: Some(9000),
            threshold_floor: 2,
            ..SctpConfig::default()
        };
        PathWindow::new(&config, 0, Instant::ZERO)
    }

    #[test]
    fn slow_start_grows_by_a_packet_per_acknowledgement_if_the_window_is_used() {
        let mut path = window();
        path.on_acked(2936, 2935);
        assert_eq!(path.window(), 2936);
        path.on_acked(2936, 2936);
        assert_eq!(path.window(), 4404);
        path.on_acked(100, 4404);
        assert_eq!(path.window(), 4504);
    }

    #[test]
    fn congestion_avoidance_grows_by_a_packet_per_window() {
        let mut path = window();
        while path.window() <= 9000 {
            path.on_acked(1500, 20_000);
        }
        let window = path.window();
        path.on_sent(1);
        path.on_acked(window - 1, window);
        assert_eq!(path.window(), window);
        path.on_acked(1, window);
        assert_eq!(path.window(), window + 1468);
    }

    /// §7.2.2: acknowledgements that come while the window is not full count for one growth at most.
    #[test]
    fn an_application_that_sends_little_saves_up_no_growth() {
        let mut path = window();
        path.window = 20_000;
        path.on_sent(10_000);
        for _ in 0..1000 {
            path.on_acked(1468, 10_000);
        }
        assert_eq!(path.window(), 20_000);
        for _ in 0..3 {
            path.on_acked(1468, 30_000);
        }
        assert_eq!(path.window(), 20_000 + 1468);
    }

    #[test]
    fn losses_shrink_it_but_not_below_the_floor() {
        let mut path = window();
        path.window = 20_000;
        path.on_fast_retransmission();
        assert_eq!((path.window(), path.threshold()), (10_000, 10_000));
        path.on_timeout();
        assert_eq!((path.window(), path.threshold()), (1468, 5000));
        path.on_timeout();
        assert_eq!((path.window(), path.threshold()), (1468, 2936));
    }

    /// The timer halves the window also while data is in flight, leaves the threshold, and does not run after a timeout.
    #[test]
    fn a_timer_halves_the_window_once_per_rto_without_new_data() {
        let config = SctpConfig {
            initial_window: 40_000,
            initial_threshold: Some(9000),
            threshold_floor: 2,
            idle_decay: IdleDecay::ByTimer,
            ..SctpConfig::default()
        };
        let (mut path, rto) = (PathWindow::new(&config, 0, Instant::ZERO), Duration::from_secs(1));
        path.decay(Instant::ZERO + rto * 9, rto);
        assert_eq!(path.window(), 40_000, "nothing was sent yet");
        let sent = Instant::ZERO + rto * 10;
        path.on_use(sent, rto);
        path.on_sent(1468);
        path.decay(sent + rto / 2, rto);
        assert_eq!(path.window(), 40_000);
        path.decay(sent + rto, rto);
        path.decay(sent + rto * 2, rto);
        assert_eq!((path.window(), path.threshold()), (10_000, 9000));
        path.on_timeout();
        assert_eq!((path.window(), path.threshold()), (1468, 5000));
        path.on_acked(30_000, 30_000);
        let window = path.window();
        path.decay(sent + rto * 50, rto);
        assert_eq!(path.window(), window);
        path.on_use(sent + rto * 50, rto);
        path.decay(sent + rto * 100, rto);
        assert_eq!(path.window(), 2936);
    }

    #[test]
    fn an_idle_path_decays_once_per_rto() {
        let (mut path, rto) = (window(), Duration::from_secs(1));
        path.window = 40_000;
        path.on_use(Instant::ZERO + rto * 2, rto);
        assert_eq!((path.window(), path.threshold()), (20_000, 40_000));
        path.on_use(Instant::ZERO + rto * 20, rto);
        assert_eq!(path.window(), 2936);
    }
}
