//! The error causes that an end sends (RFC 9260 §3.3.10): their layout, the chunk that carries them, and what they name.

use bytes::Bytes;

use super::net::{PORT, TestNet, address, message, millis, packet};
use crate::sctp::association::{AssociationEvent, CloseReason};
use crate::sctp::chunk::{DataChunk, SctpChunk};
use crate::sctp::endpoint::SctpEndpoint;
use crate::sctp::packet::SctpPacket;
use crate::sctp::tsn::Ssn;
use crate::sctp::{AssociationState, ErrorCause, InitParameter, SctpConfig, Tsn, UserData};

/// Type of the parameter that has a cookie.
const STATE_COOKIE: u16 = 7;

#[test]
fn each_cause_has_the_layout_of_the_rfc() {
    let some = || Bytes::from_static(b"some");
    let cases: [(ErrorCause, &[u8]); 13] = [
        (ErrorCause::InvalidStream(0x1122), &[0, 1, 0, 8, 0x11, 0x22, 0, 0]),
        (
            ErrorCause::MissingParameter(vec![7, 5]),
            &[0, 2, 0, 12, 0, 0, 0, 2, 0, 7, 0, 5],
        ),
        (ErrorCause::StaleCookie(0x0102_0304), &[0, 3, 0, 8, 1, 2, 3, 4]),
        (ErrorCause::OutOfResource, &[0, 4, 0, 4]),
        (ErrorCause::UnresolvableAddress(some()), b"\0\x05\0\x08some"),
        (ErrorCause::UnrecognizedChunk(some()), b"\0\x06\0\x08some"),
        (ErrorCause::InvalidMandatoryParameter, &[0, 7, 0, 4]),
        (ErrorCause::UnrecognizedParameters(some()), b"\0\x08\0\x08some"),
        (
            ErrorCause::NoUserData(Tsn(0x0102_0304)),
            &[0, 9, 0, 8, 1, 2, 3, 4],
        ),
        (ErrorCause::CookieWhileShuttingDown, &[0, 10, 0, 4]),
        (ErrorCause::RestartWithNewAddresses(some()), b"\0\x0b\0\x08some"),
        (ErrorCause::UserAbort(some()), b"\0\x0c\0\x08some"),
        (ErrorCause::ProtocolViolation(some()), b"\0\x0d\0\x08some"),
    ];
    for (cause, wanted) in cases {
        let chunk = SctpChunk::Error(vec![cause.clone()]).to_bytes();
        assert_eq!(chunk[..4], [9, 0, 0, 4 + wanted.len() as u8], "{cause:?}");
        assert_eq!(chunk[4..], *wanted, "{cause:?}");
    }
}

/// The chunks with error causes that an end has sent: tag of the packet, whether the chunk is an ABORT, and the causes.
fn told(net: &TestNet, end: usize) -> Vec<(u32, bool, Vec<ErrorCause>)> {
    let of = net.log.iter().filter(|(_, by, ..)| *by == end);
    let chunks = of.flat_map(|(.., packet)| packet.chunks.iter().map(|chunk| (packet.tag, chunk)));
    chunks
        .filter_map(|(tag, chunk)| match chunk {
            SctpChunk::Error(causes) => Some((tag, false, causes.clone())),
            SctpChunk::Abort { causes, .. } => Some((tag, true, causes.clone())),
            _ => None,
        })
        .collect()
}

/// Calls, and loses the packet of end `by` whose first chunk has type `kind`. Returns this packet.
fn held(net: &mut TestNet, by: usize, kind: u8) -> SctpPacket {
    net.lose(move |leaving| leaving.packet.chunks[0].kind() == kind);
    net.call(0);
    net.run(millis(90));
    let mut sent = net.log.iter().rev();
    let found = sent.find(|(_, end, _, packet)| *end == by && packet.chunks[0].kind() == kind);
    let (.., found) = found.expect("such a packet").clone();
    net.log.clear();
    found
}

