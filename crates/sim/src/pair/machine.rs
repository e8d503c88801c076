//! The machine of a node: how its kernel handles packets, and the state that the kernel keeps for the next agent. Either node may be the
//! wire or the primary, and these roles change.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use proto::Instant;
use proto::action::{Action, Gate, ServiceAction};
use proto::annex::{AnnexId, ServingNode};
use proto::follower::RestartPolicy;
use proto::node::NodeConfig;
use proto::packet::{Checksum, Segment, is_returned};
use proto::restart::prefix::{KeepLimits, KeptInputs};
use proto::table::{ConnectionId, Direction};

use super::annex::caller::{CallerLinks, annex_id};
use super::annex::hosted::HostedSockets;
use super::annex::link::{LinkDatagram, LinkServer};
use super::application::{ApplicationFactory, ReadPace, Served, SimApplication};
use super::arbiter::{SimArbiter, TimedAnswer};
use super::clock::NodeClock;
use super::commit::is_cut;
use super::defect::Defect;
use super::exports::SimExports;
use super::judge::Judge;
use super::ledger::PacketSpeaker;
use super::ownership::SpeakingPlace;
use super::state_sync::{HookMessage, SimHook, SimServerState, SimStateSync};
use super::thread::{AgentDatagram, AgentThread, Costs};
use super::wire::{Fate, LogEnd, LoggedPacket, SimWire, WireSide, mark_returned};
use crate::host::{EndpointId, Host, HostConfig};
use crate::tcp;
use crate::world::{Output, Port, SimNode as _};

/// Port to the neighbours: routers, outside hosts.
pub(super) const CLIENTS: Port = Port(0);
/// Port to the peer's stack.
pub(super) const PEER: Port = Port(1);
/// Port to the peer's agent.
pub(super) const AGENTS: Port = Port(2);

/// Port to the first annex. The ports to the others follow.
pub(super) const ANNEXES: Port = Port(3);

/// Asks the peer's kernel whether it is there.
pub(super) const PROBE: &[u8] = b"probe";
/// The answer to [`PROBE`].
const ALIVE: &[u8] = b"alive";

/// Number of turns after a halt until the agent has reacted. The agent notices the halt in the first turn, and has reacted by the second.
const TURNS_UNAWARE: u32 = 2;

/// Configuration of a station.
#[derive(Clone)]
pub struct StationConfig {
    /// The node's number, by which the judge knows it: 0 or 1.
    pub number: usize,
    /// Configuration of the core.
    pub core: NodeConfig,
    /// Configuration of the local stack. Restored sockets get its buffers.
    pub host: HostConfig,
    /// Bytes that the log of connections holds.
    pub ring_bytes: usize,
    /// Bytes that the log of SYNs holds.
    pub opening_bytes: usize,
    /// Pause of the agent before it reads what was logged.
    pub nap: Duration,
    /// Time that the agent's work takes.
    pub costs: Costs,
    /// The application.
    pub program: ApplicationFactory,
    /// How fast the application reads from clients.
    pub pace: Option<ReadPace>,
    /// How fast the application reads as a replica.
    pub replica_pace: Option<ReadPace>,
    /// Time by which the node's clock is ahead of the world's time.
    pub ahead: Duration,
    /// Arbiter that decides when the nodes do not hear each other, if there is one.
    pub(crate) arbiter: Option<Rc<RefCell<SimArbiter>>>,
    /// Defect of the node, in tests of the judge.
    pub defect: Option<Defect>,
    /// The agents also hear each other through the service's network.
    pub service_link: bool,
    /// An outside host answers the pings that this node sends from its own address.
    pub outside: bool,
    /// How the server's state is copied, if it is.
    pub state_sync: Option<SimStateSync>,
    /// The server's state, if it is copied.
    pub(super) server: Rc<RefCell<SimServerState>>,
    /// Number of annexes.
    pub annexes: usize,
}

