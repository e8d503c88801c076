//! Finds in the captures which node was the wire and which node spoke. This happens before the judge checks its rules. The reports of the
//! daemons are not used.

use std::collections::HashMap;

use serde::Serialize;

use super::merge::Merge;
use super::origin::{OriginTracker, SegmentOrigin};
use super::stream::Highest;
use super::verdict::{Expectations, WireSpan};
use crate::capture::{Capture, Point};

/// The ways that segments took between the router and the nodes, in order of time. A *run* consists of segments that follow each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// Runs of segments that the service sent to clients. A run ends when the sender or the origin changes, or when there is no segment for
    /// 100 ms.
    pub passages: Vec<Passage>,
    /// Runs of clients' packets that the router sent to one node.
    pub entrances: Vec<Entrance>,
}

/// A run of segments with the same sender and the same origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Passage {
    /// The node that sent the segments to the router.
    pub sender: usize,
    /// The node that spoke: its TCP made the segments. If this node is not the sender, the sender was the wire.
    pub origin: usize,
    /// Time of the first segment.
    pub from_ns: u64,
    /// Time of the last segment.
    pub until_ns: u64,
}

/// A run of clients' packets that the router sent to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Entrance {
    /// The node.
    pub node: usize,
    /// Time of the first packet.
    pub from_ns: u64,
    /// Time of the last packet.
    pub until_ns: u64,
}

/// A span of time in which a node spoke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Speech {
    /// The node.
    pub node: usize,
    /// Time of its first segment.
    pub from_ns: u64,
    /// Time of its last segment.
    pub until_ns: u64,
}

/// An event of a node that decides which node may be the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// The node is lost. If it was the wire, the other node may continue without a wire from this time on.
    Lost {
        /// The node.
        node: usize,
        /// Time of the loss.
        at_ns: u64,
    },
    /// The node came back, and must become the wire.
    Returned {
        /// The node.
        node: usize,
        /// Earliest time at which it may be the wire.
        at_ns: u64,
    },
}

/// Longest time, in nanoseconds, between a returning node's first forwarded segment and the node's announcement of the VIP. In this time,
/// each agent sends a message and may have to wait for a CPU.
const SETTLING_NS: u64 = 200_000_000;
/// Silence, in nanoseconds, after which a node no longer speaks.
const SILENCE_NS: u64 = 100_000_000;

impl Survey {
    /// Surveys `captures`. Uses only the service, the clients, the Ethernet addresses and `may_slow` of `expected`.
    ///
    /// # Errors
    /// If a file cannot be read, is cut off or garbled, or if the clock was set while the file was written.
    pub fn of(captures: &[Capture], expected: &Expectations) -> anyhow::Result<Self> {
        let mut merge = Merge::open(captures, expected.service)?;
        let mut origins = OriginTracker::new(expected);
        let mut survey = Self::default();
        while let Some((point, packet)) = merge.next_packet()? {
            let toward_client = packet.source == expected.service;
            let client = if toward_client {
                packet.destination
            } else {
                packet.source
            };
            if !expected.is_judged(client.ip()) || !expected.concerns(point, &packet) {
                continue;
            }
            if toward_client {
                if let Some(SegmentOrigin::From {
                    sender,
                    origin,
                    is_said_again: false,
                }) = origins.take(point, &packet)
                {
                    survey.pass(sender, origin, packet.at_ns);
                }
            } else if point == Point::Router
                && let Some(node) = expected
                    .macs
                    .iter()
                    .position(|mac| *mac == packet.destination_mac)
            {
                survey.enter(node, packet.at_ns);
            }
        }
        Ok(survey)
    }

