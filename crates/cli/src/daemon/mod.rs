//! The agent: one thread that reads the wire's log, runs the [`Node`] and carries out what it wants.
//!
//! The loop naps a few milliseconds while there is traffic, instead of being woken for every packet (waking costs
//! more than logging), and sleeps until the wire wakes it when there is none. Nothing that a client waits for depends on
//! it: the wire logs and releases in the kernel.

mod carry_out;
mod claim;
mod frame;
mod health;
mod hook;
mod orders;
mod peer;
mod relay;
mod replicas;
mod report;
mod restore;
mod servers;

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::Context;
use linux::network::{self, Network};
use linux::wire::{self, Rings, Wire, WireOptions, WireService};
use nix::poll::{PollFd, PollFlags};
use nix::sys::time::TimeSpec;
use proto::action::Gate;
use proto::detector::DetectorConfig;
use proto::node::{Node, NodeConfig, ServiceConfig};
use proto::stream::{OnShelf, Shelf};
use proto::table::{Direction, TableConfig};

use crate::arbiter::Arbiter;
use crate::config::{self, Config, Policy, Role};
use crate::control::{self, Call};
use crate::metrics;
use carry_out::Executor;
use health::Watch;
use peer::{About, Message, Peer};
use servers::Servers;
pub use servers::accepts;

/// Records handled between two looks at the clock.
const BATCH: usize = 4096;
/// The ring that is used while the agent is not late. Less is full too often, more leaves the caches.
const RING_CACHED_BYTES: u32 = 16 << 20;
/// Between two looks at the rings while there is traffic: long, since it takes a CPU away from those who make it.
const NAP: Duration = Duration::from_millis(4);
/// The same while more than [`MUCH`] is found: half of that ring lasts so long at 8 GB/s.
const NAP_SHORT: Duration = Duration::from_millis(1);
/// Bytes in the rings that are much for a nap.
const MUCH: u64 = 1 << 20;
/// So many naps without a record, and the agent goes to sleep.
const NAPS_MAX: u32 = 10;
/// How long a node that is told to stop waits for the peer to go on without it.
const STOP_MAX: Duration = Duration::from_secs(5);
/// The longest sleep: a wake-up could be lost in the gap between the last look and the sleep.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// The running agent.
struct Agent {
    node: Node,
    executor: Executor,
    rings: Rings,
    peer: Peer,
    calls: Receiver<Call>,
    wakeups: UnixStream,
    stop: Arc<AtomicBool>,
    idle_naps: u32,
    peer_status: control::PeerStatus,
    /// It is to stop, by then at the latest.
    leaves_by: Option<proto::Instant>,
    peer_addresses: Vec<std::net::IpAddr>,
}

/// Reads the log for the node.
struct Reader<'a>(&'a mut Node);

impl wire::Reader for Reader<'_> {
    fn record(&mut self, record: &wire::Record, packet: &[u8], source: OnShelf<'_>) {
        let direction = if record.direction == 0 {
            Direction::In
        } else {
            Direction::Out
        };
        let time = proto::Instant::from_nanos(record.time_ns);
        let (service, checksum) = (record.service, wire::checksum_of(record));
        self.0
            .handle_packet(time, service, direction, packet, checksum, Some(source));
    }

    fn keep(&mut self, shelf: &dyn Shelf) {
        self.0.keep(shelf);
    }
}

