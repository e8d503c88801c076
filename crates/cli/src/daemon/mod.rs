//! The agent: one thread that reads the wire's log, runs the [`Node`](proto::node::Node) and carries out the node's actions.
//!
//! While there is traffic, the loop naps for a few milliseconds at a time. It is not woken for every packet, because waking costs more
//! than logging. While there is no traffic, it sleeps until the wire wakes it. Nothing that a client waits for depends on the loop: the
//! wire logs and releases in the kernel.

pub(crate) mod annex;
mod annexed;
mod arrival;
mod census;
mod claim;
mod failure;
pub(crate) mod frame;
pub(crate) mod health;
mod held;
mod hook;
mod kernel;
mod known;
mod link;
mod mend;
mod news;
mod ordering;
mod orders;
mod outside;
mod own;
mod peer;
mod pool;
mod recording;
mod refusals;
pub(crate) mod relay;
mod replicas;
mod report;
mod sealed;
pub(crate) mod servers;
mod set_up;
pub(crate) mod snapshots;
mod standing_down;
mod start;
mod state_sync;
mod upgrade;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use agent::{Core, Executor, Kernel as _, TurnStep};
use anyhow::Context;
use proto::export::ExportOutcome;
use proto::pause::PauseWatch;
use proto::service::ServiceInput;
use tokio::sync::oneshot;

use crate::arbiter::ArbiterClient;
use crate::control::{self, Call, ExportRequest};
use crate::metrics;
use crate::wakeup::Wakeup;
use kernel::{LinuxKernel, RingReader};
use known::KnownRenewal;
use peer::{About, PeerMessage};
use recording::Recording;
pub use recording::RecordingTarget;
pub use servers::accepts;
pub use set_up::could_go_on;
use set_up::{EarlierAgent, SetUp, node_config, set_up};
pub use start::Start;
use upgrade::Upgrade;
pub use upgrade::block_signal;
pub(crate) use upgrade::{ask_successor, unblock_signal, wait_for_inherited_children};

/// Time between two looks at the rings while there is traffic. Long, because each look takes CPU time from the application.
const NAP: Duration = Duration::from_millis(4);
/// Time between two looks while the rings hold more than [`MUCH`], or while connections are taken over. At 8 GB/s, half of the first ring
/// (16 MiB) fills in this time. A client that speaks during a takeover waits for the next look.
const NAP_SHORT: Duration = Duration::from_millis(1);
/// Fill of the rings, in bytes, above which naps are short.
const MUCH: u64 = 1 << 20;
/// Maximum number of log records that one turn reads. If there are more, the next turn follows without a rest.
const BATCH: usize = 4096;
/// Maximum number of calls that one turn answers. Applications may export without pause.
const CALLS_MAX: usize = 256;
/// Number of naps without a record after which the agent sleeps.
const NAPS_MAX: u32 = 10;
/// Timeout of a requested stop: the node waits at most this long until the peer can go on without this node.
const STOP_MAX: Duration = Duration::from_secs(5);
/// The longest sleep. Bounded, because a wake-up between the last look and the sleep could be lost.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// The running agent.
struct Agent<'a> {
    node: Core,
    executor: Executor<LinuxKernel>,
    kernel: LinuxKernel,
    calls: Receiver<Call>,
    wakeup: Wakeup,
    stop: Arc<AtomicBool>,
    upgrade: Upgrade<'a>,
    idle_naps: u32,
    /// The length of the next nap.
    nap: Duration,
    pauses: PauseWatch,
    /// Whether the agent currently runs at a lower priority than others.
    yields: bool,
    peer_status: control::PeerStatus,
    /// Deadline of the stop that the operator has asked for. `None`: no stop was asked for.
    leaves_by: Option<proto::Instant>,
    peer_addresses: Vec<std::net::IpAddr>,
    known: KnownRenewal,
}

