//! One edge: which strings are usable, when flows move, what is sent again, and how far windows are capped (`docs/edge.md`).
//!
//! Heartbeats, copies of packets and measurements go in by `handle_*`. Ordered [`EdgeAction`]s come out by
//! [`EdgeSwitch::poll_action`]. The data path carries out the actions: it forwards packets without asking this state machine.

mod beat;
mod copied;
mod flow;
mod kept;
mod queue;
mod string;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use super::cache::Cache;
use super::phase::{PhaseEvent, StringPhase};
use super::slots::{SLOTS, SlotShare, slots};
use super::{CopiedPackets, EdgeDirection, InvalidRecovery, RecoveryConfig, Resend};
use crate::Instant;
use crate::rate::{InvalidRate, RateConfig, RateControl, RateRule};
pub use beat::{EdgeBeat, StringBeat};
use copied::COPIES;
pub use flow::{FlowKey, TrafficSample};
pub use kept::{AdoptedString, KeptString, StringSteering};
use string::{CommandState, EdgeString};
pub use string::{EdgeStringConfig, StringView};

/// Time between two measurements while no window is capped.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// Time from the move of a string's flows until its idle flows are moved. The sweep through the table takes some milliseconds, in which
/// no packet is sent again. The sweep must end before the string returns.
const SWEEP_AFTER: Duration = Duration::from_millis(100);
/// Shortest interval of the rate control (`docs/rate-control.md`).
const INTERVAL_MIN: Duration = Duration::from_millis(200);
/// Round trip of connections if none has been measured.
const ROUND_TRIP_DEFAULT: Duration = Duration::from_millis(100);
/// While packets pass a string, the cache forgets a connection when its first packet has been held for this time to twice this time. Its
/// sender has repeated the packet several times by then, so the receiver is gone, or the acknowledgements do not pass this edge.
const USELESS_AFTER: Duration = Duration::from_secs(10);
/// Number of measurements whose handshakes count for the round trip.
const HANDSHAKES_KEPT: usize = 10;

/// How windows are capped while a string is missing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapConfig {
    /// ρ: the part of the rate to use, at most 1.
    pub utilization: f64,
    /// w: how strongly the cap follows an interval's measurement.
    pub weight: f64,
    /// The connections' round trip without a queue. `None`: the mean of the handshakes before the failure.
    pub round_trip: Option<Duration>,
    /// W_min: the minimum cap in bytes.
    pub min_window: u32,
}

/// The settings of an edge.
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    /// The strings, at least two.
    pub strings: Vec<EdgeStringConfig>,
    /// Detection and local recovery.
    pub recovery: RecoveryConfig,
    /// Number of missing heartbeats after which a string is suspected.
    pub suspect_after: u32,
    /// Whether packets are cached at all.
    pub caches: bool,
    /// Minimum time until the flows of a failed string move. It begins when the string falls silent, or when the peer declares the string's
    /// failure.
    pub delay: Duration,
    /// Whether a command must succeed before the flows move.
    pub has_command: bool,
    /// The rate control, if it is on.
    pub cap: Option<CapConfig>,
}

/// Why an [`EdgeConfig`] is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEdge {
    /// See [`InvalidRecovery`].
    #[error(transparent)]
    Recovery(#[from] InvalidRecovery),
    /// See [`InvalidRate`].
    #[error(transparent)]
    Rate(#[from] InvalidRate),
}

/// Something that the caller has to carry out.
#[derive(Clone, Debug, PartialEq)]
pub enum EdgeAction {
    /// Give new flows, and flows that move, the strings of these slots.
    SetSlots(Box<[u8; SLOTS]>),
    /// Steer the packets of this string's flows in this way.
    SetSteering(usize, StringSteering),
    /// Keep this state of the string for a successor of the agent.
    Keep(usize, KeptString),
    /// Move the string's present flows, each with its next packet.
    Move(usize),
    /// Move the idle flows that [`EdgeAction::Move`] has left.
    Sweep(usize),
    /// Copy these packets of the string's flows from now on. [`CopiedPackets::Entering`] keeps the present cache, or begins one if there is
    /// none. [`CopiedPackets::Needed`] begins with an empty cache. [`CopiedPackets::None`] ends the copying.
    SetCopies(usize, CopiedPackets),
    /// Cap the windows of the string's flows at this number of bytes. `None`: stop capping.
    SetCap(usize, Option<u32>),
    /// Start the command that makes the other nodes ready for this string's flows.
    RunCommand(usize),
    /// Call [`EdgeSwitch::handle_traffic`].
    Measure,
    /// Tell the string's node the addresses of this edge's port: behind a new cable, the node does not know them.
    Announce(usize),
    /// Send a packet into a string.
    SendEntering(usize, Vec<u8>),
    /// Send this many copies of a packet to the outside.
    SendLeaving(Vec<u8>, u32),
    /// Tell the operator that the string has this state now.
    Tell(usize, StringPhase, PhaseReason),
}

/// Why a string has a new state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseReason {
    /// Heartbeats are missing.
    Silence,
    /// Heartbeats arrive.
    Heartbeat,
    /// The other edge has declared the failure.
    Peer,
    /// The takeover is done.
    Takeover,
    /// The string works again.
    Return,
}

