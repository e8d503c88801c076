//! The kernel's FIN and RST for a process that died do not reach the client. The FIN and RST of a process that ended normally do.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal, kill, raise, signal};
use nix::unistd::Pid;
use proto::action::Gate;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use steadfast_linux::network::sockets;
use steadfast_linux::wire::WireService;

use crate::support::frame::FrameTap;
use crate::support::lan::{Family, Lan, LanHost};
use crate::support::log::LogThread;
use crate::support::wire_on::{WireOn, options, services};
use crate::support::{assert_same_stream, eventually, stream};

const ADDRESS: &str = "STEADFAST_TEST_SERVER";
const PROTOCOL: &str = "STEADFAST_TEST_PROTOCOL";

/// The server process of the other tests: they start this binary with this test only. The process executes the lines of its standard input
/// in order.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn server_process() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    setrlimit(Resource::RLIMIT_CORE, 0, 0).expect("no core files");
    nix::unistd::alarm::set(60); // in case the test hangs
    for deadly in [Signal::SIGSEGV, Signal::SIGINT, Signal::SIGHUP] {
        // The standard library handles SIGSEGV. A process that was started in the background may ignore SIGINT and SIGHUP.
        // SAFETY: the default action runs no code of ours.
        unsafe { signal(deadly, SigHandler::SigDfl) }.expect("signal");
    }
    let listener = listener(address.parse().expect("an address"));
    println!("listening");
    let mut connection: Option<TcpStream> = None;
    for line in std::io::stdin().lines() {
        let line = line.expect("text");
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let stream = connection.as_mut();
        match word {
            "accept" => connection = Some(listener.accept().expect("accept").0),
            "say" => stream
                .expect("accepted")
                .write_all(rest.as_bytes())
                .expect("write"),
            "fill" => println!("{}", fill(stream.expect("accepted"))),
            "close" => drop(connection.take()),
            "exit" => std::process::exit(rest.parse().expect("a code")),
            "raise" => raise(rest.parse().expect("a signal")).expect("raise"),
            _ => panic!("{line}?"),
        }
        println!("done");
    }
    std::process::exit(0); // the test process is gone
}

fn listener(address: SocketAddr) -> TcpListener {
    let protocol: i32 = std::env::var(PROTOCOL).expect("set").parse().expect("a number");
    let socket =
        Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol.into())).expect("socket");
    socket.set_reuse_address(true).expect("set");
    socket.bind(&address.into()).expect("bind");
    socket.listen(16).expect("listen");
    socket.into()
}

/// Writes until the kernel's send buffer is full. Returns the number of bytes written.
fn fill(stream: &mut TcpStream) -> usize {
    let bytes = stream_of_fill();
    stream.set_nonblocking(true).expect("non-blocking");
    let mut written = 0;
    loop {
        match stream.write(&bytes[written..]) {
            Ok(count) => written += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return written,
            Err(error) => panic!("{error}"),
        }
    }
}

fn stream_of_fill() -> Vec<u8> {
    stream(5, 64 << 20)
}

/// A server process. Dropping the value kills the process.
struct ServerChild {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl ServerChild {
    fn start(host: &LanHost, address: SocketAddr, protocol: Protocol) -> Self {
        let mut child = host
            .run(|| {
                Command::new(std::env::current_exe().expect("this binary"))
                    .args(["--ignored", "--exact", "death::server_process", "--nocapture"])
                    .env(ADDRESS, address.to_string())
                    .env(PROTOCOL, i32::from(protocol).to_string())
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
            })
            .expect("spawn");
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut server = Self {
            child,
            orders,
            answers,
        };
        server.read_until("listening");
        server
    }

    /// Reads answers until `end`. Returns the last answer before it.
    fn read_until(&mut self, end: &str) -> String {
        let mut before = String::new();
        loop {
            let mut line = String::new();
            assert!(
                self.answers.read_line(&mut line).expect("text") > 0,
                "the server ended early"
            );
            let line = line.trim_end().rsplit(' ').next().unwrap_or_default(); // the test harness prints a word before the answer
            if line == end {
                return before;
            }
            line.clone_into(&mut before);
        }
    }

