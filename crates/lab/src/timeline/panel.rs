//! The data of a timeline's page.

use serde::{Deserialize, Serialize};

use super::curves::Curves;
use super::span::Span;

/// The page of a timeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// The heading.
    pub title: String,
    /// One sentence below the heading that describes the runs.
    pub summary: String,
    /// Short facts: name and value.
    pub facts: Vec<(String, String)>,
    /// One or two runs, drawn to the same scales.
    pub panels: Vec<TimelinePanel>,
    /// The last line of the page: the source of the numbers.
    pub footnote: String,
}

/// One run. All points in time are nanoseconds of the captures' clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimelinePanel {
    /// The heading, like "with Steadfast".
    pub heading: String,
    /// The end of the run, like "complete, sha256 matches".
    pub outcome: String,
    /// Whether the outcome is good.
    pub good: bool,
    /// Time of the fault: zero of the time axis.
    pub fault_ns: u64,
    /// The client's stall in ms: its longest wait for new bytes around the fault. `None` if there was no stall (in a good run) or if the
    /// stall never ended (in a bad run).
    pub stall_ms: Option<f64>,
    /// The parts of the time from the fault to the survivor's first byte, in order. This time is longer than the stall, because at first
    /// the client still receives bytes that were under way.
    pub parts: Vec<TimelinePart>,
    /// The curves of one connection.
    pub curves: Curves,
}

/// A part of the time from the fault to the survivor's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelinePart {
    /// The kind of the part.
    pub kind: PartKind,
    /// The part's beginning.
    pub from_ns: u64,
    /// The part's end.
    pub to_ns: u64,
}

/// The kinds of parts, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartKind {
    /// From the failure until it is declared.
    Detection,
    /// From the declaration until the survivor can continue the connection.
    Takeover,
    /// From the end of the takeover until bytes flow again.
    RestartGap,
}

impl PartKind {
    pub fn class(self) -> &'static str {
        match self {
            Self::Detection => "detection",
            Self::Takeover => "takeover",
            Self::RestartGap => "restart",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Detection => "detection",
            Self::Takeover => "takeover",
            Self::RestartGap => "restart gap",
        }
    }
}

impl TimelinePanel {
    /// Seconds from the fault to `at_ns`.
    pub fn seconds(&self, at_ns: u64) -> f64 {
        (i128::from(at_ns) - i128::from(self.fault_ns)) as f64 / 1e9
    }

    /// The span from the beginning of the first part to the end of the last part, in seconds since the fault.
    pub fn parts_span(&self) -> Option<Span> {
        let from = self.seconds(self.parts.first()?.from_ns);
        let to = self.seconds(self.parts.last()?.to_ns);
        Some(Span { from, to })
    }

    /// A span that contains all points of the curves and the end of the last part, in seconds since the fault.
    pub fn time_span(&self) -> Option<Span> {
        let times = self.curves.times().map(|at_ns| self.seconds(at_ns));
        Span::around(times.chain(self.parts_span().map(|span| span.to)))
    }
}

/// A duration as text, in milliseconds or seconds, whichever is more readable.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 0.01 => format!("{:.2} ms", s * 1e3),
        s if s < 0.1 => format!("{:.1} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
