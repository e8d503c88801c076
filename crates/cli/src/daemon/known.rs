//! The wire is told again and again whose connections are open: all others become strangers to it.

use std::time::{Duration, Instant};

use proto::node::Node;

use super::carry_out::Executor;

/// A generation of known clients: long enough that telling costs nothing, short enough that clients which are gone do not pile up.
const GENERATION: Duration = Duration::from_secs(10);

/// When the wire was told last.
pub(super) struct Known(Instant);

impl Known {
    pub(super) fn new() -> Self {
        Self(Instant::now())
    }

    /// Tells it when it is time to.
    pub(super) fn renew(&mut self, executor: &Executor, node: &Node) {
        if self.0.elapsed() < GENERATION {
            return;
        }
        self.0 = Instant::now();
        let now = linux::clock::now();
        let services = u16::try_from(executor.services.len()).expect("few");
        let clients = (0..services).flat_map(|service| {
            let table = node.table(service);
            let open = table.iter().map(|(_, connection)| connection.client());
            let older = table.older(now).map(|(client, _)| client);
            open.chain(older).map(move |client| (service, client))
        });
        executor.wire.renew_known(clients);
    }
}
