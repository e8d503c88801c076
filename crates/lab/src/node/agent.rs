//! A node's daemon. The lab uses the daemon as an operator does: with a configuration file, `steadfast run` and `steadfast status`.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant as Deadline};

use anyhow::{Context, Result, bail, ensure};
use linux::netns::Netns;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proto::Instant;
use serde::Deserialize;

use super::arbiter::ArbiterSetup;
use super::health::HealthProbe;
use super::log::LogOptions;
use super::operator::Operator;
use super::status::{ReportedConnection, ReportedStatus};
use crate::clock::monotonic;
use crate::net::{INTERFACE, NODE_NAMES};
use crate::process::{self, LoggedProcess};
use crate::teardown::{Resource, Teardown};
use judge::CommitMode;

/// Directory in which the daemon pins its eBPF objects, by node name.
const PINS: &str = "/sys/fs/bpf/steadfast";
/// Directory of the daemon's state, by node name.
pub const STATE: &str = "/run/steadfast";
/// Time limit for the pair to become duplex.
const READY_LIMIT: Duration = Duration::from_secs(15);
/// Time limit for a process to end after SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for a daemon to stop. The daemon waits for its peer for at most 5 s.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for an upgrade. The daemon checks the new program and then replaces itself with it.
const UPGRADE_LIMIT: Duration = Duration::from_secs(30);
/// Time between two checks whether an upgrade is complete. This time limits the precision of the upgrade's measured time.
const UPGRADE_POLL: Duration = Duration::from_micros(200);
const POLL: Duration = Duration::from_millis(20);
/// UDP port of the daemons' heartbeats.
pub const HEARTBEAT_PORT: u16 = 7400;

/// The part of the configuration that both nodes share.
#[derive(Clone, Debug)]
pub struct PairSetup {
    /// The daemon's binary on each node.
    pub binaries: [PathBuf; 2],
    /// The names of node a and b, unique on this machine.
    pub names: [String; 2],
    /// The nodes' addresses, one for each link between them.
    pub addresses: [Vec<IpAddr>; 2],
    /// The nodes' addresses on the service's interface, if `addresses` does not begin with them.
    pub on_service: Option<[IpAddr; 2]>,
    /// The service.
    pub service: SocketAddr,
    /// The service's name in the configuration.
    pub service_name: String,
    /// The service's interface on both nodes.
    pub interface: String,
    /// The UDP port of the heartbeats.
    pub heartbeat_port: u16,
    /// The restart policy: `http`, `replica`, `replay` or `snapshot`.
    pub policy: &'static str,
    /// The commit mode.
    pub commit: CommitMode,
    /// The local port of the application behind a stage, if there is a stage.
    pub staged_port: Option<u16>,
    /// With policy `snapshot`: the sockets at which the agents of node a and b take snapshots.
    pub snapshot_sockets: Option<[PathBuf; 2]>,
    /// With recorded order: the sockets for the servers' libraries on node a and b.
    pub order_sockets: Option<[PathBuf; 2]>,
    /// With recorded order: a server that diverges goes on with the record (`on_divergence = "trust-log"`).
    pub trusts_log: bool,
    /// Whether a replica follows protocols other than HTTP.
    pub opaque: bool,
    /// Milliseconds between two heartbeats.
    pub heartbeat_ms: u32,
    /// Number of missing heartbeats in a row after which the peer is declared dead.
    pub missed: u32,
    /// Milliseconds for which an agent may be silent while its kernel answers. `None`: not configured.
    pub agent_timeout_ms: Option<u32>,
    /// Outside hosts. One of them must answer before the primary claims the address. Empty: not configured.
    pub claim_ping: Vec<IpAddr>,
    /// The health probe of the application, if there is one.
    pub health: Option<HealthProbe>,
    /// The program that copies the primary's state to the replica's server, if there is one.
    pub state_sync: Option<PathBuf>,
    /// The arbiter, which decides which node may speak when the nodes do not hear each other.
    pub arbiter: ArbiterSetup,
    /// `keep_input`.
    pub keep_input: bool,
    /// The limits of the logs.
    pub log: LogOptions,
    /// `[peer] transport`.
    pub transport: &'static str,
    /// The annexes of the service.
    pub annexes: Vec<AnnexSetup>,
    /// The pair's nodes know the annexes from etcd only.
    pub registered_annexes: bool,
}

