//! A primary whose agent was away for as long as an agent may be: the backup may have taken over meanwhile.
//!
//! With an arbiter the epoch tells: a witness remembers who has it, a fence leaves nobody to be in doubt. Under `fail-stop` only the
//! backup itself can tell, and it may have lost its power since, with all that it has told the clients. So the gate is closed until the
//! backup says that it is still the wire of this epoch. If it says anything else, or nothing, the connections here are not what the
//! clients know: they end without a word before this node goes on.

use super::Node;
use crate::Instant;
use crate::action::{Gate, ServiceIndex};
use crate::role::Role;
use crate::standing::{Arbiter, Word};

impl Node {
    /// The agent runs again, and may have been away since it ran last.
    pub(super) fn look_at_absence(&mut self, now: Instant) {
        let ran = std::mem::replace(&mut self.ran, now);
        if now.since(ran) >= self.config.detector.agent_timeout {
            self.indices().for_each(|index| self.doubt(now, index));
        }
    }

    /// The agent before this one may have been gone for long.
    pub(super) fn doubt_what_was_found(&mut self, now: Instant) {
        for index in self.indices() {
            let found = self.service(index).config.found.as_ref();
            if found.is_some_and(|found| now.since(found.seen) >= self.config.detector.agent_timeout) {
                self.doubt(now, index);
            }
        }
    }

    fn doubt(&mut self, now: Instant, index: ServiceIndex) {
        let service = &mut self.services[usize::from(index)];
        if self.config.arbiter == Arbiter::FailStop && service.role() == Role::Primary {
            service.doubted = Some(now);
            self.set_gate(index, Gate::Mute);
        }
    }

    /// The backup may say that it has not taken over: what it said before it heard of this is no answer.
    pub(super) fn hear_confirmation(&mut self, index: ServiceIndex, word: &Word) {
        let service = &mut self.services[usize::from(index)];
        let is_wire = word.role == Role::Backup && word.epoch == service.standing.epoch();
        let is_answer = |since: &mut Instant| word.echo.is_some_and(|echo| echo >= *since);
        if is_wire && service.doubted.take_if(is_answer).is_some() {
            self.set_gate(index, Gate::Primary);
        }
    }

    /// This node goes on in another way, to `to`: connections that are in doubt end. Returns whether there were any.
    pub(super) fn end_doubted(&mut self, index: ServiceIndex, to: Role) -> bool {
        let service = &mut self.services[usize::from(index)];
        let ends = service.doubted.take().is_some() && to != Role::Standby;
        if ends {
            self.stand_down(index, false);
        }
        ends
    }
}
