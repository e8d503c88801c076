//! The agent of a station: a single thread with a clock of its own, whose work takes time.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use proto::Instant;
use proto::action::{Action, Gate, Heartbeat, ServiceAction};
use proto::census::{CensusPage, PageQuery};
use proto::learn::ClientTerms;
use proto::packet::Checksum;
use proto::pause::{ClockReading, PauseWatch};
use proto::role::Role;
use proto::service::{InheritedService, ServiceInput};
use proto::standing::ArbiterVerdict;
use proto::stream::{OnShelf, Shelf};
use serde::{Deserialize, Serialize};

use super::defect::Defect;
use super::relay::SimRelay;
use super::station::{Station, core_of};
use super::wire::{LogEnd, LoggedPacket};

/// Time that each kind of work takes the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// To make a socket.
    pub restore: Duration,
    /// To begin to read the log.
    pub drain: Duration,
    /// To read one record of the log.
    pub record: Duration,
    /// To let a socket speak.
    pub activate: Duration,
    /// To give a socket to the relay.
    pub hand_over: Duration,
    /// To change addresses, routes and rules.
    pub assume: Duration,
    /// Any other action.
    pub other: Duration,
}

impl Costs {
    /// Costs measured on Linux (docs/KERNEL.md: 24 µs for a full restore), times `factor`. Only `assume` is an estimate, for some dozen
    /// netlink messages, and is not multiplied.
    pub fn measured(factor: u32) -> Self {
        let micros = |count: u64| Duration::from_micros(count) * factor;
        Self {
            restore: micros(24),
            drain: micros(2),
            record: Duration::from_nanos(300) * factor,
            activate: micros(6),
            hand_over: micros(5),
            assume: Duration::from_micros(500),
            other: micros(1),
        }
    }

    fn of(&self, action: &Action, unread: u64) -> Duration {
        let Action::Service(_, action) = action else {
            return self.other;
        };
        match action {
            ServiceAction::Drain => self.drain + self.record * u32::try_from(unread).unwrap_or(u32::MAX),
            ServiceAction::Restore { .. } => self.restore,
            ServiceAction::Activate { .. } => self.activate,
            ServiceAction::HandOver { .. } => self.hand_over,
            ServiceAction::Assume { .. } => self.assume,
            _ => self.other,
        }
    }
}

/// A message from one agent to the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum AgentMessage {
    Heartbeat(Heartbeat),
    Ask(Vec<SocketAddr>),
    Told(Vec<ClientTerms>),
    AskAll(PageQuery),
    Page(CensusPage),
}

/// A message in transit. The network may deliver it more than once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct AgentDatagram {
    /// Number of the sending agent, among the agents of its node.
    pub incarnation: u64,
    /// Number of the message, counting up.
    pub number: u64,
    pub word: AgentMessage,
}

/// Number of messages that are remembered, to recognise copies.
const HEARD_MAX: u64 = 128;

/// Number of records that are read from the log at once.
const BATCH: usize = 64;

/// The packets of these records. A place is a packet's index in the upper half and an offset in the packet in the lower half.
struct RecordBatch<'a>(Vec<&'a [u8]>);

impl Shelf for RecordBatch<'_> {
    fn bytes(&self, place: u64, len: usize) -> &[u8] {
        let index = |part: u64| usize::try_from(part).expect("few packets, short ones");
        &self.0[index(place >> 32)][index(place & 0xffff_ffff)..][..len]
    }
}

