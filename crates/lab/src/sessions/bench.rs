//! `bench migrate`: the time that a move of a session takes, and what a client gets from servers that become slow.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use indicatif::ProgressBar;
use proto::session::frame::StateTransfer;
use serde::Serialize;

use super::moves::{self, MovesCell, MovesMeasured};
use super::stream::{self, StreamCell, StreamMeasured};
use crate::bench::target::{self, BenchTarget, BenchVerdict, Bound, median};
use crate::run::{DaemonOption, LabOutcome, conclude, in_memory};
use crate::teardown::Teardown;

/// The paper's sizes of a snapshot, in KB.
const SMALL_KB: [u64; 7] = [0, 1, 2, 4, 8, 12, 16];
/// Larger sizes, each with the number of runs.
const LARGE_KB: [(u64, usize); 4] = [(64, 50), (256, 30), (1024, 10), (16_384, 5)];
/// Round-trip times, in milliseconds. 0: that of the cables.
const RTTS_MS: [u64; 2] = [0, 20];
const TRANSFERS: [StateTransfer; 2] = [StateTransfer::Lazy, StateTransfer::Eager];
/// Sizes of the snapshots of streams, in KB.
const STREAMS_KB: [u64; 3] = [2, 10, 16];

/// Measure how long sessions take to move between two servers with different addresses (`steadfast connect`, `steadfast accept`), and what
/// a client gets from servers that become slow.
///
/// Client and servers are namespaces on this machine. A move lasts from the request at the client's proxy until data can be exchanged again
/// (Sultan et al., "Migratory TCP", Figure 6). It is measured in lazy and in eager mode, with snapshots from 0 to 16 KB and from 64 KB to 16
/// MB, at the cables' round-trip time and at 20 ms. The stream is 256 KB from servers that become slow after 32 KB of a connection (Figure
/// 7): over plain TCP, and over sessions with the policy `rate`. Takes about 15 minutes.
#[derive(Clone, Debug, Args)]
pub struct MigrateBenchOptions {
    /// Moves per small size; larger snapshots get fewer.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonOption,
}

/// Moves of one kind.
#[derive(Debug, Serialize)]
struct MovesRow {
    /// The round-trip time that was added, in milliseconds.
    rtt_ms: u64,
    transfer: StateTransfer,
    snapshot_kb: u64,
    runs: usize,
    /// The measured round-trip time.
    rtt_us: f64,
    median_us: f64,
    longest_us: f64,
    median_rtts: f64,
}

/// The straight line through the medians of all sizes.
#[derive(Debug, Serialize)]
struct MovesLine {
    rtt_ms: u64,
    transfer: StateTransfer,
    at_zero_us: f64,
    us_per_kb: f64,
    /// Part of the medians' variance that the line explains.
    r_squared: f64,
}

/// One stream.
#[derive(Debug, Serialize)]
struct StreamRow {
    /// `None`: plain TCP.
    snapshot_kb: Option<u64>,
    decays: bool,
    seconds: f64,
    moves: usize,
    /// The client's rate, compared with a session whose servers do not become slow.
    rate_ratio: f64,
}

#[derive(Debug, Serialize)]
struct MigrateBenchReport {
    ok: bool,
    moves: Vec<MovesRow>,
    lines: Vec<MovesLine>,
    streams: Vec<StreamRow>,
    targets: Vec<BenchVerdict>,
}

/// Runs the benchmark.
///
/// # Errors
/// If a step fails. A missed target is no error.
pub fn run(options: &MigrateBenchOptions) -> Result<LabOutcome> {
    let teardown = Teardown::start()?;
    let measured = measure_all(options, &teardown);
    teardown.finish()?;
    let (moves, streams) = measured?;
    let lines = lines(&moves);
    let targets = targets(&moves, &lines, &streams);
    let report = MigrateBenchReport {
        ok: target::missed(&targets).is_empty(),
        targets: targets.iter().map(BenchVerdict::from).collect(),
        moves,
        lines,
        streams,
    };
    conclude(options.json, report.ok, &report, || print(&report, &targets))
}

