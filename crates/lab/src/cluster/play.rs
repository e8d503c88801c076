//! A run of the cluster: its steps, in order.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use proto::Instant;

use super::daemons::ClusterDaemons;
use super::network::{ClusterNetwork, ServiceLan};
use super::options::{APPLICATION, ClusterOptions};
use super::report::{ClusterFindings, ClusterServiceReport, Events, FailedNodeRole, MEMBERS};
use crate::capture::{CapturedInterface, Captures};
use crate::client::{ClientOrder, ClientPlan, ClientProcess, Until, Workload};
use crate::clock::{ClockOffset, monotonic, ms};
use crate::net::INTERFACE;
use crate::net::address::CLIENT;
use crate::newcomer::greet;
use crate::node::{ArbiterSetup, Assume, PatternFiles, ReportedStatus, ReportedTakeover, ServerProcess};
use crate::process;
use crate::run::LabRun;
use crate::witness::EtcdProcesses;
use judge::{Capture, Point};
use judge::{Closing, CommitMode, Expectations, NodeChange, Speaking, Survey};

const WORKERS: u32 = 2;
/// Content bytes of a request.
const SIZE: u64 = 1024;
/// Time before an event, in which the clients work.
const ACT: Duration = Duration::from_millis(500);
/// Time for which the clients work after the last takeover.
const AFTER: Duration = Duration::from_millis(1500);
const LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);
/// A client's wait is attributed to a fault if the wait is in progress at the fault or begins within this time after the fault.
const WINDOW: Duration = Duration::from_millis(500);

/// Everything that runs. The fields are dropped in order of declaration.
struct ClusterTestbed {
    clients: Vec<ClientProcess>,
    daemons: ClusterDaemons,
    _servers: Vec<ServerProcess>,
    captures: Captures,
    witness: Option<EtcdProcesses>,
    network: ClusterNetwork,
    segments: Vec<ServiceLan>,
}

/// A node that was drained for a while, under load.
#[derive(Clone, Copy)]
struct Drained {
    node: usize,
    at: Instant,
    returned_at: Instant,
}

/// The events up to the power failure.
struct Before {
    drained: Drained,
    off: usize,
    fault_at: Instant,
}

impl Before {
    /// Returns which node of a service is its primary at the power failure, as an index in `nodes`. `nodes` are the service's two nodes. If
    /// the first node was drained, it has returned as the wire, so the second node is the primary.
    fn primary(&self, nodes: [usize; 2]) -> usize {
        usize::from(self.drained.node == nodes[0])
    }
}

/// Executes the run.
///
/// # Errors
/// If the run could not be finished.
pub fn play(
    options: &ClusterOptions,
    run: &LabRun<'_>,
    problems: &mut Vec<String>,
) -> Result<ClusterFindings> {
    let clock = ClockOffset::measure();
    run.step("set up");
    let mut cluster = ClusterTestbed::set(options, run)?;
    let off = usize::from(options.off);
    run.step("load");
    std::thread::sleep(ACT);
    if let Some(witness) = &cluster.witness {
        witness.kill_one()?;
        std::thread::sleep(ACT);
    }
    let drain = usize::from(options.drain);
    run.step("restart");
    cluster.restart(drain, run, problems)?;
    run.step("drain");
    let drained = cluster.drain(drain, problems)?;
    run.step("power off");
    let fault_at = cluster.power_off(off)?;
    let before = Before {
        drained,
        off,
        fault_at,
    };
    let takeovers = cluster.wait_gone_on(&before, problems)?;
    std::thread::sleep(AFTER);
    cluster.greet(problems)?;
    for client in &mut cluster.clients {
        for at in [fault_at, drained.at] {
            client.order(ClientOrder::Fault {
                at_ns: at.as_nanos(),
                window_ms: WINDOW.as_millis() as u64,
                clips: false,
            })?;
        }
        client.order(ClientOrder::Stop)?;
    }
    run.step("judge");
    let services = cluster.conclude(&before, clock)?;
    let last_live = takeovers
        .iter()
        .filter_map(|takeover| takeover.last_live_ns)
        .max();
    let mut findings = ClusterFindings::empty(options);
    findings.takeover_ms = last_live.map(|live| ms(fault_at.as_nanos(), live));
    services
        .into_iter()
        .for_each(|service| findings.add_service(service));
    Ok(findings)
}

