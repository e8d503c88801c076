//! Two edges around two nodes: client – r1 – {n1, n2} – r2 – server.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proto::Seq;
use proto::packet::{Flags, Segment, TcpOptions};
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use crate::lan::{CommandOutput, HostNamespace, POLL, steadfast};

const PATIENCE: Duration = Duration::from_secs(20);

/// The network: each host is a namespace.
struct EdgeNetwork {
    client: HostNamespace,
    server: HostNamespace,
    edges: [HostNamespace; 2],
    nodes: [HostNamespace; 2],
    dir: tempfile::TempDir,
}

/// A host, one of its interfaces, and the address of that interface.
type End<'a> = (&'a HostNamespace, &'a str, &'a str);

impl EdgeNetwork {
    fn new(test: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: {test}: network namespaces need root");
            return None;
        }
        let [client, server, r1, r2, n1, n2] = std::array::from_fn(|_| HostNamespace::new());
        let network = Self {
            client,
            server,
            edges: [r1, r2],
            nodes: [n1, n2],
            dir: tempfile::tempdir().unwrap(),
        };
        let [r1, r2] = &network.edges;
        cable((&network.client, "eth0", "10.1.0.2"), (r1, "out", "10.1.0.1"));
        cable((&network.server, "eth0", "10.2.0.2"), (r2, "out", "10.2.0.1"));
        network.client.ip("route add default via 10.1.0.1");
        network.server.ip("route add default via 10.2.0.1");
        for (index, node) in network.nodes.iter().enumerate() {
            let (name, number) = (["a", "b"][index], index + 1);
            cable(
                (r1, name, &format!("10.1{number}.0.1")),
                (node, "left", &format!("10.1{number}.0.2")),
            );
            cable(
                (r2, name, &format!("10.2{number}.0.1")),
                (node, "right", &format!("10.2{number}.0.2")),
            );
            node.ip(&format!("route add 10.1.0.0/24 via 10.1{number}.0.1"));
            node.ip(&format!("route add 10.2.0.0/24 via 10.2{number}.0.1"));
            r1.ip(&format!("route add 10.2{number}.0.0/24 via 10.1{number}.0.2"));
            r2.ip(&format!("route add 10.1{number}.0.0/24 via 10.2{number}.0.2"));
        }
        // Without edges, everything goes through the second node.
        r1.ip("route add 10.2.0.0/24 via 10.12.0.2");
        r2.ip("route add 10.1.0.0/24 via 10.22.0.2");
        for router in network.edges.iter().chain(&network.nodes) {
            router.run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        }
        Some(network)
    }

    /// Writes a file with a key that consists of one digit.
    fn key(&self, name: &str, digit: &str) -> PathBuf {
        let key = self.dir.path().join(name);
        fs::write(&key, digit.repeat(64)).unwrap();
        fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        key
    }

    /// Writes the configuration of an edge, with `old` replaced by `new`.
    fn config(&self, edge: usize, old: &str, new: &str) -> PathBuf {
        let key = self.key("key", "7");
        let (name, peer) = ([NAMES[0], NAMES[1]][edge], NAMES[1 - edge]);
        let subnets = ["[inside]", "[outside]"][edge];
        let other = ["[outside]", "[inside]"][edge];
        let (own, far) = (edge + 1, 2 - edge);
        let mut text = format!(
            "[edge]\nname = \"{name}\"\npeer = \"{peer}\"\nkey_file = {key:?}\nstate_dir = {:?}\nagent_timeout_ms = 2000\n",
            self.state_dir(edge)
        );
        let port = "interface = \"out\"\n";
        let line = |table: &str| if table == "[outside]" { port } else { "" };
        text += &format!("{other}\n{}", line(other));
        text += &format!("{subnets}\n{}subnets = [\"10.2.0.0/16\"]\n", line(subnets));
        for (index, string) in ["a", "b"].iter().enumerate() {
            let number = index + 1;
            text += &format!(
                "[[string]]\nname = \"{string}\"\ninterface = \"{string}\"\naddress = \"10.{own}{number}.0.1\"\n\
                 peer_address = \"10.{far}{number}.0.1\"\nnext_hop = \"10.{own}{number}.0.2\"\nmbit = 1000\n"
            );
        }
        // A loaded machine must not look like a failed string.
        text += "[heartbeat]\ninterval_ms = 100\nfailed_after = 5\n";
        text += &format!("[metrics]\nlisten = \"{METRICS}\"\n");
        assert!(text.contains(old), "{old:?} is in the usual configuration");
        let path = self.dir.path().join(format!("{name}.toml"));
        fs::write(&path, text.replacen(old, new, 1)).unwrap();
        path
    }

    fn state_dir(&self, edge: usize) -> PathBuf {
        self.dir.path().join(format!("state{edge}"))
    }

    fn start(&self, edge: usize) -> RunningEdge<'_> {
        self.start_with(edge, "[edge]", "[edge]")
    }

    /// Starts an edge with `old` in its configuration replaced by `new`.
    fn start_with(&self, edge: usize, old: &str, new: &str) -> RunningEdge<'_> {
        let config = self.config(edge, old, new);
        let log = self.dir.path().join(format!("{edge}.log"));
        let namespace = &self.edges[edge];
        let process = spawn(namespace, &config, &log);
        RunningEdge {
            namespace,
            config,
            log,
            process,
        }
    }

    fn set_cable(&self, string: usize, state: &str) {
        for port in ["left", "right"] {
            self.nodes[string].ip(&format!("link set dev {port} {state}"));
        }
    }
}

