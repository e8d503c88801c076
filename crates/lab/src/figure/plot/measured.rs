//! Figures of the FT-TCP paper's measurements and of CoRAL's evaluation.

use super::above;
use super::flows::Marks;
use crate::bench::coral_samples::SERVERS;
use crate::bench::ft_tcp_samples::{MODES, PACED_CLIENTS, REPLAYED, VARIANTS};
use crate::bench::target::median;
use crate::figure::chart::{Axis, Mark, MarkPosition, Panel, Series, Shape};
use crate::figure::measured::{paced, reply, throughput};
use crate::figure::palette::{Colour, SERIES};
use crate::figure::results::greatest;
use crate::figure::rows::Rows;
use crate::figure::scenario::FigureScenario;

/// The variants of Figure 2, with their colours.
const OF_PRS: [(&str, Colour); 3] = [
    ("clean", Colour::Muted),
    ("prs/cold", Colour::Blue),
    ("prs/hot", Colour::Red),
];

fn middle(rows: &Rows, what: &str, variant: &str) -> Option<f64> {
    let of = rows.measurements.iter();
    let of = of.filter(|row| row.what == what && row.variant == variant);
    let values: Vec<_> = of.map(|row| row.value).collect();
    (!values.is_empty()).then(|| median(values))
}

fn highest(series: &[Series]) -> f64 {
    let points = series.iter().flat_map(|series| &series.points);
    greatest(points.map(|(_, y)| *y)).unwrap_or(0.0)
}

fn panel(title: &str, x: Axis, y: &'static str, series: Vec<Series>) -> Panel {
    let y = Axis::new(y, 0.0, above(highest(&series).max(0.01)));
    Panel {
        title: title.to_owned(),
        x,
        y,
        series,
        marks: Vec::new(),
    }
}

/// Bars beside each other: for each of `whats`, a bar of each variant.
fn bars(rows: &Rows, whats: &[String], variants: &[(&str, Colour)]) -> Vec<Series> {
    let width = 0.8 / variants.len() as f64;
    let series = variants.iter().enumerate().map(|(place, (variant, colour))| {
        let left = (place as f64 + 0.5) * width - 0.4;
        let points = whats.iter().enumerate();
        let points = points.filter_map(|(at, what)| Some((at as f64 + left, middle(rows, what, variant)?)));
        let points: Vec<_> = points.collect();
        let shape = Shape::Bars {
            width,
            base: vec![0.0; points.len()],
            opacity: 1.0,
        };
        Series::new(*variant, *colour, shape, points)
    });
    series.filter(|series| !series.points.is_empty()).collect()
}

/// Throughput of each service and direction: a panel for each rate, and one for the stream (FT-TCP, Figure 2).
pub fn services(_: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    let transfers = ["ttcp in", "ttcp out", "file server in", "file server out"];
    let names = || Axis::of("", transfers.map(str::to_owned).into());
    let of_rate = |mbit: u32| {
        let whats = transfers.map(|transfer| throughput(transfer, mbit));
        let title = format!("the client's link has {mbit} Mbit/s");
        panel(&title, names(), "MB/s", bars(rows, &whats, &OF_PRS))
    };
    let stream = bars(rows, &["stream out, MB/s".to_owned()], &OF_PRS);
    let name = Axis::of("", vec!["stream".to_owned()]);
    let panels = vec![
        of_rate(100),
        of_rate(1000),
        panel("a stream of 20 kB/s", name, "MB/s", stream),
    ];
    shown(panels)
}

fn shown(panels: Vec<Panel>) -> Vec<Panel> {
    let has_points = |panel: &Panel| panel.series.iter().any(|series| !series.points.is_empty());
    panels.into_iter().filter(has_points).collect()
}

/// A dot for each measured value of each variant.
fn dots(rows: &Rows, what: &str, colour: Colour, label: &str) -> Series {
    let names = VARIANTS.map(|(name, _)| name);
    let points = rows
        .measurements
        .iter()
        .filter(|row| row.what == what)
        .filter_map(|row| {
            let at = names.iter().position(|name| *name == row.variant)?;
            Some((at as f64, row.value))
        });
    Series::new(label, colour, Shape::Dots, points)
}

fn variants() -> Axis {
    Axis::of("", VARIANTS.map(|(name, _)| name.to_owned()).into())
}

