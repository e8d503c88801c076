//! Annexes (docs/annex.md) on the real kernel: the wire logs a connection and passes its packets to and from an annex, while the packets of
//! other connections go to the primary.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use proto::Seq;
use proto::action::Gate;
use proto::packet::{Flags, Segment, TcpOptions};

use crate::support::frame::FrameTap;
use crate::support::lan::{Family, Lan, LanHost, accept};
use crate::support::wire_on::{WireOn, options};
use crate::support::{PATIENCE, assert_same_stream, eventually, stream};
use steadfast_linux::wire::WireOptions;

const ANNEX: u8 = 3;

/// A wire with an annex. The LAN's third host is the annex. The wire takes a host that does not exist for its primary.
struct Annexed {
    lan: Lan,
    wire: WireOn,
    annex: WireOn,
    client: TcpStream,
    server: TcpStream,
    address: SocketAddr,
    family: Family,
}

impl Annexed {
    /// With a connection that lives on the annex.
    fn new(test: &str, family: Family) -> Option<Self> {
        let lan = Lan::new(test)?;
        let primary = LanHost::new(99);
        let wire = WireOn::new(&lan.backup, &primary, &options(), Gate::Wire);
        let of_annex = WireOptions {
            is_annex: true,
            ..options()
        };
        let annex = WireOn::new(&lan.primary, &lan.backup, &of_annex, Gate::Primary);
        let address = SocketAddr::new(family.address(1), 4321);
        wire.set_annex(family.service(), ANNEX, lan.primary.mac())
            .expect("the annex is known");
        wire.guide(family.service(), address, Some(ANNEX))
            .expect("guided");
        let listener = lan.primary.listen(family.vip());
        let client = lan.client.run(|| {
            let socket =
                socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)
                    .expect("socket");
            socket.bind(&address.into()).expect("bind");
            socket
                .connect_timeout(&family.vip().into(), PATIENCE)
                .expect("connect");
            TcpStream::from(socket)
        });
        let server = accept(&listener);
        Some(Self {
            lan,
            wire,
            annex,
            client,
            server,
            address,
            family,
        })
    }

    /// Sends `bytes` in both directions, one after the other.
    fn exchange(&self, bytes: &[u8]) {
        for (mut from, mut to) in [(&self.client, &self.server), (&self.server, &self.client)] {
            std::thread::scope(|scope| {
                scope.spawn(move || from.write_all(bytes).expect("write"));
                let mut received = vec![0; bytes.len()];
                to.read_exact(&mut received).expect("read");
                assert_same_stream("what arrived", &received, bytes);
            });
        }
    }

    /// A segment of the service to the client.
    fn output(&self) -> Vec<u8> {
        let segment = Segment {
            source: self.family.vip(),
            destination: self.address,
            seq: Seq(4242),
            ack: Seq(1),
            flags: Flags::ACK,
            window: 1,
            options: TcpOptions::default(),
            payload: b"foreign",
        };
        segment.emit()
    }
}

#[test]
fn a_guided_connection_is_the_annexes() {
    for family in Family::BOTH {
        let Some(annexed) = Annexed::new("a_guided_connection_is_the_annexes", family) else {
            return;
        };
        let before = annexed.wire.counter(family, "logged_in_packets")
            + annexed.wire.counter(family, "logged_out_packets");
        annexed.exchange(&stream(1, 100_000));
        let after = annexed.wire.counter(family, "logged_in_packets")
            + annexed.wire.counter(family, "logged_out_packets");
        assert!(after > before, "{family:?}: the wire logs both directions");
        assert_eq!(annexed.wire.drops(family), []);
        assert_eq!(annexed.wire.annexed(family.service()), [(annexed.address, ANNEX)]);
        assert_eq!(
            annexed.wire.held(family.service()),
            [],
            "this node has no connection"
        );
    }
}

/// An annex that has lost a socket does not end the connection, which the wire can continue. What its application ends is ended.
#[test]
fn an_annex_resets_only_connections_that_it_has() {
    for family in Family::BOTH {
        let Some(annexed) = Annexed::new("an_annex_resets_only_connections_that_it_has", family) else {
            return;
        };
        let Annexed { lan, wire, annex, .. } = &annexed;
        let unknown = SocketAddr::new(family.address(1), 4322);
        wire.guide(family.service(), unknown, Some(ANNEX))
            .expect("guided");
        let mute = annex.counter(family, "dropped_egress_mute");
        let tap = FrameTap::on(&lan.client, "port2");
        let input = Segment {
            source: unknown,
            destination: family.vip(),
            seq: Seq(4242),
            ack: Seq(1),
            flags: Flags::ACK,
            window: 1,
            options: TcpOptions::default(),
            payload: b"stray",
        };
        tap.put(lan.backup.mac(), lan.client.mac(), &input.emit());
        annex.wait_for(family, "dropped_egress_mute", mute + 1);

        let linger = Some(std::time::Duration::ZERO);
        socket2::SockRef::from(&annexed.server)
            .set_linger(linger)
            .expect("linger");
        let Annexed {
            client,
            server,
            annex,
            lan: _lan,
            wire: _wire,
            ..
        } = annexed;
        drop(server);
        let ended = (&client).read(&mut [0; 1]).expect_err("a reset");
        assert_eq!(ended.kind(), std::io::ErrorKind::ConnectionReset, "{family:?}");
        assert_eq!(annex.counter(family, "dropped_egress_mute"), mute + 1);
    }
}

