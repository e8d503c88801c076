//! Figures of the SCTP failover paper: spurious failovers and transfer times (Figures 3 to 6 and 10 to 12), changes of the primary path
//! (Figure 9), and timeouts of many associations (section V).

use std::collections::{BTreeMap, BTreeSet};

use sim::multipath::shared::CoreQueue;
use sim::scenario::multipath::MultipathPolicy;

use super::above;
use super::flows::Marks;
use crate::figure::chart::{Axis, Mark, Panel, Series, Shape, number};
use crate::figure::palette::SERIES;
use crate::figure::results::mean;
use crate::figure::rows::{MultipathRow, Rows, SharedPathsRow};
use crate::figure::scenario::FigureScenario;

/// A loss as a whole number of percent.
pub fn percent_of(loss: f64) -> u32 {
    // A loss is a probability, so the result is at most 100.
    (loss * 100.0).round() as u32
}

/// The transfers, grouped by PMR, and in each group by the loss of the primary path in percent.
fn by_threshold(rows: &Rows) -> BTreeMap<u32, BTreeMap<u32, Vec<&MultipathRow>>> {
    let mut all: BTreeMap<u32, BTreeMap<u32, Vec<&MultipathRow>>> = BTreeMap::new();
    for row in &rows.multipath {
        let of = all.entry(row.path_max_retrans).or_default();
        of.entry(percent_of(row.primary_loss)).or_default().push(row);
    }
    all
}

fn panel(title: String, x: Axis, y: Axis, series: Vec<Series>, marks: Marks) -> Panel {
    let mark = |(label, place): &(&str, _)| Mark {
        label: (*label).to_owned(),
        place: *place,
    };
    Panel {
        title,
        x,
        y,
        series,
        marks: marks.iter().map(mark).collect(),
    }
}

/// Fraction of the transfers with a spurious failover as a function of the primary path's loss (Figure 3).
pub fn spurious(_: &FigureScenario, rows: &Rows, marks: Marks) -> Vec<Panel> {
    let mut series = Vec::new();
    for ((threshold, losses), colour) in by_threshold(rows).into_iter().zip(SERIES) {
        let points = losses.into_iter().map(|(loss, rows)| {
            let spurious = rows.iter().filter(|row| row.failovers > 0).count();
            (f64::from(loss), 100.0 * spurious as f64 / rows.len() as f64)
        });
        let points: Vec<_> = points.collect();
        series.push(Series::new(
            format!("PMR = {threshold}"),
            colour,
            Shape::Line,
            points,
        ));
    }
    let x = Axis::new("loss of the primary path (%)", 0.0, 10.0);
    let y = Axis::new("transfers with spurious failovers (%)", 0.0, 100.0);
    vec![panel(String::new(), x, y, series, marks)]
}

/// Cumulative distribution of the number of spurious failovers per transfer. One panel per loss of the primary path above 1 % (Figure 4).
pub fn spread(_: &FigureScenario, rows: &Rows, marks: Marks) -> Vec<Panel> {
    let all = by_threshold(rows);
    let losses: BTreeSet<u32> = all.values().flat_map(BTreeMap::keys).copied().collect();
    let of_loss = |loss: u32| {
        let mut series = Vec::new();
        for ((threshold, losses), colour) in all.iter().zip(SERIES) {
            let mut counts: Vec<u32> = losses[&loss].iter().map(|row| row.failovers).collect();
            counts.sort_unstable();
            let share = |place: usize| 100.0 * place as f64 / counts.len() as f64;
            // Each transfer is a vertical step: from the share of the transfers before it to the share that includes it.
            let steps = counts.iter().enumerate();
            let steps = steps.flat_map(|(place, count)| {
                [share(place), share(place + 1)].map(|share| (f64::from(*count), share))
            });
            let points: Vec<_> = steps.collect();
            series.push(Series::new(
                format!("PMR = {threshold}"),
                colour,
                Shape::Line,
                points,
            ));
        }
        let most = series.iter().flat_map(|series| &series.points).map(|(x, _)| *x);
        let x = Axis::new("spurious failovers", 0.0, above(most.fold(1.0, f64::max)));
        let y = Axis::new("transfers (%)", 0.0, 100.0);
        panel(format!("loss of the primary path: {loss} %"), x, y, series, marks)
    };
    losses
        .iter()
        .filter(|loss| **loss > 1)
        .map(|loss| of_loss(*loss))
        .collect()
}

