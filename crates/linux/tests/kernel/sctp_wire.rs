//! SCTP between two of our endpoints on real sockets: over UDP and raw IP, over IPv4 and IPv6, with a path that is cut, and with packets
//! from a program that is not the association's peer.

use std::net::UdpSocket;
use std::time::Duration;

use bytes::Bytes;
use proto::sctp::association::CloseReason;
use proto::sctp::chunk::{InitChunk, SctpChunk};
use proto::sctp::packet::SctpPacket;
use proto::sctp::{AssociationState, InitParameter, PathId, Tsn};

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

#[test]
fn both_paths_are_confirmed_and_carry_full_packets() {
    let Some(net) = TwoCables::new("both_paths_are_confirmed_and_carry_full_packets") else {
        return;
    };
    net.near.ip("link set p1 mtu 1400");
    let mut near = WireEnd::open(&net.near, 1, Family::V4, UDP_PORT, |_| {});
    let mut far = WireEnd::open(&net.far, 2, Family::V4, UDP_PORT, |_| {});
    near.call(Family::V4, 2);
    run("both paths are searched", &mut [&mut near, &mut far], |ends| {
        ends[0].association().is_some_and(|association| {
            let mut paths = association.destinations().iter();
            paths.len() == 2 && paths.all(|path| path.is_confirmed() && !path.mtu().is_searching())
        })
    });
    let sizes: Vec<u32> = near
        .association()
        .into_iter()
        .flat_map(|association| association.destinations())
        .map(|path| path.mtu().confirmed())
        .collect();
    assert_eq!(sizes[0], 1500);
    assert!((1388..=1400).contains(&sizes[1]), "{sizes:?}");
}

#[test]
fn a_cut_path_costs_a_timeout_and_no_data() {
    let Some(net) = TwoCables::new("a_cut_path_costs_a_timeout_and_no_data") else {
        return;
    };
    let mut near = WireEnd::open(&net.near, 1, Family::V4, UDP_PORT, |_| {});
    let mut far = WireEnd::open(&net.far, 2, Family::V4, UDP_PORT, |_| {});
    near.to_send = 40_000_000;
    far.wanted = near.to_send;
    near.call(Family::V4, 2);
    let mut is_cut = false;
    run("a transfer over a cut", &mut [&mut near, &mut far], |ends| {
        if !is_cut && ends[1].received > 5_000_000 {
            net.cut_first();
            is_cut = true;
        }
        ends.iter().all(|end| end.end().is_some())
    });
    assert_eq!(far.received, 40_000_000);
    assert_eq!(near.end(), Some(&CloseReason::ShutDown));
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

#[test]
fn a_watched_path_is_left_within_fifty_milliseconds() {
    let Some(net) = TwoCables::new("a_watched_path_is_left_within_fifty_milliseconds") else {
        return;
    };
    let watch = |config: &mut proto::sctp::SctpConfig| {
        config.watch = Some(proto::sctp::HeartbeatWatch {
            interval: Duration::from_millis(10),
            missed: 3,
        });
    };
    let mut near = WireEnd::open(&net.near, 1, Family::V4, UDP_PORT, watch);
    let mut far = WireEnd::open(&net.far, 2, Family::V4, UDP_PORT, watch);
    near.call(Family::V4, 2);
    run("both paths", &mut [&mut near, &mut far], |ends| {
        ends[0].association().is_some_and(|association| {
            association.destinations().len() == 2
                && association.destinations().iter().all(|path| path.rtt().is_some())
        })
    });
    net.cut_first();
    near.to_send = 1_000_000;
    run("data over the other path", &mut [&mut near, &mut far], |ends| {
        ends[1].received == 1_000_000
    });
    let association = near.association().expect("the association continues");
    assert_eq!(association.current(), PathId(1));
    eprintln!("longest gap {:?}", far.longest_gap);
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
