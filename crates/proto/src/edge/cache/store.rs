//! The packets that an edge holds, their memory, and which packets are evicted first when the memory is full.
//!
//! | worth | packet | why |
//! |---|---|---|
//! | most | the lowest packet of a connection, a SYN | without it the connection sleeps until its timer expires |
//! | | the highest acknowledgement | helps only senders that have not timed out yet |
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

/// Policy and limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Which entering packets are cached.
    pub policy: CachePolicy,
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
    /// Connections that can make room: those with more than one entering packet are `wide`, those with an acknowledgement
    /// `acknowledging`.
    wide: BTreeSet<K>,
    acknowledging: BTreeSet<K>,
    syn_bytes: usize,
    pub counts: CacheCounts,
}

/// The packets of one connection.
#[derive(Clone, Debug)]
pub(super) struct CachedConnection<P> {
    /// Unacknowledged entering packets, lowest first.
    pub waiting: VecDeque<CachedPacket<P>>,
    /// The leaving packet with the highest acknowledgement, which is in [`CachedPacket::end`].
    pub highest: Option<CachedPacket<P>>,
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

/// How much a packet is worth. A packet of higher worth may displace one of lower worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Worth {
    Further,
    Acknowledgement,
    Lowest,
}

impl<P> Default for CachedConnection<P> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            highest: None,
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
            acknowledging: BTreeSet::new(),
            syn_bytes: 0,
            counts: CacheCounts::default(),
        }
    }

    /// Number of wide connections, number of acknowledging connections, and bytes of SYNs.
    #[cfg(test)]
    pub fn indexed(&self) -> (usize, usize, usize) {
        (self.wide.len(), self.acknowledging.len(), self.syn_bytes)
    }

    /// Makes room for a packet by giving up packets that are worth less. Returns whether there is room now.
    pub fn make_room(&mut self, worth: Worth, syn: bool, bytes: usize) -> bool {
        let CacheConfig {
            policy,
            max_bytes,
            max_packets,
        } = self.config;
        let syns_full = policy != CachePolicy::Syn && self.syn_bytes + bytes > max_bytes / 2;
        if bytes > max_bytes || max_packets == 0 || (syn && syns_full) {
            return false;
        }
        while self.counts.bytes + bytes > max_bytes || self.counts.packets >= max_packets {
            let further = self.wide.last().copied().filter(|_| worth > Worth::Further);
            let acknowledging = self.acknowledging.last().copied();
            if let Some(key) = further {
                let last = self.connections[&key].waiting.len() - 1;
                self.take_waiting(key, last);
            } else if let Some(key) = acknowledging.filter(|_| worth > Worth::Acknowledgement) {
                self.take_highest(key);
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

    pub fn put_highest(&mut self, key: K, held: CachedPacket<P>) {
        self.count_in(held.bytes);
        self.acknowledging.insert(key);
        self.connections.entry(key).or_default().highest = Some(held);
    }

    pub fn take_highest(&mut self, key: K) -> Option<CachedPacket<P>> {
        let held = self.connections.get_mut(&key)?.highest.take()?;
        self.acknowledging.remove(&key);
        self.count_out(held.bytes);
        Some(held)
    }

    /// Forgets a connection if nothing of it is held.
    pub fn prune(&mut self, key: K) {
        let kept = self.connections.get(&key);
        if kept.is_some_and(|kept| kept.waiting.is_empty() && kept.highest.is_none()) {
            self.connections.remove(&key);
        }
    }

    /// Drops all packets of a connection.
    pub fn forget(&mut self, key: K) {
        while self.take_waiting(key, 0).is_some() {}
        self.take_highest(key);
        self.connections.remove(&key);
    }

    /// Takes out all packets. The counters of past events and the peaks stay.
    pub fn take_all(&mut self) -> BTreeMap<K, CachedConnection<P>> {
        self.wide.clear();
        self.acknowledging.clear();
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
