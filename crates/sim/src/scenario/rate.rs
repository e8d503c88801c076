//! The HALR thesis' second cluster (§7.4) has two strings. The second string fails, and its flows continue over the first string.
//!
//! ```text
//!                     ┌── N1 ──┐                    every group starts a flow per `gap`
//!   source ── access ─ R1      R2 ─ access ── destination
//!                     └── N2 ──┘                    fails; its flows are moved to N1 `failover` later
//! ```

use std::time::Duration;

use proto::Instant;
use proto::edge::RecoveryCounts;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::cluster::thesis_tcp;
use super::edge::{Edge, EdgeRecovery, Sharing, StringFailure};
use super::{FlowResult, InvalidScenario, MOST};
use crate::flow::{FlowConfig, TcpVariant, seconds};
use crate::flow::{FlowDirection, FlowId};
use crate::link::LinkConfig;
use crate::net::{EventPlace, FlowNetwork, LinkEnd, LinkId, SwitchId, TraceEvent};

/// The scenario. The default has the numbers of §7.4, without rate control; times are in seconds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateScenario {
    /// TCP at both ends. If a file has this table, fields that are missing in it get the RFCs' values, not the thesis' values.
    pub tcp: FlowConfig,
    /// Flows per string.
    pub flows: u32,
    /// Full data segments per flow.
    pub segments: u64,
    /// Time between two arrivals on a string.
    #[serde(with = "seconds")]
    pub gap: Duration,
    /// Largest random delay of an arrival.
    #[serde(with = "seconds")]
    pub jitter: Duration,
    /// Maximum number of packets in the queue of each link of a string.
    pub buffer_packets: usize,
    /// Bits per second of each string. Unequal rates make the post-failover bottleneck narrower (thesis §6.1).
    #[serde(deserialize_with = "one_per_string")]
    pub rate_bits_per_s: [u64; 2],
    /// Bits per second of the hosts' links.
    pub access_rate_bits_per_s: u64,
    /// Propagation delay between a source and R1.
    #[serde(with = "seconds")]
    pub source_delay: Duration,
    /// Propagation delay of every other link.
    #[serde(with = "seconds")]
    pub delay: Duration,
    /// When the second string fails.
    #[serde(with = "seconds")]
    pub failure_at: Duration,
    /// Time that the second string's flows wait until they are moved. Flows that start after the failure use the first string immediately.
    #[serde(with = "seconds")]
    pub failover: Duration,
    /// Time when the second string works again. From then on the second group's flows use the second string, and rate control ends. The
    /// default is never, as in the thesis.
    #[serde(with = "seconds::optional")]
    pub repaired_at: Option<Duration>,
    /// If set, R1 and R2 do local recovery for the flows that wait.
    pub recovery: Option<EdgeRecovery>,
    /// If set, R1 and R2 do rate control for the string that has not failed.
    pub sharing: Option<Sharing>,
    /// Length of a bin, the interval in which throughput is counted.
    #[serde(with = "seconds")]
    pub bin: Duration,
    /// Time between two samples of the queue.
    #[serde(with = "seconds")]
    pub queue_interval: Duration,
    /// Latest end of the run. The run ends earlier, one second after the last flow, if all flows are complete.
    #[serde(with = "seconds")]
    pub end: Duration,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Reads exactly two numbers, and refuses any other count. Deserializing an array would ignore further numbers in the file.
fn one_per_string<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u64; 2], D::Error> {
    let rates = Vec::<u64>::deserialize(deserializer)?;
    let wrong = |rates: Vec<u64>| D::Error::invalid_length(rates.len(), &"two rates, one per string");
    rates.try_into().map_err(wrong)
}

