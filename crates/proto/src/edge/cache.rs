//! What an edge remembers of the connections whose string is failing (HALR thesis §3.3), within a bound.
//!
//! Per connection: of what enters the cluster the lowest unacknowledged packet (or only a SYN, or all of it), of what
//! leaves it the packet with the highest acknowledgement. At the bound those packets go first that are least worth:
//!
//! | worth | packet | why |
//! |---|---|---|
//! | most | the lowest one of a connection, a SYN | without it the connection sleeps until its timer |
//! | | the highest acknowledgement | helps only senders that have not timed out yet |
//! | least | the others of policy `all` | one round trip after the wake-up their sender repeats them itself |
//!
//! Among equals who came first stays: who waits longest has the longest timer. SYNs get at most half of the memory unless they
//! are all that is wanted, so that a flood of them leaves room for connections that exist.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Deserialize;

use crate::Seq;

/// What is remembered of the packets that enter the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// SYNs; and no acknowledgements of what leaves.
    Syn,
    /// The lowest unacknowledged packet of each connection.
    #[default]
    Lowest,
    /// Every unacknowledged packet.
    All,
}

/// Which way a packet passes an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// From outside into the cluster.
    Entering,
    /// Out of the cluster.
    Leaving,
}

/// What an edge reads of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The first number.
    pub seq: Seq,
    /// Bytes of data.
    pub len: u32,
    /// What it acknowledges.
    pub ack: Option<Seq>,
    /// Opens a connection.
    pub syn: bool,
    /// Nothing follows.
    pub fin: bool,
    /// Ends the connection at once.
    pub rst: bool,
}

impl Segment {
    /// Sequence numbers that it takes: what its receiver will acknowledge.
    pub const fn numbers(&self) -> u32 {
        self.len + self.syn as u32 + self.fin as u32
    }

    /// The first number behind it.
    pub fn end(&self) -> Seq {
        self.seq + self.numbers()
    }
}

/// How much is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Of what enters.
    pub policy: Policy,
    /// Bytes of packets at most.
    pub max_bytes: usize,
    /// Packets at most.
    pub max_packets: usize,
}

/// What a cache did, and what it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Packets held now.
    pub packets: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Most packets at any time.
    pub peak_packets: usize,
    /// Most bytes at any time.
    pub peak_bytes: usize,
    /// Packets copied into the cache.
    pub copied: u64,
    /// Packets that were in it already.
    pub repeated: u64,
    /// Packets that found no room.
    pub refused: u64,
    /// Packets given up for others that are worth more.
    pub evicted: u64,
}

/// The memory of one edge for one string. `K` names a connection, `P` is a packet or a handle to one.
#[derive(Clone, Debug)]
pub struct Cache<K, P> {
    config: CacheConfig,
    connections: BTreeMap<K, Kept<P>>,
    /// Connections with more than one entering packet, and with an acknowledgement: where room can be made.
    wide: BTreeSet<K>,
    acknowledging: BTreeSet<K>,
    syn_bytes: usize,
    counts: CacheCounts,
}

/// Of one connection.
#[derive(Clone, Debug)]
struct Kept<P> {
    /// Entering and unacknowledged, lowest first.
    waiting: VecDeque<Held<P>>,
    /// Leaving: the highest acknowledgement, which [`Held::end`] holds.
    highest: Option<Held<P>>,
    /// The number behind the FIN that entered; and whether one left.
    fin_entered: Option<Seq>,
    fin_left: bool,
}

#[derive(Clone, Debug)]
struct Held<P> {
    seq: Seq,
    end: Seq,
    syn: bool,
    bytes: usize,
    packet: P,
}

/// How much a packet is worth; the higher may displace the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    Further,
    Acknowledgement,
    Lowest,
}

impl<P> Default for Kept<P> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            highest: None,
            fin_entered: None,
            fin_left: false,
        }
    }
}

/// Whether `number` is at or behind `other`.
fn reaches(number: Seq, other: Seq) -> bool {
    number.distance_from(other) >= 0
}

impl<K: Copy + Ord, P> Cache<K, P> {
    /// An empty one.
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

    /// What it did and what it takes.
    pub const fn counts(&self) -> CacheCounts {
        self.counts
    }

