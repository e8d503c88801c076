//! The next actions and takeover steps that a service wants carried out.

use super::{BrokenRule, Service};
use crate::Instant;
use crate::action::ServiceAction;
use crate::role::Role;
use crate::state_sync::StateSync;
use crate::takeover::{Takeover, Urgency};

impl Service {
    /// Takes the next action. Steps of the takeover have their own queue ([`pop_step`](Self::pop_step)).
    pub(crate) fn pop_action(&mut self) -> Option<ServiceAction> {
        self.actions.pop_front()
    }

    /// Time of the latest change that the peer has not been told about. The caller must tell the peer.
    pub(crate) fn take_news(&mut self) -> Option<Instant> {
        self.news.take()
    }

    /// Whether this node takes over all or some connections, but has no right to speak until the arbiter or the primary answers. The
    /// primary may have gone on alone, and its application may execute the same requests.
    pub(super) fn is_mute(&self, now: Instant) -> bool {
        let is_over = |until: Instant| now >= until;
        let takes_over = match self.role() {
            Role::TakingOver => true,
            Role::Sole => self.takeover.is_some(),
            _ => self.is_busy(),
        };
        takes_over && self.standing.until().is_some_and(is_over)
    }

    /// Whether the steps of the takeover must wait: this node has no right to speak, or the agent was away and must hear the peer first.
    pub(crate) fn must_wait(&self, now: Instant) -> bool {
        (self.doubt.is_interrupted() || self.is_mute(now)) && self.broken != Some(BrokenRule::DecideMute)
    }

    /// The next planned step of the takeover.
    pub(crate) fn pop_step(&mut self) -> Option<(ServiceAction, Urgency)> {
        self.takeover.as_mut().and_then(Takeover::pop_step)
    }

    /// Returns `step`, a step of the takeover, if it may be carried out now. If the takeover must wait, the step is
    /// queued again. `must_hear`: this node must hear the peer first, so the takeover must wait. If the connection can
    /// no longer be restored, because its log has a gap now, the connection is refused.
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        (step, urgency): (ServiceAction, Urgency),
        must_hear: bool,
    ) -> Option<ServiceAction> {
        if must_hear || self.must_wait(now) {
            if let Some(takeover) = &mut self.takeover {
                takeover.put_back(step, urgency);
            }
            return None;
        }
        if let ServiceAction::Restore { connection } = step
            && let Some(entry) = self.table.get_mut(connection)
        {
            entry.refuse_input_end();
            if entry.is_busy()
                && let Some(takeover) = &mut self.takeover
            {
                takeover.hurry_begun(); // a side has spoken since the steps were planned
            }
            let is_migration = self.takeover.as_ref().is_some_and(Takeover::is_migration);
            let restores = if is_migration && !self.incoming.is_bereft(&entry.client()) {
                entry.moves()
            } else {
                entry.restarts()
            };
            if let Err(reason) = restores {
                if !self.keep_at_primary(now, connection, &reason, false) {
                    self.on_unrestorable(now, connection, reason);
                }
                self.conclude(now);
                return None;
            }
            self.note_restoring(now, connection);
        }
        Some(step)
    }

    /// Plans the steps of the next connection to take over. Returns false if there is nothing to plan now.
    pub(crate) fn plan(&mut self, now: Instant, urgency: Urgency) -> bool {
        let Some(takeover) = self.takeover.as_mut() else {
            return false;
        };
        let has_planned = match urgency {
            Urgency::Hurried => takeover.plan_hurried(&mut self.table, &mut self.actions),
            Urgency::Unhurried => takeover.plan_unhurried(&mut self.table, &mut self.actions),
        };
        if has_planned {
            self.conclude(now); // if the last connection turned out not to be restorable, the takeover ends here
        }
        has_planned
    }

    /// Whether the takeover has a connection to plan now.
    pub(crate) fn has_unplanned(&self) -> bool {
        self.takeover.as_ref().is_some_and(Takeover::has_next)
    }

    /// Whether the takeover must still plan connections whose client or server waits for something.
    pub(crate) fn is_in_a_hurry(&self) -> bool {
        self.takeover.as_ref().is_some_and(Takeover::is_in_a_hurry)
    }

    /// When this service next wants to be told of the time.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let claim = self.claim.as_ref().and_then(|claim| {
            let due = claim.poll_timeout()?;
            if claim.is_begun() {
                return Some(due);
            }
            Some(due.max(self.standing.claims_at()?))
        });
        let due = [
            self.repeats.poll_timeout(),
            self.takeover.as_ref().and_then(Takeover::poll_timeout),
            claim,
            self.given_at(),
            self.standing.asks_at(),
            self.sync.as_ref().and_then(StateSync::poll_timeout),
            Some(self.path.asks_at()),
            self.failure.poll_timeout(),
            self.exports.poll_timeout(),
            self.prefixes.poll_timeout(),
            self.outgoing.poll_timeout(),
            self.annexes.poll_timeout(),
            self.carried.poll_timeout(),
            self.standing.free_at(),
        ];
        due.into_iter().flatten().min()
    }
}
