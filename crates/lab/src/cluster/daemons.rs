//! The daemons: one on each node, for both of its peers.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant as Deadline};

use anyhow::{Context, Result, bail, ensure};
use linux::netns::Netns;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::network::{ClusterNetwork, ServiceLan};
use super::options::APPLICATION;
use crate::net::address::CLIENT;
use crate::node::{ArbiterSetup, Operator, ReportedStatus, STATE, leftovers_of_nodes, write_key};
use crate::process::{self, LoggedProcess};
use crate::run::LabRun;

/// Milliseconds between two heartbeats.
const HEARTBEAT_MS: u32 = 20;
/// Number of missing heartbeats in a row after which a peer is declared dead.
const MISSED: u32 = 4;
/// Milliseconds for which an agent may be away. Enough for one that was killed to be started again, beside everything else on two cores.
const AGENT_TIMEOUT_MS: u32 = 5_000;
/// Time limit for all pairs to become duplex, and time between two looks.
const READY: (Duration, Duration) = (Duration::from_secs(20), Duration::from_millis(20));

/// The daemons of all nodes.
pub struct ClusterDaemons {
    names: Vec<String>,
    processes: Vec<LoggedProcess>,
    /// For each service: the access to the agents of its two nodes. At the start, the first one is the primary.
    agents: Vec<[Operator; 2]>,
}

impl ClusterDaemons {
    /// Starts a daemon on each node, and waits until all pairs are duplex.
    ///
    /// # Errors
    /// If a daemon cannot be started, or a pair does not become duplex. The error quotes the daemon's output.
    pub fn start(
        network: &ClusterNetwork,
        segments: &[ServiceLan],
        binary: &Path,
        arbiter: &ArbiterSetup,
        run: &LabRun<'_>,
    ) -> Result<Self> {
        let count = network.nodes.len();
        let names: Vec<_> = (0..count).map(|node| format!("n{node}-{}", run.name)).collect();
        for leftover in leftovers_of_nodes(&agents_of(&names, segments)) {
            run.teardown.will_create(&leftover)?;
        }
        let program = run.directory.join("steadfast"); // a copy, because it is replaced
        process::copy_program(binary, &program)?;
        let operator = |node: usize, peer: &str| Operator {
            binary: program.clone(),
            configuration: run.directory.join(format!("{}.toml", names[node])),
            peer: Some(peer.to_owned()),
        };
        let mut processes = Vec::new();
        for (node, name) in names.iter().enumerate() {
            let text = configuration(node, &names, segments, arbiter, &run.directory)?;
            let access = operator(node, "");
            fs::write(&access.configuration, text)?;
            processes.push(access.run(&format!("steadfast-{name}"), &network.nodes[node], &run.directory)?);
        }
        let agents = segments.iter().map(|segment| {
            let [a, b] = segment.nodes(count);
            [operator(a, &names[b]), operator(b, &names[a])]
        });
        let daemons = Self {
            agents: agents.collect(),
            names,
            processes,
        };
        for segment in segments {
            for (place, node) in segment.nodes(count).into_iter().enumerate() {
                let namespace = &network.nodes[node];
                let agent = &daemons.agents[segment.service][place];
                if let Some(problem) = agent.wait_for(namespace, READY, ReportedStatus::is_duplex) {
                    let said = daemons.processes[node].last_words();
                    bail!(
                        "{} does not become duplex {problem}; it said:{said}",
                        daemons.names[node]
                    );
                }
            }
        }
        Ok(daemons)
    }

    /// Longest time from a node's death until its peer declares it dead.
    pub fn detection() -> Duration {
        Duration::from_millis(u64::from(HEARTBEAT_MS * MISSED))
    }

    /// Kills `node`'s agent for the service of which it is the backup, upgrades the node's daemon in place, and kills the daemon's supervisor and
    /// starts it again. Waits after each step until the processes are as they should be.
    ///
    /// # Errors
    /// If an agent is not started again, a program is not replaced, or the new supervisor does not leave the agents alone.
    pub fn restart(&mut self, node: usize, namespace: &Netns, directory: &Path) -> Result<()> {
        let agents = self.state_dirs_of(node);
        let before = pids(&agents).context("the agents run")?;
        kill(before[0], Signal::SIGKILL)?;
        let is_again = || pids(&agents).is_some_and(|now| now[0] != before[0] && now[1] == before[1]);
        self.wait("start an agent again that was killed", node, is_again)?;

        let program = &self.agents[0][0].binary;
        let new = program.with_extension("new");
        process::copy_program(program, &new)?;
        fs::rename(&new, program)?;
        let successor = fs::metadata(program)?.ino();
        let supervisor = self.processes[node].pid();
        let before = pids(&agents).context("the agents run")?;
        kill(supervisor, Signal::SIGUSR2)?;
        let runs =
            |pid: &Pid| fs::metadata(format!("/proc/{pid}/exe")).is_ok_and(|file| file.ino() == successor);
        let is_upgraded = || runs(&supervisor) && before.iter().all(runs);
        self.wait("upgrade supervisor and agents in place", node, is_upgraded)?;

        kill(supervisor, Signal::SIGKILL)?;
        self.processes[node].wait(READY.0)?;
        let label = format!("steadfast-{}-2", self.names[node]);
        self.processes[node] = self.agent_on(node).run(&label, namespace, directory)?;
        let state = [Path::new(STATE).join(&self.names[node])];
        let own = self.processes[node].pid();
        self.wait("take its lock again", node, || pids(&state) == Some(vec![own]))?;
        ensure!(
            pids(&agents).as_ref() == Some(&before),
            "{}: the agents did not stay when the supervisor was killed",
            self.names[node]
        );
        Ok(())
    }

