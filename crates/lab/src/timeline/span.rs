//! A stretch of an axis.

/// A stretch of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    /// The lower end.
    pub from: f64,
    /// The upper end.
    pub to: f64,
}

impl Span {
    /// The smallest span that contains `values`. `None` without values.
    pub fn around(values: impl Iterator<Item = f64>) -> Option<Self> {
        values.fold(None, |span: Option<Self>, value| {
            let span = span.unwrap_or(Self {
                from: value,
                to: value,
            });
            Some(Self {
                from: span.from.min(value),
                to: span.to.max(value),
            })
        })
    }

    pub fn contains(self, value: f64) -> bool {
        (self.from..=self.to).contains(&value)
    }

    /// Maps `value` linearly: `from` to `low`, `to` to `high`.
    pub fn place(self, value: f64, low: f64, high: f64) -> f64 {
        let length = if self.to > self.from {
            self.to - self.from
        } else {
            1.0
        };
        low + (value - self.from) / length * (high - low)
    }

    /// Returns about `count` evenly spaced round numbers within the span.
    pub fn ticks(self, count: f64) -> Vec<f64> {
        let length = self.to - self.from;
        if length <= 0.0 || !length.is_finite() {
            return vec![self.from];
        }
        let rough = length / count;
        let power = 10_f64.powf(rough.log10().floor());
        let step = match rough / power {
            factor if factor < 1.5 => power,
            factor if factor < 3.5 => 2.0 * power,
            factor if factor < 7.5 => 5.0 * power,
            _ => 10.0 * power,
        };
        let first = (self.from / step).ceil() as i64;
        let last = (self.to / step).floor() as i64;
        (first..=last).map(|i| i as f64 * step).collect()
    }
}
