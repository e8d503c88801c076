//! Tests that a node's connections go on while the node's part ([`NetworkPart`]) changes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::*;
use crate::probe::OutsideHosts;

pub(super) const SERVICES: [&str; 2] = ["10.0.0.100:80", "[2001:db8::100]:80"];
const MOMENT: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn vips() -> [IpAddr; 2] {
    SERVICES.map(|service| service.parse::<SocketAddr>().unwrap().ip())
}

/// A connection between a client and the primary.
pub(super) struct PrimaryConnection {
    pub(super) client: TcpStream,
    pub(super) server: TcpStream,
}

impl PrimaryConnection {
    pub(super) fn begin(world: &RouterLan, listener: &TcpListener) -> Self {
        Self::begin_at(world, listener, listener.local_addr().unwrap())
    }

    /// As [`begin`](Self::begin), but the client connects to `service`, one of the addresses of `listener`.
    pub(super) fn begin_at(world: &RouterLan, listener: &TcpListener, service: SocketAddr) -> Self {
        let client = world
            .router
            .run(|| TcpStream::connect_timeout(&service, PATIENCE).unwrap());
        let (server, _) = listener.accept().unwrap();
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_nodelay(true).unwrap();
        }
        Self { client, server }
    }

    pub(super) fn go_on(&mut self) {
        let mut word = [0; 7];
        self.client.write_all(b"request").unwrap();
        self.server.read_exact(&mut word).unwrap();
        self.server.write_all(b"replies").unwrap();
        self.client.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"replies");
    }
}

/// Makes the backup forward packets to the VIPs as a wire does, but without a log.
fn forward(world: &RouterLan) {
    let backup = &world.backup;
    backup.command("sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    backup.command("sysctl -q -w net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.eth0.send_redirects=0");
    backup.ip("route replace 10.0.0.100/32 via 10.0.0.3 dev eth0");
    backup.ip("-6 route replace 2001:db8::100/128 via 2001:db8::3 dev eth0");
}

/// Makes the router send packets for the VIPs to `node`.
fn lead_to(world: &RouterLan, node: &world::Namespace) {
    let mac = mac(node);
    for vip in vips() {
        world
            .router
            .ip(&format!("neigh replace {vip} lladdr {mac} dev lan nud reachable"));
    }
}

pub(super) fn mac(node: &world::Namespace) -> Mac {
    node.run(|| Interface::find("eth0").unwrap().unwrap().mac.unwrap())
}

fn claimants_of(world: &RouterLan, vip: IpAddr) -> Vec<Mac> {
    let lan = || Interface::find("lan").unwrap().unwrap();
    world.router.run(|| claimants(&lan(), vip, MOMENT).unwrap())
}

/// Announces the VIPs from `node` until the router sends their packets to `node`.
pub(super) fn announce(world: &RouterLan, node: &world::Namespace) {
    let mac = mac(node).to_string();
    for vip in vips() {
        let until = Instant::now() + PATIENCE;
        while !world.router.ip(&format!("neigh show {vip}")).contains(&mac) {
            assert!(Instant::now() < until, "{}", world.router.ip("neigh"));
            node.run(|| {
                let eth0 = Interface::find("eth0").unwrap().unwrap();
                Announcer::open(&eth0).unwrap().announce(vip).unwrap();
            });
        }
    }
}

#[test]
fn a_claimed_vip_is_served_without_the_backup_and_given_back() {
    let Some(world) = RouterLan::new("a_claimed_vip_is_served_without_the_backup_and_given_back") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path());
    let plan = plan(2, &SERVICES);
    forward(&world);
    lead_to(&world, &world.backup);
    let primary = &world.primary;
    let before = primary.settled();
    let mut network = primary.run(|| set_up(&plan, &journal));
    for service in &plan.services {
        primary.run(|| network.set_speak(service.address, true).unwrap());
    }
    let planned = primary.settled();
    let listeners = SERVICES.map(|service| primary.run(|| TcpListener::bind(service).unwrap()));
    let mut conversations = listeners
        .each_ref()
        .map(|at| PrimaryConnection::begin(&world, at));
    for _ in 0..2 {
        conversations.iter_mut().for_each(PrimaryConnection::go_on);
        world.router.ip("link set port2 down");
        primary.run(|| vips().map(|vip| network.assume(vip, NetworkPart::Alone).unwrap()));
        announce(&world, primary);
        conversations.iter_mut().for_each(PrimaryConnection::go_on);
        listeners
            .iter()
            .for_each(|at| PrimaryConnection::begin(&world, at).go_on());
        for vip in vips() {
            assert_eq!(network.part(vip), Some(NetworkPart::Alone));
            assert_eq!(claimants_of(&world, vip), [mac(primary)], "{vip}");
        }
        let claimed = primary.settled();
        primary.run(|| vips().map(|vip| network.assume(vip, NetworkPart::Alone).unwrap()));
        assert_same(&claimed, &primary.settled());

        world.router.ip("link set port2 up");
        primary.run(|| vips().map(|vip| network.assume(vip, NetworkPart::Behind).unwrap()));
        assert_same_soon(&planned, || primary.dump());
        primary.run(|| vips().map(|vip| network.assume(vip, NetworkPart::Behind).unwrap()));
        for vip in vips() {
            assert_eq!(network.part(vip), Some(NetworkPart::Behind));
            assert_eq!(claimants_of(&world, vip), [], "{vip}");
        }
        lead_to(&world, &world.backup);
    }
    conversations.iter_mut().for_each(PrimaryConnection::go_on);
    primary.run(|| vips().map(|vip| network.assume(vip, NetworkPart::Alone).unwrap()));
    primary.run(|| network.remove().unwrap());
    assert_same_soon(&before, || primary.dump());
}