/// Runs the node until SIGTERM or SIGINT, then restores the network as it was found. On SIGUSR2, upgrades in place:
/// this process executes the program file that is now at this program's path. The caller must have blocked SIGUSR2.
///
/// # Errors
/// The step of the start or of the cleanup that failed.
pub fn run(start: &Start<'_>) -> anyhow::Result<()> {
    let config = start.config;
    upgrade::wait_for_inherited_children();
    linux::process::keep_freed_memory();
    linux::process::raise_file_limit().context("raising the limit of open files")?;
    let wakeup = Wakeup::new().context("making the wake-up pipe")?;
    let stop = wakeup
        .on_signals(&[signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT])
        .context("catching signals")?;
    let upgrade = Upgrade::new(start, &wakeup)?;
    if let Err(error) = linux::process::take_precedence() {
        tracing::warn!(%error, "the agent runs at ordinary priority: false alarms are more likely");
    }
    let wake = wakeup.waker();
    let wake_agent: annex::message::WakeAgent = Arc::new(wake.clone());
    let arbiter = ArbiterClient::open(config, wake.clone()).context("opening the way to the arbiter")?;
    let SetUp { mut kernel, found } = set_up(config, wake.clone(), arbiter)?;
    let node = node_config(config, start.without_peer, &kernel, found.as_ref());
    let recorder = start
        .record
        .as_ref()
        .map(|to| Recording::begin(to, &config.node.instance))
        .transpose()?;
    let node = Core::new(node, linux::clock::now(), recorder);
    let (server, asker, calls) = control::ControlServer::open(&config.node.state_dir, wake)?;
    if let Some(metrics) = &config.metrics {
        let asker = asker.clone();
        metrics::serve(metrics.listen, move || Ok(metrics::exposition(&asker.status()?)))?;
    }
    kernel.start_keeper(config, Arc::clone(&wake_agent))?;
    let snapshots = {
        let place = snapshots::SnapshotPlace::of(config, kernel.wire().hidden_ends());
        snapshots::serve(place, &asker, &kernel.exports)?
    };
    kernel.ordering = ordering::RecordedOrders::serve(config)?;
    kernel.annexes = annex::AnnexNodes::open(config, kernel.wire(), &kernel.macs(), &wake_agent)?;
    let peer_status = control::PeerStatus {
        name: config.peer.name.clone(),
        address: config.peer.address,
        alive: false,
        heartbeat_age_ns: None,
        authenticated: false,
        links: Vec::new(),
        refused: BTreeMap::new(),
        channel: None,
    };
    let mut agent = Agent {
        node,
        executor: Executor::default(),
        kernel,
        calls,
        wakeup,
        stop,
        upgrade,
        idle_naps: 0,
        nap: NAP,
        pauses: PauseWatch::default(),
        yields: false,
        peer_status,
        leaves_by: None,
        peer_addresses: config.links(),
        known: KnownRenewal::new(),
    };
    let away = found.map(|EarlierAgent { seen, .. }| linux::clock::now().since(seen));
    tracing::info!(node = config.node.name, peer = config.peer.name, ?away, "ready");
    agent.run();
    drop((server, snapshots));
    agent.kernel.tear_down()?;
    annex::lists::forget(&config.node.state_dir).context("removing the list of annexes")?;
    tracing::info!("stopped; the network is as it was found");
    Ok(())
}

