//! The daemons of a lane's two edges. The lab uses them as an operator does: with a configuration file, `steadfast edge` and `steadfast
//! status`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant as Deadline};

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use linux::edge::EDGE_PIN_ROOT;
use linux::netns::Netns;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::address::{SERVER, STRING_NAMES, TRANSLATED, client, edge_end, node_end};
use super::network::{EdgeTopology, string_port};
use crate::net::INTERFACE;
use crate::process::{self, LoggedProcess};
use crate::teardown::{Resource, Teardown};

/// Directories in which each daemon has a subdirectory of its own name, with its state or its pins.
const LEFTOVERS: [&str; 2] = ["/run/steadfast", EDGE_PIN_ROOT];
/// Time between two heartbeats.
pub const HEARTBEAT: Duration = Duration::from_millis(10);
/// UDP port of the heartbeats.
pub const EDGE_PORT: u16 = 7401;
/// Missing heartbeats after which a string is declared failed.
const FAILED_AFTER: u32 = 3;
const READY_LIMIT: Duration = Duration::from_secs(15);
const STOP_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// The policy of the edges' cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RecoveryOption {
    /// SYNs only.
    Syn,
    /// The lowest unacknowledged packet of each connection, and a second packet ([`SecondOption`]).
    #[default]
    Lowest,
    /// All unacknowledged packets.
    All,
    /// Nothing.
    None,
}

/// The packet that the edges cache of a connection in addition to its lowest packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SecondOption {
    /// The newest packet that entered since the suspicion.
    #[default]
    Newest,
    /// The leaving acknowledgement with the highest number, as in the HALR thesis.
    Acknowledgement,
}

/// The edges' cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecoverySetup {
    /// The packets that are cached.
    pub policy: RecoveryOption,
    /// The second packet of a connection.
    pub second: SecondOption,
    /// Missing heartbeats after which packets are cached. 0: always.
    pub caching_after: u32,
    /// Limits of the cache. `None`: the edge's default.
    pub limits: CacheLimits,
}

/// Limits of an edge's cache.
#[derive(Clone, Copy, Debug, Default, Args, Serialize)]
pub struct CacheLimits {
    /// Limit of the cache, which serves all strings, in MiB; default: the edge's.
    #[arg(long, value_name = "N")]
    pub max_mb: Option<u32>,
    /// Limit of the packets in the cache; default: the edge's.
    #[arg(long, value_name = "N")]
    pub max_packets: Option<u32>,
    /// Limit of a connection's cached packets in KiB; default: the edge's. Only policy `all` reaches it.
    #[arg(long, value_name = "N")]
    pub max_connection_kb: Option<u32>,
}

impl RecoverySetup {
    /// The table `[recovery]` of the configuration.
    fn table(&self) -> String {
        let name = |value: Option<PossibleValue>| {
            value.map_or_else(String::new, |value| value.get_name().to_owned())
        };
        let mut text = format!(
            "[recovery]\npolicy = {:?}\nsecond = {:?}\ncaching_after = {}\n",
            name(self.policy.to_possible_value()),
            name(self.second.to_possible_value()),
            self.caching_after,
        );
        let CacheLimits {
            max_mb,
            max_packets,
            max_connection_kb,
        } = self.limits;
        for (key, limit) in [
            ("max_mb", max_mb),
            ("max_packets", max_packets),
            ("max_connection_kb", max_connection_kb),
        ] {
            text += &limit.map_or_else(String::new, |limit| format!("{key} = {limit}\n"));
        }
        text
    }
}

