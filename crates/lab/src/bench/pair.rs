//! `bench pair`: compares a service that a pair protects with the same service behind a node that only forwards packets.

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;

use super::calibration::Calibration;
use super::measure::{self, Bulk, Requests};
use super::options::BenchRunOptions;
use super::target::{self, BenchTarget, Bound, median};
use super::testbed::{BenchTestbed, BenchVariant, PATIENT, Serving};
use crate::crash::{self, TakeoverSample};
use crate::node::PatternFiles;
use crate::pair::WorkloadOption;
use crate::run::{LabOutcome, conclude, in_memory};
use crate::teardown::Teardown;

/// Bytes of one bulk transfer.
const BULK_BYTES: u64 = 2_000_000_000;
/// Bytes of one small reply.
const SMALL_BYTES: u64 = 1000;
/// Bytes of one transfer per Mbit/s of the shaped rate, so that a transfer takes about 1.6 s.
const SHAPED_BYTES_PER_MBIT: u64 = 200_000;
const SHAPES_MBIT: [u32; 2] = [1000, 2500];
const CLIENTS: u32 = 8;
const REQUEST_SECONDS: u32 = 2;
/// Number of idle connections in the run that measures the time to restore a connection.
const IDLE_CONNECTIONS: u32 = 500;
const SEED: u64 = 1;

/// Compare throughput, CPU time, request rate and latency of a protected service with those of the same service behind a node that only
/// forwards packets. Also measure how long a takeover takes.
///
/// Client, router and both nodes share this machine, and both variants take turns in every round; only the ratios mean
/// something. nginx serves downloads and small requests (wrk), a sink of our own takes uploads.
#[derive(Clone, Debug, Args)]
pub struct PairBenchOptions {
    #[command(flatten)]
    common: BenchRunOptions,
}

/// The results: medians over the rounds.
#[derive(Clone, Debug, Serialize)]
struct PairBenchReport {
    ok: bool,
    rounds: u32,
    calibration: Calibration,
    takeover_ms_median: f64,
    restore_us_per_connection: f64,
    download_ratio_vs_forwarding: f64,
    upload_ratio_vs_forwarding: f64,
    cpu_per_gb_ratio_vs_forwarding: f64,
    cpu_per_gb_ratio_download: f64,
    cpu_per_gb_ratio_upload: f64,
    rr_ratio_vs_forwarding: f64,
    rr_added_us_median: f64,
    shaped_ratio: f64,
    shaped: Vec<Shaped>,
    forwarding: Absolute,
    steadfast: Absolute,
    missed: Vec<String>,
}

/// One shaped rate.
#[derive(Clone, Debug, Serialize)]
struct Shaped {
    mbit: u32,
    download_ratio: f64,
    upload_ratio: f64,
}

/// Results of one variant.
#[derive(Clone, Debug, Serialize)]
struct Absolute {
    download_gb_per_s: f64,
    upload_gb_per_s: f64,
    download_cpu_s_per_gb: f64,
    upload_cpu_s_per_gb: f64,
    requests_per_s: f64,
    latency_us_median: f64,
}

/// All measurements of one variant, in the order of rounds.
#[derive(Default)]
struct Samples {
    download: Vec<Bulk>,
    upload: Vec<Bulk>,
    requests: Vec<Requests>,
    /// For each rate of [`SHAPES_MBIT`]: downloads and uploads, in 10⁹ bytes per second.
    shaped: [[Vec<f64>; 2]; SHAPES_MBIT.len()],
}

/// Runs the benchmark.
///
/// # Errors
/// If a step fails. A missed target is no error.
pub fn run(options: &PairBenchOptions) -> Result<LabOutcome> {
    let common = &options.common;
    let daemon = common.daemon.path()?;
    let calibration = Calibration::measure();
    let teardown = Teardown::start()?;
    let samples = measure_variants(common.rounds, &daemon, &teardown);
    teardown.finish()?;
    let [forwarding, steadfast] = samples?;
    let takeovers = takeovers(common)?;
    let report = PairBenchReport::of(common.rounds, calibration, &forwarding, &steadfast, &takeovers);
    conclude(common.json, report.ok, &report, || report.print())
}