impl Default for RateScenario {
    fn default() -> Self {
        Self {
            tcp: thesis_tcp(TcpVariant::Reno),
            flows: 50,
            segments: 3000,
            gap: Duration::from_millis(250),
            jitter: Duration::ZERO,
            buffer_packets: 749, // ns-2's limit of 750 counts the packet that is being sent
            rate_bits_per_s: [100_000_000; 2],
            access_rate_bits_per_s: 100_000_000,
            source_delay: Duration::from_millis(46),
            delay: Duration::from_millis(1),
            failure_at: Duration::from_secs(5),
            failover: Duration::from_secs(3),
            repaired_at: None,
            recovery: None,
            sharing: None,
            bin: Duration::from_millis(100),
            queue_interval: Duration::from_millis(20),
            end: Duration::from_secs(60),
            seed: 1,
        }
    }
}

/// Result of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateFlow {
    /// Whether the flow used the string that failed, and waited for the failover.
    pub waited: bool,
    /// The flow's times and counts.
    pub result: FlowResult,
}

/// Counts of a bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// End of the bin.
    pub end: Instant,
    /// Bytes that R1 sent into each string.
    pub sent: [u64; 2],
    /// Data bytes that arrived in order: first those of flows that never waited, then those of flows that waited.
    pub delivered: [u64; 2],
    /// Packets that R1 dropped because its queue for the first string was full.
    pub overflows: u64,
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateResult {
    /// The flows, in the order in which they arrive without jitter. Of two flows that arrive together, the first string's comes first.
    pub flows: Vec<RateFlow>,
    /// The bins in order of time. The first one begins at 0.
    pub bins: Vec<Bin>,
    /// Number of packets in R1's queue for the first string, with the time of each sample.
    pub queue: Vec<(Instant, usize)>,
    /// Bytes of data that each flow received in order in each half second.
    pub flow_bins: Vec<Vec<u64>>,
    /// Bytes of data that each flow received in each half second, in any order: its share of the string. `None` unless the flow was active
    /// in the whole half second. A flow that waited for the failover counts as active from the first acknowledgement after the failover's
    /// end. Until then the flow waits for its retransmission timer.
    pub shares: Vec<Vec<Option<u64>>>,
    /// R1's cap for advertised windows, in bytes, at the end of each interval of rate control.
    pub windows: Vec<(Instant, u32)>,
    /// Counters of R1's and R2's local recovery.
    pub edges: Option<[RecoveryCounts; 2]>,
}

/// Length of a flow's bin.
const FLOW_BIN: Duration = Duration::from_millis(500);
/// Time that the run continues after the last flow.
const AFTERWARDS: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
enum RateStep {
    Start(FlowId),
    Fail,
    Move(FlowId),
    /// A flow of the second group uses the second string again, which has been repaired.
    Return(FlowId),
    Repair,
    Bin,
    Queue,
    FlowBin,
}

/// The parts of the network that the run needs, and the scheduled steps of the run.
struct RateParts {
    /// First the links R1 → N1, N1 → R2, R2 → N1 and N1 → R1. Then the four links of N2 in the same order.
    strings: [[LinkId; 4]; 2],
    switches: [SwitchId; 4],
    waited: Vec<bool>,
    acts: Vec<(Duration, RateStep)>,
}

