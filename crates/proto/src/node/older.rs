//! Connections that are older than the log: the wire asks the primary which ones there are, and what was agreed in their handshakes.

use super::Node;
use crate::Instant;
use crate::action::{Action, ServiceIndex};
use crate::census::Page;
use crate::learn::Told;
use crate::role::Role;
use crate::state_sync::Event;

impl Node {
    /// Packets of a service passed without being logged, so nothing about its connections is certain now. Call this after reading what was
    /// logged before the gap. Otherwise connections in that log would be taken for connections that began after the gap.
    pub fn handle_log_gap(&mut self, now: Instant, index: ServiceIndex) {
        let table = &mut self.services[usize::from(index)].table;
        table.distrust();
        table.forget_said();
        table.forget_handshakes();
        self.begin_census(now, index); // some connections may have begun unlogged
        self.tell_wire(index);
        self.sync(now, index, Event::Begin); // the replica's server lacks what passed unlogged
    }

    /// Begins to ask the primary for all connections. From now on, packets of connections that this node does not know pass through it.
    pub(super) fn begin_census(&mut self, now: Instant, index: ServiceIndex) {
        self.services[usize::from(index)].table.begin_census(now);
        self.ask_about_older(now, index);
    }

    /// For a new agent whose node is the wire already: the agent does not know the connections, so it asks for them.
    pub(super) fn count_what_was_found(&mut self, now: Instant) {
        for index in self.indices() {
            if self.service(index).role() == Role::Backup {
                self.begin_census(now, index);
            }
        }
    }

    /// Asks the primary about connections that are older than the log, if a question is due.
    pub(super) fn ask_about_older(&mut self, now: Instant, index: ServiceIndex) {
        let of = &mut self.services[usize::from(index)];
        of.table.set_wire(of.role() == Role::Backup);
        let service = index;
        if let Some(query) = of.table.poll_census(now) {
            self.actions.push_back(Action::AskAll { service, query });
        }
        if let Some(clients) = of.table.poll_question(now) {
            self.actions.push_back(Action::Ask { service, clients });
        }
    }

    /// A page of the primary's connections, as [`Action::AskAll`] asked. Call this after reading the log.
    pub fn handle_page(&mut self, now: Instant, index: ServiceIndex, page: Page) {
        let service = &mut self.services[usize::from(index)];
        service.table.set_wire(service.role() == Role::Backup);
        service.table.on_page(page);
        self.ask_about_older(now, index);
    }

    /// Removes connections that have ended without a packet: closes their replicas, and decides them in a takeover.
    pub(super) fn bury(&mut self, now: Instant, index: ServiceIndex) {
        let service = index;
        let table = &mut self.services[usize::from(index)].table;
        let has_replicas = table.config().has_replicas();
        for connection in table.take_gone() {
            if has_replicas {
                self.actions
                    .push_back(Action::CloseReplica { service, connection });
            }
            self.decide(now, index, connection);
        }
    }

    /// What the primary's kernel knows of some connections, as [`Action::Ask`] asked. Call this after reading the log.
    pub fn handle_told(&mut self, now: Instant, index: ServiceIndex, told: Vec<Told>) {
        let service = &mut self.services[usize::from(index)];
        service.table.set_wire(service.role() == Role::Backup);
        told.into_iter().for_each(|told| service.table.on_told(told));
        self.bury(now, index);
        self.ask_about_older(now, index);
    }
}
