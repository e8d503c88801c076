//! What the operator orders, as the daemon's `orders` passes it on.

use proto::Instant;

use super::station::Station;

impl Station {
    /// `steadfast handover`; refused where it cannot be.
    pub fn order_handover(&mut self, now: Instant) {
        let now = self.clock.read(now);
        if self.runs(now) && self.core.handle_handover(now, 0).is_ok() {
            self.agent.wake(now);
        }
    }

    /// `steadfast drain`, refused if nobody would serve; or `steadfast drain --off`.
    pub fn order_drain(&mut self, now: Instant, leaves: bool) {
        let now = self.clock.read(now);
        if self.runs(now) && !(leaves && self.core.would_be_lost(now, 0).is_some()) {
            self.core.handle_leave(now, 0, leaves);
            self.agent.wake(now);
        }
    }
}