/// The configuration that both edges share.
#[derive(Clone, Debug)]
pub struct EdgeSetup {
    /// The daemon's binary.
    pub binary: PathBuf,
    /// The run's name. It makes the daemons' names unique on this machine.
    pub run: String,
    /// The lane of these two edges.
    pub lane: usize,
    /// Whether the edges send over IPv6.
    pub ipv6: bool,
    /// Weight and rate of each string. Weight 0: standby.
    pub strings: Vec<SteeredString>,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// Minimum time until the flows of a failed string are moved. It begins when the string falls silent, or when the peer declares the
    /// string's failure.
    pub delay: Duration,
    /// Command that must succeed before flows are moved. Empty: none.
    pub command: Vec<String>,
    /// The edges' cache.
    pub recovery: RecoverySetup,
    /// Whether windows are capped after a failure.
    pub is_rate_controlled: bool,
    /// Round-trip time without queues. `None`: the edges measure it.
    pub rtt: Option<Duration>,
}

/// A string's weight and rate in the configuration of the edges.
#[derive(Clone, Copy, Debug)]
pub struct SteeredString {
    /// Weight for new flows.
    pub weight: u32,
    /// Mbit/s.
    pub mbit: f64,
}

/// Both daemons.
pub struct EdgeDaemons {
    setup: EdgeSetup,
    /// R1's and R2's process. `None`: it was killed.
    edges: [Option<LoggedProcess>; 2],
    configurations: [PathBuf; 2],
}

/// The part of `steadfast status --json` that the lab reads. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReportedEdge {
    /// The edge's name.
    #[serde(default)]
    pub edge: String,
    /// The strings, in the order of the configuration.
    pub strings: Vec<ReportedString>,
    /// Number of flows in the table.
    #[serde(default)]
    pub flows: u64,
    /// Counters by reason.
    #[serde(default)]
    pub counters: BTreeMap<String, serde_json::Value>,
}

/// A string in [`ReportedEdge`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReportedString {
    /// Its name.
    pub name: String,
    /// `up`, `suspect`, `failing`, `down` or `blind`.
    pub state: String,
    /// Number of failures.
    #[serde(default)]
    pub epoch: u64,
    /// When the last failure was declared.
    #[serde(default)]
    pub failed_at_ns: Option<u64>,
    /// When the string's flows had been moved, and its cached packets had been sent again.
    #[serde(default)]
    pub completed_at_ns: Option<u64>,
    /// Entering packets that were sent again.
    #[serde(default)]
    pub resent_entering: u64,
    /// Leaving packets that were sent again.
    #[serde(default)]
    pub resent_leaving: u64,
    /// Largest number of bytes in the string's cache so far.
    #[serde(default)]
    pub cached_bytes_max: u64,
    /// Packets for which the string's cache had no room.
    #[serde(default)]
    pub cache_lost: u64,
    /// Cap on windows, in bytes.
    #[serde(default)]
    pub cap: Option<u32>,
    /// Flows with an entering packet in the last second.
    #[serde(default)]
    pub active: u64,
}

impl ReportedEdge {
    /// The counter `name`. 0 if the edge has no such counter.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters
            .get(name)
            .and_then(serde_json::Value::as_u64)
            .unwrap_or(0)
    }

    /// Whether all strings are up.
    pub fn is_up(&self) -> bool {
        self.strings
            .iter()
            .all(|string| string.state.eq_ignore_ascii_case("up"))
    }
}

impl EdgeSetup {
    /// Longest time from a failure until it is declared.
    pub fn detection(&self) -> Duration {
        self.heartbeat * FAILED_AFTER
    }

    /// The name of R1's or R2's daemon in this lane.
    fn name(&self, side: usize) -> String {
        format!("{}-{}", [["r1", "r2"], ["r1b", "r2b"]][self.lane][side], self.run)
    }

    /// The configuration of R1 (side 0) or R2 (side 1).
    fn configuration(&self, side: usize, key: &Path, state: &Path) -> String {
        let ports = [client(0), SERVER];
        let (mut outside, mut inside) = (
            ports[side].networks().to_vec(),
            ports[1 - side].networks().to_vec(),
        );
        // Nodes with NAT replace the clients' addresses by their own address. For R2, that address is on R1's side of the cluster.
        if side == 1 {
            inside.extend(TRANSLATED.networks());
        }
        outside.retain(|network| network.contains(':') == self.ipv6);
        inside.retain(|network| network.contains(':') == self.ipv6);
        let mut text = format!(
            "[edge]
name = {:?}
peer = {:?}
key_file = {key:?}
state_dir = {state:?}

[outside]
interface = \"{INTERFACE}\"
subnets = {outside:?}

[inside]
subnets = {inside:?}
",
            self.name(side),
            self.name(1 - side),
        );
        for (index, string) in self.strings.iter().enumerate() {
            text += &self.string(index, side, *string);
        }
        text + &self.behaviour()
    }

