//! Figures 7, 8 and 12 to 17: flows around a failover.

use std::collections::BTreeSet;

use model::failover::{Failover, FlowRecovery as Modelled};
use model::parameters::Parameters;
use model::short_flow::ShortFlow;
use sim::flow::TcpVariant;

use super::{NS2, above, recovery};
use crate::figure::chart::{Axis, Mark, MarkPosition, Panel, Series, Shape};
use crate::figure::oracle;
use crate::figure::palette::Colour;
use crate::figure::rows::{FlowRow, Rows};
use crate::figure::scenario::{FigureScenario, FlowSweep, RecoveryPolicy, ScenarioSeconds};

/// Numbers of the thesis that a figure shows: label and place.
pub type Marks = &'static [(&'static str, MarkPosition)];

const TIMEOUT_NAMES: [&str; 5] = ["0", "1", "2", "3", "4 or more"];
const TIMEOUT_COLOURS: [Colour; 5] = [
    Colour::Green,
    Colour::Sky,
    Colour::Orange,
    Colour::Red,
    Colour::Purple,
];

fn sweep(scenario: &FigureScenario) -> Option<&FlowSweep> {
    match scenario {
        FigureScenario::Flows(sweep) => Some(sweep),
        FigureScenario::Strings(_)
        | FigureScenario::Paths(_)
        | FigureScenario::SharedPaths(_)
        | FigureScenario::Timeouts(_)
        | FigureScenario::UnusedFlowTime(_)
        | FigureScenario::Moves(_)
        | FigureScenario::Streams(_)
        | FigureScenario::Measurements(_) => None,
    }
}

/// Whether the sweep uses the TCP of the HALR thesis, so that ns-2's results and the models are comparable.
fn is_of_the_thesis(sweep: &FlowSweep) -> bool {
    !sweep.variants.contains(&TcpVariant::Rack)
}

/// The model's counterpart of a recovery policy.
pub fn modelled(recovery: RecoveryPolicy) -> Modelled {
    match recovery {
        RecoveryPolicy::None => Modelled::Timeout,
        RecoveryPolicy::Lowest | RecoveryPolicy::Syn | RecoveryPolicy::All => Modelled::Local,
    }
}

/// The recovery policies that were simulated.
fn simulated(rows: &[FlowRow]) -> BTreeSet<RecoveryPolicy> {
    rows.iter().map(|row| row.recovery).collect()
}

/// Completion time as a function of the arrival time (Figures 12 to 14).
pub fn completion_over_arrival(scenario: &FigureScenario, rows: &Rows, marks: Marks) -> Vec<Panel> {
    let Some(sweep) = sweep(scenario) else {
        return Vec::new();
    };
    let panel = |ScenarioSeconds(failover): &ScenarioSeconds| {
        let failover_s = failover.as_secs_f64();
        let of = |row: &&FlowRow| row.failover_s == failover_s;
        let rows: Vec<_> = rows.flows.iter().filter(of).cloned().collect();
        let mut series = Vec::new();
        let last_s = rows.iter().map(|row| row.arrival_s).fold(0.0, f64::max);
        for policy in simulated(&rows) {
            let (name, colour) = recovery(policy);
            let of = rows.iter().filter(|row| row.recovery == policy);
            let points = of.filter_map(|row| Some((row.arrival_s, row.completion_s?)));
            series.push(Series::new(name, colour, Shape::Dots, points));
            if is_of_the_thesis(sweep) {
                let model = model_over_arrival(sweep, failover_s, last_s, policy);
                let name = format!("model, {name}");
                series.push(Series::new(name, colour, Shape::Dashed, model));
            }
        }
        let theirs = oracle::completions(failover_s);
        if !theirs.is_empty() && is_of_the_thesis(sweep) {
            let sparse = theirs.into_iter().step_by(4);
            series.push(Series::new("ns-2, without HALR", NS2, Shape::Rings, sparse));
        }
        let start_s = sweep.cluster.failover_at.as_secs_f64();
        let mut all = vec![Mark::new(
            "failover",
            MarkPosition::Band(start_s, start_s + failover_s),
        )];
        all.extend(marks.iter().map(|(label, place)| Mark::new(*label, *place)));
        let highest = series.iter().flat_map(|series| &series.points).map(|(_, y)| *y);
        Panel {
            title: String::new(),
            x: Axis::new("arrival of the flow (s)", 0.0, above(last_s)),
            y: Axis::new(
                "completion time (s)",
                0.0,
                above(highest.fold(1.0, f64::max) * 1.12),
            ),
            series,
            marks: all,
        }
    };
    sweep.failovers.iter().map(panel).collect()
}

/// Arrival times and the model's completion times, in seconds, of flows that arrive at multiples of 10 ms.
fn model_over_arrival(
    sweep: &FlowSweep,
    failover_s: f64,
    last_s: f64,
    policy: RecoveryPolicy,
) -> Vec<(f64, f64)> {
    let flow = ShortFlow::new(Parameters::SHORT);
    let cluster = &sweep.cluster;
    let failover = Failover {
        start_s: cluster.failover_at.as_secs_f64(),
        duration_s: failover_s,
    };
    let answer_s = sweep.answer_s();
    let to_cluster_s = cluster.source_delay.as_secs_f64();
    let times = (0..)
        .map(|step| f64::from(step) * 0.01)
        .take_while(|at| *at <= last_s);
    times
        .map(|at| {
            let passes_s = at + to_cluster_s;
            (
                at,
                flow.completion_s(passes_s, &failover, answer_s, modelled(policy)),
            )
        })
        .collect()
}

