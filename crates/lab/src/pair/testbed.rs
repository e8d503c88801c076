//! The surroundings of a run, set up before the clients connect: network, servers, daemons, captures.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use linux::netns::Netns;
use proto::Instant;

use super::annex::{AnnexNode, annex_setups};
use super::fault::CrashFault;
use super::work::Work;
use super::{NodeLink, PairOptions, PolicyOption, baseline};
use crate::capture::Captures;
use crate::emulator::Emulator;
use crate::fence;
use crate::net::address::{CLIENT, ROUTER_LAN, WITNESSES};
use crate::net::{NODE_NAMES, Topology, TopologyOptions};
use crate::newcomer::greet;
use crate::node::{
    AgentProcess, ArbiterSetup, Assume, ExportSetup, FenceSetup, PairSetup, PatternFiles, ReportedStatus,
    ServerProcess, ServerSoftware,
};
use crate::process;
use crate::run::LabRun;
use crate::witness::{self, EtcdProcesses};

/// The example state-sync hook for redis that the packages contain.
const STATE_SYNC: &str = include_str!("../../../../packaging/examples/redis-state-sync");
/// The daemons' `agent_timeout_ms` in runs that restart agents. Long, so that the result does not depend on how fast a busy machine starts
/// an agent.
const AGENT_TIMEOUT_MS: u32 = 5_000;
/// Time limit for an agent to report the expected status.
const STATUS_LIMIT: Duration = Duration::from_secs(10);
/// Additional time limit for what nodes learn from etcd: the time after which a list is stale, or the lease of an annex's entry and the time
/// between two reads.
const REGISTRY_LIMIT: Duration = Duration::from_secs(15);
/// Time between two status requests. Not shorter, because each request takes CPU time from the clients, which are being
/// measured.
const STATUS_POLL: Duration = Duration::from_millis(50);
/// File in the run's directory that records when each fence command started.
const FENCE_JOURNAL: &str = "fences";
/// Number of worker processes, if the server has workers. Two, so that one can die.
const WORKERS: u32 = 2;
/// Time limit for a server to end after SIGTERM.
const SERVER_LIMIT: Duration = Duration::from_secs(10);

/// A run's surroundings. The fields are dropped in order of declaration: processes before the network in which they run.
pub struct Testbed {
    /// The daemons of node a and b; `None` without steadfast.
    pub agents: Option<[AgentProcess; 2]>,
    /// The annexes, if the fault needs some.
    pub annexes: Vec<AnnexNode>,
    /// The servers of node a and b.
    pub servers: [ServerProcess; 2],
    /// Number of times a server was started again.
    server_starts: u32,
    /// The servers' labels, which are the names of their directories.
    labels: [String; 2],
    application: ServerSoftware,
    content: PatternFiles,
    /// A tcpdump at each capture point.
    pub captures: Captures,
    /// The way to the client, if it is emulated.
    pub emulator: Option<Emulator>,
    /// etcd, if it decides who may speak.
    witness: Option<EtcdProcesses>,
    /// The network.
    pub network: Topology,
    /// The configuration that both nodes share.
    pub pair: PairSetup,
    /// The directory of the run's files.
    pub directory: PathBuf,
}

