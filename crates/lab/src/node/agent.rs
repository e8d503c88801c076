//! The daemon of a node, as its operator sees it: a configuration file, `steadfast run`, `steadfast status`.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use linux::netns::Netns;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::net::INTERFACE;
use crate::process::Process;
use crate::teardown::Resource;

/// Where the daemon pins its eBPF objects, by node name.
const PINS: &str = "/sys/fs/bpf/steadfast";
/// Where the daemon keeps its state, by node name.
const STATE: &str = "/run/steadfast";
/// How long the pair has to become duplex.
const READY_LIMIT: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(20);
/// The one service of the lab.
const SERVICE: &str = "lab";
const HEARTBEAT_PORT: u16 = 7400;

/// What both nodes' configurations have in common.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The daemon's binary.
    pub binary: PathBuf,
    /// The names of node a and b, unique on this machine.
    pub names: [String; 2],
    /// Their addresses on the LAN.
    pub addresses: [IpAddr; 2],
    /// The service.
    pub service: SocketAddr,
    /// `http` or `replica`.
    pub policy: &'static str,
    /// Milliseconds between two heartbeats.
    pub heartbeat_ms: u32,
    /// Heartbeats that must be missing before the peer is declared dead.
    pub missed: u32,
}

impl Pair {
    /// What the daemons will leave outside of their namespaces: pins and state.
    #[must_use]
    pub fn leftovers(&self) -> Vec<Resource> {
        let roots = [PINS, STATE].map(Path::new);
        let own = |root: &'static Path| self.names.iter().map(move |name| root.join(name));
        let shared = roots.iter().map(|root| Resource::Shared(root.to_path_buf()));
        shared
            .chain(roots.into_iter().flat_map(own).map(Resource::Path))
            .collect()
    }

    /// The longest time from a node's death to its declaration.
    #[must_use]
    pub fn detection(&self) -> Duration {
        Duration::from_millis(u64::from(self.heartbeat_ms) * u64::from(self.missed))
    }

    /// The configuration of node `index`; node a is primary.
    fn configuration(&self, index: usize) -> String {
        let (name, peer) = (&self.names[index], 1 - index);
        let primary = &self.names[0];
        let loopback = if self.service.is_ipv4() {
            "127.0.0.1"
        } else {
            "[::1]"
        };
        format!(
            "[node]
name = \"{name}\"
state_dir = \"{STATE}/{name}\"

[peer]
name = \"{}\"
address = \"{}\"
port = {HEARTBEAT_PORT}

[detector]
heartbeat_ms = {}
missed = {}

[[service]]
name = \"{SERVICE}\"
address = \"{}\"
port = {port}
interface = \"{INTERFACE}\"
policy = \"{}\"
primary = \"{primary}\"
application = \"{loopback}:{port}\"
",
            self.names[peer],
            self.addresses[peer],
            self.heartbeat_ms,
            self.missed,
            self.service.ip(),
            self.policy,
            port = self.service.port(),
        )
    }
}

/// A running daemon.
#[derive(Debug)]
pub struct Agent {
    operator: Operator,
    process: Process,
}

impl Agent {
    /// Writes the configuration of node `index` of `pair` to `directory` and starts the daemon in `node`.
    ///
    /// # Errors
    /// If that cannot be done; whether the daemon likes it is for [`Self::wait_ready`] to say.
    pub fn start(pair: &Pair, index: usize, node: &Netns, directory: &Path) -> Result<Self> {
        let name = &pair.names[index];
        let configuration = directory.join(format!("{name}.toml"));
        fs::write(&configuration, pair.configuration(index))
            .with_context(|| configuration.display().to_string())?;
        let mut command = node.command(&pair.binary)?;
        command.arg("run").arg("--config").arg(&configuration);
        let operator = Operator {
            binary: pair.binary.clone(),
            configuration,
        };
        let process = Process::start(&format!("steadfast-{name}"), command, directory)?;
        Ok(Self { operator, process })
    }

    /// Waits until the daemon in `node` says that every service is duplex.
    ///
    /// # Errors
    /// If it ends, or does not come to it in time; quotes what it said.
    pub fn wait_ready(&mut self, node: &Netns) -> Result<()> {
        let mut seen = String::new();
        let operator = &self.operator;
        let is_duplex = |_: &Process| {
            let status: Result<Status> = operator.ask("status", node);
            seen = match &status {
                Ok(status) if status.is_duplex() => return true,
                Ok(status) => format!("{status:?}"),
                Err(error) => format!("{error:#}"),
            };
            std::thread::sleep(POLL);
            false
        };
        let ready = self.process.wait_until("become duplex", READY_LIMIT, is_duplex);
        ready.with_context(|| format!("last status: {seen}"))
    }

