//! The headers of IP packets as the edge's eBPF programs read them (`bpf/headers.h`, `bpf/edge_packet.h`).

/// Extension headers of IPv6 that are skipped: hop-by-hop options, routing, fragment, destination options.
const EXTENSIONS: [u8; 4] = [0, 43, FRAGMENT, 60];
const FRAGMENT: u8 = 44;
/// Rounds of the loop over extension headers. At most 6 headers are skipped; the last round looks at what follows them.
const EXTENSIONS_MAX: usize = 7;

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
/// ICMP and ICMPv6.
pub(super) const ICMP: [u8; 2] = [1, 58];

/// Length in bytes of a TCP header without options.
pub(super) const TCP_HEADER: usize = 20;

/// Bits of the flags in byte 13 of a TCP header.
pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const PSH: u8 = 8;
pub(super) const ACK: u8 = 16;
pub(super) const CWR: u8 = 128;

/// `COUNT` bytes of a packet from `at` on.
pub(super) fn bytes<const COUNT: usize>(packet: &[u8], at: usize) -> Option<[u8; COUNT]> {
    packet.get(at..)?.first_chunk().copied()
}

/// The big-endian 16-bit number at `at` of a packet.
pub(super) fn short(packet: &[u8], at: usize) -> Option<u16> {
    bytes(packet, at).map(u16::from_be_bytes)
}

/// The big-endian 32-bit number at `at` of a packet.
pub(super) fn long(packet: &[u8], at: usize) -> Option<u32> {
    bytes(packet, at).map(u32::from_be_bytes)
}

/// The addresses of a packet, and where its transport header is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IpHeader {
    /// An IPv4 address is mapped to IPv6: `::ffff:a.b.c.d`.
    pub source: [u8; 16],
    pub destination: [u8; 16],
    /// Offset of the transport header, or of IPv6's fragment header.
    pub transport: usize,
    pub protocol: u8,
    pub is_fragment: bool,
    pub is_v6: bool,
    /// No transport header was found.
    pub is_obscure: bool,
}

impl IpHeader {
    /// Reads the header at `at`. `None` if it is cut off or contradicts itself.
    pub fn read(packet: &[u8], at: usize) -> Option<Self> {
        match packet.get(at)? >> 4 {
            4 => Self::read_v4(packet, at),
            6 => Self::read_v6(packet, at),
            _ => None,
        }
    }

    pub fn read_v4(packet: &[u8], at: usize) -> Option<Self> {
        let header: [u8; 20] = bytes(packet, at)?;
        let words = usize::from(header[0] & 15);
        let mapped = |from: usize| {
            let mut address = [0; 16];
            address[10..12].fill(0xff);
            address[12..].copy_from_slice(&header[from..from + 4]);
            address
        };
        (words >= 5).then(|| Self {
            source: mapped(12),
            destination: mapped(16),
            transport: at + words * 4,
            protocol: header[9],
            is_fragment: u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0,
            is_v6: false,
            is_obscure: false,
        })
    }

    pub fn read_v6(packet: &[u8], at: usize) -> Option<Self> {
        let header: [u8; 40] = bytes(packet, at)?;
        let mut read = Self {
            source: header[8..24].try_into().expect("16 bytes"),
            destination: header[24..].try_into().expect("16 bytes"),
            transport: at + 40,
            protocol: header[6],
            is_fragment: false,
            is_v6: true,
            is_obscure: true,
        };
        for _ in 0..EXTENSIONS_MAX {
            if !EXTENSIONS.contains(&read.protocol) {
                read.is_obscure = false;
                break;
            }
            let Some([next, len, high, low]) = bytes(packet, read.transport) else {
                break;
            };
            let is_fragment = read.protocol == FRAGMENT;
            read.protocol = next;
            if is_fragment && u16::from_be_bytes([high, low]) & 0xfff9 != 0 {
                read.is_fragment = true;
                read.is_obscure = EXTENSIONS.contains(&next);
                break;
            }
            read.transport += if is_fragment {
                8
            } else {
                (usize::from(len) + 1) * 8
            };
        }
        Some(read)
    }

    /// The packet's length as its IP header says. The header must be at the beginning of `packet`. Returns 0 if the header does not say the
    /// length.
    pub fn total_len(&self, packet: &[u8]) -> usize {
        let at = if self.is_v6 { 4 } else { 2 };
        let len = short(packet, at).map_or(0, usize::from);
        if self.is_v6 && len > 0 { len + 40 } else { len }
    }
}
