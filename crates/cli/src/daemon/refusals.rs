//! Logs refusals: packets that did not come through the wire, and connections of programs on this node.

use linux::network::Network;
use linux::wire::Wire;

/// Number of refusals at the last check.
#[derive(Default)]
pub(super) struct Refusals {
    /// Connections of programs on this node, by service.
    local: Vec<u64>,
    /// Packets that did not come through the wire.
    past: u64,
}

impl Refusals {
    /// Logs what was refused since the last check. `services` are the names of the services.
    pub(super) fn tell<'a>(
        &mut self,
        wire: &Wire,
        network: &Network,
        services: impl ExactSizeIterator<Item = &'a str>,
    ) {
        self.local.resize(services.len(), 0);
        for (index, service) in (0..).zip(services) {
            let Ok(now) = wire.refused_local_clients(index) else {
                return; // the status reads the same counters, and logs the error
            };
            let before = std::mem::replace(&mut self.local[usize::from(index)], now);
            if now > before {
                tracing::warn!(
                    service,
                    connections = now - before,
                    "connections from this node were refused: programs bind another address than the node's own, or the node has none"
                );
            }
        }
        let Ok(now) = network.refused() else {
            return; // the guard is gone, which `mend` notices and logs
        };
        let before = std::mem::replace(&mut self.past, now);
        if now > before {
            let packets = now - before;
            tracing::warn!(
                packets,
                "refused packets to services: they bypassed the wire, or this node sent them while it is mute"
            );
        }
    }
}
