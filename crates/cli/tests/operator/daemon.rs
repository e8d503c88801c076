//! Runs the daemons of a pair, for all tests of this program. The tests of this file check metrics, the hook `on_deposed`, a failed link, a
//! regular stop, and `cleanup` after a kill.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::keeper::listen;
use crate::lan::{CommandOutput, HostNamespace, OperatorLan, POLL, PROGRAM, program, steadfast};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;

/// Reasons why a connection that is older than the backup's agent is not protected.
const SILENT: &str = "older than the wire, and silent; protected once its next request is answered";
const OLDER: &str = "older than the wire; protected once its next request is answered";

/// Starts a daemon that records all inputs of its node.
fn spawn(namespace: &HostNamespace, path: &Path, config: &Path, log: Stdio) -> Child {
    let recordings = recordings_of(config);
    let arguments = [config, &recordings].map(|path| path.to_str().unwrap());
    let mut command = program(
        path,
        &[
            "run",
            "--log-format",
            "json",
            "--config",
            arguments[0],
            "--record",
            arguments[1],
        ],
    );
    command.stderr(log);
    namespace.run(|| command.spawn().unwrap())
}

fn append(log: &Path) -> Stdio {
    let log = File::options().create(true).append(true).open(log);
    log.unwrap().into()
}

fn recordings_of(config: &Path) -> PathBuf {
    config.with_extension("recordings")
}

/// Replays the recordings of the daemons with this configuration. A new `Node` must return the same actions.
fn replay(config: &Path) {
    let Ok(recordings) = std::fs::read_dir(recordings_of(config)) else {
        return; // no daemon got far enough to record
    };
    for recording in recordings {
        let path = recording.unwrap().path();
        let mut file = BufReader::new(File::open(&path).unwrap());
        let replayed = agent::recording::replay(&mut file, |_, _| Ok(()));
        let replayed = replayed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(replayed.difference, None, "{}", path.display());
    }
}

/// A running daemon. It is killed if the test ends first.
pub struct Daemon<'a> {
    namespace: &'a HostNamespace,
    pub program: PathBuf,
    pub state_dir: PathBuf,
    pub config: PathBuf,
    /// The initial configuration.
    pub text: String,
    pub log: PathBuf,
    pub process: Child,
}

impl<'a> Daemon<'a> {
    /// Starts the node `name` of the pair whose primary is `primary`. The tuple describes the other node: its name, and the last byte of
    /// its address on every link.
    fn start(
        namespace: &'a HostNamespace,
        dir: &Path,
        name: &str,
        (peer_name, peer): (&str, u8),
        primary: &str,
        kind: &PairSpec<'_>,
    ) -> Self {
        let PairSpec { policy, links, .. } = kind;
        let agent_timeout_ms = kind.agent_timeouts_ms[usize::from(name != primary)];
        let addresses: Vec<String> = links.iter().map(|link| format!("{link}.{peer}")).collect();
        let key = dir.join("key");
        std::fs::write(&key, "5".repeat(64)).unwrap();
        std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        let state_dir = dir.join(name);
        let config = dir.join(format!("{name}.toml"));
        let text = format!(
            r#"
            [node]
            name = "{name}"
            state_dir = "{}"
            agent_timeout_ms = {agent_timeout_ms}
            snapshot_socket = "{}"
            [peer]
            name = "{peer_name}"
            addresses = {addresses:?}
            key_file = {key:?}
            [detector]
            heartbeat_ms = 50
            missed = 40
            [log]
            ring_mb = 1
            {}
            [metrics]
            listen = "127.0.0.1:9464"
            [[service]]
            name = "web"
            address = "10.0.0.100"
            port = 80
            interface = "eth0"
            policy = "{policy}"
            primary = "{primary}"
            on_deposed = ["sh", "-c", "echo $STEADFAST_SERVICE >> {}"]
            {}
            "#,
            state_dir.display(),
            snapshot_socket(&state_dir).display(),
            kind.log,
            dir.join(format!("{name}.deposed")).display(),
            kind.service.replace("PEER", &peer.to_string()),
        );
        std::fs::write(&config, &text).unwrap();
        let log = dir.join(format!("{name}.log"));
        let process = spawn(namespace, PROGRAM.as_ref(), &config, append(&log));
        Self {
            namespace,
            program: PROGRAM.into(),
            state_dir,
            config,
            text,
            log,
            process,
        }
    }

