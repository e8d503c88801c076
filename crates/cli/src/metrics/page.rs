//! A page of metrics in Prometheus' text exposition format 0.0.4.

use prometheus::{CounterVec, GaugeVec, Opts, Registry, TextEncoder};

/// The metrics of a page that is being made.
pub(super) struct MetricsPage(Registry);

/// A sample: the values of its labels, and the value itself.
type MetricSample<'a> = (Vec<&'a str>, f64);

impl MetricsPage {
    pub fn new() -> Self {
        Self(Registry::new())
    }

    pub fn gauge<'a>(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        samples: impl IntoIterator<Item = MetricSample<'a>>,
    ) {
        let family = GaugeVec::new(Opts::new(name, help), labels).expect("a valid name");
        for (values, sample) in samples {
            family.with_label_values(&values).set(sample);
        }
        self.0.register(Box::new(family)).expect("each name once");
    }

    pub fn counter<'a>(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        samples: impl IntoIterator<Item = MetricSample<'a>>,
    ) {
        let family = CounterVec::new(Opts::new(name, help), labels).expect("a valid name");
        for (values, sample) in samples {
            family.with_label_values(&values).inc_by(sample);
        }
        self.0.register(Box::new(family)).expect("each name once");
    }

    /// The page's text.
    pub fn text(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.0.gather())
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