/// As [`times`], only with those transfers whose failovers may become permanent (Figures 10, 11, 12).
pub fn permanent(_: &FigureScenario, rows: &Rows, marks: Marks) -> Vec<Panel> {
    let rows: Vec<_> = rows
        .multipath
        .iter()
        .filter(|row| row.change_over.is_some())
        .collect();
    means(&rows, "transfer time (s)", |row| row.completion_s, marks)
}

/// Mean transfer time (Figures 5 and 6).
pub fn times(_: &FigureScenario, rows: &Rows, marks: Marks) -> Vec<Panel> {
    let rows: Vec<_> = rows.multipath.iter().collect();
    means(&rows, "transfer time (s)", |row| row.completion_s, marks)
}

/// Mean number of changes of the primary path per transfer (Figure 9). The informed policy has no CPT, so it is left out.
pub fn promotions(_: &FigureScenario, rows: &Rows, marks: Marks) -> Vec<Panel> {
    let rows: Vec<_> = rows
        .multipath
        .iter()
        .filter(|row| row.policy.has_change_over())
        .collect();
    let changes = |row: &MultipathRow| Some(f64::from(row.promotions));
    means(&rows, "changes of the primary path per transfer", changes, marks)
}

/// The parameter on the horizontal axis.
#[derive(Clone, Copy, PartialEq)]
enum VariedParameter {
    /// Loss of the alternate path. There is one panel per loss of the primary path.
    AlternateLoss,
    /// Loss of the primary path, if the alternate path has one loss only.
    PrimaryLoss,
    /// PMR, if each path has one loss only.
    Threshold,
}

impl VariedParameter {
    fn of(rows: &[&MultipathRow]) -> Self {
        let count = |loss: fn(&MultipathRow) -> f64| {
            let losses: BTreeSet<u32> = rows.iter().map(|row| percent_of(loss(row))).collect();
            losses.len()
        };
        if count(|row| row.alternate_loss) > 1 {
            Self::AlternateLoss
        } else if count(|row| row.primary_loss) > 1 {
            Self::PrimaryLoss
        } else {
            Self::Threshold
        }
    }

    fn value(self, row: &MultipathRow) -> u32 {
        match self {
            Self::AlternateLoss => percent_of(row.alternate_loss),
            Self::PrimaryLoss => percent_of(row.primary_loss),
            Self::Threshold => row.path_max_retrans,
        }
    }

    fn axis(self, rows: &[&MultipathRow]) -> Axis {
        let most = rows.iter().map(|row| f64::from(self.value(row)));
        let most = most.fold(1.0, f64::max);
        match self {
            Self::AlternateLoss => Axis::new("loss of the alternate path (%)", 0.0, 10.0),
            Self::PrimaryLoss => Axis::new("loss of the primary path (%)", 0.0, most),
            Self::Threshold => Axis::new("PMR", 0.0, most),
        }
    }
}

/// The parameters that all transfers of a series have in common: policy, PMR and CPT. There is no PMR if it is on the horizontal axis.
type SeriesKey = (MultipathPolicy, Option<u32>, Option<u32>);

/// The series' name in the legend. It has the parameters that differ between the series.
fn series_name((policy, threshold, change_over): SeriesKey, keys: &BTreeSet<SeriesKey>) -> String {
    let policies: BTreeSet<_> = keys.iter().map(|(policy, ..)| *policy).collect();
    let has_thresholds = keys.iter().any(|(.., change_over)| change_over.is_some());
    match (change_over, threshold) {
        (Some(change_over), _) => format!("CPT = {change_over}"),
        (None, _) if has_thresholds && policy.has_change_over() => "CPT = ∞".to_owned(),
        (None, _) if has_thresholds => policy.name().to_owned(),
        (None, None) => policy.name().to_owned(),
        (None, Some(threshold)) if policies.len() > 1 => format!("{}, PMR = {threshold}", policy.name()),
        (None, Some(threshold)) => format!("PMR = {threshold}"),
    }
}

/// The values of one panel: of each series, at each value of the varied parameter.
type PanelCells = BTreeMap<SeriesKey, BTreeMap<u32, Vec<f64>>>;

