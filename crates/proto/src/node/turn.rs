//! What a node wants done next, and when it wants to be told of the time.

use super::{Node, Service};
use crate::Instant;
use crate::action::Action;
use crate::state_sync::StateSync;
use crate::takeover::Takeover;

impl Node {
    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.actions.is_empty() {
            self.plan_next();
        }
        let Some(action) = self.actions.pop_front() else {
            self.is_unhurried = false;
            return None;
        };
        if let Action::Restore { service, connection } = action
            && let Some(connection) = self.services[usize::from(service)].table.get_mut(connection)
        {
            self.is_unhurried = !connection.is_busy();
            connection.hold_input_end();
        }
        Some(action)
    }

    /// Whether the action that was polled last, and its fellows, can wait for others that need the CPU: it takes over a connection on
    /// which no client waits for anything.
    pub fn is_unhurried(&self) -> bool {
        self.is_unhurried
    }

    /// Plans the steps of the next connection that is taken over, of the first service that has one.
    fn plan_next(&mut self) {
        for (index, service) in (0..).zip(&mut self.services) {
            let takeover = service.takeover.as_mut();
            if takeover.is_some_and(|takeover| takeover.plan_next(index, &mut self.actions)) {
                return;
            }
        }
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
            ]
        };
        let services = self.services.iter().flat_map(of_service).flatten();
        services.fold(self.beat_due.min(self.detector.poll_timeout()), Instant::min)
    }
}

#[cfg(test)]
mod tests;