/// RFC 9260 §3.3.10.9.
#[test]
fn data_without_bytes_ends_the_association_and_is_named() {
    let mut net = TestNet::connected(SctpConfig::default());
    net.set_fate(|_| vec![]);
    net.send(0, message(3, 10));
    let (.., mut packet) = net.log.pop().expect("a packet");
    let Some(SctpChunk::Data(data)) = packet.chunks.first_mut() else {
        panic!("{packet:?}");
    };
    data.data = b"".as_slice().into();
    let cause = ErrorCause::NoUserData(data.tsn);
    net.inject(1, address(0, 0), packet);
    let told = told(&net, 1);
    assert_eq!(
        (told.len(), told[0].1, &told[0].2),
        (1, true, &vec![cause.clone()])
    );
    let closed = AssociationEvent::Closed(CloseReason::Violated(cause));
    assert_eq!(net.events[1].last(), Some(&closed));
}

/// RFC 9260 §3.3.10.4. A peer that counts as the RFC says may overrun the buffer, so the chunk that is next in order is taken up to twice the
/// buffer. Beyond that, nothing can make room: the message has no end, so the application has nothing to read.
#[test]
fn a_message_that_fills_the_buffer_twice_ends_the_association_for_lack_of_room() {
    const BUFFER: usize = 16_000;
    let mut net = TestNet::connected(SctpConfig {
        receive_buffer: BUFFER as u32,
        ..SctpConfig::default()
    });
    let (names, tag) = net.at(0).names();
    let mut held = 0;
    for ahead in 0.. {
        let fragment = DataChunk {
            tsn: names.local_tsn.plus(ahead),
            stream: 0,
            ssn: Ssn(0),
            protocol: 0,
            is_immediate: false,
            is_unordered: false,
            begins: ahead == 0,
            ends: false,
            data: UserData::from(vec![0; 1000]),
        };
        net.inject(1, address(0, 0), packet(tag, SctpChunk::Data(fragment)));
        if net.events[1].len() > 1 {
            break;
        }
        held = net.at(1).held_bytes();
        assert!(held > 1000 * ahead as usize && held <= 2 * BUFFER, "{held}");
    }
    assert!(held > 2 * BUFFER - 1016, "the whole buffer is used: {held}");
    let cause = ErrorCause::OutOfResource;
    let to = net.at(0).local_tag();
    assert_eq!(told(&net, 1), [(to, true, vec![cause.clone()])]);
    let closed = AssociationEvent::Closed(CloseReason::Violated(cause.clone()));
    assert_eq!(net.events[1].last(), Some(&closed));
    net.run(millis(100));
    let aborted = AssociationEvent::Closed(CloseReason::PeerAborted(vec![cause]));
    assert_eq!(net.events[0].last(), Some(&aborted));
}

/// RFC 9260 §3.2: the two highest bits of a chunk's type say whether an unknown chunk is reported, and whether the rest of the packet counts.
#[test]
fn an_unknown_chunk_is_reported_whole_if_its_type_says_so() {
    for (kind, reports) in [(0x3f, false), (0x7f, true), (0xbf, false), (0xfe, true)] {
        let mut net = TestNet::connected(SctpConfig::default());
        let (_, tag) = net.at(0).names();
        let unknown = SctpChunk::Other {
            kind,
            flags: 5,
            value: Bytes::from_static(b"abc"),
        };
        let cause = ErrorCause::UnrecognizedChunk(unknown.to_bytes());
        net.inject(1, address(0, 0), packet(tag, unknown));
        let told = told(&net, 1);
        let wanted = if reports { vec![vec![cause]] } else { vec![] };
        let causes: Vec<_> = told.iter().map(|(.., causes)| causes.clone()).collect();
        assert_eq!(causes, wanted, "{kind:x}");
        assert!(told.iter().all(|(_, is_abort, _)| !is_abort));
        assert_eq!(net.at(1).state(), AssociationState::Established);
    }
}