    fn string(&self, index: usize, side: usize, string: SteeredString) -> String {
        let address = |end: super::address::ClusterAddress| end.ip(self.ipv6);
        let node = node_end(index, side, self.lane);
        let hop = if self.ipv6 {
            format!("next_hop6 = \"{}\"", node.v6())
        } else {
            format!("next_hop = \"{}\"", node.v4())
        };
        format!(
            "
[[string]]
name = \"{}\"
interface = \"{}\"
{hop}
address = \"{}\"
peer_address = \"{}\"
mbit = {:.3}
weight = {}
",
            STRING_NAMES[index],
            string_port(index),
            address(edge_end(index, side, self.lane)),
            address(edge_end(index, 1 - side, self.lane)),
            string.mbit,
            string.weight,
        )
    }

    fn behaviour(&self) -> String {
        let command = if self.command.is_empty() {
            String::new()
        } else {
            format!("command = {:?}\n", self.command)
        };
        let rtt = self.rtt.map_or_else(String::new, |rtt| {
            format!("rtt_ms = {:.1}\n", rtt.as_secs_f64() * 1e3)
        });
        format!(
            "
[heartbeat]
interval_ms = {}
suspect_after = 2
failed_after = {FAILED_AFTER}
port = {EDGE_PORT}

[failover]
delay_ms = {}
{command}
{}
[rate]
enabled = {}
{rtt}utilization = 0.97
min_window = 3000
",
            self.heartbeat.as_millis(),
            self.delay.as_millis(),
            self.recovery.table(),
            self.is_rate_controlled,
        )
    }

    /// Starts an edge's daemon. The daemon's log is named after `label` and lies in `directory`.
    fn start_daemon(
        &self,
        edge: &Netns,
        configuration: &Path,
        (label, directory): (&str, &Path),
    ) -> Result<LoggedProcess> {
        let mut command = edge.command(&self.binary)?;
        command.arg("edge").arg("--config").arg(configuration);
        Ok(LoggedProcess::start(label, command, directory)?)
    }

    /// Starts both daemons and waits until all strings are up. Their key, configurations and logs are in `directory`.
    ///
    /// # Errors
    /// If a daemon cannot be started or a string does not come up.
    pub fn start(self, network: &EdgeTopology, directory: &Path, teardown: &Teardown) -> Result<EdgeDaemons> {
        let key = directory.join("edge.key");
        fs::write(&key, "5a".repeat(32))?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let mut configurations = Vec::new();
        let mut edges = Vec::new();
        for (side, edge) in network.lanes[self.lane].iter().enumerate() {
            let name = self.name(side);
            for root in LEFTOVERS.map(Path::new) {
                teardown.will_create(&Resource::Shared(root.to_owned()))?;
                teardown.will_create(&Resource::Path(root.join(&name)))?;
            }
            let configuration = directory.join(format!("{name}.toml"));
            let state = Path::new(LEFTOVERS[0]).join(&name);
            fs::write(&configuration, self.configuration(side, &key, &state))
                .with_context(|| configuration.display().to_string())?;
            let label = format!("edge-{name}");
            edges.push(Some(self.start_daemon(
                edge,
                &configuration,
                (&label, directory),
            )?));
            configurations.push(configuration);
        }
        let both = || anyhow::anyhow!("there are two edges");
        let daemons = EdgeDaemons {
            setup: self,
            edges: edges.try_into().map_err(|_| both())?,
            configurations: configurations.try_into().map_err(|_| both())?,
        };
        daemons.wait_up(network)?;
        Ok(daemons)
    }
}

