//! Flows as captures at the clients and at the servers show them.
//!
//! A position counts from the SYN: the SYN is at 0, the first byte of data at 1. All times are those of the captures.
//!
//! A segment counts as arrived if the receiver accepted it. A kernel drops a segment whose checksum is wrong. A capture does not show that
//! the checksum is wrong, because senders on the same machine leave checksums out. After such a drop the receiver sends nothing, and the
//! sender repeats the segment. So if a segment comes twice and the receiver sent nothing in between, only the second arrival counts.
//!
//! Two rules are checked here. A segment that arrives has been sent, with the same bytes. Nobody sends a RST before both FINs.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

use anyhow::{Context, Result};

use judge::{Capture, Point};
use judge::{CapturedSegment, OffsetSet, for_each_segment};

/// Largest number of violations that are described.
const DESCRIBED_MAX: usize = 20;

/// Index of the direction from the clients to the servers.
pub const TO_SERVER: usize = 0;
/// Index of the direction from the servers to the clients.
pub const TO_CLIENT: usize = 1;

/// All flows of a run.
#[derive(Debug, Default)]
pub struct EdgeTrace {
    /// The flows, in order of their first SYN.
    pub flows: Vec<TracedFlow>,
    /// Number of RSTs that were captured before both FINs, summed over both capture points.
    pub resets: u64,
    /// Descriptions of violations of the two rules, and of packets that a capture lacks.
    pub violations: Vec<String>,
    /// Number of ranges whose bytes were compared.
    pub compared: u64,
}

/// One flow.
#[derive(Debug)]
pub struct TracedFlow {
    /// The client's address and port.
    pub client: SocketAddr,
    /// When the client sent its first SYN.
    pub opened_ns: u64,
    /// To the server, and to the client.
    pub directions: [TracedDirection; 2],
}

/// One direction of a flow.
#[derive(Debug, Default)]
pub struct TracedDirection {
    /// Initial sequence number.
    initial: Option<u32>,
    /// The sender's ranges, in order of time.
    pub sent: Vec<SentRange>,
    /// First arrival of each range at the receiver: start → (end, time).
    first: BTreeMap<u64, (u64, u64)>,
    /// All positions that have arrived.
    arrived: OffsetSet,
    /// Arrivals of new data or of a new FIN at the receiver: time, and number of new bytes.
    pub news: Vec<(u64, u64)>,
    /// Ranges that came since the receiver last sent something.
    unanswered: Vec<UnansweredRange>,
    /// For each range that was sent, and for each range that arrived: the hash of its captured payload.
    contents: [HashMap<(u64, u64), u64>; 2],
    /// Position after the last byte that was sent, and position after the last byte that arrived.
    ends: [u64; 2],
    /// Whether the FIN was seen at the clients, and at the servers.
    fin_seen: [bool; 2],
}

/// A range that was new on its arrival. The receiver has sent nothing since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UnansweredRange {
    start: u64,
    first_new: u64,
    at_ns: u64,
}

/// A range of positions that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentRange {
    /// When the range was sent.
    pub at_ns: u64,
    /// First position.
    pub start: u64,
    /// Position after the last one.
    pub end: u64,
}

impl EdgeTrace {
    /// Reads the captures at both ends of the flows to `service`. Segments that come to their receivers after `until_ns` are left out:
    /// if flows go on until the captures end, one capture may end before the other.
    ///
    /// # Errors
    /// If a capture is missing or cannot be read.
    pub fn read(captures: &[Capture], service: SocketAddr, until_ns: u64) -> Result<Self> {
        let at = |point| {
            let capture = captures.iter().find(|capture| capture.point == point);
            capture.with_context(|| format!("no capture at {point:?}"))
        };
        let mut trace = Self::default();
        for point in [Point::Client, Point::Server] {
            let mut places = HashMap::new();
            for_each_segment(at(point)?, service, |segment| {
                trace.take(&mut places, (point, until_ns), service, segment);
            })?;
        }
        trace.compare();
        for capture in captures.iter().filter(|capture| capture.dropped > 0) {
            let (point, dropped) = (capture.point, capture.dropped);
            let lacks = format!("the capture at {point:?} lacks {dropped} packets");
            trace.violations.push(lacks);
        }
        Ok(trace)
    }

