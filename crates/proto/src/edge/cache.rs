//! A bounded cache of an edge for packets of connections whose string is failing (HALR thesis §3.3).
//!
//! For each connection the cache holds the lowest unacknowledged packet that enters the cluster, and a [`SecondPacket`]. A [`CachePolicy`]
//! may hold all unacknowledged entering packets instead, or only SYNs. `store` counts memory and decides which packets are dropped first
//! when the cache is full. `packed` holds the connections of which the cache holds only one small packet, for example all connections of
//! policy `syn`.

mod packed;
mod store;
#[cfg(test)]
mod tests;

use super::{EdgeDirection, EdgeSegment};
use crate::Seq;
use packed::HeldNumbers;
pub use packed::PacketBytes;
pub use store::{CacheConfig, CacheCounts, CachePolicy, SecondPacket};
use store::{CacheStore, CachedPacket, Worth};

/// The cache of one edge for one string. `K` names a connection, `P` is a packet or a handle to one.
#[derive(Clone, Debug)]
pub struct Cache<K, P> {
    store: CacheStore<K, P>,
}

/// The place of a segment among the held segments of its connection.
struct Place {
    place: usize,
    /// Whether the segment replaces the held segment at this place: it begins lower, or it begins at the same number and is not shorter. So
    /// a repeated segment replaces its first copy. If the first copy were sent after a failover, the acknowledgement would echo its old
    /// timestamp. The sender would conclude that the round trip lasted as long as the failover, and that its retransmission was spurious
    /// (RFC 7323 §4, RFC 3522).
    replaces: bool,
}

impl<K: Copy + Ord, P> Cache<K, P> {
    /// An empty cache.
    pub fn new(config: CacheConfig) -> Self {
        Self {
            store: CacheStore::new(config, None),
        }
    }

    /// An empty cache that holds packets as bytes where nothing else is known of their connections. This saves memory.
    pub fn packed(config: CacheConfig, form: PacketBytes<K, P>) -> Self {
        Self {
            store: CacheStore::new(config, Some(form)),
        }
    }

    /// Counts of what the cache did, and its memory.
    pub fn counts(&self) -> CacheCounts {
        CacheCounts {
            memory: self.store.memory(),
            ..self.store.counts
        }
    }

    /// Number of connections with an entry.
    pub fn connections(&self) -> usize {
        self.store.len()
    }

    /// Number of held packets that leave the cluster.
    pub fn leaving(&self) -> usize {
        match self.store.config.second {
            SecondPacket::Newest => 0,
            SecondPacket::Acknowledgement => self.store.paired(),
        }
    }

    /// A connection's held entering packets, lowest first. The cache must not be [`packed`](Self::packed).
    #[cfg(test)]
    pub fn waiting(&self, key: K) -> impl Iterator<Item = &P> {
        let kept = self.store.connections.get(&key);
        kept.into_iter()
            .flat_map(|kept| kept.waiting.iter().map(|held| &held.packet))
    }

    /// A connection's second packet.
    #[cfg(test)]
    pub fn second(&self, key: K) -> Option<&P> {
        let held = self.store.connections.get(&key)?.second.as_ref();
        held.map(|held| &held.packet)
    }

    /// A packet enters the cluster. If the cache holds the packet, it calls `packet` for a copy. `is_suspected`: the connection's string
    /// has missed heartbeats.
    pub fn on_entering(
        &mut self,
        key: K,
        segment: &EdgeSegment,
        bytes: usize,
        is_suspected: bool,
        packet: impl FnOnce() -> P,
    ) {
        if segment.rst {
            self.store.forget(key);
            return;
        }
        let CacheConfig { policy, second, .. } = self.store.config;
        if policy == CachePolicy::Syn && !segment.syn {
            return;
        }
        let may_be_second = is_suspected && second == SecondPacket::Newest && policy != CachePolicy::Syn;
        if segment.numbers() == 0 {
            if may_be_second && segment.ack.is_some() && self.is_newest(key, segment) {
                self.store.counts.copied += u64::from(self.hold_second(key, segment, bytes, packet));
            }
            return;
        }
        if segment.syn && self.is_other_incarnation(key, segment.seq) {
            self.store.forget(key);
        }
        self.note_fin(key, segment);
        let Some(place) = self.place(key, segment) else {
            if may_be_second && policy == CachePolicy::Lowest && self.is_newest(key, segment) {
                self.store.counts.copied += u64::from(self.hold_second(key, segment, bytes, packet));
            }
            return;
        };
        let Place { place, replaces } = place;
        let worth = if place == 0 { Worth::Lowest } else { Worth::Further };
        let replaced = replaces.then(|| self.store.take_waiting(key, place)).flatten();
        let is_full = worth == Worth::Further && self.store.is_connection_full(key, bytes);
        if is_full || !self.store.make_room(worth, segment.syn, bytes) {
            self.store.counts.refused += 1;
            if let Some(old) = replaced {
                self.store.put_waiting(key, place, old);
            }
            self.store.prune(key);
            return;
        }
        self.store.shorten(key, bytes);
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
        if let Some(old) = replaced.filter(|old| may_be_second && old.seq != segment.seq) {
            let was_lowest = EdgeSegment {
                seq: old.seq,
                len: old.end.distance_from(old.seq).unsigned_abs(),
                ..EdgeSegment::default()
            };
            if self.is_newest(key, &was_lowest) {
                self.hold_second(key, &was_lowest, old.bytes, || old.packet);
            }
        }
    }