    /// Starts the daemon again after it has ended.
    pub fn start_again(&mut self) {
        self.process = spawn(self.namespace, &self.program, &self.config, append(&self.log));
    }

    /// As [`start_again`](Self::start_again), with another log.
    pub fn start_logging_to(&mut self, log: Stdio) {
        self.process = spawn(self.namespace, &self.program, &self.config, log);
    }

    pub fn ask(&self, command: &str) -> CommandOutput {
        let config = self.config.to_str().unwrap();
        self.namespace
            .run(|| CommandOutput::of(&mut steadfast(&[command, "--json", "--config", config])))
    }

    pub fn run_command(&self, command: &str) -> CommandOutput {
        let config = self.config.to_str().unwrap();
        self.namespace
            .run(|| CommandOutput::of(&mut steadfast(&[command, "--config", config])))
    }

    /// Waits until the status has all these words.
    pub fn wait_for(&self, words: &[&str]) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let CommandOutput { output, errors, .. } = self.ask("status");
            if words.iter().all(|word| output.contains(word)) {
                return;
            }
            let log = || std::fs::read_to_string(&self.log).unwrap();
            assert!(
                Instant::now() < until,
                "{words:?} are not in: {output}{errors}{}",
                log()
            );
            std::thread::sleep(POLL);
        }
    }

    /// Number of times that these words are in the log.
    pub fn says(&self, words: &str) -> usize {
        std::fs::read_to_string(&self.log).unwrap().matches(words).count()
    }

    /// Waits until these words are in the log at least `times` times.
    #[track_caller]
    pub fn wait_for_line(&self, words: &str, times: usize) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.says(words) < times {
            let log = || std::fs::read_to_string(&self.log).unwrap();
            assert!(Instant::now() < until, "{words:?} is not in: {}", log());
            std::thread::sleep(POLL);
        }
    }

    /// The fate of the connections that the daemon has taken over, as JSON.
    pub fn restored(&self) -> String {
        let config = self.config.to_str().unwrap();
        let arguments = ["connections", "--restored", "--json", "--config", config];
        let outcome = self
            .namespace
            .run(|| CommandOutput::of(&mut steadfast(&arguments)));
        outcome.output
    }

    /// Process id of the current keeper, from its lock file.
    pub fn keeper(&self) -> Option<i32> {
        let lock = std::fs::read_to_string(self.state_dir.join("keeper.lock")).ok()?;
        lock.trim().parse().ok()
    }

    pub fn signal(&self, signal: Signal) {
        let process = Pid::from_raw(self.process.id().try_into().unwrap());
        match signal {
            Signal::SIGSTOP => stop_process(process),
            signal => kill(process, signal).unwrap(),
        }
    }
}

/// Stops a child process. When this returns, none of its threads runs: `kill` alone returns before.
pub fn stop_process(process: Pid) {
    kill(process, Signal::SIGSTOP).unwrap();
    let stopped = waitpid(process, Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert_eq!(stopped, WaitStatus::Stopped(process, Signal::SIGSTOP));
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::write(&self.config, &self.text); // the test may have made the configuration invalid
        let cleaned_up = self.run_command("cleanup");
        if cleaned_up.code != 0 {
            eprintln!("{}", cleaned_up.errors);
        }
        if !std::thread::panicking() {
            replay(&self.config);
        }
    }
}

