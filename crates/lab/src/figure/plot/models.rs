//! Figures 9, 18 and 19: the models' formulas, alone (Figure 9) and together with the simulation.

use std::collections::BTreeSet;

use model::failover::{FlowRecovery as Modelled, Range};
use model::long_flow::LongFlow;
use model::parameters::Parameters;
use model::short_flow::ShortFlow;
use model::unused_flow_time::unused_flow_time_s;

use super::flows::{Marks, modelled};
use super::{NS2, WITH, above, recovery};
use crate::figure::chart::{Axis, Mark, Panel, Series, Shape, number};
use crate::figure::oracle;
use crate::figure::palette::SERIES;
use crate::figure::rows::{FlowRow, Rows};
use crate::figure::scenario::{FigureScenario, FlowSweep, RecoveryPolicy, ScenarioSeconds};

/// The unused flow time as a function of the down time (Figure 9).
pub fn sawtooth(scenario: &FigureScenario, _: &Rows, marks: Marks) -> Vec<Panel> {
    let FigureScenario::UnusedFlowTime(sawtooth) = scenario else {
        return Vec::new();
    };
    let ScenarioSeconds(step) = sawtooth.step;
    let (step_s, until_s) = (step.as_secs_f64(), sawtooth.until.0.as_secs_f64());
    let downs: Vec<f64> = (0..)
        .map(|index| f64::from(index) * step_s)
        .take_while(|at| *at <= until_s + step_s / 2.0)
        .collect();
    let curve = |timeout_s: f64, recovery| {
        let points = downs
            .iter()
            .map(|down_s| (*down_s, unused_flow_time_s(*down_s, timeout_s, recovery)));
        points.collect::<Vec<_>>()
    };
    let mut series = Vec::new();
    for (ScenarioSeconds(timeout), colour) in sawtooth.timeouts.iter().zip(&SERIES[1..]) {
        let timeout_s = timeout.as_secs_f64();
        let label = format!("without HALR, first timeout {} s", number(timeout_s));
        series.push(Series::new(
            label,
            *colour,
            Shape::Line,
            curve(timeout_s, Modelled::Timeout),
        ));
    }
    series.push(Series::new(
        "with HALR",
        WITH,
        Shape::Line,
        curve(1.0, Modelled::Local),
    ));
    let x = Axis::new("flow down time (s)", 0.0, until_s);
    vec![panel(x, "unused flow time (s)", series, marks)]
}

/// The model's shortest and longest completion time of disturbed short flows: the lines of Figure 18. The model uses the answer's delay in
/// the sweep's cluster ([`FlowSweep::answer_s`]).
pub fn short_range(sweep: &FlowSweep, failover_s: f64, recovery: RecoveryPolicy) -> Range {
    ShortFlow::new(Parameters::SHORT).disturbed_range(failover_s, sweep.answer_s(), modelled(recovery))
}

/// The part of [`long_range`] for the flows in [`FailoverCase::DataLoss`](model::failover::FailoverCase::DataLoss), the thesis's Case 2.
pub fn long_data_range(failover_s: f64, recovery: RecoveryPolicy) -> Range {
    LongFlow::new(Parameters::LONG).data_loss_range(failover_s, modelled(recovery))
}

/// Shortest and longest completion time of disturbed long flows in the model: the lines of Figure 19.
pub fn long_range(failover_s: f64, recovery: RecoveryPolicy) -> Range {
    LongFlow::new(Parameters::LONG).disturbed_range(failover_s, modelled(recovery))
}

/// Completion time of short flows as a function of the failover's length (Figure 18).
pub fn short_flows(scenario: &FigureScenario, rows: &Rows, marks: Marks) -> Vec<Panel> {
    let FigureScenario::Flows(sweep) = scenario else {
        return Vec::new();
    };
    let lines = |recovery| {
        let flow = ShortFlow::new(Parameters::SHORT);
        move |failover_s| flow.disturbed_range(failover_s, sweep.answer_s(), modelled(recovery))
    };
    let mut panels = over_failover(scenario, rows, marks, lines);
    for panel in &mut panels {
        let theirs = oracle::disturbed().into_iter();
        let ends = theirs.flat_map(|[failover_s, least, most]| [(failover_s, least), (failover_s, most)]);
        panel.series.push(Series::new(
            "ns-2, least and longest, without HALR",
            NS2,
            Shape::Rings,
            ends,
        ));
    }
    panels
}

/// Completion time of long flows as a function of the failover's length (Figure 19).
pub fn long_flows(scenario: &FigureScenario, rows: &Rows, marks: Marks) -> Vec<Panel> {
    over_failover(scenario, rows, marks, |recovery| {
        move |failover_s| long_range(failover_s, recovery)
    })
}

fn over_failover<F: Fn(f64) -> Range>(
    scenario: &FigureScenario,
    rows: &Rows,
    marks: Marks,
    lines: impl Fn(RecoveryPolicy) -> F,
) -> Vec<Panel> {
    let FigureScenario::Flows(sweep) = scenario else {
        return Vec::new();
    };
    let lengths = sweep
        .failovers
        .iter()
        .map(|ScenarioSeconds(time)| time.as_secs_f64());
    let (least, most) = lengths.fold((f64::INFINITY, 0.0_f64), |(least, most), length| {
        (least.min(length), most.max(length))
    });
    let steps = 240;
    let mut series = Vec::new();
    let policies: BTreeSet<_> = rows.flows.iter().map(|row| row.recovery).collect();
    for policy in policies {
        let (name, colour) = recovery(policy);
        let of = |row: &&FlowRow| row.recovery == policy;
        let points: BTreeSet<[u64; 2]> = rows
            .flows
            .iter()
            .filter(of)
            .filter_map(|row| Some([row.failover_s, row.completion_s?].map(micros)))
            .collect();
        let points = points.into_iter().map(|[x, y]| (x as f64 / 1e6, y as f64 / 1e6));
        series.push(Series::new(
            format!("simulated, {name}"),
            colour,
            Shape::Dots,
            points,
        ));
        let range = lines(policy);
        let lengths = (0..=steps).map(|step| least + (most - least) * f64::from(step) / f64::from(steps));
        let ranges: Vec<_> = lengths.map(|length| (length, range(length))).collect();
        for (end, shape, pick) in [
            ("longest", Shape::Line, (|range| range.max_s) as fn(&Range) -> f64),
            ("least", Shape::Dashed, |range| range.min_s),
        ] {
            let points = ranges.iter().map(|(length, range)| (*length, pick(range)));
            series.push(Series::new(
                format!("model, {end}, {name}"),
                colour,
                shape,
                points,
            ));
        }
    }
    let x = Axis::new("failover time (s)", 0.0, most * 1.04);
    vec![panel(x, "completion time (s)", series, marks)]
}

/// A panel whose vertical axis goes from 0 to a little above the highest point.
fn panel(x: Axis, y: &'static str, series: Vec<Series>, marks: Marks) -> Panel {
    let highest = series.iter().flat_map(|series| &series.points).map(|(_, y)| *y);
    let highest = highest.fold(1.0, f64::max);
    Panel {
        title: String::new(),
        x,
        y: Axis::new(y, 0.0, above(highest * 1.05)),
        series,
        marks: marks
            .iter()
            .map(|(label, place)| Mark::new(*label, *place))
            .collect(),
    }
}

/// Rounds to whole microseconds, so that equal times compare as equal.
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}
