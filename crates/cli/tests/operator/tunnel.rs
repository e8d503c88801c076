//! Tunnels between two hosts with two cables: client – near ═ far – server. Clients and servers use the loopback addresses of their host.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linux::sctp::{SctpWire, WirePlan};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::Pid;
use proto::sctp::SctpConfig;
use serde_json::Value;

use crate::lan::{CommandOutput, HostNamespace, POLL, PROGRAM, TestProcess, steadfast};

const PATIENCE: Duration = Duration::from_secs(30);
/// Address at which clients connect, on the near host.
const CLIENTS: &str = "127.0.0.1:8080";
/// Address of the server, on the far host.
const SERVER: &str = "127.0.0.1:7000";
/// Address of the metrics, on either host.
const METRICS: &str = "127.0.0.1:9466";

/// The two hosts.
struct TunnelNetwork {
    hosts: [HostNamespace; 2],
    dir: tempfile::TempDir,
}

impl TunnelNetwork {
    fn new(test: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: {test}: network namespaces need root");
            return None;
        }
        let hosts: [HostNamespace; 2] = std::array::from_fn(|_| HostNamespace::new());
        for path in 0..2 {
            let there = hosts[1].path();
            hosts[0].ip(&format!(
                "link add name p{path} type veth peer name p{path} netns {there}"
            ));
            for (last, host) in (1..).zip(&hosts) {
                host.ip(&format!("addr add 10.{}.0.{last}/24 dev p{path}", path + 1));
                host.ip(&format!("link set dev p{path} up"));
            }
        }
        Some(Self {
            hosts,
            dir: tempfile::tempdir().unwrap(),
        })
    }

    /// Writes the file with the key of both ends.
    fn key(&self) -> PathBuf {
        let key = self.dir.path().join("key");
        fs::write(&key, "7".repeat(64)).unwrap();
        fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        key
    }

    /// Writes the configuration of an end, with `more` in front of its tables.
    fn config(&self, end: usize, more: &str) -> PathBuf {
        let key = self.key();
        let last = end + 1;
        let mut text = format!(
            "name = \"sf-test-{}\"\nstate_dir = {:?}\nkey_file = {key:?}\nvia = [\"10.1.0.{last}\", \"10.2.0.{last}\"]\n{more}\n",
            ["near", "far"][end],
            self.dir.path().join(format!("state{end}")),
        );
        text += &match end {
            0 => format!("to = [\"10.1.0.2:9899\"]\n[[service]]\nname = \"web\"\nlisten = \"{CLIENTS}\"\n"),
            _ => format!("[[service]]\nname = \"web\"\nconnect = \"{SERVER}\"\n"),
        };
        text += &format!("[metrics]\nlisten = \"{METRICS}\"\n");
        let path = self.dir.path().join(format!("{end}.toml"));
        fs::write(&path, text).unwrap();
        path
    }

    fn start(&self, end: usize, more: &str) -> RunningTunnel<'_> {
        let config = self.config(end, more);
        self.start_by(end, steadfast(&["tunnel", "--config", config.to_str().unwrap()]))
    }

    fn start_by(&self, end: usize, mut command: Command) -> RunningTunnel<'_> {
        let config = self.dir.path().join(format!("{end}.toml"));
        let log = self.dir.path().join(format!("{end}.log"));
        command.env("NO_COLOR", "1");
        command.stderr(File::options().create(true).append(true).open(&log).unwrap());
        let host = &self.hosts[end];
        RunningTunnel {
            host,
            config,
            log,
            process: host.run(|| command.spawn().unwrap()),
        }
    }

    /// Both ends, joined over both paths.
    fn join(&self, more: &str) -> [RunningTunnel<'_>; 2] {
        let far = self.start(1, more);
        let near = self.start(0, more);
        near.wait_for_paths();
        [near, far]
    }

    /// A client's connection.
    fn connect(&self) -> TcpStream {
        let stream = self.hosts[0].run(|| TcpStream::connect(CLIENTS).unwrap());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Runs `serve` for each connection to the server, on a thread of its own.
    fn serve(&self, serve: impl Fn(TcpStream) + Send + Sync + 'static) {
        let listener = self.hosts[1].run(|| TcpListener::bind(SERVER).unwrap());
        let serve = Arc::new(serve);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, serve) = (stream.unwrap(), Arc::clone(&serve));
                let thread = std::thread::Builder::new().stack_size(256 << 10);
                thread.spawn(move || serve(stream)).unwrap();
            }
        });
    }

    /// From now on, the packets of path 0 are lost in both directions.
    fn cut_first(&self) {
        for host in &self.hosts {
            nft(
                host,
                "table inet cut { chain in { type filter hook input priority 0\niifname p0 drop\n}\n}",
            );
        }
    }
}

