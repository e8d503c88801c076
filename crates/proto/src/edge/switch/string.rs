//! One string of an edge: its state, its evidence, its cache and its queue.

use std::time::Duration;

use super::beat::StringBeat;
use super::flow::TrafficSample;
use super::kept::{AdoptedString, KeptString, StringSteering};
use super::queue::PacketQueue;
use crate::Instant;
use crate::edge::cache::CacheCounts;
use crate::edge::phase::{PhaseEvent, StringPhase};
use crate::edge::{CopiedPackets, InvalidRecovery, LocalRecovery, RecoveryConfig, StringState};
use crate::path::damping::Damping;
use crate::rate::RateControl;

/// A string as configured.
#[derive(Clone, Debug, PartialEq)]
pub struct EdgeStringConfig {
    /// Its name, the same at both edges.
    pub name: String,
    /// Its share of new flows, relative to the weights of the other strings. 0: standby.
    pub weight: f64,
    /// Its rate in bytes per second, in each direction.
    pub bytes_per_s: f64,
}

/// State of the command that makes the other nodes ready for a failed string's flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandState {
    /// To be started.
    Wanted,
    /// Started.
    Running,
    /// Started for an earlier failure, and not ended yet. To be started again.
    Outdated,
    /// Not needed, or it has succeeded.
    Done,
}

/// A string at one edge.
#[derive(Debug)]
pub(super) struct EdgeString {
    pub config: EdgeStringConfig,
    pub phase: StringPhase,
    pub recovery: LocalRecovery,
    /// Number of the string's failures that the edges have counted.
    pub epoch: u64,
    /// Whether the cable at the string's port carries a signal.
    pub has_carrier: bool,
    /// Time of the last heartbeat.
    pub last_heard: Option<Instant>,
    /// Number of heartbeats that came.
    pub beats_heard: u64,
    /// Number of heartbeats that did not come in time, counted up to the last heartbeat that came.
    pub beats_missed: u64,
    /// Time of the last sign of life: a heartbeat, or packets that left the string.
    pub last_sign: Option<Instant>,
    /// When the string was first heard after the last pause that was long enough for a suspicion.
    pub heard_since: Option<Instant>,
    /// The other edge's last report on this string, and when the heartbeat with this report came.
    pub peer: Option<(Instant, StringBeat)>,
    pub damping: Damping,
    /// Whether both edges have ever heard the string, also before this agent started. If not, the string has no flows to save.
    pub was_up: bool,
    /// The values that were last stored for a later agent.
    pub kept: KeptString,
    /// When an entering packet was first acknowledged since the string became Blind: no heartbeat arrives, but nobody has declared a
    /// failure. The acknowledgement proves that packets pass in both directions.
    pub passes_since: Option<Instant>,
    /// When the string fell silent, or when the other edge declared the failure. Before the first heartbeat: when the agent started.
    pub silent_at: Option<Instant>,
    pub failed_at: Option<Instant>,
    pub completed_at: Option<Instant>,
    /// When to move the idle flows that the first move has left.
    pub sweep_at: Option<Instant>,
    pub command: CommandState,
    pub rate: Option<RateControl>,
    /// The rate control has not had its first measurement yet.
    pub rate_is_new: bool,
    pub traffic: TrafficSample,
    /// Number of active flows when the string's last failure was declared.
    pub flows_at_failure: u64,
    /// The packets that the data path copies now. `None`: this setting must be sent to the data path again.
    pub copies: Option<CopiedPackets>,
    pub cap: Option<u32>,
    /// Packets that wait to be sent into the string. The next one may be sent at `free`.
    pub entering: PacketQueue,
    free: Instant,
    pub resent_entering: u64,
    pub resent_leaving: u64,
    pub left_to_senders: u64,
}