/// Asks until `within` has passed or an answer has come.
fn is_answered(hosts: &mut OutsideHosts, within: Duration) -> bool {
    let until = Instant::now() + within;
    while Instant::now() < until {
        let _ = hosts.ask(); // fails while no route leads to a host
        std::thread::sleep(Duration::from_millis(5));
        if hosts.is_answered() {
            return true;
        }
    }
    false
}

#[test]
fn outside_hosts_answer_as_soon_as_the_vip_leads_here() {
    let Some(world) = RouterLan::new("outside_hosts_answer_as_soon_as_the_vip_leads_here") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(2, &SERVICES);
    // The outside hosts are behind the router. The first host of each family does not exist.
    world.router.ip("addr add 198.51.100.1/32 dev lo");
    world.router.ip("addr add 2001:db8:1::1/128 dev lo");
    let hosts = ["198.51.100.2", "198.51.100.1", "2001:db8:1::2", "2001:db8:1::1"];
    let hosts = hosts.map(|host| host.parse().unwrap());
    lead_to(&world, &world.backup);
    let primary = &world.primary;
    // Without this entry, the primary would ask for the router's Ethernet address, with the VIP as the source address
    // of the request (RFC 4861 §7.2.2). From this request, the router would learn that the VIP is at the primary.
    let router = world
        .router
        .run(|| Interface::find("lan").unwrap().unwrap().mac.unwrap());
    for address in ["10.0.0.1", "2001:db8::1"] {
        primary.ip(&format!(
            "neigh replace {address} lladdr {router} dev eth0 nud permanent"
        ));
    }
    let mut probers = primary.run(|| vips().map(|vip| OutsideHosts::open(vip, "eth0", &hosts).unwrap()));
    let mut network = primary.run(|| set_up(&plan, &journal(dir.path())));
    primary.run(|| vips().map(|vip| network.assume(vip, NetworkPart::Alone).unwrap()));
    for prober in &mut probers {
        let is_answered = primary.run(|| is_answered(prober, MOMENT));
        assert!(!is_answered, "the router sends to the backup");
    }
    announce(&world, primary);
    for prober in &mut probers {
        assert!(primary.run(|| is_answered(prober, PATIENCE)));
    }
    // Hosts usually know a router by its link-local address (RFC 4861 §4.2).
    world.router.ip("addr add fe80::1/64 dev lan nodad");
    let vip = vips().into_iter().find(IpAddr::is_ipv6).unwrap();
    let router = ["fe80::1".parse().unwrap()];
    let mut router = primary.run(|| OutsideHosts::open(vip, "eth0", &router).unwrap());
    assert!(primary.run(|| is_answered(&mut router, PATIENCE)));
    primary.run(|| network.remove().unwrap());
}

/// The kernel chooses a socket's source address when the socket is connected.
#[test]
fn hosts_answer_an_interface_that_gets_its_address_later() {
    let Some(world) = RouterLan::new("hosts_answer_an_interface_that_gets_its_address_later") else {
        return;
    };
    let node = &world.primary;
    node.ip("addr add 192.0.2.1/24 dev lo"); // the source address while eth0 has none
    node.ip("addr flush dev eth0");
    let hosts = ["10.0.0.1", "2001:db8::1"].map(|host| [host.parse().unwrap()]);
    let mut probers = hosts.map(|host| node.run(|| OutsideHosts::through("eth0", &host).unwrap()));
    for prober in &mut probers {
        assert!(!node.run(|| is_answered(prober, MOMENT)), "eth0 has no address");
    }
    node.ip("addr add 10.0.0.2/24 dev eth0");
    node.ip("addr add 2001:db8::2/64 dev eth0 nodad");
    for prober in &mut probers {
        assert!(node.run(|| is_answered(prober, PATIENCE)));
    }
    // With its source address gone, the kernel refuses to send.
    node.ip("addr del 10.0.0.2/24 dev eth0");
    node.ip("addr add 10.0.0.5/24 dev eth0");
    assert!(node.run(|| is_answered(&mut probers[0], PATIENCE)));
}