fn nft(host: &HostNamespace, rules: &str) {
    let done = host.run(|| Command::new("nft").arg(rules).output().expect("nft"));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// One end of a tunnel. It is killed when the test ends.
struct RunningTunnel<'a> {
    host: &'a HostNamespace,
    config: PathBuf,
    log: PathBuf,
    process: Child,
}

impl RunningTunnel<'_> {
    fn command(&self, arguments: &[&str]) -> CommandOutput {
        let arguments = [arguments, &["--config", self.config.to_str().unwrap()]].concat();
        self.host.run(|| CommandOutput::of(&mut steadfast(&arguments)))
    }

    fn status(&self) -> Value {
        let outcome = self.command(&["status", "--json"]);
        serde_json::from_str(&outcome.output).unwrap_or(Value::Null)
    }

    /// Number of open connections.
    fn open(&self) -> u64 {
        let status = self.status();
        let associations = status["associations"].as_array().cloned().unwrap_or_default();
        associations
            .iter()
            .filter_map(|one| one["connections"].as_u64())
            .sum()
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    #[track_caller]
    fn wait_until(&self, event: &str, mut happened: impl FnMut() -> bool) {
        let since = Instant::now();
        while !happened() {
            let (status, log) = (self.status(), self.log());
            assert!(since.elapsed() < PATIENCE, "{event}: {status}\n{log}");
            std::thread::sleep(POLL);
        }
    }

    /// Waits until both paths have answered.
    fn wait_for_paths(&self) {
        self.wait_until("both paths", || {
            let status = self.status();
            let paths = status["associations"][0]["paths"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            status["associations"][0]["ready"] == true
                && paths.len() == 2
                && paths
                    .iter()
                    .all(|path| path["state"] == "active" && path["rtt_ms"].is_number())
        });
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.id()).unwrap()), signal).unwrap();
    }

    fn end(&mut self, signal: Signal) {
        self.signal(signal);
        self.process.wait().unwrap();
    }

    /// Resident memory in bytes.
    fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.unwrap().trim().split(' ').next().unwrap();
        kilobytes.parse::<u64>().unwrap() << 10
    }

    /// CPU time so far, in clock ticks.
    fn cpu_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

impl Drop for RunningTunnel<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn abort(stream: TcpStream) {
    let linger = nix::libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&stream, sockopt::Linger, &linger).unwrap();
}

fn echo(mut stream: TcpStream) {
    let mut reader = stream.try_clone().unwrap();
    let _ = std::io::copy(&mut reader, &mut stream);
}

/// One question and its answer at a server that echoes.
#[track_caller]
fn ask(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, text.as_bytes());
}

