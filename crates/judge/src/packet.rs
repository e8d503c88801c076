//! Reads TCP segments from captured Ethernet frames. A captured frame may end after the headers.
//!
//! This parser is independent of the product's parser, so that an error in one parser does not hide an error in the other. Checksums are
//! not verified: a sender on the same machine leaves them to the network card, and a virtual card does not compute them.

use std::fmt;
use std::net::SocketAddr;

use etherparse::{LaxNetSlice, LaxSlicedPacket, LinkSlice, TransportSlice};
use proto::Seq;

use super::pcap::PcapRecord;

/// One captured TCP segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedSegment {
    /// Time of capture, in nanoseconds of the capture's clock.
    pub at_ns: u64,
    /// Ethernet source.
    pub source_mac: [u8; 6],
    /// Ethernet destination.
    pub destination_mac: [u8; 6],
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
    /// IPv4 identification; 0 for IPv6.
    pub ip_id: u16,
    /// Sequence number of the first byte.
    pub seq: Seq,
    /// Acknowledgement number. Valid only if `has_ack`.
    pub ack: Seq,
    /// FIN.
    pub fin: bool,
    /// SYN.
    pub syn: bool,
    /// RST.
    pub rst: bool,
    /// PSH.
    pub psh: bool,
    /// ACK.
    pub has_ack: bool,
    /// Window field, not scaled.
    pub window: u16,
    /// Window scale option.
    pub window_scale: Option<u8>,
    /// Timestamps option: value, echo.
    pub timestamps: Option<(u32, u32)>,
    /// Number of data bytes that the segment had.
    pub payload_len: u32,
    /// The first data bytes, as many as were captured.
    pub payload: Vec<u8>,
}

/// Place in a TCP header of the byte with the data offset and the reserved bits.
const OFFSET_AND_RESERVED: usize = 12;
/// The reserved bit that marks a copy without payload (`CUT_BIT` of `bpf/abi.h`).
const CUT: u8 = 0x08;

/// A TCP frame whose headers cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

impl CapturedSegment {
    /// Whether the segment is a pure acknowledgement: ACK without data, FIN, SYN or RST.
    pub fn is_empty_acknowledgement(&self) -> bool {
        self.has_ack && self.payload_len == 0 && !(self.fin || self.syn || self.rst)
    }

    /// The TCP segment in `record`; `None` if the frame contains something else. A copy without payload, which a primary sends to its wire
    /// in mode `pr`, is no segment.
    ///
    /// # Errors
    /// The frame is TCP over IP, but its headers are cut off or contradict each other.
    pub fn read(record: &PcapRecord<'_>) -> Result<Option<Self>, Unreadable> {
        let Ok(sliced) = LaxSlicedPacket::from_ethernet(record.frame) else {
            return Ok(None);
        };
        let (macs, ip_id, ip_end) = match (&sliced.link, &sliced.net) {
            (Some(LinkSlice::Ethernet2(link)), Some(net)) => {
                let Some((ip_id, ip_end)) = identification_and_end(net, record) else {
                    return Ok(None);
                };
                ([link.source(), link.destination()], ip_id, ip_end)
            }
            _ => return Ok(None),
        };
        let (Some(net), Some(TransportSlice::Tcp(tcp))) = (&sliced.net, &sliced.transport) else {
            return if is_tcp(&sliced) {
                Err(Unreadable)
            } else {
                Ok(None)
            };
        };
        if tcp.header_slice()[OFFSET_AND_RESERVED] & CUT != 0 {
            return Ok(None);
        }
        let header_end = position(record.frame, tcp.slice()) + tcp.header_slice().len();
        let payload_len = ip_end.checked_sub(header_end).ok_or(Unreadable)?;
        let (source, destination) = addresses(net).ok_or(Unreadable)?;
        let mut packet = Self {
            at_ns: record.at_ns,
            source_mac: macs[0],
            destination_mac: macs[1],
            source: SocketAddr::new(source, tcp.source_port()),
            destination: SocketAddr::new(destination, tcp.destination_port()),
            ip_id,
            seq: Seq(tcp.sequence_number()),
            ack: Seq(tcp.acknowledgment_number()),
            fin: tcp.fin(),
            syn: tcp.syn(),
            rst: tcp.rst(),
            psh: tcp.psh(),
            has_ack: tcp.ack(),
            window: tcp.window_size(),
            window_scale: None,
            timestamps: None,
            payload_len: u32::try_from(payload_len).map_err(|_| Unreadable)?,
            payload: tcp.payload()[..tcp.payload().len().min(payload_len)].to_vec(),
        };
        packet.read_options(tcp.options());
        Ok(Some(packet))
    }

