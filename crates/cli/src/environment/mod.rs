//! Checks whether this machine and its network agree with the configuration. Changes nothing.

mod files;
mod findings;
mod preload;
mod trust;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use linux::network::{self, Interface, Mac};

use crate::config::{ArbiterSettings, Commit, Config, FOR_MEASURING, NodeRole, ServiceSettings};
use crate::daemon::accepts;
pub use findings::Findings;

/// How long neighbours may take to answer. A neighbour that is there answers in a millisecond. Each request is sent three times within
/// this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// End of an error message: what the operator can do if the peer does not answer.
const PEER_ALLOWED: &str = "allowed: the address of a peer that is switched on; or start with --without-peer: this node then serves \
                            alone the services of which it is the primary";

/// Whether the peer must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerMust {
    /// The peer must answer: a peer address that nobody has is an error.
    Answer,
    /// The peer need not answer: the node starts alone on purpose.
    Nothing,
    /// The node adopts what a dead agent left, so it is no problem if its VIPs are in use.
    GoOn,
}

/// Names what is missing to run here at all; `features` names what the kernel lacks.
pub fn missing(features: impl FnOnce() -> Vec<String>) -> Vec<String> {
    if !nix::unistd::geteuid().is_root() {
        return vec!["root: eBPF, packet sockets and the network's set-up need it".to_owned()];
    }
    let mut missing = features();
    if let Err(error) = network::nftables_available() {
        missing.push(format!("nftables: {error}"));
    }
    missing
}

/// Compares the configuration with this machine and its network.
///
/// # Errors
/// If this machine cannot be looked at.
pub fn check(config: &Config, peer: PeerMust) -> Result<Findings, network::NetworkError> {
    let interfaces = network::interfaces()?;
    let own = OwnAddresses {
        all: network::addresses()?,
        raised: network::raised(&network::journal(&config.node.state_dir))?,
    };
    let listeners = network::listeners().map_err(|answer| network::NetworkError {
        step: "list",
        object: "TCP listeners".to_owned(),
        answer,
    })?;
    let mut check = Check {
        config,
        findings: Findings::default(),
    };
    // An agent that goes on with what an earlier one left must be quick: its peer waits for it only for a while.
    trust::check(config, peer != PeerMust::GoOn, &mut check.findings);
    files::check(config, &mut check.findings);
    preload::check(config, &mut check.findings);
    check.fence();
    let mut neighbours = Vec::new();
    for (index, service) in config.services.iter().enumerate() {
        if service.commit == Commit::Immediate {
            check.warning(index, "commit", format!("\"immediate\" is {FOR_MEASURING}"));
        }
        check.own_addresses(index, service, &own);
        check.listeners(index, service, &listeners);
        if let Some(interface) = check.interface(index, service, &interfaces)? {
            check.outside_hosts(index, service)?;
            check.peer_on(index, service, interface)?;
            neighbours.push((index, service, interface));
        }
    }
    if peer == PeerMust::GoOn {
        return Ok(check.findings);
    }
    let links = links(config, &interfaces, &own)?;
    let answers = ask(&neighbours, &links)?;
    if peer == PeerMust::Answer {
        check.links(&links, &answers);
    }
    for (index, service, interface) in neighbours {
        check.neighbours(index, service, &interface.name, &answers, peer);
    }
    Ok(check.findings)
}

/// The addresses of this machine.
struct OwnAddresses {
    all: Vec<(String, IpAddr)>,
    /// Addresses that this node's daemon, alive or dead, has added itself.
    raised: Vec<IpAddr>,
}

impl OwnAddresses {
    /// The interface that has `address`.
    fn on(&self, address: IpAddr) -> Option<&str> {
        let found = self.all.iter().find(|(_, own)| *own == address);
        found.map(|(name, _)| name.as_str())
    }
}

/// The neighbours' answers, by interface and address.
#[derive(Default)]
struct NeighbourAnswers {
    peers: BTreeMap<(String, IpAddr), Option<Mac>>,
    claimants: BTreeMap<(String, IpAddr), Vec<Mac>>,
}

