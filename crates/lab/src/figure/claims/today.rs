//! Our own claims about figures of the HALR thesis that are simulated anew: with today's hosts (CUBIC, RACK, TLP, Linux's constants), or
//! with strings of unequal bandwidth. The expected verdicts come from our own runs of these figures. The section of a claim is the section
//! of the thesis that describes the simulated network.

use super::claim::{ClaimEvidence, Expected, FigureClaim, FigureClaimResult, OURS, percent, seconds};
use super::compare::{
    CompletionScenarios, fair_later, lost_syns, prompt, queue, queue_at_most, settled, shorter, time, used,
};
use crate::figure::results::{Results, greatest, least, mean};
use crate::figure::rows::FlowRow;
use crate::figure::scenario::RecoveryPolicy;

pub const COMPLETION: CompletionScenarios = [
    ("today-completion-failover-0.5s", 0.5),
    ("today-completion-failover-3s", 3.0),
    ("today-completion-failover-5s", 5.0),
];
const TIMEOUTS: &str = "today-timeouts";
pub const EQUAL: &str = "today-strings-buffer-750";
pub const LARGE: &str = "today-strings-buffer-1500";
pub const HALF: &str = "unequal-strings-2-to-1";
pub const QUARTER: &str = "unequal-strings-4-to-1";