fn spawn(namespace: &HostNamespace, config: &Path, log: &Path) -> Child {
    let mut command = steadfast(&[
        "edge",
        "--log-format",
        "json",
        "--config",
        config.to_str().unwrap(),
    ]);
    command.stderr(File::options().create(true).append(true).open(log).unwrap());
    namespace.run(|| command.spawn().unwrap())
}

/// The address at which each edge serves its metrics, in its namespace.
const METRICS: &str = "127.0.0.1:9465";

const NAMES: [&str; 2] = ["sf-test-r1", "sf-test-r2"];

fn cable(one: End<'_>, other: End<'_>) {
    let there = other.0.path();
    one.0.ip(&format!(
        "link add name {} type veth peer name {} netns {there}",
        one.1, other.1
    ));
    for (host, interface, address) in [one, other] {
        host.ip(&format!("addr add {address}/24 dev {interface}"));
        host.ip(&format!("link set dev {interface} up"));
    }
}

/// A running edge. It is killed and cleaned up if the test ends first.
struct RunningEdge<'a> {
    namespace: &'a HostNamespace,
    config: PathBuf,
    log: PathBuf,
    process: Child,
}

impl RunningEdge<'_> {
    fn command(&self, arguments: &[&str]) -> CommandOutput {
        let config = self.config.to_str().unwrap();
        let arguments = [arguments, &["--config", config]].concat();
        self.namespace
            .run(|| CommandOutput::of(&mut steadfast(&arguments)))
    }

    fn status(&self) -> Value {
        let outcome = self.command(&["status", "--json"]);
        serde_json::from_str(&outcome.output).unwrap_or(Value::Null)
    }

    /// The page of metrics.
    fn metrics(&self) -> String {
        let mut stream = self.namespace.run(|| TcpStream::connect(METRICS).unwrap());
        let request = "GET /metrics HTTP/1.1\r\nhost: edge\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        answer
    }

    fn states(&self) -> Vec<String> {
        let status = self.status();
        let strings = status["strings"].as_array().cloned().unwrap_or_default();
        strings
            .iter()
            .map(|one| one["state"].as_str().unwrap().to_owned())
            .collect()
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn wait_for(&self, states: [&str; 2]) {
        self.wait_until(&format!("{states:?}"), || self.states() == states);
    }

    fn wait_until(&self, event: &str, happened: impl Fn() -> bool) {
        let since = Instant::now();
        while !happened() {
            assert!(
                since.elapsed() < PATIENCE,
                "{event}: {}\n{}",
                self.status(),
                self.log()
            );
            std::thread::sleep(POLL);
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.process.id()).unwrap());
        kill(pid, signal).unwrap();
    }
}