const PARTS: [NetworkPart; 3] = [NetworkPart::Wire, NetworkPart::Behind, NetworkPart::Alone];

#[test]
fn every_part_follows_every_other_and_is_the_same_each_time() {
    let Some(world) = RouterLan::new("every_part_follows_every_other_and_is_the_same_each_time") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let node = &world.primary;
    let plan = plan(2, &SERVICES);
    let before = node.settled();
    let mut network = node.run(|| Network::prepare(&plan, &journal(dir.path())).unwrap());
    let mut seen: Vec<Option<std::collections::BTreeMap<String, String>>> = vec![None; PARTS.len()];
    let pairs = (0..PARTS.len()).flat_map(|from| (0..PARTS.len()).map(move |to| [from, to]));
    for index in pairs.flatten() {
        node.run(|| vips().map(|vip| network.assume(vip, PARTS[index]).unwrap()));
        assert!(vips().iter().all(|vip| network.part(*vip) == Some(PARTS[index])));
        match &seen[index] {
            Some(seen) => assert_same_soon(seen, || node.dump()),
            None => seen[index] = Some(node.settled()),
        }
    }
    node.run(|| network.remove().unwrap());
    assert_same_soon(&before, || node.dump());
}

/// Leaves the journal and the network in the state that they have if a daemon is killed while it changes to `part`: `done` steps of the new
/// part are done, and the next step has only begun.
fn killed_between(part: NetworkPart, done: usize, plan: &NetworkPlan, path: &Path) {
    let mut network = set_up(plan, path);
    let steps = network.journal.steps().to_vec();
    let new = |step: &NetworkStep| step.switched().is_some() && step.serves(part);
    for (count, (index, step)) in steps.iter().enumerate().filter(|(_, step)| new(step)).enumerate() {
        if network.journal.begun(index) || count > done {
            continue;
        }
        let found = step.find(&network.netlink).unwrap();
        network.journal.begin(index, found).unwrap();
        if count < done {
            step.apply(&network.netlink).unwrap();
        }
    }
}

#[test]
fn a_daemon_killed_between_two_parts_is_succeeded_and_undone() {
    let Some(world) = RouterLan::new("a_daemon_killed_between_two_parts_is_succeeded_and_undone") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path());
    let node = &world.primary;
    let before = node.settled();
    for (service, part) in SERVICES.into_iter().flat_map(|at| PARTS.map(|part| (at, part))) {
        let plan = plan(2, &[service]);
        let vip = plan.services[0].address.ip();
        let planned = node.run(|| {
            drop(set_up(&plan, &journal));
            node.settled()
        });
        for done in 0..3 {
            node.run(|| {
                killed_between(part, done, &plan, &journal);
                let mut network = Network::adopt(&plan, &journal).unwrap().unwrap();
                network.assume(vip, NetworkPart::Behind).unwrap();
            });
            assert_same_soon(&planned, || node.dump());
            node.run(|| {
                killed_between(part, done, &plan, &journal);
                undo(&journal).unwrap();
            });
            assert_same_soon(&before, || node.dump());
            node.run(|| drop(set_up(&plan, &journal)));
        }
        node.run(|| undo(&journal).unwrap());
        assert_same_soon(&before, || node.dump());
    }
}

#[test]
fn a_claim_leaves_what_was_found() {
    let Some(world) = RouterLan::new("a_claim_leaves_what_was_found") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path());
    let plan = plan(2, &SERVICES[..1]);
    let node = &world.primary;
    let mut network = node.run(|| set_up(&plan, &journal));
    node.ip("addr add 10.0.0.100/32 dev eth0");
    node.run(|| {
        network
            .assume(plan.services[0].address.ip(), NetworkPart::Alone)
            .unwrap()
    });
    assert!(!node.ip("rule").contains("5310"));
    node.run(|| network.remove().unwrap());
    assert!(node.ip("addr show dev eth0").contains("10.0.0.100"));
    assert!(!node.ip("addr show dev lo").contains("10.0.0.100"));
}