/// Throughput of the incoming file server with each commit mode. The vertical axis does not begin at 0, as in the paper (FT-TCP, Figure 3).
pub fn modes(_: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    let of_rate = |mbit: u32| {
        let what = throughput("file server in", mbit);
        let series = vec![dots(rows, &what, Colour::Blue, "a round")];
        let lowest = series[0]
            .points
            .iter()
            .map(|(_, y)| *y)
            .fold(f64::INFINITY, f64::min);
        let mut panel = panel(
            &format!("the client's link has {mbit} Mbit/s"),
            variants(),
            "MB/s",
            series,
        );
        let top = highest(&panel.series);
        let margin = ((top - lowest) * 0.2).max(0.01 * top);
        (panel.y.from, panel.y.to) = (lowest - margin, top + margin);
        panel
    };
    let panels = [100, 1000].map(of_rate);
    shown(panels.into())
}

/// Rate of each client as a function of their number.
pub fn clients(_: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    let series = OF_PRS.map(|(variant, colour)| {
        let points = PACED_CLIENTS.iter();
        let points =
            points.filter_map(|count| Some((f64::from(*count), middle(rows, &paced(*count), variant)?)));
        Series::new(variant, colour, Shape::Line, points)
    });
    let x = Axis::new("clients", 0.0, 30.0);
    shown(vec![panel("", x, "kB/s of each client", series.into())])
}

/// Latencies of requests and packets (FT-TCP, Table 1).
pub fn latency(_: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    let of = |what: &str, title: &str| {
        let series = [
            ("minimum", Colour::Green),
            ("median", Colour::Blue),
            ("mean", Colour::Orange),
        ];
        let series = series.map(|(of, colour)| dots(rows, &format!("{what} latency, {of}, µs"), colour, of));
        panel(title, variants(), "µs", series.into())
    };
    shown(vec![
        of("request", "a request of two exchanges"),
        of("packet", "a data packet until its acknowledgement"),
    ])
}

/// The time until the reply at a takeover as a function of the input, for each variant with a backup.
pub fn takeovers(_: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    let series = VARIANTS.iter().skip(1).zip(SERIES).map(|((variant, _), colour)| {
        let points = REPLAYED.iter().map(|bytes| bytes / 1_000_000);
        let points = points.filter_map(|mb| Some((mb as f64, middle(rows, &reply(mb), variant)?)));
        Series::new(*variant, colour, Shape::Line, points)
    });
    let x = Axis::new("input of the connection (MB)", 0.0, 150.0);
    let y = "time from the last byte to the reply (ms)";
    shown(vec![panel("", x, y, series.collect())])
}

/// A client's stall at a takeover with each commit mode, and when the parts of the takeover were complete.
pub fn stalls(_: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    let colours = [
        ("declared dead, ms", Colour::Orange),
        ("connection live, ms", Colour::Blue),
        ("stall, ms", Colour::Red),
    ];
    let modes = MODES.map(|(mode, _)| mode);
    let series = colours.map(|(what, colour)| {
        let points = modes.iter().enumerate();
        let points = points.filter_map(|(at, mode)| Some((at as f64, middle(rows, what, mode)?)));
        Series::new(what.trim_end_matches(", ms"), colour, Shape::Dots, points)
    });
    let x = Axis::of("", modes.map(str::to_owned).into());
    shown(vec![panel("", x, "ms since the fault", series.into())])
}

/// What a client sent and what was acknowledged around an outage: a panel for each way (FT-TCP, Figure 4).
pub fn outages(_: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    let of = |input: &str| {
        let series = [("sent", Colour::Blue), ("acknowledged", Colour::Orange)].map(|(what, colour)| {
            let name = format!("{input}, {what}");
            let points = rows.points.iter().filter(|row| row.series == name);
            let first = points.clone().map(|row| row.run).min();
            let points = points.filter(|row| Some(row.run) == first);
            Series::new(what, colour, Shape::Dots, points.map(|row| (row.x, row.y)))
        });
        let lowest = series.iter().flat_map(|series| &series.points);
        let lowest = lowest.map(|(_, y)| *y).fold(f64::INFINITY, f64::min);
        let gap = middle(rows, "outage, retransmission gap, ms", input).unwrap_or(f64::NAN);
        let title = format!("the client's input is {input}: retransmission gap {gap:.0} ms");
        let x = Axis::new("time since the fault (s)", -0.5, 4.5);
        let mut panel = panel(&title, x, "sequence number (1000 bytes)", series.into());
        panel.y.from = lowest;
        panel
    };
    shown(["logged", "lost"].map(of).into())
}

