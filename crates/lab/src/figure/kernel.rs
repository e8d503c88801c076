//! Plays a scenario on this machine's kernel: real hosts in network namespaces, `steadfast edge`, and captures at both ends. The results
//! are of the simulator's types, so the same code draws figures and judges claims.
//!
//! Captures show neither the number of a sender's timeouts nor its slow start threshold. These results are 0. Retransmitted segments of
//! short flows are not counted, so their number is also 0.

use std::time::Duration;

use anyhow::{Result, bail};
use proto::Instant;
use sim::scenario::FlowResult;
use sim::scenario::cluster::ClusterScenario;
use sim::scenario::rate::{Bin, RateFlow, RateResult, RateScenario};

use super::measured::{rows_of_coral, rows_of_ft_tcp};
use super::playable::{LIMITS, ratio};
use super::rows::Rows;
use super::scenario::{MeasuredPaper, RecoveryPolicy};
use crate::bench::coral_samples;
use crate::bench::ft_tcp_samples::{self, FtTcpPlace};
use crate::edge::daemon::{CacheLimits, RecoveryOption, SecondOption};
use crate::edge::failover::{self, EdgeFailoverOptions, HitEdge};
use crate::edge::fault::ClusterFault;
use crate::edge::flows::{FlowOutcome, TransferDirection};
use crate::edge::network::ClusterPlace;
use crate::edge::rate::{self, CongestionOption, EdgeRateOptions, LEFT, RateFacts, RateLoad};
use crate::edge::trace::{TO_SERVER, TracedFlow};
use crate::edge::variant::EdgeVariant;
use crate::run::{Lab, LabRun, Progress, RunOptions};
use crate::sessions::moves::{self, MovesCell, MovesMeasured};
use crate::sessions::stream::{self, StreamCell, StreamMeasured};

/// Bytes of a data segment with timestamps.
const SEGMENT: u64 = 1448;
/// Time between two samples of throughput.
const BIN_NS: u64 = 100_000_000;
/// Time between two samples of the queue.
const QUEUE_NS: u64 = 20_000_000;
/// Time between two samples of a flow's throughput.
const FLOW_BIN_NS: u64 = 500_000_000;
/// Time by which a packet may be late on a busy machine.
const MARGIN: Duration = Duration::from_millis(20);

/// Checks that this machine can play runs.
///
/// # Errors
/// If something is missing. The error names everything that is missing.
pub fn check_machine() -> Result<()> {
    failover_options(&ClusterScenario::default(), RecoveryPolicy::None).check_machine()
}

/// Plays one failover with short flows.
///
/// # Errors
/// If the run could not be played, or a connection failed.
pub fn play_cluster(
    number: u32,
    cluster: &ClusterScenario,
    recovery: RecoveryPolicy,
) -> Result<Vec<FlowResult>> {
    let options = failover_options(cluster, recovery);
    let variant = match recovery {
        RecoveryPolicy::None => EdgeVariant::Without,
        RecoveryPolicy::Lowest | RecoveryPolicy::Syn | RecoveryPolicy::All => EdgeVariant::With,
    };
    let facts = play(&options.run, (number, cluster.seed), |run, problems| {
        let facts = failover::measure(&options, variant, run, problems)?;
        problems.extend(facts.trace.violations.iter().cloned());
        problems.extend(facts.report.flows.iter().filter_map(|flow| flow.failure.clone()));
        Ok(facts)
    })?;
    let at = |ns: u64| {
        let since = Instant::from_nanos(ns) + cluster.failover_at;
        Instant::ZERO + since.since(facts.fault)
    };
    let flow = |flow: &FlowOutcome| FlowResult {
        start: at(flow.arrived_ns),
        end: Some(at(flow.ended_ns)),
        timeouts: 0,
        syn_timeouts: 0,
        threshold: 0.0,
        retransmitted: 0,
        segments: options.segments,
    };
    Ok(facts.report.flows.iter().map(flow).collect())
}

