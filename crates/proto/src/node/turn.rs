//! A node's next action, and when its next timeout is due.
//!
//! The node plans the connections of a takeover one at a time, when no other action waits. After [`TURN_MAX`], the node offers no further
//! action, and a timeout is due at once. So the caller looks at new input, such as a verdict or a heartbeat, before the planning goes on.

use std::time::Duration;

use super::{Node, Service};
use crate::Instant;
use crate::action::{Action, ServiceIndex};
use crate::connection::Connection;
use crate::role::Role;
use crate::state_sync::StateSync;
use crate::table::ConnectionId;
use crate::takeover::Takeover;

/// Longest time of planning without a break. Not longer than an agent sleeps between two polls while there is traffic.
const TURN_MAX: Duration = Duration::from_millis(4);

/// The time from one [`handle_timeout`](Node::handle_timeout) to the next.
#[derive(Debug)]
pub(super) struct Turn {
    began: Instant,
    /// How long the turn has lasted.
    lasted: Duration,
    /// Whether the turn has reached [`TURN_MAX`] while connections are left to plan.
    is_over: bool,
    /// The connection whose steps are being polled, if neither side of the connection waits for anything.
    unhurried: Option<(ServiceIndex, ConnectionId)>,
    /// Whether the last polled action is a step of the connection in `unhurried`.
    is_unhurried: bool,
}

impl Turn {
    /// A turn that begins.
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            began: now,
            lasted: Duration::ZERO,
            is_over: false,
            unhurried: None,
            is_unhurried: false,
        }
    }

    /// The next turn begins.
    pub(super) fn renew(&mut self, now: Instant) {
        (self.began, self.lasted, self.is_over) = (now, Duration::ZERO, false);
    }

    /// A step of a takeover was carried out.
    pub(super) fn pass(&mut self, now: Instant) {
        self.lasted = now.since(self.began);
    }
}

impl Service {
    /// Whether this node takes over all or some connections, but has no right to speak until the arbiter or the primary answers. The
    /// primary may have gone on alone, and its application may execute the same requests.
    pub(super) fn is_mute(&self, now: Instant) -> bool {
        let is_over = |until: Instant| now >= until;
        let takes_over = self.role() == Role::TakingOver || self.is_busy();
        takes_over && self.standing.until().is_some_and(is_over)
    }
}

/// The service of `action`, if it is a step of taking over a connection.
const fn step_of(action: &Action) -> Option<ServiceIndex> {
    match *action {
        Action::Drain { service }
        | Action::Restore { service, .. }
        | Action::MakeReady { service, .. }
        | Action::Activate { service, .. }
        | Action::HandOver { service, .. } => Some(service),
        _ => None,
    }
}

impl Node {
    /// The next action to carry out.
    pub fn poll_action(&mut self) -> Option<Action> {
        while self.actions.is_empty() && self.plan_next() {}
        let action = self.next_action();
        self.turn.is_unhurried = match action {
            Some(Action::Restore { service, connection }) => {
                let entry = self.services[usize::from(service)].table.get_mut(connection);
                let is_unhurried = entry.is_some_and(|entry| {
                    entry.hold_input_end();
                    !entry.is_busy()
                });
                self.turn.unhurried = is_unhurried.then_some((service, connection));
                is_unhurried
            }
            Some(Action::MakeReady { service, connection } | Action::Activate { service, connection }) => {
                self.turn.unhurried == Some((service, connection))
            }
            Some(Action::Drain { service }) => self.turn.unhurried.is_some_and(|(of, _)| of == service),
            Some(Action::HandOver { service, connection }) => {
                self.turn.unhurried.take() == Some((service, connection))
            }
            Some(_) => false,
            None => {
                self.turn.unhurried = None;
                false
            }
        };
        action
    }

    /// The first action that need not wait. The steps of a takeover wait while the node has no right to speak.
    fn next_action(&mut self) -> Option<Action> {
        let now = self.turn.began + self.turn.lasted;
        let waits = |service: ServiceIndex| self.must_wait(now, service);
        let is_next = |action: &Action| !step_of(action).is_some_and(waits);
        let next = self.actions.iter().position(is_next)?;
        self.actions.remove(next)
    }

