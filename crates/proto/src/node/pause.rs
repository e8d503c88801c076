//! This node's clock stood still for a while.

use crate::Instant;
use crate::action::Action;
use crate::node::Node;

impl Node {
    /// The clock stood still until `now`, so leases may have ended. They count again once the peer has echoed a heartbeat sent from now on.
    /// Until then this node asks the arbiter first. A lease that this node has granted to the peer ends later by this node's
    /// clock than by the peer's. That is safe.
    pub fn handle_pause(&mut self, now: Instant) {
        for service in self.indices() {
            let standing = &mut self.services[usize::from(service)].standing;
            standing.on_pause(now);
            let until = standing.until();
            if until.is_some() {
                self.actions.push_back(Action::SetUntil { service, until });
            }
        }
    }
}
