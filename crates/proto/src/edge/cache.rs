//! A bounded cache of an edge for packets of connections whose string is failing (HALR thesis §3.3).
//!
//! For each connection the cache holds the lowest unacknowledged packet that enters the cluster, and a [`SecondPacket`]. A [`CachePolicy`]
//! may hold all unacknowledged entering packets instead, or only SYNs. `store` holds the packets of one string and counts their memory.
//! `packed` holds the connections of which the cache holds only one small packet, for example all connections of policy `syn`.
//!
//! The bounds are for one connection, and for all strings together. When the cache is full, the connection that arrived last is dropped:
//! the connection that has waited longest has the longest timer. With policies other than `syn`, SYNs get at most half of the bytes, so
//! that a flood of SYNs leaves room for existing connections.

mod packed;
mod store;
#[cfg(test)]
mod tests;

use super::{EdgeDirection, EdgeSegment};
use crate::Seq;
use packed::HeldNumbers;
pub use packed::PacketBytes;
pub use store::{CacheConfig, CacheCounts, CachePolicy, SecondPacket};
use store::{CacheStore, CachedPacket};

/// The cache of one edge. `K` names a connection, `P` is a packet or a handle to one. Strings have numbers.
#[derive(Clone, Debug)]
pub struct Cache<K, P> {
    config: CacheConfig,
    strings: Vec<CacheStore<K, P>>,
    /// Number of times that the cache began to hold packets of a connection.
    arrivals: u64,
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
    /// An empty cache for this many strings.
    pub fn new(config: CacheConfig, strings: usize) -> Self {
        Self::with(config, strings, None)
    }

    /// An empty cache that holds packets as bytes where nothing else is known of their connections. This saves memory.
    pub fn packed(config: CacheConfig, strings: usize, form: PacketBytes<K, P>) -> Self {
        Self::with(config, strings, Some(form))
    }

    fn with(config: CacheConfig, strings: usize, form: Option<PacketBytes<K, P>>) -> Self {
        Self {
            config,
            strings: (0..strings).map(|_| CacheStore::new(form)).collect(),
            arrivals: 0,
        }
    }

    /// Counts of what the cache did for a string, and its memory.
    pub fn counts(&self, string: usize) -> CacheCounts {
        let store = &self.strings[string];
        CacheCounts {
            memory: store.memory(),
            ..store.counts
        }
    }

    /// Number of a string's connections with an entry.
    pub fn connections(&self, string: usize) -> usize {
        self.strings[string].len()
    }

    /// Number of a string's held packets that leave the cluster.
    pub fn leaving(&self, string: usize) -> usize {
        match self.config.second {
            SecondPacket::Newest => 0,
            SecondPacket::Acknowledgement => self.strings[string].seconds(),
        }
    }

    /// Number of times that the cache began to hold packets of a connection.
    pub const fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// A connection's held entering packets, lowest first. The cache must not be [`packed`](Self::packed).
    #[cfg(test)]
    pub fn waiting(&self, string: usize, key: K) -> impl Iterator<Item = &P> {
        let kept = self.strings[string].connections.get(&key);
        kept.into_iter()
            .flat_map(|kept| kept.waiting.iter().map(|held| &held.packet))
    }

    /// A connection's second packet.
    #[cfg(test)]
    pub fn second(&self, string: usize, key: K) -> Option<&P> {
        let held = self.strings[string].connections.get(&key)?.second.as_ref();
        held.map(|held| &held.packet)
    }

