//! Hand-made packets for the edge, including malformed packets that no library makes.

use std::net::IpAddr;

use super::frame::{fix_ipv4_header, fold};

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

/// The parts of a packet that the edge looks at.
#[derive(Clone, Debug)]
pub struct HandMade {
    pub from: IpAddr,
    pub to: IpAddr,
    pub ports: (u16, u16),
    pub hops: u8,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub options: Vec<u8>,
    pub payload: usize,
}

impl HandMade {
    pub fn new(from: IpAddr, to: IpAddr, ports: (u16, u16)) -> Self {
        Self {
            from,
            to,
            ports,
            hops: 64,
            seq: 1000,
            ack: 5000,
            flags: ACK,
            window: 30_000,
            options: Vec::new(),
            payload: 0,
        }
    }

    /// A TCP packet with valid checksums.
    pub fn tcp(&self) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().next_multiple_of(4), 0);
        let words = u8::try_from(5 + options.len() / 4).expect("at most 40 bytes of options");
        let mut tcp = [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat();
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([words << 4, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(options);
        tcp.extend((0..self.payload).map(|at| at.to_le_bytes()[0]));
        let sum = self.checksum(TCP, &tcp);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        self.ip(TCP, &tcp)
    }

    /// A UDP packet with a valid checksum.
    pub fn udp(&self) -> Vec<u8> {
        let len = u16::try_from(8 + self.payload).expect("short");
        let mut udp = [self.ports.0, self.ports.1, len, 0]
            .map(u16::to_be_bytes)
            .concat();
        udp.extend((0..self.payload).map(|at| at.to_le_bytes()[0]));
        let sum = self.checksum(UDP, &udp);
        udp[6..8].copy_from_slice(&sum.to_be_bytes());
        self.ip(UDP, &udp)
    }

    /// An ICMP message.
    pub fn icmp(&self, mut message: Vec<u8>) -> Vec<u8> {
        let protocol = if self.from.is_ipv4() { 1 } else { 58 };
        message[2..4].fill(0);
        let pseudo = if self.from.is_ipv4() { None } else { Some(protocol) };
        let sum = pseudo.map_or_else(
            || fold(sum(&message)),
            |protocol| self.checksum(protocol, &message),
        );
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        self.ip(protocol, &message)
    }

    /// An ICMP error that quotes a packet: destination unreachable.
    pub fn unreachable(&self, code: u8, quoted: &[u8]) -> Vec<u8> {
        let kind = if self.from.is_ipv4() { 3 } else { 1 };
        self.icmp([&[kind, code, 0, 0, 0, 0, 0, 0], &quoted[..quoted.len().min(80)]].concat())
    }

    /// An IP packet with any transport.
    pub fn ip(&self, protocol: u8, transport: &[u8]) -> Vec<u8> {
        let len = transport.len();
        let mut packet = match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let total = u16::try_from(20 + len).expect("short").to_be_bytes();
                let mut head = vec![
                    0x45, 0, total[0], total[1], 0x12, 0x34, 0, 0, self.hops, protocol, 0, 0,
                ];
                head.extend([from.octets(), to.octets()].concat());
                fix_ipv4_header(&mut head);
                head
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let len = u16::try_from(len).expect("short").to_be_bytes();
                let mut head = vec![0x60, 0, 0, 0, len[0], len[1], protocol, self.hops];
                head.extend([from.octets(), to.octets()].concat());
                head
            }
            _ => panic!("one family"),
        };
        packet.extend(transport);
        packet
    }

    fn checksum(&self, protocol: u8, transport: &[u8]) -> u16 {
        let octets = |address| match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let len = u32::try_from(transport.len()).expect("short");
        let addresses = sum(&octets(self.from)) + sum(&octets(self.to));
        fold(addresses + u32::from(protocol) + len + sum(transport))
    }
}

/// A SYN's option that announces a window scale.
pub fn scale(shift: u8) -> Vec<u8> {
    vec![1, 3, 3, shift]
}

fn sum(bytes: &[u8]) -> u32 {
    let pairs = bytes.chunks(2);
    pairs
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)])))
        .sum()
}
