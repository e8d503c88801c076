//! The results of all runs, and the queries that claims need.

use std::collections::BTreeMap;

use super::rows::{FlowRow, Rows};
use super::scenario::{FigureScenario, RecoveryMode};

/// Scenarios by their names, with their rows.
#[derive(Default)]
pub struct Results {
    /// Scenarios and rows, sorted by name.
    pub scenarios: BTreeMap<String, (FigureScenario, Rows)>,
}

/// Start and end of the evaluated time, in seconds: 20 s from the end of the thesis' failover (§7.4.3).
const WATCHED_FROM_S: f64 = 8.01;
const WATCHED_TO_S: f64 = 28.01;
/// Longest pause between two drops of one surge, in seconds.
const SURGE_GAP_S: f64 = 0.55;

/// Arithmetic mean. `None` without values.
pub fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values
        .into_iter()
        .fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    (count > 0.0).then(|| sum / count)
}

/// Greatest value. `None` without values.
pub fn greatest(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    values.into_iter().reduce(f64::max)
}

/// Least value. `None` without values.
pub fn least(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    values.into_iter().reduce(f64::min)
}

/// Standard deviation. `None` without values.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let middle = mean(values.iter().copied())?;
    Some(mean(values.iter().map(|value| (value - middle).powi(2)))?.sqrt())
}

/// Summary of one run over the strings, over the evaluated time.
#[derive(Clone, Debug)]
pub struct StringsSummary {
    /// Mean throughput of all flows, headers included, in Mb/s.
    pub mean_mbps: f64,
    /// Standard deviation of the throughput over tenths of a second, in Mb/s.
    pub deviation_mbps: f64,
    /// Greatest queue at R1, in packets.
    pub queue_max: f64,
    /// Mean queue at R1, in packets.
    pub queue_mean: f64,
    /// Number of surges of drops at R1.
    pub surges: f64,
    /// Packets that R1 dropped.
    pub dropped: f64,
    /// End of the first bin in which R1 dropped a packet, in seconds.
    pub first_drop_s: Option<f64>,
    /// Mean of Jain's index over the half seconds with several active flows.
    pub jain: f64,
}

impl Results {
    /// The flows of a scenario with this recovery. `None` if it was not simulated.
    pub fn flows(&self, scenario: &str, recovery: RecoveryMode) -> Option<Vec<&FlowRow>> {
        let (_, rows) = self.scenarios.get(scenario)?;
        let of: Vec<_> = rows.flows.iter().filter(|row| row.recovery == recovery).collect();
        (!of.is_empty()).then_some(of)
    }

    /// The runs over the thesis' strings with this buffer, with or without rate control: one summary per seed.
    pub fn strings(&self, buffer: usize, rate_control: bool) -> Option<Vec<StringsSummary>> {
        self.strings_of(&format!("halr-strings-buffer-{buffer}"), rate_control)
    }

    /// As [`Self::strings`], for the scenario of this name.
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
    let fairness = rows.fairness.iter().filter(|row| {
        of(row.seed, row.rate_control)
            && watched(row.end_s - super::sweep::FLOW_BIN_S)
            && row.active_flows > 1
    });
    let drops = bins.iter().filter(|row| row.dropped_packets > 0);
    Some(StringsSummary {
        mean_mbps: mean(mbps.iter().copied())?,
        deviation_mbps: deviation(&mbps)?,
        queue_max: greatest(queue.iter().copied())?,
        queue_mean: mean(queue)?,
        surges: surges(drops.clone().map(|row| row.end_s)),
        dropped: bins.iter().map(|row| row.dropped_packets as f64).sum(),
        first_drop_s: drops.map(|row| row.end_s).next(),
        jain: mean(fairness.map(|row| row.jain_index))?,
    })
}

/// Number of groups of moments that are separated by pauses longer than [`SURGE_GAP_S`].
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
