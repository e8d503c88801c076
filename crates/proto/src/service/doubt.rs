//! A node is in doubt if its agent was away for the agent timeout or longer: the other node may have gone on alone meanwhile. A wire that
//! has announced that it leaves, but then stays, is in doubt as well: its primary may have gone on alone because of the announcement.
//!
//! With an arbiter the epoch resolves the doubt: a witness remembers which node has the epoch, and a fence switches one node off. Under
//! `fail-stop` only the other node itself knows whether it has gone on alone. It may also have lost its power since then, and nobody
//! knows what it told the clients. So this node does not trust what it knows until the other node confirms that the two
//! nodes are still partners in this epoch.
//!
//! * A primary closes its gate until its wire confirms. If the wire says anything else, or nothing, this node ends its connections silently
//!   before it goes on. The heartbeat of a wire that leaves also confirms, if it answers a heartbeat that this node sent after the doubt
//!   began.
//! * A wire goes on logging, because all that its primary sends passes the wire. But if the wire takes over before the primary has
//!   confirmed, the wire restores none of the connections in its log.
//! * The other node's agent may be away too, while its kernel goes on sending. A node in doubt waits for that agent as long as the
//!   other kernel answers, for 10 s at most. (A new agent that has not heard the other node yet waits without a bound.)
//! * A primary waits for the backup's agent in the same way even without a doubt. The backup may have taken over
//!   because the primary's path was broken, and the backup's agent may have been stopped before it said so.
//! * A takeover is interrupted if the agent was away during it. The takeover goes on when the other node has answered and does not
//!   speak, or when the other node is silent. If the other node was heard after the interruption but did not answer, and is silent now,
//!   it may have gone on alone and died. Then the connections that are left are not restored.

use std::time::Duration;

use super::{BrokenRule, Service};
use crate::Instant;
use crate::action::{Gate, OperatorReport, ServiceAction};
use crate::connection::UnprotectedCause;
use crate::detector::Detector;
use crate::role::Role;
use crate::standing::{Arbiter, StandingBeat};
use crate::takeover::Takeover;

/// How long a node in doubt waits for the other node's agent while that node's kernel answers. Longer than a supervisor takes to start
/// an agent again.
const AGENT_WAIT: Duration = Duration::from_secs(10);

impl Service {
    fn is_fail_stop(&self) -> bool {
        self.standing.config().arbiter == Arbiter::FailStop
    }

    /// Whether this node still waits for the other node's agent, so that the agent's silence does not count as death yet. This applies only
    /// while the other node's kernel answers.
    pub(crate) fn waits_for_agent(&self, peer: &Detector, now: Instant) -> bool {
        let since = match self.role() {
            Role::Primary => self.doubt.since().max(peer.last_heartbeat()),
            _ => self.doubt.since(),
        };
        let keeps_rule = self.is_fail_stop() && self.broken != Some(BrokenRule::ClaimInDoubt);
        keeps_rule && since.is_some_and(|since| now.since(since) < AGENT_WAIT)
    }

    /// Whether the other node's kernel lives, as far as this node knows. While the other node's agent is away, only probes show this, and a
    /// few probes or answers may be lost or late. A node in doubt waits anyway, so it counts the kernel as dead only after the agent
    /// timeout without an answer.
    pub(super) fn hears_kernel(&self, peer: &Detector, now: Instant) -> bool {
        let config = peer.config();
        let patience = if self.doubt.exists() {
            config.agent_timeout.max(config.patience())
        } else {
            config.patience()
        };
        peer.hears_kernel(now, patience)
    }

    /// The agent was away for the agent timeout. Under `fail-stop`, a primary or a backup comes into doubt, and a takeover is interrupted.
    pub(crate) fn on_absence(&mut self, now: Instant) {
        if !self.is_fail_stop() {
            return;
        }
        match self.role() {
            Role::Primary | Role::Backup => self.begin_doubt(now),
            Role::TakingOver => self.doubt.interrupt(now),
            Role::Joining | Role::Claiming | Role::Returning | Role::Sole | Role::Standby => {}
        }
    }

    /// The other node was heard during this node's takeover. An answer to a heartbeat sent since the interruption ends the interruption.
    pub(super) fn hear_after_interruption(&mut self, word: &StandingBeat) {
        self.doubt.hear(word.echo);
    }

    /// The other node is silent, so an interrupted takeover goes on.
    pub(super) fn end_interruption(&mut self, peer: &Detector) {
        let Some(since) = self.doubt.end_interruption() else {
            return;
        };
        if peer.last_heartbeat() >= Some(since) {
            self.doubt.begin(since);
            if self.takeover.as_ref().is_some_and(Takeover::is_drained) {
                self.distrust_log();
            }
        }
    }

    /// Begins a doubt. A heartbeat of the other node that answers a heartbeat sent before `since` confirms nothing.
    pub(super) fn begin_doubt(&mut self, since: Instant) {
        self.doubt.begin(since);
        let is_primary = self.role() == Role::Primary;
        // The report comes before the gate: a new agent that finds the gate closed must know why.
        let report = OperatorReport::Doubted {
            is_primary,
            epoch: self.standing.epoch(),
        };
        self.actions.push_back(ServiceAction::Report(report));
        if is_primary {
            self.set_gate(Gate::Mute);
        }
    }

    /// Ends the doubt if the other node's word shows that the other node has not gone on alone. A word that does not answer a heartbeat
    /// sent since the doubt began does not count.
    pub(super) fn hear_confirmation(&mut self, word: &StandingBeat) {
        let is_partner = matches!(
            (self.role(), word.role),
            (Role::Primary, Role::Backup) | (Role::Backup, Role::Primary)
        );
        let is_same = is_partner && word.epoch == self.standing.epoch();
        if !is_same || !self.doubt.confirm(word.echo) {
            return;
        }
        if self.role() == Role::Primary {
            self.set_gate(Gate::Primary);
        }
        let report = OperatorReport::Confirmed;
        self.actions.push_back(ServiceAction::Report(report));
    }

    /// Whether this node is a primary in doubt, and `word` comes from its wire, which has not confirmed yet. If a wire leaves, its primary
    /// goes on alone with the connections. But only the wire's confirmation shows that the wire itself has not gone on alone with them.
    pub(super) fn waits_for_confirmation(&self, word: &StandingBeat) -> bool {
        self.doubt.exists()
            && self.role() == Role::Primary
            && word.role == Role::Backup
            && word.epoch == self.standing.epoch()
    }

    /// The log has been read to its end for a takeover. If this node is in doubt, the takeover does not trust that log.
    pub(super) fn distrust_log(&mut self) {
        if self.role() == Role::TakingOver && self.doubt.end() {
            let table = &mut self.table;
            table.distrust(&UnprotectedCause::LogGap);
            table.forget_said();
            table.forget_handshakes();
        }
    }

    /// This node changes its role from `from` to `to`. A primary in doubt ends its connections, unless it becomes standby. Returns whether
    /// this node ended them.
    pub(super) fn end_doubted(&mut self, from: Role, to: Role) -> bool {
        self.doubt.end_interruption();
        if from == Role::Backup {
            if to != Role::TakingOver {
                self.doubt.end();
            }
            return false;
        }
        let ends = self.doubt.end() && to != Role::Standby;
        if ends {
            self.stand_down(false);
        }
        ends
    }
}
