//! The routers R1 and R2 as edges. Local recovery ([`proto::edge`]) serves the flows of the string that fails. Rate control
//! ([`proto::rate`]) serves all flows that share the other string.
//!
//! The scenario sets the duration of the failover. The failover consists of the detection, which takes three heartbeats by default, and the
//! takeover.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::edge::cache::{Cache, CacheConfig, CachePolicy, SecondPacket};
use proto::edge::{
    EdgeDirection, EdgeSegment, InvalidRecovery, LocalRecovery, RecoveryConfig, RecoveryCounts,
};
use proto::rate::{RateConfig, RateControl, RateRule};
use proto::{Instant, Seq};
use serde::Deserialize;

use super::InvalidScenario;
use crate::flow::seconds;
use crate::flow::{FlowDirection, FlowFlags, FlowId, FlowPacket};
use crate::net::{Logic, SwitchOutbox};

/// Local recovery in a scenario; times are in seconds. The thesis names no heartbeat interval. The default interval is so short that three
/// heartbeats fit into the thesis' shortest failover, 50 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EdgeRecovery {
    /// Policy that decides which packets the edges cache.
    pub policy: CachePolicy,
    /// Time between two heartbeats.
    #[serde(with = "seconds")]
    pub heartbeat: Duration,
    /// Number of missing heartbeats that count as a failure.
    pub missed: u32,
    /// Number of missing heartbeats after which the edges begin to cache packets. 0: they always cache.
    pub caching_after: u32,
    /// Number of times that the highest acknowledgement is sent again.
    pub ack_copies: u32,
    /// Bytes that each edge may remember.
    pub max_bytes: usize,
    /// Packets that each edge may remember.
    pub max_packets: usize,
}

impl Default for EdgeRecovery {
    fn default() -> Self {
        Self {
            policy: CachePolicy::Lowest,
            heartbeat: Duration::from_millis(10),
            missed: 3,
            caching_after: 2,
            ack_copies: 3,
            max_bytes: 16 << 20, // enough for 10,000 connections (thesis §3.4)
            max_packets: 20_000,
        }
    }
}

impl EdgeRecovery {
    const fn config(&self) -> RecoveryConfig {
        RecoveryConfig {
            heartbeat: self.heartbeat,
            missed: self.missed,
            caching_after: self.caching_after,
            traffic_timeout: Duration::ZERO,
            ack_copies: self.ack_copies,
            cache: CacheConfig {
                policy: self.policy,
                second: SecondPacket::Acknowledgement,
                max_bytes: self.max_bytes,
                max_packets: self.max_packets,
                max_connection_bytes: self.max_bytes,
            },
        }
    }

    /// Checks whether this configuration can recover from a failure within `failover`.
    pub(super) fn check(&self, failover: Duration) -> Result<(), InvalidScenario> {
        let config = self.config();
        config.check()?;
        if config.patience() > failover {
            return Err(InvalidScenario::Detection);
        }
        Ok(())
    }
}

/// Rate control in a scenario: a cap on the flows' advertised windows. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sharing {
    /// ρ: the target utilization, as a fraction of the string's rate.
    pub utilization: f64,
    /// w: the weight of a new measurement in the cap.
    pub weight: f64,
    /// Δ: length of an interval.
    #[serde(with = "seconds")]
    pub interval: Duration,
    /// RTT. The default is the flows' round-trip time without queueing.
    #[serde(with = "seconds::optional")]
    pub round_trip: Option<Duration>,
    /// W_min, in bytes.
    pub min_window: u32,
    /// The equation that moves the cap.
    pub rule: RateRule,
    /// Time from the failure until it is declared. Rate control begins then.
    #[serde(with = "seconds")]
    pub alert: Duration,
    /// Time without a packet after which a flow no longer counts as active.
    #[serde(with = "seconds")]
    pub idle: Duration,
}

impl Default for Sharing {
    fn default() -> Self {
        Self {
            utilization: 0.95,
            weight: 1.0,
            interval: Duration::from_millis(200),
            round_trip: None,
            min_window: 2 * 1460,
            rule: RateRule::Thesis,
            alert: Duration::from_millis(30),
            idle: Duration::from_secs(1),
        }
    }
}

impl Sharing {
    /// The defaults of `steadfast edge`.
    pub fn today() -> Self {
        Self {
            utilization: 0.97,
            rule: RateRule::Backlog,
            ..Self::default()
        }
    }

