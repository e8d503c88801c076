//! Checks which node speaks for the service. A node speaks for a connection when the router gets a segment whose origin is this node.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use super::origin::{OriginTracker, SegmentOrigin};
use super::packet::CapturedSegment;
use super::verdict::{Expectations, Reign, Speaking};
use crate::capture::Point;

/// Follows the origin of every segment of the service, and finds segments of a node that must not speak.
#[derive(Debug)]
pub struct VoiceTracker {
    origins: OriginTracker,
    /// The present speakers. With [`Speaking::ForAll`], the only key is `None`, for the whole service. With
    /// [`Speaking::ForEachConnection`], the keys are the clients of the connections.
    speakers: HashMap<Option<SocketAddr>, Speaker>,
    /// The periods in which one node spoke, in order of time.
    reigns: Vec<Reign>,
    /// The node that spoke last for each connection.
    last: HashMap<SocketAddr, usize>,
    /// Connections for which first one node spoke and then the other.
    taken_over: HashSet<SocketAddr>,
}

/// Longest time for which segments from before a role change may still be on their way to the router.
const ON_THE_WAY_NS: u64 = 1_000_000_000;

/// The node that speaks for the service or for one connection.
#[derive(Clone, Copy, Debug)]
struct Speaker {
    node: usize,
    /// Number of role changes before this node began to speak. The other node may speak only after a further role change. If no node spoke
    /// before, role changes in the last second are not included: the node's first segment may have been sent before them.
    role_changes_used: usize,
}

/// A fault in a segment's path to the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Improper {
    /// The segment bypassed the wire.
    PastWire {
        /// The node that sent the segment to the router.
        node: usize,
    },
    /// The segment's origin is not the node that speaks, and there has been no role change that lets the origin speak.
    SecondVoice {
        /// The segment's origin.
        node: usize,
        /// The node that speaks.
        speaker: usize,
    },
    /// The segment came from neither node.
    Stranger,
}

impl VoiceTracker {
    /// Creates a tracker for the nodes and the service of `expected`.
    pub fn new(expected: &Expectations) -> Self {
        Self {
            origins: OriginTracker::new(expected),
            speakers: HashMap::new(),
            reigns: Vec::new(),
            last: HashMap::new(),
            taken_over: HashSet::new(),
        }
    }

    /// Takes a segment that the service sends to a client, as the capture at `point` shows it. Returns the fault in the segment's path, if
    /// there is one.
    pub fn judge(
        &mut self,
        point: Point,
        packet: &CapturedSegment,
        expected: &Expectations,
    ) -> Option<Improper> {
        match self.origins.take(point, packet)? {
            SegmentOrigin::Stranger => Some(Improper::Stranger),
            SegmentOrigin::From {
                sender,
                origin,
                is_said_again,
            } => {
                let wire = expected.wire_at(packet.at_ns).map(|(_, wire)| wire.node);
                let is_past = wire.is_some_and(|wire| wire != sender) && !may_go_past(packet, expected);
                let second = if is_said_again {
                    None
                } else {
                    self.speaks(origin, packet, expected)
                };
                second.or(is_past.then_some(Improper::PastWire { node: sender }))
            }
        }
    }

    /// The periods in which one node spoke, in order of time. With [`Speaking::ForEachConnection`], a node's period begins
    /// with its first segment, or when a connection moves to it after another one has moved away.
    pub fn into_reigns(self) -> Vec<Reign> {
        self.reigns
    }

    /// Number of connections for which first one node spoke and then the other.
    pub fn taken_over(&self) -> u64 {
        self.taken_over.len() as u64
    }

    fn speaks(&mut self, node: usize, packet: &CapturedSegment, expected: &Expectations) -> Option<Improper> {
        let (client, at_ns) = (packet.destination, packet.at_ns);
        let key = match expected.speaking {
            Speaking::ForAll => None,
            Speaking::ForEachConnection => Some(client),
        };
        let changes_until = |time: u64| {
            let begun = |&&change: &&u64| change <= time;
            expected.role_changes_ns.iter().filter(begun).count()
        };
        let speaker = self.speakers.entry(key).or_insert_with(|| Speaker {
            node,
            role_changes_used: at_ns.checked_sub(ON_THE_WAY_NS).map_or(0, changes_until),
        });
        if speaker.node != node {
            let changes = changes_until(at_ns);
            if changes <= speaker.role_changes_used {
                let speaker = speaker.node;
                return Some(Improper::SecondVoice { node, speaker });
            }
            *speaker = Speaker {
                node,
                role_changes_used: changes,
            };
        }
        let has_moved = self
            .last
            .insert(client, node)
            .is_some_and(|before| before != node);
        let is_other = self.reigns.last().is_none_or(|reign| reign.node != node);
        let is_new = match key {
            None => is_other,
            Some(_) if has_moved => is_other,
            Some(_) => self.reigns.iter().all(|reign| reign.node != node),
        };
        if is_new {
            self.reigns.push(Reign {
                node,
                from_ns: at_ns,
                taken_over: 0,
            });
        }
        if has_moved {
            self.taken_over.insert(client);
            if let Some(reign) = self.reigns.iter_mut().rev().find(|reign| reign.node == node) {
                reign.taken_over += 1;
            }
        }
        None
    }
}

/// Whether the segment may bypass the wire. In the modes `pr` and `immediate`, the primary sends all segments except SYN-ACKs directly to the clients.
fn may_go_past(packet: &CapturedSegment, expected: &Expectations) -> bool {
    use super::verdict::CommitMode::{Immediate, Pr, Prs};
    match expected.mode {
        Prs => false,
        Pr | Immediate => !packet.syn,
    }
}
