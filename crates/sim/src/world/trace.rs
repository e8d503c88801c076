//! The trace of a world, in packetdrill's notation: a line for each packet that is sent or arrives, each change of a node's power, and
//! each note.

use std::fmt::Write;

use proto::Instant;
use proto::packet::{Checksum, Segment};

use crate::notation::{Notation, SynNumbers};

#[derive(Debug, Default)]
pub(super) struct Trace {
    recording: bool,
    text: String,
    origins: SynNumbers,
}

impl Trace {
    pub const fn start(&mut self) {
        self.recording = true;
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// A packet leaves (`>`) or reaches (`<`) a node. `fate` says why the packet is lost; it is empty otherwise.
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
                let shown = Notation {
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

    /// A node writes a note.
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
