//! `bench ft-tcp`: the measurements of the FT-TCP paper (DSN 2003, sections 5.2 to 5.4), beside the paper's numbers.
//!
//! *Clean* is the same service behind a node that only forwards packets. The paper's *cold* backup is policy `replay` here, its *hot* backup is
//! policy `replica`. Its commit modes *immediate*, PR and PRS are the modes of the same names (docs/commit-modes.md). `ttcp` is the benchmark's own sink. Redis takes the place of the file
//! server (Samba), and a paced download that of the streaming server (DSS).

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::calibration::Calibration;
use super::load::{ExchangeTimes, LOAD, Transfer};
use super::options::BenchRunOptions;
use super::outage::{self, OutageTrace};
use super::target::{self, BenchTarget, Bound, median};
use super::testbed::{BenchTestbed, BenchVariant, Serving};
use crate::figure;
use crate::judge::CommitMode;
use crate::node::PatternFiles;
use crate::run::{LabOutcome, conclude, in_memory};
use crate::teardown::Teardown;

/// Rates of the client's link for the transfers.
const SHAPES_MBIT: [u32; 2] = [100, 1000];
/// Bytes of one transfer per Mbit/s of that rate, so that a transfer takes about 1.6 s.
const BYTES_PER_MBIT: u64 = 200_000;
/// Short requests of one round. The paper measured 30 in all.
const REQUESTS: u32 = 500;
/// The client's link for the paced clients, in Mbit/s; the rate of each client, in 1000 bytes per second; and for how long they send. With 21
/// clients, the headers fill the rest of the link.
const PACED_MBIT: u32 = 10;
const PACED_KILOBYTES: u32 = 50;
const PACED_SECONDS: u32 = 4;
/// Numbers of paced clients.
const PACED_CLIENTS: [u32; 4] = [1, 10, 20, 30];
/// Rate and duration of the stream (paper: 20 kB/s).
const STREAM_KILOBYTES: u32 = 20;
const STREAM_SECONDS: u32 = 3;
/// Bytes of input that are in the log at the takeovers: a smaller and a larger number. Their difference gives the time per byte.
const REPLAYED: [u64; 2] = [16_000_000, 144_000_000];
/// Heartbeats that must be missing (20 ms each). Benchmarks fill all CPUs, so a node waits longer than by default.
const MISSED: u32 = 25;
/// Time until the backup has followed what the client has sent.
const SETTLE: Duration = Duration::from_secs(1);
const TAKEOVER_LIMIT: Duration = Duration::from_secs(60);

/// The services whose throughput is measured.
const SERVICES: [(&str, Serving); 2] = [("ttcp", Serving::Sink), ("file server", Serving::Values)];

/// The paper's variants: *clean*, then each commit mode with a cold and a hot backup.
const VARIANTS: [(&str, BenchVariant); VARIANT_COUNT] = [
    ("clean", BenchVariant::Forwarding),
    ("immediate/cold", pair("replay", CommitMode::Immediate)),
    ("immediate/hot", pair("replica", CommitMode::Immediate)),
    ("pr/cold", pair("replay", CommitMode::Pr)),
    ("pr/hot", pair("replica", CommitMode::Pr)),
    ("prs/cold", pair("replay", CommitMode::Prs)),
    ("prs/hot", pair("replica", CommitMode::Prs)),
];
const VARIANT_COUNT: usize = 7;
/// Indices in [`VARIANTS`] of the default commit mode, cold and hot. The targets and the takeovers are those of this mode.
const PRS: [usize; 2] = [5, 6];

const fn pair(policy: &'static str, commit: CommitMode) -> BenchVariant {
    BenchVariant::Steadfast {
        missed: MISSED,
        policy,
        commit,
    }
}

/// One value for each of [`VARIANTS`].
type PerVariant<T> = [T; VARIANT_COUNT];

