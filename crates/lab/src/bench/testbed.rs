//! Builds the network of a benchmark, which has two variants. In the variant `Steadfast`, a pair protects the service. In the variant
//! `Forwarding` there is no pair, and node b's kernel only forwards packets.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use linux::netns::Netns;

use crate::net::address::{NODES, VIP_V4};
use crate::net::{INTERFACE, NODE_NAMES, ROUTER_LAN_INTERFACE, Topology, TopologyOptions, batch};
use crate::node::{
    AgentProcess, ExportSetup, PairSetup, PatternFiles, ReportedService, ServerProcess, ServerSoftware,
    wait_listening,
};
use crate::process::{self, LoggedProcess};
use crate::run::in_memory;
use crate::teardown::Teardown;
use judge::CommitMode;

/// Port of the sink.
pub const SINK_PORT: u16 = 8080;

/// How packets get from the client to the server and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchVariant {
    /// Node b forwards them, as a router does.
    Forwarding,
    /// Node b is the wire.
    Steadfast {
        /// Number of heartbeats that must be missing before the peer is declared dead. A heartbeat is sent every 20 ms.
        missed: u32,
        /// The restart policy. With another one than `http`, the log of a connection may take 512 MB.
        policy: &'static str,
        /// The commit mode.
        commit: CommitMode,
    },
}

/// A pair that waits 0.5 s before it declares the peer dead. A benchmark fills all CPUs, and a false alarm would end the benchmark.
pub const PATIENT: BenchVariant = BenchVariant::Steadfast {
    missed: 25,
    policy: "http",
    commit: CommitMode::Prs,
};
/// As [`PATIENT`], for a service behind a stage.
pub const STAGED: BenchVariant = BenchVariant::Steadfast {
    missed: 25,
    policy: "snapshot",
    commit: CommitMode::Prs,
};
/// Largest size of a connection's log if the policy is not `http`, in megabytes. It holds all that a benchmark sends.
const LOG_MB: u32 = 512;
/// The daemon's default of `agent_timeout_ms`. The timeout must not be shorter than detection.
const AGENT_TIMEOUT_MS: u32 = 1000;
/// Time for the end of a node's processes.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// The kind of service. It determines the protected port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// nginx: downloads and small requests.
    Files,
    /// The sink: uploads, and what else `bench-load` asks of it.
    Sink,
    /// Redis: large values.
    Values,
    /// Redis with recorded order.
    OrderedValues,
    /// lighttpd with a CGI script whose replies are random. A pair runs it behind a stage.
    Random,
}

impl Serving {
    fn port(self) -> u16 {
        match self {
            Self::Files => ServerSoftware::Nginx.port(),
            Self::Sink => SINK_PORT,
            Self::Values | Self::OrderedValues => ServerSoftware::Redis.port(),
            Self::Random => ServerSoftware::Cgi.port(),
        }
    }
}

/// A network that is ready.
pub struct BenchTestbed {
    /// The network.
    pub network: Topology,
    /// The service's address.
    pub service: SocketAddr,
    /// The daemons of nodes a and b, if they protect the service.
    agents: Option<[AgentProcess; 2]>,
    /// The servers of nodes a and b, unless they are sinks.
    pub servers: Vec<ServerProcess>,
    _sinks: Vec<LoggedProcess>,
}