/// Asserts that the connection ends by a reset.
#[track_caller]
fn assert_reset(stream: &mut TcpStream) {
    let mut buffer = vec![0; 1 << 16];
    let error = loop {
        match stream.read(&mut buffer) {
            Ok(0) => panic!("an end instead of a reset"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// Asserts that the connection has ended, with or without a reset. If the tunnel's process was killed, the kernel may end the connection
/// without a reset.
#[track_caller]
fn assert_over(stream: &mut TcpStream) {
    match stream.read(&mut [0]) {
        Ok(0) => {}
        Ok(_) => panic!("data instead of an end"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

/// Bytes of a request or of a reply.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn a_half_closed_client_gets_the_whole_reply() {
    const REPLY: usize = 5_000_000;
    let Some(network) = TunnelNetwork::new("a_half_closed_client_gets_the_whole_reply") else {
        return;
    };
    network.serve(|mut stream| {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).unwrap();
        assert_eq!(request, pattern(100_000));
        stream.write_all(&pattern(REPLY)).unwrap();
    });
    let [near, far] = network.join("");
    let mut client = network.connect();
    client.write_all(&pattern(100_000)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut reply = Vec::new();
    client.read_to_end(&mut reply).unwrap();
    assert!(reply == pattern(REPLY), "{} bytes", reply.len());
    for end in [&near, &far] {
        end.wait_until("the connection is forgotten", || end.open() == 0);
        assert_eq!(end.status()["reset"], 0);
    }
}

#[test]
fn resets_pass_in_both_directions() {
    let Some(network) = TunnelNetwork::new("resets_pass_in_both_directions") else {
        return;
    };
    let (told, said) = std::sync::mpsc::channel();
    let told = std::sync::Mutex::new(told);
    network.serve(move |mut stream| {
        let mut word = [0; 1];
        stream.read_exact(&mut word).unwrap();
        let answer = match word[0] {
            b'a' => return abort(stream),
            // The server waits for more.
            b'r' => stream.read(&mut word).map(|_| ()),
            // The server does not read. It writes until the connection fails.
            b'w' => loop {
                if let Err(error) = stream.write_all(&[0; 1 << 16]) {
                    break Err(error);
                }
            },
            // The server does not read. It waits until its socket has an error.
            _ => loop {
                if let Some(error) = stream.take_error().unwrap() {
                    break Err(error);
                }
                std::thread::sleep(POLL);
            },
        };
        let kind = answer.map_err(|error| error.kind());
        told.lock().unwrap().send((word[0], kind)).unwrap();
    });
    let [near, _far] = network.join("window_kb = 64");
    // The server aborts.
    let mut client = network.connect();
    client.write_all(b"a").unwrap();
    assert_reset(&mut client);
    let heard = |word: u8, act: &dyn Fn(TcpStream)| {
        let mut client = network.connect();
        client.write_all(&[word]).unwrap();
        near.wait_until("the connection is open", || near.open() >= 1);
        act(client);
        let (word_heard, kind) = said
            .recv_timeout(PATIENCE)
            .expect("the server hears of the abort");
        assert_eq!(word_heard, word);
        let kind = kind.expect_err("an abort");
        assert!(
            matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
            "{kind:?}"
        );
    };
    heard(b'r', &abort);
    // The client has closed its sending direction, and aborts while the server still writes.
    heard(b'w', &|client| {
        client.shutdown(Shutdown::Write).unwrap();
        let mut some = [0; 100_000];
        (&client).read_exact(&mut some).unwrap();
        abort(client);
    });
    // The client has filled the window, so the tunnel no longer reads the client's socket.
    heard(b's', &|client| {
        client
            .set_write_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        while (&client).write_all(&[0; 1 << 16]).is_ok() {}
        abort(client);
    });
    near.wait_until("all are forgotten", || near.open() == 0);
}

#[test]
fn a_reader_that_stops_blocks_only_its_own_connection() {
    const STALLED: usize = 16;
    let Some(network) = TunnelNetwork::new("a_reader_that_stops_blocks_only_its_own_connection") else {
        return;
    };
    let written = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&written);
    network.serve(move |mut stream| {
        let mut word = [0; 1];
        stream.read_exact(&mut word).unwrap();
        if word[0] == b'e' {
            return echo(stream);
        }
        while let Ok(length) = stream.write(&[1; 1 << 16]) {
            count.fetch_add(length as u64, Ordering::Relaxed);
        }
    });
    let [near, far] = network.join("window_kb = 1024");
    let mut other = network.connect();
    other.write_all(b"e").unwrap();
    ask(&mut other, "before");
    let before = [near.memory(), far.memory()];
    let stalled: Vec<TcpStream> = (0..STALLED)
        .map(|_| {
            let mut stream = network.connect();
            stream.write_all(b"s").unwrap();
            stream
        })
        .collect();
    let mut last = 0;
    near.wait_until("the servers are blocked", || {
        ask(&mut other, "meanwhile");
        std::thread::sleep(Duration::from_millis(200));
        let now = written.load(Ordering::Relaxed);
        std::mem::replace(&mut last, now) == now && now > 0
    });
    ask(&mut other, "after");
    // 1 MiB of window for each stalled connection, the association's two buffers of 4 MiB each, and this sum again for the allocator.
    let bound = (2 * (STALLED as u64 + 8)) << 20;
    for (end, before) in [&near, &far].into_iter().zip(before) {
        let grown = end.memory().saturating_sub(before);
        assert!(grown < bound, "{grown} bytes");
    }
    // A reader that goes on gets everything.
    let mut first = &stalled[0];
    let mut some = vec![0; 8 << 20];
    first.read_exact(&mut some).unwrap();
    assert!(some.iter().all(|byte| *byte == 1));
}

#[test]
fn a_thousand_connections_share_an_association() {
    const CONNECTIONS: u64 = 1000;
    let Some(network) = TunnelNetwork::new("a_thousand_connections_share_an_association") else {
        return;
    };
    linux::process::raise_file_limit().unwrap();
    network.serve(echo);
    let [near, far] = network.join(&format!("connections = {CONNECTIONS}"));
    let mut clients: Vec<TcpStream> = (0..CONNECTIONS).map(|_| network.connect()).collect();
    for round in 0..3 {
        for (number, client) in clients.iter_mut().enumerate() {
            client
                .write_all(format!("{round}-{number}-{}", "x".repeat(2000)).as_bytes())
                .unwrap();
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let expected = format!("{round}-{number}-{}", "x".repeat(2000));
            let mut answer = vec![0; expected.len()];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(answer, expected.as_bytes());
        }
    }
    assert_eq!(near.open(), CONNECTIONS);
    // A client beyond the limit is refused after a while.
    let mut refused = network.connect();
    assert_reset(&mut refused);
    let status = near.status();
    assert_eq!([&status["refused"], &status["reset"]], [1, 0], "{status}");
    drop(clients);
    for end in [&near, &far] {
        end.wait_until("all have ended", || end.open() == 0);
    }
}

/// Ends of the tunnel stop, are killed and come back. Connections end and new ones work. Connections end by a reset, except at
/// a killed end.
#[test]
fn what_an_end_loses_is_reset_and_new_connections_work() {
    let Some(network) = TunnelNetwork::new("what_an_end_loses_is_reset_and_new_connections_work") else {
        return;
    };
    let (told, said) = std::sync::mpsc::channel();
    let told = std::sync::Mutex::new(told);
    network.serve(move |mut stream| {
        let mut buffer = [0; 1000];
        let end = loop {
            match stream.read(&mut buffer) {
                Ok(length @ 1..) => stream.write_all(&buffer[..length]).unwrap(),
                end => break end,
            }
        };
        told.lock()
            .unwrap()
            .send(end.map_err(|error| error.kind()))
            .unwrap();
    });
    let [mut near, mut far] = network.join("");
    let open = || -> Vec<TcpStream> {
        let mut clients: Vec<TcpStream> = (0..8).map(|_| network.connect()).collect();
        clients.iter_mut().for_each(|client| ask(client, "hello"));
        clients
    };
    for (end, signal) in [
        (1, Signal::SIGTERM),
        (1, Signal::SIGKILL),
        (0, Signal::SIGKILL),
        (0, Signal::SIGTERM),
    ] {
        let mut clients = open();
        if end == 1 {
            far.end(signal);
            far = network.start(1, "");
        } else {
            near.end(signal);
            near = network.start(0, "");
        }
        // Connections end by a reset, except at an end that was killed: there the kernel may end them by a FIN.
        let is_reset = |here: usize| here != end || signal != Signal::SIGKILL;
        clients
            .iter_mut()
            .for_each(if is_reset(0) { assert_reset } else { assert_over });
        for _ in 0..8 {
            let heard = said.recv_timeout(PATIENCE).expect("each server hears of the end");
            let reset = Err(ErrorKind::ConnectionReset);
            assert!(!is_reset(1) || heard == reset, "{end} {signal}: {heard:?}");
        }
        near.wait_for_paths();
    }
    drop(open());
    near.end(Signal::SIGTERM);
    assert!(
        !near.config.with_file_name("state0").exists(),
        "nothing is left of a stopped tunnel"
    );
}

/// The near end is behind a NAT that forgets its mapping.
#[test]
fn a_peer_that_comes_back_from_another_port_is_followed() {
    let Some(network) = TunnelNetwork::new("a_peer_that_comes_back_from_another_port_is_followed") else {
        return;
    };
    network.serve(echo);
    let translate = |port: u16| {
        nft(
            &network.hosts[0],
            &format!(
                "table ip nat\ndelete table ip nat\ntable ip nat {{\n\
                 chain out {{ type filter hook postrouting priority 0\nudp sport 9899 udp sport set {port}\n}}\n\
                 chain in {{ type filter hook prerouting priority -300\nudp dport {port} udp dport set 9899\n}}\n}}"
            ),
        );
    };
    translate(40_000);
    let [near, far] = network.join("rto_min_ms = 100");
    let mut client = network.connect();
    ask(&mut client, "by the first mapping");
    translate(41_000);
    ask(&mut client, "by the second mapping");
    assert_eq!(far.status()["associations_ended"], 0);
    drop(near);
    translate(42_000);
    let near = network.start(0, "");
    near.wait_for_paths();
    assert_over(&mut client);
    ask(&mut network.connect(), "a new process by the third mapping");
}

#[test]
fn a_cut_path_is_left_and_shown() {
    let Some(network) = TunnelNetwork::new("a_cut_path_is_left_and_shown") else {
        return;
    };
    network.serve(echo);
    let [near, far] = network.join("watch_ms = 20");
    let mut client = network.connect();
    ask(&mut client, "over the first path");
    network.cut_first();
    ask(&mut client, "over the second path");
    near.wait_until("the first path has failed", || {
        let paths = near.status()["associations"][0]["paths"].clone();
        paths[0]["state"] == "failed" && paths[1]["current"] == true
    });
    let text = near.command(&["status"]).output;
    assert!(
        text.contains("FAILED") && text.contains("10.2.0.2*") && text.contains("tunnel sf-test-near"),
        "{text}"
    );
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    forge(&network, &far);
    scrape(&near);
    let outcome = near.command(&["check-config"]);
    assert_eq!(outcome.code, 0, "{}", outcome.errors);
    assert!(outcome.errors.contains("all right"), "{}", outcome.errors);
}

/// An endpoint without the key. Each stranger has its own port. With the key, each one could get its own association.
fn stranger(number: u16) -> SctpWire {
    let plan = WirePlan {
        addresses: vec!["10.2.0.1".parse().unwrap()],
        udp_port: 20_000 + number,
        peer_udp_port: 9899,
        port: 20_000 + number,
        associations_max: 0,
    };
    SctpWire::open(SctpConfig::wire(SctpWire::lower_headers(&plan)), &plan).unwrap()
}

/// There are more strangers than the far end can have associations, and all of them call again and again. The peer with the key still gets
/// an association.
#[test]
fn strangers_do_not_keep_the_peer_out() {
    const STRANGERS: u16 = 32;
    let Some(network) = TunnelNetwork::new("strangers_do_not_keep_the_peer_out") else {
        return;
    };
    network.serve(echo);
    let far = network.start(1, "");
    far.wait_until("the far end runs", || far.status()["name"].is_string());
    let mut strangers: Vec<SctpWire> = network.hosts[0].run(|| (0..STRANGERS).map(stranger).collect());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for wire in &mut strangers {
                    let now = linux::clock::now();
                    if wire.endpoint.is_empty() {
                        wire.endpoint
                            .connect(now, &["10.2.0.2".parse().unwrap()], 9899)
                            .unwrap();
                    }
                    wire.receive(now, 16);
                    wire.endpoint.handle_timeout(now);
                    wire.flush(now);
                    while wire.endpoint.poll_event().is_some() {}
                    wire.flush(now);
                }
                std::thread::sleep(POLL);
            }
        });
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            far.wait_until("each stranger has called several times", || {
                far.status()["counters"]["unproven_cookies"].as_u64() > Some(10 * u64::from(STRANGERS))
            });
            assert_eq!(far.status()["associations"], serde_json::json!([]));
            let near = network.start(0, "");
            near.wait_for_paths();
            ask(&mut network.connect(), "among strangers");
            let status = far.status();
            assert_eq!(
                status["associations"].as_array().map(Vec::len),
                Some(1),
                "{status}"
            );
            let told = far
                .log()
                .matches("the callers do not have this end's key")
                .count();
            assert!((1..20).contains(&told), "{told} lines");
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = found {
            std::panic::resume_unwind(panic);
        }
    });
}

