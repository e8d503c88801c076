//! Converts a [`TunnelStatus`] into a page of metrics. docs/operating.md says what each metric means.

use super::page::{MetricsPage, number, yes};
use crate::control::{TunnelPathStatus, TunnelStatus};

/// States of a path.
const STATES: [&str; 4] = ["active", "doubtful", "failed", "unconfirmed"];

/// A path with its labels: the number of its association, and its address.
type LabelledPath<'a> = ([String; 2], &'a TunnelPathStatus);

/// The page of metrics for `status`.
pub fn tunnel_exposition(status: &TunnelStatus) -> String {
    let page = MetricsPage::new();
    let paths: Vec<LabelledPath<'_>> = status
        .associations
        .iter()
        .enumerate()
        .flat_map(|(number, association)| {
            let labels = move |path: &TunnelPathStatus| [number.to_string(), path.address.to_string()];
            association.paths.iter().map(move |path| (labels(path), path))
        })
        .collect();
    whole(&page, status);
    connections(&page, status);
    states(&page, &paths);
    measures(&page, &paths);
    counts(&page, &paths);
    page.text()
}

impl MetricsPage {
    fn each_path(
        &self,
        name: &str,
        help: &str,
        paths: &[LabelledPath<'_>],
        read: impl Fn(&TunnelPathStatus) -> Option<f64>,
    ) {
        let sample = |(labels, path): &LabelledPath<'_>| Some((labels.clone(), read(path)?));
        let samples: Vec<_> = paths.iter().filter_map(sample).collect();
        let labelled = samples
            .iter()
            .map(|(labels, value)| (labels.iter().map(String::as_str).collect(), *value));
        self.gauge(name, help, &["association", "path"], labelled);
    }

    fn count_each_path(
        &self,
        name: &str,
        help: &str,
        paths: &[LabelledPath<'_>],
        read: impl Fn(&TunnelPathStatus) -> u64,
    ) {
        let samples = paths.iter().map(|(labels, path)| {
            let labels = labels.iter().map(String::as_str).collect();
            (labels, number(read(path)))
        });
        self.counter(name, help, &["association", "path"], samples);
    }
}

fn whole(page: &MetricsPage, status: &TunnelStatus) {
    let names = vec![status.name.as_str(), &status.role, env!("CARGO_PKG_VERSION")];
    page.gauge(
        "steadfast_tunnel_info",
        "This tunnel, its role, and the version that it runs.",
        &["tunnel", "role", "version"],
        [(names, 1.0)],
    );
    let ready = status.associations.iter().filter(|one| one.ready).count();
    page.gauge(
        "steadfast_tunnel_associations",
        "Associations over which connections can be opened.",
        &[],
        [(vec![], number(ready as u64))],
    );
    page.counter(
        "steadfast_tunnel_associations_ended_total",
        "Associations that ended. All connections of an association end with it.",
        &[],
        [(vec![], number(status.associations_ended))],
    );
    page.counter(
        "steadfast_tunnel_events_total",
        "Counts of packets, chunks, calls (SCTP INIT) and system calls, by event.",
        &["event"],
        status
            .counters
            .iter()
            .map(|(event, &count)| (vec![event.as_str()], number(count))),
    );
}

fn connections(page: &MetricsPage, status: &TunnelStatus) {
    let open = status.associations.iter().map(|one| one.connections).sum();
    page.gauge(
        "steadfast_tunnel_connections",
        "Open connections between the tunnel and local programs.",
        &[],
        [(vec![], number(open))],
    );
    page.gauge(
        "steadfast_tunnel_connections_limit",
        "Maximum number of connections that an association can have at a time.",
        &[],
        [(vec![], number(status.connections_limit))],
    );
    let outcomes = [
        ("opened", status.opened),
        ("reset", status.reset),
        ("refused", status.refused),
    ];
    page.counter(
        "steadfast_tunnel_connections_total",
        "Connections that were opened, that ended by a reset, and that were refused.",
        &["outcome"],
        outcomes.map(|(outcome, count)| (vec![outcome], number(count))),
    );
    let directions = [("sent", status.sent_bytes), ("received", status.received_bytes)];
    page.counter(
        "steadfast_tunnel_bytes_total",
        "Bytes from local programs (sent) and to them (received).",
        &["direction"],
        directions.map(|(direction, count)| (vec![direction], number(count))),
    );
}

fn states(page: &MetricsPage, paths: &[LabelledPath<'_>]) {
    let samples = paths.iter().flat_map(|(labels, path)| {
        STATES.map(|state| {
            let labels = labels.iter().map(String::as_str).chain([state]).collect();
            (labels, yes(path.state == state))
        })
    });
    page.gauge(
        "steadfast_tunnel_path_state",
        "State of the path: 1 for its current state, 0 for the others.",
        &["association", "path", "state"],
        samples,
    );
    page.each_path(
        "steadfast_tunnel_path_current",
        "1 for the path over which new data is sent, 0 for the others.",
        paths,
        |path| Some(yes(path.current)),
    );
}

fn measures(page: &MetricsPage, paths: &[LabelledPath<'_>]) {
    page.each_path(
        "steadfast_tunnel_path_round_trip_seconds",
        "Smoothed round-trip time; absent before it was measured.",
        paths,
        |path| path.rtt_ms.map(|millis| millis / 1e3),
    );
    page.each_path(
        "steadfast_tunnel_path_rto_seconds",
        "Retransmission timeout.",
        paths,
        |path| Some(path.rto_ms / 1e3),
    );
    page.each_path(
        "steadfast_tunnel_path_window_bytes",
        "Congestion window.",
        paths,
        |path| Some(number(path.window_bytes)),
    );
    page.each_path(
        "steadfast_tunnel_path_mtu_bytes",
        "Largest packet that is known to fit, with all headers.",
        paths,
        |path| Some(number(path.mtu)),
    );
    page.each_path(
        "steadfast_tunnel_path_errors",
        "Timeouts in a row.",
        paths,
        |path| Some(number(path.errors)),
    );
}

fn counts(page: &MetricsPage, paths: &[LabelledPath<'_>]) {
    page.count_each_path(
        "steadfast_tunnel_path_failures_total",
        "Times that the path failed.",
        paths,
        |path| path.failures,
    );
    page.count_each_path(
        "steadfast_tunnel_path_timeouts_total",
        "Times that the path's retransmission timer ran out.",
        paths,
        |path| path.timeouts,
    );
    page.count_each_path(
        "steadfast_tunnel_path_retransmissions_total",
        "Packets with retransmitted data.",
        paths,
        |path| path.retransmissions,
    );
    page.count_each_path(
        "steadfast_tunnel_path_lost_heartbeats_total",
        "Heartbeats that were not answered in time, without those of the watch.",
        paths,
        |path| path.lost_heartbeats,
    );
    page.count_each_path(
        "steadfast_tunnel_path_sent_bytes_total",
        "Bytes of SCTP packets that were sent to the path.",
        paths,
        |path| path.sent_bytes,
    );
    page.count_each_path(
        "steadfast_tunnel_path_received_bytes_total",
        "Bytes of SCTP packets that came from the path.",
        paths,
        |path| path.received_bytes,
    );
}
