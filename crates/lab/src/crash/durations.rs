//! The clients' waits: the parts of the stall, the waits without a fault, and the waits while a node returns.

use proto::Instant;

use super::facts::FAULT;
use crate::client::{ClientReport, Gap};
use crate::clock::ms;
use crate::node::{ReportedConnection, ReportedTakeover};

/// Durations that the clients measured, in milliseconds.
#[derive(Debug, Default)]
pub struct Durations {
    /// For each connection at work: its longest wait around the fault.
    pub stall: Vec<f64>,
    /// For each connection: its longest wait around the event that follows the fault.
    pub second_stall: Vec<f64>,
    /// From the fault to the declaration of a takeover or the beginning of a claim.
    pub detection: Vec<f64>,
    /// Stall minus detection, for each connection at work.
    pub beyond_detection: Vec<f64>,
    /// Whether `beyond_detection` contains waits for a claim. Before a claim, the broken path loses the segments under way. Before a
    /// takeover, the wire has logged them.
    pub is_lossy: bool,
    /// Whether the roles changed by the operator's order, so that there was nothing to detect, and `beyond_detection` is the whole stall.
    pub is_planned: bool,
    /// From the declaration until the connection could continue.
    pub takeover: Vec<f64>,
    /// From the end of the takeover until bytes flowed again.
    pub restart_gap: Vec<f64>,
    /// For each connection with a recorded gap: its longest wait in fault-free time.
    pub baseline_gap: Vec<f64>,
    /// For each connection at work: its longest wait in fault-free time.
    pub fault_free_gap: Vec<f64>,
    /// For each return of a node: the time until the node was the wire.
    pub integration: Vec<f64>,
    /// For each return of a node: the longest wait of any connection during the return.
    pub integration_gap: Vec<f64>,
    /// For each move of connections: the time until the new wire protected all of them.
    pub protected: Vec<f64>,
}

/// The clients' measurements. The first `idle` connections are idle: they wait for no reply while the other connections transfer data.
#[derive(Clone, Copy)]
pub struct Felt<'a> {
    /// The clients' report.
    pub client: &'a ClientReport,
    /// Number of idle connections, if other connections are at work.
    pub idle: usize,
}

/// A takeover and what caused it.
#[derive(Clone, Copy)]
pub struct TakeoverCause<'a> {
    /// When the fault happened.
    pub deadly_at: Instant,
    /// Index of the clients' measurement of the fault, in `ConnectionReport::stalls`.
    pub told: usize,
    /// The survivor's takeovers.
    pub takeovers: &'a [ReportedTakeover],
    /// The survivor's connections after the takeovers.
    pub taken_over: &'a [ReportedConnection],
}

impl Felt<'_> {
    /// For each connection that is not idle: its longest wait in measurement number `told`.
    pub fn waits(&self, told: usize) -> impl Iterator<Item = f64> {
        self.of_asked(told).map(|gap| gap.map_or(0.0, Gap::ms))
    }

    /// For each connection with a recorded gap, idle ones included: its longest wait in measurement number `told`.
    pub fn gaps(&self, told: usize) -> impl Iterator<Item = f64> {
        let stalls = self.client.connections.iter();
        stalls
            .filter_map(move |one| one.stalls.get(told)?.gap)
            .map(Gap::ms)
    }

    fn of_asked(&self, told: usize) -> impl Iterator<Item = Option<Gap>> {
        let asked = self.client.connections.iter().skip(self.idle);
        asked
            .filter_map(move |one| one.stalls.get(told))
            .map(|stall| stall.gap)
    }
}

impl Durations {
    /// Adds the whole waits around an order of the operator.
    pub fn add_planned(&mut self, felt: Felt<'_>) {
        self.is_planned = true;
        self.beyond_detection = felt.waits(FAULT).collect();
    }

    /// Adds, for each connection, the durations of a takeover's parts.
    pub fn add_takeover(&mut self, felt: Felt<'_>, cause: TakeoverCause<'_>) {
        for (index, connection) in felt.client.connections.iter().enumerate() {
            let is_same = |other: &&ReportedConnection| connection.has_been(other.client);
            let live = cause.taken_over.iter().find(is_same).map(|one| one.live_ns);
            let is_its_own =
                |takeover: &&ReportedTakeover| live.is_none_or(|live| takeover.declared_ns <= live);
            let Some(takeover) = cause.takeovers.iter().rev().find(is_its_own) else {
                continue;
            };
            let detection = ms(cause.deadly_at.as_nanos(), takeover.declared_ns);
            self.detection.push(detection);
            if index >= felt.idle
                && let Some(stall) = connection.stalls.get(cause.told)
            {
                self.beyond_detection
                    .push(stall.gap.map_or(0.0, Gap::ms) - detection);
            }
            let Some(live) = live else { continue };
            self.takeover.push(ms(takeover.declared_ns, live));
            let gap = connection.stalls.get(cause.told).and_then(|stall| stall.gap);
            let waited = gap.map_or(0.0, |gap| {
                let able = gap.start_ns.max(live);
                ms(able, gap.start_ns + gap.length_ns).max(0.0)
            });
            self.restart_gap.extend((index >= felt.idle).then_some(waited));
        }
    }

    /// Adds the waits that a claim has caused. The claim began at `claimed_at`, after the fault at `fault_at`. The waits count
    /// against the limit only if `is_limited`.
    pub fn add_claim(&mut self, felt: Felt<'_>, fault_at: Instant, claimed_at: Instant, is_limited: bool) {
        let detection = ms(fault_at.as_nanos(), claimed_at.as_nanos());
        self.is_lossy |= is_limited;
        self.detection
            .extend(felt.client.connections.iter().map(|_| detection));
        if is_limited {
            self.beyond_detection
                .extend(felt.waits(FAULT).map(|wait| wait - detection));
        }
    }

    /// Adds the durations of another run or round.
    pub fn add(&mut self, other: Self) {
        self.stall.extend(other.stall);
        self.second_stall.extend(other.second_stall);
        self.detection.extend(other.detection);
        self.beyond_detection.extend(other.beyond_detection);
        self.is_lossy |= other.is_lossy;
        self.is_planned |= other.is_planned;
        self.takeover.extend(other.takeover);
        self.restart_gap.extend(other.restart_gap);
        self.baseline_gap.extend(other.baseline_gap);
        self.fault_free_gap.extend(other.fault_free_gap);
        self.integration.extend(other.integration);
        self.integration_gap.extend(other.integration_gap);
        self.protected.extend(other.protected);
    }
}
