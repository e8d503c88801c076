//! Claims of the thesis, judged by runs on this machine's kernel. The simulator's results for today's hosts are shown for comparison.

use super::claim::{ClaimEvidence, Expected, FigureClaim, FigureClaimResult, OURS, percent};
use super::compare::{
    CompletionScenarios, both, fair, fair_later, lost_syns, prompt, queue_at_most, shorter, undropped, used,
};
use super::today;
use crate::figure::results::{Results, greatest, mean};

/// The scenarios that are played on the kernel, then the same scenarios in the simulator, with hosts of today.
const COMPLETION: [&CompletionScenarios; 2] = [
    &[
        ("kernel-completion-failover-0.5s", 0.5),
        ("kernel-completion-failover-3s", 3.0),
        ("kernel-completion-failover-5s", 5.0),
    ],
    &today::COMPLETION,
];
/// See [`COMPLETION`].
const STRINGS: [&str; 2] = ["kernel-strings-buffer-750", today::EQUAL];
/// As [`STRINGS`], with a buffer of 1500 packets.
const LARGE: [&str; 2] = ["kernel-strings-buffer-1500", today::LARGE];
/// As [`STRINGS`], with half of the failed string's bandwidth left.
const HALF: [&str; 2] = ["kernel-strings-2-to-1", today::HALF];
/// As [`STRINGS`], with a quarter of the failed string's bandwidth left.
const QUARTER: [&str; 2] = ["kernel-strings-4-to-1", today::QUARTER];

pub const CLAIMS: &[FigureClaim] = &[
    FigureClaim {
        id: "kernel-12a",
        section: "7.2.2",
        statement: "Failover of 0.5 s: a lost SYN waits for its timer (a second on Linux, three in the thesis); with HALR it does not",
        paper: "4.01 s; 0.8 to 1.9 s",
        figure: "kernel-12",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| {
            simulated(results, COMPLETION, |results, of| {
                lost_syns(results, of[0].0, 1.1..1.7)
            })
        },
    },
    FigureClaim {
        id: "kernel-13a",
        section: "7.2.2",
        statement: "HALR shortens the mean disturbed flow, for failovers of 0.5, 3 and 5 s",
        paper: "3 s: a group of about 10 s, with HALR about 4 s",
        figure: "kernel-13",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, COMPLETION, |results, of| shorter(results, of, mean)),
    },
    FigureClaim {
        id: "kernel-14a",
        section: "7.2.2",
        statement: "HALR shortens the longest flow, for failovers of 0.5, 3 and 5 s",
        paper: "5 s, without HALR: 11.2 s; 40 % wait 9 s longer, the others 3 s",
        figure: "kernel-14",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, COMPLETION, |results, of| shorter(results, of, greatest)),
    },
    FigureClaim {
        id: "kernel-14b",
        section: "7.2.2",
        statement: "With HALR, a flow completes one undisturbed completion time after the failover's end (the latest flow)",
        paper: "",
        figure: "kernel-14",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, COMPLETION, prompt),
    },
    FigureClaim {
        id: "kernel-20a",
        section: "7.4.1",
        statement: "Without rate control the throughput after the failover stays at what the string carries",
        paper: "100 Mb/s",
        figure: "kernel-20",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, STRINGS, full),
    },
    FigureClaim {
        id: "kernel-20b",
        section: "7.4.1",
        statement: "Without rate control some transfers that begin after the failure take longer (the longest)",
        paper: "",
        figure: "kernel-20",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, STRINGS, longest),
    },
    FigureClaim {
        id: "kernel-21a",
        section: "7.4.1",
        statement: "With rate control the throughput is a little lower",
        paper: "",
        figure: "kernel-21",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, STRINGS, lower),
    },
    FigureClaim {
        id: "kernel-22a",
        section: "7.4.1",
        statement: "With rate control the throughput fills the string, and varies less (mean and standard deviation)",
        paper: "about 100 Mb/s",
        figure: "kernel-22",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, STRINGS, |results, of| used(results, of, 100.0)),
    },
    FigureClaim {
        id: "kernel-22b",
        section: "7.4.1",
        statement: "and is at least 95 % of the throughput without",
        paper: "",
        figure: "kernel-22",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, STRINGS, kept),
    },
    FigureClaim {
        id: "kernel-23a",
        section: "7.4.2",
        statement: "Without rate control some flows do not get their fair share (Jain's index of half seconds)",
        paper: "",
        figure: "kernel-23",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, STRINGS, unfair),
    },
    FigureClaim {
        id: "kernel-23b",
        section: "7.4.2",
        statement: "Without rate control, flows that begin after the failover suffer most (time with less than half a share)",
        paper: "",
        figure: "kernel-23",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Differs("whether a flow loses packets does not depend on when it began"),
        find: |results| simulated(results, STRINGS, late_flows_suffer),
    },
    FigureClaim {
        id: "kernel-24a",
        section: "7.4.2",
        statement: "With rate control the shares are fair from 2 s after the failover on (Jain's index of half seconds)",
        paper: "",
        figure: "kernel-24",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, STRINGS, fair_later),
    },
    FigureClaim {
        id: "kernel-25a",
        section: "7.4.3",
        statement: "Buffer of 1500 packets: with rate control the queue stays below 600 packets from 2 s after the failover on",
        paper: "at most 600",
        figure: "kernel-25",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, LARGE, |results, of| queue_at_most(results, of, 600.0)),
    },
    FigureClaim {
        id: "kernel-26a",
        section: "7.4.3",
        statement: "Buffer of 750 packets: with rate control the queue stays below 600 packets from 2 s after the failover on",
        paper: "at most 600",
        figure: "kernel-26",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, STRINGS, |results, of| queue_at_most(results, of, 600.0)),
    },
    FigureClaim {
        id: "kernel-26b",
        section: "7.4.3",
        statement: "and no packet is dropped",
        paper: "",
        figure: "kernel-26",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, STRINGS, undropped),
    },
    FigureClaim {
        id: "kernel-unequal-2a",
        section: "6.1",
        statement: "Half of the failed string's bandwidth is left: with rate control the throughput fills the string, \
                    and varies less",
        paper: OURS,
        figure: "kernel-unequal-2",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, HALF, |results, of| used(results, of, 50.0)),
    },
    FigureClaim {
        id: "kernel-unequal-2b",
        section: "6.1",
        statement: "and is at least 95 % of the throughput without",
        paper: OURS,
        figure: "kernel-unequal-2",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, HALF, kept),
    },
    FigureClaim {
        id: "kernel-unequal-2c",
        section: "6.1",
        statement: "and the shares are fair from 2 s after the failover on (Jain's index of half seconds)",
        paper: OURS,
        figure: "kernel-unequal-2",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, HALF, fair_later),
    },
    FigureClaim {
        id: "kernel-unequal-2d",
        section: "6.1",
        statement: "and the queue stays below 600 packets of 750 from 2 s after the failover on",
        paper: OURS,
        figure: "kernel-unequal-2",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, HALF, |results, of| queue_at_most(results, of, 600.0)),
    },
    FigureClaim {
        id: "kernel-unequal-2e",
        section: "6.1",
        statement: "and no packet is dropped",
        paper: OURS,
        figure: "kernel-unequal-2",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, HALF, undropped),
    },
    FigureClaim {
        id: "kernel-unequal-4a",
        section: "6.1",
        statement: "A quarter of the failed string's bandwidth is left: with rate control the throughput fills the string, \
                    and varies less",
        paper: OURS,
        figure: "kernel-unequal-4",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, QUARTER, |results, of| used(results, of, 25.0)),
    },
    FigureClaim {
        id: "kernel-unequal-4b",
        section: "6.1",
        statement: "and is at least 95 % of the throughput without",
        paper: OURS,
        figure: "kernel-unequal-4",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, QUARTER, kept),
    },
    FigureClaim {
        id: "kernel-unequal-4c",
        section: "6.1",
        statement: "and the shares are fair from 2 s after the failover on (Jain's index of half seconds, in which each flow sends only eleven packets)",
        paper: OURS,
        figure: "kernel-unequal-4",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, QUARTER, |results, of| fair(results, of, 0.98)),
    },
    FigureClaim {
        id: "kernel-unequal-4d",
        section: "6.1",
        statement: "and the queue stays below 600 packets of 750 from 2 s after the failover on",
        paper: OURS,
        figure: "kernel-unequal-4",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, QUARTER, |results, of| queue_at_most(results, of, 600.0)),
    },
    FigureClaim {
        id: "kernel-unequal-4e",
        section: "6.1",
        statement: "and no packet is dropped",
        paper: OURS,
        figure: "kernel-unequal-4",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, QUARTER, undropped),
    },
];