impl Testbed {
    /// Sets everything up for `run` and waits until the pair is duplex.
    ///
    /// # Errors
    /// Names the step that failed.
    pub fn set(options: &PairOptions, work: &Work, run: &LabRun<'_>) -> Result<Self> {
        let application = options.application();
        let directory = run.directory.clone();
        let content = PatternFiles::generate(&directory, &work.files())?;
        let network = Topology::build(&run.name, plan(options), run.teardown).context("build the network")?;
        let emulator = network
            .wan
            .as_ref()
            .map(|wan| Emulator::start(wan, options.way, work.plan.seed));
        let emulator = emulator.transpose().context("emulate the path to the client")?;
        let captures = Captures::start(&network, &directory, options.run.snap).context("capture")?;
        let program = options.run.daemon.path()?;
        let labels = NODE_NAMES.map(|node| format!("{}-{node}", application.name()));
        let server = |index: usize| {
            let node = &network.nodes[index];
            let export = ExportSetup {
                snapshots: options
                    .snapshot_socket(&directory, NODE_NAMES[index])
                    .unwrap_or_default(),
                program: program.clone(),
                ipv6: options.lan.ipv6,
                order: order_socket(options, &directory, index),
            };
            ServerProcess::start_with(
                application,
                node,
                &directory,
                &labels[index],
                &content,
                WORKERS,
                &export,
            )
        };
        let mut servers = [server(0)?, server(1)?];
        let (arbiter, witness) = arbiter(options, &network, run)?;
        let pair = pair(options, run, arbiter, &network)?;
        let agents = if options.baseline {
            baseline::hold(&network.nodes[0], pair.service.ip())?;
            None
        } else {
            let [a, b] = &network.nodes;
            Some(pair.start([a, b], &run.directory, run.teardown)?)
        };
        let numbers = 0..pair.annexes.len();
        let annexes = numbers.map(|index| AnnexNode::start((&pair, index), options, &content, &network, run));
        let annexes = annexes.collect::<Result<_>>()?;
        if options.recorded_order {
            for (server, node) in servers.iter_mut().zip(&network.nodes) {
                server.wait_listening(node, application.port())?;
            }
        }
        let testbed = Self {
            agents,
            annexes,
            servers,
            server_starts: 0,
            labels,
            application,
            content,
            captures,
            emulator,
            witness,
            network,
            pair,
            directory,
        };
        testbed.wait_for_annexes()?;
        Ok(testbed)
    }

    /// Waits until the wire, node b, has a link to each annex, and the primary knows them.
    fn wait_for_annexes(&self) -> Result<()> {
        let count = self.annexes.len();
        if count == 0 {
            return Ok(());
        }
        let mut problems = Vec::new();
        self.wait_for(1, "reach its annexes", |it| it.has_annexes(count), &mut problems)?;
        self.wait_for(0, "know the annexes", |it| it.knows_annexes(count), &mut problems)?;
        ensure!(problems.is_empty(), "{problems:?}");
        Ok(())
    }

    /// Kills etcd, and waits until both nodes say that their lists of annexes are stale.
    ///
    /// # Errors
    /// If there is no etcd, or the kernel refuses.
    pub fn stop_etcd(&self, problems: &mut Vec<String>) -> Result<()> {
        self.witness.as_ref().context("there is no etcd")?.kill_all()?;
        for index in 0..2 {
            let what = "say that its list of annexes is stale";
            self.wait_longer_for(
                index,
                what,
                REGISTRY_LIMIT,
                ReportedStatus::has_stale_list,
                problems,
            )?;
        }
        Ok(())
    }

    /// Waits until both nodes say that no annex has an entry in etcd.
    ///
    /// # Errors
    /// If the run is without steadfast.
    pub fn wait_for_no_entries(&self, problems: &mut Vec<String>) -> Result<()> {
        for index in 0..2 {
            let what = "say that the dead annex is not registered any more";
            self.wait_longer_for(
                index,
                what,
                REGISTRY_LIMIT,
                ReportedStatus::has_no_entries,
                problems,
            )?;
        }
        Ok(())
    }

    /// The agent of node `index`.
    ///
    /// # Errors
    /// If the run is without steadfast.
    pub fn agent(&self, index: usize) -> Result<&AgentProcess> {
        let agents = self.agents.as_ref();
        Ok(&agents.context("there are no agents without steadfast")?[index])
    }

    /// The agent of node `index`, mutable, so that its end can be awaited.
    ///
    /// # Errors
    /// If the run is without steadfast.
    pub fn agent_mut(&mut self, index: usize) -> Result<&mut AgentProcess> {
        let agents = self.agents.as_mut();
        Ok(&mut agents.context("there are no agents without steadfast")?[index])
    }