/// State of the agent's thread.
pub(super) struct AgentThread {
    /// When the agent continues.
    pub due: Instant,
    /// The action that is under way until `due`, and how far the log reached when the action began.
    doing: Option<(Action, LogEnd)>,
    /// The agent has looked at all its inputs since it last rested.
    has_looked: bool,
    /// The agent sleeps until something happens.
    is_asleep: bool,
    /// The agent does not run before this time.
    paused_until: Instant,
    /// The agent was killed; a new agent starts at `due`.
    is_dead: bool,
    /// Until this time, everything takes this many times as long.
    late: (Instant, u32),
    /// Number of the agent, among the agents of its node.
    pub number: u64,
    pub words: VecDeque<AgentMessage>,
    pauses: PauseWatch,
    /// The peer's kernel has answered the probe.
    pub is_answered: bool,
    /// Number of messages that the agent has sent.
    pub said: u64,
    /// The peer's agent that was heard last, and the numbers of its last messages.
    heard: (u64, BTreeSet<u64>),
    /// When the last packet of the peer came through the service's network. `None`: none since the agent last looked.
    pub seen_here: Option<Instant>,
    /// An outside host has answered; this is when it was asked. `None`: no answer since the agent last looked.
    pub reached_outside: Option<Instant>,
}

impl AgentThread {
    /// An agent that starts now.
    pub fn new(now: Instant, number: u64) -> Self {
        Self {
            due: now,
            doing: None,
            has_looked: false,
            is_asleep: false,
            paused_until: now,
            is_dead: false,
            late: (now, 1),
            number,
            words: VecDeque::new(),
            pauses: PauseWatch::default(),
            is_answered: false,
            said: 0,
            heard: (0, BTreeSet::new()),
            seen_here: None,
            reached_outside: None,
        }
    }

    /// Remembers a message of the peer by its number. False if the message is a copy.
    pub fn number_heard(&mut self, incarnation: u64, number: u64) -> bool {
        if self.heard.0 != incarnation {
            self.heard = (incarnation, BTreeSet::new());
        }
        let numbers = &mut self.heard.1;
        let is_first = numbers.insert(number);
        let newest = numbers.last().copied().unwrap_or(number);
        numbers.retain(|number| number + HEARD_MAX > newest);
        is_first
    }

    /// Something has happened that a sleeping agent waits for.
    pub fn wake(&mut self, at: Instant) {
        if self.is_asleep {
            self.due = self.due.min(at).max(self.paused_until);
        }
    }

    /// Whether the agent would find out that its clock stood still while the counter went on.
    pub const fn notices_pauses(&self) -> bool {
        self.pauses.knows_rate()
    }

    fn slowed(&self, now: Instant, cost: Duration) -> Duration {
        match self.late {
            (until, times) if now < until => cost * times,
            _ => cost,
        }
    }
}

impl Station {
    /// Stops the agent's thread until `until`. The wire goes on.
    pub fn pause(&mut self, until: Instant) {
        let until = self.clock.read(until);
        self.agent.paused_until = self.agent.paused_until.max(until);
        self.agent.due = self.agent.due.max(until);
    }

    /// Until `until`, everything takes the agent `times` as long.
    pub fn delay(&mut self, until: Instant, times: u32) {
        self.agent.late = (self.clock.read(until), times);
    }

    /// From now on the node's clock is faster by `drift` millionths.
    pub fn set_drift(&mut self, now: Instant, drift: i32) {
        self.clock.set_drift(now, drift);
    }

    /// Kills the agent. A new one starts at `restart`. The state of the kernel and of the keeper stays.
    pub fn kill_agent(&mut self, now: Instant, restart: Instant) {
        self.drop_unfinished();
        self.verdicts.clear();
        self.judge.borrow_mut().on_log_lost(self.config.number);
        self.start_agent(self.clock.read(now));
        self.agent.is_dead = true;
        self.pause(restart);
    }

    /// Whether the agent exists and runs.
    pub(super) fn runs(&self, now: Instant) -> bool {
        !self.agent.is_dead && now >= self.agent.paused_until && !self.is_frozen(now)
    }

    /// Whether an agent exists that could be told something.
    pub(super) const fn has_agent(&self) -> bool {
        !self.agent.is_dead
    }

