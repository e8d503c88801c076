//! The beginning and the end of associations (RFC 9260 §5, §9).

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;

use super::net::{DELAY, PORT, TestNet, address, is_data, message, millis, packet};
use crate::Instant;
use crate::sctp::association::{AssociationEvent, CloseReason, SctpSendError};
use crate::sctp::chunk::SctpChunk;
use crate::sctp::cookie::CookieContent;
use crate::sctp::endpoint::{ConnectError, SctpEndpoint};
use crate::sctp::packet::SctpPacket;
use crate::sctp::terms::InitTerms;
use crate::sctp::{AssociationState, ErrorCause, InitParameter, PathId, SctpConfig, Tsn};

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const ABORT: u8 = 6;
const SHUTDOWN: u8 = 7;
const SHUTDOWN_ACK: u8 = 8;
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;
const SHUTDOWN_COMPLETE: u8 = 14;

#[test]
fn four_packets_make_an_association_and_the_called_end_has_none_before_the_cookie() {
    let mut net = TestNet::new(SctpConfig::default());
    net.call(0);
    net.run(DELAY * 2);
    assert_eq!((net.ends[1].len(), net.ends[1].counts().inits), (0, 1));
    net.run(DELAY * 2);
    let setup = [(0, INIT), (1, INIT_ACK), (0, COOKIE_ECHO), (1, COOKIE_ACK)];
    assert_eq!(net.kinds()[..4], setup);
    assert_eq!(net.events[1], [AssociationEvent::Established]);
    // Each end then probes the peer's other address, which is not confirmed yet.
    net.run(DELAY * 4);
    let paths = net.at(0).destinations();
    assert!(paths.len() == 2 && paths.iter().all(|path| path.is_usable()));
}

#[test]
fn messages_queued_before_the_handshake_are_sent_after_it() {
    let mut net = TestNet::new(SctpConfig::default());
    net.call(0);
    net.send(0, message(1, 3000));
    net.run(millis(300));
    assert_eq!(net.received[1], [message(1, 3000)]);
}

#[test]
fn each_packet_of_the_handshake_may_be_lost() {
    for kind in [INIT, INIT_ACK, COOKIE_ECHO, COOKIE_ACK] {
        let mut net = TestNet::new(SctpConfig::default());
        let mut losses = 3;
        net.lose(move |leaving| {
            let is_lost = leaving.packet.chunks[0].kind() == kind && losses > 0;
            losses -= i32::from(is_lost);
            is_lost
        });
        net.call(0);
        net.run(Duration::from_secs(10));
        assert_eq!(
            net.events,
            [[AssociationEvent::Established], [AssociationEvent::Established]]
        );
        net.send(0, message(0, 10));
        net.run(millis(500));
        assert_eq!(net.received[1].len(), 1, "kind {kind}");
    }
}

#[test]
fn a_call_that_nobody_answers_is_given_up() {
    let mut net = TestNet::new(SctpConfig::default());
    net.lose(|_| true);
    net.call(0);
    net.run(Duration::from_secs(1000));
    assert_eq!(
        net.events[0],
        [AssociationEvent::Closed(CloseReason::Unreachable)]
    );
    // Max.Init.Retransmits is 8.
    assert_eq!(net.log.len(), 9);
    assert!(net.ends[0].is_empty());
}

#[test]
fn ends_that_call_each_other_get_one_association() {
    let mut net = TestNet::new(SctpConfig::default());
    net.call(0);
    net.call(1);
    net.run(Duration::from_secs(5));
    for end in 0..2 {
        assert_eq!(
            (net.ends[end].len(), net.at(end).state()),
            (1, AssociationState::Established)
        );
        net.send(end, message(0, 10));
    }
    net.run(millis(300));
    assert_eq!(net.received, [[message(0, 10)], [message(0, 10)]]);
}

