//! Takeovers of connections with every combination of TCP options, and the treatment of options that are not carried over.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use proto::action::Gate;
use proto::connection::{Connection, Endpoint, Opening};
use proto::follower::{Follower, RestartPolicy};
use proto::packet::{Checksum, Flags, Segment, TcpOptions, Timestamps};
use proto::restart::http::Rules;
use proto::{Instant, Seq};
use socket2::{Domain, Protocol, Socket, Type};
use steadfast_linux::repair::{Pool, RestoredSocket};

use crate::support::frame::{FrameTap, fix_ipv4_header, with_tcp_options};
use crate::support::lan::{Family, Lan, LanHost, accept, is_root, patient};
use crate::support::log::LogThread;
use crate::support::socket::{set_tcp, tcp_info};
use crate::support::takeover::take_over;
use crate::support::talk::Talk;
use crate::support::testbed::{Offer, WireTestbed, say};
use crate::support::tun::Tun;
use crate::support::wire_on::{WireOn, options};
use crate::support::{PATIENCE, Random, eventually};

/// TCP_INFO's flags (`linux/tcp.h`).
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const SCALING: u8 = 4;
const ECN: u8 = 8;
const ECN_SEEN: u8 = 16;

/// Segment sizes in bytes, from the minimum that every host takes (RFC 9293 §3.7.1) to the size of jumbo frames.
const SEGMENT_SIZES: [u16; 4] = [536, 1220, 1460, 8960];
/// Bytes of the timestamps option in each segment (RFC 7323 appendix A).
const TIMESTAMPS_LEN: u32 = 12;

/// Sets the options that the client's kernel offers from now on.
fn offer(client: &crate::support::lan::LanHost, offered: u8) {
    for (name, option) in [
        ("timestamps", TIMESTAMPS),
        ("sack", SACK),
        ("window_scaling", SCALING),
        ("ecn", ECN),
    ] {
        let value = if offered & option == 0 { "0" } else { "1" };
        client.sysctl(&format!("ipv4/tcp_{name}"), value);
    }
}

/// A connection whose client takes segments of at most `mss` bytes.
fn connect(lan: &Lan, family: Family, mss: u16) -> TcpStream {
    let vip = family.vip();
    let client = lan.client.run(|| {
        let socket =
            Socket::new(Domain::for_address(vip), Type::STREAM, Some(Protocol::TCP)).expect("socket");
        set_tcp(&socket, libc::TCP_MAXSEG, mss.into());
        socket.connect_timeout(&vip.into(), PATIENCE).expect("connect");
        TcpStream::from(socket)
    });
    patient(&client);
    client
}

/// A connection of full-sized segments with its agreed options.
struct OptionsCase {
    offered: u8,
    mss: u16,
    client: TcpStream,
    server: TcpStream,
    talk: Talk,
}

/// Writes as much as the kernel takes at once, so that both queues are full and bytes are in flight.
fn write_what_fits(mut to: &TcpStream, bytes: &[u8]) -> usize {
    to.set_nonblocking(true).expect("non-blocking");
    let written = to.write(bytes).expect("write");
    to.set_nonblocking(false).expect("blocking");
    written
}

fn allow_jumbo_frames(lan: &Lan) {
    lan.client
        .ip("link set port2 mtu 9000\n link set port3 mtu 9000\n link set lan mtu 9000");
    lan.backup.ip("link set eth0 mtu 9000");
    lan.primary.ip("link set eth0 mtu 9000");
    lan.primary.ip("link set lo mtu 65535");
}