    /// Connects a new client from the router. Returns the reason why the service does not serve the client. `None` if the client is served.
    ///
    /// # Errors
    /// If the router's namespace cannot be entered.
    pub fn greet(&self) -> Result<Option<String>> {
        greet(&self.network.router, self.application, self.pair.service)
    }

    /// The status that the agent of node `index` reports.
    ///
    /// # Errors
    /// If there is no agent or it does not answer.
    pub fn status(&self, index: usize) -> Result<ReportedStatus> {
        self.agent(index)?.status(&self.network.nodes[index])
    }

    /// Waits until the agent of node `index` reports a status that satisfies `is_right`. If the time limit passes
    /// first, adds to `problems` that the agent does not do `what`.
    ///
    /// # Errors
    /// If the run is without steadfast.
    pub fn wait_for(
        &self,
        index: usize,
        what: &str,
        is_right: impl FnMut(&ReportedStatus) -> bool,
        problems: &mut Vec<String>,
    ) -> Result<()> {
        self.wait_longer_for(index, what, Duration::ZERO, is_right, problems)
    }

    /// Waits until node `index` has its channel to the peer, if the nodes talk in an SCTP association.
    ///
    /// # Errors
    /// If the run is without steadfast.
    pub fn wait_for_channel(&self, index: usize, problems: &mut Vec<String>) -> Result<()> {
        if self.agent(index)?.needs_channel() {
            let what = "have its channel to the peer";
            self.wait_for(index, what, ReportedStatus::has_channel, problems)?;
        }
        Ok(())
    }

    /// As [`wait_for`](Self::wait_for), but waits longer by `more`.
    ///
    /// # Errors
    /// If the run is without steadfast.
    pub fn wait_longer_for(
        &self,
        index: usize,
        what: &str,
        more: Duration,
        is_right: impl FnMut(&ReportedStatus) -> bool,
        problems: &mut Vec<String>,
    ) -> Result<()> {
        let agent = self.agent(index)?;
        let node = &self.network.nodes[index];
        problems.extend(agent.wait_for(node, what, (STATUS_LIMIT + more, STATUS_POLL), is_right));
        Ok(())
    }

    /// For each fence command, in order of time: the node that it was to turn off, and when the command started.
    ///
    /// # Errors
    /// If the fence journal is garbled.
    pub fn fenced(&self) -> Result<Vec<(usize, Instant)>> {
        let node = |name: &str| {
            let is_it = |node: &Netns| node.name() == name;
            self.network.nodes.iter().position(is_it)
        };
        fence::read_journal(&self.directory.join(FENCE_JOURNAL))?
            .into_iter()
            .map(|(at_ns, name)| {
                let node = node(&name).with_context(|| format!("fence journal: {name} is no node"))?;
                Ok((node, Instant::from_nanos(at_ns)))
            })
            .collect()
    }

    /// The latest epoch that a living agent knows; 0 without steadfast.
    pub fn epoch(&self) -> u64 {
        let epoch = |index| self.status(index).map_or(0, |status| status.epoch());
        epoch(0).max(epoch(1))
    }

