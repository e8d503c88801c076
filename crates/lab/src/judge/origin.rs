//! Finds which node made a segment.
//!
//! A segment's *origin* is the node whose TCP made it. If the same segment came in from the other node shortly before a node
//! sends it, the origin is the other node; else it is the sender. The origin is decided when the router sees the segment, because
//! a segment that is sent into a cut cable reaches nobody.
//!
//! If clients may be slowed, the wire makes windows smaller. Later it sends the other node's last acknowledgement again to give
//! back the window that it withheld: an empty segment with the same acknowledgement and timestamp, and no larger window than the
//! other node's.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use super::packet::CapturedSegment;
use super::verdict::Expectations;
use crate::capture::Point;

/// Follows the segments of the service from node to node.
#[derive(Debug)]
pub struct OriginTracker {
    macs: [[u8; 6]; 2],
    may_slow: bool,
    /// Segments of the other node that came in at each node and were not yet sent on.
    incoming: [UnderWay; 2],
    /// Segments of the other node that each node has sent on and the router has not yet seen.
    released: [UnderWay; 2],
    /// Acknowledgements of the other node that came in at each node.
    said: [UnderWay; 2],
}

/// How a segment came to the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentOrigin {
    /// It came from a node.
    From {
        /// The node that sent it to the router.
        sender: usize,
        /// The node whose TCP made it.
        origin: usize,
        /// Whether the other node has sent the same acknowledgement shortly before.
        is_said_again: bool,
    },
    /// It came from neither node.
    Stranger,
}

/// Segments between two taps.
#[derive(Debug, Default)]
struct UnderWay {
    /// Time and window of each segment, oldest first.
    times: HashMap<Identity, VecDeque<(u64, u16)>>,
    order: VecDeque<(u64, Identity)>,
}

/// The fields that a segment keeps when it is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Identity {
    client: SocketAddr,
    seq: u32,
    ack: u32,
    flags: [bool; 5],
    timestamps: Option<(u32, u32)>,
    payload_len: u32,
    ip_id: u16,
}

/// Time limit in nanoseconds between two taps. A released segment leaves within microseconds.
const RELEASE_NS_MAX: u64 = 1_000_000_000;

impl OriginTracker {
    /// Follows the nodes and the service of `expected`.
    pub fn new(expected: &Expectations) -> Self {
        Self {
            macs: expected.macs,
            may_slow: expected.may_slow,
            incoming: Default::default(),
            released: Default::default(),
            said: Default::default(),
        }
    }

    /// Takes a segment of the service, seen at `point`. At the router, returns the segment's origin.
    pub fn take(&mut self, point: Point, packet: &CapturedSegment) -> Option<SegmentOrigin> {
        let sender = self.macs.iter().position(|mac| *mac == packet.source_mac);
        match point {
            Point::Client | Point::Server => None,
            Point::NodeA | Point::NodeB => {
                let here = usize::from(point == Point::NodeB);
                let other = 1 - here;
                if sender == Some(other) {
                    self.incoming[here].add(packet, Identity::of(packet));
                    self.said[here].add(packet, Identity::of_words(packet));
                } else if sender == Some(here)
                    && packet.destination_mac != self.macs[other]
                    && self.incoming[here].take(packet, self.may_slow)
                {
                    self.released[here].add(packet, Identity::of(packet));
                }
                None
            }
            Point::Router => {
                let Some(sender) = sender else {
                    return Some(SegmentOrigin::Stranger);
                };
                let is_released = self.released[sender].take(packet, self.may_slow);
                let may_be_update = self.may_slow && !is_released && packet.is_empty_acknowledgement();
                let is_said_again = may_be_update && self.said[sender].has(packet);
                Some(SegmentOrigin::From {
                    sender,
                    origin: if is_released { 1 - sender } else { sender },
                    is_said_again,
                })
            }
        }
    }
}

impl UnderWay {
    fn add(&mut self, packet: &CapturedSegment, identity: Identity) {
        while let Some(&(at_ns, identity)) = self.order.front() {
            if at_ns + RELEASE_NS_MAX > packet.at_ns {
                break;
            }
            self.order.pop_front();
            self.remove(identity, |(oldest_ns, _)| oldest_ns == at_ns);
        }
        let time = (packet.at_ns, packet.window);
        self.times.entry(identity).or_default().push_back(time);
        self.order.push_back((packet.at_ns, identity));
    }

    /// Whether the same segment came in with the same window, or with a larger one if the wire may slow clients. Each segment
    /// counts once.
    fn take(&mut self, packet: &CapturedSegment, may_slow: bool) -> bool {
        let is_right = |(_, window)| window == packet.window || may_slow && window > packet.window;
        self.remove(Identity::of(packet), is_right)
    }

    /// Whether the same acknowledgement came in with at least the window of `packet`. A difference of one unit is ignored.
    fn has(&self, packet: &CapturedSegment) -> bool {
        let times = self.times.get(&Identity::of_words(packet));
        times.is_some_and(|times| {
            times
                .iter()
                .any(|&(_, window)| packet.window <= window.saturating_add(1))
        })
    }

    fn remove(&mut self, identity: Identity, condition: impl Fn((u64, u16)) -> bool) -> bool {
        let Some(times) = self.times.get_mut(&identity) else {
            return false;
        };
        let place = times.iter().position(|&time| condition(time));
        let removed = place.and_then(|place| times.remove(place)).is_some();
        if times.is_empty() {
            self.times.remove(&identity);
        }
        removed
    }
}

impl Identity {
    fn of(packet: &CapturedSegment) -> Self {
        Self {
            client: packet.destination,
            seq: packet.seq.0,
            ack: packet.ack.0,
            flags: [packet.fin, packet.syn, packet.rst, packet.psh, packet.has_ack],
            timestamps: packet.timestamps,
            payload_len: packet.payload_len,
            ip_id: packet.ip_id,
        }
    }

    /// The fields that remain when the segment is sent again without data.
    fn of_words(packet: &CapturedSegment) -> Self {
        Self {
            client: packet.destination,
            seq: 0,
            ack: packet.ack.0,
            flags: [false; 5],
            timestamps: packet.timestamps.map(|(value, _)| (value, 0)),
            payload_len: 0,
            ip_id: 0,
        }
    }
}