/// A node outside of the pair that takes connections of the service.
#[derive(Clone, Debug)]
pub struct AnnexSetup {
    /// Its name, unique on this machine.
    pub name: String,
    /// The address at which it listens for the pair's nodes.
    pub address: SocketAddr,
    /// With policy `snapshot`: the socket at which its daemon takes snapshots.
    pub snapshots: Option<PathBuf>,
    /// The health probe of its application, if there is one.
    pub health: Option<HealthProbe>,
}

/// Time for which a backup may speak without asking the arbiter. The daemons' default.
const LEASE: Duration = Duration::from_millis(300);

/// The files that the daemons of the nodes `names` leave outside of their network namespaces: pins and state.
pub fn leftovers_of_nodes(names: &[String]) -> Vec<Resource> {
    let roots = [PINS, STATE].map(Path::new);
    let own = |root: &'static Path| names.iter().map(move |name| root.join(name));
    let shared = roots.iter().map(|root| Resource::Shared(root.to_path_buf()));
    shared
        .chain(roots.into_iter().flat_map(own).map(Resource::Path))
        .collect()
}

impl PairSetup {
    /// A pair of run `run` that protects the HTTP service `service` between nodes with these `addresses`. Optional settings are not
    /// configured. Detection takes 80 ms, so that detection and takeover together stay below the clients' smallest retransmission timeout
    /// (200 ms).
    pub fn new(binary: PathBuf, run: &str, service: SocketAddr, addresses: [Vec<IpAddr>; 2]) -> Self {
        Self {
            binaries: [binary.clone(), binary],
            names: NODE_NAMES.map(|name| format!("{name}-{run}")),
            addresses,
            on_service: None,
            service,
            service_name: "lab".to_owned(),
            interface: INTERFACE.to_owned(),
            heartbeat_port: HEARTBEAT_PORT,
            policy: "http",
            commit: CommitMode::default(),
            staged_port: None,
            snapshot_sockets: None,
            order_sockets: None,
            trusts_log: false,
            keep_input: false,
            opaque: false,
            heartbeat_ms: 20,
            missed: 4,
            agent_timeout_ms: None,
            claim_ping: Vec::new(),
            health: None,
            state_sync: None,
            arbiter: ArbiterSetup::None,
            log: LogOptions::default(),
            transport: "datagrams",
            annexes: Vec::new(),
            registered_annexes: false,
        }
    }

    /// Starts both daemons, on `nodes`, and waits until the pair is duplex. The configurations, the key and the
    /// daemons' output are in `directory`.
    ///
    /// # Errors
    /// If a daemon cannot be started or does not become duplex.
    pub fn start(
        &self,
        nodes: [&Netns; 2],
        directory: &Path,
        teardown: &Teardown,
    ) -> Result<[AgentProcess; 2]> {
        for leftover in self.leftovers() {
            teardown.will_create(&leftover)?;
        }
        let start = |index: usize| AgentProcess::start(self, index, nodes[index], directory);
        let mut agents = [start(0)?, start(1)?];
        for (agent, node) in agents.iter_mut().zip(nodes) {
            agent.wait_ready(node)?;
        }
        Ok(agents)
    }

    /// The files that the daemons leave outside of their network namespaces: pins and state.
    fn leftovers(&self) -> Vec<Resource> {
        leftovers_of_nodes(&self.names)
    }

    /// The file in `directory` with the key of the pair and of its annexes.
    pub fn key(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{}.key", self.names[0]))
    }