    /// The end of what it has printed, on lines of its own.
    #[must_use]
    pub fn last_words(&self) -> String {
        self.process.last_words()
    }

    /// Asks the daemon in `node` how it is.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn status(&self, node: &Netns) -> Result<Status> {
        self.operator.ask("status", node)
    }

    /// Asks the daemon in `node` how its connections are.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn connections(&self, node: &Netns) -> Result<Vec<Connection>> {
        #[derive(Deserialize)]
        struct Answer {
            connections: Vec<Connection>,
        }
        let answer = self.operator.ask("connections", node);
        answer.map(|Answer { connections }| connections)
    }
}

/// Asks a daemon questions.
#[derive(Debug)]
struct Operator {
    binary: PathBuf,
    configuration: PathBuf,
}

impl Operator {
    fn ask<T: DeserializeOwned>(&self, what: &str, node: &Netns) -> Result<T> {
        let answer = node
            .command(&self.binary)?
            .arg(what)
            .arg("--config")
            .arg(&self.configuration)
            .arg("--json")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("run steadfast {what}"))?;
        if !answer.status.success() {
            let said = String::from_utf8_lossy(&answer.stderr);
            bail!("steadfast {what}: {}: {}", answer.status, said.trim());
        }
        serde_json::from_slice(&answer.stdout).with_context(|| format!("the answer of steadfast {what}"))
    }
}

/// What the lab reads of `steadfast status --json`. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The services; the lab has one.
    pub services: Vec<Service>,
}

/// A service in [`Status`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Service {
    /// `duplex` or `simplex`.
    pub mode: String,
    /// How many connections are how well protected.
    pub connections: BTreeMap<String, u64>,
    /// The takeovers so far.
    pub takeovers: Vec<Takeover>,
    /// What was counted, by reason.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
}

/// A takeover in [`Service`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Takeover {
    /// When the primary was declared dead.
    pub declared_ns: u64,
    /// When its packets were shut out.
    pub gate_closed_ns: Option<u64>,
    /// When the first connection could go on.
    pub first_live_ns: Option<u64>,
    /// When the last connection could go on.
    pub last_live_ns: Option<u64>,
    /// Connections that there were.
    pub connections: u64,
    /// Connections that go on.
    pub restored: u64,
    /// Connections that got a RST.
    pub reset: u64,
    /// Connections that needed nothing any more.
    pub ended: u64,
}

impl Takeover {
    /// Whether every connection has been decided.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.restored + self.reset + self.ended >= self.connections
    }
}

/// What the lab reads of `steadfast connections --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// The client's end.
    pub client: SocketAddr,
    /// When it could go on after a takeover.
    pub live_ns: Option<u64>,
}

impl Status {
    /// Whether every service is protected by both nodes.
    #[must_use]
    pub fn is_duplex(&self) -> bool {
        self.services.iter().all(|service| service.mode == "duplex")
    }

    /// The last takeover of the lab's service.
    #[must_use]
    pub fn last_takeover(&self) -> Option<Takeover> {
        self.services.first()?.takeovers.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> Pair {
        Pair {
            binary: "steadfast".into(),
            names: ["a-1".to_owned(), "b-1".to_owned()],
            addresses: ["10.2.0.10".parse().unwrap(), "10.2.0.11".parse().unwrap()],
            service: "10.2.0.100:80".parse().unwrap(),
            policy: "http",
            heartbeat_ms: 20,
            missed: 4,
        }
    }

    #[test]
    fn each_node_is_the_others_peer_and_a_is_primary() {
        let b = pair().configuration(1);
        for line in [
            "name = \"b-1\"",
            "name = \"a-1\"\naddress = \"10.2.0.10\"",
            "primary = \"a-1\"",
            "application = \"127.0.0.1:80\"",
        ] {
            assert!(b.contains(line), "{line} is missing in:\n{b}");
        }
    }

    #[test]
    fn a_status_is_read_and_its_unknown_parts_are_left_alone() {
        let text = r#"{"node":"b-1","peer":{"name":"a-1","address":"10.2.0.10","alive":false},"services":[{
            "name":"lab","address":"10.2.0.100","port":80,"policy":"http","role":"primary","mode":"simplex","epoch":2,
            "connections":{"protected":0,"unprotected":20,"ambiguous":0},"log_bytes":0,"ring_fill_bytes":0,
            "takeovers":[{"declared_ns":100,"gate_closed_ns":110,"first_live_ns":120,"last_live_ns":null,
            "connections":20,"restored":19,"reset":0,"ended":0}],"counters":{"drops":1}}]}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert!(!status.is_duplex());
        let takeover = status.last_takeover().unwrap();
        assert_eq!((takeover.declared_ns, takeover.last_live_ns), (100, None));
        assert!(!takeover.is_complete());
    }
}
