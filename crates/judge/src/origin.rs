//! Finds which node made a segment.
//!
//! A segment's *origin* is the node whose TCP made the segment. Its *sender* is the node that sent it to the router. If the sender had got
//! the same segment from the other node shortly before, the sender only passed it on, and the other node is the origin. Otherwise the
//! sender is also the origin. A node that serves a reversed connection (docs/migration.md) sends its segments to the other node first, gets
//! them back, and then sends them to the router: this node is the origin. The origin is decided when the router's capture shows the segment, because a segment that is sent into a cut
//! cable reaches no client.
//!
//! If clients may be slowed (`at_limit = "slow"`), the wire makes the windows in the other node's segments smaller. Later the wire opens
//! the window for the client again. To do so, it repeats the other node's last acknowledgement in an empty segment. This segment has the
//! same acknowledgement number and timestamp as the other node's segment. Its window exceeds the other node's window by at most one unit of
//! the window field.
//!
//! A connection's annex is known by its Ethernet address in the capture of the wire, or of a primary that carries the connection, and may send
//! its segments to a new wire. After a connection has moved there, the wire wakes the
//! client with an empty segment. This segment must say nothing that the annex has not said.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use proto::Seq;

use super::packet::CapturedSegment;
use super::verdict::Expectations;
use crate::capture::Point;

/// Follows the segments of the service from node to node.
#[derive(Debug)]
pub struct OriginTracker {
    /// The Ethernet addresses of node a, node b and the annexes.
    macs: Vec<[u8; 6]>,
    may_slow: bool,
    /// For each node: segments that came in from each origin, and that this node has not sent on yet.
    incoming: [Vec<UnderWay>; 2],
    /// For each node: segments of each origin that this node has sent on, and that the router has not seen yet.
    released: [Vec<UnderWay>; 2],
    /// For each node: segments of each annex that this node carries: it has sent them to the other node.
    carried: [Vec<UnderWay>; 2],
    /// For each node: its own segments that it has sent to the other node.
    lent: [UnderWay; 2],
    /// For each node: its own segments that came back from the other node and that it has sent on, and that the router has not seen yet.
    returned: [UnderWay; 2],
    /// For each node: acknowledgements that came in from the other node. Used to recognise empty segments that repeat one of them.
    said: [UnderWay; 2],
    /// For each client: the end of the last segment of an annex that the router has seen, and its acknowledgement.
    annexed: HashMap<SocketAddr, (Seq, Seq)>,
}

/// How a segment came to the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentOrigin {
    /// The segment came from a node.
    From {
        /// The node that sent the segment to the router.
        sender: usize,
        /// The node whose TCP made the segment.
        origin: usize,
        /// Whether the segment is empty and only repeats an acknowledgement that another node has sent. Always false if clients may not be
        /// slowed and no annex has spoken for the connection.
        is_said_again: bool,
    },
    /// The segment came from neither node of the pair.
    Stranger,
}

/// Segments that one capture has shown, and that the next capture on their way may still show.
#[derive(Debug, Default)]
struct UnderWay {
    /// Time and window of each segment, oldest first.
    times: HashMap<Identity, VecDeque<(u64, u16)>>,
    order: VecDeque<(u64, Identity)>,
}

/// The fields of a segment that do not change when a node forwards the segment.
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

/// Longest time between two captures of the same segment, in nanoseconds. A node sends a released segment on within microseconds.
const RELEASE_NS_MAX: u64 = 1_000_000_000;

impl OriginTracker {
    /// Creates a tracker for the nodes and the service of `expected`.
    pub fn new(expected: &Expectations) -> Self {
        let macs: Vec<_> = expected.senders().collect();
        let of_each = || macs.iter().map(|_| UnderWay::default()).collect();
        Self {
            incoming: [of_each(), of_each()],
            released: [of_each(), of_each()],
            carried: [of_each(), of_each()],
            macs,
            may_slow: expected.may_slow,
            lent: Default::default(),
            returned: Default::default(),
            said: Default::default(),
            annexed: HashMap::new(),
        }
    }

