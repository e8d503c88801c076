//! Converts an [`EdgeStatus`] into a page of metrics. docs/operating.md says what each metric means.

use proto::edge::phase::StringPhase;

use super::page::{MetricsPage, number, seconds, yes};
use crate::control::{EdgeStatus, StringStatus};

/// Counters that `steadfast_edge_events_total` leaves out, because each is the sum over all strings of a metric of [`packets`].
const SUMS: [&str; 4] = [
    "entering_bytes",
    "entering_packets",
    "leaving_bytes",
    "leaving_packets",
];

/// The page of metrics for `status`.
pub fn edge_exposition(status: &EdgeStatus) -> String {
    let page = MetricsPage::new();
    edge(&page, status);
    states(&page, &status.strings);
    heartbeats(&page, status);
    packets(&page, &status.strings);
    cache(&page, status);
    sent_again(&page, status);
    rate(&page, status);
    page.text()
}

impl MetricsPage {
    /// A gauge with one sample for each string, except strings for which `read` returns `None`.
    fn each_string(
        &self,
        name: &str,
        help: &str,
        strings: &[StringStatus],
        read: impl Fn(&StringStatus) -> Option<f64>,
    ) {
        let sample = |string| Some((name_of(string), read(string)?));
        self.gauge(name, help, &["string"], strings.iter().filter_map(sample));
    }

    /// A counter with one sample for each string.
    fn count_each_string(
        &self,
        name: &str,
        help: &str,
        strings: &[StringStatus],
        read: impl Fn(&StringStatus) -> u64,
    ) {
        let sample = |string| (name_of(string), number(read(string)));
        self.counter(name, help, &["string"], strings.iter().map(sample));
    }
}

fn name_of(string: &StringStatus) -> Vec<&str> {
    vec![&string.name]
}

fn edge(page: &MetricsPage, status: &EdgeStatus) {
    let names = vec![status.edge.as_str(), &status.peer, env!("CARGO_PKG_VERSION")];
    page.gauge(
        "steadfast_edge_info",
        "This edge, the other edge, and the version that this edge runs.",
        &["edge", "peer", "version"],
        [(names, 1.0)],
    );
    page.gauge(
        "steadfast_edge_flows",
        "Flows in the table.",
        &[],
        [(vec![], number(status.flows))],
    );
    page.gauge(
        "steadfast_edge_flows_limit",
        "Maximum of steadfast_edge_flows. In a full table, new flows replace the least recently used ones.",
        &[],
        [(vec![], number(status.flows_max))],
    );
    let events = status.counters.iter();
    page.counter(
        "steadfast_edge_events_total",
        "Packets and flows by outcome in the data path.",
        &["event"],
        events
            .filter(|(event, _)| !SUMS.contains(&event.as_str()))
            .map(|(event, &count)| (vec![event.as_str()], number(count))),
    );
}

fn states(page: &MetricsPage, strings: &[StringStatus]) {
    page.gauge(
        "steadfast_edge_string_state",
        "State of the string: 1 for its current state, 0 for the others.",
        &["string", "state"],
        strings.iter().flat_map(|string| {
            StringPhase::ALL.map(|phase| {
                let is = yes(phase.name() == string.state);
                (vec![string.name.as_str(), phase.name()], is)
            })
        }),
    );
    page.count_each_string(
        "steadfast_edge_failovers_total",
        "Failures of the string that the two edges have counted.",
        strings,
        |string| string.epoch,
    );
    page.each_string(
        "steadfast_edge_last_failover_seconds",
        "Time from the declaration of the string's last failure here until its flows had moved; absent before the first \
         failure, and while flows wait to be moved.",
        strings,
        |string| {
            let (failed, completed) = (string.failed_at_ns?, string.completed_at_ns?);
            Some(seconds(completed.checked_sub(failed)?))
        },
    );
}

fn heartbeats(page: &MetricsPage, status: &EdgeStatus) {
    let strings = &status.strings;
    page.each_string(
        "steadfast_edge_heartbeat_age_seconds",
        "Time since the other edge's last heartbeat over the string; absent before the first.",
        strings,
        |string| string.heartbeat_age_ns.map(seconds),
    );
    page.count_each_string(
        "steadfast_edge_heartbeats_sent_total",
        "Heartbeats that were sent over the string.",
        strings,
        |string| string.heartbeats_sent,
    );
    page.count_each_string(
        "steadfast_edge_heartbeats_heard_total",
        "Heartbeats of the other edge that arrived over the string.",
        strings,
        |string| string.heartbeats_heard,
    );
    page.count_each_string(
        "steadfast_edge_heartbeats_missed_total",
        "Heartbeats that did not arrive over the string in time, counted from the first heartbeat that arrived.",
        strings,
        |string| string.heartbeats_missed,
    );
    page.counter(
        "steadfast_edge_heartbeats_refused_total",
        "Datagrams at the heartbeats' port that this edge refused, by reason.",
        &["reason"],
        status
            .refused
            .iter()
            .map(|(reason, &count)| (vec![reason.as_str()], number(count))),
    );
}

