//! The contents of a figure before it is drawn: panels of series and marks. The CSV has exactly the series' points.

use anyhow::Result;

use super::palette::Colour;

/// A figure with our results.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The figure's name on the command line and in file names.
    pub name: &'static str,
    /// The figure's title.
    pub title: &'static str,
    /// The panels, from top to bottom.
    pub panels: Vec<Panel>,
}

/// One pair of axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The panel's title, which distinguishes it from the figure's other panels.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The series, in the order of drawing.
    pub series: Vec<Series>,
    /// Marks for numbers of the thesis, and for the time ranges of the failovers.
    pub marks: Vec<Mark>,
}

#[derive(Clone, Debug)]
pub struct Axis {
    /// Quantity and unit.
    pub label: &'static str,
    /// The axis' lower end.
    pub from: f64,
    /// The axis' upper end.
    pub to: f64,
    /// Names of the places 0, 1, 2, …, if this is an axis of categories.
    pub categories: Vec<String>,
}

/// Points that belong together.
#[derive(Clone, Debug)]
pub struct Series {
    /// The series' name in the legend. Series of the same name and colour share an entry.
    pub label: String,
    /// Its colour.
    pub colour: Colour,
    /// How it is drawn.
    pub shape: Shape,
    /// x and y, in the axes' units.
    pub points: Vec<(f64, f64)>,
}

/// How a series is drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A line from point to point.
    Line,
    /// A dashed line from point to point.
    Dashed,
    /// A filled dot per point.
    Dots,
    /// A ring per point, for results that are not ours.
    Rings,
    /// Bars of this width, each of which begins at its `base`, so that they can be stacked.
    Bars {
        /// Width in units of the horizontal axis.
        width: f64,
        /// The lower end of each bar.
        base: Vec<f64>,
        /// Opacity from 0 to 1. The second bar of a pair is paler.
        opacity: f64,
    },
}

/// A mark in a panel: a number of the thesis, or a time range.
#[derive(Clone, Debug)]
pub struct Mark {
    /// The mark's label.
    pub label: String,
    /// The mark's place.
    pub place: MarkPosition,
}

/// The place of a mark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MarkPosition {
    /// A value of the vertical axis.
    Y(f64),
    /// A range of the horizontal axis: its lower and its upper end.
    Band(f64, f64),
}

impl Axis {
    /// An axis of numbers.
    pub fn new(label: &'static str, from: f64, to: f64) -> Self {
        Self {
            label,
            from,
            to,
            categories: Vec::new(),
        }
    }

    /// An axis of categories.
    pub fn of(label: &'static str, categories: Vec<String>) -> Self {
        Self {
            label,
            from: -0.5,
            to: categories.len() as f64 - 0.5,
            categories,
        }
    }
}

impl Series {
    /// A series of these points.
    pub fn new(
        label: impl Into<String>,
        colour: Colour,
        shape: Shape,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        Self {
            label: label.into(),
            colour,
            shape,
            points: points.into_iter().collect(),
        }
    }

    /// The shape in which the series is drawn. A line needs two points. A line with only one point is drawn as a dot.
    pub fn drawn_shape(&self) -> &Shape {
        let first = self.points.first();
        let is_one_point = self.points.iter().all(|point| Some(point) == first);
        match &self.shape {
            Shape::Line | Shape::Dashed if is_one_point => &Shape::Dots,
            shape => shape,
        }
    }
}

impl Mark {
    pub fn new(label: impl Into<String>, place: MarkPosition) -> Self {
        Self {
            label: label.into(),
            place,
        }
    }
}

impl Figure {
    /// The figure's points: panel, series, x, y.
    ///
    /// # Errors
    /// None are expected: the points are written to memory.
    pub fn csv(&self) -> Result<Vec<u8>> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(["panel", "series", "x", "y"])?;
        for panel in &self.panels {
            for series in &panel.series {
                for (x, y) in &series.points {
                    let x = panel.x.category(*x).unwrap_or_else(|| number(*x));
                    writer.write_record([&panel.title, &series.label, &x, &number(*y)])?;
                }
            }
        }
        Ok(writer.into_inner()?)
    }
}

impl Axis {
    /// The name of the category at `place`. `None` if there is no category at this place.
    pub fn category(&self, place: f64) -> Option<String> {
        let index = place.round();
        (index >= 0.0).then(|| self.categories.get(index as usize).cloned())?
    }
}

/// Formats a number with at most six decimals and no trailing zeros.
pub fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" {
        "0".to_owned()
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_needless_digits() {
        for (value, text) in [(1.0, "1"), (0.1 + 0.2, "0.3"), (-1e-9, "0"), (250.0, "250")] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn the_csv_is_what_is_drawn() {
        let series = Series::new("a, b", Colour::Blue, Shape::Line, [(0.0, 1.5), (1.0, 2.0)]);
        let figure = Figure {
            name: "halr-0",
            title: "",
            panels: vec![Panel {
                title: "top".into(),
                x: Axis::of("x", vec!["0.5 s".into(), "1 s".into()]),
                y: Axis::new("y", 0.0, 1.0),
                series: vec![series],
                marks: vec![],
            }],
        };
        let csv = String::from_utf8(figure.csv().unwrap()).unwrap();
        assert_eq!(
            csv,
            "panel,series,x,y\ntop,\"a, b\",0.5 s,1.5\ntop,\"a, b\",1 s,2\n"
        );
    }
}
