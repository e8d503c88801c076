//! Tests of the whole page.

use super::chart::{POINTS_MAX, thin};
use super::curves::TimelineEvent;
use super::*;

const MS: u64 = 1_000_000;
/// Time of the fault: an arbitrary time on the captures' clock.
const FAULT_NS: u64 = 1_700_000_000_000_000_000;

/// A download at 25 MB/s with 200 kB in flight. It stops at the fault and continues `resume_ms` later, or never.
fn download(resume_ms: Option<u64>) -> Curves {
    let mut curves = Curves::default();
    let (mut offset, start) = (0, FAULT_NS - 2000 * MS);
    let mut step = |at_ns: u64, curves: &mut Curves| {
        offset += 25_000;
        curves.sent.push(CurvePoint { at_ns, offset });
        curves.acknowledged.push(CurvePoint {
            at_ns: at_ns + MS / 4,
            offset: u64::saturating_sub(offset, 200_000),
        });
    };
    (0..2000).for_each(|ms| step(start + ms * MS, &mut curves));
    if let Some(resume_ms) = resume_ms {
        (resume_ms..4000).for_each(|ms| step(FAULT_NS + ms * MS, &mut curves));
        for ms in resume_ms..resume_ms + 8 {
            curves.resent.push(CurvePoint {
                at_ns: FAULT_NS + ms * MS,
                offset: 50_000_000 - 25_000 * (resume_ms + 8 - ms),
            });
        }
    } else {
        curves.marks.push(TimelineEvent {
            at_ns: FAULT_NS + 1200 * MS,
            text: "RST from server".into(),
        });
    }
    curves
}

fn part(kind: PartKind, from_us: u64, to_us: u64) -> TimelinePart {
    TimelinePart {
        kind,
        from_ns: FAULT_NS + from_us * 1000,
        to_ns: FAULT_NS + to_us * 1000,
    }
}

fn example() -> Timeline {
    let panel = |heading: &str, outcome: &str, good, curves, parts: Vec<TimelinePart>| TimelinePanel {
        heading: heading.into(),
        outcome: outcome.into(),
        good,
        fault_ns: FAULT_NS,
        stall_ms: (!parts.is_empty()).then_some(40.0),
        parts,
        curves,
    };
    let parts = vec![
        part(PartKind::Detection, 0, 61_300),
        part(PartKind::Takeover, 61_300, 62_180),
        part(PartKind::RestartGap, 62_180, 64_000),
    ];
    Timeline {
        title: "The server is powered off; the download goes on".into(),
        summary: "nginx & curl, 150 MB at 25 MB/s; the primary loses its power in mid-transfer.".into(),
        facts: vec![
            ("bytes".into(), "150,000,000".into()),
            ("sha256".into(), "matches".into()),
            ("resets seen".into(), "0".into()),
            ("violations".into(), "none".into()),
        ],
        panels: vec![
            panel("with Steadfast", "complete", true, download(Some(64)), parts),
            panel("without", "connection reset", false, download(None), vec![]),
        ],
        footnote: "Taken from the capture at the client.".into(),
    }
}

#[test]
fn a_page_names_the_parts_and_loads_nothing() {
    let page = render(&example());
    for text in [
        "detection 61.3 ms",
        "takeover 0.88 ms",
        "restart gap 1.82 ms",
        "<b>40.0 ms</b>",
        "64.0 ms from the fault",
        "During the first 24.0 ms of this time",
        "nginx &amp; curl",
        "RST from server",
        "sent again",
        "endless",
    ] {
        assert!(page.contains(text), "{text}");
    }
    for loading in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!page.contains(loading), "{loading}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn an_empty_page_is_drawn_without_nonsense() {
    let panel = TimelinePanel::default();
    let page = render(&Timeline {
        panels: vec![panel],
        ..Timeline::default()
    });
    assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
}

#[test]
fn thinning_keeps_every_edge_and_few_points() {
    let readings: Vec<_> = (0..100_000)
        .map(|i| CurvePoint {
            // A silence of 50 ms in the middle.
            at_ns: i * 1000 + if i >= 50_000 { 50 * MS } else { 0 },
            offset: i,
        })
        .collect();
    let thinned = thin(&readings, POINTS_MAX);
    assert!(thinned.len() <= POINTS_MAX && thinned.len() > POINTS_MAX / 2);
    for edge in [0, 49_999, 50_000, 99_999] {
        assert!(thinned.contains(&readings[edge]), "{edge}");
    }
    assert!(thinned.is_sorted_by_key(|reading| reading.at_ns));
    assert_eq!(thin(&readings[..10], POINTS_MAX), readings[..10]);
    assert_eq!(thin(&[], POINTS_MAX), []);
}

#[test]
fn a_timeline_survives_json() {
    let original = example();
    let text = serde_json::to_string(&original).unwrap();
    assert_eq!(serde_json::from_str::<Timeline>(&text).unwrap(), original);
}
