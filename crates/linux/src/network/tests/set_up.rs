//! Tests of setting up a node's network: the set-up makes every planned change, and removing it restores what was there before.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use super::*;

/// Sets up `plan` in `node`, calls `look`, and removes everything. Asserts that the node is then as it was before.
fn around(node: &world::Namespace, plan: &NetworkPlan, look: impl FnOnce(&world::Namespace) + Send) {
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path());
    let before = node.dump();
    node.run(|| {
        let mut network = set_up(plan, &journal);
        look(node);
        network.lower().unwrap();
        assert_eq!(raised(&journal).unwrap(), [] as [IpAddr; 0]);
        network.remove().unwrap();
    });
    assert!(!journal.exists(), "removing the set-up removes the journal");
    assert_same(&before, &node.dump());
}

#[test]
fn a_backup_has_the_vip_on_its_interface() {
    let Some(world) = RouterLan::new("a_backup_has_the_vip_on_its_interface") else {
        return;
    };
    around(&world.backup, &backup_plan(), |node| {
        let v4 = node.ip("-4 -o addr show dev eth0");
        assert!(
            v4.contains("10.0.0.100/32 scope global noprefixroute eth0"),
            "{v4}"
        );
        let v6 = node.ip("-6 -o addr show dev eth0 to 2001:db8::100");
        assert!(
            v6.contains("2001:db8::100/128 scope global nodad deprecated noprefixroute"),
            "{v6}"
        );
        let rules = node.ip("rule");
        assert!(
            rules.contains("5300:	from 127.0.0.1 iif lo ipproto tcp sport 443 lookup 5301 proto 95"),
            "{rules}"
        );
        assert!(
            node.ip("-6 rule")
                .contains("5300:	from ::1 iif lo ipproto tcp sport 80 lookup 5303 proto 95")
        );
        assert_eq!(
            node.ip("route show table 5301").trim(),
            "local default dev lo proto 95 scope host"
        );
        assert!(
            node.ip("-6 route show table 5303")
                .starts_with("local default dev lo proto 95")
        );
    });
}

#[test]
fn a_primary_hides_the_vip_and_sends_everything_of_it_by_the_backup() {
    let Some(world) = RouterLan::new("a_primary_hides_the_vip_and_sends_everything_of_it_by_the_backup")
    else {
        return;
    };
    around(&world.primary, &primary_plan(), |node| {
        let lo = node.ip("-o addr show dev lo");
        assert!(lo.contains("10.0.0.100/32 scope host noprefixroute lo"), "{lo}");
        assert!(
            lo.contains("2001:db8::100/128 scope global nodad deprecated noprefixroute"),
            "{lo}"
        );
        for (key, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
            assert_eq!(sysctl::read(&format!("ipv4/conf/eth0/{key}")).unwrap(), value);
            assert_eq!(
                sysctl::read(&format!("ipv4/conf/all/{key}")).unwrap(),
                "0",
                "others are not touched"
            );
        }
        // Replies to far clients and to neighbours leave by the backup.
        for client in ["198.51.100.7", "10.0.0.1"] {
            let route = node.ip(&format!("route get {client} from 10.0.0.100"));
            assert!(route.contains("via 10.0.0.2 dev eth0 table 5300"), "{route}");
        }
        for client in ["2001:db8:1::7", "2001:db8::1"] {
            let route = node.ip(&format!("-6 route get {client} from 2001:db8::100"));
            assert!(route.contains("via 2001:db8::2 dev eth0 table 5302"), "{route}");
        }
        let own = node.ip("route get 198.51.100.7");
        assert!(
            own.contains("via 10.0.0.1 dev eth0 src 10.0.0.3"),
            "the node's own traffic is as before: {own}"
        );
        let own = node.ip("-6 route get 2001:db8:1::7");
        assert!(
            own.contains("via 2001:db8::1") && own.contains("src 2001:db8::3"),
            "{own}"
        );
    });
}

#[test]
fn fast_open_is_refused_and_what_clients_of_this_node_do_is_their_own() {
    let Some(world) = RouterLan::new("fast_open_is_refused_and_what_clients_of_this_node_do_is_their_own")
    else {
        return;
    };
    for (found, during) in [("1539", "1537"), ("1", "1")] {
        world
            .primary
            .command(&format!("sysctl -q -w net.ipv4.tcp_fastopen={found}"));
        around(&world.primary, &primary_plan(), |_| {
            assert_eq!(sysctl::read("ipv4/tcp_fastopen").unwrap(), during);
        });
    }
}

