//! The backup: the wire, a local stack, and the agent, a single thread that takes time for what it does.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use proto::Instant;
use proto::action::{Action, Heartbeat};
use proto::connection::Endpoint;
use proto::node::{Node as Core, NodeConfig};
use proto::packet::{Checksum, Segment};
use proto::stream::{OnShelf, Shelf};
use proto::table::{ConnectionId, Direction};

use super::application::{Application, Program};
use super::judge::Judge;
use super::wire::{End, Fate, Record, Side, Wire};
use crate::host::{EndpointId, Host, HostConfig};
use crate::tcp::Config;
use crate::world::{Node, Output, Port};

/// To the clients.
pub(super) const CLIENTS: Port = Port(0);
/// To the primary's stack.
pub(super) const LAN: Port = Port(1);
/// To the primary's agent.
pub(super) const HEARTBEATS: Port = Port(2);

/// What a backup is like.
#[derive(Clone)]
pub struct BackupConfig {
    /// Of its core.
    pub core: NodeConfig,
    /// Of its local stack; restored sockets get its buffers.
    pub host: HostConfig,
    /// Bytes that the log of connections holds.
    pub ring_bytes: usize,
    /// Bytes that the log of SYNs holds.
    pub opening_bytes: usize,
    /// How long the agent rests before it reads what was logged.
    pub nap: Duration,
    /// What the agent's work costs.
    pub costs: Costs,
    /// The application.
    pub program: Program,
    /// What is broken, in tests of the judge.
    pub defect: Option<Defect>,
}

/// How long the agent is busy with each thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Making a socket.
    pub restore: Duration,
    /// Reading the log: once, and for each record.
    pub drain: Duration,
    /// See [`drain`](Self::drain).
    pub record: Duration,
    /// Letting a socket speak.
    pub activate: Duration,
    /// Giving a socket to the relay.
    pub hand_over: Duration,
    /// Anything else.
    pub other: Duration,
}

impl Costs {
    /// What was measured on Linux (KERNEL: 24 µs for a full restore), times `factor`.
    pub fn measured(factor: u32) -> Self {
        let micros = |count: u64| Duration::from_micros(count) * factor;
        Self {
            restore: micros(24),
            drain: micros(2),
            record: Duration::from_nanos(300) * factor,
            activate: micros(6),
            hand_over: micros(5),
            other: micros(1),
        }
    }

    fn of(&self, action: &Action, unread: u64) -> Duration {
        match action {
            Action::Drain { .. } => self.drain + self.record * u32::try_from(unread).unwrap_or(u32::MAX),
            Action::Restore { .. } => self.restore,
            Action::Activate { .. } => self.activate,
            Action::HandOver { .. } => self.hand_over,
            _ => self.other,
        }
    }
}

/// A way in which a broken agent would carry out what its core wants. The [`Judge`] or a client must notice each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// The log is not read again once a socket is ready.
    SkipSecondDrain,
    /// What came since the socket was made is not fed to it.
    ForgetLateInput,
    /// SND.UNA is one too large.
    SendUnacknowledgedAhead,
    /// SND.UNA is one too small.
    SendUnacknowledgedBehind,
    /// The last bytes that were sent are forgotten.
    ForgetSentTail,
    /// The gate is closed only when everything is decided.
    GateLast,
    /// A socket is made ready only after it was activated.
    ReadyLast,
    /// The timestamp clock is set back.
    TimestampBehind,
    /// The window starts at the socket's own size.
    ForgetWindow,
}

impl Defect {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::SkipSecondDrain,
        Self::ForgetLateInput,
        Self::SendUnacknowledgedAhead,
        Self::SendUnacknowledgedBehind,
        Self::ForgetSentTail,
        Self::GateLast,
        Self::ReadyLast,
        Self::TimestampBehind,
        Self::ForgetWindow,
    ];
}

/// Records that are read before their log is cleared of them.
const BATCH: usize = 64;

/// Their packets; a place is the number of one and an offset in it.
struct Batch<'a>(Vec<&'a [u8]>);

impl Shelf for Batch<'_> {
    fn bytes(&self, place: u64, len: usize) -> &[u8] {
        let index = |part: u64| usize::try_from(part).expect("few packets, short ones");
        &self.0[index(place >> 32)][index(place & 0xffff_ffff)..][..len]
    }
}

