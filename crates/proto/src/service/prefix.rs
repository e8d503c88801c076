//! The first input of connections that the primary relays since a takeover ([`crate::restart::prefix`]): this wire asks for it.

use super::Service;
use crate::Instant;
use crate::action::ServiceAction;
use crate::restart::prefix::{JoinStep, PrefixAnswer};
use crate::role::Role;
use crate::table::ConnectionId;

impl Service {
    /// Asks for what is due. Gives up connections whose input has not come for too long.
    pub(super) fn ask_prefixes(&mut self, now: Instant) {
        if !self.config.table.keep_input {
            return;
        }
        for (connection, client, input) in self.table.take_to_join() {
            self.prefixes.begin(connection, client, input);
        }
        if self.role() != Role::Backup {
            self.prefixes.clear();
            return;
        }
        let table = &self.table;
        let late = self
            .prefixes
            .handle_timeout(now, |connection| table.get(connection).is_some());
        for connection in late {
            self.refuse_prefix(
                now,
                connection,
                "the other node has not sent its earlier input".into(),
            );
        }
        while let Some(ask) = self.prefixes.poll_ask(now) {
            self.actions.push_back(ServiceAction::AskPrefix(ask));
        }
    }

    /// The primary has answered. Call this after reading the log.
    pub(super) fn on_prefix(&mut self, now: Instant, answer: &PrefixAnswer) {
        if self.role() != Role::Backup {
            return;
        }
        let Some(connection) = self.prefixes.find(answer) else {
            return; // an answer to an earlier question, or a copy
        };
        let (step, end) = match &answer.content {
            Ok(part) => (
                self.table.on_prefix(connection, part),
                (part.until, part.output.is_none()),
            ),
            Err(reason) => (JoinStep::Refused(reason.clone()), (0, false)),
        };
        self.prefixes.on_step(now, connection, &step, end);
        if let JoinStep::Refused(reason) = step {
            self.refuse_prefix(now, connection, reason);
        }
        self.ask_prefixes(now);
        self.tell_wire();
    }

    /// Number of connections whose first input has come since the agent's start, and of those that will lack it.
    pub const fn prefixes(&self) -> (u64, u64) {
        self.prefixes.counts()
    }

    fn refuse_prefix(&mut self, now: Instant, connection: ConnectionId, reason: String) {
        self.table.unlearn(now, connection, reason);
        self.decide(now, connection);
    }
}
