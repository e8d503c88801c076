//! Connections begin and end for minutes, and neither memory nor tables may grow.

use std::time::{Duration, Instant};

use anyhow::Result;
use linux::wire::held_entries;
use serde::Serialize;

use super::content::{SMALL_BYTES, small_path};
use super::short::{self, Shorts};
use crate::bench::testbed::BenchTestbed;
use crate::process::anonymous_memory;

/// New connections per second.
const PER_S: u32 = 500;
/// Warm-up time. Ended connections are remembered for 60 s, so tables grow for that time. Then allocators settle.
const WARM_UP: Duration = Duration::from_secs(90);
/// Minimum time after the warm-up. Growth over a shorter time is not judged.
const JUDGED_AFTER: Duration = Duration::from_secs(60);
const SAMPLE: Duration = Duration::from_secs(1);

/// Results of the run.
#[derive(Clone, Debug, Serialize)]
pub struct Churn {
    /// Duration of the run, in minutes.
    pub minutes: f64,
    /// Connections that were completed.
    pub connections: u64,
    /// Connections that failed.
    pub failed: u64,
    /// Whether the run was long enough to judge growth: at least the warm-up and one minute.
    pub is_judged: bool,
    /// Growth of the agents of nodes a and b, in bytes of RssAnon per minute. It is measured after warm-up, or in the second half
    /// of a run that was too short.
    pub agent_bytes_per_minute: [f64; 2],
    /// Growth of the backup's agent per connection, in bytes.
    pub backup_bytes_per_connection: f64,
    /// Growth of connections and handshakes in the backup's table, per minute.
    pub table_entries_per_minute: f64,
    /// Largest number of clients that were seen in the eBPF maps `held` and `undecided`. The connections of these clients are being taken
    /// over, or were taken over from a dead worker.
    pub held_entries_max: u64,
    /// Largest fill of the rings that was seen, in bytes.
    pub ring_fill_bytes_max: u64,
    /// Largest size of the log that was seen, in bytes.
    pub log_bytes_max: u64,
}

/// One sample of all measured values.
#[derive(Clone, Copy)]
struct ChurnSample {
    seconds: f64,
    agents: [u64; 2],
    table: u64,
    held: u64,
    ring: u64,
    log: u64,
}

/// Opens and closes connections for `minutes`. Calls `tell` with the seconds that have passed.
///
/// # Errors
/// If the run could not be made. Failed connections are no error.
pub fn run(testbed: &BenchTestbed, minutes: f64, tell: impl Fn(u64)) -> Result<Churn> {
    let seconds = minutes * 60.0;
    let (samples, shorts) = std::thread::scope(|scope| {
        let path = small_path();
        let load = scope.spawn(move || {
            let client = &testbed.network.client;
            short::run(client, testbed.service, (&path, SMALL_BYTES), PER_S, seconds)
        });
        let start = Instant::now();
        let mut samples = Vec::new();
        while !load.is_finished() {
            samples.push(ChurnSample::take(testbed, start.elapsed().as_secs_f64()));
            tell(start.elapsed().as_secs());
            std::thread::sleep(SAMPLE);
        }
        let shorts = load
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (samples, shorts)
    });
    let samples = samples.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(Churn::of(minutes, &samples, &shorts?))
}

impl ChurnSample {
    fn take(testbed: &BenchTestbed, seconds: f64) -> Result<Self> {
        let memory = |index| Ok::<_, anyhow::Error>(anonymous_memory(testbed.agent(index)?.pid())?);
        let status = testbed.status(1)?;
        let handshakes = status.counters.get("handshakes").copied().unwrap_or(0);
        Ok(Self {
            seconds,
            agents: [memory(0)?, memory(1)?],
            table: status.connections.values().sum::<u64>() + handshakes,
            held: held_entries(&testbed.agent(1)?.pins())? as u64,
            ring: status.ring_fill_bytes,
            log: status.log_bytes,
        })
    }
}

impl Churn {
    fn of(minutes: f64, samples: &[ChurnSample], shorts: &Shorts) -> Self {
        let seconds = minutes * 60.0;
        let is_judged = seconds >= (WARM_UP + JUDGED_AFTER).as_secs_f64();
        let from = if is_judged {
            WARM_UP.as_secs_f64()
        } else {
            seconds / 2.0
        };
        let settled: Vec<&ChurnSample> = samples.iter().filter(|sample| sample.seconds >= from).collect();
        let growth = |figure: fn(&ChurnSample) -> u64| {
            let points = settled
                .iter()
                .map(|sample| (sample.seconds / 60.0, figure(sample) as f64));
            slope(&points.collect::<Vec<_>>())
        };
        let most = |figure: fn(&ChurnSample) -> u64| samples.iter().map(figure).max().unwrap_or(0);
        let backup = growth(|sample| sample.agents[1]);
        Self {
            minutes,
            connections: shorts.completed,
            failed: shorts.failed,
            is_judged,
            agent_bytes_per_minute: [growth(|sample| sample.agents[0]), backup],
            backup_bytes_per_connection: backup / (f64::from(PER_S) * 60.0),
            table_entries_per_minute: growth(|sample| sample.table),
            held_entries_max: most(|sample| sample.held),
            ring_fill_bytes_max: most(|sample| sample.ring),
            log_bytes_max: most(|sample| sample.log),
        }
    }
}

/// The slope of the straight line that fits `points` best (least squares). NaN for fewer than two points.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
    let products = points.iter().map(|(x, y)| (x - x_mean) * (y - y_mean));
    let squares = points.iter().map(|(x, _)| (x - x_mean).powi(2));
    products.sum::<f64>() / squares.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(count: u32, grows: impl Fn(u32) -> u64) -> Vec<ChurnSample> {
        let sample = |second| ChurnSample {
            seconds: f64::from(second),
            agents: [1 << 20, grows(second)],
            table: 7,
            held: 0,
            ring: 5,
            log: 6,
        };
        (0..count).map(sample).collect()
    }

    #[test]
    fn growth_after_warm_up_is_growth_and_before_it_is_not() {
        let shorts = Shorts::default();
        let settles = Churn::of(3.0, &samples(180, |s| 1000 * u64::from(s.min(80))), &shorts);
        assert!(settles.is_judged);
        assert_eq!(settles.backup_bytes_per_connection, 0.0);
        let leaks = Churn::of(3.0, &samples(180, |s| 1000 * u64::from(s)), &shorts);
        assert!(
            (leaks.agent_bytes_per_minute[1] - 60_000.0).abs() < 1.0,
            "{leaks:?}"
        );
        assert!((leaks.backup_bytes_per_connection - 2.0).abs() < 1e-3);
        assert!(!Churn::of(0.2, &samples(12, |_| 0), &shorts).is_judged);
    }
}
