//! Post-failover rate control (PFRC): one cap on the advertised windows of all connections of the remaining string (HALR thesis,
//! chapter 6; `docs/rate-control.md`).
//!
//! At the end of each interval n of length Δ, the cap W (in bytes) changes in proportion to the capacity that was left unused. The
//! thesis' rule:
//!
//! ```text
//!   W(n+1) = max(W(n) + w · (ρ·C·Δ − B(n)) / N · RTT/Δ, W_min)
//! ```
//!
//! B(n): bytes that connections sent into the string in the interval; C: the string's rate; N: number of connections; ρ: the part of the
//! rate to use; w: how strongly the cap follows the measurement. The cap begins at the fair share ρ·C·RTT/N. It is at most ρ·C·RTT, which
//! fills the whole string, or W_min if W_min is larger.
//!
//! The thesis' rule cannot see a queue: while a queue exists, the string carries C for any size of the windows. [`RateRule::Backlog`]
//! estimates the queue Q by adding up the bytes that arrive beyond C. This rule moves the total T of all windows, so that a new connection
//! takes its share from the others at once:
//!
//! ```text
//!   Q(n)   = Q(n−1) + B(n) − C·Δ                       between 0 and max(T, C·RTT)
//!   T(n+1) = T(n) + w · (ρ·C·Δ − B(n)) · R/Δ − w/2 · max(Q(n) − N·W_min, 0)
//!   W(n+1) = T(n+1) / N                                between W_min and C · max(RTT, 10 ms)
//! ```
//!
//! R is RTT if RTT is at least 10 ms. Otherwise R is T·Δ/B(n) (Little's law), limited to the range from RTT to 10 ms.

use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use crate::Instant;

/// Parameters of the rate control of one string.
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
    /// The equation that moves the cap.
    pub rule: RateRule,
}

/// The equation that moves the cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RateRule {
    /// The thesis' equation, which does not see a queue.
    #[default]
    Thesis,
    /// The equation that subtracts the queue.
    Backlog,
}

/// Below this round trip, delays in the hosts are longer than the delay of the path, so the configured RTT is a poor estimate. A tick of a
/// kernel's timer is at most this long (100 Hz).
const HOSTS_DELAY: Duration = Duration::from_millis(10);

/// The reason why a [`RateConfig`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidRate {
    /// The named field is not a positive number.
    #[error("{0} must be positive")]
    NotPositive(&'static str),
    /// ρ is more than 1: more than the string's whole rate.
    #[error("utilization must be at most 1")]
    Utilization,
    /// The next cap would be set before the effect of the previous cap is measured, so the loop would oscillate.
    #[error("interval must be at least round_trip")]
    Interval,
    /// As [`Interval`](Self::Interval), for [`RateRule::Backlog`]: a queue delays the effect of a cap.
    #[error("interval must be at least twice round_trip")]
    ShortInterval,
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
        if self.rule == RateRule::Backlog && self.interval < self.round_trip * 2 {
            return Err(InvalidRate::ShortInterval);
        }
        if self.weight >= 2.0 {
            return Err(InvalidRate::Weight);
        }
        Ok(())
    }

    /// The longest round trip that the connections may have without a queue, in seconds.
    fn longest_round_trip(&self) -> f64 {
        self.round_trip.max(HOSTS_DELAY).as_secs_f64()
    }

    /// ρ·C·RTT: bytes that all connections together may have in flight.
    fn pipe(&self) -> f64 {
        self.utilization * self.bytes_per_s * self.round_trip.as_secs_f64()
    }
}

/// The cap for one string. It is in force from the failure of another string until that other string works again.
#[derive(Clone, Copy, Debug)]
pub struct RateControl {
    config: RateConfig,
    window: f64,
    /// T: the windows of all connections together, in bytes. [`RateRule::Thesis`] does not use it.
    total: f64,
    /// Q: bytes in the queue in front of the string, including bytes that this queue dropped.
    backlog: f64,
    bytes: u64,
    end: Instant,
}

impl RateControl {
    /// Starts the rate control at `now`. `connections` connections share the string equally.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn new(config: RateConfig, now: Instant, connections: usize) -> Result<Self, InvalidRate> {
        config.check()?;
        let mut control = Self {
            config,
            window: 0.0,
            total: config.pipe(),
            backlog: 0.0,
            bytes: 0,
            end: now + config.interval,
        };
        match config.rule {
            RateRule::Thesis => control.set(config.pipe() / count(connections)),
            RateRule::Backlog => control.share(connections),
        }
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