#[test]
fn a_shutdown_waits_for_the_data_of_both_ends() {
    let mut net = TestNet::connected(SctpConfig::default());
    net.send(0, message(0, 20_000));
    net.send(1, message(0, 30_000));
    let now = net.now;
    net.at(0).shutdown(now);
    assert_eq!(net.at(0).send(message(0, 1)), Err(SctpSendError::Closing));
    assert!(net.run_to_the_end());
    assert_eq!(net.received, [[message(0, 30_000)], [message(0, 20_000)]]);
    let ends = [SHUTDOWN, SHUTDOWN_ACK, SHUTDOWN_COMPLETE];
    let kinds: Vec<u8> = net
        .kinds()
        .into_iter()
        .map(|(_, kind)| kind)
        .filter(|kind| ends.contains(kind))
        .collect();
    assert_eq!(kinds[kinds.len() - 3..], ends);
    let closed = Some(&AssociationEvent::Closed(CloseReason::ShutDown));
    assert_eq!([net.events[0].last(), net.events[1].last()], [closed; 2]);
    assert!(net.events[1].contains(&AssociationEvent::PeerShutsDown));
}

#[test]
fn both_ends_may_shut_down_at_once() {
    let mut net = TestNet::connected(SctpConfig::default());
    let now = net.now;
    net.at(0).shutdown(now);
    net.at(1).shutdown(now);
    net.settle();
    assert!(net.run_to_the_end());
    assert!(net.now < now + millis(500));
}

#[test]
fn each_packet_of_the_shutdown_may_be_lost() {
    for kind in [SHUTDOWN, SHUTDOWN_ACK, SHUTDOWN_COMPLETE] {
        let mut net = TestNet::connected(SctpConfig::default());
        let mut losses = 2;
        net.lose(move |leaving| {
            let is_lost = leaving.packet.chunks[0].kind() == kind && losses > 0;
            losses -= i32::from(is_lost);
            is_lost
        });
        let now = net.now;
        net.at(0).shutdown(now);
        net.settle();
        assert!(net.run_to_the_end(), "kind {kind}");
        assert!(net.now < now + Duration::from_secs(20), "kind {kind}");
        let closed = Some(&AssociationEvent::Closed(CloseReason::ShutDown));
        assert_eq!(
            [net.events[0].last(), net.events[1].last()],
            [closed; 2],
            "kind {kind}"
        );
    }
}

#[test]
fn an_abort_tells_the_reason() {
    let mut net = TestNet::connected(SctpConfig::default());
    net.at(0).abort(Bytes::from_static(b"enough"));
    net.settle();
    assert!(net.run_to_the_end());
    let told = vec![ErrorCause::UserAbort(Bytes::from_static(b"enough"))];
    assert_eq!(
        net.events[1].last(),
        Some(&AssociationEvent::Closed(CloseReason::PeerAborted(told)))
    );
    assert_eq!(
        net.events[0].last(),
        Some(&AssociationEvent::Closed(CloseReason::Aborted))
    );
}

/// RFC 9260 §5.2.4 A.
#[test]
fn a_peer_that_restarts_is_recognised_by_its_tie_tags() {
    let mut net = TestNet::connected(SctpConfig::default());
    net.send(1, message(0, 10));
    net.run(millis(300));
    // The host of end 0 boots again: same addresses, another secret.
    let addresses = vec![address(0, 0), address(0, 1)];
    net.ends[0] = SctpEndpoint::new(SctpConfig::default(), [77; 32], PORT, addresses, 10).expect("valid");
    net.ids[0] = None;
    net.call(0);
    net.run(millis(500));
    assert_eq!(
        net.events[1][1..],
        [AssociationEvent::Restarted, AssociationEvent::Established]
    );
    assert_eq!(net.ends[1].len(), 1);
    net.send(0, message(2, 2000));
    net.send(1, message(3, 3000));
    net.run(millis(500));
    assert_eq!(net.received[1], [message(2, 2000)]);
    assert_eq!(net.received[0].last(), Some(&message(3, 3000)));
}

