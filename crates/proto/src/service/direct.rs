//! What bypasses the log: output that the primary sends past the wire (commit modes `pr` and `immediate`), and packets for which the wire's
//! log has no room (commit mode `immediate`).

use super::Service;
use crate::Instant;
use crate::action::{ApplicationState, ServiceAction};
use crate::path::Reachability;
use crate::role::Role;

impl Service {
    /// Called after every event. Decides whether this primary may send output past the wire. If it may no longer, the kernel is told before
    /// the next heartbeat says so. A primary whose own path to the clients is lost or suspected sends through the wire: the backup does not
    /// take over while its own path works.
    pub(crate) fn judge_direct(&mut self, now: Instant) {
        let yields = self.leaving.hands_over || self.server != ApplicationState::Alive;
        let is_waited_for = self
            .peer
            .as_ref()
            .is_some_and(|peer| peer.role == Role::Backup && peer.epoch == self.epoch() && peer.direct);
        let has_path = matches!(
            self.path.outside(now),
            Reachability::Unknown | Reachability::Reached
        );
        let before = self.standing.says_direct();
        self.standing
            .set_direct(now, is_waited_for && has_path && !yields);
        let until = self.standing.direct_until();
        if std::mem::replace(&mut self.direct_until, until) != until {
            self.actions.push_back(ServiceAction::SetDirect { until });
        }
        if self.standing.says_direct() != before {
            self.tell_peer(now);
        }
        self.judge_immediate();
    }

    /// Decides whether this wire passes packets unlogged while its log is full. Both nodes must have the commit mode `immediate`: otherwise
    /// the node with another mode would lose its input commit without knowing it.
    fn judge_immediate(&mut self) {
        if self.role() == Role::TakingOver {
            return; // the closed gate lets nothing pass, and the log is still to be read to its end
        }
        let primary = self.peer.as_ref();
        let primary = primary.filter(|peer| peer.role == Role::Primary && peer.epoch == self.epoch());
        let may = self.config.table.is_immediate
            && self.role() == Role::Backup
            && primary.is_some_and(|peer| peer.immediate);
        if std::mem::replace(&mut self.is_immediate, may) != may {
            self.actions.push_back(ServiceAction::PassUnlogged { may });
        }
    }
}
