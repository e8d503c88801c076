//! Figures 20 to 26: two strings, one of which fails.

use std::collections::BTreeSet;

use sim::flow::TcpVariant;

use super::flows::Marks;
use super::{WITH, WITHOUT};
use crate::figure::chart::{Axis, Mark, MarkPosition, Panel, Series, Shape};
use crate::figure::oracle;
use crate::figure::palette::{Colour, SERIES};
use crate::figure::rows::{BinRow, Rows};
use crate::figure::scenario::{FigureScenario, StringSweep};

/// End of the time axis, in seconds. All flows except stragglers are complete by then.
const END_S: f64 = 40.0;

fn sweep(scenario: &FigureScenario) -> Option<&StringSweep> {
    match scenario {
        FigureScenario::Strings(sweep) => Some(sweep),
        FigureScenario::Flows(_)
        | FigureScenario::Paths(_)
        | FigureScenario::SharedPaths(_)
        | FigureScenario::Timeouts(_)
        | FigureScenario::UnusedFlowTime(_)
        | FigureScenario::Moves(_)
        | FigureScenario::Streams(_)
        | FigureScenario::Measurements(_) => None,
    }
}

/// Whether the sweep uses the TCP of the HALR thesis, so that ns-2's results are comparable.
fn is_of_the_thesis(sweep: &StringSweep) -> bool {
    sweep.rate.tcp.variant != TcpVariant::Rack
}

/// Marks for the failover and for the numbers of the HALR thesis.
fn marks(sweep: &StringSweep, marks: Marks) -> Vec<Mark> {
    let rate = &sweep.rate;
    let start_s = rate.failure_at.as_secs_f64();
    let failover = MarkPosition::Band(start_s, start_s + rate.failover.as_secs_f64());
    let ours = [Mark::new("failover", failover)];
    let theirs = marks.iter().map(|(label, place)| Mark::new(*label, *place));
    ours.into_iter().chain(theirs).collect()
}

fn control(rate_control: bool) -> (&'static str, Colour) {
    if rate_control {
        ("with rate control", WITH)
    } else {
        ("without rate control", WITHOUT)
    }
}

/// The first seed's bins with or without rate control, up to the end of the time axis.
fn bins(rows: &Rows, rate_control: bool) -> impl Iterator<Item = &BinRow> {
    let of = move |row: &&BinRow| row.seed == 1 && row.rate_control == rate_control && row.end_s <= END_S;
    rows.bins.iter().filter(of)
}

fn total(row: &BinRow) -> (f64, f64) {
    (row.end_s, row.passed_mbps + row.failover_mbps)
}

fn wire(row: &BinRow) -> (f64, f64) {
    (row.end_s, row.wire_mbps)
}

fn throughput(scenario: &FigureScenario, rows: &Rows, theirs: Marks, rate_control: bool) -> Vec<Panel> {
    let Some(sweep) = sweep(scenario).filter(|_| bins(rows, rate_control).next().is_some()) else {
        return Vec::new();
    };
    let mut series = Vec::new();
    if !rate_control && is_of_the_thesis(sweep) {
        let bins = oracle::bins(750).into_iter().filter(|(at, ..)| *at <= END_S);
        let points = bins.map(|(at, mbps, _)| (at, mbps));
        series.push(Series::new("ns-2, all flows", Colour::Muted, Shape::Line, points));
    }
    let of = |value: fn(&BinRow) -> (f64, f64)| bins(rows, rate_control).map(value);
    let passed = of(|row| (row.end_s, row.passed_mbps));
    let moved = of(|row| (row.end_s, row.failover_mbps));
    series.push(Series::new("all flows", WITHOUT, Shape::Line, of(total)));
    series.push(Series::new("passed flows", WITH, Shape::Line, passed));
    series.push(Series::new("failover flows", Colour::Green, Shape::Line, moved));
    vec![Panel {
        title: control(rate_control).0.to_owned(),
        x: Axis::new("time (s)", 0.0, END_S),
        y: Axis::new("throughput (Mb/s)", 0.0, 220.0),
        series,
        marks: marks(sweep, theirs),
    }]
}

/// Throughput without rate control (Figure 20).
pub fn throughput_without(scenario: &FigureScenario, rows: &Rows, theirs: Marks) -> Vec<Panel> {
    throughput(scenario, rows, theirs, false)
}

/// Throughput with rate control (Figure 21).
pub fn throughput_with(scenario: &FigureScenario, rows: &Rows, theirs: Marks) -> Vec<Panel> {
    throughput(scenario, rows, theirs, true)
}

/// Three panels, each with and without rate control: the throughput, an enlarged part of it (Figure 22), and the rate on the wire in the
/// time of this part.
pub fn throughput_compared(scenario: &FigureScenario, rows: &Rows, theirs: Marks) -> Vec<Panel> {
    let Some(sweep) = sweep(scenario) else {
        return Vec::new();
    };
    let all = |from: f64, to: f64, value: fn(&BinRow) -> (f64, f64)| {
        [false, true].into_iter().map(move |rate_control| {
            let (name, colour) = control(rate_control);
            let points = bins(rows, rate_control)
                .map(value)
                .filter(move |(at, _)| (from..=to).contains(at));
            Series::new(name, colour, Shape::Line, points)
        })
    };
    let panel = |title: &str, x: (f64, f64), y: (f64, f64), value: fn(&BinRow) -> (f64, f64)| Panel {
        title: title.to_owned(),
        x: Axis::new("time (s)", x.0, x.1),
        y: Axis::new("throughput of all flows (Mb/s)", y.0, y.1),
        series: all(x.0, x.1, value)
            .filter(|series| !series.points.is_empty())
            .collect(),
        marks: if x.0 == 0.0 {
            marks(sweep, theirs)
        } else {
            Vec::new()
        },
    };
    vec![
        panel("(a) the whole run", (0.0, END_S), (0.0, 220.0), total),
        panel(
            "(b) after the failover. A repeated segment releases all that waited for it, so more can arrive in order than the string \
             carries",
            (8.0, 28.0),
            (50.0, 140.0),
            total,
        ),
        panel(
            "(c) on the wire: what R1 sends into the string",
            (8.0, 28.0),
            (50.0, 140.0),
            wire,
        ),
    ]
}