    /// CPU time that the daemons and their keepers have used so far; zero without steadfast.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn daemons_cpu(&self) -> Result<Duration> {
        let agents = self.agents.iter().flatten();
        let roots: Vec<u32> = agents.map(|agent| agent.pid().as_raw().cast_unsigned()).collect();
        let all = process::processes().context("read /proc")?;
        let ours = all
            .iter()
            .filter(|(pid, _)| process::is_below(&all, **pid, &roots));
        Ok(ours.map(|(_, one)| one.cpu).sum())
    }

    /// Runs an operator's command on node `index`.
    ///
    /// # Errors
    /// If the command fails.
    pub fn order(&self, index: usize, command: &[&str]) -> Result<()> {
        self.agent(index)?.order(&self.network.nodes[index], command)
    }

    /// Starts the agent of node `index` again. The earlier agent must have ended.
    ///
    /// # Errors
    /// If the agent cannot be started.
    pub fn start_agent(&mut self, index: usize) -> Result<()> {
        let agents = self.agents.as_mut();
        let agents = agents.context("there are no agents without steadfast")?;
        agents[index].start_again(&self.network.nodes[index], &self.directory)
    }

    /// Starts the application behind the stage of node `index` again.
    ///
    /// # Errors
    /// If the server is no stage, or if the application does not listen.
    pub fn start_behind(&mut self, index: usize) -> Result<()> {
        let label = format!("{}-{}", self.application.name(), NODE_NAMES[index]);
        let node = &self.network.nodes[index];
        self.servers[index].start_behind(self.application, node, &self.directory, &label, &self.content)
    }

    /// The directory of the files of node `index`'s server.
    pub fn server_directory(&self, index: usize) -> PathBuf {
        self.directory.join(&self.labels[index])
    }

    /// Ends the server of node `index`, as an operator does, and starts it again. With recorded order, this does not wait until it listens.
    ///
    /// # Errors
    /// As [`start_server`](Self::start_server), or if the server does not end.
    pub fn restart_server(&mut self, index: usize) -> Result<()> {
        self.servers[index].end(SERVER_LIMIT)?;
        self.start_server(index)
    }

    /// Kills the server of node `index`, and waits until it has ended.
    ///
    /// # Errors
    /// If that takes too long.
    pub fn kill_server(&mut self, index: usize) -> Result<()> {
        self.servers[index].kill(self.application, &self.network.nodes[index])
    }

    /// Starts the server of node `index` again. The earlier server must have ended.
    ///
    /// # Errors
    /// If the server does not start or does not listen.
    pub fn start_server(&mut self, index: usize) -> Result<()> {
        self.server_starts += 1;
        let (name, number) = (self.application.name(), self.server_starts);
        let label = format!("{name}-{}-again-{number}", NODE_NAMES[index]);
        let node = &self.network.nodes[index];
        let (directory, content) = (&self.directory, &self.content);
        let sockets = self.pair.snapshot_sockets.as_ref();
        let export = ExportSetup {
            snapshots: sockets.map_or_else(PathBuf::new, |sockets| sockets[index].clone()),
            program: self.pair.binaries[index].clone(),
            ipv6: self.pair.service.is_ipv6(),
            order: self
                .pair
                .order_sockets
                .as_ref()
                .map(|sockets| sockets[index].clone()),
        };
        self.labels[index].clone_from(&label);
        self.servers[index].stop_behind();
        self.servers[index] = ServerProcess::start_with(
            self.application,
            node,
            directory,
            &label,
            content,
            WORKERS,
            &export,
        )?;
        Ok(())
    }
}

/// The arbiter that decides which node may speak, and the etcd members that are started for it, if any.
fn arbiter(
    options: &PairOptions,
    network: &Topology,
    run: &LabRun<'_>,
) -> Result<(ArbiterSetup, Option<EtcdProcesses>)> {
    match options.assume {
        Assume::FailStop => Ok((ArbiterSetup::None, None)),
        Assume::Fence | Assume::SlowFence => {
            let of = |node: usize| -> Result<FenceSetup> {
                let (peer, takes) = (1 - node, options.assume.takes());
                let ports = network.ports(peer);
                let journal = run.directory.join(FENCE_JOURNAL);
                let delay = options.assume.fence_delay(node);
                Ok(FenceSetup {
                    command: fence::command(&network.switch, &ports, &network.nodes[peer], takes, &journal)?,
                    delay_ms: (!delay.is_zero()).then(|| u32::try_from(delay.as_millis()).expect("seconds")),
                })
            };
            Ok((ArbiterSetup::Fence([of(0)?, of(1)?]), None))
        }
        Assume::Etcd => {
            let mut hosts = Vec::new();
            for (index, endpoint) in WITNESSES.iter().enumerate().take(usize::from(options.members)) {
                let host = network.add_host(&run.name, &witness::name(index), endpoint, run.teardown)?;
                hosts.push((host, *endpoint));
            }
            let witness = EtcdProcesses::start(hosts, &run.directory).context("start etcd")?;
            Ok((witness.arbiter(), Some(witness)))
        }
    }
}

