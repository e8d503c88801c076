//! The packets that an edge holds of one string's connections, and their memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Deserialize;

use super::packed::{HeldNumbers, PackedPackets, PacketBytes};
use crate::Seq;

/// Number of blocks of packed connections, and number of other connections, that one call of [`CacheStore::forget_before`] looks at.
const FORGET_STEP: usize = 16;

/// Selects the entering packets that are cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CachePolicy {
    /// Only SYNs. No leaving acknowledgements are cached either.
    Syn,
    /// The lowest unacknowledged packet of each connection.
    #[default]
    Lowest,
    /// Every unacknowledged packet.
    All,
}

/// The packet that is held of each connection besides those of the policy `lowest` or `all`. Policy `syn` has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SecondPacket {
    /// The newest packet that entered since the string was suspected, or since it failed if caching is always on. When this packet is
    /// acknowledged, senders with selective acknowledgements (RFC 2018) take everything before it for lost (RFC 8985). A pure
    /// acknowledgement may open a window.
    #[default]
    Newest,
    /// The leaving packet with the highest acknowledgement. Three copies of it wake a sender without selective acknowledgements. The thesis
    /// assumes such senders.
    Acknowledgement,
}

/// Policy and limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Selects the entering packets that are cached.
    pub policy: CachePolicy,
    /// Selects the second packet of a connection.
    pub second: SecondPacket,
    /// Maximum number of bytes of packets, of all strings together.
    pub max_bytes: usize,
    /// Maximum number of packets, of all strings together.
    pub max_packets: usize,
    /// Maximum number of bytes of one connection's packets. The lowest packet alone may be larger.
    pub max_connection_bytes: usize,
}

/// Counts of what a cache did for one string, and the memory for this string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Packets held now.
    pub packets: usize,
    /// Bytes of the packets held now.
    pub bytes: usize,
    /// Most packets at any time.
    pub peak_packets: usize,
    /// Most bytes at any time.
    pub peak_bytes: usize,
    /// Bytes that are allocated for the packets held now, and for what the cache knows of them. Exact for packets that are held as bytes
    /// alone, estimated for the others.
    pub memory: usize,
    /// Most bytes that were allocated at any time.
    pub peak_memory: usize,
    /// Packets copied into the cache.
    pub copied: u64,
    /// Packets that repeat only the beginning of a held packet.
    pub repeated: u64,
    /// Packets that found no room, or that were dropped to make room.
    pub lost: u64,
    /// Connections all of whose packets were dropped because the cache was full.
    pub dropped_connections: u64,
}

/// The packets held, by connection. A connection is either in `packed` or in `connections`. Its *arrival* is its number in the order in
/// which the cache began to hold packets of connections.
#[derive(Clone, Debug)]
pub(super) struct CacheStore<K, P> {
    /// Connections of which nothing but one small waiting packet is held. `None`: packets cannot be held as bytes.
    packed: Option<PackedPackets<K, P>>,
    /// The other connections.
    pub connections: BTreeMap<K, CachedConnection<P>>,
    /// The connections in `connections`, in the order of their arrival.
    arrivals: BTreeSet<(u64, K)>,
    /// Number of places for waiting packets that are allocated in `connections`.
    places: usize,
    /// Number of second packets.
    seconds: usize,
    syn_bytes: usize,
    /// The next block at which [`forget_before`](Self::forget_before) looks, plus one.
    cursor: usize,
    pub counts: CacheCounts,
}

/// The packets of one connection.
#[derive(Clone, Debug)]
pub(super) struct CachedConnection<P> {
    arrival: u64,
    /// Unacknowledged entering packets, lowest first.
    pub waiting: VecDeque<CachedPacket<P>>,
    /// Bytes of all packets.
    bytes: usize,
    /// The second packet. If this packet is a leaving acknowledgement, [`CachedPacket::end`] is its acknowledgement number.
    pub second: Option<CachedPacket<P>>,
    /// The sequence number after the FIN that entered the cluster.
    pub fin_entered: Option<Seq>,
    /// Whether a FIN has come out of the cluster.
    pub fin_left: bool,
}

