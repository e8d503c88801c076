//! The networks of the two variants. In one of them a pair protects the service. In the other one there is no pair, and node b's kernel
//! only forwards packets.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use linux::netns::Netns;

use crate::net::address::{NODES, VIP_V4};
use crate::net::{INTERFACE, NODE_NAMES, ROUTER_LAN_INTERFACE, Topology, TopologyOptions, batch};
use crate::node::{
    AgentProcess, ArbiterSetup, HEARTBEAT_PORT, LogOptions, PairSetup, PatternFiles, ReportedService,
    ServerProcess, ServerSoftware,
};
use crate::process::LoggedProcess;
use crate::teardown::{Resource, Teardown};

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
    },
}

/// The pair with a long patience (0.5 s): a benchmark fills all CPUs, and a false alarm would end it.
pub const PATIENT: BenchVariant = BenchVariant::Steadfast { missed: 25 };

/// The kind of service. It determines the protected port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// nginx: downloads and small requests.
    Files,
    /// The sink: uploads.
    Sink,
}

impl Serving {
    fn port(self) -> u16 {
        match self {
            Self::Files => ServerSoftware::Nginx.port(),
            Self::Sink => SINK_PORT,
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
    _servers: Vec<ServerProcess>,
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
        let directory = PathBuf::from(format!("/dev/shm/steadfast-lab-{run}"));
        teardown.will_create(&Resource::Path(directory.clone()))?;
        std::fs::create_dir_all(&directory)?;
        let network =
            Topology::build(run, TopologyOptions::default(), teardown).context("build the network")?;
        let mut servers = Vec::new();
        let mut sinks = Vec::new();
        for (node, name) in network.nodes.iter().zip(NODE_NAMES) {
            match serving {
                Serving::Files => {
                    let label = format!("nginx-{name}");
                    servers.push(ServerProcess::start(
                        ServerSoftware::Nginx,
                        node,
                        &directory,
                        &label,
                        content,
                        1,
                    )?);
                }
                Serving::Sink => sinks.push(start_sink(node, name, &directory)?),
            }
        }
        let service = SocketAddr::new(VIP_V4.into(), serving.port());
        let agents = match variant {
            BenchVariant::Forwarding => {
                forward(&network)?;
                None
            }
            BenchVariant::Steadfast { missed } => {
                let pair = pair(run, service, daemon, missed);
                Some(protect(&pair, &network, &directory, teardown)?)
            }
        };
        Ok(Self {
            network,
            service,
            agents,
            _servers: servers,
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

    /// What the daemon of node `index` reports about its only service.
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

    /// Limits the way between client and router to `mbit` Mbit/s in both directions; `None`: no limit.
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
            let output = command.output().context("start tc")?;
            anyhow::ensure!(
                output.status.success(),
                "tc on {interface}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(())
    }
}

fn start_sink(node: &Netns, name: &str, directory: &Path) -> Result<LoggedProcess> {
    let mut command = node.command(std::env::current_exe()?)?;
    command.args([super::load::LOAD, "sink", &SINK_PORT.to_string()]);
    let mut process = LoggedProcess::start(&format!("sink-{name}"), command, directory)?;
    let address = SocketAddr::from(([127, 0, 0, 1], SINK_PORT));
    let listens = |_: &LoggedProcess| {
        let limit = std::time::Duration::from_millis(100);
        matches!(
            node.run(|| std::net::TcpStream::connect_timeout(&address, limit)),
            Ok(Ok(_))
        )
    };
    process.wait_until("listen", std::time::Duration::from_secs(5), listens)?;
    Ok(process)
}

/// Sets up the same path as the wire's with the kernel's own forwarding: router – node b – node a, and back.
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

fn pair(run: &str, service: SocketAddr, daemon: &Path, missed: u32) -> PairSetup {
    PairSetup {
        binary: daemon.to_owned(),
        names: NODE_NAMES.map(|name| format!("{name}-{run}")),
        addresses: [NODES[0].v4, NODES[1].v4].map(|address| vec![IpAddr::V4(address)]),
        on_service: None,
        service,
        service_name: "lab".to_owned(),
        interface: INTERFACE.to_owned(),
        heartbeat_port: HEARTBEAT_PORT,
        policy: "http",
        opaque: false,
        heartbeat_ms: 20,
        missed,
        agent_timeout_ms: None,
        claim_ping: Vec::new(),
        health: None,
        state_sync: None,
        arbiter: ArbiterSetup::None,
        log: LogOptions::default(),
    }
}

fn protect(
    pair: &PairSetup,
    network: &Topology,
    directory: &Path,
    teardown: &Teardown,
) -> Result<[AgentProcess; 2]> {
    for leftover in pair.leftovers() {
        teardown.will_create(&leftover)?;
    }
    let start = |node: usize| AgentProcess::start(pair, node, &network.nodes[node], directory);
    let mut agents = [start(0)?, start(1)?];
    for (agent, node) in agents.iter_mut().zip(&network.nodes) {
        agent.wait_ready(node)?;
    }
    Ok(agents)
}
