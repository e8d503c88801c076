//! Compares the core (the crate `proto`) with the kernel: both must accept the same segments (DESIGN.md §3).
//!
//! The test plays a client, which talks to a real socket. The client sends one segment at a time, and core and kernel both judge the
//! segment. The core also gets the socket's answers, as the wire would log them. After each segment, the visible state of the socket must
//! be the one that the core believes. The client's segments are drawn from a seed. A disagreement is reported with the shortest talk that
//! shows it.

use std::cell::Cell;
use std::fmt::Debug;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use proto::connection::{Connection, Effect, Opening, Protection};
use proto::follower::{Follower, RestartPolicy};
use proto::packet::{Checksum, Flags, Segment, TcpOptions, Timestamps};
use proto::restart::http::Rules;
use proto::{Instant, Seq};
use socket2::SockRef;

use crate::support::lan::{LanHost, is_root};
use crate::support::socket::{TcpState, abort_on_close, set_tcp, tcp_state, use_cubic};
use crate::support::tun::Tun;

/// Number of talks that are compared. The environment variable SEEDS=N sets another number; SEED=N compares the talk of seed N only.
const SEEDS: u64 = 3000;
const SERVER: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 9, 0, 1), 80);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const LOG_LIMIT: u64 = 16 << 20;
/// Number of attempts per talk. A timer of the kernel may fire during a step. The core hears of it only after the step, so the two disagree
/// for a moment. Such a disagreement is no fault, and does not recur at each attempt. A real fault recurs.
const ATTEMPTS: usize = 3;

/// A reference point for a sequence number, in the client's stream.
#[derive(Clone, Copy, Debug)]
enum SeqBase {
    /// The next byte that the server expects.
    Next,
    /// The end of what the server has acknowledged.
    Acknowledged,
    /// The end of the window that the server offered.
    RightEdge,
    /// The end of all that the client ever sent.
    Highest,
    /// The stream's end, if the client has sent a FIN.
    Fin,
}

/// A reference point for an acknowledgement number, in the server's stream.
#[derive(Clone, Copy, Debug)]
enum AckBase {
    /// The oldest byte that the server knows to be unacknowledged.
    Unacknowledged,
    /// The end of all that the server has sent.
    Sent,
    /// The oldest acceptable acknowledgement: `Unacknowledged` minus the client's largest window.
    Oldest,
}

/// A timestamp of the client, as a distance.
#[derive(Clone, Copy, Debug)]
enum ClientTimestamp {
    /// No timestamps.
    Missing,
    /// Distance from the latest timestamp that was sent.
    FromLatest(i32),
    /// Distance from the latest timestamp that the server echoed.
    FromEcho(i32),
}

#[derive(Clone, Copy, Debug)]
enum ClientSegmentKind {
    Ack,
    Fin,
    Rst,
    RstAck,
    Syn,
    NoAck,
}

/// A client's segment, relative to the connection's present state.
#[derive(Clone, Debug)]
struct ClientSegment {
    kind: ClientSegmentKind,
    seq: (SeqBase, i64),
    len: usize,
    ack: (AckBase, i64),
    clock: ClientTimestamp,
    window: u16,
    /// The client ignores the offered window and may continue after its own FIN.
    defiant: bool,
    /// If the segment repeats bytes that the server has acknowledged, these bytes are changed.
    garbled: bool,
}

#[derive(Clone, Debug)]
enum TalkStep {
    Client(ClientSegment),
    ServerWrites(usize),
    ServerReads(usize),
    ServerCloses,
}

/// A talk: the steps of one connection, and the options of both sides.
#[derive(Clone, Debug)]
struct AcceptanceTalk {
    window_scale: Option<u8>,
    sack: bool,
    clock: Option<u32>,
    window: u16,
    client_first: u32,
    /// Size in bytes. The kernel doubles it. Even twice the size fits into a window without scaling, so the kernel can announce all of its
    /// room.
    receive_buffer: usize,
    quick_ack: bool,
    steps: Vec<TalkStep>,
}