    /// How many connections something is held of.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// The entering packets held of a connection, lowest first.
    pub fn waiting(&self, key: K) -> impl Iterator<Item = &P> {
        let kept = self.connections.get(&key);
        kept.into_iter()
            .flat_map(|kept| kept.waiting.iter().map(|held| &held.packet))
    }

    /// The leaving packet held of a connection.
    pub fn highest(&self, key: K) -> Option<&P> {
        let held = self.connections.get(&key)?.highest.as_ref();
        held.map(|held| &held.packet)
    }

    /// A packet enters the cluster; `packet` takes it, if it is to be held.
    pub fn on_entering(&mut self, key: K, segment: &Segment, bytes: usize, packet: impl FnOnce() -> P) {
        if segment.rst {
            self.forget(key);
            return;
        }
        if segment.numbers() == 0 || (self.config.policy == Policy::Syn && !segment.syn) {
            return;
        }
        if segment.syn && self.is_other_incarnation(key, segment.seq) {
            self.forget(key);
        }
        self.note_fin(key, segment);
        let Some(place) = self.place(key, segment) else {
            return;
        };
        let worth = if place == 0 { Worth::Lowest } else { Worth::Further };
        let replaced = self
            .is_replaced(key, place, segment)
            .then(|| self.take_waiting(key, place))
            .flatten();
        if !self.make_room(worth, segment.syn, bytes) {
            self.counts.refused += 1;
            if let Some(old) = replaced {
                self.put_waiting(key, place, old);
            }
            self.prune(key);
            return;
        }
        let held = Held {
            seq: segment.seq,
            end: segment.end(),
            syn: segment.syn,
            bytes,
            packet: packet(),
        };
        self.counts.copied += 1;
        self.put_waiting(key, place, held);
        self.note_fin(key, segment);
    }

    /// A packet leaves the cluster: what it acknowledges needs no more care; if it acknowledges most, it is held.
    ///
    /// A packet with data counts only if its acknowledgement is news. Where data flow one way all have the same, and to
    /// repeat one thrice would tell its receiver nothing.
    pub fn on_leaving(&mut self, key: K, segment: &Segment, bytes: usize, packet: impl FnOnce() -> P) {
        let Some(ack) = segment.ack.filter(|_| !segment.rst) else {
            if segment.rst || segment.syn {
                self.forget(key);
            }
            return;
        };
        let released = self.release(key, ack);
        if self.config.policy == Policy::Syn {
            self.prune(key);
            return;
        }
        let mut before = None;
        if let Some(kept) = self.connections.get_mut(&key) {
            kept.fin_left |= segment.fin;
            if kept.fin_left && kept.fin_entered.is_some_and(|fin| reaches(ack, fin)) {
                self.forget(key);
                return;
            }
            before = kept.highest.as_ref().map(|held| held.end);
        }
        let is_higher = before.is_none_or(|before| !reaches(before, ack));
        let is_news = released || before.is_some();
        if is_higher && (segment.numbers() == 0 || is_news) {
            self.hold_highest(key, ack, bytes, packet);
        }
        self.prune(key);
    }

    /// Takes everything out: per connection the acknowledgement, then the entering packets from the lowest.
    pub fn drain(&mut self) -> impl Iterator<Item = (K, Way, P)> + use<K, P> {
        let connections = std::mem::take(&mut self.connections);
        self.clear();
        connections.into_iter().flat_map(|(key, kept)| {
            let leaving = kept
                .highest
                .into_iter()
                .map(move |held| (key, Way::Leaving, held.packet));
            let entering = kept
                .waiting
                .into_iter()
                .map(move |held| (key, Way::Entering, held.packet));
            leaving.chain(entering)
        })
    }

    /// Drops everything; the counts of what was done stay.
    pub fn clear(&mut self) {
        self.connections.clear();
        self.wide.clear();
        self.acknowledging.clear();
        self.syn_bytes = 0;
        self.counts.packets = 0;
        self.counts.bytes = 0;
    }

    /// Notes the end of what enters, of a connection that something is held of.
    fn note_fin(&mut self, key: K, segment: &Segment) {
        if segment.fin
            && let Some(kept) = self.connections.get_mut(&key)
        {
            kept.fin_entered = Some(segment.end());
        }
    }

