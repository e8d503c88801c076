//! Tests of path MTU discovery and of the watch over paths, with two connected endpoints.

use std::time::Duration;

use super::net::{LeavingPacket, TestNet, is_data, is_heartbeat, message, millis};
use crate::Instant;
use crate::sctp::association::AssociationEvent;
use crate::sctp::destination::PathId;
use crate::sctp::{HeartbeatWatch, SctpConfig};

fn searching() -> SctpConfig {
    SctpConfig {
        base_mtu: Some(1280),
        path_mtu: 1500,
        ..SctpConfig::default()
    }
}

/// Bytes of the IP packet.
fn ip_bytes(leaving: &LeavingPacket<'_>) -> usize {
    leaving.packet.wire_bytes() + 20
}

/// Whether a path passes the packet that carries no IP packet above `most` bytes, and whose routers do not fragment (IPv6).
fn passes(leaving: &LeavingPacket<'_>, most: u32) -> bool {
    let whole = u32::try_from(ip_bytes(leaving)).expect("a packet");
    leaving.fragment_size.unwrap_or(whole) <= most
}

fn sizes(net: &mut TestNet, end: usize) -> Vec<u32> {
    let paths = net.at(end).destinations().iter();
    paths.map(|path| path.mtu().confirmed()).collect()
}

#[test]
fn each_path_is_searched_and_chunks_fit_all_of_them() {
    let mut net = TestNet::new(searching());
    net.lose(|leaving| leaving.path == 1 && ip_bytes(leaving) > 1400);
    net.call(0);
    net.run(Duration::from_secs(60));
    let found = sizes(&mut net, 0);
    assert_eq!(found[0], 1500);
    assert!((1388..=1400).contains(&found[1]), "{found:?}");
    net.log.clear();
    net.send(0, message(1, 20_000));
    net.run(Duration::from_secs(5));
    assert_eq!(net.received[1], [message(1, 20_000)]);
    let largest = net.log.iter().filter(|(_, end, ..)| *end == 0);
    let largest = largest.map(|(.., packet)| packet.wire_bytes() + 20).max();
    assert!(
        largest.is_some_and(|bytes| bytes <= found[1] as usize && bytes > 1280),
        "{largest:?}"
    );
}

#[test]
fn lost_probes_are_no_errors_of_their_path() {
    let mut net = TestNet::new(searching());
    net.lose(|leaving| ip_bytes(leaving) > 1300);
    net.call(0);
    net.run(Duration::from_secs(100));
    let paths = net.at(0).destinations();
    assert!(
        paths
            .iter()
            .all(|path| path.counts().failures == 0 && path.errors() == 0)
    );
    assert!(sizes(&mut net, 0).iter().all(|size| (1288..=1300).contains(size)));
}

#[test]
fn a_search_stops_while_its_path_does_not_answer() {
    let mut net = TestNet::connected(searching());
    net.run(Duration::from_secs(5));
    net.lose(|leaving| leaving.path == 1);
    net.run(Duration::from_secs(300));
    assert_eq!(sizes(&mut net, 0), [1500, 1500]);
}

/// RFC 8899 §4.3.
#[test]
fn a_path_that_becomes_smaller_is_a_black_hole_for_a_moment() {
    let mut net = TestNet::with_paths(searching(), 1);
    net.call(0);
    net.run(Duration::from_secs(5));
    assert_eq!(sizes(&mut net, 0), [1500]);
    net.lose(|leaving| !passes(leaving, 1400));
    net.send(0, message(1, 30_000));
    net.run(Duration::from_secs(60));
    assert_eq!(net.received[1], [message(1, 30_000)]);
    assert_eq!(net.at(0).destinations()[0].mtu().black_holes(), 1);
    assert!((1388..=1400).contains(&sizes(&mut net, 0)[0]));
}

