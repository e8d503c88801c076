//! Fuzz target for IP packets with TCP segments. Compares each parsed value with the packet's bytes at the place that the RFCs give for
//! this value.

use std::net::{IpAddr, SocketAddr};

use steadfast_proto::Seq;
use steadfast_proto::packet::{Checksum, Malformed, Segment, TcpOptions, Timestamps};

/// The TCP segment in an accepted packet. The lengths in the IP headers tell where the segment begins and ends (RFC 791 §3.1, RFC 8200 §4).
fn segment(packet: &[u8]) -> &[u8] {
    let word = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let is_v4 = packet[0] >> 4 == 4;
    let end = if is_v4 { word(2) } else { 40 + word(4) };
    let (mut next, mut at) = if is_v4 {
        (packet[9], usize::from(packet[0] & 15) * 4)
    } else {
        (packet[6], 40)
    };
    while next != 6 {
        let units = usize::from(packet[at + 1]);
        let length = match next {
            44 => 8, // a fragment that is the whole packet (RFC 6946); its header has no length field
            51 => (units + 2) * 4, // the authentication header (RFC 4302 §2.2), the only one allowed in IPv4
            _ => (units + 1) * 8, // hop-by-hop options, routing, destination options
        };
        next = packet[at];
        at += length;
    }
    &packet[at..end]
}

/// The options of a TCP header, read one by one where RFC 9293 §3.1 places them. Unknown kinds are skipped by their length.
fn options(header: &[u8]) -> TcpOptions {
    let long = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let mut options = TcpOptions::default();
    let mut at = 20;
    while at < header.len() && header[at] != 0 {
        if header[at] == 1 {
            at += 1;
            continue;
        }
        let length = header.get(at + 1).map_or(0, |length| usize::from(*length));
        if length < 2 || at + length > header.len() {
            break;
        }
        match (header[at], length) {
            (2, 4) => {
                let mss = u16::from_be_bytes([header[at + 2], header[at + 3]]);
                options.mss = if mss == 0 { options.mss } else { Some(mss) };
            }
            (3, 3) => options.window_scale = Some(header[at + 2]),
            (4, 2) => options.sack_permitted = true,
            (5, 10 | 18 | 26 | 34) => {
                options.sack = [None; 4];
                for (index, start) in (at + 2..at + length).step_by(8).enumerate() {
                    options.sack[index] = Some((Seq(long(start)), Seq(long(start + 4))));
                }
            }
            (8, 10) => {
                options.timestamps = Some(Timestamps {
                    value: long(at + 2),
                    echo: long(at + 6),
                });
            }
            (19 | 29, _) => options.signature = true,
            (30, _) => options.multipath = true,
            _ => {}
        }
        at += length;
    }
    options
}

fn check(packet: &[u8], read: &Segment<'_>) {
    let tcp = segment(packet);
    let word = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let long = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().expect("four bytes"));
    let address = |at: usize, v6_at: usize| match packet[0] >> 4 {
        4 => IpAddr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).expect("four bytes")),
        _ => IpAddr::from(<[u8; 16]>::try_from(&packet[v6_at..v6_at + 16]).expect("sixteen bytes")),
    };
    assert_eq!(read.source, SocketAddr::new(address(12, 8), word(0)));
    assert_eq!(read.destination, SocketAddr::new(address(16, 24), word(2)));
    assert_eq!(
        (read.seq.0, read.ack.0, read.window),
        (long(4), long(8), word(14))
    );
    let flags = [
        read.flags.fin,
        read.flags.syn,
        read.flags.rst,
        read.flags.psh,
        read.flags.ack,
        read.flags.urg,
    ];
    assert_eq!(flags, std::array::from_fn(|bit| tcp[13] >> bit & 1 == 1));
    let (header, payload) = tcp.split_at(usize::from(tcp[12] >> 4) * 4);
    assert_eq!(read.payload, payload);
    assert_eq!(read.options, options(header));
}

/// The packet with the right length and IPv4 header checksum, so that fuzzing reaches the code behind those checks.
fn mended(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let Some(first) = packet.first() else {
        return packet;
    };
    let length = u16::try_from(packet.len()).unwrap_or(u16::MAX);
    if first >> 4 == 4 && packet.len() >= 20 {
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        packet[10..12].fill(0);
        let header = packet.len().min(usize::from(packet[0] & 15) * 4);
        let pairs = packet[..header].chunks_exact(2);
        let sum: u32 = pairs
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        packet[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    } else if first >> 4 == 6 && packet.len() >= 40 {
        packet[4..6].copy_from_slice(&(length - 40).to_be_bytes());
    }
    packet
}

#[test]
fn what_is_read_stands_in_the_packet() {
    fuzz::target!("packets", |input| {
        for packet in [input.to_vec(), mended(input)] {
            let trusted = Segment::parse(&packet, Checksum::Trusted);
            for checksum in [Checksum::Unverified, Checksum::MaybePartial] {
                let read = Segment::parse(&packet, checksum);
                assert!(
                    read == trusted || read == Err(Malformed::Checksum),
                    "{read:?}, {trusted:?}"
                );
            }
            let Ok(read) = trusted else { continue };
            check(&packet, &read);
            // A packet built from the segment is parsed to the same segment, although its options may be laid out differently. SACK
            // blocks are left out because they may not fit in that layout. Multipath TCP and signatures are left out because `emit`
            // never builds them.
            let simple = Segment {
                options: TcpOptions {
                    sack: [None; 4],
                    multipath: false,
                    signature: false,
                    cut: 0,
                    ..read.options
                },
                ..read
            };
            if read.payload.len() < 1 << 15 {
                assert_eq!(Segment::parse(&simple.emit(), Checksum::Unverified), Ok(simple));
            }
        }
    });
}