/// Measure what the FT-TCP paper measured: throughput in both directions, latency of requests and packets, many clients at limited rates,
/// and the time to replay a cold backup's log. With each commit mode, and with cold (`replay`) and hot (`replica`) backups, against a service
/// without a backup.
#[derive(Clone, Debug, Args)]
pub struct FtTcpBenchOptions {
    #[command(flatten)]
    common: BenchRunOptions,
    /// Directory for the paper's Figure 4, as CSV and SVG; created if it does not exist.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The results: medians over the rounds. Lists of seven are in the order of `variants`.
#[derive(Clone, Debug, Serialize)]
struct FtTcpReport {
    ok: bool,
    rounds: u32,
    calibration: Calibration,
    variants: PerVariant<&'static str>,
    /// Throughput of the variants with a backup divided by that without one: the worst over the rates, by service, direction, mode and
    /// backup, for example `ttcp-in/prs/hot`.
    throughput_ratio: BTreeMap<String, f64>,
    throughput: Vec<ThroughputRow>,
    request_us: PerVariant<LatencySpread>,
    packet_us: PerVariant<LatencySpread>,
    paced: Vec<PacedRow>,
    /// From the fault to the reply, in milliseconds, cold and hot, with commit mode `prs`, for each number of bytes of [`REPLAYED`]. Detection is included.
    takeover_ms: [[f64; 2]; 2],
    cold_ms_per_mb: f64,
    hot_ms_per_mb: f64,
    /// An outage of two seconds (paper, Figure 4): what the client sends meanwhile is logged, or lost.
    outage_logged: OutageTrace,
    outage_lost: OutageTrace,
    missed: Vec<String>,
}

/// Throughput in one direction (paper, Figures 2 and 3).
#[derive(Clone, Debug, Serialize)]
struct ThroughputRow {
    service: &'static str,
    /// Rate of the client's link. `None`: unlimited.
    mbit: Option<u32>,
    /// `in`: to the server.
    direction: &'static str,
    megabytes_per_s: PerVariant<f64>,
    /// Divided by that of *clean*.
    ratio: PerVariant<f64>,
}

/// Rate of each client, in 1000 bytes per second (paper, section 5.2).
#[derive(Clone, Debug, Serialize)]
struct PacedRow {
    clients: u32,
    kilobytes_per_s: PerVariant<f64>,
}

/// A distribution, as the paper's Table 1 gives it.
#[derive(Clone, Copy, Debug, Serialize)]
struct LatencySpread {
    count: usize,
    minimum: f64,
    mean: f64,
    median: f64,
    maximum: f64,
    standard_deviation: f64,
}

impl LatencySpread {
    fn of(values: &[f64]) -> Self {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Self {
            count,
            minimum: values.iter().copied().fold(f64::INFINITY, f64::min),
            mean,
            median: median(values.to_vec()),
            maximum: values.iter().copied().fold(0.0, f64::max),
            standard_deviation: (squares / (count as f64 - 1.0)).sqrt(),
        }
    }