/// A distance from a reference point: zero in at least `exact` of `exact` + 10 cases.
fn distance(exact: u32) -> impl Strategy<Value = i64> {
    prop_oneof![
        exact => Just(0_i64),
        4 => -2_i64..3,
        4 => -1500_i64..1500,
        2 => -80_000_i64..80_000,
    ]
}

fn said() -> impl Strategy<Value = ClientSegment> {
    let kind = prop_oneof![
        40 => Just(ClientSegmentKind::Ack),
        3 => Just(ClientSegmentKind::Fin),
        2 => Just(ClientSegmentKind::Rst),
        1 => Just(ClientSegmentKind::RstAck),
        1 => Just(ClientSegmentKind::Syn),
        1 => Just(ClientSegmentKind::NoAck),
    ];
    let place = prop_oneof![
        8 => Just(SeqBase::Next),
        2 => Just(SeqBase::Acknowledged),
        1 => Just(SeqBase::RightEdge),
        3 => Just(SeqBase::Highest),
        1 => Just(SeqBase::Fin),
    ];
    let len = prop_oneof![3 => Just(0_usize), 2 => 1_usize..20, 5 => 300_usize..1400];
    let ack = prop_oneof![
        10 => Just(AckBase::Unacknowledged),
        8 => Just(AckBase::Sent),
        1 => Just(AckBase::Oldest),
    ];
    let clock = prop_oneof![
        8 => (0_i32..2).prop_map(ClientTimestamp::FromLatest),
        3 => (-3_i32..1).prop_map(ClientTimestamp::FromLatest),
        3 => (-3_i32..4).prop_map(ClientTimestamp::FromEcho),
        1 => select(vec![-1000, 100_000, i32::MIN, i32::MAX]).prop_map(ClientTimestamp::FromLatest),
        1 => Just(ClientTimestamp::Missing),
    ];
    let window = select(vec![0, 1, 500, 500, 501, 4000, 4000, 65_535]);
    let defiant = prop_oneof![40 => Just(false), 1 => Just(true)];
    let garbled = prop_oneof![3 => Just(false), 1 => Just(true)];
    (
        kind,
        (place, distance(20)),
        len,
        (ack, distance(80)),
        clock,
        window,
        defiant,
        garbled,
    )
        .prop_map(
            |(kind, seq, len, ack, clock, window, defiant, garbled)| ClientSegment {
                kind,
                seq,
                len,
                ack,
                clock,
                window,
                defiant,
                garbled,
            },
        )
}

fn talk() -> impl Strategy<Value = AcceptanceTalk> {
    let step = prop_oneof![
        20 => said().prop_map(TalkStep::Client),
        4 => (1_usize..5000).prop_map(TalkStep::ServerWrites),
        2 => (1_usize..8000).prop_map(TalkStep::ServerReads),
        1 => Just(TalkStep::ServerCloses),
    ];
    (
        select(vec![None, Some(0), Some(3), Some(7)]),
        any::<bool>(),
        select(vec![None, Some(0), Some(1), Some(1000), Some(u32::MAX - 1)]),
        select(vec![0, 500, 4000, 65_535]),
        select(vec![1, 1000, u32::MAX - 500]),
        select(vec![4 << 10, 16 << 10, 30 << 10]),
        any::<bool>(),
        prop::collection::vec(step, 1..40),
    )
        .prop_map(
            |(window_scale, sack, clock, window, client_first, receive_buffer, quick_ack, steps)| {
                AcceptanceTalk {
                    window_scale,
                    sack,
                    clock,
                    window,
                    client_first,
                    receive_buffer,
                    quick_ack,
                    steps,
                }
            },
        )
}

/// Reasons why the kernel's reaction to a segment cannot be predicted from outside the kernel.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    /// The segment may take the kernel's fast path (header prediction). There the kernel ignores how old an acknowledgement is, and lets
    /// SND.WL1 go back. Whether the kernel takes the fast path depends on its memory.
    predicted: bool,
    /// The segment ends beyond the window. Newer kernels take such a segment only if the application has read everything. Also, if
    /// the SYN-ACK announced the largest possible window, the kernel may have more room than it could announce.
    crosses_edge: bool,
    /// The client has contradicted itself.
    defiant: bool,
}

