//! One direction of a cable: [`Link::offer`] says when a packet arrives at the far end, or why it does not.
//!
//! A packet waits in a finite DropTail queue until the packets before it are sent. It is then sent at the link's rate and travels
//! for the propagation delay. On the way it may be lost, overtaken or doubled:
//!
//! ```text
//!            waiting (queue_packets, queue_bytes)   sending (rate)   travelling (delay)
//!  offer ──▶ [ ] [ ] [ ] [ ] ─────────────────────▶ [ ] ───────────▶ · · · · · · · · · ──▶ Deliver
//!               full: QueueFull                                       chance: Lost, copy, late
//! ```
//!
//! The link has no clock and holds no packets: the caller keeps the packets until they arrive. So the same code moves packets in
//! the simulated world and between two real sockets.

use std::collections::VecDeque;
use std::time::Duration;

use proto::Instant;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use thiserror::Error;

/// Configuration of a link. The default is a perfect link: no delay, unlimited rate, no loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkConfig {
    /// Rate in bits per second. `None` sends every packet immediately, so that no packet ever waits.
    pub rate_bits_per_s: Option<u64>,
    /// Propagation delay of each packet.
    pub delay: Duration,
    /// Number of packets that may wait, not counting the packet that is being sent. `None` is unlimited.
    pub queue_packets: Option<usize>,
    /// Number of bytes that may wait, not counting those of the packet that is being sent. `None` is unlimited.
    pub queue_bytes: Option<usize>,
    /// Probability in [0, 1] that a packet is lost on the way, after it has used the link's rate.
    pub loss: f64,
    /// Probability in [0, 1] that a packet is late, so that others overtake it.
    pub reorder: f64,
    /// Largest extra delay of a late packet. The extra delay is drawn uniformly between 0 and this value.
    pub reorder_delay: Duration,
    /// Probability in [0, 1] that a packet arrives twice.
    pub duplicate: f64,
}

impl LinkConfig {
    /// Checks whether such a link can exist.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(&self) -> Result<(), InvalidLink> {
        if self.rate_bits_per_s == Some(0) {
            return Err(InvalidLink::ZeroRate);
        }
        for (field, value) in self.probabilities() {
            if !(0.0..=1.0).contains(&value) {
                return Err(InvalidLink::Probability { field, value });
            }
        }
        if self.reorder > 0.0 && self.reorder_delay.is_zero() {
            return Err(InvalidLink::ReorderWithoutDelay);
        }
        Ok(())
    }

    const fn probabilities(&self) -> [(&'static str, f64); 3] {
        [
            ("loss", self.loss),
            ("reorder", self.reorder),
            ("duplicate", self.duplicate),
        ]
    }

    fn is_certain(&self) -> bool {
        self.probabilities().iter().all(|(_, value)| *value <= 0.0)
    }
}

/// Why a [`LinkConfig`] describes no link.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum InvalidLink {
    /// A link with rate 0 would never send. [`Link::set_up`] cuts a link.
    #[error("rate_bits_per_s must be positive")]
    ZeroRate,
    /// A probability is outside [0, 1] or not a number.
    #[error("{field} must be a probability between 0 and 1, not {value}")]
    Probability {
        /// The field of [`LinkConfig`].
        field: &'static str,
        /// The field's value.
        value: f64,
    },
    /// Late packets would have no extra delay.
    #[error("reorder needs a positive reorder_delay")]
    ReorderWithoutDelay,
}

/// Fate of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum LinkVerdict {
    /// The packet arrives.
    Deliver {
        /// Arrival time at the far end. Never before the arrival of a packet that was offered earlier, unless `reorder` delays one of the
        /// two.
        at: Instant,
        /// Arrival time of a second copy, if there is one.
        copy_at: Option<Instant>,
    },
    /// Lost on the way, by chance.
    Lost,
    /// Dropped: the queue had no room.
    QueueFull,
    /// Dropped: the link is down.
    Down,
}

