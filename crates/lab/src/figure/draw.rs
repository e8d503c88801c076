//! Draws a figure as SVG.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::{Axis, Figure, MarkPosition, Panel, Series, Shape, number};
use super::palette::{Colour, style};

/// Pixels of the plotting library per pixel of the figure. The library draws only at whole pixels; this factor makes positions finer.
const FINE: i32 = 4;
const WIDTH: i32 = 760;
const PANEL_HEIGHT: i32 = 340;
const TITLE_HEIGHT: i32 = 34;
/// Height of a row of the legend, in pixels.
const ROW: i32 = 18;
const FONT: &str = "system-ui, sans-serif";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The figure as an SVG document that is readable on light and dark pages.
///
/// # Errors
/// If an axis has no length.
pub fn svg(figure: &Figure) -> Result<String> {
    let height = TITLE_HEIGHT + PANEL_HEIGHT * i32::try_from(figure.panels.len())?;
    let mut text = String::new();
    {
        let size = [WIDTH, height].map(|length| (length * FINE).unsigned_abs());
        let root = SVGBackend::with_string(&mut text, (size[0], size[1])).into_drawing_area();
        root.fill(&Colour::Paper.light()).map_err(drawing)?;
        let (head, body) = root.split_vertically(TITLE_HEIGHT * FINE);
        label(
            &head,
            (12, 20),
            figure.title,
            15,
            Colour::Ink,
            Pos::new(HPos::Left, VPos::Center),
        )?;
        let areas = body.split_evenly((figure.panels.len(), 1));
        for (area, panel) in areas.iter().zip(&figure.panels) {
            draw_panel(area, panel)?;
        }
        root.present().map_err(drawing)?;
    }
    let fine = format!("width=\"{}\" height=\"{}\"", WIDTH * FINE, height * FINE);
    let plain = format!("width=\"{WIDTH}\" height=\"{height}\" role=\"img\"");
    let text = text.replacen(&fine, &plain, 1);
    let opened = text.find('>').map_or(0, |end| end + 1);
    let (open, rest) = text.split_at(opened);
    Ok(format!(
        "{open}\n<title>{}</title>\n<style>{}</style>{rest}",
        figure.title,
        style()
    ))
}

fn drawing(error: impl std::error::Error) -> anyhow::Error {
    anyhow!("drawing: {error}")
}

fn font(size: i32, colour: Colour) -> TextStyle<'static> {
    (FONT, size * FINE).into_font().color(&colour.light())
}

/// Draws text. The position is in pixels of the figure.
fn label(area: &Area, (x, y): (i32, i32), text: &str, size: i32, colour: Colour, pos: Pos) -> Result<()> {
    area.draw(&Text::new(
        text.to_owned(),
        (x * FINE, y * FINE),
        font(size, colour).pos(pos),
    ))
    .map_err(drawing)
}

fn draw_panel(area: &Area, panel: &Panel) -> Result<()> {
    let entries = entries(panel);
    let rows = legend(area, panel, &entries)?;
    let mut plot = ChartBuilder::on(area)
        .margin_top((8 + rows * ROW) * FINE)
        .margin_right(18 * FINE)
        .margin_bottom(4 * FINE)
        .margin_left(6 * FINE)
        .x_label_area_size(42 * FINE)
        .y_label_area_size(54 * FINE)
        .build_cartesian_2d(panel.x.from..panel.x.to, panel.y.from..panel.y.to)
        .map_err(drawing)?;
    draw_bands(&mut plot, panel)?;
    draw_axes(&mut plot, panel)?;
    for series in &panel.series {
        draw_series(&mut plot, panel, series)?;
    }
    draw_marks(&mut plot, panel)
}

fn draw_axes(plot: &mut Plot, panel: &Panel) -> Result<()> {
    let tick = |axis: &Axis, at: f64| {
        if axis.categories.is_empty() {
            number(at)
        } else if (at - at.round()).abs() < 1e-9 {
            axis.category(at).unwrap_or_default()
        } else {
            String::new()
        }
    };
    let x_tick = |at: &f64| tick(&panel.x, *at);
    let y_tick = |at: &f64| tick(&panel.y, *at);
    let mut mesh = plot.configure_mesh();
    if !panel.x.categories.is_empty() {
        mesh.disable_x_mesh().x_labels(panel.x.categories.len() + 2);
    }
    mesh.axis_style(Colour::Muted.light().stroke_width(FINE.unsigned_abs()))
        .bold_line_style(Colour::Grid.light().stroke_width(FINE.unsigned_abs()))
        .light_line_style(TRANSPARENT)
        .label_style(font(11, Colour::Muted))
        .axis_desc_style(font(12, Colour::Ink))
        .x_desc(panel.x.label)
        .y_desc(panel.y.label)
        .x_label_formatter(&x_tick)
        .y_label_formatter(&y_tick)
        .draw()
        .map_err(drawing)
}

/// The series in the legend, without duplicates.
fn entries(panel: &Panel) -> Vec<&Series> {
    let mut entries: Vec<&Series> = Vec::new();
    for series in &panel.series {
        if !series.label.is_empty() && entries.iter().all(|other| other.label != series.label) {
            entries.push(series);
        }
    }
    entries
}