/// The arrivals in the cache (see [`Cache::arrivals`]) that are older than [`USELESS_AFTER`].
#[derive(Debug)]
struct UselessArrivals {
    /// When `last` was noted.
    at: Instant,
    /// Number of arrivals until then, and one [`USELESS_AFTER`] before.
    last: u64,
    until: u64,
}

/// The state machine of one edge.
#[derive(Debug)]
pub struct EdgeSwitch {
    config: EdgeConfig,
    strings: Vec<EdgeString>,
    cache: Cache<FlowKey, Vec<u8>>,
    useless: UselessArrivals,
    slots: Box<[u8; SLOTS]>,
    /// For each string, whether slots may name it. Empty before the first slots.
    in_slots: Vec<bool>,
    flow_slot: fn(&FlowKey) -> usize,
    actions: VecDeque<EdgeAction>,
    leaving: VecDeque<(Vec<u8>, u32)>,
    leaving_free: Instant,
    measured: Instant,
    /// Whether the first measurement has come: totals of a data path that was adopted do not begin at zero.
    has_totals: bool,
    /// Handshakes and their time in nanoseconds, per measurement, the newest last.
    handshakes: VecDeque<(u64, u64)>,
}

impl EdgeSwitch {
    /// An edge that has heard nothing yet. `flow_slot` gives the slot of a flow, as the data path computes it. `adopted`: the strings as an
    /// earlier agent left them; empty if there was none. The edge goes on with them: a string that had failed stays failed until it
    /// returns, and windows stay capped meanwhile.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn new(
        config: EdgeConfig,
        adopted: &[AdoptedString],
        flow_slot: fn(&FlowKey) -> usize,
        now: Instant,
    ) -> Result<Self, InvalidEdge> {
        let mut strings = Vec::new();
        for (index, string) in config.strings.iter().enumerate() {
            let adopted = adopted.get(index).copied().unwrap_or_default();
            let mut one = EdgeString::new(string.clone(), index, config.recovery, adopted, now)?;
            if one.phase == StringPhase::Failing && config.has_command {
                one.command = CommandState::Wanted;
            }
            strings.push(one);
            if let Some(cap) = &config.cap {
                rate_config(cap, string.bytes_per_s, ROUND_TRIP_DEFAULT).check()?;
            }
        }
        let mut edge = Self {
            cache: Cache::packed(config.recovery.cache, strings.len(), COPIES),
            useless: UselessArrivals {
                at: now,
                last: 0,
                until: 0,
            },
            config,
            strings,
            slots: Box::new([0; SLOTS]),
            in_slots: Vec::new(),
            flow_slot,
            actions: VecDeque::new(),
            leaving: VecDeque::new(),
            leaving_free: now,
            measured: now,
            has_totals: false,
            handshakes: VecDeque::new(),
        };
        for (index, one) in edge.strings.iter_mut().enumerate() {
            let steering = match one.phase {
                StringPhase::Up | StringPhase::Suspect | StringPhase::Blind => StringSteering::Up,
                StringPhase::Failing => StringSteering::Held,
                StringPhase::Down => StringSteering::Down,
            };
            edge.actions.push_back(EdgeAction::SetSteering(index, steering));
            if edge.config.cap.is_none() && one.cap.take().is_some() {
                edge.actions.push_back(EdgeAction::SetCap(index, None));
            }
        }
        edge.publish(now);
        edge.actions.push_back(EdgeAction::Measure);
        Ok(edge)
    }

    /// The next action.
    pub fn poll_action(&mut self) -> Option<EdgeAction> {
        self.actions.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    pub fn poll_timeout(&self, now: Instant) -> Instant {
        let strings = self
            .strings
            .iter()
            .filter_map(|string| string.poll_timeout(self.config.delay));
        let leaving = (!self.leaving.is_empty()).then_some(self.leaving_free);
        let half = now + self.config.recovery.heartbeat / 2;
        let measure = self.measured + self.measure_every();
        strings
            .chain(leaving)
            .chain([half, measure])
            .min()
            .unwrap_or(half)
    }

    /// A heartbeat of the other edge came by `string`.
    pub fn handle_beat(&mut self, now: Instant, string: usize, beat: &EdgeBeat) {
        self.on_heard(now, string);
        for told in &beat.strings {
            let Some(index) = self.strings.iter().position(|one| one.config.name == told.name) else {
                continue;
            };
            self.strings[index].peer = Some((now, told.clone()));
            if told.epoch > self.strings[index].epoch {
                self.declare(now, index, told.epoch, PhaseReason::Peer);
            }
        }
        // Behind a new cable, a node must first ask for link-layer addresses. So it may pass packets in one direction earlier than in the
        // other.
        if self.strings[string].phase == StringPhase::Blind && self.is_good(now, string) {
            self.end_blindness(now, string);
        }
        self.evaluate(now);
    }

    /// Packets have left a string in the last milliseconds. For a while such packets replace heartbeats, which a full queue may lose.
    /// Leaving packets count only when a failure is suspected: packets that left just before a failure must not delay its declaration.
    pub fn handle_leaving(&mut self, now: Instant, string: usize) {
        let late = self.config.recovery.heartbeat * self.config.suspect_after;
        let one = &mut self.strings[string];
        if one.last_heard.is_some_and(|at| late <= now.since(at)) {
            one.recovery.on_traffic(now);
            one.last_sign = Some(now);
        }
    }

    /// Whether the cable at a string's port carries a signal now. Without a signal there is no need to wait for missing heartbeats.
    pub fn handle_carrier(&mut self, now: Instant, string: usize, has_carrier: bool) {
        if std::mem::replace(&mut self.strings[string].has_carrier, has_carrier) != has_carrier {
            if has_carrier {
                self.actions.push_back(EdgeAction::Announce(string));
            }
            self.evaluate(now);
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.evaluate(now);
        for index in 0..self.strings.len() {
            if self.strings[index].sweep_at.is_some_and(|at| at <= now) {
                self.sweep(index);
            }
        }
        if now.since(self.measured) >= self.measure_every() {
            self.measured = now;
            self.actions.push_back(EdgeAction::Measure);
        }
        self.forget_useless(now);
        self.send_due(now);
    }

    /// Makes the cache forget connections that it holds for long although packets pass. Without this, a cache that is always on would fill
    /// with connections whose acknowledgements never come.
    fn forget_useless(&mut self, now: Instant) {
        let useless = &mut self.useless;
        if now.since(useless.at) >= USELESS_AFTER {
            *useless = UselessArrivals {
                at: now,
                last: self.cache.arrivals(),
                until: useless.last,
            };
        }
        for (index, one) in self.strings.iter().enumerate() {
            if one.passes() {
                self.cache.forget_until(index, self.useless.until);
            }
        }
    }

    /// The command for `string` has ended. If the command failed, it is started again: the flows must not move before the command has
    /// succeeded.
    pub fn handle_command(&mut self, now: Instant, string: usize, succeeded: bool) {
        let one = &mut self.strings[string];
        one.command = match one.command {
            CommandState::Running if succeeded => CommandState::Done,
            CommandState::Running | CommandState::Outdated => CommandState::Wanted,
            CommandState::Wanted | CommandState::Done => one.command,
        };
        self.evaluate(now);
    }

    /// The data path has copied a packet of one of `string`'s flows. The packet's checksum is complete.
    pub fn handle_copy(&mut self, now: Instant, string: usize, way: EdgeDirection, packet: &[u8]) {
        let Some((key, segment)) = copied::read(packet, way) else {
            return; // the data path copies TCP packets only
        };
        let one = &mut self.strings[string];
        if one.phase == StringPhase::Down {
            // The packet was copied and dropped just before the flows moved.
            if way == EdgeDirection::Entering {
                let target = self.target(&key);
                self.strings[target].entering.push_back(packet.to_vec());
                self.send_due(now);
            }
            return;
        }
        let acknowledges = one
            .recovery
            .on_packet(&mut self.cache, key, way, &segment, packet.len(), || {
                packet.to_vec()
            });
        if one.phase == StringPhase::Blind && acknowledges {
            one.passes_since.get_or_insert(now);
        }
    }

    /// The measurement that [`EdgeAction::Measure`] asked for, one sample for each string.
    pub fn handle_traffic(&mut self, now: Instant, samples: &[TrafficSample]) {
        let mut handshakes = (0, 0);
        for (string, sample) in self.strings.iter_mut().zip(samples) {
            let before = std::mem::replace(&mut string.traffic, *sample);
            if !self.has_totals {
                // The first totals are those of an earlier agent, or zero.
                handshakes = (
                    handshakes.0 + sample.handshakes,
                    handshakes.1 + sample.handshake_ns,
                );
                continue;
            }
            handshakes.0 += sample.handshakes.saturating_sub(before.handshakes);
            handshakes.1 += sample.handshake_ns.saturating_sub(before.handshake_ns);
            let is_first = std::mem::take(&mut string.rate_is_new);
            if let Some(rate) = string.rate.as_mut().filter(|_| !is_first) {
                rate.on_bytes(sample.entering_bytes.saturating_sub(before.entering_bytes));
                rate.on_timeout(self.measured, sample.active as usize);
            }
        }
        self.has_totals = true;
        // Handshakes through a full queue say nothing about the round trip without a queue.
        if handshakes.0 > 0 && !self.is_capping() {
            self.handshakes.push_back(handshakes);
            if self.handshakes.len() > HANDSHAKES_KEPT {
                self.handshakes.pop_front();
            }
        }
        self.publish(now);
    }

    /// The heartbeat to send over `string` now.
    pub fn beat(&self, now: Instant, string: usize) -> EdgeBeat {
        let told = self.strings.iter().map(|one| StringBeat {
            name: one.config.name.clone(),
            epoch: one.epoch,
            is_usable: one.phase.is_usable(),
            is_heard: self.is_heard(now, one),
            is_steady: one.damping.is_steady(now) && self.is_heard(now, one),
        });
        EdgeBeat {
            string: self.strings[string].config.name.clone(),
            strings: told.collect(),
        }
    }

    /// The states of the strings, for people and scripts.
    pub fn view(&self, now: Instant) -> Vec<StringView> {
        self.strings
            .iter()
            .enumerate()
            .map(|(index, one)| {
                let (interval, is_heard) = (self.config.recovery.heartbeat, self.is_heard(now, one));
                one.view(now, interval, is_heard, &self.cache.counts(index))
            })
            .collect()
    }

    /// The connections' round trip without a queue, as measured or configured.
    pub fn round_trip(&self) -> Duration {
        let (count, sum) = self
            .handshakes
            .iter()
            .fold((0, 0), |(count, sum), (more, time)| (count + more, sum + time));
        let measured = (count > 0).then(|| Duration::from_nanos(sum / count.max(1)));
        let configured = self.config.cap.and_then(|cap| cap.round_trip);
        configured.or(measured).unwrap_or(ROUND_TRIP_DEFAULT)
    }

    fn is_capping(&self) -> bool {
        self.strings.iter().any(|string| string.rate.is_some())
    }

    fn measure_every(&self) -> Duration {
        let mut intervals = self
            .strings
            .iter()
            .filter_map(|string| string.rate.as_ref().map(|_| self.interval()));
        intervals.next().unwrap_or(MEASURE_EVERY)
    }

    /// Δ of the rate control.
    fn interval(&self) -> Duration {
        INTERVAL_MIN.max(self.round_trip() * 2)
    }

    /// Whether a sign of life came by this string within the time after which silence is a failure. Packets count only in `Up`
    /// and `Suspect`: a string returns by heartbeats.
    fn is_heard(&self, now: Instant, string: &EdgeString) -> bool {
        let patience = self.config.recovery.patience();
        let last = match string.phase {
            StringPhase::Up | StringPhase::Suspect => string.last_sign,
            StringPhase::Blind | StringPhase::Failing | StringPhase::Down => string.last_heard,
        };
        string.has_carrier && last.is_some_and(|at| now.since(at) < patience)
    }

    fn on_heard(&mut self, now: Instant, index: usize) {
        let pause = self.config.recovery.heartbeat * self.config.suspect_after;
        let one = &mut self.strings[index];
        if one.last_heard.is_none_or(|at| now.since(at) >= pause) {
            one.heard_since = Some(now);
        }
        one.note_beat(now, self.config.recovery.heartbeat);
        if matches!(one.phase, StringPhase::Up | StringPhase::Suspect) {
            one.recovery.on_heartbeat(now, &mut self.cache);
            self.change(now, index, PhaseEvent::Heard, PhaseReason::Heartbeat);
        }
    }

    /// All strings were silent, and both edges hear this string again. If packets passed during the silence, only the other edge's process
    /// was away. If packets pass only since the string is back, the earlier packets were lost and are sent again.
    fn end_blindness(&mut self, now: Instant, index: usize) {
        let patience = self.config.recovery.patience();
        let one = &mut self.strings[index];
        let has_passed = one.passes_since.is_some_and(|at| now.since(at) >= patience);
        if one.recovery.has_failed() && !has_passed {
            self.send_again(now, index, Some(index));
            self.strings[index].recovery.on_heartbeat(now, &mut self.cache);
        } else {
            one.recovery.restart(now, &mut self.cache);
        }
        let one = &mut self.strings[index];
        one.copies = None; // its cache is empty now
        one.was_up = true;
        self.keep(index);
        self.change(now, index, PhaseEvent::Heard, PhaseReason::Heartbeat);
    }

    /// Changes the states of the strings as their evidence at `now` demands, and queues the actions that follow.
    fn evaluate(&mut self, now: Instant) {
        for index in 0..self.strings.len() {
            if let Some(event) = self.strings[index].missed(now) {
                self.change(now, index, event, PhaseReason::Silence);
            }
        }
        for index in 0..self.strings.len() {
            let is_good = self.is_good(now, index);
            let one = &mut self.strings[index];
            if one.phase != StringPhase::Suspect {
                one.damping.on_look(now, is_good, one.was_up);
                self.keep(index);
            }
        }
        for index in 0..self.strings.len() {
            let phase = self.strings[index].phase;
            if phase == StringPhase::Blind && self.others_heard(now, index) {
                let epoch = self.strings[index].epoch + 1;
                self.declare(now, index, epoch, PhaseReason::Silence);
            }
        }
        for index in 0..self.strings.len() {
            if !self.strings[index].phase.is_usable() && self.has_returned(now, index) {
                self.bring_back(now, index);
            }
            if self.strings[index].phase == StringPhase::Failing && self.is_taken_over(now, index) {
                self.complete(now, index);
            }
        }
        let is_lost = |one: &EdgeString| !one.phase.is_usable() && !self.is_heard(now, one);
        if self.strings.iter().all(is_lost) {
            self.forward_blindly(now);
        }
        self.publish(now);
    }

    /// Each string has failed, at one edge or the other, and now all are silent. Perhaps only the other edge's process has died, and
    /// packets still get through. So this edge forwards packets again.
    fn forward_blindly(&mut self, now: Instant) {
        for index in 0..self.strings.len() {
            self.change(now, index, PhaseEvent::NoneLeft, PhaseReason::Silence);
            self.strings[index].recovery.on_declared();
            self.actions
                .push_back(EdgeAction::SetSteering(index, StringSteering::Up));
        }
    }

    /// Whether both edges hear a string.
    fn is_good(&self, now: Instant, index: usize) -> bool {
        let string = &self.strings[index];
        self.is_heard(now, string) && self.told(now, string).is_some_and(|told| told.is_heard)
    }

    /// The other edge's last statement about a string, if it is recent.
    fn told<'a>(&self, now: Instant, string: &'a EdgeString) -> Option<&'a StringBeat> {
        let patience = self.config.recovery.patience();
        let (at, told) = string.peer.as_ref()?;
        (now.since(*at) < patience).then_some(told)
    }

    /// Whether another string is up, is heard now, and has been heard without a break for at least the time that detects a failure. It
    /// must have been heard for longer than this one: if the other edge dies, the last heartbeats of the strings do not arrive at
    /// the same moment.
    fn others_heard(&self, now: Instant, index: usize) -> bool {
        let recovery = &self.config.recovery;
        let late = recovery.heartbeat * self.config.suspect_after;
        let one = &self.strings[index];
        let last_heard = one.last_heard.filter(|_| one.has_carrier);
        self.strings.iter().enumerate().any(|(other, string)| {
            let is_fresh = string
                .last_heard
                .is_some_and(|at| now.since(at) < late && last_heard.is_none_or(|own| at >= own + late));
            let is_old = string
                .heard_since
                .is_some_and(|at| now.since(at) >= recovery.patience());
            other != index && string.phase == StringPhase::Up && is_fresh && is_old
        })
    }

    /// Whether another string is usable.
    fn has_other(&self, index: usize) -> bool {
        let mut strings = self.strings.iter().enumerate();
        strings.any(|(other, string)| other != index && string.phase.is_usable())
    }

    fn has_returned(&self, now: Instant, index: usize) -> bool {
        let string = &self.strings[index];
        let is_steady = || {
            let ours = string.damping.is_steady(now);
            ours && self.told(now, string).is_some_and(|told| told.is_steady)
        };
        let same_epoch = self
            .told(now, string)
            .is_some_and(|told| told.epoch == string.epoch);
        self.is_good(now, index) && same_epoch && (is_steady() || !self.has_other(index))
    }

    fn is_taken_over(&self, now: Instant, index: usize) -> bool {
        let string = &self.strings[index];
        let is_late_enough = string.moves_at(self.config.delay).is_some_and(|at| at <= now);
        let is_ready = string.command == CommandState::Done && is_late_enough;
        (is_ready || !string.was_up) && self.has_other(index)
    }

    /// A string has failed.
    fn declare(&mut self, now: Instant, index: usize, epoch: u64, reason: PhaseReason) {
        let has_command = self.config.has_command;
        let one = &mut self.strings[index];
        one.epoch = epoch;
        let was_usable = one.phase.is_usable();
        if was_usable {
            one.damping.on_look(now, false, true);
        }
        self.keep(index);
        if !was_usable {
            return;
        }
        let one = &mut self.strings[index];
        one.recovery.on_declared();
        one.failed_at = Some(now);
        one.flows_at_failure = one.traffic.active;
        if one.phase != StringPhase::Blind {
            one.silent_at = Some(now);
        }
        one.completed_at = None;
        one.command = match one.command {
            _ if !has_command || !one.was_up => CommandState::Done,
            CommandState::Running | CommandState::Outdated => CommandState::Outdated,
            CommandState::Wanted | CommandState::Done => CommandState::Wanted,
        };
        let event = match reason {
            PhaseReason::Peer => PhaseEvent::Declared,
            _ => PhaseEvent::OthersHeard,
        };
        self.change(now, index, event, reason);
        self.strings[index].give_up_queue();
        let steering = StringSteering::Held;
        self.actions.push_back(EdgeAction::SetSteering(index, steering));
    }

    /// A failed string's flows get other strings.
    fn complete(&mut self, now: Instant, index: usize) {
        self.change(now, index, PhaseEvent::TakeoverDone, PhaseReason::Takeover);
        self.strings[index].completed_at = Some(now);
        self.publish_slots(now);
        self.actions
            .push_back(EdgeAction::SetSteering(index, StringSteering::Down));
        self.actions.push_back(EdgeAction::Move(index));
        self.strings[index].sweep_at = Some(now + SWEEP_AFTER);
        self.make_room(index);
        self.publish_caps(now); // before the packets: the cap limits how many are sent
        self.send_again(now, index, None);
        self.send_due(now);
    }

    /// Prepares the caps of the other strings for the flows of a failed string.
    fn make_room(&mut self, index: usize) {
        let moved = self.strings[index].flows_at_failure;
        for one in &mut self.strings {
            let connections = usize::try_from(one.traffic.active + moved).unwrap_or(usize::MAX);
            if let Some(rate) = &mut one.rate {
                rate.on_moved(connections);
            }
        }
    }

    fn sweep(&mut self, index: usize) {
        if self.strings[index].sweep_at.take().is_some() {
            self.actions.push_back(EdgeAction::Sweep(index));
        }
    }

    /// A string works again. Flows that were still held move to the strings of their slots.
    fn bring_back(&mut self, now: Instant, index: usize) {
        let was_failing = self.strings[index].phase == StringPhase::Failing;
        self.sweep(index);
        self.change(now, index, PhaseEvent::Returned, PhaseReason::Return);
        self.publish_slots(now);
        if was_failing {
            self.strings[index].completed_at = Some(now);
            self.actions.push_back(EdgeAction::Move(index));
        }
        self.actions
            .push_back(EdgeAction::SetSteering(index, StringSteering::Up));
        self.send_again(now, index, None);
        let one = &mut self.strings[index];
        one.recovery.restart(now, &mut self.cache);
        one.copies = None;
        one.was_up = true;
        self.keep(index);
        self.send_due(now);
    }

    /// Stores what a later agent must know of a string, if it has changed.
    fn keep(&mut self, index: usize) {
        let one = &mut self.strings[index];
        let kept = KeptString {
            epoch: one.epoch,
            was_up: one.was_up,
            last_loss: one.damping.last_loss(),
        };
        if std::mem::replace(&mut one.kept, kept) != kept {
            self.actions.push_back(EdgeAction::Keep(index, kept));
        }
    }

    /// Queues the cached packets of a string for the string `to`. If `to` is `None`, queues each packet for the string to which its flow
    /// moves. If windows are capped, queues at most one capped window of each flow: the flow's sender retransmits the rest.
    fn send_again(&mut self, now: Instant, index: usize, to: Option<usize>) {
        let held = self.strings[index].recovery.complete(now, &mut self.cache);
        let mut flow = (None, 0);
        for resend in held {
            let target = to.unwrap_or_else(|| self.target(&resend.key));
            if resend.way == EdgeDirection::Entering {
                let sent = if flow.0 == Some(resend.key) { flow.1 } else { 0 };
                let cap = self.strings[target].rate.as_ref().map(RateControl::window);
                if sent > 0 && cap.is_some_and(|cap| sent + resend.packet.len() > cap as usize) {
                    self.strings[index].left_to_senders += 1;
                    continue;
                }
                flow = (Some(resend.key), sent + resend.packet.len());
                self.strings[index].resent_entering += 1;
            } else {
                self.strings[index].resent_leaving += u64::from(resend.copies);
            }
            self.enqueue(resend, target);
        }
    }

    /// The string of a flow that moves.
    fn target(&self, key: &FlowKey) -> usize {
        usize::from(self.slots[(self.flow_slot)(key) % SLOTS])
    }

    fn enqueue(&mut self, resend: Resend<FlowKey, Vec<u8>>, target: usize) {
        match resend.way {
            EdgeDirection::Entering => self.strings[target].entering.push_back(resend.packet),
            EdgeDirection::Leaving => self.leaving.push_back((resend.packet, resend.copies)),
        }
    }

    /// Sends the queued packets that are due. Packets enter each string at the string's own rate. Packets leave to the outside at the sum
    /// of these rates.
    fn send_due(&mut self, now: Instant) {
        for index in 0..self.strings.len() {
            while let Some(packet) = self.strings[index].next_due(now) {
                self.actions.push_back(EdgeAction::SendEntering(index, packet));
            }
        }
        let rate: f64 = self.strings.iter().map(|one| one.config.bytes_per_s).sum();
        while self.leaving_free <= now
            && let Some((packet, copies)) = self.leaving.pop_front()
        {
            let bytes = packet.len() as f64 * f64::from(copies);
            self.leaving_free = self.leaving_free.max(now) + Duration::from_secs_f64(bytes / rate);
            self.actions.push_back(EdgeAction::SendLeaving(packet, copies));
        }
    }

    fn change(&mut self, now: Instant, index: usize, event: PhaseEvent, reason: PhaseReason) {
        let one = &mut self.strings[index];
        let phase = one.phase.after(event);
        if phase == one.phase {
            return;
        }
        if phase == StringPhase::Blind {
            one.passes_since = None;
            one.silent_at = Some(now);
        }
        one.phase = phase;
        self.actions.push_back(EdgeAction::Tell(index, phase, reason));
    }

    /// Queues the actions that make the data path agree with this state machine.
    fn publish(&mut self, now: Instant) {
        for index in 0..self.strings.len() {
            let one = &mut self.strings[index];
            if one.phase == StringPhase::Failing && one.command == CommandState::Wanted {
                one.command = CommandState::Running;
                self.actions.push_back(EdgeAction::RunCommand(index));
            }
            let copies = if self.config.caches {
                one.copies()
            } else {
                CopiedPackets::None
            };
            if one.copies != Some(copies) {
                one.copies = Some(copies);
                self.actions.push_back(EdgeAction::SetCopies(index, copies));
            }
        }
        self.publish_slots(now);
        self.publish_caps(now);
    }

    fn publish_slots(&mut self, now: Instant) {
        let known_better = self.strings.iter().any(|one| {
            matches!(one.phase, StringPhase::Up | StringPhase::Suspect) && self.peer_agrees(now, one)
        });
        let usable: Vec<bool> = self
            .strings
            .iter()
            .map(|one| match one.phase {
                StringPhase::Up | StringPhase::Suspect => self.peer_agrees(now, one),
                StringPhase::Blind => !known_better,
                StringPhase::Failing | StringPhase::Down => false,
            })
            .collect();
        if self.in_slots == usable {
            return;
        }
        let shares: Vec<_> = self
            .strings
            .iter()
            .zip(&usable)
            .map(|(one, &is_usable)| SlotShare {
                name: &one.config.name,
                weight: one.config.weight,
                is_usable,
            })
            .collect();
        *self.slots = slots(&shares);
        self.in_slots = usable;
        self.actions.push_back(EdgeAction::SetSlots(self.slots.clone()));
    }

    /// Whether new flows may go to a string as far as the other edge is concerned. A string may have returned at this edge only. Until it
    /// returns at the other edge, that edge would not answer on this string.
    fn peer_agrees(&self, now: Instant, string: &EdgeString) -> bool {
        self.told(now, string)
            .is_none_or(|told| told.is_usable || told.epoch < string.epoch)
    }

    /// While a string is missing, the windows of all flows of the other strings are capped.
    fn publish_caps(&mut self, now: Instant) {
        // Before the first measurement, the number of connections is not known. Until then, an adopted data path keeps its caps.
        let Some(cap) = self.config.cap.filter(|_| self.has_totals) else {
            return;
        };
        let missing = |one: &EdgeString| one.was_up && !one.phase.is_usable();
        let is_missing = self.strings.iter().any(missing);
        let moving: u64 = self
            .strings
            .iter()
            .filter(|one| missing(one))
            .map(|one| one.traffic.active)
            .sum();
        let (round_trip, interval) = (self.round_trip(), self.interval());
        let mut is_new = false;
        for (index, one) in self.strings.iter_mut().enumerate() {
            if !is_missing || !one.phase.is_usable() {
                one.rate = None;
            } else if one.rate.is_none() {
                let mut config = rate_config(&cap, one.config.bytes_per_s, round_trip);
                config.interval = interval;
                let connections = usize::try_from(one.traffic.active + moving).unwrap_or(usize::MAX);
                one.rate = RateControl::new(config, now, connections).ok();
                // The bytes sent before now do not belong to the first interval.
                one.rate_is_new = true;
                self.measured = now;
                is_new = true;
            }
            let window = one.rate.as_ref().map(RateControl::window);
            if one.cap != window {
                one.cap = window;
                self.actions.push_back(EdgeAction::SetCap(index, window));
            }
        }
        if is_new {
            self.actions.push_back(EdgeAction::Measure);
        }
    }
}

fn rate_config(cap: &CapConfig, bytes_per_s: f64, round_trip: Duration) -> RateConfig {
    let round_trip = cap.round_trip.unwrap_or(round_trip);
    RateConfig {
        bytes_per_s,
        utilization: cap.utilization,
        weight: cap.weight,
        round_trip,
        interval: INTERVAL_MIN.max(round_trip * 2),
        min_window: cap.min_window,
        rule: RateRule::Backlog,
    }
}
