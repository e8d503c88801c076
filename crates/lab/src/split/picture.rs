//! A page that shows which node spoke when. It has a row for each cell (one fault with one arbiter). A row has a bar for each time in which
//! a node spoke, and a grey bar for the fault. The page needs no other file.

use std::fmt::Write as _;

use super::cell::Cell;
use crate::net::NODE_NAMES;

/// Sizes in pixels.
const LABEL: f64 = 270.0;
const WIDTH: f64 = 900.0;
const LANE: f64 = 12.0;
const ROW: f64 = 40.0;
const TOP: f64 = 40.0;
/// Time shown before the fault, in milliseconds.
const BEFORE_MS: f64 = 500.0;
const COLOURS: [&str; 2] = ["#1f77b4", "#e07b00"];

/// The page as HTML.
pub fn render(cells: &[Cell]) -> String {
    let ends = cells
        .iter()
        .flat_map(|cell| &cell.speeches)
        .map(|speech| speech.until_ms);
    let span_ms = ends.fold(BEFORE_MS, f64::max) + BEFORE_MS;
    let x = |ms: f64| LABEL + (ms.max(-BEFORE_MS) + BEFORE_MS) / span_ms * WIDTH;
    let height = TOP + ROW * cells.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n",
        LABEL + WIDTH + 20.0
    );
    let mut second = 0.0;
    while second * 1e3 < span_ms - BEFORE_MS {
        let at = x(second * 1e3);
        // Writing to a String does not fail.
        let _ = writeln!(
            svg,
            "<line x1=\"{at}\" y1=\"{}\" x2=\"{at}\" y2=\"{height}\" stroke=\"#ccc\"/><text x=\"{at}\" y=\"{}\">{second} s</text>",
            TOP - 10.0,
            TOP - 14.0,
        );
        second += 1.0;
    }
    for (row, cell) in cells.iter().enumerate() {
        draw(&mut svg, cell, TOP + ROW * row as f64, x);
    }
    svg += "</svg>\n";
    let [a, b] = NODE_NAMES;
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Times at which each node spoke</title>\n\
         <h1>Times at which each node spoke</h1>\n\
         <p>Grey: the fault. <span style=\"color:{}\">Node {a}</span>, which was the primary, and <span style=\"color:{}\">node {b}\
         </span>, as the router heard them. \
         Small print: the time in which both nodes spoke (bold name: longer than 0), the connections that survived, and whether the \
         requirements were met.</p>\n{svg}</html>\n",
        COLOURS[0], COLOURS[1],
    )
}

fn draw(svg: &mut String, cell: &Cell, top: f64, x: impl Fn(f64) -> f64) {
    let weight = if cell.two_speakers_ms > 0.0 {
        "bold"
    } else {
        "normal"
    };
    let middle = top + LANE;
    let _ = writeln!(
        svg,
        "<text x=\"4\" y=\"{}\" font-weight=\"{weight}\">{}</text><text x=\"4\" y=\"{}\" fill=\"#555\" font-size=\"10\">\
         both spoke {:.0} ms, {} survived, {}</text>",
        middle,
        cell.key(),
        middle + LANE,
        cell.two_speakers_ms,
        cell.outcome(),
        if cell.ok { "requirements met" } else { "NOT met" },
    );
    let mut bar = |from: f64, until: f64, y: f64, height: f64, colour: &str| {
        let width = (x(until) - x(from)).max(1.0);
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{colour}\"/>",
            x(from)
        );
    };
    bar(0.0, cell.healed_ms, top, ROW - 6.0, "#e4e4e4");
    for speech in &cell.speeches {
        let node = NODE_NAMES
            .iter()
            .position(|name| *name == speech.node)
            .unwrap_or(0);
        let y = top + 3.0 + node as f64 * (LANE + 3.0);
        bar(speech.from_ms, speech.until_ms, y, LANE, COLOURS[node]);
    }
}
