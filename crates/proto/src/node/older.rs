//! Connections that are older than the log: the primary is asked who is there, and what was agreed with them.

use super::Node;
use crate::Instant;
use crate::action::{Action, ServiceIndex};
use crate::census::Page;
use crate::learn::Told;
use crate::role::Role;
use crate::state_sync::Event;

impl Node {
    /// Packets of a service passed without being logged: nothing is known for certain about its connections any more. What was logged
    /// before has been read, or its connections would be taken for younger ones.
    pub fn handle_log_gap(&mut self, now: Instant, index: ServiceIndex) {
        let table = &mut self.services[usize::from(index)].table;
        table.distrust();
        table.forget_said();
        table.forget_handshakes();
        self.begin_census(now, index); // some may have begun meanwhile
        self.tell_wire(index);
        self.sync(now, index, Event::Begin); // nor does the replica's server know what passed
    }

    /// Packets pass here from now on, and nobody knows whose.
    pub(super) fn begin_census(&mut self, now: Instant, index: ServiceIndex) {
        self.services[usize::from(index)].table.begin_census(now);
        self.ask_about_older(now, index);
    }

    /// An agent that goes on as the wire does not know who is there.
    pub(super) fn count_what_was_found(&mut self, now: Instant) {
        for index in self.indices() {
            if self.service(index).role() == Role::Backup {
                self.begin_census(now, index);
            }
        }
    }

    /// Asks the primary about connections that are older than the log, if it is time to.
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

    /// A page of the primary's connections, as [`Action::AskAll`] asked. The log has been read.
    pub fn handle_page(&mut self, now: Instant, index: ServiceIndex, page: Page) {
        let service = &mut self.services[usize::from(index)];
        service.table.set_wire(service.role() == Role::Backup);
        service.table.on_page(page);
        self.ask_about_older(now, index);
    }

    /// What has ended without a packet is over for everybody who had to do with it.
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

    /// The primary's kernel knows these connections, as [`Action::Ask`] asked. The log has been read.
    pub fn handle_told(&mut self, now: Instant, index: ServiceIndex, told: Vec<Told>) {
        let service = &mut self.services[usize::from(index)];
        service.table.set_wire(service.role() == Role::Backup);
        told.into_iter().for_each(|told| service.table.on_told(told));
        self.bury(now, index);
        self.ask_about_older(now, index);
    }
}
