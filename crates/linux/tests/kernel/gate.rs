//! Tests which node may speak for the VIP at which gate, and how a connection is switched from the log to its socket.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use proto::action::Gate;
use proto::packet::{Checksum, Flags, Segment, TcpOptions};
use proto::{Seq, takeover};
use socket2::{Domain, SockRef, Socket, Type};
use steadfast_linux::clock;
use steadfast_linux::raw::RawSender;
use steadfast_linux::repair::{Pool, RestoredSocket};
use steadfast_linux::wire::{MARK_SPEAK, REASONS, WireOptions, WireService};

use crate::support::frame::{
    DESTINATION_OPTIONS, FRAGMENT, FrameTap, PADDING, fix_ipv4_header, fragment_header, too_big,
    with_extension, with_extensions,
};
use crate::support::lan::{Family, Lan, accept, patient};
use crate::support::log::LogThread;
use crate::support::socket::tcp_info;
use crate::support::wire_on::{WireOn, options, services};
use crate::support::{assert_same_stream, eventually, stay_on_this_cpu, stream};

/// Sequence numbers that identify the packets at the backup's wire in [`fates`].
const CLIENTS: u32 = 1;
const PRIMARYS: u32 = 2;
const STRANGERS: u32 = 3;
const OWN: u32 = 4;
const FENCE: u32 = 5;

/// A packet that no host answers.
fn word(number: u32, source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let segment = Segment {
        source,
        destination,
        seq: Seq(number),
        ack: Seq(0),
        flags: Flags::RST,
        window: 0,
        options: TcpOptions::default(),
        payload: &[],
    };
    segment.emit()
}

/// The sequence numbers of the packets that arrived before the fence packet.
fn heard(tap: &mut FrameTap) -> Vec<u32> {
    let mut numbers = Vec::new();
    eventually("the fence", || {
        while let Some(packet) = tap.take() {
            match Segment::parse(&packet, Checksum::Trusted) {
                Ok(segment) if segment.flags.rst && segment.seq == Seq(FENCE) => return Some(()),
                Ok(segment) if segment.flags.rst => numbers.push(segment.seq.0),
                _ => {}
            }
        }
        None
    });
    numbers
}

/// The packets that arrived before the packet `fence`.
fn before_the(fence: &[u8], tap: &mut FrameTap) -> Vec<Vec<u8>> {
    let mut arrived = Vec::new();
    eventually("the fence", || {
        arrived.extend(std::iter::from_fn(|| tap.take()));
        arrived.iter().position(|packet| packet == fence)
    });
    arrived
}