impl EdgeDaemons {
    /// Waits until both edges report that all strings are up.
    fn wait_up(&self, network: &EdgeTopology) -> Result<()> {
        let deadline = Deadline::now() + READY_LIMIT;
        loop {
            let status = self.status(network);
            if status
                .as_ref()
                .is_ok_and(|edges| edges.iter().all(ReportedEdge::is_up))
            {
                return Ok(());
            }
            if Deadline::now() > deadline {
                let said = self.last_words();
                bail!("the strings are not up after {READY_LIMIT:?}: {status:?}; the edges said:{said}");
            }
            std::thread::sleep(POLL);
        }
    }

    /// The status of both edges.
    ///
    /// # Errors
    /// If an edge does not answer.
    pub fn status(&self, network: &EdgeTopology) -> Result<[ReportedEdge; 2]> {
        Ok([self.status_of(0, network)?, self.status_of(1, network)?])
    }

    /// The status of R1 (side 0) or R2 (side 1).
    ///
    /// # Errors
    /// If the edge does not answer.
    pub fn status_of(&self, side: usize, network: &EdgeTopology) -> Result<ReportedEdge> {
        let edge = &network.lanes[self.setup.lane][side];
        let name = self.setup.name(side);
        let mut command = edge.command(&self.setup.binary)?;
        command
            .args(["status", "--json", "--config"])
            .arg(&self.configurations[side]);
        let answer = process::output(&mut command, &format!("steadfast status of {name}"))?;
        serde_json::from_str(&answer).with_context(|| format!("the status of {name}: {answer}"))
    }

    /// For each edge: when it declared the last failure of string `index`, and when it had moved the flows. In nanoseconds of
    /// `CLOCK_MONOTONIC`.
    ///
    /// # Errors
    /// If an edge does not answer, or has not moved the flows.
    pub fn failover(&self, network: &EdgeTopology, index: usize) -> Result<[(u64, u64); 2]> {
        let status = self.status(network)?;
        let times = |edge: &ReportedEdge| {
            let string = edge.strings.get(index)?;
            string.failed_at_ns.zip(string.completed_at_ns)
        };
        match (times(&status[0]), times(&status[1])) {
            (Some(one), Some(other)) => Ok([one, other]),
            _ => bail!(
                "no failover of string {}: {status:?}; the edges said:{}",
                STRING_NAMES[index],
                self.last_words()
            ),
        }
    }

    /// Whether the daemon of R1 or R2 should run: the lab has not killed it, or has started it again.
    pub const fn is_running(&self, side: usize) -> bool {
        self.edges[side].is_some()
    }

    /// Kills the daemon of R1 or R2.
    ///
    /// # Errors
    /// If it cannot be killed.
    pub fn kill(&mut self, side: usize) -> Result<()> {
        if let Some(mut edge) = self.edges[side].take() {
            edge.signal(Signal::SIGKILL)?;
            edge.wait(STOP_LIMIT)?;
        }
        Ok(())
    }

    /// Starts the daemon of R1 or R2 again after [`Self::kill`].
    ///
    /// # Errors
    /// If it cannot be started or the strings do not come up.
    pub fn restart(&mut self, side: usize, network: &EdgeTopology, directory: &Path) -> Result<()> {
        let edge = &network.lanes[self.setup.lane][side];
        let label = format!("edge-{}-again", self.setup.name(side));
        let daemon = self
            .setup
            .start_daemon(edge, &self.configurations[side], (&label, directory))?;
        self.edges[side] = Some(daemon);
        self.wait_up(network)
    }

    /// Upgrades the daemon of R1 or R2: SIGUSR2 makes it start the program that is now at the path of its own binary. Waits until
    /// the new program has adopted the flows.
    ///
    /// # Errors
    /// If no successor adopts the flows in time.
    pub fn upgrade(&mut self, side: usize) -> Result<()> {
        let edge = self.edges[side]
            .as_mut()
            .context("the edge's daemon was killed, so it cannot be upgraded")?;
        edge.signal(Signal::SIGUSR2)?;
        edge.wait_until("adopt the flows", READY_LIMIT, |edge| {
            edge.output().contains("adopted the flows")
        })?;
        Ok(())
    }

