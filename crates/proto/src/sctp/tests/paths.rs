//! Several destinations: retransmissions, failures, heartbeats (RFC 9260 §5.4, §6.4, §8).

use std::time::Duration;

use super::net::{PORT, TestNet, address, is_data, is_heartbeat, is_sack, message, millis};
use crate::sctp::association::{AssociationEvent, CloseReason};
use crate::sctp::{AssociationState, PathId, RetransmissionPolicy, SctpConfig};

/// Begins a bulk transfer, and cuts path 0 a second later. Returns when path 0 was declared failed, in seconds after the cut.
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

/// Paper, section II and III.2: 63 s with PMR = 5, 15 s with 3, 123 s with 6. PMR = 0 needs one timeout. Delayed SACKs add at most one
/// second, because new data waits for a SACK after each timeout.
#[test]
fn a_failure_is_detected_after_pmr_and_one_timeouts() {
    let late = [(0, 1), (3, 15), (5, 63), (6, 123)].map(|(retrans, timeouts)| detection(retrans) - timeouts);
    assert!(late.iter().all(|seconds| *seconds <= 1), "{late:?}");
}

/// RFC 9260 §6.3.3 E3: a timeout sends one packet. The other marked chunks wait for a SACK, although the window of their destination has
/// room.
#[test]
fn a_timeout_retransmits_one_packet_and_the_rest_after_a_sack() {
    let mut net = TestNet::connected(SctpConfig {
        initial_window: 4404,
        ..SctpConfig::default()
    });
    net.lose(|leaving| leaving.path == 0);
    net.send(0, message(0, 3 * 1452));
    net.run(millis(900));
    net.log.clear();
    net.run(millis(110));
    assert_eq!(net.sent_with(0, is_data).len(), 1);
    net.run(millis(300));
    assert_eq!(net.sent_with(0, is_data).len(), 3);
    assert_eq!(net.received[1].len(), 1);
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
    // RFC 9260 §6.4.
    assert_eq!(fast_retransmission_path(SctpConfig::default().retransmission), 0);
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
        // One heartbeat every 30 s plus an RTO with its jitter.
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

/// Path 0 has failed. Twenty packets go to path 1, and packet number `lost` is lost. Returns the path of each packet with data, and the
/// time until all data has arrived.
fn repair_on_the_last_path(retransmission: RetransmissionPolicy, lost: usize) -> (Vec<usize>, Duration) {
    let mut net = TestNet::connected(SctpConfig {
        retransmission,
        path_max_retrans: 1,
        initial_window: 60_000,
        max_burst: 100,
        ..SctpConfig::default()
    });
    net.lose(|leaving| leaving.path == 0);
    for _ in 0..2 {
        net.send(0, message(0, 1000));
        net.run(Duration::from_secs(3));
    }
    assert_eq!((net.at(0).current(), net.received[1].len()), (PathId(1), 2));
    let mut count = 0;
    net.lose(move |leaving| {
        count += usize::from(leaving.path == 1 && leaving.packet.chunks.iter().any(is_data));
        leaving.path == 0 || count == lost && leaving.packet.chunks.iter().any(is_data)
    });
    net.log.clear();
    net.send(0, message(0, 20 * 1452));
    let begun = net.now;
    while net.received[1].len() < 3 {
        net.run(millis(10));
        assert!(net.now.since(begun) < Duration::from_secs(100));
    }
    let paths = net
        .sent_with(0, is_data)
        .into_iter()
        .map(|(_, path)| path)
        .collect();
    (paths, net.now.since(begun))
}

/// RFC 9260 §6.4: a retransmission goes to an active destination. If only one destination is active, the retransmission goes there, even if
/// the chunk was lost there.
#[test]
fn the_last_destination_that_works_gets_its_own_retransmissions() {
    for retransmission in [RetransmissionPolicy::Alternate, RetransmissionPolicy::FastSame] {
        let (paths, time) = repair_on_the_last_path(retransmission, 3);
        assert!(
            paths.iter().all(|path| *path == 1) && time < millis(500),
            "{paths:?} {time:?}"
        );
        // The last packet is lost. No later packet makes the receiver report it missing, so the timer runs out.
        let (paths, time) = repair_on_the_last_path(retransmission, 20);
        assert!(
            paths.iter().all(|path| *path == 1) && time < millis(1500),
            "{paths:?} {time:?}"
        );
    }
}

/// Packets are lost on path 0. They are retransmitted to path 1, which is dead.
#[test]
fn chunks_for_a_path_that_does_not_answer_do_not_hold_back_others() {
    let mut net = TestNet::with_paths(
        SctpConfig {
            initial_window: 4404,
            max_burst: 100,
            ..SctpConfig::default()
        },
        3,
    );
    net.call(0);
    net.run(Duration::from_secs(5));
    net.send(0, message(0, 60_000));
    net.run(Duration::from_secs(2));
    net.lose(|_| true);
    net.send(0, message(0, 60_000));
    net.run(millis(100));
    net.lose(|leaving| leaving.path == 1);
    net.run(millis(2400));
    assert_eq!(net.at(0).destinations()[1].errors(), 1);
    net.log.clear();
    net.send(0, message(1, 100));
    net.run(millis(500));
    assert_eq!(
        net.received[1].last(),
        Some(&message(1, 100)),
        "{:?}",
        net.sent_with(0, is_data)
    );
}

/// The second destination is confirmed only after the first one has failed.
#[test]
fn an_address_that_answers_after_all_others_have_failed_gets_data() {
    let mut net = TestNet::new(SctpConfig {
        path_max_retrans: 0,
        rto_initial: Duration::from_secs(3),
        ..SctpConfig::default()
    });
    net.set_fate(|leaving| match leaving.path {
        0 if leaving.at.as_nanos() < 500_000_000 => vec![millis(20)],
        0 => vec![],
        _ => vec![Duration::from_secs(1)],
    });
    net.call(0);
    net.run(millis(100));
    net.send(0, message(0, 100));
    net.run(millis(400));
    net.send(0, message(0, 200));
    net.run(millis(1200));
    let failed = AssociationEvent::PathFailed(PathId(0));
    assert_eq!(net.events[0].last(), Some(&failed));
    assert_eq!(net.at(0).current(), PathId(0));
    net.run(millis(1000));
    assert_eq!(net.at(0).current(), PathId(1));
}

/// RFC 9260 §8.1 counts errors in a row over all destinations, and expects at most one error per HB.interval from each idle destination.
#[test]
fn dead_idle_alternates_do_not_end_a_healthy_association() {
    let mut net = TestNet::with_paths(SctpConfig::default(), 4);
    net.call(0);
    net.run(Duration::from_secs(5));
    net.lose(|leaving| leaving.path > 0);
    net.run(Duration::from_secs(300));
    let failed = net
        .at(0)
        .destinations()
        .iter()
        .filter(|path| !path.is_usable())
        .count();
    assert_eq!((net.at(0).state(), failed), (AssociationState::Established, 3));
    net.send(0, message(0, 100));
    net.run(Duration::from_secs(1));
    assert_eq!(net.received[1].len(), 1);
    net.lose(|_| true);
    net.run(Duration::from_secs(600));
    let closed = AssociationEvent::Closed(CloseReason::Unreachable);
    assert_eq!(net.events[0].last(), Some(&closed));
}

#[test]
fn the_called_address_that_answers_is_the_primary_destination() {
    let mut net = TestNet::new(SctpConfig::default());
    net.lose(|leaving| leaving.path == 0);
    let peer = [address(1, 0), address(1, 1)];
    net.ids[0] = net.ends[0].connect(net.now, &peer, PORT).ok();
    net.settle();
    net.run(Duration::from_secs(5));
    assert_eq!(net.at(0).state(), AssociationState::Established);
    net.send(0, message(0, 100));
    net.run(millis(300));
    assert_eq!(net.received[1].len(), 1);
}

/// RFC 9260 §5.4, HB.Max.Burst: a peer may name addresses of other hosts. All of these addresses together get one packet per RTO.
#[test]
fn addresses_that_a_peer_claims_are_probed_one_after_the_other() {
    let mut net = TestNet::with_paths(SctpConfig::default(), 5);
    net.lose(|leaving| leaving.path > 0);
    net.call(0);
    net.run(millis(3500));
    let first = |path| {
        net.sent_with(1, is_heartbeat)
            .into_iter()
            .find(|(_, on)| *on == path)
    };
    let times: Vec<u64> = (1..5).filter_map(first).map(|(at, _)| at).collect();
    assert_eq!(times, [60, 1060, 2060, 3060]);
}

/// RFC 9260 §5.4.
#[test]
fn an_address_that_is_not_proven_gets_no_sack() {
    let mut net = TestNet::new(SctpConfig::default());
    net.lose(|leaving| leaving.path == 1);
    net.call(0);
    net.run(millis(500));
    net.lose(|_| true);
    net.send(0, message(0, 100));
    let (.., data) = net.log.pop().expect("data");
    net.log.clear();
    net.inject(1, address(0, 1), data);
    net.run(millis(300));
    let sacks = net.sent_with(1, is_sack);
    assert!(
        !sacks.is_empty() && sacks.iter().all(|(_, path)| *path == 0),
        "{sacks:?}"
    );
}
