//! Tests which packets the cache holds, with example conversations and with random ones.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::store::CachedConnection;
use super::*;

const ROOMY: CacheConfig = CacheConfig {
    policy: CachePolicy::Lowest,
    second: SecondPacket::Acknowledgement,
    max_bytes: 1_000_000,
    max_packets: 1000,
    max_connection_bytes: 1_000_000,
};

fn cache(policy: CachePolicy) -> Cache<u32, u32> {
    Cache::new(CacheConfig { policy, ..ROOMY }, 1)
}

fn data(seq: u32) -> EdgeSegment {
    EdgeSegment {
        seq: Seq(seq),
        len: 100,
        ..EdgeSegment::default()
    }
}

fn syn(seq: u32) -> EdgeSegment {
    EdgeSegment {
        syn: true,
        len: 0,
        ..data(seq)
    }
}

fn ack(number: u32) -> EdgeSegment {
    EdgeSegment {
        ack: Some(Seq(number)),
        ..EdgeSegment::default()
    }
}

/// Lets segments of connection 1 enter. A packet is represented by its sequence number.
fn enter(cache: &mut Cache<u32, u32>, segments: &[EdgeSegment]) {
    for segment in segments {
        cache.on_entering(0, 1, segment, 140, false, || segment.seq.0);
    }
}

fn leave(cache: &mut Cache<u32, u32>, segment: EdgeSegment) {
    cache.on_leaving(0, 1, &segment, 40, || segment.ack.unwrap_or_default().0);
}

fn waiting(cache: &Cache<u32, u32>) -> Vec<u32> {
    cache.waiting(0, 1).copied().collect()
}

#[test]
fn each_policy_holds_what_it_says() {
    let segments = [syn(999), data(1100), data(1200), data(1000), data(1100)];
    for (policy, expected) in [
        (CachePolicy::Syn, vec![999]),
        (CachePolicy::Lowest, vec![999]),
        (CachePolicy::All, vec![999, 1000, 1100, 1200]),
    ] {
        let mut cache = cache(policy);
        enter(&mut cache, &segments);
        assert_eq!(waiting(&cache), expected, "{policy:?}");
    }
    let mut lowest = cache(CachePolicy::Lowest);
    enter(&mut lowest, &segments[1..]);
    assert_eq!(waiting(&lowest), [1000]);
    assert_eq!((lowest.counts(0).packets, lowest.counts(0).bytes), (1, 140));
}

#[test]
fn sequence_numbers_wrap() {
    let mut cache = cache(CachePolicy::All);
    enter(&mut cache, &[data(20), data(u32::MAX - 79), data(u32::MAX - 179)]);
    assert_eq!(waiting(&cache), [u32::MAX - 179, u32::MAX - 79, 20]);
    leave(&mut cache, ack(20));
    assert_eq!(waiting(&cache), [20]);
}

#[test]
fn an_acknowledgement_releases_and_the_highest_is_held() {
    let mut cache = cache(CachePolicy::Lowest);
    enter(&mut cache, &[data(1000)]);
    for number in [1000, 1100, 1100, 1050] {
        leave(&mut cache, ack(number));
    }
    assert_eq!(waiting(&cache), [] as [u32; 0]);
    assert_eq!(cache.second(0, 1), Some(&1100));
    enter(&mut cache, &[data(1000)]); // a needless repetition
    assert_eq!(waiting(&cache), [] as [u32; 0]);
}

#[test]
fn data_that_flow_out_are_not_taken_for_acknowledgements() {
    let mut cache = cache(CachePolicy::Lowest);
    let answer = |number| EdgeSegment {
        len: 500,
        ..ack(number)
    };
    leave(&mut cache, answer(1000));
    assert_eq!(cache.connections(0), 0);
    enter(&mut cache, &[data(1000)]);
    leave(&mut cache, answer(1000));
    assert_eq!(cache.second(0, 1), None);
    leave(&mut cache, answer(1100)); // the request is acknowledged by the reply
    assert_eq!(cache.second(0, 1), Some(&1100));
}

#[test]
fn the_policy_of_syns_holds_no_acknowledgements() {
    let mut cache = cache(CachePolicy::Syn);
    enter(&mut cache, &[syn(999)]);
    leave(&mut cache, ack(1000));
    assert_eq!((cache.connections(0), cache.counts(0).packets), (0, 0));
}

