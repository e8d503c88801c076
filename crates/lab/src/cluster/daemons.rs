//! The daemons: one on each node, for both of its peers.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use linux::netns::Netns;

use super::network::{ClusterNetwork, ServiceLan};
use super::options::APPLICATION;
use crate::net::address::CLIENT;
use crate::node::{ArbiterSetup, Operator, ReportedStatus, leftovers_of_nodes, write_key};
use crate::process::LoggedProcess;
use crate::run::LabRun;

/// Milliseconds between two heartbeats.
const HEARTBEAT_MS: u32 = 20;
/// Number of missing heartbeats in a row after which a peer is declared dead.
const MISSED: u32 = 4;
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
        let operator = |node: usize, peer: &str| Operator {
            binary: binary.to_owned(),
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
                    anyhow::bail!(
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

    /// The access to the agent at `place` of a service's pair.
    pub fn agent(&self, service: usize, place: usize) -> &Operator {
        &self.agents[service][place]
    }

    /// Drains `node` with the command line's `options`: the daemon with all its agents.
    ///
    /// # Errors
    /// If the command fails.
    pub fn order_drain(&self, node: usize, namespace: &Netns, options: &[&str]) -> Result<()> {
        let agent = self.agents.iter().flatten();
        let own = format!("{}.toml", self.names[node]);
        let mut agent = agent.filter(|agent| agent.configuration.ends_with(&own));
        let operator = agent.next().context("the node has an agent")?;
        operator.order(namespace, &[&["drain", &self.names[node]], options].concat())
    }
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
        "[node]\nname = \"{name}\"\n\n[detector]\nheartbeat_ms = {HEARTBEAT_MS}\nmissed = {MISSED}\n{}",
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