impl StationConfig {
    /// Whether the application exports its states.
    pub(super) fn exports(&self) -> bool {
        self.core.services[0].table.policy == RestartPolicy::Snapshot
    }
}

/// What a machine has to do with annexes (docs/annex.md).
pub(super) struct AnnexSide {
    /// The agent's links to annexes, and to the primary.
    pub links: CallerLinks,
    /// The links of the peer, while that is the wire.
    pub server: LinkServer,
    /// Sockets of connections that move back to this node.
    pub hosted: HostedSockets,
    /// Packets of links that the agent has not read.
    pub inbox: Vec<(Port, LinkDatagram)>,
}

impl AnnexSide {
    /// For an agent that starts. `guests`: connections that the earlier one has guided to annexes, each with the annex's number.
    fn new(now: Instant, config: &StationConfig, agent: u64, guests: &[(SocketAddr, usize)]) -> Self {
        let annexes = (0..config.annexes)
            .map(|number| (ServingNode::Annex(annex_id(number)), Port(ANNEXES.0 + number)));
        let primary = (config.annexes > 0).then_some((ServingNode::Primary, AGENTS));
        let guests = guests.iter().map(|&(client, number)| (client, annex_id(number)));
        let caller = (config.number, agent);
        Self {
            links: CallerLinks::new(now, caller, primary.into_iter().chain(annexes), guests),
            server: LinkServer::default(),
            hosted: HostedSockets::default(),
            inbox: Vec::new(),
        }
    }
}

/// The interface on which a node has the VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Nowhere,
    /// The node answers no ARP for the VIP, and its packets go through the peer.
    Loopback,
    Interface,
}

/// A node of the pair, without its agent.
pub struct Machine {
    pub(super) config: StationConfig,
    pub(super) wire: SimWire,
    pub(super) host: Host,
    pub(super) vip: SocketAddr,
    pub(super) judge: Rc<RefCell<Judge>>,
    pub(super) outputs: VecDeque<Output>,
    pub(super) address: Address,
    /// End of the right to speak alone, by the node's own clock. Later packets are dropped.
    pub(super) until: Option<Instant>,
    /// Until when the node, as a primary, sends output directly to the clients.
    pub(super) direct_until: Option<Instant>,
    /// After a halt in which the clock stood still: the end of the halt plus one lease. A lease that ends at this time or earlier may be
    /// over already. Zero again when the agent has noticed the halt.
    pub(super) outlasted: Instant,
    /// Answers of the arbiter in transit.
    pub(super) verdicts: VecDeque<TimedAnswer>,
    /// The second guard (nftables) is open: it lets the RSTs of the node's own stack out.
    pub(super) may_speak: bool,
    /// Since the agent last looked, an outside host has answered the VIP.
    pub(super) is_reached: bool,
    /// The node claims the VIP, so it pings outside hosts from the VIP.
    pub(super) is_claiming: bool,
    /// Clients whose connections have lost their process and are not known to be adopted. The guard drops the FINs and
    /// RSTs of these connections.
    pub(super) dying: BTreeSet<SocketAddr>,
    /// Clients of connections whose process has died. No agent knows of these deaths yet.
    pub(super) deaths: Vec<SocketAddr>,
    /// The process that listened is dead, so the stack answers SYNs with RSTs. The guard drops these RSTs, too.
    pub(super) is_server_dead: bool,
    /// Clients whose restored sockets are not ready for packets.
    pub(super) deaf: BTreeSet<SocketAddr>,
    /// Number of sockets that were restored and are not live.
    pub(super) restoring: usize,
    pub(super) replicas: BTreeMap<ConnectionId, ApplicationReplica>,
    pub(super) relayed: Vec<EndpointId>,
    /// SYN-ACKs of connections that were handed over before their clients were heard. The relay keeps the SYN-ACKs for the next agent.
    pub(super) unheard: Vec<(EndpointId, Vec<u8>)>,
    /// Number of connections that have moved here from a living primary.
    pub(super) migrated: usize,
    /// Number of packets that the wire has passed unlogged.
    unlogged: u64,
    pub(super) lost: Vec<(SocketAddr, String)>,
    pub(super) agent: AgentThread,
    pub(super) annexes: AnnexSide,
    pub(super) hook: SimHook,
    pub(super) exports: SimExports,
    /// The kept inputs of relayed connections.
    pub(super) kept: Arc<KeptInputs>,
    /// The node's clock. All times in this struct are times of this clock. Functions that get a time of the world convert it.
    pub(super) clock: NodeClock,
    /// The node's time at the beginning of the agent's present step.
    pub(super) at: Instant,
    /// The epoch of a gate that is closed late, for [`Defect::GateLast`].
    pub(super) late_gate: u64,
    /// The end of the log when the agent began its present action or step of a turn.
    pub(super) log_end: LogEnd,
    /// Number of turns until the agent has noticed a halt and reacted. 0 if it cannot notice the halt, for example because the machine's
    /// counter stood still, too.
    pub(super) turns_unaware: u32,
    /// The primary has accepted this node as its backup. The kernel keeps this for the next agent.
    pub(super) is_consented: bool,
    /// Set while the agent is in doubt. The flag: whether this node is the primary. The number: the epoch. The kernel keeps this for the
    /// next agent, too.
    pub(super) doubted: Option<(bool, u64)>,
    /// The cable of the service's interface carries a signal.
    pub(super) has_carrier: bool,
    /// All cables of the node are cut, so it does not reach the arbiter either.
    pub(super) is_cut_off: bool,
    /// Changes of the node's network fail.
    pub(super) refuses_changes: bool,
    /// The whole machine stands still until this time. Incoming packets wait in the backlog.
    pub(super) frozen_until: Instant,
    pub(super) backlog: Vec<(Port, Vec<u8>)>,
    /// SYN and SYN-ACK of each handshake that its client has not completed, for [`Defect::TrustSyn`].
    pub(super) handshakes: BTreeMap<SocketAddr, Vec<LoggedPacket>>,
    seed: u64,
}

