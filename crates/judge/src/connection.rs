//! One connection as the captures show it, and the rules that concern only that connection.

use proto::{Offset, Seq};

use super::packet::CapturedSegment;
use super::stream::{Contents, Highest, OffsetSet};
use super::verdict::{CommitMode, Expectations, JudgeRule, WireSpan};
use crate::capture::Point;

/// A breach of a rule, in words.
pub type Breach = (JudgeRule, String);

/// One connection.
#[derive(Debug)]
pub struct JudgedConnection {
    /// Whether the client's SYN is the first captured packet.
    pub has_beginning: bool,
    to_service: JudgedStream,
    to_client: JudgedStream,
    /// For each node: whether the node's capture has shown the client's SYN, or counts as having shown it (`meet_wire`).
    syn_seen: [bool; 2],
    /// The expected wire at the time of the connection's last packet. Packets at times without a wire do not change this field.
    wire: Option<Met>,
    /// Highest acknowledgement and end of data in the service's segments that have passed the router or the client.
    shown: (u64, u64),
    router: CaptureView,
    client: CaptureView,
    window_scales: [Option<u8>; 2],
    contents: Contents,
    /// Number of the service's bytes that were cut off in the captures and so cannot be compared.
    pub not_captured: u64,
}

/// The state of an expected wire at the time of one of the connection's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Met {
    /// The wire's place in the list of expected wires.
    number: usize,
    /// Whether the client's packets already go through the wire.
    hears: bool,
}

/// One direction.
#[derive(Debug, Default)]
struct JudgedStream {
    /// Sequence number of byte 0.
    first: Option<Seq>,
    /// End of the data sent so far.
    end: u64,
    /// The bytes that each node has seen, or counts as having seen (`meet_wire`). A FIN counts as one more byte.
    seen: [OffsetSet; 2],
}

/// State of the segments that passed one capture point: the router or the client.
#[derive(Debug, Default)]
struct CaptureView {
    client_has_closed: bool,
    /// The ends of the client's and of the service's stream.
    ends: [StreamEnd; 2],
    acknowledged: Highest,
    right_edge: Highest,
    time: Highest,
    /// The last timestamp: its 32-bit value in the segment, and the same value extended to 64 bits.
    last_time: Option<(u32, u64)>,
}

impl CaptureView {
    /// Records the FIN and the acknowledgement of a segment that `sender` sent. 0 is the client, 1 the service.
    fn note_ends(&mut self, sender: usize, packet: &CapturedSegment, at: SegmentRange) {
        if packet.fin {
            self.ends[sender].fin = Some(at.end);
        }
        let other = &mut self.ends[1 - sender].acknowledged;
        *other = at.ack.map_or(*other, |ack| ack.max(*other));
    }
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, Default)]
struct StreamEnd {
    fin: Option<u64>,
    acknowledged: u64,
}

impl StreamEnd {
    fn is_acknowledged(self) -> bool {
        self.fin.is_some_and(|end| self.acknowledged >= end)
    }
}

/// Position of a segment in the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRange {
    /// Offset of the segment's first byte.
    pub start: u64,
    /// Offset after the segment's last byte. A FIN counts as one more byte.
    pub end: u64,
    /// Offset that the segment acknowledges, if any.
    pub ack: Option<u64>,
}

/// A segment that is this many bytes or more away from the stream's end cannot belong to the stream. No window is larger (2³⁰,
/// RFC 7323 §2.3).
const NEAR: u64 = 1 << 30;
/// First value of extended timestamps, and first offset of streams whose beginning was not captured. Not 0, so that earlier values are
/// not negative.
const MIDDLE: u64 = 1 << 32;

impl JudgedConnection {
    /// A connection whose first captured packet is `packet`.
    pub fn new(packet: &CapturedSegment, toward_client: bool) -> Self {
        let mut connection = Self {
            has_beginning: packet.syn && !packet.has_ack && !toward_client,
            to_service: JudgedStream::default(),
            to_client: JudgedStream::default(),
            syn_seen: [false; 2],
            wire: None,
            shown: (0, 0),
            router: CaptureView::default(),
            client: CaptureView::default(),
            window_scales: [None; 2],
            contents: Contents::default(),
            not_captured: 0,
        };
        if !connection.has_beginning {
            let (own, other) = connection.streams(toward_client);
            *own = JudgedStream::from_middle(packet.seq);
            *other = JudgedStream::from_middle(packet.ack);
        }
        connection
    }

    /// Whether the client's `packet` is the SYN of a new connection between the same addresses and ports.
    pub fn is_replaced_by(&self, packet: &CapturedSegment) -> bool {
        packet.syn && !packet.has_ack && self.to_service.first != Some(packet.seq + 1)
    }