    /// The configuration for a string of this rate, and flows with this round trip.
    pub(super) fn config(&self, bits_per_s: u64, round_trip: Duration) -> RateConfig {
        RateConfig {
            bytes_per_s: bits_per_s as f64 / 8.0,
            utilization: self.utilization,
            weight: self.weight,
            round_trip: self.round_trip.unwrap_or(round_trip),
            interval: self.interval,
            min_window: self.min_window,
            rule: self.rule,
        }
    }
}

/// The failure: what fails, and when.
#[derive(Clone, Debug)]
pub(super) struct StringFailure {
    /// When the string fails.
    pub at: Instant,
    /// When the failover ends: the failed string's flows use another string from then on.
    pub over: Instant,
    /// When the string works again, if it does. Rate control ends at this time (thesis §6.2).
    pub repaired: Option<Instant>,
    /// Time that a heartbeat takes over the string.
    pub travel: Duration,
    /// For each flow, whether it is on the string that fails.
    pub hits: Vec<bool>,
}

/// The only string of the edge's cache: the one that fails.
const FAILING: usize = 0;

/// Local recovery of the string that fails, and the packets that it holds.
struct StringRecovery {
    machine: LocalRecovery,
    cache: Cache<FlowId, FlowPacket>,
}

/// An edge.
pub(super) struct Edge {
    /// Direction of the packets that enter the cluster at this edge.
    entering: FlowDirection,
    failure: StringFailure,
    over: Option<Instant>,
    recovery: Option<StringRecovery>,
    /// Arrival time of the last heartbeat before the failure. Earlier heartbeats have no effect on the run, so they are not simulated.
    heartbeat: Option<Instant>,
    shared: Option<RemainingString>,
}

impl Edge {
    /// An edge that does nothing yet.
    pub const fn new(entering: FlowDirection, failure: StringFailure) -> Self {
        Self {
            entering,
            over: Some(failure.over),
            failure,
            recovery: None,
            heartbeat: None,
            shared: None,
        }
    }

    /// Lets the edge recover the flows that the failure hits.
    pub fn recover(&mut self, recovery: &EdgeRecovery) -> Result<(), InvalidRecovery> {
        let config = recovery.config();
        self.recovery = Some(StringRecovery {
            machine: LocalRecovery::new(config, FAILING, Instant::ZERO)?,
            cache: Cache::new(config.cache, FAILING + 1),
        });
        self.heartbeat = Some(last_heartbeat(recovery.heartbeat, &self.failure));
        Ok(())
    }

    /// Lets the edge control the rates of the flows that share the remaining string.
    pub fn share(&mut self, sharing: &Sharing, config: RateConfig) {
        self.shared = Some(RemainingString {
            config,
            next: Some(self.failure.at + sharing.alert),
            until: self.failure.repaired,
            idle: sharing.idle,
            control: None,
            sent: vec![None; self.failure.hits.len()],
            windows: Vec::new(),
        });
    }

    /// Counters of local recovery.
    pub fn counts(&self) -> Option<RecoveryCounts> {
        self.recovery.as_ref().map(|one| one.machine.counts(&one.cache))
    }

    /// The cap in bytes at the control's beginning and at the end of each interval.
    pub fn windows(&self) -> &[(Instant, u32)] {
        self.shared.as_ref().map_or(&[], |shared| &shared.windows)
    }
}

/// The remaining string, and the flows that share it.
struct RemainingString {
    config: RateConfig,
    /// Before the control begins, the time of its beginning. Afterwards, the end of the current interval. `None` once the control has
    /// ended.
    next: Option<Instant>,
    until: Option<Instant>,
    idle: Duration,
    control: Option<RateControl>,
    /// When each flow last sent.
    sent: Vec<Option<Instant>>,
    windows: Vec<(Instant, u32)>,
}

impl RemainingString {
    /// A packet enters the cluster. `dead`: the packet goes into the failed string.
    fn on_entering(&mut self, now: Instant, packet: &FlowPacket, dead: bool) {
        if let Some(sent) = self.sent.get_mut(packet.flow.0 as usize) {
            *sent = Some(now);
        }
        if let Some(control) = self.control.as_mut().filter(|_| !dead) {
            control.on_bytes(packet.wire_bytes() as u64);
        }
    }

    fn on_timeout(&mut self, now: Instant) {
        if self.until.take_if(|until| *until <= now).is_some() {
            (self.control, self.next) = (None, None);
        }
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        let connections = self.active(now, |_| true);
        match &mut self.control {
            Some(control) => control.on_timeout(now, connections),
            None => self.control = RateControl::new(self.config, now, connections).ok(),
        }
        if let Some(control) = &self.control {
            self.next = Some(control.poll_timeout());
            self.windows.push((now, control.window()));
        }
    }