/// The samples of `/metrics`, fetched with curl.
pub fn scrape(daemon: &Daemon<'_>) -> BTreeMap<String, f64> {
    let mut curl = Command::new("curl");
    curl.args([
        "-sS",
        "--fail",
        "--max-time",
        "10",
        "http://127.0.0.1:9464/metrics",
    ]);
    let CommandOutput { code, output, errors } = daemon.namespace.run(|| CommandOutput::of(&mut curl));
    assert_eq!(code, 0, "{errors}");
    let samples = output.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

/// The samples that `/metrics` should have, computed from `status --json`.
fn expected(daemon: &Daemon<'_>) -> BTreeMap<String, f64> {
    let status: Value = serde_json::from_str(&daemon.ask("status").output).unwrap();
    let service = &status["services"][0];
    let mut samples = BTreeMap::new();
    let mut expect = |name: &str, value: f64| samples.insert(format!("steadfast_{name}"), value);
    let number = |value: &Value| value.as_f64().unwrap();
    for protection in ["protected", "unprotected", "ambiguous"] {
        let name = format!("connections{{protection=\"{protection}\",service=\"web\"}}");
        expect(&name, number(&service["connections"][protection]));
    }
    for (name, key) in [
        ("service_epoch", "epoch"),
        ("log_bytes", "log_bytes"),
        ("log_limit_bytes", "log_limit_bytes"),
        ("connection_log_limit_bytes", "connection_log_limit_bytes"),
        ("spill_limit_bytes", "spill_limit_bytes"),
        ("relayed_connections", "relayed"),
    ] {
        expect(&format!("{name}{{service=\"web\"}}"), number(&service[key]));
    }
    expect("peer_alive", f64::from(u8::from(status["peer"]["alive"] == true)));
    expect(
        "service_duplex{service=\"web\"}",
        f64::from(u8::from(service["mode"] == "duplex")),
    );
    let state = service["state"].as_str().unwrap();
    expect(
        &format!("service_state{{service=\"web\",state=\"{state}\"}}"),
        1.0,
    );
    for ring in ["connections", "opening"] {
        let size = number(&status["rings"][ring]["size_bytes"]);
        expect(&format!("ring_size_bytes{{ring=\"{ring}\"}}"), size);
    }
    samples
}

/// Waits until the metrics agree with the status. The metrics may be a second old.
fn assert_agree(daemon: &Daemon<'_>) -> BTreeMap<String, f64> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let (expected, found) = (expected(daemon), scrape(daemon));
        let agree = |(name, value): (&String, &f64)| found.get(name) == Some(value);
        if expected.iter().all(agree) {
            return found;
        }
        assert!(Instant::now() < until, "{expected:?}\nis not in\n{found:?}");
        std::thread::sleep(POLL);
    }
}

#[test]
fn metrics_say_what_the_status_says() {
    let Some(lan) = OperatorLan::new("metrics_say_what_the_status_says") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let nodes = pair(&lan, dir.path(), "metrics");
    let service = "{service=\"web\"}";
    let [primary, backup] = nodes.each_ref().map(assert_agree);
    let left = primary[&format!("steadfast_lease_left_seconds{service}")];
    assert!(
        (0.0..=2.3).contains(&left),
        "at most 2 s of detection and 0.3 s of lease: {left}"
    );
    assert!(!backup.contains_key(&format!("steadfast_lease_left_seconds{service}")));
    assert!(backup["steadfast_peer_heartbeat_age_seconds"] < 2.0);

    // A connection that is older than the backup's new agent is still shown, and is protected again after an exchange.
    lan.stranger.ip("route add 10.0.0.100/32 dev eth0");
    let listener = lan.node.run(|| TcpListener::bind("10.0.0.100:80").unwrap());
    let mut client = lan.stranger.run(|| TcpStream::connect("10.0.0.100:80").unwrap());
    let (mut server, _) = listener.accept().unwrap();
    nodes[1].wait_for(&["\"connections\":{\"protected\":1,\"unprotected\":0,\"ambiguous\":0}"]);
    assert_agree(&nodes[1]);
    let [_primary, mut backup] = nodes;
    backup.signal(Signal::SIGKILL);
    backup.process.wait().unwrap();
    backup.start_again();
    backup.wait_for(&[
        "\"peer_state\":\"primary\"",
        "\"connections_complete\":true",
        &format!("\"reasons\":{{\"{SILENT}\":1}}"),
    ]);
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    server.read_exact(&mut [0; 18]).unwrap();
    backup.wait_for(&[
        "\"connections\":{\"protected\":0,\"unprotected\":1,\"ambiguous\":0}",
        &format!("\"reasons\":{{\"{OLDER}\":1}}"),
    ]);
    let samples = assert_agree(&backup);
    let reason = format!("steadfast_connections_not_protected{{reason=\"{OLDER}\",service=\"web\"}}");
    assert_eq!(samples.get(&reason), Some(&1.0), "{samples:?}");
    let address = client.local_addr().unwrap();
    let shown = backup.ask("connections").output;
    assert!(shown.contains(&format!("\"client\":\"{address}\"")), "{shown}");
    server.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    client.read_exact(&mut [0; 27]).unwrap();
    backup.wait_for(&[
        "\"connections\":{\"protected\":1,\"unprotected\":0,\"ambiguous\":0}",
        "\"reasons\":{}",
    ]);
    let shown = backup.ask("connections").output;
    assert!(shown.contains("\"in_offset\":18,\"out_offset\":27"), "{shown}");
    drop((client, server));
    backup.wait_for(&["\"protected\":0,\"unprotected\":0", "\"reasons\":{}"]);
}

