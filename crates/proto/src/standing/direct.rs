//! The right to send output past the wire (commit mode `pr`, docs/commit-modes.md): the primary's lease, and the backup's wait for its end.
//!
//! ```text
//!   primary   sent ──▶ echoed by the backup ──▶ it sends directly until sent + lease, by the kernel's clock
//!   backup              heard ──▶ the primary is surely silent at heard + lease + drift: the backup may take over
//! ```
//!
//! The backup's wait ends early if the primary says that it sends nothing directly, or if the fence's command has succeeded. So before the
//! primary says this, its kernel must know it.

use super::{Arbiter, DRIFT, DirectOutput, RoleChange, Standing, StandingBeat};
use crate::Instant;
use crate::role::{Role, RoleEvent};

impl Standing {
    /// What this node's next heartbeat says. On a primary: it sends output directly. On a backup: it would wait for the end of that, so the
    /// primary may begin or go on. A backup that wants to take over does not say so, and then the primary stops.
    pub const fn says_direct(&self) -> bool {
        match self.role {
            Role::Primary => self.direct.said_since.is_some(),
            Role::Backup => {
                let wants_epoch = self.is_wanted || self.has_asked || self.direct.is_ordered;
                self.config.sends_directly && !wants_epoch && !self.leaves()
            }
            Role::Joining
            | Role::Claiming
            | Role::Returning
            | Role::TakingOver
            | Role::Sole
            | Role::Standby => false,
        }
    }

    /// Until when this primary may send output directly. `None`: all output goes through the wire.
    pub const fn direct_until(&self) -> Option<Instant> {
        self.direct.until
    }

    /// Until when this backup may not take over, because the primary may still send directly.
    pub const fn free_at(&self) -> Option<Instant> {
        self.direct.free_at
    }

    /// Whether the primary may still send output that this backup's gate cannot stop.
    pub(super) fn waits_for_output(&self, now: Instant) -> bool {
        self.role == Role::Backup && self.direct.free_at.is_some_and(|at| now < at)
    }

    /// Sets whether this node, if it is the primary, may send directly: it does not give up its part, and the backup waits. Before the next
    /// heartbeat is made, the caller must tell the kernel the new [`direct_until`](Self::direct_until).
    pub fn set_direct(&mut self, now: Instant, may: bool) {
        let may = may && self.role == Role::Primary && self.config.sends_directly && !self.leaves();
        match (may, self.direct.said_since) {
            (true, None) => self.direct.said_since = Some(now),
            (false, _) => (self.direct.said_since, self.direct.until) = (None, None),
            (true, Some(_)) => {}
        }
    }

    /// Notes what the peer's word says of direct output.
    pub(super) fn hear_direct(&mut self, now: Instant, word: &StandingBeat) {
        if self.is_wire_of(word) {
            let wait = self.config.lease + self.config.lease / DRIFT;
            self.direct.free_at = word.direct.then(|| now + wait);
        }
        let is_my_wire = self.role == Role::Primary && word.role == Role::Backup && word.epoch == self.epoch;
        if let (true, true, Some(since)) = (is_my_wire, word.direct, self.direct.said_since) {
            // A heartbeat that was sent at the same instant may have been made before the decision to send directly.
            let fresh = word.echo.filter(|sent| *sent > since);
            let until = fresh.map(|sent| sent + self.config.lease);
            self.direct.until = self.direct.until.max(until);
        }
    }

    /// The clock stood still until `now`: this primary's lease may have ended, and earlier heartbeats give no new one.
    pub(super) fn forget_direct(&mut self, now: Instant) {
        self.direct.until = None;
        self.direct.said_since = self.direct.said_since.map(|_| now);
    }

    /// An earlier agent of this backup may have let the primary send directly until now.
    pub(super) fn expect_direct(&mut self, now: Instant) {
        if self.role == Role::Backup && self.config.sends_directly {
            self.direct.free_at = Some(now + self.config.lease + self.config.lease / DRIFT);
        }
    }

    /// The fence has switched the primary off.
    pub(super) fn end_output(&mut self) {
        if self.config.arbiter == Arbiter::Fence {
            self.direct.free_at = None;
        }
    }

    /// This backup was ordered to take over.
    pub(super) fn order_takeover(&mut self) {
        self.direct.is_ordered = true;
    }

    /// Forgets everything of an earlier role.
    pub(super) fn leave_direct(&mut self) {
        self.direct = DirectOutput::default();
    }

    /// Time has passed: takes over, if this backup only waited for the end of the primary's output.
    pub fn on_output_ended(&mut self, now: Instant) -> Option<RoleChange> {
        if self.role != Role::Backup || self.waits_for_output(now) {
            return None;
        }
        self.direct.free_at = None;
        if self.has_asked && self.confirmed == self.wanted() {
            // The other node can no longer get this epoch.
            return self.change(now, RoleEvent::PeerSilent, 0);
        }
        if std::mem::take(&mut self.direct.is_ordered) {
            return self.on_handover(now);
        }
        None
    }
}
