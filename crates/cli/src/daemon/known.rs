//! Tells the wire repeatedly which clients have open connections. All other clients become strangers.

use std::time::{Duration, Instant};

use proto::node::Node;

use super::kernel::LinuxKernel;

/// Lifetime of a generation of known clients. Long enough to cost little, short enough that clients that have left do not pile up.
const GENERATION: Duration = Duration::from_secs(10);

/// When the wire was last told the known clients.
pub(super) struct KnownRenewal(Instant);

impl KnownRenewal {
    pub(super) fn new() -> Self {
        Self(Instant::now())
    }

    /// Tells the wire the clients of all open connections. Does nothing if less than one [`GENERATION`] has passed since the last time.
    pub(super) fn renew(&mut self, kernel: &LinuxKernel, node: &Node) {
        if self.0.elapsed() < GENERATION {
            return;
        }
        self.0 = Instant::now();
        let now = linux::clock::now();
        let services = u16::try_from(kernel.services.len()).expect("few");
        let clients = (0..services).flat_map(|service| {
            let table = node.service(service).table();
            let open = table.iter().map(|(_, connection)| connection.client());
            let older = table.older(now).map(|(client, _)| client);
            open.chain(older).map(move |client| (service, client))
        });
        kernel.wire.renew_known(clients);
    }
}