    /// Takes a segment that the service sends to a client, as the capture at `point` shows it. At the router, returns the segment's origin.
    pub fn take(&mut self, point: Point, packet: &CapturedSegment) -> Option<SegmentOrigin> {
        let sender = self.macs.iter().position(|mac| *mac == packet.source_mac);
        match point {
            Point::Client | Point::Server => None,
            Point::NodeA | Point::NodeB => {
                let here = usize::from(point == Point::NodeB);
                let other = 1 - here;
                match sender {
                    None => {}
                    Some(origin) if origin != here => {
                        let mut carried = self.carried[other].iter_mut();
                        let carried = carried.position(|one| origin == other && one.take(packet, false));
                        self.incoming[here][carried.unwrap_or(origin)].add(packet, Identity::of(packet));
                        self.said[here].add(packet, Identity::of_words(packet));
                    }
                    Some(_) if packet.destination_mac == self.macs[other] => {
                        let mut of_annexes = self.incoming[here].iter_mut().skip(2);
                        let annex = of_annexes.position(|one| one.take(packet, false));
                        let on_its_way = match annex {
                            Some(annex) => &mut self.carried[here][annex + 2],
                            None => &mut self.lent[here],
                        };
                        on_its_way.add(packet, Identity::of(packet));
                    }
                    Some(_) => self.send_on(here, packet),
                }
                None
            }
            Point::Router => {
                // An annex never sends to the router itself.
                let Some(sender) = sender.filter(|&sender| sender < 2) else {
                    return Some(SegmentOrigin::Stranger);
                };
                let is_returned = self.returned[sender].take(packet, false);
                let may_slow = self.may_slow;
                let mut of_others = self.released[sender].iter_mut();
                let released = of_others.position(|one| !is_returned && one.take(packet, may_slow));
                let may_be_update = may_slow && released.is_none() && packet.is_empty_acknowledgement();
                let is_update = may_be_update && self.said[sender].has(packet);
                let is_said_again = is_update || (released.is_none() && self.repeats_annex(packet));
                if released.is_some_and(|origin| origin >= 2) {
                    let end = packet.seq + packet.payload_len;
                    self.annexed.insert(packet.destination, (end, packet.ack));
                }
                Some(SegmentOrigin::From {
                    sender,
                    origin: released.unwrap_or(sender),
                    is_said_again,
                })
            }
        }
    }

    /// Whether the segment is empty and says nothing that the annex of this connection has not said.
    fn repeats_annex(&self, packet: &CapturedSegment) -> bool {
        let said = self.annexed.get(&packet.destination);
        said.is_some_and(|&(end, ack)| {
            packet.is_empty_acknowledgement()
                // The first segment of a restored socket is a window probe. Its number is one below the end of what was sent.
                && packet.seq.distance_from(end) <= 1
                && packet.ack.distance_from(ack) <= 0
        })
    }

    /// Node `here` sends a segment to the router. If the segment came from another node, notes this node as its origin.
    fn send_on(&mut self, here: usize, packet: &CapturedSegment) {
        let may_slow = self.may_slow;
        let mut origins = self.incoming[here].iter_mut();
        let Some(origin) = origins.position(|one| one.take(packet, may_slow)) else {
            return;
        };
        let on_its_way = if self.lent[here].take(packet, false) {
            &mut self.returned[here]
        } else {
            &mut self.released[here][origin]
        };
        on_its_way.add(packet, Identity::of(packet));
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

    /// Whether the previous capture on the segment's way has shown the same segment with the same window. If the wire may slow clients
    /// (`may_slow`), the window in that capture may also be larger. Removes the segment that was found, so each segment counts once.
    fn take(&mut self, packet: &CapturedSegment, may_slow: bool) -> bool {
        let is_right = |(_, window)| window == packet.window || may_slow && window > packet.window;
        self.remove(Identity::of(packet), is_right)
    }

    /// Whether the other node sent the same acknowledgement, and the window of `packet` exceeds that acknowledgement's window by at most
    /// one unit of the window field.
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

    /// The fields that do not change when the wire repeats the segment's acknowledgement in an empty segment. All other fields are 0.
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