impl ClusterTestbed {
    fn set(options: &ClusterOptions, run: &LabRun<'_>) -> Result<Self> {
        let count = usize::from(options.nodes);
        let (directory, steadfast) = (&run.directory, options.run.daemon.path()?);
        let content = PatternFiles::generate(directory, &[(run.seed, SIZE)])?;
        let members = if options.assume == Assume::Etcd {
            MEMBERS
        } else {
            0
        };
        let mut network =
            ClusterNetwork::build(&run.name, count, members, run.teardown).context("build the network")?;
        let segments: Vec<_> = (0..count).map(ServiceLan::new).collect();
        let captures = capture(&network, &segments, options, run)?;
        let hosts = std::mem::take(&mut network.witnesses);
        let witness = (members > 0)
            .then(|| EtcdProcesses::start(hosts, directory))
            .transpose()?;
        let arbiter = witness
            .as_ref()
            .map_or(ArbiterSetup::None, EtcdProcesses::arbiter);
        let server = |(index, node)| {
            let label = format!("{}-n{index}", APPLICATION.program());
            ServerProcess::start(APPLICATION, node, directory, &label, &content, WORKERS)
        };
        let servers = network
            .nodes
            .iter()
            .enumerate()
            .map(server)
            .collect::<Result<_>>()?;
        let daemons = ClusterDaemons::start(&network, &segments, &steadfast, &arbiter, run)?;
        let mut cluster = Self {
            clients: Vec::new(),
            daemons,
            _servers: servers,
            captures,
            witness,
            network,
            segments,
        };
        for segment in &cluster.segments {
            cluster
                .clients
                .push(connect(&cluster.network, segment, options, run.seed)?);
        }
        for client in &mut cluster.clients {
            client.wait_ready(LIMIT)?;
        }
        Ok(cluster)
    }

    /// Turns the power of `node` off. Returns the time just before.
    fn power_off(&self, node: usize) -> Result<Instant> {
        let spared = self.captures.pids();
        let moment = monotonic();
        self.network.pull(node)?;
        let inode = self.network.nodes[node].inode();
        process::kill_inside(&[inode], |pid| spared.contains(&pid), LIMIT)
            .context("kill the node's processes")?;
        Ok(moment)
    }

    /// The services of `node`, each with the node's index (`place`) in the service's pair.
    fn pairs_of(&self, node: usize) -> Vec<(usize, usize)> {
        let count = self.segments.len();
        let place = |segment: &ServiceLan| segment.nodes(count).iter().position(|one| *one == node);
        let of_segment = |segment: &ServiceLan| Some((segment.service, place(segment)?));
        self.segments.iter().filter_map(of_segment).collect()
    }

    fn status(&self, service: usize, place: usize) -> Result<ReportedStatus> {
        let node = self.segments[service].nodes(self.segments.len())[place];
        self.daemons
            .agent(service, place)
            .status(&self.network.nodes[node])
    }

    /// Waits until the daemon at `place` of a service's pair reports the expected status. Adds to `problems` if this takes longer than
    /// [`LIMIT`].
    fn wait(
        &self,
        (service, place): (usize, usize),
        is_right: impl FnMut(&ReportedStatus) -> bool,
        what: &str,
        problems: &mut Vec<String>,
    ) {
        let node = self.segments[service].nodes(self.segments.len())[place];
        let agent = self.daemons.agent(service, place);
        let problem = agent.wait_for(&self.network.nodes[node], (LIMIT, POLL), is_right);
        problems.extend(
            problem.map(|problem| format!("service {service}: node {node} does not {what} {problem}")),
        );
    }

