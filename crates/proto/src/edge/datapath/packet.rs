//! Reads from a packet what the data path needs to know, and changes a packet as a router does. A model of `bpf/edge_packet.h`.

use super::super::headers::{ACK, FIN, ICMP, IpHeader, RST, SYN, TCP, TCP_HEADER, UDP, bytes, long, short};
use super::super::segmentation::{fold, sum};
use super::super::slots::slot_of_ends;
use super::super::{EdgeDirection, EdgeSegment};
use crate::Seq;

/// Offset of the window in a TCP header. The checksum follows.
const WINDOW: usize = 14;
/// Length in bytes of a UDP header.
const UDP_HEADER: usize = 8;
/// Most bytes of TCP options that are looked at.
const OPTIONS_MAX: usize = 40;
/// Initial TTLs of common operating systems. A packet that a router has forwarded has a lower TTL.
const INITIAL_HOPS: [u8; 3] = [64, 128, 255];
/// The largest window scale (RFC 7323 §2.3).
const SCALE_MAX: u8 = 14;

/// Key of a flow, with the ports in network byte order. `near` is the end that is outside of the cluster at this edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct DataPathKey {
    pub near: [u8; 16],
    pub far: [u8; 16],
    pub near_port: [u8; 2],
    pub far_port: [u8; 2],
    pub protocol: u8,
}

impl DataPathKey {
    /// The slot of a flow.
    pub fn slot(&self) -> usize {
        slot_of_ends(
            (self.near, self.near_port),
            (self.far, self.far_port),
            self.protocol,
        )
    }
}

/// `enum kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketKind {
    Other,
    Tcp,
    Ports,
    Fragment,
    Error,
}

/// `struct packet`.
#[derive(Clone, Copy, Debug)]
pub(super) struct EdgePacket {
    pub ip: IpHeader,
    pub key: DataPathKey,
    pub kind: PacketKind,
    pub way: EdgeDirection,
    /// Offset of the first byte after the IP packet. The frame may be padded.
    pub end: usize,
    /// Bytes of TCP or UDP payload. 0 for a fragment.
    pub payload: usize,
    pub fragment_id: u32,
    pub hops: u8,
    pub is_malformed: bool,
    /// An ICMP error of an adjacent router that has no route to the end of a TCP connection.
    pub is_unreachable: bool,
}

impl EdgePacket {
    /// Reads a packet. `None` if the packet is left to the kernel's network stack.
    pub fn read(packet: &[u8], way: EdgeDirection, gso_size: u16) -> Option<Self> {
        let ip = IpHeader::read(packet, 0)?;
        let mut end = ip.total_len(packet);
        if end == 0 && gso_size > 0 {
            end = packet.len();
        } else if end == 0 && ip.is_v6 {
            end = 40;
        }
        if end > packet.len() || end < ip.transport {
            return None;
        }
        let mut read = Self {
            ip,
            key: DataPathKey::default(),
            kind: PacketKind::Other,
            way,
            end,
            payload: 0,
            fragment_id: 0,
            hops: packet[if ip.is_v6 { 7 } else { 8 }],
            is_malformed: false,
            is_unreachable: false,
        };
        read.set_addresses(ip.source, ip.destination);
        read.key.protocol = ip.protocol;
        if ip.is_fragment {
            read.read_fragment(packet)?;
        } else if ip.is_obscure {
            read.is_malformed = true;
        } else if ip.protocol == TCP {
            read.read_tcp(packet);
        } else if ip.protocol == UDP {
            read.is_malformed = !read.read_ports(packet, ip.transport);
            read.payload = read.end.saturating_sub(ip.transport + UDP_HEADER);
        } else if ICMP.contains(&ip.protocol) {
            read.read_icmp(packet);
        }
        Some(read)
    }

    fn set_addresses(&mut self, source: [u8; 16], destination: [u8; 16]) {
        (self.key.near, self.key.far) = match self.way {
            EdgeDirection::Entering => (source, destination),
            EdgeDirection::Leaving => (destination, source),
        };
    }

