//! Commit modes `pr` and `immediate` on the real kernel: the primary sends its output straight to the client while it may, and the wire's log
//! gets copies without payload. With `immediate`, packets for which the log has no room pass unlogged.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proto::Seq;
use proto::action::Gate;
use proto::packet::Segment;
use steadfast_linux::clock;
use steadfast_linux::wire::{MARK_DIRECT, Record, Rings, WireOptions, checksum_of};

use crate::support::lan::{Family, Lan};
use crate::support::wire_on::{WireOn, options};
use crate::support::{assert_same_stream, eventually, stream};

const MEGABYTE: usize = 1 << 20;

/// What the wire's log has of the primary's output.
#[derive(Default)]
struct LoggedOutput {
    /// Bytes of payload in whole segments.
    whole: usize,
    /// Bytes of payload that copies say were sent.
    cut: usize,
    /// End of the output that the log knows of.
    end: Option<Seq>,
    /// Packets that could not be read.
    malformed: usize,
    /// Bytes of all packets.
    bytes: usize,
}

impl LoggedOutput {
    fn take(&mut self, record: &Record, packet: &[u8]) {
        if record.direction == 0 {
            return;
        }
        self.bytes += packet.len();
        let Ok(segment) = Segment::parse(packet, checksum_of(record)) else {
            self.malformed += 1;
            return;
        };
        self.whole += segment.payload.len();
        self.cut += usize::try_from(segment.options.cut).expect("a payload");
        let end = segment.seq + segment.seq_len();
        if self.end.is_none_or(|before| end.distance_from(before) > 0) {
            self.end = Some(end);
        }
    }

    fn read(&mut self, rings: &Rings) {
        for log in [&rings.opening, &rings.connections] {
            log.drain(
                &log.ends(),
                usize::MAX,
                true,
                &mut |record: &Record, packet: &[u8]| {
                    self.take(record, packet);
                },
            );
        }
    }
}

/// Both wires, and a connection through them.
struct Direct {
    lan: Lan,
    backup: WireOn,
    primary: WireOn,
    client: TcpStream,
    server: TcpStream,
    family: Family,
}

impl Direct {
    fn new(test: &str, family: Family) -> Option<Self> {
        let lan = Lan::new(test)?;
        let rule = format!("rule add fwmark {MARK_DIRECT} lookup main pref 90");
        lan.primary.ip(&rule);
        lan.primary.ip6(&rule);
        let backup = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
        let primary = WireOn::new(&lan.primary, &lan.backup, &options(), Gate::Primary);
        let (client, server) = lan.client.connect_pair(&lan.primary.listen(family.vip()));
        Some(Self {
            lan,
            backup,
            primary,
            client,
            server,
            family,
        })
    }

    /// Lets the primary send directly for the next `millis` milliseconds.
    fn allow(&self, millis: u64) {
        let until = clock::now().as_nanos() + millis * 1_000_000;
        self.primary.set_direct_until(self.family.service(), until);
    }

    /// Sends `bytes` to the client, and checks that they arrive. Returns what the log got meanwhile.
    fn download(&mut self, bytes: &[u8]) -> LoggedOutput {
        let rings = self.backup.rings().expect("rings");
        let mut logged = LoggedOutput::default();
        let is_over = Arc::new(AtomicBool::new(false));
        let (mut client, mut server) = (&self.client, &self.server);
        std::thread::scope(|scope| {
            let over = Arc::clone(&is_over);
            let logged = &mut logged;
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    logged.read(&rings);
                    std::thread::sleep(Duration::from_micros(200));
                }
                logged.read(&rings);
            });
            scope.spawn(move || server.write_all(bytes).expect("write"));
            let mut received = vec![0; bytes.len()];
            client.read_exact(&mut received).expect("read");
            assert_same_stream("received", &received, bytes);
            is_over.store(true, Ordering::SeqCst);
        });
        logged
    }

    fn sent_directly(&self) -> u64 {
        self.primary.counter(self.family, "sent_directly")
    }
}