#[derive(Clone, Debug)]
pub(super) struct CachedPacket<P> {
    pub seq: Seq,
    pub end: Seq,
    pub syn: bool,
    pub bytes: usize,
    pub packet: P,
}

impl<P> CachedPacket<P> {
    /// Whether the packet is an acknowledgement alone.
    pub fn is_pure(&self) -> bool {
        self.seq == self.end
    }

    /// The packet's sequence numbers.
    pub const fn numbers(&self) -> HeldNumbers {
        HeldNumbers {
            seq: self.seq,
            end: self.end,
            syn: self.syn,
        }
    }
}

impl<P> CachedConnection<P> {
    const fn new(arrival: u64) -> Self {
        Self {
            arrival,
            waiting: VecDeque::new(),
            bytes: 0,
            second: None,
            fin_entered: None,
            fin_left: false,
        }
    }

    /// Number of packets.
    fn packets(&self) -> usize {
        self.waiting.len() + usize::from(self.second.is_some())
    }

    /// Whether nothing is known of the connection.
    fn is_blank(&self) -> bool {
        self.packets() == 0 && self.fin_entered.is_none() && !self.fin_left
    }
}

impl<K: Copy + Ord, P> CacheStore<K, P> {
    /// Estimated bytes of a connection in `connections` and in `arrivals`. The nodes of the maps are two thirds full on average.
    const ENTRY_BYTES: usize = (size_of::<(K, CachedConnection<P>)>() + size_of::<(u64, K)>()) * 3 / 2;

    pub fn new(form: Option<PacketBytes<K, P>>) -> Self {
        Self {
            packed: form.map(PackedPackets::new),
            connections: BTreeMap::new(),
            arrivals: BTreeSet::new(),
            places: 0,
            seconds: 0,
            syn_bytes: 0,
            cursor: 0,
            counts: CacheCounts::default(),
        }
    }

    /// Number of connections with an entry.
    pub fn len(&self) -> usize {
        self.connections.len() + self.packed.as_ref().map_or(0, PackedPackets::len)
    }

    /// Number of second packets.
    pub const fn seconds(&self) -> usize {
        self.seconds
    }

    /// Bytes of SYNs.
    pub const fn syn_bytes(&self) -> usize {
        self.syn_bytes
    }

    /// See [`CacheCounts::memory`].
    pub fn memory(&self) -> usize {
        let packed = self.packed.as_ref();
        let bytes = self.counts.bytes - packed.map_or(0, PackedPackets::packet_bytes);
        packed.map_or(0, PackedPackets::memory)
            + bytes
            + self.places * size_of::<CachedPacket<P>>()
            + self.connections.len() * Self::ENTRY_BYTES
    }

    /// The numbers of a connection's lowest waiting packet.
    pub fn lowest(&self, key: K) -> Option<HeldNumbers> {
        match self.connections.get(&key) {
            Some(kept) => kept.waiting.front().map(CachedPacket::numbers),
            None => self.packed.as_ref()?.numbers(key),
        }
    }

    /// The place of a packet that begins with `seq` among the waiting packets of a connection, and the numbers of the packet that is there.
    pub fn place_of(&self, key: K, seq: Seq) -> (usize, Option<HeldNumbers>) {
        let is_lower = |held: HeldNumbers| held.seq.distance_from(seq) < 0;
        if let Some(kept) = self.connections.get(&key) {
            let waiting = &kept.waiting;
            let place = waiting.partition_point(|held| is_lower(held.numbers()));
            return (place, waiting.get(place).map(CachedPacket::numbers));
        }
        let packed = self.packed.as_ref().and_then(|packed| packed.numbers(key));
        match packed {
            Some(held) if is_lower(held) => (1, None),
            there => (0, there),
        }
    }

    /// A connection's arrival. `None` if it has no entry.
    pub fn arrival(&self, key: K) -> Option<u64> {
        match self.connections.get(&key) {
            Some(kept) => Some(kept.arrival),
            None => self.packed.as_ref()?.arrival(key),
        }
    }

    /// The connection that arrived last, and its arrival.
    pub fn newest(&self) -> Option<(u64, K)> {
        let packed = self.packed.as_ref().and_then(PackedPackets::newest);
        self.arrivals.last().copied().max(packed)
    }