    /// The end of both daemons' output.
    pub fn last_words(&self) -> String {
        self.edges
            .iter()
            .flatten()
            .map(LoggedProcess::last_words)
            .collect()
    }

    /// Stops both daemons with SIGTERM, as a supervisor does.
    ///
    /// # Errors
    /// If a daemon does not stop in time or reports a failure.
    pub fn stop(mut self) -> Result<()> {
        for edge in self.edges.iter().flatten() {
            edge.signal(Signal::SIGTERM)?;
        }
        for edge in self.edges.iter_mut().flatten() {
            let status = edge.wait(STOP_LIMIT)?;
            if !status.success() {
                bail!(
                    "{} did not stop cleanly: {status}; it said:{}",
                    edge.label(),
                    edge.last_words()
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> EdgeSetup {
        let string = |weight| SteeredString { weight, mbit: 100.0 };
        EdgeSetup {
            binary: "steadfast".into(),
            run: "1".to_owned(),
            lane: 0,
            ipv6: false,
            strings: vec![string(1), string(0)],
            heartbeat: Duration::from_millis(10),
            delay: Duration::from_millis(2970),
            command: Vec::new(),
            recovery: RecoverySetup::default(),
            is_rate_controlled: false,
            rtt: None,
        }
    }

    #[test]
    fn each_edge_sees_the_cluster_from_its_own_side() {
        let text = setup().configuration(1, Path::new("/key"), Path::new("/state"));
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["edge"]["peer"].as_str(), Some("r1-1"));
        assert_eq!(table["outside"]["subnets"][0].as_str(), Some("10.2.0.0/24"));
        assert_eq!(table["inside"]["subnets"][1].as_str(), Some("10.9.0.0/24"));
        let string = &table["string"][1];
        assert_eq!(string["interface"].as_str(), Some("b0"));
        assert_eq!(string["next_hop"].as_str(), Some("10.22.0.2"));
        assert_eq!(string["peer_address"].as_str(), Some("10.12.0.1"));
        assert_eq!(string["weight"].as_integer(), Some(0));
        assert_eq!(table["recovery"]["policy"].as_str(), Some("lowest"));
        assert_eq!(table["recovery"]["second"].as_str(), Some("newest"));
        assert!(table["recovery"].get("max_packets").is_none());
        assert_eq!(table["rate"]["enabled"].as_bool(), Some(false));
        assert!(table["rate"].get("rtt_ms").is_none());
    }

    #[test]
    fn each_lane_has_names_and_addresses_of_its_own() {
        let setup = EdgeSetup { lane: 1, ..setup() };
        let text = setup.configuration(0, Path::new("/key"), Path::new("/state"));
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["edge"]["name"].as_str(), Some("r1b-1"));
        assert_eq!(table["edge"]["peer"].as_str(), Some("r2b-1"));
        let string = &table["string"][0];
        assert_eq!(string["next_hop"].as_str(), Some("10.31.0.2"));
        assert_eq!(string["peer_address"].as_str(), Some("10.41.0.1"));
    }

    #[test]
    fn rate_control_and_a_command_are_configured() {
        let setup = EdgeSetup {
            ipv6: true,
            command: vec!["conntrackd".to_owned(), "-c".to_owned()],
            is_rate_controlled: true,
            rtt: Some(Duration::from_millis(98)),
            ..setup()
        };
        let text = setup.configuration(0, Path::new("/key"), Path::new("/state"));
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["failover"]["command"][1].as_str(), Some("-c"));
        assert_eq!(table["rate"]["rtt_ms"].as_float(), Some(98.0));
        assert_eq!(table["string"][0]["next_hop6"].as_str(), Some("fd11::2"));
        assert_eq!(table["string"][0]["address"].as_str(), Some("fd11::1"));
    }
}