/// How a talk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TalkOutcome {
    /// Core and kernel agreed from the first segment to the last.
    Agreed,
    /// The result depends on the kernel's memory, which is unknown outside the kernel.
    Unknowable,
}

/// The socket's host, and a TUN device through which the test sends packets to the host.
struct TunHost {
    host: LanHost,
    tun: Tun,
    listener: TcpListener,
    client_port: Cell<u16>,
    compared: Cell<u64>,
}

impl TunHost {
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
        // Acknowledge out-of-order segments at once, not from a timer.
        host.sysctl("ipv4/tcp_comp_sack_nr", "0");
        host.ip("link set lo up\n addr add 10.9.0.1/24 dev tun0\n link set tun0 up");
        let listener = host.listen(SERVER.into());
        listener.set_nonblocking(true).expect("O_NONBLOCK");
        Some(Self {
            host,
            tun,
            listener,
            client_port: Cell::new(1024),
            compared: Cell::new(0),
        })
    }

    fn next_client(&self) -> SocketAddr {
        let port = self.client_port.get();
        self.client_port.set(port.checked_add(1).unwrap_or(1024));
        (CLIENT, port).into()
    }

    /// Number of times that the kernel lacked memory for input: it dropped input, or compacted a queue.
    fn memory_events(&self) -> u64 {
        const NAMES: [&str; 6] = [
            "PruneCalled",
            "RcvPruned",
            "OfoPruned",
            "TCPRcvQDrop",
            "TCPOFODrop",
            "TCPRcvCollapsed",
        ];
        let text = self
            .host
            .run(|| fs::read_to_string("/proc/thread-self/net/netstat"))
            .expect("counters");
        let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
        let names = lines.next().expect("names").split_ascii_whitespace();
        let values = lines.next().expect("values").split_ascii_whitespace();
        names
            .zip(values)
            .filter(|(name, _)| NAMES.contains(name))
            .map(|(_, value)| value.parse::<u64>().expect("a number"))
            .sum()
    }

    fn play(&self, talk: &AcceptanceTalk) -> Result<TalkOutcome, String> {
        let outcome =
            ComparedConnection::open(self, talk).and_then(|mut conversation| conversation.run(talk));
        while self.tun.take().is_some() {}
        outcome
    }

    fn compare(&self, talk: &AcceptanceTalk) -> Result<TalkOutcome, String> {
        let mut outcome = self.play(talk);
        for _ in 1..ATTEMPTS {
            if outcome.is_ok() {
                break;
            }
            let before = self.memory_events();
            outcome = self.play(talk);
            if outcome.is_err() && self.memory_events() != before {
                return Ok(TalkOutcome::Unknowable);
            }
        }
        outcome
    }
}

/// Byte `at` of the client's stream.
fn byte(at: i64) -> u8 {
    at.wrapping_mul(0x9e37_79b9).to_le_bytes()[3]
}

/// A connection, its socket, and the core's view of it.
struct ComparedConnection<'a> {
    world: &'a TunHost,
    client: SocketAddr,
    socket: TcpStream,
    connection: Connection,
    ended: Option<Effect>,
    client_first: Seq,
    server_first: Seq,
    timestamps: bool,
    latest: u32,
    window_scale: (u8, u8),
    window_max: i64,
    heard_server: bool,
    /// Number of packets heard from the server.
    packets: u64,
    /// The server's latest timestamp, and the client's timestamp that the server echoed.
    clock: u32,
    echo: u32,
    /// Set if server and core echo different timestamps of the client: the server's value, and the core's value.
    recent_differs: Option<(u32, Option<u32>)>,
    /// The end of what the server has acknowledged.
    acknowledged: i64,
    /// The end of the window that the server offered.
    right_edge: i64,
    /// The end of what the server has sent.
    sent: i64,
    highest: i64,
    /// The highest sequence number of a segment that may have updated the client's window.
    told_window: i64,
    fin: Option<i64>,
    /// The client may have contradicted itself.
    defied: bool,
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).expect("short streams")
}