impl RateScenario {
    /// Runs the scenario.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn run(&self) -> Result<RateResult, InvalidScenario> {
        self.check()?;
        self.run_in(FlowNetwork::new(self.seed))
    }

    /// Runs the scenario, and tells `trace` of every event.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn run_traced(
        &self,
        trace: impl FnMut(&TraceEvent) + 'static,
    ) -> Result<RateResult, InvalidScenario> {
        self.check()?;
        let mut network = FlowNetwork::new(self.seed);
        network.set_trace(trace);
        self.run_in(network)
    }

    fn run_in(&self, mut network: FlowNetwork) -> Result<RateResult, InvalidScenario> {
        let built = self.build(&mut network)?;
        self.put_edges(&mut network, &built)?;
        let mut watch = RateRecorder::new(&built);
        let mut end = Instant::ZERO + self.end;
        for (at, act) in &built.acts {
            let at = Instant::ZERO + *at;
            if network.run_flows(at.min(end)) {
                end = end.min(network.now() + AFTERWARDS);
            }
            if at > end {
                break;
            }
            network.run_until(at);
            match act {
                RateStep::Start(flow) => network.start(*flow),
                RateStep::Fail => built.set_up(&mut network, false),
                RateStep::Repair => built.set_up(&mut network, true),
                RateStep::Move(flow) => {
                    built.route(&mut network, *flow, 0);
                    watch.moved(&network, *flow);
                }
                RateStep::Return(flow) => built.route(&mut network, *flow, 1),
                RateStep::Bin => watch.bin(&mut network),
                RateStep::Queue => watch.queue(&mut network),
                RateStep::FlowBin => watch.flow_bin(&network),
            }
        }
        Ok(watch.finish(&network))
    }

    /// Checks the configuration without running it.
    ///
    /// # Errors
    /// Names the first invalid field.
    pub fn check(&self) -> Result<(), InvalidScenario> {
        for (field, zero) in [
            ("flows", self.flows == 0),
            ("segments", self.segments == 0),
            ("gap", self.gap.is_zero()),
            ("bin", self.bin.is_zero()),
            ("queue_interval", self.queue_interval.is_zero()),
        ] {
            if zero {
                return Err(InvalidScenario::Zero(field));
            }
        }
        if self.flows > MOST / 2 {
            return Err(InvalidScenario::Many("flows"));
        }
        for (field, step) in [("bin", self.bin), ("queue_interval", self.queue_interval)] {
            if self.end.div_duration_f64(step) > f64::from(MOST) {
                return Err(InvalidScenario::Many(field));
            }
        }
        if self.failure_at + self.failover > self.end {
            return Err(InvalidScenario::Late("failover"));
        }
        let over = self.failure_at + self.failover;
        if self.repaired_at.is_some_and(|at| at < over || at > self.end) {
            return Err(InvalidScenario::Repair);
        }
        if let Some(sharing) = &self.sharing {
            sharing
                .config(self.rate_bits_per_s[0], self.round_trip())
                .check()?;
        }
        self.recovery
            .map_or(Ok(()), |recovery| recovery.check(self.failover))
    }

    /// Round trip of a flow without a queue.
    fn round_trip(&self) -> Duration {
        (self.source_delay + self.delay * 3) * 2
    }

    /// Gives R1 and R2 the logic of an edge, if there is local recovery or rate control.
    fn put_edges(&self, network: &mut FlowNetwork, built: &RateParts) -> Result<(), InvalidScenario> {
        if self.recovery.is_none() && self.sharing.is_none() {
            return Ok(());
        }
        let failure = StringFailure {
            at: Instant::ZERO + self.failure_at,
            over: Instant::ZERO + self.failure_at + self.failover,
            repaired: self.repaired_at.map(|at| Instant::ZERO + at),
            travel: self.delay * 2,
            hits: built.waited.clone(),
        };
        let ways = [FlowDirection::Forward, FlowDirection::Backward];
        for (switch, entering) in built.switches.into_iter().zip(ways) {
            let mut edge = Edge::new(entering, failure.clone());
            if let Some(recovery) = &self.recovery {
                edge.recover(recovery)?;
            }
            if let Some(sharing) = &self.sharing {
                edge.share(
                    sharing,
                    sharing.config(self.rate_bits_per_s[0], self.round_trip()),
                );
            }
            network.set_logic(switch, Box::new(edge));
        }
        Ok(())
    }

    fn build(&self, network: &mut FlowNetwork) -> Result<RateParts, InvalidScenario> {
        let switches = ["R1", "R2", "N1", "N2"].map(|name| network.add_switch(name));
        let [r1, r2, n1, n2] = switches;
        let link = |rate, delay, queue_packets| LinkConfig {
            rate_bits_per_s: Some(rate),
            delay,
            queue_packets,
            ..LinkConfig::default()
        };
        let mut string = |through: SwitchId, rate| {
            let config = link(rate, self.delay, Some(self.buffer_packets));
            let mut lay = |to| network.add_link(LinkEnd::Switch(to), &config);
            Ok::<_, InvalidScenario>([lay(through)?, lay(r2)?, lay(through)?, lay(r1)?])
        };
        let strings = [
            string(n1, self.rate_bits_per_s[0])?,
            string(n2, self.rate_bits_per_s[1])?,
        ];
        let mut built = RateParts {
            strings,
            switches,
            waited: Vec::new(),
            acts: self.looks(),
        };
        let mut random = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let bytes = self.segments * u64::from(self.tcp.mss);
        for index in 0..self.flows {
            for group in 0..2 {
                let at = self.gap * index + self.jitter.mul_f64(random.random::<f64>());
                let waited = group == 1 && at < self.failure_at;
                let source = link(self.access_rate_bits_per_s, self.source_delay, None);
                let destination = link(self.access_rate_bits_per_s, self.delay, None);
                let uplinks = [
                    network.add_link(LinkEnd::Switch(r1), &source)?,
                    network.add_link(LinkEnd::Switch(r2), &destination)?,
                ];
                let downlinks = [
                    network.add_link(LinkEnd::Hosts, &source)?,
                    network.add_link(LinkEnd::Hosts, &destination)?,
                ];
                let flow = network.add_flow(&self.tcp, bytes, uplinks)?;
                network.set_route(r1, flow, FlowDirection::Backward, downlinks[0]);
                network.set_route(r2, flow, FlowDirection::Forward, downlinks[1]);
                built.route(network, flow, usize::from(waited));
                built.acts.push((at, RateStep::Start(flow)));
                if let Some(at) = self.repaired_at.filter(|_| group == 1) {
                    built.acts.push((at, RateStep::Return(flow)));
                }
                if waited {
                    built
                        .acts
                        .push((self.failure_at + self.failover, RateStep::Move(flow)));
                }
                built.waited.push(waited);
            }
        }
        built.acts.push((self.failure_at, RateStep::Fail));
        built
            .acts
            .extend(self.repaired_at.map(|at| (at, RateStep::Repair)));
        built.acts.sort_by_key(|(at, _)| *at);
        Ok(built)
    }

    /// The samples to be taken, and their times.
    fn looks(&self) -> Vec<(Duration, RateStep)> {
        let every = |interval: Duration, act| {
            let times = (1_u32..).map(move |count| interval * count);
            times.take_while(|at| *at <= self.end).map(move |at| (at, act))
        };
        every(self.queue_interval, RateStep::Queue)
            .chain(every(self.bin, RateStep::Bin))
            .chain(every(FLOW_BIN, RateStep::FlowBin))
            .collect()
    }
}