#[test]
fn who_waits_to_be_accepted_by_a_worker_that_dies_is_accepted_by_another_one() {
    let Some(world) =
        RouterLan::new("who_waits_to_be_accepted_by_a_worker_that_dies_is_accepted_by_another_one")
    else {
        return;
    };
    around(&world.primary, &primary_plan(), |_| {
        let address: SocketAddr = "127.0.0.1:8080".parse().unwrap();
        let [dies, lives] = [(); 2].map(|()| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_reuse_port(true).unwrap();
            socket.bind(&address.into()).unwrap();
            socket.listen(64).unwrap();
            TcpListener::from(socket)
        });
        let mut clients: Vec<_> = (0..32).map(|_| TcpStream::connect(address).unwrap()).collect();
        drop(dies);
        // The last segment of a handshake may still be on its way through the stack.
        SockRef::from(&lives)
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        for client in &clients {
            let (accepted, _) = lives.accept().expect("a connected client waits at this listener");
            (&accepted).write_all(b"!").unwrap();
            client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        }
        for client in &mut clients {
            client.read_exact(&mut [0]).expect("it was served");
        }
    });
    world.primary.run(|| {
        assert_eq!(sysctl::read("ipv4/tcp_migrate_req").unwrap(), "0", "as it was");
    });
}

/// For IPv6, the kernel takes packets to a new address only a moment after the address was added. Until then it drops
/// neighbour advertisements to this address, so `add_address` waits.
#[test]
fn packets_to_a_new_address_are_taken_at_once() {
    let Some(world) = RouterLan::new("packets_to_a_new_address_are_taken_at_once") else {
        return;
    };
    world.backup.run(|| {
        let netlink = netlink::Netlink::open().unwrap();
        let index = Interface::find("eth0").unwrap().unwrap().index;
        for vip in ["2001:db8::100", "10.0.0.100"] {
            let vip = vip.parse().unwrap();
            for _ in 0..300 {
                netlink.add_address(vip, "eth0").unwrap();
                assert!(netlink.takes(vip, index).unwrap());
                netlink.remove_address(vip, "eth0").unwrap();
                assert!(!netlink.takes(vip, index).unwrap());
            }
        }
    });
}

#[test]
fn sysctls_that_do_already_are_left_alone() {
    let Some(world) = RouterLan::new("sysctls_that_do_already_are_left_alone") else {
        return;
    };
    world
        .primary
        .command("sysctl -q -w net.ipv4.conf.all.arp_ignore=3 net.ipv4.conf.eth0.arp_announce=2");
    around(&world.primary, &primary_plan(), |_| {
        assert_eq!(sysctl::read("ipv4/conf/eth0/arp_ignore").unwrap(), "0");
    });
}

#[test]
fn a_sysctl_that_overrules_is_named() {
    let Some(world) = RouterLan::new("a_sysctl_that_overrules_is_named") else {
        return;
    };
    world
        .primary
        .command("sysctl -q -w net.ipv4.conf.all.arp_ignore=4");
    assert_refused(
        &world.primary,
        &primary_plan(),
        "use sysctl ipv4/conf/all/arp_ignore: it is 4 and overrules the interface's own; allowed: 1, 2, 3",
    );
}

#[track_caller]
fn assert_refused(node: &world::Namespace, plan: &NetworkPlan, expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    let journal = journal(dir.path());
    let before = node.dump();
    let error = node.run(|| {
        let failed = match Network::prepare(plan, &journal) {
            Err(error) => error,
            Ok(mut network) => {
                let error = raise(&mut network, plan).unwrap_err();
                network.remove().unwrap();
                error
            }
        };
        failed.to_string()
    });
    assert_eq!(error, expected);
    assert_same(&before, &node.dump());
    assert!(!journal.exists(), "nothing is left to undo");
}

#[test]
fn what_is_there_already_is_not_ours() {
    let Some(world) = RouterLan::new("what_is_there_already_is_not_ours") else {
        return;
    };
    let there = "it already exists, and this node's steadfast did not create it";
    let node = &world.backup;
    node.ip("addr add 10.0.0.100/24 dev eth0");
    assert_refused(
        node,
        &backup_plan(),
        &format!("add address 10.0.0.100 on eth0: {there}"),
    );
    node.ip("addr del 10.0.0.100/24 dev eth0");
    node.command("nft add table inet steadfast_test-node");
    assert_refused(
        node,
        &backup_plan(),
        &format!("add nftables table inet steadfast_test-node: {there}"),
    );
    node.run(|| assert_eq!(guarded_nodes().unwrap(), ["test-node"]));
    node.run(|| remove_guard("test-node").unwrap());
    node.run(|| remove_guard("test-node").unwrap());
    let node = &world.primary;
    node.ip("rule add pref 5310 from 10.0.0.100 iif lo lookup 5300");
    // The foreign rule uses table 5300. The set-up leaves that table alone and uses 5301, so the two rules differ and can both exist.
    around(node, &primary_plan(), |node| {
        assert!(node.ip("rule").contains("from 10.0.0.100 iif lo lookup 5301"));
    });
}

#[test]
fn an_interface_that_is_missing_is_named() {
    let Some(world) = RouterLan::new("an_interface_that_is_missing_is_named") else {
        return;
    };
    let mut plan = plan(3, &["10.0.0.100:80"]);
    plan.services[0].interface = "eth7".to_owned();
    assert_refused(&world.backup, &plan, "find interface eth7: no such interface");
}
