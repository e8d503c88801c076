//! The page of `bench coral`: Figures 2 and 3 of the paper with our results, and a verdict for each claim.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::crash::StagedSample;
use crate::figure::{Axis, Colour, Figure, Mark, MarkPosition, Panel, STYLE, Series, Shape, escape, svg};

/// A number of the paper beside ours.
#[derive(Clone, Debug, Serialize)]
pub struct CoralClaim {
    pub place: &'static str,
    pub statement: &'static str,
    pub paper: &'static str,
    pub ours: String,
    pub holds: bool,
}

/// Writes `coral.html`, `coral-2.csv` and `coral-3.csv` into `out`.
///
/// # Errors
/// If a file cannot be written, or a figure has no points.
pub fn write(out: &Path, sample: &StagedSample, claims: &[CoralClaim]) -> Result<()> {
    fs::create_dir_all(out)?;
    let figures = [throughput(sample), latencies(sample)];
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>CoRAL\'s evaluation</title>\
<style>{STYLE}</style></head><body>\n<h1>CoRAL\'s evaluation</h1>\n<p>Aghdaie and Tamir, <em>Fast Transparent Failover for Reliable \
Web Service</em> (2003), repeated with <em>steadfast stage</em>. All hosts were network namespaces of one machine, so only ratios mean \
something. The power fails at 0 s.</p>\n"
    );
    page += &table(claims);
    for figure in &figures {
        write!(page, "<h2>{}</h2>\n{}\n", escape(figure.title), svg(figure)?)?;
        fs::write(out.join(format!("{}.csv", figure.name)), figure.csv()?)?;
    }
    page += "</body></html>\n";
    fs::write(out.join("coral.html"), page)?;
    Ok(())
}

fn table(claims: &[CoralClaim]) -> String {
    let mut rows = String::new();
    for claim in claims {
        let (class, verdict) = if claim.holds {
            ("holds", "holds")
        } else {
            ("differs", "differs")
        };
        rows += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{verdict}</td></tr>\n",
            escape(claim.place),
            escape(claim.statement),
            escape(claim.paper),
            escape(&claim.ours)
        );
    }
    format!(
        "<table><thead><tr><th></th><th>claim</th><th>paper</th><th>here</th><th>verdict</th></tr></thead><tbody>\n{rows}</tbody></table>\n"
    )
}

fn throughput(sample: &StagedSample) -> Figure {
    figure(
        ("coral-2", "Figure 2: throughput before and after a failure"),
        ("replies/s", "replies per second"),
        Shape::Line,
        sample,
        &sample.throughput,
    )
}

fn latencies(sample: &StagedSample) -> Figure {
    figure(
        ("coral-3", "Figure 3: latency of requests, as clients observe it"),
        ("reply", "latency in seconds"),
        Shape::Dots,
        sample,
        &sample.latencies,
    )
}

fn figure(
    (name, title): (&'static str, &'static str),
    (label, unit): (&str, &'static str),
    shape: Shape,
    sample: &StagedSample,
    points: &[(f64, f64)],
) -> Figure {
    let ends = |of: fn(&(f64, f64)) -> f64| {
        points
            .iter()
            .map(of)
            .fold((0.0, 0.0), |(least, most): (f64, f64), value| {
                (least.min(value), most.max(value))
            })
    };
    let ((from, to), (_, top)) = (ends(|point| point.0), ends(|point| point.1));
    let failover_s = (sample.detection_ms + sample.last_live_ms) / 1e3;
    let panel = Panel {
        title: String::new(),
        x: Axis::new("seconds since the power failed", from, to.max(from + 0.1)),
        y: Axis::new(unit, 0.0, (top * 1.1).max(0.01)),
        series: vec![Series::new(label, Colour::Blue, shape, points.to_vec())],
        marks: vec![Mark::new(
            "detection and takeover",
            MarkPosition::Band(0.0, failover_s),
        )],
    };
    Figure {
        name,
        title,
        panels: vec![panel],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_both_figures_and_each_claim() {
        let sample = StagedSample {
            detection_ms: 80.0,
            gate_ms: 0.1,
            first_live_ms: 0.2,
            last_live_ms: 0.5,
            integration_ms: 5.0,
            forwarding_ms: 20.0,
            vulnerable_ms: 1000.0,
            return_ms: 500.0,
            stall_ms: None,
            before_ms: None,
            throughput: vec![(-0.1, 40.0), (0.0, 0.0), (0.1, 30.0)],
            latencies: vec![(-0.1, 0.1), (0.2, 0.3)],
        };
        let claim = |statement, holds| CoralClaim {
            place: "Table 1",
            statement,
            paper: "1.5 ms",
            ours: "0.5 < 1.5".to_owned(),
            holds,
        };
        let out = tempfile::tempdir().unwrap();
        write(out.path(), &sample, &[claim("one", true), claim("other", false)]).unwrap();
        let page = fs::read_to_string(out.path().join("coral.html")).unwrap();
        assert_eq!(page.matches("<svg").count(), 2);
        assert_eq!(page.matches("0.5 &lt; 1.5").count(), 2);
        assert!(page.contains("class=\"holds\"") && page.contains("class=\"differs\""));
        let points = fs::read_to_string(out.path().join("coral-3.csv")).unwrap();
        assert_eq!(points.lines().count(), 3, "{points}");
    }
}
