//! One power-off of a pair with stages and small random replies, for `bench coral`.

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::facts::{BEFORE, FAULT};
use super::play::play;
use crate::client::{ClientReport, Spread};
use crate::clock::ms;
use crate::node::ServerSoftware;
use crate::pair::{PairOptions, PolicyOption, WorkloadOption};
use crate::run::{DaemonOption, LabRun, Progress};

/// Kilobytes of each random reply. The paper's have 1 KB.
const REPLY_KB: u32 = 1;
/// Clients. The paper has eight.
const CLIENTS: u32 = 8;
/// Width of a bin of the throughput, in nanoseconds.
const BIN_NS: u64 = 100_000_000;

/// What one power-off shows. Times are in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct StagedSample {
    /// From the power-off until the primary was declared dead.
    pub detection_ms: f64,
    /// From the declaration until the gate was closed.
    pub gate_ms: f64,
    /// From the declaration until the first connection could go on.
    pub first_live_ms: f64,
    /// From the declaration until the last connection could go on.
    pub last_live_ms: f64,
    /// From the beginning of the other node's return, as its agent says, until it was the wire.
    pub integration_ms: f64,
    /// From that node's first captured heartbeat to the beginning of its return.
    pub heard_ms: f64,
    /// From the end of the integration until the router got the first segment from that node, as captured.
    pub forwarding_ms: f64,
    /// From the power-off until both nodes said duplex: the window of vulnerability. The lab decides when the node comes back.
    pub vulnerable_ms: f64,
    /// The part of this window after the node's cable was plugged in.
    pub return_ms: f64,
    /// Longest wait of a client around the power-off.
    pub stall_ms: Option<Spread>,
    /// Longest wait of a client before the power-off.
    pub before_ms: Option<Spread>,
    /// Replies per second in bins of 100 ms. The power-off is at 0 s.
    pub throughput: Vec<(f64, f64)>,
    /// When a reply came and how long its client had waited for it, in seconds. The power-off is at 0 s.
    pub latencies: Vec<(f64, f64)>,
}

impl StagedSample {
    /// Throughput while one node serves alone, as a part of that before the failure.
    pub fn after_ratio(&self) -> f64 {
        let gap_s = 0.3;
        let alone_s = (self.vulnerable_ms - self.return_ms) / 1e3;
        let mean = |from: f64, to: f64| {
            let bins = self
                .throughput
                .iter()
                .filter(|(at_s, _)| (from..to).contains(at_s));
            let rates: Vec<f64> = bins.map(|(_, rate)| *rate).collect();
            rates.iter().sum::<f64>() / rates.len() as f64
        };
        mean(gap_s, alone_s.max(gap_s + 0.2)) / mean(-0.4, 0.0)
    }
}

/// Plays one power-off of the primary.
///
/// # Errors
/// If the run could not be played, or a connection was lost.
pub fn staged_sample(seed: u64, daemon: &DaemonOption) -> Result<StagedSample> {
    let mut options = PairOptions {
        policy: PolicyOption::Snapshot,
        server: Some(ServerSoftware::Cgi),
        random_kb: REPLY_KB,
        ..PairOptions::new(WorkloadOption::Request, CLIENTS)
    };
    options.run.daemon = daemon.clone();
    options.check_machine(&[])?;
    let facts = LabRun::play(
        &options.run,
        (seed as u32, seed, &[]),
        &Progress::hidden(),
        |run| play(&options, run),
    )?;
    let client = &facts.client;
    ensure!(
        client.survivors() == client.connections.len() && facts.aftermath.problems.is_empty(),
        "a connection was lost, or {:?}",
        facts.aftermath.problems
    );
    let fault_ns = facts.aftermath.fault_at.as_nanos();
    let takeover = facts.aftermath.takeovers.last().context("no takeover was seen")?;
    let since_declared = |at_ns: Option<u64>, what: &str| {
        at_ns
            .map(|at_ns| ms(takeover.declared_ns, at_ns))
            .with_context(|| what.to_owned())
    };
    let integration = facts
        .aftermath
        .integration
        .as_ref()
        .context("no node came back")?;
    let (begun_at, joined_at) = integration
        .begun_at
        .zip(integration.joined_at)
        .context("the node did not say when it came back")?;
    let duplex_ns = integration.duplex_at.context("never duplex")?.as_nanos();
    Ok(StagedSample {
        detection_ms: ms(fault_ns, takeover.declared_ns),
        gate_ms: since_declared(takeover.gate_closed_ns, "the gate was not closed")?,
        first_live_ms: since_declared(takeover.first_live_ns, "no connection was live")?,
        last_live_ms: since_declared(takeover.last_live_ns, "no connection was live")?,
        integration_ms: ms(begun_at.as_nanos(), joined_at.as_nanos()),
        heard_ms: ms(
            integration.ready_at.context("no heartbeat")?.as_nanos(),
            begun_at.as_nanos(),
        ),
        forwarding_ms: ms(
            joined_at.as_nanos(),
            integration
                .forwards_at
                .context("the node never forwarded")?
                .as_nanos(),
        ),
        vulnerable_ms: ms(fault_ns, duplex_ns),
        return_ms: ms(integration.returned_at.as_nanos(), duplex_ns),
        stall_ms: client.stall_ms(FAULT),
        before_ms: client.stall_ms(BEFORE),
        throughput: throughput(client, fault_ns),
        latencies: latencies(client, fault_ns),
    })
}

