//! A flood of SYNs from clients that do not exist, beside a protected connection: the connection does not notice it, and
//! what it costs is bounded.

mod support;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use proto::Seq;
use proto::packet::{Flags, Options, Segment, Timestamps};
use proto::table::{HANDSHAKES_MAX, PENDING_MAX};
use socket2::SockFilter;
use steadfast_linux::wire::{Mode, Record};

use support::bystander::Bystander;
use support::frame::Tap;
use support::lan::{Family, Lan};
use support::log::Reading;
use support::takeover::take_over;
use support::wire_on::{WireOn, options};
use support::{assert_same_stream, eventually};

/// SYNs in a flood, each from another client.
const FLOOD: u32 = 200_000;
/// Exchanges of the protected connection while the flood lasts.
const ROUNDS: u32 = 100;
/// Bytes that each side says in a round.
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
        options: Options {
            mss: Some(1440),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps {
                value: number,
                echo: 0,
            }),
            ..Options::default()
        },
        payload: &[],
    };
    segment.emit()
}

/// Taps in front of the backup's wire: what arrives there, counted by somebody else.
struct Census {
    taps: [Tap; 2],
    arrived: [u64; 2],
}

impl Census {
    fn of(lan: &Lan, family: Family) -> Self {
        let tap = |syns| Tap::counting(&lan.backup, "eth0", &segments(family, syns));
        Self {
            taps: [false, true].map(tap),
            arrived: [0; 2],
        }
    }

    /// Segments of connections, and SYNs with SYN-ACKs, up to now.
    fn arrived(&mut self) -> [u64; 2] {
        for (arrived, tap) in self.arrived.iter_mut().zip(&mut self.taps) {
            *arrived += tap.arrived();
        }
        self.arrived
    }
}

/// A classic BPF program that accepts the TCP segments of `family`: those with a SYN, or those without.
fn segments(family: Family, syns: bool) -> [SockFilter; 8] {
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const IF_EQUAL: u16 = 0x15;
    const IF_SET: u16 = 0x45;
    const RETURN: u16 = 0x06;
    let (ether_type, protocol, flags) = match family {
        Family::V4 => (0x0800, 14 + 9, 14 + 20 + 13),
        Family::V6 => (0x86dd, 14 + 6, 14 + 40 + 13),
    };
    let (with, without) = if syns { (0, 1) } else { (1, 0) };
    let line = SockFilter::new;
    [
        line(LOAD_HALF, 0, 0, 12),
        line(IF_EQUAL, 0, 5, ether_type),
        line(LOAD_BYTE, 0, 0, protocol),
        line(IF_EQUAL, 0, 3, 6),
        line(LOAD_BYTE, 0, 0, flags),
        line(IF_SET, with, without, 2),
        line(RETURN, 0, 0, u32::MAX),
        line(RETURN, 0, 0, 0),
    ]
}

/// The LAN with the wire on the backup, a connection through it, and a way back to the flood's clients that ends in nothing.
struct Scene {
    lan: Lan,
    family: Family,
    wire: WireOn,
    reading: Reading,
    census: Census,
    listener: TcpListener,
    bystander: Bystander,
}

impl Scene {
    fn new(test: &str, family: Family) -> Option<Self> {
        let lan = Lan::new(test)?;
        lan.backup
            .ip("route add 198.18.0.0/15 via 10.0.0.1 dev eth0\n route add 2001:2::/48 via fd00::1 dev eth0");
        lan.client
            .ip("route add blackhole 198.18.0.0/15\n route add blackhole 2001:2::/48");
        let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Mode::Wire);
        let reading = Reading::of(&wire);
        let census = Census::of(&lan, family);
        let listener = lan.primary.listen(family.vip());
        let bystander = Bystander::new(lan.client.connect_pair(&listener));
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