    /// A packet of a string's connection enters the cluster. If the cache holds the packet, it calls `packet` for a copy. `is_suspected`: the
    /// string has missed heartbeats.
    pub fn on_entering(
        &mut self,
        string: usize,
        key: K,
        segment: &EdgeSegment,
        bytes: usize,
        is_suspected: bool,
        packet: impl FnOnce() -> P,
    ) {
        if segment.rst {
            self.forget(string, key);
            return;
        }
        let CacheConfig { policy, second, .. } = self.config;
        if policy == CachePolicy::Syn && !segment.syn {
            return;
        }
        let may_be_second = is_suspected && second == SecondPacket::Newest && policy != CachePolicy::Syn;
        if segment.numbers() == 0 {
            if may_be_second && segment.ack.is_some() && self.is_newest(string, key, segment) {
                self.copy_second(string, key, segment, bytes, packet);
            }
            return;
        }
        if segment.syn && self.is_other_incarnation(string, key, segment.seq) {
            self.forget(string, key);
        }
        self.note_fin(string, key, segment);
        let Some(place) = self.place(string, key, segment) else {
            if may_be_second && policy == CachePolicy::Lowest && self.is_newest(string, key, segment) {
                self.copy_second(string, key, segment, bytes, packet);
            }
            return;
        };
        let replaced = self.hold_waiting(string, key, segment, bytes, &place, packet);
        if let Some(old) = replaced.filter(|old| may_be_second && old.seq != segment.seq) {
            let was_lowest = EdgeSegment {
                seq: old.seq,
                len: old.end.distance_from(old.seq).unsigned_abs(),
                ..EdgeSegment::default()
            };
            if self.is_newest(string, key, &was_lowest) {
                self.hold_second(string, key, &was_lowest, old.bytes, || old.packet);
            }
        }
    }

    /// Holds an entering packet at its place, if there is room. Returns the packet that it replaces.
    fn hold_waiting(
        &mut self,
        string: usize,
        key: K,
        segment: &EdgeSegment,
        bytes: usize,
        &Place { place, replaces }: &Place,
        packet: impl FnOnce() -> P,
    ) -> Option<CachedPacket<P>> {
        let arrival = self.arrival(string, key);
        let max = self.config.max_connection_bytes.saturating_sub(bytes);
        let store = &mut self.strings[string];
        let replaced = replaces.then(|| store.take_waiting(key, place)).flatten();
        if place == 0 {
            store.shorten(key, max);
        } else if store.bytes_of(key) > max {
            store.counts.lost += 1;
            if let Some(old) = replaced {
                store.put_waiting(key, place, old, arrival);
            }
            store.prune(key);
            return None;
        }
        if !self.make_room(string, key, bytes, segment.syn) {
            return None;
        }
        let held = CachedPacket {
            seq: segment.seq,
            end: segment.end(),
            syn: segment.syn,
            bytes,
            packet: packet(),
        };
        let store = &mut self.strings[string];
        store.counts.copied += 1;
        store.put_waiting(key, place, held, arrival);
        self.note_fin(string, key, segment);
        replaced
    }

    /// A connection's arrival. A connection that has no entry arrives now.
    fn arrival(&mut self, string: usize, key: K) -> u64 {
        self.strings[string].arrival(key).unwrap_or_else(|| {
            self.arrivals += 1;
            self.arrivals
        })
    }

    /// Makes room for a packet of a connection: drops the connections that arrived after it, the last one first. Returns whether there is
    /// room. If not, this connection is dropped, too.
    fn make_room(&mut self, string: usize, key: K, bytes: usize, syn: bool) -> bool {
        let CacheConfig {
            policy,
            max_bytes,
            max_packets,
            ..
        } = self.config;
        let sum = |of: fn(&CacheStore<K, P>) -> usize, strings: &[_]| strings.iter().map(of).sum::<usize>();
        let has_syns = syn && policy != CachePolicy::Syn;
        let syns_full = has_syns && sum(CacheStore::syn_bytes, &self.strings) + bytes > max_bytes / 2;
        let can_have = bytes <= max_bytes && max_packets > 0 && !syns_full;
        // A connection of which nothing is held is the newest.
        let own = self.strings[string].arrival(key).filter(|_| can_have);
        while !can_have
            || sum(|store| store.counts.bytes, &self.strings) + bytes > max_bytes
            || sum(|store| store.counts.packets, &self.strings) >= max_packets
        {
            let Some((at, newest)) = own.and_then(|own| self.newest_after(own)) else {
                let store = &mut self.strings[string];
                store.drop_connection(key);
                store.counts.lost += 1;
                return false;
            };
            self.strings[at].drop_connection(newest);
        }
        true
    }

