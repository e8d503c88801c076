//! How a table treats connections that are older than its log ([`crate::learn`]).

use std::net::SocketAddr;

use super::open::is_silent;
use super::{ConnectionId, Direction, Table, TableChange};
use crate::census::{CensusPage, PageQuery};
use crate::census::{ClientTerms, QUESTION_MAX};
use crate::connection::{Connection, UnprotectedCause};
use crate::export::ArrivedSnapshot;
use crate::packet::Segment;
use crate::restart::prefix::{JoinStep, PrefixPart};
use crate::restart::snapshot::SnapshotStanding;
use crate::{Instant, Seq};

impl Table {
    /// Clients whose connections are older than the log ([`crate::older`]), and why they are not protected.
    pub fn older(&self, now: Instant) -> impl Iterator<Item = (SocketAddr, UnprotectedCause)> {
        let policy = self.config.policy;
        self.older.iter(now).map(move |(client, is_silent)| {
            let cause = match self.learner.barred(client) {
                Some(reason) => UnprotectedCause::NotLearnt(reason.to_owned()),
                None if is_silent => UnprotectedCause::Silent(policy),
                None => UnprotectedCause::Older(policy),
            };
            (client, cause)
        })
    }

    /// Whether the client's connection is known to be older than the log.
    pub(crate) fn is_older(&self, client: SocketAddr) -> bool {
        self.older.contains(client)
    }

    /// Sets whether all packets of the service, or all packets of its reversed connections, pass this node.
    pub fn set_wire(&mut self, is_wire: bool) {
        if std::mem::replace(&mut self.is_wire, is_wire) && !is_wire {
            self.forget_said();
        }
    }

    /// Sets whether clients can be slowed: the primary does not slow clients of reversed connections, so these become unprotected instead.
    pub(crate) const fn set_slows(&mut self, slows: bool) {
        self.slows = slows;
    }

