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

use crate::Seq;

/// Which packets that enter the cluster are cached.
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
    /// The newest packet that entered since the string was suspected, or since it failed if caching is always on. Senders with selective acknowledgements (RFC 2018) take everything
    /// before it for lost once it is acknowledged (RFC 8985). If it is a pure acknowledgement, it may open a window.
    #[default]
    Newest,
    /// The leaving packet with the highest acknowledgement. Three copies of it wake a sender without selective acknowledgements, which the
    /// thesis assumes.
    Acknowledgement,
}

/// Policy and limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Which entering packets are cached.
    pub policy: CachePolicy,
    /// Which other packet is cached.
    pub second: SecondPacket,
    /// Maximum number of bytes of packets.
    pub max_bytes: usize,
    /// Maximum number of packets.
    pub max_packets: usize,
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
    /// Packets copied into the cache.
    pub copied: u64,
    /// Packets that were in the cache already.
    pub repeated: u64,
    /// Packets that found no room.
    pub refused: u64,
    /// Packets given up for packets that are worth more.
    pub evicted: u64,
}

/// The packets held, by connection.
#[derive(Clone, Debug)]
pub(super) struct CacheStore<K, P> {
    pub config: CacheConfig,
    pub connections: BTreeMap<K, CachedConnection<P>>,
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
    /// The second packet. If it is an acknowledgement that leaves, [`CachedPacket::end`] is its number.
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
    /// Whether it is an acknowledgement alone.
    pub fn is_pure(&self) -> bool {
        self.seq == self.end
    }
}

/// How much a packet is worth. A packet of higher worth may displace one of lower worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Worth {
    Further,
    Second,
    Lowest,
}

impl<P> Default for CachedConnection<P> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            second: None,
            fin_entered: None,
            fin_left: false,
        }
    }
}

impl<K: Copy + Ord, P> CacheStore<K, P> {
    pub fn new(config: CacheConfig) -> Self {
        Self {
            config,
            connections: BTreeMap::new(),
            wide: BTreeSet::new(),
            paired: BTreeSet::new(),
            syn_bytes: 0,
            counts: CacheCounts::default(),
        }
    }

    /// Number of wide connections, number of paired connections, and bytes of SYNs.
    #[cfg(test)]
    pub fn indexed(&self) -> (usize, usize, usize) {
        (self.wide.len(), self.paired.len(), self.syn_bytes)
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
        let waiting = &mut self.connections.entry(key).or_default().waiting;
        // This connection may have given up packets after `place` to make room.
        waiting.insert(place.min(waiting.len()), held);
        if waiting.len() > 1 {
            self.wide.insert(key);
        }
    }

    pub fn take_waiting(&mut self, key: K, place: usize) -> Option<CachedPacket<P>> {
        let waiting = &mut self.connections.get_mut(&key)?.waiting;
        let held = waiting.remove(place)?;
        if waiting.len() <= 1 {
            self.wide.remove(&key);
        }
        self.count_out(held.bytes);
        self.syn_bytes -= if held.syn { held.bytes } else { 0 };
        Some(held)
    }

    pub fn put_second(&mut self, key: K, held: CachedPacket<P>) {
        self.count_in(held.bytes);
        self.paired.insert(key);
        self.connections.entry(key).or_default().second = Some(held);
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
            self.connections.remove(&key);
        }
    }

    /// Drops all packets of a connection.
    pub fn forget(&mut self, key: K) {
        while self.take_waiting(key, 0).is_some() {}
        self.take_second(key);
        self.connections.remove(&key);
    }

    /// Takes out all packets. The counters of past events and the peaks stay.
    pub fn take_all(&mut self) -> BTreeMap<K, CachedConnection<P>> {
        self.wide.clear();
        self.paired.clear();
        self.syn_bytes = 0;
        self.counts.packets = 0;
        self.counts.bytes = 0;
        std::mem::take(&mut self.connections)
    }

    fn count_in(&mut self, bytes: usize) {
        let counts = &mut self.counts;
        counts.packets += 1;
        counts.bytes += bytes;
        counts.peak_packets = counts.peak_packets.max(counts.packets);
        counts.peak_bytes = counts.peak_bytes.max(counts.bytes);
    }

    const fn count_out(&mut self, bytes: usize) {
        self.counts.packets -= 1;
        self.counts.bytes -= bytes;
    }
}
