//! Converts a [`ConnectStatus`] and an [`AcceptStatus`] into pages of metrics. docs/operating.md says what each metric means.

use super::page::{MetricsPage, number, yes};
use crate::control::{AcceptServiceStatus, AcceptStatus, ConnectServiceStatus, ConnectStatus};

/// States of a session at a proxy, without `over`: a session that is over is not shown.
const PHASES: [&str; 4] = ["served", "moving", "released", "seeking"];
/// States of a session at a server.
const STATES: [&str; 5] = ["owner", "parked", "prepared", "empty", "copy"];

/// The page of metrics of a proxy.
pub fn proxy_exposition(status: &ConnectStatus) -> String {
    let page = MetricsPage::new();
    let services = &status.services;
    page.gauge(
        "steadfast_proxy_info",
        "This proxy, and the version that it runs.",
        &["proxy", "version"],
        [(vec![status.name.as_str(), env!("CARGO_PKG_VERSION")], 1.0)],
    );
    let sessions = services.iter().flat_map(|service| {
        PHASES.map(|phase| {
            let count = service.sessions.iter().filter(|one| one.phase == phase).count();
            (vec![service.name.as_str(), phase], number(count as u64))
        })
    });
    page.gauge(
        "steadfast_proxy_sessions",
        "Open sessions, by state.",
        &["service", "phase"],
        sessions,
    );
    page.counter(
        "steadfast_proxy_connections_total",
        "Client programs' connections: sessions that were opened, plain connections, refused ones, and sessions that were lost.",
        &["service", "outcome"],
        services.iter().flat_map(outcomes),
    );
    let moves = services.iter().flat_map(|service| {
        let moves = &service.migrations;
        [("moved", moves.moved), ("failed", moves.stayed)]
            .map(|(outcome, count)| (vec![service.name.as_str(), outcome], number(count)))
    });
    page.counter(
        "steadfast_proxy_moves_total",
        "Moves of sessions, and attempts that failed.",
        &["service", "outcome"],
        moves,
    );
    let bytes = services.iter().flat_map(|service| {
        [("sent", service.sent_bytes), ("received", service.received_bytes)]
            .map(|(direction, count)| (vec![service.name.as_str(), direction], number(count)))
    });
    page.counter(
        "steadfast_proxy_bytes_total",
        "Bytes of sessions from client programs (sent) and to them (received).",
        &["service", "direction"],
        bytes,
    );
    page.text()
}

fn outcomes(service: &ConnectServiceStatus) -> [(Vec<&str>, f64); 4] {
    [
        ("opened", service.opened),
        ("plain", service.plain),
        ("refused", service.refused),
        ("lost", service.lost),
    ]
    .map(|(outcome, count)| (vec![service.name.as_str(), outcome], number(count)))
}

/// The page of metrics of a server's half.
pub fn half_exposition(status: &AcceptStatus) -> String {
    let page = MetricsPage::new();
    page.gauge(
        "steadfast_accept_info",
        "This server among the cooperating ones, and the version that it runs.",
        &["server", "version"],
        [(vec![status.name.as_str(), env!("CARGO_PKG_VERSION")], 1.0)],
    );
    page.gauge(
        "steadfast_accept_draining",
        "1 if the sessions are asked to leave and new ones are refused.",
        &[],
        [(vec![], yes(status.draining))],
    );
    let counted = STATES.map(|state| {
        let of_state = status.sessions.iter().filter(|one| one.state == state);
        (vec![state], number(of_state.count() as u64))
    });
    page.gauge(
        "steadfast_accept_sessions",
        "Sessions of which this server has something, by state.",
        &["state"],
        counted,
    );
    let sums = [
        (
            "snapshots",
            status.sessions.iter().map(|one| one.snapshot_bytes).sum(),
        ),
        ("logs", status.sessions.iter().map(|one| one.log_bytes).sum()),
    ];
    page.gauge(
        "steadfast_accept_kept_bytes",
        "Bytes that are kept for the sessions: states of snapshots, and logs.",
        &["of"],
        sums.map(|(of, count)| (vec![of], number(count))),
    );
    page.counter(
        "steadfast_accept_refused_total",
        "Sessions that were refused.",
        &[],
        [(vec![], number(status.refused))],
    );
    each_service(&page, &status.services);
    page.text()
}

fn each_service(page: &MetricsPage, services: &[AcceptServiceStatus]) {
    let events = services.iter().flat_map(|service| {
        [
            ("opened", service.opened),
            ("came", service.came),
            ("left", service.left),
            ("ended", service.ended),
            ("failed", service.failed),
        ]
        .map(|(event, count)| (vec![service.name.as_str(), event], number(count)))
    });
    page.counter(
        "steadfast_accept_sessions_total",
        "Sessions that began here, came, left and ended here, and failed attempts to connect to the application.",
        &["service", "event"],
        events,
    );
    let bytes = services.iter().flat_map(|service| {
        [("received", service.received_bytes), ("sent", service.sent_bytes)]
            .map(|(direction, count)| (vec![service.name.as_str(), direction], number(count)))
    });
    page.counter(
        "steadfast_accept_bytes_total",
        "Bytes to the application (received) and from it (sent).",
        &["service", "direction"],
        bytes,
    );
}