    fn set_ports(&mut self, source: [u8; 2], destination: [u8; 2]) {
        (self.key.near_port, self.key.far_port) = match self.way {
            EdgeDirection::Entering => (source, destination),
            EdgeDirection::Leaving => (destination, source),
        };
    }

    /// Reads the ports at `at`. Returns whether they are there.
    fn read_ports(&mut self, packet: &[u8], at: usize) -> bool {
        let ports: Option<[u8; 4]> = bytes(packet, at).filter(|_| at + 4 <= self.end);
        if let Some([a, b, c, d]) = ports {
            self.kind = PacketKind::Ports;
            self.set_ports([a, b], [c, d]);
        }
        ports.is_some()
    }

    fn read_fragment(&mut self, packet: &[u8]) -> Option<()> {
        self.kind = PacketKind::Fragment;
        let (offset, at) = if self.ip.is_v6 {
            let header: [u8; 8] = bytes(packet, self.ip.transport)?;
            self.fragment_id = u32::from_ne_bytes(bytes(&header, 4)?);
            (short(&header, 2)? & 0xfff8, self.ip.transport + 8)
        } else {
            self.fragment_id = u16::from_ne_bytes(bytes(packet, 4)?).into();
            (short(packet, 6)? & 0x1fff, self.ip.transport)
        };
        let has_ports = [TCP, UDP].contains(&self.ip.protocol);
        if offset == 0 && has_ports && !self.ip.is_obscure {
            self.read_ports(packet, at);
        }
        Some(())
    }

    fn read_tcp(&mut self, packet: &[u8]) {
        let at = self.ip.transport;
        let header = packet.get(at + 12).map_or(0, |byte| usize::from(byte >> 4) * 4);
        if at + TCP_HEADER > self.end || header < TCP_HEADER || at + header > self.end {
            self.is_malformed = true;
            return;
        }
        self.read_ports(packet, at);
        self.kind = PacketKind::Tcp;
        self.payload = self.end - at - header;
    }

    /// An ICMP error belongs to the flow that it quotes. The quoted packet went the other way.
    fn read_icmp(&mut self, packet: &[u8]) {
        let Some([kind, code]) = bytes(packet, self.ip.transport) else {
            return;
        };
        let at = self.ip.transport + 8;
        let (is_error, quoted) = if self.ip.is_v6 {
            (kind < 128, IpHeader::read_v6(packet, at))
        } else {
            (matches!(kind, 3 | 11 | 12), IpHeader::read_v4(packet, at))
        };
        let quoted = quoted.filter(|ip| is_error && !ip.is_obscure && !ip.is_fragment);
        let Some(quoted) = quoted.filter(|ip| [TCP, UDP].contains(&ip.protocol)) else {
            return;
        };
        if let Some([a, b, c, d]) = bytes(packet, quoted.transport) {
            self.kind = PacketKind::Error;
            self.set_addresses(quoted.destination, quoted.source);
            self.set_ports([c, d], [a, b]);
            self.key.protocol = quoted.protocol;
            let is_no_route = if self.ip.is_v6 {
                kind == 1 && [0, 3].contains(&code)
            } else {
                kind == 3 && code <= 1
            };
            let is_next = INITIAL_HOPS.contains(&self.hops);
            self.is_unreachable = quoted.protocol == TCP && is_no_route && is_next;
        }
    }

    /// Whether a router may forward the packet.
    pub fn is_routable(&self) -> bool {
        let (to, from) = (self.ip.destination, self.ip.source);
        if self.ip.is_v6 {
            let is_link = |address: [u8; 16]| address[0] == 0xfe && address[1] & 0xc0 == 0x80;
            let is_special = u128::from_be_bytes(to) <= 1;
            return to[0] != 0xff && !is_link(to) && !is_link(from) && !is_special;
        }
        let is_link = |address: [u8; 16]| address[12] == 169 && address[13] == 254;
        to[12] != 0 && to[12] != 127 && to[12] < 224 && !is_link(to) && !is_link(from)
    }

