//! How the applications on this node are: the deaths of their processes, and their answers to the health probe.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use linux::wire::{Death, Deaths, Wire};
use proto::action::{Server, ServiceIndex};
use proto::node::Node;
use proto::role::Role;

use super::health::Watch;
use crate::config::Config;

/// How often a dead server's address is looked at: someone may have started it again.
const LOOK: Duration = Duration::from_millis(100);
/// How often that of a server is looked at which does not serve yet: the wire counts no deaths of it.
const LOOK_AHEAD: Duration = Duration::from_secs(1);

/// The applications of all services.
pub struct Servers {
    deaths: Deaths,
    watch: Watch,
    applications: Vec<Application>,
}

/// One service's.
struct Application {
    address: SocketAddr,
    /// So many listeners had died when it was looked last, and none was left.
    found: u32,
    /// Nobody listened when it was looked last, and it was not serving then.
    is_absent: bool,
    looked: Instant,
}

impl Servers {
    /// All are alive, as far as is known.
    pub fn new(config: &Config, deaths: Deaths, watch: Watch) -> Self {
        let looked = Instant::now();
        let services = config.services.iter();
        let applications = services.map(|service| Application::new(service.application, looked));
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
        let now = Instant::now();
        for (index, application) in (0..).zip(&mut self.applications) {
            let deaths = wire.server_deaths(index);
            let serves = matches!(node.role(index).0, Role::Joining | Role::Primary | Role::Claiming);
            let is_dead = application.is_dead(now, deaths, serves, |address| {
                let is_left = is_listening(address);
                if is_left {
                    wire.forget_server_deaths(index, deaths);
                }
                is_left
            });
            let server = match (is_dead, self.watch.is_hung(index)) {
                (true, _) => Server::Dead,
                (false, true) => Server::Hung,
                (false, false) => Server::Alive,
            };
            node.handle_server(linux::clock::now(), index, server);
        }
    }
}

impl Application {
    /// It is there, as far as is known.
    fn new(address: SocketAddr, looked: Instant) -> Self {
        Self {
            address,
            found: 0,
            is_absent: false,
            looked,
        }
    }

    /// Whether nobody listens any more since `deaths` listeners have died, which is looked at by `is_left`. One of several may have died
    /// (SO_REUSEPORT), or the service manager has started the program again; so no death counts before it was looked.
    ///
    /// Of an application that `serves`, or begins to, an orderly end is the operator's affair. One that would go on must be there, however
    /// it ended; and if it was not there it is still dead when its turn comes.
    fn is_dead(
        &mut self,
        now: Instant,
        deaths: u32,
        serves: bool,
        is_left: impl FnOnce(SocketAddr) -> bool,
    ) -> bool {
        let is_suspect = deaths > 0 || self.is_absent;
        let often = if is_suspect { LOOK } else { LOOK_AHEAD };
        let is_known = deaths == self.found && now.duration_since(self.looked) < often;
        if is_known || serves && !is_suspect {
            return is_suspect;
        }
        let is_left = is_left(self.address);
        self.found = if is_left { 0 } else { deaths };
        self.is_absent = !is_left && (self.is_absent || !serves);
        self.looked = now;
        !is_left
    }
}

/// Whether a listener gets connections to `address`.
fn is_listening(address: SocketAddr) -> bool {
    match linux::network::sockets::listeners(address.port()) {
        Ok(listeners) => listeners.iter().any(|&listener| accepts(listener, address)),
        Err(error) => {
            tracing::warn!(%error, "a dead server stays dead");
            false
        }
    }
}

/// Whether a listener at `listener` gets connections to `address`. One on all IPv6 addresses gets IPv4 too, unless its program
/// forbids it, which `/proc` does not tell.
pub fn accepts(listener: SocketAddr, address: SocketAddr) -> bool {
    let every = listener.ip().is_unspecified() && (listener.is_ipv6() || address.is_ipv4());
    listener.port() == address.port() && (every || listener.ip() == address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker's connections die before its listener, and the agent reads of them meanwhile.
    #[test]
    fn no_death_counts_before_it_was_looked_who_is_left() {
        let begin = Instant::now();
        let mut application = Application::new(([127, 0, 0, 1], 80).into(), begin);
        let mut is_dead = |after: Duration, deaths: u32, is_left: Option<bool>| {
            let mut looked = false;
            let is_dead = application.is_dead(begin + after, deaths, true, |_| {
                looked = true;
                is_left.expect("it need not be looked")
            });
            assert_eq!(looked, is_left.is_some());
            is_dead
        };
        let soon = LOOK / 10;
        assert!(!is_dead(soon, 0, None));
        assert!(!is_dead(soon, 1, Some(true)), "another worker");
        assert!(
            is_dead(soon * 2, 1, Some(false)),
            "forgotten, and one more: the last"
        );
        assert!(is_dead(soon * 3, 1, None));
        assert!(
            is_dead(soon * 4, 2, Some(false)),
            "one that had come, and has gone"
        );
        assert!(!is_dead(soon * 20, 2, Some(true)), "it was started again");
    }

    /// It was stopped in order, or never started: no wire counts that.
    #[test]
    fn an_application_that_would_go_on_must_be_there() {
        let begin = Instant::now();
        let mut application = Application::new(([127, 0, 0, 1], 80).into(), begin);
        let mut is_dead = |after: Duration, serves: bool, is_left: bool| {
            application.is_dead(begin + after, 0, serves, |_| is_left)
        };
        let (soon, later) = (LOOK * 2, LOOK_AHEAD * 2);
        assert!(!is_dead(later, true, false), "who stops what serves means it");
        assert!(!is_dead(later, false, true));
        assert!(is_dead(later * 2, false, false), "and then it is looked");
        assert!(
            is_dead(later * 2 + soon, true, false),
            "nor is it there at the takeover"
        );
        assert!(is_dead(later * 2 + soon * 2, true, false));
        assert!(!is_dead(later * 2 + soon * 3, true, true), "it was started");
        assert!(!is_dead(later * 3, true, false), "and stopped");
    }
}