impl LinkVerdict {
    /// The fate as a trace shows it. Empty if the packet simply arrives.
    pub const fn fate(&self) -> &'static str {
        match self {
            Self::Deliver { copy_at: None, .. } => "",
            Self::Deliver { copy_at: Some(_), .. } => "twice",
            Self::Lost => "lost",
            Self::QueueFull => "queue full",
            Self::Down => "down",
        }
    }
}

/// One direction of a cable.
#[derive(Clone, Debug)]
pub struct Link {
    config: LinkConfig,
    /// The configured delay in nanoseconds. Arithmetic on a `Duration` costs more than all other work for a packet.
    delay_nanos: u64,
    /// Whether the link makes no random choices.
    is_certain: bool,
    up: bool,
    /// Time at which the last accepted packet will have been sent.
    idle_at: Fraction,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Transmission time of the last packet, kept because the next packet often has the same length.
    pace: TransmissionTime,
    rng: Xoshiro256PlusPlus,
}

/// Transmission time of a packet of `bytes` bytes: `nanos` + `rest` / rate, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct TransmissionTime {
    bytes: usize,
    nanos: u64,
    rest: u64,
}

/// A point in time with a fraction of a nanosecond. The upper 64 bits are nanoseconds. The lower 64 bits are the fraction, in units of
/// 1 ns / rate. So the time to send a packet, bits · 10⁹ / rate, is never rounded. Both parts are in a single number, because times are
/// compared for every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fraction(u128);

#[derive(Clone, Copy, Debug)]
struct Waiting {
    until: Fraction,
    bytes: usize,
}

impl Link {
    /// A link that is up and idle. `seed` alone decides its random choices: the same offers get the same verdicts.
    ///
    /// # Errors
    /// Names the invalid field of the configuration.
    pub fn new(config: LinkConfig, seed: u64) -> Result<Self, InvalidLink> {
        config.check()?;
        Ok(Self {
            delay_nanos: nanos(config.delay),
            is_certain: config.is_certain(),
            config,
            up: true,
            idle_at: Fraction::at(Instant::ZERO),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            pace: TransmissionTime::default(),
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
        })
    }

    /// Decides the fate of a packet of `bytes` bytes that comes to the near end at `now`. `now` never goes back.
    /// Takes constant time, amortised.
    pub fn offer(&mut self, now: Instant, bytes: usize) -> LinkVerdict {
        if !self.up {
            return LinkVerdict::Down;
        }
        let Some(sent) = self.send(now, bytes) else {
            return LinkVerdict::QueueFull;
        };
        if self.is_certain {
            let (at, copy_at) = (later(sent, self.delay_nanos), None);
            return LinkVerdict::Deliver { at, copy_at };
        }
        if self.chance(self.config.loss) {
            return LinkVerdict::Lost;
        }
        let at = later(sent, self.travel_nanos());
        let copy_at = if self.chance(self.config.duplicate) {
            Some(later(sent, self.travel_nanos()))
        } else {
            None
        };
        LinkVerdict::Deliver { at, copy_at }
    }

    /// Changes the configuration. Waiting packets stay in the queue. If the rate changes, the time at which the link is idle is rounded
    /// down to a nanosecond, because its fraction is in units of the old rate.
    ///
    /// # Errors
    /// Names the invalid field of the configuration.
    pub fn set_config(&mut self, config: LinkConfig) -> Result<(), InvalidLink> {
        config.check()?;
        self.delay_nanos = nanos(config.delay);
        self.is_certain = config.is_certain();
        if self.config.rate_bits_per_s != config.rate_bits_per_s {
            self.pace = TransmissionTime::default();
            self.idle_at = Fraction::at(self.idle_at.instant());
        }
        self.config = config;
        Ok(())
    }

    /// Connects or cuts the link. A cut link forgets the waiting packets; the caller drops the packets on the way.
    pub fn set_up(&mut self, up: bool) {
        self.up = up;
        if !up {
            self.idle_at = Fraction::at(Instant::ZERO);
            self.waiting.clear();
            self.waiting_bytes = 0;
        }
    }

