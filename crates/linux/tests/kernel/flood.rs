//! A flood of SYNs or other segments from clients that do not exist, beside a protected connection. The flood does not disturb the
//! connection, and its cost is bounded.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use proto::Seq;
use proto::action::Gate;
use proto::packet::{Flags, Segment, TcpOptions, Timestamps};
use proto::table::{HANDSHAKES_MAX, PENDING_MAX};
use socket2::SockFilter;
use steadfast_linux::wire::Record;

use crate::support::bystander::Bystander;
use crate::support::frame::FrameTap;
use crate::support::lan::{Family, Lan};
use crate::support::log::LogThread;
use crate::support::takeover::take_over;
use crate::support::wire_on::{WireOn, options};
use crate::support::{assert_same_stream, eventually};

/// Number of segments in a flood, each from another client.
const FLOOD: u32 = 200_000;
/// Number of exchanges of the protected connection during the flood.
const ROUNDS: u32 = 100;
/// Bytes that each side sends in a round.
const ROUND: usize = 32 << 10;

/// The address of the flood's client `number`, in the networks for benchmarks (RFC 2544 §C.2.2, RFC 5180 §8).
fn spoofed(family: Family, number: u32) -> SocketAddr {
    const HOSTS: u32 = 1 << 17;
    let (host, port) = (number % HOSTS, u16::try_from(1024 + number / HOSTS).expect("few"));
    match family {
        Family::V4 => (Ipv4Addr::from_bits(0xc612_0000 + host), port).into(),
        Family::V6 => (Ipv6Addr::from_bits(0x2001_0002 << 96 | u128::from(host)), port).into(),
    }
}

/// A SYN as Linux sends it.
fn syn(family: Family, number: u32) -> Vec<u8> {
    let segment = Segment {
        source: spoofed(family, number),
        destination: family.vip(),
        seq: Seq(number.wrapping_mul(0x9e37_79b9)),
        ack: Seq(0),
        flags: Flags::SYN,
        window: 64_240,
        options: TcpOptions {
            mss: Some(1440),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps {
                value: number,
                echo: 0,
            }),
            ..TcpOptions::default()
        },
        payload: &[],
    };
    segment.emit()
}

/// A segment of a connection that never existed.
fn stray(family: Family, number: u32) -> Vec<u8> {
    let segment = Segment {
        source: spoofed(family, number),
        destination: family.vip(),
        seq: Seq(number.wrapping_mul(0x9e37_79b9)),
        ack: Seq(number),
        flags: Flags::ACK,
        window: 64_240,
        options: TcpOptions::default(),
        payload: b"stray",
    };
    segment.emit()
}

/// A segment of the flood's first client. Its sequence number is far outside the server's receive window. The request socket that the
/// client's SYN created answers each such segment with an acknowledgement (`tcp_check_req`), although the handshake is not complete.
fn outside_the_window(family: Family, number: u32) -> Vec<u8> {
    const FIRST: u32 = 0;
    let segment = Segment {
        source: spoofed(family, FIRST),
        destination: family.vip(),
        seq: Seq(1 << 30) + number,
        ack: Seq(0),
        flags: Flags {
            psh: true,
            ..Flags::default()
        },
        window: 64_240,
        options: TcpOptions {
            timestamps: Some(Timestamps {
                value: FIRST,
                echo: 0,
            }),
            ..TcpOptions::default()
        },
        payload: b"stray",
    };
    segment.emit()
}

/// A tap in front of the backup's wire. It counts the arriving segments independently of the wire.
struct ArrivalCount {
    tap: FrameTap,
    arrived: u64,
}

impl ArrivalCount {
    fn of(lan: &Lan, family: Family) -> Self {
        Self {
            tap: FrameTap::counting(&lan.backup, "eth0", &segments(family)),
            arrived: 0,
        }
    }

    /// Number of segments up to now.
    fn arrived(&mut self) -> u64 {
        self.arrived += self.tap.arrived();
        self.arrived
    }
}

/// A classic BPF program that accepts the TCP segments of `family`.
fn segments(family: Family) -> [SockFilter; 6] {
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let (ether_type, protocol) = match family {
        Family::V4 => (0x0800, 14 + 9),
        Family::V6 => (0x86dd, 14 + 6),
    };
    let line = SockFilter::new;
    [
        line(LOAD_HALF, 0, 0, 12),
        line(IF_EQUAL, 0, 3, ether_type),
        line(LOAD_BYTE, 0, 0, protocol),
        line(IF_EQUAL, 0, 1, 6),
        line(RETURN, 0, 0, u32::MAX),
        line(RETURN, 0, 0, 0),
    ]
}

/// The LAN with the wire on the backup, a connection through the wire, and routes that discard packets to the flood's clients.
struct FloodTestbed {
    lan: Lan,
    family: Family,
    wire: WireOn,
    reading: LogThread,
    census: ArrivalCount,
    listener: TcpListener,
    bystander: Bystander,
}

