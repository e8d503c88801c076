//! Connections that are older than the log: the wire asks the primary which ones there are, and what was agreed in their handshakes.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::Service;
use crate::Instant;
use crate::action::{AnnexStep, ServiceAction};
use crate::annex::{AnnexId, ServingNode};
use crate::census::CensusPage;
use crate::census::ClientTerms;
use crate::connection::UnprotectedCause;
use crate::role::Role;
use crate::state_sync::StateSyncEvent;

impl Service {
    /// Packets of a service passed without being logged, so nothing about its connections is certain now. Call this after reading what was
    /// logged before the gap. Otherwise connections in that log would be taken for connections that began after the gap.
    pub(super) fn on_log_gap(&mut self, now: Instant) {
        let cause = if self.is_immediate {
            UnprotectedCause::LogWasFull
        } else {
            UnprotectedCause::LogGap
        };
        let table = &mut self.table;
        table.distrust(&cause);
        table.forget_said();
        table.forget_handshakes();
        if self.role() == Role::Primary {
            return; // only reversed connections were logged, and their clients are known
        }
        self.begin_census(now); // some connections may have begun unlogged
        self.tell_wire();
        self.sync(now, StateSyncEvent::Begin); // the replica's server lacks what passed unlogged
    }

    /// Begins to ask the primary for all its connections. Call this when all connections of the service have begun to pass this node, and
    /// some of them may be unknown to this node.
    pub(super) fn begin_census(&mut self, now: Instant) {
        self.table.begin_census(now);
        self.ask_about_older(now);
    }

    /// Asks the primary about connections that are older than the log, if a question is due.
    pub(super) fn ask_about_older(&mut self, now: Instant) {
        self.tell_table();
        if let Some(query) = self.table.poll_census(now) {
            self.actions.push_back(ServiceAction::AskAll { query });
        }
        if let Some(clients) = self.table.poll_question(now) {
            self.ask_nodes(clients);
        }
        self.ask_prefixes(now);
    }

    /// Asks for the terms of connections, each where it lives.
    fn ask_nodes(&mut self, clients: Vec<SocketAddr>) {
        let mut of_primary = Vec::new();
        let mut of_annexes = BTreeMap::<AnnexId, Vec<SocketAddr>>::new();
        for client in clients {
            match self.annexes.place(&client) {
                ServingNode::Primary => of_primary.push(client),
                ServingNode::Annex(annex) => of_annexes.entry(annex).or_default().push(client),
            }
        }
        if !of_primary.is_empty() {
            let clients = of_primary;
            self.actions.push_back(ServiceAction::Ask { clients });
        }
        let steps = of_annexes
            .into_iter()
            .map(|(annex, clients)| AnnexStep::Ask { annex, clients });
        self.actions.extend(steps.map(ServiceAction::Elsewhere));
    }

    /// A page of the primary's connections, as [`ServiceAction::AskAll`] asked. Call this after reading the log.
    pub(super) fn on_page(&mut self, now: Instant, page: CensusPage) {
        self.tell_table();
        self.table.on_page(page);
        self.ask_about_older(now);
    }

    /// Handles connections that left the table without a packet that shows their end. Closes their replicas. In a takeover, notes that
    /// these connections are decided, so that the takeover does not wait for them.
    pub(super) fn remove_ended(&mut self, now: Instant) {
        let has_replicas = self.table.config().has_replicas();
        for connection in self.table.take_gone() {
            if has_replicas {
                self.actions.push_back(ServiceAction::CloseReplica { connection });
            }
            self.decide(now, connection);
        }
    }

    /// The answer to [`ServiceAction::Ask`] or [`AnnexStep::Ask`]: the terms of some connections, from the kernel of the node `from`. Call this
    /// after reading the log. A node does not know of a connection that has moved meanwhile.
    pub(super) fn on_told(&mut self, now: Instant, from: ServingNode, told: Vec<ClientTerms>) {
        self.tell_table();
        for (client, terms) in told {
            if self.annexes.holder(&client) != Some(from) {
                continue;
            }
            let has_ended = terms.is_none();
            self.table.on_told((client, terms));
            if has_ended && from != ServingNode::Primary && self.table.find(client).is_none() {
                self.end_at_annex(client); // the log does not show the end of a connection that it does not have
            }
        }
        self.remove_ended(now);
        self.ask_about_older(now);
    }
}