    /// Number of packets that wait at `now`, and their bytes, not counting the packet that is being sent. `now` never goes back.
    pub fn waiting(&mut self, now: Instant) -> (usize, usize) {
        self.leave(now);
        (self.waiting.len(), self.waiting_bytes)
    }

    /// Whether the link is connected.
    pub const fn is_up(&self) -> bool {
        self.up
    }

    /// Queues the packet. Returns the time at which it will have been sent, rounded down to a nanosecond. `None` if the packet would have
    /// to wait and there is no room.
    fn send(&mut self, now: Instant, bytes: usize) -> Option<Instant> {
        let Some(rate) = self.config.rate_bits_per_s else {
            return Some(now);
        };
        self.leave(now);
        let now = Fraction::at(now);
        let start = self.idle_at.max(now);
        if start > now && !self.wait(start, bytes) {
            return None;
        }
        if self.pace.bytes != bytes {
            self.pace = TransmissionTime::new(bytes, rate);
        }
        self.idle_at = start.after(self.pace, rate);
        Some(self.idle_at.instant())
    }

    /// Forgets the packets whose sending has begun by `now`.
    fn leave(&mut self, now: Instant) {
        let now = Fraction::at(now);
        while let Some(first) = self.waiting.front()
            && first.until <= now
        {
            self.waiting_bytes -= first.bytes;
            self.waiting.pop_front();
        }
    }

    /// Lets a packet wait until `until`. Returns false if the queue has no room.
    fn wait(&mut self, until: Fraction, bytes: usize) -> bool {
        let packets_full = self
            .config
            .queue_packets
            .is_some_and(|limit| self.waiting.len() >= limit);
        let bytes_full = self
            .config
            .queue_bytes
            .is_some_and(|limit| self.waiting_bytes + bytes > limit);
        if packets_full || bytes_full {
            return false;
        }
        self.waiting.push_back(Waiting { until, bytes });
        self.waiting_bytes += bytes;
        true
    }

    fn travel_nanos(&mut self) -> u64 {
        if !self.chance(self.config.reorder) {
            return self.delay_nanos;
        }
        let extra = self.config.reorder_delay.mul_f64(self.rng.random::<f64>());
        self.delay_nanos.saturating_add(nanos(extra))
    }

    /// Draws a random number only if `probability` is positive, so that an unused option does not change the draws of the other options.
    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.random_bool(probability)
    }
}

