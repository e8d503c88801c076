//! Claims of the thesis, judged by runs on this machine's kernel. For most claims, the simulator's
//! results for today's hosts are shown for comparison.

use super::claim::{ClaimEvidence, Expected, FigureClaim, FigureClaimResult};
use super::compare::{
    CompletionScenarios, both, fair_later, lost_syns, prompt, queue_at_most, shorter, undropped, used,
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
const LARGE: &str = "kernel-strings-buffer-1500";

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
        paper: "",
        figure: "kernel-13",
        evidence: ClaimEvidence::Kernel,
        expected: Expected::Holds,
        find: |results| simulated(results, COMPLETION, |results, of| shorter(results, of, mean)),
    },
    FigureClaim {
        id: "kernel-14a",
        section: "7.2.2",
        statement: "HALR shortens the longest flow, for failovers of 0.5, 3 and 5 s",
        paper: "",
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
        find: |results| queue_at_most(results, LARGE, 600.0),
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
