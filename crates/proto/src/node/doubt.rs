//! A node is in doubt if its agent was away for the agent timeout or longer: the other node may have gone on alone meanwhile. A wire
//! that announced that it leaves, and then stays, is in doubt as well: its primary may have gone on alone because of the announcement.
//!
//! With an arbiter the epoch resolves the doubt: a witness remembers which node has the epoch, and a fence switches one node off. Under
//! `fail-stop` only the other node itself knows whether it has gone on alone. It may also have lost its power since then, and nobody
//! knows what it told the clients. So this node does not trust what it knows until the other node confirms: it says that it is still
//! the partner in this epoch.
//!
//! * A primary closes its gate until its wire confirms. If the wire says anything else, or nothing, this node ends its connections
//!   silently before it goes on.
//! * A wire goes on logging, because all that its primary sends passes the wire. But if the wire takes over before the primary has
//!   confirmed, the wire restores no connection from the time before.
//! * The other node's agent may be away too, while its kernel goes on sending. A node in doubt waits for that agent as long as the
//!   other kernel answers, for 10 s at most. (A new agent that has not heard the other node yet waits without a bound.)
//! * A primary need not be in doubt to wait so. Its backup may have taken over by its own judgement of the paths, and its agent may have
//!   been stopped before it said so.
//! * A takeover is interrupted if the agent was away during it. The takeover goes on when the other node has answered and does not
//!   speak, or when the other node is silent. If the other node was heard after the interruption but did not answer, and is silent now,
//!   it may have gone on alone and died. Then the connections that are left are not restored.

use std::time::Duration;

use super::{Node, Service};
use crate::Instant;
use crate::action::{Action, Gate, Report, ServiceIndex};
use crate::role::Role;
use crate::standing::{Arbiter, Word};
use crate::takeover::Takeover;

/// How long a node in doubt waits for the other node's agent while that node's kernel answers. Longer than a supervisor takes to start
/// an agent again.
const AGENT_WAIT: Duration = Duration::from_secs(10);

impl Service {
    /// Whether this node still waits for the other node's agent, which was last heard at `heard`, so that the agent's silence does not
    /// count as death yet. Callers apply this only under `fail-stop`, and while the other node's kernel answers.
    fn waits_for_agent(&self, now: Instant, heard: Option<Instant>) -> bool {
        let since = match self.role() {
            Role::Primary => self.doubted.max(heard),
            _ => self.doubted,
        };
        since.is_some_and(|since| now.since(since) < AGENT_WAIT)
    }
}

impl Node {
    /// Whether this node waits for the other node's agent for the sake of the service `index`, if the other node's kernel answers.
    pub(super) fn waits_for_agent(&self, now: Instant, index: ServiceIndex) -> bool {
        let is_fail_stop = self.config.arbiter == Arbiter::FailStop;
        let heard = self.detector.last_heartbeat();
        is_fail_stop && self.service(index).waits_for_agent(now, heard)
    }

    /// Whether, under `fail-stop`, the agent was away for the agent timeout. Then it must hear the peer before it takes over more
    /// connections.
    pub(super) fn is_absent(&self, now: Instant) -> bool {
        self.config.arbiter == Arbiter::FailStop && now.since(self.ran) >= self.config.detector.agent_timeout
    }

    /// When this agent last ran. Once the node's actions are carried out, the node has dealt with all that happened before this time.
    pub const fn ran(&self) -> Instant {
        self.ran
    }

    /// Called when the agent runs. Begins a doubt if the agent was away for too long since it last ran.
    pub(super) fn look_at_absence(&mut self, now: Instant) {
        let ran = std::mem::replace(&mut self.ran, now);
        if now.since(ran) >= self.config.detector.agent_timeout {
            self.indices().for_each(|index| self.doubt(now, index));
        }
    }

    /// Begins a doubt for each service whose earlier agent was in doubt, or has been gone too long.
    pub(super) fn doubt_what_was_found(&mut self, now: Instant) {
        for index in self.indices() {
            let timeout = self.config.detector.agent_timeout;
            let found = self.service(index).config.found.as_ref();
            if found.is_some_and(|found| found.doubted.is_some() || now.since(found.seen) >= timeout) {
                self.doubt(now, index);
            }
        }
    }

    fn doubt(&mut self, now: Instant, index: ServiceIndex) {
        if self.config.arbiter != Arbiter::FailStop {
            return;
        }
        let service = &mut self.services[usize::from(index)];
        match service.role() {
            Role::Primary | Role::Backup => self.begin_doubt(now, index),
            Role::TakingOver => service.interrupted = Some(now),
            Role::Joining | Role::Claiming | Role::Returning | Role::Sole | Role::Standby => {}
        }
    }

    /// The other node was heard during this node's takeover. An answer to a heartbeat sent since the interruption ends the interruption.
    pub(super) fn hear_after_interruption(&mut self, index: ServiceIndex, word: &Word) {
        let interrupted = &mut self.services[usize::from(index)].interrupted;
        interrupted.take_if(|since| word.echo.is_some_and(|echo| echo >= *since));
    }

    /// The other node is silent, so an interrupted takeover goes on.
    pub(super) fn end_interruption(&mut self, index: ServiceIndex) {
        let last = self.detector.last_heartbeat();
        let service = &mut self.services[usize::from(index)];
        let Some(since) = service.interrupted.take() else {
            return;
        };
        if last >= Some(since) {
            service.doubted = Some(since);
            if service.takeover.as_ref().is_some_and(Takeover::is_drained) {
                self.distrust_log(index);
            }
        }
    }

    /// Begins a doubt. A heartbeat of the other node that answers a heartbeat sent before `since` confirms nothing.
    pub(super) fn begin_doubt(&mut self, since: Instant, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        service.doubted = Some(since);
        let is_primary = service.role() == Role::Primary;
        // The report comes before the gate: a new agent that finds the gate closed must know why.
        let report = Report::Doubted {
            service: index,
            is_primary,
            epoch: service.standing.epoch(),
        };
        self.actions.push_back(Action::Report(report));
        if is_primary {
            self.set_gate(index, Gate::Mute);
        }
    }

    /// Ends the doubt if the other node's word shows that it has not gone on alone. A word that does not answer a heartbeat sent since the
    /// doubt began does not count.
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

    /// The log has been read to its end for a takeover. If this node is in doubt, the takeover does not trust that log.
    pub(super) fn distrust_log(&mut self, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        if service.role() == Role::TakingOver && service.doubted.take().is_some() {
            let table = &mut service.table;
            table.distrust();
            table.forget_said();
            table.forget_handshakes();
        }
    }

    /// This node changes its role from `from` to `to`. A primary in doubt ends its connections, unless it becomes standby. Returns whether
    /// this node ended them.
    pub(super) fn end_doubted(&mut self, index: ServiceIndex, from: Role, to: Role) -> bool {
        let service = &mut self.services[usize::from(index)];
        service.interrupted = None;
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