/// A third party's packets are counted as malformed, and do no harm.
fn forge(network: &TunnelNetwork, far: &RunningTunnel<'_>) {
    let stranger = network.hosts[0].run(|| UdpSocket::bind("10.2.0.1:7777").unwrap());
    let counters = || far.status()["counters"].clone();
    let malformed = counters()["malformed"].as_u64().unwrap();
    for _ in 0..50 {
        stranger.send_to(&[0; 40], "10.2.0.2:9899").unwrap();
    }
    far.wait_until("they are counted", || {
        counters()["malformed"].as_u64().unwrap() == malformed + 50
    });
}

/// Checks that the metrics show what the status shows. The metrics may be a second old.
fn scrape(near: &RunningTunnel<'_>) {
    let page = || {
        let mut stream = near.host.run(|| TcpStream::connect(METRICS).unwrap());
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: tunnel\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let failed = "steadfast_tunnel_path_state{association=\"0\",path=\"10.1.0.2\",state=\"failed\"} 1";
    near.wait_until("the metrics show the failed path", || page().contains(failed));
    let page = page();
    for line in [
        "steadfast_tunnel_connections 1",
        "steadfast_tunnel_connections_total{outcome=\"opened\"} 1",
        "steadfast_tunnel_connections_total{outcome=\"refused\"} 0",
        "steadfast_tunnel_path_current{association=\"0\",path=\"10.2.0.2\"} 1",
        "steadfast_tunnel_associations 1",
        "steadfast_tunnel_path_failures_total{association=\"0\",path=\"10.1.0.2\"} 1",
    ] {
        assert!(page.contains(&format!("{line}\n")), "{line}\n{page}");
    }
    for name in [
        "round_trip_seconds",
        "rto_seconds",
        "window_bytes",
        "mtu_bytes",
        "sent_bytes_total",
    ] {
        let prefix = format!("steadfast_tunnel_path_{name}{{association=\"0\",path=\"10.2.0.2\"}} ");
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix(&prefix)?.parse::<f64>().ok());
        assert!(value.is_some_and(|value| value > 0.0), "{name}\n{page}");
    }
}

