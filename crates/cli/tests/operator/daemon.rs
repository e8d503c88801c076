//! Two nodes run, are shown, and leave the network as they found it.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use crate::lan::{Lan, Namespace, Outcome, steadfast};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A running daemon; it is killed if the test ends before it does.
struct Daemon<'a> {
    namespace: &'a Namespace,
    state_dir: PathBuf,
    config: PathBuf,
    log: PathBuf,
    process: Child,
}

impl<'a> Daemon<'a> {
    /// Starts the node `own` of the pair that `primary` is the primary of.
    fn start(namespace: &'a Namespace, dir: &Path, name: &str, peer: (&str, u8), primary: &str) -> Self {
        let (peer_name, peer) = peer;
        let state_dir = dir.join(name);
        let config = dir.join(format!("{name}.toml"));
        let text = format!(
            r#"
            [node]
            name = "{name}"
            state_dir = "{}"
            agent_timeout_ms = 2000
            [peer]
            name = "{peer_name}"
            address = "10.0.0.{peer}"
            [detector]
            heartbeat_ms = 50
            missed = 40
            [log]
            ring_mb = 1
            [[service]]
            name = "web"
            address = "10.0.0.100"
            port = 80
            interface = "eth0"
            policy = "http"
            primary = "{primary}"
            "#,
            state_dir.display()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = steadfast(&[
            "run",
            "--log-format",
            "json",
            "--config",
            config.to_str().unwrap(),
        ]);
        let log = dir.join(format!("{name}.log"));
        command.stderr(std::fs::File::create(&log).unwrap());
        let process = namespace.run(|| command.spawn().unwrap());
        Self {
            namespace,
            state_dir,
            config,
            log,
            process,
        }
    }

    fn ask(&self, command: &str) -> Outcome {
        let config = self.config.to_str().unwrap();
        self.namespace
            .run(|| Outcome::of(&mut steadfast(&[command, "--json", "--config", config])))
    }

    /// Waits until the status has all these words.
    fn wait_for(&self, words: &[&str]) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let Outcome { output, errors, .. } = self.ask("status");
            if words.iter().all(|word| output.contains(word)) {
                return;
            }
            let log = || std::fs::read_to_string(&self.log).unwrap();
            assert!(
                Instant::now() < until,
                "{words:?} are not in: {output}{errors}{}",
                log()
            );
            std::thread::yield_now();
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let config = self.config.to_str().unwrap();
        self.namespace
            .run(|| Outcome::of(&mut steadfast(&["cleanup", "--config", config])));
    }
}

/// The primary and the backup of a pair, both running and protecting; `test` is a part of their names, because eBPF pins
/// are the whole machine's.
fn pair<'a>(lan: &'a Lan, dir: &Path, test: &str) -> [Daemon<'a>; 2] {
    let [one, two] = ["one", "two"].map(|which| format!("sf-test-{test}-{which}"));
    let primary = Daemon::start(&lan.node, dir, &one, (&two, 3), &one);
    let backup = Daemon::start(&lan.peer, dir, &two, (&one, 2), &one);
    primary.wait_for(&["\"alive\":true", "\"role\":\"primary\"", "\"mode\":\"duplex\""]);
    backup.wait_for(&["\"alive\":true", "\"role\":\"backup\"", "\"mode\":\"duplex\""]);
    [primary, backup]
}

#[test]
fn two_nodes_run_and_leave_the_network_as_they_found_it() {
    let Some(lan) = Lan::new("two_nodes_run_and_leave_the_network_as_they_found_it") else {
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
        .run(|| Outcome::of(&mut steadfast(&["run", "--config", config])));
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
        .run(|| Outcome::of(&mut steadfast(&["cleanup", "--config", config])));
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
    let Some(lan) = Lan::new("a_killed_node_is_cleaned_up_after") else {
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
            .run(|| Outcome::of(&mut steadfast(&["cleanup", "--config", config])));
        assert_eq!(cleanup.code, 0, "{}", cleanup.errors);
        assert!(!daemon.state_dir.exists());
    }
    assert_eq!([lan.node.dump(), lan.peer.dump()], before);
}