/// The primary's segments of this connection, and the annex's of others, reach nobody.
#[test]
fn one_node_speaks_on_each_connection() {
    for family in Family::BOTH {
        let Some(annexed) = Annexed::new("one_node_speaks_on_each_connection", family) else {
            return;
        };
        let (lan, wire) = (&annexed.lan, &annexed.wire);
        let dropped = wire.counter(family, "dropped_foreign_voice");
        let tap = FrameTap::on(&lan.client, "port2");
        tap.put(lan.backup.mac(), [2, 0, 0, 0, 0, 99], &annexed.output()); // the primary's address
        wire.wait_for(family, "dropped_foreign_voice", dropped + 1);
        wire.guide(family.service(), annexed.address, None)
            .expect("guided");
        tap.put(lan.backup.mac(), lan.primary.mac(), &annexed.output());
        wire.wait_for(family, "dropped_foreign_voice", dropped + 2);
        wire.guide(family.service(), annexed.address, Some(ANNEX))
            .expect("guided");
        annexed.exchange(b"both are sure");
    }
}

/// While the connection is reserved, nothing passes. A new agent gives it back to the annex.
#[test]
fn a_reserved_connection_waits() {
    for family in Family::BOTH {
        let Some(mut annexed) = Annexed::new("a_reserved_connection_waits", family) else {
            return;
        };
        let service = family.service();
        annexed
            .wire
            .reserve(service, &[annexed.address])
            .expect("reserved");
        let held = annexed.wire.counter(family, "held_in_takeover");
        (&annexed.client).write_all(b"input").expect("write");
        annexed.wire.wait_for(family, "held_in_takeover", held + 1);
        assert_eq!(annexed.wire.annexed(service), [(annexed.address, ANNEX)]);
        annexed.wire = annexed.wire.succeeded(&options());
        let mut received = [0; 5];
        (&annexed.server)
            .read_exact(&mut received)
            .expect("the client repeats it");
        assert_eq!(&received, b"input");
        annexed.exchange(b"and it goes on");
        eventually("nothing is reserved", || {
            let annexes = annexed.wire.annexed(service);
            (annexes == [(annexed.address, ANNEX)]).then_some(())
        });
    }
}