/// After one power-off, all connections continue: all combinations of timestamps, SACK, window scales and ECN, with each segment size.
#[test]
fn every_combination_goes_on() {
    for family in Family::BOTH {
        let Some(lan) = Lan::new("every_combination_goes_on") else {
            return;
        };
        allow_jumbo_frames(&lan);
        let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
        let reading = LogThread::of(&wire);
        let listener = lan.primary.listen(family.vip());
        let mut cases = Vec::new();
        for offered in 0..16 {
            offer(&lan.client, offered);
            for mss in SEGMENT_SIZES {
                let client = connect(&lan, family, mss);
                let server = accept(&listener);
                let mut talk = Talk::new();
                talk.exchange(&client, &server, 1000);
                cases.push(OptionsCase {
                    offered,
                    mss,
                    client,
                    server,
                    talk,
                });
            }
        }
        for OptionsCase {
            client, server, talk, ..
        } in &mut cases
        {
            talk.client_wrote += write_what_fits(client, &talk.input[talk.client_wrote..]);
            write_what_fits(server, &talk.output[talk.client_read..]);
        }
        lan.power_off_primary();
        for case in &cases {
            let OptionsCase { offered, mss, .. } = *case;
            eprintln!("{family:?} {offered:04b} {mss}");
            let address = case.client.local_addr().expect("connected");
            let taken = take_over(&lan.backup, &wire, &reading, address, family);
            let (old, new) = (tcp_info(&case.server), tcp_info(&taken.socket));
            assert_eq!(old.tcpi_options & !ECN_SEEN, offered);
            // Without window scaling, the restored socket scales by 0.
            assert_eq!(new.tcpi_options & !ECN_SEEN, offered & !ECN | SCALING);
            assert_eq!(new.tcpi_snd_rcv_wscale, old.tcpi_snd_rcv_wscale);
            let headers = if family == Family::V4 { 40 } else { 60 };
            let whole = u32::from(mss.min(9000 - headers));
            let has_timestamps = offered & TIMESTAMPS != 0;
            let expected = if has_timestamps {
                whole - TIMESTAMPS_LEN
            } else {
                whole
            };
            assert_eq!(old.tcpi_snd_mss, expected);
            // The kernel reserves room for timestamps at connect(), and TCP_REPAIR_OPTIONS cannot undo that.
            assert_eq!(new.tcpi_snd_mss, whole - TIMESTAMPS_LEN);
            case.talk.carry_to_the_end(&case.client, &taken);
        }
    }
}

/// Both ECN bits of the IP header, and ECE and CWR of the TCP header (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Congestion {
    ip: u8,
    echo: bool,
    reduced: bool,
}

impl Congestion {
    const NONE: Self = Self {
        ip: 0,
        echo: false,
        reduced: false,
    };

    fn of(packet: &[u8]) -> Self {
        let (ip, tcp) = if packet[0] >> 4 == 4 {
            (packet[1] & 3, 20)
        } else {
            (packet[1] >> 4 & 3, 40)
        };
        let flags = packet[tcp + 13];
        Self {
            ip,
            echo: flags & 0x40 != 0,
            reduced: flags & 0x80 != 0,
        }
    }

    /// Marks a packet as a congested router does instead of dropping it.
    fn experienced(packet: &mut [u8]) {
        if packet[0] >> 4 == 4 {
            packet[1] |= 3;
            fix_ipv4_header(packet);
        } else {
            packet[1] |= 3 << 4;
        }
    }
}

/// Sends the client's next kilobyte with a congestion mark. Later the client sends the same kilobyte itself.
fn put_marked(testbed: &WireTestbed, talk: &Talk) {
    let endpoint = testbed.reading.now().connection(testbed.address()).1.endpoint();
    let at = usize::try_from(endpoint.input_frontier.0).expect("short");
    put_marked_at(testbed, talk, at, &endpoint);
}

fn put_marked_at(testbed: &WireTestbed, talk: &Talk, at: usize, endpoint: &proto::connection::Endpoint) {
    let segment = Segment {
        source: endpoint.client,
        destination: endpoint.vip,
        seq: endpoint.receive_next,
        ack: endpoint.send_unacknowledged,
        flags: Flags::ACK,
        window: 1000,
        options: TcpOptions {
            timestamps: endpoint.timestamps.map(|clock| Timestamps {
                value: clock.echo,
                echo: clock.value,
            }),
            ..TcpOptions::default()
        },
        payload: &talk.input[at..][..1000],
    };
    let mut packet = segment.emit();
    Congestion::experienced(&mut packet);
    let (backup, client) = (testbed.lan.backup.mac(), testbed.lan.client.mac());
    testbed.tap.put(backup, client, &packet);
}