/// The counters that grew because of the four packets of [`fates`], and the packets that arrived at each host.
#[derive(Debug, PartialEq, Eq)]
struct Fates {
    counted: Vec<(&'static str, u64)>,
    at_primary: Vec<u32>,
    at_client: Vec<u32>,
}

/// Sends one packet of each party through the backup's wire, whose gate is `gate`.
fn fates(gate: Gate, family: Family, lan: &Lan, wire: &WireOn) -> Fates {
    wire.set_gates(gate);
    let (client, vip): (SocketAddr, _) = ((family.address(1), 4000).into(), family.vip());
    let tap = FrameTap::on(&lan.client, "port2");
    let (mut at_client, mut at_primary) = (
        FrameTap::on(&lan.client, "lan"),
        FrameTap::on(&lan.primary, "eth0"),
    );
    let sender = lan.backup.run(RawSender::open).expect("raw sockets");
    let before = wire.counters(family.service()).expect("counters");
    tap.put(lan.backup.mac(), lan.client.mac(), &word(CLIENTS, client, vip));
    tap.put(lan.backup.mac(), lan.primary.mac(), &word(PRIMARYS, vip, client));
    tap.put(
        lan.backup.mac(),
        [2, 0, 0, 0, 0, 9],
        &word(STRANGERS, vip, client),
    );
    sender.send(&word(OWN, vip, client)).expect("send");
    for other in [1, 3] {
        let fence = word(
            FENCE,
            (family.address(2), 1).into(),
            (family.address(other), 1).into(),
        );
        sender.send(&fence).expect("send");
    }
    let (at_client, at_primary) = (heard(&mut at_client), heard(&mut at_primary));
    let after = wire.counters(family.service()).expect("counters");
    let grown = REASONS
        .into_iter()
        .zip(before)
        .zip(after)
        .map(|((name, before), after)| (name, after - before));
    Fates {
        counted: grown.filter(|&(_, by)| by > 0).collect(),
        at_primary,
        at_client,
    }
}

#[test]
fn every_gate_lets_through_what_it_says() {
    let Some(lan) = Lan::new("every_gate_lets_through_what_it_says") else {
        return;
    };
    stay_on_this_cpu();
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Off);
    for family in Family::BOTH {
        let bytes = if family == Family::V4 { 40 } else { 60 };
        let expected = |gate| -> (Vec<(&str, u64)>, &[u32], &[u32]) {
            match gate {
                Gate::Off => (vec![], &[], &[OWN]),
                Gate::Wire => {
                    let counted = vec![
                        ("logged_in_packets", 1),
                        ("logged_out_packets", 1),
                        ("logged_in_bytes", bytes),
                        ("logged_out_bytes", bytes),
                        ("dropped_foreign_voice", 1),
                        ("dropped_egress_mute", 1),
                    ];
                    (counted, &[CLIENTS], &[PRIMARYS])
                }
                Gate::Takeover => (
                    vec![("dropped_gate_closed", 2), ("held_in_takeover", 1)],
                    &[],
                    &[OWN],
                ),
                Gate::Sole => (vec![("dropped_gate_closed", 2)], &[], &[OWN]),
                // The agent's own packet goes to the wire, too.
                Gate::Primary => (
                    vec![("dropped_foreign_voice", 2), ("led_to_wire", 1)],
                    &[CLIENTS, OWN],
                    &[],
                ),
                Gate::Mute => (vec![("dropped_egress_mute", 4)], &[], &[]),
            }
        };
        for gate in [
            Gate::Off,
            Gate::Wire,
            Gate::Takeover,
            Gate::Sole,
            Gate::Primary,
            Gate::Mute,
        ] {
            let (counted, at_primary, at_client) = expected(gate);
            let (at_primary, at_client) = (at_primary.to_vec(), at_client.to_vec());
            let expected = Fates {
                counted,
                at_primary,
                at_client,
            };
            assert_eq!(fates(gate, family, &lan, &wire), expected, "{family:?} {gate:?}");
        }
    }
}

/// The service and the connection of an unreadable packet are unknown.
#[test]
fn what_cannot_be_read_leaves_a_node_that_speaks_alone_only() {
    let Some(lan) = Lan::new("what_cannot_be_read_leaves_a_node_that_speaks_alone_only") else {
        return;
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Off);
    let out = FrameTap::behind_filters(&lan.backup, "eth0");
    for family in Family::BOTH {
        let (client, vip): (SocketAddr, _) = ((family.address(1), 4000).into(), family.vip());
        let whole = word(OWN, vip, client);
        let cut = whole[..whole.len() - 1].to_vec();
        let packets = match family {
            Family::V4 => {
                let mut fragment = whole;
                fragment[6] |= 0x20; // the flag "more fragments"
                fix_ipv4_header(&mut fragment);
                vec![(fragment, "dropped_fragment"), (cut, "dropped_malformed")]
            }
            Family::V6 => {
                let first = fragment_header(0, true);
                let behind = with_extension(&whole, DESTINATION_OPTIONS, &PADDING);
                vec![
                    (cut, "dropped_malformed"),
                    (with_extension(&whole, FRAGMENT, &first), "dropped_fragment"),
                    (with_extension(&behind, FRAGMENT, &first), "dropped_fragment"),
                    (with_extensions(&whole, 7), "dropped_malformed"),
                ]
            }
        };
        for gate in [
            Gate::Off,
            Gate::Wire,
            Gate::Takeover,
            Gate::Sole,
            Gate::Primary,
            Gate::Mute,
        ] {
            wire.set_gates(gate);
            let leaves = matches!(gate, Gate::Off | Gate::Takeover | Gate::Sole);
            for (packet, reason) in &packets {
                let before = wire.counter(family, reason);
                let has_left = leaves_by(&out, &lan, packet, (family.address(2), 1).into(), client);
                assert_eq!(has_left, leaves, "{family:?} {gate:?}");
                let dropped = wire.counter(family, reason) - before;
                assert_eq!(dropped, u64::from(!leaves), "{family:?} {gate:?}");
            }
        }
    }
}

