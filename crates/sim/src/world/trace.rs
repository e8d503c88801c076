//! What happened, one line per event, in packetdrill's notation.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter, Write};
use std::net::SocketAddr;

use proto::packet::{Checksum, Segment};
use proto::{Instant, Seq};

/// The numbers of the SYNs seen, by source and destination.
type Origins = BTreeMap<(SocketAddr, SocketAddr), Seq>;

#[derive(Debug, Default)]
pub(super) struct Trace {
    recording: bool,
    text: String,
    origins: Origins,
}

impl Trace {
    pub const fn start(&mut self) {
        self.recording = true;
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// A packet leaves (`>`) or reaches (`<`) a node; `fate` is empty if that is all.
    pub fn packet(&mut self, now: Instant, node: &str, direction: char, packet: &[u8], fate: &str) {
        if !self.recording {
            return;
        }
        self.begin(now, node);
        let result = match Segment::parse(packet, Checksum::Trusted) {
            Ok(segment) => {
                if segment.flags.syn {
                    self.origins
                        .insert((segment.source, segment.destination), segment.seq);
                }
                let shown = Shown {
                    segment: &segment,
                    origins: &self.origins,
                };
                write!(self.text, " {direction} {shown}")
            }
            Err(_) => write!(self.text, " {direction} {} bytes", packet.len()),
        };
        result.expect("a String takes everything");
        if !fate.is_empty() {
            self.text.push_str(" [");
            self.text.push_str(fate);
            self.text.push(']');
        }
        self.text.push('\n');
    }

    /// A node says something.
    pub fn note(&mut self, now: Instant, node: &str, text: &str) {
        if self.recording {
            self.begin(now, node);
            writeln!(self.text, ": {text}").expect("a String takes everything");
        }
    }

    fn begin(&mut self, now: Instant, node: &str) {
        let micros = now.as_nanos() / 1000;
        write!(
            self.text,
            "{}.{:06} {node}",
            micros / 1_000_000,
            micros % 1_000_000
        )
        .expect("a String takes everything");
    }
}

/// A segment with numbers relative to the SYNs, where those are known.
struct Shown<'a> {
    segment: &'a Segment<'a>,
    origins: &'a Origins,
}

impl Shown<'_> {
    /// A number of our direction, or of the other one.
    fn relative(&self, seq: Seq, ours: bool) -> u32 {
        let Segment {
            source, destination, ..
        } = *self.segment;
        let direction = if ours {
            (source, destination)
        } else {
            (destination, source)
        };
        let origin = self.origins.get(&direction).map_or(0, |origin| origin.0);
        seq.0.wrapping_sub(origin)
    }
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let segment = self.segment;
        let flags = segment.flags;
        write!(f, "{} {} ", segment.source, segment.destination)?;
        let letters = [
            (flags.syn, 'S'),
            (flags.fin, 'F'),
            (flags.rst, 'R'),
            (flags.psh, 'P'),
            (flags.ack, '.'),
        ];
        for (_, letter) in letters.iter().filter(|(set, _)| *set) {
            f.write_char(*letter)?;
        }
        let (seq, len) = (self.relative(segment.seq, true), segment.payload.len());
        write!(f, " {seq}:{}({len})", u64::from(seq) + len as u64)?;
        if flags.ack {
            write!(f, " ack {}", self.relative(segment.ack, false))?;
        }
        write!(f, " win {}", segment.window)?;
        self.options(f)
    }
}

impl Shown<'_> {
    fn options(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let options = &self.segment.options;
        let mut shown = Vec::new();
        shown.extend(options.mss.map(|mss| format!("mss {mss}")));
        if options.sack_permitted {
            shown.push("sackOK".to_owned());
        }
        shown.extend(
            options
                .timestamps
                .map(|timestamps| format!("TS val {} ecr {}", timestamps.value, timestamps.echo)),
        );
        shown.extend(options.window_scale.map(|shift| format!("wscale {shift}")));
        for (left, right) in options.sack.iter().flatten() {
            shown.push(format!(
                "sack {}:{}",
                self.relative(*left, false),
                self.relative(*right, false)
            ));
        }
        if shown.is_empty() {
            return Ok(());
        }
        write!(f, " <{}>", shown.join(","))
    }
}
