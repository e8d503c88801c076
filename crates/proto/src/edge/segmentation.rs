//! Turns a copied packet into the packets that would be on the wire.
//!
//! Linux carries up to 64 KB of a TCP stream in one packet, and leaves its checksum to the network card. The eBPF programs copy such a
//! packet as it is, or only its first segment.

use std::ops::Range;

use super::headers::{CWR, FIN, IpHeader, PSH, TCP, TCP_HEADER, long, short};
use crate::packet::Checksum;

/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM: usize = 16;

/// Cuts `packet` into the packets that a network card would send: TCP in IPv4 or IPv6, in segments of `gso_size` bytes. A `gso_size` of 0
/// means that `packet` is one segment.
///
/// The segments get full checksums. A packet of one segment stays as it is, except that a partial checksum is completed. `checksum` tells
/// whether a checksum can be partial. If the packet is shorter than its header says, it is the first segment of a larger packet: its
/// lengths are corrected, and flags that belong to the last segment are cleared. Packets other than TCP stay as they are.
pub fn cut(packet: &[u8], gso_size: u16, checksum: Checksum) -> Vec<Vec<u8>> {
    let Some(shape) = PacketShape::of(packet) else {
        return vec![packet.to_vec()];
    };
    let payload = shape.payload..packet.len();
    let size = usize::from(gso_size);
    let is_part = shape.is_part(packet, size);
    if !is_part && (size == 0 || payload.len() <= size) {
        return vec![completed(packet, &shape, checksum)];
    }
    let step = if size == 0 { payload.len().max(1) } else { size };
    let starts = payload.clone().step_by(step).collect::<Vec<_>>();
    let pieces = if starts.is_empty() {
        vec![payload.start]
    } else {
        starts
    };
    let pieces = pieces.into_iter().enumerate().map(|(index, start)| {
        let end = payload.end.min(start + step);
        let is_last = end == payload.end && !is_part;
        shape.segment(packet, index, start..end, is_last)
    });
    pieces.collect()
}

/// Whether the TCP checksum of a packet that [`cut`] has returned is wrong. False for packets other than TCP.
pub fn is_tcp_sum_wrong(packet: &[u8]) -> bool {
    PacketShape::of(packet).is_some_and(|shape| !shape.has_full_checksum(packet))
}

/// Offsets of the parts of a TCP packet.
struct PacketShape {
    is_v6: bool,
    addresses: Range<usize>,
    tcp: usize,
    payload: usize,
    /// The length in the header; 0: it does not fit the field.
    total_len: usize,
}

impl PacketShape {
    /// `None` if the packet is not a whole TCP segment.
    fn of(packet: &[u8]) -> Option<Self> {
        let ip = IpHeader::read(packet, 0)?;
        if ip.is_fragment || ip.is_obscure || ip.protocol != TCP {
            return None;
        }
        let tcp = ip.transport;
        let header = usize::from(packet.get(tcp + 12)? >> 4) * 4;
        let payload = tcp + header;
        (header >= TCP_HEADER && payload <= packet.len()).then(|| Self {
            is_v6: ip.is_v6,
            addresses: if ip.is_v6 { 8..40 } else { 12..20 },
            tcp,
            payload,
            total_len: ip.total_len(packet),
        })
    }

    /// Whether the packet is only the first segment of a larger one.
    fn is_part(&self, packet: &[u8], size: usize) -> bool {
        if self.total_len == 0 {
            return size > 0 && packet.len() - self.payload == size; // a copy of the whole packet is longer than one segment
        }
        packet.len() < self.total_len
    }

    /// The packet's segment number `index`, with these bytes of the packet as its payload.
    fn segment(&self, packet: &[u8], index: usize, payload: Range<usize>, is_last: bool) -> Vec<u8> {
        let mut segment = [&packet[..self.payload], &packet[payload.clone()]].concat();
        self.set_length(&mut segment);
        if !self.is_v6 {
            let id = short(packet, 4).expect("it has a header");
            let number = u16::try_from(index).expect("at most 64 KB of segments");
            segment[4..6].copy_from_slice(&id.wrapping_add(number).to_be_bytes());
            complete_ip_header(&mut segment);
        }
        let seq = long(packet, self.tcp + 4).expect("it has a header");
        let offset = u32::try_from(payload.start - self.payload).expect("at most 64 KB");
        segment[self.tcp + 4..self.tcp + 8].copy_from_slice(&seq.wrapping_add(offset).to_be_bytes());
        let flags = &mut segment[self.tcp + 13];
        if !is_last {
            *flags &= !(FIN | PSH);
        }
        if index > 0 {
            *flags &= !CWR;
        }
        self.complete(&mut segment);
        segment
    }

