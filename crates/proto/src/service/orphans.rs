//! Orphans, connections whose worker died while the service lives: the primary reports them, and the wire takes them over.

use std::net::SocketAddr;

use super::Service;
use crate::Instant;
use crate::action::{ServiceAction, ServiceBeat};
use crate::packet::Segment;
use crate::role::Role;
use crate::table::Direction;
use crate::takeover::Takeover;

impl Service {
    /// Whether this node must answer a segment that was logged at `now` and belongs to no connection. A wire that
    /// speaks for some clients answers only while it has a lease. Without a lease, the primary may have gone on alone.
    pub(super) fn answers(&self, now: Instant, direction: Direction, segment: &Segment<'_>) -> bool {
        let is_taken = || self.orphans.has_taken(&segment.source) && self.standing.is_counted_on(now);
        direction == Direction::In && (self.role().speaks_alone() || is_taken())
    }

    /// The processes of these clients' connections died on this node, but the service lives.
    pub(super) fn on_orphans(&mut self, now: Instant, clients: impl IntoIterator<Item = SocketAddr>) {
        // On any other node, no wire knows these connections now, and no later wire will.
        if self.role() == Role::Backup {
            self.offer_bereft(now, clients);
        } else if matches!(self.role(), Role::Primary | Role::Claiming) && self.orphans.tell(clients) {
            self.tell_peer(now);
        }
    }

    /// The backup has adopted this agent's orphans with numbers below `adopted`. The caller has checked that the backup's heartbeat names
    /// this agent, because an earlier agent gave the same numbers to other orphans.
    pub(super) fn hear_of_adopted(&mut self, now: Instant, adopted: u64) {
        let (adopted, has_more) = self.orphans.on_adopted(adopted);
        let goes_on = !adopted.is_empty() && has_more;
        self.destroy(adopted);
        if goes_on {
            self.tell_peer(now);
        }
    }

    pub(super) fn hear_of_orphans(&mut self, now: Instant, beat: &ServiceBeat) {
        let may_adopt = self.may_speak_beside();
        let (role, epoch) = (self.role(), self.standing.epoch());
        if may_adopt && role == Role::Backup && (beat.role, beat.epoch) == (Role::Primary, epoch) {
            self.orphans.hear(&beat.orphans);
            self.adopt_orphans(now);
        }
    }

    /// These clients' connections have ended. Only the connections were taken over, not the service. So the clients' next packets go to the
    /// primary.
    pub(super) fn on_forgotten(&mut self, clients: &[SocketAddr]) {
        for client in clients {
            self.orphans.forget_taken(client);
            self.table.forget_socket(*client);
        }
        self.reversed.forget(clients);
    }

    /// Destroys the kernel's sockets of these connections. Their segments would contradict the node that goes on with the connections.
    pub(super) fn destroy(&mut self, clients: Vec<SocketAddr>) {
        if !clients.is_empty() {
            self.actions.push_back(ServiceAction::Destroy { clients });
        }
    }

    /// Takes over the waiting orphans, once no other takeover is under way.
    pub(super) fn adopt_orphans(&mut self, now: Instant) {
        if self.role() != Role::Backup || self.takeover.is_some() {
            return;
        }
        let mut clients = self.orphans.adopt();
        clients.retain(|client| !self.reversed.is_here(client)); // it moved here just before its process died
        clients.retain(|client| self.may_adopt(*client));
        if !clients.is_empty() {
            self.takeover = Some(Takeover::begin_for(now, clients, &mut self.actions));
            self.tell_peer(now);
        }
    }
}