/// Draws the title and the legend. Returns the number of rows that they take.
fn legend(area: &Area, panel: &Panel, entries: &[&Series]) -> Result<i32> {
    const CHARACTER: f64 = 6.3;
    const LEFT: i32 = 66;
    let middle = Pos::new(HPos::Left, VPos::Center);
    let mut row = 0;
    if !panel.title.is_empty() {
        label(area, (LEFT, 8), &panel.title, 12, Colour::Ink, middle)?;
        row = 1;
    }
    let mut x = LEFT;
    for series in entries {
        let width = 30 + (series.label.chars().count() as f64 * CHARACTER) as i32;
        if x > LEFT && x + width > WIDTH - 12 {
            (x, row) = (LEFT, row + 1);
        }
        let y = 8 + row * ROW;
        let style = series.colour.light();
        let ends = [((x) * FINE, y * FINE), ((x + 18) * FINE, y * FINE)];
        let middle_of = ((x + 9) * FINE, y * FINE);
        match series.drawn_shape() {
            Shape::Line => area.draw(&PathElement::new(
                ends,
                style.stroke_width(2 * FINE.unsigned_abs()),
            )),
            Shape::Dashed => {
                let at = |x: i32| (x * FINE, y * FINE);
                let stroke = style.stroke_width(2 * FINE.unsigned_abs());
                area.draw(&PathElement::new([at(x), at(x + 7)], stroke))
                    .and_then(|()| area.draw(&PathElement::new([at(x + 11), at(x + 18)], stroke)))
            }
            Shape::Dots => area.draw(&Circle::new(middle_of, 3 * FINE, style.filled())),
            Shape::Rings => area.draw(&Circle::new(
                middle_of,
                3 * FINE,
                style.stroke_width(FINE.unsigned_abs()),
            )),
            Shape::Bars { opacity, .. } => area.draw(&Rectangle::new(
                [
                    ((x + 3) * FINE, (y - 5) * FINE),
                    ((x + 15) * FINE, (y + 5) * FINE),
                ],
                style.mix(*opacity).filled(),
            )),
        }
        .map_err(drawing)?;
        label(area, (x + 23, y), &series.label, 11, Colour::Ink, middle)?;
        x += width;
    }
    Ok(row + i32::from(!entries.is_empty()))
}

fn draw_series(plot: &mut Plot, panel: &Panel, series: &Series) -> Result<()> {
    let colour = series.colour.light();
    let stroke = colour.stroke_width((3 * FINE / 2).unsigned_abs());
    let points = || series.points.iter().copied();
    let single = points_apart(panel, &series.points);
    match series.drawn_shape() {
        Shape::Line => plot.draw_series(LineSeries::new(points(), stroke)).map(drop),
        Shape::Dashed => plot
            .draw_series(DashedLineSeries::new(points(), 6 * FINE, 4 * FINE, stroke))
            .map(drop),
        Shape::Dots => plot
            .draw_series(
                single
                    .into_iter()
                    .map(|at| Circle::new(at, 2 * FINE, colour.mix(0.75).filled())),
            )
            .map(drop),
        Shape::Rings => plot
            .draw_series(
                single
                    .into_iter()
                    .map(|at| Circle::new(at, 3 * FINE, colour.stroke_width(FINE.unsigned_abs()))),
            )
            .map(drop),
        Shape::Bars { width, base, opacity } => plot
            .draw_series(points().zip(base).map(|((x, y), base)| {
                Rectangle::new(
                    [(x - width / 2.0, *base), (x + width / 2.0, base + y)],
                    colour.mix(*opacity).filled(),
                )
            }))
            .map(drop),
    }
    .map_err(drawing)
}

/// The points within the axes, without points that fall on the pixel of an earlier point.
fn points_apart(panel: &Panel, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let pixel = |value: f64, axis: &Axis, pixels: i32| {
        ((value - axis.from) / (axis.to - axis.from) * f64::from(pixels)).round() as i64
    };
    let mut seen = std::collections::BTreeSet::new();
    let inside = |(x, y): &(f64, f64)| {
        (panel.x.from..=panel.x.to).contains(x) && (panel.y.from..=panel.y.to).contains(y)
    };
    let mut apart = points.to_vec();
    apart.retain(|at| {
        inside(at) && seen.insert((pixel(at.0, &panel.x, WIDTH), pixel(at.1, &panel.y, PANEL_HEIGHT)))
    });
    apart
}

fn draw_bands(plot: &mut Plot, panel: &Panel) -> Result<()> {
    for mark in &panel.marks {
        if let MarkPosition::Band(from, to) = mark.place {
            let band = Rectangle::new(
                [(from, panel.y.from), (to, panel.y.to)],
                Colour::Muted.light().mix(0.13).filled(),
            );
            plot.draw_series([band]).map_err(drawing)?;
        }
    }
    Ok(())
}

fn draw_marks(plot: &mut Plot, panel: &Panel) -> Result<()> {
    let ink = Colour::Ink.light().mix(0.8).stroke_width(FINE.unsigned_abs());
    let (x, y) = (&panel.x, &panel.y);
    // Labels of bands are one below the other. A narrow band has no room for its own.
    let mut next = y.to;
    for mark in &panel.marks {
        let (line, at, pos) = match mark.place {
            MarkPosition::Y(at) => (
                vec![(x.from, at), (x.to, at)],
                (x.to, at),
                Pos::new(HPos::Right, VPos::Bottom),
            ),
            MarkPosition::Band(from, _) => {
                let at = next;
                next -= (y.to - y.from) / 20.0;
                (Vec::new(), (from, at), Pos::new(HPos::Left, VPos::Top))
            }
        };
        if !line.is_empty() {
            let dashes = DashedLineSeries::new(line, 2 * FINE, 3 * FINE, ink);
            plot.draw_series(dashes).map_err(drawing)?;
        }
        let text = Text::new(format!(" {} ", mark.label), at, font(10, Colour::Ink).pos(pos));
        plot.draw_series([text]).map_err(drawing)?;
    }
    Ok(())
}
