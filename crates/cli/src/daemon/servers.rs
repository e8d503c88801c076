//! Finds out the state of this node's applications from the deaths of their processes, from their listeners, and from their answers to the
//! health probe.

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
    /// Socket cookies of the application's listeners, if its state is copied (`state_sync`). An application with none
    /// of these listeners was started again, and has lost the copied state.
    listeners: Option<Vec<u64>>,
    /// The application was started again, and the node does not know yet.
    has_restarted: bool,
}

impl ServiceApplication {
    /// Notes the listeners that the application has now.
    fn note_listeners(&mut self, found: Vec<u64>) {
        if let Some(known) = &mut self.listeners
            && !found.is_empty()
        {
            self.has_restarted |= !known.is_empty() && known.iter().all(|cookie| !found.contains(cookie));
            *known = found;
        }
    }
}

impl Servers {
    /// Assumes that all applications are alive.
    pub fn new(config: &Config, deaths: Deaths, watch: HealthWatch) -> Self {
        let now = linux::clock::now();
        let applications = config.services.iter().map(|service| ServiceApplication {
            address: service.application,
            presence: ListenerPresence::new(now),
            listeners: service
                .state_sync
                .as_ref()
                .map(|_| listeners_of(service.application)),
            has_restarted: false,
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

    /// Whether a service's application was started again since the last [`Servers::watch`]. The next `watch` tells the node of the restart,
    /// unless the node serves the service. Always false if the application's state is not copied.
    pub fn has_restarted(&mut self, service: ServiceIndex) -> bool {
        let application = &mut self.applications[usize::from(service)];
        if application.listeners.is_some() {
            application.note_listeners(listeners_of(application.address));
        }
        application.has_restarted
    }

    /// Tells the node about orphans and the state of each application.
    pub fn watch(&mut self, wire: &Wire, node: &mut Core) {
        let deaths = self.deaths.take().unwrap_or_else(|error| {
            tracing::error!(%error, "cannot read the ring of server deaths; a dead server may go unnoticed");
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
        for (index, application) in (0..).zip(&mut self.applications) {
            let deaths = wire.server_deaths(index);
            let serves = matches!(
                node.service(index).role(),
                Role::Joining | Role::Primary | Role::Claiming
            );
            let mut found = None;
            let is_dead = application.presence.is_dead(now, deaths, serves, || {
                let listeners = found.insert(listeners_of(application.address));
                if !listeners.is_empty() {
                    wire.forget_server_deaths(index, deaths);
                }
                !listeners.is_empty()
            });
            application.note_listeners(found.unwrap_or_default());
            if std::mem::take(&mut application.has_restarted) && !serves {
                node.handle(now, index, ServiceInput::Server(ApplicationState::Dead));
            }
            let server = match (is_dead, self.watch.is_hung(index)) {
                (true, _) => ApplicationState::Dead,
                (false, true) => ApplicationState::Hung,
                (false, false) => ApplicationState::Alive,
            };
            node.handle(linux::clock::now(), index, ServiceInput::Server(server));
        }
    }
}

/// Socket cookies of the listeners that get connections to `address`.
pub fn listeners_of(address: SocketAddr) -> Vec<u64> {
    match linux::network::sockets::listeners(address.port()) {
        Ok(listeners) => listeners
            .iter()
            .filter(|listener| accepts(listener.address, address))
            .map(|listener| listener.cookie)
            .collect(),
        Err(error) => {
            tracing::warn!(%error, "cannot list listening sockets; a server that listens again is not noticed until this succeeds");
            Vec::new()
        }
    }
}

/// Whether a listener at `listener` gets connections to `address`. A listener on all IPv6 addresses counts for IPv4 too: its program may
/// have forbidden that (IPV6_V6ONLY), but the lists of listeners do not show it.
pub fn accepts(listener: SocketAddr, address: SocketAddr) -> bool {
    let every = listener.ip().is_unspecified() && (listener.is_ipv6() || address.is_ipv4());
    listener.port() == address.port() && (every || listener.ip() == address.ip())
}