/// The state of a string, for people and scripts.
#[derive(Clone, Debug, PartialEq)]
pub struct StringView {
    /// Its name.
    pub name: String,
    /// Its state.
    pub phase: StringPhase,
    /// Number of the string's failures that the edges have counted.
    pub epoch: u64,
    /// Whether heartbeats arrive.
    pub is_heard: bool,
    /// When the last heartbeat came. `None` before the first.
    pub last_heard: Option<Instant>,
    /// Number of heartbeats that came.
    pub beats_heard: u64,
    /// Number of heartbeats, from the first one on, that did not come in time. Each silence adds its number of whole intervals, minus one.
    pub beats_missed: u64,
    /// When its last failure was declared here.
    pub failed_at: Option<Instant>,
    /// When the flows were moved after this failure. `None` while they wait.
    pub completed_at: Option<Instant>,
    /// The cap on the windows of its flows in bytes. Only set while another string is missing.
    pub cap: Option<u32>,
    /// The last measurement.
    pub traffic: TrafficSample,
    /// Number of packets in its cache now.
    pub cached_packets: usize,
    /// Bytes of these packets.
    pub cached_bytes: usize,
    /// Maximum of `cached_bytes` so far.
    pub cached_bytes_max: usize,
    /// Bytes that are allocated for its cache now: packets and the cache's bookkeeping.
    pub cache_memory: usize,
    /// Maximum of `cache_memory` so far.
    pub cache_memory_max: usize,
    /// Number of packets that found no room in the cache, or that were dropped to make room.
    pub cache_lost: u64,
    /// Number of connections all of whose packets were dropped because the cache was full.
    pub cache_dropped_connections: u64,
    /// Number of packets that were sent again into strings.
    pub resent_entering: u64,
    /// Number of packets that were sent again to the outside, counting each copy.
    pub resent_leaving: u64,
    /// Number of packets that were left to their senders' retransmission: cached packets of a flow beyond its capped window, and
    /// packets that were queued for this string when it failed.
    pub left_to_senders: u64,
}

impl EdgeString {
    pub fn new(
        config: EdgeStringConfig,
        index: usize,
        recovery: RecoveryConfig,
        adopted: AdoptedString,
        now: Instant,
    ) -> Result<Self, InvalidRecovery> {
        let phase = match adopted.steering {
            StringSteering::Up => StringPhase::Blind,
            StringSteering::Held => StringPhase::Failing,
            StringSteering::Down => StringPhase::Down,
        };
        let mut recovery = LocalRecovery::new(recovery, index, now)?;
        if phase == StringPhase::Failing {
            recovery.on_declared();
        }
        Ok(Self {
            config,
            phase,
            recovery,
            epoch: adopted.kept.epoch,
            has_carrier: true,
            last_heard: None,
            beats_heard: 0,
            beats_missed: 0,
            last_sign: None,
            heard_since: None,
            peer: None,
            damping: adopted
                .kept
                .last_loss
                .map_or_else(Damping::default, |(at, hold)| Damping::after_loss(at, hold)),
            was_up: adopted.kept.was_up,
            kept: adopted.kept,
            passes_since: None,
            silent_at: Some(now),
            failed_at: (phase == StringPhase::Failing).then_some(now),
            completed_at: None,
            sweep_at: None,
            command: CommandState::Done,
            rate: None,
            rate_is_new: false,
            traffic: TrafficSample::default(),
            flows_at_failure: 0,
            copies: None,
            cap: adopted.cap,
            entering: PacketQueue::default(),
            free: now,
            resent_entering: 0,
            resent_leaving: 0,
            left_to_senders: 0,
        })
    }

    /// The packets of the string's flows that are to be copied.
    pub fn copies(&self) -> CopiedPackets {
        match self.phase {
            StringPhase::Up | StringPhase::Suspect | StringPhase::Blind if !self.recovery.is_caching() => {
                CopiedPackets::None
            }
            _ if self.passes() => CopiedPackets::Needed,
            StringPhase::Down => CopiedPackets::None,
            _ => self.recovery.copies_when_suspected(),
        }
    }

    /// Whether packets seem to pass the string. In the state Blind, perhaps only the other edge's process has died.
    pub fn passes(&self) -> bool {
        match self.phase {
            StringPhase::Up => true,
            StringPhase::Blind => self.passes_since.is_some() || !self.recovery.has_failed(),
            StringPhase::Suspect | StringPhase::Failing | StringPhase::Down => false,
        }
    }

