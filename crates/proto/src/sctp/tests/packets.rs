//! Packets as values and as bytes.

use std::net::IpAddr;

use bytes::Bytes;
use proptest::prelude::*;

use crate::sctp::chunk::{DataChunk, InitChunk, SackChunk, SctpChunk};
use crate::sctp::packet::SctpPacket;
use crate::sctp::{ErrorCause, InitParameter, MalformedSctp, Ssn, Tsn, UserData};

/// CRC32c bit by bit, with the polynomial of RFC 9260, appendix A, reflected.
fn slow_crc(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}

/// Writes the right checksum into a packet.
fn mend(packet: &mut [u8]) {
    packet[8..12].fill(0);
    let sum = slow_crc(packet).to_le_bytes();
    packet[8..12].copy_from_slice(&sum);
}

fn packet(chunks: Vec<SctpChunk>) -> SctpPacket {
    SctpPacket {
        source_port: 5000,
        destination_port: 80,
        tag: 0x0102_0304,
        chunks,
    }
}

/// A packet of one chunk with these bytes. The packet's checksum is right.
fn raw(chunk: &[u8]) -> Bytes {
    let mut bytes = packet(vec![SctpChunk::CookieAck]).emit();
    bytes.truncate(12);
    bytes.extend_from_slice(chunk);
    mend(&mut bytes);
    bytes.into()
}

#[test]
fn a_data_chunk_stands_where_the_rfc_draws_it() {
    let data = DataChunk {
        tsn: Tsn(0x1112_1314),
        stream: 0x2122,
        ssn: Ssn(0x3132),
        protocol: 0x4142_4344,
        is_immediate: true,
        is_unordered: false,
        begins: true,
        ends: false,
        data: UserData::from(b"abc".as_slice()),
    };
    let bytes = packet(vec![SctpChunk::Data(data)]).emit();
    let mut wanted = vec![0x13, 0x88, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0];
    wanted.extend([0, 0b1010, 0, 19, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x31, 0x32]);
    wanted.extend([0x41, 0x42, 0x43, 0x44, b'a', b'b', b'c', 0]);
    mend(&mut wanted);
    assert_eq!(bytes, wanted);
}

/// RFC 9260 §3.2: the length of a chunk does not count the padding of its last parameter.
#[test]
fn the_last_parameters_padding_is_not_counted() {
    let abort = SctpChunk::Abort {
        is_reflected: true,
        causes: vec![
            ErrorCause::UserAbort(Bytes::from_static(b"a")),
            ErrorCause::ProtocolViolation(Bytes::from_static(b"b")),
        ],
    };
    let bytes = packet(vec![abort, SctpChunk::CookieAck]).emit();
    let wanted = [
        6, 1, 0, 17, 0, 12, 0, 5, b'a', 0, 0, 0, 0, 13, 0, 5, b'b', 0, 0, 0, 11, 0, 0, 4,
    ];
    assert_eq!(bytes[12..], wanted);
}

#[test]
fn a_wrong_bit_is_a_wrong_checksum() {
    let good = packet(vec![SctpChunk::ShutdownAck]).emit();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(
            SctpPacket::parse(&bad.into()),
            Err(MalformedSctp::Checksum),
            "bit {bit}"
        );
    }
}

#[test]
fn a_malformed_chunk_is_refused() {
    let cases: [(&[u8], MalformedSctp); 9] = [
        (&[], MalformedSctp::Empty),
        (&[11], MalformedSctp::Truncated("a chunk")),
        (&[11, 0, 0, 3], MalformedSctp::Length("a chunk")),
        (&[11, 0, 0, 8], MalformedSctp::Truncated("a chunk")),
        (&[10, 0, 0, 5, 1], MalformedSctp::Truncated("a chunk")), // no padding
        (&[11, 0, 0, 8, 0, 0, 0, 0], MalformedSctp::Length("COOKIE ACK")),
        (&[7, 0, 0, 6, 0, 0, 0, 0], MalformedSctp::Truncated("SHUTDOWN")),
        (&[11, 0, 0, 4, 14, 0, 0, 4], MalformedSctp::Bundled),
        (&[6, 0, 0, 8, 0, 4, 0, 3], MalformedSctp::Length("ABORT")),
    ];
    for (chunk, wanted) in cases {
        assert_eq!(SctpPacket::parse(&raw(chunk)), Err(wanted), "{chunk:?}");
    }
}