fn shares(scenario: &FigureScenario, rows: &Rows, theirs: Marks, rate_control: bool) -> Vec<Panel> {
    let Some(sweep) = sweep(scenario) else {
        return Vec::new();
    };
    let string_mbps = sweep.rate.rate_bits_per_s[0] as f64 / 1e6;
    let of: Vec<_> = rows
        .shares
        .iter()
        .filter(|row| row.seed == 1 && row.rate_control == rate_control && row.end_s <= END_S)
        .collect();
    let flows: BTreeSet<_> = of.iter().map(|row| row.flow).collect();
    let series = flows
        .into_iter()
        .zip(SERIES.into_iter().cycle())
        .map(|(flow, colour)| {
            let points = of.iter().filter(|row| row.flow == flow);
            let points = points.map(|row| (row.end_s, row.mbps / string_mbps));
            Series::new(format!("flow {}", flow + 1), colour, Shape::Line, points)
        });
    let series: Vec<_> = series.collect();
    if series.is_empty() {
        return Vec::new();
    }
    let (name, _) = control(rate_control);
    vec![
        Panel {
            title: format!("ten sampled flows, {name}"),
            x: Axis::new("time (s)", 0.0, END_S),
            y: Axis::new("share of the string", 0.0, 0.14),
            series,
            marks: marks(sweep, theirs),
        },
        fairness(sweep, rows, &[rate_control]),
    ]
}

/// Jain's index over time, of the first seed's flows.
fn fairness(sweep: &StringSweep, rows: &Rows, rate_controls: &[bool]) -> Panel {
    let of = |rate_control: bool| {
        let of = rows.fairness.iter().filter(move |row| {
            row.seed == 1 && row.rate_control == rate_control && row.active_flows > 1 && row.end_s <= END_S
        });
        let (name, colour) = control(rate_control);
        let points = of.map(|row| (row.end_s, row.jain_index));
        Series::new(name, colour, Shape::Line, points)
    };
    Panel {
        title: "Jain's index over all active flows (1: all have the same)".to_owned(),
        x: Axis::new("time (s)", 0.0, END_S),
        y: Axis::new("Jain's index", 0.0, 1.05),
        series: rate_controls
            .iter()
            .map(|rate_control| of(*rate_control))
            .collect(),
        marks: marks(sweep, &[]),
    }
}

/// Per-flow shares without rate control (Figure 23).
pub fn shares_without(scenario: &FigureScenario, rows: &Rows, theirs: Marks) -> Vec<Panel> {
    shares(scenario, rows, theirs, false)
}

/// Per-flow shares with rate control (Figure 24).
pub fn shares_with(scenario: &FigureScenario, rows: &Rows, theirs: Marks) -> Vec<Panel> {
    shares(scenario, rows, theirs, true)
}

/// The queue before the surviving string (Figures 25 and 26).
pub fn queue(scenario: &FigureScenario, rows: &Rows, theirs: Marks) -> Vec<Panel> {
    let Some(sweep) = sweep(scenario) else {
        return Vec::new();
    };
    let panel = |buffer: &usize| {
        let mut series = Vec::new();
        let ns2 = oracle::queue(*buffer).into_iter().filter(|(at, _)| *at <= END_S);
        let ns2: Vec<_> = ns2.collect();
        if !ns2.is_empty() && is_of_the_thesis(sweep) {
            series.push(Series::new(
                "ns-2, without rate control",
                Colour::Muted,
                Shape::Line,
                ns2,
            ));
        }
        for rate_control in [false, true] {
            let (name, colour) = control(rate_control);
            let of = rows.queue.iter().filter(|row| {
                row.buffer_packets == *buffer
                    && row.seed == 1
                    && row.rate_control == rate_control
                    && row.time_s <= END_S
            });
            let points: Vec<_> = of.map(|row| (row.time_s, row.packets as f64)).collect();
            if !points.is_empty() {
                series.push(Series::new(name, colour, Shape::Line, points));
            }
        }
        Panel {
            title: format!("buffer of {buffer} packets"),
            x: Axis::new("time (s)", 0.0, END_S),
            y: Axis::new("packets waiting at R1", 0.0, *buffer as f64 * 1.15),
            series,
            marks: marks(sweep, theirs),
        }
    };
    sweep.buffers.iter().map(panel).collect()
}

/// Throughput, fairness and queue, each with and without rate control.
pub fn overview(scenario: &FigureScenario, rows: &Rows, theirs: Marks) -> Vec<Panel> {
    let Some(sweep) = sweep(scenario) else {
        return Vec::new();
    };
    let mut panels = throughput_compared(scenario, rows, theirs);
    panels.truncate(1); // keep the panel of the whole run
    panels.push(fairness(sweep, rows, &sweep.rate_control));
    panels.extend(queue(scenario, rows, theirs));
    panels
}