/// Means of `value` as a function of the varied parameter.
fn means(
    rows: &[&MultipathRow],
    label: &'static str,
    value: impl Fn(&MultipathRow) -> Option<f64>,
    marks: Marks,
) -> Vec<Panel> {
    let varied = VariedParameter::of(rows);
    let key = |row: &MultipathRow| -> SeriesKey {
        let threshold = (varied != VariedParameter::Threshold).then_some(row.path_max_retrans);
        (row.policy, threshold, row.change_over)
    };
    let keys: BTreeSet<_> = rows.iter().map(|row| key(row)).collect();
    let mut panels: BTreeMap<Option<u32>, PanelCells> = BTreeMap::new();
    for row in rows {
        let loss = (varied == VariedParameter::AlternateLoss).then(|| percent_of(row.primary_loss));
        let points = panels.entry(loss).or_default().entry(key(row)).or_default();
        points.entry(varied.value(row)).or_default().extend(value(row));
    }
    let of_panel = |(loss, cells): (Option<u32>, PanelCells)| {
        let mut series = Vec::new();
        for ((key, values), colour) in cells.into_iter().zip(SERIES) {
            let points = values
                .into_iter()
                .filter_map(|(at, values)| Some((f64::from(at), mean(values)?)));
            let points: Vec<_> = points.collect();
            series.push(Series::new(series_name(key, &keys), colour, Shape::Line, points));
        }
        let most = series.iter().flat_map(|series| &series.points).map(|(_, y)| *y);
        let y = Axis::new(label, 0.0, above(most.fold(1.0, f64::max)));
        let title = loss.map_or(String::new(), |loss| {
            format!("loss of the primary path: {} %", number(f64::from(loss)))
        });
        panel(title, varied.axis(rows), y, series, marks)
    };
    panels.into_iter().map(of_panel).collect()
}

/// Timeouts and throughput of all associations together, in each second after the primary path's failure (section V). Means of all seeds.
/// One pair of panels per kind of queue.
pub fn synchronization(_: &FigureScenario, rows: &Rows, marks: Marks) -> Vec<Panel> {
    let queues: BTreeSet<CoreQueue> = rows.shared_paths.iter().map(|row| row.queue).collect();
    let of_queue = |queue: CoreQueue| {
        let named = match queue {
            CoreQueue::DropTail => "drop-tail",
            CoreQueue::Red => "RED",
        };
        let series = |value: fn(&SharedPathsRow) -> f64| {
            let mut means: BTreeMap<u32, BTreeMap<u32, Vec<f64>>> = BTreeMap::new();
            for row in rows.shared_paths.iter().filter(|row| row.queue == queue) {
                let seconds = means.entry(row.path_max_retrans).or_default();
                seconds.entry(row.end_s).or_default().push(value(row));
            }
            let of_threshold = |((threshold, seconds), colour): ((u32, BTreeMap<u32, Vec<f64>>), _)| {
                let points = seconds
                    .into_iter()
                    .filter_map(|(end_s, values)| Some((f64::from(end_s), mean(values)?)));
                Series::new(
                    format!("PMR = {threshold}"),
                    colour,
                    Shape::Line,
                    points.collect::<Vec<_>>(),
                )
            };
            means
                .into_iter()
                .zip(SERIES)
                .map(of_threshold)
                .collect::<Vec<_>>()
        };
        let greatest = |series: &[Series], axis: fn(&(f64, f64)) -> f64| {
            let points = series.iter().flat_map(|series| &series.points);
            above(points.map(axis).fold(1.0, f64::max))
        };
        [
            (
                "timeouts of the primary path (1/s)",
                series(|row| f64::from(row.timeouts)),
            ),
            (
                "delivered (Mbit/s)",
                series(|row| row.delivered_bytes as f64 * 8e-6),
            ),
        ]
        .map(|(label, series)| {
            let x = Axis::new("time since the failure (s)", 0.0, greatest(&series, |(x, _)| *x));
            let y = Axis::new(label, 0.0, greatest(&series, |(_, y)| *y));
            panel(named.to_owned(), x, y, series, marks)
        })
    };
    queues.into_iter().flat_map(of_queue).collect()
}