    /// Whether an entering packet that is not among the waiting packets becomes the second packet. Data are worth more than a pure
    /// acknowledgement: once the data are answered, the sender's next packets carry the acknowledgement, too.
    fn is_newest(&self, key: K, segment: &EdgeSegment) -> bool {
        let kept = self.store.connections.get(&key);
        let second = kept.and_then(|kept| kept.second.as_ref());
        let is_not_older = second.is_none_or(|held| segment.end().reaches(held.end));
        if segment.numbers() == 0 {
            return is_not_older && second.is_none_or(CachedPacket::is_pure);
        }
        let lowest = self.store.lowest(key);
        let is_waiting = lowest.is_some_and(|held| held.seq == segment.seq);
        !is_waiting && (is_not_older || second.is_some_and(CachedPacket::is_pure))
    }

    /// A packet leaves the cluster. Entering packets that it acknowledges are dropped. With [`SecondPacket::Acknowledgement`], the leaving
    /// packet is held if it has the highest acknowledgement so far. Returns whether a waiting packet was dropped.
    ///
    /// A packet with data is held only if its acknowledgement is new information. When data flow one way only, all these packets
    /// have the same acknowledgement, so resending three copies of such a packet would tell the receiver nothing.
    pub fn on_leaving(
        &mut self,
        key: K,
        segment: &EdgeSegment,
        bytes: usize,
        packet: impl FnOnce() -> P,
    ) -> bool {
        let Some(ack) = segment.ack.filter(|_| !segment.rst) else {
            if segment.rst || segment.syn {
                self.store.forget(key);
            }
            return false;
        };
        let released = self.release(key, ack);
        let CacheConfig { policy, second, .. } = self.store.config;
        if policy == CachePolicy::Syn {
            self.store.prune(key);
            return released;
        }
        let mut before = None;
        if segment.fin {
            self.store.unpack(key);
        }
        if let Some(kept) = self.store.connections.get_mut(&key) {
            kept.fin_left |= segment.fin;
            if kept.fin_left && kept.fin_entered.is_some_and(|fin| ack.reaches(fin)) {
                self.store.forget(key);
                return released;
            }
            before = kept.second.as_ref().map(|held| held.end);
        }
        if second == SecondPacket::Newest {
            self.release_second(key, ack);
            self.store.prune(key);
            return released;
        }
        let is_higher = before.is_none_or(|before| !before.reaches(ack));
        let is_news = released || before.is_some();
        if is_higher && (segment.numbers() == 0 || is_news) {
            let acknowledgement = EdgeSegment {
                seq: ack,
                ..EdgeSegment::default()
            };
            self.store.counts.copied += u64::from(self.hold_second(key, &acknowledgement, bytes, packet));
        }
        self.store.prune(key);
        released
    }