    /// Gives an order without waiting for an answer, because the order may end the process.
    fn order(&mut self, order: &str) {
        writeln!(self.orders.as_mut().expect("until the end"), "{order}").expect("the server listens");
    }

    /// Gives an order and waits until it was obeyed.
    fn obey(&mut self, order: &str) -> String {
        self.order(order);
        self.read_until("done")
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("kill");
    }

    #[track_caller]
    fn wait_for_end(&mut self) {
        eventually("the server process ends", || {
            self.child.try_wait().expect("our child")
        });
    }
}

impl Drop for ServerChild {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// How a server ends.
#[derive(Clone, Copy, Debug)]
enum ServerExit {
    Signal(Signal),
    Order(&'static str),
}

/// A client's connection to a server process on the primary, through the wire.
struct DeathTestbed {
    family: Family,
    wire: WireOn,
    guard: WireOn,
    reading: LogThread,
    server: ServerChild,
    client: TcpStream,
    /// A tap at the primary's cable.
    tap: FrameTap,
}

impl DeathTestbed {
    /// The server listens at `bound`.
    fn at(lan: &Lan, family: Family, bound: IpAddr, protocol: Protocol) -> Self {
        let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
        let guard = WireOn::new(&lan.primary, &lan.backup, &options(), Gate::Primary);
        let reading = LogThread::of(&wire);
        let mut server = ServerChild::start(&lan.primary, (bound, family.vip().port()).into(), protocol);
        let client = lan.client.connect(family.vip());
        server.obey("accept");
        let tap = FrameTap::on(&lan.client, "port3");
        Self {
            family,
            wire,
            guard,
            reading,
            server,
            client,
            tap,
        }
    }

    fn new(lan: &Lan, family: Family) -> Self {
        Self::at(lan, family, family.vip().ip(), Protocol::TCP)
    }

    /// Asserts that the client hears `expected` and nothing else, and that the connection stays open.
    #[track_caller]
    fn hears(&self, expected: &[u8], what: &str) {
        let mut received = vec![0; expected.len()];
        (&self.client).read_exact(&mut received).expect(what);
        assert_same_stream(what, &received, expected);
        self.client.set_nonblocking(true).expect("non-blocking");
        let more = (&self.client).read(&mut [0; 10]);
        let nothing = more
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(nothing, "{what}: the client heard {more:?}");
        self.client.set_nonblocking(false).expect("blocking");
    }

    /// Sends input that the server's kernel acknowledges and the server does not read.
    fn leave_unread(&self) {
        (&self.client).write_all(b"never read").expect("write");
        eventually("it is acknowledged", || {
            let log = self.reading.now();
            let (_, connection) = log.connection(self.client.local_addr().expect("connected"));
            (connection.input_acknowledged().0 == 10).then_some(())
        });
    }

    fn end(&mut self, end: ServerExit) {
        match end {
            ServerExit::Signal(signal) => self.server.signal(signal),
            ServerExit::Order(order) => self.server.order(order),
        }
    }

    /// Asserts that the process is gone and its FIN or RST was kept from the client.
    #[track_caller]
    fn assert_silenced(&mut self, what: &str) {
        self.server.wait_for_end();
        self.guard.wait_for(self.family, "dropped_dying_process", 1);
        assert!(self.guard.server_deaths(self.family.service()) > 0, "{what}");
        let vip = self.family.vip();
        self.tap.take_segments(|segment| {
            let ends = segment.flags.fin || segment.flags.rst;
            assert!(
                segment.source != vip || !ends,
                "{what}: on the cable: {segment:?}"
            );
        });
        assert_eq!(self.guard.drops(self.family).len(), 1, "{what}");
        self.reading
            .now()
            .assert_protected(self.client.local_addr().expect("connected"));
    }

