//! SCTP between two of our endpoints on real sockets: over UDP and raw IP, over IPv4 and IPv6, with a path that is cut, and with packets
//! from a program that is not the association's peer.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::sctp::association::{Association, CloseReason};
use proto::sctp::chunk::{InitChunk, SctpChunk};
use proto::sctp::packet::SctpPacket;
use proto::sctp::{AssociationState, HeartbeatWatch, InitParameter, PathId, SctpConfig, Tsn};

use crate::support::lan::Family;
use crate::support::sctp::{PORT, TwoCables, UDP_PORT, WireEnd, addresses, run};
use crate::support::socket::send_no_checksums;

fn transfer(net: &TwoCables, family: Family, udp_port: u16, bytes: u64) {
    let mut near = WireEnd::open(&net.near, 1, family, udp_port, |_| {});
    let mut far = WireEnd::open(&net.far, 2, family, udp_port, |_| {});
    near.to_send = bytes;
    far.wanted = bytes;
    near.call(family, 2);
    run("a transfer", &mut [&mut near, &mut far], |ends| {
        ends.iter().all(|end| end.end().is_some())
    });
    assert_eq!((far.received, far.end()), (bytes, Some(&CloseReason::ShutDown)));
    assert_eq!(near.end(), Some(&CloseReason::ShutDown));
    let (sender, receiver) = (near.wire.counts(), far.wire.counts());
    if udp_port == 0 {
        assert_eq!(receiver.received_batches, receiver.received);
    } else {
        // A call sends several packets (`UDP_SEGMENT`), and a call returns several (`UDP_GRO`).
        assert!(sender.batches < sender.sent / 2, "{family:?} {sender:?}");
        assert!(
            receiver.received_batches < receiver.received / 2,
            "{family:?} {receiver:?}"
        );
    }
}

#[test]
fn data_arrives_over_udp_and_raw_ip() {
    let Some(net) = TwoCables::new("data_arrives_over_udp_and_raw_ip") else {
        return;
    };
    for family in Family::BOTH {
        for udp_port in [UDP_PORT, 0] {
            transfer(&net, family, udp_port, 3_000_000);
        }
    }
}

/// A socket that sends no UDP checksums cannot cut batches: the kernel answers EINVAL. It answers EIO for routes through IPsec. Both errors
/// have the same consequence here.
#[test]
fn data_arrives_if_the_kernel_refuses_to_cut_batches() {
    let Some(net) = TwoCables::new("data_arrives_if_the_kernel_refuses_to_cut_batches") else {
        return;
    };
    let mut near = WireEnd::open(&net.near, 1, Family::V4, UDP_PORT, |_| {});
    let mut far = WireEnd::open(&net.far, 2, Family::V4, UDP_PORT, |_| {});
    for socket in near.wire.fds() {
        send_no_checksums(&socket);
    }
    near.to_send = 10_000_000;
    far.wanted = near.to_send;
    near.call(Family::V4, 2);
    run("a transfer without batches", &mut [&mut near, &mut far], |ends| {
        ends.iter().all(|end| end.end().is_some())
    });
    assert_eq!(
        (far.received, far.end()),
        (10_000_000, Some(&CloseReason::ShutDown))
    );
    let counts = near.wire.counts();
    // The first batch was refused, and its packets were sent alone.
    assert_eq!((counts.unbatched, counts.unsent), (1, 0));
    assert!(counts.batches > counts.sent * 9 / 10, "{counts:?}");
    let receiver = far.wire.counts();
    assert_eq!(receiver.unbatched, 0);
}

/// Sizes of packets that an end has found for its paths, once it has searched both of them.
fn searched(end: &WireEnd) -> Option<Vec<u32>> {
    let paths = end.association()?.destinations();
    let is_done = paths.len() == 2
        && paths
            .iter()
            .all(|path| path.is_confirmed() && !path.mtu().is_searching());
    is_done.then(|| paths.iter().map(|path| path.mtu().confirmed()).collect())
}

/// The near host's second interface refuses packets above 1400 bytes. The far host's interface sends them, and the near host's interface
/// drops them without a word (a veth takes four bytes more than its MTU, for a VLAN tag).
#[test]
fn both_paths_are_confirmed_and_carry_full_packets() {
    let Some(net) = TwoCables::new("both_paths_are_confirmed_and_carry_full_packets") else {
        return;
    };
    net.near.ip("link set p1 mtu 1400");
    let mut near = WireEnd::open(&net.near, 1, Family::V4, UDP_PORT, |_| {});
    // With this limit, three probes are lost, one per second. More of them would only take longer.
    let mut far = WireEnd::open(&net.far, 2, Family::V4, UDP_PORT, |config| config.path_mtu = 1412);
    near.call(Family::V4, 2);
    run("both paths are searched", &mut [&mut near, &mut far], |ends| {
        ends.iter().all(|end| searched(end).is_some())
    });
    let (near, far) = (searched(&near).expect("done"), searched(&far).expect("done"));
    assert_eq!((near[0], far[0]), (1500, 1412));
    assert!((1388..=1400).contains(&near[1]), "{near:?}");
    assert!((1388..=1404).contains(&far[1]), "{far:?}");
}

