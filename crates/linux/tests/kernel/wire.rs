//! The wire on the real kernel: it loads, leaves nothing behind, and logs every packet, byte for byte, before it releases the packet.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::Barrier;

use proto::Seq;
use proto::action::Gate;
use proto::packet::{Flags, Segment, TcpOptions};
use steadfast_linux::wire::{PIN_ROOT, Record, Wire, WireOptions, WireService};

use crate::support::frame::FrameTap;
use crate::support::lan::{Family, Lan, LanHost, is_root};
use crate::support::log::LogThread;
use crate::support::socket::tcp_info;
use crate::support::testbed::say;
use crate::support::wire_on::{WireOn, options};
use crate::support::{assert_same_stream, eventually, stream};

const MEGABYTE: usize = 1 << 20;

fn load_attach_remove(name: &str, chunks_only: bool) {
    if !is_root(name) {
        return;
    }
    LanHost::new(1).run(|| {
        let node = format!("{name}-{}", std::process::id());
        let options = WireOptions {
            ring_bytes: 1 << 20,
            chunks_only,
            ..WireOptions::default()
        };
        let mut wire = Wire::load(&node, &options).expect("load");
        let service = WireService {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 80,
            ifindex: 1,
            own_mac: [2; 6],
            crash_exit_codes: Vec::new(),
            application: None,
            own: None,
        };
        wire.add_service(0, &service).expect("add_service");
        assert_eq!(wire.attach().expect("attach"), None);
        wire.set_gate(0, Gate::Wire);
        assert_eq!(wire.rings().expect("rings").fill(), 0);
        assert_eq!(wire.counters(0).expect("counters").iter().sum::<u64>(), 0);
        assert!(Wire::load(&node, &options).is_err(), "leftovers are refused");
        wire.remove().expect("remove");
        let pins = std::path::Path::new(PIN_ROOT).join(&node);
        assert!(!pins.exists());
        let qdiscs = std::process::Command::new("tc")
            .args(["qdisc", "show", "dev", "lo"])
            .output()
            .expect("tc");
        assert!(
            !String::from_utf8_lossy(&qdiscs.stdout).contains("clsact"),
            "{qdiscs:?}"
        );
    });
}

#[test]
fn programs_load_attach_and_leave_nothing() {
    load_attach_remove("programs_load_attach_and_leave_nothing", false);
}

#[test]
fn the_fallback_for_older_kernels_loads_too() {
    load_attach_remove("the_fallback_for_older_kernels_loads_too", true);
}

/// Reads `expected` from `stream`, and after each read calls `check` with the number of bytes so far.
fn receive(mut stream: &TcpStream, expected: &[u8], check: impl Fn(usize)) {
    let mut received = Vec::with_capacity(expected.len());
    let mut buffer = vec![0; MEGABYTE];
    while received.len() < expected.len() {
        let count = stream.read(&mut buffer).expect("read");
        assert!(count > 0, "ended after {} of {}", received.len(), expected.len());
        received.extend_from_slice(&buffer[..count]);
        check(received.len());
    }
    assert_same_stream("received", &received, expected);
}

/// Transfers data in both directions at once. Checks that all bytes that an application has read are already in the log.
fn transfer(
    family: Family,
    (client, server): (&TcpStream, &TcpStream),
    reading: &LogThread,
    megabytes: usize,
) {
    let address = client.local_addr().expect("connected");
    let [upload, download] =
        [1, 2].map(|seed| stream(seed ^ u64::from(family.service()) << 8, megabytes * MEGABYTE));
    std::thread::scope(|scope| {
        scope.spawn(|| { client }.write_all(&upload).expect("upload"));
        scope.spawn(|| { server }.write_all(&download).expect("download"));
        scope.spawn(|| {
            receive(server, &upload, |count| {
                let logged = reading.now().transcript(address).input.len();
                assert!(
                    logged >= count,
                    "the server read {count} bytes, {logged} are in the log"
                );
            });
        });
        receive(client, &download, |count| {
            let logged = reading.now().transcript(address).output.len();
            assert!(
                logged >= count,
                "the client read {count} bytes, {logged} are in the log"
            );
        });
    });
    let log = reading.now();
    assert_same_stream("the in-log", &log.transcript(address).input, &upload);
    assert_same_stream("the out-log", &log.transcript(address).output, &download);
    log.assert_protected(address);
}