/// The congestion window of the first seed's flow (Figures 7 and 8).
pub fn window(scenario: &FigureScenario, rows: &Rows, marks: Marks) -> Vec<Panel> {
    let Some(sweep) = sweep(scenario) else {
        return Vec::new();
    };
    let policies: BTreeSet<_> = rows.windows.iter().map(|row| row.recovery).collect();
    let series = policies.into_iter().map(|policy| {
        let of = rows
            .windows
            .iter()
            .filter(|row| row.seed == 1 && row.recovery == policy);
        let (name, colour) = recovery(policy);
        Series::new(
            name,
            colour,
            Shape::Line,
            of.map(|row| (row.time_s, row.window_segments)),
        )
    });
    let series: Vec<_> = series.collect();
    let points = || series.iter().flat_map(|series| &series.points);
    let start_s = sweep.cluster.failover_at.as_secs_f64();
    let end_s = start_s
        + sweep
            .failovers
            .first()
            .map_or(0.0, |ScenarioSeconds(time)| time.as_secs_f64());
    let mut all = vec![Mark::new("failover", MarkPosition::Band(start_s, end_s))];
    all.extend(marks.iter().map(|(label, place)| Mark::new(*label, *place)));
    vec![Panel {
        title: String::new(),
        x: Axis::new(
            "time (s)",
            0.0,
            above(points().map(|(x, _)| *x).fold(1.0, f64::max)),
        ),
        y: Axis::new(
            "congestion window (segments)",
            0.0,
            above(points().map(|(_, y)| *y).fold(1.0, f64::max) * 1.12),
        ),
        series,
        marks: all,
    }]
}

/// The fractions of `rows` with 0, 1, 2, 3, and 4 or more timeouts.
pub fn fractions<'a>(rows: impl Iterator<Item = &'a FlowRow>) -> [f64; 5] {
    let (mut counts, mut all) = ([0.0; 5], 0.0);
    for row in rows {
        counts[row.timeouts.min(4) as usize] += 1.0;
        all += 1.0;
    }
    counts.map(|count| if all == 0.0 { 0.0 } else { count / all })
}

/// Fractions of the flows that the failover hits after their handshake (the thesis' Case 2), by number of timeouts. The fractions are
/// stacked bars: with HALR on the left, without HALR on the right (Figures 15 to 17). One panel per variant.
pub fn timeouts(scenario: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    let Some(sweep) = sweep(scenario) else {
        return Vec::new();
    };
    let mut variants: Vec<&str> = Vec::new();
    for row in &rows.flows {
        if !variants.contains(&row.variant.as_str()) {
            variants.push(&row.variant);
        }
    }
    let panels = variants.into_iter().map(|variant| {
        let of = |row: &&FlowRow| row.variant == variant && sweep.is_case_2(row.arrival_s);
        timeouts_of(sweep, variant, &rows.flows.iter().filter(of).collect::<Vec<_>>())
    });
    panels.collect()
}

fn timeouts_of(sweep: &FlowSweep, variant: &str, flows: &[&FlowRow]) -> Panel {
    const BAR: f64 = 0.36;
    let failovers: Vec<f64> = sweep
        .failovers
        .iter()
        .map(|ScenarioSeconds(time)| time.as_secs_f64())
        .collect();
    let mut series = Vec::new();
    let policies: BTreeSet<_> = flows.iter().map(|row| row.recovery).collect();
    for policy in policies.into_iter().rev() {
        let (name, _) = recovery(policy);
        let (side, opacity) = if policy == RecoveryPolicy::None {
            (0.5, 0.85)
        } else {
            (-0.5, 0.45)
        };
        let stacks: Vec<[f64; 5]> = failovers
            .iter()
            .map(|failover_s| {
                let of = |row: &&FlowRow| row.failover_s == *failover_s && row.recovery == policy;
                fractions(flows.iter().copied().filter(of))
            })
            .collect();
        for (count, timeouts) in TIMEOUT_NAMES.iter().enumerate() {
            let base = stacks.iter().map(|stack| stack[..count].iter().sum()).collect();
            let points = (0..)
                .zip(&stacks)
                .map(|(place, stack)| (f64::from(place) + side * BAR, stack[count]));
            let shape = Shape::Bars {
                width: BAR,
                base,
                opacity,
            };
            let label = format!("{timeouts}, {}", name.trim_end_matches(" HALR"));
            series.push(Series::new(label, TIMEOUT_COLOURS[count], shape, points));
        }
    }
    let theirs = (0..).zip(&failovers).flat_map(|(place, failover_s)| {
        let fractions = oracle::timeouts(sweep.timeout_setting(), variant, *failover_s).unwrap_or_default();
        let ends = (1..5).map(move |count| fractions[..count].iter().sum::<f64>());
        let inner = ends.filter(|end| (0.001..0.999).contains(end));
        inner.map(move |end| (f64::from(place) + 0.5 * BAR, end))
    });
    let theirs: Vec<_> = theirs.collect();
    if is_of_the_thesis(sweep) {
        series.push(Series::new(
            "ns-2: borders between the bar's parts, without HALR",
            NS2,
            Shape::Rings,
            theirs,
        ));
    }
    let categories = failovers
        .iter()
        .map(|failover_s| format!("{failover_s}"))
        .collect();
    Panel {
        title: format!("TCP {variant}: timeouts per flow (left bar with HALR, right bar without)"),
        x: Axis::of("failover time (s)", categories),
        y: Axis::new("fraction of flows hit after handshake", 0.0, 1.0),
        series,
        marks: Vec::new(),
    }
}
