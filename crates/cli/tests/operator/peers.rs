//! A node with several peers: one daemon, an agent process for each.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::lan::{CommandOutput, OperatorLan, POLL, TestProcess, program, steadfast};

/// Time limit for each step.
const PATIENCE: Duration = Duration::from_secs(30);

/// The configuration of the node `node`. Each test has a node of its own, because pins have the node's name in all network namespaces.
fn configuration(lan: &OperatorLan, node: &str) -> PathBuf {
    let service = |name: &str, peer: &str, network: u8| {
        format!(
            r#"
[[peer]]
name = "{peer}"
address = "10.{network}.0.3"
key_file = "{}"

[[service]]
name = "{name}"
peer = "{peer}"
address = "10.{network}.0.100"
port = 80
interface = "eth{network}"
policy = "http"
primary = "{node}"
application = "127.0.0.{}:80"
"#,
            lan.file("key", &"5".repeat(64), 0o600).display(),
            1 + network
        )
    };
    let text = format!(
        "[node]\nname = \"{node}\"\nstate_dir = \"{}\"\n\n[metrics]\nlisten = \"127.0.0.1:9464\"\n{}{}",
        lan.state_dir().display(),
        service("web", "beta", 0),
        service("mail", "gamma", 1)
    );
    lan.file("peers.toml", &text, 0o644)
}

/// Ends the agents that a failed test leaves.
struct LeftAgents<'a>(&'a OperatorLan, &'a Path);

impl Drop for LeftAgents<'_> {
    fn drop(&mut self) {
        let Self(lan, file) = self;
        for agent in agents(lan) {
            let _ = kill(Pid::from_raw(agent), Signal::SIGKILL);
        }
        lan.with_config("cleanup", file);
    }
}

fn start(lan: &OperatorLan, file: &Path) -> TestProcess {
    let file = file.to_str().expect("text");
    let mut command = steadfast(&["run", "--without-peer", "--config", file]);
    TestProcess(lan.node.run(|| command.spawn().expect("it can be run")))
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(POLL);
    }
}

/// The process numbers of the agents for `beta` and `gamma`.
fn agents(lan: &OperatorLan) -> Vec<i32> {
    let pid = |peer: &&str| {
        let lock = lan.state_dir().join("peers").join(peer).join("lock");
        std::fs::read_to_string(lock).ok()?.trim().parse().ok()
    };
    ["beta", "gamma"].iter().filter_map(pid).collect()
}

fn signal(process: &TestProcess, signal: Signal) {
    kill(Pid::from_raw(process.0.id().cast_signed()), signal).unwrap();
}

fn metrics(lan: &OperatorLan) -> String {
    let mut curl = program("curl".as_ref(), &["-s", "http://127.0.0.1:9464/metrics"]);
    lan.node.run(|| CommandOutput::of(&mut curl)).output
}

/// Whether the status has both agents, and both serve alone.
fn serve(lan: &OperatorLan, file: &str) -> bool {
    let status = lan.steadfast(&["status", "--json", "--config", file]).output;
    let status: Value = serde_json::from_str(&status).unwrap_or_default();
    let agents = status["pairs"].as_array().map_or(&[][..], Vec::as_slice);
    let is_sole = |agent: &Value| agent["services"][0]["state"] == "sole";
    agents.len() == 2 && agents.iter().all(is_sole)
}

#[test]
fn one_daemon_serves_several_peers() {
    let Some(lan) = OperatorLan::new("one_daemon_serves_several_peers") else {
        return;
    };
    lan.add_second();
    let file = configuration(&lan, "sf-peers");
    let name = file.to_str().unwrap();
    let before = lan.node.dump();
    let _left = LeftAgents(&lan, &file);
    let serve = || serve(&lan, name);
    let mut daemon = start(&lan, &file);
    wait_until("both agents serve alone", serve);

    let text = lan.steadfast(&["status", "--config", name]).output;
    assert!(text.contains("web") && text.contains("mail"), "{text}");
    let one = lan.steadfast(&["status", "--json", "--peer", "gamma", "--config", name]);
    assert!(
        one.output.contains("\"mail\"") && !one.output.contains("\"web\""),
        "{one:?}"
    );
    assert_eq!(
        lan.steadfast(&["status", "--peer", "delta", "--config", name])
            .code,
        2
    );
    assert_eq!(lan.steadfast(&["handover", "news", "--config", name]).code, 2);
    let up = "steadfast_agent_up{pair=\"sf-peers-beta\"} 1";
    wait_until("the page has both agents", || metrics(&lan).contains(up));
    assert!(
        metrics(&lan).contains("pair=\"sf-peers-gamma\",service=\"mail\""),
        "{}",
        metrics(&lan)
    );

    let first = agents(&lan);
    kill(Pid::from_raw(first[0]), Signal::SIGKILL).unwrap();
    wait_until("a dead agent is started again", || {
        let now = agents(&lan);
        now.len() == 2 && now[0] != first[0] && now[1] == first[1]
    });
    wait_until("it serves again", serve);

    // A supervisor whose successor could not read the configuration goes on, like its agents.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, "nonsense").unwrap();
    signal(&daemon, Signal::SIGUSR2);
    std::thread::sleep(Duration::from_secs(1)); // longer than a program needs to read the file and to end
    assert_eq!(daemon.0.try_wait().unwrap(), None);
    std::fs::write(&file, text).unwrap();
    assert!(serve(), "all go on");

    // The agents go on without their supervisor, and another one finds them.
    let second = agents(&lan);
    signal(&daemon, Signal::SIGKILL);
    daemon.0.wait().unwrap();
    assert!(serve(), "the agents go on");
    daemon = start(&lan, &file);
    let lock = lan.state_dir().join("lock");
    let own = format!("{}\n", daemon.0.id());
    wait_until("the supervisor is there again", || {
        std::fs::read_to_string(&lock).is_ok_and(|text| text == own)
    });
    assert_eq!(agents(&lan), second);
    let another = lan.steadfast(&["run", "--without-peer", "--config", name]);
    assert!(
        another.code == 2 && another.errors.contains("a node has one daemon"),
        "{another:?}"
    );
    let alive = lan.steadfast(&["cleanup", "--config", name]);
    assert!(alive.code == 2 && alive.errors.contains("is alive"), "{alive:?}");

    signal(&daemon, Signal::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!(lan.node.dump(), before);
    assert!(agents(&lan).is_empty());
}

#[test]
fn cleanup_removes_what_the_agents_of_several_peers_leave() {
    let Some(lan) = OperatorLan::new("cleanup_removes_what_the_agents_of_several_peers_leave") else {
        return;
    };
    lan.add_second();
    let file = configuration(&lan, "sf-left");
    let name = file.to_str().unwrap();
    let before = lan.node.dump();
    let _left = LeftAgents(&lan, &file);
    let mut daemon = start(&lan, &file);
    wait_until("both agents serve alone", || serve(&lan, name));
    signal(&daemon, Signal::SIGKILL);
    daemon.0.wait().unwrap();
    for agent in agents(&lan) {
        kill(Pid::from_raw(agent), Signal::SIGKILL).unwrap();
    }
    wait_until("everything is removed", || {
        lan.steadfast(&["cleanup", "--config", name]).code == 0
    });
    assert_eq!(lan.node.dump(), before);
    assert!(!lan.state_dir().exists());
}