fn packets(page: &MetricsPage, strings: &[StringStatus]) {
    let directions = |read: fn(&StringStatus) -> [u64; 2]| {
        strings.iter().flat_map(move |string| {
            let [entering, leaving] = read(string);
            [("entering", entering), ("leaving", leaving)]
                .map(|(direction, count)| (vec![string.name.as_str(), direction], number(count)))
        })
    };
    page.counter(
        "steadfast_edge_packets_total",
        "Packets of flows that the edge has sent into the string (entering), or that came out of it (leaving).",
        &["string", "direction"],
        directions(|string| [string.entering_packets, string.leaving_packets]),
    );
    page.counter(
        "steadfast_edge_bytes_total",
        "Bytes of these packets, with all headers.",
        &["string", "direction"],
        directions(|string| [string.entering_bytes, string.leaving_bytes]),
    );
    page.each_string(
        "steadfast_edge_active_flows",
        "Flows of the string with an entering packet in the last second; the rate control's N.",
        strings,
        |string| Some(number(string.active)),
    );
}

fn cache(page: &MetricsPage, status: &EdgeStatus) {
    let strings = &status.strings;
    page.counter(
        "steadfast_edge_copied_bytes_total",
        "Bytes of the packets that were copied for the cache. Their number is the event copied.",
        &[],
        [(vec![], number(status.copied_bytes))],
    );
    page.each_string(
        "steadfast_edge_cached_packets",
        "Packets in the string's cache.",
        strings,
        |string| Some(number(string.cached_packets)),
    );
    page.each_string(
        "steadfast_edge_cached_bytes",
        "Bytes in the string's cache.",
        strings,
        |string| Some(number(string.cached_bytes)),
    );
    page.each_string(
        "steadfast_edge_cached_bytes_max",
        "Most bytes in the string's cache at any time.",
        strings,
        |string| Some(number(string.cached_bytes_max)),
    );
    page.each_string(
        "steadfast_edge_cache_memory_bytes",
        "Bytes of memory that the string's cache takes: its packets, and what the cache knows of them.",
        strings,
        |string| Some(number(string.cache_memory)),
    );
    page.each_string(
        "steadfast_edge_cache_memory_bytes_max",
        "Most bytes of memory that the string's cache took at any time.",
        strings,
        |string| Some(number(string.cache_memory_max)),
    );
    page.gauge(
        "steadfast_edge_cache_limit_bytes",
        "Maximum of the sum of steadfast_edge_cached_bytes over all strings; 0 if nothing is cached.",
        &[],
        [(vec![], number(status.cache_limit_bytes))],
    );
    page.count_each_string(
        "steadfast_edge_cache_lost_total",
        "Packets that found no room in the string's cache, or that were dropped from it to make room.",
        strings,
        |string| string.cache_lost,
    );
    page.count_each_string(
        "steadfast_edge_cache_dropped_connections_total",
        "Connections all of whose packets were dropped from the string's cache, because the edge's cache was full.",
        strings,
        |string| string.cache_dropped_connections,
    );
}

fn sent_again(page: &MetricsPage, status: &EdgeStatus) {
    let strings = &status.strings;
    page.counter(
        "steadfast_edge_resent_packets_total",
        "Packets from the string's cache that were sent again: entering, into strings; leaving, to the outside.",
        &["string", "direction"],
        strings.iter().flat_map(|string| {
            [
                ("entering", string.resent_entering),
                ("leaving", string.resent_leaving),
            ]
            .map(|(direction, count)| (vec![string.name.as_str(), direction], number(count)))
        }),
    );
    let entering = strings.iter().map(|string| string.resent_entering_bytes).sum();
    page.counter(
        "steadfast_edge_resent_bytes_total",
        "Bytes of the packets that were sent again: entering, into strings; leaving, to the outside.",
        &["direction"],
        [("entering", entering), ("leaving", status.resent_leaving_bytes)]
            .map(|(direction, count)| (vec![direction], number(count))),
    );
    page.count_each_string(
        "steadfast_edge_left_to_senders_total",
        "Cached packets that were not sent again, because they exceed the cap on windows, or because the string to which \
         their flows were moved failed, too. Their senders repeat them.",
        strings,
        |string| string.left_to_senders,
    );
}

fn rate(page: &MetricsPage, status: &EdgeStatus) {
    page.each_string(
        "steadfast_edge_window_cap_bytes",
        "The rate control's cap on windows; absent while the windows of the string's flows are not capped.",
        &status.strings,
        |string| string.cap.map(f64::from),
    );
    page.gauge(
        "steadfast_edge_round_trip_seconds",
        "Round trip of the connections without a queue, as measured or configured.",
        &[],
        [(vec![], status.rtt_ms / 1e3)],
    );
}