/// The result for the kernel's scenarios, with the result for the simulator's scenarios beside it.
fn simulated<T>(
    results: &Results,
    [kernel, simulator]: [T; 2],
    find: impl Fn(&Results, T) -> Option<FigureClaimResult>,
) -> Option<FigureClaimResult> {
    let found = find(results, kernel)?;
    match find(results, simulator) {
        Some(other) => Some(found.beside(other.here)),
        None => Some(found),
    }
}

/// Compares the throughput with rate control and without.
fn kept(results: &Results, scenario: &str) -> Option<FigureClaimResult> {
    let (with, without) = both(results, scenario, |run| run.mean_mbps)?;
    let part = with / without;
    Some(FigureClaimResult::new(
        format!("{:.1} %", part * 100.0),
        part >= 0.95,
    ))
}

/// Whether the throughput without rate control is that of the string.
fn full(results: &Results, scenario: &str) -> Option<FigureClaimResult> {
    let (_, without) = both(results, scenario, |run| run.mean_mbps)?;
    let holds = (95.0..105.0).contains(&without);
    Some(FigureClaimResult::new(format!("{without:.1} Mb/s"), holds))
}

/// Compares the longest completion of the flows that began after the failure, without rate control and with it.
fn longest(results: &Results, scenario: &str) -> Option<FigureClaimResult> {
    let (with, without) = both(results, scenario, |run| run.longest_late_s)?;
    let here = format!("{without:.1} s, with rate control {with:.1} s");
    Some(FigureClaimResult::new(here, with < without))
}

/// Compares the throughput with rate control and without: a little lower.
fn lower(results: &Results, scenario: &str) -> Option<FigureClaimResult> {
    let (with, without) = both(results, scenario, |run| run.mean_mbps)?;
    let here = format!("{with:.1} Mb/s, without {without:.1}");
    Some(FigureClaimResult::new(
        here,
        with <= without && with > 0.9 * without,
    ))
}

/// Whether the shares without rate control are unequal.
fn unfair(results: &Results, scenario: &str) -> Option<FigureClaimResult> {
    let (_, without) = both(results, scenario, |run| run.jain)?;
    Some(FigureClaimResult::new(format!("{without:.2}"), without < 0.9))
}

/// Compares how often flows that begin after the failover get less than half a share, without rate control, and how often older flows do.
fn late_flows_suffer(results: &Results, scenario: &str) -> Option<FigureClaimResult> {
    let (_, early) = both(results, scenario, |run| run.starved[0])?;
    let (_, late) = both(results, scenario, |run| run.starved[1])?;
    let here = format!("{}, older flows {}", percent(late), percent(early));
    Some(FigureClaimResult::new(here, late > 1.25 * early))
}