/// The congestion bits of the server's packets since the last call, in order.
fn said_of_congestion(tap: &mut FrameTap, family: Family) -> Vec<Congestion> {
    let packets = std::iter::from_fn(|| tap.take());
    let from_vip = packets.filter(|packet| {
        Segment::parse(packet, proto::packet::Checksum::Trusted)
            .is_ok_and(|segment| segment.source == family.vip())
    });
    from_vip.map(|packet| Congestion::of(&packet)).collect()
}

/// ECN ends with the takeover. The restored socket neither marks its packets as ECN-capable nor echoes marks, and tolerates a client that
/// still does so. The client either got the old primary's echo before the takeover or never gets it.
#[test]
fn ecn_ends_without_harm() {
    for (family, heard) in [
        (Family::V4, true),
        (Family::V4, false),
        (Family::V6, true),
        (Family::V6, false),
    ] {
        let Some(mut testbed) = WireTestbed::new("ecn_ends_without_harm", family, Offer::ALL) else {
            return;
        };
        offer(&testbed.lan.client, TIMESTAMPS | SACK | SCALING | ECN);
        (testbed.client, testbed.server) = testbed.lan.client.connect_pair(&testbed.listener);
        let mut talk = Talk::new();
        talk.exchange(&testbed.client, &testbed.server, 5000);
        testbed.settle();
        for socket in [&testbed.client, &testbed.server] {
            assert_eq!(tcp_info(socket).tcpi_options & ECN, ECN);
        }
        put_marked(&testbed, &talk);
        eventually("the mark is echoed", || {
            let said = said_of_congestion(&mut testbed.tap, family);
            said.iter().any(|said| said.echo).then_some(())
        });
        if heard {
            talk.client_writes(&testbed.client, 1000);
            eventually("the client goes slower", || {
                (tcp_info(&testbed.client).tcpi_snd_ssthresh < 1000).then_some(())
            });
        }
        testbed.settle();
        testbed.power_off();
        said_of_congestion(&mut testbed.tap, family);
        let taken = testbed.take_over_in(&[&["tcpi_options"]]);
        assert_eq!(tcp_info(&taken.socket).tcpi_options & ECN, 0);
        let at = usize::try_from(taken.endpoint.input_frontier.0).expect("short");
        put_marked_at(&testbed, &talk, at, &taken.endpoint);
        eventually("the marked bytes are here", || {
            (tcp_info(&taken.socket).tcpi_bytes_received >= 1000).then_some(())
        });
        talk.carry_to_the_end(&testbed.client, &taken);
        let said = said_of_congestion(&mut testbed.tap, family);
        assert!(said.len() > 10, "{said:?}");
        assert!(said.iter().all(|said| *said == Congestion::NONE), "{said:?}");
    }
}

/// A connection with Fast Open (RFC 7413): the client's first bytes are in its SYN.
fn connect_fast(lan: &Lan, family: Family, first: &[u8]) -> TcpStream {
    const FASTOPEN_CONNECT: i32 = 30;
    let vip = family.vip();
    let client = lan.client.run(|| {
        let socket =
            Socket::new(Domain::for_address(vip), Type::STREAM, Some(Protocol::TCP)).expect("socket");
        set_tcp(&socket, FASTOPEN_CONNECT, 1);
        socket.connect(&vip.into()).expect("connect");
        TcpStream::from(socket)
    });
    patient(&client);
    assert_eq!((&client).write(first).expect("write"), first.len());
    client
}

/// Values of `tcp_fastopen`: the client sends data in a SYN without a cookie; the server takes such data, for all its listeners.
const CLIENT_SENDS: &str = "5";
const SERVER_TAKES: &str = "1538";

/// If a server does not take data in a SYN, the client sends the data again, and the connection is like any other.
#[test]
fn data_in_a_syn_that_is_refused_is_said_again() {
    for family in Family::BOTH {
        let test = "data_in_a_syn_that_is_refused_is_said_again";
        let Some(testbed) = WireTestbed::new(test, family, Offer::ALL) else {
            return;
        };
        testbed.lan.client.sysctl("ipv4/tcp_fastopen", CLIENT_SENDS);
        let mut talk = Talk::new();
        let client = connect_fast(&testbed.lan, family, &talk.input[..1000]);
        let server = accept(&testbed.listener);
        (&server).read_exact(&mut [0; 1000]).expect("read");
        assert_eq!(tcp_info(&client).tcpi_options & SYN_DATA, 0);
        talk.client_wrote = 1000;
        talk.exchange(&client, &server, 1000);
        talk.client_read = 1000;
        testbed.power_off_only();
        let (lan, address) = (&testbed.lan, client.local_addr().expect("connected"));
        let taken = take_over(&lan.backup, &testbed.wire, &testbed.reading, address, family);
        talk.carry_to_the_end(&client, &taken);
    }
}

