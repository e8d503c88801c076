//! `bench order`: what recorded order costs a Redis.

use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;

use super::calibration::Calibration;
use super::commit;
use super::load::LOAD;
use super::options::BenchRunOptions;
use super::spread::LatencySpread;
use super::target::{self, BenchTarget, Bound, median};
use super::testbed::{BenchTestbed, BenchVariant, Serving};
use crate::node::PatternFiles;
use crate::process;
use crate::run::{LabOutcome, conclude, in_memory};
use crate::teardown::Teardown;
use judge::CommitMode;

/// The variants: behind a node whose kernel only forwards, and behind a pair without and with recorded order.
const VARIANTS: [OrderVariant; VARIANT_COUNT] = [
    OrderVariant {
        run: "f",
        variant: BenchVariant::Forwarding,
        serving: Serving::Values,
    },
    OrderVariant {
        run: "l",
        variant: PAIR,
        serving: Serving::Values,
    },
    OrderVariant {
        run: "r",
        variant: PAIR,
        serving: Serving::OrderedValues,
    },
];
const VARIANT_COUNT: usize = 3;
/// Indices in [`VARIANTS`].
const CLEAN: usize = 0;
const WITH: usize = 2;
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
/// Small requests of one sample of latencies, one after the other.
const ASKED: &str = "2000";
/// The target: protection with recorded order adds at most twice the latency of a service without protection. FT-TCP's own latencies
/// were 2.6 and 2.8 times that latency, in total (DSN 2003, section 5.3, Table 1).
const LATENCY_RATIO_MAX: f64 = 3.0;

/// Compare a Redis whose order is recorded with a Redis whose order is not. Both have policy `replica`.
///
/// Requests per second: redis-benchmark writes and reads one key over 50 connections. Latency: one client writes and reads a small value, one
/// request after the other. Its median is also compared with that of a Redis without protection, behind a node whose kernel only forwards
/// packets: at most 3 times that latency, which is 2 times added. The variants take turns. All hosts share this machine, so only ratios within
/// one run mean something.
#[derive(Clone, Debug, Args)]
pub struct OrderBenchOptions {
    #[command(flatten)]
    common: BenchRunOptions,
}

/// One of the compared services.
#[derive(Clone, Copy)]
struct OrderVariant {
    /// Ends the name of its network.
    run: &'static str,
    variant: BenchVariant,
    serving: Serving,
}

/// One value for each of [`VARIANTS`].
type PerOrderVariant<T> = [T; VARIANT_COUNT];

/// What was measured, for each round.
#[derive(Default)]
struct OrderSamples {
    /// Requests per second.
    requests_per_s: Vec<f64>,
    /// Median latency in microseconds.
    latency_us: Vec<f64>,
}

/// Medians over the rounds of the median latencies in the rounds, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct RequestLatencies {
    /// Behind a node that only forwards.
    clean: f64,
    without_recorded_order: f64,
    with_recorded_order: f64,
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
    request_latency_us: RequestLatencies,
    /// Commit latency of small requests: from a part of the record to its receipt, at the primary's interface. All rounds together.
    commit_latency_us: LatencySpread,
    /// Median over the rounds of the latency with recorded order, divided by that of the clean variant in the same round.
    latency_ratio: f64,
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
    let (samples, commits_us) = measured?;
    let report = OrderBenchReport::of(common.rounds, calibration, samples, &commits_us);
    conclude(common.json, report.ok, &report, || report.print())
}

/// The samples of all variants, which take turns, and the commit latencies with recorded order, in microseconds.
fn measure(
    rounds: u32,
    daemon: &std::path::Path,
    teardown: &Teardown,
) -> Result<(PerOrderVariant<OrderSamples>, Vec<f64>)> {
    let directory = in_memory(&format!("bench-{}", std::process::id()), teardown)?;
    let content = PatternFiles::generate(&directory, &[])?;
    let mut testbeds = Vec::new();
    for OrderVariant {
        run,
        variant,
        serving,
    } in VARIANTS
    {
        let run = format!("{}{run}", std::process::id());
        testbeds.push(BenchTestbed::set(
            &run, variant, serving, &content, daemon, teardown,
        )?);
    }
    let (mut samples, mut commits_us) = (PerOrderVariant::<OrderSamples>::default(), Vec::new());
    let progress = ProgressBar::new(u64::from(rounds));
    for testbed in &testbeds {
        requests(testbed)?; // the first connections are slower
    }
    for round in 0..rounds as usize {
        let turns = || (0..VARIANT_COUNT).map(|turn| (turn + round) % VARIANT_COUNT);
        for index in turns() {
            let per_s = requests(&testbeds[index])?;
            samples[index].requests_per_s.push(per_s);
        }
        for index in turns() {
            let latency_us = latency(&testbeds[index])?;
            samples[index].latency_us.push(latency_us);
        }
        // Apart, because a capture takes CPU time.
        let ordered = &testbeds[WITH];
        commits_us.extend(commit::latencies(ordered, &directory, || {
            latency(ordered).map(drop)
        })?);
        progress.inc(1);
    }
    progress.finish_and_clear();
    for (index, expected) in [(0, "records"), (1, "plays")] {
        let status = testbeds[WITH].status(index)?;
        if expected == "plays" {
            let taken = status.counters.get("order_kernel_bytes");
            ensure!(
                taken.is_some_and(|&bytes| bytes > 0),
                "the backup's kernel has taken nothing"
            );
        }
        let order = status.recorded_order;
        let activity = order.context("no recorded order")?.activity;
        ensure!(
            activity == expected,
            "node {index} {activity}, and the order is not recorded"
        );
    }
    ensure!(!commits_us.is_empty(), "no receipt was captured");
    Ok((samples, commits_us))
}