/// A replica of the application.
pub(super) struct ApplicationReplica {
    pub application: Box<dyn SimApplication>,
    pub ended: bool,
    /// When the replica reads again.
    pub reads_at: Instant,
}

impl Machine {
    /// A node that has just started. The node reports its events to `judge`.
    pub fn new(now: Instant, config: StationConfig, seed: u64, judge: Rc<RefCell<Judge>>) -> Self {
        let clock = NodeClock::new(config.ahead);
        let now = clock.read(now);
        let agent = AgentThread::new(now, config.core.incarnation);
        let vip = config.core.services[0].table.vip;
        let exports = SimExports::default();
        let table = &config.core.services[0].table;
        let limits = KeepLimits {
            connection_bytes_max: table.connection_bytes_max,
            bytes_max: table.bytes_max,
        };
        let kept = KeptInputs::new(limits, table.at_limit.spills().map(Arc::clone));
        Self {
            wire: SimWire::new(
                vip,
                config.ring_bytes,
                config.opening_bytes,
                config.core.detector.agent_timeout,
                config.defect,
            ),
            host: started(&config, vip, seed, &exports),
            annexes: AnnexSide::new(now, &config, config.core.incarnation, &[]),
            config,
            vip,
            judge,
            outputs: VecDeque::new(),
            address: Address::Nowhere,
            until: None,
            direct_until: None,
            outlasted: Instant::ZERO,
            verdicts: VecDeque::new(),
            may_speak: false,
            is_reached: false,
            is_claiming: false,
            dying: BTreeSet::new(),
            deaths: Vec::new(),
            is_server_dead: false,
            deaf: BTreeSet::new(),
            restoring: 0,
            replicas: BTreeMap::new(),
            relayed: Vec::new(),
            unheard: Vec::new(),
            migrated: 0,
            unlogged: 0,
            lost: Vec::new(),
            agent,
            hook: SimHook::default(),
            exports,
            kept,
            clock,
            at: now,
            late_gate: 0,
            log_end: LogEnd::default(),
            turns_unaware: 0,
            is_consented: false,
            doubted: None,
            has_carrier: true,
            is_cut_off: false,
            refuses_changes: false,
            frozen_until: now,
            backlog: Vec::new(),
            handshakes: BTreeMap::new(),
            seed,
        }
    }

