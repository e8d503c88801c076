//! Reversed connections (docs/migration.md) on the real kernel: the socket is on the backup, and all segments pass the primary's log.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proto::Seq;
use proto::action::Gate;
use proto::packet::{Flags, Segment, TcpOptions};
use steadfast_linux::raw::RawSender;
use steadfast_linux::wire::{Record, Rings, checksum_of};

use crate::support::frame::FrameTap;
use crate::support::lan::{Family, Lan};
use crate::support::wire_on::{WireOn, options};
use crate::support::{assert_same_stream, eventually, stream};

const MEGABYTE: usize = 1 << 20;
/// Sequence number of a segment that no socket sends.
const STALE: Seq = Seq(4242);

/// Bytes of payload in a log: of input, and of output.
fn payload_in(rings: &Rings) -> [usize; 2] {
    let mut bytes = [0; 2];
    for log in [&rings.opening, &rings.connections] {
        log.drain(
            &log.ends(),
            usize::MAX,
            true,
            &mut |record: &Record, packet: &[u8]| {
                let segment = Segment::parse(packet, checksum_of(record)).expect("a segment without a mark");
                bytes[usize::from(record.direction)] += segment.payload.len();
            },
        );
    }
    bytes
}

/// Both wires, and a connection that lives on the backup, or moves there.
struct ReversedConnection {
    lan: Lan,
    backup: WireOn,
    primary: WireOn,
    client: TcpStream,
    server: TcpStream,
    address: SocketAddr,
    family: Family,
}

impl ReversedConnection {
    /// Its listener is on the backup.
    fn new(test: &str, family: Family) -> Option<Self> {
        let lan = Lan::new(test)?;
        let backup = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Takeover);
        let primary = WireOn::new(&lan.primary, &lan.backup, &options(), Gate::Primary);
        let service = family.service();
        backup.hold(service, &[]).expect("hold"); // new connections are local now
        let (client, server) = lan.client.connect_pair(&lan.backup.listen(family.vip()));
        let address = client.local_addr().expect("connected");
        backup.set_gates(Gate::Wire);
        backup.hold(service, &[address]).expect("hold");
        backup.settle(service, &[address]).expect("settle");
        primary.freeze(service, &[address]).expect("log");
        backup.reverse(service, &[address]).expect("reverse");
        Some(Self {
            lan,
            backup,
            primary,
            client,
            server,
            address,
            family,
        })
    }

    /// Its listener is on the primary, where its socket is frozen. The backup has it reserved.
    fn frozen(test: &str, family: Family) -> Option<Self> {
        let lan = Lan::new(test)?;
        let backup = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
        let primary = WireOn::new(&lan.primary, &lan.backup, &options(), Gate::Primary);
        let (client, server) = lan.client.connect_pair(&lan.primary.listen(family.vip()));
        let address = client.local_addr().expect("connected");
        backup.reserve(family.service(), &[address]).expect("reserve");
        primary.freeze(family.service(), &[address]).expect("freeze");
        Some(Self {
            lan,
            backup,
            primary,
            client,
            server,
            address,
            family,
        })
    }

    /// Both sides say something. The node `mutes` drops what the frozen socket says, and the node `holds` what the client says.
    fn speak_in_vain(&self, mutes: &WireOn, holds: &WireOn) {
        let (muted, held) = ("dropped_egress_mute", "held_in_takeover");
        let before = [
            mutes.counter(self.family, muted),
            holds.counter(self.family, held),
        ];
        (&self.server).write_all(b"output").expect("write");
        (&self.client).write_all(b"input").expect("write");
        mutes.wait_for(self.family, muted, before[0] + 1);
        holds.wait_for(self.family, held, before[1] + 1);
    }

    /// What both sides have said in vain arrives after all.
    fn hears(&self) {
        for (mut to, expected) in [(&self.server, &b"input"[..]), (&self.client, b"output")] {
            let mut received = vec![0; expected.len()];
            to.read_exact(&mut received).expect("read");
            assert_eq!(received, expected, "{:?}", self.family);
        }
    }

    /// Sends `bytes` in both directions at once. Returns the payload that the primary and the backup have logged meanwhile.
    fn exchange(&self, bytes: &[u8]) -> [[usize; 2]; 2] {
        let rings = [&self.primary, &self.backup].map(|wire| wire.rings().expect("rings"));
        let is_over = Arc::new(AtomicBool::new(false));
        let mut logged = [[0; 2]; 2];
        std::thread::scope(|scope| {
            for (rings, logged) in rings.iter().zip(&mut logged) {
                let is_over = Arc::clone(&is_over);
                scope.spawn(move || {
                    loop {
                        let was_over = is_over.load(Ordering::SeqCst);
                        let new = payload_in(rings);
                        (0..2).for_each(|direction| logged[direction] += new[direction]);
                        if was_over {
                            return;
                        }
                        std::thread::sleep(Duration::from_micros(200));
                    }
                });
            }
            let transfers =
                [(&self.client, &self.server), (&self.server, &self.client)].map(|(mut from, mut to)| {
                    scope.spawn(move || from.write_all(bytes).expect("write"));
                    scope.spawn(move || {
                        let mut received = vec![0; bytes.len()];
                        to.read_exact(&mut received).expect("read");
                        assert_same_stream("what arrived", &received, bytes);
                    })
                });
            let outcomes = transfers.map(std::thread::ScopedJoinHandle::join);
            is_over.store(true, Ordering::SeqCst);
            outcomes
                .into_iter()
                .for_each(|outcome| outcome.expect("a transfer"));
        });
        logged
    }

    /// Another client on the same host, with this port.
    const fn other_client(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address.ip(), port)
    }

    /// A segment from the VIP to the client that no socket has sent.
    fn stale(&self) -> Vec<u8> {
        let segment = Segment {
            source: self.family.vip(),
            destination: self.address,
            seq: STALE,
            ack: Seq(1),
            flags: Flags::ACK,
            window: 1,
            options: TcpOptions::default(),
            payload: b"stale",
        };
        segment.emit()
    }
}