    /// Floods the service, while the connection goes on from the first SYN to the last.
    fn flood(&mut self) {
        let Self {
            lan,
            family,
            bystander,
            ..
        } = self;
        let sent = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let tap = Tap::on(&lan.client, "port2");
                for number in 0..FLOOD {
                    // Where the cable has no room it is lost, as on any other.
                    tap.offer(lan.backup.mac(), lan.client.mac(), &syn(*family, number));
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

    /// Every segment that arrived at the wire is in the log, and every SYN is there or was counted; returns how many were.
    #[track_caller]
    fn assert_accounted_for(&mut self) -> u64 {
        let dropped = eventually("all that arrived is logged, or a SYN that was counted", || {
            let [segments, openings] = self.reading.now().records;
            let dropped = self.wire.counter(self.family, "dropped_ring_full");
            (self.census.arrived() == [segments, openings + dropped]).then_some(dropped)
        });
        let others = self.wire.drops(self.family);
        assert!(
            others.iter().all(|&(reason, _)| reason == "dropped_ring_full"),
            "{others:?}"
        );
        dropped
    }

    /// The connection and a new one are protected, and a takeover continues the old one, and some of the flood.
    #[track_caller]
    fn assert_unharmed(mut self) {
        self.bystander.assert_undisturbed(&self.reading);
        let mut late = Bystander::new(self.lan.client.connect_pair(&self.listener));
        late.assert_undisturbed(&self.reading);

        let (family, address) = (self.family, self.bystander.address());
        let taken = take_over(&self.lan.backup, &self.wire, &self.reading, address, family);
        assert_same_stream("the input", &taken.input, &self.bystander.input);
        assert_eq!(taken.rest_of(&self.bystander.output), [0_u8; 0]);
        self.bystander.server = taken.socket;
        self.bystander.exchange(ROUND);
        assert_eq!(self.reading.now().open_pending(family), PENDING_MAX);
    }
}

fn a_flood_beside_a_connection(test: &str, family: Family) {
    let Some(mut scene) = Scene::new(test, family) else {
        return;
    };
    scene.flood();
    scene.assert_accounted_for();
    let most = scene.reading.now().handshakes_most;
    assert!((PENDING_MAX..=HANDSHAKES_MAX).contains(&most), "{most}");
    scene.assert_unharmed();
}

#[test]
fn a_flood_over_ipv4_costs_a_connection_nothing() {
    a_flood_beside_a_connection("a_flood_over_ipv4_costs_a_connection_nothing", Family::V4);
}

#[test]
fn a_flood_over_ipv6_costs_a_connection_nothing() {
    a_flood_beside_a_connection("a_flood_over_ipv6_costs_a_connection_nothing", Family::V6);
}

/// The ring of SYNs overflows, and with it nothing else.
#[test]
fn a_flood_that_nobody_reads_costs_a_connection_nothing() {
    for family in Family::BOTH {
        let test = "a_flood_that_nobody_reads_costs_a_connection_nothing";
        let Some(mut scene) = Scene::new(test, family) else {
            return;
        };
        drop(scene.reading.now()); // the connection's SYNs
        scene.reading.pause();
        scene.flood();
        let dropped = scene.assert_accounted_for();
        assert!(dropped > 0, "the ring of SYNs did not overflow");
        scene.reading.resume();
        scene.assert_unharmed();
    }
}

/// However many SYNs arrive between two looks, a segment that was logged before them is read.
#[test]
fn a_flood_keeps_nobody_from_reading_the_connections() {
    const BATCH: u32 = 16;
    let Some(lan) = Lan::new("a_flood_keeps_nobody_from_reading_the_connections") else {
        return;
    };
    lan.power_off_primary(); // it would answer
    let family = Family::V4;
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Mode::Wire);
    let mut rings = wire.rings().expect("rings");
    let tap = Tap::on(&lan.client, "port2");
    let put = |packet: &[u8]| tap.put(lan.backup.mac(), lan.client.mac(), packet);
    let segment = Segment {
        source: spoofed(family, 0),
        destination: family.vip(),
        seq: Seq(1),
        ack: Seq(1),
        flags: Flags::ACK,
        window: 100,
        options: Options::default(),
        payload: b"data",
    };
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