    fn take(
        &mut self,
        places: &mut HashMap<SocketAddr, usize>,
        (point, until_ns): (Point, u64),
        service: SocketAddr,
        segment: &CapturedSegment,
    ) {
        let direction = usize::from(segment.source == service);
        let client = if direction == TO_CLIENT {
            segment.destination
        } else {
            segment.source
        };
        let is_first = direction == TO_SERVER && segment.syn;
        let known = places.get(&client).copied();
        // A client's kernel may use the port again for a later flow.
        let is_of = |&index: &usize| {
            !is_first || self.flows[index].directions[TO_SERVER].initial == Some(segment.seq.0)
        };
        let index = match known.filter(is_of) {
            Some(index) => index,
            None if is_first => {
                let Some(index) = self.begin(point, client, segment) else {
                    return;
                };
                places.insert(client, index);
                index
            }
            None => return,
        };
        let at_sender = (direction == TO_SERVER) == (point == Point::Client);
        if !at_sender && segment.at_ns > until_ns {
            return;
        }
        if segment.rst {
            self.resets += u64::from(!self.flows[index].fins(point));
            return;
        }
        let way = &mut self.flows[index].directions[direction];
        way.fin_seen[usize::from(point == Point::Server)] |= segment.fin;
        if at_sender {
            way.send(segment);
            self.flows[index].directions[1 - direction].unanswered.clear();
        } else {
            way.arrive(segment);
        }
    }

    /// Compares what came with what was sent.
    fn compare(&mut self) {
        let mut problems = Vec::new();
        for flow in &self.flows {
            for (way, name) in flow.directions.iter().zip(["to the server", "to the client"]) {
                let [sent, came] = &way.contents;
                let pairs = came
                    .iter()
                    .filter_map(|(range, hash)| Some((range, hash, sent.get(range)?)));
                for (range, came, sent) in pairs {
                    self.compared += 1;
                    if came != sent {
                        problems.push(format!("{} {name}: other bytes at {range:?}", flow.client));
                    }
                }
                if way.ends[1] > way.ends[0] {
                    problems.push(format!("{} {name}: more bytes came than were sent", flow.client));
                }
            }
        }
        problems.truncate(DESCRIBED_MAX);
        self.violations.extend(problems);
    }

    /// Index of the flow that `syn` begins. At the servers the flow is found by its initial sequence number, because a node may have
    /// translated the client's address.
    fn begin(&mut self, point: Point, client: SocketAddr, syn: &CapturedSegment) -> Option<usize> {
        if point == Point::Server {
            let initial = Some(syn.seq.0);
            return self
                .flows
                .iter()
                .position(|flow| flow.directions[TO_SERVER].initial == initial);
        }
        let mut flow = TracedFlow {
            client,
            opened_ns: syn.at_ns,
            directions: Default::default(),
        };
        flow.directions[TO_SERVER].initial = Some(syn.seq.0);
        self.flows.push(flow);
        Some(self.flows.len() - 1)
    }
}

impl TracedFlow {
    /// Whether both FINs were seen at `point`.
    fn fins(&self, point: Point) -> bool {
        let place = usize::from(point == Point::Server);
        self.directions.iter().all(|way| way.fin_seen[place])
    }

    /// Time of the first arrival of new data or of a new FIN at either end after `after_ns`.
    pub fn next_news(&self, after_ns: u64) -> Option<u64> {
        let next = |way: &TracedDirection| {
            let from = way.news.partition_point(|(at_ns, _)| *at_ns <= after_ns);
            way.news.get(from).map(|(at_ns, _)| *at_ns)
        };
        self.directions.iter().filter_map(next).min()
    }
}

impl TracedDirection {
    /// The range of `segment`, with its SYN and FIN.
    fn range(&mut self, segment: &CapturedSegment) -> (u64, u64) {
        let initial = *self.initial.get_or_insert(segment.seq.0);
        let mut start = u64::from(segment.seq.0.wrapping_sub(initial));
        // A sequence number below the initial one is a keep-alive or a window probe.
        if start > u64::from(u32::MAX) / 2 {
            start = 0;
        }
        let length = u64::from(segment.payload_len) + u64::from(segment.syn) + u64::from(segment.fin);
        (start, start + length)
    }

    fn send(&mut self, segment: &CapturedSegment) {
        let (start, end) = self.range(segment);
        if start == end {
            return;
        }
        let at_ns = segment.at_ns;
        self.ends[0] = self.ends[0].max(end);
        self.sent.push(SentRange { at_ns, start, end });
        self.contents[0].insert((start, end), hash(&segment.payload));
    }

    fn arrive(&mut self, segment: &CapturedSegment) {
        let (start, end) = self.range(segment);
        if start == end {
            return;
        }
        self.ends[1] = self.ends[1].max(end);
        self.contents[1].insert((start, end), hash(&segment.payload));
        let again = self.unanswered.iter().position(|one| one.start == start);
        let first_new = match again.map(|index| self.unanswered.swap_remove(index)) {
            Some(ignored) => {
                self.news.retain(|(at_ns, _)| *at_ns != ignored.at_ns);
                ignored.first_new
            }
            None => match self.arrived.first_missing(start, end) {
                Some(first_new) => first_new,
                None => return,
            },
        };
        let at_ns = segment.at_ns;
        self.unanswered.push(UnansweredRange {
            start,
            first_new,
            at_ns,
        });
        self.first.insert(first_new, (end, at_ns));
        self.arrived.add(start, end);
        if !segment.syn {
            self.news.push((at_ns, end - first_new));
        }
    }

