//! TCP segments in IPv4 and IPv6 packets: parsed into [`Segment`] views, built by [`Segment::emit`].

mod options;

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

use etherparse::{IpSlice, PacketBuilder, TcpHeader, TcpSlice};
use thiserror::Error;

use crate::{Instant, Seq};
pub use options::{TcpOptions, Timestamps};

/// The flags of a TCP header that the core uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The sender has sent all of its data.
    pub fin: bool,
    /// Start of a connection.
    pub syn: bool,
    /// The connection is aborted.
    pub rst: bool,
    /// The application should read now.
    pub psh: bool,
    /// The acknowledgement number is valid.
    pub ack: bool,
    /// The urgent pointer is valid (RFC 6093).
    pub urg: bool,
}

impl Flags {
    /// An ordinary acknowledgement.
    pub const ACK: Self = Self {
        fin: false,
        syn: false,
        rst: false,
        psh: false,
        ack: true,
        urg: false,
    };
    /// The first segment of a connection.
    pub const SYN: Self = Self {
        syn: true,
        ack: false,
        ..Self::ACK
    };
    /// The answer to a SYN.
    pub const SYN_ACK: Self = Self {
        syn: true,
        ..Self::ACK
    };
    /// An acknowledgement that ends the sender's stream.
    pub const FIN_ACK: Self = Self {
        fin: true,
        ..Self::ACK
    };
    /// An abort.
    pub const RST: Self = Self {
        rst: true,
        ack: false,
        ..Self::ACK
    };
}

/// How far a packet's checksum can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Checksum {
    /// Verified by the hardware, or left to the hardware by a sender on the same machine.
    Trusted,
    /// Nothing is known about the checksum, so the parser verifies it.
    Unverified,
    /// Nothing is known about the checksum. The checksum may be partial, because a sender on the same machine has left the rest of the
    /// computation to the hardware.
    MaybePartial,
    /// The packet is a copy whose payload was cut off ([`TcpOptions::cut`]), so its checksum does not fit.
    Cut,
}

/// Why a packet does not contain a valid TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The IP header is cut off, contradicts itself, or its checksum is wrong.
    #[error("IP header malformed or truncated")]
    Ip,
    /// The packet is a fragment. Only the kernel reassembles fragments.
    #[error("IP fragment")]
    Fragment,
    /// Not TCP.
    #[error("not TCP")]
    NotTcp,
    /// The TCP header is cut off or contradicts itself.
    #[error("TCP header malformed or truncated")]
    Tcp,
    /// The checksum is wrong (RFC 9293 §3.1).
    #[error("TCP checksum wrong")]
    Checksum,
}

/// One TCP segment; the payload is borrowed from the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
    /// Sequence number of the first byte, or of the SYN if there is one.
    pub seq: Seq,
    /// Number of the next byte that the sender expects. Valid if `flags.ack`.
    pub ack: Seq,
    /// Flags.
    pub flags: Flags,
    /// Advertised window as written, not scaled.
    pub window: u16,
    /// Options.
    pub options: TcpOptions,
    /// Data.
    pub payload: &'a [u8],
}

/// `LOGGED_BIT` of `bpf/abi.h`: a reserved bit of the byte with TCP's data offset.
pub const LOGGED_BIT: u8 = 4;

/// Whether an IP packet with a TCP segment has the mark of a reversed connection's wire, which has logged it and sent it back
/// (docs/migration.md).
pub fn is_returned(packet: &[u8]) -> bool {
    let body = IpSlice::from_slice(packet).map(|ip| ip.payload().payload.get(12).copied());
    body.is_ok_and(|offset| offset.is_some_and(|offset| offset & LOGGED_BIT != 0))
}

