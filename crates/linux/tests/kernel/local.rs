//! Clients that run on the nodes themselves. Their connections are logged and taken over like all others, or are refused.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use proto::action::Gate;
use socket2::{Domain, Socket, Type};
use steadfast_linux::wire::{FilterWatch, LOOPBACK};

use crate::support::bystander::Bystander;
use crate::support::eventually;
use crate::support::lan::{Family, Lan, LanHost};
use crate::support::log::LogThread;
use crate::support::takeover::take_over;
use crate::support::wire_on::{WireOn, options};

/// Size in bytes of a transfer that needs many segments.
const MUCH: usize = 300_000;

/// A wire on each node, and a listener of each family on the primary.
struct LocalConnectionTestbed {
    backup: WireOn,
    primary: WireOn,
    reading: LogThread,
    listeners: [TcpListener; 2],
    lan: Lan,
}

impl LocalConnectionTestbed {
    fn new(test: &str) -> Option<Self> {
        let lan = Lan::new(test)?;
        for node in [&lan.backup, &lan.primary] {
            node.sysctl("ipv4/conf/lo/accept_local", "1"); // as Network::prepare does
        }
        let backup = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
        let primary = WireOn::new(&lan.primary, &lan.backup, &options(), Gate::Primary);
        Some(Self {
            reading: LogThread::of(&backup),
            listeners: Family::BOTH.map(|family| lan.primary.listen(family.vip())),
            lan,
            backup,
            primary,
        })
    }

    fn connect(&self, node: &LanHost, family: Family) -> Bystander {
        let listener = &self.listeners[usize::from(family.service())];
        let client = Bystander::new(node.connect_pair(listener));
        assert_eq!(client.address().ip(), node.address(family), "its own address");
        client
    }
}

#[test]
fn a_client_on_a_node_is_logged() {
    let Some(testbed) = LocalConnectionTestbed::new("a_client_on_a_node_is_logged") else {
        return;
    };
    for node in [&testbed.lan.backup, &testbed.lan.primary] {
        for family in Family::BOTH {
            let mut client = testbed.connect(node, family);
            client.exchange(MUCH);
            client.assert_undisturbed(&testbed.reading);
        }
    }
    for family in Family::BOTH {
        assert_eq!(testbed.backup.drops(family), []);
        assert_eq!(testbed.primary.drops(family), []);
    }
}

#[test]
fn a_client_on_the_survivor_goes_on() {
    for family in Family::BOTH {
        let Some(testbed) = LocalConnectionTestbed::new("a_client_on_the_survivor_goes_on") else {
            return;
        };
        let mut client = testbed.connect(&testbed.lan.backup, family);
        client.exchange(MUCH);
        testbed.lan.power_off_primary();
        let (backup, address) = (&testbed.lan.backup, client.address());
        let taken = take_over(backup, &testbed.backup, &testbed.reading, address, family);
        client.server = taken.socket;
        client.exchange(MUCH);
        testbed.backup.set_gates(Gate::Sole);
        client.exchange(MUCH);
    }
}

/// A client that binds its socket to the VIP is refused at once.
#[test]
fn a_client_with_an_address_of_its_own_choice_is_refused() {
    let Some(testbed) = LocalConnectionTestbed::new("a_client_with_an_address_of_its_own_choice_is_refused")
    else {
        return;
    };
    let (node, wire) = (&testbed.lan.backup, &testbed.backup);
    for family in Family::BOTH {
        let connect_from = |address: SocketAddr| {
            let socket = node.run(|| Socket::new(Domain::for_address(address), Type::STREAM, None));
            let socket = socket.expect("a socket");
            socket.bind(&address.into()).expect("it is this node's");
            socket.connect(&family.vip().into()).map_err(|error| error.kind())
        };
        let vip = (family.vip().ip(), 0).into();
        assert_eq!(connect_from(vip), Err(ErrorKind::PermissionDenied));
        assert_eq!(wire.counter(family, "refused_local_clients"), 1);
        assert_eq!(connect_from((node.address(family), 0).into()), Ok(()));
        wire.set_gates(Gate::Off);
        assert_eq!(connect_from(vip), Err(ErrorKind::ConnectionRefused), "not ours");
        wire.set_gates(Gate::Wire);
    }
}

#[test]
fn a_filter_that_was_removed_from_lo_is_put_back() {
    let Some(testbed) = LocalConnectionTestbed::new("a_filter_that_was_removed_from_lo_is_put_back") else {
        return;
    };
    let node = &testbed.lan.backup;
    let watch = node.run(|| FilterWatch::open(&[LOOPBACK])).expect("watch");
    let removed = node.run(|| {
        Command::new("tc")
            .args(["qdisc", "del", "dev", "lo", "clsact"])
            .status()
    });
    assert!(removed.expect("tc can be run").success());
    let concerned = eventually("it is told", || {
        Some(watch.check()).filter(|found| !found.is_empty())
    });
    assert_eq!(concerned, [LOOPBACK]);
    node.run(|| testbed.backup.reattach(LOOPBACK)).expect("reattach");
    let mut client = testbed.connect(node, Family::V4);
    client.assert_undisturbed(&testbed.reading);
}
