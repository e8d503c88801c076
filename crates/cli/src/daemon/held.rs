//! Clients that the wire holds: their connections are being decided, or were taken over from a dead worker.

use std::collections::HashSet;
use std::net::SocketAddr;

use linux::network::sockets;
use proto::action::{Gate, ServiceIndex};

use super::kernel::LinuxKernel;

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
}

impl LinuxKernel {
    /// Holds clients. Returns those that were held before and are released now.
    pub(super) fn hold_clients(&mut self, index: ServiceIndex, clients: Vec<SocketAddr>) -> Vec<SocketAddr> {
        let is_wire = self.wire.gate(index).0 == Gate::Wire;
        let ended = if is_wire {
            self.forget_ended(index, clients.len())
        } else {
            Vec::new()
        };
        if let Err(error) = self.wire.hold(index, &clients) {
            tracing::error!(%error, "connections are not held: their clients' repeated SYNs may end them");
        }
        self.services[usize::from(index)].held.deciding = clients;
        ended
    }

    pub(super) fn settle_clients(&mut self, index: ServiceIndex) {
        let clients = std::mem::take(&mut self.services[usize::from(index)].held.deciding);
        if let Err(error) = self.wire.settle(index, &clients) {
            tracing::error!(%error, "clients whose connections were held cannot open new ones");
        }
    }

    /// Called before `more` clients are held. Releases clients that were held for a dead worker's connection and have no connection here
    /// now: their packets go to the primary again. Returns the released clients.
    fn forget_ended(&mut self, index: ServiceIndex, more: usize) -> Vec<SocketAddr> {
        let service = &mut self.services[usize::from(index)];
        service.held.told += more;
        if service.held.told <= MANY {
            return Vec::new();
        }
        let there: HashSet<SocketAddr> = match sockets::open_behind(service.vip, None) {
            Ok(there) => there.into_iter().map(|(client, _)| client).collect(),
            Err(error) => {
                tracing::warn!(%error, "cannot list open connections; clients that are gone stay held until the next check");
                return Vec::new();
            }
        };
        service.held.told = more;
        let mut held = self.wire.held(index);
        held.retain(|client| !there.contains(client));
        match self.wire.forget_clients(index, &held) {
            Ok(()) => held,
            Err(error) => {
                tracing::warn!(%error, "cannot release clients that are gone; they stay held until the next check");
                Vec::new()
            }
        }
    }
}
