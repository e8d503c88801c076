//! Policy `retransmissions`: the link to the owner loses too many segments. The caller gives TCP's counter of retransmitted segments.

use std::time::Duration;

use crate::Instant;

/// Retransmissions in the present interval.
#[derive(Clone, Copy, Debug)]
pub struct Retransmissions {
    interval: Duration,
    most: u32,
    begun: Instant,
    at_begin: Option<u32>,
}

impl Retransmissions {
    /// More retransmissions than `most` in an interval are bad.
    pub const fn new(now: Instant, interval: Duration, most: u32) -> Self {
        Self {
            interval,
            most,
            begun: now,
            at_begin: None,
        }
    }

    /// The link has retransmitted this number of segments in all. Returns whether the interval was bad. `None`: it has not ended.
    pub fn on_counter(&mut self, now: Instant, counter: u32) -> Option<bool> {
        let before = *self.at_begin.get_or_insert(counter);
        if now.since(self.begun) < self.interval {
            return None;
        }
        (self.begun, self.at_begin) = (now, Some(counter));
        Some(counter.saturating_sub(before) > self.most)
    }

    /// Another server owns the session, over another link.
    pub const fn on_move(&mut self, now: Instant) {
        *self = Self::new(now, self.interval, self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retransmissions_count_per_interval_and_link() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let mut count = Retransmissions::new(at(0), Duration::from_millis(100), 2);
        assert_eq!(count.on_counter(at(10), 7), None);
        assert_eq!(count.on_counter(at(100), 9), Some(false));
        assert_eq!(count.on_counter(at(200), 12), Some(true));
        count.on_move(at(201));
        assert_eq!(count.on_counter(at(250), 50), None, "the counter of another link");
        assert_eq!(count.on_counter(at(301), 50), Some(false));
    }
}