impl<'a> ComparedConnection<'a> {
    fn open(world: &'a TunHost, talk: &AcceptanceTalk) -> Result<Self, String> {
        SockRef::from(&world.listener)
            .set_recv_buffer_size(talk.receive_buffer)
            .expect("SO_RCVBUF");
        let client = world.next_client();
        let mut segment = Segment {
            source: client,
            destination: SERVER.into(),
            seq: Seq(talk.client_first) - 1,
            ack: Seq(0),
            flags: Flags::SYN,
            window: 65_535,
            options: TcpOptions {
                mss: Some(1400),
                window_scale: talk.window_scale,
                sack_permitted: talk.sack,
                timestamps: talk.clock.map(|value| Timestamps { value, echo: 0 }),
                ..TcpOptions::default()
            },
            payload: &[],
        };
        world.tun.put(&segment.emit());
        let packet = world.tun.take().ok_or("no SYN-ACK")?;
        let answer = Segment::parse(&packet, Checksum::Trusted).map_err(|error| error.to_string())?;
        let [syn, syn_ack] = [segment, answer].map(|segment| Opening::of(&segment, Instant::ZERO));
        let clock = answer.options.timestamps.map_or(0, |timestamps| timestamps.value);
        segment.seq = segment.seq + 1;
        segment.ack = answer.seq + 1;
        segment.flags = Flags::ACK;
        segment.window = talk.window;
        segment.options = TcpOptions {
            timestamps: talk.clock.map(|value| Timestamps { value, echo: clock }),
            ..TcpOptions::default()
        };
        world.tun.put(&segment.emit());
        let (socket, _) = world.listener.accept().map_err(|error| error.to_string())?;
        socket.set_nonblocking(true).expect("O_NONBLOCK");
        socket.set_nodelay(true).expect("TCP_NODELAY");
        abort_on_close(&socket);
        use_cubic(&socket);
        set_tcp(&socket, libc::TCP_QUICKACK, i32::from(talk.quick_ack));
        let follower = Follower::new(RestartPolicy::Replica, Rules::default(), None, 1 << 20);
        let mut connection = Connection::new(client, SERVER.into(), &syn, &syn_ack, follower, LOG_LIMIT);
        connection.on_client(&segment, None);
        let ours = talk.window_scale.and(answer.options.window_scale).unwrap_or(0);
        let theirs = talk.window_scale.unwrap_or(0);
        Ok(Self {
            world,
            client,
            socket,
            connection,
            ended: None,
            client_first: segment.seq,
            server_first: segment.ack,
            timestamps: talk.clock.is_some(),
            latest: talk.clock.unwrap_or(0),
            window_scale: (theirs, ours),
            window_max: i64::from(talk.window) << theirs,
            heard_server: false,
            packets: 0,
            clock,
            echo: talk.clock.unwrap_or(0),
            recent_differs: None,
            acknowledged: 0,
            right_edge: answer.window.into(),
            sent: 0,
            highest: 0,
            told_window: 0,
            fin: None,
            defied: false,
        })
    }

    fn run(&mut self, talk: &AcceptanceTalk) -> Result<TalkOutcome, String> {
        self.check(&"the handshake")?;
        for step in &talk.steps {
            self.listen();
            let outcome = match step {
                TalkStep::Client(said) => self.say(said)?,
                TalkStep::ServerWrites(len) => {
                    let _ = (&self.socket).write(&vec![7; *len]); // as much as fits
                    self.listen();
                    self.check(step)?;
                    TalkOutcome::Agreed
                }
                TalkStep::ServerReads(len) => self.read(*len)?,
                TalkStep::ServerCloses => {
                    let _ = self.socket.shutdown(Shutdown::Write); // it may be shut down already
                    self.listen();
                    self.check(step)?;
                    TalkOutcome::Agreed
                }
            };
            if outcome == TalkOutcome::Unknowable || self.ended.is_some() {
                return Ok(outcome);
            }
        }
        Ok(TalkOutcome::Agreed)
    }

