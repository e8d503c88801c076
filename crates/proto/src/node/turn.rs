//! What a node wants done next, and when it wants to be told of the time.

use super::{Node, Service};
use crate::Instant;
use crate::action::{Action, ServiceIndex};
use crate::state_sync::StateSync;
use crate::table::ConnectionId;
use crate::takeover::Takeover;

/// Where the node's caller is.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The connection whose steps are being polled, if nobody waits for anything on it.
    unhurried: Option<(ServiceIndex, ConnectionId)>,
    /// The action that was polled last is one of them.
    is_unhurried: bool,
}

impl Node {
    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.actions.is_empty() {
            self.plan_next();
        }
        let action = self.actions.pop_front();
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

    /// Whether the action that was polled last can wait for others that need the CPU: it is a step of taking over a connection on which
    /// nobody waits for anything.
    pub fn is_unhurried(&self) -> bool {
        self.turn.is_unhurried
    }

    /// Plans the steps of the next connection that is taken over: of all services first those on which someone waits.
    fn plan_next(&mut self) {
        for plan in [Takeover::plan_hurried, Takeover::plan_unhurried] {
            for (index, service) in (0..).zip(&mut self.services) {
                let takeover = service.takeover.as_mut();
                if takeover.is_some_and(|takeover| plan(takeover, index, &mut self.actions)) {
                    return;
                }
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
