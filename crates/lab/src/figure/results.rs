//! The results of all runs of all scenarios, and the values that the claims (module `claims`) compare.

use std::collections::BTreeMap;

use super::rows::{FlowRow, Rows, TransferRow};
use super::scenario::{FigureScenario, RecoveryPolicy};

/// The scenarios that were run, with the rows of their runs.
#[derive(Clone, Default)]
pub struct Results {
    /// Each scenario and the rows of its runs, by the scenario's name.
    pub scenarios: BTreeMap<String, (FigureScenario, Rows)>,
}

/// Start of the evaluated time, in seconds. The evaluated time is the 20 s after the thesis' failover (§7.4.3). This failover ends at 8 s.
const WATCHED_FROM_S: f64 = 8.01;
/// End of the evaluated time, in seconds.
const WATCHED_TO_S: f64 = 28.01;
/// Length of the first part of the evaluated time, in seconds. In this part, rate control still adapts to the flows that were moved.
const SETTLING_S: f64 = 4.0;
/// Time of the failure in the scenarios with several strings, in seconds.
const FAILURE_AT_S: f64 = 5.0;
/// Longest pause between two drops that count as one surge, in seconds.
const SURGE_GAP_S: f64 = 0.55;

/// Arithmetic mean. `None` if there are no values.
pub fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values
        .into_iter()
        .fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    (count > 0.0).then(|| sum / count)
}

/// Greatest value. `None` if there are no values.
pub fn greatest(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    values.into_iter().reduce(f64::max)
}

/// Least value. `None` if there are no values.
pub fn least(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    values.into_iter().reduce(f64::min)
}

/// Standard deviation. `None` if there are no values.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let middle = mean(values.iter().copied())?;
    Some(mean(values.iter().map(|value| (value - middle).powi(2)))?.sqrt())
}

/// Summary of one run of a scenario with several strings. Values of throughput, queue, drops and Jain's index are those of the evaluated
/// time ([`WATCHED_FROM_S`] to [`WATCHED_TO_S`]).
#[derive(Clone, Debug)]
pub struct StringsSummary {
    /// Mean throughput of all flows, headers included, in Mb/s.
    pub mean_mbps: f64,
    /// Standard deviation of the throughput in bins of a tenth of a second, in Mb/s.
    pub deviation_mbps: f64,
    /// Standard deviation of the rate at which R1 sent into the strings, in bins of a tenth of a second, in Mb/s. Repeated segments count.
    pub wire_deviation_mbps: f64,
    /// Greatest length of R1's queue to the surviving string, in packets.
    pub queue_max: f64,
    /// Mean length of R1's queue to the surviving string, in packets.
    pub queue_mean: f64,
    /// Number of surges. A surge is a group of drops at R1 without a pause longer than [`SURGE_GAP_S`].
    pub surges: f64,
    /// Number of packets that R1 dropped.
    pub dropped: f64,
    /// End of the first bin in which R1 dropped a packet, in seconds.
    pub first_drop_s: Option<f64>,
    /// Mean of Jain's fairness index over all half seconds with more than one active flow.
    pub jain: f64,
    /// Mean and least value of Jain's index in the first [`SETTLING_S`] seconds of the evaluated time.
    pub jain_early: [f64; 2],
    /// Mean and least value of Jain's index in the rest of the evaluated time.
    pub jain_late: [f64; 2],
    /// Longest completion time of the flows that began after the failure, in seconds. Infinite if one of them did not complete.
    pub longest_late_s: f64,
    /// Mean completion time of all flows, in seconds. Infinite if one of them did not complete.
    pub mean_completion_s: f64,
    /// How often flows got less than half of an equal share. Each active flow is looked at in each half second after the failover; this is
    /// the fraction of these cases. The first value is for flows that began before the failover ended, the second value for later flows.
    pub starved: [f64; 2],
    /// Number of segments that flows retransmitted without need. Counts only flows that were not on the failed string, and that completed
    /// between the failover's end and R1's first drop in the evaluated time.
    pub false_retransmissions: f64,
}

impl Results {
    /// The flows of the scenario named `scenario` in its runs with this recovery. `None` if there were no such runs.
    pub fn flows(&self, scenario: &str, recovery: RecoveryPolicy) -> Option<Vec<&FlowRow>> {
        let (_, rows) = self.scenarios.get(scenario)?;
        let of: Vec<_> = rows.flows.iter().filter(|row| row.recovery == recovery).collect();
        (!of.is_empty()).then_some(of)
    }

    /// Summaries of the runs over the thesis' strings with a buffer of `buffer` packets, with or without rate control: one summary per
    /// seed. `None` if there were no such runs, or if a run lacks a value.
    pub fn strings(&self, buffer: usize, rate_control: bool) -> Option<Vec<StringsSummary>> {
        self.strings_of(&format!("halr-strings-buffer-{buffer}"), rate_control)
    }

