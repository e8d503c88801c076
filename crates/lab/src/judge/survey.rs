//! Who was the wire, and who spoke, as the captures show it: found before anything is judged, and without the daemons.

use std::collections::HashMap;

use serde::Serialize;

use super::merge::Merge;
use super::origin::{Origins, Way};
use super::stream::Highest;
use super::verdict::{Expectations, Wire};
use crate::capture::{Capture, Point};

/// The ways that the service's segments took to the router, in order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// Neighbours differ in sender or origin, or there are 100 ms between them.
    pub passages: Vec<Passage>,
    /// The nodes that clients' packets were sent to by the router, one after the other.
    pub entrances: Vec<Entrance>,
}

/// A run of segments with the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Passage {
    /// The node that sent them to the router.
    pub sender: usize,
    /// The node whose TCP made them: it spoke. If it is not the sender, the sender was the wire.
    pub origin: usize,
    /// The first one.
    pub from_ns: u64,
    /// The last one.
    pub until_ns: u64,
}

/// A run of clients' packets that the router sent to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Entrance {
    /// The node.
    pub node: usize,
    /// The first packet.
    pub from_ns: u64,
    /// The last one.
    pub until_ns: u64,
}

/// A time in which a node spoke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Speech {
    /// The node.
    pub node: usize,
    /// Its first segment.
    pub from_ns: u64,
    /// Its last one.
    pub until_ns: u64,
}

/// What happened to a node that decides who may be the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// If it was the wire, the other node may go on without one from now on.
    Lost {
        /// The node.
        node: usize,
        /// From when.
        at_ns: u64,
    },
    /// It came back, and must become the wire.
    Returned {
        /// The node.
        node: usize,
        /// Not before this.
        at_ns: u64,
    },
}

/// Between the first segment that a returning node forwards and its announcement lies a word of each agent, which may have to wait for a CPU.
const SETTLING_NS: u64 = 200_000_000;
/// A node that says nothing for so long has ceased to speak.
const SILENCE_NS: u64 = 100_000_000;

impl Survey {
    /// Of `captures`; of `expected` only the service, the clients and the Ethernet addresses count.
    ///
    /// # Errors
    /// A file cannot be read, is cut off or garbled; its clock was set.
    pub fn of(captures: &[Capture], expected: &Expectations) -> anyhow::Result<Self> {
        let mut merge = Merge::open(captures, expected.service)?;
        let mut origins = Origins::new(expected);
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
                if let Some(Way::From {
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

    /// Which node was the wire, and when: `first` from the beginning, later who returned, from when it forwards and hears, or rather
    /// so long after it that everything sent past it before has arrived. In between there is none.
    pub fn wires(&self, first: usize, changes: &[Change]) -> Vec<Wire> {
        let mut wires = vec![Wire {
            node: first,
            from_ns: 0,
            hears_from_ns: 0,
            until_ns: u64::MAX,
        }];
        for &change in changes {
            let last = wires.last_mut().expect("there is at least one");
            match change {
                Change::Lost { node, at_ns } if last.node == node => last.until_ns = last.until_ns.min(at_ns),
                Change::Lost { .. } => {}
                Change::Returned { node, at_ns } => {
                    if let Some(first_ns) = self.forwards_from(node, at_ns) {
                        last.until_ns = last.until_ns.min(first_ns);
                        wires.push(Wire {
                            node,
                            from_ns: first_ns + Highest::OVERTAKING_NS,
                            hears_from_ns: self.enters_from(node, first_ns) + Highest::OVERTAKING_NS,
                            until_ns: u64::MAX,
                        });
                    }
                }
            }
        }
        // One that was lost again at once never was one.
        wires.retain(|wire| wire.from_ns < wire.until_ns);
        wires
    }

    /// When `node` first sent a segment of the other node to the router, from `at_ns` on.
    pub fn forwards_from(&self, node: usize, at_ns: u64) -> Option<u64> {
        let forwards = |passage: &&Passage| {
            passage.sender == node && passage.origin != node && passage.until_ns >= at_ns
        };
        let passage = self.passages.iter().find(forwards)?;
        Some(passage.from_ns.max(at_ns))
    }

    /// When clients' packets first came to `node`, which forwards the other's since `at_ns`: they follow its announcement, and that
    /// comes within [`SETTLING_NS`].
    fn enters_from(&self, node: usize, at_ns: u64) -> u64 {
        let enters = |entrance: &&Entrance| entrance.node == node && entrance.until_ns >= at_ns;
        let entrance = self.entrances.iter().find(enters);
        let from_ns = entrance.map_or(at_ns, |entrance| entrance.from_ns.max(at_ns));
        from_ns.min(at_ns + SETTLING_NS)
    }

    /// Who spoke when, in order of time. A node speaks from segment to segment unless there are 100 ms between them.
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

    /// For how long both nodes spoke, in nanoseconds; a single word in the other's speech counts as one.
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