/// TCPI_OPT_SYN_DATA: data in the SYN was acknowledged.
const SYN_DATA: u8 = 32;

/// Data in a SYN that the server takes is not logged. The connection works but is not shown as protected.
#[test]
fn data_in_a_syn_that_is_taken_is_not_protected() {
    for family in Family::BOTH {
        let test = "data_in_a_syn_that_is_taken_is_not_protected";
        let Some(testbed) = WireTestbed::new(test, family, Offer::ALL) else {
            return;
        };
        testbed.lan.client.sysctl("ipv4/tcp_fastopen", CLIENT_SENDS);
        testbed.lan.primary.sysctl("ipv4/tcp_fastopen", SERVER_TAKES);
        let listener = &testbed.listener;
        set_tcp(listener, libc::TCP_FASTOPEN, 16);
        let talk = Talk::new();
        let client = connect_fast(&testbed.lan, family, &talk.input[..1000]);
        let server = accept(listener);
        let mut first = [0; 1000];
        (&server).read_exact(&mut first).expect("read");
        assert_eq!(first[..], talk.input[..1000]);
        say(&client, &server, &talk.input[1000..]);
        say(&server, &client, &talk.output);
        assert_eq!(tcp_info(&client).tcpi_options & SYN_DATA, SYN_DATA);
        let address = client.local_addr().expect("connected");
        let mut log = testbed.reading.now();
        assert_eq!(log.open_connections(), 1, "the testbed's own");
        assert!(log.unknown.contains(&address));
        assert_eq!(log.open_pending(family), 0);
    }
}

const ODD_SERVER: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 9, 0, 1), 80);
const ODD_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// A client made by hand, which sends options that no real stack sends, and the kernel that reads them.
struct OddClient {
    tun: Tun,
    listener: TcpListener,
    port: u16,
}

/// The options that both ends of a connection have agreed on.
#[derive(Debug, PartialEq, Eq)]
struct ConnectionOptions {
    sack: bool,
    /// The client's and the server's window scale.
    scales: Option<(u8, u8)>,
    /// Size of the largest segment to the client, in bytes, including timestamps.
    segment: u32,
    /// The client's timestamp as the server echoes it, if timestamps are in use.
    echo: Option<u32>,
}

impl ConnectionOptions {
    /// The options of the kernel's socket, which has answered with `echo`.
    fn of_kernel(socket: &TcpStream, echo: Option<u32>) -> Self {
        let info = tcp_info(socket);
        let has = |option| info.tcpi_options & option != 0;
        let (theirs, ours) = (info.tcpi_snd_rcv_wscale & 15, info.tcpi_snd_rcv_wscale >> 4);
        let timestamps = if has(TIMESTAMPS) { TIMESTAMPS_LEN } else { 0 };
        Self {
            sack: has(SACK),
            scales: has(SCALING).then_some((theirs, ours)),
            segment: info.tcpi_snd_mss + timestamps,
            echo,
        }
    }

    fn of_core(endpoint: &Endpoint) -> Self {
        /// `net.ipv4.tcp_min_snd_mss`
        const SEGMENT_MIN: u32 = 48;
        Self {
            sack: endpoint.sack,
            scales: endpoint.window_scale,
            segment: u32::from(endpoint.mss).max(SEGMENT_MIN),
            echo: endpoint.timestamps.map(|timestamps| timestamps.echo),
        }
    }
}

impl OddClient {
    fn new(test: &str) -> Option<Self> {
        if !is_root(test) {
            return None;
        }
        let host = LanHost::new(1);
        let tun = match Tun::on(&host, "tun0") {
            Ok(tun) => tun,
            Err(error) => {
                eprintln!("skipped: {test}: /dev/net/tun: {error}");
                return None;
            }
        };
        host.sysctl("ipv6/conf/all/disable_ipv6", "1");
        host.ip("link set lo up\n addr add 10.9.0.1/24 dev tun0\n link set tun0 up");
        let listener = host.listen(ODD_SERVER.into());
        let port = 1024;
        Some(Self { tun, listener, port })
    }