#[test]
fn the_primary_logs_both_directions_before_they_arrive() {
    for family in Family::BOTH {
        let Some(reversed) =
            ReversedConnection::new("the_primary_logs_both_directions_before_they_arrive", family)
        else {
            return;
        };
        let bytes = stream(1, MEGABYTE);
        let [primary, backup] = reversed.exchange(&bytes);
        assert!(
            primary.iter().all(|&logged| logged >= MEGABYTE),
            "{family:?}: {primary:?}"
        );
        assert_eq!(
            backup,
            [0, 0],
            "{family:?}: the backup logs nothing of its own connection"
        );
        assert_eq!(reversed.backup.drops(family), []);
    }
}

/// What a primary sent before the connection moved may arrive late. It does not bear the mark of the primary's log.
#[test]
fn only_what_the_primary_has_logged_reaches_the_client() {
    for family in Family::BOTH {
        let Some(reversed) =
            ReversedConnection::new("only_what_the_primary_has_logged_reaches_the_client", family)
        else {
            return;
        };
        let (lan, backup) = (&reversed.lan, &reversed.backup);
        let dropped = backup.counter(family, "dropped_foreign_voice");
        let mut tap = FrameTap::on(&lan.client, "port2");
        tap.put(lan.backup.mac(), lan.primary.mac(), &reversed.stale());
        backup.wait_for(family, "dropped_foreign_voice", dropped + 1);
        // The primary's own stack says nothing either.
        let sender = lan.primary.run(RawSender::open).expect("raw sockets");
        sender.send(&reversed.stale()).expect("send");
        reversed.primary.wait_for(family, "dropped_egress_mute", 1);
        reversed.exchange(b"after it");
        let mut arrived = false;
        tap.take_segments(|segment| arrived |= segment.seq == STALE);
        assert!(!arrived, "{family:?}");
    }
}