/// While there are no free descriptors, clients wait, the tunnel does not spin, and its log has one line about the failure.
#[test]
fn clients_wait_while_there_are_no_descriptors() {
    let Some(network) = TunnelNetwork::new("clients_wait_while_there_are_no_descriptors") else {
        return;
    };
    network.serve(echo);
    let _far = network.start(1, "");
    let config = network.config(0, "");
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "ulimit -n 40; exec setpriv --bounding-set=-sys_resource \"$0\" tunnel --config \"$1\"",
    ]);
    command.arg(PROGRAM).arg(&config);
    let near = network.start_by(0, command);
    near.wait_for_paths();
    let mut clients: Vec<TcpStream> = (0..60).map(|_| network.connect()).collect();
    let told = "clients cannot be accepted";
    near.wait_until("there are no descriptors left", || near.log().contains(told));
    let before = near.cpu_ticks();
    std::thread::sleep(Duration::from_secs(2));
    let used = near.cpu_ticks() - before;
    assert!(used < 50, "{used} ticks of CPU time in two seconds");
    assert_eq!(near.log().matches(told).count(), 1);
    // When some connections end, waiting ones are accepted.
    ask(&mut clients[0], "accepted");
    let mut last = clients.pop().unwrap();
    drop(clients);
    ask(&mut last, "accepted later");
}