    /// The kernel's answer to `packet`: the next packet to the current port with `flags`. Other packets are skipped: a
    /// busy kernel may still send the RST of the previous connection, or repeat a SYN-ACK that was acknowledged late.
    #[track_caller]
    fn ask(&self, packet: &[u8], flags: Flags) -> Vec<u8> {
        self.tun.put(packet);
        let is_answer = |packet: &Vec<u8>| {
            let answer = Segment::parse(packet, Checksum::Unverified).expect("a segment");
            answer.destination.port() == self.port && answer.flags == flags
        };
        eventually("an answer", || self.tun.take().filter(is_answer))
    }

    /// Opens a connection with options `in_syn` and sends a byte with options `in_data`. Returns the options that the kernel has read, and
    /// those that the core (the crate `proto`) has read.
    #[track_caller]
    fn agree(&mut self, in_syn: &[u8], in_data: &[u8]) -> [ConnectionOptions; 2] {
        let read = |packet| Segment::parse(packet, Checksum::Unverified).expect("a segment");
        let opening = |packet| Opening::of(&read(packet), Instant::ZERO);
        self.port += 1;
        let client = SocketAddr::from((ODD_CLIENT, self.port));
        let mut segment = Segment {
            source: client,
            destination: ODD_SERVER.into(),
            seq: Seq(999),
            ack: Seq(0),
            flags: Flags::SYN,
            window: u16::MAX,
            options: TcpOptions::default(),
            payload: &[],
        };
        let syn = with_tcp_options(&segment.emit(), in_syn);
        let syn_ack = self.ask(&syn, Flags::SYN_ACK);
        (segment.seq, segment.ack, segment.flags) = (Seq(1000), read(&syn_ack).seq + 1, Flags::ACK);
        self.tun.put(&segment.emit());
        let server = accept(&self.listener);
        set_tcp(&server, libc::TCP_QUICKACK, 1);
        let follower = Follower::new(RestartPolicy::Replica, Rules::default(), None, 1 << 20);
        let (syn, syn_ack) = (opening(&syn), opening(&syn_ack));
        let mut core = Connection::new(client, ODD_SERVER.into(), &syn, &syn_ack, follower, 1 << 20);
        core.on_client(&segment, None);
        segment.payload = b"x";
        let data = with_tcp_options(&segment.emit(), in_data);
        core.on_client(&read(&data), None);
        let answer = self.ask(&data, Flags::ACK);
        let echo = read(&answer).options.timestamps.map(|timestamps| timestamps.echo);
        let agreed = [
            ConnectionOptions::of_kernel(&server, echo),
            ConnectionOptions::of_core(&core.endpoint()),
        ];
        drop(server);
        while self.tun.take().is_some() {}
        agreed
    }
}

/// The timestamps option: kind, length, value, echo.
fn clock(value: u32) -> Vec<u8> {
    [&[8, 10][..], &value.to_be_bytes(), &[0; 4]].concat()
}

/// Known and unknown options; one in six has a wrong length.
fn odd_options(random: &mut Random, value: u32) -> Vec<u8> {
    let mut options = Vec::new();
    while options.len() < 40 && random.below(10) > 0 {
        let kind = random.one_of(&[1, 2, 2, 3, 3, 4, 4, 5, 8, 8, 30, 172, 174, 253, 254]);
        let kind = if random.below(30) == 0 { 0 } else { kind };
        options.push(kind);
        let body = match kind {
            0 | 1 => continue,
            2 => random
                .one_of(&[0_u16, 1, 48, 88, 536, 1400, 1460, u16::MAX])
                .to_be_bytes()
                .to_vec(),
            3 => vec![random.one_of(&[0, 1, 7, 14, 15, 255])],
            4 => vec![],
            5 => vec![7; 8],
            8 => clock(value)[2..].to_vec(),
            _ => vec![3; usize::try_from(random.below(7)).expect("few")],
        };
        let len = match random.below(6) {
            0 => random.below(14),
            _ => body.len() as u64 + 2,
        };
        options.push(u8::try_from(len).expect("few"));
        options.extend(body);
    }
    options.truncate(40);
    options
}