fn plan(options: &PairOptions) -> TopologyOptions {
    TopologyOptions {
        second_network: options.lan.links > 1,
        own_switches: options.fault == CrashFault::CutServicePath,
        ..TopologyOptions::of(options.way)
    }
}

/// With recorded order: the socket for the server's library on a node.
fn order_socket(options: &PairOptions, directory: &Path, index: usize) -> Option<PathBuf> {
    options
        .recorded_order
        .then(|| directory.join(format!("order-{}.sock", NODE_NAMES[index])))
}

fn pair(
    options: &PairOptions,
    run: &LabRun<'_>,
    arbiter: ArbiterSetup,
    network: &Topology,
) -> Result<PairSetup> {
    let ipv6 = options.lan.ipv6;
    let addresses = |index| network.interfaces(index).into_iter().map(|(_, own)| own.ip(ipv6));
    // The service's network comes first.
    let mut addresses = [0, 1].map(|index| addresses(index).collect::<Vec<_>>());
    let mut on_service = None;
    if options.first_link == NodeLink::Other {
        on_service = Some([addresses[0][0], addresses[1][0]]);
        addresses.iter_mut().for_each(|links| links.reverse());
    }
    let is_probed = options.fault == CrashFault::HangServer;
    let mut pair = PairSetup {
        on_service,
        policy: options.policy.name(),
        commit: options.mode,
        staged_port: options
            .application()
            .staged_port()
            .filter(|_| options.policy == PolicyOption::Snapshot),
        snapshot_sockets: options
            .snapshot_socket(&run.directory, NODE_NAMES[0])
            .zip(options.snapshot_socket(&run.directory, NODE_NAMES[1]))
            .map(Into::into),
        order_sockets: order_socket(options, &run.directory, 0)
            .zip(order_socket(options, &run.directory, 1))
            .map(Into::into),
        keep_input: options.keep_input,
        trusts_log: options.application().diverges() && !options.unprotects,
        opaque: options.application().is_opaque(),
        agent_timeout_ms: options.fault.takes_agents_away().then_some(AGENT_TIMEOUT_MS),
        claim_ping: [ROUTER_LAN, CLIENT].map(|host| host.ip(ipv6)).to_vec(),
        health: is_probed.then(|| options.application().health()),
        state_sync: state_sync(options, &run.directory)?,
        arbiter,
        log: options.log,
        transport: options.lan.transport.name(),
        annexes: annex_setups(options, &run.name, &run.directory),
        registered_annexes: options.registered_annexes,
        ..PairSetup::new(
            options.run.daemon.path()?,
            &run.name,
            options.service(),
            addresses,
        )
    };
    if options.fault.replaces_programs() {
        // Each daemon runs from its own copy of the program, so that an upgrade can replace the file.
        for (binary, name) in pair.binaries.iter_mut().zip(&pair.names) {
            let copy = run.directory.join(format!("program-{name}"));
            process::copy_program(binary, &copy)?;
            *binary = copy;
        }
    }
    Ok(pair)
}

/// Writes the state-sync hook into a file in `directory`. The hook copies redis' state to a returning node. Returns the
/// file's path, or `None` if this run needs no copy.
fn state_sync(options: &PairOptions, directory: &Path) -> Result<Option<PathBuf>> {
    if options.policy != PolicyOption::Replica || options.rounds.is_none() || options.without_state_sync {
        return Ok(None);
    }
    let path = std::path::absolute(directory.join("state-sync"))?;
    fs::write(&path, STATE_SYNC)
        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
        .with_context(|| path.display().to_string())?;
    Ok(Some(path))
}