/// The wire has failed: the primary speaks alone, and passes the packets of what lives on an annex.
#[test]
fn a_primary_that_is_alone_carries_an_annexes_connection() {
    for family in Family::BOTH {
        let test = "a_primary_that_is_alone_carries_an_annexes_connection";
        let Some(annexed) = Annexed::new(test, family) else {
            return;
        };
        let (lan, primary) = (&annexed.lan, &annexed.wire);
        primary.set_gates(Gate::Primary);
        assert_eq!(primary.annexed(family.service()), [(annexed.address, ANNEX)]);
        primary.set_gates(Gate::Sole);
        annexed.exchange(&stream(1, 100_000));
        for counter in ["carried_in_packets", "carried_out_packets"] {
            assert_ne!(primary.counter(family, counter), 0, "{counter}"); // a packet may have 64 KB of the exchange
        }
        // Another node's word does not pass, and the local stack, which has no socket, says nothing.
        let dropped = primary.counter(family, "dropped_foreign_voice");
        let tap = FrameTap::on(&lan.client, "port2");
        tap.put(lan.backup.mac(), [2, 0, 0, 0, 0, 99], &annexed.output());
        primary.wait_for(family, "dropped_foreign_voice", dropped + 1);
        annexed.exchange(b"both are sure");
        // No annex has it any more: it is this node's, and its stack answers with a RST.
        primary
            .guide(family.service(), annexed.address, None)
            .expect("guided");
        (&annexed.client).write_all(b"lost").expect("write");
        annexed.client.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let answer = (&annexed.client).read(&mut [0]).expect_err("a reset");
        assert_eq!(answer.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

/// There is a wire again. To this wire, the connection is the primary's: what the wire has logged goes to the annex, and what the annex says goes
/// to the wire.
#[test]
fn with_a_new_wire_an_annexes_connection_passes_the_wire() {
    for family in Family::BOTH {
        let test = "with_a_new_wire_an_annexes_connection_passes_the_wire";
        let Some(annexed) = Annexed::new(test, family) else {
            return;
        };
        let (lan, primary, new_wire) = (&annexed.lan, &annexed.wire, [2, 0, 0, 0, 0, 99]);
        primary.set_gates(Gate::Primary);
        let mut tap = FrameTap::on(&lan.client, "port2");
        let input = |payload: &'static [u8]| {
            let segment = Segment {
                source: annexed.address,
                destination: family.vip(),
                seq: Seq(1),
                ack: Seq(1),
                flags: Flags::ACK,
                window: 1,
                options: TcpOptions::default(),
                payload,
            };
            segment.emit()
        };
        let led = primary.counter(family, "carried_in_packets");
        // A switch floods this frame, because it does not know the destination. Sent on, it would run in a circle.
        tap.put([2, 0, 0, 0, 0, 0x77], new_wire, &input(b"flooded"));
        tap.put(lan.backup.mac(), new_wire, &input(b"logged"));
        primary.wait_for(family, "carried_in_packets", led + 1);
        tap.put(lan.backup.mac(), lan.client.mac(), &input(b"unlogged"));
        let said = primary.counter(family, "carried_out_packets");
        (&annexed.server).write_all(b"output").expect("write");
        primary.wait_for(family, "carried_out_packets", said + 1);
        assert_eq!(
            primary.counter(family, "carried_in_packets"),
            led + 1,
            "only what the wire has logged and sent to this node"
        );
        eventually("the client gets nothing past the wire", || {
            let mut arrived = false;
            tap.take_segments(|segment| arrived |= segment.payload == b"output");
            (!arrived).then_some(())
        });
    }
}

/// A client's segment with `hops` hops left.
fn input(family: Family, client: SocketAddr, hops: u8) -> Vec<u8> {
    let segment = Segment {
        source: client,
        destination: family.vip(),
        seq: Seq(4242),
        ack: Seq(1),
        flags: Flags::ACK,
        window: 1,
        options: TcpOptions::default(),
        payload: b"input",
    };
    let mut packet = segment.emit();
    if family == Family::V6 {
        packet[7] = hops;
        return packet;
    }
    // The header's checksum follows the change (RFC 1624, section 3).
    let [before, after] = [packet[8], hops].map(|hops| u16::from(hops) << 8);
    let kept = !u16::from_be_bytes([packet[10], packet[11]]);
    let (sum, carry) = kept.overflowing_add(!before);
    let (sum, more) = (sum + u16::from(carry)).overflowing_add(after);
    packet[8] = hops;
    packet[10..12].copy_from_slice(&(!(sum + u16::from(more))).to_be_bytes());
    packet
}

/// A client's segment that reaches an annex past the wire is led to the wire once. A frame for another node, which a switch floods, is that
/// node's.
#[test]
fn an_annex_leads_to_the_wire_only_what_is_its_own_and_is_new() {
    for family in Family::BOTH {
        let test = "an_annex_leads_to_the_wire_only_what_is_its_own_and_is_new";
        let Some(annexed) = Annexed::new(test, family) else {
            return;
        };
        let Annexed { lan, wire, annex, .. } = &annexed;
        let tap = FrameTap::on(&lan.client, "port3");
        let client = SocketAddr::new(family.address(1), 4322);
        let logged = wire.counter(family, "logged_in_packets");
        tap.put(
            [2, 0, 0, 0, 0, 0x77],
            lan.client.mac(),
            &input(family, client, 64),
        );
        tap.put(lan.primary.mac(), lan.client.mac(), &input(family, client, 64));
        annex.wait_for(family, "led_to_wire", 1);
        wire.wait_for(family, "logged_in_packets", logged + 1);
        tap.put(lan.primary.mac(), lan.client.mac(), &input(family, client, 2));
        annex.wait_for(family, "dropped_came_back", 1);
        assert_eq!(annex.counter(family, "led_to_wire"), 1);
        assert_eq!(wire.counter(family, "logged_in_packets"), logged + 1);
    }
}

/// The wire has guided a connection back, and the primary's agent has not heard it yet. The segments are its socket's, which the wire has asked
/// the primary to make before.
#[test]
fn a_connection_that_is_back_gets_its_segments_at_once() {
    let Some(lan) = Lan::new("a_connection_that_is_back_gets_its_segments_at_once") else {
        return;
    };
    // The client's host is also the wire.
    let primary = WireOn::new(&lan.backup, &lan.client, &options(), Gate::Primary);
    for family in Family::BOTH {
        let listener = lan.backup.listen(family.vip());
        let (mut client, mut server) = lan.client.connect_pair(&listener);
        let address = client.local_addr().expect("bound");
        primary
            .guide(family.service(), address, Some(ANNEX))
            .expect("on an annex");
        for mac in [None, Some(lan.primary.mac())] {
            if let Some(mac) = mac {
                primary.set_annex(family.service(), ANNEX, mac).expect("known");
            }
            client.write_all(b"input").expect("write");
            let mut bytes = [0; 5];
            server
                .read_exact(&mut bytes)
                .expect("the segment reaches the socket");
        }
        assert_eq!(primary.counter(family, "carried_in_packets"), 0);
        // The socket of another client is not here. Its segments go to the annex.
        let other = SocketAddr::new(family.address(1), 4322);
        primary
            .guide(family.service(), other, Some(ANNEX))
            .expect("on an annex");
        let tap = FrameTap::on(&lan.client, "port2");
        tap.put(lan.backup.mac(), lan.client.mac(), &input(family, other, 64));
        primary.wait_for(family, "carried_in_packets", 1);
    }
}
