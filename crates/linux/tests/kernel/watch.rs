//! `FilterWatch` notices removed filters, and `Wire::reattach` puts them back.

use std::process::Command;

use proto::action::Gate;
use steadfast_linux::wire::FilterWatch;

use crate::support::bystander::Bystander;
use crate::support::eventually;
use crate::support::lan::{Family, Lan, LanHost};
use crate::support::log::LogThread;
use crate::support::wire_on::{WireOn, options};

fn tc(host: &LanHost, arguments: &str) {
    let output = host.run(|| {
        Command::new("tc")
            .args(arguments.split(' '))
            .output()
            .expect("tc can be run")
    });
    assert!(output.status.success(), "tc {arguments}: {output:?}");
}

fn index(host: &LanHost) -> u32 {
    host.run(|| nix::net::if_::if_nametoindex("eth0").expect("eth0"))
}

#[test]
fn filters_that_were_removed_are_put_back() {
    let Some(lan) = Lan::new("filters_that_were_removed_are_put_back") else {
        return;
    };
    let eth0 = index(&lan.backup);
    let watch = lan.backup.run(|| FilterWatch::open(&[eth0])).expect("watch");
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
    assert_eq!(watch.check(), [] as [u32; 0], "attaching removes nothing");
    let reading = LogThread::of(&wire);
    let mut bystanders = Family::BOTH.map(|family| {
        let listener = lan.primary.listen(family.vip());
        Bystander::new(lan.client.connect_pair(&listener))
    });
    for removal in [
        "filter del dev eth0 ingress pref 95",
        "filter del dev eth0 egress pref 95",
        "filter del dev eth0 ingress",
        "filter del dev eth0 egress",
        "qdisc del dev eth0 clsact",
    ] {
        for bystander in &mut bystanders {
            bystander.exchange(10_000);
        }
        tc(&lan.backup, removal);
        let concerned = eventually(removal, || Some(watch.check()).filter(|found| !found.is_empty()));
        assert_eq!(concerned, [eth0], "{removal}");
        lan.backup.run(|| wire.reattach(eth0)).expect("reattach");
        for bystander in &mut bystanders {
            bystander.assert_undisturbed(&reading);
        }
        assert_eq!(watch.check(), [] as [u32; 0], "{removal}: not a removal");
    }
    for family in Family::BOTH {
        assert_eq!(wire.drops(family), []);
    }
}

#[test]
fn what_does_not_concern_us_is_not_told() {
    let Some(lan) = Lan::new("what_does_not_concern_us_is_not_told") else {
        return;
    };
    let eth0 = index(&lan.backup);
    let watch = lan.backup.run(|| FilterWatch::open(&[eth0])).expect("watch");
    tc(&lan.backup, "qdisc add dev lo clsact");
    tc(&lan.backup, "qdisc del dev lo clsact");
    lan.backup.ip("link add other type bridge\n link del other");
    assert_eq!(watch.check(), [] as [u32; 0]);
}

#[test]
fn an_interface_that_is_gone_is_told_and_named() {
    let Some(lan) = Lan::new("an_interface_that_is_gone_is_told_and_named") else {
        return;
    };
    let eth0 = index(&lan.primary);
    let wire = WireOn::new(&lan.primary, &lan.backup, &options(), Gate::Primary);
    let watch = lan.primary.run(|| FilterWatch::open(&[eth0])).expect("watch");
    lan.primary.ip("link del eth0");
    let concerned = eventually("the removed interface is reported", || {
        Some(watch.check()).filter(|found| !found.is_empty())
    });
    assert_eq!(concerned, [eth0]);
    let error = lan.primary.run(|| wire.reattach(eth0)).unwrap_err().to_string();
    assert!(error.contains(&format!("interface {eth0}")), "{error}");
}