fn failover_options(cluster: &ClusterScenario, recovery: RecoveryPolicy) -> EdgeFailoverOptions {
    let one_way = cluster.source_delay + cluster.cluster_delay * 2 + cluster.destination_delay;
    EdgeFailoverOptions {
        failover: cluster.failover,
        margin: 10,
        policy: match recovery {
            RecoveryPolicy::None => RecoveryOption::None,
            RecoveryPolicy::Lowest => RecoveryOption::Lowest,
            RecoveryPolicy::Syn => RecoveryOption::Syn,
            RecoveryPolicy::All => RecoveryOption::All,
        },
        second: SecondOption::default(),
        limits: CacheLimits::default(),
        caching_after: cluster.recovery.unwrap_or_default().caching_after,
        arrivals: cluster.gap.as_millis() as u32,
        long: 0,
        workload: TransferDirection::Upload,
        // In the thesis the whole cluster is down during the failover. If one string still worked, new flows would not wait.
        fault: ClusterFault::Both,
        hit: HitEdge::default(),
        edges: 1,
        strings: 2,
        active_active: false,
        cluster: place(cluster.source_delay, cluster.destination_delay),
        nat: false,
        without_conntrackd: false,
        ipv6: false,
        rtt: (one_way * 2).as_millis() as u32,
        large_segments: false,
        baseline: false,
        only: None,
        segments: cluster.segments,
        run: RunOptions::default(),
    }
}

fn place(source_delay: Duration, destination_delay: Duration) -> ClusterPlace {
    if source_delay < destination_delay {
        ClusterPlace::NearClients
    } else {
        ClusterPlace::NearServers
    }
}

/// Plays one failure of a string with long flows.
///
/// # Errors
/// If the run could not be played, or a connection failed.
pub fn play_strings(number: u32, scenario: &RateScenario) -> Result<RateResult> {
    let options = rate_options(scenario)?;
    let variant = if scenario.sharing.is_some() {
        EdgeVariant::With
    } else {
        EdgeVariant::Without
    };
    let facts = play(&options.run, (number, scenario.seed), |run, problems| {
        rate::measure(&options, variant, run, problems)
    })?;
    Ok(RateReading::new(&facts, scenario, &options).result())
}

fn rate_options(scenario: &RateScenario) -> Result<EdgeRateOptions> {
    let Some(strings) = ratio(scenario) else {
        bail!("{LIMITS}");
    };
    // source – R1 – N1 – R2 – destination
    let one_way = scenario.source_delay + scenario.delay * 3;
    let until_failover = scenario.failure_at + scenario.failover;
    Ok(EdgeRateOptions {
        strings,
        flows: scenario.flows * 2,
        congestion: CongestionOption::Cubic,
        workload: TransferDirection::Upload,
        mbit: scenario.rate_bits_per_s[1] as f64 / 1e6,
        buffer: scenario.buffer_packets as u32 + 1,
        failover: scenario.failover,
        measure: scenario.end.saturating_sub(until_failover + rate::SETTLING),
        policy: RecoveryOption::None,
        cluster: ClusterPlace::NearServers,
        ipv6: false,
        rtt: (one_way * 2).as_millis() as u32,
        measured_rtt: false,
        large_segments: false,
        baseline: false,
        only: None,
        load: RateLoad::Arriving {
            gap: scenario.gap / 2,
            bytes: scenario.segments * SEGMENT,
            failure_at: scenario.failure_at,
        },
        run: RunOptions::default(),
    })
}

/// Plays moves of one kind.
///
/// # Errors
/// If the moves could not be played.
pub fn play_moves((number, seed): (u32, u64), cell: &MovesCell) -> Result<MovesMeasured> {
    let options = RunOptions::default();
    let daemon = options.daemon.path()?;
    play(&options, (number, seed), |run, _| {
        moves::measure(cell, (&run.name, &run.directory), &daemon, run.teardown)
    })
}

/// Plays one stream.
///
/// # Errors
/// If the stream could not be played.
pub fn play_stream((number, seed): (u32, u64), cell: StreamCell) -> Result<StreamMeasured> {
    let options = RunOptions::default();
    let daemon = options.daemon.path()?;
    play(&options, (number, seed), |run, _| {
        stream::measure(cell, (&run.name, &run.directory), &daemon, run.teardown)
    })
}

/// Plays a paper's measurements. A seed's power-offs differ from those of other seeds.
///
/// # Errors
/// If a step fails.
pub fn play_measurements((number, seed): (u32, u64), paper: MeasuredPaper, rounds: u32) -> Result<Rows> {
    let options = RunOptions::default();
    match paper {
        MeasuredPaper::FtTcp => {
            let daemon = options.daemon.path()?;
            let measured = play(&options, (number, seed), |run, _| {
                let place = FtTcpPlace {
                    run: &run.name,
                    daemon: &daemon,
                    teardown: run.teardown,
                };
                ft_tcp_samples::measure(rounds, place)
            })?;
            Ok(rows_of_ft_tcp((number, seed), &measured))
        }
        MeasuredPaper::Coral => {
            let run = format!("{}-{number}", std::process::id());
            let first_seed = seed * u64::from(rounds);
            let measured = coral_samples::measure(rounds, first_seed, &run, &options.daemon)?;
            Ok(rows_of_coral((number, seed), &measured))
        }
    }
}

