//! Clients that the wire holds, that is, whose segments it does not pass on to the primary. The connection of such a client is being taken
//! over, or was taken over from a dead worker of the primary's application. The connection is *being decided* until it is known whether it
//! continues on this node or ends.

use std::collections::HashSet;
use std::net::SocketAddr;

use linux::network::sockets;
use linux::wire::Wire;
use proto::action::{Gate, ServiceIndex};

/// Number of clients that may be held for dead workers before the next check for ended connections. A check releases the clients whose
/// connections have ended. The map `held` has room for many more clients.
const MANY: usize = 4096;

/// Clients of one service that the wire holds.
#[derive(Default)]
pub(super) struct HeldClients {
    /// Clients whose connections are being decided.
    deciding: Vec<SocketAddr>,
    /// Number of clients that were held at [`Gate::Wire`], that is, for dead workers, since the last check for ended connections.
    told: usize,
}

impl HeldClients {
    /// Whether connections of the service are being decided.
    pub(super) fn is_deciding(&self) -> bool {
        !self.deciding.is_empty()
    }

    /// Holds `clients` of the service at `vip` while their connections are being decided. Returns the clients that were held earlier and
    /// are released now.
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
        self.deciding.extend(clients);
        ended
    }

    /// The connections of these clients pass the primary from now on, so the wire need not be told that they are decided.
    pub(super) fn note_reversed(&mut self, clients: &[SocketAddr]) {
        self.deciding.retain(|client| !clients.contains(client));
    }

    /// Tells the wire that the connections are decided. From now on, their clients may open new connections.
    pub(super) fn settle(&mut self, wire: &mut Wire, index: ServiceIndex) {
        let clients = std::mem::take(&mut self.deciding);
        if let Err(error) = wire.settle(index, &clients) {
            tracing::error!(clients = clients.len(), %error, "clients whose connections were held cannot open new ones");
        }
    }

    /// Releases clients that were held for a dead worker's connection and that have no open connection on this node any more: their
    /// segments go to the primary again. Does this only if more than [`MANY`] clients were held since the last time, including the `more`
    /// clients that the caller is about to hold. Returns the released clients.
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