/// RFC 9260 §5.2.2: otherwise anybody could take over the association by an INIT that lists one address of the peer.
#[test]
fn a_restart_from_a_new_address_is_refused() {
    let mut net = TestNet::connected(SctpConfig::default());
    let stranger = IpAddr::from([192, 0, 2, 1]);
    let addresses = vec![address(0, 0), stranger];
    net.ends[0] = SctpEndpoint::new(SctpConfig::default(), [77; 32], PORT, addresses, 10).expect("valid");
    net.ids[0] = None;
    net.call(0);
    net.run(millis(500));
    let Some(AssociationEvent::Closed(CloseReason::PeerAborted(causes))) = net.events[0].last() else {
        panic!("{:?}", net.events[0]);
    };
    let new = InitParameter::Address(stranger).to_bytes();
    assert_eq!(causes[..], [ErrorCause::RestartWithNewAddresses(new)]);
    assert_eq!(net.at(1).state(), AssociationState::Established);
}

#[test]
fn a_stale_cookie_is_answered_and_a_second_call_asks_for_a_longer_life() {
    let config = SctpConfig {
        cookie_life: millis(30),
        ..SctpConfig::default()
    };
    let mut net = TestNet::new(config);
    net.call(0);
    net.run(Duration::from_secs(2));
    // The round trip of 40 ms is longer than the life of 30 ms, and shorter than twice that life.
    assert_eq!(net.ends[1].counts().stale_cookies, 1);
    assert_eq!(net.events[0], [AssociationEvent::Established]);
    let inits = net.kinds().into_iter().filter(|kind| *kind == (0, INIT)).count();
    assert_eq!(inits, 2);
}

/// RFC 9260 §5.2.4, rule 3.
#[test]
fn a_cookie_is_not_stale_while_its_association_exists() {
    let mut net = TestNet::new(SctpConfig {
        cookie_life: millis(500),
        ..SctpConfig::default()
    });
    let mut losses = 1;
    net.lose(move |leaving| {
        let is_lost = leaving.packet.chunks[0].kind() == COOKIE_ACK && losses > 0;
        losses -= i32::from(is_lost);
        is_lost
    });
    net.call(0);
    net.run(Duration::from_secs(2));
    assert_eq!(net.ends[1].counts().stale_cookies, 0);
    assert_eq!(net.events[0], [AssociationEvent::Established]);
}

/// RFC 9260 §9.2: T5-shutdown-guard.
#[test]
fn a_shutdown_that_nobody_answers_is_given_up() {
    let mut net = TestNet::connected(SctpConfig {
        association_max_retrans: 1000,
        ..SctpConfig::default()
    });
    net.lose(|_| true);
    let now = net.now;
    net.at(0).shutdown(now);
    net.settle();
    net.run(Duration::from_secs(299));
    assert_eq!(net.at(0).state(), AssociationState::ShutdownSent);
    net.run(Duration::from_secs(2));
    let closed = Some(&AssociationEvent::Closed(CloseReason::Unreachable));
    assert_eq!(net.events[0].last(), closed);
    assert_eq!(net.kinds().last(), Some(&(0, ABORT)));
}

#[test]
fn an_init_without_streams_or_with_a_host_name_is_refused() {
    let refusals = |change: fn(&mut crate::sctp::chunk::InitChunk)| {
        let mut net = TestNet::new(SctpConfig::default());
        net.lose(|_| true);
        net.call(0);
        let mut packet: SctpPacket = net.log[0].3.clone();
        if let SctpChunk::Init(init) = &mut packet.chunks[0] {
            change(init);
        }
        net.log.clear();
        net.inject(1, address(0, 0), packet);
        net.kinds()
    };
    assert_eq!(refusals(|_| {}), [(1, INIT_ACK)]);
    assert_eq!(refusals(|init| init.outbound_streams = 0), [(1, ABORT)]);
    assert_eq!(refusals(|init| init.window = 1499), [(1, ABORT)]);
    assert_eq!(refusals(|init| init.tag = 0), []);
    let name = |init: &mut crate::sctp::chunk::InitChunk| {
        init.parameters
            .push(InitParameter::HostName(Bytes::from_static(b"example.org\0")));
    };
    assert_eq!(refusals(name), [(1, ABORT)]);
}

