//! One chart as SVG: bytes over time, with axes, the stall's bands, the fault and the marks.

use std::fmt::Write;

use super::curves::CurvePoint;
use super::panel::{TimelinePanel, TimelinePart, duration, escape};
use super::span::Span;

/// A chart of one panel.
pub struct Chart<'a> {
    /// The name of the part of the run that the chart shows.
    pub caption: &'a str,
    /// The run.
    pub panel: &'a TimelinePanel,
    /// The times at the left and the right edge, in seconds after the fault.
    pub time: Span,
    /// The numbers of bytes at the lower and the upper edge.
    pub bytes: Span,
    /// Whether the time axis has milliseconds instead of seconds.
    pub milliseconds: bool,
    /// The time range that the close-up chart shows. This chart highlights the range.
    pub highlighted: Option<Span>,
}

/// Maximum number of drawn points per curve.
pub const POINTS_MAX: usize = 4000;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 706.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 258.0;
/// Width of a label's character in SVG units. An estimate on the high side.
const CHARACTER: f64 = 7.0;

impl Chart<'_> {
    /// The chart as SVG, with the data that the page's script needs to show values.
    pub fn svg(&self) -> String {
        let Self {
            caption, time, bytes, ..
        } = self;
        let mut svg = format!(
            "<figure class=\"{}\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{} {caption}\" \
             data-left=\"{LEFT}\" data-right=\"{RIGHT}\" data-top=\"{TOP}\" data-bottom=\"{BOTTOM}\" \
             data-from=\"{}\" data-to=\"{}\" data-low=\"{}\" data-high=\"{}\">\n",
            if self.milliseconds { "close-up" } else { "whole" },
            escape(&self.panel.heading),
            time.from,
            time.to,
            bytes.from,
            bytes.to
        );
        let _ = writeln!(
            svg,
            "<text class=\"caption\" x=\"{LEFT}\" y=\"14\">{caption}</text>"
        );
        svg += &self.key();
        svg += &self.axes();
        svg += &self.bands();
        svg += &self.curve("sent", &self.panel.curves.sent);
        svg += &self.curve("acknowledged", &self.panel.curves.acknowledged);
        svg += &self.resent();
        svg += &self.fault_and_marks();
        let height = BOTTOM - TOP;
        let _ = writeln!(
            svg,
            "<line class=\"cursor\" y1=\"{TOP}\" y2=\"{BOTTOM}\"/><circle class=\"dot sent\" r=\"3.5\"/>\
             <circle class=\"dot acknowledged\" r=\"3.5\"/>\
             <rect class=\"touch\" x=\"{LEFT}\" y=\"{TOP}\" width=\"{}\" height=\"{height}\"/>",
            RIGHT - LEFT
        );
        svg + "</svg></figure>\n"
    }

    fn x(&self, seconds: f64) -> f64 {
        self.time.place(seconds, LEFT, RIGHT)
    }

    fn y(&self, bytes: f64) -> f64 {
        self.bytes.place(bytes, BOTTOM, TOP)
    }

    fn key(&self) -> String {
        let mut svg = String::from("<g class=\"key\">");
        let mut x = RIGHT;
        let resent = (!self.panel.curves.resent.is_empty()).then_some(("resent", "sent again"));
        let entries = [("acknowledged", "acknowledged"), ("sent", "sent")];
        for (class, name) in resent.into_iter().chain(entries) {
            x -= name.len() as f64 * CHARACTER;
            let line_end = x - 6.0;
            let line_start = line_end - if class == "resent" { 0.01 } else { 20.0 };
            let _ = write!(
                svg,
                "<path class=\"{class}\" d=\"M{line_start:.2} 10H{line_end:.2}\"/>\
                 <text x=\"{x:.1}\" y=\"14\">{name}</text>"
            );
            x = line_start - 16.0;
        }
        svg + "</g>\n"
    }

    fn axes(&self) -> String {
        let mut svg = String::from("<g class=\"axes\">\n");
        let unit = Unit::of(self.bytes);
        for bytes in self.bytes.ticks(5.0) {
            let y = self.y(bytes);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"left\" x=\"{}\" y=\"{:.1}\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                unit.label(bytes)
            );
        }
        let factor = if self.milliseconds { 1e3 } else { 1.0 };
        for seconds in self.time.ticks(8.0) {
            let x = self.x(seconds);
            // Turns -0 into 0.
            let value = seconds * factor + 0.0;
            let decimals = usize::from(value.fract().abs() > 1e-9);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{BOTTOM}\" y2=\"{}\"/>\
                 <text class=\"below\" x=\"{x:.1}\" y=\"{}\">{value:.decimals$}</text>",
                BOTTOM + 4.0,
                BOTTOM + 18.0
            );
        }
        let name = if self.milliseconds {
            "ms after the fault"
        } else {
            "s after the fault"
        };
        let _ = writeln!(
            svg,
            "<text class=\"below name\" x=\"{RIGHT}\" y=\"{}\">{name}</text>\
             <text class=\"left name\" x=\"{}\" y=\"{}\">{}</text></g>",
            BOTTOM + 36.0,
            LEFT - 8.0,
            TOP - 16.0,
            unit.name
        );
        svg
    }

    /// The bands of the stall's parts. Only the close-up chart shows names. A name that does not fit into its band is placed beside the
    /// last band.
    fn bands(&self) -> String {
        let mut svg = String::new();
        let mut rows_beside = 0;
        let height = BOTTOM - TOP;
        if let Some(span) = self.highlighted {
            let (from, to) = (self.x(span.from), self.x(span.to));
            let _ = writeln!(
                svg,
                "<rect class=\"highlighted\" x=\"{:.2}\" y=\"{TOP}\" width=\"{:.2}\" height=\"{height}\"/>",
                from - 1.0,
                to - from + 2.0
            );
        }
        for &TimelinePart { kind, from_ns, to_ns } in &self.panel.parts {
            let ends = [from_ns, to_ns].map(|at_ns| self.x(self.panel.seconds(at_ns)).clamp(LEFT, RIGHT));
            let width = ends[1] - ends[0];
            let length = self.panel.seconds(to_ns) - self.panel.seconds(from_ns);
            let (class, name, length) = (kind.class(), kind.name(), duration(length));
            let _ = writeln!(
                svg,
                "<rect class=\"band {class}\" x=\"{:.2}\" y=\"{TOP}\" width=\"{width:.2}\" height=\"{height}\">\
                 <title>{name} {length}</title></rect>",
                ends[0]
            );
            let text = format!("{name} {length}");
            if !self.milliseconds {
                continue;
            }
            let (anchor, x, row) = if text.len() as f64 * CHARACTER < width {
                ("middle", ends[0] + width / 2.0, 0)
            } else {
                rows_beside += 1;
                ("start", self.parts_end() + 8.0, rows_beside - 1)
            };
            let y = TOP + 16.0 + 16.0 * f64::from(row);
            let _ = writeln!(
                svg,
                "<text class=\"part {class}\" style=\"text-anchor:{anchor}\" x=\"{x:.1}\" y=\"{y}\">{text}</text>"
            );
        }
        svg
    }

    fn parts_end(&self) -> f64 {
        self.panel.parts_span().map_or(LEFT, |span| self.x(span.to))
    }

    /// A step curve. It keeps a reading's value until the next reading, and the last value until the end of the run.
    fn curve(&self, class: &str, readings: &[CurvePoint]) -> String {
        let seconds = |reading: &CurvePoint| self.panel.seconds(reading.at_ns);
        let start = readings.partition_point(|reading| seconds(reading) < self.time.from);
        let end = readings.partition_point(|reading| seconds(reading) <= self.time.to);
        let before = start.checked_sub(1).map_or(0, |i| readings[i].offset);
        let left = self.x(self.time.from);
        let mut path = format!("M{left:.2} {:.2}", self.y(before as f64));
        for reading in thin(&readings[start..end], POINTS_MAX) {
            let (x, y) = (self.x(seconds(&reading)), self.y(reading.offset as f64));
            let _ = write!(path, "H{x:.2}V{y:.2}");
        }
        let until = self
            .panel
            .time_span()
            .map_or(self.time.to, |span| span.to.min(self.time.to));
        let _ = write!(path, "H{:.2}", self.x(until));
        format!("<path class=\"curve {class}\" d=\"{path}\"/>\n")
    }

    fn resent(&self) -> String {
        let inside = |reading: &&CurvePoint| {
            self.time.contains(self.panel.seconds(reading.at_ns))
                && self.bytes.contains(reading.offset as f64)
        };
        let resent: Vec<_> = self.panel.curves.resent.iter().filter(inside).copied().collect();
        let mut path = String::new();
        for reading in thin(&resent, POINTS_MAX) {
            let (x, y) = (
                self.x(self.panel.seconds(reading.at_ns)),
                self.y(reading.offset as f64),
            );
            let _ = write!(path, "M{x:.2} {y:.2}h.01");
        }
        if path.is_empty() {
            return path;
        }
        format!("<path class=\"resent\" d=\"{path}\"><title>sent again</title></path>\n")
    }

    fn fault_and_marks(&self) -> String {
        let mut svg = String::new();
        let mut flag = |class: &str, seconds: f64, text: &str, y: f64| {
            let x = self.x(seconds);
            let right = x + 6.0 + text.len() as f64 * CHARACTER < RIGHT;
            let (anchor, shift) = if right { ("start", 5.0) } else { ("end", -5.0) };
            let _ = writeln!(
                svg,
                "<line class=\"{class}\" x1=\"{x:.2}\" x2=\"{x:.2}\" y1=\"{TOP}\" y2=\"{BOTTOM}\"/>\
                 <text class=\"{class}\" style=\"text-anchor:{anchor}\" x=\"{:.1}\" y=\"{y}\">{}</text>",
                x + shift,
                escape(text)
            );
        };
        if self.time.contains(0.0) {
            flag("fault", 0.0, "fault", BOTTOM - 8.0);
        }
        // Each text is shown once, even if the FIN or RST was repeated.
        let mut said = Vec::new();
        for mark in &self.panel.curves.marks {
            let seconds = self.panel.seconds(mark.at_ns);
            if self.time.contains(seconds) && !said.contains(&&mark.text) {
                flag(
                    "mark",
                    seconds,
                    &mark.text,
                    BOTTOM - 24.0 - 15.0 * said.len() as f64,
                );
                said.push(&mark.text);
            }
        }
        svg
    }
}

