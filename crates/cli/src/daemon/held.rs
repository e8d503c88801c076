//! Clients that the wire holds: those whose connections are being decided, and those of a dead worker's connections that were taken over.

use std::collections::HashSet;
use std::net::SocketAddr;

use linux::network::sockets;
use linux::wire::Mode;
use proto::action::ServiceIndex;
use proto::node::Node;

use super::carry_out::Executor;

/// Number of held clients of dead workers after which those that are gone are looked for. The map has room for many times that.
const MANY: usize = 4096;

/// Clients of one service that the wire holds.
#[derive(Default)]
pub(super) struct Held {
    /// Clients whose connections are being decided.
    deciding: Vec<SocketAddr>,
    /// Number of clients held beside a living primary since the last look for gone ones.
    told: usize,
}

impl Held {
    /// Whether connections are being decided.
    pub(super) fn is_deciding(&self) -> bool {
        !self.deciding.is_empty()
    }
}

impl Executor {
    pub(super) fn hold(&mut self, node: &mut Node, index: ServiceIndex, clients: Vec<SocketAddr>) {
        if self.wire.gate(index).0 == Mode::Wire {
            self.forget_ended(node, index, clients.len());
        }
        if let Err(error) = self.wire.hold(index, &clients) {
            tracing::error!(%error, "connections are not held: their clients' repeated SYNs may end them");
        }
        self.services[usize::from(index)].held.deciding = clients;
    }

    pub(super) fn settle(&mut self, index: ServiceIndex) {
        let clients = std::mem::take(&mut self.services[usize::from(index)].held.deciding);
        if let Err(error) = self.wire.settle(index, &clients) {
            tracing::error!(%error, "clients whose connections were held cannot open new ones");
        }
    }

    /// Called before `more` clients are held. Releases clients that were held for a dead worker's connection and have no connection here
    /// now: their packets go to the primary again.
    fn forget_ended(&mut self, node: &mut Node, index: ServiceIndex, more: usize) {
        let service = &mut self.services[usize::from(index)];
        service.held.told += more;
        if service.held.told <= MANY {
            return;
        }
        let there: HashSet<SocketAddr> = match sockets::open_behind(service.vip, None) {
            Ok(there) => there.into_iter().map(|(client, _)| client).collect(),
            Err(error) => {
                tracing::warn!(%error, "who is held and has gone is not known");
                return;
            }
        };
        service.held.told = more;
        let mut held = self.wire.held(index);
        held.retain(|client| !there.contains(client));
        match self.wire.forget_clients(index, &held) {
            Ok(()) => node.handle_forgotten(index, &held),
            Err(error) => tracing::warn!(%error, "who is held and has gone stays so"),
        }
    }
}