/// RFC 8899 §4.3. Chunks that were sent keep their size, so their packets are fragmented: IPv4 packets by routers, IPv6 packets by the
/// sender.
fn shrink_both_paths(test: &str, family: Family, udp_port: u16) {
    const BYTES: u64 = 8_000_000;
    let Some(net) = TwoCables::new(test) else {
        return;
    };
    let mut near = WireEnd::open(&net.near, 1, family, udp_port, |_| {});
    let mut far = WireEnd::open(&net.far, 2, family, udp_port, |_| {});
    near.call(family, 2);
    run("both paths are searched", &mut [&mut near, &mut far], |ends| {
        searched(ends[0]).is_some_and(|sizes| sizes == [1500, 1500])
    });
    near.to_send = BYTES;
    let mut is_smaller = false;
    run("data over smaller paths", &mut [&mut near, &mut far], |ends| {
        if !is_smaller && ends[1].received > BYTES / 4 {
            net.swallow_large_packets();
            is_smaller = true;
        }
        ends[1].received == BYTES
    });
    assert!(is_smaller && TwoCables::dropped(&net.far, "hole") > 0);
    let association = near.association().expect("the association continues");
    let paths = association.destinations().iter().map(|path| path.mtu());
    let found: Vec<_> = paths.map(|mtu| (mtu.black_holes(), mtu.confirmed())).collect();
    let is_found = |(holes, size): &(u64, u32)| *holes > 0 && *size <= 1400;
    assert!(found.iter().any(is_found), "{found:?}");
}

#[test]
fn data_flows_again_after_both_paths_have_become_smaller() {
    let test = "data_flows_again_after_both_paths_have_become_smaller";
    shrink_both_paths(test, Family::V4, UDP_PORT);
    shrink_both_paths(test, Family::V6, UDP_PORT);
    shrink_both_paths(test, Family::V6, 0);
}

/// What followed when the first path was cut in the middle of a transfer.
#[derive(Debug)]
struct WireCut {
    /// Longest time without data, from the cut on.
    gap: Duration,
    /// The first path's retransmission timeout at the time of the cut.
    rto: Duration,
    /// The first path's timeouts and failures.
    timeouts: u64,
    failures: u64,
    /// Where new data went at the end.
    current: PathId,
}

/// Time by which a loaded machine may delay an end.
const MARGIN: Duration = Duration::from_secs(1);

/// Sends data, and cuts the first path in the middle.
fn cut(test: &str, change: fn(&mut SctpConfig)) -> Option<WireCut> {
    const BYTES: u64 = 40_000_000;
    let net = TwoCables::new(test)?;
    let mut near = WireEnd::open(&net.near, 1, Family::V4, UDP_PORT, change);
    let mut far = WireEnd::open(&net.far, 2, Family::V4, UDP_PORT, change);
    near.to_send = BYTES;
    near.call(Family::V4, 2);
    let (mut found, mut seen, mut last) = (None::<WireCut>, 0, Instant::now());
    run("a transfer over a cut", &mut [&mut near, &mut far], |ends| {
        let association = ends[0].association().expect("it continues");
        let (received, path) = (ends[1].received, &association.destinations()[0]);
        if received > seen {
            let now = Instant::now();
            if let Some(found) = &mut found {
                found.gap = found.gap.max(now - last);
            }
            (seen, last) = (received, now);
        }
        if found.is_none() && received > BYTES / 8 {
            found = Some(WireCut {
                gap: Duration::ZERO,
                rto: path.rto(),
                timeouts: 0,
                failures: 0,
                current: association.current(),
            });
            net.cut_first();
            last = Instant::now();
        }
        if let Some(found) = &mut found {
            let counts = path.counts();
            (found.timeouts, found.failures) = (counts.timeouts, counts.failures);
            found.current = association.current();
        }
        received == BYTES
    });
    Some(found.expect("the path was cut"))
}