    /// The configuration of `annex`. Its pins and its state have the places of a node's.
    pub fn annex_configuration(&self, annex: &AnnexSetup, key: &Path) -> String {
        let AnnexSetup {
            name,
            address,
            snapshots,
            health,
        } = annex;
        let loopback = self.loopback();
        let socket = snapshots
            .as_ref()
            .map_or_else(String::new, |socket| format!("snapshot_socket = {socket:?}\n"));
        format!(
            "annex = \"{name}\"
state_dir = \"{STATE}/{name}\"
listen = \"{address}\"
key_file = {key:?}
{socket}
[[service]]
name = \"{}\"
policy = \"{}\"
address = \"{}\"
port = {port}
interface = \"{INTERFACE}\"
application = \"{loopback}:{port}\"
{}{}",
            self.service_name,
            self.policy,
            self.service.ip(),
            health.map_or_else(String::new, HealthProbe::table),
            if self.registered_annexes {
                self.arbiter.registry()
            } else {
                String::new()
            },
            port = self.service.port(),
        )
    }

    /// The loopback address of the service's IP version.
    fn loopback(&self) -> &'static str {
        if self.service.is_ipv4() {
            "127.0.0.1"
        } else {
            "[::1]"
        }
    }

    /// The directories in which the daemon of node `index` leaves its pins and its state.
    pub fn leftovers_of(&self, index: usize) -> [PathBuf; 2] {
        [PINS, STATE].map(|root| Path::new(root).join(&self.names[index]))
    }

    /// Longest time from a backup's last message to the end of the backup's lease. It is 17/16 of the lease, because clocks drift.
    pub fn lease_end() -> Duration {
        LEASE + LEASE / 16
    }

    /// Longest time from a node's death until its peer declares it dead.
    pub fn detection(&self) -> Duration {
        Duration::from_millis(u64::from(self.heartbeat_ms) * u64::from(self.missed))
    }

    /// The line of the configuration that sets the socket for snapshots of node `index`.
    fn snapshot_socket(&self, index: usize) -> String {
        let sockets = self.snapshot_sockets.as_ref();
        sockets.map_or_else(String::new, |sockets| {
            format!("snapshot_socket = {:?}\n", sockets[index])
        })
    }

    /// The line of the configuration that sets the socket for recorded order of node `index`.
    fn order_socket(&self, index: usize) -> String {
        let sockets = self.order_sockets.as_ref();
        sockets.map_or_else(String::new, |sockets| {
            let policy = if self.trusts_log {
                "on_divergence = \"trust-log\"\n"
            } else {
                ""
            };
            format!("recorded_order = {:?}\n{policy}", sockets[index])
        })
    }

    /// The configuration of node `index`. Node a is the primary. The file `key` contains the key of both nodes.
    fn configuration(&self, index: usize, key: &Path) -> String {
        let (name, peer) = (&self.names[index], 1 - index);
        let primary = &self.names[0];
        let Self {
            service_name,
            interface,
            heartbeat_port,
            transport,
            ..
        } = self;
        let loopback = self.loopback();
        format!(
            "[node]
name = \"{name}\"
state_dir = \"{STATE}/{name}\"
{}{}
[peer]
name = \"{}\"
addresses = {:?}
port = {heartbeat_port}
key_file = {key:?}
transport = \"{transport}\"

[detector]
heartbeat_ms = {}
missed = {}
lease_ms = {}
{}
[[service]]
name = \"{service_name}\"
address = \"{}\"
port = {port}
interface = \"{interface}\"
policy = \"{}\"
primary = \"{primary}\"
application = \"{loopback}:{port}\"
{}{}{}{}{}{}{}{}{}",
            self.agent_timeout_ms
                .map_or_else(String::new, |ms| format!("agent_timeout_ms = {ms}\n")),
            self.snapshot_socket(1 - peer),
            self.names[peer],
            self.addresses[peer]
                .iter()
                .map(IpAddr::to_string)
                .collect::<Vec<_>>(),
            self.heartbeat_ms,
            self.missed,
            LEASE.as_millis(),
            self.log.table(),
            self.service.ip(),
            self.policy,
            self.staged_port.map_or_else(String::new, |port| format!(
                "staged_application = \"{loopback}:{port}\"\n"
            )),
            self.on_service.map_or_else(String::new, |nodes| format!(
                "peer_address = \"{}\"\n",
                nodes[peer]
            )),
            self.modes(),
            self.order_socket(index),
            self.claim(),
            self.state_sync
                .as_ref()
                .map_or_else(String::new, |program| format!("state_sync = [{program:?}]\n")),
            self.health.map_or_else(String::new, HealthProbe::table),
            self.annex_tables(),
            self.arbiter.table(index),
            port = self.service.port(),
        )
    }

    /// The annexes in the configuration of a node.
    fn annex_tables(&self) -> String {
        if self.registered_annexes {
            return String::new();
        }
        self.annexes.iter().map(AnnexSetup::table).collect()
    }

    /// The keys `commit`, `opaque`, `keep_input` and `registered_annexes`, if they are not the defaults.
    fn modes(&self) -> String {
        let commit = match self.commit {
            CommitMode::Prs => "",
            CommitMode::Pr => "commit = \"pr\"\n",
            CommitMode::Immediate => "commit = \"immediate\"\n",
        };
        let opaque = if self.opaque { "opaque = \"replica\"\n" } else { "" };
        let keep = if self.keep_input {
            "keep_input = true\n"
        } else {
            ""
        };
        let registered = if self.registered_annexes {
            "registered_annexes = true\n"
        } else {
            ""
        };
        format!("{commit}{opaque}{keep}{registered}")
    }

    fn claim(&self) -> String {
        if self.claim_ping.is_empty() {
            return String::new();
        }
        let hosts: Vec<_> = self.claim_ping.iter().map(|host| format!("\"{host}\"")).collect();
        format!("claim_ping = [{}]\n", hosts.join(", "))
    }
}