    pub const fn has_flow(&self) -> bool {
        matches!(self.kind, PacketKind::Tcp | PacketKind::Ports)
    }

    /// The TCP segment. `None` if the packet is a fragment, malformed or not TCP.
    pub fn segment(&self, packet: &[u8]) -> Option<EdgeSegment> {
        if self.kind != PacketKind::Tcp {
            return None;
        }
        let at = self.ip.transport;
        let flags = packet[at + 13];
        Some(EdgeSegment {
            seq: Seq(long(packet, at + 4)?),
            len: u32::try_from(self.payload).expect("at most 64 KB"),
            ack: (flags & ACK != 0).then_some(Seq(long(packet, at + 8)?)),
            syn: flags & SYN != 0,
            fin: flags & FIN != 0,
            rst: flags & RST != 0,
        })
    }

    /// The window scale that a SYN announces.
    pub fn window_scale(&self, packet: &[u8]) -> Option<u8> {
        let mut at = self.ip.transport + TCP_HEADER;
        let end = self.end - self.payload;
        for _ in 0..OPTIONS_MAX {
            match *packet.get(at..end)? {
                [] | [0, ..] => return None,
                [1, ..] => at += 1,
                [_, len, ..] if len < 2 || at + usize::from(len) > end => return None,
                [3, 3, scale, ..] => return Some(scale.min(SCALE_MAX)),
                [_, len, ..] => at += usize::from(len),
                [_] => return None,
            }
        }
        None
    }

    /// Limits the offered window to `most`. Returns whether the window was larger.
    pub fn limit_window(&self, packet: &mut [u8], most: u16) -> bool {
        let at = self.ip.transport + WINDOW;
        let window: [u8; 2] = bytes(packet, at).expect("a whole header");
        if u16::from_be_bytes(window) <= most {
            return false;
        }
        let checksum = at + 2;
        let old: [u8; 2] = bytes(packet, checksum).expect("a whole header");
        let sum = replaced_sum(u16::from_ne_bytes(old), u16::from_ne_bytes(window), most.to_be());
        packet[checksum..checksum + 2].copy_from_slice(&sum.to_ne_bytes());
        packet[at..at + 2].copy_from_slice(&most.to_be_bytes());
        true
    }

    /// Decrements the TTL or hop limit.
    pub fn take_hop(&self, packet: &mut [u8]) {
        if self.ip.is_v6 {
            packet[7] -= 1;
            return;
        }
        packet[8] -= 1;
        let check = u32::from(u16::from_ne_bytes([packet[10], packet[11]])) + u32::from(0x0100_u16.to_be());
        let check = check + u32::from(check >= 0xffff);
        packet[10..12].copy_from_slice(&(check as u16).to_ne_bytes());
    }
}

/// Whether the checksum of the packet's IPv4 header is wrong. A router must not forward such a packet (RFC 1812 §5.2.2).
pub(super) fn is_ip_sum_wrong(packet: &[u8]) -> bool {
    let Some(ip) = IpHeader::read(packet, 0).filter(|ip| !ip.is_v6) else {
        return false;
    };
    let header = packet.get(..ip.transport);
    header.is_none_or(|header| fold(sum(header)) != 0xffff)
}

/// The checksum after the change of one 16-bit word, as the kernel computes it (`csum_replace4`).
fn replaced_sum(sum: u16, old: u16, new: u16) -> u16 {
    let add = |a: u32, b: u32| {
        let (total, carry) = a.overflowing_add(b);
        total + u32::from(carry)
    };
    let without = add(!u32::from(sum), !u32::from(old));
    let total = add(without, new.into());
    let folded = (total & 0xffff) + (total >> 16);
    !((folded & 0xffff) as u16).wrapping_add((folded >> 16) as u16)
}