/// Runs the node until SIGTERM or SIGINT, then restores the network as it was found.
///
/// # Errors
/// What kept it from starting, or from cleaning up; the step is named.
pub fn run(config: &Config, without_peer: bool) -> anyhow::Result<()> {
    linux::process::keep_freed_memory();
    linux::process::raise_file_limit().context("raising the limit of open files")?;
    let (wakeup, wakeups) = UnixStream::pair().context("making the wake-up pipe")?;
    wakeups.set_nonblocking(true)?;
    wakeup.set_nonblocking(true)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("catching signals")?;
        signal_hook::low_level::pipe::register(signal, wakeup.try_clone()?).context("catching signals")?;
    }
    if let Err(error) = linux::process::take_precedence() {
        tracing::warn!(%error, "the agent runs at ordinary priority: false alarms are more likely");
    }
    let waker = wakeup.try_clone().map(Arc::new)?;
    let wake = move || {
        let _ = std::io::Write::write(&mut &*waker, &[1]); // full: a wake-up is under way already
    };
    let arbiter = Arbiter::open(config, wake.clone()).context("opening the way to the arbiter")?;
    let SetUp {
        mut executor,
        rings,
        found,
    } = set_up(config, wake.clone(), arbiter)?;
    let node = node_config(config, without_peer, &executor, found.as_deref());
    let node = Node::new(node, linux::clock::now());
    let peer = Peer::open(config).context("opening the links to the peer")?;
    let (server, asker, calls) = control::Server::open(&config.node.state_dir, wake)?;
    if let Some(metrics) = &config.metrics {
        metrics::serve(metrics.listen, asker)?;
    }
    executor.start_keeper(config)?;
    let peer_status = control::PeerStatus {
        name: config.peer.name.clone(),
        address: config.peer.address,
        alive: false,
        heartbeat_age_ns: None,
        authenticated: false,
        links: Vec::new(),
        refused: BTreeMap::new(),
    };
    let mut agent = Agent {
        node,
        executor,
        rings,
        peer,
        calls,
        wakeups,
        stop,
        idle_naps: 0,
        peer_status,
        leaves_by: None,
        peer_addresses: config.peer.addresses.clone(),
    };
    tracing::info!(node = config.node.name, peer = config.peer.name, "ready");
    let outcome = agent.run();
    drop(server);
    agent.executor.tear_down()?;
    tracing::info!("stopped; the network is as it was found");
    outcome
}

/// What the agent stands on.
struct SetUp {
    executor: Executor,
    rings: Rings,
    /// By service, the gate and epoch that an agent that died has left.
    found: Option<Vec<(Gate, u64)>>,
}

/// Goes on with what an agent that died has left; else begins: guard first, then the wire. The VIPs come up when the roles are
/// agreed.
fn set_up(
    config: &Config,
    wake: impl Fn() + Clone + Send + 'static,
    arbiter: Arbiter,
) -> anyhow::Result<SetUp> {
    let mut crash_exit_codes: Vec<u8> = config
        .services
        .iter()
        .flat_map(|service| service.crash_exit_codes.iter().copied())
        .collect();
    crash_exit_codes.dedup();
    let options = WireOptions {
        ring_cached_bytes: RING_CACHED_BYTES,
        ring_bytes: config.log.ring_bytes,
        ring_open_bytes: config.log.syn_ring_bytes,
        crash_exit_codes,
        agent_timeout: config.node.agent_timeout,
        chunks_only: false,
    };
    let services = wire_services(config)?;
    let adopted = Wire::adopt(&config.node.name, &options, &services)?;
    let found = adopted.as_ref().map(|wire| {
        (0..)
            .take(services.len())
            .map(|index| wire.gate(index))
            .map(|(mode, epoch)| (carry_out::gate_of(mode), epoch))
            .collect::<Vec<_>>()
    });
    let (wire, network) = match adopted {
        Some(wire) => go_on(config, wire)?,
        None => begin(config, &options, &services)?,
    };
    let rings = wire.rings()?;
    let servers = Servers::new(config, wire.deaths()?, Watch::start(config, wake)?);
    let executor = Executor::new(config, wire, network, servers, arbiter)?;
    Ok(SetUp {
        executor,
        rings,
        found,
    })
}

/// Nothing is undone if this fails: forwarding goes on, and the operator decides.
fn go_on(config: &Config, mut wire: Wire) -> anyhow::Result<(Wire, Network)> {
    tracing::info!("an earlier agent died: going on with what it left");
    wire.set_agent_seen(linux::clock::now().as_nanos());
    if let Some(left_out) = wire.attach()? {
        tracing::warn!("{left_out}");
    }
    let journal = network::journal(&config.node.state_dir);
    let mut network = Network::adopt(&plan(config), &journal)?
        .with_context(|| format!("{} is missing; run `steadfast cleanup` first", journal.display()))?;
    // That agent may have died between two parts: what the gate says holds.
    for (index, service) in (0..).zip(&config.services) {
        if let Some(part) = carry_out::part_behind(carry_out::gate_of(wire.gate(index).0)) {
            network.assume(service.address, part)?;
        }
    }
    Ok((wire, network))
}

