//! Slows clients, by capping their windows in the kernel.

use std::net::SocketAddr;

use proto::action::ServiceIndex;
use proto::connection::Cap;

use super::carry_out::Executor;

impl Executor {
    /// Sets or removes a client's cap. The wire looks for caps only while there are any.
    pub(super) fn cap_window(&mut self, service: ServiceIndex, client: SocketAddr, cap: Option<Cap>) {
        if let Err(error) = self.wire.cap_window(service, client, cap) {
            tracing::warn!(%error, %client, "the client is not slowed as it should be");
        }
        let capped = &mut self.services[usize::from(service)].capped;
        if cap.is_some() {
            capped.insert(client);
        } else {
            capped.remove(&client);
        }
        if capped.is_empty() {
            self.wire.set_caps(service, false);
        }
    }
}
