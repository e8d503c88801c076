//! A page of metrics in Prometheus' text exposition format 0.0.4.

use prometheus::{CounterVec, GaugeVec, Opts, Registry, TextEncoder};

/// The metrics of a page that is being made.
pub(super) struct MetricsPage {
    registry: Registry,
    /// The value of the label `pair` that each metric has.
    pair: Option<String>,
}

/// A sample: the values of its labels, and the value itself.
type MetricSample<'a> = (Vec<&'a str>, f64);

impl MetricsPage {
    pub fn new() -> Self {
        Self {
            registry: Registry::new(),
            pair: None,
        }
    }

    /// The same page, for metrics with this value of the label `pair`.
    pub fn of_pair(&self, name: &str) -> Self {
        Self {
            registry: self.registry.clone(),
            pair: Some(name.to_owned()),
        }
    }

    fn options(&self, name: &str, help: &str) -> Opts {
        let options = Opts::new(name, help);
        match &self.pair {
            Some(pair) => options.const_label("pair", pair),
            None => options,
        }
    }

    pub fn gauge<'a>(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        samples: impl IntoIterator<Item = MetricSample<'a>>,
    ) {
        let family = GaugeVec::new(self.options(name, help), labels).expect("a valid name");
        for (values, sample) in samples {
            family.with_label_values(&values).set(sample);
        }
        self.registry.register(Box::new(family)).expect("each name once");
    }

    pub fn counter<'a>(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        samples: impl IntoIterator<Item = MetricSample<'a>>,
    ) {
        let family = CounterVec::new(self.options(name, help), labels).expect("a valid name");
        for (values, sample) in samples {
            family.with_label_values(&values).inc_by(sample);
        }
        self.registry.register(Box::new(family)).expect("each name once");
    }

    /// The page's text.
    pub fn text(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .expect("a string takes everything")
    }
}

// The conversion is exact up to 2⁵³.
pub(super) fn number(count: u64) -> f64 {
    count as f64
}

pub(super) fn seconds(nanos: u64) -> f64 {
    number(nanos) / 1e9
}

pub(super) fn yes(is: bool) -> f64 {
    f64::from(u8::from(is))
}