fn output_goes_straight(test: &str, family: Family) {
    let Some(mut direct) = Direct::new(test, family) else {
        return;
    };
    let bytes = stream(3, 8 * MEGABYTE);
    let through_wire = direct.download(&bytes[..MEGABYTE]);
    assert_eq!((through_wire.cut, direct.sent_directly()), (0, 0));
    assert!(through_wire.whole >= MEGABYTE);

    direct.allow(60_000);
    let logged = direct.download(&bytes);
    assert_eq!((logged.whole, logged.malformed), (0, 0));
    assert!(logged.cut >= bytes.len(), "{}", logged.cut);
    assert!(
        logged.bytes < bytes.len() / 20,
        "{} bytes went to the wire",
        logged.bytes
    );
    assert!(direct.sent_directly() > 0);
    let end = logged.end.expect("there was output");
    assert_eq!(end.distance_from(through_wire.end.expect("output")), 8 << 20);

    // The payload is shorter than the length that stands in its place.
    let logged = direct.download(b"x");
    assert_eq!((logged.whole, logged.cut), (0, 1));

    // The right ends: all goes through the wire again.
    direct.primary.set_direct_until(family.service(), 1);
    let logged = direct.download(&bytes[..MEGABYTE]);
    assert!(logged.cut == 0 && logged.whole >= MEGABYTE);
    let drops = direct.backup.drops(family);
    assert_eq!(drops, [], "the wire takes copies for nothing else");
}

#[test]
fn output_goes_straight_to_the_client_ipv4() {
    output_goes_straight("output_goes_straight_to_the_client_ipv4", Family::V4);
}

#[test]
fn output_goes_straight_to_the_client_ipv6() {
    output_goes_straight("output_goes_straight_to_the_client_ipv6", Family::V6);
}

/// A segment may wait for the client's MAC address. When it leaves, the primary must still have the right.
#[test]
fn a_segment_that_waited_too_long_does_not_leave() {
    let Some(mut direct) = Direct::new("a_segment_that_waited_too_long_does_not_leave", Family::V4) else {
        return;
    };
    let address = Family::V4.address(1);
    direct.lan.primary.ip(&format!("neigh flush {address}"));
    direct.lan.client.sysctl("ipv4/conf/lan/arp_ignore", "8"); // the client does not answer
    direct.allow(60_000);
    (&direct.server).write_all(b"waits").expect("write");
    eventually("it waits", || (direct.sent_directly() > 0).then_some(()));
    direct.primary.set_direct_until(0, 1);
    let expired = direct.primary.counter(Family::V4, "dropped_right_expired");
    assert_eq!(expired, 0);
    let mac = "02:00:00:00:00:01";
    direct.lan.primary.ip(&format!(
        "neigh replace {address} lladdr {mac} dev eth0 nud permanent"
    ));
    direct.primary.wait_for(Family::V4, "dropped_right_expired", 1);
    let mut received = [0; 5];
    (&direct.client)
        .read_exact(&mut received)
        .expect("repeated, through the wire");
    assert_eq!(&received, b"waits");
    direct.download(b"more");
}

/// The agent is there, but its log is full. Only the service with commit mode `immediate` goes on, and its agent hears of it.
#[test]
fn with_a_full_log_input_passes_at_once_in_mode_immediate_only() {
    let Some(lan) = Lan::new("with_a_full_log_input_passes_at_once_in_mode_immediate_only") else {
        return;
    };
    let options = WireOptions {
        ring_cached_bytes: 4096,
        ring_bytes: 4096,
        ring_open_bytes: 4096,
        ..options()
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options, Gate::Wire); // nobody reads its rings
    let connect = |family: Family| lan.client.connect_pair(&lan.primary.listen(family.vip()));
    let [(client, server), (mut other_client, _other_server)] = Family::BOTH.map(connect);
    let (mut client, mut server) = (client, server);
    let (family, other) = (Family::V4, Family::V6);
    let dropped = |family| wire.counter(family, "dropped_ring_full");
    let bytes = stream(5, 32 << 10);
    client.write_all(&bytes).expect("write");
    wire.wait_for(family, "dropped_ring_full", 2);
    assert_eq!(wire.take_unlogged(family.service()), 0);

    wire.set_immediate(family.service(), true);
    server
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a timeout");
    let mut received = vec![0; bytes.len()];
    server
        .read_exact(&mut received)
        .expect("the client repeats what was dropped");
    assert_same_stream("received", &received, &bytes);
    assert!(wire.take_unlogged(family.service()) > 0);
    let before = dropped(family);
    for byte in 0..20 {
        client.write_all(&[byte]).expect("write");
        server.read_exact(&mut received[..1]).expect("read");
    }
    assert_eq!(dropped(family), before, "nothing waits for a repetition");
    assert!(wire.take_unlogged(family.service()) >= 20);

    other_client.write_all(b"x").expect("write");
    wire.wait_for(other, "dropped_ring_full", 2);
    assert_eq!(wire.take_unlogged(other.service()), 0);
    wire.set_immediate(family.service(), false);
    client.write_all(b"x").expect("write");
    wire.wait_for(family, "dropped_ring_full", before + 1);
    assert_eq!(wire.take_unlogged(family.service()), 0);
}