/// A SACK that announces more gaps than it has room for.
#[test]
fn counts_are_not_believed() {
    let chunk = [
        3, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 2, 0, 3,
    ];
    assert_eq!(
        SctpPacket::parse(&raw(&chunk)),
        Err(MalformedSctp::Truncated("SACK"))
    );
}

#[test]
fn the_highest_bits_of_an_unknown_type_say_what_to_do() {
    let reaction = |kind| {
        let chunk = SctpChunk::Other {
            kind,
            flags: 0,
            value: Bytes::new(),
        };
        chunk
            .unknown()
            .map(|reaction| (reaction.continues, reaction.reports))
    };
    assert_eq!(
        [0x3f, 0x7f, 0xbf, 0xff].map(reaction),
        [(false, false), (false, true), (true, false), (true, true)].map(Some)
    );
}

#[test]
fn counted_data_is_zeros_on_the_cable() {
    let data = |data| {
        packet(vec![SctpChunk::Data(DataChunk {
            tsn: Tsn(1),
            stream: 0,
            ssn: Ssn(0),
            protocol: 0,
            is_immediate: false,
            is_unordered: false,
            begins: true,
            ends: true,
            data,
        })])
    };
    let counted = data(UserData::Counted(5));
    assert_eq!(counted.emit(), data(UserData::from(vec![0; 5])).emit());
    assert_eq!(counted.wire_bytes(), 12 + 16 + 8);
}

fn some_bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)
}

fn parameters() -> impl Strategy<Value = Vec<InitParameter>> {
    let parameter = prop_oneof![
        any::<IpAddr>().prop_map(InitParameter::Address),
        some_bytes().prop_map(InitParameter::StateCookie),
        some_bytes().prop_map(InitParameter::Unrecognized),
        any::<u32>().prop_map(InitParameter::CookiePreservative),
        some_bytes().prop_map(InitParameter::HostName),
        prop::collection::vec(any::<u16>(), 0..4).prop_map(InitParameter::SupportedAddresses),
        (13_u16.., some_bytes()).prop_map(|(kind, value)| InitParameter::Other { kind, value }),
    ];
    prop::collection::vec(parameter, 0..5)
}

fn causes() -> impl Strategy<Value = Vec<ErrorCause>> {
    let cause = prop_oneof![
        any::<u16>().prop_map(ErrorCause::InvalidStream),
        prop::collection::vec(any::<u16>(), 0..4).prop_map(ErrorCause::MissingParameter),
        any::<u32>().prop_map(ErrorCause::StaleCookie),
        Just(ErrorCause::OutOfResource),
        some_bytes().prop_map(ErrorCause::UnresolvableAddress),
        some_bytes().prop_map(ErrorCause::UnrecognizedChunk),
        Just(ErrorCause::InvalidMandatoryParameter),
        some_bytes().prop_map(ErrorCause::UnrecognizedParameters),
        any::<u32>().prop_map(|tsn| ErrorCause::NoUserData(Tsn(tsn))),
        Just(ErrorCause::CookieWhileShuttingDown),
        some_bytes().prop_map(ErrorCause::RestartWithNewAddresses),
        some_bytes().prop_map(ErrorCause::UserAbort),
        some_bytes().prop_map(ErrorCause::ProtocolViolation),
        (14_u16.., some_bytes()).prop_map(|(code, value)| ErrorCause::Other { code, value }),
    ];
    prop::collection::vec(cause, 0..4)
}

fn init() -> impl Strategy<Value = Box<InitChunk>> {
    let fields = (
        any::<u32>(),
        any::<u32>(),
        any::<u16>(),
        any::<u16>(),
        any::<u32>(),
    );
    (fields, parameters()).prop_map(|((tag, window, outbound, inbound, tsn), parameters)| {
        Box::new(InitChunk {
            tag,
            window,
            outbound_streams: outbound,
            inbound_streams: inbound,
            first_tsn: Tsn(tsn),
            parameters,
        })
    })
}

