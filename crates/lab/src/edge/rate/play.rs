//! A run of `edge-rate`: its steps, in order.

use std::time::Duration;

use anyhow::{Context, Result};
use proto::Instant;

use super::options::{APPLICATION, EdgeRateOptions, SETTLING};
use super::report::{EdgeRateFindings, RateSide};
use super::shares::FlowShares;
use crate::bench::start_sink;
use crate::capture::Captures;
use crate::clock::{ClockOffset, monotonic};
use crate::edge::capture::both_ends;
use crate::edge::daemon::{EdgeDaemons, EdgeSetup, HEARTBEAT, RecoverySetup, ReportedEdge, SteeredString};
use crate::edge::fault::{ClusterFault, EdgeFaultTarget};
use crate::edge::flows::{FlowProcess, FlowReport, TransferDirection};
use crate::edge::network::{EdgeEmulators, EdgeTopology};
use crate::edge::trace::EdgeTrace;
use crate::edge::variant::EdgeVariant;
use crate::emulator::Carried;
use crate::node::{PatternFiles, ServerProcess};
use crate::process::LoggedProcess;
use crate::run::LabRun;

const WORKERS: u32 = 1;
const HEADSTART: Duration = Duration::from_millis(300);
/// Index of the string that does not fail.
pub const LEFT: usize = 1;

/// Everything that runs. The fields are dropped in order of declaration.
struct RateTestbed {
    daemons: Option<EdgeDaemons>,
    captures: Captures,
    _server: MeasuredServer,
    emulators: EdgeEmulators,
    network: EdgeTopology,
}