    /// Where among the held ones a segment belongs, if it is to be held.
    fn place(&mut self, key: K, segment: &Segment) -> Option<usize> {
        let Some(kept) = self.connections.get(&key) else {
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
                self.counts.repeated += 1;
                None
            }
            _ if self.config.policy != Policy::All && place > 0 => None,
            _ => Some(place),
        }
    }

    /// Whether a segment takes the place of the one that is held there: a lower one, or the same grown.
    fn is_replaced(&self, key: K, place: usize, segment: &Segment) -> bool {
        let kept = self.connections.get(&key);
        let there = kept.and_then(|kept| kept.waiting.get(place));
        there.is_some_and(|held| self.config.policy != Policy::All || held.seq == segment.seq)
    }

    /// Whether a SYN with this number opens the connection anew.
    fn is_other_incarnation(&self, key: K, seq: Seq) -> bool {
        let kept = self.connections.get(&key);
        kept.is_some_and(|kept| {
            kept.waiting
                .front()
                .is_none_or(|held| !held.syn || held.seq != seq)
        })
    }

    /// Drops what is acknowledged; whether there was anything.
    fn release(&mut self, key: K, ack: Seq) -> bool {
        let mut released = false;
        while let Some(kept) = self.connections.get(&key)
            && kept.waiting.front().is_some_and(|held| reaches(ack, held.end))
        {
            self.take_waiting(key, 0);
            released = true;
        }
        released
    }

    fn hold_highest(&mut self, key: K, ack: Seq, bytes: usize, packet: impl FnOnce() -> P) {
        let old = self.take_highest(key);
        let new = if self.make_room(Worth::Acknowledgement, false, bytes) {
            self.counts.copied += 1;
            Some(Held {
                seq: ack,
                end: ack,
                syn: false,
                bytes,
                packet: packet(),
            })
        } else {
            self.counts.refused += 1;
            old
        };
        if let Some(held) = new {
            self.count_in(held.bytes);
            self.acknowledging.insert(key);
            self.connections.entry(key).or_default().highest = Some(held);
        }
    }

    /// Makes room for a packet by giving up what is worth less; whether there is room now.
    fn make_room(&mut self, worth: Worth, syn: bool, bytes: usize) -> bool {
        let CacheConfig {
            policy,
            max_bytes,
            max_packets,
        } = self.config;
        let syns_full = policy != Policy::Syn && self.syn_bytes + bytes > max_bytes / 2;
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

    fn put_waiting(&mut self, key: K, place: usize, held: Held<P>) {
        self.count_in(held.bytes);
        self.syn_bytes += if held.syn { held.bytes } else { 0 };
        let waiting = &mut self.connections.entry(key).or_default().waiting;
        // Room may have been made behind the place, in this very connection.
        waiting.insert(place.min(waiting.len()), held);
        if waiting.len() > 1 {
            self.wide.insert(key);
        }
    }

    fn take_waiting(&mut self, key: K, place: usize) -> Option<Held<P>> {
        let waiting = &mut self.connections.get_mut(&key)?.waiting;
        let held = waiting.remove(place)?;
        if waiting.len() <= 1 {
            self.wide.remove(&key);
        }
        self.count_out(held.bytes);
        self.syn_bytes -= if held.syn { held.bytes } else { 0 };
        Some(held)
    }

    fn take_highest(&mut self, key: K) -> Option<Held<P>> {
        let held = self.connections.get_mut(&key)?.highest.take()?;
        self.acknowledging.remove(&key);
        self.count_out(held.bytes);
        Some(held)
    }

    /// Forgets a connection of which nothing is held.
    fn prune(&mut self, key: K) {
        let kept = self.connections.get(&key);
        if kept.is_some_and(|kept| kept.waiting.is_empty() && kept.highest.is_none()) {
            self.connections.remove(&key);
        }
    }

    /// Drops what is held of a connection.
    pub fn forget(&mut self, key: K) {
        while self.take_waiting(key, 0).is_some() {}
        self.take_highest(key);
        self.connections.remove(&key);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROOMY: CacheConfig = CacheConfig {
        policy: Policy::Lowest,
        max_bytes: 1_000_000,
        max_packets: 1000,
    };

    fn cache(policy: Policy) -> Cache<u32, u32> {
        Cache::new(CacheConfig { policy, ..ROOMY })
    }

    fn data(seq: u32) -> Segment {
        Segment {
            seq: Seq(seq),
            len: 100,
            ..Segment::default()
        }
    }

    fn syn(seq: u32) -> Segment {
        Segment {
            syn: true,
            len: 0,
            ..data(seq)
        }
    }

    fn ack(number: u32) -> Segment {
        Segment {
            ack: Some(Seq(number)),
            ..Segment::default()
        }
    }

    /// Lets segments enter connection 1; a packet is its number.
    fn enter(cache: &mut Cache<u32, u32>, segments: &[Segment]) {
        for segment in segments {
            cache.on_entering(1, segment, 140, || segment.seq.0);
        }
    }

    fn leave(cache: &mut Cache<u32, u32>, segment: Segment) {
        cache.on_leaving(1, &segment, 40, || segment.ack.unwrap_or_default().0);
    }

    fn waiting(cache: &Cache<u32, u32>) -> Vec<u32> {
        cache.waiting(1).copied().collect()
    }

    #[test]
    fn each_policy_holds_what_it_says() {
        let segments = [syn(999), data(1100), data(1200), data(1000), data(1100)];
        for (policy, expected) in [
            (Policy::Syn, vec![999]),
            (Policy::Lowest, vec![999]),
            (Policy::All, vec![999, 1000, 1100, 1200]),
        ] {
            let mut cache = cache(policy);
            enter(&mut cache, &segments);
            assert_eq!(waiting(&cache), expected, "{policy:?}");
        }
        let mut lowest = cache(Policy::Lowest);
        enter(&mut lowest, &segments[1..]);
        assert_eq!(waiting(&lowest), [1000]);
        assert_eq!((lowest.counts().packets, lowest.counts().bytes), (1, 140));
    }

    #[test]
    fn sequence_numbers_wrap() {
        let mut cache = cache(Policy::All);
        enter(&mut cache, &[data(20), data(u32::MAX - 79), data(u32::MAX - 179)]);
        assert_eq!(waiting(&cache), [u32::MAX - 179, u32::MAX - 79, 20]);
        leave(&mut cache, ack(20));
        assert_eq!(waiting(&cache), [20]);
    }

    #[test]
    fn an_acknowledgement_releases_and_the_highest_is_held() {
        let mut cache = cache(Policy::Lowest);
        enter(&mut cache, &[data(1000)]);
        for number in [1000, 1100, 1100, 1050] {
            leave(&mut cache, ack(number));
        }
        assert_eq!(waiting(&cache), [] as [u32; 0]);
        assert_eq!(cache.highest(1), Some(&1100));
        enter(&mut cache, &[data(1000)]); // repeated for nothing
        assert_eq!(waiting(&cache), [] as [u32; 0]);
    }

    #[test]
    fn data_that_flow_out_are_not_taken_for_acknowledgements() {
        let mut cache = cache(Policy::Lowest);
        let answer = |number| Segment {
            len: 500,
            ..ack(number)
        };
        leave(&mut cache, answer(1000));
        assert_eq!(cache.connections(), 0);
        enter(&mut cache, &[data(1000)]);
        leave(&mut cache, answer(1000));
        assert_eq!(cache.highest(1), None);
        leave(&mut cache, answer(1100)); // the request is acknowledged by the reply
        assert_eq!(cache.highest(1), Some(&1100));
    }

    #[test]
    fn the_policy_of_syns_holds_no_acknowledgements() {
        let mut cache = cache(Policy::Syn);
        enter(&mut cache, &[syn(999)]);
        leave(&mut cache, ack(1000));
        assert_eq!((cache.connections(), cache.counts().packets), (0, 0));
    }

    #[test]
    fn a_connection_that_ends_is_forgotten() {
        let fin = |segment| Segment { fin: true, ..segment };
        for (policy, half_closed) in [(Policy::All, vec![1000, 1100]), (Policy::Lowest, vec![1000])] {
            let mut cache = cache(policy);
            enter(&mut cache, &[data(1000), fin(data(1100))]);
            leave(&mut cache, fin(ack(1000)));
            assert_eq!(waiting(&cache), half_closed);
            leave(&mut cache, ack(1201));
            assert_eq!(cache.connections(), 0, "{policy:?}");
        }
        let mut cache = cache(Policy::All);
        leave(&mut cache, fin(ack(1201)));
        assert_eq!(cache.connections(), 0);
        for reset in [Way::Entering, Way::Leaving] {
            enter(&mut cache, &[data(1000)]);
            let rst = Segment {
                rst: true,
                ..Segment::default()
            };
            match reset {
                Way::Entering => enter(&mut cache, &[rst]),
                Way::Leaving => leave(&mut cache, rst),
            }
            assert_eq!((cache.connections(), cache.counts().bytes), (0, 0));
        }
    }

    #[test]
    fn a_syn_is_held_once_and_another_one_begins_anew() {
        let mut cache = cache(Policy::Lowest);
        enter(&mut cache, &[syn(7), syn(7), syn(7)]);
        assert_eq!((cache.counts().copied, cache.counts().repeated), (1, 2));
        enter(&mut cache, &[syn(3_000_000_000)]);
        assert_eq!(waiting(&cache), [3_000_000_000]);
        assert_eq!(cache.counts().packets, 1);
    }

    #[test]
    fn at_the_bound_the_least_worth_goes_first() {
        let mut cache: Cache<u32, u32> = Cache::new(CacheConfig {
            policy: Policy::All,
            max_packets: 3,
            ..ROOMY
        });
        enter(&mut cache, &[data(1000), data(1100)]);
        leave(&mut cache, ack(1000));
        enter(&mut cache, &[data(1200)]); // no more than the others
        assert_eq!((waiting(&cache), cache.counts().refused), (vec![1000, 1100], 1));
        cache.on_entering(2, &data(5), 140, || 5);
        assert_eq!((waiting(&cache), cache.highest(1)), (vec![1000], Some(&1000)));
        cache.on_entering(3, &data(6), 140, || 6);
        assert_eq!((waiting(&cache), cache.highest(1)), (vec![1000], None));
        cache.on_entering(4, &data(7), 140, || 7);
        assert_eq!(cache.waiting(4).count(), 0);
        assert_eq!((cache.counts().evicted, cache.counts().refused), (2, 2));
    }

    #[test]
    fn a_flood_of_syns_leaves_room_for_connections() {
        let mut cache: Cache<u32, u32> = Cache::new(CacheConfig {
            max_bytes: 1400,
            ..ROOMY
        });
        for key in 0..1000 {
            cache.on_entering(key, &syn(1), 140, || 0);
        }
        assert_eq!((cache.counts().packets, cache.counts().refused), (5, 995));
        cache.on_entering(2000, &data(1), 140, || 1);
        assert_eq!(cache.waiting(2000).count(), 1);
    }

    #[test]
    fn it_is_emptied_in_an_order_that_helps() {
        let mut cache = cache(Policy::All);
        enter(&mut cache, &[data(1100), data(1000)]);
        leave(&mut cache, ack(900));
        let all: Vec<_> = cache.drain().collect();
        let expected = [
            (1, Way::Leaving, 900),
            (1, Way::Entering, 1000),
            (1, Way::Entering, 1100),
        ];
        assert_eq!(all, expected);
        assert_eq!(
            (cache.connections(), cache.counts().packets, cache.counts().bytes),
            (0, 0, 0)
        );
    }

    /// One packet of one of three connections.
    fn step() -> impl Strategy<Value = (u32, bool, Segment)> {
        let numbers = (0..20_u32).prop_map(|number| (u32::MAX - 899).wrapping_add(number * 100));
        let flags = prop_oneof![8 => Just(0), 1 => Just(1), 1 => Just(2), 1 => Just(3)];
        (0..3_u32, any::<bool>(), numbers, flags).prop_map(|(key, entering, number, flags)| {
            let segment = Segment {
                syn: flags == 1,
                fin: flags == 2,
                rst: flags == 3,
                ..if entering { data(number) } else { ack(number) }
            };
            (key, entering, segment)
        })
    }

    proptest! {
        #[test]
        fn the_bound_holds_and_the_counts_are_right(
            steps in prop::collection::vec(step(), 0..200),
            policy in prop_oneof![Just(Policy::Syn), Just(Policy::Lowest), Just(Policy::All)],
            max_packets in 0..8_usize,
            max_bytes in 0..1000_usize,
        ) {
            let mut cache = Cache::new(CacheConfig { policy, max_bytes, max_packets });
            for (key, entering, segment) in steps {
                let bytes = 40 + segment.len as usize;
                if entering {
                    cache.on_entering(key, &segment, bytes, || bytes);
                } else {
                    cache.on_leaving(key, &segment, bytes, || bytes);
                }
                let held: Vec<usize> = (0..3)
                    .flat_map(|key| cache.waiting(key).chain(cache.highest(key)).copied().collect::<Vec<_>>())
                    .collect();
                let counts = cache.counts();
                prop_assert_eq!((counts.packets, counts.bytes), (held.len(), held.iter().sum()));
                prop_assert!(counts.peak_packets <= max_packets && counts.peak_bytes <= max_bytes);
                let some = (0..3).filter(|key| cache.waiting(*key).next().or(cache.highest(*key)).is_some());
                prop_assert_eq!(some.count(), cache.connections());
            }
            cache.drain().for_each(drop);
            prop_assert_eq!((cache.counts().bytes, cache.syn_bytes), (0, 0));
            prop_assert!(cache.wide.is_empty() && cache.acknowledging.is_empty());
        }

        /// While nothing is acknowledged, as in a failover, the packet held is the lowest of all that came.
        #[test]
        fn the_lowest_unacknowledged_packet_is_held(
            steps in prop::collection::vec((0..3_u32, 0..20_u32), 1..100),
            all in any::<bool>(),
        ) {
            let mut cache = cache(if all { Policy::All } else { Policy::Lowest });
            let mut lowest: BTreeMap<u32, u32> = BTreeMap::new();
            for (key, number) in steps {
                let seq = (u32::MAX - 999).wrapping_add(number * 100);
                cache.on_entering(key, &data(seq), 140, || number);
                let least = lowest.entry(key).or_insert(number);
                *least = number.min(*least);
                for (key, least) in &lowest {
                    prop_assert_eq!(cache.waiting(*key).next(), Some(least));
                }
            }
        }

        /// With acknowledgements: it is the lowest that came since the last one held was acknowledged.
        #[test]
        fn the_lowest_since_the_last_release_is_held(
            steps in prop::collection::vec((any::<bool>(), 0..20_u32), 1..100),
        ) {
            let mut cache = cache(Policy::Lowest);
            let (mut expected, mut acknowledged) = (None, 0);
            for (entering, number) in steps {
                let seq = (u32::MAX - 999).wrapping_add(number * 100);
                if entering {
                    cache.on_entering(1, &data(seq), 140, || number);
                    if number >= acknowledged {
                        expected = Some(expected.map_or(number, |held: u32| held.min(number)));
                    }
                } else {
                    cache.on_leaving(1, &ack(seq), 40, || number);
                    acknowledged = acknowledged.max(number);
                    expected = expected.filter(|held| *held >= acknowledged);
                }
                prop_assert_eq!(cache.waiting(1).next(), expected.as_ref());
            }
        }

        /// With acknowledgements: what is held is never acknowledged, and under `all` nothing else is missing.
        #[test]
        fn what_is_held_is_what_is_unacknowledged(
            steps in prop::collection::vec((any::<bool>(), 0..20_u32), 1..100),
        ) {
            let mut cache = cache(Policy::All);
            let mut expected: BTreeSet<u32> = BTreeSet::new();
            let mut acknowledged = 0;
            for (entering, number) in steps {
                let seq = (u32::MAX - 999).wrapping_add(number * 100);
                if entering {
                    cache.on_entering(1, &data(seq), 140, || number);
                    expected.extend((number >= acknowledged).then_some(number));
                } else {
                    cache.on_leaving(1, &ack(seq), 40, || number);
                    acknowledged = acknowledged.max(number);
                    expected = expected.split_off(&acknowledged);
                }
                prop_assert!(cache.waiting(1).eq(&expected));
            }
        }
    }
}
