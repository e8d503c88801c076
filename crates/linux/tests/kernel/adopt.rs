//! An agent dies, and another agent adopts its wire. No packet passes unlogged, and no packet is logged twice.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use proto::action::Gate;
use steadfast_linux::wire::{PIN_ROOT, Wire, WireError, WireOptions, WireService};

use crate::support::bystander::Bystander;
use crate::support::lan::{Family, Lan};
use crate::support::log::LogThread;
use crate::support::wire_on::{WireOn, options, services};
use crate::support::{assert_same_stream, eventually, stream};

const BYTES: usize = 24 << 20;

/// Reads all of `expected`.
fn receive(mut stream: &TcpStream, expected: &[u8]) {
    let mut received = vec![0; expected.len()];
    stream.read_exact(&mut received).expect("read");
    assert_same_stream("received", &received, expected);
}

#[test]
fn a_wire_is_succeeded_under_traffic_and_no_record_is_lost_or_doubled() {
    let Some(lan) = Lan::new("a_wire_is_succeeded_under_traffic_and_no_record_is_lost_or_doubled") else {
        return;
    };
    let options = WireOptions {
        ring_bytes: 128 << 20, // room for all packets that are logged while no agent reads the ring
        ..options()
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options, Gate::Wire);
    let reading = LogThread::of(&wire);
    let pairs = Family::BOTH.map(|family| {
        let listener = lan.primary.listen(family.vip());
        lan.client.connect_pair(&listener)
    });
    let [upload, download] = [1, 2].map(|seed| stream(seed, BYTES));
    let (upload, download) = (&upload, &download);
    let (wire, reading) = std::thread::scope(|scope| {
        for (client, server) in &pairs {
            scope.spawn(move || { client }.write_all(upload).expect("upload"));
            scope.spawn(move || { server }.write_all(download).expect("download"));
            scope.spawn(move || receive(server, upload));
            scope.spawn(move || receive(client, download));
        }
        let (mut wire, mut reading) = (wire, reading);
        for death in 1..=3 {
            eventually("some traffic was logged", || {
                (reading.now().bytes > death << 20).then_some(())
            });
            // `succeeded` ends the agent as a kill does: its descriptors are closed, and nothing is removed.
            let log = reading.stop();
            wire = wire.succeeded(&options);
            reading = LogThread::resume_with(log, &wire);
        }
        (wire, reading)
    });
    let mut log = reading.now();
    for (client, _) in &pairs {
        let address = client.local_addr().expect("connected");
        assert_same_stream("the in-log", &log.transcript(address).input, upload);
        assert_same_stream("the out-log", &log.transcript(address).output, download);
        log.assert_protected(address);
    }
    assert_eq!(log.malformed, []);
    let counted = || -> u64 {
        let count = |reason| -> u64 {
            Family::BOTH
                .map(|family| wire.counter(family, reason))
                .iter()
                .sum()
        };
        count("logged_in_packets") + count("logged_out_packets")
    };
    eventually("each packet that was logged was read once", || {
        log.catch_up();
        (counted() == log.records[0] + log.records[1]).then_some(())
    });
    for family in Family::BOTH {
        assert_eq!(wire.drops(family), []);
    }
}

#[test]
fn what_was_logged_while_nobody_lived_is_read_by_the_successor() {
    let Some(lan) = Lan::new("what_was_logged_while_nobody_lived_is_read_by_the_successor") else {
        return;
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
    let reading = LogThread::of(&wire);
    let mut bystanders = Family::BOTH.map(|family| {
        let listener = lan.primary.listen(family.vip());
        let mut bystander = Bystander::new(lan.client.connect_pair(&listener));
        bystander.exchange(1000);
        bystander
    });
    let log = reading.stop();
    let dead = wire.die();
    for bystander in &mut bystanders {
        bystander.exchange(10_000);
    }
    let wire = dead.succeeded(&options());
    let reading = LogThread::resume_with(log, &wire);
    for bystander in &mut bystanders {
        bystander.assert_undisturbed(&reading);
    }
}

#[test]
fn gates_survive_and_so_does_what_they_forbid() {
    let Some(lan) = Lan::new("gates_survive_and_so_does_what_they_forbid") else {
        return;
    };
    let mut wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Off);
    for (v4, v6) in Gate::ALL.into_iter().zip(Gate::ALL.into_iter().rev()) {
        wire.set_gate(Family::V4.service(), v4);
        wire.set_gate(Family::V6.service(), v6);
        wire = wire.succeeded(&options());
        let kept = Family::BOTH.map(|family| wire.gate(family.service()).0);
        assert_eq!(kept, [v4, v6]);
    }
}

