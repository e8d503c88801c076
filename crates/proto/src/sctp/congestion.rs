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

use super::config::SctpConfig;
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
    /// When data was sent last. `None`: the window does not decay.
    used_at: Option<Instant>,
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
            used_at: config.decays_when_idle.then_some(now),
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

    /// New data is about to be sent. Each RTO without data halves the window, but not below the floor of the slow start threshold. Then
    /// slow start leads back to the old window (§7.2.1).
    pub fn on_use(&mut self, now: Instant, rto: Duration) {
        if let Some(used_at) = &mut self.used_at {
            let mut idle = now.since(*used_at);
            if self.flight == 0 && idle > rto && self.window > self.floor {
                self.threshold = self.window;
            }
            while self.flight == 0 && idle > rto && self.window > self.floor {
                self.window = (self.window / 2).max(self.floor);
                idle -= rto;
            }
            *used_at = now;
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
