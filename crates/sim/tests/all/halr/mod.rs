//! Helpers that the tests of the HALR thesis' claims share.

use std::time::Duration;

use proto::Instant;
use steadfast_sim::flow::TcpVariant;
use steadfast_sim::scenario::FlowResult;
use steadfast_sim::scenario::cluster::{ClusterResult, ClusterScenario, thesis_tcp};
use steadfast_sim::scenario::edge::EdgeRecovery;

/// The edge caches all the time, so it has the packets that are in the string when the string fails. The thesis' simulations do the same.
pub fn always() -> EdgeRecovery {
    EdgeRecovery {
        caching_after: 0,
        ..EdgeRecovery::default()
    }
}

/// Caching begins with the second missing heartbeat, as the thesis proposes (§3.3).
pub fn suspected() -> EdgeRecovery {
    EdgeRecovery::default()
}

/// Seconds since the start of time.
pub fn seconds(at: Instant) -> f64 {
    at.since(Instant::ZERO).as_secs_f64()
}

/// When a flow's first SYN left, in seconds.
pub fn arrival(flow: &FlowResult) -> f64 {
    seconds(flow.start)
}

/// A flow's completion time in seconds.
pub fn completion(flow: &FlowResult) -> f64 {
    flow.completion_s().expect("every flow completes")
}

/// The cluster of §7.2.1. Each flow has `segments` data segments, and the failover takes `failover_s` seconds.
pub fn cluster(
    variant: TcpVariant,
    segments: u64,
    failover_s: f64,
    recovery: Option<EdgeRecovery>,
) -> ClusterScenario {
    ClusterScenario {
        tcp: thesis_tcp(variant),
        segments,
        failover: Duration::from_secs_f64(failover_s),
        recovery,
        ..ClusterScenario::default()
    }
}

/// The cluster with Reno flows of 9 segments, the sources next to the cluster, and the minimum timeout of Table I. Of all configurations,
/// this one fits the thesis' numbers for plain TCP best.
pub fn near_sources(failover_s: f64, recovery: Option<EdgeRecovery>) -> ClusterScenario {
    let mut cluster = cluster(TcpVariant::Reno, 9, failover_s, recovery);
    cluster.source_delay = Duration::from_millis(1);
    cluster.destination_delay = Duration::from_millis(46);
    cluster.tcp.rto.min = Duration::from_millis(1500);
    cluster
}

/// Simulates `cluster`.
pub fn run(cluster: &ClusterScenario) -> ClusterResult {
    cluster.run_counted().expect("a network")
}

/// Least, mean and largest completion time, in seconds.
pub fn range<'a>(flows: impl Iterator<Item = &'a FlowResult>) -> [f64; 3] {
    let times: Vec<f64> = flows.map(completion).collect();
    [
        times.iter().copied().fold(f64::INFINITY, f64::min),
        times.iter().sum::<f64>() / times.len() as f64,
        times.iter().copied().fold(0.0, f64::max),
    ]
}