    fn set_length(&self, segment: &mut [u8]) {
        let (at, len) = if self.is_v6 {
            (4, segment.len() - 40)
        } else {
            (2, segment.len())
        };
        let len = u16::try_from(len).expect("one segment");
        segment[at..at + 2].copy_from_slice(&len.to_be_bytes());
    }

    /// The sum of the pseudo header (RFC 9293 §3.1).
    fn pseudo_sum(&self, packet: &[u8]) -> u64 {
        sum(&packet[self.addresses.clone()]) + u64::from(TCP) + (packet.len() - self.tcp) as u64
    }

    /// Fills in the full TCP checksum.
    fn complete(&self, packet: &mut [u8]) {
        let at = self.tcp + TCP_CHECKSUM;
        packet[at..at + 2].fill(0);
        let whole = self.pseudo_sum(packet) + sum(&packet[self.tcp..]);
        packet[at..at + 2].copy_from_slice(&(!fold(whole)).to_be_bytes());
    }

    fn has_full_checksum(&self, packet: &[u8]) -> bool {
        fold(self.pseudo_sum(packet) + sum(&packet[self.tcp..])) == 0xffff
    }

    /// Whether the checksum is that of the pseudo header alone.
    fn has_partial_checksum(&self, packet: &[u8]) -> bool {
        short(packet, self.tcp + TCP_CHECKSUM) == Some(fold(self.pseudo_sum(packet)))
    }
}

/// Returns a packet of one segment. Completes the checksum if it is partial.
fn completed(packet: &[u8], shape: &PacketShape, checksum: Checksum) -> Vec<u8> {
    let mut whole = packet.to_vec();
    let is_partial = match checksum {
        Checksum::Unverified => false,
        Checksum::Trusted => !shape.has_full_checksum(packet),
        Checksum::Cut => false,
        Checksum::MaybePartial => !shape.has_full_checksum(packet) && shape.has_partial_checksum(packet),
    };
    if is_partial {
        shape.complete(&mut whole);
    }
    whole
}

/// Fills in the checksum of an IPv4 header.
fn complete_ip_header(packet: &mut [u8]) {
    let len = usize::from(packet[0] & 15) * 4;
    packet[10..12].fill(0);
    let checksum = !fold(sum(&packet[..len]));
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// The sum of 16-bit numbers. A last odd byte counts as the high byte of a number.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let pairs = bytes.chunks(2);
    pairs
        .map(|pair| u64::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)])))
        .sum()
}