    /// The failed string's flows use this string from now on.
    fn on_moved(&mut self, now: Instant, hits: &[bool]) {
        let flows = hits.iter().zip(&self.sent);
        let moved = flows.filter(|(hit, sent)| **hit && sent.is_some()).count();
        let active = self.active(now, |flow| !hits[flow]);
        if let Some(control) = &mut self.control {
            control.on_moved(active + moved);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.next.into_iter().chain(self.until).min()
    }

    /// Number of flows that sent recently and for which `kind` is true.
    fn active(&self, now: Instant, kind: impl Fn(usize) -> bool) -> usize {
        let late = |sent: &Option<Instant>| sent.is_some_and(|at| at + self.idle >= now);
        let sent = self.sent.iter().enumerate();
        sent.filter(|(flow, sent)| late(sent) && kind(*flow)).count()
    }
}

/// Arrival of the last heartbeat before the failure. A heartbeat leaves at every multiple of the interval.
fn last_heartbeat(interval: Duration, failure: &StringFailure) -> Instant {
    let sent = failure.at.since(Instant::ZERO).saturating_sub(failure.travel);
    let nanos = sent.as_nanos() - sent.as_nanos() % interval.as_nanos();
    Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)) + failure.travel
}

impl Logic for Edge {
    fn handle(&mut self, now: Instant, mut packet: FlowPacket, out: &mut SwitchOutbox) {
        let hit = self.failure.hits.get(packet.flow.0 as usize) == Some(&true);
        let way = if packet.direction == self.entering {
            EdgeDirection::Entering
        } else {
            EdgeDirection::Leaving
        };
        if let Some(shared) = &mut self.shared {
            match way {
                EdgeDirection::Entering => shared.on_entering(now, &packet, hit && self.over.is_some()),
                EdgeDirection::Leaving => {
                    let cap = shared.control.map_or(u32::MAX, |control| control.window());
                    packet.window = packet.window.min(cap);
                }
            }
        }
        out.send(packet);
        if let Some(recovery) = self.recovery.as_mut().filter(|_| hit) {
            let bytes = packet.wire_bytes();
            let StringRecovery { machine, cache } = recovery;
            machine.on_packet(cache, packet.flow, way, &segment(&packet), bytes, || packet);
        }
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut SwitchOutbox) {
        let over = self.over.take_if(|at| *at <= now).is_some();
        if let Some(shared) = self.shared.as_mut().filter(|_| over) {
            shared.on_moved(now, &self.failure.hits); // first, because the new cap limits the resending below
        }
        if let Some(StringRecovery { machine, cache }) = &mut self.recovery {
            if self.heartbeat.take_if(|at| *at <= now).is_some() {
                machine.on_heartbeat(now, cache);
            }
            machine.on_timeout(now);
            if over {
                let shared = self.shared.as_ref().and_then(|shared| shared.control.as_ref());
                let cap = shared.map_or(u32::MAX, RateControl::window);
                let mut again: BTreeMap<FlowId, u32> = BTreeMap::new();
                for resend in machine.complete(now, cache) {
                    // The edge resends at most `cap` bytes of each flow. The flow's sender repeats the rest.
                    let bytes = again.entry(resend.packet.flow).or_default();
                    *bytes += u32::from(resend.packet.len);
                    if *bytes <= cap {
                        (0..resend.copies).for_each(|_| out.send(resend.packet));
                    }
                }
            }
        }
        if let Some(shared) = &mut self.shared {
            shared.on_timeout(now);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let recovery = self.recovery.as_ref().and_then(|one| one.machine.poll_timeout());
        let shared = self.shared.as_ref().and_then(RemainingString::poll_timeout);
        [self.heartbeat, recovery, self.over, shared]
            .into_iter()
            .flatten()
            .min()
    }
}

/// The parts of a packet that an edge reads.
// Sequence numbers in a TCP header have 32 bits.
fn segment(packet: &FlowPacket) -> EdgeSegment {
    EdgeSegment {
        seq: Seq(packet.seq as u32),
        len: u32::from(packet.len),
        ack: packet.flags.has(FlowFlags::ACK).then_some(Seq(packet.ack as u32)),
        syn: packet.flags.has(FlowFlags::SYN),
        fin: packet.flags.has(FlowFlags::FIN),
        rst: false, // simulated flows never send a reset
    }
}