    /// Returns the position of `packet`. Learns the beginnings of the streams from `packet`.
    ///
    /// # Errors
    /// If the initial sequence number differs from an earlier one, or the packet is too far from the bytes sent before.
    pub fn locate(&mut self, packet: &CapturedSegment, toward_client: bool) -> Result<SegmentRange, Breach> {
        let has_beginning = self.has_beginning;
        let (own, other) = self.streams(toward_client);
        if packet.syn && has_beginning {
            let first = packet.seq + 1;
            if *own.first.get_or_insert(first) != first {
                return Err((JudgeRule::OneSequence, "another initial sequence number".into()));
            }
        }
        // A SYN's own number is not a byte of the stream.
        let seq = packet.seq + u32::from(packet.syn);
        let start = own.offset(seq)?;
        let end = start + u64::from(packet.payload_len) + u64::from(packet.fin);
        let ack = packet.has_ack.then(|| other.offset(packet.ack)).transpose()?;
        own.end = own.end.max(end);
        Ok(SegmentRange { start, end, ack })
    }

    /// Records that `node` has captured the segment.
    pub fn seen_by_node(
        &mut self,
        node: usize,
        packet: &CapturedSegment,
        toward_client: bool,
        at: SegmentRange,
    ) {
        let (own, _) = self.streams(toward_client);
        own.seen[node].add(at.start, at.end);
        self.syn_seen[node] |= packet.syn && !toward_client;
    }

    /// Records that a segment of the client passed the router or the client.
    pub fn client_spoke(&mut self, point: Point, packet: &CapturedSegment, at: SegmentRange) {
        let view = self.view(point);
        view.client_has_closed |= packet.fin;
        view.note_ends(0, packet, at);
        if packet.syn {
            self.window_scales[0] = packet.window_scale;
        }
    }

    /// Records that a segment of the service passed the router or the client. Returns its breaches of the rules that need no wire.
    pub fn service_spoke(&mut self, point: Point, packet: &CapturedSegment, at: SegmentRange) -> Vec<Breach> {
        if packet.syn {
            self.window_scales[1] = packet.window_scale;
        }
        let edge = self.right_edge(packet, at);
        let view = self.view(point);
        view.note_ends(1, packet, at);
        let mut breaches = Vec::new();
        if packet.fin && !view.client_has_closed {
            breaches.push((JudgeRule::NoEarlyFin, "FIN before the client's".into()));
        }
        let mut must_not_fall = |highest: &mut Highest, value, rule, name: &str| {
            if let Some(settled) = highest.settled(packet.at_ns).filter(|&settled| value < settled) {
                let by = settled - value;
                breaches.push((rule, format!("{name} went back by {by}")));
            }
            highest.note(packet.at_ns, value);
        };
        if let Some(ack) = at.ack {
            must_not_fall(
                &mut view.acknowledged,
                ack,
                JudgeRule::KeepsAcknowledged,
                "the acknowledgement",
            );
        }
        if let Some(edge) = edge {
            must_not_fall(
                &mut view.right_edge,
                edge,
                JudgeRule::KeepsWindow,
                "the window's right edge",
            );
        }
        if let Some((value, _)) = packet.timestamps {
            let time = count_on(&mut view.last_time, value);
            must_not_fall(&mut view.time, time, JudgeRule::KeepsTime, "the timestamp");
        }
        breaches
    }

    /// Whether each end has acknowledged the other's FIN, as seen at `point`. After that, nothing can be lost any more.
    pub fn is_over(&mut self, point: Point) -> bool {
        self.view(point).ends.into_iter().all(StreamEnd::is_acknowledged)
    }

    /// Compares the data of a segment of the service with the data seen before at the same offsets. Keeps at most `size_max` bytes
    /// for this comparison.
    pub fn compare(&mut self, packet: &CapturedSegment, at: SegmentRange, size_max: usize) -> Option<Breach> {
        self.not_captured += u64::from(packet.payload_len) - packet.payload.len() as u64;
        let differs = self.contents.add(at.start, &packet.payload, size_max)?;
        let what = format!(
            "byte {} was {:#04x} before, now {:#04x}",
            differs.offset, differs.before, differs.now
        );
        Some((JudgeRule::SameContent, what))
    }

    /// Number of bytes compared with data seen before.
    pub fn compared(&self) -> u64 {
        self.contents.compared
    }

