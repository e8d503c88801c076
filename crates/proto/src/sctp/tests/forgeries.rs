//! Packets that an attacker sends (RFC 9260 §8.4, §8.5, §11.2.4).

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;

use super::net::{PORT, TestNet, address, is_data, message, millis, packet};
use crate::sctp::association::AssociationEvent;
use crate::sctp::chunk::{InitChunk, SctpChunk};
use crate::sctp::endpoint::{ConnectError, SctpEndpoint};
use crate::sctp::packet::SctpPacket;
use crate::sctp::{AssociationState, CallKey, InitParameter, SctpConfig};

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
    for host in 1..=10_000_u32 {
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
    // A cookie from an address that the INIT did not name counts as forged.
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

/// End 0's INIT, and end 1's answer to it. The network loses both.
fn init_and_answer(net: &mut TestNet) -> (SctpPacket, Box<InitChunk>) {
    net.lose(|_| true);
    net.call(0);
    let (.., init) = net.log[0].clone();
    net.inject(1, address(0, 0), init.clone());
    let Some((.., answer)) = net.log.last() else {
        panic!("no answer");
    };
    let SctpChunk::InitAck(answer) = answer.chunks[0].clone() else {
        panic!("{answer:?}");
    };
    (init, answer)
}

/// RFC 9260 §5.4, rule 2: the cookie was sent to the source of the INIT. Another source of the COOKIE ECHO may be forged, and a flood of
/// data would go to a host that never asked for it (RFC 5062).
#[test]
fn a_cookie_proves_only_the_address_that_it_was_sent_to() {
    let mut net = TestNet::new(SctpConfig::default());
    let (_, answer) = init_and_answer(&mut net);
    let cookie = answer.parameters.iter().find_map(|parameter| match parameter {
        InitParameter::StateCookie(cookie) => Some(cookie.clone()),
        _ => None,
    });
    let echo = SctpChunk::CookieEcho(cookie.expect("a cookie"));
    net.inject(1, address(0, 1), packet(answer.tag, echo));
    let confirmed: Vec<bool> = net
        .at(1)
        .destinations()
        .iter()
        .map(|path| path.is_confirmed())
        .collect();
    assert_eq!(confirmed, [true, false]);
    net.send(1, message(0, 1000));
    net.run(Duration::from_secs(10));
    assert!(net.sent_with(1, is_data).iter().all(|(_, path)| *path == 0));
}

/// RFC 9260 §5.4, rule 1: only the addresses that were called are confirmed, not the other addresses in an INIT ACK.
#[test]
fn an_init_ack_from_an_address_that_was_not_called_proves_nothing() {
    let mut net = TestNet::new(SctpConfig::default());
    let (_, mut answer) = init_and_answer(&mut net);
    let tag = net.at(0).names().0.local_tag;
    let whole = answer.clone();
    answer
        .parameters
        .retain(|parameter| *parameter != InitParameter::Address(address(1, 0)));
    net.inject(0, address(1, 1), packet(tag, SctpChunk::InitAck(answer)));
    assert_eq!(net.at(0).state(), AssociationState::CookieWait);
    assert_eq!(net.at(0).counts().forged, 1);
    net.inject(0, address(1, 1), packet(tag, SctpChunk::InitAck(whole)));
    assert_eq!(net.at(0).state(), AssociationState::CookieEchoed);
    let paths = net.at(0).destinations();
    let confirmed: Vec<_> = paths
        .iter()
        .filter(|path| path.is_confirmed())
        .map(|path| path.address())
        .collect();
    assert_eq!(confirmed, [address(1, 0)]);
}

/// RFC 5062 §3: a peer lists the address of another host, so that the other host cannot call.
#[test]
fn an_address_that_a_peer_only_claims_to_have_does_not_block_its_owner() {
    let mut net = TestNet::new(SctpConfig::default());
    net.lose(|leaving| leaving.path == 1);
    net.call(0);
    net.run(millis(500));
    let (now, victim) = (net.now, address(0, 1));
    let mut owner = SctpEndpoint::new(SctpConfig::default(), [9; 32], PORT, vec![victim], 10).expect("valid");
    let id = owner.connect(now, &[address(1, 1)], PORT).expect("a call");
    for _ in 0..4 {
        while let Some(transmit) = owner.poll_transmit(now) {
            net.ends[1].handle_packet(now, victim, transmit.packet);
        }
        while let Some(transmit) = net.ends[1].poll_transmit(now) {
            if transmit.to == victim {
                owner.handle_packet(now, address(1, 1), transmit.packet);
            }
        }
    }
    let state = owner.association(id).map(|association| association.state());
    assert_eq!(state, Some(AssociationState::Established));
    assert_eq!(
        (net.ends[1].len(), net.at(1).state()),
        (2, AssociationState::Established)
    );
    assert_eq!(net.events[1].len(), 1, "no restart");
}

/// RFC 9260 §5.1.2, rule D: an INIT that names an address of an association belongs to that association.
#[test]
fn an_init_belongs_to_the_association_of_any_of_its_addresses() {
    let stranger = IpAddr::from([10, 7, 0, 1]);
    let mut net = TestNet::new(SctpConfig::default());
    let (init, _) = init_and_answer(&mut net);
    net.lose(|_| false);
    net.run(Duration::from_secs(10));
    assert_eq!(net.at(1).state(), AssociationState::Established);
    net.inject(1, stranger, init.clone());
    let (.., answer) = net.log.last().expect("an answer");
    assert!(matches!(answer.chunks[0], SctpChunk::Abort { .. }), "{answer:?}");
    // While end 1 calls, only the called address is told end 1's tag.
    let mut net = TestNet::new(SctpConfig::default());
    net.lose(|_| true);
    net.call(1);
    net.log.clear();
    net.inject(1, stranger, init.clone());
    assert_eq!((net.log.len(), net.ends[1].counts().refused_inits), (0, 1));
    net.inject(1, address(0, 0), init);
    assert_eq!(net.log.len(), 1);
}

#[test]
fn the_cookie_of_an_association_that_was_restarted_is_used_too() {
    let mut net = TestNet::new(SctpConfig::default());
    net.call(0);
    net.run(millis(500));
    let is_echo = |chunk: &SctpChunk| matches!(chunk, SctpChunk::CookieEcho(_));
    let echo = net
        .log
        .iter()
        .find(|(.., packet)| packet.chunks.iter().any(is_echo));
    let (.., echo) = echo.expect("a cookie").clone();
    let addresses = vec![address(0, 0), address(0, 1)];
    net.ends[0] = SctpEndpoint::new(SctpConfig::default(), [77; 32], PORT, addresses, 10).expect("valid");
    net.ids[0] = None;
    net.call(0);
    net.run(millis(500));
    let now = net.now;
    net.at(0).shutdown(now);
    net.settle();
    assert!(net.run_to_the_end());
    net.inject(1, address(0, 0), echo);
    assert_eq!((net.ends[1].len(), net.ends[1].counts().replayed_cookies), (0, 1));
}

fn is_error(chunk: &SctpChunk) -> bool {
    matches!(chunk, SctpChunk::Error(_))
}

/// RFC 9260 §5.4: an address that the peer only claims to have may be another host's.
#[test]
fn errors_from_an_address_that_is_not_proven_are_counted_and_not_reported() {
    let mut net = TestNet::new(SctpConfig::default());
    net.lose(|leaving| leaving.path == 1);
    net.call(0);
    net.run(millis(500));
    net.lose(|_| true);
    net.send(0, message(0, 100));
    let (.., mut data) = net.log.pop().expect("data");
    if let SctpChunk::Data(data) = &mut data.chunks[0] {
        data.stream = 16;
    }
    let tag = data.tag;
    let unknown = SctpChunk::Other {
        kind: 0xff,
        flags: 0,
        value: Bytes::from_static(b"what is this"),
    };
    net.log.clear();
    net.inject(1, address(0, 1), data);
    net.inject(1, address(0, 1), packet(tag, unknown.clone()));
    assert_eq!(net.sent_with(1, is_error), []);
    assert_eq!(net.at(1).counts().unreported, 2);
    net.inject(1, address(0, 0), packet(tag, unknown));
    assert_eq!(net.sent_with(1, is_error), [(500, 0)]);
}

/// The INIT lists two addresses. Its cookie came back, which proves only the address that got the INIT ACK.
#[test]
fn a_stale_cookie_is_reported_to_the_address_that_got_it() {
    let config = SctpConfig {
        cookie_life: millis(30),
        ..SctpConfig::default()
    };
    let mut net = TestNet::new(config);
    net.lose(|leaving| matches!(leaving.packet.chunks[0], SctpChunk::CookieEcho(_)));
    net.call(0);
    net.run(millis(100));
    let (.., echo) = net.log.last().expect("a cookie").clone();
    net.log.clear();
    net.inject(1, address(0, 1), echo);
    assert_eq!(net.ends[1].counts().stale_cookies, 1);
    assert_eq!(net.sent_with(1, is_error), [(100, 0)]);
}

/// RFC 9260 §8.4, rule 1.
#[test]
fn a_packet_from_an_address_that_no_host_has_is_dropped() {
    for from in [[224, 0, 0, 1], [255; 4], [0; 4]].map(IpAddr::from) {
        let mut net = TestNet::new(SctpConfig::default());
        net.lose(|_| true);
        net.call(0);
        let (.., init) = net.log.pop().expect("an INIT");
        net.inject(1, from, init);
        assert_eq!((net.log.len(), net.ends[1].counts().strays), (0, 1), "{from}");
        let called = net.ends[0].connect(net.now, &[from], PORT);
        assert_eq!(called, Err(ConnectError::NoHost(from)));
    }
}

/// A stranger at the address `host` calls end 1 with its own key or no key. `alter` changes each packet of the stranger. Returns the
/// stranger's events.
fn call_as_stranger(
    net: &mut TestNet,
    host: IpAddr,
    key: Option<&CallKey>,
    alter: impl Fn(&mut SctpPacket),
) -> Vec<AssociationEvent> {
    let mut stranger = SctpEndpoint::new(SctpConfig::default(), [9; 32], PORT, vec![host], 0).unwrap();
    if let Some(key) = key {
        stranger.require_key(key.clone());
    }
    stranger.connect(net.now, &[address(1, 0)], PORT).unwrap();
    let (now, end) = (net.now, &mut net.ends[1]);
    let mut events = Vec::new();
    loop {
        let mut is_silent = true;
        while let Some(mut sent) = stranger.poll_transmit(now) {
            alter(&mut sent.packet);
            end.handle_packet(now, host, sent.packet);
            is_silent = false;
        }
        while let Some(sent) = end.poll_transmit(now) {
            assert_eq!(sent.to, host);
            stranger.handle_packet(now, address(1, 0), sent.packet);
        }
        events.extend(std::iter::from_fn(|| stranger.poll_event()).map(|(_, event)| event));
        if is_silent {
            return events;
        }
    }
}

#[test]
fn a_caller_without_the_key_takes_no_association() {
    let mut net = TestNet::new(SctpConfig::default());
    let key = CallKey::derive(&[7; 32]);
    net.ends.iter_mut().for_each(|end| end.require_key(key.clone()));
    let wrong = CallKey::derive(&[8; 32]);
    for host in 0..1000_u32 {
        let address = IpAddr::from((0x0a09_0001 + host).to_be_bytes());
        let own = (host % 2 == 0).then_some(&wrong);
        let events = call_as_stranger(&mut net, address, own, |_| {});
        assert!(matches!(events[..], [AssociationEvent::Closed(_)]), "{events:?}");
    }
    assert_eq!(
        (net.ends[1].len(), net.ends[1].counts().unproven_cookies),
        (0, 1000)
    );
    // A caller that has the key still gets an association.
    net.call(0);
    net.run(millis(500));
    assert_eq!(
        net.events,
        [[AssociationEvent::Established], [AssociationEvent::Established]]
    );
    let is_proof = |packet: &SctpPacket| matches!(packet.chunks[..], [_, SctpChunk::CookieEcho(_)]);
    let proof = net.log.iter().find(|(.., packet)| is_proof(packet));
    let proof = proof.expect("a proof").3.chunks[0].clone();
    // A proof that was overheard fits no other cookie.
    let stranger = IpAddr::from([192, 0, 2, 1]);
    call_as_stranger(&mut net, stranger, None, |packet| {
        if matches!(packet.chunks[0], SctpChunk::CookieEcho(_)) {
            packet.chunks.insert(0, proof.clone());
        }
    });
    // A stranger without the key cannot restart the association of another caller either, even from that caller's address.
    let names = net.at(1).names();
    call_as_stranger(&mut net, address(0, 0), None, |_| {});
    assert_eq!(
        (net.ends[1].len(), net.ends[1].counts().unproven_cookies),
        (1, 1002)
    );
    assert_eq!(net.at(1).state(), AssociationState::Established);
    assert!(net.at(1).names().0.local_tag == names.0.local_tag && net.at(1).names().1 == names.1);
    net.send(0, message(1, 1000));
    net.run(millis(500));
    assert_eq!(net.received[1].len(), 1);
}

/// If only one end has a key, there is no association, and the caller is told immediately.
#[test]
fn a_key_at_one_end_only_ends_the_call() {
    for end in 0..2 {
        let mut net = TestNet::new(SctpConfig::default());
        net.ends[end].require_key(CallKey::derive(&[7; 32]));
        net.call(0);
        net.run(millis(500));
        assert!(
            matches!(net.events[0][..], [AssociationEvent::Closed(_)]),
            "{:?}",
            net.events
        );
        assert!(net.events[1].is_empty() && net.ends[1].is_empty());
    }
}