/// A link of `[peer]`.
struct CheckedLink<'a> {
    address: IpAddr,
    way: HeartbeatRoute<'a>,
}

/// How heartbeats leave for a link's address.
enum HeartbeatRoute<'a> {
    /// To a neighbour on this Ethernet interface, which can be asked.
    Neighbour(&'a Interface),
    /// Through a gateway, or an interface that is no Ethernet: nobody can be asked.
    Beyond,
    /// There is no route.
    Nowhere,
    /// Not at all: the address is this node's own, on this interface.
    Own(&'a str),
}

fn links<'a>(
    config: &Config,
    interfaces: &'a [Interface],
    own: &'a OwnAddresses,
) -> Result<Vec<CheckedLink<'a>>, network::NetworkError> {
    let link = |address: &IpAddr| {
        let way = match own.on(*address) {
            Some(name) => HeartbeatRoute::Own(name),
            None => network::route_to(*address)?.map_or(HeartbeatRoute::Nowhere, |(index, gateway)| {
                let leaves = interfaces.iter().find(|interface| interface.index == index);
                match leaves.filter(|interface| !gateway && interface.mac.is_some()) {
                    Some(interface) => HeartbeatRoute::Neighbour(interface),
                    None => HeartbeatRoute::Beyond,
                }
            }),
        };
        let address = *address;
        Ok(CheckedLink { address, way })
    };
    config.peer.addresses.iter().map(link).collect()
}

