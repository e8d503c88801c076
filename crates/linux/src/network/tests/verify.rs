//! Tests of `verify` and `repair`: they find and restore the steps of the set-up that somebody else has undone.

use super::*;

/// The network state of `node`, without nftables, whose counters change.
fn dump(node: &world::Namespace) -> std::collections::BTreeMap<String, String> {
    let mut dump = node.settled();
    dump.remove("nftables");
    dump
}

/// Each command removes the object that is named beside it. `repair` restores that object.
fn check(node: &world::Namespace, plan: &NetworkPlan, cases: &[(&str, &str)]) {
    let dir = tempfile::tempdir().unwrap();
    let mut network = node.run(|| set_up(plan, &journal(dir.path())));
    let speaker = plan.services[0].address;
    node.run(|| network.set_speak(speaker, true).unwrap());
    let planned = dump(node);
    let none: [String; 0] = [];
    assert_eq!(node.run(|| network.verify().unwrap()), none);
    for (command, expected) in cases {
        node.command(command);
        assert_eq!(node.run(|| network.verify().unwrap()), [*expected], "{command}");
        assert_eq!(node.run(|| network.repair().unwrap()), [*expected], "{command}");
        assert_eq!(node.run(|| network.verify().unwrap()), none, "{command}");
        assert_same_soon(&planned, || dump(node));
        let may = |service| network.voice.may_speak("steadfast_test-node", service).unwrap();
        assert!(may(speaker), "{command}");
        assert!(!may(plan.services[1].address), "{command}");
    }
    node.run(|| network.remove().unwrap());
}

const GUARD: &str = "nftables table inet steadfast_test-node";

#[test]
fn what_a_primary_has_lost_is_put_up_again() {
    let Some(world) = RouterLan::new("what_a_primary_has_lost_is_put_up_again") else {
        return;
    };
    let cases = [
        (
            "ip rule del pref 5310",
            "rule 5310: from 10.0.0.100 to table 5300",
        ),
        (
            "ip -6 rule del pref 5310",
            "rule 5310: from 2001:db8::100 to table 5302",
        ),
        ("ip addr flush to 10.0.0.100", "address 10.0.0.100 on lo"),
        (
            "ip -6 addr del 2001:db8::100/128 dev lo",
            "address 2001:db8::100 on lo",
        ),
        (
            "ip route flush table 5300",
            "route default via 10.0.0.2 on eth0 in table 5300",
        ),
        (
            "ip -6 route flush table 5302",
            "route default via 2001:db8::2 on eth0 in table 5302",
        ),
        (
            "sysctl -q -w net.ipv4.conf.eth0.arp_ignore=0",
            "sysctl ipv4/conf/eth0/arp_ignore = 1",
        ),
        ("nft flush ruleset", GUARD),
        ("nft flush table inet steadfast_test-node", GUARD),
        ("nft flush chain inet steadfast_test-node mute", GUARD),
        ("nft flush set inet steadfast_test-node guarded4", GUARD),
        ("nft flush set inet steadfast_test-node guarded6", GUARD),
        ("nft flush set inet steadfast_test-node speak4", GUARD),
    ];
    check(&world.primary, &primary_plan(), &cases);
}

#[test]
fn what_a_backup_has_lost_is_put_up_again() {
    let Some(world) = RouterLan::new("what_a_backup_has_lost_is_put_up_again") else {
        return;
    };
    let cases = [
        ("ip addr del 10.0.0.100/32 dev eth0", "address 10.0.0.100 on eth0"),
        (
            "ip -6 addr del 2001:db8::100/128 dev eth0",
            "address 2001:db8::100 on eth0",
        ),
        (
            "ip rule del pref 5300 sport 443",
            "rule 5300: from 127.0.0.1 tcp port 443 to table 5301",
        ),
        (
            "ip route flush table 5301",
            "IPv4 route local default in table 5301",
        ),
        ("nft delete table inet steadfast_test-node", GUARD),
    ];
    check(&world.backup, &backup_plan(), &cases);
}

#[test]
fn a_claimed_vip_is_put_up_again_without_the_way_through_the_backup() {
    let Some(world) = RouterLan::new("a_claimed_vip_is_put_up_again_without_the_way_through_the_backup")
    else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let node = &world.primary;
    let plan = plan(2, &["10.0.0.100:80"]);
    let mut network = node.run(|| set_up(&plan, &journal(dir.path())));
    node.run(|| {
        network
            .assume(plan.services[0].address.ip(), NetworkPart::Alone)
            .unwrap()
    });
    let claimed = dump(node);
    assert_eq!(node.run(|| network.verify().unwrap()), [] as [String; 0]);
    node.ip("addr del 10.0.0.100/32 dev eth0");
    let expected = ["address 10.0.0.100 on eth0"];
    assert_eq!(node.run(|| network.repair().unwrap()), expected);
    assert_same_soon(&claimed, || dump(node));
}

#[test]
fn what_a_pulled_cable_took_along_comes_back_with_it() {
    let Some(world) = RouterLan::new("what_a_pulled_cable_took_along_comes_back_with_it") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    for (node, plan) in [(&world.backup, backup_plan()), (&world.primary, primary_plan())] {
        let mut network = node.run(|| set_up(&plan, &journal(dir.path())));
        node.ip("link set eth0 down");
        let missing = node.run(|| network.verify().unwrap());
        assert!(!missing.is_empty());
        let repaired = node.run(|| network.repair());
        node.ip("link set eth0 up");
        if repaired.is_err() {
            node.run(|| network.repair().unwrap());
        }
        assert_eq!(node.run(|| network.verify().unwrap()), [] as [String; 0]);
        node.run(|| network.remove().unwrap());
    }
}