/// An agent dies during a takeover, or while it holds clients. SYNs that waited for its decision must not wait forever: the next agent lets
/// them pass.
#[test]
fn syns_that_waited_for_a_dead_agent_pass() {
    for (gate, knew) in [
        (Gate::Takeover, false),
        (Gate::Takeover, true),
        (Gate::Wire, true),
    ] {
        let Some(lan) = Lan::new("syns_that_waited_for_a_dead_agent_pass") else {
            return;
        };
        let mut wire = WireOn::new(&lan.backup, &lan.primary, &options(), gate);
        for family in Family::BOTH.into_iter().filter(|_| knew) {
            wire.hold(family.service(), &family.clients()).expect("hold");
        }
        wire = wire.succeeded(&options());
        wire.set_gates(gate); // as an agent does after the arbiter's answer
        let server = if gate == Gate::Wire {
            &lan.primary
        } else {
            &lan.backup
        };
        for family in Family::BOTH {
            lan.client.connect_pair(&server.listen(family.vip()));
            assert_eq!(wire.counter(family, "dropped_syn_waits"), 0);
        }
    }
}

/// The text of the error with which `adopt` refuses.
fn refusal(lan: &Lan, name: &str, options: &WireOptions, services: &[WireService]) -> String {
    let refused = lan.backup.run(|| Wire::adopt(name, options, services).err());
    let error = refused.expect("it is refused");
    assert!(matches!(error, WireError::Unfit { .. }), "{error}");
    let text = error.to_string();
    assert!(text.ends_with("; run `steadfast cleanup` first"), "{text}");
    text
}

#[test]
fn what_does_not_fit_is_refused_and_left_as_it_is() {
    let Some(lan) = Lan::new("what_does_not_fit_is_refused_and_left_as_it_is") else {
        return;
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
    let reading = LogThread::of(&wire);
    let listener = lan.primary.listen(Family::V4.vip());
    let mut bystander = Bystander::new(lan.client.connect_pair(&listener));
    bystander.exchange(1000);
    let log = reading.stop();
    let dead = wire.die();
    let name = dead.name().to_owned();
    let same = services(&lan.backup);
    let refused = |options: &WireOptions, services: &[WireService], why: &str| {
        let text = refusal(&lan, &name, options, services);
        assert!(text.contains(why), "{why}: {text}");
    };

    let larger = WireOptions {
        ring_bytes: 2 * options().ring_bytes,
        ..options()
    };
    refused(
        &larger,
        &same,
        "its map ring_overflow has 16777216 entries or bytes, not 33554432",
    );
    refused(&options(), &same[..1], "it serves 2 services, not 1");
    let mut other = same.clone();
    other.swap(0, 1);
    refused(&options(), &other, "its service 0 is not fd00::100 port 80");
    let changes: [fn(&mut WireService); 3] = [
        |service| service.port = 81,
        |service| service.ifindex += 1,
        |service| service.own_mac[5] ^= 1,
    ];
    for change in changes {
        let mut other = same.clone();
        change(&mut other[1]);
        refused(&options(), &other, "its service 1 is not");
    }
    let elsewhere = lan.primary.run(|| Wire::adopt(&name, &options(), &same).err());
    let elsewhere = elsewhere.expect("refused").to_string();
    assert!(
        elsewhere.contains("it is of another network namespace"),
        "{elsewhere}"
    );
    let pins = Path::new(PIN_ROOT).join(&name);
    let layout = std::fs::read_link(pins.join("abi")).expect("the layout is recorded");
    for other in [Some("0123456789abcdef"), None] {
        std::fs::remove_file(pins.join("abi")).expect("remove");
        if let Some(other) = other {
            std::os::unix::fs::symlink(other, pins.join("abi")).expect("link");
        } else {
            assert!(!pins.join("abi").exists());
            refused(&options(), &same, "the maps have another layout");
            std::os::unix::fs::symlink(&layout, pins.join("abi")).expect("link");
            break;
        }
        refused(&options(), &same, "the maps have another layout");
    }
    assert!(
        Wire::adopt("sf-nobody", &options(), &same)
            .expect("no error")
            .is_none()
    );

    bystander.exchange(1000);
    let wire = dead.succeeded(&options());
    let reading = LogThread::resume_with(log, &wire);
    bystander.assert_undisturbed(&reading);
}