/// While the connection is reserved on the primary, nothing passes. When it stays on the backup, it goes on.
#[test]
fn a_connection_that_is_to_move_back_waits() {
    for family in Family::BOTH {
        let Some(reversed) = ReversedConnection::new("a_connection_that_is_to_move_back_waits", family)
        else {
            return;
        };
        let (service, clients) = (family.service(), [reversed.address]);
        let primary = &reversed.primary;
        primary.reserve(service, &clients).expect("reserve");
        let held = primary.counter(family, "held_in_takeover");
        let closed = primary.counter(family, "dropped_gate_closed");
        (&reversed.client).write_all(b"input").expect("write");
        (&reversed.server).write_all(b"output").expect("write");
        primary.wait_for(family, "held_in_takeover", held + 1);
        primary.wait_for(family, "dropped_gate_closed", closed + 1);
        primary.give_back(service, &clients).expect("give back");
        assert_eq!(primary.reversed_there(service), clients);
        reversed.hears();
    }
}

/// The backup's socket is gone, and the client begins anew: the new connection is the primary's.
#[test]
fn a_new_connection_of_the_client_is_the_primarys() {
    for family in Family::BOTH {
        let Some(reversed) =
            ReversedConnection::new("a_new_connection_of_the_client_is_the_primarys", family)
        else {
            return;
        };
        let ReversedConnection {
            lan,
            backup,
            primary,
            client,
            server,
            address,
            ..
        } = reversed;
        for stream in [&client, &server] {
            socket2::SockRef::from(stream)
                .set_linger(Some(Duration::ZERO))
                .expect("linger");
        }
        drop((client, server));
        let listener = lan.primary.listen(family.vip());
        let again = lan.client.run(|| {
            let domain = socket2::Domain::for_address(address);
            let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).expect("socket");
            socket.set_reuse_address(true).expect("reuse");
            socket.bind(&address.into()).expect("bind");
            socket.connect(&family.vip().into()).expect("connect");
            TcpStream::from(socket)
        });
        let (mut accepted, from) = listener.accept().expect("accept");
        assert_eq!(from, address);
        (&again).write_all(b"anew").expect("write");
        let mut received = [0; 4];
        accepted.read_exact(&mut received).expect("read");
        assert_eq!(&received, b"anew");
        eventually("nobody is held", || {
            let held = backup.held(family.service()).len() + primary.reversed_there(family.service()).len();
            (held == 0).then_some(())
        });
    }
}

/// The backup has no entry of the connection any more, but the primary has one: the client's next segment ends this, does not run in a circle
/// between the nodes, and is answered by the primary's stack.
#[test]
fn what_the_backup_does_not_have_is_the_primarys() {
    for family in Family::BOTH {
        let Some(reversed) = ReversedConnection::new("what_the_backup_does_not_have_is_the_primarys", family)
        else {
            return;
        };
        let (service, clients) = (family.service(), [reversed.address]);
        reversed.backup.forget_clients(service, &clients).expect("forget");
        let rings = reversed.primary.rings().expect("rings");
        let timeout = Some(Duration::from_secs(10));
        reversed.client.set_read_timeout(timeout).expect("timeout");
        (&reversed.client).write_all(b"stray").expect("write");
        let answer = (&reversed.client).read(&mut [0; 1]);
        assert_eq!(
            answer.expect_err("a reset").kind(),
            std::io::ErrorKind::ConnectionReset
        );
        assert!(reversed.primary.reversed_there(service).is_empty());
        let [input, _] = payload_in(&rings);
        assert_eq!(input, 2 * b"stray".len(), "the first way, and the way home");
        assert_eq!(reversed.primary.counter(family, "logged_in_packets"), 2);
    }
}

/// A new agent of either node goes on with what the earlier one left.
#[test]
fn new_agents_leave_it_reversed() {
    for family in Family::BOTH {
        let Some(mut reversed) = ReversedConnection::new("new_agents_leave_it_reversed", family) else {
            return;
        };
        reversed.backup = reversed.backup.succeeded(&options());
        reversed.primary = reversed.primary.succeeded(&options());
        let service = family.service();
        assert_eq!(reversed.backup.reversed_here(service), [reversed.address]);
        assert_eq!(reversed.primary.reversed_there(service), [reversed.address]);
        let [primary, _] = reversed.exchange(&stream(1, 100_000));
        assert!(primary.iter().all(|&logged| logged >= 100_000), "{primary:?}");
    }
}