    /// The machine after a loss of power and a boot: it has no connections, no log and no agent's state from before.
    pub(super) fn booted(&mut self, now: Instant) -> Self {
        self.config.core.incarnation = self.agent.number + 1;
        self.config.server.borrow_mut().clear();
        self.judge.borrow_mut().on_state_lost(self.config.number);
        let judge = Rc::clone(&self.judge);
        let mut fresh = Self::new(now, self.config.clone(), self.seed.wrapping_add(1), judge);
        let now = self.clock.read(now);
        fresh.agent = AgentThread::new(now, self.config.core.incarnation);
        fresh.clock = self.clock;
        fresh.open_links(now);
        fresh.frozen_until = now;
        fresh.at = now;
        fresh.lost = std::mem::take(&mut self.lost);
        fresh
    }

    /// The local stack, for inspection.
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// Number of connections that have moved here from a living primary, at the operator's order.
    pub const fn migrated(&self) -> usize {
        self.migrated
    }

    /// Number of packets that the wire has passed unlogged.
    pub const fn unlogged(&self) -> u64 {
        self.unlogged
    }

    /// Connections that could not be continued, and why.
    pub fn lost(&self) -> &[(SocketAddr, String)] {
        &self.lost
    }

    /// Number of replicas that run.
    pub fn replicas(&self) -> usize {
        self.replicas.len()
    }

    /// The gate, and the epoch in which it was set.
    pub const fn gate(&self) -> (Gate, u64) {
        self.wire.gate()
    }

    /// Whether the node's right to speak still lasts at the world's time `now`.
    pub(crate) fn may_speak_now(&self, now: Instant) -> bool {
        let now = self.clock.read(now);
        self.until.is_none_or(|until| now < until)
    }

    /// Whether the machine stands still at the world's time `now`.
    pub(crate) fn stands_still(&self, now: Instant) -> bool {
        self.is_frozen(self.clock.read(now))
    }

    /// Whether all cables of the node are cut.
    pub(crate) const fn is_cut_off(&self) -> bool {
        self.is_cut_off
    }

    /// Number of the agent that runs, or ran last.
    pub(crate) const fn agent_number(&self) -> u64 {
        self.agent.number
    }

    /// Reading of the node's clock at the world's time `now`.
    pub fn time(&self, now: Instant) -> Instant {
        self.clock.read(now)
    }

    /// Queues the arbiter's answer, which is in transit.
    pub(crate) fn expect_verdict(&mut self, answer: TimedAnswer) {
        let at = self.clock.read(answer.at);
        let answer = TimedAnswer { at, ..answer };
        self.verdicts.push_back(answer);
        self.agent.wake(answer.at);
    }

    /// Sets whether the cable of the service's interface carries a signal.
    pub const fn set_carrier(&mut self, has_carrier: bool) {
        self.has_carrier = has_carrier;
    }

    /// Sets whether changes of the node's network fail.
    pub const fn set_refuses_changes(&mut self, refuses_changes: bool) {
        self.refuses_changes = refuses_changes;
    }

    /// Sets whether all cables of the node are cut.
    pub const fn set_cut_off(&mut self, is_cut_off: bool) {
        self.is_cut_off = is_cut_off;
    }

    /// The agent has died: its kernel closes its links. The sockets that do not speak yet are gone.
    pub(super) fn close_links(&mut self, now: Instant) {
        self.outputs.extend(self.annexes.links.die(now));
        self.outputs.extend(self.annexes.server.die());
        self.annexes.hosted.drop_restoring(&mut self.host);
        self.annexes.inbox.clear();
    }

