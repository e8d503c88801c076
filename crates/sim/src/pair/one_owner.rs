//! The judge's rule "one owner": while a connection moves among the pair and annexes, only its last socket speaks ([`super::ownership`]).

use std::net::SocketAddr;

use proto::Instant;
use proto::packet::{Checksum, Segment};
use proto::table::Direction;

use super::judge::Judge;
use super::ledger::{Most, PacketSpeaker};
use super::ownership::{CarriedCounts, SpeakingPlace};

impl Judge {
    /// From now on an annex's socket of a client speaks.
    pub(super) fn on_annex_live(&mut self, annex: usize, client: SocketAddr) {
        self.annexed.0 += 1;
        if let Some(flow) = self.flows.get_mut(&client) {
            flow.ownership.annexes.insert(annex);
            flow.look_for_holders(self.now, self.is_wire, &self.copies);
        }
    }

    /// A primary's socket of a client that has moved back speaks from now on.
    pub(super) fn on_moved_back(&mut self, node: usize, client: SocketAddr) {
        self.annexed.1 += 1;
        self.on_socket(node, client);
        if let Some(flow) = self.flows.get_mut(&client) {
            flow.ownership.on_moved_back(node);
        }
    }

    /// The guard of a node drops a segment of the node's own stack, because the segment's connection lives elsewhere.
    pub(super) fn on_muted(&mut self, node: usize, packet: &[u8]) {
        let Some(segment) = self.parse(packet).filter(|segment| !segment.flags.rst) else {
            return;
        };
        let client = segment.destination;
        let flow = self.flows.get(&client);
        if flow.is_some_and(|flow| flow.ownership.is_unheard(node)) {
            self.violation(
                client,
                "no lost start: its own node drops what a started socket says first",
            );
        }
    }

    /// A node that speaks alone sends a segment of its stack.
    pub(super) fn on_alone(&mut self, node: usize, packet: &[u8]) {
        let Some(segment) = self.parse(packet).filter(|segment| !segment.flags.rst) else {
            return;
        };
        let client = segment.destination;
        let flow = self.flows.get(&client);
        if flow.is_some_and(|flow| flow.ownership.is_unstarted(node)) {
            self.violation(client, "one owner: a socket that no application has speaks");
        }
    }

    /// A wire passes an annex's segment, which has come from the annex directly.
    pub(super) fn on_passed_for_annex(&mut self, packet: &[u8]) {
        let client = self.parse(packet).map(|segment| segment.destination);
        let flow = client.and_then(|client| self.flows.get(&client));
        self.carried.handed_over += usize::from(flow.is_some_and(|flow| flow.ownership.was_carried));
    }

    /// An annex has made a socket of a client that does not speak yet.
    pub(super) fn on_made_at_annex(&mut self, annex: usize, client: SocketAddr) {
        if let Some(flow) = self.flows.get_mut(&client) {
            flow.ownership.on_socket(SpeakingPlace::Annex(annex));
        }
    }

    /// A node of the pair has made a socket of a client that does not speak yet, for a move back.
    pub(super) fn on_made(&mut self, node: usize, client: SocketAddr) {
        if let Some(flow) = self.flows.get_mut(&client) {
            flow.ownership.on_unstarted(node);
        }
    }

    /// An annex has no socket of a client any more, or of any client (`None`).
    pub(super) fn on_annex_lost(&mut self, annex: usize, client: Option<SocketAddr>) {
        for (of, flow) in &mut self.flows {
            if client.is_none_or(|client| client == *of) && flow.ownership.annexes.remove(&annex) {
                flow.look_for_holders(self.now, self.is_wire, &self.copies);
            }
        }
    }

    /// An annex ends its socket of a client by order, or because a node that greets it does not name the client. If no other node has the
    /// connection, a single failure does not excuse that.
    pub(super) fn on_annex_dropped(&mut self, annex: usize, client: SocketAddr) {
        if let Some(flow) = self.flows.get_mut(&client)
            && flow.ownership.annexes.remove(&annex)
            && !flow.is_held(self.is_wire, &self.copies)
        {
            flow.ownership.unprotected_at.get_or_insert(self.now);
        }
    }

    /// A segment that reaches a client comes from this place.
    pub(super) fn on_place(&mut self, place: SpeakingPlace, packet: &[u8]) {
        let Ok(segment) = Segment::parse(packet, Checksum::Trusted) else {
            return;
        };
        let client = segment.destination;
        let Some(flow) = self.flows.get_mut(&client) else {
            return;
        };
        if segment.flags.rst {
            return; // whether a connection may end so, the rule "survival" says
        }
        if flow.is_over_for(&segment) {
            return;
        }
        let mut wrong = Vec::new();
        if let Err((number, spoke)) = flow.ownership.on_place(place, flow.released) {
            wrong.push(format!(
                "one owner: socket {number} of {place:?} speaks after socket {spoke}"
            ));
        }
        if place != SpeakingPlace::Pair {
            flow.live_at = None; // no socket of the pair's nodes has the connection now
        }
        let says = flow
            .place(&segment)
            .filter(|_| !segment.flags.syn && !segment.flags.rst);
        if let (Some(says), SpeakingPlace::Annex(_)) = (says, place)
            && !flow.is_old(&segment, says)
        {
            let said = Most::of(&segment, says, flow.shift);
            let behind = flow.ownership.before.is_more_than(said, flow.shift);
            wrong.extend(behind.map(|what| format!("no step back: {place:?}: {what}")));
        }
        wrong.iter().for_each(|what| self.violation(client, what));
    }

    /// A primary that speaks alone passes an annex's segment to the client.
    pub(super) fn on_carried(&mut self, annex: usize, voice: PacketSpeaker, packet: &[u8]) {
        self.on_place(SpeakingPlace::Annex(annex), packet);
        let client = self.parse(packet).map(|segment| segment.destination);
        if let Some(flow) = client.and_then(|client| self.flows.get_mut(&client)) {
            flow.ownership.was_carried = true;
            self.carried.alone += 1;
        }
        self.note(Direction::Out, packet);
        self.on_released(voice, Direction::Out, packet);
    }

    /// A primary passes an annex's segment to its wire, which takes it for the primary's.
    pub(super) fn on_behind_wire(&mut self, annex: usize, packet: &[u8]) {
        let client = self.parse(packet).map(|segment| segment.destination);
        if let Some(flow) = client.and_then(|client| self.flows.get_mut(&client)) {
            flow.ownership.on_behind_wire(annex, packet);
            flow.ownership.was_carried = true;
            self.carried.behind_wire += 1;
        }
    }

    /// The place of a packet that a wire gets from its primary.
    pub(super) fn place_of_peer(&self, packet: &[u8]) -> SpeakingPlace {
        let client = self.parse(packet).map(|segment| segment.destination);
        let flow = client.and_then(|client| self.flows.get(&client));
        flow.map_or(SpeakingPlace::Pair, |flow| {
            flow.ownership.place_behind_wire(packet)
        })
    }

    /// Counts for connections that annexes had without a wire.
    pub const fn carried(&self) -> CarriedCounts {
        self.carried
    }

    /// Number of connections that annexes have started, and that moved back from annexes to the primary.
    pub const fn annexed(&self) -> (usize, usize) {
        self.annexed
    }

    /// When no node of the pair could continue the client's connection any more, which an annex has.
    pub fn unprotected_at(&self, client: SocketAddr) -> Option<Instant> {
        self.flows.get(&client)?.ownership.unprotected_at
    }
}