impl BenchTestbed {
    /// Builds the network named `run`.
    ///
    /// # Errors
    /// Names the step that failed.
    pub fn set(
        run: &str,
        variant: BenchVariant,
        serving: Serving,
        content: &PatternFiles,
        daemon: &Path,
        teardown: &Teardown,
    ) -> Result<Self> {
        let directory = in_memory(run, teardown)?;
        let network =
            Topology::build(run, TopologyOptions::default(), teardown).context("build the network")?;
        let mut servers = Vec::new();
        let mut sinks = Vec::new();
        for (node, name) in network.nodes.iter().zip(NODE_NAMES) {
            let start = |software: ServerSoftware| {
                let label = format!("{}-{name}", software.name());
                ServerProcess::start(software, node, &directory, &label, content, 1)
            };
            match serving {
                Serving::Sink => sinks.push(start_sink(node, name, &directory)?),
                Serving::Files => servers.push(start(ServerSoftware::Nginx)?),
                Serving::Values => servers.push(start(ServerSoftware::Redis)?),
                Serving::OrderedValues => {
                    servers.push(start_ordered((node, name), &directory, content, daemon)?)
                }
                Serving::Random => {
                    servers.push(start_random(variant, (node, name), &directory, content, daemon)?);
                }
            }
        }
        let service = SocketAddr::new(VIP_V4.into(), serving.port());
        let agents = match variant {
            BenchVariant::Forwarding => {
                forward(&network)?;
                None
            }
            BenchVariant::Steadfast {
                missed,
                policy,
                commit,
            } => {
                let addresses = NODES.map(|node| vec![IpAddr::V4(node.v4)]);
                let mut pair = PairSetup::new(daemon.to_owned(), run, service, addresses);
                (pair.missed, pair.policy, pair.commit) = (missed, policy, commit);
                let detection_ms = missed * pair.heartbeat_ms;
                pair.agent_timeout_ms = (detection_ms > AGENT_TIMEOUT_MS).then_some(detection_ms);
                if policy != "http" {
                    pair.log.log_mb = Some(LOG_MB);
                }
                if serving == Serving::Random {
                    pair.staged_port = ServerSoftware::Cgi.staged_port();
                    pair.snapshot_sockets = Some(NODE_NAMES.map(|name| snapshot_socket(&directory, name)));
                }
                if serving == Serving::OrderedValues {
                    pair.order_sockets = Some(NODE_NAMES.map(|name| order_socket(&directory, name)));
                }
                let [a, b] = &network.nodes;
                Some(pair.start([a, b], &directory, teardown)?)
            }
        };
        if serving == Serving::OrderedValues {
            for (server, node) in servers.iter_mut().zip(&network.nodes) {
                server.wait_listening(node, serving.port())?;
            }
        }
        Ok(Self {
            network,
            service,
            agents,
            servers,
            _sinks: sinks,
        })
    }

    /// The daemon of node `index`.
    ///
    /// # Errors
    /// If the variant is [`BenchVariant::Forwarding`].
    pub fn agent(&self, index: usize) -> Result<&AgentProcess> {
        let agents = self.agents.as_ref();
        Ok(&agents.context("a network without steadfast has no agents")?[index])
    }

    /// Status of the only service, as the daemon of node `index` reports it.
    ///
    /// # Errors
    /// If there is no daemon or it does not answer.
    pub fn status(&self, index: usize) -> Result<ReportedService> {
        let status = self.agent(index)?.status(&self.network.nodes[index])?;
        status.services.into_iter().next().context("no service")
    }

    /// Whether both nodes report duplex.
    ///
    /// # Errors
    /// If a daemon does not answer.
    pub fn is_duplex(&self) -> Result<bool> {
        Ok(self.status(0)?.mode == "duplex" && self.status(1)?.mode == "duplex")
    }

    /// Simulates a power failure of node a: its cable is pulled, and then its processes are killed.
    ///
    /// # Errors
    /// Names the step that failed.
    pub fn power_off_primary(&self) -> Result<()> {
        self.network.cables[0].pull()?;
        process::kill_inside(&[self.network.nodes[0].inode()], |_| false, KILL_LIMIT)
            .context("kill node a's processes")
    }

    /// Limits the rate of the link between client and router to `mbit` Mbit/s in each direction. `None` removes the limit.
    ///
    /// # Errors
    /// Names the `tc` command that failed.
    pub fn shape(&self, mbit: Option<u32>) -> Result<()> {
        for (host, interface) in [(&self.network.client, INTERFACE), (&self.network.router, "wan")] {
            let mut command = host.command("tc")?;
            match mbit {
                Some(mbit) => command
                    .args(["qdisc", "replace", "dev", interface, "root", "tbf", "rate"])
                    .args([
                        format!("{mbit}mbit"),
                        "burst".into(),
                        "512k".into(),
                        "limit".into(),
                        "4m".into(),
                    ]),
                None => command.args(["qdisc", "del", "dev", interface, "root"]),
            };
            process::output(&mut command, &format!("tc on {interface}"))?;
        }
        Ok(())
    }
}