impl AnnexSetup {
    /// The annex in the configuration of the pair's nodes.
    fn table(&self) -> String {
        format!(
            "\n[[service.annex]]\nname = \"{}\"\naddress = \"{}\"\n",
            self.name, self.address
        )
    }
}

/// Writes the key of the pair whose first node is `name`. The key is not secret: its only purpose is that all runs use authentication.
///
/// # Errors
/// If the file cannot be written.
pub fn write_key(path: &Path, name: &str) -> Result<()> {
    let digits: String = name
        .bytes()
        .cycle()
        .take(32)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    fs::write(path, digits)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o600)))
        .with_context(|| path.display().to_string())
}

/// A running daemon.
#[derive(Debug)]
pub struct AgentProcess {
    operator: Operator,
    process: LoggedProcess,
    name: String,
    /// Number of times the daemon was started.
    starts: u32,
    /// Whether the daemon is ready only when it has a channel to its peer.
    needs_channel: bool,
}

impl AgentProcess {
    /// Writes the configuration of node `index` of `pair` to `directory` and starts the daemon in `node`.
    ///
    /// # Errors
    /// If a file cannot be written or the process cannot be started. [`Self::wait_ready`] reports whether the daemon accepts its
    /// configuration.
    fn start(pair: &PairSetup, index: usize, node: &Netns, directory: &Path) -> Result<Self> {
        let name = &pair.names[index];
        let configuration = directory.join(format!("{name}.toml"));
        let key = pair.key(directory);
        write_key(&key, &pair.names[0])?;
        fs::write(&configuration, pair.configuration(index, &key))
            .with_context(|| configuration.display().to_string())?;
        let operator = Operator {
            binary: pair.binaries[index].clone(),
            configuration,
            peer: None,
        };
        let process = operator.run(&format!("steadfast-{name}"), node, directory)?;
        Ok(Self {
            operator,
            process,
            name: name.clone(),
            starts: 1,
            needs_channel: pair.transport == "sctp",
        })
    }

    /// The daemon's process, not its keeper.
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Whether the daemon exchanges messages with its peer over an SCTP association.
    pub fn needs_channel(&self) -> bool {
        self.needs_channel
    }

    /// The directory in which the daemon pins its eBPF maps.
    pub fn pins(&self) -> PathBuf {
        Path::new(PINS).join(&self.name)
    }

