//! A segment in packetdrill's notation, as the traces of both simulation engines show it (see [`TraceEvent`](crate::net::TraceEvent)).

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter, Write};
use std::net::SocketAddr;

use proto::Seq;
use proto::packet::Segment;

/// Sequence numbers of the SYNs that were seen, by source and destination.
pub type SynNumbers = BTreeMap<(SocketAddr, SocketAddr), Seq>;

/// A segment with numbers relative to the SYNs, if the SYNs are known.
pub struct Notation<'a> {
    /// The segment.
    pub segment: &'a Segment<'a>,
    /// Numbers from which sequence numbers are counted.
    pub origins: &'a SynNumbers,
}

impl Notation<'_> {
    /// `seq`, relative to the SYN of the segment's direction if `ours`, otherwise of the opposite direction. Unchanged if that SYN is
    /// unknown.
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

impl Display for Notation<'_> {
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

impl Notation<'_> {
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