fn measure_all(
    options: &MigrateBenchOptions,
    teardown: &Teardown,
) -> Result<(Vec<MovesRow>, Vec<StreamRow>)> {
    let daemon = options.daemon.path()?;
    let process = std::process::id();
    let directory = in_memory(&format!("migrate-{process}"), teardown)?;
    let runs = options.runs as usize;
    let sizes = SMALL_KB.map(|kb| (kb, runs)).into_iter();
    let sizes: Vec<_> = sizes
        .chain(LARGE_KB.map(|(kb, most)| (kb, most.min(runs))))
        .collect();
    let progress =
        ProgressBar::new((RTTS_MS.len() * TRANSFERS.len() * sizes.len() + STREAMS_KB.len() + 2) as u64);
    let mut number = 0;
    let mut next = || {
        number += 1;
        progress.inc(1);
        format!("{process}m{number}")
    };
    let mut moves = Vec::new();
    for rtt_ms in RTTS_MS {
        for transfer in TRANSFERS {
            for (kb, runs) in &sizes {
                let cell = MovesCell {
                    rtt: Duration::from_millis(rtt_ms),
                    far: Duration::ZERO,
                    transfer,
                    snapshot_bytes: kb << 10,
                    runs: *runs,
                };
                let measured = moves::measure(&cell, (&next(), &directory), &daemon, teardown)?;
                moves.push(MovesRow::new(rtt_ms, transfer, *kb, &measured));
            }
        }
    }
    let mut stream = |snapshot_kb: Option<u64>, decays: bool| -> Result<StreamMeasured> {
        let cell = StreamCell {
            snapshot_bytes: snapshot_kb.map(|kb| kb << 10),
            fast_bytes: decays.then_some(32 << 10),
            strikes: 1,
        };
        stream::measure(cell, (&next(), &directory), &daemon, teardown)
    };
    let steady = stream(Some(0), false)?;
    let mut streams = vec![StreamRow::new(Some(0), false, &steady, &steady)];
    for kb in [None].into_iter().chain(STREAMS_KB.map(Some)) {
        streams.push(StreamRow::new(kb, true, &stream(kb, true)?, &steady));
    }
    progress.finish_and_clear();
    Ok((moves, streams))
}

fn microseconds(times: &[Duration]) -> Vec<f64> {
    times.iter().map(|time| time.as_secs_f64() * 1e6).collect()
}

impl MovesRow {
    fn new(rtt_ms: u64, transfer: StateTransfer, snapshot_kb: u64, measured: &MovesMeasured) -> Self {
        let took = microseconds(&measured.took);
        let rtt_us = measured.round_trip.as_secs_f64() * 1e6;
        let longest_us = took.iter().copied().fold(0.0, f64::max);
        let median_us = median(took);
        Self {
            rtt_ms,
            transfer,
            snapshot_kb,
            runs: measured.took.len(),
            rtt_us,
            median_us,
            longest_us,
            median_rtts: median_us / rtt_us,
        }
    }
}

impl StreamRow {
    fn new(
        snapshot_kb: Option<u64>,
        decays: bool,
        measured: &StreamMeasured,
        steady: &StreamMeasured,
    ) -> Self {
        let last = measured.arrivals.last();
        Self {
            snapshot_kb,
            decays,
            seconds: last.map_or(f64::NAN, |(at, _)| at.as_secs_f64()),
            moves: measured.moves,
            rate_ratio: measured.rate() / steady.rate(),
        }
    }
}

/// The lines through the medians of all sizes.
fn lines(moves: &[MovesRow]) -> Vec<MovesLine> {
    let kinds = RTTS_MS
        .into_iter()
        .flat_map(|rtt_ms| TRANSFERS.map(|transfer| (rtt_ms, transfer)));
    kinds
        .map(|(rtt_ms, transfer)| {
            let of = moves
                .iter()
                .filter(|row| row.rtt_ms == rtt_ms && row.transfer == transfer);
            let points: Vec<_> = of.map(|row| (row.snapshot_kb as f64, row.median_us)).collect();
            let (at_zero_us, us_per_kb, r_squared) = straight_line(&points);
            MovesLine {
                rtt_ms,
                transfer,
                at_zero_us,
                us_per_kb,
                r_squared,
            }
        })
        .collect()
}

