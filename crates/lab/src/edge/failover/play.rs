//! A run of `edge-failover`: its steps, in order.

use std::time::Duration;

use anyhow::{Context, Result};
use proto::Instant;

use super::counters::{AGREED_AFTER, counter_problems};
use super::gaps::{FailoverSpan, hit_flows};
use super::options::{APPLICATION, BEFORE, EdgeFailoverOptions};
use super::report::{EdgeFailoverFindings, FailoverFacts};
use crate::capture::Captures;
use crate::clock::{ClockOffset, monotonic};
use crate::edge::capture::both_ends;
use crate::edge::daemon::{
    EdgeDaemons, EdgeSetup, HEARTBEAT, RecoveryOption, RecoverySetup, ReportedEdge, SteeredString,
};
use crate::edge::fault::EdgeFaultTarget;
use crate::edge::flows::{FlowPlan, FlowProcess, FlowReport, TransferDirection};
use crate::edge::nat::NodeStates;
use crate::edge::network::{EdgeEmulators, EdgeTopology};
use crate::edge::trace::EdgeTrace;
use crate::edge::variant::EdgeVariant;
use crate::emulator::Carried;
use crate::node::{PatternFiles, ServerProcess};
use crate::run::LabRun;

const WORKERS: u32 = 2;
/// Time from the start of the client process to its first flow.
const HEADSTART: Duration = Duration::from_millis(300);
/// Rate of a string in the edges' configuration, in Mbit/s. These runs use no rate control.
const MBIT: f64 = 1000.0;
/// Time after the failover time within which the edges must have moved the flows.
const MOVED_LIMIT: Duration = Duration::from_secs(10);
const MOVED_POLL: Duration = Duration::from_millis(50);

/// Everything that runs. The fields are dropped in order of declaration.
struct FailoverTestbed {
    /// The daemons of each lane. Empty: there are no edges.
    daemons: Vec<EdgeDaemons>,
    captures: Captures,
    _server: ServerProcess,
    emulators: EdgeEmulators,
    _states: Option<NodeStates>,
    network: EdgeTopology,
}

/// Times of a failover.
#[derive(Clone, Copy)]
struct FailoverTimes {
    fault: Instant,
    declared: Option<Instant>,
    completed: Instant,
    ended: Instant,
}

/// Executes one variant of the run.
///
/// # Errors
/// If the run could not be finished.
pub fn play(
    options: &EdgeFailoverOptions,
    variant: EdgeVariant,
    run: &LabRun<'_>,
    problems: &mut Vec<String>,
) -> Result<EdgeFailoverFindings> {
    let facts = measure(options, variant, run, problems)?;
    Ok(EdgeFailoverFindings::of(options, variant, &facts))
}

