//! Renders a run as an HTML page that loads no other file. The page shows over time the bytes that the server had sent and the bytes that
//! the client had acknowledged. It also shows the parts of the time from the fault to the survivor's first byte. A run without Steadfast
//! can be shown beside the first run.

mod chart;
mod curves;
mod panel;
mod span;

use std::fmt::Write;

pub use self::curves::{CurvePoint, Curves};
pub use self::panel::{PartKind, Timeline, TimelinePanel, TimelinePart};

use self::chart::Chart;
use self::panel::{duration, escape};
use self::span::Span;

/// Time that the close-up shows before and after the parts. The unit is the parts' total length.
const MARGIN_BEFORE: f64 = 0.4;
const MARGIN_AFTER: f64 = 1.2;
/// Minimum length that the close-up assumes for the parts, in seconds. Also used if there are no parts.
const CLOSE_UP_MIN_S: f64 = 0.005;

/// Renders the page as HTML.
pub fn render(timeline: &Timeline) -> String {
    let mut page = String::new();
    let title = escape(&timeline.title);
    write_all(
        &mut page,
        &[
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n",
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
            &format!("<title>{title}</title>\n<style>\n"),
            include_str!("page.css"),
            "</style>\n<main>\n",
            &format!(
                "<h1>{title}</h1>\n<p class=\"summary\">{}</p>\n",
                escape(&timeline.summary)
            ),
        ],
    );
    page += "<dl class=\"facts\">\n";
    for (name, value) in &timeline.facts {
        page += &format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(name), escape(value));
    }
    page += "</dl>\n<div class=\"panels\">\n";
    let scales = Scales::of(&timeline.panels);
    for panel in &timeline.panels {
        page += &render_panel(panel, &scales);
    }
    write_all(
        &mut page,
        &[
            "</div>\n",
            &format!("<p class=\"footnote\">{}</p>\n", escape(&timeline.footnote)),
            "</main>\n<script>\n",
            include_str!("page.js"),
            "</script>\n</html>\n",
        ],
    );
    page
}

/// Scales that all panels share, so that the panels can be compared by eye.
struct Scales {
    /// Time axis of the whole transfer, in seconds from the fault.
    whole: Span,
    /// Vertical axis of the whole transfer, in bytes.
    bytes: Span,
    /// Time axis of the close-ups, in seconds from the fault.
    close_up: Span,
    /// Height of the close-ups in bytes.
    close_up_bytes: f64,
}

impl Scales {
    fn of(panels: &[TimelinePanel]) -> Self {
        let spans: Vec<_> = panels.iter().filter_map(TimelinePanel::time_span).collect();
        let whole = Span::around(spans.iter().flat_map(|span| [span.from, span.to])).unwrap_or_default();
        let most = panels
            .iter()
            .map(|panel| panel.curves.highest())
            .max()
            .unwrap_or(0);
        let parts = panels
            .iter()
            .find_map(TimelinePanel::parts_span)
            .unwrap_or_default();
        let unit = (parts.to - parts.from).max(CLOSE_UP_MIN_S);
        let close_up = Span {
            from: (parts.from - MARGIN_BEFORE * unit).max(whole.from),
            to: (parts.to + MARGIN_AFTER * unit).min(whole.to.max(parts.to)),
        };
        let rise = |panel: &TimelinePanel| {
            let (low, high) = panel.rise_within(close_up);
            (high - low) as f64
        };
        Self {
            whole,
            bytes: Span {
                from: 0.0,
                to: most as f64,
            },
            close_up,
            close_up_bytes: panels.iter().map(rise).fold(1.0, f64::max),
        }
    }
}

impl TimelinePanel {
    /// Returns the highest offset acknowledged at the start of `span`, and the highest offset sent by its end.
    fn rise_within(&self, span: Span) -> (u64, u64) {
        let until = |readings: &[CurvePoint], seconds: f64| {
            let count = readings.partition_point(|reading| self.seconds(reading.at_ns) <= seconds);
            count.checked_sub(1).map_or(0, |last| readings[last].offset)
        };
        let low = until(&self.curves.acknowledged, span.from);
        (low, until(&self.curves.sent, span.to).max(low))
    }
}

fn render_panel(panel: &TimelinePanel, scales: &Scales) -> String {
    let verdict = if panel.good { "good" } else { "bad" };
    let mut html = format!(
        "<section class=\"panel\">\n<header><h2>{}</h2><span class=\"outcome {verdict}\">{}</span></header>\n",
        escape(&panel.heading),
        escape(&panel.outcome)
    );
    html += &render_stall(panel);
    let (low, _) = panel.rise_within(scales.close_up);
    let close_up = Chart {
        caption: "around the fault",
        panel,
        time: scales.close_up,
        bytes: Span {
            from: low as f64,
            to: low as f64 + scales.close_up_bytes,
        },
        milliseconds: true,
        highlighted: None,
    };
    let whole = Chart {
        caption: "the whole transfer",
        panel,
        time: scales.whole,
        bytes: scales.bytes,
        milliseconds: false,
        highlighted: Some(scales.close_up),
    };
    html += &close_up.svg();
    html += &whole.svg();
    html += "</section>\n";
    html
}

/// Renders the stall, and the parts of the time from the fault to the survivor's first byte.
fn render_stall(panel: &TimelinePanel) -> String {
    let (Some(span), Some(stall_ms)) = (panel.parts_span(), panel.stall_ms) else {
        let (length, why) = if panel.good {
            ("no", "bytes never stopped")
        } else {
            ("endless", "no byte came again")
        };
        return format!("<p class=\"stall\"><b>{length}</b> stall <span class=\"parts\">{why}</span></p>\n");
    };
    let part = |part: &TimelinePart| {
        let length = panel.seconds(part.to_ns) - panel.seconds(part.from_ns);
        let (class, name) = (part.kind.class(), part.kind.name());
        format!("<span class=\"part {class}\">{name} {}</span>", duration(length))
    };
    let parts: Vec<_> = panel.parts.iter().map(part).collect();
    let (stall, whole) = (stall_ms / 1e3, span.to - span.from);
    let mut html = format!(
        "<p class=\"stall\"><b>{}</b> stall at the client</p>\n",
        duration(stall)
    );
    html += &format!(
        "<p class=\"stall\"><span class=\"parts\">{} from the fault to the survivor's first byte = {}",
        duration(whole),
        parts.join(" + ")
    );
    if whole > stall {
        html += &format!(
            ". During the first {} of this time, the client still received what was under way",
            duration(whole - stall)
        );
    }
    html += "</span></p>\n";
    html
}

fn write_all(page: &mut String, pieces: &[&str]) {
    for piece in pieces {
        write!(page, "{piece}").expect("a string takes everything");
    }
}

#[cfg(test)]
mod tests;
