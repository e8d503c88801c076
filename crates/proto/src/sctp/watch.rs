//! Frequent heartbeats on a destination, so that its failure is noticed within some tens of milliseconds, without a timeout of data.
//!
//! ```text
//!   sent      │   │   │   │   │          every interval, whether data flows or not
//!   answered  │   │   ×
//!                     └──────────────▶ missed intervals and the usual round trip: the destination has failed
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use crate::Instant;

/// How closely paths are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatWatch {
    /// Time between two heartbeats.
    pub interval: Duration,
    /// A destination has failed when a heartbeat was not answered for this number of intervals plus the usual round trip.
    pub missed: u32,
}

/// Maximum number of unanswered heartbeats that are remembered. Answers to forgotten ones are ignored.
const REMEMBERED: usize = 64;

/// The heartbeats to one destination.
#[derive(Clone, Debug)]
pub(super) struct WatchState {
    watch: HeartbeatWatch,
    next_at: Instant,
    /// Nonces and times of the heartbeats that were sent after the last answered heartbeat.
    unanswered: VecDeque<(u64, Instant)>,
}

impl WatchState {
    pub const fn new(watch: HeartbeatWatch, now: Instant) -> Self {
        Self {
            watch,
            next_at: now,
            unanswered: VecDeque::new(),
        }
    }

    /// Whether a heartbeat is due.
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.next_at
    }

    /// A heartbeat was sent.
    pub fn on_sent(&mut self, now: Instant, nonce: u64) {
        // If this end was late, the heartbeats that it has left out are not sent later.
        self.next_at = now + self.watch.interval;
        if self.unanswered.len() == REMEMBERED {
            // The first heartbeat stays: its time shows for how long nothing was answered.
            self.unanswered.remove(1);
        }
        self.unanswered.push_back((nonce, now));
    }

    /// A HEARTBEAT ACK with this nonce arrived. Returns when its heartbeat was sent.
    pub fn on_answer(&mut self, nonce: u64) -> Option<Instant> {
        let at = self.unanswered.iter().position(|(sent, _)| *sent == nonce)?;
        let sent_at = self.unanswered[at].1;
        self.unanswered.drain(..=at);
        Some(sent_at)
    }

    /// When the destination counts as failed, if nothing more is answered. `usual` is the usual round trip.
    pub fn fails_at(&self, usual: Duration) -> Option<Instant> {
        let (_, first) = self.unanswered.front()?;
        Some(*first + self.watch.interval * self.watch.missed + usual)
    }

    /// When the next heartbeat is due.
    pub const fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Begins again at `now`, and forgets the unanswered heartbeats.
    pub fn restart(&mut self, now: Instant) {
        self.unanswered.clear();
        self.next_at = now;
    }
}