    /// The clients whose connections the kernel guides to annexes.
    pub(super) fn annexed(&self) -> Vec<(SocketAddr, AnnexId)> {
        let annexed = self.wire.annexed().into_iter();
        annexed
            .map(|(client, number)| (client, annex_id(number)))
            .collect()
    }

    /// A new agent opens links.
    pub(super) fn open_links(&mut self, now: Instant) {
        let number = self.agent.number;
        self.annexes = AnnexSide::new(now, &self.config, number, &self.wire.annexed());
    }

    pub(super) fn is_frozen(&self, now: Instant) -> bool {
        now < self.frozen_until
    }

    /// Stops the whole machine until `until`.
    pub fn freeze(&mut self, until: Instant) {
        self.judge.borrow_mut().on_still(self.config.number, until);
        let until = self.clock.read(until);
        self.frozen_until = self.frozen_until.max(until);
    }

    /// Stops the agent's thread until `until`. The wire goes on.
    pub fn pause(&mut self, until: Instant) {
        let until = self.clock.read(until);
        self.agent.paused_until = self.agent.paused_until.max(until);
        self.agent.due = self.agent.due.max(until);
    }

    /// Until `until`, all work of the agent takes `times` times as long.
    pub fn delay(&mut self, until: Instant, times: u32) {
        self.agent.late = (self.clock.read(until), times);
    }

    /// From now on the node's clock is faster by `drift` millionths.
    pub fn set_drift(&mut self, now: Instant, drift: i32) {
        self.clock.set_drift(now, drift);
    }

    /// Whether the agent exists and runs.
    pub(super) fn runs(&self, now: Instant) -> bool {
        !self.agent.is_dead && now >= self.agent.paused_until && !self.is_frozen(now)
    }

    /// Whether an agent exists, even if it is paused.
    pub(super) const fn has_agent(&self) -> bool {
        !self.agent.is_dead
    }

    /// A hypervisor pauses the machine until `until`. The machine's clock stands still. Its counter goes on if `counter_goes_on`.
    pub fn halt(&mut self, now: Instant, until: Instant, counter_goes_on: bool) {
        self.judge.borrow_mut().on_still(self.config.number, until);
        let answered: Vec<_> = self
            .verdicts
            .iter()
            .map(|answer| self.clock.when(answer.at))
            .collect();
        self.clock.stand_still(now, until, counter_goes_on);
        for (answer, at) in self.verdicts.iter_mut().zip(answered) {
            answer.at = self.clock.read(at); // the answer travels on meanwhile
        }
        let shown = self.clock.read(until);
        let is_noticed = counter_goes_on && self.agent.notices_pauses();
        self.turns_unaware = if is_noticed { TURNS_UNAWARE } else { 0 };
        self.outlasted = shown + self.config.core.lease;
        self.frozen_until = self.frozen_until.max(shown + Duration::from_nanos(1));
    }

    /// The server listens again.
    pub(super) fn listen_again(&mut self) {
        listen(&mut self.host, &self.config, self.vip, &self.exports);
    }

    /// Notes an action in the trace, unless it is too frequent to be of interest.
    pub(super) fn note(&mut self, action: &Action) {
        use ServiceAction::{FeedReplica, SetUntil, Transmit};
        if let Action::Service(_, action) = action
            && !matches!(action, SetUntil { .. } | FeedReplica { .. } | Transmit(_))
        {
            self.outputs.push_back(Output::Note(format!("{action:?}")));
        }
    }

    /// The TCP configuration of restored sockets.
    pub(super) const fn tcp(&self) -> &tcp::TcpConfig {
        &self.config.host.tcp
    }

    pub(super) fn is(&self, defect: Defect) -> bool {
        self.config.defect == Some(defect)
    }

