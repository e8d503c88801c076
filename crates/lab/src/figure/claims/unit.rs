//! Chapters 3 to 5 of the HALR thesis: memory, congestion windows, unused flow time.

use model::failover::FlowRecovery as Modelled;
use model::unused_flow_time::unused_flow_time_s;

use super::claim::{ClaimEvidence, Expected, FigureClaim, FigureClaimResult, seconds};
use crate::figure::results::{Results, greatest};
use crate::figure::rows::{FlowRow, WindowRow};
use crate::figure::scenario::RecoveryPolicy;

pub const CLAIMS: &[FigureClaim] = &[
    FigureClaim {
        id: "3.4a",
        section: "3.4",
        statement: "One packet of 1514 bytes and one of 64 bytes are held for each active flow: for 10,000 flows",
        paper: "15.78 MB",
        figure: "halr-9",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let memory = memory(results, "halr-memory", RecoveryPolicy::Lowest)?;
            let data = memory.data / memory.flows;
            let others = memory.others / memory.flows;
            let megabytes = 10_000.0 * (data * DATA_FRAME + others * SMALL_FRAME) / 1e6;
            let here = format!(
                "{data:.2} data packets and {others:.2} acknowledgements per flow, {megabytes:.2} MB"
            );
            Some(FigureClaimResult::new(here, (megabytes - 15.78).abs() < 0.005))
        },
    },
    FigureClaim {
        id: "3.3a",
        section: "3.3",
        statement: "Policy all holds at most a full window of each flow (64 segments), far more than policy lowest",
        paper: "",
        figure: "halr-9",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let all = memory(results, "halr-memory", RecoveryPolicy::All)?;
            let lowest = memory(results, "halr-memory", RecoveryPolicy::Lowest)?;
            let (all, lowest) = (all.data / all.flows, lowest.data / lowest.flows);
            let here = format!("{all:.1} data packets per flow, policy lowest {lowest:.1}");
            Some(FigureClaimResult::new(here, all <= 64.0 && all > 20.0 * lowest))
        },
    },
    FigureClaim {
        id: "3.4b",
        section: "3.4",
        statement: "Memory for the SYNs that arrive in 100 ms, at 10,000 connections per second",
        paper: "roughly 64 KB",
        figure: "halr-9",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let kilobytes =
                memory(results, "halr-memory-syns", RecoveryPolicy::Syn)?.others * SMALL_FRAME / 1e3;
            let here = format!(
                "{kilobytes:.0} KB, with those SYNs that were being answered when the failover began"
            );
            Some(FigureClaimResult::new(here, (kilobytes / 64.0 - 1.0).abs() < 0.1))
        },
    },
    FigureClaim {
        id: "7a",
        section: "4.2",
        statement: "After two timeouts in a row ssthresh is two segments, and the window grows linearly, by a segment per \
                    round trip at most",
        paper: "ssthresh 2",
        figure: "halr-7",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let flow = lone(results, DATA_LOSS, RecoveryPolicy::None)?;
            let grown = grown(results, DATA_LOSS, RecoveryPolicy::None, 1.0)?;
            let (timeouts, threshold) = (flow.timeouts, flow.threshold_segments);
            let here = format!(
                "{timeouts} timeouts, ssthresh {threshold:.0}; {grown:.1} segments 1 s (10 round trips) after the restart"
            );
            let holds = timeouts == 2 && threshold == 2.0 && grown <= 2.0 + 10.0;
            Some(FigureClaimResult::new(here, holds))
        },
    },
    FigureClaim {
        id: "7b",
        section: "4.2",
        statement: "HALR ends the idle period: the flow goes on when the failover is over, and avoids the second timeout",
        paper: "",
        figure: "halr-7",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let end_s = FAILOVER_AT_S + 3.0;
            let [with, without] = [RecoveryPolicy::Lowest, RecoveryPolicy::None].map(|recovery| {
                let flow = lone(results, DATA_LOSS, recovery)?;
                Some((restart(results, DATA_LOSS, recovery)? - end_s, flow))
            });
            let ((restart, flow), (late, plain)) = (with?, without?);
            let (time_s, plain_s) = (flow.completion_s?, plain.completion_s?);
            let here = format!(
                "{} after it, without HALR {}; {} timeout, ssthresh {:.0}; the flow takes {}, without HALR {}",
                seconds(restart),
                seconds(late),
                flow.timeouts,
                flow.threshold_segments,
                seconds(time_s),
                seconds(plain_s)
            );
            let holds = restart < 0.3
                && late > 1.0
                && flow.timeouts == 1
                && flow.threshold_segments > 2.0
                && time_s < 0.8 * plain_s;
            Some(FigureClaimResult::new(here, holds))
        },
    },
    FigureClaim {
        id: "8a",
        section: "4.2",
        statement: "A lost SYN waits for a timeout of 3 s, however short the failover",
        paper: "3 s",
        figure: "halr-8",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let flows = results.flows("halr-window-syn-loss", RecoveryPolicy::None)?;
            let restart = restart(results, "halr-window-syn-loss", RecoveryPolicy::None)?;
            let waited = restart - flows.first()?.arrival_s;
            // The timeout of 3 s, then the handshake, the first segment, and its delayed acknowledgement.
            let here = format!("first data acknowledged after {}", seconds(waited));
            Some(FigureClaimResult::new(here, (3.2..3.4).contains(&waited)))
        },
    },
    FigureClaim {
        id: "8b",
        section: "4.2",
        statement: "After it ssthresh is two segments, and the window grows linearly",
        paper: "ssthresh 2",
        figure: "halr-8",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let threshold = lone(results, SYN_LOSS, RecoveryPolicy::None)?.threshold_segments;
            let grown = grown(results, SYN_LOSS, RecoveryPolicy::None, 1.0)?;
            Some(FigureClaimResult::new(
                format!("ssthresh {threshold:.0}; {grown:.1} segments 1 s (10 round trips) later"),
                threshold == 2.0 && grown <= 2.0 + 10.0,
            ))
        },
    },
    FigureClaim {
        id: "8c",
        section: "4.2",
        statement: "With HALR the sender stays in slow start: its window grows exponentially",
        paper: "",
        figure: "halr-8",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let threshold = lone(results, SYN_LOSS, RecoveryPolicy::Lowest)?.threshold_segments;
            let with = grown(results, SYN_LOSS, RecoveryPolicy::Lowest, 1.0)?;
            let without = grown(results, SYN_LOSS, RecoveryPolicy::None, 1.0)?;
            let here =
                format!("ssthresh {threshold:.0}; {with:.1} segments 1 s later, without HALR {without:.1}");
            Some(FigureClaimResult::new(here, threshold == 64.0 && with > 30.0))
        },
    },
    FigureClaim {
        id: "3.1a",
        section: "3.1",
        statement: "After a timeout, a long flow takes several round trips to regain its window",
        paper: "several RTTs",
        figure: "halr-9",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let at_s = restart_of(results, RESTARTS, RecoveryPolicy::None, 0.5)?;
            let windows = windows(results, RESTARTS, RecoveryPolicy::None, 0.5)?;
            let before = windows
                .iter()
                .rev()
                .find(|row| row.time_s < FAILOVER_AT_S)?
                .window_segments;
            let again = windows
                .iter()
                .find(|row| row.time_s >= at_s && row.window_segments >= before)?
                .time_s;
            let round_trips = (again - at_s) / ROUND_TRIP_S;
            Some(FigureClaimResult::new(
                format!("{round_trips:.0} round trips to {before:.0} segments"),
                round_trips >= 3.0,
            ))
        },
    },
    FigureClaim {
        id: "9a",
        section: "5.1",
        statement: "The unused flow time is a sawtooth, which falls to 0 where a timer fires as the failover ends",
        paper: "0 at 1.5, 4.5, 10.5 s",
        figure: "halr-9",
        evidence: ClaimEvidence::Model,
        expected: Expected::Holds,
        find: |results| {
            let unused = unused(results, RecoveryPolicy::None)?;
            let off = unused.iter().map(|(failover_s, here_s)| {
                (here_s - unused_flow_time_s(*failover_s, 1.5, Modelled::Timeout)).abs()
            });
            let most = greatest(off)?;
            let (failovers, longest) = (unused.len(), greatest(unused.iter().map(|(_, time)| *time))?);
            let here = format!(
                "within {most:.2} s of the formula in {failovers} failovers; up to {}",
                seconds(longest)
            );
            Some(FigureClaimResult::new(here, most < 0.15))
        },
    },
    FigureClaim {
        id: "9b",
        section: "5.1",
        statement: "With HALR there is no unused flow time",
        paper: "0",
        figure: "halr-9",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let most = greatest(
                unused(results, RecoveryPolicy::Lowest)?
                    .into_iter()
                    .map(|(_, time)| time),
            )?;
            Some(FigureClaimResult::new(
                format!("at most {}", seconds(most)),
                most < 0.05,
            ))
        },
    },
];

