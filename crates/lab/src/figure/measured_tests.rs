//! Tests of the claims about measured papers, with invented measurements: each claim comes out as known, and a change of the measurements
//! reverses it. The measurements themselves need root, and take minutes.

use super::catalogue;
use super::claims::{self, ClaimEvidence, Expected, FigureClaimVerdict};
use super::measured::{paced, reply, throughput};
use super::results::Results;
use super::rows::{MeasuredPointRow, MeasurementRow, Rows};
use super::scenario::FigureScenario;
use super::visible;
use crate::bench::coral_samples::SERVERS;
use crate::bench::ft_tcp_samples::VARIANTS;

/// A quantity, a part of its variants' names, the value in its place, and the claims whose verdicts this reverses.
type MeasurementChange = (&'static str, &'static str, f64, &'static [&'static str]);

const CHANGES: &[MeasurementChange] = &[
    ("ttcp out at 100 Mbit/s, MB/s", "prs", 11.9, &["ft-tcp-2a"]),
    ("ttcp out at 100 Mbit/s, MB/s", "prs/hot", 12.8, &["ft-tcp-2b"]),
    ("stream out, MB/s", "prs/hot", 0.0195, &["ft-tcp-2c"]),
    (" in at 100 Mbit/s, MB/s", "clean", 13.5, &["ft-tcp-2e"]),
    ("20 clients, kB/s each", "pr/cold", 45.0, &["ft-tcp-2f"]),
    ("30 clients, kB/s each", "pr/cold", 50.0, &["ft-tcp-2f"]),
    (
        "file server in at 100 Mbit/s, MB/s",
        "immediate/hot",
        12.8,
        &["ft-tcp-3a"],
    ),
    ("file server in at 100 Mbit/s, MB/s", "pr", 11.9, &["ft-tcp-3c"]),
    ("request latency, median, µs", "prs", 120.0, &["ft-tcp-1a"]),
    ("packet latency, median, µs", "prs", 60.0, &["ft-tcp-1b"]),
    ("request latency, mean, µs", "prs/cold", 11_000.0, &["ft-tcp-1c"]),
    (
        "reply after a fault, 144 MB, ms",
        "prs/cold",
        5_000.0,
        &["ft-tcp-4a", "ft-tcp-4g"],
    ),
    (
        "reply after a fault, 144 MB, ms",
        "prs/hot",
        600.0,
        &["ft-tcp-4b"],
    ),
    ("connection live, ms", "prs", 200.0, &["ft-tcp-4c"]),
    ("outage, retransmission gap, ms", "lost", 20.0, &["ft-tcp-4d"]),
    ("outage, retransmission gap, ms", "logged", 400.0, &["ft-tcp-4e"]),
    ("connection live, ms", "immediate", 80.0, &["ft-tcp-4f"]),
    ("replies/s", "pair", 60.0, &["coral-throughput-a"]),
    ("replies/s", "one plain server", 99.0, &["coral-throughput-b"]),
    ("throughput alone / before", "pair", 0.5, &["coral-2a"]),
    ("stall, ms", "pair", 1_500.0, &["coral-3a"]),
    ("detection, ms", "pair", 0.3, &["coral-3b"]),
    (
        "last connection, ms",
        "pair",
        30.0,
        &["coral-table-1a", "coral-window"],
    ),
    ("gate, ms", "pair", 1.4, &["coral-table-1b"]),
    ("integration, ms", "pair", 12.0, &["coral-table-2a"]),
];

fn row(what: impl Into<String>, variant: &str, value: f64) -> MeasurementRow {
    MeasurementRow {
        run: 0,
        seed: 1,
        what: what.into(),
        variant: variant.to_owned(),
        value,
    }
}

fn point(series: &str, x: f64, y: f64) -> MeasuredPointRow {
    MeasuredPointRow {
        run: 0,
        seed: 1,
        series: series.to_owned(),
        x,
        y,
    }
}

fn ft_tcp() -> Rows {
    let mut rows = Rows::default();
    for (variant, _) in VARIANTS {
        let mut add = |what: &str, value| rows.measurements.push(row(what, variant, value));
        for mbit in [100, 1000] {
            for what in ["ttcp in", "ttcp out", "file server in", "file server out"] {
                add(&throughput(what, mbit), 0.12256 * f64::from(mbit));
            }
        }
        add("stream out, MB/s", 0.02);
        let is_clean = variant == "clean";
        for (of, factor) in [("minimum", 1.0), ("median", 1.1), ("mean", 1.3)] {
            add(
                &format!("request latency, {of}, µs"),
                if is_clean { 47.0 } else { 54.0 * factor },
            );
            add(
                &format!("packet latency, {of}, µs"),
                if is_clean { 17.0 } else { 21.0 * factor },
            );
        }
        for (clients, rate) in [(1, 50.0), (10, 50.0), (20, 50.0), (30, 43.0)] {
            add(&paced(clients), rate);
        }
        if !is_clean {
            let per_mb = if variant.ends_with("cold") { 1.0 } else { 0.01 };
            for megabytes in [16, 144] {
                add(&reply(megabytes), 480.0 + per_mb * megabytes as f64);
            }
        }
    }
    for (mode, live) in [("immediate", 310.0), ("pr", 312.0), ("prs", 75.0)] {
        rows.measurements.push(row("declared dead, ms", mode, live - 0.5));
        rows.measurements.push(row("connection live, ms", mode, live));
        rows.measurements.push(row("stall, ms", mode, live + 17.0));
    }
    for (input, gap) in [("logged", 0.4), ("lost", 1140.0)] {
        rows.measurements
            .push(row("outage, retransmission gap, ms", input, gap));
        for at in [-0.5, 0.0, 1.0, 2.5] {
            rows.points
                .push(point(&format!("{input}, sent"), at, 1500.0 + at * 1000.0));
            rows.points
                .push(point(&format!("{input}, acknowledged"), at, 1400.0 + at * 900.0));
        }
    }
    rows
}

