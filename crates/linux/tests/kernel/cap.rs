//! Slowed clients, on the real kernel. No segment to a slowed client offers a window beyond the client's cap, except a window that was
//! offered before. No offered window is taken back. The client continues as soon as the cap is raised.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use proto::action::Gate;
use proto::connection::Cap;
use proto::packet::Segment;
use proto::{Offset, Seq, takeover};
use steadfast_linux::clock;
use steadfast_linux::raw::RawSender;

use crate::support::frame::FrameTap;
use crate::support::lan::{Family, Lan};
use crate::support::log::LogThread;
use crate::support::wire_on::{WireOn, options};
use crate::support::{assert_same_stream, eventually, stream};

const MEGABYTE: usize = 1 << 20;
/// Bytes by which the cap is raised each time.
const STEP: u32 = 300_000;

/// A client's cap and the update that announces it.
struct CapUpdate {
    cap: Cap,
    update: Vec<u8>,
}

/// A cap that allows `room` bytes beyond what the primary has acknowledged, and a repetition of the primary's last acknowledgement.
fn seen(reading: &LogThread, client: SocketAddr, room: u32) -> CapUpdate {
    let log = reading.now();
    let connection = log.connection(client).1;
    let endpoint = connection.endpoint();
    let acknowledged = endpoint.receive_window_from;
    CapUpdate {
        cap: Cap {
            edge: acknowledged + room,
            promised: acknowledged + endpoint.receive_window,
            shift: endpoint.window_scale.expect("Linux scales").1,
        },
        update: takeover::wake(connection, 0, clock::now()).swap_remove(0),
    }
}

/// The window edge that the client knows. It never moves back.
struct WindowEdge {
    tap: FrameTap,
    vip: SocketAddr,
    shift: u8,
    told: Option<Told>,
}

/// The last segment whose window the client took.
#[derive(Clone, Copy)]
struct Told {
    ack: Seq,
    seq: Seq,
    edge: Seq,
}

impl Told {
    /// Whether a client that took this segment last also takes the window of `segment`. Segments that were sent on different CPUs may
    /// overtake each other, and a client ignores the window of the late segment (RFC 9293, 3.10.7.4; in Linux, `tcp_may_update_window`).
    fn is_updated_by(&self, segment: &Segment<'_>, edge: Seq) -> bool {
        let (newer_ack, newer_seq) = (
            segment.ack.distance_from(self.ack),
            segment.seq.distance_from(self.seq),
        );
        newer_ack > 0
            || newer_ack == 0 && (newer_seq > 0 || newer_seq == 0 && edge.distance_from(self.edge) > 0)
    }
}

impl WindowEdge {
    fn edge(&mut self) -> Seq {
        let (told, vip, shift) = (&mut self.told, self.vip, self.shift);
        self.tap.take_segments(|segment| {
            if segment.source != vip || segment.flags.syn || !segment.flags.ack {
                return;
            }
            let edge = segment.ack + (u32::from(segment.window) << shift);
            if let Some(before) = *told {
                if !before.is_updated_by(segment, edge) {
                    return;
                }
                let moved = edge.distance_from(before.edge);
                assert!(
                    moved >= 0,
                    "{moved} from {:?}: {:?}",
                    before.edge,
                    (segment.seq, segment.ack, segment.window)
                );
            }
            *told = Some(Told {
                ack: segment.ack,
                seq: segment.seq,
                edge,
            });
        });
        self.told.expect("it heard something").edge
    }
}

fn logged(reading: &LogThread, client: SocketAddr) -> Offset {
    reading.now().connection(client).1.input().frontier()
}

/// Waits until the client has stopped sending.
fn wait_until_it_waits(reading: &LogThread, client: SocketAddr) {
    let mut last = (Offset::ZERO, clock::now());
    eventually("the client waits", || {
        let (now, frontier) = (clock::now(), logged(reading, client));
        if frontier != last.0 {
            last = (frontier, now);
        }
        (now.since(last.1).as_millis() > 150).then_some(())
    });
}

/// A client's connection, and its wire.
struct Slowed {
    wire: WireOn,
    reading: LogThread,
    raw: RawSender,
    family: Family,
    address: SocketAddr,
}