impl RateParts {
    /// Cuts or connects the second string.
    fn set_up(&self, network: &mut FlowNetwork, up: bool) {
        network.note(EventPlace::Node("N2"), if up { "up" } else { "down" });
        self.strings[1].iter().for_each(|link| network.set_up(*link, up));
    }

    /// Routes a flow over a string, in both directions.
    fn route(&self, network: &mut FlowNetwork, flow: FlowId, string: usize) {
        let [to_n, to_r2, back_to_n, back_to_r1] = self.strings[string];
        let [r1, r2, ..] = self.switches;
        let n = self.switches[2 + string];
        for (switch, direction, link) in [
            (r1, FlowDirection::Forward, to_n),
            (n, FlowDirection::Forward, to_r2),
            (r2, FlowDirection::Backward, back_to_n),
            (n, FlowDirection::Backward, back_to_r1),
        ] {
            network.set_route(switch, flow, direction, link);
        }
    }
}

/// The samples so far, and each counter's value at its previous sample.
struct RateRecorder<'a> {
    built: &'a RateParts,
    result: RateResult,
    sent: [u64; 2],
    delivered: [u64; 2],
    overflows: u64,
    flows: Vec<u64>,
    received: Vec<u64>,
    /// The sequence number before which everything was acknowledged when the flow was moved.
    moved: Vec<Option<u64>>,
    /// Whether each flow was active at the last sample.
    active: Vec<bool>,
}

