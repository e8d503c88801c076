//! Packets that an attacker sends (RFC 9260 §8.4, §8.5, §11.2.4).

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;

use super::net::{PORT, TestNet, address, message, millis};
use crate::sctp::AssociationState;
use crate::sctp::SctpConfig;
use crate::sctp::chunk::SctpChunk;
use crate::sctp::packet::SctpPacket;

fn packet(tag: u32, chunk: SctpChunk) -> SctpPacket {
    SctpPacket {
        source_port: PORT,
        destination_port: PORT,
        tag,
        chunks: vec![chunk],
    }
}

const fn abort(is_reflected: bool) -> SctpChunk {
    SctpChunk::Abort {
        is_reflected,
        causes: Vec::new(),
    }
}

#[test]
fn a_packet_with_a_wrong_tag_or_address_is_dropped_and_counted() {
    let mut net = TestNet::connected(SctpConfig::default());
    let (names, peer_tag) = net.at(1).names();
    let own = names.local_tag;
    let cases = [
        (address(0, 0), own ^ 1, abort(false)),
        (address(0, 0), own, abort(true)),
        (address(0, 0), peer_tag, abort(false)),
        (address(0, 0), 0, abort(true)),
        (IpAddr::from([192, 0, 2, 1]), own, abort(false)),
        (address(0, 0), own ^ 1, SctpChunk::ShutdownAck),
        (
            address(0, 0),
            own,
            SctpChunk::ShutdownComplete { is_reflected: true },
        ),
    ];
    let mut forged = 0;
    for (from, tag, chunk) in cases {
        net.inject(1, from, packet(tag, chunk));
        forged += 1;
        assert_eq!(net.at(1).counts().forged, forged);
    }
    assert_eq!(net.at(1).state(), AssociationState::Established);
    net.inject(1, address(0, 0), packet(peer_tag, abort(true)));
    assert!(net.ends[1].is_empty());
}

#[test]
fn a_flood_of_inits_leaves_nothing_behind() {
    let mut net = TestNet::new(SctpConfig::default());
    net.lose(|_| true);
    net.call(0);
    let (.., init) = net.log[0].clone();
    for host in 0..10_000_u32 {
        net.ends[1].handle_packet(net.now, IpAddr::from(host.to_be_bytes()), init.clone());
    }
    assert_eq!((net.ends[1].len(), net.ends[1].counts().inits), (0, 10_000));
    let answers = std::iter::from_fn(|| net.ends[1].poll_transmit(net.now)).count();
    assert_eq!(answers, 64);
    assert_eq!(net.ends[1].poll_timeout(), None);
}

#[test]
fn a_cookie_makes_one_association_only() {
    let mut net = TestNet::new(SctpConfig::default());
    net.call(0);
    net.run(millis(500));
    let is_echo = |packet: &SctpPacket| matches!(packet.chunks[0], SctpChunk::CookieEcho(_));
    let echo = net
        .log
        .iter()
        .find(|(.., packet)| is_echo(packet))
        .map(|(.., packet)| packet.clone());
    let echo = echo.expect("a cookie");
    for _ in 0..5 {
        net.inject(1, address(0, 0), echo.clone());
        net.run(millis(50));
    }
    assert_eq!(
        (net.ends[1].len(), net.at(1).state()),
        (1, AssociationState::Established)
    );
    // From an address that the INIT did not name, it is nothing.
    net.inject(1, IpAddr::from([192, 0, 2, 1]), echo.clone());
    assert_eq!(net.ends[1].counts().forged_cookies, 1);
    let now = net.now;
    net.at(0).shutdown(now);
    net.settle();
    assert!(net.run_to_the_end());
    net.inject(1, address(0, 0), echo.clone());
    assert_eq!((net.ends[1].len(), net.ends[1].counts().replayed_cookies), (0, 1));
    net.run(Duration::from_secs(61));
    net.inject(1, address(0, 0), echo);
    assert_eq!((net.ends[1].len(), net.ends[1].counts().stale_cookies), (0, 1));
}

#[test]
fn packets_out_of_the_blue_get_at_most_one_answer() {
    let answer = |chunk| {
        let mut net = TestNet::new(SctpConfig::default());
        net.inject(1, address(0, 0), packet(7, chunk));
        net.log
            .first()
            .map(|(.., packet)| (packet.tag, packet.chunks[0].clone()))
    };
    assert_eq!(
        answer(SctpChunk::CookieEcho(Bytes::from_static(b"no cookie"))),
        None
    );
    assert_eq!(answer(abort(false)), None);
    assert_eq!(answer(SctpChunk::ShutdownComplete { is_reflected: false }), None);
    assert_eq!(
        answer(SctpChunk::ShutdownAck),
        Some((7, SctpChunk::ShutdownComplete { is_reflected: true }))
    );
    assert_eq!(answer(SctpChunk::Heartbeat(Bytes::new())), Some((7, abort(true))));
}

#[test]
fn a_heartbeat_ack_without_the_nonce_confirms_nothing() {
    let mut net = TestNet::new(SctpConfig::default());
    net.lose(|leaving| leaving.path == 1);
    net.call(0);
    net.run(millis(500));
    let tag = net.at(0).names().0.local_tag;
    let mut info = vec![1];
    info.extend([0; 8]);
    net.inject(
        0,
        address(1, 0),
        packet(tag, SctpChunk::HeartbeatAck(info.into())),
    );
    assert!(!net.at(0).destinations()[1].is_confirmed());
    assert_eq!(net.at(0).counts().misplaced, 1);
}

#[test]
fn a_sack_of_data_that_was_never_sent_is_ignored() {
    let mut net = TestNet::connected(SctpConfig::default());
    net.lose(|_| true);
    net.send(0, message(0, 3000));
    let (names, _) = net.at(0).names();
    let sack = |ahead: u32, gaps: Vec<(u16, u16)>| {
        SctpChunk::Sack(crate::sctp::chunk::SackChunk {
            cumulative: names.local_tsn.plus(ahead),
            window: 65_536,
            gaps,
            duplicates: Vec::new(),
        })
    };
    net.inject(0, address(1, 0), packet(names.local_tag, sack(100, vec![])));
    assert_eq!(net.at(0).unacknowledged() / 1000, 3);
    let gaps = vec![(0, 0), (9, 3), (500, 60_000), (2, u16::MAX)];
    net.inject(0, address(1, 0), packet(names.local_tag, sack(u32::MAX, gaps)));
    assert_eq!(net.at(0).counts().old_sacks, 1);
    net.lose(|_| false);
    net.run(Duration::from_secs(5));
    assert_eq!(net.received[1], [message(0, 3000)]);
}