    /// Asserts that the client hears the server's FIN.
    #[track_caller]
    fn assert_ended(&mut self, what: &str) {
        assert_eq!((&self.client).read(&mut [0; 10]).expect(what), 0, "{what}");
        assert_eq!(self.guard.drops(self.family), [], "{what}");
        assert!(self.guard.server_deaths(self.family.service()) == 0, "{what}");
    }
}

#[test]
fn the_fin_of_a_process_that_died_is_not_heard() {
    let Some(lan) = Lan::new("the_fin_of_a_process_that_died_is_not_heard") else {
        return;
    };
    let crashes = [
        ServerExit::Signal(Signal::SIGKILL),
        ServerExit::Signal(Signal::SIGSEGV),
        ServerExit::Order("raise SIGSEGV"),
        ServerExit::Order("raise SIGABRT"),
        ServerExit::Order("exit 3"),
        ServerExit::Order("exit 255"),
    ];
    for (end, family) in crashes.into_iter().zip(Family::BOTH.into_iter().cycle()) {
        let mut testbed = DeathTestbed::new(&lan, family);
        testbed.server.obey("say hello");
        testbed.end(end);
        testbed.assert_silenced(&format!("{end:?}"));
        testbed.hears(b"hello", &format!("{end:?}"));
    }
}

/// A bare acknowledgement after a silenced FIN has the FIN's sequence number plus one. A client that believed this number would ignore the
/// survivor, because the survivor continues with the FIN's number.
#[test]
fn nothing_without_data_is_heard_behind_a_silenced_fin() {
    let Some(lan) = Lan::new("nothing_without_data_is_heard_behind_a_silenced_fin") else {
        return;
    };
    for family in Family::BOTH {
        let mut testbed = DeathTestbed::new(&lan, family);
        testbed.server.obey("say hello");
        testbed.end(ServerExit::Signal(Signal::SIGKILL));
        testbed.assert_silenced("killed");
        testbed.hears(b"hello", "killed");
        testbed.client.shutdown(Shutdown::Write).expect("shutdown"); // the dead process' kernel acknowledges the FIN
        let silenced = testbed.guard.counter(family, "dropped_dying_process");
        testbed
            .guard
            .wait_for(family, "dropped_dying_process", silenced + 2);
        let vip = family.vip();
        testbed
            .tap
            .take_segments(|segment| assert_ne!(segment.source, vip, "on the cable: {segment:?}"));
    }
}

/// A server's death is noticed also if the server listened at every address of one family or of both families, with or without Multipath
/// TCP.
#[test]
fn a_server_is_known_wherever_it_listens() {
    let Some(lan) = Lan::new("a_server_is_known_wherever_it_listens") else {
        return;
    };
    let multipath = Protocol::from(262); // IPPROTO_MPTCP
    let cases: [(Family, IpAddr, Protocol); 5] = [
        (Family::V4, Ipv4Addr::UNSPECIFIED.into(), Protocol::TCP),
        (Family::V6, Ipv6Addr::UNSPECIFIED.into(), Protocol::TCP),
        (Family::V4, Ipv6Addr::UNSPECIFIED.into(), Protocol::TCP),
        (Family::V4, Ipv6Addr::UNSPECIFIED.into(), multipath),
        (Family::V6, Ipv6Addr::UNSPECIFIED.into(), multipath),
    ];
    for (family, bound, protocol) in cases {
        let mut testbed = DeathTestbed::at(&lan, family, bound, protocol);
        testbed.end(ServerExit::Signal(Signal::SIGKILL));
        testbed.assert_silenced(&format!("{family:?} at {bound}, {protocol:?}"));
        testbed.hears(b"", "the end");
    }
}

#[test]
fn an_ordinary_end_is_heard() {
    let Some(lan) = Lan::new("an_ordinary_end_is_heard") else {
        return;
    };
    let ends = [
        ServerExit::Order("close"),
        ServerExit::Order("exit 0"),
        ServerExit::Order("exit 1"),
        ServerExit::Order("exit 3"), // of the IPv6 server; a crash only for the IPv4 service
        ServerExit::Order("exit 255"), // of the IPv4 server; a crash only for the IPv6 service
        ServerExit::Signal(Signal::SIGTERM),
        ServerExit::Signal(Signal::SIGINT),
        ServerExit::Signal(Signal::SIGHUP),
    ];
    for (end, family) in ends.into_iter().zip(Family::BOTH.into_iter().cycle()) {
        let mut testbed = DeathTestbed::new(&lan, family);
        testbed.end(end);
        testbed.assert_ended(&format!("{end:?}"));
    }
}

/// If one of several workers dies, the listener lives on. So the guard must drop only the kernel's answers on the worker's connections.
/// These answers must be dropped also after the socket is gone, when they carry no mark.
#[test]
fn the_rst_for_a_dead_workers_connection_is_not_heard() {
    for family in Family::BOTH {
        let Some(lan) = Lan::new("the_rst_for_a_dead_workers_connection_is_not_heard") else {
            return;
        };
        let mut testbed = DeathTestbed::new(&lan, family);
        testbed.leave_unread();
        testbed.end(ServerExit::Signal(Signal::SIGKILL));
        testbed.server.wait_for_end();
        testbed.guard.wait_for(family, "dropped_dying_process", 1);
        let service = family.service();
        let deaths = testbed.guard.server_deaths(service);
        testbed.guard.forget_server_deaths(service, deaths);
        (&testbed.client)
            .write_all(b"more")
            .expect("the connection is open");
        testbed.guard.wait_for(family, "dropped_dying_process", 2);
        testbed.hears(b"", "nothing is said for it");
    }
}

/// After the process of a connection has died, the connection's client may connect again from the same port while the node speaks alone.
#[test]
fn the_next_connection_of_a_dead_ones_client_ends_like_any_other() {
    for family in Family::BOTH {
        let Some(lan) = Lan::new("the_next_connection_of_a_dead_ones_client_ends_like_any_other") else {
            return;
        };
        let mut testbed = DeathTestbed::new(&lan, family);
        testbed.end(ServerExit::Signal(Signal::SIGKILL));
        testbed.server.wait_for_end();
        testbed.guard.wait_for(family, "dropped_dying_process", 1);
        let deaths = testbed.guard.server_deaths(family.service());
        testbed.guard.forget_server_deaths(family.service(), deaths);
        testbed.guard.set_gates(Gate::Sole);
        let mut server = ServerChild::start(&lan.primary, family.vip(), Protocol::TCP);
        let from = testbed.client.local_addr().expect("connected");
        let socket = lan
            .client
            .run(|| Socket::new(Domain::for_address(from), Type::STREAM, None).expect("socket"));
        let again = TcpStream::from(socket.try_clone().expect("dup"));
        let old = std::mem::replace(&mut testbed.client, again);
        SockRef::from(&old)
            .set_linger(Some(Duration::ZERO))
            .expect("SO_LINGER");
        drop(old);
        // A process that another test is starting may hold a copy of the old socket until it executes its program.
        eventually("the old socket is closed", || socket.bind(&from.into()).ok());
        socket.connect(&family.vip().into()).expect("connect");
        let patience = Some(Duration::from_secs(10));
        testbed.client.set_read_timeout(patience).expect("a timeout");
        server.obey("accept");
        testbed.guard.set_gates(Gate::Primary);
        server.obey("close");
        assert_eq!((&testbed.client).read(&mut [0; 10]).expect("its end"), 0);
    }
}

/// If a process dies with unread input, the kernel sends a RST. The kernel also sends a RST for each segment that arrives after the socket
/// is gone.
#[test]
fn the_rst_of_a_process_that_died_is_not_heard() {
    for family in Family::BOTH {
        let Some(lan) = Lan::new("the_rst_of_a_process_that_died_is_not_heard") else {
            return;
        };
        let mut testbed = DeathTestbed::new(&lan, family);
        testbed.leave_unread();
        testbed.end(ServerExit::Signal(Signal::SIGKILL));
        testbed.assert_silenced("unread input");
        let dropped = testbed.guard.counter(family, "dropped_dying_process");
        (&testbed.client).write_all(b"to nobody").expect("write");
        testbed
            .guard
            .wait_for(family, "dropped_dying_process", dropped + 1);
        testbed.assert_silenced("a segment for a socket that is gone");
        testbed.hears(b"", "after both");
    }
}

/// The dead process' connection continues elsewhere. So the primary's kernel must not send the output that it still
/// holds.
#[test]
fn what_a_dead_process_leaves_is_destroyed_without_a_word() {
    for family in Family::BOTH {
        let Some(lan) = Lan::new("what_a_dead_process_leaves_is_destroyed_without_a_word") else {
            return;
        };
        let mut testbed = DeathTestbed::new(&lan, family);
        let client = testbed.client.local_addr().expect("connected");
        let destroy = || {
            let destroy = || sockets::destroy_dying(family.vip(), &[client]);
            lan.primary.run(destroy).expect("sock_diag answers")
        };
        assert_eq!(destroy(), 0, "its process lives");
        testbed.server.obey("fill");
        testbed.end(ServerExit::Signal(Signal::SIGKILL));
        testbed.server.wait_for_end();
        assert_eq!(destroy(), 1);
        assert_eq!(destroy(), 0, "it is gone");
        testbed.assert_silenced("destroyed");
        testbed.client.set_nonblocking(true).expect("non-blocking");
        let end = loop {
            match (&testbed.client).read(&mut [0; 65_536]) {
                Ok(1..) => {}
                end => break end,
            }
        };
        let is_open = end
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(is_open, "the client heard {end:?}");
    }
}

/// An agent may die before a dead process' connection is continued. The next agent must learn of the connection. The kernel may still have
/// the connection's socket (after a FIN), or not (after a RST, because input was unread).
#[test]
fn a_dead_processs_connection_outlives_the_agent() {
    for (family, is_read) in Family::BOTH
        .into_iter()
        .flat_map(|family| [(family, true), (family, false)])
    {
        let Some(lan) = Lan::new("a_dead_processs_connection_outlives_the_agent") else {
            return;
        };
        let mut testbed = DeathTestbed::new(&lan, family);
        let client = testbed.client.local_addr().expect("connected");
        assert_eq!(testbed.guard.dying(family.service()), [], "its process lives");
        if !is_read {
            testbed.leave_unread();
        }
        testbed.end(ServerExit::Signal(Signal::SIGKILL));
        testbed.server.wait_for_end();
        testbed.guard.wait_for(family, "dropped_dying_process", 1);
        let guard = testbed.guard.succeeded(&options());
        assert_eq!(guard.dying(family.service()), [client], "all read: {is_read}");
        for other in Family::BOTH.into_iter().filter(|other| *other != family) {
            assert_eq!(guard.dying(other.service()), [], "of another service");
        }
        let forget = || {
            guard
                .forget_dying(family.service(), &[client])
                .expect("it is there")
        };
        forget();
        assert_eq!(guard.dying(family.service()), []);
        forget(); // forgetting twice has no further effect
    }
}

/// The kernel still sends the data that the process had written, but without the FIN that is in the same segment.
#[test]
fn a_fin_glued_to_data_loses_the_bit_and_nothing_else() {
    for family in Family::BOTH {
        let Some(lan) = Lan::new("a_fin_glued_to_data_loses_the_bit_and_nothing_else") else {
            return;
        };
        let mut testbed = DeathTestbed::new(&lan, family);
        let taken: usize = testbed.server.obey("fill").parse().expect("a number");
        testbed.end(ServerExit::Signal(Signal::SIGKILL));
        testbed.server.wait_for_end();
        let mut received = vec![0; taken];
        (&testbed.client)
            .read_exact(&mut received)
            .expect("all that the kernel took");
        assert_same_stream("the output", &received, &stream_of_fill()[..taken]);
        testbed.assert_silenced("glued");
        testbed.hears(b"", "nothing follows the output");
        let log = testbed.reading.now();
        let transcript = log.transcript(testbed.client.local_addr().expect("connected"));
        assert_eq!(transcript.output.len(), taken);
        assert_eq!(testbed.wire.drops(family), []);
    }
}

/// One worker's death is not the service's death: another process has the listener.
#[test]
fn a_workers_death_leaves_the_service_alive() {
    let Some(lan) = Lan::new("a_workers_death_leaves_the_service_alive") else {
        return;
    };
    let family = Family::V4;
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
    let guard = WireOn::new(&lan.primary, &lan.backup, &options(), Gate::Primary);
    let reading = LogThread::of(&wire);
    let listener = lan.primary.listen(family.vip());
    let is_dropped = || guard.counter(family, "dropped_dying_process") > 0;
    // A program that another test starts at the same moment holds the connection, too, until it has closed its copies. If it closes the
    // connection last, no dying process does. So the second or third worker must do.
    let client = (0..3).find_map(|_| {
        let (client, server) = lan.client.connect_pair(&listener);
        // The worker is a process whose standard input is the connection.
        let worker = || {
            Command::new("cat")
                .stdin(Stdio::from(OwnedFd::from(server)))
                .spawn()
        };
        let mut worker = lan.primary.run(worker).expect("spawn");
        worker.kill().expect("kill");
        worker.wait().expect("it ends");
        let until = Instant::now() + Duration::from_secs(2);
        while !is_dropped() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        is_dropped().then_some(client)
    });
    let client = client.expect("the FIN of a dying worker is dropped");
    assert!(guard.server_deaths(family.service()) == 0);
    reading
        .now()
        .assert_protected(client.local_addr().expect("connected"));
}

/// A wire that comes back must be told that no server listens here.
#[test]
fn a_listeners_death_is_noticed_without_a_wire_too() {
    for gate in [Gate::Sole, Gate::Takeover] {
        let Some(lan) = Lan::new("a_listeners_death_is_noticed_without_a_wire_too") else {
            return;
        };
        let family = Family::V4;
        let guard = WireOn::new(&lan.primary, &lan.backup, &options(), gate);
        let mut server = ServerChild::start(&lan.primary, family.vip(), Protocol::TCP);
        server.signal(Signal::SIGKILL);
        server.wait_for_end();
        assert!(guard.server_deaths(family.service()) > 0, "{gate:?}");
    }
}

/// Each of nginx's workers has its own listeners (`reuseport`), and all workers may die within microseconds. The last listener may die
/// while the agent checks whether one is left. This death must not be forgotten together with the first death.
#[test]
fn a_listener_that_dies_while_it_is_looked_for_is_not_forgotten() {
    let Some(lan) = Lan::new("a_listener_that_dies_while_it_is_looked_for_is_not_forgotten") else {
        return;
    };
    let family = Family::V4;
    let guard = WireOn::new(&lan.primary, &lan.backup, &options(), Gate::Sole);
    let die = || {
        let mut server = ServerChild::start(&lan.primary, family.vip(), Protocol::TCP);
        server.signal(Signal::SIGKILL);
        server.wait_for_end();
    };
    die();
    let deaths = guard.server_deaths(family.service());
    die();
    guard.forget_server_deaths(family.service(), deaths);
    assert!(
        guard.server_deaths(family.service()) > 0,
        "the second death is not forgotten"
    );
    guard.forget_server_deaths(family.service(), guard.server_deaths(family.service()));
    assert!(guard.server_deaths(family.service()) == 0);
}

/// A process in another namespace or with another address is not this service's server.
#[test]
fn a_strangers_death_is_nothing() {
    let Some(lan) = Lan::new("a_strangers_death_is_nothing") else {
        return;
    };
    let family = Family::V4;
    let mut testbed = DeathTestbed::new(&lan, family);
    for (host, address) in [
        (&lan.primary, family.address(3)),
        (&lan.client, family.address(1)),
    ] {
        let address = (address, family.vip().port()).into();
        let mut stranger = ServerChild::start(host, address, Protocol::TCP);
        let connection = lan.backup.connect(address);
        stranger.obey("accept");
        stranger.signal(Signal::SIGKILL);
        stranger.wait_for_end();
        assert_eq!((&connection).read(&mut [0; 1]).expect("its end is heard"), 0);
    }
    assert!(testbed.guard.server_deaths(family.service()) == 0);
    testbed.server.obey("say alive");
    testbed.hears(b"alive", "the service");
    testbed.end(ServerExit::Order("close"));
    testbed.assert_ended("the service");
}

/// A wire on the node, whose services relay their connections to applications at port 8081 of the node's own addresses.
fn relaying(lan: &Lan, gate: Gate) -> WireOn {
    let served = services(&lan.primary).map(|service| {
        let family = Family::BOTH
            .into_iter()
            .find(|of| of.vip().ip() == service.address);
        WireService {
            application: family.map(|family| application(lan, family)),
            ..service
        }
    });
    WireOn::serving(&served, &lan.primary, &lan.backup, &options(), gate)
}

fn application(lan: &Lan, family: Family) -> SocketAddr {
    SocketAddr::new(lan.primary.address(family), 8081)
}

/// A node relays connections to an application at an address of its own, from its clients' addresses. When the application's process is
/// killed, the agent hears of each client. When the process ends in an orderly way, it does not.
#[test]
fn the_death_of_a_relays_application_is_heard() {
    let Some(lan) = Lan::new("the_death_of_a_relays_application_is_heard") else {
        return;
    };
    let guard = relaying(&lan, Gate::Primary);
    let deaths = guard.deaths().expect("the ring");
    for (end, family) in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGSEGV]
        .into_iter()
        .flat_map(|end| Family::BOTH.map(|family| (end, family)))
    {
        let mut server = ServerChild::start(&lan.primary, application(&lan, family), Protocol::TCP);
        let relay = lan.primary.connect(application(&lan, family));
        server.obey("accept");
        server.signal(end);
        server.wait_for_end();
        assert_eq!((&relay).read(&mut [0; 1]).expect("the relay hears its end"), 0);
        let heard = deaths.take().expect("the ring").into_iter();
        let heard: Vec<_> = heard.map(|death| (death.service, death.client)).collect();
        let client = relay.local_addr().expect("connected");
        let told = (end != Signal::SIGTERM).then_some((family.service(), Some(client)));
        assert_eq!(heard, Vec::from_iter(told), "{end} {family:?}");
        let kept: Vec<_> = told.and_then(|(_, client)| client).into_iter().collect();
        assert_eq!(guard.dying(family.service()), kept, "{end} {family:?}");
        guard
            .forget_dying(family.service(), &[client])
            .expect("forgotten, if it was there");
    }
}

/// On a backup, only the death of a reversed connection's process is heard: the primary can adopt this connection. Other connections of a
/// backup end in the ordinary way.
#[test]
fn a_backup_hears_the_deaths_of_reversed_connections() {
    let Some(lan) = Lan::new("a_backup_hears_the_deaths_of_reversed_connections") else {
        return;
    };
    let guard = relaying(&lan, Gate::Wire);
    let deaths = guard.deaths().expect("the ring");
    for (family, is_reversed) in Family::BOTH
        .into_iter()
        .flat_map(|family| [(family, false), (family, true)])
    {
        let service = family.service();
        let mut server = ServerChild::start(&lan.primary, application(&lan, family), Protocol::TCP);
        let relay = lan.primary.connect(application(&lan, family));
        server.obey("accept");
        let client = relay.local_addr().expect("connected");
        guard.hold(service, &[client]).expect("hold");
        guard.settle(service, &[client]).expect("settle");
        if is_reversed {
            guard.reverse(service, &[client]).expect("reverse");
        }
        server.signal(Signal::SIGKILL);
        server.wait_for_end();
        assert_eq!((&relay).read(&mut [0; 1]).expect("the relay hears its end"), 0);
        let heard = deaths.take().expect("the ring").into_iter();
        let heard: Vec<_> = heard.map(|death| (death.service, death.client)).collect();
        let told = is_reversed.then_some((service, Some(client)));
        assert_eq!(heard, Vec::from_iter(told), "{family:?}, reversed: {is_reversed}");
    }
}
