//! Whose connections the wire is told of: those that are being decided, and those of dead workers that were.

use std::collections::HashSet;
use std::net::SocketAddr;

use linux::network::sockets;
use linux::wire::Mode;
use proto::action::ServiceIndex;
use proto::node::Node;

use super::carry_out::Executor;

/// So many clients of dead workers are held before it is looked who of them has gone: the map has room for many times that.
const MANY: usize = 4096;

/// What the wire was told of one service.
#[derive(Default)]
pub(super) struct Held {
    /// Clients whose connections are being decided.
    deciding: Vec<SocketAddr>,
    /// Clients that were held beside a living primary, since it was looked last.
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

    /// Before `more` are held: who was held for a dead worker's connection, and has none here any more, is like any other client, and the
    /// primary's.
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
