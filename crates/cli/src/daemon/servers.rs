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
    dead: Vec<Dead>,
}

/// When it was looked last whether a server is left, and how many deaths there were then.
struct Dead {
    found: u32,
    looked: Instant,
}

impl Servers {
    /// All are alive, as far as is known.
    pub fn new(config: &Config, deaths: Deaths, watch: Watch) -> Self {
        let looked = Instant::now();
        let addresses = config.services.iter().map(|service| service.application);
        Self {
            deaths,
            watch,
            addresses: addresses.collect(),
            dead: config
                .services
                .iter()
                .map(|_| Dead { found: 0, looked })
                .collect(),
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
        let mut orphans = BTreeMap::<ServiceIndex, Vec<SocketAddr>>::new();
        for Death { service, client } in deaths {
            orphans.entry(service).or_default().extend(client);
        }
        for (service, clients) in orphans {
            node.handle_orphans(linux::clock::now(), service, clients);
        }
        for index in 0..ServiceIndex::try_from(self.addresses.len()).expect("few") {
            let server = match (self.is_dead(wire, index), self.watch.is_hung(index)) {
                (true, _) => Server::Dead,
                (false, true) => Server::Hung,
                (false, false) => Server::Alive,
            };
            node.handle_server(linux::clock::now(), index, server);
        }
    }

    /// Whether nobody listens any more since a listener died. One of several may have died (SO_REUSEPORT), or the service manager has
    /// started the program again; so no death counts before it was looked who is left.
    fn is_dead(&mut self, wire: &Wire, index: ServiceIndex) -> bool {
        let deaths = wire.server_deaths(index);
        let Dead { found, looked } = &mut self.dead[usize::from(index)];
        if deaths == 0 || deaths == *found && looked.elapsed() < LOOK {
            return deaths > 0;
        }
        (*found, *looked) = (deaths, Instant::now());
        let address = self.addresses[usize::from(index)];
        match linux::network::sockets::listeners(address.port()) {
            Ok(listeners) if listeners.iter().any(|&listener| accepts(listener, address)) => {
                wire.forget_server_deaths(index, deaths);
                *found = 0; // the next one is news
                false
            }
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(%error, "a dead server stays dead");
                true
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
