//! `bench ft-tcp`: the measurements of the FT-TCP paper (DSN 2003, sections 5.2 to 5.4), beside the paper's numbers.
//!
//! *Clean* is the same service behind a node that only forwards packets. The paper's *cold* backup is policy `replay` here, its *hot* backup is
//! policy `replica`. Its commit modes *immediate*, PR and PRS are the modes of the same names (docs/commit-modes.md). `ttcp` is the benchmark's own
//! sink. Redis takes the place of the file server (Samba), and a paced download that of the streaming server (DSS).

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::calibration::Calibration;
use super::ft_tcp_samples::{
    FtTcpMeasured, FtTcpPlace, FtTcpSamples, MODES, PACED_CLIENTS, PACED_KILOBYTES, PRS, PerVariant,
    REPLAYED, SERVICES, SHAPES_MBIT, VARIANTS, measure,
};
use super::options::BenchRunOptions;
use super::outage::OutageTrace;
use super::spread::LatencySpread;
use super::target::{self, BenchTarget, Bound, median};
use crate::figure::{JudgedMeasurements, rows_of_ft_tcp};
use crate::run::{LabOutcome, conclude};
use crate::teardown::Teardown;

/// Measure what the FT-TCP paper measured: throughput in both directions, latency of requests and packets, many clients at limited rates,
/// and the time to replay a cold backup's log. With each commit mode, and with cold (`replay`) and hot (`replica`) backups, against a service
/// without a backup.
#[derive(Clone, Debug, Args)]
pub struct FtTcpBenchOptions {
    #[command(flatten)]
    common: BenchRunOptions,
}

/// The results: medians over the rounds. Lists of seven are in the order of `variants`.
#[derive(Serialize)]
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
    takeovers: Vec<TakeoverRow>,
    /// Those of [`Self::takeovers`] with commit mode `prs`.
    cold_ms_per_mb: f64,
    hot_ms_per_mb: f64,
    stalls: Vec<StallRow>,
    /// An outage of two seconds (paper, Figure 4): what the client sends meanwhile is logged, or lost.
    outage_logged: OutageTrace,
    outage_lost: OutageTrace,
    claims: JudgedMeasurements,
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

/// The takeover of a connection with much input (paper, section 5.4).
#[derive(Clone, Debug, Serialize)]
struct TakeoverRow {
    variant: &'static str,
    /// From the fault to the reply, in milliseconds, for each number of bytes of [`REPLAYED`]. Detection is included.
    reply_ms: [f64; REPLAYED.len()],
    /// Time of the takeover for 10⁶ bytes more input, in milliseconds.
    ms_per_mb: f64,
}

/// What a client with a paced upload sees of a takeover, with a hot backup and the daemons' default detection. Times are in milliseconds since
/// the fault.
#[derive(Clone, Debug, Serialize)]
struct StallRow {
    mode: &'static str,
    /// When the primary was declared dead.
    declared_ms: f64,
    /// When the restored connection was live. With a commit mode other than `prs`, the backup first waits for the end of the primary's lease.
    live_ms: f64,
    /// The longest time between two acknowledgements of new data.
    stall_ms: f64,
    /// The longest such time of all rounds.
    stall_ms_max: f64,
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
    let run = std::process::id().to_string();
    let place = FtTcpPlace {
        run: &run,
        daemon: &daemon,
        teardown: &teardown,
    };
    let measured = measure(common.rounds, place);
    teardown.finish()?;
    let measured = measured?;
    let report = FtTcpReport::of(common.rounds, calibration, measured)?;
    conclude(common.json, report.ok, &report, || report.print())
}