/// Resolves the peers' addresses, and looks for other hosts that have a VIP. Asks for all addresses at the same time.
fn ask(
    neighbours: &[(usize, &ServiceSettings, &Interface)],
    links: &[CheckedLink<'_>],
) -> Result<NeighbourAnswers, network::NetworkError> {
    let mut wanted = NeighbourAnswers::default();
    let mut asked_on = BTreeMap::new();
    for (_, service, interface) in neighbours {
        let name = || interface.name.clone();
        wanted.peers.insert((name(), service.peer_address), None);
        wanted.claimants.insert((name(), service.address), Vec::new());
        asked_on.insert(name(), *interface);
    }
    for link in links {
        if let HeartbeatRoute::Neighbour(interface) = link.way {
            wanted.peers.insert((interface.name.clone(), link.address), None);
            asked_on.insert(interface.name.clone(), interface);
        }
    }
    let interface = |name: &str| asked_on[name];
    std::thread::scope(|scope| {
        let mut threads: Vec<ScopedJoinHandle<'_, Result<(), network::NetworkError>>> = Vec::new();
        for ((name, address), answer) in &mut wanted.peers {
            let interface = interface(name);
            threads.push(scope.spawn(move || {
                *answer = network::resolve(interface, *address, ANSWER_WITHIN)?;
                Ok(())
            }));
        }
        for ((name, address), answer) in &mut wanted.claimants {
            let interface = interface(name);
            threads.push(scope.spawn(move || {
                *answer = network::claimants(interface, *address, ANSWER_WITHIN)?;
                Ok(())
            }));
        }
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    Ok(wanted)
}

struct Check<'a> {
    config: &'a Config,
    findings: Findings,
}

impl Check<'_> {
    fn problem(&mut self, index: usize, key: &str, what: String) {
        let problem = self.config.problem(&format!("service[{index}].{key}"), what);
        // Each problem is listed once.
        if !self.findings.problems.contains(&problem) {
            self.findings.problems.push(problem);
        }
    }

    fn warning(&mut self, index: usize, key: &str, what: String) {
        let warning = self.config.problem(&format!("service[{index}].{key}"), what);
        self.findings.warnings.push(warning);
    }

    /// Notes what is wrong with the service's interface. Returns the interface if neighbours can be asked on it.
    fn interface<'i>(
        &mut self,
        index: usize,
        service: &ServiceSettings,
        interfaces: &'i [Interface],
    ) -> Result<Option<&'i Interface>, network::NetworkError> {
        let name = &service.interface;
        let Some(interface) = interfaces.iter().find(|interface| interface.name == *name) else {
            let names: Vec<&str> = interfaces
                .iter()
                .filter(|interface| interface.mac.is_some())
                .map(|interface| interface.name.as_str())
                .collect();
            let hint = if names.is_empty() {
                "this machine has no Ethernet interface".to_owned()
            } else {
                format!("allowed: {}", names.join(", "))
            };
            self.problem(
                index,
                "interface",
                format!("there is no interface {name:?}; {hint}"),
            );
            return Ok(None);
        };
        if interface.mac.is_none() {
            self.problem(
                index,
                "interface",
                format!("{name} is not an Ethernet interface; allowed: one that is"),
            );
            return Ok(None);
        }
        if !interface.up {
            self.problem(
                index,
                "interface",
                format!("{name} is down; allowed: an interface that is up"),
            );
            return Ok(None);
        }
        match interface.large_receive_offload()? {
            Some(true) => self.problem(
                index,
                "interface",
                format!(
                    "{name} merges received packets (LRO), which then cannot be forwarded as they were; turn it off \
                     with: ethtool -K {name} lro off"
                ),
            ),
            Some(false) => {}
            None => self.warning(
                index,
                "interface",
                format!("the driver of {name} does not say whether LRO is off; it must be off"),
            ),
        }
        if interface.address_like(service.address).is_none() {
            let family = if service.address.is_ipv4() { "IPv4" } else { "IPv6" };
            self.problem(
                index,
                "interface",
                format!("{name} has no {family} address of its own; it needs one to reach the peer"),
            );
        }
        Ok(Some(interface))
    }

    /// Warns if this node could fence the peer at the same time as the peer fences this node. This can happen if the nodes do not hear each
    /// other.
    fn fence(&mut self) {
        let ArbiterSettings::Fence(fence) = &self.config.arbiter else {
            return;
        };
        let is_primary = self
            .config
            .services
            .iter()
            .any(|service| service.role == NodeRole::Primary);
        if fence.delay.is_zero() && is_primary {
            let what = "is 0 on a node that is a primary: if the nodes do not hear each other, each may fence the \
                        other; allowed: on one of the two nodes, a delay that is longer than the fence command takes";
            let warning = self.config.problem("fence.delay_ms", what.to_owned());
            self.findings.warnings.push(warning);
        }
    }

    /// Warns if there is no outside host. A primary whose backup is gone asks outside hosts whether clients reach it.
    fn outside_hosts(
        &mut self,
        index: usize,
        service: &ServiceSettings,
    ) -> Result<(), network::NetworkError> {
        let name = &service.interface;
        let gateways = network::gateways(name).map_err(|answer| network::NetworkError {
            step: "list",
            object: format!("gateways on {name}"),
            answer,
        })?;
        // For IPv6, the peer is listed as a gateway because of the route through it.
        let gateways = gateways.iter().filter(|host| **host != service.peer_address);
        let mut hosts = service.claim_ping.iter().chain(gateways);
        if !hosts.any(|host| host.is_ipv4() == service.address.is_ipv4()) {
            let what = format!(
                "is missing, and no route through {name} has a gateway: nobody can be asked whether this node is cut off, so a \
                 broken path may be blamed on the wrong node"
            );
            self.warning(index, "claim_ping", what);
        }
        Ok(())
    }

    /// Warns if the peer's address is not on the service's interface. Asking for the address would prove nothing, because Linux answers for
    /// all of its addresses on every interface.
    fn peer_on(
        &mut self,
        index: usize,
        service: &ServiceSettings,
        interface: &Interface,
    ) -> Result<(), network::NetworkError> {
        let (peer, name) = (service.peer_address, &interface.name);
        let is_link_local = matches!(peer, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let is_own = interface.addresses.contains(&peer);
        if !is_link_local && !is_own && !interface.leads_to(peer)? {
            let what = format!(
                "no route leads to {peer} on {name} without a gateway: heartbeats to it say nothing of the service's network; allowed: \
                 the peer's address on {name}"
            );
            self.warning(index, "peer_address", what);
        }
        Ok(())
    }

    fn own_addresses(&mut self, index: usize, service: &ServiceSettings, own: &OwnAddresses) {
        if let Some(name) = own.on(service.address)
            && !own.raised.contains(&service.address)
        {
            let what = format!(
                "{} is configured on {name} already; allowed: an address that only steadfast puts up",
                service.address
            );
            self.problem(index, "address", what);
        }
        if let Some(name) = own.on(service.peer_address) {
            self.problem(index, "peer_address", is_own(service.peer_address, name));
        }
        let application = service.application.ip();
        if !application.is_loopback() && own.on(application).is_none() {
            let what =
                format!("{application} is not an address of this node; allowed: one that is, or loopback");
            self.problem(index, "application", what);
        }
    }

    fn listeners(&mut self, index: usize, service: &ServiceSettings, listeners: &[SocketAddr]) {
        let vip = SocketAddr::new(service.address, service.port);
        let reached = |address: SocketAddr| listeners.iter().any(|listener| accepts(*listener, address));
        let ServiceSettings { application, .. } = service;
        if listeners.contains(&vip) && !reached(*application) {
            let what = format!(
                "the application listens on {vip} only, but relayed connections go to {application}; allowed: a \
                 listener there too, or one on all addresses"
            );
            self.problem(index, "application", what);
        } else if !reached(*application) {
            self.warning(
                index,
                "application",
                format!("nothing listens on {application} yet"),
            );
        } else if !reached(vip) {
            let what = format!("nothing listens on {vip} yet; new connections reach the application there");
            self.warning(index, "application", what);
        }
    }

    /// The peer must answer on at least one link of `[peer]`, unless there is a link on which nobody can be asked. A node can start while
    /// the other links are cut.
    fn links(&mut self, links: &[CheckedLink<'_>], answers: &NeighbourAnswers) {
        let silence = |link: &CheckedLink<'_>| {
            let peer = link.address;
            match link.way {
                HeartbeatRoute::Neighbour(interface) => {
                    let answer = answers.peers[&(interface.name.clone(), peer)];
                    answer.is_none().then(|| no_answer(peer, &interface.name))
                }
                HeartbeatRoute::Nowhere => Some(format!("no route leads to {peer}")),
                HeartbeatRoute::Beyond | HeartbeatRoute::Own(_) => None,
            }
        };
        let field = if self.config.places.has("peer.addresses") {
            "peer.addresses"
        } else {
            "peer.address"
        };
        for link in links {
            if let HeartbeatRoute::Own(name) = link.way {
                let problem = self.config.problem(field, is_own(link.address, name));
                self.findings.problems.push(problem);
            }
        }
        let silent: Vec<String> = links.iter().filter_map(silence).collect();
        let is_heard = silent.len() < links.len();
        for what in silent {
            if is_heard {
                let warning = self
                    .config
                    .problem(field, format!("{what}: no heartbeats over this link"));
                self.findings.warnings.push(warning);
            } else {
                let problem = self.config.problem(field, format!("{what}; {PEER_ALLOWED}"));
                self.findings.problems.push(problem);
            }
        }
    }

    fn neighbours(
        &mut self,
        index: usize,
        service: &ServiceSettings,
        name: &str,
        answers: &NeighbourAnswers,
        peer: PeerMust,
    ) {
        let peer_mac = answers.peers[&(name.to_owned(), service.peer_address)];
        let is_said = service.peer_address == self.config.peer.address;
        if peer_mac.is_none() && peer == PeerMust::Answer && !is_said {
            let what = format!("{}; {PEER_ALLOWED}", no_answer(service.peer_address, name));
            self.problem(index, "peer_address", what);
        }
        for mac in &answers.claimants[&(name.to_owned(), service.address)] {
            if Some(*mac) == peer_mac {
                continue;
            }
            let what = format!(
                "{} is in use by another machine, {mac} on {name}; allowed: an address that only the two nodes have",
                service.address
            );
            self.problem(index, "address", what);
        }
    }
}

fn is_own(peer: IpAddr, interface: &str) -> String {
    format!("{peer} is this node's own, on {interface}; allowed: the peer's address")
}

fn no_answer(peer: IpAddr, interface: &str) -> String {
    format!("no answer from {peer} on {interface} within {ANSWER_WITHIN:?}")
}