/// Whether a packet that the backup sends to the client arrives there. A fence packet from `own` to `client` follows it.
fn leaves_by(out: &FrameTap, lan: &Lan, packet: &[u8], own: SocketAddr, client: SocketAddr) -> bool {
    let mut at_client = FrameTap::on(&lan.client, "lan");
    // If a filter drops the packet, the kernel tells the sender that there is no room.
    let has_left = out.offer(lan.client.mac(), lan.backup.mac(), packet);
    let fence = word(FENCE, own, client);
    out.put(lan.client.mac(), lan.backup.mac(), &fence);
    let has_arrived = before_the(&fence, &mut at_client).iter().any(|one| one == packet);
    assert_eq!(has_arrived, has_left);
    has_arrived
}

/// The service of an unreadable packet at a VIP is unknown. So it passes only if all services of the VIP let it pass.
#[test]
fn what_cannot_be_read_is_held_to_all_services_of_its_vip() {
    let Some(lan) = Lan::new("what_cannot_be_read_is_held_to_all_services_of_its_vip") else {
        return;
    };
    let first = services(&lan.backup);
    let second = first.clone().map(|service| WireService { port: 81, ..service });
    let both = [first, second].concat();
    let wire = WireOn::serving(&both, &lan.backup, &lan.primary, &options(), Gate::Off);
    let (out, tap) = (
        FrameTap::behind_filters(&lan.backup, "eth0"),
        FrameTap::on(&lan.client, "port2"),
    );
    for family in Family::BOTH {
        let (client, vip): (SocketAddr, _) = ((family.address(1), 4000).into(), family.vip());
        let indices = [family.service(), family.service() + 2];
        let dropped = || -> u64 {
            let at = REASONS
                .iter()
                .position(|&name| name == "dropped_malformed")
                .expect("a counter");
            indices
                .iter()
                .map(|&index| wire.counters(index).expect("counters")[at])
                .sum()
        };
        let cut = |mut packet: Vec<u8>| {
            packet.pop();
            packet
        };
        let (said, heard) = (cut(word(OWN, vip, client)), cut(word(CLIENTS, client, vip)));
        for (gates, leaves) in [
            ([Gate::Off, Gate::Off], true),
            ([Gate::Sole, Gate::Takeover], true),
            ([Gate::Sole, Gate::Off], true),
            ([Gate::Sole, Gate::Wire], false),
            ([Gate::Wire, Gate::Sole], false),
            ([Gate::Off, Gate::Primary], false),
            ([Gate::Primary, Gate::Off], false),
            ([Gate::Mute, Gate::Takeover], false),
        ] {
            indices
                .iter()
                .zip(gates)
                .for_each(|(&index, gate)| wire.set_gate(index, gate));
            let before = dropped();
            let has_left = leaves_by(&out, &lan, &said, (family.address(2), 1).into(), client);
            assert_eq!(has_left, leaves, "{family:?} {gates:?}");
            assert_eq!(dropped() - before, u64::from(!leaves), "{family:?} {gates:?}");
            if gates != [Gate::Off; 2] {
                let before = dropped();
                tap.put(lan.backup.mac(), lan.client.mac(), &heard);
                eventually("what the client says is dropped", || {
                    (dropped() > before).then_some(())
                });
            }
        }
        // Each service has its own right to speak. If one of these rights has expired, the packet is dropped.
        indices.iter().for_each(|&index| wire.set_gate(index, Gate::Sole));
        for index in indices {
            wire.set_until(index, 1);
            assert!(
                !leaves_by(&out, &lan, &said, (family.address(2), 1).into(), client),
                "{family:?}"
            );
            wire.set_until(index, 0);
        }
    }
}

/// A right to speak ends by itself, even if no process runs. This applies to a node that speaks alone, and to a wire
/// that speaks for a dead worker's connection.
#[test]
fn the_right_to_speak_ends_by_itself() {
    let Some(lan) = Lan::new("the_right_to_speak_ends_by_itself") else {
        return;
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Off);
    let sender = lan.backup.run(RawSender::open).expect("raw sockets");
    for family in Family::BOTH {
        let (client, vip): (SocketAddr, _) = ((family.address(1), 4000).into(), family.vip());
        let fence = word(FENCE, (family.address(2), 1).into(), client);
        let says = |until_ns: u64| {
            wire.set_until(family.service(), until_ns);
            let mut at_client = FrameTap::on(&lan.client, "lan");
            sender.send(&word(OWN, vip, client)).expect("send");
            sender.send(&fence).expect("send");
            heard(&mut at_client)
        };
        for gate in [Gate::Takeover, Gate::Sole, Gate::Wire] {
            wire.set_gates(gate);
            wire.hold(family.service(), &[client]).expect("hold");
            wire.settle(family.service(), &[client]).expect("settle");
            let expired = wire.counter(family, "dropped_right_expired");
            assert_eq!(says(0), [OWN], "{gate:?}: without an end");
            let now = clock::now().as_nanos();
            assert_eq!(says(now + 60_000_000_000), [OWN], "{gate:?}: before its end");
            assert_eq!(says(now), [] as [u32; 0], "{gate:?}: after it");
            assert_eq!(wire.counter(family, "dropped_right_expired"), expired + 1);
        }
    }
}

