//! Tests: every panel of a figure shows something.

use super::chart::{Axis, Figure, Panel, Series, Shape};
use super::draw::svg;
use super::palette::Colour;

/// Number of visible shapes in an SVG document: lines with a length, circles, and rectangles with an area.
fn visible_shapes(svg: &str) -> usize {
    let value = |element: &str, name: &str| {
        let start = element.find(&format!(" {name}=\""))? + name.len() + 3;
        let length = element[start..].find('"')?;
        Some(element[start..start + length].to_owned())
    };
    let is_visible = |element: &&str| {
        let has_length = |name: &str| value(element, name).is_some_and(|text| text != "0");
        let differ = |one: &str, other: &str| value(element, one) != value(element, other);
        match element.split(' ').next() {
            Some("circle") => has_length("r"),
            Some("rect") => has_length("width") && has_length("height"),
            Some("line") => differ("x1", "x2") || differ("y1", "y2"),
            Some("polyline" | "polygon") => {
                let points = value(element, "points").unwrap_or_default();
                let points: std::collections::BTreeSet<_> = points.split_whitespace().collect();
                points.len() > 1
            }
            _ => false,
        }
    };
    svg.split('<').filter(is_visible).count()
}

/// Whether the panel's series add visible shapes to the axes.
pub fn is_visible(panel: &Panel) -> bool {
    let shapes = |panel: Panel| {
        let figure = Figure {
            name: "one",
            title: "",
            panels: vec![panel],
        };
        visible_shapes(&svg(&figure).unwrap())
    };
    let mut empty = panel.clone();
    for series in &mut empty.series {
        series.points.clear();
    }
    shapes(panel.clone()) > shapes(empty)
}

fn panel(shape: Shape, points: &[(f64, f64)]) -> Panel {
    Panel {
        title: String::new(),
        x: Axis::new("x", 0.0, 10.0),
        y: Axis::new("y", 0.0, 10.0),
        series: vec![Series::new("a", Colour::Blue, shape, points.iter().copied())],
        marks: Vec::new(),
    }
}

#[test]
fn a_line_with_one_point_is_drawn_as_a_dot() {
    for shape in [Shape::Line, Shape::Dashed, Shape::Dots, Shape::Rings] {
        assert!(is_visible(&panel(shape.clone(), &[(0.0, 5.0)])), "{shape:?}");
        assert!(
            is_visible(&panel(shape.clone(), &[(0.0, 5.0), (5.0, 5.0)])),
            "{shape:?}"
        );
        assert!(!is_visible(&panel(shape, &[])));
    }
}