    fn wait(&self, what: &str, node: usize, is_done: impl Fn() -> bool) -> Result<()> {
        let deadline = Deadline::now() + READY.0;
        while !is_done() {
            let (name, said) = (&self.names[node], self.processes[node].last_words());
            ensure!(
                Deadline::now() < deadline,
                "{name} does not {what} within {:?}; it said:{said}",
                READY.0
            );
            std::thread::sleep(READY.1);
        }
        Ok(())
    }

    /// The state directories of the node's agents. The first one is that of the service of which the node is the backup.
    fn state_dirs_of(&self, node: usize) -> [PathBuf; 2] {
        let count = self.names.len();
        let peers = [(node + count - 1) % count, (node + 1) % count];
        let state = Path::new(STATE).join(&self.names[node]).join("peers");
        peers.map(|peer| state.join(&self.names[peer]))
    }

    /// The access to an agent on `node`.
    fn agent_on(&self, node: usize) -> &Operator {
        &self.agents[node][0]
    }

    /// The access to the agent at `place` of a service's pair.
    pub fn agent(&self, service: usize, place: usize) -> &Operator {
        &self.agents[service][place]
    }

    /// Drains `node` with the command line's `options`: the daemon with all its agents.
    ///
    /// # Errors
    /// If the command fails.
    pub fn order_drain(&self, node: usize, namespace: &Netns, options: &[&str]) -> Result<()> {
        self.agent_on(node)
            .order(namespace, &[&["drain", &self.names[node]], options].concat())
    }
}

/// The process numbers in the locks of these state directories. `None` if a lock is missing or being written.
fn pids(state_dirs: &[PathBuf]) -> Option<Vec<Pid>> {
    let pid = |directory: &PathBuf| {
        let text = fs::read_to_string(directory.join("lock")).ok()?;
        text.trim().parse().ok().map(Pid::from_raw)
    };
    state_dirs.iter().map(pid).collect()
}

/// The names of the nodes and of all their agents.
fn agents_of(names: &[String], segments: &[ServiceLan]) -> Vec<String> {
    let pairs = segments.iter().map(|segment| segment.nodes(names.len()));
    let agents = pairs.flat_map(|[a, b]| [(a, b), (b, a)]);
    let agents = agents.map(|(node, peer)| format!("{}-{}", names[node], names[peer]));
    names.iter().cloned().chain(agents).collect()
}

/// The configuration of `node`: two peers, with one service each.
fn configuration(
    node: usize,
    names: &[String],
    segments: &[ServiceLan],
    arbiter: &ArbiterSetup,
    directory: &Path,
) -> Result<String> {
    let name = &names[node];
    let mut text = format!(
        "[node]\nname = \"{name}\"\nagent_timeout_ms = {AGENT_TIMEOUT_MS}\n\n[detector]\nheartbeat_ms = {HEARTBEAT_MS}\nmissed = {MISSED}\n{}",
        arbiter.table(node % 2)
    );
    for segment in segments {
        let nodes = segment.nodes(names.len());
        let Some(place) = nodes.iter().position(|one| *one == node) else {
            continue;
        };
        let (peer, service) = (&names[nodes[1 - place]], segment.service);
        let key = directory.join(format!("s{service}.key"));
        write_key(&key, &format!("s{service}"))?;
        write!(
            text,
            "
[[peer]]
name = \"{peer}\"
address = \"{}\"
key_file = {key:?}

[[service]]
name = \"s{service}\"
peer = \"{peer}\"
address = \"{}\"
port = {port}
interface = \"{}\"
policy = \"http\"
primary = \"{}\"
application = \"127.0.0.{}:{port}\"
claim_ping = [\"{}\", \"{}\"]
",
            segment.ends[1 - place].v4,
            segment.vip,
            segment.interface(),
            names[nodes[0]],
            1 + service,
            segment.router.v4,
            CLIENT.v4,
            port = APPLICATION.port(),
        )?;
    }
    Ok(text)
}
