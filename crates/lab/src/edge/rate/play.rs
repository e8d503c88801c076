//! A run: its steps, in order.

use std::time::Duration;

use anyhow::{Context, Result};
use proto::Instant;

use super::options::{APPLICATION, BEFORE, EdgeRateOptions, SETTLING};
use super::report::{EdgeRateFindings, RateSide};
use super::shares::FlowShares;
use crate::bench::start_sink;
use crate::capture::Captures;
use crate::clock::{ClockOffset, monotonic};
use crate::edge::capture::both_ends;
use crate::edge::daemon::{EdgeDaemons, EdgeSetup, HEARTBEAT, ReportedEdge, SteeredString};
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
/// Index of the string that is left.
const LEFT: usize = 1;

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

/// The time that is judged.
struct RateSpan {
    completed: Instant,
    settled: Instant,
    end: Instant,
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
    let clock = ClockOffset::measure();
    run.step("set up");
    let bed = RateTestbed::set(options, variant, run)?;
    run.step("load");
    let start = monotonic() + HEADSTART;
    let flows = FlowProcess::start(&bed.network.clients, &options.plan(start, run.seed))?;
    std::thread::sleep((start + BEFORE).since(monotonic()));
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
    let end = start + BEFORE + options.failover + SETTLING + options.measure;
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
    let span = RateSpan {
        completed,
        settled: completed + SETTLING,
        end,
    };
    run.step("judge");
    problems.extend(failed(&report));
    let side = bed.judge(options, run, &span, (clock, edges), problems)?;
    Ok(EdgeRateFindings::of(options, variant, side))
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

    /// Ends the run, and computes what is judged.
    fn judge(
        self,
        options: &EdgeRateOptions,
        run: &LabRun<'_>,
        span: &RateSpan,
        (clock, edges): (ClockOffset, Option<[ReportedEdge; 2]>),
        problems: &mut Vec<String>,
    ) -> Result<RateSide> {
        let captures = self.captures.stop()?;
        let mut strings = self.emulators.finish()?;
        let [there, back] = strings.swap_remove(LEFT);
        let carried = match options.workload {
            TransferDirection::Upload => there,
            TransferDirection::Download => back,
        };
        run.keep("queue.json", &carried)?;
        if carried.passed.overrun > 0 {
            problems.push(format!(
                "the emulator was too slow for {} frames",
                carried.passed.overrun
            ));
        }
        if let Some(daemons) = self.daemons {
            problems.extend(daemons.stop().err().map(|error| format!("{error:#}")));
        }
        let trace = EdgeTrace::read(&captures, options.service(), clock.realtime_ns(span.end))?;
        problems.extend(trace.violations.iter().cloned());
        let judged = (clock.realtime_ns(span.settled), clock.realtime_ns(span.end));
        let shares = FlowShares::of(&trace, options.workload, judged);
        Ok(side(&carried, span, shares, edges))
    }
}

/// The findings from what the string that is left has carried.
fn side(
    carried: &Carried,
    span: &RateSpan,
    shares: FlowShares,
    edges: Option<[ReportedEdge; 2]>,
) -> RateSide {
    let bins = |from: Instant, to: Instant| carried.queue.between(from.as_nanos(), to.as_nanos());
    let drops = |from, to| bins(from, to).map(|bin| bin.dropped).sum();
    let longest = |from, to| bins(from, to).map(|bin| bin.waiting_max).max().unwrap_or(0);
    let RateSpan {
        completed,
        settled,
        end,
    } = *span;
    let bytes: u64 = bins(settled, end).map(|bin| bin.bytes).sum();
    RateSide {
        jain: shares.jain,
        shares,
        drops_after_settling: drops(settled, end),
        drops_while_settling: drops(completed, settled),
        queue_max_packets: longest(settled, end),
        queue_max_while_settling_packets: longest(completed, settled),
        throughput_mbit: bytes as f64 * 8.0 / 1e6 / end.since(settled).as_secs_f64(),
        edges,
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
        recovery: options.policy,
        caching_after: 2,
        is_rate_controlled: is_controlled,
        rtt: (!options.measured_rtt).then(|| options.round_trip()),
    };
    setup.delay = options.failover.saturating_sub(setup.detection());
    Ok(setup)
}
