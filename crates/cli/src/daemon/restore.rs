//! Carries out the steps of a connection from the log to the keeper: makes its socket in the kernel, feeds it and hands it over.

use anyhow::Context;
use linux::repair::RestoredSocket;
use proto::action::ServiceIndex;
use proto::connection::{Connection, Endpoint};
use proto::node::Node;
use proto::role::Role;
use proto::service::ServiceInput;
use proto::table::ConnectionId;
use proto::takeover::{self, HandedOver};

use super::carry_out::{Executor, ServiceResources};
use super::relay::{Handover, Live};

/// Maximum number of sockets kept ready for a takeover, per service. Enough for most services; each takes about 4 KB in the kernel.
const POOL_MAX: usize = 4096;
/// Divisor of the limit of open files: at most 1/4 may be sockets kept ready, because connections that are taken over need descriptors too.
const POOL_SHARE: usize = 4;
/// Maximum number of sockets that a service's pool gains between two looks at the rings.
const POOL_STEP: usize = 32;

/// Maximum number of sockets kept ready per service, for `services` services.
pub(super) fn pool_max(services: usize) -> anyhow::Result<usize> {
    let descriptors = linux::process::file_limit().context("asking for the limit of open files")?;
    Ok(POOL_MAX.min(descriptors / POOL_SHARE / services.max(1)))
}

/// A connection between `Restore` and `Activate`.
pub(super) struct Restoring {
    pub(super) endpoint: Endpoint,
    pub(super) socket: RestoredSocket,
}

/// Tells the node that a connection cannot be restored.
fn refuse(node: &mut Node, service: ServiceIndex, connection: ConnectionId, why: &impl std::fmt::Display) {
    let reason = why.to_string();
    let refused = ServiceInput::Unrestorable { connection, reason };
    node.handle(linux::clock::now(), service, refused);
}

impl Executor {
    /// Prepares sockets for connections that may have to be taken over.
    pub fn prepare_sockets(&mut self, node: &Node) {
        for (index, service) in (0..).zip(&mut self.services) {
            let wanted = match node.service(index).role() {
                Role::Backup => node.service(index).table().len().min(self.pool_max),
                Role::Joining
                | Role::Primary
                | Role::Claiming
                | Role::Returning
                | Role::TakingOver
                | Role::Sole
                | Role::Standby => 0,
            };
            if let Err(error) = service.pool.fill(wanted, POOL_STEP) {
                tracing::debug!(%error, service = service.name, "socket pool");
            }
        }
    }

    /// Whether no connection is on its way from the log to the keeper, no held connection is being decided, and no question to the arbiter
    /// is open.
    pub fn is_settled(&self) -> bool {
        let is_held = |service: &ServiceResources| service.held.is_deciding();
        self.restoring.is_empty()
            && self.relay.is_settled()
            && !self.services.iter().any(is_held)
            && !self.arbiter().is_asked()
    }

    pub(super) fn restore(&mut self, node: &mut Node, service: ServiceIndex, id: ConnectionId) {
        let Some(connection) = node.service(service).table().get(id) else {
            return;
        }; // it ended meanwhile
        let endpoint = connection.endpoint();
        let output = connection.output().slices(endpoint.unacknowledged.clone());
        let pool = &mut self.services[usize::from(service)].pool;
        match RestoredSocket::new(pool, &endpoint, output) {
            Ok(socket) => {
                self.restoring
                    .insert((service, id), Restoring { endpoint, socket });
            }
            Err(error) => refuse(node, service, id, &error),
        }
    }

    pub(super) fn step<E: std::fmt::Display>(
        &mut self,
        node: &mut Node,
        service: ServiceIndex,
        id: ConnectionId,
        step: impl FnOnce(&Restoring, &Node) -> Result<(), E>,
    ) {
        let Some(restoring) = self.restoring.get(&(service, id)) else {
            return;
        };
        if let Err(error) = step(restoring, node) {
            self.restoring.remove(&(service, id));
            refuse(node, service, id, &error);
        }
    }

    pub(super) fn activate(&mut self, node: &mut Node, service: ServiceIndex, id: ConnectionId) {
        self.step(node, service, id, |restoring, node| {
            let Some(connection) = node.service(service).table().get(id) else {
                return Ok(());
            };
            connection
                .late_input(&restoring.endpoint)?
                .try_for_each(|slice| restoring.socket.feed(slice))
                .map_err(|error| error.to_string())
        });
        let Some(Restoring { endpoint, socket }) = self.restoring.remove(&(service, id)) else {
            return;
        };
        let connection = node.service(service).table().get(id);
        let is_quiet = connection.is_some_and(Connection::is_quiet);
        let socket = match socket.activate(is_quiet) {
            Ok(socket) => socket,
            Err(error) => {
                refuse(node, service, id, &error);
                return;
            }
        };
        let now = linux::clock::now();
        if let Some(connection) = connection.filter(|_| !is_quiet) {
            let offered = linux::repair::offered_window(&socket).unwrap_or(0);
            let wake = takeover::wake(connection, offered, now);
            if let Err(error) = wake.iter().try_for_each(|packet| self.raw.send(packet)) {
                tracing::warn!(%error, client = %endpoint.client, "the client is not woken up");
            }
        }
        node.handle(now, service, ServiceInput::Live { connection: id });
        self.relay.add_live(service, id, socket, endpoint, now);
    }

    pub(super) fn hand_over(&mut self, node: &mut Node, service: ServiceIndex, id: ConnectionId) {
        let Some(Live {
            id: number,
            endpoint,
            socket,
        }) = self.relay.take_live(service, id)
        else {
            return;
        };
        let replica = self.replicas.take(service, id);
        let taken = node.hand_over(linux::clock::now(), service, id, &endpoint);
        // If the node refuses the connection, dropping the socket sends a RST. That RST may be lost; the node repeats it.
        if let Some(HandedOver { connection, syn_ack }) = taken {
            self.relay.hand_over(Handover {
                id: number,
                service,
                connection,
                syn_ack,
                endpoint,
                socket,
                replica,
            });
        }
    }
}