/// Asserts that nothing has arrived.
#[track_caller]
fn assert_silent(mut stream: &TcpStream) {
    stream.set_nonblocking(true).expect("non-blocking");
    let got = stream.read(&mut [0; 10]);
    assert!(
        got.as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
        "{got:?}"
    );
    stream.set_nonblocking(false).expect("blocking");
}

#[track_caller]
fn say(mut from: &TcpStream, mut to: &TcpStream, bytes: &[u8]) {
    let mut received = vec![0; bytes.len()];
    std::thread::scope(|scope| {
        scope.spawn(move || from.write_all(bytes).expect("write"));
        to.read_exact(&mut received).expect("read");
    });
    assert_same_stream("said", &received, bytes);
}

/// In a takeover, the old primary is not heard. The client's packets are kept in the log until the connection's socket is ready. Every byte
/// reaches the socket once.
#[test]
fn a_connection_is_switched_from_the_log_to_its_socket() {
    for family in Family::BOTH {
        let Some(lan) = Lan::new("a_connection_is_switched_from_the_log_to_its_socket") else {
            return;
        };
        let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
        let reading = LogThread::of(&wire);
        let (client, server) = lan.client.connect_pair(&lan.primary.listen(family.vip()));
        let address = client.local_addr().expect("connected");
        say(&client, &server, b"before");
        say(&server, &client, b"reply before");
        eventually("its acknowledgement is logged", || {
            (!reading.now().connection(address).1.is_busy()).then_some(())
        });

        wire.set_gates(Gate::Takeover);
        (&server).write_all(b"the old primary").expect("write");
        wire.wait_for(family, "dropped_gate_closed", 1);
        assert_silent(&client);

        (&client).write_all(b"held").expect("write");
        wire.wait_for(family, "held_in_takeover", 1);
        let log = reading.now();
        assert_same_stream("the in-log", &log.transcript(address).input, b"beforeheld");
        let endpoint = log.connection(address).1.endpoint();
        drop(log);
        let mut pool = Pool::new(family.vip());
        let restored = lan
            .backup
            .run(|| RestoredSocket::new(&mut pool, &endpoint, std::iter::empty()))
            .expect("restore");

        // The socket exists but is not ready: the client's retransmissions are held as before.
        let held = wire.counter(family, "held_in_takeover");
        (&client).write_all(b" late").expect("write");
        wire.wait_for(family, "held_in_takeover", held + 1);
        assert_eq!(wire.counter(family, "passed_local"), 0);

        restored.make_ready().expect("make ready");
        let log = reading.now();
        let connection = log.connection(address).1;
        let late = endpoint.input_frontier..connection.input().frontier();
        connection
            .input()
            .slices(late)
            .for_each(|bytes| restored.feed(bytes).expect("feed"));
        let wake = takeover::wake(connection, 0, clock::now());
        drop(log);
        let socket: TcpStream = restored.activate(false).expect("activate").into();
        socket.set_nonblocking(false).expect("blocking");
        patient(&socket);
        let raw = lan.backup.run(RawSender::open).expect("raw sockets");
        wake.iter().for_each(|packet| raw.send(packet).expect("send"));
        let held = wire.counter(family, "held_in_takeover");

        let mut received = [0; 5];
        (&socket).read_exact(&mut received).expect("read");
        assert_eq!(
            &received, b" late",
            "earlier bytes are in the log, the bytes since the restoration are in the socket"
        );
        say(&socket, &client, b"the new voice");
        say(&client, &socket, &stream(1, 1 << 20));
        assert!(wire.counter(family, "passed_local") > 0);
        assert_eq!(
            wire.counter(family, "held_in_takeover"),
            held,
            "nothing is held any more"
        );

        wire.set_gates(Gate::Sole);
        say(&client, &socket, &stream(2, 100_000));
        say(&socket, &client, &stream(3, 100_000));
    }
}