fn everything_is_logged_before_it_arrives(test: &str, family: Family, chunks_only: bool) {
    let Some(lan) = Lan::new(test) else { return };
    let options = WireOptions {
        chunks_only,
        ring_bytes: 64 << 20, // room for all that is sent, also if the reader is late
        ..options()
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options, Gate::Wire);
    let reading = LogThread::of(&wire);
    let listener = lan.primary.listen(family.vip());
    let (client, server) = lan.client.connect_pair(&listener);
    transfer(family, (&client, &server), &reading, 16);

    let mut log = reading.now();
    assert!(
        log.longest > 10_000,
        "no large GSO packet passed: {}",
        log.longest
    );
    let strangers = log.records[1];
    assert!(
        (2..=32).contains(&strangers),
        "{strangers}: not just SYN, SYN-ACK, and the client's packets before the server's answer"
    );
    assert_eq!(log.malformed, []);
    assert_eq!(wire.drops(family), []);
    let counted = || {
        let count = |reason| wire.counter(family, reason);
        let packets = count("logged_in_packets") + count("logged_out_packets");
        (packets, count("logged_in_bytes") + count("logged_out_bytes"))
    };
    eventually("the counters and the log agree", || {
        let before = counted();
        log.catch_up();
        (before == (log.records[0] + log.records[1], log.bytes)).then_some(())
    });
}

#[test]
fn ipv4_is_logged_before_it_arrives() {
    everything_is_logged_before_it_arrives("ipv4_is_logged_before_it_arrives", Family::V4, false);
}

#[test]
fn ipv6_is_logged_before_it_arrives() {
    everything_is_logged_before_it_arrives("ipv6_is_logged_before_it_arrives", Family::V6, false);
}

#[test]
fn the_fallback_logs_before_it_arrives_too() {
    everything_is_logged_before_it_arrives("the_fallback_logs_before_it_arrives_too", Family::V4, true);
}

/// A segment whose IP packet is `len` bytes long.
fn packet_of(family: Family, len: usize) -> Vec<u8> {
    let headers = if family == Family::V4 { 40 } else { 60 };
    let payload = stream(len as u64, len - headers);
    let segment = Segment {
        source: (family.address(77), 4000).into(),
        destination: family.vip(),
        seq: Seq(len as u32),
        ack: Seq(1),
        flags: Flags::ACK,
        window: 100,
        options: TcpOptions::default(),
        payload: &payload,
    };
    segment.emit()
}

/// Returns the flags and the bytes of each record that a wire logs for `packets`.
fn logged(lan: &Lan, chunks_only: bool, packets: &[Vec<u8>]) -> Vec<(u8, Vec<u8>)> {
    const MTU: usize = 1500;
    let options = WireOptions {
        chunks_only,
        ..options()
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options, Gate::Wire);
    let mut rings = wire.rings().expect("rings");
    let tap = FrameTap::on(&lan.client, "port2");
    for packet in packets {
        if packet.len() <= MTU {
            tap.put(lan.backup.mac(), lan.client.mac(), packet);
        } else {
            tap.put_uncut(lan.backup.mac(), lan.client.mac(), packet, 1400);
        }
    }
    let mut records = Vec::new();
    eventually("all packets are in the ring", || {
        rings.drain(usize::MAX, true, &mut |record: &Record, packet: &[u8]| {
            assert_eq!((record.len as usize, record.direction), (packet.len(), 0));
            records.push((record.flags, packet.to_vec()));
        });
        (records.len() >= packets.len()).then_some(())
    });
    for family in Family::BOTH {
        assert_eq!(wire.drops(family), []);
    }
    records
}