    /// Kills the daemon's process, but not its keeper.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn kill(&self) -> Result<()> {
        kill(self.process.pid(), Signal::SIGKILL).with_context(|| format!("kill {}", self.name))
    }

    /// Upgrades the daemon in place, as a package and `systemctl reload` do. Replaces its program's file with a copy, then sends
    /// SIGUSR2. Returns the time just before the check that first saw the new program running.
    ///
    /// # Errors
    /// If the new program does not run in time. The error quotes the daemon's output.
    pub fn upgrade(&self) -> Result<Instant> {
        let program = &self.operator.binary;
        let new = program.with_extension("new");
        process::copy_program(program, &new)?;
        fs::rename(&new, program).with_context(|| format!("replace {}", program.display()))?;
        let successor = inode(program)?;
        kill(self.pid(), Signal::SIGUSR2).with_context(|| format!("upgrade {}", self.name))?;
        let deadline = Deadline::now() + UPGRADE_LIMIT;
        loop {
            let seen = monotonic();
            if runs(self.pid())? == successor {
                return Ok(seen);
            }
            ensure!(
                Deadline::now() < deadline,
                "{} is not upgraded after {UPGRADE_LIMIT:?}; it said:{}",
                self.name,
                self.last_words()
            );
            std::thread::sleep(UPGRADE_POLL);
        }
    }

    /// Returns two facts: whether the current keeper, which gets new connections, runs the program file that is installed now, and the
    /// number of older keepers, from before an upgrade.
    ///
    /// # Errors
    /// If the keeper or the daemon's state cannot be read.
    pub fn keepers(&self) -> Result<(bool, usize)> {
        let state = Path::new(STATE).join(&self.name);
        let lock = state.join("keeper.lock");
        let pid = fs::read_to_string(&lock).with_context(|| lock.display().to_string())?;
        let is_new = runs(Pid::from_raw(pid.trim().parse()?))? == inode(&self.operator.binary)?;
        let mut retired = 0;
        for entry in fs::read_dir(&state)? {
            let name = entry?.file_name().into_encoded_bytes();
            retired += usize::from(name.starts_with(b"keeper-") && name.ends_with(b".lock"));
        }
        Ok((is_new, retired))
    }

    /// Stops the daemon's process (SIGSTOP) until [`Self::resume`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn pause(&self) -> Result<()> {
        kill(self.process.pid(), Signal::SIGSTOP).with_context(|| format!("pause {}", self.name))
    }

    /// Lets the daemon's process go on after [`Self::pause`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn resume(&self) -> Result<()> {
        kill(self.process.pid(), Signal::SIGCONT).with_context(|| format!("resume {}", self.name))
    }

    /// Tells the daemon to stop (SIGTERM), as a supervisor does.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn stop(&self) -> Result<()> {
        kill(self.process.pid(), Signal::SIGTERM).with_context(|| format!("stop {}", self.name))
    }

    /// Waits until the daemon has stopped without a failure.
    ///
    /// # Errors
    /// If it does not stop in time, or reports a failure.
    pub fn wait_stopped(&mut self) -> Result<()> {
        let status = self.process.wait(STOP_LIMIT)?;
        if !status.success() {
            bail!(
                "{} did not stop cleanly: {status}; it said:{}",
                self.name,
                self.last_words()
            );
        }
        Ok(())
    }

    /// Waits for the end of the daemon's process, then starts it again with the same configuration.
    ///
    /// # Errors
    /// If the process has not ended, or the new one cannot be started.
    pub fn start_again(&mut self, node: &Netns, directory: &Path) -> Result<()> {
        self.process.wait(KILL_LIMIT)?;
        self.starts += 1;
        let label = format!("steadfast-{}-{}", self.name, self.starts);
        self.process = self.operator.run(&label, node, directory)?;
        Ok(())
    }

    /// Waits until the daemon in `node` reports that every service is duplex, every replica has the primary's state, and the channel to the
    /// peer is established if the pair has one.
    ///
    /// # Errors
    /// If the daemon ends, or does not report this in time. The error quotes the daemon's output.
    fn wait_ready(&mut self, node: &Netns) -> Result<()> {
        let mut seen = String::new();
        let (operator, needs_channel) = (&self.operator, self.needs_channel);
        let is_ready = |status: &ReportedStatus| {
            status.is_duplex() && status.is_synced() && (status.has_channel() || !needs_channel)
        };
        let is_duplex = |_: &LoggedProcess| {
            let status = operator.status(node);
            seen = match &status {
                Ok(status) if is_ready(status) => return true,
                Ok(status) => format!("{status:?}"),
                Err(error) => format!("{error:#}"),
            };
            std::thread::sleep(POLL);
            false
        };
        let ready = self.process.wait_until("become duplex", READY_LIMIT, is_duplex);
        ready.with_context(|| format!("last status: {seen}"))
    }

    /// The last lines of the daemon's output.
    pub fn last_words(&self) -> String {
        self.process.last_words()
    }

    /// Asks the daemon in `node` for its status.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn status(&self, node: &Netns) -> Result<ReportedStatus> {
        self.operator.status(node)
    }

    /// Waits until the daemon in `node` reports a status that satisfies `is_right`. Asks the daemon every `poll`. If `limit` passes first,
    /// returns a problem text: the daemon does not do `what`.
    pub fn wait_for(
        &self,
        node: &Netns,
        what: &str,
        (limit, poll): (Duration, Duration),
        is_right: impl FnMut(&ReportedStatus) -> bool,
    ) -> Option<String> {
        let problem = self.operator.wait_for(node, (limit, poll), is_right)?;
        let (name, said) = (&self.name, self.last_words());
        Some(format!("{name} does not {what} {problem}; it said:{said}"))
    }

    /// Runs an operator's command on the daemon in `node`, and waits until the command is done.
    ///
    /// # Errors
    /// If the command fails.
    pub fn order(&self, node: &Netns, command: &[&str]) -> Result<()> {
        self.operator.order(node, command)
    }

    /// Asks the daemon in `node` for the connections that it has restored.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn restored(&self, node: &Netns) -> Result<Vec<ReportedConnection>> {
        #[derive(Deserialize)]
        struct ReportedConnections {
            connections: Vec<ReportedConnection>,
        }
        let answer = self.operator.ask(&["connections", "--restored"], node);
        answer.map(|ReportedConnections { connections }| connections)
    }
}