/// A client's retransmission may arrive just when the socket becomes ready. The bytes that the socket has received are not fed from the log
/// again.
#[test]
fn what_came_by_itself_is_not_fed_again() {
    let Some(lan) = Lan::new("what_came_by_itself_is_not_fed_again") else {
        return;
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
    let reading = LogThread::of(&wire);
    let (client, server) = lan.client.connect_pair(&lan.primary.listen(Family::V4.vip()));
    let address = client.local_addr().expect("connected");
    say(&client, &server, b"before");
    wire.set_gates(Gate::Takeover);
    let endpoint = reading.now().connection(address).1.endpoint();
    let mut pool = Pool::new(Family::V4.vip());
    let restored = lan
        .backup
        .run(|| RestoredSocket::new(&mut pool, &endpoint, std::iter::empty()))
        .expect("restore");
    (&client).write_all(b"first and ").expect("write");
    wire.wait_for(Family::V4, "held_in_takeover", 1);
    restored.make_ready().expect("make ready");
    wire.wait_for(Family::V4, "passed_local", 1);
    eventually("the client is answered", || {
        (tcp_info(&client).tcpi_unacked == 0).then_some(())
    });
    let log = reading.now();
    let connection = log.connection(address).1;
    assert_eq!(connection.input().frontier().since(endpoint.input_frontier), 10);
    let late = endpoint.input_frontier..connection.input().frontier();
    connection
        .input()
        .slices(late)
        .for_each(|bytes| restored.feed(bytes).expect("feed"));
    drop(log);
    let socket: TcpStream = restored.activate(false).expect("activate").into();
    socket.set_nonblocking(false).expect("blocking");
    patient(&socket);
    (&client).write_all(b"last").expect("write");
    let mut received = [0; 14];
    (&socket).read_exact(&mut received).expect("read");
    assert_eq!(&received, b"first and last");
    assert_silent(&socket);
}

/// New connections in a takeover go to the local stack from their SYN on. None of their packets is logged.
#[test]
fn new_connections_pass_in_a_takeover_and_after_it() {
    for family in Family::BOTH {
        let Some(lan) = Lan::new("new_connections_pass_in_a_takeover_and_after_it") else {
            return;
        };
        let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Takeover);
        let reading = LogThread::of(&wire);
        let listener = lan.backup.listen(family.vip());
        for gate in [Gate::Takeover, Gate::Sole, Gate::Off] {
            wire.set_gates(gate);
            wire.hold(family.service(), &[]).expect("hold"); // no connection is undecided
            let (client, server) = lan.client.connect_pair(&listener);
            say(&client, &server, &stream(1, 100_000));
            say(&server, &client, &stream(2, 100_000));
        }
        assert_eq!(reading.now().records, [0, 0]);
        assert_eq!(wire.drops(family), []);
        assert_eq!(wire.counter(family, "held_in_takeover"), 0);
    }
}

/// The listener must not answer a client whose earlier connection is undecided. So the SYNs of such clients wait. While the wire does not
/// know which clients these are, all SYNs wait.
#[test]
fn syns_of_undecided_clients_wait() {
    for family in Family::BOTH {
        let Some(lan) = Lan::new("syns_of_undecided_clients_wait") else {
            return;
        };
        let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Takeover);
        let listener = lan.backup.listen(family.vip());
        let from = SocketAddr::new(family.address(1), 40_000);
        let opening = lan.client.run(|| {
            let socket = Socket::new(Domain::for_address(from), Type::STREAM, None).expect("socket");
            socket.bind(&from.into()).expect("bind");
            socket.set_nonblocking(true).expect("non-blocking");
            let begun = socket.connect(&family.vip().into()).expect_err("under way");
            assert_eq!(begun.raw_os_error(), Some(libc::EINPROGRESS));
            socket
        });
        eventually("its SYN waits", || {
            (wire.counter(family, "dropped_syn_waits") == 1).then_some(())
        });
        wire.hold(family.service(), &[from]).expect("hold");
        wire.set_gates(Gate::Takeover); // setting the same gate again changes nothing
        let (other, accepted) = lan.client.connect_pair(&listener);
        say(&other, &accepted, b"not concerned");
        for another in Family::BOTH.into_iter().filter(|&another| another != family) {
            wire.hold(another.service(), &[from]).expect("hold");
            wire.settle(another.service(), &[from]).expect("settle");
        }
        eventually("it waits again", || {
            (wire.counter(family, "dropped_syn_waits") >= 2).then_some(())
        });
        wire.settle(family.service(), &[from]).expect("settle");
        let (_, client) = listener.accept().expect("the SYN that comes then");
        assert_eq!(client, from);
        drop(opening);
    }
}