    /// Sends a packet of the local stack or of a raw socket, if the guards let the packet pass.
    pub(super) fn speak(&mut self, now: Instant, packet: Vec<u8>, is_raw: bool) -> Option<Output> {
        let segment = Segment::parse(&packet, Checksum::Trusted).ok()?;
        // The guards let RSTs of a raw socket or a relay pass: these RSTs bear a mark, so they were sent on purpose.
        let is_marked = || is_raw || self.was_reset_by_relay(segment.destination);
        if segment.flags.rst && (!self.may_speak || self.is_server_dead) && !is_marked() {
            return None;
        }
        let (gate, epoch) = self.wire.gate();
        let port = match gate {
            Gate::Off | Gate::Mute => return None,
            Gate::Wire if is_raw && self.wire.is_update(&packet) => return Some(self.say_update(packet)),
            Gate::Wire if !self.wire.holds(segment.destination) => return None,
            _ if self.wire.is_silent(segment.destination) => {
                self.judge.borrow_mut().on_muttered(self.config.number, &packet);
                return None;
            }
            Gate::Wire if self.wire.is_via_peer(segment.destination) => {
                let packet = self.silence_death(packet)?;
                return Some(Output::Transmit { port: PEER, packet });
            }
            Gate::Primary | Gate::Sole if self.wire.is_elsewhere(segment.destination) => {
                self.judge.borrow_mut().on_muted(self.config.number, &packet);
                return None;
            }
            Gate::Primary if self.address == Address::Loopback && !self.is(Defect::BypassWire) => {
                let packet = self.silence_death(packet)?;
                self.judge.borrow_mut().on_offered(&packet);
                return self.send_as_primary(now, packet);
            }
            Gate::Primary if !self.is(Defect::BypassWire) => return None,
            Gate::Wire | Gate::Takeover | Gate::Sole if self.until.is_some_and(|until| now >= until) => {
                self.judge.borrow_mut().on_muttered(self.config.number, &packet);
                return None;
            }
            // The node is becoming a primary again, so its packets go through the peer, the wire.
            Gate::Takeover | Gate::Sole if self.address == Address::Loopback => {
                return Some(Output::Transmit { port: PEER, packet });
            }
            Gate::Wire | Gate::Primary | Gate::Takeover | Gate::Sole => CLIENTS,
        };
        let voice = PacketSpeaker {
            node: self.config.number,
            epoch,
            is_alone: matches!(gate, Gate::Takeover | Gate::Sole),
            is_lent: self.until.is_some(),
            is_outlasted: self.until.is_some_and(|until| until <= self.outlasted),
        };
        let mut judge = self.judge.borrow_mut();
        judge.on_place(SpeakingPlace::Pair, &packet);
        if voice.is_alone {
            judge.on_alone(self.config.number, &packet);
        }
        judge.on_spoken(voice, &packet, is_raw);
        drop(judge);
        Some(Output::Transmit { port, packet })
    }

    /// Repeats an acknowledgement of the primary, with the window as the cap allows it now.
    fn say_update(&mut self, packet: Vec<u8>) -> Output {
        let packet = self.wire.withhold(packet);
        let voice = self.voice_of_primary();
        self.judge
            .borrow_mut()
            .on_released(voice, Direction::Out, &packet);
        Output::Transmit {
            port: CLIENTS,
            packet,
        }
    }

    fn voice_of_primary(&self) -> PacketSpeaker {
        Self::voice_behind(1 - self.config.number, self.wire.gate().1)
    }

    /// The voice of a node whose words pass the other node's log.
    const fn voice_behind(node: usize, epoch: u64) -> PacketSpeaker {
        PacketSpeaker {
            node,
            epoch,
            is_alone: false,
            is_lent: false,
            is_outlasted: false,
        }
    }