#[test]
fn a_connection_that_ends_is_forgotten() {
    let fin = |segment| EdgeSegment { fin: true, ..segment };
    for (policy, half_closed) in [
        (CachePolicy::All, vec![1000, 1100]),
        (CachePolicy::Lowest, vec![1000]),
    ] {
        let mut cache = cache(policy);
        enter(&mut cache, &[data(1000), fin(data(1100))]);
        leave(&mut cache, fin(ack(1000)));
        assert_eq!(waiting(&cache), half_closed);
        leave(&mut cache, ack(1201));
        assert_eq!(cache.connections(0), 0, "{policy:?}");
    }
    let mut cache = cache(CachePolicy::All);
    leave(&mut cache, fin(ack(1201)));
    assert_eq!(cache.connections(0), 0);
    for reset in [EdgeDirection::Entering, EdgeDirection::Leaving] {
        enter(&mut cache, &[data(1000)]);
        let rst = EdgeSegment {
            rst: true,
            ..EdgeSegment::default()
        };
        match reset {
            EdgeDirection::Entering => enter(&mut cache, &[rst]),
            EdgeDirection::Leaving => leave(&mut cache, rst),
        }
        assert_eq!((cache.connections(0), cache.counts(0).bytes), (0, 0));
    }
}

#[test]
fn a_syn_is_held_once_and_another_one_begins_anew() {
    let mut cache = cache(CachePolicy::Lowest);
    enter(&mut cache, &[syn(7), syn(7), syn(7)]);
    assert_eq!((cache.counts(0).copied, cache.counts(0).packets), (3, 1));
    enter(&mut cache, &[syn(3_000_000_000)]);
    assert_eq!(waiting(&cache), [3_000_000_000]);
    assert_eq!(cache.counts(0).packets, 1);
}

#[test]
fn the_last_copy_of_a_repeated_packet_is_held() {
    for policy in [CachePolicy::Lowest, CachePolicy::All] {
        let mut cache: Cache<u32, u32> = Cache::new(CacheConfig { policy, ..ROOMY }, 1);
        for copy in 1..=3 {
            cache.on_entering(0, 1, &data(1000), 140, true, || copy);
        }
        let shorter = EdgeSegment {
            len: data(1000).len - 1,
            ..data(1000)
        };
        cache.on_entering(0, 1, &shorter, 139, false, || 4);
        assert_eq!(cache.counts(0).repeated, 1);
        let drained: Vec<u32> = cache.drain(0).map(|(.., copy)| copy).collect();
        assert_eq!(drained, [3], "{policy:?}");
    }
}

#[test]
fn when_the_cache_is_full_the_newest_connection_is_dropped() {
    let config = CacheConfig {
        policy: CachePolicy::All,
        max_packets: 4,
        ..ROOMY
    };
    let mut cache: Cache<u32, u32> = Cache::new(config, 2);
    let mut enter = |string, key, seq| {
        cache.on_entering(string, key, &data(seq), 140, false, || seq);
        let held = [(0, 1), (1, 2), (0, 3)].map(|(string, key)| cache.waiting(string, key).count());
        let counts = [0, 1].map(|string| cache.counts(string));
        (
            held,
            counts.map(|counts| (counts.lost, counts.dropped_connections)),
        )
    };
    enter(0, 1, 1000);
    enter(1, 2, 1000);
    enter(1, 2, 1100);
    assert_eq!(enter(0, 3, 1000), ([1, 2, 1], [(0, 0), (0, 0)]));
    // A connection of which nothing is held is the newest.
    assert_eq!(enter(1, 4, 1000), ([1, 2, 1], [(0, 0), (1, 1)]));
    assert_eq!(enter(0, 1, 1100), ([2, 2, 0], [(1, 1), (1, 1)]));
    assert_eq!(
        enter(0, 1, 1200),
        ([3, 0, 0], [(1, 1), (3, 2)]),
        "of the other string"
    );
    assert_eq!(enter(0, 1, 1300), ([4, 0, 0], [(1, 1), (3, 2)]));
    assert_eq!(
        enter(0, 1, 1400),
        ([0, 0, 0], [(6, 2), (3, 2)]),
        "it is the newest itself"
    );
}