/// Parameters of a pair.
pub struct PairSpec<'a> {
    pub policy: &'a str,
    /// The networks of the heartbeat links.
    pub links: &'a [&'a str],
    /// `agent_timeout_ms` of the primary and of the backup.
    pub agent_timeouts_ms: [u32; 2],
    /// Additional lines of the `[log]` table.
    pub log: &'a str,
    /// Additional lines of the `[[service]]` table, or additional tables. `PEER` stands for the last byte of the peer's addresses.
    pub service: &'a str,
}

/// The socket at which the daemon with this state directory takes snapshots.
pub fn snapshot_socket(state_dir: &Path) -> PathBuf {
    state_dir.with_extension("snapshots.sock")
}

impl Default for PairSpec<'_> {
    fn default() -> Self {
        Self {
            policy: "http",
            links: &["10.0.0"],
            agent_timeouts_ms: [2000; 2],
            log: "",
            service: "",
        }
    }
}

/// The primary and the backup of a pair, both running and duplex. `test` is a part of their names, because eBPF pins are
/// shared by the whole machine.
pub fn pair<'a>(lan: &'a OperatorLan, dir: &Path, test: &str) -> [Daemon<'a>; 2] {
    pair_of(lan, dir, test, &PairSpec::default())
}

/// As [`pair`], with the parameters of `kind`.
pub fn pair_of<'a>(lan: &'a OperatorLan, dir: &Path, test: &str, kind: &PairSpec<'_>) -> [Daemon<'a>; 2] {
    let [one, two] = ["one", "two"].map(|which| format!("sf-test-{test}-{which}"));
    let primary = Daemon::start(&lan.node, dir, &one, (&two, 3), &one, kind);
    let backup = Daemon::start(&lan.peer, dir, &two, (&one, 2), &one, kind);
    // The nodes take their roles without an application. Many tests start it later.
    primary.wait_for(&[
        "\"alive\":true",
        "\"role\":\"primary\"",
        "\"peer_state\":\"backup\"",
    ]);
    backup.wait_for(&[
        "\"alive\":true",
        "\"role\":\"backup\"",
        "\"peer_state\":\"primary\"",
    ]);
    [primary, backup]
}

#[test]
fn a_deposed_node_runs_its_hook_and_nobody_else_does() {
    let Some(lan) = OperatorLan::new("a_deposed_node_runs_its_hook_and_nobody_else_does") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = pair(&lan, dir.path(), "hook");
    let has_said = |daemon: &Daemon<'_>| std::fs::read_to_string(daemon.config.with_extension("deposed"));
    one.signal(Signal::SIGSTOP);
    two.wait_for(&["\"role\":\"primary\""]);
    assert!(has_said(&one).is_err(), "a stopped node cannot run its hook");
    one.signal(Signal::SIGCONT);
    let until = Instant::now() + Duration::from_secs(20);
    while has_said(&one).ok().as_deref() != Some("web\n") {
        let log = std::fs::read_to_string(&one.log).unwrap();
        assert!(Instant::now() < until, "{:?}: {log}", has_said(&one));
        std::thread::sleep(Duration::from_millis(5));
    }
    two.wait_for(&["\"peer_state\":\"backup\""]);
    assert_eq!(has_said(&one).unwrap(), "web\n", "once");
    assert!(has_said(&two).is_err());
}

/// The time since the peer was last heard over each link, in nanoseconds, from the node's status.
fn link_ages(status: &Value) -> Vec<Option<u64>> {
    let links = status["peer"]["links"].as_array().unwrap();
    links.iter().map(|link| link["heard_age_ns"].as_u64()).collect()
}