/// RFC 9260 §8.5.1 A.
#[test]
fn an_init_with_a_tag_is_dropped() {
    let mut net = TestNet::new(SctpConfig::default());
    net.lose(|_| true);
    net.call(0);
    let mut packet: SctpPacket = net.log[0].3.clone();
    packet.tag = 5;
    if let SctpChunk::Init(init) = &mut packet.chunks[0] {
        init.outbound_streams = 0;
    }
    net.log.clear();
    net.inject(1, address(0, 0), packet);
    assert_eq!((net.log.len(), net.ends[1].counts().refused_inits), (0, 1));
}

#[test]
fn a_full_endpoint_refuses_calls() {
    let mut net = TestNet::new(SctpConfig::default());
    let addresses = vec![address(1, 0), address(1, 1)];
    net.ends[1] = SctpEndpoint::new(SctpConfig::default(), [2; 32], PORT, addresses, 0).expect("valid");
    net.call(0);
    net.run(millis(100));
    let refused = CloseReason::PeerAborted(vec![ErrorCause::OutOfResource]);
    assert_eq!(net.events[0], [AssociationEvent::Closed(refused)]);
}

#[test]
fn a_dead_peer_ends_the_association_after_too_many_timeouts() {
    let mut net = TestNet::connected(SctpConfig::default());
    net.lose(|_| true);
    net.send(0, message(0, 10));
    assert_eq!(net.now, Instant::ZERO + millis(500));
    net.run(Duration::from_secs(1000));
    assert_eq!(
        net.events[0].last(),
        Some(&AssociationEvent::Closed(CloseReason::Unreachable))
    );
    assert!(!net.sent_with(0, is_data).is_empty());
}

/// Loses the first packet of this kind.
fn lose_first(net: &mut TestNet, kind: u8) {
    let mut losses = 1;
    net.lose(move |leaving| {
        let is_lost = leaving.packet.chunks[0].kind() == kind && losses > 0;
        losses -= i32::from(is_lost);
        is_lost
    });
}

#[test]
fn a_peer_may_call_again_while_its_last_message_is_not_read() {
    let mut net = TestNet::connected(SctpConfig::default());
    net.is_lazy[1] = true;
    net.send(0, message(0, 100));
    let now = net.now;
    net.at(0).shutdown(now);
    net.settle();
    net.run(millis(500));
    assert_eq!(net.at(1).state(), AssociationState::Closed);
    let old = net.ids[1];
    (net.ids[0], net.ids[1]) = (None, None);
    net.events = Default::default();
    net.call(0);
    net.run(millis(500));
    assert_eq!(
        net.events,
        [[AssociationEvent::Established], [AssociationEvent::Established]]
    );
    assert!(net.ids[1] != old && net.ends[1].len() == 2);
    net.is_lazy[1] = false;
    net.send(0, message(0, 200));
    net.run(millis(500));
    assert_eq!(net.received[1], [message(0, 200)]);
    net.ids[1] = old;
    net.settle();
    assert_eq!(net.received[1], [message(0, 200), message(0, 100)]);
    assert_eq!(net.ends[1].len(), 1);
}

/// RFC 9260 §8.4, rule 5.
#[test]
fn an_unread_message_does_not_keep_the_peer_from_ending() {
    let mut net = TestNet::connected(SctpConfig::default());
    net.is_lazy[0] = true;
    net.send(1, message(0, 100));
    lose_first(&mut net, SHUTDOWN_COMPLETE);
    let now = net.now;
    net.at(0).shutdown(now);
    net.settle();
    net.run(Duration::from_secs(10));
    let closed = Some(&AssociationEvent::Closed(CloseReason::ShutDown));
    assert_eq!(net.events[1].last(), closed);
}

/// RFC 9260 §8.5.1 E: the peer answers each INIT with SHUTDOWN ACK until it gets SHUTDOWN COMPLETE.
#[test]
fn a_lost_shutdown_complete_does_not_delay_the_next_call() {
    let mut net = TestNet::with_paths(SctpConfig::default(), 1);
    net.call(0);
    net.run(millis(500));
    lose_first(&mut net, SHUTDOWN_COMPLETE);
    let now = net.now;
    net.at(0).shutdown(now);
    net.settle();
    net.run(millis(60));
    assert!(net.ends[0].is_empty() && net.at(1).state() == AssociationState::ShutdownAckSent);
    net.ids = [None; 2];
    net.events = Default::default();
    net.call(0);
    net.run(millis(1500));
    assert_eq!(net.events[0], [AssociationEvent::Established]);
    assert_eq!(net.events[1].last(), Some(&AssociationEvent::Established));
}