/// When replies were complete, for each connection: nanoseconds and number of replies.
fn replies(client: &ClientReport) -> impl Iterator<Item = Vec<(u64, u64)>> {
    let size = u64::from(REPLY_KB) * 1000;
    client.connections.iter().map(move |connection| {
        let mut before = 0;
        let counted = connection.timeline.iter().filter_map(|sample| {
            let count = sample.bytes / size;
            (count > before).then(|| {
                let new = count - before;
                before = count;
                (sample.at_ns, new)
            })
        });
        counted.collect()
    })
}

fn throughput(client: &ClientReport, fault_ns: u64) -> Vec<(f64, f64)> {
    let mut bins = std::collections::BTreeMap::<i64, u64>::new();
    for (at_ns, count) in replies(client).flatten() {
        let bin = (at_ns as i64 - fault_ns as i64).div_euclid(BIN_NS as i64);
        *bins.entry(bin).or_default() += count;
    }
    let (Some((&first, _)), Some((&last, _))) = (bins.first_key_value(), bins.last_key_value()) else {
        return Vec::new();
    };
    let width_s = BIN_NS as f64 / 1e9;
    let bin = |bin: i64| {
        let count = bins.get(&bin).copied().unwrap_or(0);
        (bin as f64 * width_s, count as f64 / width_s)
    };
    (first..=last).map(bin).collect()
}

fn latencies(client: &ClientReport, fault_ns: u64) -> Vec<(f64, f64)> {
    let mut all = Vec::new();
    for times in replies(client) {
        let waits = times.windows(2).map(|pair| {
            let (from_ns, to_ns) = (pair[0].0, pair[1].0);
            let at_s = (to_ns as f64 - fault_ns as f64) / 1e9;
            (at_s, (to_ns - from_ns) as f64 / 1e9 / pair[1].1 as f64)
        });
        all.extend(waits);
    }
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{ConnectionReport, ProgressSample};

    #[test]
    fn replies_are_counted_in_bins_around_the_fault() {
        let sample = |at_ms: u64, bytes| ProgressSample {
            at_ns: at_ms * 1_000_000,
            bytes,
        };
        let client = ClientReport {
            connections: vec![ConnectionReport {
                timeline: vec![
                    sample(1000, 0),
                    sample(1010, 1000),
                    sample(1090, 2000),
                    sample(1150, 2500),
                    sample(1320, 3000),
                ],
                ..ConnectionReport::default()
            }],
            ..ClientReport::default()
        };
        let bins = throughput(&client, 1_100_000_000);
        let rates: Vec<f64> = bins.iter().map(|bin| bin.1).collect();
        assert_eq!(rates, [20.0, 0.0, 0.0, 10.0]);
        assert!((bins[0].0 + 0.1).abs() < 1e-9, "{bins:?}");
        let waits = latencies(&client, 1_100_000_000);
        assert_eq!(waits.len(), 2);
        assert!(
            (waits[1].0 - 0.22).abs() < 1e-9 && (waits[1].1 - 0.23).abs() < 1e-9,
            "{waits:?}"
        );
    }
}
