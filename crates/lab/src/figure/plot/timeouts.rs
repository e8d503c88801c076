//! Figures of the runs that the SCTP failover paper's closed forms describe: detection times (section II), the packets of Figure 8, and
//! the packets per round trip (Eq. 2 to 9).

use std::collections::BTreeMap;

use model::caro::{failure_detection_s, packets as modelled_packets};

use super::above;
use super::flows::Marks;
use crate::figure::chart::{Axis, Panel, Series, Shape};
use crate::figure::palette::{Colour, SERIES};
use crate::figure::rows::Rows;
use crate::figure::scenario::FigureScenario;

/// Points of a run's lines, by the lines' names.
type PointsByPath<'a> = BTreeMap<&'a str, Vec<(f64, f64)>>;

/// Vertical place of heartbeats among the numbers of packets.
const HEARTBEATS_AT: f64 = -10.0;

/// Detection time as a function of PMR. The dashed lines are the closed form's.
pub fn detection(_: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    let mut by_timeout: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    for row in &rows.detections {
        let points = by_timeout.entry(row.first_rto_s as u64).or_default();
        points.extend(row.detected_s.map(|took| (f64::from(row.path_max_retrans), took)));
    }
    let mut series = Vec::new();
    for ((timeout_s, points), colour) in by_timeout.into_iter().zip(SERIES) {
        let line = (0..=6).map(|threshold| {
            let took = failure_detection_s(threshold, timeout_s as f64, 60.0);
            (f64::from(threshold), took)
        });
        let label = format!("first timeout {timeout_s} s");
        series.push(Series::new(
            format!("{label}, closed form"),
            colour,
            Shape::Dashed,
            line,
        ));
        series.push(Series::new(label, colour, Shape::Dots, points));
    }
    let x = Axis::new("PMR", 0.0, 6.0);
    let most = series.iter().flat_map(|series| &series.points).map(|(_, y)| *y);
    let y = Axis::new(
        "time until a failure is detected (s)",
        0.0,
        above(most.fold(1.0, f64::max)),
    );
    vec![plain(String::new(), x, y, series)]
}

/// The packets after the timeout: one panel per scenario and PMR (Figure 8).
pub fn packets(_: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    let mut runs: BTreeMap<(u32, u32), PointsByPath<'_>> = BTreeMap::new();
    for row in &rows.timeout_packets {
        let name = match (row.number, row.path) {
            (None, _) => "heartbeat",
            (Some(_), 0) => "data on the primary",
            (Some(_), _) => "data on the alternate",
        };
        let number = row.number.map_or(HEARTBEATS_AT, |number| f64::from(number + 1));
        let run = runs.entry((row.scenario, row.path_max_retrans)).or_default();
        run.entry(name)
            .or_default()
            .push((row.after_ms as f64 / 1e3, number));
    }
    let of_run = |((scenario, threshold), run): ((u32, u32), PointsByPath<'_>)| {
        let series = run.into_iter().map(|(name, points)| {
            let colour = match name {
                "heartbeat" => Colour::Orange,
                "data on the primary" => Colour::Blue,
                _ => Colour::Red,
            };
            Series::new(name, colour, Shape::Dots, points)
        });
        let series: Vec<_> = series.collect();
        let most = series.iter().flat_map(|series| &series.points).map(|(_, y)| *y);
        let x = Axis::new("time since the timeout of packet 1 (s)", 0.0, 3.0);
        let y = Axis::new("packet", HEARTBEATS_AT, above(most.fold(1.0, f64::max)));
        plain(format!("scenario {scenario}, PMR = {threshold}"), x, y, series)
    };
    runs.into_iter().map(of_run).collect()
}

/// Packets sent since the start, as a function of round trips. The dashed lines are those of Eq. 9.
pub fn growth(_: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    let mut runs: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    for row in &rows.growth {
        let run = runs.entry(row.threshold_packets).or_default();
        let before = run.last().map_or(0.0, |(_, sum)| *sum);
        run.push((f64::from(row.round_trip), before + f64::from(row.packets)));
    }
    let mut series = Vec::new();
    for ((threshold, points), colour) in runs.into_iter().zip(SERIES) {
        let line = points
            .iter()
            .map(|(round, _)| (*round, modelled_packets(*round, f64::from(threshold))));
        let line: Vec<_> = line.collect();
        let label = format!("ssthresh {threshold}");
        series.push(Series::new(
            format!("{label}, Eq. 9"),
            colour,
            Shape::Dashed,
            line,
        ));
        series.push(Series::new(label, colour, Shape::Dots, points));
    }
    let most = series.iter().flat_map(|series| &series.points).map(|(_, y)| *y);
    let y = Axis::new("packets sent", 0.0, above(most.fold(1.0, f64::max)));
    vec![plain(
        String::new(),
        Axis::new("round trips", 0.0, 20.0),
        y,
        series,
    )]
}

fn plain(title: String, x: Axis, y: Axis, series: Vec<Series>) -> Panel {
    Panel {
        title,
        x,
        y,
        series,
        marks: Vec::new(),
    }
}