/// A primary in doubt is mute until its wire confirms, and goes on with what it had.
#[test]
fn a_doubt_leaves_it_reversed() {
    for family in Family::BOTH {
        let Some(reversed) = ReversedConnection::new("a_doubt_leaves_it_reversed", family) else {
            return;
        };
        reversed.primary.set_gates(Gate::Mute);
        reversed.primary.set_gates(Gate::Primary);
        let [primary, _] = reversed.exchange(&stream(1, 100_000));
        assert!(primary.iter().all(|&logged| logged >= 100_000), "{primary:?}");
    }
}

/// A node that stands down and then goes on alone has no connection that it could decide. A client may open a new one from the same port.
#[test]
fn a_node_that_stands_down_holds_nobody() {
    for family in Family::BOTH {
        let Some(reversed) = ReversedConnection::new("a_node_that_stands_down_holds_nobody", family) else {
            return;
        };
        let ReversedConnection { lan, primary, .. } = &reversed;
        let (service, moving) = (family.service(), reversed.other_client(1));
        let elsewhere = reversed.other_client(2);
        primary.reserve(service, &[moving]).expect("reserve");
        primary.guide(service, elsewhere, Some(3)).expect("guide");
        primary.set_gates(Gate::Mute);
        primary.end_holds(service).expect("end");
        assert_eq!(primary.reversed_there(service), []);
        assert_eq!(primary.annexed(service), [(elsewhere, 3)]);
        primary.set_gates(Gate::Sole);
        let _listener = lan.primary.listen(family.vip());
        for client in [reversed.address, moving] {
            let mut tap = FrameTap::on(&lan.client, "port3");
            let syn = Segment {
                source: client,
                destination: family.vip(),
                seq: STALE,
                ack: Seq(0),
                flags: Flags::SYN,
                window: 1000,
                options: TcpOptions::default(),
                payload: b"",
            };
            tap.put(lan.primary.mac(), lan.client.mac(), &syn.emit());
            eventually("the SYN is answered", || {
                let mut is_answered = false;
                tap.take_segments(|segment| {
                    is_answered |= segment.destination == client && segment.flags.syn
                });
                is_answered.then_some(())
            });
        }
    }
}

/// A connection has moved back. What the agent sends for it without a socket, such as a wake-up, goes through the backup's wire.
#[test]
fn the_agents_packets_go_through_the_wire() {
    for family in Family::BOTH {
        let Some(reversed) = ReversedConnection::new("the_agents_packets_go_through_the_wire", family) else {
            return;
        };
        let (lan, service, clients) = (&reversed.lan, family.service(), [reversed.address]);
        reversed.primary.hold(service, &clients).expect("hold");
        reversed.primary.settle(service, &clients).expect("settle");
        reversed.backup.forget_clients(service, &clients).expect("forget");
        let mut tap = FrameTap::on(&lan.client, "port2");
        let sender = lan.primary.run(RawSender::open).expect("raw sockets");
        sender.send(&reversed.stale()).expect("send");
        eventually("it arrives from the backup", || {
            let mut arrived = false;
            tap.take_segments(|segment| arrived |= segment.seq == STALE);
            arrived.then_some(())
        });
        assert!(reversed.backup.counter(family, "logged_out_packets") > 0);
    }
}

#[test]
fn a_frozen_socket_goes_on_if_the_backup_has_said_nothing() {
    for family in Family::BOTH {
        let Some(mut frozen) =
            ReversedConnection::frozen("a_frozen_socket_goes_on_if_the_backup_has_said_nothing", family)
        else {
            return;
        };
        let (service, clients) = (family.service(), [frozen.address]);
        frozen.speak_in_vain(&frozen.primary, &frozen.backup);
        frozen.primary = frozen.primary.succeeded(&options());
        let primary = &frozen.primary;
        assert_eq!(primary.frozen(service), clients, "a new agent finds it");
        frozen.backup.forget_clients(service, &clients).expect("forget");
        assert!(primary.thaw(service, frozen.address).expect("thaw"), "{family:?}");
        assert_eq!(primary.reversed_there(service), []);
        frozen.hears();
    }
}