/// Plays a run in a network of its own. If `play` reports problems, the run's results prove nothing, so this function returns an error.
fn play<T>(
    options: &RunOptions,
    (number, seed): (u32, u64),
    play: impl FnOnce(&LabRun<'_>, &mut Vec<String>) -> Result<T>,
) -> Result<T> {
    let mut problems = Vec::new();
    let progress = Progress::hidden();
    let played = LabRun::play(options, (number, seed, &[]), &progress, |run| {
        play(run, &mut problems)
    })?;
    if let Some(first) = problems.first() {
        bail!(
            "{} problems in a run on the kernel, the first: {first}",
            problems.len()
        );
    }
    Ok(played)
}

/// Converts a run's captures and queues to the simulator's results.
struct RateReading<'a> {
    facts: &'a RateFacts,
    /// Time of the run's beginning, in nanoseconds of the captures' clock.
    start_ns: u64,
    /// Time of the fault, by the same clock.
    fault_ns: u64,
    /// Time of the failover's end, by the same clock.
    completed_ns: u64,
    one_way: Duration,
    /// Bytes of a complete flow.
    bytes: u64,
    /// Length of the run in nanoseconds.
    length_ns: u64,
}

impl<'a> RateReading<'a> {
    fn new(facts: &'a RateFacts, scenario: &RateScenario, options: &EdgeRateOptions) -> Self {
        let realtime = |at| facts.clock.realtime_ns(at);
        Self {
            start_ns: realtime(facts.times.start),
            fault_ns: realtime(facts.times.fault),
            completed_ns: realtime(facts.times.completed),
            one_way: options.round_trip() / 2,
            bytes: scenario.segments * SEGMENT,
            length_ns: scenario.end.as_nanos() as u64,
            facts,
        }
    }

    fn result(&self) -> RateResult {
        let flows = &self.facts.trace.flows;
        let waited: Vec<_> = flows.iter().map(|flow| self.has_waited(flow)).collect();
        RateResult {
            flows: flows
                .iter()
                .zip(&waited)
                .map(|(flow, waited)| self.flow(flow, *waited))
                .collect(),
            bins: self.bins(&waited),
            queue: self.queue(),
            flow_bins: self.flow_bins(),
            shares: self.shares(&waited),
            windows: Vec::new(),
            edges: None,
        }
    }

    /// Whether no new byte of the flow arrived between the failure and the failover's end, although new bytes arrived later.
    fn has_waited(&self, flow: &TracedFlow) -> bool {
        let silent_from = self.fault_ns + (self.one_way + MARGIN).as_nanos() as u64;
        flow.opened_ns < self.completed_ns
            && flow
                .next_news(silent_from)
                .is_some_and(|next| next > self.completed_ns)
    }

    fn flow(&self, flow: &TracedFlow, waited: bool) -> RateFlow {
        let way = &flow.directions[TO_SERVER];
        let mut come = 0;
        let complete = way.in_order().find(|(_, bytes)| {
            come += bytes;
            come >= self.bytes
        });
        let acknowledged = |(at_ns, _): (u64, u64)| self.at(at_ns) + self.one_way;
        let mut highest = 0;
        let mut repeated = 0;
        for range in &way.sent {
            repeated += u64::from(range.start < highest);
            highest = highest.max(range.end);
        }
        RateFlow {
            result: FlowResult {
                start: self.at(flow.opened_ns),
                end: complete.map(acknowledged),
                timeouts: 0,
                syn_timeouts: 0,
                threshold: 0.0,
                retransmitted: repeated,
                segments: way.sent.len() as u64,
            },
            waited,
        }
    }

