//! What one connection did over time, taken from a capture.

use std::net::SocketAddr;

use proto::Offset;
use serde::{Deserialize, Serialize};

use crate::capture::Capture;
use crate::judge::{self, Packet};

/// One connection over time, as one capture shows it. Times do not fall, nor do the offsets of `sent` and `acknowledged`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// The end of what the server had sent.
    pub sent: Vec<Reading>,
    /// What the client had acknowledged.
    pub acknowledged: Vec<Reading>,
    /// The ends of segments that repeated what had been sent before.
    pub resent: Vec<Reading>,
    /// FINs and RSTs.
    pub marks: Vec<Mark>,
}

/// A position in the server's stream at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Nanoseconds of the capture's clock.
    pub at_ns: u64,
    /// Bytes from the start of the stream.
    pub offset: u64,
}

/// Something that happened at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Nanoseconds of the capture's clock.
    pub at_ns: u64,
    /// What, in a word or two.
    pub text: String,
}

impl Curves {
    /// The connection of `client` with `service` in `capture`. If there was more than one, the last.
    ///
    /// # Errors
    /// The capture cannot be read.
    pub fn read(capture: &Capture, service: SocketAddr, client: SocketAddr) -> anyhow::Result<Self> {
        let mut tracer = Tracer::default();
        judge::for_each_segment(capture, service, |packet| {
            if packet.source == client || packet.destination == client {
                tracer.take(packet, packet.destination == client);
            }
        })?;
        Ok(tracer.curves)
    }

    /// The highest offset.
    pub fn highest(&self) -> u64 {
        let last = [&self.sent, &self.acknowledged].map(|curve| curve.last().map_or(0, |one| one.offset));
        last[0].max(last[1])
    }

    /// The times of the first and the last reading of each curve, and of the marks.
    pub fn times(&self) -> impl Iterator<Item = u64> {
        let ends = |curve: &[Reading]| [curve.first(), curve.last()].map(|one| one.map(|one| one.at_ns));
        let curves = [ends(&self.sent), ends(&self.acknowledged)];
        let marks = self.marks.iter().map(|mark| mark.at_ns);
        curves.into_iter().flatten().flatten().chain(marks)
    }
}

/// Follows one connection through a capture.
#[derive(Default)]
struct Tracer {
    curves: Curves,
    /// The number of the server's byte 0.
    first: Option<proto::Seq>,
    sent: Offset,
    acknowledged: Offset,
}

impl Tracer {
    fn take(&mut self, packet: &Packet, toward_client: bool) {
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
                self.curves.marks.push(Mark {
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

    fn on_sent(&mut self, packet: &Packet) {
        let first = *self.first.get_or_insert(packet.seq);
        let end = Offset::from_seq(packet.seq + packet.payload_len, first, self.sent);
        let Some(end) = end.filter(|_| packet.payload_len > 0) else {
            return;
        };
        let reading = Reading {
            at_ns: packet.at_ns,
            offset: end.0,
        };
        if end > self.sent {
            self.sent = end;
            self.curves.sent.push(reading);
        } else {
            self.curves.resent.push(reading);
        }
    }

    fn on_acknowledged(&mut self, packet: &Packet) {
        let first = *self.first.get_or_insert(packet.ack);
        let Some(ack) = Offset::from_seq(packet.ack, first, self.acknowledged) else {
            return;
        };
        // A FIN has a number, but is no byte.
        let ack = ack.min(self.sent.max(self.acknowledged));
        if ack > self.acknowledged {
            self.acknowledged = ack;
            self.curves.acknowledged.push(Reading {
                at_ns: packet.at_ns,
                offset: ack.0,
            });
        }
    }
}
