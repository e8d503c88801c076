//! A node gives up its part in a service, because the operator wants it, the node's path is broken, or a step failed.

use super::{DRIFT, RoleChange, Standing, StandingBeat};
use crate::Instant;
use crate::path::Fitness;
use crate::role::{Role, RoleEvent};

impl Standing {
    /// Whether this node gives up its part: the operator wants it, or the node cannot do its part.
    pub const fn leaves(&self) -> bool {
        self.leaves || self.has_failed
    }

    /// Whether this node tells its peer not to count on this node. By this statement, a backup promises not to take over. So the backup
    /// does not make the statement while the arbiter may still give it the epoch that it has asked for.
    pub const fn says_that_it_leaves(&self) -> bool {
        match self.role {
            Role::Joining | Role::Returning | Role::Standby => self.leaves() || self.fitness.is_out,
            Role::Backup => self.leaves() && !self.has_asked,
            Role::Primary | Role::Claiming | Role::TakingOver | Role::Sole => self.leaves(),
        }
    }

    /// Sets what this node's path allows it to begin, and whether clients reach it.
    pub fn set_path(&mut self, now: Instant, fitness: Fitness, is_reached: bool) -> Option<RoleChange> {
        (self.fitness, self.is_reached) = (fitness, is_reached);
        match self.role {
            Role::Returning if !fitness.returns => self.change(now, RoleEvent::Withdrawn, 0),
            _ => None,
        }
    }

    /// This node is to give up its part in the service, or to take it again: by the operator's order, or because its path broke or works
    /// again.
    pub fn set_leaves(&mut self, now: Instant, leaves: bool) -> Option<RoleChange> {
        let left = self.leaves();
        self.leaves = leaves;
        self.on_leaving(now, left)
    }

    /// Carries out a change of [`leaves`](Self::leaves); `left` is its value before. A backup that takes its part again is in doubt: the
    /// primary may have relied on the promise and gone on alone (`service::doubt`).
    fn on_leaving(&mut self, now: Instant, left: bool) -> Option<RoleChange> {
        let leaves = self.leaves();
        if leaves && self.role == Role::Backup {
            self.lease_until = None; // it stops speaking now, so the primary need not wait
        }
        if left && !leaves && self.role == Role::Backup {
            self.keep_promise(now);
            (self.echoes_after, self.is_unconfirmed) = (now, true);
            if !self.has_asked {
                // This backup wanted the epoch before it made the promise. Because of the promise, the primary may be fencing this node by
                // now.
                (self.is_wanted, self.delayed) = (false, None);
            }
        }
        match self.role {
            Role::Returning if leaves => self.change(now, RoleEvent::Withdrawn, 0),
            _ => None,
        }
    }

    /// Notes that the primary may speak alone for one lease from now, because it relies on a promise of this node. This backup has just
    /// stopped saying that it leaves, or an earlier agent may have said this until now.
    pub(super) fn keep_promise(&mut self, now: Instant) {
        self.promised_until = now + self.config.lease + self.config.lease / DRIFT;
    }

    /// Extends the lease if the peer's word is a promise. A mute peer, or a wire that leaves, promises not to speak, and not to ask for the
    /// right to speak. Such a word stands in for the arbiter for one lease.
    pub(super) fn hear_promise(&mut self, word: &StandingBeat) {
        let is_mute = matches!(word.role, Role::Standby | Role::Returning);
        let is_promise = match self.role {
            Role::TakingOver | Role::Sole => is_mute && word.epoch >= self.epoch,
            Role::Claiming => {
                word.epoch == self.epoch && (is_mute || word.role == Role::Backup && word.leaves)
            }
            Role::Joining | Role::Primary | Role::Returning | Role::Backup | Role::Standby => false,
        };
        if is_promise && !self.config.lease.is_zero() {
            self.extend_lease(word);
        }
    }

    /// A step that the role needs has failed on this node, or has been made good. Until the step is made good, this node gives up its part
    /// like a node that leaves.
    pub fn set_failed(&mut self, now: Instant, has_failed: bool) -> Option<RoleChange> {
        let left = self.leaves();
        self.has_failed = has_failed;
        if !has_failed && self.role == Role::Backup && left && !self.leaves() {
            return self.change(now, RoleEvent::Withdrawn, 0); // packets may have bypassed its log meanwhile
        }
        let change = has_failed
            .then(|| self.change(now, RoleEvent::Failed, 0))
            .flatten();
        change.or_else(|| self.on_leaving(now, left))
    }

    /// Whether a step that the role needs has failed and has not been made good.
    pub const fn has_failed(&self) -> bool {
        self.has_failed
    }
}