    /// The interval has ended. In this interval `connections` were active. Calls before [`poll_timeout`](Self::poll_timeout) do nothing.
    // An interval has less than 2⁵² bytes, so an `f64` holds their number exactly.
    pub fn on_timeout(&mut self, now: Instant, connections: usize) {
        if now < self.end {
            return;
        }
        let length = now.since(self.end - self.config.interval).as_secs_f64();
        let bytes = std::mem::take(&mut self.bytes) as f64;
        match self.config.rule {
            RateRule::Thesis => self.follow(bytes, length, connections),
            RateRule::Backlog => self.follow_with_queue(bytes, length, connections),
        }
        self.end = now + self.config.interval;
    }

    /// From now on, connections of a failed string continue over this string. `connections` includes them. A total above ρ·C·RTT falls to
    /// ρ·C·RTT: while these connections waited, the others may have left their windows unused, so the total may have grown far too large.
    pub fn on_moved(&mut self, connections: usize) {
        if self.config.rule == RateRule::Backlog {
            self.total = self.total.min(self.config.pipe());
            self.share(connections);
        }
    }

    /// The thesis' rule.
    fn follow(&mut self, bytes: f64, length: f64, connections: usize) {
        let config = &self.config;
        let left = config.utilization * config.bytes_per_s * length - bytes;
        let share = left / count(connections) * config.round_trip.as_secs_f64() / length;
        let window = self.window + config.weight * share;
        self.set(window);
    }

    /// The rule that subtracts the queue.
    fn follow_with_queue(&mut self, bytes: f64, length: f64, connections: usize) {
        let config = self.config;
        let capacity = config.bytes_per_s * length;
        let round_trip = config.round_trip.as_secs_f64();
        // The queue cannot hold more bytes than the windows allow in flight. Without this bound, the estimate would grow for ever if the
        // configured C is too low.
        let most = self.total.max(config.bytes_per_s * round_trip);
        self.backlog = (self.backlog + bytes - capacity).clamp(0.0, most);
        let little = self.total * length / bytes.max(1.0);
        let round_trip = little.clamp(round_trip, config.longest_round_trip());
        let left = config.utilization * capacity - bytes;
        // A queue of up to N·W_min is ignored: no cap can be lower than W_min, and such a small queue adds little delay.
        let excess = (self.backlog - count(connections) * f64::from(config.min_window)).max(0.0);
        self.total += config.weight * (left * round_trip / length - excess / 2.0);
        self.share(connections);
    }

    /// Divides the total among the connections, within the bounds of a window.
    fn share(&mut self, connections: usize) {
        let least = f64::from(self.config.min_window);
        let most = self.config.bytes_per_s * self.config.longest_round_trip();
        self.window = (self.total / count(connections)).min(most).max(least);
        self.total = self.window * count(connections);
    }

    /// The window field with which a packet is forwarded: `field`, lowered to the cap if `field` offers more. `scale` is the shift that the
    /// packet's sender announced (RFC 7323 §2.2); 0 for a SYN.
    pub fn cap(&self, field: u16, scale: u8) -> u16 {
        field.min(capped_field(self.window(), scale))
    }

    fn set(&mut self, window: f64) {
        let least = f64::from(self.config.min_window);
        self.window = window.min(self.config.pipe()).max(least);
    }
}

/// The window field that offers `cap` bytes. `scale` is the shift that the packet's sender announced (RFC 7323 §2.2); 0 for a SYN. The
/// field is rounded up, so that a connection gets its minimum window with every scale.
pub fn capped_field(cap: u32, scale: u8) -> u16 {
    let scale = scale.min(14);
    let field = (u64::from(cap) + (1 << scale) - 1) >> scale;
    u16::try_from(field.max(1)).unwrap_or(u16::MAX)
}