    /// Passes to the core the packets that the server has sent.
    fn listen(&mut self) {
        while let Some(packet) = self.world.tun.take() {
            let segment = Segment::parse(&packet, Checksum::Trusted).expect("a kernel's segment");
            if segment.destination != self.client {
                continue; // a packet of the previous talk
            }
            self.packets += 1;
            let from = |seq: Seq, first: Seq| i64::from(seq.distance_from(first));
            self.heard_server = true;
            if !segment.flags.rst {
                let end = from(segment.seq, self.server_first) + i64::from(segment.seq_len());
                self.sent = self.sent.max(end);
                self.acknowledged = from(segment.ack, self.client_first);
                let window = i64::from(segment.window) << self.window_scale.1;
                self.right_edge = self.right_edge.max(self.acknowledged + window);
            }
            if let Some(timestamps) = segment.options.timestamps {
                (self.clock, self.echo) = (timestamps.value, timestamps.echo);
                let core = self.connection.endpoint().timestamps.map(|clock| clock.echo);
                if core != Some(self.echo) && !segment.flags.rst {
                    self.recent_differs = Some((self.echo, core));
                }
            }
            let effect = self
                .connection
                .on_server(Instant::from_nanos(self.packets), &segment, None);
            if matches!(effect, Effect::Reset | Effect::Closed) {
                self.ended = Some(effect);
            }
        }
    }