/// The node that is the wire.
pub struct Backup {
    pub(super) config: BackupConfig,
    pub(super) core: Core,
    pub(super) wire: Wire,
    pub(super) host: Host,
    pub(super) vip: SocketAddr,
    pub(super) judge: Rc<RefCell<Judge>>,
    pub(super) outputs: VecDeque<Output>,
    /// Lets RSTs out.
    pub(super) may_reset: bool,
    /// Sockets that are not ready for packets.
    pub(super) deaf: BTreeSet<SocketAddr>,
    pub(super) restoring: BTreeMap<ConnectionId, Restoring>,
    pub(super) live: BTreeMap<ConnectionId, Restoring>,
    pub(super) replicas: BTreeMap<ConnectionId, Replica>,
    pub(super) relayed: Vec<EndpointId>,
    pub(super) lost: Vec<(SocketAddr, String)>,
    heartbeats: VecDeque<Heartbeat>,
    agent: Agent,
}

/// A connection whose socket is not yet the relay's.
pub(super) struct Restoring {
    pub endpoint: Endpoint,
    pub socket: EndpointId,
}

/// A replica of the application.
pub(super) struct Replica {
    pub application: Box<dyn Application>,
    pub ended: bool,
}

/// What the agent's thread is at.
struct Agent {
    /// When it goes on.
    due: Instant,
    /// What it is doing until then, and how far the log reached when it began.
    doing: Option<(Action, End)>,
    /// It has looked at everything since it last rested.
    has_looked: bool,
    /// It waits for something to happen.
    is_asleep: bool,
    /// It does not run before.
    paused_until: Instant,
}

impl Backup {
    /// A backup whose `judge` is told what it does.
    pub fn new(now: Instant, config: BackupConfig, seed: u64, judge: Rc<RefCell<Judge>>) -> Self {
        let core = Core::new(config.core.clone(), now);
        let vip = core.vip(0);
        let mut host = Host::new(config.host.clone(), seed);
        let program = Rc::clone(&config.program);
        host.listen(vip.port(), move |client| {
            Box::new(super::application::Served::new(program(client), None))
        });
        Self {
            wire: Wire::new(vip, config.ring_bytes, config.opening_bytes),
            config,
            core,
            host,
            vip,
            judge,
            outputs: VecDeque::new(),
            may_reset: false,
            deaf: BTreeSet::new(),
            restoring: BTreeMap::new(),
            live: BTreeMap::new(),
            replicas: BTreeMap::new(),
            relayed: Vec::new(),
            lost: Vec::new(),
            heartbeats: VecDeque::new(),
            agent: Agent {
                due: now,
                doing: None,
                has_looked: false,
                is_asleep: false,
                paused_until: now,
            },
        }
    }

    /// The core, to be asked how it is.
    pub const fn core(&self) -> &Core {
        &self.core
    }

    /// The local stack, to be asked how it is.
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// Connections that could not be continued, and why.
    pub fn lost(&self) -> &[(SocketAddr, String)] {
        &self.lost
    }

    /// Packets that were dropped because the log was full.
    pub const fn ring_full(&self) -> u64 {
        self.wire.full()
    }

    /// The agent's thread does not run until then; the wire does.
    pub fn pause(&mut self, until: Instant) {
        self.agent.paused_until = self.agent.paused_until.max(until);
        self.agent.due = self.agent.due.max(until);
    }

    /// The endpoints' configuration for a restored socket.
    pub(super) const fn tcp(&self) -> &Config {
        &self.config.host.tcp
    }

    /// Something has happened that the agent waits for.
    fn wake(&mut self, at: Instant) {
        if self.agent.is_asleep {
            self.agent.due = self.agent.due.min(at).max(self.agent.paused_until);
        }
    }

    /// Goes on with the agent's work: finishes one thing, begins another.
    fn step(&mut self, now: Instant) {
        self.agent.is_asleep = false;
        if let Some((action, end)) = self.agent.doing.take() {
            self.carry_out(now, action, end);
        }
        if let Some(action) = self.core.poll_action() {
            let end = self.wire.end();
            self.agent.due = now + self.config.costs.of(&action, self.wire.unread(end));
            self.agent.doing = Some((action, end));
        } else if !std::mem::replace(&mut self.agent.has_looked, true) {
            let end = self.wire.end();
            let records = u32::try_from(self.wire.unread(end)).unwrap_or(u32::MAX);
            self.look(now, end);
            self.agent.due = now + self.config.costs.other + self.config.costs.record * records;
        } else {
            self.agent.has_looked = false;
            self.rest(now);
        }
    }

