//! Random Early Detection (Floyd and Jacobson, "Random early detection gateways for congestion avoidance", 1993): drops packets before the
//! queue is full, one by one and by chance, so that not all flows lose packets at once.

use proto::Instant;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Average queue, in packets, from which on packets are dropped by chance.
const LEAST: f64 = 5.0;
/// Average queue from which on all packets are dropped.
const MOST: f64 = 15.0;
/// Weight of the present queue in the average, at each arrival.
const WEIGHT: f64 = 0.002;
/// Chance that a packet is dropped just below [`MOST`].
const CHANCE: f64 = 0.1;

/// The state of one queue.
#[derive(Clone, Debug)]
pub(super) struct RedQueue {
    average: f64,
    /// Packets that were admitted since the last drop.
    admitted: f64,
    arrived_at: Instant,
    /// Time to send a packet, in nanoseconds. While the queue is empty, its average decays by one step of `WEIGHT` in this time.
    packet_nanos: f64,
    random: Xoshiro256PlusPlus,
}

impl RedQueue {
    pub fn new(packet_nanos: f64, seed: u64) -> Self {
        Self {
            average: 0.0,
            admitted: 0.0,
            arrived_at: Instant::ZERO,
            packet_nanos,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
        }
    }

    /// Whether a packet that arrives at `now` and finds `waiting` packets is dropped.
    pub fn drops(&mut self, now: Instant, waiting: usize) -> bool {
        if waiting == 0 {
            let idle = now.since(self.arrived_at).as_nanos() as f64 / self.packet_nanos;
            self.average *= (1.0 - WEIGHT).powf(idle);
        }
        self.arrived_at = now;
        self.average += WEIGHT * (waiting as f64 - self.average);
        if self.average < LEAST {
            self.admitted = 0.0;
            return false;
        }
        let chance = CHANCE * (self.average - LEAST) / (MOST - LEAST);
        // Drops are spread evenly: each packet that was admitted makes the next drop more likely.
        let chance = chance / (1.0 - self.admitted * chance).max(chance);
        if self.average >= MOST || self.random.random::<f64>() < chance {
            self.admitted = 0.0;
            return true;
        }
        self.admitted += 1.0;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_queue_loses_nothing_a_long_one_everything_and_one_between_a_part() {
        let lost = |waiting: usize| {
            let mut queue = RedQueue::new(1e6, 1);
            let at = |number: u64| Instant::from_nanos(number * 1_000_000);
            let lost = (0..20_000).filter(|number| queue.drops(at(*number), waiting));
            lost.filter(|number| *number >= 10_000).count()
        };
        assert_eq!((lost(4), lost(20)), (0, 10_000));
        // The queue is halfway between `LEAST` and `MOST`, so half of `CHANCE` applies. The spreading of drops nearly doubles this chance.
        let between = lost(10);
        assert!((700..1100).contains(&between), "{between}");
    }
}