/// Number of connections, at least 1: if there is none, the next connection may use the whole string.
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
        rule: RateRule::Thesis,
    };

    const BACKLOG: RateConfig = RateConfig {
        rule: RateRule::Backlog,
        ..CONFIG
    };

    fn control(connections: usize) -> RateControl {
        RateControl::new(CONFIG, Instant::ZERO, connections).unwrap()
    }

    fn backlog(connections: usize) -> RateControl {
        RateControl::new(BACKLOG, Instant::ZERO, connections).unwrap()
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

    /// Simulates senders, the string and its queue. The senders fill the windows of the previous interval. Returns the queue in bytes at
    /// the end of each interval, and the total number of bytes that the string carried.
    fn fill(control: &mut RateControl, intervals: usize, connections: usize) -> (Vec<f64>, f64) {
        const PIPE: f64 = 12.5e6 * ROUND_TRIP;
        let (mut windows, mut queue, mut all) = (f64::from(control.window()), 0.0, 0.0);
        let queues = (0..intervals).map(|_| {
            let flight = windows * connections as f64;
            windows = f64::from(control.window());
            let carried = flight.min(PIPE) * 2.0;
            let before = std::mem::replace(&mut queue, (flight - PIPE).max(0.0));
            interval(control, (carried + queue - before).max(0.0), connections);
            all += carried;
            queue
        });
        (queues.collect(), all)
    }

    #[test]
    fn a_queue_that_stands_is_seen_and_drained() {
        let drained = |mut control: RateControl| {
            for _ in 0..5 {
                interval(&mut control, 1.2e6, 40); // half of the string's rate: the windows are not full
            }
            let (queues, _) = fill(&mut control, 60, 40);
            assert!(queues[1] > 1.0e6, "{queues:?}");
            queues.iter().rposition(|queue| *queue > 200_000.0).unwrap()
        };
        let (seen, unseen) = (drained(backlog(40)), drained(control(40)));
        assert!(seen <= 12 && unseen > 3 * seen, "{seen} {unseen} intervals");
    }

    #[test]
    fn a_new_connection_takes_its_share_from_the_others_at_once() {
        let mut control = backlog(40);
        interval(&mut control, 0.95 * 12.5e6 * 0.2, 50);
        assert_eq!(control.window(), (0.95 * 12.5e6 * 0.1 / 50.0) as u32);
    }

    #[test]
    fn windows_that_nobody_used_are_taken_back_when_flows_are_moved() {
        let fair = (0.95 * 12.5e6 * 0.1 / 40.0) as u32;
        let mut control = backlog(20);
        for _ in 0..5 {
            interval(&mut control, 1.0e6, 20);
        }
        assert!(control.window() > 4 * fair);
        control.on_moved(40);
        assert_eq!(control.window(), fair);
        // Because of a queue, the total may be below ρ·C·RTT. `on_moved` does not raise it.
        interval(&mut control, 4.0e6, 40);
        let low = control.window();
        control.on_moved(40);
        assert_eq!(control.window(), low);
    }

    #[test]
    fn a_rate_that_is_set_too_low_does_not_close_the_windows_for_long() {
        let mut control = backlog(40);
        for _ in 0..1000 {
            interval(&mut control, 25.0e6 * 0.2, 40);
        }
        assert_eq!(control.window(), CONFIG.min_window);
        let opened = (0..).find(|_| {
            interval(&mut control, 0.5 * 12.5e6 * 0.2, 40);
            control.window() > CONFIG.min_window
        });
        assert!(opened.unwrap() <= 5, "{opened:?}");
    }

    #[test]
    fn a_round_trip_that_hosts_make_is_found_from_bytes_and_windows() {
        // The real round trip is 4 ms, the configured one 0.5 ms.
        let config = RateConfig {
            round_trip: Duration::from_micros(500),
            ..BACKLOG
        };
        let mut control = RateControl::new(config, Instant::ZERO, 2).unwrap();
        let mut sent = 0.0;
        for _ in 0..8 {
            sent = f64::from(control.window()) * 2.0 / 0.004 * 0.2;
            interval(&mut control, sent, 2);
        }
        let used = sent / (12.5e6 * 0.2);
        assert!((used - 0.95).abs() < 0.01, "{used}");
        // On an unused string, the window is at most the bytes that the string carries in 10 ms.
        for _ in 0..100 {
            interval(&mut control, 10.0, 2);
        }
        assert_eq!(control.window(), 125_000);
    }

    #[test]
    fn every_scale_offers_at_least_the_cap() {
        for scale in 0..15 {
            let field = capped_field(3000, scale);
            let offered = u32::from(field) << scale;
            assert!(
                (3000..3000 + (1 << scale)).contains(&offered),
                "{scale}: {offered}"
            );
        }
        assert_eq!((capped_field(u32::MAX, 0), capped_field(0, 3)), (u16::MAX, 1));
    }

    #[test]
    fn the_field_is_capped_in_its_own_scale() {
        let control = control(40); // 29,687 bytes
        assert_eq!((control.cap(65_535, 0), control.cap(20_000, 0)), (29_687, 20_000));
        assert_eq!((control.cap(65_535, 7), control.cap(100, 7)), (232, 100));
        assert_eq!(control.cap(65_535, 200), 2);
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
        let twice = |config: &mut RateConfig| {
            (config.rule, config.interval) = (RateRule::Backlog, Duration::from_millis(199));
        };
        assert!(refused(twice).contains("twice round_trip"));
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
            sees_queue: bool,
        ) {
            // `Backlog` needs an interval of at least two round trips, so the delay is at most half an interval.
            let (config, delay) = if sees_queue { (BACKLOG, delay / 2.0) } else { (CONFIG, delay) };
            let mut control = RateControl::new(RateConfig { weight, ..config }, Instant::ZERO, connections).unwrap();
            let share = CONFIG.pipe() / connections as f64;
            control.set(share * start);
            control.total = control.window * connections as f64;
            let mut before = control.window;
            for _ in 0..800 {
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