const DATA_LOSS: &str = "halr-window-data-loss";
const SYN_LOSS: &str = "halr-window-syn-loss";
const RESTARTS: &str = "halr-restarts";
/// Time at which the failover begins in these scenarios, in seconds.
const FAILOVER_AT_S: f64 = 2.0;
/// Round-trip time in these scenarios, in seconds.
const ROUND_TRIP_S: f64 = 0.1;
/// Time in seconds from the first packet after the failover to the acknowledgement that lets the window grow. The receiver delays this
/// acknowledgement until a second packet comes.
const ACKNOWLEDGED_AFTER_S: f64 = 0.15;
/// Sizes of frames on Ethernet that §3.4 assumes, in bytes.
const DATA_FRAME: f64 = 1_514.0;
const SMALL_FRAME: f64 = 64.0;
/// Sizes of packets as the edges count them, in bytes: IP header and everything after it.
const DATA_PACKET: f64 = 1_500.0;
const SMALL_PACKET: f64 = 40.0;

/// The contents of R1's cache at their peak: number of flows, of data packets, and of other packets.
struct HeldPackets {
    flows: f64,
    data: f64,
    others: f64,
}

/// The peak of R1's cache in the first seed's run. The edge counts only packets and bytes. All data packets have one size, and all other
/// packets have another size. So the number of data packets can be computed from both counts.
fn memory(results: &Results, scenario: &str, recovery: RecoveryPolicy) -> Option<HeldPackets> {
    let (_, rows) = results.scenarios.get(scenario)?;
    let row = rows
        .memory
        .iter()
        .find(|row| row.seed == 1 && row.edge == 1 && row.recovery == recovery)?;
    let (packets, bytes) = (row.peak_packets as f64, row.peak_bytes as f64);
    let data = (bytes - packets * SMALL_PACKET) / (DATA_PACKET - SMALL_PACKET);
    Some(HeldPackets {
        flows: row.flows as f64,
        data,
        others: packets - data,
    })
}