#[test]
fn a_packet_that_can_have_no_room_costs_no_other_connection() {
    let mut cache: Cache<u32, u32> = Cache::new(
        CacheConfig {
            max_bytes: 1000,
            ..ROOMY
        },
        1,
    );
    cache.on_entering(0, 1, &data(1100), 140, false, || 1);
    cache.on_entering(0, 2, &data(1), 140, false, || 2);
    cache.on_entering(0, 1, &data(1000), 1001, false, || 3);
    assert_eq!((cache.waiting(0, 1).count(), cache.waiting(0, 2).count()), (0, 1));
    assert_eq!(
        (cache.counts(0).lost, cache.counts(0).dropped_connections),
        (1, 1)
    );
}

#[test]
fn a_connection_has_a_bound_and_keeps_its_lowest_packet() {
    let mut cache: Cache<u32, u32> = Cache::new(
        CacheConfig {
            policy: CachePolicy::All,
            max_connection_bytes: 460,
            ..ROOMY
        },
        1,
    );
    for number in 1..6 {
        cache.on_entering(0, 1, &data(100 * number), 140, false, || number);
    }
    cache.on_entering(0, 2, &data(1), 500, false, || 7);
    let waiting = |key| cache.waiting(0, key).copied().collect::<Vec<_>>();
    assert_eq!((waiting(1), waiting(2)), (vec![1, 2, 3], vec![7]));
    assert_eq!(
        (cache.counts(0).lost, cache.counts(0).dropped_connections),
        (2, 0)
    );
    cache.on_leaving(0, 1, &ack(200), 40, || 0);
    cache.on_entering(0, 1, &data(600), 140, false, || 6);
    assert_eq!(cache.waiting(0, 1).copied().collect::<Vec<_>>(), [2, 3, 6]);
    for number in [2, 3, 4, 1] {
        cache.on_entering(0, 3, &data(100 * number), 140, false, || number);
    }
    let waiting: Vec<_> = cache.waiting(0, 3).copied().collect();
    assert_eq!(waiting, [1, 2, 3], "a lower packet displaces the highest");
    // The second packet counts, too.
    cache.on_leaving(0, 3, &ack(50), 41, || 0);
    assert_eq!((cache.second(0, 3), cache.counts(0).lost), (None, 4));
    cache.on_leaving(0, 2, &ack(50), 40, || 0);
    assert_eq!((cache.second(0, 2), cache.counts(0).lost), (None, 5));
}

#[test]
fn a_flood_of_syns_leaves_room_for_connections() {
    let mut cache: Cache<u32, u32> = Cache::new(
        CacheConfig {
            max_bytes: 1400,
            ..ROOMY
        },
        1,
    );
    for key in 0..1000 {
        cache.on_entering(0, key, &syn(1), 140, false, || 0);
    }
    assert_eq!((cache.counts(0).packets, cache.counts(0).lost), (5, 995));
    cache.on_entering(0, 2000, &data(1), 140, false, || 1);
    assert_eq!(cache.waiting(0, 2000).count(), 1);
}

#[test]
fn it_is_emptied_in_an_order_that_helps() {
    let mut cache = cache(CachePolicy::All);
    enter(&mut cache, &[data(1100), data(1000)]);
    leave(&mut cache, ack(900));
    for number in [5000, 5100] {
        cache.on_entering(0, 2, &data(number), 100, false, || number);
    }
    let all: Vec<_> = cache.drain(0).collect();
    let expected = [
        (1, EdgeDirection::Leaving, 900),
        (1, EdgeDirection::Entering, 1000),
        (2, EdgeDirection::Entering, 5000),
        (1, EdgeDirection::Entering, 1100),
        (2, EdgeDirection::Entering, 5100),
    ];
    assert_eq!(all, expected);
    assert_eq!(
        (
            cache.connections(0),
            cache.counts(0).packets,
            cache.counts(0).bytes
        ),
        (0, 0, 0)
    );
}