    /// As [`Self::strings`], for the scenario named `scenario`.
    pub fn strings_of(&self, scenario: &str, rate_control: bool) -> Option<Vec<StringsSummary>> {
        let (_, rows) = self.scenarios.get(scenario)?;
        let seeds = rows
            .transfers
            .iter()
            .filter(|row| row.rate_control == rate_control);
        let seeds: std::collections::BTreeSet<_> = seeds.map(|row| row.seed).collect();
        let runs: Option<Vec<_>> = seeds
            .iter()
            .map(|seed| summary(rows, *seed, rate_control))
            .collect();
        runs.filter(|runs| !runs.is_empty())
    }
}

fn watched(at: f64) -> bool {
    at > WATCHED_FROM_S && at < WATCHED_TO_S
}

fn summary(rows: &Rows, seed: u64, rate_control: bool) -> Option<StringsSummary> {
    let of = |other: u64, control: bool| other == seed && control == rate_control;
    let bins: Vec<_> = rows
        .bins
        .iter()
        .filter(|row| of(row.seed, row.rate_control) && watched(row.end_s))
        .collect();
    let mbps: Vec<f64> = bins
        .iter()
        .map(|row| row.passed_mbps + row.failover_mbps)
        .collect();
    let queue = rows
        .queue
        .iter()
        .filter(|row| of(row.seed, row.rate_control) && watched(row.time_s));
    let queue: Vec<f64> = queue.map(|row| row.packets as f64).collect();
    let wire: Vec<f64> = bins.iter().map(|row| row.wire_mbps).collect();
    let fairness = rows.fairness.iter().filter(|row| {
        of(row.seed, row.rate_control)
            && watched(row.end_s - super::sweep::FLOW_BIN_S / 2.0)
            && row.active_flows > 1
    });
    let jain = |is_late: bool| {
        let of = fairness.clone();
        let of = of.filter(|row| (row.end_s > WATCHED_FROM_S + SETTLING_S) == is_late);
        let values: Vec<f64> = of.map(|row| row.jain_index).collect();
        Some([mean(values.iter().copied())?, least(values)?])
    };
    let transfers = rows.transfers.iter().filter(|row| of(row.seed, row.rate_control));
    let completion = |row: &TransferRow| row.completion_s.unwrap_or(f64::INFINITY);
    let starved = |is_late: bool| {
        let of = transfers
            .clone()
            .filter(|row| (row.start_s > WATCHED_FROM_S) == is_late);
        let (starved, all) = of.fold((0.0, 0.0), |(starved, all), row| {
            (starved + f64::from(row.starved_bins), all + f64::from(row.bins))
        });
        if all > 0.0 { starved / all } else { 0.0 }
    };
    let drops = bins.iter().filter(|row| row.dropped_packets > 0);
    let first_drop_s = drops.clone().map(|row| row.end_s).next();
    let is_early = |row: &&TransferRow| {
        let end_s = row.start_s + completion(row);
        !row.waited && end_s > WATCHED_FROM_S && end_s < first_drop_s.unwrap_or(f64::INFINITY)
    };
    Some(StringsSummary {
        mean_mbps: mean(mbps.iter().copied())?,
        deviation_mbps: deviation(&mbps)?,
        wire_deviation_mbps: deviation(&wire)?,
        queue_max: greatest(queue.iter().copied())?,
        queue_mean: mean(queue)?,
        surges: surges(drops.clone().map(|row| row.end_s)),
        dropped: bins.iter().map(|row| row.dropped_packets as f64).sum(),
        first_drop_s,
        jain: mean(fairness.clone().map(|row| row.jain_index))?,
        jain_early: jain(false)?,
        jain_late: jain(true)?,
        longest_late_s: greatest(
            transfers
                .clone()
                .filter(|row| row.start_s > FAILURE_AT_S)
                .map(completion),
        )?,
        mean_completion_s: mean(transfers.clone().map(completion))?,
        starved: [starved(false), starved(true)],
        false_retransmissions: transfers
            .clone()
            .filter(is_early)
            .map(|row| row.retransmitted_segments as f64)
            .sum(),
    })
}

/// Number of surges: groups of `moments` (in seconds) that are separated by pauses longer than [`SURGE_GAP_S`].
pub fn surges(moments: impl Iterator<Item = f64>) -> f64 {
    let (mut last, mut count) = (f64::NEG_INFINITY, 0.0);
    for at in moments {
        if at - last > SURGE_GAP_S {
            count += 1.0;
        }
        last = at;
    }
    count
}
