//! `bench coral`: the evaluation of CoRAL's failover (Aghdaie and Tamir, PDCS 2003), with a stage before lighttpd and a CGI script whose
//! replies of 1 KB are random.

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::calibration::Calibration;
use super::coral_samples::{self, CoralMeasured, SERVER_COUNT};
use super::options::BenchRunOptions;
use super::target::{self, BenchTarget, Bound, median};
use crate::crash::StagedSample;
use crate::figure::{JudgedMeasurements, rows_of_coral};
use crate::run::{LabOutcome, conclude};

/// Compare a pair of stages with plain servers, and measure its failover, as CoRAL's authors did (PDCS 2003).
///
/// The replies are 1 KB of random bytes from a CGI script, for eight clients. All hosts share this machine, so only ratios within one run
/// mean something. The plain server behind a forwarding node has all CPUs of the machine, as the pair has: it stands for two plain
/// servers. With half of the CPUs, it stands for one.
#[derive(Clone, Debug, Args)]
pub struct CoralBenchOptions {
    #[command(flatten)]
    common: BenchRunOptions,
}

/// The results: medians over the rounds.
#[derive(Serialize)]
struct CoralBenchReport {
    ok: bool,
    rounds: u32,
    calibration: Calibration,
    /// Replies per second of a plain server with half of the CPUs, of one with all CPUs, and of the pair.
    requests_per_s: [f64; SERVER_COUNT],
    latency_us_median: [f64; SERVER_COUNT],
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
    /// The steps before and after the integration: from the node's first heartbeat to its beginning, and from its end to the first segment that
    /// the node forwards.
    integration_heard_ms: f64,
    integration_forwarding_ms: f64,
    vulnerable_ms: f64,
    return_ms: f64,
    stall_ms_median: f64,
    stall_ms_max: f64,
    /// Longest wait of a client before the failure.
    gap_before_ms: f64,
    /// Throughput after the failure as a part of that before.
    after_ratio: f64,
    claims: JudgedMeasurements,
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
    let calibration = Calibration::measure();
    let run = std::process::id().to_string();
    let measured = coral_samples::measure(common.rounds, 0, &run, &common.daemon)?;
    let report = CoralBenchReport::of(common.rounds, calibration, measured)?;
    conclude(common.json, report.ok, &report, || report.print())
}

impl CoralBenchReport {
    fn of(rounds: u32, calibration: Calibration, measured: CoralMeasured) -> Result<Self> {
        let claims = JudgedMeasurements::new("coral", rows_of_coral((0, 1), &measured))?;
        let CoralMeasured { requests, failures } = measured;
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
            integration_heard_ms: middle(|one| one.heard_ms),
            integration_forwarding_ms: middle(|one| one.forwarding_ms),
            vulnerable_ms: middle(|one| one.vulnerable_ms),
            return_ms: middle(|one| one.return_ms),
            stall_ms_median: middle(|one| one.stall_ms.map_or(f64::NAN, |stall| stall.median)),
            stall_ms_max: most(|one| one.stall_ms.map_or(f64::NAN, |stall| stall.max)),
            gap_before_ms: middle(|one| one.before_ms.map_or(f64::NAN, |wait| wait.median)),
            after_ratio: middle(StagedSample::after_ratio),
            claims,
            missed: Vec::new(),
            failures,
        };
        report.missed = target::missed(&report.targets());
        report.ok = report.missed.is_empty();
        Ok(report)
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

    fn print(&self) {
        say!("{}", self.calibration);
        say!("medians of {} rounds\n", self.rounds);
        target::print(&self.targets());
        say!("");
        self.claims.print();
        say!("\n{:<28}{:>14}{:>14}{:>14}", "", "one plain", "two plain", "pair");
        for (name, [one, two, pair]) in [
            ("replies/s", self.requests_per_s),
            ("median latency, µs", self.latency_us_median),
        ] {
            say!("{name:<28}{one:>14.1}{two:>14.1}{pair:>14.1}");
        }
        say!(
            "a node's return: {:.1} ms from its first heartbeat, {:.1} ms of integration, {:.1} ms to its first segment",
            self.integration_heard_ms,
            self.integration_ms,
            self.integration_forwarding_ms
        );
        say!(
            "after the failure, {:.2} of the throughput before it; duplex again {:.0} ms after the failure, {:.0} ms after the node's return",
            self.after_ratio,
            self.vulnerable_ms,
            self.return_ms
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::Requests;

    fn sample(last_live_ms: f64, integration_ms: f64) -> StagedSample {
        StagedSample {
            detection_ms: 70.0,
            gate_ms: 0.1,
            first_live_ms: 0.2,
            last_live_ms,
            integration_ms,
            heard_ms: 30.0,
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
        CoralBenchReport::of(1, Calibration::measure(), CoralMeasured { requests, failures }).unwrap()
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
        }
    }
}