impl Agent<'_> {
    fn run(&mut self) {
        self.carry_out(); // acts on what an earlier agent left, before anybody is told that an agent is here
        while !self.may_stop() {
            self.take_turn();
        }
    }

    fn take_turn(&mut self) {
        let mut handled = 0;
        for step in TurnStep::ALL {
            match step {
                TurnStep::LookForPause => self.look_for_pause(),
                TurnStep::CheckIn => self.check_in(),
                TurnStep::ReadLog => handled = self.read_log(),
                TurnStep::HearPeer => self.hear_peer(),
                TurnStep::Watch => self.watch(),
                TurnStep::PassTime => self.pass_time(),
                TurnStep::AnswerCalls => self.answer_calls(),
                TurnStep::LookForUpgrade => self.look_for_upgrade(),
                TurnStep::Rest if handled < BATCH => self.rest(handled),
                TurnStep::Rest => {}
            }
            self.carry_out();
        }
    }

    fn hear(&mut self, message: PeerMessage) {
        let now = linux::clock::now();
        if !self.node.peer_is_alive(now) {
            self.kernel.ask_again_for(&self.peer_addresses);
        }
        match message {
            PeerMessage::Heartbeat(heartbeat) => self.node.handle_heartbeat(now, heartbeat),
            PeerMessage::Ask(About { vip, connections, .. }) => {
                if let Some(told) = self.kernel.look_up(&self.node, vip, &connections) {
                    self.kernel.peer.tell(vip, told);
                }
            }
            PeerMessage::AskAll(About { vip, connections, .. }) => {
                if let Some(page) = self.kernel.list(&self.node, vip, connections) {
                    self.kernel.peer.list(vip, page);
                }
            }
            PeerMessage::Told(About { vip, connections, .. }) => {
                if let Some(service) = self.kernel.service_at(vip) {
                    self.read_all();
                    self.node.handle(now, service, ServiceInput::Told(connections));
                }
            }
            PeerMessage::Part(About { vip, connections, .. }) => {
                if let Some(service) = self.kernel.service_at(vip) {
                    self.read_all();
                    self.node.handle(now, service, ServiceInput::Part(connections));
                }
            }
            PeerMessage::Receipt(About { vip, connections, .. }) => {
                if let Some(service) = self.kernel.service_at(vip) {
                    self.node.handle(now, service, ServiceInput::Receipt(connections));
                }
            }
            PeerMessage::AskPrefix(About { vip, connections, .. }) => {
                if let Some(service) = self.kernel.service_at(vip) {
                    self.kernel.relay().ask_prefix(service, connections);
                }
            }
            PeerMessage::Prefix(About { vip, connections, .. }) => {
                if let Some(service) = self.kernel.service_at(vip) {
                    self.read_all();
                    self.node.handle(now, service, ServiceInput::Prefix(connections));
                }
            }
            PeerMessage::Page(About { vip, connections, .. }) => {
                if let Some(service) = self.kernel.service_at(vip) {
                    self.read_all();
                    self.node.handle(now, service, ServiceInput::Page(connections));
                }
            }
        }
    }

    /// Reads the log to its end, so that the node knows what was logged before the primary's message.
    fn read_all(&mut self) {
        self.kernel.read_all(&mut self.node);
    }

    /// Whether the agent may stop. The operator must have asked for a stop. In addition, one of three conditions must
    /// hold: waiting longer saves nothing, [`STOP_MAX`] is over, or the operator has asked a second time.
    fn may_stop(&mut self) -> bool {
        let is_told = self.stop.swap(false, Ordering::Relaxed);
        match self.leaves_by {
            None if is_told => {
                tracing::info!("told to stop; waiting until the peer can go on without this node");
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

    /// Lowers the agent's priority, or restores it. With the lower priority, the application and the keeper run first
    /// and serve the connections that were already taken over.
    fn yield_to_others(&mut self, yields: bool) {
        if self.yields == yields {
            return;
        }
        self.yields = yields;
        let outcome = if yields {
            linux::process::yield_precedence()
        } else {
            linux::process::take_precedence()
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "cannot change the agent's priority");
        }
    }

    fn answer(&mut self, call: Call) {
        match call {
            Call::Status(reply) => {
                let mut peer = self.peer_status.clone();
                self.kernel.peer.describe(&mut peer);
                reply.send(report::status(&self.node, &self.kernel, peer, &self.kernel.rings));
            }
            Call::Connections(reply) => reply.send(report::connections(&self.node, &self.kernel)),
            Call::Export(request, reply) => self.export(request, reply),
            Call::HasMoved(service, reply) => {
                let _ = reply.send(!self.node.service(service).role().may_speak());
            }
            Call::Died(service, client) => {
                let input = ServiceInput::Orphans(vec![client]);
                self.node.handle(linux::clock::now(), service, input);
            }
            Call::Edge(_) | Call::Annex(_) | Call::Tunnel(_) | Call::Connect(_) | Call::Accept(_) => {} // the asker is told that there is no answer
            Call::Restored(reply) => reply.send(report::restored(&self.node, &self.kernel)),
            Call::Order(order, reply) => {
                let peer = &self.peer_status.name;
                reply.send(orders::give(&mut self.node, &self.kernel, peer, &order));
            }
        }
    }
}

/// Snapshots ([`snapshots`]).
impl Agent<'_> {
    /// Gives the node an application's state. The caller gets the outcome, or learns at once that the node has the state.
    fn export(&mut self, request: ExportRequest, reply: oneshot::Sender<ExportOutcome>) {
        let ExportRequest { service, mut call } = request;
        call.call = self.kernel.exports.begin(call.waits, reply);
        self.node
            .handle(linux::clock::now(), service, ServiceInput::Export(call));
    }
}

