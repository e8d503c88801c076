//! The sockets of a connection that moves among the pair and annexes, and which of them may speak.
//!
//! Each socket that is made for a connection gets a number, on whichever node. After a socket has spoken to the client, no socket with a lower
//! number may.

use std::collections::{BTreeMap, BTreeSet};

use proto::Instant;

use super::ledger::Most;

/// Counts for connections on annexes whose wire had failed, or had lost its log.
#[derive(Clone, Copy, Debug, Default)]
pub struct CarriedCounts {
    /// Segments of annexes that primaries have passed to clients.
    pub alone: usize,
    /// Segments of annexes that primaries have sent through new wires.
    pub behind_wire: usize,
    /// Segments of annexes that wires have passed after a primary had carried the same connection.
    pub handed_over: usize,
    /// Connections that a node took over although no node of the pair could have continued them at an earlier time: they were protected again.
    pub protected_again: usize,
}

/// Where a segment comes from. The rule "one voice" tells the pair's two nodes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SpeakingPlace {
    Pair,
    /// The annex with this number.
    Annex(usize),
}

/// The sockets of one connection.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    /// Number of sockets that were made after the first one.
    made: u64,
    /// Number of each place's last socket.
    sockets: BTreeMap<SpeakingPlace, u64>,
    /// The highest number of a socket that has spoken.
    spoke: u64,
    /// What had been released when this socket began to speak.
    pub(super) before: Most,
    /// The annexes that have a socket that speaks.
    pub(super) annexes: BTreeSet<usize>,
    /// A primary has carried the connection.
    pub(super) was_carried: bool,
    /// When no node of the pair could continue the connection any more, which an annex has.
    pub unprotected_at: Option<Instant>,
    /// Number of the pair's last socket that an application has had. The sockets that were made before it cannot continue the connection.
    applied: u64,
    /// Of each node of the pair: its last socket was made for a move back, and no application has it yet.
    unstarted: [bool; 2],
    /// The node of the pair that has started the last socket after a move back, until the client hears a socket.
    unheard: Option<usize>,
    /// Packets of annexes that a primary has sent to a new wire, which takes them for the primary's, and the annexes.
    behind_wire: BTreeMap<Vec<u8>, usize>,
}

impl Ownership {
    /// A socket was made. It may speak as soon as its connection's packets are guided to it, which may be before it is started.
    pub fn on_socket(&mut self, place: SpeakingPlace) {
        if place == SpeakingPlace::Pair && self.sockets.is_empty() {
            return; // no annex has had this connection
        }
        self.made += 1;
        self.sockets.insert(place, self.made);
        self.unheard = None;
    }

    /// A node of the pair has made a socket for a move back, which speaks only when it is started.
    pub fn on_unstarted(&mut self, node: usize) {
        self.on_socket(SpeakingPlace::Pair);
        self.unstarted[node] = true;
    }

    /// A node of the pair has started its last socket, which was made for a move back.
    pub fn on_moved_back(&mut self, node: usize) {
        self.on_application(node);
        self.unheard = Some(node);
    }

    /// Whether the client has heard nothing since this node has started the last socket after a move back.
    pub fn is_unheard(&self, node: usize) -> bool {
        self.unheard == Some(node)
    }

    /// The socket of a node of the pair is an application's, or a relay's, from now on.
    pub fn on_application(&mut self, node: usize) {
        self.unstarted[node] = false;
        self.applied = self.number_of(SpeakingPlace::Pair);
    }

    /// Whether no application has the last socket of a node of the pair.
    pub const fn is_unstarted(&self, node: usize) -> bool {
        self.unstarted[node]
    }

    /// A primary sends this packet of an annex to its wire.
    pub fn on_behind_wire(&mut self, annex: usize, packet: &[u8]) {
        self.behind_wire.insert(packet.to_vec(), annex);
    }

    /// The place from which the primary got a packet that it has sent to its wire.
    pub fn place_behind_wire(&self, packet: &[u8]) -> SpeakingPlace {
        let annex = self.behind_wire.get(packet);
        annex.map_or(SpeakingPlace::Pair, |&annex| SpeakingPlace::Annex(annex))
    }

    /// Whether an annex has had a socket.
    pub fn is_used(&self) -> bool {
        !self.sockets.is_empty()
    }

    /// Whether an annex has a socket that speaks, and no node of the pair has taken the connection over since.
    pub fn is_on_annex(&self) -> bool {
        let mut annexes = self.annexes.iter();
        annexes.any(|&annex| self.number_of(SpeakingPlace::Annex(annex)) > self.applied)
    }

    /// Number of this place's last socket. 0: the first one.
    fn number_of(&self, place: SpeakingPlace) -> u64 {
        self.sockets.get(&place).copied().unwrap_or(0)
    }

    /// A segment of this place's last socket reaches the client. Returns an earlier socket's number, and the one that has spoken before.
    pub(super) fn on_place(&mut self, place: SpeakingPlace, released: Most) -> Result<(), (u64, u64)> {
        self.unheard = None;
        let number = self.number_of(place);
        if number < self.spoke {
            return Err((number, self.spoke));
        }
        if number > self.spoke {
            (self.spoke, self.before) = (number, released);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node has taken over what an annex had. The other node, which has stood still, makes a socket for a move back that nobody waits for.
    #[test]
    fn a_late_socket_of_one_node_does_not_silence_the_other() {
        let mut ownership = Ownership::default();
        ownership.on_socket(SpeakingPlace::Annex(0));
        ownership.on_socket(SpeakingPlace::Pair); // the survivor's
        ownership.on_application(1);
        ownership.on_unstarted(0);
        assert_eq!([0, 1].map(|node| ownership.is_unstarted(node)), [true, false]);
        ownership.on_application(1);
        assert!(ownership.is_unstarted(0), "the survivor starts another one");
        ownership.on_application(0);
        assert!(!ownership.is_unstarted(0));
    }

    /// The wire takes over from an annex whose link is cut, so that the annex keeps its socket.
    #[test]
    fn what_the_wire_has_taken_over_is_not_on_the_annex() {
        let mut ownership = Ownership::default();
        ownership.on_socket(SpeakingPlace::Annex(0));
        ownership.annexes.insert(0);
        assert!(ownership.is_on_annex());
        ownership.on_socket(SpeakingPlace::Pair);
        assert!(
            ownership.is_on_annex(),
            "no application has the wire's socket yet"
        );
        ownership.on_application(1);
        assert!(!ownership.is_on_annex());
        ownership.on_socket(SpeakingPlace::Annex(0));
        assert!(ownership.is_on_annex(), "it has moved there again");
    }
}
