//! A node gives up its part in a service: the operator wants that, its path is broken, or a step failed.

use super::{Change, Standing};
use crate::Instant;
use crate::path::Fitness;
use crate::role::{Event, Role};

impl Standing {
    /// Whether this node gives up its part: the operator wants that, or it cannot play it.
    pub const fn leaves(&self) -> bool {
        self.leaves || self.has_failed
    }

    /// Whether this node tells its peer not to count on it.
    pub const fn says_that_it_leaves(&self) -> bool {
        let is_mute = matches!(self.role, Role::Joining | Role::Returning | Role::Standby);
        self.leaves() || is_mute && self.fitness.is_out
    }

    /// What this node's path allows it to begin, and whether clients reach it.
    pub fn set_path(&mut self, now: Instant, fitness: Fitness, is_reached: bool) -> Option<Change> {
        (self.fitness, self.is_reached) = (fitness, is_reached);
        match self.role {
            Role::Returning if !fitness.returns => self.change(now, Event::Withdrawn, 0),
            _ => None,
        }
    }

    /// This node is to have no part in the service, or to have one again: the operator wants it, or its path is broken.
    pub fn set_leaves(&mut self, now: Instant, leaves: bool) -> Option<Change> {
        let left = self.leaves();
        self.leaves = leaves;
        self.on_leaving(now, left)
    }

    /// It gives up its part, or has one again; before that it had given it up (`left`) or not.
    fn on_leaving(&mut self, now: Instant, left: bool) -> Option<Change> {
        let leaves = self.leaves();
        if leaves && self.role == Role::Backup {
            self.lease_until = None; // what it speaks for ends here, and the primary need not wait
        }
        match self.role {
            Role::Returning if leaves => self.change(now, Event::Withdrawn, 0),
            // The primary may have gone on without it on its word: what it has logged counts no more.
            Role::Backup if left && !leaves => self.change(now, Event::Withdrawn, 0),
            _ => None,
        }
    }

    /// A step that the role needs failed on this node, or was made good. Until then this node gives up its part, as one that leaves does.
    pub fn set_failed(&mut self, now: Instant, has_failed: bool) -> Option<Change> {
        let left = self.leaves();
        self.has_failed = has_failed;
        let change = has_failed.then(|| self.change(now, Event::Failed, 0)).flatten();
        change.or_else(|| self.on_leaving(now, left))
    }

    /// Whether a step that its role needed failed, and was not made good.
    pub const fn has_failed(&self) -> bool {
        self.has_failed
    }
}