    /// Times at which the receiver's application could read bytes, each with the number of bytes. A byte can be read when it and all bytes
    /// before it have come. Ordered by position.
    pub fn in_order(&self) -> impl Iterator<Item = (u64, u64)> {
        let (mut position, mut latest_ns) = (1, 0); // the SYN is at 0
        self.first.iter().map_while(move |(start, (end, at_ns))| {
            if *start > position {
                return None;
            }
            latest_ns = latest_ns.max(*at_ns);
            let bytes = end.saturating_sub(position);
            position = position.max(*end);
            Some((latest_ns, bytes))
        })
    }

    /// Time of the first arrival of the byte at `position` at the receiver.
    pub fn arrival(&self, position: u64) -> Option<u64> {
        // A segment that came later may begin before an earlier segment and end after it.
        let mut before = self.first.range(..=position).rev();
        let (_, &(_, at_ns)) = before.find(|(_, (end, _))| position < *end)?;
        Some(at_ns)
    }
}

fn hash(payload: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    payload.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use proto::Seq;

    use super::*;

    const SERVICE: &str = "10.2.0.2:80";

    fn segment(at_ns: u64, from_client: bool, seq: u32, syn: bool, payload: &[u8]) -> CapturedSegment {
        let addresses = ["10.1.0.2:4000".parse().unwrap(), SERVICE.parse().unwrap()];
        CapturedSegment {
            at_ns,
            source_mac: [0; 6],
            destination_mac: [0; 6],
            source: addresses[usize::from(!from_client)],
            destination: addresses[usize::from(from_client)],
            ip_id: 0,
            seq: Seq(seq),
            ack: Seq(0),
            fin: false,
            syn,
            rst: false,
            psh: false,
            has_ack: !syn,
            window: 100,
            window_scale: None,
            timestamps: None,
            payload_len: payload.len() as u32,
            payload: payload.to_vec(),
        }
    }

    fn trace(segments: &[CapturedSegment]) -> EdgeTrace {
        let mut trace = EdgeTrace::default();
        for point in [Point::Client, Point::Server] {
            let mut places = HashMap::new();
            for segment in segments {
                trace.take(&mut places, (point, u64::MAX), SERVICE.parse().unwrap(), segment);
            }
        }
        trace.compare();
        trace
    }

    #[test]
    fn a_segment_that_encloses_an_earlier_one_has_come() {
        let found = trace(&[
            segment(1, true, 100, true, b""),
            segment(2, true, 104, false, b"de"),
            segment(3, true, 101, false, b"abcdefg"),
        ]);
        let way = &found.flows[0].directions[TO_SERVER];
        assert_eq!(
            [1, 4, 6, 7, 8].map(|position| way.arrival(position)),
            [Some(3), Some(2), Some(3), Some(3), None]
        );
    }

    #[test]
    fn bytes_behind_a_gap_come_with_those_that_close_it() {
        let mut segments = vec![
            segment(1, true, 100, true, b""),
            segment(2, true, 104, false, b"de"),
            segment(3, true, 101, false, b"abc"),
            segment(4, true, 109, false, b"ij"),
        ];
        let in_order = |segments: &[CapturedSegment]| {
            let found = trace(segments);
            found.flows[0].directions[TO_SERVER]
                .in_order()
                .collect::<Vec<_>>()
        };
        assert_eq!(in_order(&segments), [(1, 0), (3, 3), (3, 2)]);
        segments.push(segment(5, true, 106, false, b"fgh"));
        assert_eq!(in_order(&segments), [(1, 0), (3, 3), (3, 2), (5, 3), (5, 2)]);
    }

    #[test]
    fn a_port_that_is_used_again_belongs_to_another_flow() {
        let found = trace(&[
            segment(1, true, 100, true, b""),
            segment(2, true, 101, false, b"one"),
            segment(3, true, 9000, true, b""),
            segment(4, true, 9000, true, b""),
            segment(5, true, 9001, false, b"two"),
        ]);
        let opened: Vec<_> = found.flows.iter().map(|flow| flow.opened_ns).collect();
        assert_eq!(opened, [1, 3]);
        let news: Vec<_> = found
            .flows
            .iter()
            .map(|flow| flow.directions[TO_SERVER].news.clone())
            .collect();
        assert_eq!(news, [[(2, 3)], [(5, 3)]]);
        assert_eq!((found.compared, found.violations.len()), (4, 0));
    }
}
