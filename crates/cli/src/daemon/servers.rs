//! Finds out the state of this node's applications from the deaths of their processes and from their answers to the health probe.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use agent::Core;
use linux::wire::{Death, Deaths, Wire};
use proto::action::{ApplicationState, ServiceIndex};
use proto::application::ListenerPresence;
use proto::role::Role;
use proto::service::ServiceInput;

use super::health::HealthWatch;
use crate::config::Config;

/// The applications of all services.
pub struct Servers {
    deaths: Deaths,
    watch: HealthWatch,
    applications: Vec<ServiceApplication>,
}

/// One service's application.
struct ServiceApplication {
    address: SocketAddr,
    presence: ListenerPresence,
}

impl Servers {
    /// Assumes that all applications are alive.
    pub fn new(config: &Config, deaths: Deaths, watch: HealthWatch) -> Self {
        let now = linux::clock::now();
        let applications = config.services.iter().map(|service| ServiceApplication {
            address: service.application,
            presence: ListenerPresence::new(now),
        });
        Self {
            deaths,
            watch,
            applications: applications.collect(),
        }
    }

    /// Readable when a process has died.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.deaths.as_fd()
    }

    /// Tells the node about orphans and the state of each application.
    pub fn watch(&mut self, wire: &Wire, node: &mut Core) {
        let deaths = self.deaths.take().unwrap_or_else(|error| {
            tracing::error!(%error, "deaths of server processes are not noticed");
            Vec::new()
        });
        let mut orphans = BTreeMap::<ServiceIndex, Vec<SocketAddr>>::new();
        for Death { service, client } in deaths {
            orphans.entry(service).or_default().extend(client);
        }
        for (service, clients) in orphans {
            node.handle(linux::clock::now(), service, ServiceInput::Orphans(clients));
        }
        let now = linux::clock::now();
        for (index, ServiceApplication { address, presence }) in (0..).zip(&mut self.applications) {
            let deaths = wire.server_deaths(index);
            let serves = matches!(
                node.service(index).role(),
                Role::Joining | Role::Primary | Role::Claiming
            );
            let is_dead = presence.is_dead(now, deaths, serves, || {
                let is_left = is_listening(*address);
                if is_left {
                    wire.forget_server_deaths(index, deaths);
                }
                is_left
            });
            let server = match (is_dead, self.watch.is_hung(index)) {
                (true, _) => ApplicationState::Dead,
                (false, true) => ApplicationState::Hung,
                (false, false) => ApplicationState::Alive,
            };
            node.handle(linux::clock::now(), index, ServiceInput::Server(server));
        }
    }
}

/// Whether any listener gets connections to `address`.
fn is_listening(address: SocketAddr) -> bool {
    match linux::network::sockets::listeners(address.port()) {
        Ok(listeners) => listeners.iter().any(|&listener| accepts(listener, address)),
        Err(error) => {
            tracing::warn!(%error, "cannot list listening sockets; a server that listens again is not noticed until this succeeds");
            false
        }
    }
}

/// Whether a listener at `listener` gets connections to `address`. A listener on all IPv6 addresses counts for IPv4 too: its program may
/// have forbidden that, but `/proc` does not show it.
pub fn accepts(listener: SocketAddr, address: SocketAddr) -> bool {
    let every = listener.ip().is_unspecified() && (listener.is_ipv6() || address.is_ipv4());
    listener.port() == address.port() && (every || listener.ip() == address.ip())
}