    /// Reads all options. (`etherparse` stops at the first unknown option. Linux skips it and continues.)
    fn read_options(&mut self, mut options: &[u8]) {
        while let [kind, rest @ ..] = options {
            let (option, behind) = match (kind, rest) {
                (0, _) => return,
                (1, _) => options.split_at(1),
                (_, [len, ..]) if (2..=options.len()).contains(&usize::from(*len)) => {
                    options.split_at(usize::from(*len))
                }
                _ => return,
            };
            match *option {
                [3, 3, shift] => self.window_scale = Some(shift),
                [8, 10, v0, v1, v2, v3, e0, e1, e2, e3] => {
                    let (value, echo) = ([v0, v1, v2, v3], [e0, e1, e2, e3]);
                    self.timestamps = Some((u32::from_be_bytes(value), u32::from_be_bytes(echo)));
                }
                _ => {}
            }
            options = behind;
        }
    }

    /// The segment in packetdrill's notation. `seconds` counts from the start of the captures. `direction` is `<` for a segment from
    /// the client and `>` for one from the service. `seq` and `ack` are relative to the start of the streams.
    pub fn notation(&self, seconds: f64, direction: char, seq: u64, ack: u64) -> String {
        format!(
            "{seconds:.6} {direction} {} {seq}:{}({}){}{}{}",
            FlagsDisplay(self),
            seq + u64::from(self.payload_len),
            self.payload_len,
            if self.has_ack {
                format!(" ack {ack}")
            } else {
                String::new()
            },
            format_args!(" win {}", self.window),
            self.timestamps.map_or_else(String::new, |(value, echo)| format!(
                " <TS val {value} ecr {echo}>"
            )),
        )
    }
}

/// Flags as packetdrill and tcpdump write them.
struct FlagsDisplay<'a>(&'a CapturedSegment);

impl fmt::Display for FlagsDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CapturedSegment {
            fin,
            syn,
            rst,
            psh,
            has_ack,
            ..
        } = *self.0;
        for (set, letter) in [(syn, "S"), (fin, "F"), (rst, "R"), (psh, "P"), (has_ack, ".")] {
            if set {
                f.write_str(letter)?;
            }
        }
        Ok(())
    }
}

/// The IPv4 identification, and the position in the frame where the IP packet ends according to its header.
fn identification_and_end(net: &LaxNetSlice<'_>, record: &PcapRecord<'_>) -> Option<(u16, usize)> {
    match net {
        LaxNetSlice::Ipv4(v4) => {
            let header = v4.header();
            let start = position(record.frame, header.slice());
            let len = match header.total_len() {
                0 => record.original_len as usize - start, // The packet is too large for the field (BIG TCP).
                len => usize::from(len),
            };
            Some((header.identification(), start + len))
        }
        LaxNetSlice::Ipv6(v6) => {
            let header = v6.header();
            let start = position(record.frame, header.slice());
            let end = match header.payload_length() {
                0 => record.original_len as usize,
                len => start + header.slice().len() + usize::from(len),
            };
            Some((0, end))
        }
        LaxNetSlice::Arp(_) => None,
    }
}

fn addresses(net: &LaxNetSlice<'_>) -> Option<(std::net::IpAddr, std::net::IpAddr)> {
    match net {
        LaxNetSlice::Ipv4(v4) => Some((
            v4.header().source_addr().into(),
            v4.header().destination_addr().into(),
        )),
        LaxNetSlice::Ipv6(v6) => Some((
            v6.header().source_addr().into(),
            v6.header().destination_addr().into(),
        )),
        LaxNetSlice::Arp(_) => None,
    }
}

fn is_tcp(sliced: &LaxSlicedPacket<'_>) -> bool {
    sliced
        .net
        .as_ref()
        .and_then(LaxNetSlice::ip_payload_ref)
        .is_some_and(|payload| payload.ip_number == etherparse::IpNumber::TCP)
}

/// Position at which `part` begins in `frame`.
fn position(frame: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - frame.as_ptr() as usize
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    #[test]
    fn options_behind_unknown_ones_are_read() {
        let options = [254, 4, 0, 0, 1, 3, 3, 7, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6, 0, 9];
        let builder = PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .tcp(1, 2, 3, 4);
        let builder = builder.options_raw(&options).unwrap();
        let mut frame = Vec::new();
        builder.write(&mut frame, b"").unwrap();
        let record = PcapRecord {
            at_ns: 0,
            frame: &frame,
            original_len: u32::try_from(frame.len()).unwrap(),
        };
        let packet = CapturedSegment::read(&record).unwrap().unwrap();
        assert_eq!((packet.window_scale, packet.timestamps), (Some(7), Some((5, 6))));
        // An option that is cut off, or whose length is below 2, ends the list of options.
        for end in [[254, 9, 0, 0], [254, 1, 0, 0]] {
            let mut packet = CapturedSegment {
                window_scale: None,
                ..packet.clone()
            };
            packet.read_options(&[&end[..], &[3, 3, 7]].concat());
            assert_eq!(packet.window_scale, None);
        }
    }
}
