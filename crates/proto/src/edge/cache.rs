//! A bounded cache of an edge for packets of connections whose string is failing (HALR thesis §3.3).
//!
//! For each connection the cache holds the lowest unacknowledged packet that enters the cluster, and the leaving packet with the highest
//! acknowledgement. A [`CachePolicy`] may hold all unacknowledged entering packets instead, or only SYNs. `store` counts memory and decides
//! which packets are dropped first when the cache is full.

mod store;
#[cfg(test)]
mod tests;

use super::{EdgeDirection, EdgeSegment};
use crate::Seq;
pub use store::{CacheConfig, CacheCounts, CachePolicy};
use store::{CacheStore, CachedPacket, Worth};

/// The cache of one edge for one string. `K` names a connection, `P` is a packet or a handle to one.
#[derive(Clone, Debug)]
pub struct Cache<K, P> {
    store: CacheStore<K, P>,
}

/// Whether `number` is equal to `other` or comes after it.
fn reaches(number: Seq, other: Seq) -> bool {
    number.distance_from(other) >= 0
}

impl<K: Copy + Ord, P> Cache<K, P> {
    /// An empty cache.
    pub fn new(config: CacheConfig) -> Self {
        Self {
            store: CacheStore::new(config),
        }
    }

    /// Counts of what the cache did, and its memory.
    pub const fn counts(&self) -> CacheCounts {
        self.store.counts
    }

    /// Number of connections with an entry.
    pub fn connections(&self) -> usize {
        self.store.connections.len()
    }

    /// A connection's held entering packets, lowest first.
    pub fn waiting(&self, key: K) -> impl Iterator<Item = &P> {
        let kept = self.store.connections.get(&key);
        kept.into_iter()
            .flat_map(|kept| kept.waiting.iter().map(|held| &held.packet))
    }

    /// A connection's held leaving packet.
    pub fn highest(&self, key: K) -> Option<&P> {
        let held = self.store.connections.get(&key)?.highest.as_ref();
        held.map(|held| &held.packet)
    }

    /// A packet enters the cluster. `packet` copies it if it is to be held.
    pub fn on_entering(&mut self, key: K, segment: &EdgeSegment, bytes: usize, packet: impl FnOnce() -> P) {
        if segment.rst {
            self.store.forget(key);
            return;
        }
        if segment.numbers() == 0 || (self.store.config.policy == CachePolicy::Syn && !segment.syn) {
            return;
        }
        if segment.syn && self.is_other_incarnation(key, segment.seq) {
            self.store.forget(key);
        }
        self.note_fin(key, segment);
        let Some(place) = self.place(key, segment) else {
            return;
        };
        let worth = if place == 0 { Worth::Lowest } else { Worth::Further };
        let replaced = self
            .is_replaced(key, place, segment)
            .then(|| self.store.take_waiting(key, place))
            .flatten();
        if !self.store.make_room(worth, segment.syn, bytes) {
            self.store.counts.refused += 1;
            if let Some(old) = replaced {
                self.store.put_waiting(key, place, old);
            }
            self.store.prune(key);
            return;
        }
        let held = CachedPacket {
            seq: segment.seq,
            end: segment.end(),
            syn: segment.syn,
            bytes,
            packet: packet(),
        };
        self.store.counts.copied += 1;
        self.store.put_waiting(key, place, held);
        self.note_fin(key, segment);
    }

    /// A packet leaves the cluster. Entering packets that it acknowledges are dropped. If it has the highest acknowledgement so
    /// far, it is held.
    ///
    /// A packet with data is held only if its acknowledgement is new information. When data flow one way only, all these packets
    /// have the same acknowledgement, so resending three copies of such a packet would tell the receiver nothing.
    pub fn on_leaving(&mut self, key: K, segment: &EdgeSegment, bytes: usize, packet: impl FnOnce() -> P) {
        let Some(ack) = segment.ack.filter(|_| !segment.rst) else {
            if segment.rst || segment.syn {
                self.store.forget(key);
            }
            return;
        };
        let released = self.release(key, ack);
        if self.store.config.policy == CachePolicy::Syn {
            self.store.prune(key);
            return;
        }
        let mut before = None;
        if let Some(kept) = self.store.connections.get_mut(&key) {
            kept.fin_left |= segment.fin;
            if kept.fin_left && kept.fin_entered.is_some_and(|fin| reaches(ack, fin)) {
                self.store.forget(key);
                return;
            }
            before = kept.highest.as_ref().map(|held| held.end);
        }
        let is_higher = before.is_none_or(|before| !reaches(before, ack));
        let is_news = released || before.is_some();
        if is_higher && (segment.numbers() == 0 || is_news) {
            self.hold_highest(key, ack, bytes, packet);
        }
        self.store.prune(key);
    }