/// The most readable unit of bytes for a span.
struct Unit {
    name: &'static str,
    bytes: f64,
    decimals: usize,
}

impl Unit {
    fn of(span: Span) -> Self {
        let (name, bytes) = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)]
            .into_iter()
            .find(|&(_, bytes)| span.to >= bytes)
            .unwrap_or(("bytes", 1.0));
        // Enough decimals for neighbouring ticks to differ.
        let step = (span.to - span.from) / 5.0 / bytes;
        let decimals = if step > 0.0 {
            (-step.log10()).ceil().clamp(0.0, 6.0) as usize
        } else {
            0
        };
        Self {
            name,
            bytes,
            decimals,
        }
    }

    fn label(&self, bytes: f64) -> String {
        format!("{:.*}", self.decimals, bytes / self.bytes)
    }
}

/// Reduces the readings to at most `most`. Divides their time into `most / 2` intervals, and keeps the first and the last reading of each
/// interval. So all steep parts of a curve stay visible.
pub fn thin(readings: &[CurvePoint], most: usize) -> Vec<CurvePoint> {
    let (Some(first), Some(last)) = (readings.first(), readings.last()) else {
        return Vec::new();
    };
    if readings.len() <= most {
        return readings.to_vec();
    }
    let stretch = |reading: &CurvePoint| {
        let length = (last.at_ns - first.at_ns).max(1);
        u128::from(reading.at_ns - first.at_ns) * (most as u128 / 2 - 1) / u128::from(length)
    };
    let mut thinned: Vec<CurvePoint> = Vec::with_capacity(most);
    let mut count_in_stretch = 0;
    for reading in readings {
        let same = thinned
            .last()
            .is_some_and(|before| stretch(before) == stretch(reading));
        count_in_stretch = if same { count_in_stretch + 1 } else { 1 };
        if count_in_stretch > 2 {
            thinned.pop();
        }
        thinned.push(*reading);
    }
    thinned
}