#[test]
fn a_cut_path_costs_one_timeout_and_no_data() {
    // A second timeout would take twice as long as the first one, so it would exceed the margin.
    let change = |config: &mut SctpConfig| config.rto_min = Duration::from_secs(1);
    let Some(found) = cut("a_cut_path_costs_one_timeout_and_no_data", change) else {
        return;
    };
    assert_eq!(
        (found.timeouts, found.failures, found.current),
        (1, 1, PathId(1)),
        "{found:?}"
    );
    assert!(found.gap < found.rto.mul_f64(1.2) + MARGIN, "{found:?}");
}

#[test]
fn a_watched_path_is_left_long_before_a_timeout() {
    let change = |config: &mut SctpConfig| {
        config.watch = Some(HeartbeatWatch {
            interval: Duration::from_millis(10),
            missed: 3,
        });
        (config.rto_initial, config.rto_min) = (5 * MARGIN, 5 * MARGIN);
    };
    let Some(found) = cut("a_watched_path_is_left_long_before_a_timeout", change) else {
        return;
    };
    assert_eq!((found.timeouts, found.current), (0, PathId(1)), "{found:?}");
    assert!(found.failures > 0, "{found:?}");
    assert!(found.rto >= 5 * MARGIN && found.gap < MARGIN, "{found:?}");
}

/// The two buffers bound the memory of both ends while the application does not read (docs/sctp.md, invariant 7).
#[test]
fn an_end_that_does_not_read_holds_no_more_than_its_buffer() {
    const BYTES: u64 = 20_000_000;
    /// Sixteen replies of a packet each, 96 gaps and 24 duplicates.
    const BESIDE_BUFFER: usize = 16 * 1500 + 96 * 8 + 24 * 4;
    let Some(net) = TwoCables::new("an_end_that_does_not_read_holds_no_more_than_its_buffer") else {
        return;
    };
    let buffer = SctpConfig::wire(28).receive_buffer as usize;
    let mut near = WireEnd::open(&net.near, 1, Family::V4, UDP_PORT, |_| {});
    let mut far = WireEnd::open(&net.far, 2, Family::V4, UDP_PORT, |_| {});
    (near.to_send, far.reads) = (BYTES, false);
    near.call(Family::V4, 2);
    let (mut held, mut waiting) = (0, 0);
    run("full buffers", &mut [&mut near, &mut far], |ends| {
        held = ends[1].association().map_or(0, Association::held_bytes);
        waiting = ends[0].association().map_or(0, Association::unacknowledged);
        assert!(held <= buffer + BESIDE_BUFFER, "{held}");
        // Chunks that are cut for smaller packets have more headers than was expected when their message was taken.
        assert!(waiting <= buffer + buffer / 64, "{waiting}");
        // Headers of chunks count in the window, and no longer once the chunks are joined to a message.
        held > buffer / 16 * 15 && waiting > buffer / 16 * 15
    });
    far.reads = true;
    run("the whole transfer", &mut [&mut near, &mut far], |ends| {
        ends[1].received == BYTES
    });
}

#[test]
fn strangers_cost_no_state() {
    let Some(net) = TwoCables::new("strangers_cost_no_state") else {
        return;
    };
    let mut near = WireEnd::open(&net.near, 1, Family::V4, UDP_PORT, |_| {});
    let mut far = WireEnd::open(&net.far, 2, Family::V4, UDP_PORT, |_| {});
    near.call(Family::V4, 2);
    let is_established = |end: &WireEnd| {
        end.association()
            .is_some_and(|association| association.state() == AssociationState::Established)
    };
    run("the association", &mut [&mut near, &mut far], |ends| {
        ends.iter().all(|end| is_established(end))
    });
    let stranger = net
        .near
        .run(|| UdpSocket::bind("10.1.0.1:7777"))
        .expect("a socket");
    let packet = |tag, chunk| {
        let packet = SctpPacket {
            source_port: PORT,
            destination_port: PORT,
            tag,
            chunks: vec![chunk],
        };
        packet.emit()
    };
    let abort = |tag| {
        packet(
            tag,
            SctpChunk::Abort {
                is_reflected: false,
                causes: Vec::new(),
            },
        )
    };
    let to = (addresses(Family::V4, 2)[0], UDP_PORT);
    for tag in 1..200 {
        stranger.send_to(&abort(tag), to).expect("sent");
        stranger.send_to(&[0; 40], to).expect("sent");
    }
    run("all are counted", &mut [&mut near, &mut far], |ends| {
        ends[1].wire.counts().refused >= 199 && ends[1].wire.counts().malformed >= 199
    });
    assert!(is_established(&far) && far.wire.endpoint.len() == 1);
    let counts = far.association().expect("the association continues").counts();
    assert_eq!(counts.forged, 199);
    // Answers still go to the peer: the forged packets did not divert them.
    near.to_send = 100_000;
    run("data after the forgeries", &mut [&mut near, &mut far], |ends| {
        ends[1].received == 100_000
    });
}

