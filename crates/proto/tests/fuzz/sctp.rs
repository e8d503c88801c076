//! Fuzz target for SCTP packets. Compares each parsed chunk of an accepted packet with the bytes where RFC 9260 §3.2 places that chunk.
//! Then serializes the packet and parses it again.

use bytes::Bytes;
use steadfast_proto::sctp::chunk::SctpChunk;
use steadfast_proto::sctp::packet::SctpPacket;
use steadfast_proto::sctp::{MalformedSctp, UserData};

/// CRC32c bit by bit (RFC 9260, appendix A).
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ (crc & 1).wrapping_neg() & 0x82f6_3b78
        })
    })
}

/// The packet with the right checksum, so that fuzzing reaches the code behind the checksum's check.
pub fn mended(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if packet.len() >= 12 {
        packet[8..12].fill(0);
        let sum = crc(&packet).to_le_bytes();
        packet[8..12].copy_from_slice(&sum);
    }
    packet
}

/// Compares a chunk's fields with its bytes.
fn check_chunk(chunk: &SctpChunk, bytes: &[u8]) {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let long = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(chunk.kind(), bytes[0]);
    match chunk {
        SctpChunk::Data(data) => {
            assert_eq!(
                (data.tsn.0, data.stream, data.ssn.0),
                (long(4), word(8), word(10))
            );
            assert_eq!(data.protocol, long(12));
            assert_eq!(data.data, UserData::Bytes(bytes[16..].to_vec().into()));
            let flags = [data.ends, data.begins, data.is_unordered, data.is_immediate];
            assert_eq!(flags, std::array::from_fn(|bit| bytes[1] >> bit & 1 == 1));
        }
        SctpChunk::Init(init) | SctpChunk::InitAck(init) => {
            assert_eq!(
                (init.tag, init.window, init.first_tsn.0),
                (long(4), long(8), long(16))
            );
            assert_eq!(
                (init.outbound_streams, init.inbound_streams),
                (word(12), word(14))
            );
        }
        SctpChunk::Sack(sack) => {
            assert_eq!((sack.cumulative.0, sack.window), (long(4), long(8)));
            assert_eq!(sack.gaps.len(), usize::from(word(12)));
            for (gap, at) in sack.gaps.iter().zip((16..).step_by(4)) {
                assert_eq!(*gap, (word(at), word(at + 2)));
            }
            let behind = 16 + 4 * sack.gaps.len();
            assert_eq!(sack.duplicates.len(), usize::from(word(14)));
            for (tsn, at) in sack.duplicates.iter().zip((behind..).step_by(4)) {
                assert_eq!(tsn.0, long(at));
            }
        }
        SctpChunk::Shutdown(tsn) => assert_eq!(tsn.0, long(4)),
        SctpChunk::CookieEcho(cookie) => assert_eq!(*cookie, bytes[4..]),
        SctpChunk::Other { flags, value, .. } => assert_eq!((*flags, &value[..]), (bytes[1], &bytes[4..])),
        SctpChunk::Heartbeat(info) | SctpChunk::HeartbeatAck(info) => {
            assert_eq!(*info, bytes[8..4 + usize::from(word(6))]);
        }
        SctpChunk::Abort { is_reflected, .. } | SctpChunk::ShutdownComplete { is_reflected } => {
            assert_eq!(*is_reflected, bytes[1] & 1 == 1);
        }
        SctpChunk::Error(_) | SctpChunk::ShutdownAck | SctpChunk::CookieAck => {}
    }
}

#[test]
fn what_is_read_stands_in_the_sctp_packet() {
    fuzz::target!("sctp_packets", |input| {
        let intact = Bytes::from(mended(input));
        for bytes in [Bytes::copy_from_slice(input), intact.clone()] {
            let read = SctpPacket::parse(&bytes);
            if bytes != intact {
                assert!(matches!(
                    read,
                    Err(MalformedSctp::Checksum | MalformedSctp::Truncated(_))
                ));
            }
            let Ok(read) = read else { continue };
            let mut at = 12;
            for chunk in &read.chunks {
                let length = usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
                check_chunk(chunk, &bytes[at..at + length]);
                at += length.div_ceil(4) * 4;
            }
            assert_eq!(at, bytes.len());
            let written = Bytes::from(read.emit());
            assert_eq!(written.len(), read.wire_bytes());
            assert_eq!(SctpPacket::parse(&written), Ok(read));
        }
    });
}
