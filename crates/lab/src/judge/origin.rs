//! Whose word a segment is.
//!
//! A segment's *origin* is the node whose TCP made it. What a node sends out is the other node's if the same segment came in
//! from there shortly before, and else its own. It is judged when the router sees it: what is sent into a cable that is
//! cut reaches nobody.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use super::packet::Packet;
use crate::capture::Point;

/// Follows the segments of the service from node to node.
#[derive(Debug)]
pub struct Origins {
    macs: [[u8; 6]; 2],
    /// Segments of the other node that came in at each node and were not sent on yet.
    incoming: [UnderWay; 2],
    /// Segments of the other node that each node has sent on and the router has not seen yet.
    released: [UnderWay; 2],
}

/// How a segment came to the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From a node.
    From {
        /// The node that sent it to the router.
        sender: usize,
        /// The node whose TCP made it.
        origin: usize,
    },
    /// From neither node.
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

impl Origins {
    /// Of the nodes with these Ethernet addresses.
    pub fn new(macs: [[u8; 6]; 2]) -> Self {
        Self {
            macs,
            incoming: Default::default(),
            released: Default::default(),
        }
    }

    /// Takes a segment of the service, seen at `point`; at the router, how it came there.
    pub fn take(&mut self, point: Point, packet: &Packet) -> Option<Way> {
        let sender = self.macs.iter().position(|mac| *mac == packet.source_mac);
        match point {
            Point::Client => None,
            Point::NodeA | Point::NodeB => {
                let here = usize::from(point == Point::NodeB);
                let other = 1 - here;
                if sender == Some(other) {
                    self.incoming[here].add(packet);
                } else if sender == Some(here)
                    && packet.destination_mac != self.macs[other]
                    && self.incoming[here].take(packet)
                {
                    self.released[here].add(packet);
                }
                None
            }
            Point::Router => {
                let Some(sender) = sender else {
                    return Some(Way::Stranger);
                };
                let is_released = self.released[sender].take(packet);
                let origin = if is_released { 1 - sender } else { sender };
                Some(Way::From { sender, origin })
            }
        }
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