impl<'a> Segment<'a> {
    /// Parses an IP packet that starts at `packet[0]`. Bytes behind the IP length (Ethernet padding) are ignored.
    ///
    /// # Errors
    /// The first problem that was found.
    pub fn parse(packet: &'a [u8], checksum: Checksum) -> Result<Self, Malformed> {
        let ip = IpSlice::from_slice(packet).map_err(|_| Malformed::Ip)?;
        if !header_checksum_holds(&ip) || is_jumbogram(&ip) {
            return Err(Malformed::Ip);
        }
        if ip.is_fragmenting_payload() {
            return Err(Malformed::Fragment);
        }
        let body = ip.payload();
        if body.ip_number != etherparse::IpNumber::TCP {
            return Err(Malformed::NotTcp);
        }
        let tcp = TcpSlice::from_slice(body.payload).map_err(|_| Malformed::Tcp)?;
        let holds = match checksum {
            Checksum::Trusted | Checksum::Cut => true,
            Checksum::Unverified => checksum_holds(&ip, &tcp),
            Checksum::MaybePartial => checksum_holds(&ip, &tcp) || is_partial(&ip, &tcp),
        };
        if !holds {
            return Err(Malformed::Checksum);
        }
        let mut options = TcpOptions::parse(tcp.options());
        let mut payload = tcp.payload();
        if checksum == Checksum::Cut {
            let length = payload.first_chunk().copied().map(u32::from_be_bytes);
            options.cut = length.unwrap_or(0);
            payload = &[];
        }
        Ok(Self {
            source: SocketAddr::new(ip.source_addr(), tcp.source_port()),
            destination: SocketAddr::new(ip.destination_addr(), tcp.destination_port()),
            seq: Seq(tcp.sequence_number()),
            ack: Seq(tcp.acknowledgment_number()),
            flags: Flags {
                fin: tcp.fin(),
                syn: tcp.syn(),
                rst: tcp.rst(),
                psh: tcp.psh(),
                ack: tcp.ack(),
                urg: tcp.urg(),
            },
            window: tcp.window_size(),
            options,
            payload,
        })
    }

    /// Length in sequence space: data, SYN and FIN (RFC 9293 §3.4).
    pub fn seq_len(&self) -> u32 {
        self.data_len() + u32::from(self.flags.syn) + u32::from(self.flags.fin)
    }

    /// Number of data bytes that the segment had when it was sent.
    // An IP packet holds less than 2³² bytes.
    pub fn data_len(&self) -> u32 {
        self.payload.len() as u32 + self.options.cut
    }

    /// The segment as an IP packet with valid checksums.
    ///
    /// # Panics
    /// If the two addresses are of different families, or the payload does not fit an IP packet. Both are bugs of the caller.
    pub fn emit(&self) -> Vec<u8> {
        let builder = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                PacketBuilder::ipv4(source.octets(), destination.octets(), HOP_LIMIT)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                PacketBuilder::ipv6(source.octets(), destination.octets(), HOP_LIMIT)
            }
            _ => panic!("a segment between address families: {self:?}"),
        };
        let mut header = TcpHeader::new(
            self.source.port(),
            self.destination.port(),
            self.seq.0,
            self.window,
        );
        header.acknowledgment_number = self.ack.0;
        (header.fin, header.syn, header.rst) = (self.flags.fin, self.flags.syn, self.flags.rst);
        (header.psh, header.ack, header.urg) = (self.flags.psh, self.flags.ack, self.flags.urg);
        header
            .set_options(&self.options.elements())
            .expect("these options fit 40 bytes");
        let builder = builder.tcp_header(header);
        let mut packet = Vec::with_capacity(builder.size(self.payload.len()));
        builder
            .write(&mut packet, self.payload)
            .expect("the payload fits a packet");
        packet
    }
}

const HOP_LIMIT: u8 = 64;

/// Whether the IPv4 header checksum is right (RFC 791 §3.1). Every kernel verifies this checksum in software, so it is never left to the
/// hardware.
fn header_checksum_holds(ip: &IpSlice<'_>) -> bool {
    match ip {
        IpSlice::Ipv4(v4) => fold(sum_pairs(v4.header().slice())) == u16::MAX,
        IpSlice::Ipv6(_) => true, // has no header checksum
    }
}

/// Whether the packet is an IPv6 jumbogram (RFC 2675). A kernel takes no TCP segment from a packet with a payload length of 0, but
/// etherparse would take all bytes that follow as the payload.
fn is_jumbogram(ip: &IpSlice<'_>) -> bool {
    matches!(ip, IpSlice::Ipv6(v6) if v6.header().payload_length() == 0)
}

fn checksum_holds(ip: &IpSlice<'_>, tcp: &TcpSlice<'_>) -> bool {
    let right = match ip {
        IpSlice::Ipv4(v4) => tcp
            .calc_checksum_ipv4(v4.header().source(), v4.header().destination())
            .ok(),
        IpSlice::Ipv6(v6) => tcp
            .calc_checksum_ipv6(v6.header().source(), v6.header().destination())
            .ok(),
    };
    right == Some(tcp.checksum())
}

/// Whether the checksum is partial: the sender has left the rest of the computation to its hardware. A partial checksum is the sum of the
/// pseudo header alone (RFC 9293 §3.1), not inverted.
fn is_partial(ip: &IpSlice<'_>, tcp: &TcpSlice<'_>) -> bool {
    let addresses = match (ip.source_addr(), ip.destination_addr()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            sum_pairs(&source.octets()) + sum_pairs(&destination.octets())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            sum_pairs(&source.octets()) + sum_pairs(&destination.octets())
        }
        _ => unreachable!("one packet, one family"),
    };
    let len = tcp.slice().len() as u64;
    fold(addresses + u64::from(etherparse::IpNumber::TCP.0) + len) == tcp.checksum()
}