    /// The log may lack packets, for the reason `cause`. So nothing is certain about any connection.
    pub fn distrust(&mut self, cause: &UnprotectedCause) {
        let ids: Vec<_> = self.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.change(id, |connection| connection.unprotect(cause.clone()));
        }
    }

    /// Packets passed unlogged, so the learning of each connection starts again.
    pub fn forget_said(&mut self) {
        self.learner.forget_candidates();
        self.older.forget_said();
    }

    /// A learnt connection is on probation until a further request, or silence, proves that it was learnt correctly. Ends the probation of
    /// each connection that has this proof.
    pub fn prove(&mut self, now: Instant) {
        let open = &mut self.open;
        self.on_probation.retain(|&id| {
            let Some(connection) = open.get_mut(id) else {
                return false;
            };
            connection.prove(now);
            connection.is_on_probation()
        });
    }

    /// Begins to ask the primary which connections there are. Call this when all connections of the service have begun to pass this node.
    pub fn begin_census(&mut self, now: Instant) {
        self.census.begin(now);
    }

    /// Whether the primary has listed all its connections.
    pub fn is_census_complete(&self) -> bool {
        self.census.is_complete()
    }

    /// The page of the primary's list to ask for now, if any.
    pub fn poll_census(&mut self, now: Instant) -> Option<PageQuery> {
        self.is_wire.then(|| self.census.poll(now)).flatten()
    }

    /// Takes a page of the primary's list. The log has been read up to the page's arrival, so the table knows each listed
    /// connection that is younger than the log.
    pub fn on_page(&mut self, page: CensusPage) {
        if self.is_wire && self.census.takes(&page) {
            let asked = self.census.began();
            for (client, terms) in page.connections {
                self.on_answer(asked, (client, Some(terms)));
            }
        }
    }

    /// Remembers a reset connection, because a page that is under way may still name it.
    pub(super) fn remember_reset(&mut self, now: Instant, id: ConnectionId) {
        if let Some(client) = self.get(id).map(Connection::client)
            && self.census.is_under_way()
        {
            self.older.end(now, client);
        }
    }

    /// The clients to ask the primary about now, if any.
    pub fn poll_question(&mut self, now: Instant) -> Option<Vec<SocketAddr>> {
        if !self.is_wire {
            return None;
        }
        if self.learner.is_idle(now) {
            let mut unsure = self.older.unsure(now, QUESTION_MAX);
            unsure.extend(self.open.poll_silent(now));
            unsure
                .into_iter()
                .for_each(|client| self.learner.ask_about(client));
        }
        self.learner.poll_question(now)
    }

    /// Takes an answer of the primary. As for [`on_page`](Self::on_page), the log has been read up to the answer's arrival.
    pub fn on_told(&mut self, told: ClientTerms) {
        if let Some(asked) = self.learner.take_answer(told.0)
            && self.is_wire
        {
            self.on_answer(asked, told);
        }
    }

    /// Takes what the primary's kernel knows of a connection. The question was asked at `asked`.
    fn on_answer(&mut self, asked: Instant, (client, terms): ClientTerms) {
        let ended_since = self.ended.has_ended_since(asked, client);
        if terms.is_none() {
            self.on_vanished(asked, client);
        }
        let is_known = self.find(client).is_some() || self.ended.is_handed_over(client);
        if is_known || ended_since {
            return;
        }
        let Some(terms) = terms else {
            self.learner.on_absent(client, self.older.contains(client));
            self.older.deny(asked, client);
            return;
        };
        self.older.confirm(asked, client);
        if self.learner.on_terms(client, terms) {
            self.learn(client);
        }
    }

    /// The primary, asked at `asked`, has no connection of this client.
    fn on_vanished(&mut self, asked: Instant, client: SocketAddr) {
        let id = self.find(client);
        if let Some(id) = id
            && self.get(id).is_some_and(|it| is_silent(it, asked))
        {
            self.discard(id);
        }
    }

    pub(super) fn on_unknown(
        &mut self,
        now: Instant,
        direction: Direction,
        client: SocketAddr,
        segment: &Segment<'_>,
    ) -> TableChange {
        let said = self.older.said(client);
        self.older.note(now, direction, client, segment);
        let learns = self.is_wire && self.config.learns();
        let is_ready = learns && self.learner.on_segment(now, direction, client, segment, said);
        if self.is_wire && !learns && !self.older.contains(client) {
            self.learner.want(client, true); // so that the primary is asked whether it has a connection of this client
        }
        let learnt = is_ready.then(|| self.learn(client)).flatten();
        learnt.map_or(TableChange::Unknown, TableChange::Opened)
    }

    /// The connections that were learnt since the last call, and whose first input the other node has yet to send. Each comes with its client
    /// and the sequence number at which its log begins.
    pub(crate) fn take_to_join(&mut self) -> Vec<(ConnectionId, SocketAddr, Seq)> {
        let ids = std::mem::take(&mut self.to_join).into_iter();
        let learnt = ids.filter_map(|id| self.get(id).map(|it| (id, it.client(), it.input().first())));
        learnt.collect()
    }

    /// A part of the connection's first input has come.
    pub(crate) fn on_prefix(&mut self, id: ConnectionId, part: &PrefixPart) -> JoinStep {
        let step = self.change_at(id, None, |connection| connection.on_prefix(part));
        step.unwrap_or_else(|| JoinStep::Refused("the connection has ended".to_owned()))
    }

    /// The client has a connection on an annex. What the primary has said of it does not count; the annex is to be asked.
    pub(crate) fn look_up(&mut self, client: SocketAddr) {
        self.learner.forget(client);
        self.learner.ask_about(client);
    }

    /// Removes a connection that was learnt wrongly. The client's connection counts as older again and is never learnt; `reason` says why.
    pub(crate) fn unlearn(&mut self, now: Instant, id: ConnectionId, reason: String) {
        if let Some(connection) = self.remove(id) {
            self.learner.bar(connection.client(), reason);
            self.older.confirm(now, connection.client());
        }
    }

    /// The primary's application has exported a snapshot. Returns where the snapshot stands.
    pub(crate) fn on_snapshot(&mut self, client: SocketAddr, arrived: ArrivedSnapshot) -> SnapshotStanding {
        let ArrivedSnapshot { number, place, state } = arrived;
        let refused = |why: &str| SnapshotStanding::Refused(why.to_owned());
        let Some(id) = self.find(client) else {
            return refused("the wire does not follow the connection");
        };
        let standing = self.change_at(id, None, |connection| {
            connection.on_snapshot(number, place, state)
        });
        // The logs may be full, and the connection may have been given up for that.
        match self.get(id).map(Connection::is_spoiled) {
            Some(false) => standing.unwrap_or_else(|| refused("the connection has ended")),
            Some(true) | None => refused("the connection's log was given up"),
        }
    }

    /// Removes a connection whose log has become useless, so that it can be learnt again.
    pub(super) fn learn_again(&mut self, now: Instant, id: ConnectionId) {
        if let Some(connection) = self.remove(id) {
            self.older.confirm(now, connection.client());
        }
    }

    /// The client begins a new connection.
    pub(super) fn forget_older(&mut self, client: SocketAddr) {
        self.older.forget(client);
        self.learner.forget(client);
    }

    /// Adds the client's connection to the table, if enough is known about it.
    fn learn(&mut self, client: SocketAddr) -> Option<ConnectionId> {
        let connection = self.learner.learn(client, &self.config)?;
        self.older.forget(client);
        let id = self.insert(connection);
        self.on_probation.push(id);
        if self.get(id).is_some_and(|learnt| learnt.follower().is_joining()) {
            self.to_join.push(id);
        }
        Some(id)
    }
}