/// The first seed's only flow.
fn lone<'a>(results: &'a Results, scenario: &str, recovery: RecoveryPolicy) -> Option<&'a FlowRow> {
    results
        .flows(scenario, recovery)?
        .into_iter()
        .find(|row| row.seed == 1)
}

/// The congestion windows of the first seed's run with this failover.
fn windows<'a>(
    results: &'a Results,
    scenario: &str,
    recovery: RecoveryPolicy,
    failover_s: f64,
) -> Option<Vec<&'a WindowRow>> {
    let (_, rows) = results.scenarios.get(scenario)?;
    let of = rows
        .windows
        .iter()
        .filter(|row| row.seed == 1 && row.recovery == recovery && row.failover_s == failover_s);
    let of: Vec<_> = of.collect();
    (!of.is_empty()).then_some(of)
}

/// Time in seconds at which the window first grows after this failover began. The first acknowledgement of new data makes it grow.
fn restart_of(results: &Results, scenario: &str, recovery: RecoveryPolicy, failover_s: f64) -> Option<f64> {
    let windows = windows(results, scenario, recovery, failover_s)?;
    let mut pairs = windows
        .windows(2)
        .skip_while(|pair| pair[0].time_s < FAILOVER_AT_S + ROUND_TRIP_S);
    pairs
        .find(|pair| pair[1].window_segments > pair[0].window_segments)
        .map(|pair| pair[1].time_s)
}

/// As [`restart_of`], for the scenario's only failover.
fn restart(results: &Results, scenario: &str, recovery: RecoveryPolicy) -> Option<f64> {
    restart_of(
        results,
        scenario,
        recovery,
        lone(results, scenario, recovery)?.failover_s,
    )
}

/// For each failover: its length and the unused flow time after it, both in seconds. The unused flow time ends when the sender sends the
/// packet whose acknowledgement lets the window grow.
fn unused(results: &Results, recovery: RecoveryPolicy) -> Option<Vec<(f64, f64)>> {
    let flows = results.flows(RESTARTS, recovery)?.into_iter();
    let failovers = flows.filter(|row| row.seed == 1).map(|row| row.failover_s);
    failovers
        .map(|failover_s| {
            let restart_s = restart_of(results, RESTARTS, recovery, failover_s)?;
            let unused_s = restart_s - ACKNOWLEDGED_AFTER_S - FAILOVER_AT_S - failover_s;
            Some((failover_s, unused_s.max(0.0)))
        })
        .collect()
}

/// The window `after_s` seconds after the restart, in segments.
fn grown(results: &Results, scenario: &str, recovery: RecoveryPolicy, after_s: f64) -> Option<f64> {
    let at_s = restart(results, scenario, recovery)? + after_s;
    let failover_s = lone(results, scenario, recovery)?.failover_s;
    windows(results, scenario, recovery, failover_s)?
        .iter()
        .find(|row| row.time_s >= at_s)
        .map(|row| row.window_segments)
}
