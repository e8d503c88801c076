//! Makes the status of an edge.

use std::time::Duration;

use proto::edge::switch::StringView;

use super::beats::Beats;
use super::kernel::EdgeKernel;
use crate::config::EdgeSettings;
use crate::control::{EdgeStatus, StringStatus};

/// The status of an edge whose strings look like this.
pub(super) fn status(
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
        strings: strings.iter().map(string).collect(),
        flows: kernel.wire().flows().unwrap_or(0),
        rtt_ms: round_trip.as_secs_f64() * 1e3,
        counters: counters
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count))
            .collect(),
        refused: beats.refused().collect(),
    }
}

fn string(view: &StringView) -> StringStatus {
    StringStatus {
        name: view.name.clone(),
        state: view.phase.name().to_owned(),
        epoch: view.epoch,
        heard: view.is_heard,
        failed_at_ns: view.failed_at.map(|at| at.as_nanos()),
        completed_at_ns: view.completed_at.map(|at| at.as_nanos()),
        cap: view.cap,
        active: view.traffic.active,
        entering_bytes: view.traffic.entering_bytes,
        cached_packets: view.cached_packets as u64,
        cached_bytes: view.cached_bytes as u64,
        cached_bytes_max: view.cached_bytes_max as u64,
        cache_lost: view.cache_lost,
        resent_entering: view.resent_entering,
        resent_leaving: view.resent_leaving,
        left_to_senders: view.left_to_senders,
    }
}