fn data() -> impl Strategy<Value = SctpChunk> {
    let fields = (
        any::<u32>(),
        any::<u16>(),
        any::<u16>(),
        any::<u32>(),
        any::<[bool; 4]>(),
    );
    (fields, some_bytes()).prop_map(|((tsn, stream, ssn, protocol, flags), data)| {
        let [is_immediate, is_unordered, begins, ends] = flags;
        SctpChunk::Data(DataChunk {
            tsn: Tsn(tsn),
            stream,
            ssn: Ssn(ssn),
            protocol,
            is_immediate,
            is_unordered,
            begins,
            ends,
            data: UserData::Bytes(data),
        })
    })
}

fn sack() -> impl Strategy<Value = SctpChunk> {
    let gaps = prop::collection::vec(any::<(u16, u16)>(), 0..5);
    let duplicates = prop::collection::vec(any::<u32>().prop_map(Tsn), 0..5);
    (any::<u32>(), any::<u32>(), gaps, duplicates).prop_map(|(cumulative, window, gaps, duplicates)| {
        SctpChunk::Sack(SackChunk {
            cumulative: Tsn(cumulative),
            window,
            gaps,
            duplicates,
        })
    })
}

pub fn chunk() -> impl Strategy<Value = SctpChunk> {
    prop_oneof![
        data(),
        sack(),
        some_bytes().prop_map(SctpChunk::Heartbeat),
        some_bytes().prop_map(SctpChunk::HeartbeatAck),
        (any::<bool>(), causes())
            .prop_map(|(is_reflected, causes)| SctpChunk::Abort { is_reflected, causes }),
        any::<u32>().prop_map(|tsn| SctpChunk::Shutdown(Tsn(tsn))),
        Just(SctpChunk::ShutdownAck),
        causes().prop_map(SctpChunk::Error),
        some_bytes().prop_map(SctpChunk::CookieEcho),
        Just(SctpChunk::CookieAck),
        (15_u8.., any::<u8>(), some_bytes()).prop_map(|(kind, flags, value)| SctpChunk::Other {
            kind,
            flags,
            value
        }),
    ]
}

pub fn lone_chunk() -> impl Strategy<Value = SctpChunk> {
    prop_oneof![
        init().prop_map(SctpChunk::Init),
        init().prop_map(SctpChunk::InitAck),
        any::<bool>().prop_map(|is_reflected| SctpChunk::ShutdownComplete { is_reflected }),
    ]
}

proptest! {
    /// Every value can be written and read again, and `wire_bytes` tells the length in advance.
    #[test]
    fn a_packet_survives_the_cable(
        chunks in prop_oneof![
            prop::collection::vec(chunk(), 1..5),
            lone_chunk().prop_map(|chunk| vec![chunk]),
        ],
    ) {
        let sent = packet(chunks);
        let bytes = Bytes::from(sent.emit());
        prop_assert_eq!(bytes.len(), sent.wire_bytes());
        prop_assert_eq!(SctpPacket::parse(&bytes), Ok(sent));
    }

    /// Fragments of a message make the message again, wherever it is cut.
    #[test]
    fn fragments_make_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..50), cut in 0..50_usize) {
        let whole = UserData::from(bytes);
        let parts = [whole.slice(0..cut), whole.slice(cut..usize::MAX)];
        prop_assert_eq!(UserData::join(&parts), whole);
    }
}

/// A receive buffer counts only the data of a chunk, so the data must not keep a much larger packet in memory.
#[test]
fn little_data_is_copied_from_its_packet() {
    let data = |length| {
        SctpChunk::Data(DataChunk {
            tsn: Tsn(1),
            stream: 0,
            ssn: Ssn(0),
            protocol: 0,
            is_immediate: false,
            is_unordered: false,
            begins: true,
            ends: true,
            data: UserData::from(vec![7; length]),
        })
    };
    let other = SctpChunk::Other {
        kind: 0x81,
        flags: 0,
        value: Bytes::from(vec![0; 1000]),
    };
    for (length, is_copied) in [(1, true), (400, true), (1400, false)] {
        let whole = Bytes::from(packet(vec![data(length), other.clone()]).emit());
        let read = SctpPacket::parse(&whole).expect("valid");
        let SctpChunk::Data(DataChunk {
            data: UserData::Bytes(bytes),
            ..
        }) = &read.chunks[0]
        else {
            panic!("{read:?}");
        };
        assert_eq!(
            !whole.as_ptr_range().contains(&bytes.as_ptr()),
            is_copied,
            "{length}"
        );
    }
}