/// The client's segments come back from the backup, which does not know the connection any more, while the agent has not decided.
#[test]
fn a_frozen_socket_hears_nothing() {
    for family in Family::BOTH {
        let Some(frozen) = ReversedConnection::frozen("a_frozen_socket_hears_nothing", family) else {
            return;
        };
        frozen.speak_in_vain(&frozen.primary, &frozen.backup);
        let closed = frozen.primary.counter(family, "dropped_gate_closed");
        frozen
            .backup
            .forget_clients(family.service(), &[frozen.address])
            .expect("forget");
        frozen.primary.wait_for(family, "dropped_gate_closed", closed + 1);
        assert_eq!(
            frozen.primary.frozen(family.service()),
            [frozen.address],
            "{family:?}"
        );
        frozen.server.set_nonblocking(true).expect("nonblocking");
        let heard = (&frozen.server).read(&mut [0; 8]);
        assert_eq!(
            heard.expect_err("nothing").kind(),
            std::io::ErrorKind::WouldBlock,
            "{family:?}"
        );
    }
}

#[test]
fn a_frozen_socket_is_over_when_the_backup_speaks() {
    for family in Family::BOTH {
        let Some(frozen) =
            ReversedConnection::frozen("a_frozen_socket_is_over_when_the_backup_speaks", family)
        else {
            return;
        };
        let service = family.service();
        let tap = FrameTap::on(&frozen.lan.client, "port3");
        tap.put(frozen.lan.primary.mac(), frozen.lan.backup.mac(), &frozen.stale());
        frozen.primary.wait_for(family, "logged_out_packets", 1);
        assert_eq!(frozen.primary.frozen(service), []);
        assert_eq!(frozen.primary.reversed_there(service), [frozen.address]);
        assert!(
            !frozen.primary.thaw(service, frozen.address).expect("thaw"),
            "{family:?}"
        );
        frozen.speak_in_vain(&frozen.primary, &frozen.backup);
    }
}

/// A connection moves back to the primary: the backup's socket is frozen, and the primary has it reserved.
#[test]
fn a_socket_that_is_frozen_on_the_backup_goes_on_if_the_primary_has_said_nothing() {
    for (family, speaks) in Family::BOTH
        .into_iter()
        .flat_map(|family| [(family, false), (family, true)])
    {
        let test = "a_socket_that_is_frozen_on_the_backup_goes_on_if_the_primary_has_said_nothing";
        let Some(reversed) = ReversedConnection::new(test, family) else {
            return;
        };
        let (backup, primary) = (&reversed.backup, &reversed.primary);
        let (service, client) = (family.service(), reversed.address);
        reversed.exchange(b"before it");
        primary.reserve(service, &[client]).expect("reserve");
        backup.freeze(service, &[client]).expect("freeze");
        reversed.speak_in_vain(backup, primary);
        assert_eq!(backup.frozen(service), [client], "{family:?}");
        if speaks {
            primary.forget_clients(service, &[client]).expect("forget");
            let sender = reversed.lan.primary.run(RawSender::open).expect("raw sockets");
            sender.send(&reversed.stale()).expect("send");
            eventually("the backup notices it", || {
                (backup.left(service) == [client]).then_some(())
            });
        } else {
            primary.give_back(service, &[client]).expect("give back");
        }
        assert_eq!(backup.thaw(service, client).expect("thaw"), !speaks, "{family:?}");
        if speaks {
            let muted = backup.counter(family, "dropped_egress_mute");
            backup.wait_for(family, "dropped_egress_mute", muted + 1); // it repeats what was dropped
            continue;
        }
        assert!(backup.has_moved_here(service, client));
        reversed.hears();
    }
}