/// The time `nanos` nanoseconds after `instant`. Saturates after 584 years.
const fn later(instant: Instant, nanos: u64) -> Instant {
    Instant::from_nanos(instant.as_nanos().saturating_add(nanos))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Fraction {
    const fn at(instant: Instant) -> Self {
        Self::new(instant.as_nanos(), 0)
    }

    const fn new(nanos: u64, rest: u64) -> Self {
        Self((nanos as u128) << 64 | rest as u128)
    }

    /// This time, rounded down to a nanosecond.
    // The shift leaves only the upper half, so the cast loses nothing.
    const fn instant(self) -> Instant {
        Instant::from_nanos((self.0 >> 64) as u64)
    }

    /// The time at which a packet has been sent, if its sending starts at this time.
    // The cast of `self.0` keeps the lower half: the fraction.
    const fn after(self, pace: TransmissionTime, rate: u64) -> Self {
        let (rest, overflows) = (self.0 as u64).overflowing_add(pace.rest);
        let carry = overflows || rest >= rate;
        let nanos = later(self.instant(), pace.nanos + carry as u64).as_nanos();
        Self::new(nanos, rest.wrapping_sub(if carry { rate } else { 0 }))
    }
}

impl TransmissionTime {
    // The casts lose nothing: the remainder is below the rate, and the time is below 584 years.
    fn new(bytes: usize, rate: u64) -> Self {
        const BITS_TO_NANOS: u128 = 8 * 1_000_000_000;
        let (numerator, rate) = (bytes as u128 * BITS_TO_NANOS, u128::from(rate));
        Self {
            bytes,
            nanos: (numerator / rate) as u64,
            rest: (numerator % rate) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn link(config: LinkConfig) -> Link {
        Link::new(config, 1).unwrap()
    }

    fn at(verdict: LinkVerdict) -> Instant {
        match verdict {
            LinkVerdict::Deliver { at, .. } => at,
            other => panic!("not delivered: {other:?}"),
        }
    }

    fn after(duration: Duration) -> Instant {
        Instant::ZERO + duration
    }

    #[test]
    fn a_million_packets_take_exactly_their_bits_over_the_rate() {
        // At 1,000,003 bit/s, no packet's transmission time is a whole number of nanoseconds.
        for rate in [1_000_003, 3_000_000_000, 7] {
            let mut link = link(LinkConfig {
                rate_bits_per_s: Some(rate),
                delay: MS,
                ..LinkConfig::default()
            });
            let (mut bits, mut last) = (0_u128, Instant::ZERO);
            for index in 0..1_000_000 {
                let bytes = 40 + index % 1461;
                bits += bytes as u128 * 8;
                last = at(link.offer(Instant::ZERO, bytes));
            }
            let exact = u64::try_from(bits * 1_000_000_000 / u128::from(rate)).unwrap();
            assert_eq!(last, Instant::from_nanos(exact) + MS, "rate {rate}");
        }
    }

    #[test]
    fn a_source_that_offers_when_the_last_packet_is_sent_loses_no_fraction() {
        let rate = 999_999_937;
        let mut link = link(LinkConfig {
            rate_bits_per_s: Some(rate),
            ..LinkConfig::default()
        });
        let mut now = Instant::ZERO;
        for _ in 0..100_000 {
            now = at(link.offer(now, 1500));
        }
        assert_eq!(now.as_nanos(), 100_000 * 12_000 * 1_000_000_000 / rate);
    }

    #[test]
    fn a_new_rate_holds_from_the_next_packet_on() {
        let with = |rate| LinkConfig {
            rate_bits_per_s: Some(rate),
            ..LinkConfig::default()
        };
        let mut link = link(with(7_000_000_000));
        let at = |verdict| match verdict {
            LinkVerdict::Deliver { at, .. } => at.as_nanos(),
            other => panic!("{other:?}"),
        };
        assert_eq!(at(link.offer(Instant::ZERO, 1)), 1); // 8/7 ns
        link.set_config(with(8)).unwrap();
        assert_eq!(at(link.offer(Instant::ZERO, 1)), 1_000_000_001);
        assert_eq!(at(link.offer(Instant::ZERO, 1)), 2_000_000_001);
    }

    #[test]
    fn an_idle_link_starts_at_once() {
        let mut link = link(LinkConfig {
            rate_bits_per_s: Some(8_000_000), // 1 µs per byte
            delay: MS,
            ..LinkConfig::default()
        });
        assert_eq!(at(link.offer(Instant::ZERO, 1000)), after(2 * MS));
        assert_eq!(at(link.offer(after(5 * MS), 1000)), after(7 * MS));
        assert_eq!(at(link.offer(after(5 * MS), 1000)), after(8 * MS));
    }

    #[test]
    fn the_queue_counts_waiting_packets_and_bytes_but_not_the_one_being_sent() {
        let slow = LinkConfig {
            rate_bits_per_s: Some(8_000_000),
            ..LinkConfig::default()
        };
        let limits = [
            LinkConfig {
                queue_packets: Some(2),
                ..slow.clone()
            },
            LinkConfig {
                queue_bytes: Some(2000),
                ..slow
            },
        ];
        for config in limits {
            let mut link = link(config);
            for _ in 0..3 {
                let _ = at(link.offer(Instant::ZERO, 1000)); // one being sent, two waiting
            }
            assert_eq!(link.offer(Instant::ZERO, 1000), LinkVerdict::QueueFull);
            let almost = Instant::from_nanos(999_999);
            assert_eq!(link.offer(almost, 1000), LinkVerdict::QueueFull);
            assert_eq!(at(link.offer(after(MS), 1000)), after(4 * MS)); // the second is being sent
            assert_eq!(link.offer(after(MS), 1000), LinkVerdict::QueueFull);
        }
    }

    #[test]
    fn without_a_buffer_only_an_idle_link_accepts() {
        let mut link = link(LinkConfig {
            rate_bits_per_s: Some(8_000_000),
            queue_packets: Some(0),
            ..LinkConfig::default()
        });
        let _ = at(link.offer(Instant::ZERO, 1000));
        assert_eq!(link.offer(Instant::ZERO, 1000), LinkVerdict::QueueFull);
        let _ = at(link.offer(after(MS), 1000));
    }

    #[test]
    fn without_reordering_no_packet_overtakes_another() {
        let mut link = link(LinkConfig {
            rate_bits_per_s: Some(123_456_789),
            delay: 3 * MS,
            queue_packets: Some(50),
            loss: 0.1,
            duplicate: 0.1,
            ..LinkConfig::default()
        });
        let mut last = Instant::ZERO;
        for step in 0..100_000_u64 {
            let now = Instant::from_nanos(step / 3 * 100_000);
            if let LinkVerdict::Deliver { at, copy_at } =
                link.offer(now, usize::try_from(step % 1500).unwrap())
            {
                assert!(last <= at && copy_at.is_none_or(|copy_at| copy_at == at));
                last = at;
            }
        }
    }

    #[test]
    fn chances_come_as_often_as_configured() {
        let mut link = link(LinkConfig {
            delay: MS,
            loss: 0.02,
            reorder: 0.05,
            reorder_delay: 2 * MS,
            duplicate: 0.01,
            ..LinkConfig::default()
        });
        let (mut lost, mut late, mut twice) = (0, 0, 0);
        for _ in 0..100_000 {
            match link.offer(Instant::ZERO, 1000) {
                LinkVerdict::Lost => lost += 1,
                LinkVerdict::Deliver { at, copy_at } => {
                    assert!(at >= after(MS) && at < after(3 * MS));
                    late += u32::from(at > after(MS));
                    twice += u32::from(copy_at.is_some());
                }
                other => panic!("{other:?}"),
            }
        }
        assert!((1_800..2_200).contains(&lost), "lost {lost}");
        assert!((4_600..5_200).contains(&late), "late {late}");
        assert!((850..1_150).contains(&twice), "twice {twice}");
    }

    #[test]
    fn the_same_seed_gives_the_same_verdicts() {
        let config = LinkConfig {
            rate_bits_per_s: Some(1_000_000),
            queue_packets: Some(10),
            loss: 0.3,
            reorder: 0.3,
            reorder_delay: MS,
            duplicate: 0.3,
            ..LinkConfig::default()
        };
        let run = |seed| {
            let mut link = Link::new(config.clone(), seed).unwrap();
            (0..1000_u64)
                .map(|step| link.offer(Instant::from_nanos(step * 1_000_000), 100))
                .collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn a_cut_link_drops_everything_and_comes_back_empty() {
        let mut link = link(LinkConfig {
            rate_bits_per_s: Some(8_000_000),
            queue_packets: Some(1),
            ..LinkConfig::default()
        });
        let _ = at(link.offer(Instant::ZERO, 1000));
        let _ = at(link.offer(Instant::ZERO, 1000));
        link.set_up(false);
        assert_eq!(link.offer(Instant::ZERO, 1000), LinkVerdict::Down);
        link.set_up(true);
        assert_eq!(at(link.offer(Instant::ZERO, 1000)), after(MS));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |config| Link::new(config, 1).unwrap_err().to_string();
        let zero = LinkConfig {
            rate_bits_per_s: Some(0),
            ..LinkConfig::default()
        };
        assert_eq!(refused(zero), "rate_bits_per_s must be positive");
        for value in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let config = LinkConfig {
                loss: value,
                ..LinkConfig::default()
            };
            assert!(refused(config).starts_with("loss must be a probability"));
        }
        let reorder = LinkConfig {
            reorder: 0.1,
            ..LinkConfig::default()
        };
        assert_eq!(refused(reorder), "reorder needs a positive reorder_delay");
    }
}