/// A transfer over paths that become smaller at `at`, to `least` bytes. The limits do not count as ICMP messages.
fn transfer_over_smaller_paths(config: SctpConfig, at: Duration, least: [u32; 2]) {
    const MESSAGES: usize = 40;
    let mut net = TestNet::new(config);
    net.call(0);
    net.run(Duration::from_secs(20));
    assert_eq!(sizes(&mut net, 0), [1500, 1500]);
    let from = net.now + at;
    net.lose(move |leaving| leaving.at >= from && !passes(leaving, least[leaving.path]));
    // Each end sends, so SACKs share packets with data.
    for _ in 0..MESSAGES {
        net.send(0, message(1, 3000));
        net.send(1, message(2, 3000));
    }
    let mut whole = 0;
    for _ in 0..120 {
        whole = net.received.iter().map(Vec::len).sum();
        if whole == 2 * MESSAGES {
            break;
        }
        net.run(Duration::from_secs(1));
    }
    let counts = net.at(0).destinations().iter().map(|path| path.counts());
    let counts: Vec<_> = counts.collect();
    assert_eq!(
        whole,
        2 * MESSAGES,
        "{at:?} {least:?} {counts:?} {:?}",
        sizes(&mut net, 0)
    );
}

/// RFC 8899 §4.3, RFC 9260 §6.9: chunks that have a TSN cannot be cut again, so their IP packets are fragmented.
#[test]
fn data_in_flight_arrives_though_all_paths_become_smaller() {
    let wire = SctpConfig {
        path_mtu: 1500,
        ..SctpConfig::wire(20)
    };
    for config in [searching(), wire] {
        for at in (0..400).step_by(16) {
            for least in [[1280, 1280], [1400, 1280], [1300, 1499]] {
                transfer_over_smaller_paths(config, millis(at), least);
            }
        }
    }
}

fn watching() -> SctpConfig {
    SctpConfig {
        path_max_retrans: 0,
        watch: Some(HeartbeatWatch {
            interval: millis(10),
            missed: 3,
        }),
        ..SctpConfig::default()
    }
}

#[test]
fn a_watched_path_is_left_before_a_timeout_of_data() {
    let mut net = TestNet::connected(watching());
    net.run(Duration::from_secs(2));
    let cut = net.now;
    net.lose(|leaving| leaving.path == 0);
    net.log.clear();
    net.send(0, message(1, 3000));
    net.run(millis(300));
    // The first heartbeat that stays unanswered left at most 20 ms before the cut. The path counts as failed three intervals, a round trip
    // of 40 ms, and four times the round trip's least variation (1 ms) after that heartbeat.
    let sent = net.sent_with(0, is_data);
    let (at, _) = sent
        .iter()
        .find(|(_, path)| *path == 1)
        .expect("data on the other path");
    let after = *at - cut.as_nanos() / 1_000_000;
    assert!((50..=80).contains(&after), "{after} ms");
    assert_eq!(net.received[1], [message(1, 3000)]);
    assert!(net.events[0].contains(&AssociationEvent::PathFailed(PathId(0))));
    // Data returns to the path when the path answers again.
    net.lose(|_| false);
    net.run(Duration::from_secs(10));
    assert_eq!(net.at(0).current(), PathId(0));
}

#[test]
fn a_peer_that_is_silent_on_all_paths_leaves_none() {
    let mut net = TestNet::connected(watching());
    net.run(Duration::from_secs(2));
    let (from, to) = (net.now, net.now + millis(500));
    net.set_fate(move |leaving| {
        let is_still = leaving.at >= from && leaving.at < to;
        vec![if is_still {
            to.since(leaving.at)
        } else {
            millis(20)
        }]
    });
    net.run(Duration::from_secs(3));
    let failed = net
        .at(0)
        .destinations()
        .iter()
        .map(|path| path.counts().failures)
        .sum::<u64>();
    assert!(
        failed <= 1,
        "one failure at most, since the last path is never left: {failed}"
    );
    assert!(net.at(0).destinations().iter().all(|path| path.errors() == 0));
}

#[test]
fn without_a_watch_there_are_no_frequent_heartbeats() {
    let mut net = TestNet::connected(SctpConfig::default());
    net.log.clear();
    net.run(Duration::from_secs(10));
    assert!(net.sent_with(0, is_heartbeat).len() < 3);
    assert!(net.now > Instant::ZERO);
}
