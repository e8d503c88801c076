//! What the peer's word means for this node.

use super::{Arbiter, Event, Fitness, Role, Standing, Word};

impl Standing {
    /// What the peer's word means for this node.
    pub(super) fn event_of(&self, word: &Word) -> Option<Event> {
        if word.role.speaks_alone() {
            return self.event_of_voice(word);
        }
        let (later, same) = (word.epoch > self.epoch, word.epoch == self.epoch);
        let may_serve_it = !word.leaves && !self.leaves() && self.fitness.returns;
        let Fitness { serves, begins, .. } = self.fitness;
        match (self.role, word.role) {
            (Role::Joining, Role::Joining) => {
                let is_first = self.config.is_primary && serves || begins;
                (self.knows && is_first).then_some(Event::Begins)
            }
            // It is mute for this node, which has forgotten why: nobody serves.
            (Role::Joining, Role::Standby | Role::Returning) => {
                (self.knows && serves).then_some(Event::Begins)
            }
            // The same, but that node's clients do not reach it.
            (Role::Standby, Role::Joining) => (begins && !self.leaves()).then_some(Event::Begins),
            // It has not heard what this node has said alone since: its connections are not what the clients know.
            (Role::Joining, Role::Primary | Role::Claiming)
                if word.epoch < self.epoch && self.has_forgotten =>
            {
                self.knows.then_some(Event::Begins)
            }
            (Role::Joining, Role::Primary | Role::Claiming) => {
                (self.knows && may_serve_it).then_some(Event::PeerServes)
            }
            (Role::Standby, Role::Primary | Role::Claiming) => {
                (may_serve_it && word.epoch >= self.epoch).then_some(Event::PeerServes)
            }
            // To what this node said last; or said before it began anew, and has forgotten. Not one that is about to be switched off.
            (Role::Primary | Role::Sole, Role::Returning) => {
                let is_wanted = !word.leaves && !self.has_failed && !self.is_fencing;
                ((same || later) && is_wanted).then_some(Event::PeerReturns)
            }
            (Role::Claiming, Role::Returning) => {
                ((same || later) && !word.leaves && !self.has_asked).then_some(Event::PeerReturns)
            }
            // It was given an epoch that it has not used.
            (Role::Primary | Role::Claiming, Role::Backup) if later => Some(Event::PeerBack),
            (Role::Claiming, Role::Backup) => {
                // Else the arbiter may give the epoch to this node at any moment.
                let is_given =
                    self.config.arbiter == Arbiter::Witness && self.confirmed == Some(self.epoch + 1);
                let is_known = !self.has_asked || is_given;
                (same && !word.leaves && is_known).then_some(Event::PeerBack)
            }
            (Role::Returning, Role::Primary) => later.then_some(Event::Consented),
            // It was refused the right to serve, or has forgotten that it served, so nobody does; and it is mute.
            (Role::Returning, Role::Standby) => serves.then_some(Event::Begins),
            // Both are mute: the right was given to a node that had left meanwhile, or that has forgotten it. One begins, after both.
            (Role::Standby, Role::Standby) | (Role::Returning, Role::Returning) => {
                let is_first = word.leaves || word.epoch < self.epoch || same && self.config.is_primary;
                (is_first && !self.leaves() && serves).then_some(Event::Begins)
            }
            // It was given one that its last agent did not use. It could be followed, for the log has no gap; but to return is the one way
            // that is known to be right whatever has brought it there.
            (Role::Backup, Role::Primary | Role::Claiming) if later => Some(Event::PeerSpeaks),
            // Both began. Neither is heard, for each is held to the other's wire.
            (Role::Primary | Role::Claiming, Role::Primary | Role::Claiming) => {
                (later || same && !self.config.is_primary).then_some(Event::PeerSpeaks)
            }
            (Role::Primary, Role::Backup) => (same && word.leaves).then_some(Event::PeerLeaves),
            // It was refused what this node's arbiter gave to the agent before this one: it lets nothing pass any more.
            (Role::Primary, Role::Standby) if later || same => Some(Event::PeerLeaves),
            // It does not return to a node that is taken out, nor if it is itself. This node's consent to an earlier return may still be
            // under way.
            (Role::Primary, Role::Standby | Role::Joining) => {
                (word.leaves || self.leaves()).then_some(Event::PeerSilent)
            }
            (Role::Backup, Role::Primary) => (same && word.yields).then_some(Event::PeerYields),
            // It was the primary of this epoch, and has begun anew: its connections are here only.
            (Role::Backup, Role::Joining) => Some(Event::PeerYields),
            // It was refused what the arbiter gave to the agent before this one, which died before it knew: nobody else goes on.
            (Role::Backup, Role::Standby) => (later || same).then_some(Event::PeerYields),
            _ => None,
        }
    }

    /// The same for a peer that speaks alone.
    fn event_of_voice(&self, word: &Word) -> Option<Event> {
        let (later, same) = (word.epoch > self.epoch, word.epoch == self.epoch);
        let yields = match self.role {
            Role::Joining => true,
            Role::Standby => {
                let may_return = !self.leaves() && self.fitness.returns;
                let serves = word.role == Role::Sole && !word.leaves && may_return;
                return (serves && (later || same)).then_some(Event::PeerServes);
            }
            Role::Returning | Role::Primary | Role::Claiming => later,
            Role::Backup => later || same, // it may have forgotten its epoch, and have come to the same one
            // Of two that speak in the same epoch the configured primary goes on.
            Role::TakingOver | Role::Sole => later || same && !self.config.is_primary,
        };
        yields.then_some(Event::PeerSpeaks)
    }
}
