use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::config::NodeRole;
use crate::control::{
    Asker, Call, ConnectionCounts, ControlServer, EdgeStatus, LeaseStatus, LinkStatus, NodeStatus,
    PeerStatus, RingStatus, RingsStatus, ServiceMode, ServiceStatus, StateSyncStatus, StringStatus,
    TakeoverStatus, TakeoverTotals, samples,
};
use crate::control::{MigrationStatus, OrderActivity, RecordedOrderStatus};
use crate::stage::StageStatus;

const SUMS: TakeoverTotals = TakeoverTotals {
    takeovers: 20,
    restored: 60,
    reset: 1,
};

fn link(last: u8, heard_age_ns: Option<u64>) -> LinkStatus {
    LinkStatus {
        address: [192, 0, 2, last].into(),
        heard_age_ns,
    }
}

/// The status of a node that is taking over. The node's application hangs.
const MIGRATIONS: MigrationStatus = MigrationStatus {
    pending: 3,
    moved: 5,
    stayed: 2,
    reasons: Vec::new(),
};

const LEASE: LeaseStatus = LeaseStatus {
    configured_ns: 300_000_000,
    left_ns: None,
    may_speak_ns: Some(250_000_000),
};
const COUNTS: ConnectionCounts = ConnectionCounts {
    protected: 20,
    unprotected: 2,
    ambiguous: 1,
};

fn a_playback() -> RecordedOrderStatus {
    RecordedOrderStatus {
        activity: OrderActivity::Plays,
        reason: String::new(),
        age_ns: 1,
    }
}

fn a_status() -> NodeStatus {
    let sample = samples::service();
    let service = ServiceStatus {
        role: NodeRole::Primary,
        mode: ServiceMode::Simplex,
        epoch: 2,
        connections: COUNTS,
        ring_fill_bytes: 8,
        takeovers: vec![TakeoverStatus {
            declared_ns: 1_000_000_000,
            gate_closed_ns: 1_000_010_000,
            first_live_ns: Some(1_001_000_000),
            last_live_ns: None,
            connections: 4,
            restored: 3,
            reset: 1,
        }],
        takeover_sums: SUMS,
        migrations: MIGRATIONS,
        counters: [
            ("logged_in", 9),
            ("handshakes", 5),
            ("relayed_live", 1),
            ("relayed_input_kept", 1),
        ]
        .map(|(name, count)| (name.to_owned(), count))
        .into(),
        state: proto::role::Role::TakingOver,
        peer_state: None,
        simplex_reason: Some("a \"quoted\" reason".to_owned()),
        failure: Some("interface eth1 is gone".to_owned()),
        application: proto::action::ApplicationState::Hung,
        peer_application: None,
        reasons: BTreeMap::from([
            ("relayed; no backup".to_owned(), 1),
            ("the replica's output differs from byte 17 on".to_owned(), 1),
            ("the replica's output differs from byte 4711 on".to_owned(), 2),
        ]),
        relayed: 1,
        lease: LEASE,
        state_sync: Some(StateSyncStatus {
            synced: true,
            state: "synced".to_owned(),
            error: None,
            missed_bytes: 12,
        }),
        recorded_order: Some(a_playback()),
        ..sample
    };
    let full = RingStatus {
        fill_bytes: 8,
        size_bytes: 32,
    };
    let empty = RingStatus {
        fill_bytes: 0,
        size_bytes: 16,
    };
    NodeStatus {
        peer: PeerStatus {
            links: vec![link(3, Some(20_000_000)), link(4, None)],
            ..samples::peer()
        },
        services: vec![service],
        rings: RingsStatus {
            connections: full,
            opening: empty,
        },
        ..samples::status()
    }
}