fn coral() -> Rows {
    let mut rows = Rows::default();
    for (server, per_s) in SERVERS.into_iter().zip([50.0, 98.0, 92.0]) {
        rows.measurements.push(row("replies/s", server, per_s));
        rows.measurements.push(row("latency, µs", server, 8e6 / per_s));
    }
    for (what, value) in [
        ("detection, ms", 75.0),
        ("gate, ms", 0.15),
        ("first connection, ms", 0.23),
        ("last connection, ms", 0.54),
        ("integration, ms", 7.2),
        ("vulnerable, ms", 1500.0),
        ("node's return, ms", 500.0),
        ("stall, ms", 233.0),
        ("wait before, ms", 122.0),
        ("throughput alone / before", 1.0),
    ] {
        rows.measurements.push(row(what, "pair", value));
    }
    for (at, rate, wait) in [(-0.2, 90.0, 0.1), (0.1, 0.0, 0.3), (0.5, 91.0, 0.1)] {
        rows.points.push(point("replies/s", at, rate));
        rows.points.push(point("latency, s", at, wait));
    }
    rows
}

fn results(ft_tcp: Rows, coral: Rows) -> Results {
    let mut results = Results::default();
    for (name, rows) in [("ft-tcp", ft_tcp), ("coral", coral)] {
        let file = catalogue::file(name).unwrap();
        let parsed = FigureScenario::parse(name.as_ref(), file.text).unwrap();
        results.scenarios.insert(name.to_owned(), (parsed, rows));
    }
    results
}

fn figures() -> Vec<&'static catalogue::CatalogueEntry> {
    ["ft-tcp", "coral"]
        .into_iter()
        .flat_map(|group| catalogue::named(group).unwrap())
        .collect()
}

/// The names of all claims about measured papers, with their verdicts.
fn verdicts(results: &Results) -> Vec<(&'static str, FigureClaimVerdict)> {
    let names: Vec<_> = figures().iter().map(|figure| figure.name).collect();
    let judged = claims::judge(results, &names);
    judged.iter().map(|one| (one.claim.id, one.verdict)).collect()
}

#[test]
fn the_claims_about_measured_papers_come_out_as_known() {
    let verdicts = verdicts(&results(ft_tcp(), coral()));
    assert_eq!(verdicts.len(), 22 + 14);
    for (id, verdict) in verdicts {
        assert!(
            matches!(
                verdict,
                FigureClaimVerdict::Holds
                    | FigureClaimVerdict::Differs(_)
                    | FigureClaimVerdict::NotMeasured(_)
            ),
            "{id}: {verdict}"
        );
    }
}

#[test]
fn every_claim_about_a_measured_paper_can_fail() {
    let mut changed = Vec::new();
    // Each mode slower than the one before.
    let mut decreasing = ft_tcp();
    for (variant, rate) in [("immediate/cold", 12.2), ("pr/cold", 12.15), ("prs/cold", 12.1)] {
        set(
            &mut decreasing,
            "file server in at 100 Mbit/s, MB/s",
            variant,
            rate,
        );
    }
    changed.push((results(decreasing, coral()), &["ft-tcp-3b"][..]));
    for (what, variant, value, ids) in CHANGES {
        let (mut one, mut other) = (ft_tcp(), coral());
        let count = set(&mut one, what, variant, *value) + set(&mut other, what, variant, *value);
        assert!(count > 0, "{what}, {variant}");
        changed.push((results(one, other), *ids));
    }
    for (results, ids) in &changed {
        let verdicts = verdicts(results);
        for id in *ids {
            let verdict = verdicts.iter().find(|(of, _)| of == id).unwrap().1;
            assert_eq!(verdict, FigureClaimVerdict::Surprising, "{id}");
        }
    }
    let is_changed = |id: &str| changed.iter().any(|(_, ids)| ids.contains(&id));
    let names: Vec<_> = figures().iter().map(|figure| figure.name).collect();
    for claim in claims::all().filter(|claim| names.contains(&claim.figure)) {
        assert_eq!(claim.evidence, ClaimEvidence::Kernel);
        let is_measured = !matches!(claim.expected, Expected::NotMeasured(_));
        assert_eq!(is_measured, is_changed(claim.id), "{}", claim.id);
    }
}

/// Replaces the values of a quantity, in all variants whose names begin with `variant`. Returns the number of values.
fn set(rows: &mut Rows, what: &str, variant: &str, value: f64) -> usize {
    let of = rows.measurements.iter_mut();
    let of = of.filter(|row| row.what.ends_with(what) && row.variant.starts_with(variant));
    of.map(|row| row.value = value).count()
}

#[test]
fn every_panel_of_a_measured_paper_shows_something() {
    let results = results(ft_tcp(), coral());
    let figures = super::draw_all(&self::figures(), &results);
    assert_eq!(figures.len(), 11);
    for figure in &figures {
        for panel in &figure.panels {
            assert!(visible::is_visible(panel), "{}: {}", figure.name, panel.title);
        }
    }
}

#[test]
fn the_report_says_why_a_claim_is_not_measured() {
    let judged = super::JudgedMeasurements::new("coral", coral()).unwrap();
    let json = serde_json::to_string(&judged).unwrap();
    assert!(
        json.contains("\"verdict\":\"not measured (the agents fork nothing"),
        "{json}"
    );
    assert!(
        json.contains("\"here\":\"7.20 ms\",\"verdict\":\"holds\""),
        "{json}"
    );
}