/// Whether Linux 6.7 and newer drop a segment with these options unread. They do so if an option has an impossible length, and an
/// authentication option would fit between the first byte of that option and the end of the list (`tcp_do_parse_auth_options`).
fn is_dropped_unread(options: &[u8]) -> bool {
    const AUTHENTICATION_MIN: usize = 5;
    let mut list = options.to_vec();
    list.resize(list.len().next_multiple_of(4), 0);
    let mut left = &list[..];
    while left.len() >= AUTHENTICATION_MIN {
        let len = usize::from(left[1]);
        left = match left[0] {
            0 => return false,
            1 => &left[1..],
            _ if (2..=left.len()).contains(&len) => &left[len..],
            _ => return true,
        };
    }
    false
}

/// Kernel and core read the same options, also behind unknown ones (RFC 9293 MUST-6 and MUST-7).
#[test]
fn the_kernel_and_the_core_read_the_same_options() {
    let Some(mut client) = OddClient::new("the_kernel_and_the_core_read_the_same_options") else {
        return;
    };
    let known = [&[2, 4, 4, 0, 4, 2][..], &clock(1), &[3, 3, 7]].concat();
    let all = ConnectionOptions {
        sack: true,
        scales: Some((7, 7)),
        segment: 1024,
        echo: Some(2),
    };
    // An experimental option (RFC 6994), both orders of accurate ECN, Multipath TCP.
    for first in [&[254, 4, 0, 0][..], &[172, 5, 0, 0, 1], &[174, 2], &[30, 4, 1, 0]] {
        let in_syn = [first, &known].concat();
        let [kernel, core] = client.agree(&in_syn, &[first, &clock(2)].concat());
        let expected = ConnectionOptions {
            scales: Some((7, kernel.scales.expect("agreed").1)),
            ..all
        };
        assert_eq!((&kernel, &core), (&expected, &expected), "{in_syn:?}");
    }
    let mut random = Random(1);
    for _ in 0..500 {
        let mut readable = |value| {
            let mut drawn = std::iter::repeat_with(|| odd_options(&mut random, value));
            drawn
                .find(|options| !is_dropped_unread(options))
                .expect("most are")
        };
        let (in_syn, in_data) = (readable(1), readable(2));
        let [kernel, core] = client.agree(&in_syn, &in_data);
        assert_eq!(core, kernel, "{in_syn:?}, then {in_data:?}");
    }
}

/// The kernel refuses to restore a socket with segments of less than 88 bytes (`TCP_MIN_MSS`), but a client may ask for such segments.
#[test]
fn a_client_of_tiny_segments_goes_on() {
    if !is_root("a_client_of_tiny_segments_goes_on") {
        return;
    }
    let host = LanHost::new(1);
    host.ip("link set lo up\n addr add 10.9.0.1/24 dev lo");
    for mss in [1, 48, 87, 88] {
        // The previous socket may still wait for the acknowledgement of its FIN, so each socket has a client port of its own.
        let (client, vip) = (SocketAddr::from((ODD_CLIENT, 1024 + mss)), ODD_SERVER.into());
        let options = TcpOptions {
            mss: Some(mss),
            ..TcpOptions::default()
        };
        let opening = Opening {
            seq: Seq(1000),
            window: 1000,
            options,
            at: Instant::ZERO,
        };
        let follower = Follower::new(RestartPolicy::Replica, Rules::default(), None, 1 << 20);
        let core = Connection::new(client, vip, &opening, &opening, follower, 1 << 20);
        let mut pool = Pool::new(vip);
        host.run(|| pool.fill(1, 1)).expect("a socket");
        let restored = RestoredSocket::new(&mut pool, &core.endpoint(), std::iter::empty());
        let socket = restored.and_then(|restored| restored.activate(true));
        let segment = tcp_info(&socket.expect("restored")).tcpi_snd_mss;
        assert_eq!(segment, 88 - TIMESTAMPS_LEN, "{mss}");
    }
}
