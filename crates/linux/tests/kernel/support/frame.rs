//! Sends hand-made frames on a cable, and receives frames from the cable.

use std::net::IpAddr;

use proto::packet::{Checksum, Segment};
use socket2::{SockFilter, SockRef};
use steadfast_linux::packet_socket::{FRAME_MAX, PacketSocket, VIRTIO_HEADER};

use super::lan::{Family, LanHost};
use super::socket::set_packet;

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;

/// One end of a cable.
pub struct FrameTap {
    socket: PacketSocket,
    buffer: Vec<u8>,
}

impl FrameTap {
    /// A tap at `interface` of `host`. [`put`](Self::put) sends a frame out of the interface. [`take`](Self::take) returns a frame that
    /// arrived at the interface.
    pub fn on(host: &LanHost, interface: &str) -> Self {
        Self {
            socket: host
                .run(|| PacketSocket::open(interface))
                .expect("a packet socket"),
            buffer: vec![0; FRAME_MAX],
        }
    }

    /// As [`on`](Self::on), but frames that are put pass the interface's egress filters first.
    pub fn behind_filters(host: &LanHost, interface: &str) -> Self {
        let tap = Self::on(host, interface);
        set_packet(&tap.socket, libc::PACKET_QDISC_BYPASS, 0);
        tap
    }

    /// As [`on`](Self::on), but only counts the frames that a classic BPF program accepts: see [`arrived`](Self::arrived).
    pub fn counting(host: &LanHost, interface: &str, program: &[SockFilter]) -> Self {
        let mut tap = Self::on(host, interface);
        let socket = SockRef::from(&tap.socket);
        socket.attach_filter(program).expect("SO_ATTACH_FILTER");
        socket.set_recv_buffer_size(0).expect("SO_RCVBUF"); // lost frames are counted too
        tap.arrived();
        tap
    }

    /// How many frames arrived since the last call.
    pub fn arrived(&mut self) -> u64 {
        let taken = std::iter::from_fn(|| self.take()).count();
        taken as u64 + u64::from(self.socket.drops().expect("statistics"))
    }

    /// Sends an IP packet unchanged, even if its checksums are wrong.
    pub fn put(&self, to: [u8; 6], from: [u8; 6], packet: &[u8]) {
        assert!(self.offer(to, from, packet), "no room");
    }

    /// As [`put`](Self::put), but returns false if there is no room.
    pub fn offer(&self, to: [u8; 6], from: [u8; 6], packet: &[u8]) -> bool {
        self.offer_tagged(to, from, &[], packet)
    }

    /// As [`offer`](Self::offer), with VLAN tags, the outer one first.
    pub fn offer_tagged(&self, to: [u8; 6], from: [u8; 6], vlans: &[u16], packet: &[u8]) -> bool {
        let mut frame = vec![0; VIRTIO_HEADER];
        frame.extend(to);
        frame.extend(from);
        for vlan in vlans {
            frame.extend([0x81, 0x00]);
            frame.extend(vlan.to_be_bytes());
        }
        let ether_type: u16 = if packet[0] >> 4 == 4 { 0x0800 } else { 0x86dd };
        frame.extend(ether_type.to_be_bytes());
        frame.extend(packet);
        self.socket.send(&frame).expect("send")
    }

    /// Sends a TCP packet that the receiver may cut into segments of `segment` bytes.
    pub fn put_uncut(&self, to: [u8; 6], from: [u8; 6], packet: &[u8], segment: u16) {
        let v4 = packet[0] >> 4 == 4;
        let ip_header = if v4 { 20 } else { 40 };
        let checksum_start = u16::try_from(ETHERNET + ip_header).expect("small");
        let header_len = checksum_start + u16::from(packet[ip_header + 12] >> 4) * 4;
        let (needs_checksum, gso) = (1, if v4 { 1 } else { 4 });
        let mut frame = vec![needs_checksum, gso];
        for field in [header_len, segment, checksum_start, 16] {
            frame.extend(field.to_ne_bytes());
        }
        frame.extend(to);
        frame.extend(from);
        frame.extend(if v4 { [8, 0] } else { [0x86, 0xdd] });
        frame.extend(packet);
        assert!(self.socket.send(&frame).expect("send"), "no room");
    }

    /// The next IP packet that arrived.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let len = self.socket.receive(&mut self.buffer).expect("receive")?;
        Some(self.buffer[VIRTIO_HEADER + ETHERNET..len].to_vec())
    }

    /// Hands every TCP segment that arrived to `see`.
    pub fn take_segments(&mut self, mut see: impl FnMut(&Segment<'_>)) {
        while let Some(packet) = self.take() {
            if let Ok(segment) = Segment::parse(&packet, Checksum::Trusted) {
                see(&segment);
            }
        }
        assert_eq!(self.socket.drops().expect("statistics"), 0, "the tap lost frames");
    }
}

/// Sets the TCP checksum of an IP packet to `value`.
pub fn set_checksum(packet: &mut [u8], value: u16) {
    let tcp = if packet[0] >> 4 == 4 { 20 } else { 40 };
    packet[tcp + 16..tcp + 18].copy_from_slice(&value.to_be_bytes());
}

