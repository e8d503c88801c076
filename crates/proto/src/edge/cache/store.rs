//! The packets that an edge holds, their memory, and which packets are evicted first when the memory is full.
//!
//! | worth | packet | why |
//! |---|---|---|
//! | most | the lowest packet of a connection, a SYN | without it the connection sleeps until its timer expires |
//! | | the second packet ([`SecondPacket`]) | helps some senders only |
//! | least | the other packets of policy `all` | their sender repeats them itself one round trip after it wakes up |
//!
//! Among packets of equal worth the earlier one stays, because the connection that has waited longest has the longest timer. With
//! policies other than `syn`, SYNs get at most half of the memory, so that a SYN flood leaves room for existing connections.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Deserialize;

use super::packed::{HeldNumbers, PackedPackets, PacketBytes};
use crate::Seq;

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
    /// Maximum number of bytes of packets.
    pub max_bytes: usize,
    /// Maximum number of packets.
    pub max_packets: usize,
    /// Maximum number of bytes of a connection's waiting packets. The lowest packet alone may be larger. The limit matters only with policy
    /// `all`: the other policies hold one waiting packet and the second packet.
    pub max_connection_bytes: usize,
}

/// Counts of what a cache did, and its memory.
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
    /// Packets that found no room.
    pub refused: u64,
    /// Packets given up for packets that are worth more.
    pub evicted: u64,
}

/// The packets held, by connection. A connection is either in `packed` or in `connections`.
#[derive(Clone, Debug)]
pub(super) struct CacheStore<K, P> {
    pub config: CacheConfig,
    /// Connections of which nothing but one small waiting packet is held. `None`: packets cannot be held as bytes.
    packed: Option<PackedPackets<K, P>>,
    /// The other connections.
    pub connections: BTreeMap<K, CachedConnection<P>>,
    /// Number of places for waiting packets that are allocated in `connections`.
    places: usize,
    /// Connections that can make room: those with more than one waiting packet are `wide`, those with a second packet `paired`.
    wide: BTreeSet<K>,
    paired: BTreeSet<K>,
    syn_bytes: usize,
    pub counts: CacheCounts,
}

/// The packets of one connection.
#[derive(Clone, Debug)]
pub(super) struct CachedConnection<P> {
    /// Unacknowledged entering packets, lowest first.
    pub waiting: VecDeque<CachedPacket<P>>,
    /// Bytes of the waiting packets.
    pub waiting_bytes: usize,
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

/// How much a packet is worth. A packet of higher worth may displace one of lower worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Worth {
    Further,
    Second,
    Lowest,
}

impl<P> CachedConnection<P> {
    /// Whether nothing is known of the connection.
    fn is_blank(&self) -> bool {
        self.waiting.is_empty() && self.second.is_none() && self.fin_entered.is_none() && !self.fin_left
    }
}

impl<P> Default for CachedConnection<P> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            second: None,
            fin_entered: None,
            fin_left: false,
        }
    }
}

impl<K: Copy + Ord, P> CacheStore<K, P> {
    /// Estimated bytes of a connection in `connections`. The nodes of the map are two thirds full on average.
    const ENTRY_BYTES: usize = (size_of::<K>() + size_of::<CachedConnection<P>>()) * 3 / 2;
    /// Estimated bytes of a connection in `wide` or `paired`.
    const MARK_BYTES: usize = size_of::<K>() * 3 / 2;

    pub fn new(config: CacheConfig, form: Option<PacketBytes<K, P>>) -> Self {
        Self {
            config,
            packed: form.map(PackedPackets::new),
            connections: BTreeMap::new(),
            places: 0,
            wide: BTreeSet::new(),
            paired: BTreeSet::new(),
            syn_bytes: 0,
            counts: CacheCounts::default(),
        }
    }

    /// Number of connections with an entry.
    pub fn len(&self) -> usize {
        self.connections.len() + self.packed.as_ref().map_or(0, PackedPackets::len)
    }

    /// Number of connections with a second packet.
    pub fn paired(&self) -> usize {
        self.paired.len()
    }