/// A listener with a full queue answers with SYN cookies and keeps no state. The client's next segment opens the connection.
#[test]
fn a_syn_cookie_opens_a_connection_in_a_takeover() {
    for family in Family::BOTH {
        let Some(lan) = Lan::new("a_syn_cookie_opens_a_connection_in_a_takeover") else {
            return;
        };
        lan.backup.sysctl("ipv4/tcp_syncookies", "2"); // always
        lan.backup.sysctl("ipv4/tcp_fwmark_accept", "1"); // the agent sets this too
        let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Takeover);
        wire.hold(family.service(), &[]).expect("hold");
        let (client, server) = lan.client.connect_pair(&lan.backup.listen(family.vip()));
        say(&client, &server, b"what?");
        say(&server, &client, b"that");
        assert_eq!(wire.counter(family, "held_in_takeover"), 0);
        assert_eq!(SockRef::from(&server).mark().expect("SO_MARK"), MARK_SPEAK);
    }
}

/// A node that becomes the wire again does not hold the clients that it held when it was the wire before.
#[test]
fn a_new_wire_holds_nobody() {
    for family in Family::BOTH {
        let Some(lan) = Lan::new("a_new_wire_holds_nobody") else {
            return;
        };
        let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
        let listener = lan.primary.listen(family.vip());
        wire.hold(family.service(), &family.clients()).expect("hold");
        for gate in [Gate::Mute, Gate::Wire] {
            wire.set_gates(gate);
        }
        let (client, server) = lan.client.connect_pair(&listener);
        say(&client, &server, b"what?");
        say(&server, &client, b"that");
        assert_eq!(wire.counter(family, "dropped_syn_waits"), 0);
    }
}

