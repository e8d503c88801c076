//! Parses the packets that the data path has copied, and says how the cache holds them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::flow::FlowKey;
use crate::edge::cache::PacketBytes;
use crate::edge::{EdgeDirection, EdgeSegment};
use crate::packet::{Checksum, Segment};

const TCP: u8 = 6;
const V6_HEADER: usize = 40;

/// How copies are held in the cache.
pub(super) const COPIES: PacketBytes<FlowKey, Vec<u8>> = PacketBytes {
    bytes: |packet| packet,
    packet: <[u8]>::to_vec,
    length: packet_length,
    key: entering_key,
    segment: |packet| read(packet, EdgeDirection::Entering).map(|(_, segment)| segment),
};

/// The flow of a TCP packet that passes in direction `way`, and the header fields that the edge reads. The packet's checksum must be
/// complete, but it is not verified. `None` if the packet is not TCP or is malformed.
pub(super) fn read(packet: &[u8], way: EdgeDirection) -> Option<(FlowKey, EdgeSegment)> {
    let segment = Segment::parse(packet, Checksum::Trusted).ok()?;
    let (near, far) = match way {
        EdgeDirection::Entering => (segment.source, segment.destination),
        EdgeDirection::Leaving => (segment.destination, segment.source),
    };
    let parts = EdgeSegment {
        seq: segment.seq,
        len: segment.payload.len() as u32,
        ack: segment.flags.ack.then_some(segment.ack),
        syn: segment.flags.syn,
        fin: segment.flags.fin,
        rst: segment.flags.rst,
    };
    Some((FlowKey { near, far }, parts))
}

/// The length of an IP packet, from its header.
fn packet_length(bytes: &[u8]) -> Option<usize> {
    let word = |at: usize| bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes);
    match bytes.first()? >> 4 {
        4 => word(2).map(usize::from),
        6 => Some(V6_HEADER + usize::from(word(4)?)),
        _ => None,
    }
}

/// The flow of an entering packet that [`read`] has accepted before. The cache calls this function many times per search, so packets
/// without IPv6 extension headers have a fast path.
fn entering_key(packet: &[u8]) -> Option<FlowKey> {
    let (source, destination, tcp): (IpAddr, IpAddr, &[u8]) = match packet.first()? >> 4 {
        4 if packet.get(9) == Some(&TCP) => {
            let address = |at: usize| packet.get(at..)?.first_chunk::<4>().copied().map(Ipv4Addr::from);
            let header = usize::from(packet[0] & 15) * 4;
            (address(12)?.into(), address(16)?.into(), packet.get(header..)?)
        }
        6 if packet.get(6) == Some(&TCP) => {
            let address = |at: usize| packet.get(at..)?.first_chunk::<16>().copied().map(Ipv6Addr::from);
            (address(8)?.into(), address(24)?.into(), packet.get(V6_HEADER..)?)
        }
        _ => return read(packet, EdgeDirection::Entering).map(|(key, _)| key),
    };
    let &[a, b, c, d] = tcp.first_chunk()?;
    Some(FlowKey {
        near: SocketAddr::new(source, u16::from_be_bytes([a, b])),
        far: SocketAddr::new(destination, u16::from_be_bytes([c, d])),
    })
}
