//! How the applications on this node are: the deaths of their processes, and their answers to the health probe.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use linux::wire::{Death, Deaths, Wire};
use proto::action::{Server, ServiceIndex};
use proto::node::Node;

use super::health::Watch;
use crate::config::Config;

/// How often a dead server's address is looked at: someone may have started it again.
const LOOK: Duration = Duration::from_millis(100);

/// The applications of all services.
pub struct Servers {
    deaths: Deaths,
    watch: Watch,
    addresses: Vec<SocketAddr>,
    looked: Instant,
}

impl Servers {
    /// All are alive, as far as is known.
    pub fn new(config: &Config, deaths: Deaths, watch: Watch) -> Self {
        let addresses = config.services.iter().map(|service| service.application);
        Self {
            deaths,
            watch,
            addresses: addresses.collect(),
            looked: Instant::now(),
        }
    }

    /// Readable when a process has died.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.deaths.as_fd()
    }

    /// Tells the node what is new.
    pub fn watch(&mut self, wire: &Wire, node: &mut Node) {
        let deaths = self.deaths.take().unwrap_or_else(|error| {
            tracing::error!(%error, "deaths of server processes are not noticed");
            Vec::new()
        });
        self.forgive(wire, deaths.iter().any(|death| death.client.is_none()));
        let mut orphans = BTreeMap::<ServiceIndex, Vec<SocketAddr>>::new();
        for Death { service, client } in deaths {
            orphans.entry(service).or_default().extend(client);
        }
        for (service, clients) in orphans {
            node.handle_orphans(linux::clock::now(), service, clients);
        }
        for index in 0..ServiceIndex::try_from(self.addresses.len()).expect("few") {
            let server = match (wire.server_dead(index), self.watch.is_hung(index)) {
                (true, _) => Server::Dead,
                (false, true) => Server::Hung,
                (false, false) => Server::Alive,
            };
            node.handle_server(linux::clock::now(), index, server);
        }
    }

    /// One of several listeners died (SO_REUSEPORT), or the service manager has started the program again.
    fn forgive(&mut self, wire: &Wire, is_news: bool) {
        let dead: Vec<_> = (0..)
            .zip(&self.addresses)
            .map(|(index, address)| (index, address, wire.server_deaths(index)))
            .filter(|(_, _, deaths)| *deaths > 0)
            .collect();
        if dead.is_empty() || !is_news && self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        for (index, &address, deaths) in dead {
            match linux::network::sockets::listeners(address.port()) {
                Ok(listeners) if listeners.iter().any(|&listener| accepts(listener, address)) => {
                    wire.forget_server_deaths(index, deaths);
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "a dead server stays dead"),
            }
        }
    }
}

/// Whether a listener at `listener` gets connections to `address`. One on all IPv6 addresses gets IPv4 too, unless its program
/// forbids it, which `/proc` does not tell.
pub fn accepts(listener: SocketAddr, address: SocketAddr) -> bool {
    let every = listener.ip().is_unspecified() && (listener.is_ipv6() || address.is_ipv4());
    listener.port() == address.port() && (every || listener.ip() == address.ip())
}