/// Builds both variants side by side and measures them in turns.
fn measure_variants(rounds: u32, daemon: &Path, teardown: &Teardown) -> Result<[Samples; 2]> {
    let directory = in_memory(&format!("bench-{}", std::process::id()), teardown)?;
    let sizes = [BULK_BYTES, SMALL_BYTES];
    let shaped_sizes = SHAPES_MBIT.map(|mbit| SHAPED_BYTES_PER_MBIT * u64::from(mbit));
    let files: Vec<(u64, u64)> = sizes
        .iter()
        .chain(&shaped_sizes)
        .map(|&size| (SEED, size))
        .collect();
    let content = PatternFiles::generate(&directory, &files)?;
    let mut samples = [Samples::default(), Samples::default()];
    let progress = ProgressBar::new(u64::from(rounds) * 2);
    for serving in [Serving::Files, Serving::Sink] {
        let set = |variant: BenchVariant, name: &str| {
            let run = format!(
                "{}{name}{}",
                std::process::id(),
                if serving == Serving::Sink { "u" } else { "d" }
            );
            BenchTestbed::set(&run, variant, serving, &content, daemon, teardown)
        };
        let testbeds = [set(BenchVariant::Forwarding, "f")?, set(PATIENT, "s")?];
        for round in 0..rounds {
            progress.set_message(format!("round {}", round + 1));
            for turn in 0..2 {
                let index = (turn + round as usize) % 2;
                take_round(&testbeds[index], serving, &mut samples[index])?;
            }
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(samples)
}

fn take_round(testbed: &BenchTestbed, serving: Serving, samples: &mut Samples) -> Result<()> {
    let client = &testbed.network.client;
    let transfer = |bytes: u64| match serving {
        Serving::Files => measure::download(
            client,
            testbed.service,
            &format!("/{}", pattern::file_name(SEED, bytes)),
        ),
        Serving::Sink => measure::upload(client, testbed.service, bytes),
        Serving::Random => bail!("random replies are bench coral's"),
    };
    let bulk = transfer(BULK_BYTES)?;
    match serving {
        Serving::Files => {
            samples.download.push(bulk);
            let path = format!("/{}", pattern::file_name(SEED, SMALL_BYTES));
            samples.requests.push(measure::requests(
                client,
                testbed.service,
                &path,
                CLIENTS,
                REQUEST_SECONDS,
            )?);
        }
        Serving::Sink | Serving::Random => samples.upload.push(bulk),
    }
    for (mbit, shaped) in SHAPES_MBIT.into_iter().zip(&mut samples.shaped) {
        testbed.shape(Some(mbit))?;
        let outcome = transfer(SHAPED_BYTES_PER_MBIT * u64::from(mbit));
        testbed.shape(None)?;
        shaped[usize::from(serving == Serving::Sink)].push(outcome?.gb_per_s);
    }
    Ok(())
}

/// Results of real takeovers: one takeover of a busy connection per round, and one takeover of many idle connections.
struct Takeovers {
    busy_ms: Vec<f64>,
    restore_us: f64,
}

fn takeovers(common: &BenchRunOptions) -> Result<Takeovers> {
    let mut busy_ms = Vec::new();
    for round in 0..common.rounds {
        let sample = crash::sample(WorkloadOption::Download, 1, u64::from(round), &common.daemon)
            .context("a takeover of one busy connection")?;
        busy_ms.push(sample.first_live_ms);
    }
    let TakeoverSample {
        first_live_ms,
        last_live_ms,
        restored,
    } = crash::sample(WorkloadOption::Idle, IDLE_CONNECTIONS, SEED, &common.daemon)
        .context("a takeover of many idle connections")?;
    let others = restored.saturating_sub(1).max(1);
    Ok(Takeovers {
        busy_ms,
        restore_us: (last_live_ms - first_live_ms) * 1000.0 / others as f64,
    })
}

impl Samples {
    fn absolute(&self) -> Absolute {
        let bulk = |samples: &[Bulk], figure: fn(&Bulk) -> f64| median(samples.iter().map(figure).collect());
        Absolute {
            download_gb_per_s: bulk(&self.download, |sample| sample.gb_per_s),
            upload_gb_per_s: bulk(&self.upload, |sample| sample.gb_per_s),
            download_cpu_s_per_gb: bulk(&self.download, |sample| sample.cpu_s_per_gb),
            upload_cpu_s_per_gb: bulk(&self.upload, |sample| sample.cpu_s_per_gb),
            requests_per_s: median(self.requests.iter().map(|sample| sample.per_s).collect()),
            latency_us_median: median(self.requests.iter().map(|sample| sample.median_us).collect()),
        }
    }
}

impl PairBenchReport {
    fn of(
        rounds: u32,
        calibration: Calibration,
        forwarding: &Samples,
        steadfast: &Samples,
        takeovers: &Takeovers,
    ) -> Self {
        let shaped: Vec<Shaped> = (0..SHAPES_MBIT.len())
            .map(|index| {
                let ratio = |way: usize| {
                    median(steadfast.shaped[index][way].clone())
                        / median(forwarding.shaped[index][way].clone())
                };
                Shaped {
                    mbit: SHAPES_MBIT[index],
                    download_ratio: ratio(0),
                    upload_ratio: ratio(1),
                }
            })
            .collect();
        let shaped_ratio = shaped
            .iter()
            .flat_map(|one| [one.download_ratio, one.upload_ratio])
            .fold(f64::INFINITY, f64::min);
        let (plain, wire) = (forwarding.absolute(), steadfast.absolute());
        let cpu_download = wire.download_cpu_s_per_gb / plain.download_cpu_s_per_gb;
        let cpu_upload = wire.upload_cpu_s_per_gb / plain.upload_cpu_s_per_gb;
        let mut report = Self {
            ok: false,
            rounds,
            calibration,
            takeover_ms_median: median(takeovers.busy_ms.clone()),
            restore_us_per_connection: takeovers.restore_us,
            download_ratio_vs_forwarding: wire.download_gb_per_s / plain.download_gb_per_s,
            upload_ratio_vs_forwarding: wire.upload_gb_per_s / plain.upload_gb_per_s,
            cpu_per_gb_ratio_vs_forwarding: cpu_download.max(cpu_upload),
            cpu_per_gb_ratio_download: cpu_download,
            cpu_per_gb_ratio_upload: cpu_upload,
            rr_ratio_vs_forwarding: wire.requests_per_s / plain.requests_per_s,
            rr_added_us_median: wire.latency_us_median - plain.latency_us_median,
            shaped_ratio,
            shaped,
            forwarding: plain,
            steadfast: wire,
            missed: Vec::new(),
        };
        report.missed = target::missed(&report.targets());
        report.ok = report.missed.is_empty();
        report
    }

    fn targets(&self) -> [BenchTarget; 9] {
        use Bound::{AtLeast, AtMost};
        let target = |name, value, bound| BenchTarget { name, value, bound };
        [
            target(
                "takeover of one busy connection, ms",
                self.takeover_ms_median,
                AtMost(1.5),
            ),
            target(
                "download throughput",
                self.download_ratio_vs_forwarding,
                AtLeast(0.75),
            ),
            target(
                "upload throughput",
                self.upload_ratio_vs_forwarding,
                AtLeast(0.75),
            ),
            target(
                "download CPU seconds per GB",
                self.cpu_per_gb_ratio_download,
                AtMost(1.45),
            ),
            target(
                "upload CPU seconds per GB",
                self.cpu_per_gb_ratio_upload,
                AtMost(1.45),
            ),
            target(
                "1 KB requests per second, 8 clients",
                self.rr_ratio_vs_forwarding,
                AtLeast(0.88),
            ),
            target("added median latency, µs", self.rr_added_us_median, AtMost(10.0)),
            target(
                "throughput at 1 and 2.5 Gbit/s, worst",
                self.shaped_ratio,
                AtLeast(0.98),
            ),
            target(
                "restoring one idle connection, µs",
                self.restore_us_per_connection,
                AtMost(50.0),
            ),
        ]
    }

    fn print(&self) {
        say!("{}", self.calibration);
        say!(
            "medians of {} rounds; ratios are steadfast / forwarding\n",
            self.rounds
        );
        target::print(&self.targets());
        say!("\n{:<28}{:>12}{:>12}", "", "forwarding", "steadfast");
        let (plain, wire) = (&self.forwarding, &self.steadfast);
        for (name, plain, wire) in [
            ("download, GB/s", plain.download_gb_per_s, wire.download_gb_per_s),
            ("upload, GB/s", plain.upload_gb_per_s, wire.upload_gb_per_s),
            (
                "download, CPU s/GB",
                plain.download_cpu_s_per_gb,
                wire.download_cpu_s_per_gb,
            ),
            (
                "upload, CPU s/GB",
                plain.upload_cpu_s_per_gb,
                wire.upload_cpu_s_per_gb,
            ),
            ("requests/s", plain.requests_per_s, wire.requests_per_s),
            (
                "median latency, µs",
                plain.latency_us_median,
                wire.latency_us_median,
            ),
        ] {
            say!("{name:<28}{plain:>12.2}{wire:>12.2}");
        }
    }
}