impl<'a> RateRecorder<'a> {
    fn new(built: &'a RateParts) -> Self {
        Self {
            built,
            result: RateResult::default(),
            sent: [0; 2],
            delivered: [0; 2],
            overflows: 0,
            flows: vec![0; built.waited.len()],
            received: vec![0; built.waited.len()],
            moved: vec![None; built.waited.len()],
            active: vec![false; built.waited.len()],
        }
    }

    fn bin(&mut self, network: &mut FlowNetwork) {
        let mut bin = Bin {
            end: network.now(),
            ..Bin::default()
        };
        for (string, links) in self.built.strings.iter().enumerate() {
            let waiting = network.waiting(links[0]).1 as u64;
            let sent = network.link_counts(links[0]).bytes.saturating_sub(waiting);
            bin.sent[string] = sent.saturating_sub(self.sent[string]);
            self.sent[string] = sent;
        }
        let mut delivered = [0; 2];
        for (flow, waited) in network.flows().zip(&self.built.waited) {
            delivered[usize::from(*waited)] += network.receiver(flow).delivered();
        }
        for (class, delivered) in delivered.into_iter().enumerate() {
            bin.delivered[class] = delivered - self.delivered[class];
            self.delivered[class] = delivered;
        }
        let overflows = network.link_counts(self.built.strings[0][0]).overflows;
        bin.overflows = overflows - self.overflows;
        self.overflows = overflows;
        self.result.bins.push(bin);
    }

    fn queue(&mut self, network: &mut FlowNetwork) {
        let waiting = network.waiting(self.built.strings[0][0]).0;
        self.result.queue.push((network.now(), waiting));
    }

    fn moved(&mut self, network: &FlowNetwork, flow: FlowId) {
        let index = flow.0 as usize;
        self.moved[index] = Some(network.sender(flow).acknowledged());
        self.active[index] = false;
    }

    fn flow_bin(&mut self, network: &FlowNetwork) {
        let since = |last: &mut u64, total: u64| total - std::mem::replace(last, total);
        let delivered = network.flows().zip(&mut self.flows);
        let delivered = delivered.map(|(flow, last)| since(last, network.receiver(flow).delivered()));
        self.result.flow_bins.push(delivered.collect());
        let shares = network.flows().enumerate().map(|(index, flow)| {
            let (sender, received) = (network.sender(flow), network.receiver(flow).received());
            let got = since(&mut self.received[index], received);
            let continues = self.moved[index].is_none_or(|before| sender.acknowledged() > before);
            let is_active = sender.started().is_some() && continues;
            let was_active = std::mem::replace(&mut self.active[index], is_active);
            (was_active && is_active && sender.completed().is_none()).then_some(got)
        });
        self.result.shares.push(shares.collect());
    }

    fn finish(mut self, network: &FlowNetwork) -> RateResult {
        let flows = network.flows().zip(&self.built.waited);
        self.result.flows = flows
            .map(|(flow, waited)| RateFlow {
                waited: *waited,
                result: FlowResult::of(network, flow),
            })
            .collect();
        let [r1, r2] = [0, 1].map(|edge| network.logic::<Edge>(self.built.switches[edge]));
        self.result.windows = r1.map_or_else(Vec::new, |edge| edge.windows().to_vec());
        self.result.edges = r1
            .and_then(Edge::counts)
            .zip(r2.and_then(Edge::counts))
            .map(<[_; 2]>::from);
        self.result
    }
}