/// The server of the flows.
enum MeasuredServer {
    Files(#[expect(dead_code, reason = "it is killed on drop")] ServerProcess),
    Sink(#[expect(dead_code, reason = "it is killed on drop")] LoggedProcess),
}

/// The times of a run.
#[derive(Clone, Copy)]
pub struct RateTimes {
    /// When the first flow was to begin.
    pub start: Instant,
    /// When the string failed.
    pub fault: Instant,
    /// When both edges had moved the string's flows.
    pub completed: Instant,
    /// Beginning of the time in which shares and drops are judged.
    settled: Instant,
    end: Instant,
}

/// Everything that was measured in one variant of a run.
pub struct RateFacts {
    pub times: RateTimes,
    /// Offset between the clock of the times and the clock of the captures.
    pub clock: ClockOffset,
    /// The traffic that each string carried in the direction of the data.
    pub strings: Vec<Carried>,
    pub trace: EdgeTrace,
    edges: Option<[ReportedEdge; 2]>,
}

/// Executes one variant of the run.
///
/// # Errors
/// If the run could not be finished.
pub fn play(
    options: &EdgeRateOptions,
    variant: EdgeVariant,
    run: &LabRun<'_>,
    problems: &mut Vec<String>,
) -> Result<EdgeRateFindings> {
    let facts = measure(options, variant, run, problems)?;
    Ok(EdgeRateFindings::of(options, variant, facts.side(options)))
}

/// Executes one variant of the run. Returns everything that was measured.
///
/// # Errors
/// If the run could not be finished.
pub fn measure(
    options: &EdgeRateOptions,
    variant: EdgeVariant,
    run: &LabRun<'_>,
    problems: &mut Vec<String>,
) -> Result<RateFacts> {
    let clock = ClockOffset::measure();
    run.step("set up");
    let bed = RateTestbed::set(options, variant, run)?;
    run.step("load");
    let start = monotonic() + HEADSTART;
    let flows = FlowProcess::start(&bed.network.clients, &options.plan(start, run.seed))?;
    let before = options.before();
    std::thread::sleep((start + before).since(monotonic()));
    run.step("fail");
    let mut target = EdgeFaultTarget {
        network: &bed.network,
        daemons: &mut [],
        side: 0,
        directory: &run.directory,
    };
    let fault = ClusterFault::PowerOff.inject(&mut target, options.failover)?;
    std::thread::sleep((fault + options.failover).since(monotonic()));
    if bed.daemons.is_none() {
        bed.network.reroute(0, LEFT)?;
    }
    let moved = monotonic();
    run.step("measure");
    let end = start + before + options.failover + SETTLING + options.measure;
    std::thread::sleep((moved + SETTLING).since(monotonic()) + options.measure / 2);
    let edges = bed
        .daemons
        .as_ref()
        .map(|edges| edges.status(&bed.network))
        .transpose()?;
    let report = flows.finish()?;
    let completed = match &bed.daemons {
        Some(edges) => {
            let times = edges.failover(&bed.network, 0)?;
            Instant::from_nanos(times[0].1.max(times[1].1))
        }
        None => moved,
    };
    let times = RateTimes {
        start,
        fault,
        completed,
        settled: completed + SETTLING,
        end,
    };
    run.step("judge");
    problems.extend(failed(&report));
    bed.end(options, run, (times, clock, edges), problems)
}

fn failed(report: &FlowReport) -> Option<String> {
    let mut failures = report.flows.iter().filter_map(|flow| flow.failure.as_ref());
    let first = failures.next()?;
    Some(format!(
        "{} flows failed, the first: {first}",
        1 + failures.count()
    ))
}

impl RateTestbed {
    fn set(options: &EdgeRateOptions, variant: EdgeVariant, run: &LabRun<'_>) -> Result<Self> {
        let network =
            EdgeTopology::build(&run.name, &options.network(), run.teardown).context("build the network")?;
        let emulators = network.emulate(run.seed)?;
        let server = match options.workload {
            TransferDirection::Upload => {
                MeasuredServer::Sink(start_sink(&network.servers, "servers", &run.directory)?)
            }
            TransferDirection::Download => {
                let content = PatternFiles::generate(&run.directory, &[(run.seed, options.file())])?;
                MeasuredServer::Files(ServerProcess::start(
                    APPLICATION,
                    &network.servers,
                    &run.directory,
                    APPLICATION.program(),
                    &content,
                    WORKERS,
                )?)
            }
        };
        let captures = both_ends(&network, run, options.run.snap)?;
        let daemons = match variant {
            EdgeVariant::Baseline => {
                network.route_without_edge(true)?;
                None
            }
            variant => Some(setup(options, variant, run)?.start(&network, &run.directory, run.teardown)?),
        };
        Ok(Self {
            daemons,
            captures,
            _server: server,
            emulators,
            network,
        })
    }

    /// Ends the run, and collects the emulators' counts and the captures.
    fn end(
        self,
        options: &EdgeRateOptions,
        run: &LabRun<'_>,
        (times, clock, edges): (RateTimes, ClockOffset, Option<[ReportedEdge; 2]>),
        problems: &mut Vec<String>,
    ) -> Result<RateFacts> {
        let captures = self.captures.stop()?;
        let way = match options.workload {
            TransferDirection::Upload => 0,
            TransferDirection::Download => 1,
        };
        let strings = self.emulators.finish()?.strings.into_iter();
        let strings: Vec<_> = strings
            .map(|mut carried| std::mem::take(&mut carried[way]))
            .collect();
        run.keep("queue.json", &strings[LEFT])?;
        let overrun = strings[LEFT].passed.overrun;
        if overrun > 0 {
            problems.push(format!("the emulator was too slow for {overrun} frames"));
        }
        if let Some(daemons) = self.daemons {
            problems.extend(daemons.stop().err().map(|error| format!("{error:#}")));
        }
        let trace = EdgeTrace::read(&captures, options.service(), clock.realtime_ns(times.end))?;
        problems.extend(trace.violations.iter().cloned());
        Ok(RateFacts {
            times,
            clock,
            strings,
            trace,
            edges,
        })
    }
}

impl RateFacts {
    /// The findings.
    fn side(self, options: &EdgeRateOptions) -> RateSide {
        let RateTimes {
            completed,
            settled,
            end,
            ..
        } = self.times;
        let judged = (self.clock.realtime_ns(settled), self.clock.realtime_ns(end));
        let shares = FlowShares::of(&self.trace, options.workload, judged);
        let queue = &self.strings[LEFT].queue;
        let bins = |from: Instant, to: Instant| queue.between(from.as_nanos(), to.as_nanos());
        let drops = |from, to| bins(from, to).map(|bin| bin.dropped).sum();
        let longest = |from, to| bins(from, to).map(|bin| bin.waiting_max).max().unwrap_or(0);
        let bytes: u64 = bins(settled, end).map(|bin| bin.bytes).sum();
        let capped = self.edges.iter().flatten().map(|edge| edge.counter("capped"));
        RateSide {
            jain: shares.jain,
            jain_of_bins: shares.jain_of_bins,
            shares,
            capped: capped.sum(),
            drops_after_settling: drops(settled, end),
            drops_while_settling: drops(completed, settled),
            queue_max_packets: longest(settled, end),
            queue_max_while_settling_packets: longest(completed, settled),
            throughput_mbit: bytes as f64 * 8.0 / 1e6 / end.since(settled).as_secs_f64(),
            edges: self.edges,
        }
    }
}

fn setup(options: &EdgeRateOptions, variant: EdgeVariant, run: &LabRun<'_>) -> Result<EdgeSetup> {
    let string = |mbit| SteeredString { weight: 1, mbit };
    let is_controlled = variant == EdgeVariant::With;
    let mut setup = EdgeSetup {
        binary: options.run.daemon.path()?,
        run: run.name.clone(),
        lane: 0,
        ipv6: options.ipv6,
        strings: options.rates().map(string).to_vec(),
        heartbeat: HEARTBEAT,
        delay: Duration::ZERO,
        command: Vec::new(),
        recovery: RecoverySetup {
            policy: options.policy,
            ..RecoverySetup::default()
        },
        is_rate_controlled: is_controlled,
        rtt: (!options.measured_rtt).then(|| options.round_trip()),
    };
    setup.delay = options.failover.saturating_sub(setup.detection());
    Ok(setup)
}
