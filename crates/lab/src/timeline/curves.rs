//! The progress of one connection over time, from a capture.

use std::net::SocketAddr;

use proto::Offset;
use serde::{Deserialize, Serialize};

use judge::Capture;
use judge::{CapturedSegment, OffsetSet};

/// One connection over time, as one capture shows it. Times never decrease, nor do the offsets of `sent` and `acknowledged`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// The highest offset that the server had sent.
    pub sent: Vec<CurvePoint>,
    /// The highest offset that the client had acknowledged.
    pub acknowledged: Vec<CurvePoint>,
    /// Ends of segments whose bytes had all been sent before.
    pub resent: Vec<CurvePoint>,
    /// FINs and RSTs.
    pub marks: Vec<TimelineEvent>,
}

/// A position in the server's stream at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Nanoseconds of the capture's clock.
    pub at_ns: u64,
    /// Bytes from the start of the stream.
    pub offset: u64,
}

/// Something that happened at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineEvent {
    /// Nanoseconds of the capture's clock.
    pub at_ns: u64,
    /// The event, in a few words.
    pub text: String,
}

impl Curves {
    /// Reads the connection of `client` with `service` from `capture`. If there are several such connections, returns the last one.
    ///
    /// # Errors
    /// If the capture cannot be read.
    pub fn read(capture: &Capture, service: SocketAddr, client: SocketAddr) -> anyhow::Result<Self> {
        let mut tracer = CurveTracer::default();
        judge::for_each_segment(capture, service, |packet| {
            if packet.source == client || packet.destination == client {
                tracer.take(packet, packet.destination == client);
            }
        })?;
        Ok(tracer.curves)
    }

    /// The highest offset of `sent` and `acknowledged`.
    pub fn highest(&self) -> u64 {
        let last = [&self.sent, &self.acknowledged].map(|curve| curve.last().map_or(0, |one| one.offset));
        last[0].max(last[1])
    }

    /// The times of the first and the last point of each curve, and of all marks.
    pub fn times(&self) -> impl Iterator<Item = u64> {
        let ends = |curve: &[CurvePoint]| [curve.first(), curve.last()].map(|one| one.map(|one| one.at_ns));
        let curves = [&self.sent, &self.resent, &self.acknowledged].map(|curve| ends(curve));
        let marks = self.marks.iter().map(|mark| mark.at_ns);
        curves.into_iter().flatten().flatten().chain(marks)
    }
}

/// Follows one connection through a capture.
#[derive(Default)]
struct CurveTracer {
    curves: Curves,
    /// Sequence number of the server's first byte.
    first: Option<proto::Seq>,
    sent: Offset,
    seen: OffsetSet,
    acknowledged: Offset,
}

impl CurveTracer {
    fn take(&mut self, packet: &CapturedSegment, toward_client: bool) {
        if packet.syn {
            if toward_client {
                self.first = Some(packet.seq + 1);
            } else {
                *self = Self::default();
            }
            return;
        }
        let name = if toward_client { "server" } else { "client" };
        for (set, kind) in [(packet.fin, "FIN"), (packet.rst, "RST")] {
            if set {
                self.curves.marks.push(TimelineEvent {
                    at_ns: packet.at_ns,
                    text: format!("{kind} from {name}"),
                });
            }
        }
        if packet.rst {
            return;
        }
        if toward_client {
            self.on_sent(packet);
        } else if packet.has_ack {
            self.on_acknowledged(packet);
        }
    }

    fn on_sent(&mut self, packet: &CapturedSegment) {
        let first = *self.first.get_or_insert(packet.seq);
        let start = Offset::from_seq(packet.seq, first, self.sent);
        let Some(start) = start.filter(|_| packet.payload_len > 0) else {
            return;
        };
        let end = start + u64::from(packet.payload_len);
        let reading = CurvePoint {
            at_ns: packet.at_ns,
            offset: end.0,
        };
        if end > self.sent {
            self.sent = end;
            self.curves.sent.push(reading);
        } else if self.seen.first_missing(start.0, end.0).is_none() {
            self.curves.resent.push(reading); // else the segment was reordered, or fills a hole
        }
        self.seen.add(start.0, end.0);
    }

    fn on_acknowledged(&mut self, packet: &CapturedSegment) {
        let first = *self.first.get_or_insert(packet.ack);
        let Some(ack) = Offset::from_seq(packet.ack, first, self.acknowledged) else {
            return;
        };
        // A FIN has a sequence number, but is no byte of the stream.
        let ack = ack.min(self.sent.max(self.acknowledged));
        if ack > self.acknowledged {
            self.acknowledged = ack;
            self.curves.acknowledged.push(CurvePoint {
                at_ns: packet.at_ns,
                offset: ack.0,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::Seq;
    use proto::packet::{Flags, Segment, TcpOptions};

    use super::*;
    use judge::pcap::PcapRecord;

    const FIRST: u32 = 0xffff_fffe;

    /// A segment as a capture has it. `position` is an offset in the server's stream.
    fn packet(
        at_ns: u64,
        toward_client: bool,
        flags: Flags,
        position: u32,
        payload: &[u8],
    ) -> CapturedSegment {
        let mut ends = [
            "10.1.0.2:40000".parse().unwrap(),
            "10.2.0.100:80".parse().unwrap(),
        ];
        if toward_client {
            ends.reverse();
        }
        let number = Seq(FIRST) + position;
        let segment = Segment {
            source: ends[0],
            destination: ends[1],
            seq: if toward_client { number } else { Seq(5) },
            ack: if toward_client { Seq(5) } else { number },
            flags,
            window: 100,
            options: TcpOptions::default(),
            payload,
        };
        let frame = [&[0; 12][..], &[8, 0], &segment.emit()].concat();
        let record = PcapRecord {
            at_ns,
            frame: &frame,
            original_len: frame.len() as u32,
        };
        CapturedSegment::read(&record).unwrap().unwrap()
    }

    #[test]
    fn a_connection_becomes_curves_across_the_wrap() {
        let mut tracer = CurveTracer::default();
        tracer.take(&packet(1, false, Flags::SYN, 0, b""), false);
        let syn_ack = packet(2, true, Flags::SYN_ACK, u32::MAX, b""); // the sequence number before the first byte's
        tracer.take(&syn_ack, true);
        let mut take = |at_ns, toward_client, flags, position, payload: &[u8]| {
            tracer.take(
                &packet(at_ns, toward_client, flags, position, payload),
                toward_client,
            );
        };
        take(3, true, Flags::ACK, 0, b"0123");
        take(4, false, Flags::ACK, 4, b"");
        take(5, true, Flags::ACK, 8, b"89");
        take(6, true, Flags::ACK, 4, b"4567"); // reordered
        take(7, true, Flags::ACK, 6, b"67"); // again
        take(8, true, Flags::FIN_ACK, 10, b"");
        take(9, false, Flags::FIN_ACK, 11, b"");
        let pairs = |curve: &[CurvePoint]| {
            curve
                .iter()
                .map(|one| (one.at_ns, one.offset))
                .collect::<Vec<_>>()
        };
        let curves = tracer.curves;
        assert_eq!(pairs(&curves.sent), [(3, 4), (5, 10)]);
        assert_eq!(pairs(&curves.acknowledged), [(4, 4), (9, 10)]);
        assert_eq!(pairs(&curves.resent), [(7, 8)]);
        let marks: Vec<_> = curves.marks.iter().map(|mark| mark.text.as_str()).collect();
        assert_eq!(marks, ["FIN from server", "FIN from client"]);
        assert_eq!(curves.highest(), 10);
    }
}
