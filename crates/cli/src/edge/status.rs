//! Makes the status of an edge.

use std::time::Duration;

use proto::Instant;
use proto::edge::switch::StringView;

use super::beats::Beats;
use super::kernel::EdgeKernel;
use crate::config::EdgeSettings;
use crate::control::{EdgeStatus, StringStatus};

/// The status of an edge at `now`. `strings` are the states of its strings, `round_trip` is the RTT of the rate control.
pub(super) fn status(
    now: Instant,
    settings: &EdgeSettings,
    strings: &[StringView],
    round_trip: Duration,
    kernel: &EdgeKernel,
    beats: &Beats,
) -> EdgeStatus {
    let counters = kernel.wire().counters().unwrap_or_default();
    EdgeStatus {
        edge: settings.name.clone(),
        peer: settings.peer.clone(),
        strings: strings
            .iter()
            .enumerate()
            .map(|(index, view)| string(now, index, view, kernel, beats))
            .collect(),
        flows: kernel.wire().flows().unwrap_or(0),
        flows_max: settings.max_connections.into(),
        rtt_ms: round_trip.as_secs_f64() * 1e3,
        copied_bytes: kernel.copied_bytes(),
        resent_leaving_bytes: kernel.resent_leaving_bytes(),
        cache_limit_bytes: settings.recovery.map_or(0, |cache| cache.max_bytes as u64),
        counters: counters
            .into_iter()
            .chain([("wrong_checksum", kernel.wrong_checksums())])
            .map(|(name, count)| (name.to_owned(), count))
            .collect(),
        refused: beats.refused().collect(),
    }
}

fn string(now: Instant, index: usize, view: &StringView, kernel: &EdgeKernel, beats: &Beats) -> StringStatus {
    let traffic = kernel.wire().traffic(index).unwrap_or_default();
    StringStatus {
        name: view.name.clone(),
        state: view.phase.name().to_owned(),
        epoch: view.epoch,
        heard: view.is_heard,
        heartbeat_age_ns: view.last_heard.map(|at| now.since(at).as_nanos() as u64),
        heartbeats_sent: beats.sent(index),
        heartbeats_heard: view.beats_heard,
        heartbeats_missed: view.beats_missed,
        failed_at_ns: view.failed_at.map(|at| at.as_nanos()),
        completed_at_ns: view.completed_at.map(|at| at.as_nanos()),
        cap: view.cap,
        active: traffic.active,
        entering_bytes: traffic.entering_bytes,
        entering_packets: traffic.entering_packets,
        leaving_bytes: traffic.leaving_bytes,
        leaving_packets: traffic.leaving_packets,
        cached_packets: view.cached_packets as u64,
        cached_bytes: view.cached_bytes as u64,
        cached_bytes_max: view.cached_bytes_max as u64,
        cache_memory: view.cache_memory as u64,
        cache_memory_max: view.cache_memory_max as u64,
        cache_lost: view.cache_lost,
        cache_dropped_connections: view.cache_dropped_connections,
        resent_entering: view.resent_entering,
        resent_entering_bytes: kernel.resent_entering_bytes(index),
        resent_leaving: view.resent_leaving,
        left_to_senders: view.left_to_senders,
    }
}
