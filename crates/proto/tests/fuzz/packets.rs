//! IP packets with TCP segments: what is read of them, against their bytes at the places that the RFCs say.

use std::net::{IpAddr, SocketAddr};

use etherparse::{TcpHeaderSlice, TcpOptionElement};
use steadfast_proto::Seq;
use steadfast_proto::packet::{Checksum, Malformed, Options, Segment, Timestamps};

/// The TCP segment in a packet that was taken: its header is where the IP header's lengths say (RFC 791 §3.1, RFC 8200 §4).
fn segment(packet: &[u8]) -> &[u8] {
    let word = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    if packet[0] >> 4 == 4 {
        let header = usize::from(packet[0] & 15) * 4;
        return &packet[header..word(2)];
    }
    let end = 40 + word(4);
    let (mut next, mut at) = (packet[6], 40);
    while next != 6 {
        // Hop-by-hop options, routing, destination options; the authentication header counts otherwise (RFC 4302 §2.2).
        let units = usize::from(packet[at + 1]);
        let length = if next == 51 {
            (units + 2) * 4
        } else {
            (units + 1) * 8
        };
        next = packet[at];
        at += length;
    }
    &packet[at..end]
}

/// What etherparse reads of the options, unless it finds something wrong with one.
fn options(segment: &[u8]) -> Option<Options> {
    let header = TcpHeaderSlice::from_slice(segment).ok()?;
    let mut options = Options::default();
    for element in header.options_iterator() {
        match element.ok()? {
            TcpOptionElement::MaximumSegmentSize(0) | TcpOptionElement::Noop => {}
            TcpOptionElement::MaximumSegmentSize(mss) => options.mss = Some(mss),
            TcpOptionElement::WindowScale(shift) => options.window_scale = Some(shift),
            TcpOptionElement::SelectiveAcknowledgementPermitted => options.sack_permitted = true,
            TcpOptionElement::Timestamp(value, echo) => options.timestamps = Some(Timestamps { value, echo }),
            TcpOptionElement::SelectiveAcknowledgement(first, rest) => {
                let [second, third, fourth] = rest;
                let blocks = [Some(first), second, third, fourth];
                options.sack = blocks.map(|block| block.map(|(left, right)| (Seq(left), Seq(right))));
            }
        }
    }
    Some(options)
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
    ];
    assert_eq!(flags, std::array::from_fn(|bit| tcp[13] >> bit & 1 == 1));
    assert_eq!(read.payload, &tcp[usize::from(tcp[12] >> 4) * 4..]);
    if let Some(options) = options(tcp) {
        let read = Options {
            mss: read.options.mss.filter(|mss| *mss != 0),
            ..read.options
        };
        assert_eq!(read, options);
    }
}

/// The packet with the lengths and checksums that it must have, so that what is behind those checks is reached.
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
            // Built again it says the same, if the options fit: they are laid out otherwise, and Multipath TCP is only recognised.
            let simple = Segment {
                options: Options {
                    sack: [None; 4],
                    multipath: false,
                    signature: false,
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
