//! `bench order`: what recorded order costs a Redis.

use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;

use super::calibration::Calibration;
use super::options::BenchRunOptions;
use super::target::{self, BenchTarget, Bound, median};
use super::testbed::{BenchTestbed, BenchVariant, Serving};
use crate::judge::CommitMode;
use crate::node::PatternFiles;
use crate::process;
use crate::run::{LabOutcome, conclude, in_memory};
use crate::teardown::Teardown;

/// Variants: without and with recorded order.
const VARIANTS: [(&str, Serving); 2] = [("l", Serving::Values), ("r", Serving::OrderedValues)];
/// A pair with policy `replica` that waits 0.5 s before it declares the peer dead, because a benchmark fills all CPUs.
const PAIR: BenchVariant = BenchVariant::Steadfast {
    missed: 25,
    policy: "replica",
    commit: CommitMode::Prs,
};
/// Requests of one sample, and the connections that send them. All connections use one key with one value, so a replica's output is the
/// primary's even without recorded order.
const REQUESTS: &str = "30000";
const CONNECTIONS: &str = "50";
/// The target: recorded order costs at most 15 % of the requests per second.
const RATIO_MIN: f64 = 0.85;

/// Compare the requests per second of a Redis whose order is recorded with those of a Redis whose order is not. Both have policy `replica`.
///
/// redis-benchmark writes and reads one key over 50 connections. All hosts share this machine, so only ratios within one run mean something.
#[derive(Clone, Debug, Args)]
pub struct OrderBenchOptions {
    #[command(flatten)]
    common: BenchRunOptions,
}

/// The results.
#[derive(Clone, Debug, Serialize)]
struct OrderBenchReport {
    ok: bool,
    rounds: u32,
    calibration: Calibration,
    /// Requests per second in each round, without recorded order.
    without_per_s: Vec<f64>,
    /// The same with recorded order.
    with_per_s: Vec<f64>,
    /// Median over the rounds of the ratio of both in the same round.
    ratio: f64,
    missed: Vec<String>,
}

/// Runs the benchmark.
///
/// # Errors
/// If a step fails. A missed target is no error.
pub fn run(options: &OrderBenchOptions) -> Result<LabOutcome> {
    let common = &options.common;
    let daemon = common.daemon.path()?;
    let calibration = Calibration::measure();
    let teardown = Teardown::start()?;
    let measured = measure(common.rounds, &daemon, &teardown);
    teardown.finish()?;
    let report = OrderBenchReport::of(common.rounds, calibration, measured?);
    conclude(common.json, report.ok, &report, || report.print())
}

/// Requests per second of both variants, which take turns.
fn measure(rounds: u32, daemon: &std::path::Path, teardown: &Teardown) -> Result<[Vec<f64>; 2]> {
    let directory = in_memory(&format!("bench-{}", std::process::id()), teardown)?;
    let content = PatternFiles::generate(&directory, &[])?;
    let set = |(name, serving): (&str, Serving)| {
        let run = format!("{}{name}", std::process::id());
        BenchTestbed::set(&run, PAIR, serving, &content, daemon, teardown)
    };
    let testbeds = [set(VARIANTS[0])?, set(VARIANTS[1])?];
    let mut samples = [const { Vec::new() }; 2];
    let progress = ProgressBar::new(u64::from(rounds));
    for testbed in &testbeds {
        requests(testbed)?; // the first connections are slower
    }
    for round in 0..rounds as usize {
        for turn in 0..VARIANTS.len() {
            let index = (turn + round) % VARIANTS.len();
            samples[index].push(requests(&testbeds[index])?);
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    for (index, expected) in [(0, "records"), (1, "plays")] {
        let order = testbeds[1].status(index)?.recorded_order;
        let activity = order.context("no recorded order")?.activity;
        ensure!(
            activity == expected,
            "node {index} {activity}, and the order is not recorded"
        );
    }
    Ok(samples)
}

/// Writes and reads for some seconds. Returns the requests per second.
fn requests(testbed: &BenchTestbed) -> Result<f64> {
    let mut command = testbed.network.client.command("redis-benchmark")?;
    let service = testbed.service;
    command.args(["-h", &service.ip().to_string(), "-p", &service.port().to_string()]);
    command.args(["-t", "set,get", "-n", REQUESTS, "-c", CONNECTIONS, "--csv"]);
    let text = process::output(&mut command, "redis-benchmark")?;
    parse(&text).with_context(|| format!("redis-benchmark's report:\n{text}"))
}

/// The mean over the tests of a report in CSV: the requests of all tests, divided by the time of all tests.
fn parse(text: &str) -> Option<f64> {
    let rate = |line: &str| {
        let mut fields = line.split(',').map(|field| field.trim_matches('"'));
        fields.nth(1)?.parse::<f64>().ok()
    };
    let rates: Vec<f64> = text.lines().filter_map(rate).collect();
    let seconds: f64 = rates.iter().map(|rate| 1.0 / rate).sum();
    (!rates.is_empty()).then_some(rates.len() as f64 / seconds)
}

impl OrderBenchReport {
    fn of(rounds: u32, calibration: Calibration, [without_per_s, with_per_s]: [Vec<f64>; 2]) -> Self {
        let pairs = with_per_s.iter().zip(&without_per_s);
        let ratio = median(pairs.map(|(with, without)| with / without).collect());
        let mut report = Self {
            ok: false,
            rounds,
            calibration,
            without_per_s,
            with_per_s,
            ratio,
            missed: Vec::new(),
        };
        report.missed = target::missed(&report.targets());
        report.ok = report.missed.is_empty();
        report
    }

    fn targets(&self) -> [BenchTarget; 1] {
        [BenchTarget {
            name: "requests/s, against no recorded order",
            value: self.ratio,
            bound: Bound::AtLeast(RATIO_MIN),
        }]
    }

    fn print(&self) {
        say!("{}", self.calibration);
        say!("{} rounds\n", self.rounds);
        target::print(&self.targets());
        say!(
            "\nrequests/s, medians: {:.0} without recorded order, {:.0} with it",
            median(self.without_per_s.clone()),
            median(self.with_per_s.clone())
        );
        for (without, with) in self.without_per_s.iter().zip(&self.with_per_s) {
            say!("  {without:>10.0}{with:>10.0}   ratio {:.2}", with / without);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_can_be_missed() {
        let of = |with: [f64; 3]| {
            let samples = [vec![100.0, 200.0, 100.0], with.to_vec()];
            OrderBenchReport::of(3, Calibration::measure(), samples)
        };
        assert!(of([86.0, 300.0, 86.0]).ok);
        let slow = of([84.0, 300.0, 84.0]);
        assert!(!slow.ok && slow.missed.len() == 1, "{:?}", slow.missed);
        assert!(!OrderBenchReport::of(0, Calibration::measure(), [vec![], vec![]]).ok);
    }

    #[test]
    fn a_report_is_read() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"10000.00\",\"1.0\"\n\"GET\",\"30000.00\",\"0.5\"\n";
        assert!(parse(text).is_some_and(|rate| (rate - 15_000.0).abs() < 1.0));
        assert_eq!(parse("Could not connect"), None);
    }
}
