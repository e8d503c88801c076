//! Connections whose worker died while the service lives: the primary tells of them, the wire goes on with them.

use std::net::SocketAddr;

use super::{Node, Service};
use crate::Instant;
use crate::action::{Action, ServiceBeat, ServiceIndex};
use crate::packet::Segment;
use crate::role::Role;
use crate::table::Direction;
use crate::takeover::Takeover;

impl Service {
    /// Whether it is for this node to answer a segment of no connection, logged at `now`. A wire that speaks for some does not know
    /// whether its primary has gone on alone, unless that has answered it lately.
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
            return; // there is no wire that knows them, and none that may be heard again
        }
        let told = clients
            .into_iter()
            .filter(|&client| service.telling.add(client))
            .count();
        if told > 0 {
            self.send_heartbeat(now);
        }
    }

    /// The backup has taken so many orphans of this agent's: its word names this agent, for one before it counted otherwise.
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

    /// These clients' connections, which were taken over while the service was not, are over: what they say next is the primary's.
    pub fn handle_forgotten(&mut self, index: ServiceIndex, clients: &[SocketAddr]) {
        let service = &mut self.services[usize::from(index)];
        for client in clients {
            service.taken.remove(client);
            service.table.forget_socket(*client);
        }
    }

    /// What the kernel would still say for these connections would contradict who goes on with them.
    pub(super) fn destroy(&mut self, index: ServiceIndex, clients: Vec<SocketAddr>) {
        if !clients.is_empty() {
            let service = index;
            self.actions.push_back(Action::Destroy { service, clients });
        }
    }

    /// Connections of `clients` have lost their process on the primary: takes them over, after those that are being decided.
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