    /// The event that follows from missing heartbeats or from a missing carrier. `None`: nothing is missing.
    pub fn missed(&mut self, now: Instant) -> Option<PhaseEvent> {
        if !matches!(self.phase, StringPhase::Up | StringPhase::Suspect) {
            return None;
        }
        if !self.has_carrier {
            self.recovery.on_declared();
            return Some(PhaseEvent::Silent);
        }
        self.recovery.on_timeout(now);
        match self.recovery.state() {
            StringState::Well => None,
            StringState::Suspect => Some(PhaseEvent::Late),
            StringState::Failed => Some(PhaseEvent::Silent),
        }
    }

    /// When the string needs attention next.
    pub fn poll_timeout(&self, delay: Duration) -> Option<Instant> {
        let queue = (!self.entering.is_empty() && self.is_open()).then_some(self.free);
        let phase = match self.phase {
            StringPhase::Up | StringPhase::Suspect => self.recovery.poll_timeout(),
            StringPhase::Failing => self.moves_at(delay),
            StringPhase::Blind | StringPhase::Down => None,
        };
        queue.into_iter().chain(phase).chain(self.sweep_at).min()
    }

    /// The earliest time at which the string's flows may move. The delay counts from the start of the silence, because the other nodes can
    /// prepare for the flows from that time on.
    pub fn moves_at(&self, delay: Duration) -> Option<Instant> {
        self.silent_at.map(|at| at + delay)
    }

    /// Whether queued packets would get through. They wait while the string is silent.
    const fn is_open(&self) -> bool {
        match self.phase {
            StringPhase::Up | StringPhase::Suspect => true,
            StringPhase::Blind => self.passes_since.is_some(),
            StringPhase::Failing | StringPhase::Down => false,
        }
    }

    /// Drops the queued packets, because the string has failed. Their senders retransmit them.
    pub fn give_up_queue(&mut self) {
        self.left_to_senders += self.entering.len() as u64;
        self.entering.clear();
    }

    /// The next queued packet, if it may be sent now.
    pub fn next_due(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.free > now || !self.is_open() {
            return None;
        }
        let packet = self.entering.pop_front()?;
        let time = Duration::from_secs_f64(packet.len() as f64 / self.config.bytes_per_s);
        self.free = self.free.max(now) + time;
        Some(packet)
    }

    /// Notes a heartbeat. Heartbeats are sent every `interval`.
    pub fn note_beat(&mut self, now: Instant, interval: Duration) {
        self.beats_missed += self.overdue(now, interval);
        self.beats_heard += 1;
        self.last_heard = Some(now);
        self.last_sign = Some(now);
    }

    /// Number of whole heartbeat intervals since the last heartbeat, minus one. Zero before the first heartbeat.
    fn overdue(&self, now: Instant, interval: Duration) -> u64 {
        let silence = self.last_heard.map_or(Duration::ZERO, |at| now.since(at));
        let beats = silence.as_nanos() / interval.as_nanos().max(1);
        u64::try_from(beats).unwrap_or(u64::MAX).saturating_sub(1)
    }

    pub fn view(&self, now: Instant, interval: Duration, is_heard: bool, cache: &CacheCounts) -> StringView {
        StringView {
            name: self.config.name.clone(),
            phase: self.phase,
            epoch: self.epoch,
            is_heard,
            last_heard: self.last_heard,
            beats_heard: self.beats_heard,
            beats_missed: self.beats_missed + self.overdue(now, interval),
            failed_at: self.failed_at,
            completed_at: self.completed_at,
            cap: self.cap,
            traffic: self.traffic,
            cached_packets: cache.packets,
            cached_bytes: cache.bytes,
            cached_bytes_max: cache.peak_bytes,
            cache_memory: cache.memory,
            cache_memory_max: cache.peak_memory,
            cache_lost: cache.lost,
            cache_dropped_connections: cache.dropped_connections,
            resent_entering: self.resent_entering,
            resent_leaving: self.resent_leaving,
            left_to_senders: self.left_to_senders,
        }
    }
}