fn begin(
    config: &Config,
    options: &WireOptions,
    services: &[WireService],
) -> anyhow::Result<(Wire, Network)> {
    let mut wire = Wire::load(&config.node.name, options)?;
    let attached = (|| {
        for (index, service) in (0..).zip(services) {
            wire.add_service(index, service)?;
        }
        if let Some(left_out) = wire.attach()? {
            tracing::warn!("{left_out}");
        }
        anyhow::Ok(())
    })();
    let journal = network::journal(&config.node.state_dir);
    let network = attached.and_then(|()| Ok(Network::prepare(&plan(config), &journal)?));
    match network {
        Ok(network) => Ok((wire, network)),
        Err(error) => {
            if let Err(error) = wire.remove() {
                tracing::error!(%error, "the wire is not removed; run `steadfast cleanup`");
            }
            Err(error)
        }
    }
}

fn wire_services(config: &Config) -> anyhow::Result<Vec<WireService>> {
    let of = |service: &config::Service| {
        let interface = network::Interface::find(&service.interface)?
            .with_context(|| format!("interface {} is gone", service.interface))?;
        let mac = interface.mac.map(|mac| mac.0);
        anyhow::Ok(WireService {
            address: service.address,
            port: service.port,
            ifindex: interface.index,
            own_mac: mac.with_context(|| format!("interface {} has no MAC address", interface.name))?,
        })
    };
    config.services.iter().map(of).collect()
}

fn plan(config: &Config) -> network::Plan {
    let services = config
        .services
        .iter()
        .map(|service| network::Service {
            address: (service.address, service.port).into(),
            interface: service.interface.clone(),
            peer: service.peer_address,
            application: service.application,
        })
        .collect();
    network::Plan {
        node: config.node.name.clone(),
        services,
    }
}

fn node_config(
    config: &Config,
    without_peer: bool,
    executor: &Executor,
    found: Option<&[(Gate, u64)]>,
) -> NodeConfig {
    let services = config
        .services
        .iter()
        .zip(executor.macs())
        .enumerate()
        .map(|(index, (service, mac))| ServiceConfig {
            table: TableConfig {
                vip: (service.address, service.port).into(),
                policy: match service.policy {
                    Policy::Http => proto::follower::Policy::Http,
                    Policy::Replica => proto::follower::Policy::Replica,
                },
                reexecute: service.reexecute,
                connection_bytes_max: config.log.per_connection_bytes,
                bytes_max: config.log.total_bytes,
                hash_seed: linux::process::random_seed(),
            },
            is_primary: service.role == Role::Primary,
            mac,
            found: found.map(|found| found[index]),
        })
        .collect();
    let detector = DetectorConfig {
        interval: config.detector.heartbeat,
        missed: config.detector.missed,
        agent_timeout: config.node.agent_timeout,
    };
    NodeConfig {
        name: config.node.name.clone(),
        incarnation: linux::process::random_seed() as u64,
        without_peer,
        detector,
        lease: config.detector.lease,
        arbiter: match config.arbiter {
            config::Arbiter::FailStop => proto::standing::Arbiter::FailStop,
            config::Arbiter::Fence(_) => proto::standing::Arbiter::Fence,
            config::Arbiter::Witness(_) => proto::standing::Arbiter::Witness,
        },
        services,
    }
}

impl Agent {
    fn run(&mut self) -> anyhow::Result<()> {
        while !self.may_stop() {
            if self.executor.check_in(&mut self.node) {
                self.executor.ask_again_for(&self.peer_addresses);
            }
            let nap = if self.rings.fill() > MUCH { NAP_SHORT } else { NAP };
            let handled = self.rings.drain(BATCH, false, &mut Reader(&mut self.node));
            self.carry_out()?;
            for message in self.peer.receive() {
                self.hear(message);
                self.carry_out()?;
            }
            if self.peer.is_answered() {
                self.node.handle_answer(linux::clock::now());
            }
            self.executor.watch(&mut self.node);
            self.executor.mend();
            let now = linux::clock::now();
            if now >= self.node.poll_timeout() {
                self.node.handle_timeout(now);
            }
            self.executor.serve_replicas(&mut self.node);
            self.carry_out()?;
            while let Ok(call) = self.calls.try_recv() {
                self.answer(call);
            }
            if handled < BATCH {
                self.executor.prepare_sockets(&self.node);
                self.rest(handled, nap);
            }
        }
        Ok(())
    }