    fn read(&mut self, len: usize) -> Result<TalkOutcome, String> {
        let before = signed(tcp_state(&self.socket).bytes_received);
        let mut buffer = vec![0; len];
        match (&self.socket).read(&mut buffer) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(format!("read: {error}")),
        }
        self.listen();
        assert_eq!(before, signed(tcp_state(&self.socket).bytes_received));
        self.check(&"reading")?;
        Ok(TalkOutcome::Agreed)
    }

    /// Position of `place` in the client's stream.
    fn place(&self, place: SeqBase) -> i64 {
        match place {
            SeqBase::Next => signed(tcp_state(&self.socket).bytes_received),
            SeqBase::Acknowledged => self.acknowledged,
            SeqBase::RightEdge => self.right_edge,
            SeqBase::Highest => self.highest,
            SeqBase::Fin => self.fin.unwrap_or(self.highest),
        }
    }

    fn acknowledgement(&self, ack: AckBase) -> i64 {
        let unacknowledged = signed(tcp_state(&self.socket).bytes_acked);
        match ack {
            AckBase::Unacknowledged => unacknowledged,
            AckBase::Sent => self.sent,
            AckBase::Oldest => unacknowledged - self.window_max.min(unacknowledged),
        }
    }

    fn flags(kind: ClientSegmentKind) -> Flags {
        match kind {
            ClientSegmentKind::Ack => Flags::ACK,
            ClientSegmentKind::Fin => Flags::FIN_ACK,
            ClientSegmentKind::Rst => Flags::RST,
            ClientSegmentKind::RstAck => Flags {
                ack: true,
                ..Flags::RST
            },
            ClientSegmentKind::Syn => Flags::SYN,
            ClientSegmentKind::NoAck => Flags {
                psh: true,
                ack: false,
                ..Flags::ACK
            },
        }
    }

    /// The client sends a segment, and core and kernel judge it.
    fn say(&mut self, said: &ClientSegment) -> Result<TalkOutcome, String> {
        let at = self.place(said.seq.0) + said.seq.1;
        let mut flags = Self::flags(said.kind);
        let mut end = at + i64::try_from(said.len).expect("short");
        if !said.defiant {
            end = end.min(self.right_edge).max(at);
        }
        if let Some(fin) = self.fin {
            if !said.defiant {
                end = end.min(fin).max(at);
                flags.fin &= end == fin;
            }
        } else if flags.fin {
            flags.fin = end >= self.highest && (0..=self.right_edge).contains(&at);
            self.fin = Some(end).filter(|_| flags.fin);
        }
        if matches!(said.kind, ClientSegmentKind::Ack | ClientSegmentKind::Fin) && at <= self.right_edge {
            self.highest = self.highest.max(end);
        }
        let garbled = if said.garbled { self.acknowledged } else { i64::MIN };
        let garble = |at| if at < garbled { 0xff } else { 0 };
        let payload: Vec<u8> = (at..end).map(|at| byte(at) ^ garble(at)).collect();
        let value = match said.clock {
            ClientTimestamp::Missing => None,
            ClientTimestamp::FromLatest(ticks) => Some(self.latest.wrapping_add_signed(ticks)),
            ClientTimestamp::FromEcho(ticks) => Some(self.echo.wrapping_add_signed(ticks)),
        };
        if let Some(value) = value
            && value.wrapping_sub(self.latest).cast_signed() > 0
        {
            self.latest = value;
        }
        let timestamps = value.filter(|_| self.timestamps);
        let ack = self.acknowledgement(said.ack.0) + said.ack.1;
        let number = |first: Seq, distance: i64| Seq((i64::from(first.0) + distance) as u32);
        let segment = Segment {
            source: self.client,
            destination: SERVER.into(),
            seq: number(self.client_first, at),
            ack: number(self.server_first, ack),
            flags,
            window: said.window,
            options: TcpOptions {
                timestamps: timestamps.map(|value| Timestamps {
                    value,
                    echo: self.clock,
                }),
                ..TcpOptions::default()
            },
            payload: &payload,
        };
        let next = self.place(SeqBase::Next);
        self.defied |= said.defiant;
        let predicted = at == next
            && flags == Flags::ACK
            && u32::from(said.window) << self.window_scale.0 == tcp_state(&self.socket).send_window;
        // A SYN-ACK cannot announce more than 65,535 bytes, but the kernel may have more room.
        let may_have_more = !self.heard_server && self.right_edge == 65_535;
        let goes_back = !payload.is_empty() && at < self.told_window;
        let doubt = Doubt {
            predicted: predicted && (goes_back || ack < self.acknowledgement(AckBase::Unacknowledged)),
            crosses_edge: at + i64::from(segment.seq_len()) > self.right_edge
                && (at <= self.right_edge || may_have_more),
            defiant: self.defied,
        };
        if flags.ack && at <= self.right_edge {
            self.told_window = self.told_window.max(at);
        }
        self.judge(said, &segment, doubt)
    }

    fn judge(
        &mut self,
        said: &ClientSegment,
        segment: &Segment<'_>,
        doubt: Doubt,
    ) -> Result<TalkOutcome, String> {
        self.world.tun.put(&segment.emit());
        let effect = self.connection.on_client(segment, None);
        if matches!(effect, Effect::Reset | Effect::Closed) {
            self.ended = Some(effect);
        }
        if self.ended.is_none() {
            self.listen();
        }
        self.window_max = self
            .window_max
            .max(i64::from(tcp_state(&self.socket).send_window));
        let ambiguous = self.connection.protection() == Protection::Ambiguous;
        if self.ended.is_none() && (doubt.predicted || doubt.crosses_edge || (doubt.defiant && ambiguous)) {
            return Ok(TalkOutcome::Unknowable);
        }
        if ambiguous {
            return Err(format!("{said:?}\n  = {segment:?}\n  makes it ambiguous"));
        }
        let what = format!("{said:?}\n  = {segment:?}\n  the core: {effect:?}");
        self.check(&format_args!("{what}")).map(|()| TalkOutcome::Agreed)
    }

    /// Checks that the visible state of the socket is the state that the core believes.
    fn check(&self, what: &impl Debug) -> Result<(), String> {
        self.world.compared.set(self.world.compared.get() + 1);
        let TcpState {
            closed,
            bytes_received,
            bytes_acked,
            send_window,
        } = tcp_state(&self.socket);
        if closed || self.ended.is_some() {
            return if closed == self.ended.is_some() {
                Ok(())
            } else {
                Err(format!(
                    "{what:?}\n  closed: {closed}, the core: {:?}",
                    self.ended
                ))
            };
        }
        let endpoint = self.connection.endpoint();
        let input = endpoint.receive_next.distance_from(self.client_first);
        let output = endpoint.send_unacknowledged.distance_from(self.server_first);
        let kernel = (signed(bytes_received), signed(bytes_acked), send_window);
        let core = (i64::from(input), i64::from(output), endpoint.send_window);
        if kernel != core {
            return Err(format!(
                "{what:?}: (received, acknowledged, window): the kernel {kernel:?}, the core {core:?}"
            ));
        }
        match self.recent_differs {
            Some((kernel, core)) => Err(format!(
                "{what:?}\n  TS.Recent: the kernel {kernel}, the core {core:?}"
            )),
            None => Ok(()),
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} must be a number")),
    )
}