/// Replies per second of plain servers and of the pair.
pub fn servers(_: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    let colours = [Colour::Muted, Colour::Ink, Colour::Blue];
    let width = 0.5;
    let series = SERVERS
        .iter()
        .zip(colours)
        .enumerate()
        .map(|(place, (server, colour))| {
            let value = middle(rows, "replies/s", server);
            let shape = Shape::Bars {
                width,
                base: vec![0.0; usize::from(value.is_some())],
                opacity: 1.0,
            };
            Series::new(*server, colour, shape, value.map(|value| (place as f64, value)))
        });
    let x = Axis::of("", SERVERS.map(str::to_owned).into());
    shown(vec![panel("", x, "replies per second", series.collect())])
}

/// One run's points. Bands show the failover, and then the rest of the window of vulnerability.
fn around_a_failure(rows: &Rows, series: &str, y: &'static str, shape: Shape) -> Panel {
    let of = rows.points.iter().filter(|row| row.series == series);
    let first = of.clone().map(|row| row.run).min();
    let of = of.filter(|row| Some(row.run) == first);
    let points: Vec<_> = of.map(|row| (row.x, row.y)).collect();
    let from = points.iter().map(|(x, _)| *x).fold(0.0, f64::min);
    let to = points.iter().map(|(x, _)| *x).fold(from + 0.1, f64::max);
    let x = Axis::new("time since the power failed (s)", from, to);
    let series = Series::new(series, Colour::Blue, shape, points);
    let mut panel = panel("", x, y, vec![series]);
    let failover = middle(rows, "detection, ms", "pair").zip(middle(rows, "last connection, ms", "pair"));
    panel.marks.extend(failover.map(|(detection, takeover)| {
        let band = MarkPosition::Band(0.0, (detection + takeover) / 1e3);
        Mark::new("detection and takeover", band)
    }));
    let alone = failover.zip(of_run(rows, first, "vulnerable, ms"));
    panel.marks.extend(alone.map(|((detection, takeover), until)| {
        let band = MarkPosition::Band((detection + takeover) / 1e3, until / 1e3);
        Mark::new("one node alone", band)
    }));
    panel
}

/// The first value of a run.
fn of_run(rows: &Rows, run: Option<u32>, what: &str) -> Option<f64> {
    let mut of = rows.measurements.iter();
    of.find(|row| Some(row.run) == run && row.what == what)
        .map(|row| row.value)
}

/// Throughput around a failure, with that of one and of two plain servers as bounds (CoRAL, Figure 2).
pub fn throughput_around_a_failure(_: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    let mut panel = around_a_failure(rows, "replies/s", "replies per second", Shape::Line);
    for plain in &SERVERS[..2] {
        let Some(bound) = middle(rows, "replies/s", plain) else {
            continue;
        };
        panel.y.to = panel.y.to.max(above(bound));
        panel.marks.push(Mark::new(*plain, MarkPosition::Y(bound)));
    }
    shown(vec![panel])
}

/// Latencies around a failure (CoRAL, Figure 3).
pub fn latencies_around_a_failure(_: &FigureScenario, rows: &Rows, _: Marks) -> Vec<Panel> {
    shown(vec![around_a_failure(
        rows,
        "latency, s",
        "latency (s)",
        Shape::Dots,
    )])
}

/// Times of failover and integration, and the window of vulnerability, a dot for each power-off (CoRAL, Tables 1 and 2, and section 6).
pub fn times(_: &FigureScenario, rows: &Rows, marks: Marks) -> Vec<Panel> {
    let of = |whats: &[&str], title: &str| {
        let points = whats.iter().enumerate().flat_map(|(at, what)| {
            let of = rows.measurements.iter().filter(move |row| row.what == *what);
            of.map(move |row| (at as f64, row.value))
        });
        let series = vec![Series::new("a power-off", Colour::Blue, Shape::Dots, points)];
        let names = whats.iter().map(|what| what.trim_end_matches(", ms").to_owned());
        panel(title, Axis::of("", names.collect()), "ms", series)
    };
    let takeover = ["gate, ms", "first connection, ms", "last connection, ms"];
    let all = ["detection, ms", "integration, ms", "stall, ms"];
    let window = ["vulnerable, ms", "node's return, ms"];
    let return_parts = [
        "first heartbeat to integration, ms",
        "integration, ms",
        "integration to first segment, ms",
    ];
    let mut takeover = of(&takeover, "after the detection");
    for (label, place) in marks {
        if let MarkPosition::Y(at) = place {
            takeover.y.to = takeover.y.to.max(above(*at));
        }
        takeover.marks.push(Mark::new(*label, *place));
    }
    shown(vec![
        takeover,
        of(&all, "detection, integration, and the clients' stall"),
        of(&return_parts, "a node's return, in its order"),
        of(
            &window,
            "window of vulnerability, and its part after the node's cable is back",
        ),
    ])
}
