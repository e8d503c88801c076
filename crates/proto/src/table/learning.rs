//! What a table does about connections that are older than it ([`crate::learn`]).

use std::net::SocketAddr;

use super::{Change, ConnectionId, Direction, Table};
use crate::Instant;
use crate::connection::Cause;
use crate::follower::Policy;
use crate::learn::Told;
use crate::packet::Segment;

impl Table {
    /// Clients whose connections are older than the log ([`crate::older`]), and why they are not protected.
    pub fn older(&self, now: Instant) -> impl Iterator<Item = (SocketAddr, Cause)> {
        self.older.iter(now).map(|client| {
            let barred = self.learner.barred(client);
            let cause = || Cause::Older(self.config.policy);
            (
                client,
                barred.map_or_else(cause, |reason| Cause::NotLearnt(reason.to_owned())),
            )
        })
    }

    /// Whether all packets of the service pass here.
    pub fn set_wire(&mut self, is_wire: bool) {
        if std::mem::replace(&mut self.is_wire, is_wire) && !is_wire {
            self.forget_said();
        }
    }

    /// Packets passed unlogged: what is being learnt begins anew.
    pub fn forget_said(&mut self) {
        self.learner.forget_candidates();
        self.older.forget_said();
    }

    /// Time has passed: silence proves that some connections were learnt rightly.
    pub fn prove(&mut self, now: Instant) {
        let slots = &mut self.slots;
        self.on_probation.retain(|&id| {
            let Some(connection) = slots.get_mut(id) else {
                return false;
            };
            connection.prove(now);
            connection.is_on_probation()
        });
    }

    /// Whom the primary is to be asked about now, if about anybody.
    pub fn poll_question(&mut self, now: Instant) -> Option<Vec<SocketAddr>> {
        self.is_wire.then(|| self.learner.poll_question(now)).flatten()
    }

    /// The primary answers.
    pub fn on_told(&mut self, told: Told) {
        let is_noted = self.older.said(told.0).is_some();
        if self.learner.on_told(told, is_noted) && self.is_wire {
            self.learn(told.0);
        }
    }

    pub(super) fn on_unknown(
        &mut self,
        now: Instant,
        direction: Direction,
        client: SocketAddr,
        segment: &Segment<'_>,
    ) -> Change {
        let said = self.older.said(client);
        self.older.note(now, direction, client, segment);
        let learns = self.is_wire && self.config.policy == Policy::Http;
        let is_ready = learns && self.learner.on_segment(now, direction, client, segment, said);
        let learnt = is_ready.then(|| self.learn(client)).flatten();
        learnt.map_or(Change::Unknown, Change::Opened)
    }

    /// Takes in a connection of which enough is known now.
    fn learn(&mut self, client: SocketAddr) -> Option<ConnectionId> {
        let connection = self.learner.learn(client, &self.config)?;
        self.older.forget(client);
        let id = self.insert(connection);
        self.on_probation.push(id);
        Some(id)
    }
}
