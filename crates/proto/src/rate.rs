//! Post-failover rate control (PFRC): one cap on the advertised windows of all connections of the remaining string (HALR thesis,
//! chapter 6; `docs/rate-control.md`).
//!
//! At the end of each interval n of length Δ, the cap W (in bytes) changes in proportion to the capacity that was left unused:
//!
//! ```text
//!   W(n+1) = max(W(n) + w · (ρ·C·Δ − B(n)) / N · RTT/Δ, W_min)
//! ```
//!
//! B(n): bytes that connections sent into the string; C: the string's rate; N: number of connections; ρ: the part of the rate to
//! use; w: how strongly the cap follows the measurement. The cap begins at the fair share ρ·C·RTT/N. It never exceeds ρ·C·RTT, the
//! whole string, unless W_min does.

use std::time::Duration;

use thiserror::Error;

use crate::Instant;

/// How the remaining string is shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateConfig {
    /// C: the string's rate in bytes per second.
    pub bytes_per_s: f64,
    /// ρ: the part of the rate to use, at most 1.
    pub utilization: f64,
    /// w: how strongly the cap follows an interval's measurement.
    pub weight: f64,
    /// RTT: the connections' round trip without a queue.
    pub round_trip: Duration,
    /// Δ: length of an interval.
    pub interval: Duration,
    /// W_min: the minimum cap in bytes.
    pub min_window: u32,
}

/// Which field of a [`RateConfig`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidRate {
    /// Not a positive number.
    #[error("{0} must be positive")]
    NotPositive(&'static str),
    /// More than the whole string.
    #[error("utilization must be at most 1")]
    Utilization,
    /// The effect of a cap would not be seen before the next cap is set, so the loop would oscillate.
    #[error("interval must be at least round_trip")]
    Interval,
    /// The loop would oscillate with any interval.
    #[error("weight must be below 2")]
    Weight,
}

impl RateConfig {
    /// Checks that all fields are valid.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(&self) -> Result<(), InvalidRate> {
        for (field, value) in [
            ("bytes_per_s", self.bytes_per_s),
            ("utilization", self.utilization),
            ("weight", self.weight),
            ("round_trip", self.round_trip.as_secs_f64()),
            ("min_window", f64::from(self.min_window)),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(InvalidRate::NotPositive(field));
            }
        }
        if self.utilization > 1.0 {
            return Err(InvalidRate::Utilization);
        }
        if self.interval < self.round_trip {
            return Err(InvalidRate::Interval);
        }
        if self.weight >= 2.0 {
            return Err(InvalidRate::Weight);
        }
        Ok(())
    }

    /// ρ·C·RTT: bytes that all connections together may have in flight.
    fn pipe(&self) -> f64 {
        self.utilization * self.bytes_per_s * self.round_trip.as_secs_f64()
    }
}

/// The cap for one string, from the failure of the other string until that string returns.
#[derive(Clone, Copy, Debug)]
pub struct RateControl {
    config: RateConfig,
    window: f64,
    bytes: u64,
    end: Instant,
}

impl RateControl {
    /// Begins at `now` with this number of connections, which share the string equally.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn new(config: RateConfig, now: Instant, connections: usize) -> Result<Self, InvalidRate> {
        config.check()?;
        let mut control = Self {
            config,
            window: 0.0,
            bytes: 0,
            end: now + config.interval,
        };
        control.set(config.pipe() / count(connections));
        Ok(control)
    }

    /// W: the cap in bytes.
    pub const fn window(&self) -> u32 {
        self.window as u32
    }

    /// Connections have sent `bytes` more bytes, headers included, into the string.
    pub const fn on_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// When the interval ends.
    pub const fn poll_timeout(&self) -> Instant {
        self.end
    }

    /// The interval has ended. `connections` were active in it. Calls before [`poll_timeout`](Self::poll_timeout) do nothing.
    // An interval has less than 2⁵² bytes, so an `f64` holds their number exactly.
    pub fn on_timeout(&mut self, now: Instant, connections: usize) {
        if now < self.end {
            return;
        }
        let config = &self.config;
        let length = now.since(self.end - config.interval).as_secs_f64();
        let left = config.utilization * config.bytes_per_s * length - self.bytes as f64;
        let share = left / count(connections) * config.round_trip.as_secs_f64() / length;
        let window = self.window + config.weight * share;
        self.set(window);
        self.bytes = 0;
        self.end = now + self.config.interval;
    }

    /// The window field of a passing packet under the cap. `scale` is the shift that the packet's sender announced (RFC 7323
    /// §2.2); 0 for a SYN. A window below the cap stays as it is. A window above the cap is never rounded to zero.
    pub fn cap(&self, field: u16, scale: u8) -> u16 {
        let cap = (self.window() >> scale.min(14)).max(1);
        u16::try_from(cap).map_or(field, |cap| field.min(cap))
    }

    fn set(&mut self, window: f64) {
        let least = f64::from(self.config.min_window);
        self.window = window.min(self.config.pipe()).max(least);
    }
}