#[test]
fn a_status_becomes_samples() {
    let page = exposition(&a_status());
    for line in [
        "# HELP steadfast_peer_alive Whether the peer's heartbeats arrive.",
        "# TYPE steadfast_peer_alive gauge",
        "steadfast_peer_alive 1",
        "steadfast_peer_heartbeat_age_seconds 0.02",
        "steadfast_peer_link_age_seconds{address=\"192.0.2.3\"} 0.02",
        "steadfast_peer_link_age_seconds{address=\"192.0.2.4\"} inf",
        "steadfast_peer_refused_total{reason=\"a copy\"} 4",
        "steadfast_witness_reachable 1",
        "steadfast_witness_answer_age_seconds 1.5",
        "steadfast_witness_epoch{owner=\"beta\",service=\"web\"} 7",
        "steadfast_ring_fill_ratio{ring=\"connections\"} 0.25",
        "steadfast_ring_size_bytes{ring=\"opening\"} 16",
        "steadfast_service_state{service=\"web\",state=\"taking over\"} 1",
        "steadfast_service_state{service=\"web\",state=\"sole\"} 0",
        "steadfast_service_duplex{service=\"web\"} 0",
        "steadfast_service_simplex{reason=\"a \\\"quoted\\\" reason\",service=\"web\"} 1",
        "steadfast_service_failed{service=\"web\"} 1",
        "steadfast_application_state{service=\"web\",state=\"hung\"} 1",
        "steadfast_lease_seconds{service=\"web\"} 0.3",
        "steadfast_may_speak_seconds{service=\"web\"} 0.25",
        "steadfast_connections{protection=\"protected\",service=\"web\"} 20",
        "steadfast_connections{protection=\"ambiguous\",service=\"web\"} 1",
        "steadfast_connections{protection=\"unprotected\",service=\"web\"} 2",
        "steadfast_connections_complete{service=\"web\"} 1",
        "steadfast_connections_not_protected{reason=\"relayed; no backup\",service=\"web\"} 1",
        "steadfast_connections_not_protected{reason=\"the replica's output differs from byte N on\",service=\"web\"} 3",
        "steadfast_relayed_connections{service=\"web\"} 1",
        "steadfast_relayed_connections_kept{service=\"web\"} 1",
        "steadfast_connections_to_migrate{service=\"web\"} 3",
        "# TYPE steadfast_reversed_connections gauge",
        "steadfast_reversed_connections{service=\"web\"} 4",
        "# TYPE steadfast_annex_up gauge",
        "steadfast_annex_up{annex=\"gamma\",service=\"web\"} 1",
        "steadfast_annex_connections{annex=\"gamma\",service=\"web\"} 7",
        "steadfast_annex_list_stale{service=\"web\"} 1",
        "steadfast_annex_list_problems{service=\"web\"} 1",
        "# TYPE steadfast_migrations_total counter",
        "steadfast_migrations_total{outcome=\"moved\",service=\"web\"} 5",
        "steadfast_migrations_total{outcome=\"stayed\",service=\"web\"} 2",
        "steadfast_handshakes{service=\"web\"} 5",
        "# TYPE steadfast_events_total counter",
        "steadfast_events_total{event=\"logged_in\",service=\"web\"} 9",
        "steadfast_log_limit_bytes{service=\"web\"} 8192",
        "steadfast_connection_log_bytes{service=\"web\"} 2048",
        "steadfast_spilled_bytes{service=\"web\"} 1024",
        "steadfast_slowed_connections{service=\"web\"} 2",
        "steadfast_unfollowed_bytes{service=\"web\"} 10",
        "steadfast_unacknowledged_input_bytes{service=\"web\"} 11",
        "steadfast_state_synced{service=\"web\"} 1",
        "steadfast_recorded_order{service=\"web\"} 1",
        "steadfast_state_missed_bytes{service=\"web\"} 12",
        "steadfast_takeovers_total{service=\"web\"} 20",
        "steadfast_takeover_connections_total{outcome=\"restored\",service=\"web\"} 60",
        "steadfast_last_takeover_seconds{service=\"web\",step=\"first_live\"} 0.001",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    for absent in ["lease_left", "last_live", "event=\"handshakes\"", "10.0.0."] {
        assert!(!page.contains(absent), "{absent}\n{page}");
    }
}

#[test]
fn what_is_not_known_has_no_sample() {
    let nobody = NodeStatus {
        services: Vec::new(),
        witness: None,
        peer: PeerStatus {
            heartbeat_age_ns: None,
            links: Vec::new(),
            ..a_status().peer
        },
        ..a_status()
    };
    let page = exposition(&nobody);
    assert!(
        !page.contains("_age") && !page.contains("service") && !page.contains("witness"),
        "{page}"
    );
}

/// An edge whose string a has failed. The windows on string b are capped.
fn an_edge() -> EdgeStatus {
    let counters = [
        ("entering_packets", 700),
        ("copied", 30),
        ("copy_lost", 2),
        ("withheld", 3),
    ];
    let string = |name: &str, state: &str| StringStatus {
        name: name.to_owned(),
        state: state.to_owned(),
        epoch: 4,
        heard: state == "up",
        heartbeat_age_ns: Some(5_000_000),
        heartbeats_sent: 900,
        heartbeats_heard: 800,
        heartbeats_missed: 90,
        failed_at_ns: Some(1_000_000_000),
        completed_at_ns: (state == "down").then_some(1_500_000_000),
        cap: (state == "up").then_some(8192),
        active: 12,
        entering_bytes: 70_000,
        entering_packets: 700,
        leaving_bytes: 60_000,
        leaving_packets: 600,
        cached_packets: 5,
        cached_bytes: 5_000,
        cached_bytes_max: 9_000,
        cache_memory: 5_500,
        cache_memory_max: 9_900,
        cache_lost: 6,
        cache_dropped_connections: 5,
        resent_entering: 20,
        resent_entering_bytes: 1_000,
        resent_leaving: 30,
        left_to_senders: 7,
    };
    EdgeStatus {
        edge: "r1".to_owned(),
        peer: "r2".to_owned(),
        strings: vec![string("a", "down"), string("b", "up")],
        flows: 40,
        flows_max: 1024,
        rtt_ms: 20.0,
        copied_bytes: 3_000,
        resent_leaving_bytes: 500,
        cache_limit_bytes: 1 << 20,
        counters: counters.map(|(name, count)| (name.to_owned(), count)).into(),
        refused: BTreeMap::from([("another node's".to_owned(), 4)]),
    }
}

#[test]
fn the_status_of_an_edge_becomes_samples() {
    let page = edge_exposition(&an_edge());
    for line in [
        "steadfast_edge_flows 40",
        "steadfast_edge_flows_limit 1024",
        "steadfast_edge_events_total{event=\"copied\"} 30",
        "steadfast_edge_events_total{event=\"copy_lost\"} 2",
        "steadfast_edge_events_total{event=\"withheld\"} 3",
        "steadfast_edge_string_state{state=\"down\",string=\"a\"} 1",
        "steadfast_edge_string_state{state=\"up\",string=\"a\"} 0",
        "steadfast_edge_string_state{state=\"up\",string=\"b\"} 1",
        "# TYPE steadfast_edge_failovers_total counter",
        "steadfast_edge_failovers_total{string=\"a\"} 4",
        "steadfast_edge_last_failover_seconds{string=\"a\"} 0.5",
        "steadfast_edge_heartbeat_age_seconds{string=\"a\"} 0.005",
        "steadfast_edge_heartbeats_sent_total{string=\"a\"} 900",
        "steadfast_edge_heartbeats_heard_total{string=\"a\"} 800",
        "steadfast_edge_heartbeats_missed_total{string=\"a\"} 90",
        "steadfast_edge_heartbeats_refused_total{reason=\"another node's\"} 4",
        "steadfast_edge_packets_total{direction=\"entering\",string=\"a\"} 700",
        "steadfast_edge_packets_total{direction=\"leaving\",string=\"a\"} 600",
        "steadfast_edge_bytes_total{direction=\"leaving\",string=\"b\"} 60000",
        "steadfast_edge_active_flows{string=\"b\"} 12",
        "steadfast_edge_copied_bytes_total 3000",
        "steadfast_edge_cached_packets{string=\"a\"} 5",
        "steadfast_edge_cached_bytes{string=\"a\"} 5000",
        "steadfast_edge_cached_bytes_max{string=\"a\"} 9000",
        "steadfast_edge_cache_memory_bytes{string=\"a\"} 5500",
        "steadfast_edge_cache_memory_bytes_max{string=\"a\"} 9900",
        "steadfast_edge_cache_limit_bytes 1048576",
        "steadfast_edge_cache_lost_total{string=\"a\"} 6",
        "steadfast_edge_cache_dropped_connections_total{string=\"a\"} 5",
        "steadfast_edge_resent_packets_total{direction=\"entering\",string=\"a\"} 20",
        "steadfast_edge_resent_packets_total{direction=\"leaving\",string=\"a\"} 30",
        "steadfast_edge_resent_bytes_total{direction=\"entering\"} 2000",
        "steadfast_edge_resent_bytes_total{direction=\"leaving\"} 500",
        "steadfast_edge_left_to_senders_total{string=\"a\"} 7",
        "steadfast_edge_window_cap_bytes{string=\"b\"} 8192",
        "steadfast_edge_round_trip_seconds 0.02",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    // String a has no cap. The failover of string b is not complete. Counters that are sums over all strings are not shown as events.
    for absent in [
        "cap_bytes{string=\"a\"}",
        "last_failover_seconds{string=\"b\"}",
        "event=\"entering_packets\"",
    ] {
        assert!(!page.contains(absent), "{absent}\n{page}");
    }
}

#[test]
fn the_status_of_a_tunnel_becomes_samples() {
    let page = tunnel_exposition(&samples::tunnel());
    for line in [
        "steadfast_tunnel_associations 1",
        "steadfast_tunnel_associations_ended_total 1",
        "steadfast_tunnel_connections 7",
        "steadfast_tunnel_connections_limit 256",
        "steadfast_tunnel_connections_total{outcome=\"opened\"} 1000",
        "steadfast_tunnel_connections_total{outcome=\"reset\"} 20",
        "steadfast_tunnel_connections_total{outcome=\"refused\"} 3",
        "steadfast_tunnel_bytes_total{direction=\"received\"} 6291456",
        "steadfast_tunnel_events_total{event=\"malformed\"} 5",
        "steadfast_tunnel_path_state{association=\"0\",path=\"10.1.0.2\",state=\"failed\"} 1",
        "steadfast_tunnel_path_state{association=\"0\",path=\"10.1.0.2\",state=\"active\"} 0",
        "steadfast_tunnel_path_current{association=\"0\",path=\"10.2.0.2\"} 1",
        "steadfast_tunnel_path_round_trip_seconds{association=\"0\",path=\"10.2.0.2\"} 0.01234",
        "steadfast_tunnel_path_rto_seconds{association=\"0\",path=\"10.2.0.2\"} 0.212",
        "steadfast_tunnel_path_window_bytes{association=\"0\",path=\"10.2.0.2\"} 65536",
        "steadfast_tunnel_path_mtu_bytes{association=\"0\",path=\"10.2.0.2\"} 1500",
        "steadfast_tunnel_path_errors{association=\"0\",path=\"10.2.0.2\"} 1",
        "steadfast_tunnel_path_failures_total{association=\"0\",path=\"10.2.0.2\"} 2",
        "steadfast_tunnel_path_timeouts_total{association=\"0\",path=\"10.2.0.2\"} 3",
        "steadfast_tunnel_path_retransmissions_total{association=\"0\",path=\"10.2.0.2\"} 4",
        "steadfast_tunnel_path_lost_heartbeats_total{association=\"0\",path=\"10.2.0.2\"} 5",
        "steadfast_tunnel_path_sent_bytes_total{association=\"0\",path=\"10.2.0.2\"} 3145728",
        "steadfast_tunnel_path_received_bytes_total{association=\"0\",path=\"10.2.0.2\"} 7000",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    let absent = "round_trip_seconds{association=\"0\",path=\"10.1.0.2\"}";
    assert!(!page.contains(absent), "{page}");
}

fn assert_lines(page: &str, lines: &[&str]) {
    for line in lines {
        assert!(page.lines().any(|found| found == *line), "{line}\n{page}");
    }
}

#[test]
fn the_status_of_a_proxy_becomes_samples() {
    let page = proxy_exposition(&samples::proxy());
    let lines = [
        "steadfast_proxy_sessions{phase=\"served\",service=\"web\"} 1",
        "steadfast_proxy_sessions{phase=\"moving\",service=\"web\"} 0",
        "steadfast_proxy_connections_total{outcome=\"opened\",service=\"web\"} 3",
        "steadfast_proxy_connections_total{outcome=\"plain\",service=\"web\"} 1",
        "steadfast_proxy_connections_total{outcome=\"refused\",service=\"web\"} 2",
        "steadfast_proxy_connections_total{outcome=\"lost\",service=\"web\"} 4",
        "steadfast_proxy_moves_total{outcome=\"moved\",service=\"web\"} 2",
        "steadfast_proxy_moves_total{outcome=\"failed\",service=\"web\"} 1",
        "steadfast_proxy_bytes_total{direction=\"sent\",service=\"web\"} 100",
        "steadfast_proxy_bytes_total{direction=\"received\",service=\"web\"} 200000",
    ];
    assert_lines(&page, &lines);
}

#[test]
fn the_counts_of_a_stage_become_samples() {
    let page = stage_exposition(&StageStatus {
        application: "127.0.0.1:8080".parse().unwrap(),
        connections: 1,
        accepted: 2,
        restored: 3,
        kept: 4,
        without_backup: 5,
        not_exported: 6,
        unanswered: 7,
    });
    let lines = [
        "steadfast_stage_connections 1",
        "steadfast_stage_connections_total{event=\"accepted\"} 2",
        "steadfast_stage_connections_total{event=\"restored\"} 3",
        "steadfast_stage_exports_total{outcome=\"kept\"} 4",
        "steadfast_stage_exports_total{outcome=\"without_backup\"} 5",
        "steadfast_stage_exports_total{outcome=\"failed\"} 6",
        "steadfast_stage_unanswered_total 7",
    ];
    assert_lines(&page, &lines);
}

#[test]
fn the_status_of_a_servers_half_becomes_samples() {
    let page = half_exposition(&samples::half());
    let lines = [
        "steadfast_accept_draining 1",
        "steadfast_accept_sessions{state=\"owner\"} 1",
        "steadfast_accept_sessions{state=\"copy\"} 1",
        "steadfast_accept_sessions{state=\"parked\"} 0",
        "steadfast_accept_kept_bytes{of=\"snapshots\"} 4196",
        "steadfast_accept_kept_bytes{of=\"logs\"} 512",
        "steadfast_accept_refused_total 6",
        "steadfast_accept_sessions_total{event=\"opened\",service=\"web\"} 3",
        "steadfast_accept_sessions_total{event=\"came\",service=\"web\"} 2",
        "steadfast_accept_sessions_total{event=\"left\",service=\"web\"} 1",
        "steadfast_accept_sessions_total{event=\"ended\",service=\"web\"} 4",
        "steadfast_accept_sessions_total{event=\"failed\",service=\"web\"} 5",
        "steadfast_accept_bytes_total{direction=\"received\",service=\"web\"} 100",
        "steadfast_accept_bytes_total{direction=\"sent\",service=\"web\"} 200000",
    ];
    assert_lines(&page, &lines);
}

/// Prometheus' own tool checks the pages, if the tool is installed.
#[test]
fn promtool_has_nothing_against_them() {
    for page in [
        exposition(&a_status()),
        edge_exposition(&an_edge()),
        tunnel_exposition(&samples::tunnel()),
        proxy_exposition(&samples::proxy()),
        half_exposition(&samples::half()),
    ] {
        check_by_promtool(&page);
    }
}

fn check_by_promtool(page: &str) {
    let tool = std::process::Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn();
    let Ok(mut tool) = tool else {
        eprintln!("skipped: promtool is not installed");
        return;
    };
    let mut input = tool.stdin.take().unwrap();
    input.write_all(page.as_bytes()).unwrap();
    drop(input);
    let outcome = tool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
    assert!(outcome.status.success() && said.is_empty(), "{said}");
}

fn page_of(asker: &Asker) -> impl Fn() -> Result<String, String> + Send + Sync + 'static {
    let asker = asker.clone();
    move || Ok(exposition(&asker.status()?))
}

fn ask(at: SocketAddr, request: &str) -> String {
    let until = Instant::now() + Duration::from_secs(20);
    let mut stream = loop {
        match TcpStream::connect(at) {
            Ok(stream) => break stream,
            // The server has only just been started, and may not listen yet.
            Err(error) => assert!(Instant::now() < until, "{at}: {error}"),
        }
        std::thread::yield_now();
    };
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A GET of `/metrics` gets the page. Other requests get an error, and the agent is not asked. A node that stops has no page.
#[test]
fn it_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let (server, asker, calls) = ControlServer::open(dir.path(), || ()).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let node = std::thread::spawn(move || {
        while let Ok(Call::Status(reply)) = calls.recv() {
            count.fetch_add(1, Ordering::Relaxed);
            reply.send(a_status());
            if count.load(Ordering::Relaxed) == 2 {
                return; // the node stops
            }
        }
    });
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = free.local_addr().unwrap();
    drop(free);
    serve(at, page_of(&asker)).unwrap();

    let page = ask(
        at,
        "GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
    );
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert_eq!(body, exposition(&a_status()));
    for (request, code) in [
        ("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", "404"),
        (
            "POST /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            "405",
        ),
        ("what?\r\n\r\n", "400"),
    ] {
        let answer = ask(at, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{answer}");
    }
    assert_eq!(
        asked.load(Ordering::Relaxed),
        1,
        "only GET /metrics asks the agent"
    );
    asker.status().unwrap();
    node.join().unwrap();
    let source = MetricsSource::new(Box::new(page_of(&asker)));
    assert_eq!(source.page(Instant::now()).unwrap_err(), "the node is stopping");
    drop(server);
}

#[test]
fn the_agent_is_not_asked_again_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, asker, calls) = ControlServer::open(dir.path(), || ()).unwrap();
    let node = std::thread::spawn(move || {
        if let Ok(Call::Status(reply)) = calls.recv() {
            reply.send(a_status());
        }
    });
    let (source, now) = (MetricsSource::new(Box::new(page_of(&asker))), Instant::now());
    let page = source.page(now).unwrap();
    node.join().unwrap(); // the agent answers only once
    let soon = now + FRESH - Duration::from_nanos(1);
    assert_eq!(source.page(soon).unwrap(), page);
    assert_eq!(source.page(now + FRESH).unwrap_err(), "the node is stopping");
}

#[test]
fn several_agents_share_a_page() {
    let agents = [
        ("alpha-beta".to_owned(), Some(samples::status())),
        ("alpha-gamma".to_owned(), Some(samples::status())),
        ("alpha-delta".to_owned(), None),
    ];
    let page = exposition_of_pairs(&agents);
    for line in [
        "steadfast_agent_up{pair=\"alpha-beta\"} 1",
        "steadfast_agent_up{pair=\"alpha-delta\"} 0",
    ] {
        assert!(page.lines().any(|one| one == line), "{line}:\n{page}");
    }
    // Each family is there once, with the samples of both agents.
    for line in exposition(&samples::status())
        .lines()
        .filter(|line| line.starts_with("# TYPE"))
    {
        assert_eq!(page.lines().filter(|one| *one == line).count(), 1, "{line}");
    }
    let peers = page
        .lines()
        .filter(|line| line.starts_with("steadfast_peer_up") || line.starts_with("steadfast_node_info"));
    assert!(peers.clone().count() >= 2, "{page}");
    assert!(peers.clone().all(|line| line.contains("pair=\"alpha-")), "{page}");
}
