//! `bench coral`: the evaluation of CoRAL's failover (Aghdaie and Tamir, PDCS 2003), with a stage before lighttpd and a CGI script whose
//! replies of 1 KB are random.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;

use super::calibration::Calibration;
use super::coral_page::{self, CoralClaim};
use super::measure::{self, Requests};
use super::options::BenchRunOptions;
use super::target::{self, BenchTarget, Bound, median};
use super::testbed::{BenchTestbed, BenchVariant, STAGED, Serving};
use crate::crash::{StagedSample, staged_sample};
use crate::node::PatternFiles;
use crate::run::{LabOutcome, conclude, in_memory};
use crate::teardown::Teardown;

/// Request for a reply of 1 KB.
const PATH: &str = "/random.cgi?1000";
/// Clients, as in the paper. Each sends a request after the reply to the request before.
const CLIENTS: u32 = 8;
const REQUEST_SECONDS: u32 = 4;
/// Variants whose throughput is measured.
const VARIANTS: usize = 3;

/// Compare a pair of stages with plain servers, and measure its failover, as CoRAL's authors did (PDCS 2003).
///
/// The replies are 1 KB of random bytes from a CGI script, for eight clients. All hosts share this machine, so only ratios within one run
/// mean something. The plain server behind a forwarding node has all CPUs of the machine, as the pair has: it stands for two plain
/// servers. With half of the CPUs, it stands for one.
#[derive(Clone, Debug, Args)]
pub struct CoralBenchOptions {
    #[command(flatten)]
    common: BenchRunOptions,
    /// Write a page with the paper's figures and claims, and the figures' points as CSV, into this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The results: medians over the rounds.
#[derive(Clone, Debug, Serialize)]
struct CoralBenchReport {
    ok: bool,
    rounds: u32,
    calibration: Calibration,
    /// Replies per second of a plain server with half of the CPUs, of one with all CPUs, and of the pair.
    requests_per_s: [f64; VARIANTS],
    latency_us_median: [f64; VARIANTS],
    /// The pair's throughput, as a part of that of two plain servers in the same round.
    throughput_ratio_vs_two: f64,
    throughput_ratio_vs_one: f64,
    detection_ms: f64,
    takeover_ms: f64,
    takeover_ms_max: f64,
    takeover_gate_ms: f64,
    takeover_first_live_ms: f64,
    integration_ms: f64,
    integration_ms_max: f64,
    integration_forwarding_ms: f64,
    vulnerable_ms: f64,
    return_ms: f64,
    stall_ms_median: f64,
    stall_ms_max: f64,
    /// Longest wait of a client before the failure.
    gap_before_ms: f64,
    /// Throughput after the failure as a part of that before.
    after_ratio: f64,
    claims: Vec<CoralClaim>,
    /// One power-off for each round, with its throughput (Figure 2) and latencies (Figure 3).
    failures: Vec<StagedSample>,
    missed: Vec<String>,
}

/// Runs the benchmark.
///
/// # Errors
/// If a step fails. A missed target is no error.
pub fn run(options: &CoralBenchOptions) -> Result<LabOutcome> {
    let common = &options.common;
    let daemon = common.daemon.path()?;
    let calibration = Calibration::measure();
    let teardown = Teardown::start()?;
    let measured = measure_variants(common.rounds, &daemon, &teardown);
    teardown.finish()?;
    let requests = measured?;
    let failures = (0..common.rounds).map(|round| {
        staged_sample(u64::from(round), &common.daemon).with_context(|| format!("power-off {}", round + 1))
    });
    let failures = failures.collect::<Result<Vec<_>>>()?;
    let report = CoralBenchReport::of(common.rounds, calibration, &requests, failures);
    if let (Some(out), Some(sample)) = (&options.out, report.failures.first()) {
        coral_page::write(out, sample, &report.claims).with_context(|| out.display().to_string())?;
    }
    conclude(common.json, report.ok, &report, || report.print())
}

/// Measures the throughput of all variants, in turns.
fn measure_variants(rounds: u32, daemon: &Path, teardown: &Teardown) -> Result<[Vec<Requests>; VARIANTS]> {
    let directory = in_memory(&format!("bench-{}", std::process::id()), teardown)?;
    let content = PatternFiles::generate(&directory, &[])?;
    let set = |variant: BenchVariant, name: &str| {
        let run = format!("{}{name}", std::process::id());
        BenchTestbed::set(&run, variant, Serving::Random, &content, daemon, teardown)
    };
    let testbeds = [
        set(BenchVariant::Forwarding, "o")?,
        set(BenchVariant::Forwarding, "t")?,
        set(STAGED, "s")?,
    ];
    let cpus = std::thread::available_parallelism()?.get();
    for server in &testbeds[0].servers {
        server.use_cpus(0..(cpus / 2).max(1))?;
    }
    let mut samples = [const { Vec::new() }; VARIANTS];
    let progress = ProgressBar::new(u64::from(rounds));
    for round in 0..rounds as usize {
        for turn in 0..VARIANTS {
            let index = (turn + round) % VARIANTS;
            let testbed = &testbeds[index];
            let client = &testbed.network.client;
            samples[index].push(measure::requests(
                client,
                testbed.service,
                PATH,
                CLIENTS,
                REQUEST_SECONDS,
            )?);
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(samples)
}

impl CoralBenchReport {
    fn of(
        rounds: u32,
        calibration: Calibration,
        requests: &[Vec<Requests>; VARIANTS],
        failures: Vec<StagedSample>,
    ) -> Self {
        let all = |figure: fn(&StagedSample) -> f64| failures.iter().map(figure).collect::<Vec<f64>>();
        let middle = |figure| median(all(figure));
        let most = |figure| all(figure).into_iter().fold(f64::NAN, f64::max);
        let per_s = requests
            .each_ref()
            .map(|of| median(of.iter().map(|one| one.per_s).collect()));
        // Of the same round, because the machine may do other work in another round.
        let ratio = |other: usize| {
            let pairs = requests[2].iter().zip(&requests[other]);
            median(pairs.map(|(pair, plain)| pair.per_s / plain.per_s).collect())
        };
        let mut report = Self {
            ok: false,
            rounds,
            calibration,
            requests_per_s: per_s,
            latency_us_median: requests
                .each_ref()
                .map(|of| median(of.iter().map(|one| one.median_us).collect())),
            throughput_ratio_vs_two: ratio(1),
            throughput_ratio_vs_one: ratio(0),
            detection_ms: middle(|one| one.detection_ms),
            takeover_ms: middle(|one| one.last_live_ms),
            takeover_ms_max: most(|one| one.last_live_ms),
            takeover_gate_ms: middle(|one| one.gate_ms),
            takeover_first_live_ms: middle(|one| one.first_live_ms),
            integration_ms: middle(|one| one.integration_ms),
            integration_ms_max: most(|one| one.integration_ms),
            integration_forwarding_ms: middle(|one| one.forwarding_ms),
            vulnerable_ms: middle(|one| one.vulnerable_ms),
            return_ms: middle(|one| one.return_ms),
            stall_ms_median: middle(|one| one.stall_ms.map_or(f64::NAN, |stall| stall.median)),
            stall_ms_max: most(|one| one.stall_ms.map_or(f64::NAN, |stall| stall.max)),
            gap_before_ms: middle(|one| one.before_ms.map_or(f64::NAN, |wait| wait.median)),
            after_ratio: middle(after_ratio),
            claims: Vec::new(),
            missed: Vec::new(),
            failures,
        };
        report.claims = report.claims();
        report.missed = target::missed(&report.targets());
        report.ok = report.missed.is_empty();
        report
    }

    fn targets(&self) -> [BenchTarget; 3] {
        let target = |name, value, bound| BenchTarget { name, value, bound };
        [
            target(
                "takeover of all connections, ms",
                self.takeover_ms,
                Bound::AtMost(1.5),
            ),
            target(
                "integration of a server, ms",
                self.integration_ms,
                Bound::AtMost(11.0),
            ),
            target(
                "throughput, against two plain servers",
                self.throughput_ratio_vs_two,
                Bound::AtLeast(0.85),
            ),
        ]
    }

    fn claims(&self) -> Vec<CoralClaim> {
        let claim = |place, statement, paper, ours: String, holds| CoralClaim {
            place,
            statement,
            paper,
            ours,
            holds,
        };
        vec![
            claim(
                "Figure 2",
                "duplex costs throughput against two plain servers",
                "about 30 %",
                format!("{:.0} %", (1.0 - self.throughput_ratio_vs_two) * 100.0),
                self.throughput_ratio_vs_two >= 0.85,
            ),
            claim(
                "Figure 2",
                "duplex serves more than one plain server",
                "yes",
                format!("{:.2} times", self.throughput_ratio_vs_one),
                self.throughput_ratio_vs_one > 1.0,
            ),
            claim(
                "Figure 3",
                "gap of the clients at the failure",
                "a fraction of a second",
                format!(
                    "{:.0} ms; without a failure {:.0} ms",
                    self.stall_ms_median, self.gap_before_ms
                ),
                self.stall_ms_median < 1000.0,
            ),
            claim(
                "§4.2",
                "failover is mostly detection, with a heartbeat of",
                "100 ms",
                format!(
                    "20 ms: {:.1} of {:.1} ms",
                    self.detection_ms,
                    self.detection_ms + self.takeover_ms
                ),
                self.detection_ms > self.takeover_ms,
            ),
            claim(
                "Table 1",
                "takeover after the detection",
                "1.5 ms",
                format!(
                    "{:.2} ms: gate {:.2}, first connection {:.2}",
                    self.takeover_ms, self.takeover_gate_ms, self.takeover_first_live_ms
                ),
                self.takeover_ms <= 1.5,
            ),
            claim(
                "Table 2",
                "integration of a server",
                "11.0 ms",
                format!("{:.2} ms", self.integration_ms),
                self.integration_ms <= 11.0,
            ),
        ]
    }

    fn print(&self) {
        say!("{}", self.calibration);
        say!("medians of {} rounds\n", self.rounds);
        target::print(&self.targets());
        say!("\n{:<10}{:<52}{:<24}{:<44}", "", "", "paper", "here");
        for claim in &self.claims {
            let verdict = if claim.holds { "holds" } else { "DIFFERS" };
            say!(
                "{:<10}{:<52}{:<24}{:<44}{verdict}",
                claim.place,
                claim.statement,
                claim.paper,
                claim.ours
            );
        }
        say!("\n{:<28}{:>14}{:>14}{:>14}", "", "one plain", "two plain", "pair");
        for (name, [one, two, pair]) in [
            ("replies/s", self.requests_per_s),
            ("median latency, µs", self.latency_us_median),
        ] {
            say!("{name:<28}{one:>14.1}{two:>14.1}{pair:>14.1}");
        }
        say!(
            "after the failure, {:.2} of the throughput before it; duplex again {:.0} ms after the failure, {:.0} ms after the node's return",
            self.after_ratio,
            self.vulnerable_ms,
            self.return_ms
        );
    }
}

/// Throughput while one node serves alone, as a part of that before the failure.
fn after_ratio(sample: &StagedSample) -> f64 {
    let gap_s = 0.3;
    let alone_s = (sample.vulnerable_ms - sample.return_ms) / 1e3;
    let mean = |from: f64, to: f64| {
        let bins = sample
            .throughput
            .iter()
            .filter(|(at_s, _)| (from..to).contains(at_s));
        let rates: Vec<f64> = bins.map(|(_, rate)| *rate).collect();
        rates.iter().sum::<f64>() / rates.len() as f64
    };
    mean(gap_s, alone_s.max(gap_s + 0.2)) / mean(-0.4, 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(last_live_ms: f64, integration_ms: f64) -> StagedSample {
        StagedSample {
            detection_ms: 70.0,
            gate_ms: 0.1,
            first_live_ms: 0.2,
            last_live_ms,
            integration_ms,
            forwarding_ms: 20.0,
            vulnerable_ms: 1500.0,
            return_ms: 500.0,
            stall_ms: None,
            before_ms: None,
            throughput: vec![
                (-0.2, 40.0),
                (-0.1, 60.0),
                (0.1, 0.0),
                (0.4, 25.0),
                (0.9, 25.0),
                (1.2, 90.0),
            ],
            latencies: Vec::new(),
        }
    }

    fn report(pair_per_s: f64, failures: Vec<StagedSample>) -> CoralBenchReport {
        let requests = [25.0, 50.0, pair_per_s].map(|per_s| {
            vec![Requests {
                per_s,
                median_us: 1.0,
            }]
        });
        CoralBenchReport::of(1, Calibration::measure(), &requests, failures)
    }

    #[test]
    fn each_target_can_be_missed() {
        let good = report(45.0, vec![sample(1.4, 10.0)]);
        assert!(good.ok, "{:?}", good.missed);
        assert!((good.after_ratio - 0.5).abs() < 1e-9);
        for (pair_per_s, last_live_ms, integration_ms, word) in [
            (40.0, 1.4, 10.0, "throughput"),
            (45.0, 1.6, 10.0, "takeover"),
            (45.0, 1.4, 12.0, "integration"),
        ] {
            let bad = report(pair_per_s, vec![sample(last_live_ms, integration_ms)]);
            assert!(
                !bad.ok && bad.missed.len() == 1 && bad.missed[0].contains(word),
                "{:?}",
                bad.missed
            );
            assert!(bad.claims.iter().any(|claim| !claim.holds));
        }
    }
}