/// Folds a sum to 16 bits in ones' complement (RFC 1071).
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded to 16 bits")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::slice::from_ref;

    use proptest::prelude::*;

    use super::*;
    use crate::Seq;
    use crate::packet::{Flags, Segment, TcpOptions, Timestamps};

    fn addresses(v6: bool) -> [SocketAddr; 2] {
        let texts = if v6 {
            ["[fd00::2]:40000", "[fd01::100]:80"]
        } else {
            ["10.1.0.2:40000", "10.2.0.100:80"]
        };
        texts.map(|text| text.parse().expect("an address"))
    }

    fn segment(v6: bool, flags: Flags, payload: &[u8]) -> Segment<'_> {
        let [source, destination] = addresses(v6);
        Segment {
            source,
            destination,
            seq: Seq(u32::MAX - 1000),
            ack: Seq(9),
            flags,
            window: 500,
            options: TcpOptions {
                timestamps: Some(Timestamps { value: 11, echo: 12 }),
                ..TcpOptions::default()
            },
            payload,
        }
    }

    /// The packet with the checksum that a sender leaves to the network card.
    fn partial(packet: &[u8]) -> Vec<u8> {
        let shape = PacketShape::of(packet).expect("TCP");
        let at = shape.tcp + TCP_CHECKSUM;
        let mut changed = packet.to_vec();
        changed[at..at + 2].copy_from_slice(&fold(shape.pseudo_sum(packet)).to_be_bytes());
        changed
    }

    #[test]
    fn one_segment_with_a_full_checksum_stays_as_it_is() {
        for v6 in [false, true] {
            let packet = segment(v6, Flags::FIN_ACK, b"hello").emit();
            assert!(!is_tcp_sum_wrong(&packet));
            for checksum in [Checksum::Trusted, Checksum::Unverified, Checksum::MaybePartial] {
                assert_eq!(cut(&packet, 0, checksum), from_ref(&packet));
                assert_eq!(cut(&packet, 5, checksum), from_ref(&packet));
            }
            let left_out = partial(&packet);
            assert_ne!(left_out, packet);
            assert_eq!(cut(&left_out, 0, Checksum::Trusted), from_ref(&packet));
            assert_eq!(cut(&left_out, 0, Checksum::MaybePartial), from_ref(&packet));
            assert_eq!(cut(&left_out, 0, Checksum::Unverified), [left_out]);
            let mut wrong = packet;
            *wrong.last_mut().expect("payload") ^= 1;
            assert!(is_tcp_sum_wrong(&wrong) && is_tcp_sum_wrong(&partial(&wrong)));
            assert_eq!(cut(&wrong, 0, Checksum::MaybePartial), [wrong]);
        }
    }

    #[test]
    fn what_is_no_tcp_segment_stays_as_it_is() {
        let mut udp = segment(false, Flags::ACK, b"hello").emit();
        udp[9] = 17;
        let mut fragment = segment(false, Flags::ACK, b"hello").emit();
        fragment[6] = 0x20;
        for packet in [udp, fragment, vec![], vec![0x45; 30]] {
            assert_eq!(cut(&packet, 3, Checksum::Trusted), [packet]);
        }
    }

    #[test]
    fn cwr_stays_with_the_first_segment() {
        let mut packet = segment(false, Flags::ACK, &[7; 10]).emit();
        packet[20 + 13] |= CWR;
        let flags: Vec<u8> = cut(&packet, 4, Checksum::Trusted)
            .iter()
            .map(|segment| segment[20 + 13] & CWR)
            .collect();
        assert_eq!(flags, [CWR, 0, 0]);
    }

    #[test]
    fn only_the_first_segment_was_copied() {
        for v6 in [false, true] {
            let flags = Flags {
                psh: true,
                ..Flags::FIN_ACK
            };
            let payload: Vec<u8> = (0..200).collect();
            let whole = segment(v6, flags, &payload).emit();
            let copied = &whole[..whole.len() - 100];
            let first = cut(copied, 100, Checksum::Trusted);
            assert_eq!(first.len(), 1);
            assert_eq!(first[0], cut(&whole, 100, Checksum::Trusted)[0]);
            let parsed = Segment::parse(&first[0], Checksum::Unverified).expect("valid");
            assert_eq!((parsed.payload, parsed.flags), (&payload[..100], Flags::ACK));
        }
    }

    proptest! {
        /// The segments have the stream of the whole packet, each with right lengths, checksums and flags.
        #[test]
        fn the_segments_are_the_packet(
            v6 in any::<bool>(),
            payload in prop::collection::vec(any::<u8>(), 0..500),
            size in 1..200_u16,
            fin in any::<bool>(),
            psh in any::<bool>(),
            is_partial in any::<bool>(),
        ) {
            let flags = Flags { fin, psh, ..Flags::ACK };
            let original = segment(v6, flags, &payload);
            let packet = original.emit();
            let packet = if is_partial { partial(&packet) } else { packet };
            let segments = cut(&packet, size, Checksum::Trusted);
            prop_assert_eq!(segments.len(), payload.len().div_ceil(size.into()).max(1));
            let mut next = original.seq;
            let mut stream: Vec<u8> = Vec::new();
            for (index, bytes) in segments.iter().enumerate() {
                let parsed = Segment::parse(bytes, Checksum::Unverified).expect("valid");
                let is_last = index + 1 == segments.len();
                prop_assert_eq!(parsed.seq, next);
                prop_assert_eq!(parsed.flags, if is_last { flags } else { Flags::ACK });
                prop_assert!(is_last || parsed.payload.len() == usize::from(size));
                prop_assert_eq!((parsed.ack, parsed.window, parsed.options), (original.ack, original.window, original.options));
                if !v6 {
                    let id = |packet: &[u8]| short(packet, 4).expect("a header");
                    prop_assert_eq!(id(bytes), id(&packet).wrapping_add(u16::try_from(index).expect("few")));
                }
                next = next + u32::try_from(parsed.payload.len()).expect("short");
                stream.extend(parsed.payload);
            }
            prop_assert_eq!(stream, payload);
        }

        #[test]
        fn no_packet_makes_it_panic(
            mut packet in prop::collection::vec(any::<u8>(), 0..200),
            first in prop_oneof![Just(0x45_u8), Just(0x60), any::<u8>()],
            protocol in prop_oneof![Just(TCP), any::<u8>()],
            size in any::<u16>(),
        ) {
            for (at, value) in [(0, first), (6, protocol), (9, protocol)] {
                if let Some(byte) = packet.get_mut(at) {
                    *byte = value;
                }
            }
            for checksum in [Checksum::Trusted, Checksum::Unverified, Checksum::MaybePartial] {
                cut(&packet, size, checksum);
            }
        }
    }
}