#[test]
fn messages_that_arrived_before_a_restart_can_be_read_after_it() {
    let mut net = TestNet::connected(SctpConfig::default());
    net.is_lazy[1] = true;
    net.send(0, message(0, 100));
    net.run(millis(300));
    let addresses = vec![address(0, 0), address(0, 1)];
    net.ends[0] = SctpEndpoint::new(SctpConfig::default(), [77; 32], PORT, addresses, 10).expect("valid");
    net.ids[0] = None;
    net.call(0);
    net.send(0, message(0, 200));
    net.run(millis(500));
    net.is_lazy[1] = false;
    net.settle();
    assert_eq!(net.received[1], [message(0, 100), message(0, 200)]);
}

/// When the peer restarts, a reply to one of its old addresses is still waiting to be sent. The restarted peer does not have this address.
#[test]
fn a_restart_forgets_replies_to_old_destinations() {
    let mut net = TestNet::connected(SctpConfig::default());
    let addresses = vec![address(0, 0)];
    net.ends[0] = SctpEndpoint::new(SctpConfig::default(), [77; 32], PORT, addresses, 10).expect("valid");
    net.ids[0] = None;
    net.lose(|leaving| leaving.packet.chunks[0].kind() == COOKIE_ECHO);
    net.call(0);
    net.run(millis(100));
    let (.., echo) = net
        .log
        .iter()
        .rfind(|(.., packet)| packet.chunks[0].kind() == COOKIE_ECHO)
        .expect("a cookie");
    let (echo, tag, now) = (echo.clone(), net.at(1).names().0.local_tag, net.now);
    let heartbeat = packet(tag, SctpChunk::Heartbeat(Bytes::from_static(b"12345678")));
    net.ends[1].handle_packet(now, address(0, 1), heartbeat);
    net.ends[1].handle_packet(now, address(0, 0), echo);
    net.settle();
    assert_eq!(net.events[1][1], AssociationEvent::Restarted);
}

/// The cookie of another call of the peer comes late, during a shutdown. RFC 9260 §5.2.4 B applies only during the handshake.
#[test]
fn a_cookie_of_another_call_changes_nothing_in_a_shutdown() {
    let mut net = TestNet::connected(SctpConfig::default());
    net.lose(|_| true);
    net.send(0, message(0, 100));
    let (now, (names, peer_tag)) = (net.now, net.at(0).names());
    net.at(0).shutdown(now);
    net.log.clear();
    let terms = InitTerms {
        tag: peer_tag ^ 1,
        window: 5000,
        outbound_streams: 1,
        inbound_streams: 1,
        first_tsn: Tsn(0),
        addresses: vec![address(1, 0)],
        cookie: None,
        unrecognized: Vec::new(),
        preservative: 0,
    };
    let content = CookieContent {
        made_at: now,
        life: Duration::from_secs(60),
        local_tag: names.local_tag,
        local_tsn: names.local_tsn,
        tie_tags: (0, 0),
        local_port: PORT,
        peer_port: PORT,
        peer: terms,
    };
    assert!(!net.at(0).on_cookie(now, address(1, 0), &content));
    assert_eq!(net.at(0).names().1, peer_tag);
    net.lose(|_| false);
    assert!(net.run_to_the_end());
    assert_eq!(net.received[1], [message(0, 100)]);
}

#[test]
fn a_shutdown_that_a_sack_has_overtaken_is_answered() {
    let mut net = TestNet::connected(SctpConfig::default());
    let (names, _) = net.at(0).names();
    net.send(0, message(0, 100));
    net.run(millis(500));
    net.log.clear();
    let old = SctpChunk::Shutdown(names.local_tsn.minus(1));
    net.inject(0, address(1, 0), packet(names.local_tag, old));
    assert_eq!(net.kinds(), [(0, SHUTDOWN_ACK)]);
}

