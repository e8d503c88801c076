//! Puts back what others removed from the node's network: filters, addresses, rules, interfaces.

use std::time::{Duration, Instant};

use super::kernel::LinuxKernel;
use agent::Core;

/// Time between two checks of the whole network.
const VERIFY: Duration = Duration::from_secs(2);

impl LinuxKernel {
    /// Puts back what others removed. The wire's tc filters are attached again at once; if that fails, the next attempts are made every
    /// [`VERIFY`]. Everything else is checked every [`VERIFY`], nftables' rules included. Returns whether this call checked everything.
    pub fn mend(&mut self, node: &mut Core) -> bool {
        let is_time = self.verified.elapsed() >= VERIFY;
        let concerned = self.filters.check();
        let again = if is_time {
            std::mem::take(&mut self.bare)
        } else {
            Vec::new()
        };
        for interface in concerned.iter().chain(&again).copied() {
            match self.wire.reattach(interface) {
                Ok(()) => tracing::warn!(
                    interface,
                    "something was removed from an interface; the wire's filters are attached again"
                ),
                Err(error) => {
                    if !again.contains(&interface) {
                        tracing::error!(
                            %error,
                            interface,
                            "something was removed from an interface; the wire's filters cannot be attached; trying again"
                        );
                    }
                    self.bare.push(interface);
                }
            }
        }
        if !is_time {
            return false;
        }
        self.verified = Instant::now();
        let names = self.services.iter().map(|service| service.name.as_str());
        self.refusals.tell(&self.wire, &self.network, names);
        self.follow_interfaces(node);
        self.follow_own_addresses();
        match self.network.verify() {
            Ok(missing) if missing.is_empty() => self.unmended.clear(),
            Ok(_) => match self.network.repair() {
                Ok(mended) => tracing::warn!(?mended, "someone changed the network; it is restored"),
                Err(error) => self.tell_once(&error.to_string()),
            },
            Err(error) => tracing::debug!(%error, "the network cannot be looked at"),
        }
        true
    }

    /// Logs what cannot be put back, unless it logged the same last time.
    fn tell_once(&mut self, error: &str) {
        if self.unmended != error {
            tracing::error!(error, "cannot restore the network; trying again");
            self.unmended = error.to_owned();
        }
    }
}