/// Held clients can be listed, and some of them can be forgotten. A dead worker may have many connections, which end
/// one by one.
#[test]
fn who_was_held_can_be_told_and_forgotten() {
    let Some(lan) = Lan::new("who_was_held_can_be_told_and_forgotten") else {
        return;
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
    for family in Family::BOTH {
        let clients: BTreeSet<SocketAddr> = (1..200).map(|port| (family.address(1), port).into()).collect();
        let list: Vec<_> = clients.iter().copied().collect();
        wire.hold(family.service(), &list).expect("hold");
        wire.settle(family.service(), &list).expect("settle");
        assert_eq!(BTreeSet::from_iter(wire.held(family.service())), clients);
        let (gone, left) = list.split_at(150);
        wire.forget_clients(family.service(), gone).expect("forget");
        wire.forget_clients(family.service(), gone).expect("once more");
        assert_eq!(
            BTreeSet::from_iter(wire.held(family.service())),
            left.iter().copied().collect()
        );
    }
}

/// A mute node hides the service without ending its connections.
#[test]
fn muteness_ends_no_connection() {
    let Some(lan) = Lan::new("muteness_ends_no_connection") else {
        return;
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
    let reading = LogThread::of(&wire);
    let (client, server) = lan.client.connect_pair(&lan.primary.listen(Family::V4.vip()));
    say(&client, &server, b"before");
    wire.set_gates(Gate::Mute);
    (&client).write_all(b"unheard").expect("write");
    (&server).write_all(b"unheard").expect("write");
    wire.wait_for(Family::V4, "dropped_egress_mute", 2);
    assert_silent(&client);
    assert_silent(&server);
    wire.set_gates(Gate::Wire);
    for mut stream in [&client, &server] {
        let mut received = [0; 7];
        stream.read_exact(&mut received).expect("read");
        assert_eq!(&received, b"unheard");
    }
    reading
        .now()
        .assert_protected(client.local_addr().expect("connected"));
}

/// A primary whose route through the wire is lost falls silent instead of leaving holes in the log.
#[test]
fn a_primary_speaks_through_the_wire_or_not_at_all() {
    for family in Family::BOTH {
        let Some(lan) = Lan::new("a_primary_speaks_through_the_wire_or_not_at_all") else {
            return;
        };
        let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
        let guard = WireOn::new(&lan.primary, &lan.backup, &options(), Gate::Primary);
        let reading = LogThread::of(&wire);
        let (client, server) = lan.client.connect_pair(&lan.primary.listen(family.vip()));
        let address = client.local_addr().expect("connected");
        say(&server, &client, &stream(1, 1 << 20));
        say(&client, &server, &stream(2, 1 << 20));
        assert_eq!(guard.drops(family), []);

        let rule = format!("from {} lookup 100", family.vip().ip());
        let change = |verb: &str| match family {
            Family::V4 => lan.primary.ip(&format!("rule {verb} {rule}")),
            Family::V6 => lan.primary.ip6(&format!("rule {verb} {rule}")),
        };
        change("del");
        (&server).write_all(b"around the wire").expect("write");
        guard.wait_for(family, "dropped_egress_unguarded", 1);
        assert_silent(&client);
        change("add");
        let mut received = [0; 15];
        (&client).read_exact(&mut received).expect("read");
        assert_eq!(&received, b"around the wire");
        let log = reading.now();
        log.assert_protected(address);
        assert!(log.transcript(address).output.ends_with(b"around the wire"));
    }
}

/// The guard does not disturb a listener on the VIP while its node is the primary.
#[test]
fn many_connections_come_and_go_under_the_guard() {
    let Some(lan) = Lan::new("many_connections_come_and_go_under_the_guard") else {
        return;
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
    let guard = WireOn::new(&lan.primary, &lan.backup, &options(), Gate::Primary);
    let reading = LogThread::of(&wire);
    let listener = lan.primary.listen(Family::V4.vip());
    for _ in 0..100 {
        let client = lan.client.connect(Family::V4.vip());
        let server = accept(&listener);
        say(&client, &server, b"hello");
        server.shutdown(std::net::Shutdown::Write).expect("shutdown");
        assert_eq!((&client).read(&mut [0; 1]).expect("end"), 0);
        client.shutdown(std::net::Shutdown::Write).expect("shutdown");
        assert_eq!((&server).read(&mut [0; 1]).expect("end"), 0);
        // The test's sockets send a RST when they are closed. With linger off, the kernel ends the connection normally.
        for stream in [client, server] {
            socket2::SockRef::from(&stream)
                .set_linger(None::<Duration>)
                .expect("SO_LINGER");
        }
    }
    assert_eq!(guard.drops(Family::V4), []);
    assert!(guard.server_deaths(Family::V4.service()) == 0);
    eventually("the table is empty again", || {
        (reading.now().open_connections() == 0).then_some(())
    });
}

/// While input is held, clients' segments with payload or a FIN are dropped, and all others pass. TCP repeats what was dropped.
#[test]
fn held_input_reaches_nobody_until_it_is_let_go() {
    let Some(lan) = Lan::new("held_input_reaches_nobody_until_it_is_let_go") else {
        return;
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
    let later = |time: Duration| (clock::now() + time).as_nanos();
    for family in Family::BOTH {
        let service = family.service();
        let listener = lan.primary.listen(family.vip());
        let (mut client, mut server) = lan.client.connect_pair(&listener);
        wire.hold_input(service, later(Duration::from_secs(3600)));
        client.write_all(b"held").expect("write");
        wire.wait_for(family, "dropped_input_held", 1);
        let acknowledged = wire.counter(family, "logged_in_packets");
        server.write_all(b"said").expect("write");
        client
            .read_exact(&mut [0; 4])
            .expect("what the server says passes");
        wire.wait_for(family, "logged_in_packets", acknowledged + 1);
        drop(lan.client.connect_pair(&listener)); // a handshake passes
        server.set_nonblocking(true).expect("a socket");
        let error = server.read(&mut [0; 4]).expect_err("nothing has come");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        server.set_nonblocking(false).expect("a socket");
        wire.hold_input(service, 0);
        let mut bytes = [0; 4];
        server.read_exact(&mut bytes).expect("TCP repeats it");
        assert_eq!(&bytes, b"held");

        // A dead agent cannot end the hold, so the kernel does.
        wire.hold_input(service, later(Duration::from_millis(50)));
        client.write_all(b"more").expect("write");
        server.read_exact(&mut bytes).expect("the hold has an end");
        assert_eq!(&bytes, b"more");
    }
}

/// Two nodes that take each other for the primary, as two returning nodes do.
#[test]
fn two_wires_do_not_send_a_segment_to_and_fro() {
    let Some(lan) = Lan::new("two_wires_do_not_send_a_segment_to_and_fro") else {
        return;
    };
    let nodes = [(&lan.backup, &lan.primary), (&lan.primary, &lan.backup)];
    let [one, other] = nodes.map(|(host, peer)| WireOn::new(host, peer, &options(), Gate::Wire));
    let tap = FrameTap::on(&lan.client, "port2");
    for family in Family::BOTH {
        let client: SocketAddr = (family.address(1), 4000).into();
        let said = word(CLIENTS, client, family.vip());
        let error = too_big(family, &word(PRIMARYS, family.vip(), client));
        // Each node logs the segment once, and the first node logs it again when it comes back. Each node counts a
        // forwarded ICMP error once.
        for (gate, packet, reason, counted) in [
            (Gate::Wire, &said, "logged_in_packets", [2, 1]),
            (Gate::Wire, &error, "icmp_forwarded", [1, 1]),
        ] {
            [&one, &other].into_iter().for_each(|wire| wire.set_gates(gate));
            let before = [&one, &other].map(|wire| wire.counter(family, reason));
            let came_back = one.counter(family, "dropped_came_back");
            tap.put(lan.backup.mac(), lan.client.mac(), packet);
            one.wait_for(family, "dropped_came_back", came_back + 1);
            assert_eq!(one.counter(family, reason), before[0] + counted[0]);
            assert_eq!(other.counter(family, reason), before[1] + counted[1]);
        }
        assert_eq!(other.counter(family, "dropped_came_back"), 0);
    }
}

/// A segment with one byte of payload.
fn byte(number: u32, source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let segment = Segment {
        source,
        destination,
        seq: Seq(number),
        ack: Seq(1),
        flags: Flags::ACK,
        window: 100,
        options: TcpOptions::default(),
        payload: b"x",
    };
    segment.emit()
}

/// While the log is full and the agent is away, segments pass unlogged. Two kinds of segments are dropped nevertheless:
/// those of clients whose connection was taken over, and held input.
#[test]
fn what_passes_unlogged_meets_the_same_gates() {
    let Some(lan) = Lan::new("what_passes_unlogged_meets_the_same_gates") else {
        return;
    };
    stay_on_this_cpu();
    let options = WireOptions {
        ring_cached_bytes: 4096,
        ring_bytes: 4096,
        ring_open_bytes: 4096,
        agent_timeout: Duration::from_millis(1),
        ..options()
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options, Gate::Wire); // nobody reads its rings
    let tap = FrameTap::on(&lan.client, "port2");
    let clients_say = |packet: &[u8]| tap.put(lan.backup.mac(), lan.client.mac(), packet);
    let primary_says = |packet: &[u8]| tap.put(lan.backup.mac(), lan.primary.mac(), packet);
    let vip = Family::V4.vip();
    let [known, unknown] = [5000, 5001].map(|port| (Family::V4.address(9), port).into()); // addresses without a host, so nothing answers
    for packet in [byte(1, vip, known), word(1, vip, unknown)] {
        wire.take_unlogged(Family::V4.service());
        eventually("its ring is full", || {
            primary_says(&packet);
            (wire.take_unlogged(Family::V4.service()) > 0).then_some(())
        });
    }
    for family in Family::BOTH {
        let [held, other] = [4000, 4001].map(|port| SocketAddr::from((family.address(1), port)));
        let (service, vip) = (family.service(), family.vip());
        wire.hold(service, &[held]).expect("hold");
        wire.settle(service, &[held]).expect("settle");
        wire.take_unlogged(service);

        let mut at_client = FrameTap::on(&lan.client, "lan");
        let unheard = [word(PRIMARYS, vip, held), byte(PRIMARYS, vip, held)];
        unheard.iter().for_each(|packet| primary_says(packet));
        let fence = word(FENCE, vip, other);
        primary_says(&fence);
        let arrived = before_the(&fence, &mut at_client);
        assert!(
            unheard.iter().all(|packet| !arrived.contains(packet)),
            "{family:?}"
        );

        let mut at_primary = FrameTap::on(&lan.primary, "eth0");
        wire.hold_input(service, (clock::now() + Duration::from_secs(3600)).as_nanos());
        let unheard = [
            word(CLIENTS, held, vip),
            byte(CLIENTS, held, vip),
            byte(CLIENTS, other, vip),
        ];
        unheard.iter().for_each(|packet| clients_say(packet));
        let fence = word(FENCE, other, vip);
        clients_say(&fence);
        let arrived = before_the(&fence, &mut at_primary);
        assert!(
            unheard.iter().all(|packet| !arrived.contains(packet)),
            "{family:?}"
        );

        assert_eq!(wire.take_unlogged(service), 2, "the fences");
        assert_eq!(wire.counter(family, "dropped_gate_closed"), 4);
        assert_eq!(wire.counter(family, "dropped_input_held"), 1);
    }
}