#[test]
fn a_shutdown_in_the_handshake_aborts_the_call() {
    let mut net = TestNet::new(SctpConfig::default());
    net.call(0);
    net.send(0, message(0, 100));
    net.run(DELAY * 2 + millis(1));
    assert_eq!(net.at(0).state(), AssociationState::CookieEchoed);
    let now = net.now;
    net.at(0).shutdown(now);
    net.settle();
    net.run(millis(100));
    assert!(net.ends.iter().all(SctpEndpoint::is_empty));
    let reasons = [&net.events[0], &net.events[1]].map(|events| events.last().cloned());
    assert_eq!(reasons[0], Some(AssociationEvent::Closed(CloseReason::Aborted)));
    assert!(matches!(
        reasons[1],
        Some(AssociationEvent::Closed(CloseReason::PeerAborted(_)))
    ));
}

/// RFC 9260 §3.3.3.
#[test]
fn an_init_ack_without_a_tag_ends_the_call() {
    let mut net = TestNet::new(SctpConfig::default());
    net.lose(|leaving| leaving.packet.chunks[0].kind() == INIT_ACK);
    net.call(0);
    net.run(millis(50));
    let (.., mut answer) = net.log.pop().expect("an INIT ACK");
    if let SctpChunk::InitAck(init) = &mut answer.chunks[0] {
        init.tag = 0;
    }
    net.inject(0, address(1, 0), answer);
    let reason = CloseReason::Violated(ErrorCause::InvalidMandatoryParameter);
    assert_eq!(net.events[0], [AssociationEvent::Closed(reason)]);
}

#[test]
fn a_mapped_address_is_the_same_address() {
    let mut net = TestNet::new(SctpConfig::default());
    let IpAddr::V4(own) = address(0, 0) else {
        panic!("IPv4");
    };
    let addresses = vec![address(0, 0), IpAddr::V6(own.to_ipv6_mapped())];
    net.ends[0] = SctpEndpoint::new(SctpConfig::default(), [1; 32], PORT, addresses, 10).expect("valid");
    net.call(0);
    net.run(millis(500));
    assert_eq!(net.at(1).destinations().len(), 1);
}

/// On a socket that takes both families, the source of an IPv4 packet is a mapped address.
#[test]
fn a_mapped_source_is_the_same_address() {
    let mapped = |address| match address {
        IpAddr::V4(address) => IpAddr::V6(address.to_ipv6_mapped()),
        IpAddr::V6(_) => address,
    };
    let mut net = TestNet::with_paths(SctpConfig::default(), 1);
    let peer = [mapped(address(1, 0)), address(1, 0)];
    net.ids[0] = net.ends[0].connect(net.now, &peer, PORT).ok();
    let own = vec![mapped(address(1, 0)), address(1, 0)];
    net.ends[1] = SctpEndpoint::new(SctpConfig::default(), [2; 32], PORT, own, 10).expect("valid");
    for _ in 0..4 {
        for end in [0, 1] {
            while let Some(transmit) = net.ends[end].poll_transmit(net.now) {
                assert_eq!(transmit.to, address(1 - end, 0));
                net.ends[1 - end].handle_packet(net.now, mapped(address(end, 0)), transmit.packet);
            }
        }
    }
    net.settle();
    for end in [0, 1] {
        assert_eq!(net.at(end).state(), AssociationState::Established);
        assert_eq!(net.at(end).destinations()[0].address(), address(1 - end, 0));
    }
    assert_eq!(net.at(0).destinations().len(), 1);
    let called = net.ends[0].connect(net.now, &peer, PORT);
    assert_eq!(called, Err(ConnectError::Exists(address(1, 0), PORT)));
}