impl Slowed {
    fn cap(&self, cap: Option<Cap>) {
        let told = self.wire.cap_window(self.family.service(), self.address, cap);
        told.expect("the map has room");
    }

    /// Raises the cap whenever the client waits, until `end` is logged. Returns the number of raises, and whether the primary ever offered
    /// more than the cap.
    fn step_by_step(&self, mut cap: Cap, told: &mut WindowEdge, end: u64) -> (usize, bool) {
        let (mut steps, mut is_withheld) = (0, false);
        loop {
            wait_until_it_waits(&self.reading, self.address);
            let (edge, before) = (told.edge(), logged(&self.reading, self.address));
            // The first segment under a cap passes unchanged. After it, the edge may exceed the cap by one unit of the window field per
            // segment.
            assert!(
                steps == 0 || edge.distance_from(cap.edge) < 100 << cap.shift,
                "{edge:?} {cap:?}"
            );
            if before == Offset(end) {
                return (steps, is_withheld);
            }
            let seen = seen(&self.reading, self.address, STEP);
            is_withheld |= seen.cap.promised.distance_from(cap.edge) > 0;
            let is_further = seen.cap.edge.distance_from(edge) > 0;
            cap.edge = if is_further { seen.cap.edge } else { edge };
            self.cap(Some(cap));
            // Nothing else opens the client's window before its next probe.
            self.raw.send(&seen.update).expect("send");
            steps += 1;
            eventually("it goes on", || {
                (logged(&self.reading, self.address) > before).then_some(())
            });
        }
    }
}

fn a_slowed_client(test: &str, family: Family) {
    let Some(lan) = Lan::new(test) else { return };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
    let reading = LogThread::of(&wire);
    let raw = lan.backup.run(RawSender::open).expect("raw sockets");
    let (client, server) = lan.client.connect_pair(&lan.primary.listen(family.vip()));
    let address = client.local_addr().expect("connected");
    (&client).write_all(b"hello").expect("write");
    (&server).read_exact(&mut [0; 5]).expect("read");
    eventually("it is acknowledged", || {
        let log = reading.now();
        let connection = log.connection(address).1;
        (connection.input_acknowledged() == Offset(5)).then_some(())
    });

    let CapUpdate { cap, update } = seen(&reading, address, STEP);
    let mut told = WindowEdge {
        tap: FrameTap::on(&lan.client, "lan"),
        vip: family.vip(),
        shift: cap.shift,
        told: None,
    };
    let slowed = Slowed {
        wire,
        reading,
        raw,
        family,
        address,
    };
    slowed.cap(Some(cap));
    let (upload, reply) = (stream(7, 4 * MEGABYTE), stream(8, MEGABYTE));
    std::thread::scope(|scope| {
        scope.spawn(|| { &client }.write_all(&upload).expect("upload"));
        scope.spawn(|| receive(&client, &reply));
        scope.spawn(|| receive(&server, &upload));
        scope.spawn(|| { &server }.write_all(&reply).expect("reply"));
        let (steps, is_withheld) = slowed.step_by_step(cap, &mut told, 5 + upload.len() as u64);
        assert!(steps > 5 && is_withheld, "{steps}");
    });
    slowed.cap(None);
    slowed.wire.set_caps(family.service(), false);
    let before = told.edge();
    slowed
        .raw
        .send(&update)
        .expect("sent, and dropped by the guard: this client is not slowed");
    (&client).write_all(b"more").expect("write");
    (&server).read_exact(&mut [0; 4]).expect("read");
    eventually("its window is the primary's again", || {
        (told.edge().distance_from(before) > 2 * STEP.cast_signed()).then_some(())
    });
    slowed.reading.now().assert_protected(address);
}

fn receive(mut stream: &TcpStream, expected: &[u8]) {
    let mut received = vec![0; expected.len()];
    stream.read_exact(&mut received).expect("read");
    assert_same_stream("received", &received, expected);
}

#[test]
fn a_slowed_client_goes_on_ipv4() {
    a_slowed_client("a_slowed_client_goes_on_ipv4", Family::V4);
}

#[test]
fn a_slowed_client_goes_on_ipv6() {
    a_slowed_client("a_slowed_client_goes_on_ipv6", Family::V6);
}
