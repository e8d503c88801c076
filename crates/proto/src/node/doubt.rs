//! A node whose agent was away for as long as an agent may be: the other one may have gone on alone meanwhile. So may the primary of a
//! wire that had left, and takes its leave back.
//!
//! With an arbiter the epoch tells: a witness remembers who has it, a fence leaves nobody to be in doubt. Under `fail-stop` only the
//! other node itself can tell, and it may have lost its power since, with all that it has told the clients. What this node then knows
//! is not what the clients know, unless the other one says that it is still its partner of this epoch.
//!
//! * A primary's gate is closed until its wire says so. If the wire says anything else, or nothing, the connections here end without a
//!   word before this node goes on.
//! * A wire goes on with its log: nothing passes it unlogged that its primary says. But if it takes over before the primary has said so,
//!   it restores nothing from the time before.
//! * The other node's agent may be away, too, while its kernel goes on to speak. A node in doubt waits for that agent as long as the
//!   other kernel answers, for 10 s at most. (A new agent, which has not heard the other one yet, waits without a bound.)

use std::time::Duration;

use super::{Node, Service};
use crate::Instant;
use crate::action::{Action, Gate, Report, ServiceIndex};
use crate::role::Role;
use crate::standing::{Arbiter, Word};

/// How long a node in doubt waits for the other node's agent while that node's kernel answers. Longer than a supervisor takes to start
/// an agent again.
const AGENT_WAIT: Duration = Duration::from_secs(10);

impl Service {
    /// Whether the silence of the other node's agent is no death yet: this node is in doubt, and that agent may come back. Only where
    /// that node's kernel answers.
    pub(super) fn waits_for_agent(&self, now: Instant) -> bool {
        self.doubted.is_some_and(|since| now.since(since) < AGENT_WAIT)
    }
}

impl Node {
    /// Whether a service is in doubt.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.services.iter().any(|service| service.doubted.is_some())
    }

    /// Whether the agent was away for so long that it must hear the peer before it takes over more: its last turn ended before.
    pub(super) fn is_absent(&self, now: Instant) -> bool {
        self.config.arbiter == Arbiter::FailStop && now.since(self.ran) >= self.config.detector.agent_timeout
    }

    /// Until when this agent was there: it has seen to all that it missed before, once its actions are carried out.
    pub const fn ran(&self) -> Instant {
        self.ran
    }

    /// The agent runs again, and may have been away since it ran last.
    pub(super) fn look_at_absence(&mut self, now: Instant) {
        let ran = std::mem::replace(&mut self.ran, now);
        let is_trusted = self.broken.trusts_absence;
        if now.since(ran) >= self.config.detector.agent_timeout && !is_trusted {
            self.indices().for_each(|index| self.doubt(now, index));
        }
    }

    /// The agent before this one may have been gone for long.
    pub(super) fn doubt_what_was_found(&mut self, now: Instant) {
        for index in self.indices() {
            let timeout = self.config.detector.agent_timeout;
            let found = self.service(index).config.found.as_ref();
            if found.is_some_and(|found| found.is_doubted || now.since(found.seen) >= timeout) {
                self.doubt(now, index);
            }
        }
    }

    fn doubt(&mut self, now: Instant, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        if self.config.arbiter != Arbiter::FailStop || !matches!(service.role(), Role::Primary | Role::Backup)
        {
            return;
        }
        self.begin_doubt(now, index);
    }

    /// Words of the other node that answer what was sent before `since` confirm nothing.
    pub(super) fn begin_doubt(&mut self, since: Instant, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        service.doubted = Some(since);
        let is_primary = service.role() == Role::Primary;
        // First: an agent that finds the gate closed must know why.
        let report = Report::Doubted {
            service: index,
            is_primary,
        };
        self.actions.push_back(Action::Report(report));
        if is_primary {
            self.set_gate(index, Gate::Mute);
        }
    }

    /// The other node may say that it has not gone on alone: what it said before it heard of this is no answer.
    pub(super) fn hear_confirmation(&mut self, index: ServiceIndex, word: &Word) {
        let service = &mut self.services[usize::from(index)];
        let is_partner = matches!(
            (service.role(), word.role),
            (Role::Primary, Role::Backup) | (Role::Backup, Role::Primary)
        );
        let is_same = is_partner && word.epoch == service.standing.epoch();
        let is_answer = |since: &mut Instant| word.echo.is_some_and(|echo| echo >= *since);
        if !is_same || service.doubted.take_if(is_answer).is_none() {
            return;
        }
        if service.role() == Role::Primary {
            self.set_gate(index, Gate::Primary);
        }
        let report = Report::Confirmed { service: index };
        self.actions.push_back(Action::Report(report));
    }

    /// The log has been read to its end, and what stands in it is to be taken over: not if it is in doubt.
    pub(super) fn distrust_log(&mut self, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        if service.role() == Role::TakingOver && service.doubted.take().is_some() {
            let table = &mut service.table;
            table.distrust();
            table.forget_said();
            table.forget_handshakes();
        }
    }

    /// This node goes on in another way, to `to`: a primary's connections that are in doubt end. Returns whether there were any.
    pub(super) fn end_doubted(&mut self, index: ServiceIndex, from: Role, to: Role) -> bool {
        let service = &mut self.services[usize::from(index)];
        if from == Role::Backup {
            service.doubted = service.doubted.filter(|_| to == Role::TakingOver);
            return false;
        }
        let ends = service.doubted.take().is_some() && to != Role::Standby;
        if ends {
            self.stand_down(index, false);
        }
        ends
    }
}