/// Returns the TCP packet with `options`, padded with zeroes, in place of its TCP options. Corrects the lengths and checksums.
pub fn with_tcp_options(packet: &[u8], options: &[u8]) -> Vec<u8> {
    let tcp = if packet[0] >> 4 == 4 { 20 } else { 40 };
    let payload = tcp + usize::from(packet[tcp + 12] >> 4) * 4;
    let mut changed = [&packet[..tcp + 20], options].concat();
    changed.resize(tcp + 20 + options.len().next_multiple_of(4), 0);
    let words = u8::try_from((changed.len() - tcp) / 4).expect("at most 40 bytes");
    changed[tcp + 12] = words << 4;
    changed.extend(&packet[payload..]);
    let segment_len = u16::try_from(changed.len() - tcp).expect("short");
    if tcp == 20 {
        changed[2..4].copy_from_slice(&(segment_len + 20).to_be_bytes());
        fix_ipv4_header(&mut changed);
    } else {
        changed[4..6].copy_from_slice(&segment_len.to_be_bytes());
    }
    set_checksum(&mut changed, 0);
    let addresses = if tcp == 20 { 12..20 } else { 8..40 };
    let summed = [&changed[addresses], &changed[tcp..]].concat();
    let pairs = summed
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)])));
    let sum = fold(pairs.sum::<u32>() + 6 + u32::from(segment_len));
    set_checksum(&mut changed, sum);
    changed
}

/// Corrects an IPv4 header's checksum.
pub fn fix_ipv4_header(packet: &mut [u8]) {
    let len = usize::from(packet[0] & 15) * 4;
    packet[10..12].fill(0);
    let sum = packet[..len]
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    packet[10..12].copy_from_slice(&fold(sum).to_be_bytes());
}

/// Folds a sum of 16-bit words into the Internet checksum (RFC 1071).
pub fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}

/// Returns an IP packet with an ICMP message. Fills in the message's checksum.
pub fn icmp(from: IpAddr, to: IpAddr, mut message: Vec<u8>) -> Vec<u8> {
    let octets = |address| match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let addresses = [octets(from), octets(to)].concat();
    let len = u16::try_from(message.len()).expect("short");
    let mut summed = message.clone();
    if from.is_ipv6() {
        summed.extend(&addresses);
        summed.extend([len.to_be_bytes(), [0, 58]].concat());
    }
    let pairs = summed
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)])));
    message[2..4].copy_from_slice(&fold(pairs.sum()).to_be_bytes());
    let mut packet = if from.is_ipv4() {
        let total = (len + 20).to_be_bytes();
        [&[0x45, 0][..], &total, &[0, 0, 0, 0, 64, 1, 0, 0]].concat()
    } else {
        [&[0x60, 0, 0, 0][..], &len.to_be_bytes(), &[58, 64]].concat()
    };
    packet.extend(addresses);
    if from.is_ipv4() {
        fix_ipv4_header(&mut packet);
    }
    packet.extend(message);
    packet
}

/// An ICMP error that a router, host 9 of the network, sends to the VIP about `quoted`.
pub fn icmp_error(family: Family, (kind, code): (u8, u8), rest: u32, quoted: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend(rest.to_be_bytes());
    message.extend(quoted);
    icmp(family.address(9), family.vip().ip(), message)
}

/// A router's ICMP error about the segment `quoted`: the path takes packets of at most 1300 bytes.
pub fn too_big(family: Family, quoted: &[u8]) -> Vec<u8> {
    let kind = match family {
        Family::V4 => (3, 4),
        Family::V6 => (2, 0),
    };
    icmp_error(family, kind, 1300, quoted)
}

/// An IPv6 packet with an added extension header of type `kind`. `body` is the header without its first byte.
pub fn with_extension(packet: &[u8], kind: u8, body: &[u8]) -> Vec<u8> {
    let mut changed = packet[..40].to_vec();
    let len = u16::try_from(packet.len() - 40 + 1 + body.len()).expect("short");
    changed[4..6].copy_from_slice(&len.to_be_bytes());
    let next = std::mem::replace(&mut changed[6], kind);
    changed.push(next);
    changed.extend(body);
    changed.extend(&packet[40..]);
    changed
}

pub const HOP_BY_HOP: u8 = 0;
pub const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const DESTINATION_OPTIONS: u8 = 60;
/// An 8-byte options header without its first byte: the length byte, then a padding option.
pub const PADDING: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];

/// A routing header of type 2 without a next hop, and without its first byte.
pub const NO_ROUTE: [u8; 7] = [0, 2, 0, 0, 0, 0, 0];

/// A fragment header without its first byte.
pub fn fragment_header(offset: u16, more: bool) -> [u8; 7] {
    let [high, low] = (offset << 3 | u16::from(more)).to_be_bytes();
    [0, high, low, 0, 0, 0, 7]
}

/// An IPv6 packet with `count` headers of destination options.
pub fn with_extensions(packet: &[u8], count: usize) -> Vec<u8> {
    (0..count).fold(packet.to_vec(), |packet, _| {
        with_extension(&packet, DESTINATION_OPTIONS, &PADDING)
    })
}