impl FloodTestbed {
    fn new(test: &str, family: Family) -> Option<Self> {
        let lan = Lan::new(test)?;
        lan.backup
            .ip("route add 198.18.0.0/15 via 10.0.0.1 dev eth0\n route add 2001:2::/48 via fd00::1 dev eth0");
        lan.client
            .ip("route add blackhole 198.18.0.0/15\n route add blackhole 2001:2::/48");
        let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
        let reading = LogThread::of(&wire);
        let census = ArrivalCount::of(&lan, family);
        let listener = lan.primary.listen(family.vip());
        let mut bystander = Bystander::new(lan.client.connect_pair(&listener));
        bystander.exchange(ROUND); // the client is a stranger until the server has answered
        Some(Self {
            lan,
            family,
            wire,
            reading,
            census,
            listener,
            bystander,
        })
    }

    /// Floods the service with these segments, while the connection exchanges data from the first segment to the last.
    fn flood(&mut self, packet: fn(Family, u32) -> Vec<u8>) {
        let Self {
            lan,
            family,
            bystander,
            ..
        } = self;
        let sent = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let tap = FrameTap::on(&lan.client, "port2");
                for number in 0..FLOOD {
                    // A segment is lost if the cable has no room, as on a real cable.
                    tap.offer(lan.backup.mac(), lan.client.mac(), &packet(*family, number));
                    sent.store(number + 1, Ordering::Relaxed);
                }
            });
            for round in 1..=ROUNDS {
                eventually("the flood goes on", || {
                    (sent.load(Ordering::Relaxed) >= FLOOD / ROUNDS * round).then_some(())
                });
                bystander.exchange(ROUND);
            }
        });
    }

    /// Asserts that every segment that arrived at the wire is in the log or was counted as dropped because a ring was full. Nothing may be
    /// dropped for another reason. The ring of connections may have fewer segments than a twentieth of the flood: the connection's own, and
    /// those of strangers that seem to be known because of a hash collision. Returns the number of dropped segments.
    #[track_caller]
    fn assert_accounted_for(&mut self) -> u64 {
        let dropped = eventually("all that arrived is logged or counted", || {
            let [segments, others] = self.reading.now().records;
            let dropped = self.wire.counter(self.family, "dropped_ring_full");
            (self.census.arrived() == segments + others + dropped).then_some(dropped)
        });
        let segments = self.reading.now().records[0];
        assert!(
            segments < u64::from(FLOOD) / 20,
            "{segments} in the ring of connections"
        );
        let others = self.wire.drops(self.family);
        assert!(
            others.iter().all(|&(reason, _)| reason == "dropped_ring_full"),
            "{others:?}"
        );
        dropped
    }

    /// Asserts that the connection and a new connection are protected, and that a takeover continues the first connection. Then asserts
    /// that `pending` handshakes of the flood can be continued as well.
    #[track_caller]
    fn assert_unharmed(mut self, pending: usize) {
        self.bystander.assert_undisturbed(&self.reading);
        let mut late = Bystander::new(self.lan.client.connect_pair(&self.listener));
        late.assert_undisturbed(&self.reading);

        let (family, address) = (self.family, self.bystander.address());
        let taken = take_over(&self.lan.backup, &self.wire, &self.reading, address, family);
        assert_same_stream("the input", &taken.input, &self.bystander.input);
        assert_eq!(taken.rest_of(&self.bystander.output), [0_u8; 0]);
        self.bystander.server = taken.socket;
        self.bystander.exchange(ROUND);
        assert_eq!(self.reading.now().open_pending(family), pending);
    }
}

fn a_flood_beside_a_connection(test: &str, family: Family) {
    let Some(mut testbed) = FloodTestbed::new(test, family) else {
        return;
    };
    testbed.flood(syn);
    testbed.assert_accounted_for();
    let most = testbed.reading.now().handshakes_most;
    assert!((PENDING_MAX..=HANDSHAKES_MAX).contains(&most), "{most}");
    testbed.assert_unharmed(PENDING_MAX);
}

#[test]
fn a_flood_over_ipv4_costs_a_connection_nothing() {
    a_flood_beside_a_connection("a_flood_over_ipv4_costs_a_connection_nothing", Family::V4);
}

#[test]
fn a_flood_over_ipv6_costs_a_connection_nothing() {
    a_flood_beside_a_connection("a_flood_over_ipv6_costs_a_connection_nothing", Family::V6);
}

/// The ring of SYNs and strangers overflows, but no other ring.
#[test]
fn a_flood_that_nobody_reads_costs_a_connection_nothing() {
    for family in Family::BOTH {
        unread(
            "a_flood_that_nobody_reads_costs_a_connection_nothing",
            family,
            syn,
            PENDING_MAX,
        );
    }
}