impl Drop for RunningEdge<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = self.command(&["cleanup"]);
    }
}

/// Eight connections through the cluster to a server that sends back what it gets.
struct EightEchoes(Vec<TcpStream>);

impl EightEchoes {
    fn open(network: &EdgeNetwork) -> Self {
        let connect = || {
            let stream = TcpStream::connect("10.2.0.2:7").unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_nodelay(true).unwrap();
            stream
        };
        Self(network.client.run(|| (0..8).map(|_| connect()).collect()))
    }

    fn work(&mut self, text: &str) {
        for stream in &mut self.0 {
            stream.write_all(text.as_bytes()).unwrap();
            let mut back = vec![0; text.len()];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(back, text.as_bytes());
        }
    }
}

fn serve(network: &EdgeNetwork) {
    let listener = network.server.run(|| TcpListener::bind("10.2.0.2:7").unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut reader = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut reader, &mut stream);
            });
        }
    });
}

fn is_pinned(name: &str) -> bool {
    Path::new("/sys/fs/bpf/steadfast-edge").join(name).exists()
}

#[test]
fn connections_outlive_strings_and_daemons() {
    let Some(network) = EdgeNetwork::new("connections_outlive_strings_and_daemons") else {
        return;
    };
    serve(&network);
    give_another_key(&network);
    leave_out_wrong_checksums(&network);
    let (mut r1, mut r2) = (network.start(0), network.start(1));
    r1.wait_for(["up", "up"]);
    r2.wait_for(["up", "up"]);
    let mut echoes = EightEchoes::open(&network);
    echoes.work("both strings");
    assert_eq!(r1.status()["flows"], 8);

    replace_the_daemon(&mut r1, &r2, &mut echoes);
    refuse_an_upgrade(&network, &r1);
    echoes.work("a refused upgrade");

    // The cable of a string is pulled, and plugged in again.
    let first_failure = Instant::now();
    network.set_cable(0, "down");
    r1.wait_for(["down", "up"]);
    r2.wait_for(["down", "up"]);
    echoes.work("one string");
    let text = r1.command(&["status"]).output;
    assert!(
        text.contains("DOWN") && text.contains("edge sf-test-r1"),
        "{text}"
    );
    network.set_cable(0, "up");
    r1.wait_for(["up", "up"]);
    echoes.work("a string that is back");

    forge_heartbeats(&network, &r1);
    r1.wait_for(["up", "up"]);
    scrape(&r1);

    network.set_cable(0, "down");
    let second_failure = Instant::now();
    r1.wait_for(["down", "up"]);
    for edge in [&mut r1, &mut r2] {
        replace_the_daemon_while_a_string_is_down(edge, &mut echoes);
    }
    let plugged_in = Instant::now();
    network.set_cable(0, "up");
    r1.wait_for(["up", "up"]);
    // The string has failed twice within a minute, so it must be heard for two seconds. The new processes know of both failures.
    if second_failure - first_failure < Duration::from_secs(50) {
        assert!(plugged_in.elapsed() > Duration::from_secs(2), "{}", r1.log());
    }
    r1.wait_until("no window is capped", || {
        r1.status()["strings"][1]["cap"].is_null()
    });

    stop(&network, &mut r1);
    clean_up_after_a_dead_edge(&network, &mut r2);
    echoes.work("no edges");
}