    /// Takes everything out. For each connection, an acknowledgement that leaves and the lowest entering packet come first. These packets
    /// restart the connection, so they must not wait behind many packets of another connection. The other entering packets follow, for each
    /// connection from the lowest on.
    pub fn drain(&mut self) -> impl Iterator<Item = (K, EdgeDirection, P)> + use<K, P> {
        let second_enters = self.store.config.second == SecondPacket::Newest;
        let (packed, connections) = self.store.take_all();
        let packed = packed.map(|(key, packet)| (key, EdgeDirection::Entering, packet));
        let (mut first, mut later) = (Vec::new(), Vec::new());
        for (key, kept) in connections {
            let (newest, leaving) = if second_enters {
                (kept.second, None)
            } else {
                (None, kept.second)
            };
            first.extend(leaving.map(|held| (key, EdgeDirection::Leaving, held.packet)));
            let entering = kept.waiting.into_iter().chain(newest);
            let mut entering = entering.map(|held| (key, EdgeDirection::Entering, held.packet));
            first.extend(entering.next());
            later.extend(entering);
        }
        let (mut packed, mut first) = (packed.peekable(), first.into_iter().peekable());
        std::iter::from_fn(move || match (packed.peek(), first.peek()) {
            (Some((one, ..)), Some((other, ..))) if one > other => first.next(),
            (Some(_), _) => packed.next(),
            (None, _) => first.next(),
        })
        .chain(later)
    }

    /// Drops all packets. The counts of what was done stay.
    pub fn clear(&mut self) {
        drop(self.store.take_all());
    }

    /// Drops all packets of a connection.
    pub fn forget(&mut self, key: K) {
        self.store.forget(key);
    }

    /// Notes a FIN that enters, if the connection has an entry. Policy `syn` does not track FINs.
    fn note_fin(&mut self, key: K, segment: &EdgeSegment) {
        if segment.fin && self.store.config.policy != CachePolicy::Syn {
            self.store.unpack(key);
            if let Some(kept) = self.store.connections.get_mut(&key) {
                kept.fin_entered = Some(segment.end());
            }
        }
    }

    /// The place of a segment among the held segments. `None` if the segment is not to be held.
    fn place(&mut self, key: K, segment: &EdgeSegment) -> Option<Place> {
        let kept = self.store.connections.get(&key);
        let second = kept.and_then(|kept| kept.second.as_ref());
        let is_number = self.store.config.second == SecondPacket::Acknowledgement;
        let acknowledged = second.filter(|_| is_number).map(|held| held.end);
        if acknowledged.is_some_and(|ack| ack.reaches(segment.end())) {
            return None;
        }
        let holds_all = self.store.config.policy == CachePolicy::All;
        let (place, there) = self.store.place_of(key, segment.seq);
        match there {
            Some(held) if held.seq == segment.seq && !segment.end().reaches(held.end) => {
                self.store.counts.repeated += 1;
                None
            }
            _ if !holds_all && place > 0 => None,
            _ => Some(Place {
                place,
                replaces: there.is_some_and(|held| !holds_all || held.seq == segment.seq),
            }),
        }
    }

    /// Whether a SYN with this number opens a new connection under the same key.
    fn is_other_incarnation(&self, key: K, seq: Seq) -> bool {
        let is_held = |lowest: HeldNumbers| lowest.syn && lowest.seq == seq;
        match self.store.lowest(key) {
            Some(lowest) => !is_held(lowest),
            None => self.store.connections.contains_key(&key),
        }
    }

    /// Drops the entering packets that `ack` acknowledges. Returns whether there were any.
    fn release(&mut self, key: K, ack: Seq) -> bool {
        let mut released = false;
        while self.store.lowest(key).is_some_and(|held| ack.reaches(held.end)) {
            self.store.take_waiting(key, 0);
            released = true;
        }
        released
    }

    /// Drops the second packet if it is data that `ack` acknowledges.
    fn release_second(&mut self, key: K, ack: Seq) {
        let kept = self.store.connections.get(&key);
        let second = kept.and_then(|kept| kept.second.as_ref());
        if second.is_some_and(|held| !held.is_pure() && ack.reaches(held.end)) {
            self.store.take_second(key);
        }
    }

    /// Replaces the connection's second packet. Returns whether there was room for the new packet.
    fn hold_second(
        &mut self,
        key: K,
        segment: &EdgeSegment,
        bytes: usize,
        packet: impl FnOnce() -> P,
    ) -> bool {
        let old = self.store.take_second(key);
        let has_room = self.store.make_room(Worth::Second, false, bytes);
        let new = if has_room {
            Some(CachedPacket {
                seq: segment.seq,
                end: segment.end(),
                syn: false,
                bytes,
                packet: packet(),
            })
        } else {
            self.store.counts.refused += 1;
            old
        };
        if let Some(held) = new {
            self.store.put_second(key, held);
        }
        self.store.prune(key);
        has_room
    }
}