/// The steps of a turn ([`TurnStep`]).
impl Agent<'_> {
    fn look_for_pause(&mut self) {
        let reading = linux::clock::reading();
        if let Some(lost) = reading.and_then(|reading| self.pauses.look(reading)) {
            tracing::warn!(
                ?lost,
                "this machine was paused and its clock stood still; leases from before the pause no longer count"
            );
            self.node.handle_pause(linux::clock::now());
        }
    }

    fn check_in(&mut self) {
        if self.kernel.check_in(&mut self.node) {
            self.kernel.ask_again_for(&self.peer_addresses);
        }
    }

    fn read_log(&mut self) -> usize {
        self.nap = if self.kernel.rings.fill() > MUCH || self.node.is_deciding() {
            NAP_SHORT
        } else {
            NAP
        };
        self.kernel
            .rings
            .drain(BATCH, false, &mut RingReader(&mut self.node))
    }

    /// Carries out the node's actions until it returns none. During a takeover the node may return none although steps
    /// are left, so that the other parts of a turn get their time.
    fn carry_out(&mut self) {
        loop {
            self.node.set_behind(self.kernel.relay().is_behind());
            let Some(action) = self.node.next_action() else {
                break;
            };
            self.yield_to_others(self.node.is_unhurried());
            let Some(action) = self.node.admit(linux::clock::now(), action) else {
                continue; // the node keeps the action and returns it later
            };
            self.executor.carry_out(&mut self.kernel, &mut self.node, action);
        }
        self.yield_to_others(false);
    }

    fn hear_peer(&mut self) {
        for arrival in self.kernel.peer.receive() {
            self.kernel.note_arrival(&mut self.node, arrival.interface);
            if let Some(message) = arrival.message {
                self.hear(message);
            }
            self.carry_out();
        }
        if self.kernel.peer.is_answered() {
            self.node.handle_answer(linux::clock::now());
        }
    }

    fn watch(&mut self) {
        // All actions of a role that the node has now were carried out, so the gates are those of this role.
        self.kernel.ordering.tell(&mut self.node);
        self.kernel.watch(&mut self.node);
        if self.kernel.mend(&mut self.node) {
            self.kernel.look_for_links(&mut self.node, &self.kernel.peer);
        }
        self.kernel.hear_annexes(&mut self.node);
        while let Some(call) = self.kernel.poll_call() {
            self.carry_out();
            self.kernel.answer_wire(&mut self.node, call);
        }
        self.known.renew(&self.kernel, &self.node);
    }

    fn pass_time(&mut self) {
        let now = linux::clock::now();
        for (service, syn_ack) in self.kernel.relay().unheard() {
            self.node.handle(now, service, ServiceInput::Unheard { syn_ack });
        }
        self.kernel.tell_prefixes();
        if now >= self.node.poll_timeout() {
            self.node.handle_timeout(now);
        }
        if now >= self.kernel.peer.poll_timeout() {
            self.kernel.peer.handle_timeout(now);
        }
        for (service, connection) in self.kernel.serve_replicas(&mut self.node) {
            agent::feed_replica(&mut self.kernel, &mut self.node, service, connection);
        }
    }

    fn answer_calls(&mut self) {
        // Listing thousands of connections takes as long as restoring hundreds.
        for _ in 0..CALLS_MAX {
            if self.node.is_in_a_hurry() {
                break;
            }
            let Ok(call) = self.calls.try_recv() else { break };
            self.answer(call);
        }
    }

    /// Starts an upgrade in place if one was requested, the successor has passed its check, and nothing is half done.
    fn look_for_upgrade(&mut self) {
        let is_settled = !self.node.is_deciding() && self.executor.is_settled() && self.kernel.is_settled();
        if self.leaves_by.is_none() && self.upgrade.is_due(is_settled) {
            let relay = &mut self.kernel.relay;
            let keepers = relay.pause();
            let error = self.upgrade.make_way();
            tracing::error!(
                error = format!("{error:#}"),
                "not upgraded; the running program continues"
            );
            if let Some(Err(error)) = keepers.map(|keepers| relay.start(keepers)) {
                tracing::error!(
                    error = format!("{error:#}"),
                    "new connections will not be relayed"
                );
            }
        }
    }

    /// Naps while there is traffic, sleeps while there is none.
    fn rest(&mut self, handled: usize) {
        self.kernel.prepare_sockets(&self.node);
        self.idle_naps = if handled > 0 { 0 } else { self.idle_naps + 1 };
        let due = self.kernel.peer.poll_timeout().min(self.node.poll_timeout());
        let due = due.since(linux::clock::now());
        let mut fds: Vec<_> = self.kernel.peer.fds().collect();
        fds.extend([self.kernel.deaths_fd(), self.kernel.filters_fd()]);
        if self.idle_naps <= NAPS_MAX {
            self.wakeup.wait(&fds, self.nap.min(due));
        } else {
            self.kernel.set_asleep(true);
            if self.kernel.rings.fill() == 0 {
                fds.extend([
                    self.kernel.rings.connections.as_fd(),
                    self.kernel.rings.opening.as_fd(),
                    self.kernel.replicas_fd(),
                ]);
                self.wakeup.wait(&fds, SLEEP_MAX.min(due));
            }
            self.kernel.set_asleep(false);
        }
        self.wakeup.clear();
    }
}