    /// Whether the steps of a service's takeover must wait: this node has no right to speak, or the agent was away and must hear the peer
    /// first.
    fn must_wait(&self, now: Instant, service: ServiceIndex) -> bool {
        let service = &self.services[usize::from(service)];
        let must = self.is_absent(now) || service.interrupted.is_some() || service.is_mute(now);
        must && !self.decides_mute
    }

    /// Removes and returns the steps of a service's takeover that were planned and not polled.
    pub(super) fn set_aside_steps(&mut self, index: ServiceIndex) -> Vec<Action> {
        let actions = std::mem::take(&mut self.actions);
        let (steps, others): (Vec<_>, Vec<_>) = actions
            .into_iter()
            .partition(|action| step_of(action) == Some(index));
        self.actions = others.into();
        steps
    }

    /// Checks a polled action. Call this just before carrying the action out, and carry out only the returned action. The agent may have
    /// been stopped since it polled the action, and the right to speak may have ended. In that case a takeover's step is queued again until
    /// the node may go on. If a connection can no longer be restored, because its log has a gap now, the connection is refused. Any other
    /// action is returned.
    pub fn admit(&mut self, now: Instant, action: Action) -> Option<Action> {
        let Some(service) = step_of(&action) else {
            return Some(action);
        };
        self.turn.pass(now);
        if self.must_wait(now, service) {
            self.actions.push_front(action);
            return None;
        }
        if let Action::Restore { connection, .. } = action
            && let Some(Err(reason)) = self.table(service).get(connection).map(Connection::restarts)
        {
            self.handle_unrestorable(now, service, connection, reason);
            return None;
        }
        Some(action)
    }

    /// Whether the last polled action can wait for other work that needs the CPU. This is the case if the action is a step of taking over a
    /// connection on which neither side waits for anything.
    pub fn is_unhurried(&self) -> bool {
        self.turn.is_unhurried
    }

    /// Whether connections on which a side waits are still to be taken over. If so, work that can wait should wait.
    pub fn is_in_a_hurry(&self) -> bool {
        let mut takeovers = self
            .services
            .iter()
            .filter_map(|service| service.takeover.as_ref());
        takeovers.any(Takeover::is_in_a_hurry)
    }

    /// Plans the steps of the next connection to take over. Connections on which a side waits come first, in all services. Returns false if
    /// there is nothing to plan now.
    fn plan_next(&mut self) -> bool {
        if self.turn.lasted >= TURN_MAX {
            let mut takeovers = self
                .services
                .iter()
                .filter_map(|service| service.takeover.as_ref());
            self.turn.is_over = takeovers.any(Takeover::has_next);
            return false;
        }
        let plans = [Takeover::plan_hurried, Takeover::plan_unhurried];
        plans.into_iter().any(|plan| {
            (0..).zip(&mut self.services).any(|(index, service)| {
                let Service { takeover, table, .. } = service;
                let takeover = takeover.as_mut();
                takeover.is_some_and(|takeover| plan(takeover, index, table, &mut self.actions))
            })
        })
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Instant {
        let of_service = |service: &Service| {
            let claim = service.claim.as_ref().and_then(|claim| {
                let due = claim.poll_timeout()?;
                if claim.is_begun() {
                    return Some(due);
                }
                Some(due.max(service.standing.claims_at()?))
            });
            [
                service.repeats.poll_timeout(),
                service.takeover.as_ref().and_then(Takeover::poll_timeout),
                claim,
                service.given_at(),
                service.standing.asks_at(),
                service.sync.as_ref().and_then(StateSync::poll_timeout),
                Some(service.path.asks_at()),
                service.failure.poll_timeout(),
            ]
        };
        let services = self.services.iter().flat_map(of_service).flatten();
        let turn = self.turn.is_over.then_some(self.turn.began);
        let services = services.chain(turn);
        services.fold(self.beat_due.min(self.detector.poll_timeout()), Instant::min)
    }
}

#[cfg(test)]
mod tests;