    /// Takes everything out. Per connection: first the acknowledgement, then the entering packets from the lowest on.
    pub fn drain(&mut self) -> impl Iterator<Item = (K, EdgeDirection, P)> + use<K, P> {
        let connections = self.store.take_all();
        connections.into_iter().flat_map(|(key, kept)| {
            let leaving = kept
                .highest
                .into_iter()
                .map(move |held| (key, EdgeDirection::Leaving, held.packet));
            let entering = kept
                .waiting
                .into_iter()
                .map(move |held| (key, EdgeDirection::Entering, held.packet));
            leaving.chain(entering)
        })
    }

    /// Drops all packets. The counts of what was done stay.
    pub fn clear(&mut self) {
        self.store.take_all();
    }

    /// Drops all packets of a connection.
    pub fn forget(&mut self, key: K) {
        self.store.forget(key);
    }

    /// Notes a FIN that enters, if the connection has an entry.
    fn note_fin(&mut self, key: K, segment: &EdgeSegment) {
        if segment.fin
            && let Some(kept) = self.store.connections.get_mut(&key)
        {
            kept.fin_entered = Some(segment.end());
        }
    }

    /// Where a segment belongs among the held ones; `None` if it is not to be held.
    fn place(&mut self, key: K, segment: &EdgeSegment) -> Option<usize> {
        let Some(kept) = self.store.connections.get(&key) else {
            return Some(0);
        };
        let acknowledged = kept.highest.as_ref().map(|held| held.end);
        if acknowledged.is_some_and(|ack| reaches(ack, segment.end())) {
            return None;
        }
        let place = kept
            .waiting
            .partition_point(|held| !reaches(held.seq, segment.seq));
        match kept.waiting.get(place) {
            Some(held) if held.seq == segment.seq && reaches(held.end, segment.end()) => {
                self.store.counts.repeated += 1;
                None
            }
            _ if self.store.config.policy != CachePolicy::All && place > 0 => None,
            _ => Some(place),
        }
    }

    /// Whether a segment replaces the segment held at `place`: it begins lower, or it begins at the same number and
    /// is longer.
    fn is_replaced(&self, key: K, place: usize, segment: &EdgeSegment) -> bool {
        let kept = self.store.connections.get(&key);
        let there = kept.and_then(|kept| kept.waiting.get(place));
        there.is_some_and(|held| self.store.config.policy != CachePolicy::All || held.seq == segment.seq)
    }

    /// Whether a SYN with this number opens a new connection under the same key.
    fn is_other_incarnation(&self, key: K, seq: Seq) -> bool {
        let kept = self.store.connections.get(&key);
        kept.is_some_and(|kept| {
            kept.waiting
                .front()
                .is_none_or(|held| !held.syn || held.seq != seq)
        })
    }

    /// Drops the entering packets that `ack` acknowledges. Returns whether there were any.
    fn release(&mut self, key: K, ack: Seq) -> bool {
        let mut released = false;
        while let Some(kept) = self.store.connections.get(&key)
            && kept.waiting.front().is_some_and(|held| reaches(ack, held.end))
        {
            self.store.take_waiting(key, 0);
            released = true;
        }
        released
    }

    fn hold_highest(&mut self, key: K, ack: Seq, bytes: usize, packet: impl FnOnce() -> P) {
        let old = self.store.take_highest(key);
        let new = if self.store.make_room(Worth::Acknowledgement, false, bytes) {
            self.store.counts.copied += 1;
            Some(CachedPacket {
                seq: ack,
                end: ack,
                syn: false,
                bytes,
                packet: packet(),
            })
        } else {
            self.store.counts.refused += 1;
            old
        };
        if let Some(held) = new {
            self.store.put_highest(key, held);
        }
    }
}
