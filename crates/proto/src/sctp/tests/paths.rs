//! Several destinations: retransmissions, failures, heartbeats (RFC 9260 §5.4, §6.4, §8).

use std::time::Duration;

use super::net::{TestNet, is_data, is_heartbeat, message, millis};
use crate::sctp::association::AssociationEvent;
use crate::sctp::{PathId, RetransmissionPolicy, SctpConfig};

/// A bulk transfer, and path 0 is cut a second later. Returns when path 0 was declared failed, in seconds after the cut.
fn detection(path_max_retrans: u32) -> u64 {
    let mut net = TestNet::connected(SctpConfig {
        path_max_retrans,
        heartbeat_interval: None,
        ..SctpConfig::default()
    });
    net.send(0, message(0, 1000));
    net.run(Duration::from_secs(1));
    net.lose(|leaving| leaving.path == 0);
    let cut = net.now;
    loop {
        while net.at(0).unacknowledged() < 20_000 {
            net.send(0, message(0, 1000));
        }
        net.run(millis(10));
        if net.events[0].contains(&AssociationEvent::PathFailed(PathId(0))) {
            return net.now.since(cut).as_secs();
        }
        assert!(net.now.since(cut) < Duration::from_secs(400));
    }
}

/// Paper, section II and III.2: 63 s with PMR = 5, 15 s with 3, 123 s with 6. PMR = 0 needs one timeout.
#[test]
fn a_failure_is_detected_after_pmr_and_one_timeouts() {
    assert_eq!([0, 3, 5, 6].map(detection), [1, 15, 63, 123]);
}

#[test]
fn data_goes_to_the_alternate_after_a_failure_and_back_after_the_recovery() {
    let mut net = TestNet::connected(SctpConfig {
        path_max_retrans: 0,
        ..SctpConfig::default()
    });
    net.lose(|leaving| leaving.path == 0);
    net.send(0, message(0, 1000));
    net.run(millis(1500));
    assert_eq!(net.at(0).current(), PathId(1));
    net.log.clear();
    net.send(0, message(0, 1000));
    net.run(millis(100));
    assert_eq!(net.sent_with(0, is_data)[0].1, 1);
    net.lose(|_| false);
    net.run(Duration::from_secs(10));
    assert_eq!(net.at(0).current(), PathId(0));
    let news = [
        AssociationEvent::PathFailed(PathId(0)),
        AssociationEvent::PathRecovered(PathId(0)),
    ];
    assert_eq!(net.events[0][1..], news);
    assert_eq!(net.received[1].len(), 2);
}

/// Sends ten packets and loses the third once, so that it is fast retransmitted. Returns the path of the retransmission.
fn fast_retransmission_path(retransmission: RetransmissionPolicy) -> usize {
    let mut net = TestNet::connected(SctpConfig {
        retransmission,
        initial_window: 60_000,
        max_burst: 100,
        ..SctpConfig::default()
    });
    let mut count = 0;
    net.lose(move |leaving| {
        count += usize::from(leaving.packet.chunks.iter().any(is_data));
        count == 3
    });
    net.send(0, message(0, 10 * 1452));
    net.run(millis(100));
    let sent = net.sent_with(0, is_data);
    assert_eq!((sent.len(), net.received[1].len()), (11, 1));
    sent[10].1
}

#[test]
fn the_policy_chooses_the_destination_of_fast_retransmissions() {
    assert_eq!(fast_retransmission_path(RetransmissionPolicy::Alternate), 1);
    assert_eq!(fast_retransmission_path(RetransmissionPolicy::FastSame), 0);
}

#[test]
fn a_timeout_retransmits_to_the_alternate_and_its_timeout_to_the_primary() {
    let mut net = TestNet::connected(SctpConfig {
        retransmission: RetransmissionPolicy::FastSame,
        ..SctpConfig::default()
    });
    let mut losses = 2;
    net.lose(move |leaving| {
        losses -= i32::from(leaving.packet.chunks.iter().any(is_data));
        losses >= 0 && leaving.packet.chunks.iter().any(is_data)
    });
    let begun = net.now.as_nanos() / 1_000_000;
    net.send(0, message(0, 1000));
    net.run(Duration::from_secs(4));
    let sent = net.sent_with(0, is_data);
    let sent: Vec<_> = sent.into_iter().map(|(at, path)| (at - begun, path)).collect();
    assert_eq!(sent, [(0, 0), (1000, 1), (2000, 0)]);
    assert_eq!(net.at(0).destinations()[1].window().window(), 1468);
    assert_eq!(net.received[1].len(), 1);
}

#[test]
fn idle_destinations_are_probed_and_their_failure_and_recovery_noticed() {
    let mut net = TestNet::connected(SctpConfig {
        path_max_retrans: 1,
        ..SctpConfig::default()
    });
    net.run(Duration::from_secs(100));
    for path in 0..2 {
        let count = net
            .sent_with(0, is_heartbeat)
            .iter()
            .filter(|(_, on)| *on == path)
            .count();
        // Every 30 s and an RTO with its jitter.
        assert_eq!(count, 3, "path {path}");
    }
    net.lose(|leaving| leaving.path == 1);
    net.run(Duration::from_secs(40));
    assert_eq!(
        net.events[0].last(),
        Some(&AssociationEvent::PathFailed(PathId(1)))
    );
    assert_eq!(net.at(0).current(), PathId(0));
    net.lose(|_| false);
    net.run(Duration::from_secs(70));
    assert_eq!(
        net.events[0].last(),
        Some(&AssociationEvent::PathRecovered(PathId(1)))
    );
}

#[test]
fn data_takes_the_place_of_heartbeats() {
    let mut net = TestNet::connected(SctpConfig::default());
    for _ in 0..100 {
        net.send(0, message(0, 100));
        net.run(Duration::from_secs(1));
    }
    let heartbeats = net.sent_with(0, is_heartbeat);
    assert_eq!(heartbeats.iter().filter(|(_, path)| *path == 0).count(), 0);
    assert_eq!(heartbeats.iter().filter(|(_, path)| *path == 1).count(), 3);
}

/// RFC 9260 §5.4: an address that a peer only claims to have gets no data.
#[test]
fn an_address_that_never_answered_gets_no_data() {
    let mut net = TestNet::new(SctpConfig::default());
    net.lose(|leaving| leaving.path == 1);
    net.call(0);
    net.run(Duration::from_secs(2));
    net.lose(|_| true);
    net.send(0, message(0, 1000));
    net.run(Duration::from_secs(20));
    assert!(net.sent_with(0, is_data).len() > 2);
    assert!(net.sent_with(0, is_data).iter().all(|(_, path)| *path == 0));
    assert!(net.sent_with(0, is_heartbeat).iter().any(|(_, path)| *path == 1));
}