/// Both ends are started by options, without a file. The paths are UDP and raw IP, IPv4 and IPv6. One of the two paths is cut.
#[test]
fn a_tunnel_by_options_carries_data_over_every_kind_of_path() {
    const BYTES: usize = 2 << 20;
    let Some(network) = TunnelNetwork::new("a_tunnel_by_options_carries_data_over_every_kind_of_path") else {
        return;
    };
    for (path, (host, last)) in [0, 1].into_iter().flat_map(|path| {
        let hosts = network.hosts.iter().zip(1..);
        hosts.map(move |host| (path, host))
    }) {
        host.ip(&format!("addr add fd0{path}::{last}/64 dev p{path} nodad"));
    }
    network.serve(echo);
    let key = network.key();
    let text = pattern(BYTES);
    for (vias, to, port) in [
        (
            ["10.1.0.1,10.2.0.1", "10.1.0.2,10.2.0.2"],
            "10.1.0.2:9899",
            "9899",
        ),
        (["10.1.0.1,10.2.0.1", "10.1.0.2,10.2.0.2"], "10.1.0.2:9899", "0"),
        (["fd00::1,fd01::1", "fd00::2,fd01::2"], "[fd00::2]:9899", "9899"),
        (["fd00::1,fd01::1", "fd00::2,fd01::2"], "[fd00::2]:9899", "0"),
    ] {
        let start = |end: usize, ways: &[&str]| {
            let mut command = steadfast(&[
                "tunnel",
                "--via",
                vias[end],
                "--udp-port",
                port,
                "--watch-ms",
                "50",
            ]);
            command.arg("--key-file").arg(&key).args(ways);
            network.start_by(end, command)
        };
        let _far = start(1, &["--forward", SERVER]);
        let near = start(0, &["--listen", CLIENTS, "--to", to]);
        let kind = format!("{to} port {port}");
        let established = "an association is established";
        near.wait_until(&kind, || near.log().contains(established));
        let mut client = network.connect();
        ask(&mut client, &kind);
        network.cut_first();
        let mut writer = client.try_clone().unwrap();
        let sent = text.clone();
        let writer = std::thread::spawn(move || writer.write_all(&sent).unwrap());
        let mut read = vec![0; BYTES];
        client.read_exact(&mut read).unwrap();
        writer.join().unwrap();
        assert!(read == text, "{kind}: the bytes differ");
        near.wait_until("the cut path is left", || {
            near.log().contains("a path has failed")
        });
        for host in &network.hosts {
            nft(host, "delete table inet cut");
        }
        fs::remove_file(&near.log).unwrap();
    }
}