/// Number of connections, at least 1: without connections, the next one gets the whole string.
fn count(connections: usize) -> f64 {
    connections.max(1) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROUND_TRIP: f64 = 0.1;
    const CONFIG: RateConfig = RateConfig {
        bytes_per_s: 12.5e6,
        utilization: 0.95,
        weight: 1.0,
        round_trip: Duration::from_millis(100),
        interval: Duration::from_millis(200),
        min_window: 3000,
    };

    fn control(connections: usize) -> RateControl {
        RateControl::new(CONFIG, Instant::ZERO, connections).unwrap()
    }

    /// Ends the interval, in which `bytes` bytes were sent.
    fn interval(control: &mut RateControl, bytes: f64, connections: usize) {
        control.on_bytes(bytes as u64);
        control.on_timeout(control.poll_timeout(), connections);
    }

    #[test]
    fn it_begins_with_the_fair_share_and_stays_there_while_it_is_used() {
        let mut control = control(40);
        let share = 0.95 * 12.5e6 * 0.1 / 40.0;
        assert_eq!(control.window(), share as u32);
        interval(&mut control, 0.95 * 12.5e6 * 0.2, 40);
        assert_eq!(control.window(), share as u32);
    }

    #[test]
    fn one_interval_is_worth_what_the_equation_says() {
        let mut control = control(40);
        let before = f64::from(control.window());
        interval(&mut control, 2.0e6, 40);
        let expected = before + (0.95 * 12.5e6 * 0.2 - 2.0e6) / 40.0 * 0.5;
        assert!((f64::from(control.window()) - expected).abs() <= 1.0);
        control.on_bytes(1_000_000_000);
        control.on_timeout(control.poll_timeout() - Duration::from_nanos(1), 40);
        assert!(f64::from(control.window()) > before, "too early");
        control.on_timeout(control.poll_timeout(), 40);
        assert_eq!(control.window(), CONFIG.min_window);
    }

    #[test]
    fn an_idle_string_gives_one_connection_the_whole_of_it_and_no_more() {
        let mut control = control(40);
        for _ in 0..1000 {
            interval(&mut control, 0.0, 0);
        }
        assert_eq!(control.window(), 1_187_500);
    }

    #[test]
    fn the_field_is_capped_in_its_own_scale() {
        let control = control(40); // 29,687 bytes
        assert_eq!((control.cap(65_535, 0), control.cap(20_000, 0)), (29_687, 20_000));
        assert_eq!((control.cap(65_535, 7), control.cap(100, 7)), (231, 100));
        assert_eq!(control.cap(65_535, 200), 1);
        assert_eq!(control.cap(0, 7), 0);
        assert_eq!(
            RateControl::new(CONFIG, Instant::ZERO, 1).unwrap().cap(65_535, 0),
            65_535
        );
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let refused = |change: fn(&mut RateConfig)| {
            let mut config = CONFIG;
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(refused(|config| config.bytes_per_s = f64::NAN).starts_with("bytes_per_s"));
        assert!(refused(|config| config.utilization = 1.1).starts_with("utilization"));
        assert!(refused(|config| config.weight = 2.0).starts_with("weight"));
        assert!(refused(|config| config.round_trip = Duration::ZERO).starts_with("round_trip"));
        assert!(refused(|config| config.interval = Duration::from_millis(99)).starts_with("interval"));
        assert!(refused(|config| config.min_window = 0).starts_with("min_window"));
    }

    proptest! {
        /// The loop of `docs/rate-control.md`: senders obey each cap after `delay` intervals, and send at N·W/RTT. There is no
        /// queue.
        #[test]
        fn the_loop_settles(
            connections in 2..100_usize,
            delay in 0.0..1.0_f64,
            weight in 0.2..0.95_f64,
            start in 0.01..100.0_f64,
        ) {
            let mut control = RateControl::new(RateConfig { weight, ..CONFIG }, Instant::ZERO, connections).unwrap();
            let share = CONFIG.pipe() / connections as f64;
            control.set(share * start);
            let mut before = control.window;
            for _ in 0..400 {
                let now = control.window;
                let window = delay * before + (1.0 - delay) * now;
                before = now;
                interval(&mut control, window * connections as f64 / ROUND_TRIP * 0.2, connections);
            }
            let error = control.window / share.max(f64::from(CONFIG.min_window)) - 1.0;
            prop_assert!(error.abs() < 0.01, "{error}");
        }
    }
}
