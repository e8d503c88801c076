//! Who speaks for the service.
//!
//! A segment's *origin* is the node whose TCP made it. Segments that the wire sends out are the primary's if the same
//! segment came in from it shortly before, and else its own; segments that reach the router from the other node's
//! Ethernet address are that node's.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use super::packet::Packet;
use super::verdict::{Expectations, Reign};
use crate::capture::Point;

/// Follows the origin of everything that the service says.
#[derive(Debug, Default)]
pub struct Voice {
    /// Segments of the other node that came in at each node and were not sent on yet.
    incoming: [Incoming; 2],
    reigns: Vec<Reign>,
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

#[derive(Debug, Default)]
struct Incoming {
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
        let wire = expected.wire_at(packet.at_ns).map(|(_, wire)| wire.node);
        match point {
            Point::Client => None,
            Point::Router => {
                let Some(node) = sender else {
                    return Some(Improper::Stranger);
                };
                if Some(node) == wire {
                    return None; // judged where it was sent
                }
                let allowed_past = wire.is_none() || may_go_past(packet, expected);
                let second = self.speaks(node, packet.at_ns, expected);
                second.or((!allowed_past).then_some(Improper::PastWire { node }))
            }
            Point::NodeA | Point::NodeB => {
                let here = usize::from(point == Point::NodeB);
                let other = 1 - here;
                if sender == Some(other) {
                    self.incoming[here].add(packet);
                    return None;
                }
                let leaves = sender == Some(here) && packet.destination_mac != expected.macs[other];
                if !leaves || wire != Some(here) {
                    return None;
                }
                let origin = if self.incoming[here].take(packet) {
                    other
                } else {
                    here
                };
                self.speaks(origin, packet.at_ns, expected)
            }
        }
    }

    /// Who spoke when.
    pub fn into_reigns(self) -> Vec<Reign> {
        self.reigns
    }

    fn speaks(&mut self, node: usize, at_ns: u64, expected: &Expectations) -> Option<Improper> {
        let reign = Reign { node, from_ns: at_ns };
        let Some(speaker) = self.reigns.last().map(|reign| reign.node) else {
            self.reigns.push(reign);
            return None;
        };
        if speaker == node {
            return None;
        }
        let changes = expected
            .role_changes_ns
            .iter()
            .filter(|&&change| change <= at_ns)
            .count();
        if changes <= self.role_changes_used {
            return Some(Improper::SecondVoice { node, speaker });
        }
        self.role_changes_used = changes;
        self.reigns.push(reign);
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

impl Incoming {
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