/// Median latency of small requests, in microseconds.
fn latency(testbed: &BenchTestbed) -> Result<f64> {
    let mut command = testbed.network.client.command(std::env::current_exe()?)?;
    command.args([LOAD, "ask", &testbed.service.to_string(), ASKED]);
    let text = process::output(&mut command, "small requests")?;
    Ok(median(serde_json::from_str(&text)?))
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
    fn of(
        rounds: u32,
        calibration: Calibration,
        samples: PerOrderVariant<OrderSamples>,
        commits_us: &[f64],
    ) -> Self {
        let of_rounds = |samples: &[f64], others: &[f64]| {
            let pairs = samples.iter().zip(others);
            median(pairs.map(|(one, other)| one / other).collect())
        };
        let rates = samples.each_ref().map(|one| one.requests_per_s.clone());
        let latencies = samples.each_ref().map(|one| &one.latency_us[..]);
        let [clean, without, with] = latencies.map(|one| median(one.to_vec()));
        let latency_ratio = of_rounds(latencies[WITH], latencies[CLEAN]);
        let [_, without_per_s, with_per_s] = rates;
        let ratio = of_rounds(&with_per_s, &without_per_s);
        let mut report = Self {
            ok: false,
            rounds,
            calibration,
            without_per_s,
            with_per_s,
            ratio,
            request_latency_us: RequestLatencies {
                clean,
                without_recorded_order: without,
                with_recorded_order: with,
            },
            commit_latency_us: LatencySpread::of(commits_us),
            latency_ratio,
            missed: Vec::new(),
        };
        report.missed = target::missed(&report.targets());
        report.ok = report.missed.is_empty();
        report
    }

    fn targets(&self) -> [BenchTarget; 2] {
        [
            BenchTarget {
                name: "requests/s, against no recorded order",
                value: self.ratio,
                bound: Bound::AtLeast(RATIO_MIN),
            },
            BenchTarget {
                name: "request latency / clean",
                value: self.latency_ratio,
                bound: Bound::AtMost(LATENCY_RATIO_MAX),
            },
        ]
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
        let RequestLatencies {
            clean,
            without_recorded_order,
            with_recorded_order,
        } = self.request_latency_us;
        say!(
            "\nrequest latency, medians, µs: {clean:.0} clean, {without_recorded_order:.0} without recorded order, {with_recorded_order:.0} with it"
        );
        let commits = self.commit_latency_us.figures();
        let commits = commits.map(|(name, value)| format!("{name} {value:.1}"));
        say!("commit latency, µs: {}", commits.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The report of three rounds with these requests per second and latencies.
    fn report(requests_per_s: [f64; 3], latency_us: [f64; 3]) -> OrderBenchReport {
        let of = |requests_per_s: [f64; 3], latency_us: [f64; 3]| OrderSamples {
            requests_per_s: requests_per_s.to_vec(),
            latency_us: latency_us.to_vec(),
        };
        let samples = [
            of([1.0; 3], [100.0, 200.0, 100.0]),
            of([100.0, 200.0, 100.0], [150.0; 3]),
            of(requests_per_s, latency_us),
        ];
        OrderBenchReport::of(3, Calibration::measure(), samples, &[20.0, 40.0])
    }

    #[test]
    fn each_target_can_be_missed() {
        let (fast, quick) = ([86.0, 300.0, 86.0], [290.0, 300.0, 290.0]);
        let good = report(fast, quick);
        assert!(good.ok && (good.latency_ratio - 2.9).abs() < 1e-9);
        assert!((good.commit_latency_us.median - 30.0).abs() < 1e-9);
        let slow = report([84.0, 300.0, 84.0], quick);
        assert!(!slow.ok && slow.missed.len() == 1, "{:?}", slow.missed);
        let late = report(fast, [310.0, 300.0, 310.0]);
        let [missed] = &late.missed[..] else {
            panic!("{:?}", late.missed)
        };
        assert!(missed.starts_with("request latency / clean"), "{missed}");
        assert!(!OrderBenchReport::of(0, Calibration::measure(), PerOrderVariant::default(), &[]).ok);
    }

    #[test]
    fn a_report_is_read() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"10000.00\",\"1.0\"\n\"GET\",\"30000.00\",\"0.5\"\n";
        assert!(parse(text).is_some_and(|rate| (rate - 15_000.0).abs() < 1.0));
        assert_eq!(parse("Could not connect"), None);
    }
}