    /// One look at everything.
    fn look(&mut self, now: Instant, end: End) {
        self.read_log(end);
        while let Some(heartbeat) = self.heartbeats.pop_front() {
            self.core.handle_heartbeat(now, heartbeat);
        }
        if now >= self.core.poll_timeout() {
            self.core.handle_timeout(now);
        }
        self.serve_replicas(now);
    }

    /// A nap while there is traffic, sleep while there is none.
    fn rest(&mut self, now: Instant) {
        const LEAST: Duration = Duration::from_micros(1);
        let replicas = self
            .replicas
            .values()
            .filter_map(|replica| replica.application.wakes_at());
        let due = replicas
            .filter(|at| *at > now)
            .chain([self.core.poll_timeout()])
            .min()
            .unwrap_or(now);
        self.agent.is_asleep = self.wire.is_empty();
        let due = if self.agent.is_asleep {
            due
        } else {
            due.min(now + self.config.nap)
        };
        self.agent.due = due.max(now + LEAST).max(self.agent.paused_until);
    }

    /// Hands the log to the core, up to `end`, batch by batch, as the agent does.
    pub(super) fn read_log(&mut self, end: End) {
        loop {
            let records: Vec<Record> = std::iter::from_fn(|| self.wire.read(end)).take(BATCH).collect();
            if records.is_empty() {
                return;
            }
            let batch = Batch(records.iter().map(|record| &record.packet[..]).collect());
            for (index, record) in (0..).zip(&records) {
                let source = OnShelf {
                    shelf: &batch,
                    place: index << 32,
                };
                self.core.handle_packet(
                    record.at,
                    0,
                    record.direction,
                    &record.packet,
                    Checksum::Trusted,
                    Some(source),
                );
            }
            self.core.keep(&batch);
        }
    }

    /// Sends what the local stack or a raw socket says, if the guards let it.
    pub(super) fn speak(&mut self, now: Instant, packet: Vec<u8>, is_raw: bool) -> Option<Output> {
        let is_reset = Segment::parse(&packet, Checksum::Trusted).is_ok_and(|segment| segment.flags.rst);
        // A raw socket's packets bear the agent's mark: it knows what it says.
        if !self.wire.lets_out(&packet) || is_reset && !self.may_reset && !is_raw {
            return None;
        }
        self.judge.borrow_mut().on_spoken(now, &packet, is_raw);
        Some(Output::Transmit {
            port: CLIENTS,
            packet,
        })
    }

    fn on_packet(&mut self, now: Instant, side: Side, packet: Vec<u8>) {
        let (host, deaf, vip) = (&self.host, &self.deaf, self.vip);
        let is_local = |client| host.find(vip, client).is_some() && !deaf.contains(&client);
        let fate = self.wire.on_packet(now, side, &packet, is_local);
        let (direction, out) = match side {
            Side::Clients => (Direction::In, LAN),
            Side::Peer => (Direction::Out, CLIENTS),
        };
        let mut judge = self.judge.borrow_mut();
        if fate != Fate::Dropped {
            judge.on_logged(now, direction, &packet);
        }
        match fate {
            Fate::Released => {
                judge.on_released(now, direction, &packet);
                self.outputs.push_back(Output::Transmit { port: out, packet });
            }
            Fate::Local => self.host.handle(now, Port(0), packet),
            Fate::Held | Fate::Dropped => {}
        }
        drop(judge);
        if matches!(fate, Fate::Released | Fate::Held) {
            self.wake(now + self.config.nap);
        }
    }
}

impl Node for Backup {
    fn handle(&mut self, now: Instant, port: Port, packet: Vec<u8>) {
        match port {
            CLIENTS => self.on_packet(now, Side::Clients, packet),
            LAN => self.on_packet(now, Side::Peer, packet),
            _ => {
                self.heartbeats
                    .extend(serde_json::from_slice::<Heartbeat>(&packet).ok());
                self.wake(now);
            }
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.host.handle_timeout(now);
        while self.agent.due <= now {
            self.step(now);
        }
    }

    fn poll_output(&mut self, now: Instant) -> Option<Output> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        while let Some(output) = self.host.poll_output(now) {
            match output {
                Output::Transmit { packet, .. } => {
                    if let Some(output) = self.speak(now, packet, false) {
                        return Some(output);
                    }
                }
                note @ Output::Note(_) => return Some(note),
            }
        }
        self.remove_vanishing();
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.host.poll_timeout().into_iter().chain([self.agent.due]).min()
    }
}
