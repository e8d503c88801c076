//! Orphans, connections whose worker died while the service lives: the primary reports them, and the wire takes them over.

use std::net::SocketAddr;

use super::{Node, Service};
use crate::Instant;
use crate::action::{Action, ServiceBeat, ServiceIndex};
use crate::packet::Segment;
use crate::role::Role;
use crate::table::Direction;
use crate::takeover::Takeover;

impl Service {
    /// Whether this node must answer a segment that was logged at `now` and belongs to no connection. A wire that speaks for some clients
    /// answers only if its primary has answered it lately. Otherwise the primary may have gone on alone.
    pub(super) fn answers(&self, now: Instant, direction: Direction, segment: &Segment<'_>) -> bool {
        let is_taken = || self.taken.contains(&segment.source) && self.standing.is_counted_on(now);
        direction == Direction::In && (self.role().speaks_alone() || is_taken())
    }
}

impl Node {
    /// The processes of these clients' connections died on this node, but the service lives.
    pub fn handle_orphans(
        &mut self,
        now: Instant,
        index: ServiceIndex,
        clients: impl IntoIterator<Item = SocketAddr>,
    ) {
        let service = &mut self.services[usize::from(index)];
        if !matches!(service.role(), Role::Primary | Role::Claiming) {
            return; // no wire knows these connections now, and no later wire will
        }
        let told = clients
            .into_iter()
            .filter(|&client| service.telling.add(client))
            .count();
        if told > 0 {
            self.send_heartbeat(now);
        }
    }

    /// The backup has adopted `adopted` orphans of this agent. The caller has checked that the backup's heartbeat names this agent. An
    /// earlier agent's orphans had other numbers.
    pub(super) fn hear_of_adopted(&mut self, now: Instant, index: ServiceIndex, adopted: u64) {
        let telling = &mut self.services[usize::from(index)].telling;
        let adopted = telling.on_adopted(adopted);
        let goes_on = !adopted.is_empty() && telling.has_more();
        self.destroy(index, adopted);
        if goes_on {
            self.send_heartbeat(now);
        }
    }

    pub(super) fn hear_of_orphans(&mut self, now: Instant, index: ServiceIndex, beat: &ServiceBeat) {
        let may_adopt = self.may_speak_beside();
        let service = &mut self.services[usize::from(index)];
        let (role, epoch) = (service.role(), service.standing.epoch());
        if may_adopt && role == Role::Backup && (beat.role, beat.epoch) == (Role::Primary, epoch) {
            let new = service.hearing.take(&beat.orphans);
            let has_come = !new.is_empty();
            service.orphans.extend(new);
            self.adopt_orphans(now, index);
            if has_come {
                self.send_heartbeat(now);
            }
        }
    }

    /// These clients' connections have ended. Only the connections were taken over, not the service. So the clients' next packets go to the
    /// primary.
    pub fn handle_forgotten(&mut self, index: ServiceIndex, clients: &[SocketAddr]) {
        let service = &mut self.services[usize::from(index)];
        for client in clients {
            service.taken.remove(client);
            service.table.forget_socket(*client);
        }
    }

    /// Destroys the kernel's sockets of these connections. Their segments would contradict the node that goes on with the connections.
    pub(super) fn destroy(&mut self, index: ServiceIndex, clients: Vec<SocketAddr>) {
        if !clients.is_empty() {
            let service = index;
            self.actions.push_back(Action::Destroy { service, clients });
        }
    }

    /// Takes over the waiting orphans, once no other takeover is under way.
    pub(super) fn adopt_orphans(&mut self, now: Instant, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        if service.role() != Role::Backup || service.takeover.is_some() {
            return;
        }
        let clients = std::mem::take(&mut service.orphans);
        if !clients.is_empty() {
            service.taken.extend(&clients);
            service.takeover = Some(Takeover::begin_for(now, index, clients, &mut self.actions));
        }
    }
}