    /// Starts a new agent, which finds what the kernel has kept.
    fn start_agent(&mut self, now: Instant) {
        let mut config = self.config.core.clone();
        let number = self.agent.number + 1;
        config.incarnation = number;
        let (gate, epoch) = self.wire.gate();
        config.services[0].found = Some(InheritedService {
            gate,
            epoch,
            is_consented: self.is_consented,
            is_confirmed: self.until.is_none(),
            doubted: self
                .doubted
                .filter(|doubt| doubt.1 == epoch)
                .map(|(is_primary, _)| is_primary),
            seen: if self.is(Defect::TrustGate) {
                now
            } else {
                self.wire.agent_seen()
            },
            taken: self.wire.held(),
            orphans: self.remembered_orphans(),
        });
        self.wire.forget_caps();
        self.wire.settle_for_the_dead();
        self.agent = AgentThread::new(now, number);
        self.turns_unaware = 0;
        self.core = core_of(&self.config, config, now);
        if self.is(Defect::TrustLease) && gate == Gate::Wire {
            self.forge_echo(now);
        }
    }

    /// The relay tells a new agent of clients that have said nothing yet.
    fn hear_of_unheard(&mut self, now: Instant) {
        let host = &self.host;
        let is_silent = |relay: &SimRelay| relay.is_silent();
        self.unheard
            .retain(|(socket, _)| host.app(*socket).is_some_and(is_silent));
        for (_, syn_ack) in &self.unheard {
            let syn_ack = syn_ack.clone();
            self.core.handle(now, 0, ServiceInput::Unheard { syn_ack });
        }
    }

    /// Continues the agent's work: finishes one action and begins the next.
    pub(super) fn step(&mut self, now: Instant) {
        if self.agent.is_dead {
            self.start_agent(now);
            self.assume(self.wire.gate().0); // the previous agent may have died in the middle of this change
            self.hear_of_deaths(now);
            self.hear_of_unheard(now);
        }
        self.agent.is_asleep = false;
        if let Some((action, end)) = self.agent.doing.take() {
            let action = self.core.admit(now, action);
            if let Some(action) = action {
                self.carry_out(now, action, end);
            }
        }
        if let Some(action) = self.core.poll_action() {
            let end = self.wire.end();
            let cost = self.config.costs.of(&action, self.wire.unread(end));
            self.agent.due = now + self.agent.slowed(now, cost);
            self.agent.doing = Some((action, end));
        } else if !std::mem::replace(&mut self.agent.has_looked, true) {
            let end = self.wire.end();
            let records = u32::try_from(self.wire.unread(end)).unwrap_or(u32::MAX);
            self.look(now, end);
            let cost = self.config.costs.other + self.config.costs.record * records;
            self.agent.due = now + self.agent.slowed(now, cost);
        } else {
            self.agent.has_looked = false;
            self.rest(now);
        }
    }

    /// Looks once at all inputs.
    fn look(&mut self, now: Instant, end: LogEnd) {
        let (counter, clock) = (self.clock.counter(now), now);
        let (before, after) = (counter, counter);
        if self.turns_unaware > 0 {
            self.turns_unaware -= 1;
            if self.turns_unaware == 0 {
                self.outlasted = Instant::ZERO; // the agent has had the time to notice
            }
        }
        let was_paused = self
            .agent
            .pauses
            .look(ClockReading { before, clock, after })
            .is_some();
        if was_paused && !self.is(Defect::IgnorePause) {
            self.core.handle_pause(now);
        }
        if self.core.wants_link(now) {
            self.core.handle_carrier(now, 0, self.has_carrier);
        }
        let seen = self.agent.seen_here.take();
        if let Some(seen) = seen.or_else(|| self.is(Defect::IgnoreMeet).then_some(now)) {
            self.core.handle(now, 0, ServiceInput::Sign { at: seen });
        }
        let mut asked = self.agent.reached_outside.take();
        if self.is(Defect::TrustOutside) && self.config.outside {
            asked = Some(now);
        }
        if let Some(asked) = asked {
            self.core.handle(now, 0, ServiceInput::Outside { asked });
        }
        if self.wire.check_in(self.core.ran()) > 0 {
            self.tell_gap(now);
        }
        self.read_log(end);
        while let Some(word) = self.agent.words.pop_front() {
            self.hear(now, word);
        }
        if std::mem::take(&mut self.agent.is_answered) {
            self.core.handle_answer(now);
        }
        if std::mem::take(&mut self.is_reached) {
            self.core.handle(now, 0, ServiceInput::Reached);
        }
        while self.verdicts.front().is_some_and(|answer| answer.at <= now) {
            let Some(answer) = self.verdicts.pop_front() else {
                break;
            };
            let verdict = if self.is(Defect::IgnoreVerdict) {
                ArbiterVerdict::Granted
            } else {
                answer.verdict
            };
            let epoch = answer.epoch;
            self.core.handle(now, 0, ServiceInput::Verdict { epoch, verdict });
        }
        if now >= self.core.poll_timeout() {
            self.core.handle_timeout(now);
        }
        self.feed_slow_replicas(now);
        self.serve_replicas(now);
    }