    /// Moves a packed connection to `connections`, whose entries can hold more than one small packet.
    pub fn unpack(&mut self, key: K) {
        if let Some((arrival, held)) = self.take_packed(key) {
            self.insert_waiting(key, 0, held, arrival);
        }
    }

    fn take_packed(&mut self, key: K) -> Option<(u64, CachedPacket<P>)> {
        let packed = self.packed.as_mut()?;
        let HeldNumbers { seq, end, syn } = packed.numbers(key)?;
        let before = packed.packet_bytes();
        let (arrival, packet) = packed.remove(key)?;
        let held = CachedPacket {
            seq,
            end,
            syn,
            bytes: before - packed.packet_bytes(),
            packet,
        };
        Some((arrival, held))
    }

    /// Panics if a count is wrong, or if a connection is both in `packed` and in `connections`. Returns the number of packed connections.
    #[cfg(test)]
    pub fn check(&self) -> usize {
        let arrivals = self.connections.iter().map(|(key, kept)| (kept.arrival, *key));
        assert!(arrivals.collect::<BTreeSet<_>>() == self.arrivals);
        let seconds = self.connections.values().filter(|kept| kept.second.is_some());
        assert_eq!(seconds.count(), self.seconds);
        for kept in self.connections.values() {
            let held = kept.waiting.iter().chain(&kept.second);
            assert_eq!(held.map(|held| held.bytes).sum::<usize>(), kept.bytes);
        }
        let Some(packed) = &self.packed else { return 0 };
        packed.check();
        assert!(self.connections.keys().all(|key| packed.numbers(*key).is_none()));
        packed.len()
    }

    /// Bytes of a connection's packets.
    pub fn bytes_of(&self, key: K) -> usize {
        match self.connections.get(&key) {
            Some(kept) => kept.bytes,
            None => self.packed.as_ref().map_or(0, |packed| packed.bytes_of(key)),
        }
    }

    /// Gives up packets of a connection until no more than `max` bytes are held: the highest waiting packets, then the second packet.
    pub fn shorten(&mut self, key: K, max: usize) {
        while self.bytes_of(key) > max {
            let waiting = self.connections.get(&key).map_or(1, |kept| kept.waiting.len());
            let taken = match waiting.checked_sub(1) {
                Some(last) => self.take_waiting(key, last),
                None => self.take_second(key),
            };
            self.counts.lost += u64::from(taken.is_some());
        }
    }

    pub fn put_waiting(&mut self, key: K, place: usize, held: CachedPacket<P>, arrival: u64) {
        self.count_in(held.bytes);
        self.syn_bytes += if held.syn { held.bytes } else { 0 };
        let has_more = match self.connections.get(&key) {
            Some(kept) => !kept.is_blank(),
            None => self.lowest(key).is_some(),
        };
        let can_pack = |packed: &&mut PackedPackets<K, P>| {
            !has_more && packed.can_hold(key, held.numbers(), held.bytes, &held.packet)
        };
        if let Some(packed) = self.packed.as_mut().filter(can_pack) {
            packed.insert(key, arrival, &held.packet);
            self.remove_entry(key);
        } else {
            self.unpack(key);
            self.insert_waiting(key, place, held, arrival);
        }
        self.note_peaks();
    }

    /// The connection's entry in `connections`. If there is none, makes one with this arrival.
    fn entry(&mut self, key: K, arrival: u64) -> &mut CachedConnection<P> {
        self.connections.entry(key).or_insert_with(|| {
            self.arrivals.insert((arrival, key));
            CachedConnection::new(arrival)
        })
    }

    /// Adds a waiting packet to the entry in `connections`.
    fn insert_waiting(&mut self, key: K, place: usize, held: CachedPacket<P>, arrival: u64) {
        let kept = self.entry(key, arrival);
        kept.bytes += held.bytes;
        let waiting = &mut kept.waiting;
        let before = waiting.capacity();
        waiting.insert(place, held);
        let added = waiting.capacity() - before;
        self.places += added;
    }