/// Inode of the file that process `pid` runs.
fn runs(pid: Pid) -> Result<u64> {
    inode(Path::new(&format!("/proc/{pid}/exe")))
}

fn inode(path: &Path) -> Result<u64> {
    let file = fs::metadata(path).with_context(|| path.display().to_string())?;
    Ok(file.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{AtLimitOption, FenceSetup};

    fn pair() -> PairSetup {
        let addresses = ["10.2.0.10", "10.2.0.11"].map(|address| vec![address.parse().unwrap()]);
        PairSetup::new(
            "steadfast".into(),
            "1",
            "10.2.0.100:80".parse().unwrap(),
            addresses,
        )
    }

    #[test]
    fn each_node_is_the_others_peer_and_a_is_primary() {
        let b = pair().configuration(1, Path::new("/key"));
        for line in [
            "name = \"b-1\"",
            "name = \"a-1\"\naddresses = [\"10.2.0.10\"]",
            "key_file = \"/key\"",
            "primary = \"a-1\"",
            "application = \"127.0.0.1:80\"",
        ] {
            assert!(b.contains(line), "{line} is missing in:\n{b}");
        }
    }

    #[test]
    fn what_is_not_asked_for_is_not_configured() {
        let plain = pair().configuration(0, Path::new("/key"));
        assert!(
            [
                "agent_timeout",
                "claim_ping",
                "health",
                "state_sync",
                "recorded_order",
                "opaque",
                "keep_input",
                "[log]",
                "peer_address",
                "annex",
            ]
            .iter()
            .all(|key| !plain.contains(key)),
            "{plain}"
        );
        let full = PairSetup {
            on_service: Some(["10.2.0.10", "10.2.0.11"].map(|address| address.parse().unwrap())),
            opaque: true,
            keep_input: true,
            agent_timeout_ms: Some(5_000),
            claim_ping: vec!["10.2.0.1".parse().unwrap(), "10.1.0.2".parse().unwrap()],
            health: Some(HealthProbe {
                send: "GET / HTTP/1.0\r\n\r\n",
                expect: "HTTP/1.",
            }),
            state_sync: Some("/x/sync".into()),
            order_sockets: Some(["/x/a".into(), "/x/b".into()]),
            arbiter: ArbiterSetup::Fence(["off", "on"].map(|program| FenceSetup {
                command: vec![program.to_owned()],
                delay_ms: None,
            })),
            log: LogOptions {
                log_mb: Some(1),
                ring_mb: Some(2),
                at_limit: Some(AtLimitOption::Spill),
            },
            annexes: vec![AnnexSetup {
                name: "c-1".to_owned(),
                address: "10.2.0.12:7402".parse().unwrap(),
                snapshots: None,
                health: None,
            }],
            ..pair()
        };
        let table: toml::Table = full.configuration(0, Path::new("/key")).parse().unwrap();
        let service = &table["service"][0];
        assert_eq!(table["fence"]["command"][0].as_str(), Some("off"));
        assert_eq!(table["log"]["per_connection_mb"].as_integer(), Some(1));
        assert_eq!(table["log"]["at_limit"].as_str(), Some("spill"));
        assert_eq!(table["log"]["ring_mb"].as_integer(), Some(2));
        assert_eq!(table["node"]["agent_timeout_ms"].as_integer(), Some(5_000));
        assert_eq!(service["peer_address"].as_str(), Some("10.2.0.11"));
        assert_eq!(service["annex"][0]["address"].as_str(), Some("10.2.0.12:7402"));
        assert!(service.get("registered_annexes").is_none());
        assert_eq!(service["opaque"].as_str(), Some("replica"));
        assert_eq!(service["keep_input"].as_bool(), Some(true));
        assert_eq!(service["claim_ping"][1].as_str(), Some("10.1.0.2"));
        assert_eq!(service["state_sync"][0].as_str(), Some("/x/sync"));
        assert_eq!(service["recorded_order"].as_str(), Some("/x/a"));
        assert_eq!(service["health"]["send"].as_str(), Some("GET / HTTP/1.0\r\n\r\n"));
        assert_eq!(service["health"]["failures"].as_integer(), Some(3));
    }

    #[test]
    fn a_status_is_read_and_its_unknown_parts_are_left_alone() {
        let text = r#"{"node":"b-1","peer":{"name":"a-1","address":"10.2.0.10","alive":false},"services":[{
            "name":"lab","address":"10.2.0.100","port":80,"policy":"http","role":"primary","mode":"simplex","epoch":2,
            "connections":{"protected":0,"unprotected":20,"ambiguous":0},"connections_complete":true,"log_bytes":0,"ring_fill_bytes":0,
            "takeovers":[{"declared_ns":100,"gate_closed_ns":110,"first_live_ns":120,"last_live_ns":null,
            "connections":20,"restored":19,"reset":0}],"counters":{"drops":1}}]}"#;
        let status: ReportedStatus = serde_json::from_str(text).unwrap();
        assert!(!status.is_duplex());
        let takeover = status.takeovers()[0];
        assert_eq!((takeover.declared_ns, takeover.last_live_ns), (100, None));
        assert!(!takeover.is_complete());
    }

    #[test]
    fn annexes_that_register_are_not_in_the_nodes_files() {
        let annex = AnnexSetup {
            name: "c-1".to_owned(),
            address: "10.2.0.12:7402".parse().unwrap(),
            snapshots: None,
            health: None,
        };
        let pair = PairSetup {
            registered_annexes: true,
            annexes: vec![annex.clone()],
            arbiter: ArbiterSetup::Etcd {
                endpoints: vec!["https://10.2.0.20:2379".to_owned()],
                directory: "/tls".into(),
                clients: ["node-a".to_owned(), "node-b".to_owned()],
            },
            ..pair()
        };
        let node: toml::Table = pair.configuration(1, Path::new("/key")).parse().unwrap();
        assert_eq!(node["service"][0]["registered_annexes"].as_bool(), Some(true));
        assert!(node["service"][0].get("annex").is_none());
        let file: toml::Table = pair
            .annex_configuration(&annex, Path::new("/key"))
            .parse()
            .unwrap();
        assert_eq!(file["registry"]["cert"].as_str(), Some("/tls/node-a.crt"));
        assert_eq!(file["registry"]["endpoints"], node["witness"]["endpoints"]);
    }
}
