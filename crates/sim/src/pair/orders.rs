//! Passes the operator's orders to the node's core, as the daemon's module `orders` does.

use std::net::SocketAddr;
use std::time::Duration;

use proto::Instant;
use proto::service::ServiceInput;

use super::annex::caller::annex_id;
use super::station::Station;

impl Station {
    /// `steadfast handover`. Ignored if the agent does not run, or if the core refuses the order.
    pub fn order_handover(&mut self, now: Instant) {
        let now = self.machine.clock.read(now);
        if self.machine.runs(now) && self.core.handle_handover(now, 0).is_ok() {
            self.machine.agent.wake(now);
        }
    }

    /// `steadfast migrate`. Ignored if the agent does not run, or if this node's core refuses the order.
    pub fn order_migrate(&mut self, now: Instant, clients: Vec<SocketAddr>, patience: Duration) {
        let now = self.machine.clock.read(now);
        if self.machine.runs(now) && self.core.cannot_migrate(now, 0).is_none() {
            let until = now + patience;
            self.core.handle(
                now,
                0,
                ServiceInput::Migrate {
                    clients,
                    annex: None,
                    until,
                },
            );
            self.machine.agent.wake(now);
        }
    }

    /// `steadfast migrate --to`, on a primary to an annex (`Some`), on a wire to an annex or to the primary (`None`). Ignored as above.
    pub(crate) fn order_migrate_to(
        &mut self,
        now: Instant,
        clients: Vec<SocketAddr>,
        annex: Option<usize>,
        patience: Duration,
    ) {
        let now = self.machine.clock.read(now);
        if self.machine.runs(now) && self.core.cannot_migrate(now, 0).is_none() {
            let until = now + patience;
            let annex = annex.map(annex_id);
            let order = ServiceInput::Migrate {
                clients,
                annex,
                until,
            };
            self.core.handle(now, 0, order);
            self.machine.agent.wake(now);
        }
    }

    /// `steadfast drain`. Ignored if the agent does not run, or if no node would serve afterwards.
    pub fn order_drain(&mut self, now: Instant) {
        let now = self.machine.clock.read(now);
        if self.machine.runs(now) && self.core.would_be_lost(now, 0).is_none() {
            self.core.handle(now, 0, ServiceInput::Leave(true));
            self.machine.agent.wake(now);
        }
    }

    /// `steadfast drain --off`. Ignored while no agent exists.
    pub fn order_return(&mut self, now: Instant) {
        let now = self.machine.clock.read(now);
        if self.machine.has_agent() {
            self.core.handle(now, 0, ServiceInput::Leave(false));
            self.machine.agent.wake(now);
        }
    }
}