    /// Checks a segment of the service, seen at the router or the client, against the commit rules. Returns the breaches.
    pub fn check_commits(
        &mut self,
        packet: &CapturedSegment,
        at: SegmentRange,
        expected: &Expectations,
    ) -> Vec<Breach> {
        let mut breaches = Vec::new();
        if let Some((_, wire)) = expected.wire_at(packet.at_ns)
            && self.has_beginning
            && expected.mode != CommitMode::Immediate
        {
            breaches.extend(self.uncommitted(wire, packet, at, expected.mode));
        }
        self.shown.0 = self.shown.0.max(at.ack.unwrap_or(0));
        self.shown.1 = self.shown.1.max(at.end);
        breaches
    }

    /// Records that the expected `wire`, with the index `number`, is the connection's wire at `at_ns`. The commit rules do not apply to
    /// earlier packets. So a new wire counts as having seen all data that was shown before `at_ns`, and all of the client's data that the
    /// other node received before. When the client's packets begin to go through the wire, the client's earlier data counts as seen in the
    /// same way.
    pub fn meet_wire(&mut self, number: usize, wire: WireSpan, at_ns: u64) {
        let hears = at_ns >= wire.hears_from_ns;
        let met = Met { number, hears };
        let before = self.wire.replace(met);
        if before == Some(met) {
            return;
        }
        let (ack, end) = self.shown;
        if before.is_none_or(|before| before.number != number) {
            self.to_client.seen[wire.node].add(0, end);
        }
        let input = &mut self.to_service.seen;
        let got_by_other = input[1 - wire.node].clone();
        input[wire.node].add_all(&got_by_other);
        input[wire.node].add(0, ack);
        self.syn_seen[wire.node] |= ack > 0 || end > 0;
    }

    fn uncommitted(
        &self,
        wire: WireSpan,
        packet: &CapturedSegment,
        at: SegmentRange,
        mode: CommitMode,
    ) -> Vec<Breach> {
        let mut breaches = Vec::new();
        let node = wire.node;
        let hears = packet.at_ns >= wire.hears_from_ns;
        if hears && packet.syn && !self.syn_seen[node] {
            breaches.push((JudgeRule::OpenCommit, "the wire had not seen the SYN".into()));
        }
        if hears
            && let Some(ack) = at.ack
            && let Some(missing) = self.to_service.seen[node].first_missing(0, ack)
        {
            let what = format!("acknowledges {ack}, but the wire had not seen byte {missing}");
            breaches.push((JudgeRule::InputCommit, what));
        }
        if mode == CommitMode::Prs
            && let Some(missing) = self.to_client.seen[node].first_missing(at.start, at.end)
        {
            let what = format!("the wire had not seen byte {missing}");
            breaches.push((JudgeRule::OutputCommit, what));
        }
        breaches
    }

    /// Offset up to which the client may send, if the windows can be read.
    fn right_edge(&self, packet: &CapturedSegment, at: SegmentRange) -> Option<u64> {
        let shift = match self.window_scales {
            _ if !self.has_beginning || packet.syn => return None,
            [Some(_), Some(shift)] => shift.min(14), // RFC 7323 §2.3
            _ => 0,
        };
        Some(at.ack? + (u64::from(packet.window) << shift))
    }

    fn streams(&mut self, toward_client: bool) -> (&mut JudgedStream, &mut JudgedStream) {
        if toward_client {
            (&mut self.to_client, &mut self.to_service)
        } else {
            (&mut self.to_service, &mut self.to_client)
        }
    }

    fn view(&mut self, point: Point) -> &mut CaptureView {
        if point == Point::Client {
            &mut self.client
        } else {
            &mut self.router
        }
    }
}

impl JudgedStream {
    fn from_middle(seq: Seq) -> Self {
        Self {
            first: Some(seq), // offset 0 and the offset `MIDDLE` (2³²) have the same sequence number
            end: MIDDLE,
            seen: Default::default(),
        }
    }

    fn offset(&mut self, seq: Seq) -> Result<u64, Breach> {
        let first = *self.first.get_or_insert(seq);
        Offset::from_seq(seq, first, Offset(self.end))
            .map(|offset| offset.0)
            // The sequence number of a keepalive probe is one below the next byte's. Before any data, this is the SYN's number.
            .or((seq + 1 == first).then_some(0))
            .filter(|offset| offset.abs_diff(self.end) < NEAR)
            .ok_or_else(|| {
                let what = format!(
                    "{} is nowhere near the end of what was sent, offset {}",
                    seq.0, self.end
                );
                (JudgeRule::OneSequence, what)
            })
    }
}

/// Extends the timestamp `value` to 64 bits. Of the possible results, returns the one nearest to the last timestamp (RFC 7323 §5.2).
fn count_on(last: &mut Option<(u32, u64)>, value: u32) -> u64 {
    let time = last.map_or(MIDDLE, |(last, time)| {
        let step = value.wrapping_sub(last).cast_signed();
        time.saturating_add_signed(i64::from(step))
    });
    *last = Some((value, time));
    time
}
