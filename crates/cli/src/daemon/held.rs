//! Clients that the wire holds: their connections are being decided, or were taken over from a dead worker.

use std::collections::HashSet;
use std::net::SocketAddr;

use linux::network::sockets;
use linux::wire::Wire;
use proto::action::{Gate, ServiceIndex};

/// Limit for the number of clients that were held for dead workers since the last check. Above this limit, the clients
/// that have gone are released. The map has room for many more.
const MANY: usize = 4096;

/// Clients of one service that the wire holds.
#[derive(Default)]
pub(super) struct HeldClients {
    /// Clients whose connections are being decided.
    deciding: Vec<SocketAddr>,
    /// Number of clients that were held while the primary lived, since the last check for gone clients.
    told: usize,
}

impl HeldClients {
    /// Whether connections are being decided.
    pub(super) fn is_deciding(&self) -> bool {
        !self.deciding.is_empty()
    }

    /// Holds clients of the service at `vip`. Returns those that were held before and are released now.
    pub(super) fn hold(
        &mut self,
        wire: &mut Wire,
        (index, vip): (ServiceIndex, SocketAddr),
        clients: Vec<SocketAddr>,
    ) -> Vec<SocketAddr> {
        let is_wire = wire.gate(index).0 == Gate::Wire;
        let ended = if is_wire {
            self.forget_ended(wire, (index, vip), clients.len())
        } else {
            Vec::new()
        };
        if let Err(error) = wire.hold(index, &clients) {
            tracing::error!(%vip, connections = clients.len(), %error, "connections are not held: their clients' repeated SYNs may end them");
        }
        self.deciding = clients;
        ended
    }

    /// The connections are decided: their clients may open new ones.
    pub(super) fn settle(&mut self, wire: &mut Wire, index: ServiceIndex) {
        let clients = std::mem::take(&mut self.deciding);
        if let Err(error) = wire.settle(index, &clients) {
            tracing::error!(clients = clients.len(), %error, "clients whose connections were held cannot open new ones");
        }
    }

    /// Called before `more` clients are held. Releases clients that were held for a dead worker's connection and have no connection here
    /// now: their packets go to the primary again. Returns the released clients.
    fn forget_ended(
        &mut self,
        wire: &mut Wire,
        (index, vip): (ServiceIndex, SocketAddr),
        more: usize,
    ) -> Vec<SocketAddr> {
        self.told += more;
        if self.told <= MANY {
            return Vec::new();
        }
        let there: HashSet<SocketAddr> = match sockets::open_behind(vip, None) {
            Ok(there) => there.into_iter().map(|(client, _)| client).collect(),
            Err(error) => {
                tracing::warn!(%vip, %error, "cannot list open connections; clients that are gone stay held until the next check");
                return Vec::new();
            }
        };
        self.told = more;
        let mut held = wire.held(index);
        held.retain(|client| !there.contains(client));
        match wire.forget_clients(index, &held) {
            Ok(()) => held,
            Err(error) => {
                tracing::warn!(%vip, %error, "cannot release clients that are gone; they stay held until the next check");
                Vec::new()
            }
        }
    }
}
