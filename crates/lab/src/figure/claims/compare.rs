//! Comparisons of runs with a mechanism and without it, for claims about several groups of figures.

use std::ops::Range;

use super::claim::{FigureClaimResult, seconds};
use crate::figure::results::{Results, StringsSummary, greatest, least, mean};
use crate::figure::rows::FlowRow;
use crate::figure::scenario::RecoveryPolicy;

/// Scenarios of short flows, with their failovers in seconds.
pub type CompletionScenarios = [(&'static str, f64); 3];

/// Time of the cluster's failure in these scenarios, in seconds.
const FAILOVER_AT_S: f64 = 2.0;

/// Compares the longest completion of the flows whose SYN is lost in a failover of 0.5 s, with HALR and without. Without HALR, this time
/// must be in `expected_s`. With HALR, it must be below 0.8 s.
pub fn lost_syns(results: &Results, scenario: &str, expected_s: Range<f64>) -> Option<FigureClaimResult> {
    let of = |recovery| {
        let hit = |row: &&FlowRow| (FAILOVER_AT_S..FAILOVER_AT_S + 0.49).contains(&row.arrival_s);
        greatest(
            results
                .flows(scenario, recovery)?
                .into_iter()
                .filter(hit)
                .map(time),
        )
    };
    let (with, without) = (of(RecoveryPolicy::Lowest)?, of(RecoveryPolicy::None)?);
    let here = format!("up to {}, with HALR {}", seconds(without), seconds(with));
    Some(FigureClaimResult::new(
        here,
        expected_s.contains(&without) && with < 0.8,
    ))
}

/// Compares how late the last flow is, with HALR and without, over all failovers.
pub fn prompt(results: &Results, scenarios: &CompletionScenarios) -> Option<FigureClaimResult> {
    let late = |recovery| {
        let latest =
            scenarios.map(|(scenario, failover_s)| lateness(results, scenario, failover_s, recovery));
        greatest(latest.into_iter().collect::<Option<Vec<_>>>()?)
    };
    let (with, without) = (late(RecoveryPolicy::Lowest)?, late(RecoveryPolicy::None)?);
    let here = format!("{} at most, without HALR {}", seconds(with), seconds(without));
    Some(FigureClaimResult::new(here, with < 0.5 && without > 4.0))
}

pub fn time(row: &FlowRow) -> f64 {
    row.completion_s.unwrap_or(f64::INFINITY)
}

/// The undisturbed completion time.
fn normal(rows: &[&FlowRow]) -> Option<f64> {
    least(rows.iter().map(|row| time(row)))
}

/// For each of the three failovers, compares a statistic of the disturbed flows' completion times with HALR and without. `number` computes
/// the statistic, for example the mean.
pub fn shorter(
    results: &Results,
    scenarios: &CompletionScenarios,
    number: fn(Vec<f64>) -> Option<f64>,
) -> Option<FigureClaimResult> {
    let mut holds = true;
    let mut here = Vec::new();
    for (scenario, _) in *scenarios {
        let of = |recovery| {
            let rows = results.flows(scenario, recovery)?;
            let normal = normal(&rows)?;
            let disturbed = rows.into_iter().map(time).filter(|time| *time > normal + 0.01);
            number(disturbed.collect())
        };
        let (with, without) = (of(RecoveryPolicy::Lowest)?, of(RecoveryPolicy::None)?);
        holds &= with < without;
        here.push(format!("{with:.2} < {without:.2} s"));
    }
    Some(FigureClaimResult::new(here.join(", "), holds))
}

/// Lateness of the last flow, in seconds: its completion minus the failover's end and the undisturbed completion time.
fn lateness(results: &Results, scenario: &str, failover_s: f64, recovery: RecoveryPolicy) -> Option<f64> {
    let rows = results.flows(scenario, recovery)?;
    let over_s = FAILOVER_AT_S + failover_s;
    let due_s = over_s + normal(&rows)?;
    let hit = rows.into_iter().filter(|row| row.arrival_s < over_s);
    greatest(hit.map(|row| row.arrival_s + time(row) - due_s))
}

/// Means of `value` over the seeds: with rate control, then without.
pub fn both(results: &Results, scenario: &str, value: fn(&StringsSummary) -> f64) -> Option<(f64, f64)> {
    let of = |rate_control| mean(results.strings_of(scenario, rate_control)?.iter().map(value));
    Some((of(true)?, of(false)?))
}

pub fn used(results: &Results, scenario: &str, rate_mbps: f64) -> Option<FigureClaimResult> {
    let (with, _) = both(results, scenario, |run| run.mean_mbps)?;
    let (even, uneven) = both(results, scenario, |run| run.deviation_mbps)?;
    let here = format!("{with:.1} Mb/s ± {even:.1}, without ± {uneven:.1}");
    Some(FigureClaimResult::new(
        here,
        with > 0.9 * rate_mbps && even < 0.5 * uneven,
    ))
}

pub fn queue(results: &Results, scenario: &str) -> Option<FigureClaimResult> {
    let (with, without) = both(results, scenario, |run| run.queue_mean)?;
    Some(FigureClaimResult::new(
        format!("{with:.0} < {without:.0} packets"),
        with < 0.75 * without,
    ))
}

/// Compares the drops with rate control and without, from 10 s after the failover's end on. Each number is the mean
/// over the seeds.
pub fn settled(results: &Results, scenario: &str) -> Option<FigureClaimResult> {
    let (_, rows) = results.scenarios.get(scenario)?;
    let seeds = results.strings_of(scenario, true)?.len() as f64;
    let dropped = |rate_control: bool| {
        let late = rows
            .bins
            .iter()
            .filter(|row| row.rate_control == rate_control && row.end_s > 18.0);
        late.map(|row| row.dropped_packets as f64).sum::<f64>() / seeds
    };
    let (with, without) = (dropped(true), dropped(false));
    let here = format!("{with:.1} packets, without {without:.0}");
    Some(FigureClaimResult::new(here, with < 0.01 * without))
}

/// End of the time in which rate control adapts to the flows that were moved, in seconds: 2 s after the failover's end.
const SETTLED_S: f64 = 10.0;
/// End of the time in which the flows fill the string, in seconds.
const BUSY_UNTIL_S: f64 = 28.0;

/// As [`fair`], with an index of at least 0.99.
pub fn fair_later(results: &Results, scenario: &str) -> Option<FigureClaimResult> {
    fair(results, scenario, 0.99)
}

/// Compares Jain's index with rate control and without, from 2 s after the failover's end on. Each index is the mean over the half seconds
/// with several active flows. With rate control, it must be at least `index`.
pub fn fair(results: &Results, scenario: &str, index: f64) -> Option<FigureClaimResult> {
    let (_, rows) = results.scenarios.get(scenario)?;
    let of = |rate_control| {
        let later = rows.fairness.iter().filter(move |row| {
            row.rate_control == rate_control
                && row.active_flows > 1
                && (SETTLED_S..BUSY_UNTIL_S).contains(&row.end_s)
        });
        mean(later.map(|row| row.jain_index))
    };
    let (with, without) = (of(true)?, of(false)?);
    let here = format!("{with:.3}, without {without:.3}");
    Some(FigureClaimResult::new(here, with >= index && with > without))
}

/// Compares the longest queue with rate control and without, from 2 s after the failover's end on. With rate control, the queue may have at
/// most `packets` packets.
pub fn queue_at_most(results: &Results, scenario: &str, packets: f64) -> Option<FigureClaimResult> {
    let (_, rows) = results.scenarios.get(scenario)?;
    let of = |rate_control| {
        let later = rows.queue.iter().filter(move |row| {
            row.rate_control == rate_control && (SETTLED_S..BUSY_UNTIL_S).contains(&row.time_s)
        });
        greatest(later.map(|row| row.packets as f64))
    };
    let (with, without) = (of(true)?, of(false)?);
    let here = format!("{with:.0} packets, without {without:.0}");
    Some(FigureClaimResult::new(here, with <= packets && with < without))
}

/// Compares the number of dropped packets per run with rate control and without, from 2 s after the failover's end on.
pub fn undropped(results: &Results, scenario: &str) -> Option<FigureClaimResult> {
    let (_, rows) = results.scenarios.get(scenario)?;
    let seeds = results.strings_of(scenario, true)?.len() as f64;
    let of = |rate_control| {
        let later = rows.bins.iter().filter(move |row| {
            row.rate_control == rate_control && (SETTLED_S..BUSY_UNTIL_S).contains(&row.end_s)
        });
        later.map(|row| row.dropped_packets as f64).sum::<f64>() / seeds
    };
    let (with, without) = (of(true), of(false));
    let here = format!("{with:.1}, without {without:.0}");
    Some(FigureClaimResult::new(here, with == 0.0 && without > 0.0))
}