/// Executes one variant of the run. Returns everything that was measured.
///
/// # Errors
/// If the run could not be finished.
pub fn measure(
    options: &EdgeFailoverOptions,
    variant: EdgeVariant,
    run: &LabRun<'_>,
    problems: &mut Vec<String>,
) -> Result<FailoverFacts> {
    let clock = ClockOffset::measure();
    run.step("set up");
    let mut bed = FailoverTestbed::set(options, variant, run)?;
    run.step("load");
    let start = monotonic() + HEADSTART;
    let plan = options.plan(start, run.seed);
    let flows = FlowProcess::start(&bed.network.clients, &plan)?;
    std::thread::sleep((start + BEFORE).since(monotonic()));
    run.step("fail");
    if options.fault.is_of_edge() {
        bed.check_load(options.hit.side(), problems)?;
    }
    let mut target = EdgeFaultTarget {
        network: &bed.network,
        daemons: &mut bed.daemons,
        side: options.hit.side(),
        directory: &run.directory,
    };
    let fault = options.fault.inject(&mut target, options.failover)?;
    if bed.daemons.is_empty() {
        std::thread::sleep((fault + options.failover).since(monotonic()));
        bed.network.reroute(0, 1)?;
        bed.network.reroute(1, 1)?;
    }
    let moved = monotonic();
    std::thread::sleep((fault + options.failover).since(monotonic()));
    bed.wait_until_agreed(options, fault, moved)?;
    let agreed = bed.edges_left()?;
    let report = flows.finish()?;
    run.step("judge");
    let times = bed.times(options, fault, moved)?;
    let edges = bed.edges_left()?;
    // After the failure of an edge, no edge moves flows, and the edge that is left at this side may choose another string than the failed one.
    let agreed = if options.fault.is_of_edge() {
        &edges
    } else {
        &agreed
    };
    problems.extend(counter_problems(agreed, &edges));
    let captures = bed.captures.stop()?;
    let cable = bed.emulators.finish()?.wan;
    for daemons in bed.daemons {
        problems.extend(daemons.stop().err().map(|error| format!("{error:#}")));
    }
    let trace = EdgeTrace::read(&captures, options.service(), u64::MAX)?;
    let span = FailoverSpan {
        fault_ns: clock.realtime_ns(times.fault),
        completed_ns: clock.realtime_ns(times.completed),
        ended_ns: clock.realtime_ns(times.ended),
        one_way: options.round_trip() / 2,
    };
    let ms = |from: Instant, to: Instant| crate::clock::ms(from.as_nanos(), to.as_nanos());
    let late = |gap_ns| lateness(&cable, &times, Duration::from_nanos(gap_ns));
    Ok(FailoverFacts {
        fault: times.fault,
        hit: hit_flows(&trace, span, |gap_ns| late(gap_ns).as_nanos() as u64),
        differing: differing(&plan, &report, run)?,
        detection_ms: times.declared.map(|declared| ms(fault, declared)),
        takeover_ms: times.declared.map(|declared| ms(declared, times.completed)),
        trace,
        plan,
        report,
        edges,
        cable_late: lateness(&cable, &times, options.round_trip() * 2),
    })
}

/// Largest delay that the lab's cable added to a round trip, in the time from the end of the failover until `after` later.
fn lateness(cable: &[Carried; 2], times: &FailoverTimes, after: Duration) -> Duration {
    let span = (times.completed.as_nanos(), (times.ended + after).as_nanos());
    let directions = cable
        .iter()
        .map(|carried| carried.lateness.max_between(span.0, span.1));
    directions.sum()
}

impl FailoverTestbed {
    fn set(options: &EdgeFailoverOptions, variant: EdgeVariant, run: &LabRun<'_>) -> Result<Self> {
        let files = options.sizes().map(|bytes| (run.seed, bytes));
        let content = PatternFiles::generate(&run.directory, &files)?;
        let network =
            EdgeTopology::build(&run.name, &options.network(), run.teardown).context("build the network")?;
        let emulators = network.emulate(run.seed)?;
        let server = ServerProcess::start(
            APPLICATION,
            &network.servers,
            &run.directory,
            APPLICATION.program(),
            &content,
            WORKERS,
        )?;
        let captures = both_ends(&network, run, options.run.snap)?;
        let states = options
            .nat
            .then(|| NodeStates::start(&network, &run.directory, !options.without_conntrackd))
            .transpose()
            .context("nodes with state")?;
        let takeover = states.as_ref().map(|states| states.takeover.clone());
        let takeover = takeover.unwrap_or_default();
        let mut daemons = Vec::new();
        if variant == EdgeVariant::Baseline {
            network.route_without_edge(options.active_active)?;
        } else {
            for lane in 0..usize::from(options.edges) {
                let mut setup = setup(options, variant, run)?;
                (setup.lane, setup.command) = (lane, takeover.clone());
                daemons.push(setup.start(&network, &run.directory, run.teardown)?);
            }
        }
        Ok(Self {
            _states: states,
            daemons,
            captures,
            _server: server,
            emulators,
            network,
        })
    }