    /// See [`CacheCounts::memory`].
    pub fn memory(&self) -> usize {
        let packed = self.packed.as_ref();
        let bytes = self.counts.bytes - packed.map_or(0, PackedPackets::packet_bytes);
        packed.map_or(0, PackedPackets::memory)
            + bytes
            + self.places * size_of::<CachedPacket<P>>()
            + self.connections.len() * Self::ENTRY_BYTES
            + (self.wide.len() + self.paired.len()) * Self::MARK_BYTES
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

    /// Moves a packed connection to `connections`, whose entries can hold more than one small packet.
    pub fn unpack(&mut self, key: K) {
        if let Some(held) = self.take_packed(key) {
            self.connections.insert(key, CachedConnection::default());
            self.insert_waiting(key, 0, held);
        }
    }

    fn take_packed(&mut self, key: K) -> Option<CachedPacket<P>> {
        let packed = self.packed.as_mut()?;
        let HeldNumbers { seq, end, syn } = packed.numbers(key)?;
        let before = packed.packet_bytes();
        let packet = packed.remove(key)?;
        Some(CachedPacket {
            seq,
            end,
            syn,
            bytes: before - packed.packet_bytes(),
            packet,
        })
    }

    /// Number of wide connections, number of paired connections, and bytes of SYNs.
    #[cfg(test)]
    pub fn indexed(&self) -> (usize, usize, usize) {
        (self.wide.len(), self.paired.len(), self.syn_bytes)
    }

    /// Panics if the counts of the packed connections are wrong, or if a connection is both in `packed` and in `connections`. Returns the
    /// number of packed connections.
    #[cfg(test)]
    pub fn check(&self) -> usize {
        let Some(packed) = &self.packed else { return 0 };
        packed.check();
        assert!(self.connections.keys().all(|key| packed.numbers(*key).is_none()));
        packed.len()
    }

    /// Whether another packet of a connection would exceed [`CacheConfig::max_connection_bytes`].
    pub fn is_connection_full(&self, key: K, bytes: usize) -> bool {
        let held = match self.connections.get(&key) {
            Some(kept) => kept.waiting_bytes,
            None => self.packed.as_ref().map_or(0, |packed| packed.bytes_of(key)),
        };
        held + bytes > self.config.max_connection_bytes
    }

    /// Gives up the highest waiting packets of a connection until another packet does not exceed the connection's bound, or until no packet
    /// is left.
    pub fn shorten(&mut self, key: K, bytes: usize) {
        while self.is_connection_full(key, bytes) {
            let last = self
                .connections
                .get(&key)
                .map_or(0, |kept| kept.waiting.len().saturating_sub(1));
            if self.take_waiting(key, last).is_none() {
                return;
            }
            self.counts.evicted += 1;
        }
    }

    /// Makes room for a packet by giving up packets that are worth less. Returns whether there is room now.
    pub fn make_room(&mut self, worth: Worth, syn: bool, bytes: usize) -> bool {
        let CacheConfig {
            policy,
            max_bytes,
            max_packets,
            ..
        } = self.config;
        let syns_full = policy != CachePolicy::Syn && self.syn_bytes + bytes > max_bytes / 2;
        if bytes > max_bytes || max_packets == 0 || (syn && syns_full) {
            return false;
        }
        while self.counts.bytes + bytes > max_bytes || self.counts.packets >= max_packets {
            let further = self.wide.last().copied().filter(|_| worth > Worth::Further);
            let paired = self.paired.last().copied();
            if let Some(key) = further {
                let last = self.connections[&key].waiting.len() - 1;
                self.take_waiting(key, last);
            } else if let Some(key) = paired.filter(|_| worth > Worth::Second) {
                self.take_second(key);
                self.prune(key);
            } else {
                return false;
            }
            self.counts.evicted += 1;
        }
        true
    }

    pub fn put_waiting(&mut self, key: K, place: usize, held: CachedPacket<P>) {
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
            packed.insert(key, &held.packet);
            self.remove_entry(key);
        } else {
            self.unpack(key);
            self.insert_waiting(key, place, held);
        }
        self.note_peaks();
    }

    /// Adds a waiting packet to the entry in `connections`.
    fn insert_waiting(&mut self, key: K, place: usize, held: CachedPacket<P>) {
        let kept = self.connections.entry(key).or_default();
        kept.waiting_bytes += held.bytes;
        let waiting = &mut kept.waiting;
        let before = waiting.capacity();
        // Making room may have removed packets of this connection, so `place` may be beyond the end.
        waiting.insert(place.min(waiting.len()), held);
        self.places += waiting.capacity() - before;
        if waiting.len() > 1 {
            self.wide.insert(key);
        }
    }

    /// Takes out a waiting packet. The entry stays, so that what is known of the connection is not lost: see [`prune`](Self::prune).
    pub fn take_waiting(&mut self, key: K, place: usize) -> Option<CachedPacket<P>> {
        let held = if let Some(held) = self.take_packed(key) {
            self.connections.insert(key, CachedConnection::default());
            held
        } else {
            let kept = self.connections.get_mut(&key)?;
            let held = kept.waiting.remove(place)?;
            kept.waiting_bytes -= held.bytes;
            if kept.waiting.len() <= 1 {
                self.wide.remove(&key);
            }
            held
        };
        self.count_out(held.bytes);
        self.syn_bytes -= if held.syn { held.bytes } else { 0 };
        Some(held)
    }

    pub fn put_second(&mut self, key: K, held: CachedPacket<P>) {
        self.unpack(key);
        self.count_in(held.bytes);
        self.paired.insert(key);
        self.connections.entry(key).or_default().second = Some(held);
        self.note_peaks();
    }

    pub fn take_second(&mut self, key: K) -> Option<CachedPacket<P>> {
        let held = self.connections.get_mut(&key)?.second.take()?;
        self.paired.remove(&key);
        self.count_out(held.bytes);
        Some(held)
    }

    /// Forgets a connection if nothing of it is held.
    pub fn prune(&mut self, key: K) {
        let kept = self.connections.get(&key);
        if kept.is_some_and(|kept| kept.waiting.is_empty() && kept.second.is_none()) {
            self.remove_entry(key);
        }
    }

    /// Drops all packets of a connection.
    pub fn forget(&mut self, key: K) {
        while self.take_waiting(key, 0).is_some() {}
        self.take_second(key);
        self.remove_entry(key);
    }

    fn remove_entry(&mut self, key: K) {
        if let Some(kept) = self.connections.remove(&key) {
            self.places -= kept.waiting.capacity();
        }
    }

    /// Takes out all packets: first the packed connections, then the others. The counters of past events and the peaks stay.
    pub fn take_all(
        &mut self,
    ) -> (
        impl Iterator<Item = (K, P)> + use<K, P>,
        BTreeMap<K, CachedConnection<P>>,
    ) {
        self.wide.clear();
        self.paired.clear();
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