    pub(super) fn on_packet(&mut self, now: Instant, side: WireSide, mut packet: Vec<u8>) {
        let is_returned = is_returned(&packet);
        mark_returned(&mut packet, false);
        let (host, deaf, vip) = (&self.host, &self.deaf, self.vip);
        let is_local = |client| host.find(vip, client).is_some() && !deaf.contains(&client);
        let fate = self.wire.on_packet(now, side, &packet, is_returned, is_local);
        if side == WireSide::Peer {
            self.agent.seen_here = Some(now);
        }
        let Ok(segment) = Segment::parse(&packet, Checksum::Trusted) else {
            return;
        };
        let (direction, out) = if segment.destination == self.vip {
            (Direction::In, PEER)
        } else {
            (Direction::Out, CLIENTS)
        };
        if let Fate::CarriedIn(_) | Fate::CarriedOut(_) = fate {
            return self.carry(now, fate, packet);
        }
        let mut judge = self.judge.borrow_mut();
        let number = self.config.number;
        judge.on_sockets_lost(number, &self.wire.take_spoken());
        let gate = self.wire.gate().0;
        match fate {
            Fate::Released | Fate::Unlogged => {
                drop(judge);
                return self.release(now, (fate, side), direction, packet, is_returned);
            }
            // If this node stood still for longer than its lease, the primary may have gone on with the connection meanwhile.
            Fate::Passed if self.until.is_some_and(|until| now >= until) => {}
            Fate::Passed => {
                let epoch = self.wire.gate().1;
                judge.on_place(SpeakingPlace::Pair, &packet);
                judge.on_released(Self::voice_behind(number, epoch), direction, &packet);
                self.outputs.push_back(Output::Transmit { port: out, packet });
            }
            Fate::Held => judge.on_logged(number, direction, &packet),
            Fate::Redirected => {
                if segment.flags.syn {
                    // If this node becomes the wire before the SYN reaches the peer, no log has the SYN.
                    judge.on_taken(direction, &packet);
                }
                self.outputs.push_back(Output::Transmit { port: PEER, packet });
            }
            Fate::Local if self.address != Address::Nowhere => {
                // A wire has logged what reaches a primary, or a reversed connection.
                if gate == Gate::Primary {
                    judge.on_passed(&packet);
                } else if !self.wire.is_via_peer(segment.source) {
                    judge.on_taken(direction, &packet);
                }
                if segment.flags.syn && !self.is_server_dead {
                    judge.on_socket(number, segment.source);
                }
                drop(judge);
                self.host.handle(now, Port(0), packet);
                return;
            }
            Fate::Local | Fate::Dropped | Fate::CarriedIn(_) | Fate::CarriedOut(_) => {}
        }
        drop(judge);
        if fate == Fate::Held {
            self.agent.wake(now + self.config.nap);
        }
    }

    /// Sends a packet on, which the wire has logged, or could not log for too long. A primary sends a reversed connection's packet back. A
    /// packet that `is_returned` keeps its mark.
    fn release(
        &mut self,
        now: Instant,
        (fate, side): (Fate, WireSide),
        direction: Direction,
        packet: Vec<u8>,
        is_returned: bool,
    ) {
        let mut judge = self.judge.borrow_mut();
        if fate == Fate::Released {
            judge.on_logged(self.config.number, direction, &packet);
        } else if !self.is(Defect::ReleaseUnlogged) && !self.is(Defect::ForgetSyn) {
            judge.on_taken(direction, &packet); // the log is no longer promised to be complete
            judge.on_log_lost(self.config.number);
            self.unlogged += 1;
        }
        if is_cut(&packet) {
            judge.on_copy(&packet); // the client gets the segment itself from the primary
            drop(judge);
            return self.agent.wake(now + self.config.nap);
        }
        let is_reversed = self.wire.gate().0 == Gate::Primary;
        let place = match side {
            WireSide::Annex(annex) => SpeakingPlace::Annex(annex),
            WireSide::Clients | WireSide::Peer => judge.place_of_peer(&packet),
        };
        let mut packet = match direction {
            Direction::In => packet,
            Direction::Out => self.wire.withhold(packet),
        };
        if !is_reversed && direction == Direction::Out {
            judge.on_place(place, &packet);
            if side != WireSide::Peer {
                judge.on_passed_for_annex(&packet);
            }
        }
        if !is_reversed || direction == Direction::In {
            judge.on_released(self.voice_of_primary(), direction, &packet);
        }
        drop(judge);
        mark_returned(&mut packet, is_reversed || is_returned);
        let port = match direction {
            Direction::Out if !is_reversed => CLIENTS,
            Direction::In if !is_reversed => self.port_of_server(&packet),
            Direction::In | Direction::Out => PEER,
        };
        self.outputs.push_back(Output::Transmit { port, packet });
        if fate == Fate::Released {
            self.agent.wake(now + self.config.nap);
        }
    }

