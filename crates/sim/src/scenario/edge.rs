//! R1 and R2 as edges: local recovery ([`proto::edge`]) for the flows of the string that fails.
//!
//! The failover takes what the scenario says: detection, three heartbeats by default, and the rest is the takeover.

use std::time::Duration;

use proto::detector::DetectorConfig;
use proto::edge::cache::{CacheConfig, Policy, Segment, Way};
use proto::edge::{InvalidRecovery, LocalRecovery, RecoveryConfig, RecoveryCounts};
use proto::{Instant, Seq};
use serde::Deserialize;

use super::InvalidScenario;
use crate::flow::seconds;
use crate::net::{Direction, Flags, FlowId, Logic, Outbox, Packet};

/// Local recovery in a scenario; times are in seconds. The thesis names no interval of heartbeats: ours leaves its shortest failover, 50 ms,
/// time for three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recovery {
    /// What is remembered.
    pub policy: Policy,
    /// Time between two heartbeats.
    #[serde(with = "seconds")]
    pub heartbeat: Duration,
    /// So many missing heartbeats are a failure.
    pub missed: u32,
    /// So many missing heartbeats begin the caching; 0: it never stops.
    pub caching_after: u32,
    /// How often the highest acknowledgement is sent again.
    pub ack_copies: u32,
    /// Bytes that each edge may remember.
    pub max_bytes: usize,
    /// Packets that each edge may remember.
    pub max_packets: usize,
}

impl Default for Recovery {
    fn default() -> Self {
        Self {
            policy: Policy::Lowest,
            heartbeat: Duration::from_millis(10),
            missed: 3,
            caching_after: 2,
            ack_copies: 3,
            max_bytes: 16 << 20, // 10,000 connections of thesis §3.4
            max_packets: 20_000,
        }
    }
}

impl Recovery {
    const fn config(&self) -> RecoveryConfig {
        RecoveryConfig {
            heartbeat: DetectorConfig {
                interval: self.heartbeat,
                missed: self.missed,
            },
            caching_after: self.caching_after,
            ack_copies: self.ack_copies,
            cache: CacheConfig {
                policy: self.policy,
                max_bytes: self.max_bytes,
                max_packets: self.max_packets,
            },
        }
    }

    /// Whether a failure can be recovered from like that within `failover`.
    pub(super) fn check(&self, failover: Duration) -> Result<(), InvalidScenario> {
        let config = self.config();
        config.check()?;
        if config.heartbeat.patience() > failover {
            return Err(InvalidScenario::Late("recovery.missed × recovery.heartbeat"));
        }
        Ok(())
    }
}

/// What fails, and when.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// When the string fails.
    pub at: Instant,
    /// When its flows have another one.
    pub over: Instant,
    /// How long a heartbeat travels over the string.
    pub travel: Duration,
    /// Which flows are on the string.
    pub hits: Vec<bool>,
}

/// An edge.
pub(super) struct Edge {
    /// Which packets enter the cluster here.
    entering: Direction,
    failure: Failure,
    recovery: LocalRecovery<FlowId, Packet>,
    /// While all is well only the last heartbeat matters; only that is told.
    heartbeat: Option<Instant>,
    over: Option<Instant>,
}

impl Edge {
    pub fn new(entering: Direction, recovery: &Recovery, failure: Failure) -> Result<Self, InvalidRecovery> {
        let heartbeat = last_heartbeat(recovery.heartbeat, &failure);
        Ok(Self {
            entering,
            recovery: LocalRecovery::new(recovery.config(), Instant::ZERO)?,
            heartbeat: Some(heartbeat),
            over: Some(failure.over),
            failure,
        })
    }

    pub const fn counts(&self) -> RecoveryCounts {
        self.recovery.counts()
    }
}

/// When the last heartbeat before the failure comes. One leaves at every multiple of the interval.
fn last_heartbeat(interval: Duration, failure: &Failure) -> Instant {
    let sent = failure.at.since(Instant::ZERO).saturating_sub(failure.travel);
    let nanos = sent.as_nanos() - sent.as_nanos() % interval.as_nanos();
    Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)) + failure.travel
}

impl Logic for Edge {
    fn handle(&mut self, _now: Instant, packet: Packet, out: &mut Outbox) {
        out.send(packet);
        let hit = self.failure.hits.get(packet.flow.0 as usize);
        if hit == Some(&true) {
            let way = if packet.direction == self.entering {
                Way::Entering
            } else {
                Way::Leaving
            };
            let segment = segment(&packet);
            self.recovery
                .on_packet(packet.flow, way, &segment, packet.wire_bytes(), || packet);
        }
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Outbox) {
        if self.heartbeat.is_some_and(|at| at <= now) {
            self.heartbeat = None;
            self.recovery.on_heartbeat(now);
        }
        self.recovery.on_timeout(now);
        if self.over.is_some_and(|at| at <= now) {
            self.over = None;
            for resend in self.recovery.complete(now) {
                (0..resend.copies).for_each(|_| out.send(resend.packet));
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.heartbeat, self.recovery.poll_timeout(), self.over]
            .into_iter()
            .flatten()
            .min()
    }
}

/// What an edge reads of a packet.
#[allow(clippy::cast_possible_truncation)] // numbers on the wire have 32 bits
fn segment(packet: &Packet) -> Segment {
    Segment {
        seq: Seq(packet.seq as u32),
        len: u32::from(packet.len),
        ack: packet.flags.has(Flags::ACK).then_some(Seq(packet.ack as u32)),
        syn: packet.flags.has(Flags::SYN),
        fin: packet.flags.has(Flags::FIN),
        rst: false, // the flows' ends never reset
    }
}
