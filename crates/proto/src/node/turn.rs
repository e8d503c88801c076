//! A node's next action, and when its next timeout is due.
//!
//! The caller polls the node's actions until there are none, and then calls [`Node::handle_idle`]. Each call of `handle_idle` plans only
//! one more connection of a takeover, because the steps of ten thousand connections would take megabytes of memory. After [`TURN_MAX`], the
//! node plans no further connection in this turn, and a timeout is due immediately. So the caller looks at new input, such as a verdict or
//! a heartbeat, before the planning goes on.

use std::time::Duration;

use super::Node;
use crate::Instant;
use crate::action::Action;
use crate::service::Service;
use crate::standing::Arbiter;
use crate::takeover::Urgency;

/// Longest time of planning without a break. Not longer than an agent sleeps between two polls while there is traffic.
const TURN_MAX: Duration = Duration::from_millis(4);
/// Time after which a timeout is due if the keeper is behind. Much shorter than the keeper needs for what it has yet to take.
const LOOK_AGAIN: Duration = Duration::from_micros(500);

impl Node {
    /// The next action to carry out. Actions of services come first, then the node's own probe and heartbeat, then the
    /// planned steps of takeovers.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.turn.step = None;
        if let Some(action) = self.next_action() {
            return Some(action);
        }
        let now = self.turn.now();
        if self.must_hear(now) {
            return None;
        }
        for (service, of) in (0..).zip(&mut self.services) {
            if !of.must_wait(now)
                && let Some((action, urgency)) = of.pop_step()
            {
                self.turn.step = Some(urgency);
                return Some(Action::Service(service, action));
            }
        }
        None
    }

    /// Call this when all polled actions are carried out and none is left. Plans the steps of the next connection to take over. Connections
    /// on which the client or the server waits come first, across all services. Returns whether [`poll_action`](Self::poll_action) should
    /// be called again.
    pub fn handle_idle(&mut self) -> bool {
        let now = self.turn.now();
        if self.must_hear(now) {
            return false;
        }
        if self.turn.lasted >= TURN_MAX {
            self.turn.is_over = self.services.iter().any(Service::has_unplanned);
            return false;
        }
        let urgencies = [Urgency::Hurried, Urgency::Unhurried].into_iter();
        let has_planned = urgencies
            .take(if self.turn.is_behind { 1 } else { 2 })
            .any(|urgency| {
                let mut services = self.services.iter_mut();
                services.any(|service| !service.must_wait(now) && service.plan(now, urgency))
            });
        self.turn.gives_way =
            !has_planned && self.turn.is_behind && self.services.iter().any(Service::has_unplanned);
        has_planned
    }

    /// Says whether the keeper is behind: it has yet to take many of the connections that were taken over. While it is, this node takes over
    /// only connections on which the client or the server waits. Otherwise a client that speaks now would wait until the keeper has taken
    /// thousands of idle connections first.
    pub fn set_behind(&mut self, is_behind: bool) {
        self.turn.is_behind = is_behind;
    }

    /// Whether the keeper is behind, as [`set_behind`](Self::set_behind) has said.
    pub fn is_behind(&self) -> bool {
        self.turn.is_behind
    }

    /// The next action that is not a step of a takeover.
    fn next_action(&mut self) -> Option<Action> {
        for (service, of) in (0..).zip(&mut self.services) {
            self.beat = self.beat.max(of.take_news());
            if let Some(action) = of.pop_action() {
                return Some(Action::Service(service, action));
            }
        }
        if std::mem::take(&mut self.probes) {
            return Some(Action::Probe);
        }
        let now = self.beat.take()?;
        Some(Action::Send(self.heartbeat(now)))
    }

    /// Whether, under `fail-stop`, the agent was away for the agent timeout. If so, this node must hear the peer before it takes over
    /// further connections.
    fn must_hear(&self, now: Instant) -> bool {
        self.config.arbiter == Arbiter::FailStop && self.is_absent(now)
    }

    /// Checks a polled action. Call this just before carrying the action out, and carry out only the returned action. The agent may have
    /// been stopped since it polled the action, and the right to speak may have ended. In that case a takeover's step is queued again until
    /// the node may go on. If a connection can no longer be restored, because its log has a gap now, the connection is refused. Any other
    /// action is returned.
    pub fn admit(&mut self, now: Instant, action: Action) -> Option<Action> {
        let Some(urgency) = self.turn.step.take() else {
            return Some(action);
        };
        self.turn.pass(now);
        let must_hear = self.must_hear(now);
        match action {
            Action::Service(service, action) => {
                let action = self.part(service).0.admit(now, (action, urgency), must_hear)?;
                Some(Action::Service(service, action))
            }
            Action::Send(_) | Action::Probe => Some(action),
        }
    }

    /// Whether the last polled action can wait for other work that needs the CPU. An action can wait if it is a step of taking over a
    /// connection on which neither side waits for anything. Call this before [`admit`](Self::admit).
    pub fn is_unhurried(&self) -> bool {
        self.turn.step == Some(Urgency::Unhurried)
    }

    /// Whether connections on which the client or the server waits are still to be taken over. If so, work that can wait should wait.
    pub fn is_in_a_hurry(&self) -> bool {
        self.services.iter().any(Service::is_in_a_hurry)
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Instant {
        let services = self.services.iter().filter_map(Service::poll_timeout);
        let turn = self.turn.is_over.then_some(self.turn.began);
        let behind = self.turn.gives_way.then(|| self.turn.now() + LOOK_AGAIN);
        let due = services.chain(turn).chain(behind);
        due.fold(self.beat_due.min(self.detector.poll_timeout()), Instant::min)
    }
}

#[cfg(test)]
mod tests;
