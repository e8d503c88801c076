//! Cross traffic: bursts of other packets that enter a core link. They fill the link's queue, so that the queue drops packets.
//!
//! The sources of cross traffic turn on and off, and the lengths of these periods have heavy-tailed distributions. The sum of many such
//! sources is bursty on all time scales (Willinger et al., "Self-similarity through high-variability", 1997). Caro et al. compared such
//! losses with uniform ones (section III.1).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use proto::Instant;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Deserialize;

use crate::flow::seconds;

/// Bound on the number of sources, so that a scenario cannot ask for all memory.
const SOURCES_MAX: u32 = 10_000;
/// Upper bound of the mean times. A drawn time is always less than a million times the mean.
const LONGEST_MEAN: Duration = Duration::from_secs(3600);

/// The sources that send into one direction of a path's core link. Each source sends at its rate while it is on.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrossTraffic {
    /// Number of sources.
    pub sources: u32,
    /// Bits per second of a source that is on.
    pub rate_bits_per_s: u64,
    /// Bytes of each packet.
    pub packet_bytes: u32,
    /// Mean time for which a source is on, in seconds.
    #[serde(with = "seconds")]
    pub mean_on: Duration,
    /// Mean time for which a source is off, in seconds.
    #[serde(with = "seconds")]
    pub mean_off: Duration,
    /// Shape of both Pareto distributions. Between 1 and 2 the variance is infinite.
    pub shape: f64,
}

impl CrossTraffic {
    /// Whether the simulator can make this traffic: at most `SOURCES_MAX` sources, packets at least a nanosecond apart, and on and off
    /// times with finite means of at most an hour.
    pub fn is_possible(&self) -> bool {
        let is_time = |mean: Duration| !mean.is_zero() && mean <= LONGEST_MEAN;
        let has_gap = self.rate_bits_per_s > 0 && self.gap() >= Duration::from_nanos(1);
        let has_mean = self.shape > 1.0 && self.shape.is_finite();
        self.sources <= SOURCES_MAX && has_gap && has_mean && is_time(self.mean_on) && is_time(self.mean_off)
    }

    /// Time between two packets of a source that is on.
    fn gap(&self) -> Duration {
        Duration::from_secs_f64(f64::from(self.packet_bytes) * 8.0 / self.rate_bits_per_s.max(1) as f64)
    }
}

/// When a source sends its next packet, and when the source turns off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NextPacket {
    at: Instant,
    on_until: Instant,
}

/// The packets of all sources, in the order of their times.
#[derive(Debug)]
pub(super) struct CrossSources {
    traffic: CrossTraffic,
    gap: Duration,
    next: BinaryHeap<Reverse<NextPacket>>,
    random: Xoshiro256PlusPlus,
}

impl CrossSources {
    pub fn new(traffic: CrossTraffic, seed: u64) -> Self {
        let mut sources = Self {
            traffic,
            gap: traffic.gap(),
            next: BinaryHeap::new(),
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
        };
        for _ in 0..traffic.sources {
            let first = sources.turn_on(Instant::ZERO);
            sources.next.push(Reverse(first));
        }
        sources
    }

    /// Draws a time from the Pareto distribution with this mean. The longest millionth of the draws is capped, because such periods would
    /// last for hours.
    fn pareto(&mut self, mean: Duration) -> Duration {
        let shape = self.traffic.shape;
        let least = mean.as_secs_f64() * (shape - 1.0) / shape;
        let uniform = 1.0 - self.random.random::<f64>();
        Duration::from_secs_f64(least * uniform.max(1e-6).powf(-1.0 / shape))
    }

    /// The first packet after the pause of a source that turns off at `now`.
    fn turn_on(&mut self, now: Instant) -> NextPacket {
        let at = now + self.pareto(self.traffic.mean_off);
        let on_until = at + self.pareto(self.traffic.mean_on);
        NextPacket { at, on_until }
    }

    /// Takes the next packet if it is due at `until` or earlier. Returns its time.
    pub fn take(&mut self, until: Instant) -> Option<Instant> {
        let Reverse(packet) = self
            .next
            .peek()
            .copied()
            .filter(|Reverse(next)| next.at <= until)?;
        self.next.pop();
        let at = packet.at + self.gap;
        let following = if at < packet.on_until {
            NextPacket { at, ..packet }
        } else {
            self.turn_on(packet.on_until.max(packet.at))
        };
        self.next.push(Reverse(following));
        Some(packet.at)
    }

    /// Bytes of each packet.
    pub const fn packet_bytes(&self) -> usize {
        self.traffic.packet_bytes as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_send_at_their_mean_rate_in_order() {
        let traffic = CrossTraffic {
            sources: 50,
            rate_bits_per_s: 400_000,
            packet_bytes: 1000,
            mean_on: Duration::from_millis(500),
            mean_off: Duration::from_millis(1500),
            shape: 1.9,
        };
        let (mut sources, until) = (
            CrossSources::new(traffic, 1),
            Instant::ZERO + Duration::from_secs(2000),
        );
        let times: Vec<_> = std::iter::from_fn(|| sources.take(until)).collect();
        assert!(times.is_sorted());
        // 50 sources at 50 packets per second, on for a quarter of the time.
        let rate = times.len() as f64 / 2000.0;
        assert!((550.0..700.0).contains(&rate), "{rate}");
    }
}
