//! Who speaks for the service.
//!
//! A segment's *origin* is the node whose TCP made it. What a node sends out is the other node's if the same segment came in
//! from there shortly before, and else its own. It is judged when the router sees it: what is sent into a cable that is
//! cut reaches nobody.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;

use super::packet::Packet;
use super::verdict::{Expectations, Reign, Speaking};
use crate::capture::Point;

/// Follows the origin of everything that the service says.
#[derive(Debug, Default)]
pub struct Voice {
    /// Segments of the other node that came in at each node and were not sent on yet.
    incoming: [UnderWay; 2],
    /// Segments of the other node that each node has sent on and the router has not seen yet.
    released: [UnderWay; 2],
    /// Who spoke last for the whole service (`None`) or for a connection.
    speakers: HashMap<Option<SocketAddr>, Speaker>,
    reigns: Vec<Reign>,
    /// Connections for which node a has spoken, and among them those for which node b spoke after it.
    begun: HashSet<SocketAddr>,
    taken_over: HashSet<SocketAddr>,
}

/// Who spoke last for something.
#[derive(Clone, Copy, Debug)]
struct Speaker {
    node: usize,
    role_changes_used: usize,
}

/// What is wrong with a segment's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Improper {
    /// It went past the wire.
    PastWire {
        /// The node that it came from.
        node: usize,
    },
    /// Another node had begun to speak before.
    SecondVoice {
        /// The node that it came from.
        node: usize,
        /// Who had begun.
        speaker: usize,
    },
    /// It came from neither node.
    Stranger,
}

/// Segments between two taps.
#[derive(Debug, Default)]
struct UnderWay {
    /// When each came in, oldest first.
    times: HashMap<Identity, VecDeque<u64>>,
    order: VecDeque<(u64, Identity)>,
}

/// What a forwarded segment keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Identity {
    client: SocketAddr,
    seq: u32,
    ack: u32,
    flags: [bool; 5],
    window: u16,
    timestamps: Option<(u32, u32)>,
    payload_len: u32,
    ip_id: u16,
}

/// A released segment leaves within microseconds.
const RELEASE_NS_MAX: u64 = 1_000_000_000;

impl Voice {
    /// Takes a segment of the service, seen at `point`.
    pub fn judge(&mut self, point: Point, packet: &Packet, expected: &Expectations) -> Option<Improper> {
        let sender = expected.macs.iter().position(|mac| *mac == packet.source_mac);
        match point {
            Point::Client => None,
            Point::NodeA | Point::NodeB => {
                let here = usize::from(point == Point::NodeB);
                let other = 1 - here;
                if sender == Some(other) {
                    self.incoming[here].add(packet);
                } else if sender == Some(here)
                    && packet.destination_mac != expected.macs[other]
                    && self.incoming[here].take(packet)
                {
                    self.released[here].add(packet);
                }
                None
            }
            Point::Router => {
                let Some(node) = sender else {
                    return Some(Improper::Stranger);
                };
                let is_released = self.released[node].take(packet);
                let origin = if is_released { 1 - node } else { node };
                let wire = expected.wire_at(packet.at_ns).map(|(_, wire)| wire.node);
                let is_past = wire.is_some_and(|wire| wire != node) && !may_go_past(packet, expected);
                let second = self.speaks(origin, packet, expected);
                second.or(is_past.then_some(Improper::PastWire { node }))
            }
        }
    }

    /// Who spoke when; if each connection has its own voice, when each node began.
    pub fn into_reigns(self) -> Vec<Reign> {
        self.reigns
    }

    /// Connections for which node b spoke after node a.
    pub fn taken_over(&self) -> u64 {
        self.taken_over.len() as u64
    }

    fn speaks(&mut self, node: usize, packet: &Packet, expected: &Expectations) -> Option<Improper> {
        let (client, at_ns) = (packet.destination, packet.at_ns);
        let key = match expected.speaking {
            Speaking::ForAll => None,
            Speaking::ForEachConnection => Some(client),
        };
        let speaker = self.speakers.entry(key).or_insert(Speaker {
            node,
            role_changes_used: 0,
        });
        if speaker.node != node {
            let begun = |&&change: &&u64| change <= at_ns;
            let changes = expected.role_changes_ns.iter().filter(begun).count();
            if changes <= speaker.role_changes_used {
                let speaker = speaker.node;
                return Some(Improper::SecondVoice { node, speaker });
            }
            *speaker = Speaker {
                node,
                role_changes_used: changes,
            };
        }
        let is_new = match key {
            None => self.reigns.last().is_none_or(|reign| reign.node != node),
            Some(_) => self.reigns.iter().all(|reign| reign.node != node),
        };
        if is_new {
            self.reigns.push(Reign { node, from_ns: at_ns });
        }
        if node == 0 {
            self.begun.insert(client);
        } else if self.begun.contains(&client) {
            self.taken_over.insert(client);
        }
        None
    }
}

/// In mode `pr` all output but SYN-ACKs goes straight from the primary.
fn may_go_past(packet: &Packet, expected: &Expectations) -> bool {
    use super::verdict::CommitMode::{Immediate, Pr, Prs};
    match expected.mode {
        Prs => false,
        Pr => !packet.syn,
        Immediate => true,
    }
}

impl UnderWay {
    fn add(&mut self, packet: &Packet) {
        while let Some(&(at_ns, identity)) = self.order.front() {
            if at_ns + RELEASE_NS_MAX > packet.at_ns {
                break;
            }
            self.order.pop_front();
            self.remove(identity, |oldest_ns| oldest_ns == at_ns);
        }
        let identity = Identity::of(packet);
        self.times.entry(identity).or_default().push_back(packet.at_ns);
        self.order.push_back((packet.at_ns, identity));
    }

    /// Whether such a segment came in; each counts once.
    fn take(&mut self, packet: &Packet) -> bool {
        self.remove(Identity::of(packet), |_| true)
    }

    fn remove(&mut self, identity: Identity, condition: impl Fn(u64) -> bool) -> bool {
        let Some(times) = self.times.get_mut(&identity) else {
            return false;
        };
        let removed = times.front().copied().is_some_and(condition) && times.pop_front().is_some();
        if times.is_empty() {
            self.times.remove(&identity);
        }
        removed
    }
}

impl Identity {
    fn of(packet: &Packet) -> Self {
        Self {
            client: packet.destination,
            seq: packet.seq.0,
            ack: packet.ack.0,
            flags: [packet.fin, packet.syn, packet.rst, packet.psh, packet.has_ack],
            window: packet.window,
            timestamps: packet.timestamps,
            payload_len: packet.payload_len,
            ip_id: packet.ip_id,
        }
    }
}
