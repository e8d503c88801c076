//! What the agent tells who asks.

use std::collections::BTreeMap;

use linux::wire::REASONS;
use proto::Instant;
use proto::action::ServiceIndex;
use proto::connection::Protection;
use proto::node::Node;
use proto::role::Role;

use super::carry_out::Executor;
use crate::config::{self, Policy};
use crate::control::{
    self, ConnectionCounts, ConnectionStatus, Connections, ServiceStatus, Status, TakeoverReport,
};

/// The whole node.
pub fn status(node: &Node, executor: &Executor, peer: &control::PeerStatus, ring_fill_bytes: u64) -> Status {
    let now = linux::clock::now();
    let services = (0..).take(node.config().services.len());
    Status {
        node: node.config().name.clone(),
        peer: control::PeerStatus {
            alive: node.peer_is_alive(now),
            ..peer.clone()
        },
        services: services
            .map(|index| service(node, executor, now, index, ring_fill_bytes))
            .collect(),
    }
}

fn service(
    node: &Node,
    executor: &Executor,
    now: Instant,
    index: ServiceIndex,
    ring_fill_bytes: u64,
) -> ServiceStatus {
    let (role, epoch) = node.role(index);
    let vip = node.vip(index);
    ServiceStatus {
        name: executor.service_name(index).to_owned(),
        address: vip.ip(),
        port: vip.port(),
        policy: match node.table(index).config().policy {
            proto::follower::Policy::Http => Policy::Http,
            proto::follower::Policy::Replica => Policy::Replica,
        },
        role: role_of(role, node.config().services[usize::from(index)].is_primary),
        mode: if node.is_duplex(now, index) {
            control::Mode::Duplex
        } else {
            control::Mode::Simplex
        },
        epoch,
        connections: counts(node, index),
        log_bytes: node.table(index).memory(),
        ring_fill_bytes,
        takeovers: node
            .takeovers(index)
            .iter()
            .map(|report| takeover(report, executor, index))
            .collect(),
        counters: counters(node, executor, index),
    }
}

/// In the operator's words a node that speaks alone is a primary in simplex mode.
fn role_of(role: Role, is_primary: bool) -> config::Role {
    match role {
        Role::Primary | Role::Claiming | Role::TakingOver | Role::Sole => config::Role::Primary,
        Role::Backup | Role::Standby => config::Role::Backup,
        Role::Joining if is_primary => config::Role::Primary,
        Role::Joining => config::Role::Backup,
    }
}

fn counts(node: &Node, index: ServiceIndex) -> ConnectionCounts {
    let mut counts = ConnectionCounts::default();
    for (_, connection) in node.table(index).iter() {
        match connection.protection() {
            Protection::Protected => counts.protected += 1,
            Protection::Ambiguous => counts.ambiguous += 1,
            Protection::Unprotected(_) => counts.unprotected += 1,
        }
    }
    counts
}

fn takeover(
    report: &proto::takeover::TakeoverReport,
    executor: &Executor,
    index: ServiceIndex,
) -> TakeoverReport {
    TakeoverReport {
        declared_ns: report.declared.as_nanos(),
        gate_closed_ns: report.gate_closed.as_nanos(),
        first_live_ns: report.first_live.map(Instant::as_nanos),
        last_live_ns: report.last_live.map(Instant::as_nanos),
        connections: report.connections as u64,
        restored: report.restored as u64,
        reset: report.reset as u64,
        ended: executor.relay().ended(index),
    }
}

fn counters(node: &Node, executor: &Executor, index: ServiceIndex) -> BTreeMap<String, u64> {
    let mut counters: BTreeMap<String, u64> = match executor.wire().counters(index) {
        Ok(values) => REASONS.iter().map(|&name| name.to_owned()).zip(values).collect(),
        Err(error) => {
            tracing::warn!(%error, "the wire's counters");
            BTreeMap::new()
        }
    };
    let unfollowed = node.unfollowed(index);
    counters.insert("segments_malformed".into(), unfollowed.malformed);
    counters.insert("segments_of_unknown_connections".into(), unfollowed.unknown);
    counters.insert("handshakes".into(), node.table(index).handshakes() as u64);
    counters.extend(executor.relay().counters(index));
    counters
}

/// All connections: those on the wire, then those that were taken over.
pub fn connections(node: &Node, executor: &Executor) -> Connections {
    let mut connections = Vec::new();
    for index in (0..).take(node.config().services.len()) {
        for (_, connection) in node.table(index).iter() {
            let (protection, reason) = match connection.protection() {
                Protection::Protected => (control::Protection::Protected, String::new()),
                Protection::Ambiguous => (
                    control::Protection::Ambiguous,
                    "conflicting copies were seen".into(),
                ),
                Protection::Unprotected(cause) => (control::Protection::Unprotected, cause.to_string()),
            };
            connections.push(ConnectionStatus {
                service: executor.service_name(index).to_owned(),
                client: connection.client(),
                protection,
                reason,
                in_offset: connection.input().frontier().0,
                out_offset: connection.output().frontier().0,
                log_bytes: connection.memory() as u64,
                live_ns: None,
            });
        }
        connections.extend(executor.relay().connections(index, executor.service_name(index)));
    }
    Connections { connections }
}