    /// Handles a message of the peer's agent. The log has been read before.
    fn hear(&mut self, now: Instant, word: AgentMessage) {
        match word {
            AgentMessage::Heartbeat(heartbeat) => self.hear_heartbeat(now, heartbeat),
            AgentMessage::Ask(clients) => self.look_up(now, clients),
            AgentMessage::AskAll(query) => self.list(now, query),
            AgentMessage::Told(told) => self.core.handle(now, 0, ServiceInput::Told(told)),
            AgentMessage::Page(page) => self.core.handle(now, 0, ServiceInput::Page(page)),
        }
    }

    fn hear_heartbeat(&mut self, now: Instant, heartbeat: Heartbeat) {
        let last = self.is(Defect::WithoutConsent).then(|| heartbeat.clone());
        let heartbeat = self.distort_heartbeat(now, heartbeat);
        self.core.handle_heartbeat(now, heartbeat);
        if let Some(last) = last.filter(|_| self.core.service(0).role() == Role::Returning) {
            let heartbeat = self.distort_heartbeat(now, last);
            self.core.handle_heartbeat(now, heartbeat);
        }
    }

    /// Naps while there is traffic, sleeps while there is none.
    fn rest(&mut self, now: Instant) {
        const LEAST: Duration = Duration::from_micros(1);
        let replicas = self.replicas.values().flat_map(|replica| {
            replica
                .application
                .wakes_at()
                .into_iter()
                .chain([replica.reads_at])
        });
        let timeout = self.core.poll_timeout();
        let answers = self.verdicts.front().map(|answer| answer.at);
        let due = replicas
            .filter(|at| *at > now)
            .chain(answers)
            .fold(timeout, Instant::min);
        self.agent.is_asleep = self.wire.is_empty();
        let due = if self.agent.is_asleep {
            due
        } else {
            due.min(now + self.config.nap)
        };
        self.agent.due = due.max(now + LEAST).max(self.agent.paused_until);
    }

    /// Tells the core that packets passed unlogged. Connections whose packets were logged before count as older.
    pub(super) fn tell_gap(&mut self, now: Instant) {
        self.read_log(self.wire.end());
        self.core.handle(now, 0, ServiceInput::LogGap);
    }

    /// Tells the core of a record.
    pub(super) fn tell(&mut self, record: &LoggedPacket, source: Option<OnShelf<'_>>) {
        let LoggedPacket {
            at,
            direction,
            packet,
        } = record;
        let checksum = Checksum::Trusted;
        self.core
            .handle_packet(*at, 0, *direction, packet, checksum, source);
    }

    /// Hands the log to the core, up to `end`, batch by batch, as the daemon's agent does.
    pub(super) fn read_log(&mut self, end: LogEnd) {
        loop {
            let records: Vec<LoggedPacket> = std::iter::from_fn(|| self.wire.read(end)).take(BATCH).collect();
            if records.is_empty() {
                return;
            }
            let batch = RecordBatch(records.iter().map(|record| &record.packet[..]).collect());
            for (index, record) in (0..).zip(&records) {
                let source = OnShelf {
                    shelf: &batch,
                    place: index << 32,
                };
                self.tell(record, Some(source));
                if self.is(Defect::TrustSyn) {
                    self.repeat_handshake(record);
                }
            }
            self.core.keep(&batch);
        }
    }
}