    /// The wires in order of time. Node `first` is the wire from the beginning. A returning node is the wire for output from the time when
    /// it first forwards a segment of the other node. The returning node is the wire for input from the first client packet that the router
    /// sends to it after its first forwarded segment. [`Highest::OVERTAKING_NS`] is added to both times: by then, packets that bypassed the
    /// new wire have arrived. For [`Highest::OVERTAKING_NS`] after the first forwarded segment, no node is the wire.
    pub fn wires(&self, first: usize, changes: &[NodeChange]) -> Vec<WireSpan> {
        let mut wires = vec![WireSpan {
            node: first,
            from_ns: 0,
            hears_from_ns: 0,
            until_ns: u64::MAX,
        }];
        for &change in changes {
            let last = wires.last_mut().expect("there is at least one");
            match change {
                NodeChange::Lost { node, at_ns } if last.node == node => {
                    last.until_ns = last.until_ns.min(at_ns)
                }
                NodeChange::Lost { .. } => {}
                NodeChange::Returned { node, at_ns } => {
                    if let Some(first_ns) = self.forwards_from(node, at_ns) {
                        last.until_ns = last.until_ns.min(first_ns);
                        wires.push(WireSpan {
                            node,
                            from_ns: first_ns + Highest::OVERTAKING_NS,
                            hears_from_ns: self.enters_from(node, first_ns) + Highest::OVERTAKING_NS,
                            until_ns: u64::MAX,
                        });
                    }
                }
            }
        }
        // A node that was lost again before it became the wire was never a wire.
        wires.retain(|wire| wire.from_ns < wire.until_ns);
        wires
    }

    /// Time of the first segment from `at_ns` on that `node` sent to the router and that the other node's TCP had made.
    pub fn forwards_from(&self, node: usize, at_ns: u64) -> Option<u64> {
        let forwards = |passage: &&Passage| {
            passage.sender == node && passage.origin != node && passage.until_ns >= at_ns
        };
        let passage = self.passages.iter().find(forwards)?;
        Some(passage.from_ns.max(at_ns))
    }

    /// Time of the first client packet that the router sent to `node` after `at_ns`, the time at which `node` began to forward. At most
    /// [`SETTLING_NS`] after `at_ns`, because `node` announces the VIP within that time. Without such a packet: `at_ns`.
    fn enters_from(&self, node: usize, at_ns: u64) -> u64 {
        let enters = |entrance: &&Entrance| entrance.node == node && entrance.until_ns >= at_ns;
        let entrance = self.entrances.iter().find(enters);
        let from_ns = entrance.map_or(at_ns, |entrance| entrance.from_ns.max(at_ns));
        from_ns.min(at_ns + SETTLING_NS)
    }

    /// The spans of time in which each node spoke, in order of their beginning. A speech continues from segment to segment unless there are
    /// more than 100 ms between two segments.
    pub fn speeches(&self) -> Vec<Speech> {
        let mut speeches: Vec<Speech> = Vec::new();
        // The last speech of each node.
        let mut last: HashMap<usize, usize> = HashMap::new();
        for passage in &self.passages {
            let (node, until_ns) = (passage.origin, passage.until_ns);
            match last.get(&node).map(|&index| &mut speeches[index]) {
                Some(speech) if speech.until_ns + SILENCE_NS >= passage.from_ns => speech.until_ns = until_ns,
                _ => {
                    last.insert(node, speeches.len());
                    speeches.push(Speech {
                        node,
                        from_ns: passage.from_ns,
                        until_ns,
                    });
                }
            }
        }
        speeches
    }

    /// Time in which both nodes spoke, in nanoseconds. A single segment within the other node's speech counts as one nanosecond.
    pub fn two_speakers_ns(&self) -> u64 {
        let speeches = self.speeches();
        let of = |node: usize| speeches.iter().filter(move |speech| speech.node == node);
        let both = |a: &Speech, b: &Speech| {
            let (from, until) = (a.from_ns.max(b.from_ns), a.until_ns.min(b.until_ns));
            (from <= until).then(|| (until - from).max(1))
        };
        let pairs = of(0).flat_map(|a| of(1).map(move |b| (a, b)));
        pairs.filter_map(|(a, b)| both(a, b)).sum()
    }

    fn pass(&mut self, sender: usize, origin: usize, at_ns: u64) {
        match self.passages.last_mut() {
            Some(last)
                if (last.sender, last.origin) == (sender, origin) && last.until_ns + SILENCE_NS >= at_ns =>
            {
                last.until_ns = at_ns;
            }
            _ => self.passages.push(Passage {
                sender,
                origin,
                from_ns: at_ns,
                until_ns: at_ns,
            }),
        }
    }

    fn enter(&mut self, node: usize, at_ns: u64) {
        match self.entrances.last_mut() {
            Some(last) if last.node == node => last.until_ns = at_ns,
            _ => self.entrances.push(Entrance {
                node,
                from_ns: at_ns,
                until_ns: at_ns,
            }),
        }
    }
}
