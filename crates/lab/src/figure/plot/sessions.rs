//! Figures of sessions that move between servers (Migratory TCP paper).

use std::collections::BTreeMap;

use super::above;
use super::flows::Marks;
use crate::bench::target::median;
use crate::figure::chart::{Axis, Panel, Series, Shape};
use crate::figure::palette::SERIES;
use crate::figure::rows::Rows;
use crate::figure::scenario::FigureScenario;
use crate::sessions::moves::name;

/// Whether the servers become slow, and the size of a snapshot in KiB. `None`: plain TCP.
type StreamKind = (bool, Option<u32>);

/// Largest snapshot of the paper's Figure 6, in KiB.
const PAPER_KB: u32 = 16;

/// Median times of moves as a function of the snapshot's size: one panel per round-trip time for the paper's sizes, and one for all sizes.
pub fn moves(_: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    let mut by_rtt: BTreeMap<u32, BTreeMap<&str, BTreeMap<u32, Vec<f64>>>> = BTreeMap::new();
    for row in &rows.moves {
        let of_rtt = by_rtt.entry(row.rtt_ms).or_default();
        let of_kind = of_rtt.entry(name(row.transfer)).or_default();
        of_kind
            .entry(row.snapshot_kb)
            .or_default()
            .push(row.took_us / 1e3);
    }
    let mut panels = Vec::new();
    for (rtt_ms, kinds) in by_rtt {
        for largest_kb in [PAPER_KB, u32::MAX] {
            let series = kinds.iter().zip(SERIES).map(|((kind, sizes), colour)| {
                let sizes = sizes.iter().filter(|(kb, _)| **kb <= largest_kb);
                let points = sizes.map(|(kb, took)| (f64::from(*kb), median(took.clone())));
                Series::new(*kind, colour, Shape::Line, points)
            });
            let series: Vec<_> = series.collect();
            let points = || series.iter().flat_map(|series| &series.points);
            let widest = points().map(|(x, _)| *x).fold(1.0, f64::max);
            let highest = points().map(|(_, y)| *y).fold(0.1, f64::max);
            let rtt = match rtt_ms {
                0 => "the cables' round-trip time".to_owned(),
                rtt_ms => format!("round-trip time {rtt_ms} ms"),
            };
            let sizes = if largest_kb == PAPER_KB {
                "the paper's sizes"
            } else {
                "all sizes"
            };
            panels.push(Panel {
                title: format!("{rtt}, {sizes}"),
                x: Axis::new("size of the snapshot (KiB)", 0.0, widest),
                y: Axis::new("median time to complete a migration (ms)", 0.0, above(highest)),
                series,
                marks: Vec::new(),
            });
        }
    }
    panels
}

/// Bytes that the client has as a function of time.
pub fn streams(_: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    let mut runs: BTreeMap<StreamKind, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows.arrivals.iter().filter(|row| row.seed == 1) {
        let run = runs.entry((row.decays, row.snapshot_kb)).or_default();
        run.push((row.time_s, row.bytes as f64 / 1024.0));
    }
    let longest = runs.values().flatten().map(|(x, _)| *x).fold(1.0, f64::max);
    let series = runs
        .into_iter()
        .zip(SERIES)
        .map(|(((decays, size), points), colour)| {
            let label = match (decays, size) {
                (false, _) => "servers that do not become slow".to_owned(),
                (true, None) => "plain TCP".to_owned(),
                (true, Some(kb)) => format!("snapshots of {kb} KiB"),
            };
            Series::new(label, colour, Shape::Line, points)
        });
    vec![Panel {
        title: String::new(),
        series: series.collect(),
        x: Axis::new("time since the request (s)", 0.0, above(longest)),
        y: Axis::new("bytes that the client has (KiB)", 0.0, 300.0),
        marks: Vec::new(),
    }]
}