/// The least-squares line through the points: its value at 0, its slope, and the part of the variance that it explains.
pub fn straight_line(points: &[(f64, f64)]) -> (f64, f64, f64) {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let sum = |of: &dyn Fn(f64, f64) -> f64| {
        points
            .iter()
            .map(|point| of(point.0 - x, point.1 - y))
            .sum::<f64>()
    };
    let (xx, xy, yy) = (sum(&|x, _| x * x), sum(&|x, y| x * y), sum(&|_, y| y * y));
    let slope = xy / xx;
    (y - slope * x, slope, xy * xy / (xx * yy))
}

fn targets(moves: &[MovesRow], lines: &[MovesLine], streams: &[StreamRow]) -> Vec<BenchTarget> {
    let at_zero = |transfer: StateTransfer| {
        let mut rows = moves.iter();
        let row = rows.find(|row| row.rtt_ms == 20 && row.transfer == transfer && row.snapshot_kb == 0);
        row.map_or(f64::NAN, |row| row.median_rtts)
    };
    let linear = |transfer: StateTransfer| {
        let mut of = lines.iter();
        let line = of.find(|line| line.rtt_ms == 0 && line.transfer == transfer);
        line.map_or(f64::NAN, |line| line.r_squared)
    };
    let decaying = streams
        .iter()
        .filter(|row| row.decays && row.snapshot_kb.is_some());
    let slowest = decaying.map(|row| row.rate_ratio).fold(f64::INFINITY, f64::min);
    let plain = streams.iter().find(|row| row.snapshot_kb.is_none());
    vec![
        BenchTarget {
            name: "lazy move without state at 20 ms, round trips",
            value: at_zero(StateTransfer::Lazy),
            bound: Bound::AtMost(2.6),
        },
        BenchTarget {
            name: "eager move without state at 20 ms, round trips",
            value: at_zero(StateTransfer::Eager),
            bound: Bound::AtMost(1.5),
        },
        BenchTarget {
            name: "lazy, 0 to 16 MB: R² of a straight line",
            value: linear(StateTransfer::Lazy),
            bound: Bound::AtLeast(0.95),
        },
        BenchTarget {
            name: "stream from servers that become slow, of full rate",
            value: slowest,
            bound: Bound::AtLeast(0.9),
        },
        BenchTarget {
            name: "the same stream over plain TCP, of full rate",
            value: plain.map_or(f64::NAN, |row| row.rate_ratio),
            bound: Bound::AtMost(0.5),
        },
    ]
}

fn print(report: &MigrateBenchReport, targets: &[BenchTarget]) {
    say!("  RTT      mode   snapshot    runs      median     longest");
    for row in &report.moves {
        say!(
            "{:>6.0} µs  {:<5} {:>8} KB  {:>5}  {:>8.0} µs  {:>8.0} µs  {:>6.2} RTT",
            row.rtt_us,
            moves::name(row.transfer),
            row.snapshot_kb,
            row.runs,
            row.median_us,
            row.longest_us,
            row.median_rtts
        );
    }
    for line in &report.lines {
        say!(
            "{} at {} ms, 0 to 16 MB: {:.0} µs + {:.2} µs per KB, R² {:.2}",
            moves::name(line.transfer),
            line.rtt_ms,
            line.at_zero_us,
            line.us_per_kb,
            line.r_squared
        );
    }
    for row in &report.streams {
        let what = match (row.snapshot_kb, row.decays) {
            (None, _) => "plain TCP, servers that become slow".to_owned(),
            (Some(_), false) => "servers that do not become slow".to_owned(),
            (Some(kb), true) => format!("snapshots of {kb} KB, servers that become slow"),
        };
        say!(
            "256 KB, {what}: {:.2} s, {} moves, {:.1} % of the full rate",
            row.seconds,
            row.moves,
            row.rate_ratio * 100.0
        );
    }
    target::print(targets);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_and_what_is_no_line_is_noticed() {
        let (at_zero, slope, r_squared) = straight_line(&[(0.0, 3.0), (1.0, 5.0), (2.0, 7.0)]);
        assert!((at_zero - 3.0).abs() < 1e-9 && (slope - 2.0).abs() < 1e-9 && (r_squared - 1.0).abs() < 1e-9);
        let (.., r_squared) = straight_line(&[(0.0, 1.0), (1.0, 9.0), (2.0, 1.0), (3.0, 9.0)]);
        assert!(r_squared < 0.5, "{r_squared}");
    }
}