impl FtTcpReport {
    fn of(rounds: u32, calibration: Calibration, measured: FtTcpMeasured) -> Result<Self> {
        let claims = JudgedMeasurements::new("ft-tcp", rows_of_ft_tcp((0, 1), &measured))?;
        let samples = &measured.samples;
        let throughput = throughput(samples);
        let [cold, hot] = PRS.map(|index| takeover(index, &samples[index]).ms_per_mb);
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
            takeovers: (1..VARIANTS.len())
                .map(|index| takeover(index, &samples[index]))
                .collect(),
            cold_ms_per_mb: cold,
            hot_ms_per_mb: hot,
            stalls: stalls(&measured.stalls),
            outage_logged: measured.outage_logged,
            outage_lost: measured.outage_lost,
            claims,
            missed: Vec::new(),
        };
        report.missed = target::missed(&report.targets());
        report.ok = report.missed.is_empty();
        Ok(report)
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
        let [small, large] = REPLAYED.map(|bytes| bytes / 1_000_000);
        for TakeoverRow {
            variant,
            reply_ms: [few, many],
            ms_per_mb,
        } in &self.takeovers
        {
            say!(
                "{variant}: reply after a fault, {small} MB: {few:.1} ms, {large} MB: {many:.1} ms; per MB of input {ms_per_mb:.3} ms"
            );
        }
        for row in &self.stalls {
            say!(
                "{}: the primary was declared dead after {:.0} ms, the connection was live after {:.0} ms, stall {:.0} ms (at most {:.0} ms)",
                row.mode,
                row.declared_ms,
                row.live_ms,
                row.stall_ms,
                row.stall_ms_max
            );
        }
        let outages = [("logged", &self.outage_logged), ("lost", &self.outage_lost)];
        for (what, outage) in outages {
            let (gap, stall) = (outage.retransmission_gap_ms, outage.stall_ms);
            say!("an outage of 2 s, input {what}: retransmission gap {gap:.1} ms, stall {stall:.0} ms");
        }
        say!("");
        self.claims.print();
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

fn takeover(index: usize, samples: &FtTcpSamples) -> TakeoverRow {
    let reply_ms = samples.takeover_ms.clone().map(median);
    let [few, many] = reply_ms;
    TakeoverRow {
        variant: VARIANTS[index].0,
        reply_ms,
        ms_per_mb: (many - few) / ((REPLAYED[1] - REPLAYED[0]) as f64 / 1e6),
    }
}

fn stalls(traces: &[Vec<OutageTrace>; MODES.len()]) -> Vec<StallRow> {
    let row = |((mode, _), traces): ((&'static str, _), &Vec<OutageTrace>)| {
        let all = |value: fn(&OutageTrace) -> f64| traces.iter().map(value).collect::<Vec<f64>>();
        StallRow {
            mode,
            declared_ms: median(all(|trace| trace.declared_s * 1e3)),
            live_ms: median(all(|trace| trace.live_s * 1e3)),
            stall_ms: median(all(|trace| trace.stall_ms)),
            stall_ms_max: all(|trace| trace.stall_ms).into_iter().fold(0.0, f64::max),
        }
    };
    MODES.into_iter().zip(traces).map(row).collect()
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
    use crate::bench::load::ExchangeTimes;

    #[test]
    fn the_time_per_megabyte_does_not_contain_what_every_takeover_costs() {
        let one = |rate, takeover_ms: [f64; 2]| FtTcpSamples {
            throughput: std::array::from_fn(|_| std::array::from_fn(|_| [vec![rate], vec![rate]])),
            stream: vec![0.02],
            exchange: ExchangeTimes {
                request_us: vec![100.0],
                packet_us: vec![20.0],
            },
            paced: std::array::from_fn(|_| vec![50.0]),
            takeover_ms: takeover_ms.map(|ms| vec![ms]),
        };
        let mut measured = FtTcpMeasured {
            samples: [10.0, 9.5, 9.6, 9.7, 9.8, 9.9, 9.0].map(|rate| one(rate, [500.0; 2])),
            ..FtTcpMeasured::default()
        };
        let trace = |stall_ms| OutageTrace {
            declared_s: 0.08,
            stall_ms,
            ..OutageTrace::default()
        };
        measured.stalls[1] = vec![trace(300.0), trace(320.0), trace(500.0)];
        let replayed = REPLAYED.map(|bytes| 500.0 + bytes as f64 / 1e6 * 1.5);
        measured.samples[PRS[0]].takeover_ms = replayed.map(|ms| vec![ms]);
        let report = FtTcpReport::of(1, Calibration::measure(), measured).unwrap();
        assert!(
            (report.cold_ms_per_mb - 1.5).abs() < 1e-9,
            "{}",
            report.cold_ms_per_mb
        );
        assert!(report.hot_ms_per_mb.abs() < 1e-9);
        let [_, pr, _] = &report.stalls[..] else {
            panic!("{:?}", report.stalls)
        };
        assert_eq!(
            (pr.mode, pr.declared_ms, pr.stall_ms, pr.stall_ms_max),
            ("pr", 80.0, 320.0, 500.0)
        );
        assert_eq!(report.takeovers.len(), VARIANTS.len() - 1);
        assert_eq!(report.throughput_ratio["file-server-in/prs/hot"], 0.9);
        assert_eq!(report.throughput_ratio["file-server-in/immediate/cold"], 0.95);
        assert_eq!(report.throughput_ratio.len(), 5 * (VARIANTS.len() - 1));
        let [missed] = &report.missed[..] else {
            panic!("{:?}", report.missed)
        };
        assert!(missed.starts_with("hot throughput / clean, worst"), "{missed}");
    }
}