/// The sum of an even number of bytes, as 16-bit numbers.
fn sum_pairs(bytes: &[u8]) -> u64 {
    bytes
        .chunks_exact(2)
        .map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum()
}

/// Folds a sum to 16 bits in ones' complement (RFC 1071).
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded to 16 bits")
}

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// Client to server.
    In,
    /// Server to client.
    Out,
}

/// The SYN of one side: its sequence number, window and options, and when it was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Sequence number of the SYN.
    pub seq: Seq,
    /// The window written in the SYN (never scaled).
    pub window: u16,
    /// The options.
    pub options: TcpOptions,
    /// When the SYN was logged.
    pub at: Instant,
}

impl Opening {
    /// The opening of a SYN or SYN-ACK.
    pub fn of(segment: &Segment<'_>, at: Instant) -> Self {
        Self {
            seq: segment.seq,
            window: segment.window,
            options: segment.options,
            at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(payload: &[u8]) -> Segment<'_> {
        Segment {
            source: "10.1.0.2:40000".parse().unwrap(),
            destination: "10.2.0.100:80".parse().unwrap(),
            seq: Seq(7),
            ack: Seq(9),
            flags: Flags {
                psh: true,
                ..Flags::ACK
            },
            window: 500,
            options: TcpOptions {
                timestamps: Some(Timestamps { value: 11, echo: 12 }),
                sack: [Some((Seq(20), Seq(30))), None, None, None],
                ..TcpOptions::default()
            },
            payload,
        }
    }

    #[test]
    fn what_is_emitted_is_parsed_again() {
        let original = segment(b"hello");
        let packet = original.emit();
        assert_eq!(Segment::parse(&packet, Checksum::Unverified), Ok(original));
        let v6 = Segment {
            source: "[fd00::2]:40000".parse().unwrap(),
            destination: "[fd01::100]:80".parse().unwrap(),
            ..original
        };
        assert_eq!(Segment::parse(&v6.emit(), Checksum::Unverified), Ok(v6));
    }

    #[test]
    fn a_flipped_bit_is_noticed_unless_the_checksum_is_trusted() {
        let mut packet = segment(b"hello").emit();
        *packet.last_mut().unwrap() ^= 1;
        assert_eq!(
            Segment::parse(&packet, Checksum::Unverified),
            Err(Malformed::Checksum)
        );
        assert!(Segment::parse(&packet, Checksum::Trusted).is_ok());
    }

    #[test]
    fn a_partial_checksum_is_accepted_only_where_one_may_be() {
        let mut packet = segment(b"hello").emit();
        let len = packet.len() as u64 - 20;
        let partial = fold(sum_pairs(&packet[12..20]) + 6 + len);
        packet[36..38].copy_from_slice(&partial.to_be_bytes());
        assert!(Segment::parse(&packet, Checksum::MaybePartial).is_ok());
        assert_eq!(
            Segment::parse(&packet, Checksum::Unverified),
            Err(Malformed::Checksum)
        );
        *packet.last_mut().unwrap() ^= 1; // a partial checksum does not cover the payload
        assert!(Segment::parse(&packet, Checksum::MaybePartial).is_ok());
    }

    #[test]
    fn a_wrong_checksum_of_the_ip_header_is_noticed_always() {
        let mut packet = segment(b"hello").emit();
        packet[8] -= 1; // the hop limit
        assert_eq!(Segment::parse(&packet, Checksum::Trusted), Err(Malformed::Ip));
    }

    #[test]
    fn a_payload_length_of_zero_is_no_tcp() {
        let v6 = Segment {
            source: "[fd00::2]:40000".parse().unwrap(),
            destination: "[fd01::100]:80".parse().unwrap(),
            ..segment(b"hello")
        };
        let mut packet = v6.emit();
        packet[4..6].fill(0);
        assert_eq!(Segment::parse(&packet, Checksum::Trusted), Err(Malformed::Ip));
    }

    #[test]
    fn truncation_anywhere_is_an_error_and_padding_is_ignored() {
        let packet = segment(b"hello").emit();
        for len in 0..packet.len() {
            assert!(
                Segment::parse(&packet[..len], Checksum::Unverified).is_err(),
                "{len}"
            );
        }
        let mut padded = packet.clone();
        padded.extend_from_slice(&[0; 6]);
        assert_eq!(
            Segment::parse(&padded, Checksum::Unverified),
            Ok(segment(b"hello"))
        );
    }
}