/// An edge forwards a packet with a wrong TCP checksum, as any router does. But the edge does not cache such a packet, even if
/// `caching_after = 0` makes it cache all others.
fn leave_out_wrong_checksums(network: &EdgeNetwork) {
    let always = "[recovery]\ncaching_after = 0\n[heartbeat]";
    let (r1, r2) = (network.start_with(0, "[heartbeat]", always), network.start(1));
    r1.wait_for(["up", "up"]);
    r2.wait_for(["up", "up"]);
    EightEchoes::open(network).work("right checksums");
    let wrong = || r1.status()["counters"]["wrong_checksum"].as_u64();
    assert_eq!(wrong(), Some(0));
    let sender = network
        .client
        .run(|| Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255))).unwrap());
    let to: SocketAddr = "10.2.0.2:7".parse().unwrap();
    for (number, is_wrong) in [(1, true), (2, false), (3, true)] {
        let mut packet = Segment {
            source: ([10, 1, 0, 2], 40_000 + number).into(),
            destination: to,
            seq: Seq(1),
            ack: Seq(0),
            flags: Flags::SYN,
            window: 1000,
            options: TcpOptions::default(),
            payload: &[],
        }
        .emit();
        packet[36] ^= u8::from(is_wrong);
        sender.send_to(&packet, &to.into()).unwrap();
    }
    r1.wait_until("wrong checksums are counted", || wrong() == Some(2));
}

/// The data path of a killed daemon still forwards packets. The daemon's successor adopts the flows, and so does an upgraded daemon.
fn replace_the_daemon(r1: &mut RunningEdge<'_>, r2: &RunningEdge<'_>, echoes: &mut EightEchoes) {
    r1.signal(Signal::SIGKILL);
    r1.process.wait().unwrap();
    r2.wait_for(["blind", "blind"]);
    echoes.work("no daemon");
    r1.process = spawn(r1.namespace, &r1.config, &r1.log);
    r1.wait_for(["up", "up"]);
    r2.wait_for(["up", "up"]);
    assert_eq!(r1.status()["flows"], 8);
    r1.signal(Signal::SIGUSR2);
    r1.wait_until("the upgraded edge adopts the flows", || {
        r1.log().matches("adopted the flows").count() == 2
    });
    r1.wait_for(["up", "up"]);
    echoes.work("a successor");
}

/// A killed edge's successor counts no second failure, and windows stay capped.
fn replace_the_daemon_while_a_string_is_down(r1: &mut RunningEdge<'_>, echoes: &mut EightEchoes) {
    let is_capped = |r1: &RunningEdge<'_>| r1.status()["strings"][1]["cap"].as_u64().is_some();
    let epoch = |r1: &RunningEdge<'_>| r1.status()["strings"][0]["epoch"].as_u64();
    r1.wait_until("windows are capped", || is_capped(r1));
    let before = epoch(r1);
    r1.signal(Signal::SIGKILL);
    r1.process.wait().unwrap();
    r1.process = spawn(r1.namespace, &r1.config, &r1.log);
    r1.wait_for(["down", "up"]);
    assert!(is_capped(r1));
    assert_eq!(epoch(r1), before);
    echoes.work("a successor beside a failed string");
}

/// The configuration file of a running edge is replaced by one that does not fit the machine. The upgrade is refused, and the daemon goes
/// on.
fn refuse_an_upgrade(network: &EdgeNetwork, r1: &RunningEdge<'_>) {
    network.config(0, "interface = \"b\"", "interface = \"c\"");
    r1.signal(Signal::SIGUSR2);
    r1.wait_until("the upgrade is refused", || {
        r1.log().contains("the upgrade is refused")
    });
    network.config(0, "[edge]", "[edge]");
    r1.wait_for(["up", "up"]);
}

/// Edges without a common key refuse each other's heartbeats, but still forward packets.
fn give_another_key(network: &EdgeNetwork) {
    network.key("other", "8");
    let (r1, r2) = (network.start(0), network.start_with(1, "/key\"", "/other\""));
    for edge in [&r1, &r2] {
        edge.wait_until("heartbeats are refused", || {
            edge.status()["refused"][WRONG_KEY].as_u64() > Some(0)
        });
        edge.wait_for(["blind", "blind"]);
        // The first fields of the file are the name, the peer, and the key.
        let warning = format!(
            "{}:4: edge.key_file: heartbeats on the string ",
            edge.config.display()
        );
        edge.wait_until("the wrong key is in the log", || edge.log().contains(&warning));
    }
    EightEchoes::open(network).work("no common key");
}