    /// The string and the name of the connection that arrived last, if it arrived after `arrival`.
    fn newest_after(&self, arrival: u64) -> Option<(usize, K)> {
        let each = self.strings.iter().enumerate();
        let newest =
            each.filter_map(|(string, store)| store.newest().map(|(arrival, key)| (arrival, string, key)));
        let (last, string, key) = newest.max()?;
        (last > arrival).then_some((string, key))
    }

    /// Whether an entering packet that is not among the waiting packets becomes the second packet. Data are worth more than a pure
    /// acknowledgement: once the data are answered, the sender's next packets carry the acknowledgement, too.
    fn is_newest(&self, string: usize, key: K, segment: &EdgeSegment) -> bool {
        let kept = self.strings[string].connections.get(&key);
        let second = kept.and_then(|kept| kept.second.as_ref());
        let is_not_older = second.is_none_or(|held| segment.end().reaches(held.end));
        if segment.numbers() == 0 {
            return is_not_older && second.is_none_or(CachedPacket::is_pure);
        }
        let lowest = self.strings[string].lowest(key);
        let is_waiting = lowest.is_some_and(|held| held.seq == segment.seq);
        !is_waiting && (is_not_older || second.is_some_and(CachedPacket::is_pure))
    }

    /// A packet of a string's connection leaves the cluster. Entering packets that it acknowledges are dropped. With
    /// [`SecondPacket::Acknowledgement`], the leaving packet is held if it has the highest acknowledgement so far. Returns whether a waiting
    /// packet was dropped.
    ///
    /// A packet with data is held only if its acknowledgement is new information. When data flow one way only, all these packets
    /// have the same acknowledgement, so resending three copies of such a packet would tell the receiver nothing.
    pub fn on_leaving(
        &mut self,
        string: usize,
        key: K,
        segment: &EdgeSegment,
        bytes: usize,
        packet: impl FnOnce() -> P,
    ) -> bool {
        let Some(ack) = segment.ack.filter(|_| !segment.rst) else {
            if segment.rst || segment.syn {
                self.forget(string, key);
            }
            return false;
        };
        let released = self.release(string, key, ack);
        let CacheConfig { policy, second, .. } = self.config;
        let store = &mut self.strings[string];
        if policy == CachePolicy::Syn {
            store.prune(key);
            return released;
        }
        let mut before = None;
        if segment.fin {
            store.unpack(key);
        }
        if let Some(kept) = store.connections.get_mut(&key) {
            kept.fin_left |= segment.fin;
            if kept.fin_left && kept.fin_entered.is_some_and(|fin| ack.reaches(fin)) {
                store.forget(key);
                return released;
            }
            before = kept.second.as_ref().map(|held| held.end);
        }
        if second == SecondPacket::Newest {
            self.release_second(string, key, ack);
            self.strings[string].prune(key);
            return released;
        }
        let is_higher = before.is_none_or(|before| !before.reaches(ack));
        let is_news = released || before.is_some();
        if is_higher && (segment.numbers() == 0 || is_news) {
            let acknowledgement = EdgeSegment {
                seq: ack,
                ..EdgeSegment::default()
            };
            self.copy_second(string, key, &acknowledgement, bytes, packet);
        }
        self.strings[string].prune(key);
        released
    }

