//! The steps of a connection from the log to the relay: its socket is made, made ready, fed, allowed to speak, and handed over.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use proto::action::ServiceIndex;
use proto::annex::ServingNode;
use proto::connection::Endpoint;
use proto::service::ServiceInput;
use proto::table::ConnectionId;
use proto::takeover;

use crate::{Core, Kernel};

/// A connection of a service.
pub(crate) type Key = (ServiceIndex, ConnectionId);

/// The sockets of connections that are on their way from the log to the relay.
pub(crate) struct Unfinished<K: Kernel> {
    restoring: BTreeMap<Key, Restoring<K::Restored>>,
    live: BTreeMap<Key, Live<K::Live>>,
    /// The endpoints of sockets that other nodes make, by service, client and node.
    elsewhere: BTreeMap<(ServiceIndex, SocketAddr, ServingNode), Endpoint>,
}

/// A connection between `Restore` and `Activate`.
struct Restoring<S> {
    endpoint: Endpoint,
    socket: S,
}

/// A connection between `Activate` and `HandOver`.
struct Live<S> {
    endpoint: Endpoint,
    socket: S,
}

/// Tells the node that a connection cannot be restored.
fn refuse<K: Kernel>(kernel: &K, core: &mut Core, (service, connection): Key, reason: String) {
    let refused = ServiceInput::Unrestorable { connection, reason };
    core.handle(kernel.now(), service, refused);
}

impl<K: Kernel> Default for Unfinished<K> {
    fn default() -> Self {
        Self {
            restoring: BTreeMap::new(),
            live: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
        }
    }
}

impl<K: Kernel> Unfinished<K> {
    pub fn is_empty(&self) -> bool {
        self.restoring.is_empty() && self.live.is_empty()
    }

    pub fn restore(&mut self, kernel: &mut K, core: &mut Core, key: Key) {
        let Some(connection) = core.service(key.0).table().get(key.1) else {
            return; // it ended meanwhile
        };
        let endpoint = connection.endpoint();
        let output = connection.unacknowledged_output(&endpoint);
        match kernel.restore(key.0, &endpoint, output) {
            Ok(socket) => drop(self.restoring.insert(key, Restoring { endpoint, socket })),
            Err(reason) => refuse(kernel, core, key, reason),
        }
    }

    pub fn make_ready(&mut self, kernel: &mut K, core: &mut Core, key: Key) {
        let Some(Restoring { socket, .. }) = self.restoring.get(&key) else {
            return;
        };
        if let Err(reason) = kernel.make_ready(socket) {
            self.give_up(kernel, core, key, reason);
        }
    }

    /// Drops a socket that is not live, and tells the node that its connection cannot be restored.
    fn give_up(&mut self, kernel: &mut K, core: &mut Core, key: Key, reason: String) {
        if let Some(Restoring { endpoint, socket }) = self.restoring.remove(&key) {
            kernel.drop_restored(key.0, &endpoint, socket);
        }
        refuse(kernel, core, key, reason);
    }

    /// Drops a socket that is not live, if there is one: another node keeps the connection.
    pub fn abandon(&mut self, kernel: &mut K, key: Key) {
        if let Some(Restoring { endpoint, socket }) = self.restoring.remove(&key) {
            kernel.drop_restored(key.0, &endpoint, socket);
        }
    }

    pub fn activate(&mut self, kernel: &mut K, core: &mut Core, key: Key) {
        let Some(Restoring { endpoint, socket }) = self.restoring.get(&key) else {
            return;
        };
        let connection = core.service(key.0).table().get(key.1);
        let fed = connection.map_or(Ok(()), |connection| {
            let late = connection.late_input(endpoint)?;
            kernel.feed(socket, endpoint, late)
        });
        if let Err(reason) = fed {
            return self.give_up(kernel, core, key, reason);
        }
        let Some(Restoring { endpoint, socket }) = self.restoring.remove(&key) else {
            return;
        };
        let is_quiet = connection.is_some_and(|connection| connection.is_quiet(&endpoint));
        let socket = match kernel.activate(key.0, &endpoint, socket, is_quiet) {
            Ok(socket) => socket,
            Err(reason) => return refuse(kernel, core, key, reason),
        };
        if let Some(connection) = connection.filter(|_| !is_quiet) {
            let offered = kernel.offered_window(&socket);
            for packet in takeover::wake(connection, offered, kernel.now()) {
                kernel.transmit(&packet);
            }
        }
        core.handle(kernel.now(), key.0, ServiceInput::Live { connection: key.1 });
        self.live.insert(key, Live { endpoint, socket });
    }

    pub fn hand_over(&mut self, kernel: &mut K, core: &mut Core, key: Key) {
        let Some(Live { endpoint, socket }) = self.live.remove(&key) else {
            return;
        };
        let (service, id) = key;
        let has_ended = core.service(service).table().get(id).is_none();
        match core.hand_over(kernel.now(), service, id, &endpoint) {
            Some(taken) => kernel.relay(service, id, endpoint, socket, taken),
            // If the client gets a RST, the node repeats the RST, because the first one may be lost.
            None => kernel.close_live(service, id, &endpoint, socket, has_ended),
        }
    }

    pub fn restore_at(&mut self, kernel: &mut K, core: &mut Core, key: Key, node: ServingNode) {
        let Some(connection) = core.service(key.0).table().get(key.1) else {
            return; // it ended meanwhile
        };
        let endpoint = connection.endpoint();
        kernel.restore_at(
            key.0,
            node,
            &endpoint,
            connection.unacknowledged_output(&endpoint),
        );
        self.elsewhere.insert((key.0, endpoint.client, node), endpoint);
    }

    pub fn start_at(&mut self, kernel: &mut K, core: &mut Core, key: Key, node: ServingNode) {
        let Some(connection) = core.service(key.0).table().get(key.1) else {
            return; // it ended meanwhile
        };
        let client = connection.client();
        let started = self
            .elsewhere
            .remove(&(key.0, client, node))
            .ok_or_else(|| "its socket was not made".to_owned())
            .and_then(|endpoint| {
                let late = connection.late_input(&endpoint)?;
                kernel.start_at(key.0, node, &endpoint, connection, late)
            });
        let input = match started {
            Ok(()) => ServiceInput::StartedAt { connection: key.1 },
            Err(reason) => ServiceInput::RefusedAt { client, node, reason },
        };
        core.handle(kernel.now(), key.0, input);
    }

    pub fn drop_at(&mut self, kernel: &mut K, service: ServiceIndex, client: SocketAddr, node: ServingNode) {
        self.elsewhere.remove(&(service, client, node));
        kernel.drop_at(service, node, client);
    }

    /// Drops the sockets of a service's unfinished connections.
    pub fn drop_all(&mut self, kernel: &mut K, service: ServiceIndex) {
        for (_, Restoring { endpoint, socket }) in take_of(&mut self.restoring, service) {
            kernel.drop_restored(service, &endpoint, socket);
        }
        for (_, Live { endpoint, socket }) in take_of(&mut self.live, service) {
            kernel.drop_live(service, &endpoint, socket);
        }
    }
}

/// Takes a service's entries out of a map.
fn take_of<T>(map: &mut BTreeMap<Key, T>, service: ServiceIndex) -> BTreeMap<Key, T> {
    let (taken, rest) = std::mem::take(map)
        .into_iter()
        .partition(|(key, _)| key.0 == service);
    *map = rest;
    taken
}