    /// Takes out a waiting packet. The entry stays, so that what is known of the connection is not lost: see [`prune`](Self::prune).
    pub fn take_waiting(&mut self, key: K, place: usize) -> Option<CachedPacket<P>> {
        let held = if let Some((arrival, held)) = self.take_packed(key) {
            self.entry(key, arrival);
            held
        } else {
            let kept = self.connections.get_mut(&key)?;
            let held = kept.waiting.remove(place)?;
            kept.bytes -= held.bytes;
            held
        };
        self.count_out(held.bytes);
        self.syn_bytes -= if held.syn { held.bytes } else { 0 };
        Some(held)
    }

    pub fn put_second(&mut self, key: K, held: CachedPacket<P>, arrival: u64) {
        self.unpack(key);
        self.count_in(held.bytes);
        self.seconds += 1;
        let kept = self.entry(key, arrival);
        kept.bytes += held.bytes;
        kept.second = Some(held);
        self.note_peaks();
    }

    pub fn take_second(&mut self, key: K) -> Option<CachedPacket<P>> {
        let kept = self.connections.get_mut(&key)?;
        let held = kept.second.take()?;
        kept.bytes -= held.bytes;
        self.seconds -= 1;
        self.count_out(held.bytes);
        Some(held)
    }

    /// Forgets a connection if nothing of it is held.
    pub fn prune(&mut self, key: K) {
        if self.connections.get(&key).is_some_and(|kept| kept.packets() == 0) {
            self.remove_entry(key);
        }
    }

    /// Drops all packets of a connection.
    pub fn forget(&mut self, key: K) {
        while self.take_waiting(key, 0).is_some() {}
        self.take_second(key);
        self.remove_entry(key);
    }

    /// Drops all packets of a connection because the cache is full.
    pub fn drop_connection(&mut self, key: K) {
        let before = self.counts.packets;
        self.forget(key);
        self.counts.lost += (before - self.counts.packets) as u64;
        self.counts.dropped_connections += 1;
    }

    /// Forgets connections that have arrived before `arrival`. Each call looks at some connections only, because many at once would delay
    /// heartbeats. Repeated calls come to all connections.
    pub fn forget_before(&mut self, arrival: u64) {
        for _ in 0..FORGET_STEP {
            match self.arrivals.first() {
                Some(&(first, key)) if first < arrival => self.forget(key),
                _ => break,
            }
        }
        let blocks = self.packed.as_ref().map_or(0, PackedPackets::blocks);
        let end = if self.cursor == 0 { blocks } else { self.cursor };
        // Backwards: a block that becomes small is merged with a neighbour, so blocks with higher numbers change their places.
        self.cursor = end.saturating_sub(FORGET_STEP);
        for block in (self.cursor..end).rev() {
            let old = self
                .packed
                .as_ref()
                .map_or_else(Vec::new, |packed| packed.older(block, arrival));
            old.into_iter().for_each(|key| self.forget(key));
        }
    }

    fn remove_entry(&mut self, key: K) {
        if let Some(kept) = self.connections.remove(&key) {
            self.places -= kept.waiting.capacity();
            self.arrivals.remove(&(kept.arrival, key));
        }
    }

    /// Takes out all packets: first the packed connections, then the others. The counters of past events and the peaks stay.
    pub fn take_all(
        &mut self,
    ) -> (
        impl Iterator<Item = (K, P)> + use<K, P>,
        BTreeMap<K, CachedConnection<P>>,
    ) {
        self.arrivals.clear();
        self.seconds = 0;
        self.syn_bytes = 0;
        self.places = 0;
        self.counts.packets = 0;
        self.counts.bytes = 0;
        let packed = self.packed.as_mut().map(PackedPackets::take_all);
        (
            packed.into_iter().flatten(),
            std::mem::take(&mut self.connections),
        )
    }

    const fn count_in(&mut self, bytes: usize) {
        self.counts.packets += 1;
        self.counts.bytes += bytes;
    }

    fn note_peaks(&mut self) {
        let memory = self.memory();
        let counts = &mut self.counts;
        counts.peak_packets = counts.peak_packets.max(counts.packets);
        counts.peak_bytes = counts.peak_bytes.max(counts.bytes);
        counts.peak_memory = counts.peak_memory.max(memory);
    }

    const fn count_out(&mut self, bytes: usize) {
        self.counts.packets -= 1;
        self.counts.bytes -= bytes;
    }
}