pub const CLAIMS: &[FigureClaim] = &[
    FigureClaim {
        id: "today-12a",
        section: "7.2.2",
        statement: "Today's hosts, failover of 0.5 s: a lost SYN costs a second, not three; with HALR half a second",
        paper: OURS,
        figure: "today-12",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| lost_syns(results, COMPLETION[0].0, 1.4..1.7),
    },
    FigureClaim {
        id: "today-13a",
        section: "7.2.2",
        statement: "Today's hosts: HALR shortens the mean disturbed flow, for failovers of 0.5, 3 and 5 s",
        paper: OURS,
        figure: "today-13",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| shorter(results, &COMPLETION, mean),
    },
    FigureClaim {
        id: "today-14a",
        section: "7.2.2",
        statement: "Today's hosts: HALR shortens the longest flow, for failovers of 0.5, 3 and 5 s; Linux does not \
                    double the timeout for the first four lost SYNs, so in long failovers HALR gains less than in \
                    the thesis",
        paper: OURS,
        figure: "today-14",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| shorter(results, &COMPLETION, greatest),
    },
    FigureClaim {
        id: "today-14b",
        section: "7.2.2",
        statement: "With HALR every flow completes within its undisturbed time plus half a second, counted from the \
                    failover's end",
        paper: OURS,
        figure: "today-14",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| prompt(results, &COMPLETION),
    },
    FigureClaim {
        id: "today-16a",
        section: "7.2.3",
        statement: "Today's hosts: with HALR no flow has a timeout in failovers up to 0.2 s",
        paper: OURS,
        figure: "today-16",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let part = |recovery| {
                let short = results.flows(TIMEOUTS, recovery)?.into_iter();
                mean(
                    short
                        .filter(|row| row.failover_s <= 0.2)
                        .map(|row| f64::from(row.timeouts.min(1))),
                )
            };
            let (with, without) = (part(RecoveryPolicy::Lowest)?, part(RecoveryPolicy::None)?);
            let here = format!(
                "{} of the flows, without HALR {}",
                percent(with),
                percent(without)
            );
            Some(FigureClaimResult::new(here, with == 0.0 && without > 0.0))
        },
    },
    FigureClaim {
        id: "today-16b",
        section: "7.2.3",
        statement: "and in failovers of 1.5 s or longer HALR saves most flows their last timeout (timeouts per flow)",
        paper: OURS,
        figure: "today-16",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let saved = per_failover(results, |row| f64::from(row.timeouts))?.into_iter();
            let saved = saved.filter(|(failover_s, ..)| *failover_s >= 1.5);
            let saved: Vec<f64> = saved.map(|(_, with, without)| without - with).collect();
            let (low, high) = (least(saved.iter().copied())?, greatest(saved)?);
            let here = format!("{low:.2} to {high:.2} fewer");
            Some(FigureClaimResult::new(here, low > 0.7 && high < 1.2))
        },
    },
    FigureClaim {
        id: "today-16c",
        section: "7.2.3",
        statement: "and shortens the mean completion for every failover",
        paper: OURS,
        figure: "today-16",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let times = per_failover(results, time)?;
            let shorter = times.iter().filter(|(_, with, without)| with < without).count();
            let most = greatest(times.iter().map(|(_, with, without)| without - with))?;
            let here = format!("for {shorter} of {}, by up to {}", times.len(), seconds(most));
            Some(FigureClaimResult::new(here, shorter == times.len()))
        },
    },
    FigureClaim {
        id: "today-22a",
        section: "7.4.1",
        statement: "Today's hosts: with rate control the throughput fills the string, and varies less (mean and \
                    standard deviation)",
        paper: OURS,
        figure: "today-22",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| used(results, EQUAL, 100.0),
    },
    FigureClaim {
        id: "today-24a",
        section: "7.4.2",
        statement: "Today's hosts: with rate control the shares are equal from 2 s after the failover on (Jain's index of half seconds)",
        paper: OURS,
        figure: "today-24",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| fair_later(results, EQUAL),
    },
    FigureClaim {
        id: "today-25a",
        section: "7.4.3",
        statement: "Today's hosts, buffer of 1500 packets: with rate control the queue stays below 600 packets from 2 s after the \
                    failover on",
        paper: OURS,
        figure: "today-25",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| queue_at_most(results, LARGE, 600.0),
    },
    FigureClaim {
        id: "today-26a",
        section: "7.4.3",
        statement: "Today's hosts: with rate control the queue is shorter (mean)",
        paper: OURS,
        figure: "today-26",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| queue(results, EQUAL),
    },
    FigureClaim {
        id: "today-26b",
        section: "7.4.3",
        statement: "and from 10 s after the failover on, less than 1 % of the drops remain; \
                    until then, the windows that today's hosts opened before the failover cost packets",
        paper: OURS,
        figure: "today-26",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| settled(results, EQUAL),
    },
    FigureClaim {
        id: "unequal-2a",
        section: "6.1",
        statement: "Half of the failed string's bandwidth is left: with rate control the throughput fills the string, \
                    and varies less",
        paper: OURS,
        figure: "unequal-2",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| used(results, HALF, 50.0),
    },
    FigureClaim {
        id: "unequal-2b",
        section: "6.1",
        statement: "and the shares are equal from 2 s after the failover on (Jain's index of half seconds)",
        paper: OURS,
        figure: "unequal-2",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| fair_later(results, HALF),
    },
    FigureClaim {
        id: "unequal-2c",
        section: "6.1",
        statement: "and the queue is shorter (mean)",
        paper: OURS,
        figure: "unequal-2",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| queue(results, HALF),
    },
    FigureClaim {
        id: "unequal-4a",
        section: "6.1",
        statement: "A quarter of the failed string's bandwidth is left: with rate control the throughput fills the \
                    string, and varies less",
        paper: OURS,
        figure: "unequal-4",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| used(results, QUARTER, 25.0),
    },
    FigureClaim {
        id: "unequal-4b",
        section: "6.1",
        statement: "and the shares are equal from 2 s after the failover on (Jain's index of half seconds)",
        paper: OURS,
        figure: "unequal-4",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| fair_later(results, QUARTER),
    },
    FigureClaim {
        id: "unequal-4c",
        section: "6.1",
        statement: "and the queue is shorter (mean), and next to nothing is dropped from 10 s after the failover on",
        paper: OURS,
        figure: "unequal-4",
        evidence: ClaimEvidence::Simulation,
        expected: Expected::Holds,
        find: |results| {
            let (queue, settled) = (queue(results, QUARTER)?, settled(results, QUARTER)?);
            let here = format!("{}; dropped: {}", queue.here, settled.here);
            Some(FigureClaimResult::new(here, queue.holds && settled.holds))
        },
    },
];

/// For each failover: its duration, and the mean of `number` over the flows of this failover, with HALR and without HALR.
fn per_failover(results: &Results, number: fn(&FlowRow) -> f64) -> Option<Vec<(f64, f64, f64)>> {
    let (with, without) = (
        results.flows(TIMEOUTS, RecoveryPolicy::Lowest)?,
        results.flows(TIMEOUTS, RecoveryPolicy::None)?,
    );
    let mut failovers: Vec<f64> = with.iter().map(|row| row.failover_s).collect();
    failovers.sort_by(f64::total_cmp);
    failovers.dedup();
    let of = |rows: &[&FlowRow], failover_s: f64| {
        mean(
            rows.iter()
                .filter(|row| row.failover_s == failover_s)
                .map(|row| number(row)),
        )
    };
    let both = |failover_s: f64| Some((failover_s, of(&with, failover_s)?, of(&without, failover_s)?));
    failovers.into_iter().map(both).collect()
}