    /// Restarts and upgrades `node`'s daemon under load, and waits until the node's services are protected as before.
    fn restart(&mut self, node: usize, run: &LabRun<'_>, problems: &mut Vec<String>) -> Result<()> {
        self.daemons
            .restart(node, &self.network.nodes[node], &run.directory)?;
        for (service, place) in self.pairs_of(node) {
            for one in [place, 1 - place] {
                let what = "be duplex after a restart";
                self.wait((service, one), ReportedStatus::is_duplex, what, problems);
            }
            let wire = (service, 1);
            self.wait(
                wire,
                ReportedStatus::protects_all,
                "protect every connection after a restart",
                problems,
            );
        }
        self.greet(problems)
    }

    /// Drains `node` under load, then ends the drain. Waits until the node's services are protected as before.
    fn drain(&self, node: usize, problems: &mut Vec<String>) -> Result<Drained> {
        let at = monotonic();
        self.daemons.order_drain(node, &self.network.nodes[node], &[])?;
        for (service, place) in self.pairs_of(node) {
            self.wait(
                (service, 1 - place),
                ReportedStatus::is_alone,
                "go on alone",
                problems,
            );
        }
        std::thread::sleep(ACT);
        self.greet(problems)?;
        let returned_at = monotonic();
        self.daemons
            .order_drain(node, &self.network.nodes[node], &["--off"])?;
        for (service, place) in self.pairs_of(node) {
            for one in [place, 1 - place] {
                self.wait(
                    (service, one),
                    ReportedStatus::is_duplex,
                    "become duplex again",
                    problems,
                );
            }
            self.wait(
                (service, place),
                ReportedStatus::protects_all,
                "protect every connection",
                problems,
            );
        }
        std::thread::sleep(ACT);
        self.greet(problems)?;
        Ok(Drained {
            node,
            at,
            returned_at,
        })
    }

    /// Connects a new client to each service.
    fn greet(&self, problems: &mut Vec<String>) -> Result<()> {
        for segment in &self.segments {
            let problem = greet(&self.network.router, APPLICATION, address(segment))?;
            problems.extend(problem.map(|what| format!("service {}: {what}", segment.service)));
        }
        Ok(())
    }

    /// Waits until each service of the node without power goes on without that node. Returns the takeovers of the
    /// services of which that node was the primary.
    fn wait_gone_on(&self, before: &Before, problems: &mut Vec<String>) -> Result<Vec<ReportedTakeover>> {
        let mut takeovers = Vec::new();
        let since =
            |one: &&ReportedTakeover| one.declared_ns >= before.fault_at.as_nanos() && one.is_complete();
        for (service, place) in self.pairs_of(before.off) {
            let survivor = (service, 1 - place);
            if place == before.primary(self.segments[service].nodes(self.segments.len())) {
                let has_taken_over =
                    |status: &ReportedStatus| status.takeovers().iter().any(|one| since(&one));
                self.wait(survivor, has_taken_over, "take over", problems);
                let status = self.status(service, 1 - place)?;
                takeovers.extend(status.takeovers().iter().filter(since).copied());
            } else {
                self.wait(survivor, ReportedStatus::is_alone, "go on alone", problems);
            }
        }
        Ok(takeovers)
    }