/// A random packet of one of three connections.
fn step() -> impl Strategy<Value = (u32, bool, EdgeSegment)> {
    let numbers = (0..20_u32).prop_map(|number| (u32::MAX - 899).wrapping_add(number * 100));
    let flags = prop_oneof![8 => Just(0), 1 => Just(1), 1 => Just(2), 1 => Just(3)];
    (0..3_u32, any::<bool>(), numbers, flags).prop_map(|(key, entering, number, flags)| {
        let segment = EdgeSegment {
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
        policy in prop_oneof![Just(CachePolicy::Syn), Just(CachePolicy::Lowest), Just(CachePolicy::All)],
        second in prop_oneof![Just(SecondPacket::Newest), Just(SecondPacket::Acknowledgement)],
        is_suspected in any::<bool>(),
        max_packets in 0..8_usize,
        max_bytes in 0..1000_usize,
        max_connection_bytes in 0..500_usize,
    ) {
        let config = CacheConfig { policy, second, max_bytes, max_packets, max_connection_bytes };
        let mut cache = Cache::new(config, 2);
        let string_of = |key: u32| (key % 2) as usize;
        for (key, entering, segment) in steps {
            let bytes = 40 + segment.len as usize;
            let string = string_of(key);
            if entering {
                cache.on_entering(string, key, &segment, bytes, is_suspected, || bytes);
            } else {
                cache.on_leaving(string, key, &segment, bytes, || bytes);
            }
            let each = if policy == CachePolicy::Syn { 1 } else { 2 };
            let mut total = (0, 0);
            for string in 0..2 {
                let (mut packets, mut bytes, mut connections) = (0, 0, 0);
                for key in 0..3 {
                    let held: Vec<_> = cache.waiting(string, key).chain(cache.second(string, key)).copied().collect();
                    let of_key: usize = held.iter().sum();
                    prop_assert!(policy == CachePolicy::All || held.len() <= each, "{:?} of connection {}", held, key);
                    prop_assert!(held.len() <= 1 || of_key <= max_connection_bytes, "{} bytes of connection {}", of_key, key);
                    (packets, bytes) = (packets + held.len(), bytes + of_key);
                    connections += usize::from(!held.is_empty());
                }
                let counts = cache.counts(string);
                prop_assert_eq!((counts.packets, counts.bytes, cache.connections(string)), (packets, bytes, connections));
                total = (total.0 + packets, total.1 + bytes);
                cache.strings[string].check();
            }
            prop_assert!(total.0 <= max_packets && total.1 <= max_bytes, "{:?}", total);
        }
        (0..3).for_each(|key| cache.forget(string_of(key), key));
        for store in &cache.strings {
            prop_assert_eq!((store.counts.packets, store.counts.bytes), (0, 0));
            prop_assert_eq!((store.len(), store.seconds(), store.syn_bytes(), store.newest()), (0, 0, 0, None));
        }
    }

    /// When the cache is full, the connections of all strings that arrived last are dropped, one by one, until the packet fits.
    #[test]
    fn the_newest_connections_are_dropped(
        steps in prop::collection::vec((0..2_usize, 0..12_u32, 0..20_u32, 20..300_usize, prop::bool::weighted(0.8)), 1..300),
        max_packets in 1..12_usize,
        max_bytes in 300..2000_usize,
        is_packed in any::<bool>(),
    ) {
        let config = CacheConfig { max_packets, max_bytes, second: SecondPacket::Newest, ..ROOMY };
        let mut cache = if is_packed { Cache::packed(config, 2, FORM) } else { Cache::new(config, 2) };
        // String, connection, sequence number and bytes of each held packet, in the order of the connections' arrival.
        let mut expected: Vec<(usize, u32, u32, usize)> = Vec::new();
        let mut dropped = [0, 0];
        for (string, key, number, bytes, enters) in steps {
            let at = expected.iter().position(|held| (held.0, held.1) == (string, key));
            if enters {
                let segment = data(number * 100);
                cache.on_entering(string, key, &segment, bytes, false, || written(key, &segment, bytes));
                let new = (string, key, number, bytes);
                match at {
                    Some(at) if number <= expected[at].2 => expected[at] = new,
                    Some(_) => {}
                    None => expected.push(new),
                }
            } else {
                cache.on_leaving(string, key, &ack(number * 100), 40, Vec::new);
                let is_acknowledged = |at: &usize| expected[*at].2 < number;
                at.filter(is_acknowledged).map(|at| expected.remove(at));
            }
            while expected.len() > max_packets || expected.iter().map(|held| held.3).sum::<usize>() > max_bytes {
                dropped[expected.pop().map_or(0, |newest| newest.0)] += 1;
            }
            for (string, &dropped) in dropped.iter().enumerate() {
                let of_string = || expected.iter().filter(|held| held.0 == string);
                let counts = cache.counts(string);
                prop_assert_eq!(counts.bytes, of_string().map(|held| held.3).sum::<usize>());
                prop_assert_eq!((counts.lost, counts.dropped_connections), (dropped, dropped));
                let mut packets: Vec<_> = of_string().map(|held| written(held.1, &data(held.2 * 100), held.3)).collect();
                packets.sort_unstable();
                let mut held: Vec<_> = cache.clone().drain(string).map(|(.., packet)| packet).collect();
                held.sort_unstable();
                prop_assert_eq!(held, packets);
                cache.strings[string].check();
            }
        }
    }

    /// After enough calls, all connections that arrived earlier are forgotten, and no others.
    #[test]
    fn connections_that_are_held_for_long_are_forgotten(
        keys in prop::collection::vec(0..2000_u32, 1..2000),
        middle in 0..2000_usize,
        suspected_from in 0..2000_usize,
    ) {
        let config = CacheConfig { second: SecondPacket::Newest, max_packets: 10_000, ..ROOMY };
        let mut cache: Cache<u32, Vec<u8>> = Cache::packed(config, 1, FORM);
        let (mut before, mut after) = (BTreeSet::new(), BTreeSet::new());
        let mut arrivals = 0;
        for (number, key) in keys.iter().enumerate() {
            let segment = data(100 * number as u32);
            cache.on_entering(0, *key, &segment, 140, number >= suspected_from, || written(*key, &segment, 140));
            if number <= middle {
                before.insert(*key);
                arrivals = cache.arrivals();
            } else if !before.contains(key) {
                after.insert(*key);
            }
        }
        prop_assert_eq!(cache.connections(0), before.len() + after.len());
        for _ in 0..200 {
            cache.forget_until(0, arrivals);
            cache.strings[0].check();
        }
        let held: BTreeSet<_> = cache.drain(0).map(|(key, ..)| key).collect();
        prop_assert_eq!(held, after);
    }

    /// While nothing is acknowledged, as in a failover, the cache holds the lowest of all packets that entered.
    #[test]
    fn the_lowest_unacknowledged_packet_is_held(
        steps in prop::collection::vec((0..3_u32, 0..20_u32), 1..100),
        all in any::<bool>(),
    ) {
        let mut cache = cache(if all { CachePolicy::All } else { CachePolicy::Lowest });
        let mut lowest: BTreeMap<u32, u32> = BTreeMap::new();
        for (key, number) in steps {
            let seq = (u32::MAX - 999).wrapping_add(number * 100);
            cache.on_entering(0, key, &data(seq), 140, false, || number);
            let least = lowest.entry(key).or_insert(number);
            *least = number.min(*least);
            for (key, least) in &lowest {
                prop_assert_eq!(cache.waiting(0, *key).next(), Some(least));
            }
        }
    }

    /// After an acknowledgement of the held packet, no packet waits. The cache then holds the lowest unacknowledged packet
    /// that enters afterwards.
    #[test]
    fn the_lowest_since_the_last_release_is_held(
        steps in prop::collection::vec((any::<bool>(), 0..20_u32), 1..100),
    ) {
        let mut cache = cache(CachePolicy::Lowest);
        let (mut expected, mut acknowledged) = (None, 0);
        for (entering, number) in steps {
            let seq = (u32::MAX - 999).wrapping_add(number * 100);
            if entering {
                cache.on_entering(0, 1, &data(seq), 140, false, || number);
                if number >= acknowledged {
                    expected = Some(expected.map_or(number, |held: u32| held.min(number)));
                }
            } else {
                cache.on_leaving(0, 1, &ack(seq), 40, || number);
                acknowledged = acknowledged.max(number);
                expected = expected.filter(|held| *held >= acknowledged);
            }
            prop_assert_eq!(cache.waiting(0, 1).next(), expected.as_ref());
        }
    }

    /// With policy `all`, the unacknowledged packets wait, and no acknowledged packet waits.
    #[test]
    fn what_is_held_is_what_is_unacknowledged(
        steps in prop::collection::vec((any::<bool>(), 0..20_u32), 1..100),
    ) {
        let mut cache = cache(CachePolicy::All);
        let mut expected: BTreeSet<u32> = BTreeSet::new();
        let mut acknowledged = 0;
        for (entering, number) in steps {
            let seq = (u32::MAX - 999).wrapping_add(number * 100);
            if entering {
                cache.on_entering(0, 1, &data(seq), 140, false, || number);
                expected.extend((number >= acknowledged).then_some(number));
            } else {
                cache.on_leaving(0, 1, &ack(seq), 40, || number);
                acknowledged = acknowledged.max(number);
                expected = expected.split_off(&acknowledged);
            }
            prop_assert!(cache.waiting(0, 1).eq(&expected));
        }
    }
}

/// Lets segments of connection 1 enter while its string is suspected.
fn enter_suspected(cache: &mut Cache<u32, u32>, segments: &[EdgeSegment]) {
    for segment in segments {
        cache.on_entering(0, 1, segment, 140, true, || segment.seq.0);
    }
}

fn with_newest(policy: CachePolicy) -> Cache<u32, u32> {
    Cache::new(
        CacheConfig {
            policy,
            second: SecondPacket::Newest,
            ..ROOMY
        },
        1,
    )
}

fn pure(seq: u32, number: u32) -> EdgeSegment {
    EdgeSegment {
        seq: Seq(seq),
        ack: Some(Seq(number)),
        ..EdgeSegment::default()
    }
}

#[test]
fn the_lowest_and_the_newest_packet_are_held() {
    let mut cache = with_newest(CachePolicy::Lowest);
    enter_suspected(&mut cache, &[data(1000), data(1000)]);
    assert_eq!((waiting(&cache), cache.second(0, 1)), (vec![1000], None));
    enter_suspected(&mut cache, &[data(1100), data(1200), data(1000), data(1100)]);
    assert_eq!((waiting(&cache), cache.second(0, 1)), (vec![1000], Some(&1200)));
    let drained: Vec<_> = cache.drain(0).collect();
    assert_eq!(
        drained,
        [
            (1, EdgeDirection::Entering, 1000),
            (1, EdgeDirection::Entering, 1200)
        ]
    );
}

#[test]
fn a_packet_that_is_no_longer_the_lowest_may_be_the_newest() {
    let mut cache = with_newest(CachePolicy::Lowest);
    enter_suspected(&mut cache, &[data(1300), data(1000)]);
    assert_eq!((waiting(&cache), cache.second(0, 1)), (vec![1000], Some(&1300)));
    leave(&mut cache, ack(1400));
    assert_eq!(
        (waiting(&cache), cache.second(0, 1), cache.connections(0)),
        (vec![], None, 0)
    );
}

#[test]
fn an_acknowledgement_alone_is_held_unless_newer_data_are() {
    let mut cache = with_newest(CachePolicy::All);
    enter_suspected(&mut cache, &[pure(1000, 5), pure(1000, 6)]);
    assert_eq!((cache.second(0, 1), cache.counts(0).packets), (Some(&1000), 1));
    let mut cache = with_newest(CachePolicy::Lowest);
    enter_suspected(&mut cache, &[data(900), pure(1000, 5), data(1000), pure(1100, 7)]);
    assert_eq!((waiting(&cache), cache.second(0, 1)), (vec![900], Some(&1000)));
}

#[test]
fn nothing_but_the_lowest_is_held_before_a_suspicion() {
    let mut cache = with_newest(CachePolicy::Lowest);
    enter(&mut cache, &[data(1000), data(1100), pure(1200, 5)]);
    leave(&mut cache, ack(1000));
    assert_eq!((waiting(&cache), cache.second(0, 1)), (vec![1000], None));
    let mut syns = with_newest(CachePolicy::Syn);
    enter_suspected(&mut syns, &[syn(999), data(1000), pure(1100, 5)]);
    assert_eq!((waiting(&syns), syns.second(0, 1)), (vec![999], None));
}

/// How the tests write a packet of connection `key` as bytes: the key, the packet's numbers, flags and length, and zeros.
const FORM: PacketBytes<u32, Vec<u8>> = PacketBytes {
    bytes: |packet| packet,
    packet: <[u8]>::to_vec,
    length: |packet| {
        packet
            .get(13..)?
            .first_chunk()
            .copied()
            .map(|word| u16::from_be_bytes(word).into())
    },
    key: |packet| packet.first_chunk().copied().map(u32::from_be_bytes),
    segment: |packet| {
        let word = |at: usize| packet.get(at..)?.first_chunk().copied().map(u32::from_be_bytes);
        Some(EdgeSegment {
            seq: Seq(word(4)?),
            len: word(8)?,
            ack: None,
            syn: packet.get(12)? & 1 != 0,
            fin: packet.get(12)? & 2 != 0,
            rst: false,
        })
    },
};

fn written(key: u32, segment: &EdgeSegment, bytes: usize) -> Vec<u8> {
    let words = [key, segment.seq.0, segment.len];
    let mut packet: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
    packet.push(u8::from(segment.syn) | u8::from(segment.fin) << 1);
    packet.extend((bytes as u16).to_be_bytes());
    packet.resize(bytes, 0);
    packet
}

/// A random packet of one of `keys` connections: most packets are small, some are too long to be packed.
fn packet_of(keys: u32) -> impl Strategy<Value = (u32, bool, EdgeSegment, usize)> {
    let bytes = prop_oneof![6 => 15..80_usize, 2 => 80..513_usize, 1 => 513..600_usize];
    let numbers = (0..5_u32).prop_map(|number| (u32::MAX - 199).wrapping_add(number * 100));
    let flags =
        prop_oneof![8 => Just(0), 8 => Just(1), 1 => Just(2), 1 => Just(3), 1 => Just(4), 1 => Just(5)];
    let parts = (
        0..keys,
        prop::bool::weighted(0.7),
        numbers,
        flags,
        bytes,
        any::<bool>(),
    );
    parts.prop_map(|(key, entering, number, flags, bytes, has_ack)| {
        let segment = EdgeSegment {
            syn: flags == 1 || flags == 5,
            fin: flags == 2 || flags == 5,
            rst: flags == 3,
            len: if flags == 1 || flags == 4 { 0 } else { 100 },
            ack: (!entering || has_ack).then_some(Seq(number)),
            ..data(number)
        };
        (key, entering, segment, bytes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A packed cache holds the same packets as a plain cache, has the same counts except for memory, and gives the packets back in the
    /// same order.
    #[test]
    fn a_packed_cache_does_the_same(
        steps in (1..300_u32).prop_flat_map(|keys| prop::collection::vec(packet_of(keys), 0..600)),
        policy in prop_oneof![2 => Just(CachePolicy::Syn), 2 => Just(CachePolicy::Lowest), 1 => Just(CachePolicy::All)],
        second in prop_oneof![Just(SecondPacket::Newest), Just(SecondPacket::Acknowledgement)],
        suspected_from in 0..600_usize,
        max_packets in prop_oneof![1 => 0..100_usize, 2 => Just(1000)],
        max_bytes in prop_oneof![1 => 0..10_000_usize, 2 => Just(1_000_000)],
        max_connection_bytes in prop_oneof![1 => 0..1000_usize, 2 => Just(1_000_000)],
    ) {
        let config = CacheConfig { policy, second, max_bytes, max_packets, max_connection_bytes };
        let (mut plain, mut packed) = (Cache::new(config, 2), Cache::packed(config, 2, FORM));
        let without_memory = |cache: &Cache<u32, Vec<u8>>| {
            [0, 1].map(|string| CacheCounts { memory: 0, peak_memory: 0, ..cache.counts(string) })
        };
        let sizes = |cache: &Cache<u32, Vec<u8>>| [0, 1].map(|string| (cache.connections(string), cache.leaving(string)));
        for (number, (key, entering, segment, bytes)) in steps.into_iter().enumerate() {
            let packet = || written(key, &segment, bytes);
            let string = (key % 2) as usize;
            if entering {
                let is_suspected = number >= suspected_from;
                plain.on_entering(string, key, &segment, bytes, is_suspected, packet);
                packed.on_entering(string, key, &segment, bytes, is_suspected, packet);
            } else {
                let released = plain.on_leaving(string, key, &segment, bytes, packet);
                prop_assert_eq!(packed.on_leaving(string, key, &segment, bytes, packet), released);
            }
            prop_assert_eq!(without_memory(&packed), without_memory(&plain));
            prop_assert_eq!(sizes(&packed), sizes(&plain));
            let most = 2 * plain.connections(string);
            prop_assert!(policy != CachePolicy::Lowest || plain.counts(string).packets <= most);
        }
        for string in 0..2 {
            let alone = packed.strings[string].check();
            let is_small = |kept: &&CachedConnection<Vec<u8>>| kept.waiting.iter().all(|held| held.bytes <= 512);
            let small = plain.strings[string].connections.values().filter(is_small).count();
            prop_assert!(alone <= small && (policy != CachePolicy::Syn || alone == small));
            prop_assert!(packed.drain(string).eq(plain.drain(string)));
            prop_assert_eq!(packed.counts(string).memory, plain.counts(string).memory);
        }
    }
}