    /// The port to the node that has a client's connection, on a wire.
    fn port_of_server(&self, packet: &[u8]) -> Port {
        let segment = Segment::parse(packet, Checksum::Trusted).ok();
        let annex = segment.and_then(|segment| self.wire.annex_of(segment.source));
        annex.map_or(PEER, |annex| Port(ANNEXES.0 + annex))
    }

    /// Passes a packet of a connection that lives on an annex, on a primary whose wire does not pass it (docs/annex.md).
    fn carry(&mut self, now: Instant, fate: Fate, packet: Vec<u8>) {
        let (gate, epoch) = self.wire.gate();
        let has_wire = gate == Gate::Primary;
        let mut judge = self.judge.borrow_mut();
        let annex = match fate {
            Fate::CarriedIn(annex) | Fate::CarriedOut(annex) => annex,
            _ => return,
        };
        let port = match fate {
            Fate::CarriedIn(_) => {
                judge.on_taken(Direction::In, &packet);
                Port(ANNEXES.0 + annex)
            }
            _ if has_wire => {
                judge.on_behind_wire(annex, &packet);
                PEER
            }
            _ if self.until.is_some_and(|until| now >= until) => return,
            _ => {
                let voice = PacketSpeaker {
                    node: self.config.number,
                    epoch,
                    is_alone: true,
                    is_lent: self.until.is_some(),
                    is_outlasted: self.until.is_some_and(|until| until <= self.outlasted),
                };
                judge.on_carried(annex, voice, &packet);
                CLIENTS
            }
        };
        drop(judge);
        self.outputs.push_back(Output::Transmit { port, packet });
    }

    pub(super) fn send(&mut self, port: Port, word: &[u8]) {
        let packet = word.to_vec();
        self.outputs.push_back(Output::Transmit { port, packet });
    }

    /// Handles a message of the peer's agent that came through the service's network.
    pub(super) fn on_agents_here(&mut self, now: Instant, packet: &[u8]) {
        if packet != PROBE && packet != ALIVE {
            self.agent.seen_here = Some(now);
        }
        self.on_agents(now, PEER, packet);
    }

    /// Handles a message of the peer's agent or a probe of its kernel, which came in through `port`.
    pub(super) fn on_agents(&mut self, now: Instant, port: Port, packet: &[u8]) {
        match packet {
            PROBE => self.send(port, ALIVE),
            ALIVE => {
                self.agent.is_answered = true;
                self.agent.wake(now);
            }
            _ => {
                if let Ok(message) = serde_json::from_slice::<HookMessage>(packet) {
                    self.on_hook_message(now, message);
                    return;
                }
                let said: Option<AgentDatagram> = serde_json::from_slice(packet).ok();
                let is_first = |said: &AgentDatagram| self.agent.number_heard(said.incarnation, said.number);
                let word = said.filter(is_first).map(|said| said.word);
                self.agent.words.extend(word);
                self.agent.wake(now);
            }
        }
    }
}

/// A stack on which the application listens.
fn started(config: &StationConfig, vip: SocketAddr, seed: u64, exports: &SimExports) -> Host {
    let mut host = Host::new(config.host.clone(), seed);
    listen(&mut host, config, vip, exports);
    host
}

fn listen(host: &mut Host, config: &StationConfig, vip: SocketAddr, exports: &SimExports) {
    let (program, pace) = (Rc::clone(&config.program), config.pace);
    let exports = config.exports().then(|| exports.clone());
    host.listen(vip.port(), move |client| {
        let exports = exports.clone().map(|exports| (exports, client));
        Box::new(Served::new(program(client), pace, exports))
    });
}