    /// Lets the clients finish, and judges each service.
    fn conclude(self, before: &Before, clock: ClockOffset) -> Result<Vec<ClusterServiceReport>> {
        let mut reports = Vec::new();
        for client in self.clients {
            reports.push(client.finish(LIMIT + LIMIT)?);
        }
        let captures = self.captures.stop()?;
        let count = self.segments.len();
        let mut services = Vec::new();
        for (segment, client) in self.segments.iter().zip(reports) {
            let nodes = segment.nodes(count);
            let mut expected = expectations(segment);
            let mut changes = Vec::new();
            let drained = &before.drained;
            let was_drained = nodes.iter().position(|one| *one == drained.node);
            if let Some(node) = was_drained {
                let at_ns = clock.realtime_ns(drained.at);
                match node {
                    0 => expected.role_changes_ns.push(at_ns),
                    _ => changes.push(NodeChange::Lost { node, at_ns }),
                }
                let at_ns = clock.realtime_ns(drained.returned_at);
                changes.push(NodeChange::Returned { node, at_ns });
            }
            let fault_ns = clock.realtime_ns(before.fault_at);
            let off = nodes.iter().position(|one| *one == before.off);
            let lost = off.map(|node| {
                if node == before.primary(nodes) {
                    expected.role_changes_ns.push(fault_ns);
                    return FailedNodeRole::Primary;
                }
                let at_ns = fault_ns + ClusterDaemons::detection().as_nanos() as u64 / 2;
                changes.push(NodeChange::Lost { node, at_ns });
                FailedNodeRole::Wire
            });
            let own = captures_of(&captures, segment.service);
            let survey = Survey::of(&own, &expected)?;
            expected.wires = survey.wires(1, &changes);
            let has_moved = !expected.role_changes_ns.is_empty();
            let verdict = judge::check(&own, &expected)?;
            let events = Events {
                was_drained: was_drained.is_some(),
                lost,
                has_moved,
            };
            services.push(ClusterServiceReport::new(
                segment.service,
                nodes,
                events,
                &client,
                verdict,
            ));
        }
        Ok(services)
    }
}

fn expectations(segment: &ServiceLan) -> Expectations {
    Expectations {
        service: address(segment),
        clients: vec![CLIENT.v4.into()],
        macs: segment.ends.map(|end| end.mac),
        annexes: Vec::new(),
        router_mac: segment.router.mac,
        mode: CommitMode::Prs,
        wires: Vec::new(),
        role_changes_ns: Vec::new(),
        speaking: Speaking::ForAll,
        closing: Closing::ClientFirst,
        may_slow: false,
    }
}

fn address(segment: &ServiceLan) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(segment.vip), APPLICATION.port())
}

/// Starts captures at the client, and for each service at the router and both nodes.
fn capture(
    network: &ClusterNetwork,
    segments: &[ServiceLan],
    options: &ClusterOptions,
    run: &LabRun<'_>,
) -> Result<Captures> {
    let lans: Vec<_> = segments.iter().map(ServiceLan::interface).collect();
    let mut places = vec![CapturedInterface {
        point: Point::Client,
        name: Point::Client.name().to_owned(),
        namespace: &network.client,
        interface: INTERFACE,
    }];
    for (segment, lan) in segments.iter().zip(&lans) {
        let [a, b] = segment.nodes(segments.len());
        for (point, namespace) in [
            (Point::Router, &network.router),
            (Point::NodeA, &network.nodes[a]),
            (Point::NodeB, &network.nodes[b]),
        ] {
            places.push(CapturedInterface {
                point,
                name: format!("{lan}-{}", point.name()),
                namespace,
                interface: lan,
            });
        }
    }
    Captures::start_at(&places, &run.directory, options.run.snap).context("capture")
}

/// The four captures that show service number `service`, in the order in which [`capture`] started them.
fn captures_of(captures: &[Capture], service: usize) -> Vec<Capture> {
    let own = captures.iter().skip(1 + 3 * service).take(3);
    captures.iter().take(1).chain(own).cloned().collect()
}

fn connect(
    network: &ClusterNetwork,
    segment: &ServiceLan,
    options: &ClusterOptions,
    seed: u64,
) -> Result<ClientProcess> {
    let workload = Workload::Request {
        size: SIZE,
        until: Until::Told,
    };
    let mut plan = ClientPlan::new(address(segment), APPLICATION.protocol(), workload);
    plan.connections = usize::from(options.connections);
    plan.seed = seed;
    ClientProcess::start_on(&network.client, &plan)
}