#[test]
fn a_flood_without_syns_that_nobody_reads_costs_a_connection_nothing() {
    for family in Family::BOTH {
        unread(
            "a_flood_without_syns_that_nobody_reads_costs_a_connection_nothing",
            family,
            stray,
            0,
        );
    }
}

/// The primary acknowledges this client's segments, but a client without a completed handshake remains a stranger.
#[test]
fn a_flood_that_a_request_socket_answers_costs_a_connection_nothing() {
    for family in Family::BOTH {
        let test = "a_flood_that_a_request_socket_answers_costs_a_connection_nothing";
        let Some(mut testbed) = FloodTestbed::new(test, family) else {
            return;
        };
        let put = |packet: &[u8]| {
            let said = testbed.wire.counter(family, "logged_out_packets");
            let tap = FrameTap::on(&testbed.lan.client, "port2");
            tap.put(testbed.lan.backup.mac(), testbed.lan.client.mac(), packet);
            testbed.wire.wait_for(family, "logged_out_packets", said + 1);
        };
        for _ in 0..2 {
            put(&syn(family, 0));
            put(&outside_the_window(family, 0));
            put(&outside_the_window(family, 1));
        }
        testbed.flood(outside_the_window);
        let said = testbed.wire.counter(family, "logged_out_packets");
        assert!(
            said > u64::from(FLOOD) / 20,
            "{said} packets of the primary: it did not answer"
        );
        testbed.assert_accounted_for();
        testbed.assert_unharmed(1);
    }
}

/// A server that sends no data makes its client known by acknowledgements with different numbers. So the client's upload goes to the ring
/// of connections.
#[test]
fn a_client_that_is_acknowledged_is_known() {
    for family in Family::BOTH {
        let Some(mut testbed) = FloodTestbed::new("a_client_that_is_acknowledged_is_known", family) else {
            return;
        };
        let (mut client, mut server) = testbed.lan.client.connect_pair(&testbed.listener);
        let before = testbed.reading.now().records;
        for byte in 0..100 {
            client.write_all(&[byte]).expect("write");
            server.read_exact(&mut [0]).expect("read");
        }
        let after = testbed.reading.now().records;
        let strangers = after[1] - before[1];
        assert!(
            after[0] - before[0] >= 90 && strangers <= 10,
            "{} segments in the ring of connections, {strangers} in the ring of strangers",
            after[0] - before[0]
        );
        testbed.bystander.assert_undisturbed(&testbed.reading);
    }
}

fn unread(test: &str, family: Family, packet: fn(Family, u32) -> Vec<u8>, pending: usize) {
    let Some(mut testbed) = FloodTestbed::new(test, family) else {
        return;
    };
    drop(testbed.reading.now()); // reads the connection's SYNs before the flood
    testbed.reading.pause();
    testbed.flood(packet);
    testbed.reading.resume();
    let dropped = testbed.assert_accounted_for();
    assert!(dropped > 0, "the ring of SYNs and strangers did not overflow");
    testbed.assert_unharmed(pending);
}

/// A logged segment is read, no matter how many SYNs arrive after it between two reads.
#[test]
fn a_flood_keeps_nobody_from_reading_the_connections() {
    const BATCH: u32 = 16;
    let Some(lan) = Lan::new("a_flood_keeps_nobody_from_reading_the_connections") else {
        return;
    };
    lan.power_off_primary(); // a living primary would answer the segments
    let family = Family::V4;
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
    let mut rings = wire.rings().expect("rings");
    let tap = FrameTap::on(&lan.client, "port2");
    let put = |packet: &[u8]| tap.put(lan.backup.mac(), lan.client.mac(), packet);
    let segment = Segment {
        source: spoofed(family, 0),
        destination: family.vip(),
        seq: Seq(1),
        ack: Seq(1),
        flags: Flags::ACK,
        window: 100,
        options: TcpOptions::default(),
        payload: b"data",
    };
    let known = Segment {
        source: segment.destination,
        destination: segment.source,
        payload: b"known",
        ..segment
    };
    tap.put(lan.backup.mac(), lan.primary.mac(), &known.emit());
    put(&segment.emit());
    let mut numbers = 0..;
    let mut looks = 0;
    let mut seen = false;
    while !seen {
        numbers
            .by_ref()
            .take(2 * BATCH as usize)
            .for_each(|number| put(&syn(family, number)));
        wire.wait_for(family, "logged_in_packets", 1 + u64::from(numbers.start));
        rings.drain(BATCH as usize, false, &mut |_: &Record, packet: &[u8]| {
            seen |= packet.ends_with(b"data")
        });
        looks += 1;
        assert!(looks < 10, "SYNs only");
    }
}