    /// Returns the times of the failover. Without edges, and after a fault that makes no edge move flows, the failover ends at `moved`.
    fn times(&self, options: &EdgeFailoverOptions, fault: Instant, moved: Instant) -> Result<FailoverTimes> {
        if self.daemons.is_empty() || !options.fault.moves_flows() {
            return Ok(FailoverTimes {
                fault,
                declared: None,
                completed: moved,
                ended: moved,
            });
        }
        let (mut declared, mut completed) = (Vec::new(), Vec::new());
        for lane in &self.daemons {
            for (declared_ns, completed_ns) in lane.failover(&self.network, 0)? {
                declared.push(Instant::from_nanos(declared_ns));
                completed.push(Instant::from_nanos(completed_ns));
            }
        }
        let ends = completed.iter().copied();
        Ok(FailoverTimes {
            fault,
            declared: declared.iter().copied().min(),
            completed: ends.clone().min().unwrap_or(moved),
            ended: ends.max().unwrap_or(moved),
        })
    }

    /// Waits until both edges have moved all flows and agree about them. An edge declares a string later than usual if the string loses
    /// only heartbeats.
    fn wait_until_agreed(&self, options: &EdgeFailoverOptions, fault: Instant, moved: Instant) -> Result<()> {
        let deadline = monotonic() + MOVED_LIMIT;
        loop {
            match self.times(options, fault, moved) {
                Ok(times) => {
                    std::thread::sleep((times.ended + AGREED_AFTER).since(monotonic()));
                    return Ok(());
                }
                Err(error) if monotonic() > deadline => return Err(error),
                Err(_) => std::thread::sleep(MOVED_POLL),
            }
        }
    }

    /// Checks that flows use the edge that is about to fail.
    fn check_load(&self, side: usize, problems: &mut Vec<String>) -> Result<()> {
        let edge = self.daemons[0].status_of(side, &self.network)?;
        if edge.strings.iter().all(|string| string.active == 0) {
            problems.push(format!("no flow used the edge that failed: {edge:?}"));
        }
        Ok(())
    }

    /// The status of the edges that have not lost their power.
    fn edges_left(&self) -> Result<Vec<ReportedEdge>> {
        let edges = self.daemons.iter().flat_map(|lane| [(lane, 0), (lane, 1)]);
        edges
            .filter(|(lane, side)| lane.is_running(*side))
            .map(|(lane, side)| lane.status_of(side, &self.network))
            .collect()
    }
}

fn setup(options: &EdgeFailoverOptions, variant: EdgeVariant, run: &LabRun<'_>) -> Result<EdgeSetup> {
    let string = |index: u8| SteeredString {
        weight: u32::from(index == 0 || options.active_active),
        mbit: MBIT,
    };
    let mut setup = EdgeSetup {
        binary: options.run.daemon.path()?,
        run: run.name.clone(),
        lane: 0,
        ipv6: options.ipv6,
        strings: (0..options.strings).map(string).collect(),
        heartbeat: HEARTBEAT,
        delay: Duration::ZERO,
        command: Vec::new(),
        recovery: RecoverySetup {
            policy: match variant {
                EdgeVariant::With => options.policy,
                EdgeVariant::Without | EdgeVariant::Baseline => RecoveryOption::None,
            },
            second: options.second,
            caching_after: options.caching_after,
            limits: options.limits,
        },
        is_rate_controlled: false,
        rtt: None,
    };
    setup.delay = options.failover.saturating_sub(setup.detection());
    Ok(setup)
}

/// Indices of uploads whose file at the server differs from what the client sent.
fn differing(plan: &FlowPlan, report: &FlowReport, run: &LabRun<'_>) -> Result<Vec<usize>> {
    let mut differing = Vec::new();
    for (index, flow) in plan.flows.iter().enumerate() {
        if flow.direction == TransferDirection::Download || report.flows[index].failure.is_some() {
            continue;
        }
        let file = run.directory.join("files").join(&plan.path(index)[1..]);
        let bytes = std::fs::read(&file).with_context(|| file.display().to_string())?;
        let is_same =
            bytes.len() as u64 == flow.bytes && pattern::check(plan.content(index), 0, &bytes).is_ok();
        if !is_same {
            differing.push(index);
        }
    }
    Ok(differing)
}
