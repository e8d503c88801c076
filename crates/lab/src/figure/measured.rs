//! The measurements of the FT-TCP paper and of CoRAL's evaluation as rows. The benchmarks measure; the figures and the claims are computed
//! from the rows.

use super::rows::{MeasuredPointRow, MeasurementRow, Rows};
use crate::bench::coral_samples::{CoralMeasured, SERVERS};
use crate::bench::ft_tcp_samples::{
    FtTcpMeasured, FtTcpSamples, MODES, PACED_CLIENTS, REPLAYED, SERVICES, SHAPES_MBIT, VARIANTS,
};
use crate::bench::outage::OutageTrace;
use crate::bench::target::median;
use crate::crash::StagedSample;

/// The part of an outage that the figure shows, in seconds since the fault.
const OUTAGE_S: std::ops::RangeInclusive<f64> = -0.5..=4.5;

/// Rows of one run.
struct MeasuredRows {
    run: u32,
    seed: u64,
    rows: Rows,
}

impl MeasuredRows {
    fn new((run, seed): (u32, u64)) -> Self {
        Self {
            run,
            seed,
            rows: Rows::default(),
        }
    }

    fn values(&mut self, what: &str, variant: &str, values: impl IntoIterator<Item = f64>) {
        let (run, seed) = (self.run, self.seed);
        self.rows
            .measurements
            .extend(values.into_iter().map(|value| MeasurementRow {
                run,
                seed,
                what: what.to_owned(),
                variant: variant.to_owned(),
                value,
            }));
    }

    fn points(&mut self, series: &str, points: impl IntoIterator<Item = (f64, f64)>) {
        let (run, seed) = (self.run, self.seed);
        self.rows
            .points
            .extend(points.into_iter().map(|(x, y)| MeasuredPointRow {
                run,
                seed,
                series: series.to_owned(),
                x,
                y,
            }));
    }

    fn outage(&mut self, variant: &str, trace: &OutageTrace) {
        let gap = trace.retransmission_gap_ms;
        self.values("outage, retransmission gap, ms", variant, [gap]);
        for (what, points) in [("sent", &trace.sent), ("acknowledged", &trace.acknowledged)] {
            let shown = points.iter().filter(|(at_s, _)| OUTAGE_S.contains(at_s));
            let shown = shown.map(|(at_s, offset)| (*at_s, offset / 1e3));
            self.points(&format!("{variant}, {what}"), shown);
        }
    }

    fn service(&mut self, variant: &str, samples: &FtTcpSamples) {
        for ((service, _), by_rate) in SERVICES.iter().zip(&samples.throughput) {
            for (mbit, ways) in SHAPES_MBIT.iter().zip(by_rate) {
                for (direction, rates) in ["in", "out"].into_iter().zip(ways) {
                    let what = throughput(&format!("{service} {direction}"), *mbit);
                    self.values(&what, variant, rates.iter().copied());
                }
            }
        }
        self.values("stream out, MB/s", variant, samples.stream.iter().copied());
        let exchange = &samples.exchange;
        for (what, times) in [("request", &exchange.request_us), ("packet", &exchange.packet_us)] {
            let least = times.iter().copied().fold(f64::INFINITY, f64::min);
            let mean = times.iter().sum::<f64>() / times.len() as f64;
            for (of, value) in [
                ("minimum", least),
                ("median", median(times.clone())),
                ("mean", mean),
            ] {
                self.values(&format!("{what} latency, {of}, µs"), variant, [value]);
            }
        }
        for (clients, rates) in PACED_CLIENTS.into_iter().zip(&samples.paced) {
            self.values(&paced(clients), variant, rates.iter().copied());
        }
        for (bytes, times) in REPLAYED.into_iter().zip(&samples.takeover_ms) {
            self.values(&reply(bytes / 1_000_000), variant, times.iter().copied());
        }
    }
}

/// Name of a throughput.
pub fn throughput(what: &str, mbit: u32) -> String {
    format!("{what} at {mbit} Mbit/s, MB/s")
}

/// Name of the rate of each of several paced clients.
pub fn paced(clients: u32) -> String {
    format!("{clients} clients, kB/s each")
}

/// Name of the time until the reply at a takeover with so much input.
pub fn reply(megabytes: u64) -> String {
    format!("reply after a fault, {megabytes} MB, ms")
}

/// Rows of what `bench ft-tcp` measures.
pub fn rows_of_ft_tcp(number_and_seed: (u32, u64), measured: &FtTcpMeasured) -> Rows {
    let mut rows = MeasuredRows::new(number_and_seed);
    for ((variant, _), samples) in VARIANTS.into_iter().zip(&measured.samples) {
        rows.service(variant, samples);
    }
    for ((mode, _), traces) in MODES.into_iter().zip(&measured.stalls) {
        let mut times = |what: &str, of: fn(&OutageTrace) -> f64| {
            rows.values(what, mode, traces.iter().map(of));
        };
        times("declared dead, ms", |trace| trace.declared_s * 1e3);
        times("connection live, ms", |trace| trace.live_s * 1e3);
        times("stall, ms", |trace| trace.stall_ms);
    }
    rows.outage("logged", &measured.outage_logged);
    rows.outage("lost", &measured.outage_lost);
    rows.rows
}

/// Rows of what `bench coral` measures. The points are those of the first power-off.
pub fn rows_of_coral(number_and_seed: (u32, u64), measured: &CoralMeasured) -> Rows {
    let mut rows = MeasuredRows::new(number_and_seed);
    for (variant, requests) in SERVERS.into_iter().zip(&measured.requests) {
        rows.values("replies/s", variant, requests.iter().map(|one| one.per_s));
        rows.values("latency, µs", variant, requests.iter().map(|one| one.median_us));
    }
    let mut times = |what: &str, of: fn(&StagedSample) -> f64| {
        rows.values(what, "pair", measured.failures.iter().map(of));
    };
    times("detection, ms", |one| one.detection_ms);
    times("gate, ms", |one| one.gate_ms);
    times("first connection, ms", |one| one.first_live_ms);
    times("last connection, ms", |one| one.last_live_ms);
    times("first heartbeat to integration, ms", |one| one.heard_ms);
    times("integration, ms", |one| one.integration_ms);
    times("integration to first segment, ms", |one| one.forwarding_ms);
    times("vulnerable, ms", |one| one.vulnerable_ms);
    times("node's return, ms", |one| one.return_ms);
    times("stall, ms", |one| {
        one.stall_ms.map_or(f64::NAN, |stall| stall.median)
    });
    times("wait before, ms", |one| {
        one.before_ms.map_or(f64::NAN, |wait| wait.median)
    });
    times("throughput alone / before", StagedSample::after_ratio);
    if let Some(first) = measured.failures.first() {
        rows.points("replies/s", first.throughput.iter().copied());
        rows.points("latency, s", first.latencies.iter().copied());
    }
    rows.rows
}