/// A node of the cluster sends datagrams from its own address, and forged ones from the other edge's address. R1 counts them as refused and
/// ignores them.
fn forge_heartbeats(network: &EdgeNetwork, r1: &RunningEdge<'_>) {
    let own = network.nodes[1].run(|| UdpSocket::bind("10.12.0.2:7401").unwrap());
    for datagram in [&b"nonsense"[..], &[1; 200]] {
        own.send_to(datagram, R1_HEARTBEATS).unwrap();
    }
    let forged = network.nodes[1].run(socket_of_r2);
    // Two heartbeats with the highest possible sequence number declare both strings failed. One has no tag, one has a wrong tag.
    let strings = ["a", "b"].map(|name| {
        format!(r#"{{"name":"{name}","epoch":1000,"is_usable":false,"is_heard":false,"is_steady":false}}"#)
    });
    let contents = format!(r#"{{"string":"b","strings":[{}]}}"#, strings.join(","));
    for (flags, tag) in [(0, &[][..]), (1, &[7; 32][..])] {
        let header = [&[1, 1, 3, 1, flags, 0, 0, 0][..], &[0xff; 16], &[0; 16]].concat();
        let datagram = [&header[..], contents.as_bytes(), tag].concat();
        forged.send_to(&datagram, R1_HEARTBEATS).unwrap();
    }
    forged.send_to(b"nonsense", R1_HEARTBEATS).unwrap();
    let reasons = [
        ("another node's", 2),
        ("not authenticated", 1),
        (WRONG_KEY, 1),
        ("malformed", 1),
    ];
    let epochs = |edge: &RunningEdge<'_>| -> Vec<u64> {
        let status = edge.status();
        let strings = status["strings"].as_array().cloned().unwrap_or_default();
        strings.iter().filter_map(|one| one["epoch"].as_u64()).collect()
    };
    r1.wait_until("forged datagrams are counted", || {
        let refused = &r1.status()["refused"];
        reasons.iter().all(|(reason, count)| refused[reason] == *count)
    });
    assert!(epochs(r1).iter().all(|epoch| *epoch < 1000), "{:?}", epochs(r1));
}

/// The address at which the first edge gets the heartbeats of the second string.
const R1_HEARTBEATS: &str = "10.12.0.1:7401";
/// Reason for which a heartbeat with a wrong authentication tag is refused.
const WRONG_KEY: &str = "authenticated by another key or name";

/// A socket that sends in the name of the second edge.
fn socket_of_r2() -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    socket.set_ip_transparent_v4(true).unwrap();
    let address: SocketAddr = "10.22.0.1:7401".parse().unwrap();
    socket.bind(&address.into()).unwrap();
    socket.into()
}

/// Checks that the metrics show all that has happened so far. The metrics may be a second old.
fn scrape(edge: &RunningEdge<'_>) {
    let forged = "steadfast_edge_heartbeats_refused_total{reason=\"another node's\"} 2";
    edge.wait_until("the metrics show the forged datagrams", || {
        edge.metrics().contains(forged)
    });
    let page = edge.metrics();
    let sample = |name: &str| -> f64 {
        let of_line = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
        page.lines()
            .find_map(of_line)
            .unwrap_or_else(|| panic!("{name}\n{page}"))
    };
    for string in ["a", "b"] {
        let state = format!("steadfast_edge_string_state{{state=\"up\",string=\"{string}\"}}");
        assert_eq!(sample(&state), 1.0);
        for kind in ["sent", "heard"] {
            assert!(
                sample(&format!(
                    "steadfast_edge_heartbeats_{kind}_total{{string=\"{string}\"}}"
                )) > 0.0
            );
        }
    }
    assert!(sample("steadfast_edge_failovers_total{string=\"a\"}") >= 1.0);
    // Perhaps no heartbeat was missed while the cable was out, because a lost carrier is noticed at once.
    assert!(sample("steadfast_edge_heartbeats_missed_total{string=\"a\"}") >= 0.0);
    assert!(sample("steadfast_edge_last_failover_seconds{string=\"a\"}") >= 0.0);
    assert_eq!(sample("steadfast_edge_flows"), 8.0);
    for direction in ["entering", "leaving"] {
        let of_string = |kind: &str| {
            let labels = format!("{{direction=\"{direction}\",string=\"b\"}}");
            sample(&format!("steadfast_edge_{kind}_total{labels}"))
        };
        assert!(of_string("packets") > 0.0 && of_string("bytes") > 40.0 * of_string("packets"));
    }
    for event in [
        "copied",
        "copy_lost",
        "dropped_held",
        "uncapped_flows",
        "malformed",
        "withheld",
    ] {
        assert!(sample(&format!("steadfast_edge_events_total{{event=\"{event}\"}}")) >= 0.0);
    }
    assert!(sample("steadfast_edge_round_trip_seconds") > 0.0);
    assert!(!page.contains("steadfast_edge_window_cap_bytes{"), "{page}");
}

