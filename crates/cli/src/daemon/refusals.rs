//! Logs refusals: packets that did not come through the wire, and connections of programs on this node.

use super::kernel::LinuxKernel;

/// Number of refusals at the last check.
#[derive(Default)]
pub(super) struct Refusals {
    /// Connections of programs on this node, by service.
    local: Vec<u64>,
    /// Packets that did not come through the wire.
    past: u64,
}

impl LinuxKernel {
    /// Logs what was refused since the last check.
    pub(super) fn tell_refusals(&mut self) {
        let services = u16::try_from(self.services.len()).expect("few");
        self.refusals.local.resize(services.into(), 0);
        for index in 0..services {
            let Ok(now) = self.wire.refused_local_clients(index) else {
                return; // the status reads the same counters, and logs the error
            };
            let before = std::mem::replace(&mut self.refusals.local[usize::from(index)], now);
            if now > before {
                tracing::warn!(
                    service = self.service_name(index),
                    connections = now - before,
                    "programs on this node were refused: they bind another address than the node's own, or it has none"
                );
            }
        }
        let Ok(now) = self.network.refused() else {
            return; // the guard is gone, which `mend` notices and logs
        };
        let before = std::mem::replace(&mut self.refusals.past, now);
        if now > before {
            let packets = now - before;
            tracing::warn!(
                packets,
                "refused packets to services that came past the wire, or from this node while it is mute"
            );
        }
    }
}
