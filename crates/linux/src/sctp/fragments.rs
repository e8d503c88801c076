//! IPv6 packets that this host cuts into fragments (RFC 8200 §4.5).
//!
//! Routers do not fragment IPv6 packets. The kernel fragments a packet only if it is larger than the MTU that the interface or an ICMP
//! message has told. (`IPV6_MTU` limits the size of the fragments, but does not make the kernel cut a smaller packet.) On a path that
//! loses large packets without an ICMP message, this host has to make the fragments itself.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use socket2::{Domain, Protocol, Socket, Type};

const IP_HEADER: usize = 40;
const FRAGMENT_HEADER: usize = 8;
pub(super) const UDP_HEADER: usize = 8;
/// Hop limit of the fragments. The kernel's default for other packets.
const HOP_LIMIT: u8 = 64;

/// A raw socket that sends IPv6 packets with their headers.
#[derive(Debug)]
pub(super) struct FragmentSocket {
    socket: Socket,
    from: Ipv6Addr,
    /// Identification of the next fragmented packet.
    next: u32,
}

impl FragmentSocket {
    /// Opens the socket. It sends from `from`, so that routing rules can select by source address. Needs `CAP_NET_RAW`.
    pub fn open(from: Ipv6Addr) -> io::Result<Self> {
        // A socket of protocol IPPROTO_RAW takes whole packets, and receives none.
        let protocol = Protocol::from(libc::IPPROTO_RAW);
        let socket = Socket::new(Domain::IPV6, Type::RAW.nonblocking().cloexec(), Some(protocol))?;
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        let mut first = [0; 4];
        crate::process::fill_random(&mut first)?;
        let next = u32::from_ne_bytes(first);
        Ok(Self { socket, from, next })
    }

    /// Sends a packet in fragments of at most `mtu` bytes.
    pub fn send(&mut self, to: SocketAddrV6, protocol: u8, payload: &[u8], mtu: usize) -> io::Result<()> {
        self.next = self.next.wrapping_add(1);
        let target = SocketAddrV6::new(*to.ip(), 0, 0, to.scope_id());
        for packet in fragments(self.from, *to.ip(), protocol, self.next, payload, mtu) {
            self.socket.send_to(&packet, &SocketAddr::V6(target).into())?;
        }
        Ok(())
    }
}

/// Cuts a payload into IPv6 packets of at most `mtu` bytes, each with a fragment header.
fn fragments(
    from: Ipv6Addr,
    to: Ipv6Addr,
    protocol: u8,
    identification: u32,
    payload: &[u8],
    mtu: usize,
) -> Vec<Vec<u8>> {
    let room = (mtu.saturating_sub(IP_HEADER + FRAGMENT_HEADER) / 8 * 8).max(8);
    let last = payload.len().saturating_sub(1) / room;
    let parts = payload.chunks(room).enumerate().map(|(index, part)| {
        let mut packet = Vec::with_capacity(IP_HEADER + FRAGMENT_HEADER + part.len());
        packet.extend([0x60, 0, 0, 0]);
        // A payload has fewer than 2¹⁶ bytes.
        packet.extend(((FRAGMENT_HEADER + part.len()) as u16).to_be_bytes());
        packet.extend([libc::IPPROTO_FRAGMENT as u8, HOP_LIMIT]);
        packet.extend(from.octets());
        packet.extend(to.octets());
        packet.extend([protocol, 0]);
        // `room` is a multiple of 8, so the offset leaves the three lowest bits free. The lowest one says that more fragments follow.
        let offset = (index * room) as u16 | u16::from(index < last);
        packet.extend(offset.to_be_bytes());
        packet.extend(identification.to_be_bytes());
        packet.extend(part);
        packet
    });
    parts.collect()
}

/// A UDP datagram with its header and its checksum (RFC 8200 §8.1).
pub(super) fn datagram(from: SocketAddrV6, to: SocketAddrV6, payload: &[u8]) -> Vec<u8> {
    let length = UDP_HEADER + payload.len();
    let mut datagram = Vec::with_capacity(length);
    datagram.extend(from.port().to_be_bytes());
    datagram.extend(to.port().to_be_bytes());
    // A datagram of SCTP has fewer than 2¹⁶ bytes.
    datagram.extend((length as u16).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    let mut sum = u64::from(libc::IPPROTO_UDP as u8) + length as u64;
    for part in [&from.ip().octets()[..], &to.ip().octets(), &datagram] {
        for pair in part.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u64::from(u16::from_be_bytes([pair[0], low]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // A checksum of zero would mean that there is none.
    let checksum = match !(sum as u16) {
        0 => 0xffff,
        checksum => checksum,
    };
    datagram[6..UDP_HEADER].copy_from_slice(&checksum.to_be_bytes());
    datagram
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: Ipv6Addr = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 1);
    const TO: Ipv6Addr = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 2);

    /// Joins the fragments again, as RFC 8200 §4.5 says.
    fn join(packets: &[Vec<u8>], mtu: usize) -> Vec<u8> {
        let mut whole = Vec::new();
        for (index, packet) in packets.iter().enumerate() {
            assert!(packet.len() <= mtu, "{} {mtu}", packet.len());
            let length = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
            assert_eq!((packet[6], packet[40], length + 40), (44, 132, packet.len()));
            let field = u16::from_be_bytes([packet[42], packet[43]]);
            assert_eq!(usize::from(field & !7), whole.len(), "its place");
            assert_eq!(field & 7, u16::from(index + 1 < packets.len()), "more follow");
            assert_eq!(packet[44..48], [0, 0, 0, 9]);
            whole.extend(&packet[48..]);
        }
        whole
    }

    #[test]
    fn fragments_join_to_the_payload_and_are_no_larger_than_the_path() {
        for mtu in [1280, 1283, 1400, 1499] {
            for length in [1, 8, 1224, 1232, 1233, 1240, 1460, 2464, 2465, 9000] {
                let payload: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
                let packets = fragments(FROM, TO, 132, 9, &payload, mtu);
                assert_eq!(join(&packets, mtu), payload, "{mtu} {length}");
            }
        }
    }

    #[test]
    fn the_checksum_covers_addresses_ports_and_an_odd_last_byte() {
        let (from, to) = (
            SocketAddrV6::new(FROM, 9899, 0, 0),
            SocketAddrV6::new(TO, 9, 0, 0),
        );
        // The checksum was computed by a separate program.
        let datagram = datagram(from, to, b"abc");
        assert_eq!(datagram[..6], [0x26, 0xab, 0, 9, 0, 11]);
        assert_eq!(datagram[8..], *b"abc");
        assert_eq!(u16::from_be_bytes([datagram[6], datagram[7]]), 0x1abb);
    }
}