    fn bins(&self, waited: &[bool]) -> Vec<Bin> {
        let count = self.length_ns.div_ceil(BIN_NS);
        let end = |bin: u64| Instant::from_nanos((bin + 1) * BIN_NS);
        let mut bins: Vec<_> = (0..count)
            .map(|bin| Bin {
                end: end(bin),
                sent: [0; 2],
                delivered: [0; 2],
                overflows: 0,
            })
            .collect();
        for (flow, waited) in self.facts.trace.flows.iter().zip(waited) {
            let come = flow.directions[TO_SERVER].in_order();
            self.fill(&mut bins, BIN_NS, come, |bin| {
                &mut bin.delivered[usize::from(*waited)]
            });
        }
        let start_ns = self.facts.times.start.as_nanos();
        for (string, carried) in self.facts.strings.iter().enumerate() {
            // In the simulator's results, the surviving string comes first.
            let place = usize::from(string != LEFT);
            for queued in &carried.queue.bins {
                let index = (queued.at_ns.saturating_sub(start_ns) / BIN_NS) as usize;
                if let Some(bin) = bins.get_mut(index) {
                    bin.sent[place] += queued.bytes;
                    bin.overflows += if string == LEFT { queued.dropped } else { 0 };
                }
            }
        }
        bins
    }

    fn queue(&self) -> Vec<(Instant, usize)> {
        let start_ns = self.facts.times.start.as_nanos();
        let bins = &self.facts.strings[LEFT].queue;
        let sample = |number: u64| {
            let from_ns = start_ns + number * QUEUE_NS;
            let longest = bins
                .between(from_ns, from_ns + QUEUE_NS)
                .map(|bin| bin.waiting_max)
                .max();
            (Instant::from_nanos((number + 1) * QUEUE_NS), longest.unwrap_or(0))
        };
        (0..self.length_ns / QUEUE_NS).map(sample).collect()
    }

    fn flow_bins(&self) -> Vec<Vec<u64>> {
        let flows = &self.facts.trace.flows;
        let mut bins = vec![vec![0; flows.len()]; (self.length_ns / FLOW_BIN_NS) as usize];
        for (place, flow) in flows.iter().enumerate() {
            let come = flow.directions[TO_SERVER].in_order();
            self.fill(&mut bins, FLOW_BIN_NS, come, |bin| &mut bin[place]);
        }
        bins
    }

    /// For each half second: the number of new bytes of each flow that arrived, in any order. `None` unless the flow was active for the
    /// whole half second.
    fn shares(&self, waited: &[bool]) -> Vec<Vec<Option<u64>>> {
        let count = self.length_ns / FLOW_BIN_NS;
        let mut bins = vec![Vec::new(); count as usize];
        for (flow, waited) in self.facts.trace.flows.iter().zip(waited) {
            let way = &flow.directions[TO_SERVER];
            let mut got = vec![0; bins.len()];
            self.fill(&mut got, FLOW_BIN_NS, way.news.iter().copied(), |bin| bin);
            let end = self.flow(flow, *waited).result.end;
            // A flow that was moved is not active until its sender's retransmission timer expires.
            let again_ns = waited.then(|| flow.next_news(self.completed_ns)).flatten();
            for (number, (bin, got)) in (0..).zip(bins.iter_mut().zip(got)) {
                let from = Instant::from_nanos(number * FLOW_BIN_NS);
                let to = Instant::from_nanos((number + 1) * FLOW_BIN_NS);
                let waits =
                    again_ns.is_some_and(|again_ns| from < self.at(again_ns) && self.at(self.fault_ns) < to);
                let is_active = self.at(flow.opened_ns) <= from && end.is_none_or(|end| to <= end) && !waits;
                bin.push(is_active.then_some(got));
            }
        }
        bins
    }

    /// Adds numbers of bytes to the bins in which the bytes arrived. Each item of `come` is a time of the captures' clock, and the number
    /// of bytes that arrived then. Each bin is `bin_ns` long. `counter` returns the counter of a bin.
    fn fill<B>(
        &self,
        bins: &mut [B],
        bin_ns: u64,
        come: impl Iterator<Item = (u64, u64)>,
        counter: impl for<'b> Fn(&'b mut B) -> &'b mut u64,
    ) {
        for (at_ns, bytes) in come {
            let index = (at_ns.saturating_sub(self.start_ns) / bin_ns) as usize;
            if let Some(bin) = bins.get_mut(index) {
                *counter(bin) += bytes;
            }
        }
    }

    /// Converts a time of the captures to a time since the run's beginning.
    fn at(&self, at_ns: u64) -> Instant {
        Instant::from_nanos(at_ns.saturating_sub(self.start_ns))
    }
}