/// After a stop, no filter and no state of the edge is left. The kernel forwards packets as before.
fn stop(network: &EdgeNetwork, r1: &mut RunningEdge<'_>) {
    r1.signal(Signal::SIGTERM);
    assert!(r1.process.wait().unwrap().success());
    assert!(!is_pinned(NAMES[0]) && !network.state_dir(0).exists());
    let filters = network.edges[0].run(|| {
        let mut tc = std::process::Command::new("tc");
        CommandOutput::of(tc.args(["filter", "show", "dev", "a", "ingress"]))
    });
    assert_eq!(filters.output, "");
}

fn clean_up_after_a_dead_edge(network: &EdgeNetwork, r2: &mut RunningEdge<'_>) {
    r2.signal(Signal::SIGKILL);
    r2.process.wait().unwrap();
    assert!(is_pinned(NAMES[1]));
    assert_eq!(r2.command(&["cleanup"]).code, 0);
    assert!(!is_pinned(NAMES[1]) && !network.state_dir(1).exists());
}

#[test]
fn a_file_that_does_not_fit_the_machine_is_refused() {
    let Some(network) = EdgeNetwork::new("a_file_that_does_not_fit_the_machine_is_refused") else {
        return;
    };
    let check = |old: &str, new: &str| {
        let config = network.config(0, old, new);
        let file = ["--config", config.to_str().unwrap()];
        let [as_edge, as_config] = [&["edge", "--check"][..], &["check-config"]].map(|command| {
            let arguments = [command, &file].concat();
            let outcome = network.edges[0].run(|| CommandOutput::of(&mut steadfast(&arguments)));
            (outcome.code, outcome.errors)
        });
        assert_eq!(as_edge, as_config);
        as_config
    };
    let file = network.dir.path().join(format!("{}.toml", NAMES[0]));
    let at = |line: usize, problem: &str| format!("{}:{line}: {problem}", file.display());
    assert_eq!(check("[edge]", "[edge]").0, 0);
    for (old, new, line, problem) in [
        (
            "interface = \"b\"",
            "interface = \"c\"",
            20,
            "string[1].interface: there is no c; there are",
        ),
        (
            "address = \"10.12.0.1\"",
            "address = \"10.12.0.9\"",
            21,
            "string[1].address: b does not have 10.12.0.9; it has 10.12.0.1",
        ),
        ("/key\"", "/no-key\"", 4, "edge.key_file: "),
        ("mbit = 1000", "mbit = 0", 17, "string[0].mbit: "),
        (
            "interface = \"b\"",
            "interface = \"b\"\nvlan = 7",
            21,
            "string[1].vlan: unknown key",
        ),
        (
            "listen = \"127.0.0.1:9465\"",
            "listen = \"10.1.0.1:9465\"",
            29,
            "metrics.listen: 10.1.0.1:9465 can be reached from other hosts",
        ),
    ] {
        let (code, errors) = check(old, new);
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains(&at(line, problem)), "{errors}");
    }
    network.edges[0].run(|| fs::write("/proc/sys/net/ipv4/conf/a/rp_filter", "1").unwrap());
    network.edges[0].ip("route del 10.21.0.0/24");
    let (code, errors) = check("[edge]", "[edge]");
    assert_eq!(code, 2, "{errors}");
    let problem = at(13, "string[0].interface: a has a strict reverse-path filter");
    assert!(errors.contains(&problem), "{errors}");
}