/// A program on the near host that is not the association's peer. Its UDP port and its SCTP port differ from the peer's.
struct WireStranger(UdpSocket);

impl WireStranger {
    const PORT: u16 = 6000;

    fn new(net: &TwoCables) -> Self {
        let socket = net.near.run(|| UdpSocket::bind("10.1.0.1:7777"));
        let socket = socket.expect("a socket");
        socket
            .set_read_timeout(Some(Duration::from_millis(10)))
            .expect("a timeout");
        Self(socket)
    }

    fn send(&self, tag: u32, chunk: SctpChunk) {
        let packet = SctpPacket {
            source_port: Self::PORT,
            destination_port: PORT,
            tag,
            chunks: vec![chunk],
        };
        let to = (addresses(Family::V4, 2)[0], UDP_PORT);
        self.0.send_to(&packet.emit(), to).expect("sent");
    }

    fn call(&self, tag: u32) {
        let init = InitChunk {
            tag,
            window: 100_000,
            outbound_streams: 1,
            inbound_streams: 1,
            first_tsn: Tsn(1),
            parameters: Vec::new(),
        };
        self.send(0, SctpChunk::Init(Box::new(init)));
    }

    /// The next packet that has arrived.
    fn receive(&self) -> Option<SctpPacket> {
        let mut buffer = [0; 2000];
        let length = self.0.recv(&mut buffer).ok()?;
        SctpPacket::parse(&Bytes::copy_from_slice(&buffer[..length])).ok()
    }
}

#[test]
fn a_flood_of_calls_and_replayed_cookies_cost_no_state() {
    const FLOOD: u64 = 20_000;
    let Some(net) = TwoCables::new("a_flood_of_calls_and_replayed_cookies_cost_no_state") else {
        return;
    };
    let mut far = WireEnd::open(&net.far, 2, Family::V4, UDP_PORT, |_| {});
    let stranger = WireStranger::new(&net);
    for tag in 1..=FLOOD {
        stranger.call(tag as u32);
        if tag % 50 == 0 {
            far.turn();
        }
    }
    run("the calls are answered", &mut [&mut far], |ends| {
        let counts = ends[0].wire.endpoint.counts();
        counts.inits == FLOOD && ends[0].wire.counts().received == FLOOD
    });
    assert!(far.wire.endpoint.is_empty(), "an INIT leaves no state behind");
    // The stranger sends from its real address. So it receives the cookie in the INIT ACK, and can use the cookie once.
    let (mut tag, mut cookie) = (0, None);
    run("an INIT ACK", &mut [&mut far], |_| {
        stranger.call(77);
        if let Some(packet) = stranger.receive()
            && packet.tag == 77
            && let Some(SctpChunk::InitAck(init)) = packet.chunks.first()
        {
            tag = init.tag;
            cookie = init.parameters.iter().find_map(|parameter| match parameter {
                InitParameter::StateCookie(cookie) => Some(cookie.clone()),
                _ => None,
            });
        }
        cookie.is_some()
    });
    let cookie = cookie.expect("waited for");
    let mut forged = cookie.to_vec();
    forged[10] ^= 1;
    stranger.send(tag, SctpChunk::CookieEcho(forged.into()));
    stranger.send(tag ^ 1, SctpChunk::CookieEcho(cookie.clone()));
    run("forged cookies are counted", &mut [&mut far], |ends| {
        ends[0].wire.endpoint.counts().forged_cookies == 2
    });
    assert!(far.wire.endpoint.is_empty());
    stranger.send(tag, SctpChunk::CookieEcho(cookie.clone()));
    run("an association", &mut [&mut far], |ends| {
        ends[0].wire.endpoint.len() == 1
    });
    let causes = Vec::new();
    let is_reflected = false;
    stranger.send(tag, SctpChunk::Abort { is_reflected, causes });
    run("its end", &mut [&mut far], |ends| {
        ends[0].wire.endpoint.is_empty()
    });
    for _ in 0..100 {
        stranger.send(tag, SctpChunk::CookieEcho(cookie.clone()));
    }
    run("replayed cookies are counted", &mut [&mut far], |ends| {
        ends[0].wire.endpoint.counts().replayed_cookies == 100
    });
    assert!(far.wire.endpoint.is_empty(), "a replay makes no association");
}