    /// Takes out all packets of a string. For each connection, an acknowledgement that leaves and the lowest entering packet come first. These packets
    /// restart the connection, so they must not wait behind many packets of another connection. The other entering packets follow, for each
    /// connection from the lowest on.
    pub fn drain(&mut self, string: usize) -> impl Iterator<Item = (K, EdgeDirection, P)> + use<K, P> {
        let second_enters = self.config.second == SecondPacket::Newest;
        let (packed, connections) = self.strings[string].take_all();
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

    /// Drops all packets of a string. The counts of what was done stay.
    pub fn clear(&mut self, string: usize) {
        drop(self.strings[string].take_all());
    }

    /// Drops all packets of a connection.
    pub fn forget(&mut self, string: usize, key: K) {
        self.strings[string].forget(key);
    }

    /// Forgets a string's connections that arrived when [`arrivals`](Self::arrivals) was less than or equal to `arrivals`. Each call looks
    /// at some connections only. Repeated calls come to all connections.
    pub fn forget_until(&mut self, string: usize, arrivals: u64) {
        self.strings[string].forget_before(arrivals + 1);
    }

    /// Notes a FIN that enters, if the connection has an entry. Policy `syn` does not track FINs.
    fn note_fin(&mut self, string: usize, key: K, segment: &EdgeSegment) {
        if segment.fin && self.config.policy != CachePolicy::Syn {
            let store = &mut self.strings[string];
            store.unpack(key);
            if let Some(kept) = store.connections.get_mut(&key) {
                kept.fin_entered = Some(segment.end());
            }
        }
    }

    /// The place of a segment among the held segments. `None` if the segment is not to be held.
    fn place(&mut self, string: usize, key: K, segment: &EdgeSegment) -> Option<Place> {
        let store = &mut self.strings[string];
        let kept = store.connections.get(&key);
        let second = kept.and_then(|kept| kept.second.as_ref());
        let is_number = self.config.second == SecondPacket::Acknowledgement;
        let acknowledged = second.filter(|_| is_number).map(|held| held.end);
        if acknowledged.is_some_and(|ack| ack.reaches(segment.end())) {
            return None;
        }
        let holds_all = self.config.policy == CachePolicy::All;
        let (place, there) = store.place_of(key, segment.seq);
        match there {
            Some(held) if held.seq == segment.seq && !segment.end().reaches(held.end) => {
                store.counts.repeated += 1;
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
    fn is_other_incarnation(&self, string: usize, key: K, seq: Seq) -> bool {
        let store = &self.strings[string];
        let is_held = |lowest: HeldNumbers| lowest.syn && lowest.seq == seq;
        match store.lowest(key) {
            Some(lowest) => !is_held(lowest),
            None => store.connections.contains_key(&key),
        }
    }

    /// Drops the entering packets that `ack` acknowledges. Returns whether there were any.
    fn release(&mut self, string: usize, key: K, ack: Seq) -> bool {
        let store = &mut self.strings[string];
        let mut released = false;
        while store.lowest(key).is_some_and(|held| ack.reaches(held.end)) {
            store.take_waiting(key, 0);
            released = true;
        }
        released
    }

    /// Drops the second packet if it is data that `ack` acknowledges.
    fn release_second(&mut self, string: usize, key: K, ack: Seq) {
        let store = &mut self.strings[string];
        let second = store.connections.get(&key).and_then(|kept| kept.second.as_ref());
        if second.is_some_and(|held| !held.is_pure() && ack.reaches(held.end)) {
            store.take_second(key);
        }
    }

    /// Copies a packet, and makes it the connection's second packet.
    fn copy_second(
        &mut self,
        string: usize,
        key: K,
        segment: &EdgeSegment,
        bytes: usize,
        packet: impl FnOnce() -> P,
    ) {
        let is_held = self.hold_second(string, key, segment, bytes, packet);
        self.strings[string].counts.copied += u64::from(is_held);
    }

    /// Replaces the connection's second packet. Returns whether there was room for the new packet.
    fn hold_second(
        &mut self,
        string: usize,
        key: K,
        segment: &EdgeSegment,
        bytes: usize,
        packet: impl FnOnce() -> P,
    ) -> bool {
        let arrival = self.arrival(string, key);
        let max = self.config.max_connection_bytes;
        let store = &mut self.strings[string];
        let old = store.take_second(key);
        if store.bytes_of(key).saturating_add(bytes) > max {
            store.counts.lost += 1;
            if let Some(old) = old {
                store.put_second(key, old, arrival);
            }
            store.prune(key);
            return false;
        }
        let has_room = self.make_room(string, key, bytes, false);
        if has_room {
            let held = CachedPacket {
                seq: segment.seq,
                end: segment.end(),
                syn: false,
                bytes,
                packet: packet(),
            };
            self.strings[string].put_second(key, held, arrival);
        }
        has_room
    }
}