#[test]
fn the_kernel_and_the_core_accept_the_same() {
    const NAME: &str = "the_kernel_and_the_core_accept_the_same";
    let Some(world) = TunHost::new(NAME) else { return };
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(SEEDS),
    };
    let count = seeds.end - seeds.start;
    let (last, mut unknowable) = (Cell::new(false), 0_u64);
    let mut failures = 0;
    for seed in seeds {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let config = Config {
            cases: 1,
            failure_persistence: None,
            max_shrink_iters: 2000,
            ..Config::default()
        };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let outcome = TestRunner::new_with_rng(config, rng).run(&talk(), |talk| {
            let outcome = world.compare(&talk);
            last.set(outcome == Ok(TalkOutcome::Unknowable));
            outcome.map(drop).map_err(TestCaseError::fail)
        });
        unknowable += u64::from(outcome.is_ok() && last.get());
        if let Err(TestError::Fail(reason, talk)) = outcome {
            failures += 1;
            println!(
                "seed {seed}: {reason}\n{:?}",
                AcceptanceTalk {
                    steps: vec![],
                    ..talk.clone()
                }
            );
            for step in &talk.steps {
                println!("  {step:?}");
            }
            println!(
                "replay: SEED={seed} cargo test -p steadfast-linux --test kernel acceptance::{NAME} -- --exact --nocapture"
            );
        }
    }
    let compared = world.compared.get();
    println!("{count} talks, {compared} comparisons; {unknowable} talks could not be judged to their end");
    assert_eq!(failures, 0, "of {count} talks");
    assert!(compared >= 8 * count || count == 1, "too few comparisons");
}

/// A server remembers at most four ranges for its selective acknowledgements. When a fifth range arrives, the server
/// forgets the oldest one.
#[test]
fn a_reset_behind_a_forgotten_range_ends_nothing() {
    let Some(world) = TunHost::new("a_reset_behind_a_forgotten_range_ends_nothing") else {
        return;
    };
    let said = |kind, at, len| ClientSegment {
        kind,
        seq: (SeqBase::Next, at),
        len,
        ack: (AckBase::Sent, 0),
        clock: ClientTimestamp::FromLatest(0),
        window: 500,
        defiant: false,
        garbled: false,
    };
    for ranges in [4, 5] {
        let ahead = (0..ranges).map(|index| said(ClientSegmentKind::Ack, 5000 - index * 1000, 100));
        let reset = [said(ClientSegmentKind::Rst, 5100, 0)];
        let talk = AcceptanceTalk {
            window_scale: Some(0),
            sack: true,
            clock: Some(1),
            window: 500,
            client_first: 1,
            receive_buffer: 30 << 10,
            quick_ack: false,
            steps: ahead.chain(reset).map(TalkStep::Client).collect(),
        };
        let mut conversation = ComparedConnection::open(&world, &talk).expect("a connection");
        assert_eq!(
            conversation.run(&talk),
            Ok(TalkOutcome::Agreed),
            "{ranges} ranges"
        );
        assert_eq!(conversation.ended.is_some(), ranges == 4, "{ranges} ranges");
    }
}