#[test]
fn a_link_may_fail() {
    let Some(lan) = OperatorLan::new("a_link_may_fail") else {
        return;
    };
    for (last, namespace) in [(2, &lan.node), (3, &lan.peer)] {
        namespace.ip(&format!("addr add 10.9.0.{last}/24 dev eth0"));
    }
    let dir = tempfile::tempdir().unwrap();
    let links = &["10.0.0", "10.9.0"];
    let kind = PairSpec {
        links,
        ..PairSpec::default()
    };
    let _applications = [listen(&lan.node), listen(&lan.peer)];
    let nodes = pair_of(&lan, dir.path(), "links", &kind);
    for node in &nodes {
        node.wait_for(&["\"authenticated\":true"]);
    }
    let ask = || -> Value { serde_json::from_str(&nodes[0].ask("status").output).unwrap() };
    let epoch = ask()["services"][0]["epoch"].clone();
    // Lose the heartbeats of the first link for longer than the time until a death is declared.
    let mut nft = Command::new("nft");
    nft.arg("table inet lost { chain in { type filter hook input priority 0; ip saddr 10.0.0.0/24 udp dport 7400 drop; }; }");
    assert!(lan.node.run(|| nft.status().unwrap()).success());
    let status = loop {
        let status = ask();
        let ages = link_ages(&status);
        assert!(ages[1].is_some(), "{status}");
        if ages[0].is_some_and(|age| age > 4_000_000_000) {
            break status;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(
        (&status["peer"]["alive"], &status["services"][0]["mode"]),
        (&true.into(), &"duplex".into())
    );
    assert!(link_ages(&status)[1] < link_ages(&status)[0], "{status}");
    assert_eq!(
        status["services"][0]["epoch"], epoch,
        "no role has changed: {status}"
    );
}

/// Until this node has an address on the second network, the kernel connects the link's socket from the first network's address.
#[test]
fn a_link_gets_its_address_later() {
    let Some(lan) = OperatorLan::new("a_link_gets_its_address_later") else {
        return;
    };
    lan.peer.ip("addr add 10.9.0.3/24 dev eth0");
    lan.node.ip("route add default via 10.0.0.4");
    let dir = tempfile::tempdir().unwrap();
    let kind = PairSpec {
        links: &["10.0.0", "10.9.0"],
        ..PairSpec::default()
    };
    let nodes = pair_of(&lan, dir.path(), "late", &kind);
    let ages = |node: &Daemon<'_>| link_ages(&serde_json::from_str(&node.ask("status").output).unwrap());
    assert!(nodes.iter().all(|node| ages(node)[1].is_none()));
    lan.node.ip("addr add 10.9.0.2/24 dev eth0");
    let until = Instant::now() + Duration::from_secs(20);
    while !nodes.iter().all(|node| ages(node)[1].is_some()) {
        assert!(Instant::now() < until, "{:?}", nodes.each_ref().map(ages));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn two_nodes_run_and_leave_the_network_as_they_found_it() {
    let Some(lan) = OperatorLan::new("two_nodes_run_and_leave_the_network_as_they_found_it") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let before = [lan.node.dump(), lan.peer.dump()];
    let [primary, backup] = pair(&lan, dir.path(), "stop");
    assert!(lan.peer.ip("addr show dev eth0").contains("10.0.0.100/32"));
    assert!(lan.node.ip("addr show dev lo").contains("10.0.0.100/32"));
    assert_eq!(backup.ask("connections").output, "{\"connections\":[]}\n");

    let config = backup.config.to_str().unwrap();
    let second = lan
        .peer
        .run(|| CommandOutput::of(&mut steadfast(&["run", "--config", config])));
    assert_eq!(second.code, 2);
    assert!(
        second
            .errors
            .contains(&format!("by process {}", backup.process.id())),
        "{}",
        second.errors
    );
    let cleanup = lan
        .peer
        .run(|| CommandOutput::of(&mut steadfast(&["cleanup", "--config", config])));
    assert_eq!(cleanup.code, 2, "a live node is left alone");
    assert!(lan.peer.ip("addr show dev eth0").contains("10.0.0.100/32"));

    for (mut daemon, signal) in [(primary, Signal::SIGTERM), (backup, Signal::SIGINT)] {
        daemon.signal(signal);
        assert_eq!(daemon.process.wait().unwrap().code(), Some(0));
        assert!(!daemon.state_dir.join("control.sock").exists());
    }
    assert_eq!([lan.node.dump(), lan.peer.dump()], before);
}

#[test]
fn a_killed_node_is_cleaned_up_after() {
    let Some(lan) = OperatorLan::new("a_killed_node_is_cleaned_up_after") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let before = [lan.node.dump(), lan.peer.dump()];
    for mut daemon in pair(&lan, dir.path(), "kill") {
        daemon.signal(Signal::SIGKILL);
        daemon.process.wait().unwrap();
        let config = daemon.config.to_str().unwrap();
        let cleanup = daemon
            .namespace
            .run(|| CommandOutput::of(&mut steadfast(&["cleanup", "--config", config])));
        assert_eq!(cleanup.code, 0, "{}", cleanup.errors);
        assert!(!daemon.state_dir.exists());
    }
    assert_eq!([lan.node.dump(), lan.peer.dump()], before);
}