    /// The columns of the paper's table, and the median.
    fn figures(&self) -> [(&'static str, f64); 5] {
        [
            ("minimum", self.minimum),
            ("mean", self.mean),
            ("median", self.median),
            ("maximum", self.maximum),
            ("deviation", self.standard_deviation),
        ]
    }
}

/// All measurements of one variant.
#[derive(Default)]
struct FtTcpSamples {
    /// For each service of [`SERVICES`], for each rate: in and out, in 10⁶ bytes per second.
    throughput: [[[Vec<f64>; 2]; SHAPES_MBIT.len()]; SERVICES.len()],
    /// In 10⁶ bytes per second.
    stream: Vec<f64>,
    exchange: ExchangeTimes,
    /// For each number of clients.
    paced: [Vec<f64>; PACED_CLIENTS.len()],
}

/// Runs the benchmark.
///
/// # Errors
/// If a step fails. A missed target is no error.
pub fn run(options: &FtTcpBenchOptions) -> Result<LabOutcome> {
    let common = &options.common;
    let daemon = common.daemon.path()?;
    let calibration = Calibration::measure();
    let teardown = Teardown::start()?;
    let measured = measure(common.rounds, &daemon, &teardown);
    teardown.finish()?;
    let (samples, takeovers, outages) = measured?;
    if let Some(out) = &options.out {
        std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
        let [logged, lost] = &outages;
        let named = [("input is logged", logged), ("input is lost", lost)];
        figure::save(&outage::figure(named), out)?;
    }
    let report = FtTcpReport::of(common.rounds, calibration, &samples, takeovers, outages);
    conclude(common.json, report.ok, &report, || report.print())
}

type ReplayTimes = [[f64; 2]; 2];
type Measured = (PerVariant<FtTcpSamples>, ReplayTimes, [OutageTrace; 2]);

fn measure(rounds: u32, daemon: &Path, teardown: &Teardown) -> Result<Measured> {
    let directory = in_memory(&format!("ft-tcp-{}", std::process::id()), teardown)?;
    let content = PatternFiles::generate(&directory, &[])?;
    let set = |serving: Serving, variant: BenchVariant, name: &str| {
        let run = format!("{}{name}", std::process::id());
        BenchTestbed::set(&run, variant, serving, &content, daemon, teardown)
    };
    let steps = SERVICES.len() * VARIANTS.len() + PRS.len() * REPLAYED.len();
    let progress = ProgressBar::new(u64::from(rounds) * steps as u64);
    let mut samples: PerVariant<FtTcpSamples> = Default::default();
    for (service, (name, serving)) in SERVICES.into_iter().enumerate() {
        let mut testbeds = Vec::new();
        for (index, (_, variant)) in VARIANTS.into_iter().enumerate() {
            testbeds.push(set(serving, variant, &format!("v{index}{service}"))?);
        }
        for round in 0..rounds as usize {
            progress.set_message(format!("round {}: {name}", round + 1));
            for turn in 0..testbeds.len() {
                let index = (turn + round) % testbeds.len();
                let (testbed, samples) = (&testbeds[index], &mut samples[index]);
                take_transfers(testbed, serving, &mut samples.throughput[service])
                    .and_then(|()| match serving {
                        Serving::Sink => take_others(testbed, samples),
                        Serving::Files | Serving::Values | Serving::OrderedValues | Serving::Random => Ok(()),
                    })
                    .context(VARIANTS[index].0)?;
                progress.inc(1);
            }
        }
    }
    let mut takeovers: [[Vec<f64>; 2]; 2] = Default::default();
    for round in 0..rounds {
        progress.set_message(format!("round {}: takeovers", round + 1));
        for (way, (name, variant)) in PRS.map(|index| VARIANTS[index]).into_iter().enumerate() {
            for (size, bytes) in REPLAYED.into_iter().enumerate() {
                let testbed = set(Serving::Sink, variant, &format!("t{way}{size}{round}"))?;
                let ms = take_over(&testbed, bytes).with_context(|| format!("{name}, {bytes} bytes"))?;
                takeovers[way][size].push(ms);
                progress.inc(1);
            }
        }
    }
    progress.set_message("outages");
    let outage = |is_fed: bool| {
        let testbed = set(
            Serving::Sink,
            outage::SLOW_TO_NOTICE,
            if is_fed { "o1" } else { "o0" },
        )?;
        outage::play(&testbed, is_fed, &directory)
    };
    let outages = [outage(true)?, outage(false)?];
    progress.finish_and_clear();
    Ok((samples, takeovers.map(|sizes| sizes.map(median)), outages))
}

/// Runs one end of the load at the client, and reads its report.
fn load<T: DeserializeOwned>(testbed: &BenchTestbed, command: &str, arguments: &[String]) -> Result<T> {
    let mut process = testbed.network.client.command(std::env::current_exe()?)?;
    process.args([LOAD, command, &testbed.service.to_string()]);
    let output = process.args(arguments).output().context("start the load")?;
    ensure!(
        output.status.success(),
        "{command} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_slice(&output.stdout).context("the load's report")
}

/// Transfers in both directions at each rate.
fn take_transfers(
    testbed: &BenchTestbed,
    serving: Serving,
    throughput: &mut [[Vec<f64>; 2]; SHAPES_MBIT.len()],
) -> Result<()> {
    for (mbit, rates) in SHAPES_MBIT.into_iter().zip(throughput) {
        let bytes = BYTES_PER_MBIT * u64::from(mbit);
        testbed.shape(Some(mbit))?;
        let transfers: [Transfer; 2] = match serving {
            Serving::Values | Serving::OrderedValues => [
                load(testbed, "store", &[bytes.to_string()])?,
                load(testbed, "fetch", &[])?,
            ],
            Serving::Sink | Serving::Files | Serving::Random => [
                load(testbed, "upload", &[bytes.to_string()])?,
                load(testbed, "download", &[format!("/zeros/{bytes}")])?,
            ],
        };
        testbed.shape(None)?;
        for (rates, transfer) in rates.iter_mut().zip(transfers) {
            rates.push(megabytes_per_s(transfer));
        }
    }
    Ok(())
}

fn megabytes_per_s(transfer: Transfer) -> f64 {
    transfer.bytes as f64 / 1e6 / transfer.seconds
}

/// The stream, the short requests and the paced clients.
fn take_others(testbed: &BenchTestbed, samples: &mut FtTcpSamples) -> Result<()> {
    let arguments = [STREAM_KILOBYTES, STREAM_SECONDS].map(|number| number.to_string());
    let streamed = load(testbed, "stream", &arguments)?;
    samples.stream.push(megabytes_per_s(streamed));
    let times: ExchangeTimes = load(testbed, "exchange", &[REQUESTS.to_string()])?;
    samples.exchange.request_us.extend(times.request_us);
    samples.exchange.packet_us.extend(times.packet_us);
    testbed.shape(Some(PACED_MBIT))?;
    for (clients, rates) in PACED_CLIENTS.into_iter().zip(&mut samples.paced) {
        let arguments = [clients, PACED_KILOBYTES, PACED_SECONDS].map(|number| number.to_string());
        rates.extend(load::<Vec<f64>>(testbed, "paced", &arguments)?);
    }
    testbed.shape(None)
}

/// Lets a client upload `bytes` but for the last byte, turns the primary's power off, and lets the client send the last byte. Returns the
/// time until the survivor has replied, in milliseconds. It replies when its application has read all bytes.
fn take_over(testbed: &BenchTestbed, bytes: u64) -> Result<f64> {
    let mut command = testbed.network.client.command(std::env::current_exe()?)?;
    command.args([LOAD, "hold", &testbed.service.to_string(), &bytes.to_string()]);
    let mut client = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start the client")?;
    let mut output = BufReader::new(client.stdout.take().context("a pipe")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    ensure!(line == "sent\n", "the client has not sent its bytes");
    wait_protected(testbed)?;
    testbed.power_off_primary()?;
    client.stdin.take().context("a pipe")?.write_all(b"go\n")?;
    line.clear();
    output.read_line(&mut line)?;
    ensure!(client.wait()?.success(), "the client got no reply");
    line.trim().parse().context("the client's time")
}

/// Waits until the backup protects the client's connection.
fn wait_protected(testbed: &BenchTestbed) -> Result<()> {
    std::thread::sleep(SETTLE);
    let deadline = Instant::now() + TAKEOVER_LIMIT;
    while testbed.status(1)?.connections.get("protected") != Some(&1) {
        ensure!(Instant::now() < deadline, "the connection is not protected");
        std::thread::sleep(SETTLE / 10);
    }
    Ok(())
}

impl FtTcpReport {
    fn of(
        rounds: u32,
        calibration: Calibration,
        samples: &PerVariant<FtTcpSamples>,
        takeover_ms: ReplayTimes,
        [outage_logged, outage_lost]: [OutageTrace; 2],
    ) -> Self {
        let per_mb = |[small, large]: [f64; 2]| (large - small) / ((REPLAYED[1] - REPLAYED[0]) as f64 / 1e6);
        let throughput = throughput(samples);
        let mut report = Self {
            ok: false,
            rounds,
            calibration,
            variants: VARIANTS.map(|(name, _)| name),
            throughput_ratio: ratios(&throughput),
            throughput,
            request_us: samples
                .each_ref()
                .map(|one| LatencySpread::of(&one.exchange.request_us)),
            packet_us: samples
                .each_ref()
                .map(|one| LatencySpread::of(&one.exchange.packet_us)),
            paced: paced(samples),
            takeover_ms,
            cold_ms_per_mb: per_mb(takeover_ms[0]),
            hot_ms_per_mb: per_mb(takeover_ms[1]),
            outage_logged,
            outage_lost,
            missed: Vec::new(),
        };
        report.missed = target::missed(&report.targets());
        report.ok = report.missed.is_empty();
        report
    }

    fn targets(&self) -> [BenchTarget; 6] {
        use Bound::{AtLeast, AtMost};
        let target = |name, value, bound| BenchTarget { name, value, bound };
        let worst = |index: usize| {
            let ratios = self.throughput.iter().map(|row| row.ratio[index]);
            ratios.fold(f64::INFINITY, f64::min)
        };
        let [cold, hot] = PRS;
        let slowdown = |index: usize| self.request_us[index].median / self.request_us[0].median;
        let slowest = self.paced.iter().filter(|row| row.clients <= 20);
        let slowest = slowest
            .flat_map(|row| row.kilobytes_per_s)
            .fold(f64::INFINITY, f64::min);
        [
            target("cold throughput / clean, worst", worst(cold), AtLeast(0.982)),
            target("hot throughput / clean, worst", worst(hot), AtLeast(0.982)),
            target("cold request latency / clean", slowdown(cold), AtMost(1.3)),
            target("hot request latency / clean", slowdown(hot), AtMost(1.3)),
            target(
                "slowest of up to 20 clients at 50 kB/s, kB/s",
                slowest,
                AtLeast(0.98 * f64::from(PACED_KILOBYTES)),
            ),
            target("cold replay, ms per MB", self.cold_ms_per_mb, AtMost(2.0)),
        ]
    }

    fn print(&self) {
        say!("{}", self.calibration);
        say!("medians of {} rounds\n", self.rounds);
        target::print(&self.targets());
        print_row("", &VARIANTS.map(|(name, _)| name.to_owned()));
        for row in &self.throughput {
            let link = row
                .mbit
                .map_or_else(String::new, |mbit| format!(" at {mbit} Mbit/s"));
            let name = format!("{} {}{link}, MB/s", row.service, row.direction);
            print_row(&name, &row.megabytes_per_s.map(|rate| format!("{rate:.3}")));
        }
        self.print_latencies();
        for row in &self.paced {
            let name = format!("{} clients at 50 kB/s, kB/s each", row.clients);
            print_row(&name, &row.kilobytes_per_s.map(|rate| format!("{rate:.2}")));
        }
        say!("");
        for (size, bytes) in REPLAYED.into_iter().enumerate() {
            let [cold, hot] = self.takeover_ms.map(|sizes| sizes[size]);
            let megabytes = bytes / 1_000_000;
            say!("prs: reply after a fault, {megabytes} MB: cold {cold:.1} ms, hot {hot:.1} ms");
        }
        let (cold, hot) = (self.cold_ms_per_mb, self.hot_ms_per_mb);
        say!("prs: takeover, per MB of input: cold {cold:.3} ms, hot {hot:.3} ms");
        let outages = [("logged", &self.outage_logged), ("lost", &self.outage_lost)];
        for (what, outage) in outages {
            let (gap, stall) = (outage.retransmission_gap_ms, outage.stall_ms);
            say!("an outage of 2 s, input {what}: retransmission gap {gap:.1} ms, stall {stall:.0} ms");
        }
        say!(
            "\nthe paper: throughput ≥ 0.982 of clean; requests 2.2 ms clean, 5.8 cold, 6.2 hot; packets 0.7 ms and 2.3; cold replay 20 ms per MB"
        );
    }

    fn print_latencies(&self) {
        for (name, spreads) in [("request", &self.request_us), ("packet", &self.packet_us)] {
            let figures = spreads.each_ref().map(LatencySpread::figures);
            for (number, (figure, _)) in figures[0].into_iter().enumerate() {
                let name = format!("{name} latency, {figure}, µs");
                print_row(
                    &name,
                    &figures.map(|of_variant| format!("{:.1}", of_variant[number].1)),
                );
            }
        }
    }
}

fn print_row(name: &str, columns: &PerVariant<String>) {
    let columns: String = columns.iter().map(|column| format!("{column:>15}")).collect();
    say!("{name:<38}{columns}");
}

fn throughput(samples: &PerVariant<FtTcpSamples>) -> Vec<ThroughputRow> {
    let row = |service, mbit, direction, rates: PerVariant<f64>| ThroughputRow {
        service,
        mbit,
        direction,
        megabytes_per_s: rates,
        ratio: rates.map(|rate| rate / rates[0]),
    };
    let mut rows = Vec::new();
    for (service, (name, _)) in SERVICES.into_iter().enumerate() {
        for (shape, mbit) in SHAPES_MBIT.into_iter().enumerate() {
            for (way, direction) in ["in", "out"].into_iter().enumerate() {
                let rates = |one: &FtTcpSamples| median(one.throughput[service][shape][way].clone());
                rows.push(row(name, Some(mbit), direction, samples.each_ref().map(rates)));
            }
        }
    }
    let rates = samples.each_ref().map(|one| median(one.stream.clone()));
    rows.push(row("stream", None, "out", rates));
    rows
}

fn ratios(rows: &[ThroughputRow]) -> BTreeMap<String, f64> {
    let mut worst = BTreeMap::new();
    for row in rows {
        for ((variant, _), ratio) in VARIANTS.into_iter().zip(row.ratio).skip(1) {
            let service = row.service.replace(' ', "-");
            let known = worst
                .entry(format!("{service}-{}/{variant}", row.direction))
                .or_insert(ratio);
            *known = ratio.min(*known);
        }
    }
    worst
}

fn paced(samples: &PerVariant<FtTcpSamples>) -> Vec<PacedRow> {
    let row = |(index, clients): (usize, u32)| PacedRow {
        clients,
        kilobytes_per_s: samples.each_ref().map(|one| median(one.paced[index].clone())),
    };
    PACED_CLIENTS.into_iter().enumerate().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_that_of_its_values() {
        let spread = LatencySpread::of(&[1.0, 2.0, 6.0]);
        assert_eq!(
            (spread.minimum, spread.mean, spread.median, spread.maximum),
            (1.0, 3.0, 2.0, 6.0)
        );
        assert!((spread.standard_deviation - 7_f64.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn the_time_per_megabyte_does_not_contain_what_every_takeover_costs() {
        let report = |takeover_ms| {
            let one = |rate| FtTcpSamples {
                throughput: std::array::from_fn(|_| std::array::from_fn(|_| [vec![rate], vec![rate]])),
                stream: vec![0.02],
                exchange: ExchangeTimes {
                    request_us: vec![100.0],
                    packet_us: vec![20.0],
                },
                paced: std::array::from_fn(|_| vec![50.0]),
            };
            let samples = [10.0, 9.5, 9.6, 9.7, 9.8, 9.9, 9.0].map(one);
            FtTcpReport::of(
                1,
                Calibration::measure(),
                &samples,
                takeover_ms,
                Default::default(),
            )
        };
        let replayed = REPLAYED.map(|bytes| 500.0 + bytes as f64 / 1e6 * 1.5);
        let report = report([replayed, [500.0; 2]]);
        assert!(
            (report.cold_ms_per_mb - 1.5).abs() < 1e-9,
            "{}",
            report.cold_ms_per_mb
        );
        assert!(report.hot_ms_per_mb.abs() < 1e-9);
        assert_eq!(report.throughput_ratio["file-server-in/prs/hot"], 0.9);
        assert_eq!(report.throughput_ratio["file-server-in/immediate/cold"], 0.95);
        assert_eq!(report.throughput_ratio.len(), 5 * (VARIANTS.len() - 1));
        let [missed] = &report.missed[..] else {
            panic!("{:?}", report.missed)
        };
        assert!(missed.starts_with("hot throughput / clean, worst"), "{missed}");
    }
}