    fn hear(&mut self, message: Message) {
        let now = linux::clock::now();
        if !self.node.peer_is_alive(now) {
            self.executor.ask_again_for(&self.peer_addresses);
        }
        match message {
            Message::Heartbeat(heartbeat) => self.node.handle_heartbeat(now, heartbeat),
            Message::Ask(About { vip, connections, .. }) => {
                if let Some(told) = self.executor.look_up(vip, &connections) {
                    self.peer.tell(vip, told);
                }
            }
            Message::Told(About { vip, connections, .. }) => {
                if let Some(service) = self.executor.service_at(vip) {
                    self.node.handle_told(now, service, connections);
                }
            }
        }
    }

    /// Whether the operator wants an end and the peer goes on, or cannot, or the operator has said it twice.
    fn may_stop(&mut self) -> bool {
        let is_told = self.stop.swap(false, Ordering::Relaxed);
        match self.leaves_by {
            None if is_told => {
                tracing::info!("told to stop: the peer is to go on");
                self.leaves_by = Some(linux::clock::now() + STOP_MAX);
                self.node.handle_stop(linux::clock::now());
                false
            }
            None => false,
            Some(_) if is_told => true,
            Some(deadline) => {
                let now = linux::clock::now();
                let is_late = now >= deadline;
                if is_late {
                    tracing::warn!("the peer has not gone on within {STOP_MAX:?}: stopping all the same");
                }
                is_late || self.node.is_free(now)
            }
        }
    }

    /// Does what the node wants, until it wants nothing more.
    fn carry_out(&mut self) -> anyhow::Result<()> {
        while let Some(action) = self.node.poll_action() {
            self.executor
                .carry_out(action, &mut self.node, &mut self.rings, &self.peer)?;
        }
        Ok(())
    }

    fn answer(&mut self, call: Call) {
        match call {
            Call::Status(reply) => {
                let mut peer = self.peer_status.clone();
                self.peer.describe(&mut peer);
                reply.send(report::status(&self.node, &self.executor, peer, &self.rings));
            }
            Call::Connections(reply) => reply.send(report::connections(&self.node, &self.executor)),
            Call::Order(order, reply) => reply.send(orders::give(&mut self.node, &self.executor, &order)),
        }
    }

    /// A nap while there is traffic, sleep while there is none.
    fn rest(&mut self, handled: usize, nap: Duration) {
        self.idle_naps = if handled > 0 { 0 } else { self.idle_naps + 1 };
        let due = self.node.poll_timeout().since(linux::clock::now());
        let mut fds: Vec<_> = self.peer.fds().collect();
        fds.extend([
            self.wakeups.as_fd(),
            self.executor.deaths_fd(),
            self.executor.filters_fd(),
        ]);
        if self.idle_naps <= NAPS_MAX {
            wait(&fds, nap.min(due));
        } else {
            self.executor.set_asleep(true);
            if self.rings.fill() == 0 {
                fds.extend([
                    self.rings.connections.as_fd(),
                    self.rings.opening.as_fd(),
                    self.executor.replicas_fd(),
                ]);
                wait(&fds, SLEEP_MAX.min(due));
            }
            self.executor.set_asleep(false);
        }
        let mut wakeups = [0; 64];
        while matches!((&self.wakeups).read(&mut wakeups), Ok(count) if count > 0) {}
    }
}

/// Waits until one of `fds` is readable, at most for `limit`.
fn wait(fds: &[BorrowedFd<'_>], limit: Duration) {
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|&fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    // A signal that interrupts it is as good as a wake-up; nothing else can go wrong here.
    let _ = nix::poll::ppoll(&mut fds, Some(TimeSpec::from(limit)), None);
}