#[test]
fn both_ways_to_copy_give_the_same_records() {
    let Some(lan) = Lan::new("both_ways_to_copy_give_the_same_records") else {
        return;
    };
    lan.power_off_primary(); // a living primary would answer
    let lengths = [
        60, 61, 1023, 1024, 1025, 1500, 2047, 2048, 2049, 3000, 10_240, 40_001, 65_520, 65_521,
    ];
    let packets: Vec<_> = Family::BOTH
        .into_iter()
        .flat_map(|family| lengths.map(|len| packet_of(family, len)))
        .collect();
    let [by_dynptr, in_chunks] = [false, true].map(|chunks_only| logged(&lan, chunks_only, &packets));
    for ((packet, (_, copied)), (_, chunked)) in packets.iter().zip(&by_dynptr).zip(&in_chunks) {
        assert_same_stream("copied at once", copied, packet);
        assert_same_stream("copied in chunks", chunked, packet);
    }
    assert_eq!(by_dynptr, in_chunks);
}

#[test]
fn what_overflows_is_read_in_its_turn() {
    let Some(lan) = Lan::new("what_overflows_is_read_in_its_turn") else {
        return;
    };
    lan.power_off_primary(); // a living primary would answer
    let options = WireOptions {
        ring_cached_bytes: 64 << 10,
        ..options()
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options, Gate::Wire);
    let mut rings = wire.rings().expect("rings");
    let tap = FrameTap::on(&lan.client, "port2");
    let mut read = Vec::new();
    let lengths: Vec<usize> = (1000..1400).collect();
    for (part, lengths) in (1..).zip(lengths.chunks(100)) {
        for &len in lengths {
            tap.put(lan.backup.mac(), lan.client.mac(), &packet_of(Family::V4, len));
        }
        wire.wait_for(Family::V4, "logged_in_packets", part * 100);
        // Read a part of the first ring only. The next packets then fit into the first ring, although the second ring has earlier packets.
        rings.drain(20, false, &mut |_: &Record, packet: &[u8]| {
            read.push(packet.len())
        });
    }
    rings.drain(usize::MAX, true, &mut |_: &Record, packet: &[u8]| {
        read.push(packet.len())
    });
    assert_eq!(read, lengths);
    assert_eq!(wire.drops(Family::V4), []);
}

#[test]
fn a_full_ring_drops_and_nothing_is_lost() {
    let Some(lan) = Lan::new("a_full_ring_drops_and_nothing_is_lost") else {
        return;
    };
    let options = WireOptions {
        ring_bytes: 256 << 10,
        ..options()
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options, Gate::Wire);
    let reading = LogThread::of(&wire);
    let listener = lan.primary.listen(Family::V4.vip());
    let (client, server) = lan.client.connect_pair(&listener);
    reading.pause();
    let stalled = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stalled.wait();
            transfer(Family::V4, (&client, &server), &reading, 4);
        });
        stalled.wait();
        wire.wait_for(Family::V4, "dropped_ring_full", 3);
        reading.resume();
    });
    assert!(
        wire.drops(Family::V4)
            .iter()
            .all(|&(reason, _)| reason == "dropped_ring_full")
    );
}

/// The fill, which `ring_fill_bytes` reports, is the size of all unread records.
#[test]
fn a_ring_is_as_full_as_what_nobody_has_read() {
    /// Bytes of the kernel's header of a record and of the padding behind the record.
    const AROUND: u64 = 8 + 8;
    let Some(lan) = Lan::new("a_ring_is_as_full_as_what_nobody_has_read") else {
        return;
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
    let reading = LogThread::of(&wire);
    let listener = lan.primary.listen(Family::V4.vip());
    let (client, server) = lan.client.connect_pair(&listener);
    let read = || {
        let log = reading.now();
        (log.records.iter().sum::<u64>(), log.bytes)
    };
    let said = stream(1, 60_000);
    let before = read();
    reading.pause();
    for part in said.chunks(1000) {
        say(&client, &server, part);
    }
    let acknowledged = || (tcp_info(&client).tcpi_unacked == 0).then_some(());
    eventually("all is acknowledged", acknowledged);
    let unread = reading.unread();
    let after = read();
    let (records, bytes) = (after.0 - before.0, after.1 - before.1);
    assert!(bytes > said.len() as u64, "{bytes} bytes in {records} records");
    let most = bytes + records * (size_of::<Record>() as u64 + AROUND);
    assert!(
        (bytes..=most).contains(&unread),
        "{unread} of {bytes} in {records}"
    );
    assert_eq!(reading.unread(), 0);
}