#[test]
fn messages_that_the_peer_cannot_take_return_to_the_application() {
    let mut net = TestNet::new(SctpConfig::default());
    let narrow = SctpConfig {
        inbound_streams: 2,
        receive_buffer: 4000,
        ..SctpConfig::default()
    };
    net.ends[1] = SctpEndpoint::new(narrow, [2; 32], PORT, vec![address(1, 0)], 10).expect("valid");
    net.call(0);
    let outside = [message(2, 10), message(0, 2001), message(15, 20)];
    for message in outside.iter().chain(&[message(1, 2000)]) {
        net.send(0, message.clone());
    }
    net.run(millis(500));
    let refused = AssociationEvent::Refused(outside.to_vec());
    assert_eq!(net.events[0], [refused, AssociationEvent::Established]);
    assert_eq!(net.received[1], [message(1, 2000)]);
    assert_eq!(net.at(0).outbound_streams(), 2);
    let (narrow, long) = (net.at(0).send(message(2, 10)), net.at(0).send(message(0, 2001)));
    assert_eq!(narrow, Err(SctpSendError::NoStream(2)));
    assert_eq!(long, Err(SctpSendError::TooLarge(2000)));
}

/// RFC 9260 §5.1.
#[test]
fn parameters_that_are_not_recognised_are_reported_after_the_handshake() {
    let mut net = TestNet::new(SctpConfig::default());
    net.lose(|leaving| leaving.packet.chunks[0].kind() == INIT_ACK);
    net.call(0);
    net.run(millis(50));
    let (.., mut answer) = net.log.pop().expect("an INIT ACK");
    let unknown = InitParameter::Other {
        kind: 0xff00,
        value: Bytes::from_static(b"some"),
    };
    if let SctpChunk::InitAck(init) = &mut answer.chunks[0] {
        init.parameters.insert(0, unknown.clone());
    }
    net.log.clear();
    net.inject(0, address(1, 0), answer);
    net.run(millis(45));
    let own = net.log.iter().filter(|(_, end, ..)| *end == 0);
    let chunks: Vec<_> = own.map(|(.., packet)| packet.chunks[0].clone()).collect();
    let report = ErrorCause::UnrecognizedParameters(unknown.to_bytes());
    assert_eq!(chunks[0].kind(), COOKIE_ECHO);
    assert_eq!(chunks[1], SctpChunk::Error(vec![report]));
}

/// An application reads nothing. Its events wait in their associations. An event that a newer event makes obsolete is forgotten.
#[test]
fn events_that_are_not_read_are_bounded_and_say_what_matters() {
    let mut net = TestNet::connected(SctpConfig {
        path_max_retrans: 0,
        ..SctpConfig::default()
    });
    net.is_deaf[0] = true;
    // The alternate path is down in every second period of five minutes.
    let is_down = |at: Instant| (at.as_nanos() / 300_000_000_000) % 2 == 1;
    net.lose(move |leaving| leaving.path == 1 && is_down(leaving.at));
    net.run(Duration::from_secs(300 * 200 + 150));
    let now = net.now;
    net.at(0).shutdown(now);
    net.settle();
    assert!(!net.run_to_the_end());
    let events: Vec<_> = std::iter::from_fn(|| net.ends[0].poll_event()).collect();
    let events: Vec<_> = events.into_iter().map(|(_, event)| event).collect();
    let closed = AssociationEvent::Closed(CloseReason::ShutDown);
    assert_eq!(events, [AssociationEvent::PathRecovered(PathId(1)), closed]);
    assert!(net.ends[0].is_empty(), "it was read completely");
}

/// An association counts towards the endpoint's bound until its last event was read.
#[test]
fn a_deaf_application_gets_no_more_than_its_bound_of_associations() {
    let mut net = TestNet::new(SctpConfig::default());
    net.is_deaf[1] = true;
    for call in 0..12 {
        net.events[0].clear();
        net.call(0);
        net.run(millis(500));
        let is_refused = call >= 10;
        assert_eq!(
            net.events[0] == [AssociationEvent::Established],
            !is_refused,
            "call {call}"
        );
        if !is_refused {
            let now = net.now;
            net.at(0).shutdown(now);
            net.settle();
            net.run(millis(500));
        }
        assert_eq!(net.ends[1].len(), 10.min(call + 1));
    }
    let events: Vec<_> = std::iter::from_fn(|| net.ends[1].poll_event()).collect();
    let closed = events
        .iter()
        .filter(|(_, event)| matches!(event, AssociationEvent::Closed(_)));
    assert_eq!((events.len(), closed.count(), net.ends[1].len()), (30, 10, 0));
}