/// The client and the server know nothing of the tunnel.
#[test]
fn unmodified_programs_work() {
    let Some(network) = TunnelNetwork::new("unmodified_programs_work") else {
        return;
    };
    let redis = network.hosts[1].run(|| {
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            "7000",
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.args(["--dir", network.dir.path().to_str().unwrap()]);
        command.stdout(std::process::Stdio::null()).spawn()
    });
    let _redis = TestProcess(redis.expect("redis-server can be run"));
    let [near, _far] = network.join("");
    let run = |program: &str, arguments: &[&str]| {
        let output = network.hosts[0].run(|| Command::new(program).args(arguments).output().unwrap());
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{program}: {text}\n{}", near.log());
        text
    };
    near.wait_until("redis answers", || {
        network.hosts[0].run(|| {
            let ping = Command::new("redis-cli")
                .args(["-p", "8080", "ping"])
                .output()
                .unwrap();
            ping.stdout.starts_with(b"PONG")
        })
    });
    let text = run(
        "redis-benchmark",
        &[
            "-p",
            "8080",
            "-q",
            "-n",
            "2000",
            "-c",
            "40",
            "-P",
            "4",
            "-t",
            "set,get,lpush,mset",
        ],
    );
    assert!(
        text.contains("requests per second") && !text.contains("rror"),
        "{text}"
    );
    let written = run("redis-cli", &["-p", "8080", "set", "key", "value"]);
    assert_eq!(written.trim(), "OK");
    assert_eq!(run("redis-cli", &["-p", "8080", "get", "key"]).trim(), "value");
    assert_eq!(near.status()["refused"], 0);
}