/// RFC 9260 §3.3.2.1.4, §5.1.2: a host name is refused, with the whole parameter. The ABORT has the INIT's tag.
#[test]
fn an_init_with_a_host_name_or_without_streams_is_refused() {
    let name = InitParameter::HostName(Bytes::from_static(b"example.net\0"));
    let whole = ErrorCause::UnresolvableAddress(name.to_bytes());
    for (has_name, cause) in [(true, whole), (false, ErrorCause::InvalidMandatoryParameter)] {
        let mut net = TestNet::new(SctpConfig::default());
        let mut init = held(&mut net, 0, 1);
        let SctpChunk::Init(content) = &mut init.chunks[0] else {
            panic!("{init:?}");
        };
        if has_name {
            content.parameters.push(name.clone());
        } else {
            content.outbound_streams = 0;
        }
        let tag = content.tag;
        net.inject(1, address(0, 0), init);
        assert_eq!(told(&net, 1), [(tag, true, vec![cause])]);
        assert_eq!(net.ends[1].len(), 0);
    }
}

/// RFC 9260 §3.3.10.2.
#[test]
fn an_init_ack_without_a_cookie_is_refused_and_the_parameter_is_named() {
    let mut net = TestNet::new(SctpConfig::default());
    let mut answer = held(&mut net, 1, 2);
    let SctpChunk::InitAck(content) = &mut answer.chunks[0] else {
        panic!("{answer:?}");
    };
    content
        .parameters
        .retain(|parameter| !matches!(parameter, InitParameter::StateCookie(_)));
    let tag = content.tag;
    net.inject(0, address(1, 0), answer);
    let cause = ErrorCause::MissingParameter(vec![STATE_COOKIE]);
    assert_eq!(told(&net, 0), [(tag, true, vec![cause])]);
    assert!(net.ends[0].is_empty() || net.events[0].len() == 1);
}

/// RFC 9260 §3.3.10.3: the measure of staleness is in microseconds.
#[test]
fn a_stale_cookie_is_answered_with_its_lateness() {
    let mut net = TestNet::new(SctpConfig {
        cookie_life: millis(30),
        ..SctpConfig::default()
    });
    // The INIT ACK leaves after 20 ms. 90 ms after the call, its cookie is 70 ms old.
    let echo = held(&mut net, 0, 10);
    net.inject(1, address(0, 0), echo);
    let told = told(&net, 1);
    assert_eq!(
        (told[0].1, &told[0].2),
        (false, &vec![ErrorCause::StaleCookie(40_000)])
    );
}

/// RFC 9260 §5.2.4 A, §3.3.10.10: a peer that has restarted returns its cookie while this end waits for SHUTDOWN COMPLETE.
#[test]
fn a_cookie_during_the_shutdown_is_answered_by_shutdown_ack_and_an_error() {
    let mut net = TestNet::connected(SctpConfig::default());
    let addresses = vec![address(0, 0), address(0, 1)];
    let restarted = SctpEndpoint::new(SctpConfig::default(), [77; 32], PORT, addresses, 10).expect("valid");
    let (old, id) = (std::mem::replace(&mut net.ends[0], restarted), net.ids[0].take());
    let echo = held(&mut net, 0, 10);
    // The earlier endpoint of end 0 ends the association.
    (net.ends[0], net.ids[0]) = (old, id);
    net.lose(|leaving| leaving.packet.chunks[0].kind() == 8);
    let now = net.now;
    net.at(0).shutdown(now);
    net.settle();
    net.run(millis(50));
    assert_eq!(net.at(1).state(), AssociationState::ShutdownAckSent);
    net.log.clear();
    net.inject(1, address(0, 0), echo);
    let told = told(&net, 1);
    let causes: Vec<_> = told.iter().map(|(.., causes)| causes.clone()).collect();
    assert_eq!(causes, [[ErrorCause::CookieWhileShuttingDown]]);
    let answers = net.log.iter().flat_map(|(.., packet)| &packet.chunks);
    assert!(answers.clone().any(|chunk| *chunk == SctpChunk::ShutdownAck));
    assert_eq!(net.at(1).state(), AssociationState::ShutdownAckSent);
}