fn snapshot_socket(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("snapshots-{name}.sock"))
}

fn order_socket(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("order-{name}.sock"))
}

/// Starts a Redis whose order is recorded. It listens once the agent runs.
fn start_ordered(
    (node, name): (&Netns, &str),
    directory: &Path,
    content: &PatternFiles,
    daemon: &Path,
) -> Result<ServerProcess> {
    let software = ServerSoftware::Redis;
    let export = ExportSetup {
        program: daemon.to_owned(),
        order: Some(order_socket(directory, name)),
        ..ExportSetup::default()
    };
    let label = format!("{}-{name}", software.name());
    ServerProcess::start_with(software, node, directory, &label, content, 1, &export)
}

/// Starts a server with random replies on a node: behind a stage if a pair protects it.
fn start_random(
    variant: BenchVariant,
    (node, name): (&Netns, &str),
    directory: &Path,
    content: &PatternFiles,
    daemon: &Path,
) -> Result<ServerProcess> {
    let (software, snapshots) = match variant {
        BenchVariant::Forwarding => (ServerSoftware::PlainCgi, PathBuf::new()),
        BenchVariant::Steadfast { .. } => (ServerSoftware::Cgi, snapshot_socket(directory, name)),
    };
    let export = ExportSetup {
        snapshots,
        program: daemon.to_owned(),
        ipv6: false,
        order: None,
    };
    let label = format!("{}-{name}", software.name());
    ServerProcess::start_with(software, node, directory, &label, content, 1, &export)
}

/// Starts a server for uploads on `node`.
///
/// # Errors
/// If it does not listen.
pub fn start_sink(node: &Netns, name: &str, directory: &Path) -> Result<LoggedProcess> {
    let mut command = node.command(std::env::current_exe()?)?;
    command.args([super::load::LOAD, "sink", &SINK_PORT.to_string()]);
    let mut process = LoggedProcess::start(&format!("sink-{name}"), command, directory)?;
    wait_listening(&mut process, node, SINK_PORT)?;
    Ok(process)
}

/// Makes node b's kernel forward packets on the path that they take through a wire: router – node b – node a, and back.
fn forward(network: &Topology) -> Result<()> {
    let [a, b] = NODES;
    network.nodes[1].run(|| -> std::io::Result<()> {
        for (key, value) in [
            ("ip_forward", "1"),
            ("conf/all/send_redirects", "0"),
            ("conf/eth0/send_redirects", "0"),
        ] {
            std::fs::write(format!("/proc/sys/net/ipv4/{key}"), value)?;
        }
        Ok(())
    })??;
    network.nodes[0].run(|| std::fs::write("/proc/sys/net/ipv4/conf/eth0/arp_ignore", "1"))??;
    network.nodes[0].run(|| std::fs::write("/proc/sys/net/ipv4/conf/eth0/arp_announce", "2"))??;
    let on = |host: &Netns, commands: &[String]| batch(Some(host.name()), commands);
    on(
        &network.router,
        &[format!(
            "route add {VIP_V4}/32 via {} dev {ROUTER_LAN_INTERFACE}",
            b.v4
        )],
    )?;
    on(
        &network.nodes[1],
        &[format!("route add {VIP_V4}/32 via {} dev {INTERFACE}", a.v4)],
    )?;
    on(
        &network.nodes[0],
        &[
            format!("addr add {VIP_V4}/32 dev lo"),
            format!("route add default via {} dev {INTERFACE} table 77", b.v4),
            format!("rule add from {VIP_V4} lookup 77"),
        ],
    )?;
    Ok(())
}
