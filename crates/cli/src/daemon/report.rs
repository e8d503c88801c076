//! The agent's answers to status requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use linux::wire::{REASONS, Rings};
use proto::Instant;
use proto::action::ServiceIndex;
use proto::annex::{AnnexId, ServingNode};
use proto::annex_list::AnnexList;
use proto::connection::{Connection, Protection};
use proto::follower::RestartPolicy;
use proto::migration::MigrationReport;
use proto::node::Node;
use proto::role::Role;
use proto::role::RoleSince;
use proto::service::{PathView, Service};
use proto::state_sync::StateSyncProgress;
use proto::stream::StreamLog;
use proto::table::TableConfig;

use super::kernel::LinuxKernel;
use super::relay::RELAYED;
use crate::config::{self};
use crate::control::{
    self, AnnexStatus, ConnectionCounts, ConnectionStatus, Connections, Lag, LeaseStatus, MigrationStatus,
    NodeStatus, PathStatus, RegistryStatus, RestoredConnections, RingStatus, RingsStatus, ServiceStatus,
    StateSince, StateSyncStatus, TakeoverStatus, TakeoverTotals,
};

/// Maximum number of reasons shown separately. Bounded, because replicas may fail in many ways.
const REASONS_MAX: usize = 32;
/// Name of all further reasons together.
const OTHERS: &str = "other reasons";
/// The reason shown for an ambiguous connection.
const AMBIGUOUS: &str = "conflicting copies of the same bytes were seen";

/// The status of the whole node.
pub fn status(node: &Node, kernel: &LinuxKernel, peer: control::PeerStatus, rings: &Rings) -> NodeStatus {
    let now = linux::clock::now();
    let services = (0..).take(node.config().services.len());
    let age = node.last_heartbeat().map(|at| nanos(now.since(at)));
    NodeStatus {
        node: node.config().name.clone(),
        peer: control::PeerStatus {
            alive: node.peer_is_alive(now),
            heartbeat_age_ns: age,
            ..peer
        },
        services: services
            .map(|index| service(node, kernel, now, index, rings.fill()))
            .collect(),
        rings: RingsStatus {
            connections: ring(&rings.connections),
            opening: ring(&rings.opening),
        },
        arbiter: kernel.arbiter().kind(),
        witness: kernel.arbiter().witness(),
    }
}

fn ring(log: &linux::wire::RingLog) -> RingStatus {
    RingStatus {
        fill_bytes: log.fill(),
        size_bytes: log.size(),
    }
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn service(
    node: &Node,
    kernel: &LinuxKernel,
    now: Instant,
    index: ServiceIndex,
    ring_fill_bytes: u64,
) -> ServiceStatus {
    let of = node.service(index);
    let (state, epoch) = (of.role(), of.epoch());
    let vip = of.vip();
    let table = of.table().config();
    let spills = table.at_limit.spills();
    let simplex = node.simplex(now, index);
    let reversed = of.reversed() as u64;
    // The primary follows those of them that are reversed.
    let relayed = kernel
        .relay()
        .relayed(index)
        .saturating_sub(if of.has_reversed_here() { reversed } else { 0 });
    let mut sums = Sums::over(node, now, index);
    if ends_what_it_relays(node, now, index) {
        sums.add_unprotected(RELAYED, relayed);
    }
    let peer = of.peer_beat();
    ServiceStatus {
        name: kernel.service_name(index).to_owned(),
        address: vip.ip(),
        port: vip.port(),
        policy: table.policy,
        commit: commit(table),
        role: role_of(state, node.config().services[usize::from(index)].is_primary),
        mode: match simplex {
            None => control::ServiceMode::Duplex,
            Some(_) => control::ServiceMode::Simplex,
        },
        epoch,
        connections: sums.counts,
        connections_complete: of.knows_all(),
        log_bytes: of.table().memory(),
        ring_fill_bytes,
        takeovers: of.takeovers().iter().map(takeover).collect(),
        takeover_sums: sums_of(of.takeover_sums()),
        migrations: migrations_of(of.migrations()),
        annexes: annexes(of, kernel, index),
        registry: registry(kernel, index, now),
        reversed,
        counters: counters(node, kernel, index),
        state,
        history: of.roles().map(state_since).collect(),
        peer_state: peer.map(|beat| beat.role),
        simplex_reason: simplex.map(|reason| reason.to_string()),
        failure: of.failure().map(str::to_owned),
        application: of.server(),
        peer_application: peer.map(|beat| beat.server),
        reasons: sums.reasons,
        relayed,
        lag: sums.lag,
        log_limit_bytes: table.bytes_max,
        connection_log_bytes: sums.largest_log,
        connection_log_limit_bytes: table.connection_bytes_max,
        spilled_bytes: spills.map_or(0, |spills| spills.bytes()),
        spill_limit_bytes: spills.map_or(0, |spills| spills.bytes_max()),
        slowed: sums.slowed,
        lease: LeaseStatus {
            configured_ns: nanos(node.config().lease),
            left_ns: node.may_claim_at(index).map(|at| nanos(at.since(now))),
            may_speak_ns: of.right_ends_at().map(|at| nanos(at.since(now))),
        },
        state_sync: state_sync(node, index),
        recorded_order: kernel.ordering.status(index),
        path: path(&of.path(now)),
    }
}

fn commit(table: &TableConfig) -> config::Commit {
    match (table.sends_directly, table.is_immediate) {
        (_, true) => config::Commit::Immediate,
        (true, false) => config::Commit::Pr,
        (false, false) => config::Commit::Prs,
    }
}

fn path(path: &PathView) -> PathStatus {
    PathStatus {
        fault: path.fault.map(|fault| fault.to_string()),
        carrier: path.has_carrier,
        outside: path.own.outside,
        peer_outside: path.peer.outside,
        hears_peer: path.own.hears,
        peer_hears: path.peer.hears,
        losses: path.losses,
    }
}

/// The annexes of a service.
fn annexes(of: &Service, kernel: &LinuxKernel, index: ServiceIndex) -> Vec<AnnexStatus> {
    let list = kernel.annexes.lists().of(index);
    let annexes = list.into_iter().flat_map(AnnexList::annexes);
    let status = annexes.map(|annex| {
        let id = AnnexId::of(&annex.name);
        AnnexStatus {
            name: annex.name.clone(),
            is_up: of.is_up(ServingNode::Annex(id)),
            connections: of.guests().filter(|(_, at)| *at == id).count() as u64,
            address: Some(annex.address),
            is_configured: annex.is_configured,
            is_registered: annex.registered.is_some(),
        }
    });
    status.collect()
}

/// The list of annexes that have registered.
fn registry(kernel: &LinuxKernel, index: ServiceIndex, now: Instant) -> Option<RegistryStatus> {
    let lists = kernel.annexes.lists();
    let list = lists.of(index).filter(|list| list.reads_registry())?;
    Some(RegistryStatus {
        read_age_ns: list.read_at().map(|at| nanos(now.since(at))),
        is_stale: list.stale_since(now).is_some(),
        error: lists.error().map(str::to_owned),
        problems: list.problems().map(str::to_owned).collect(),
    })
}

fn migrations_of(report: MigrationReport) -> MigrationStatus {
    MigrationStatus {
        pending: report.pending,
        moved: report.moved,
        stayed: report.stayed,
        reasons: report.refusals.into_iter().collect(),
    }
}

fn sums_of(sums: proto::takeover::TakeoverSums) -> TakeoverTotals {
    TakeoverTotals {
        takeovers: sums.takeovers,
        restored: sums.restored,
        reset: sums.reset,
    }
}

fn state_since(since: &RoleSince) -> StateSince {
    StateSince {
        at_ns: since.at.as_nanos(),
        state: since.role,
        epoch: since.epoch,
    }
}

fn state_sync(node: &Node, index: ServiceIndex) -> Option<StateSyncStatus> {
    let sync = node
        .service(index)
        .state_sync()
        .filter(|sync| sync.state() != StateSyncProgress::Idle)?;
    Some(StateSyncStatus {
        synced: sync.state() == StateSyncProgress::Synced,
        state: sync.state().to_string(),
        error: sync.why().map(str::to_owned),
        missed_bytes: sync.missed(),
    })
}

/// The role in the operator's terms, where a node that speaks alone is a primary in simplex mode.
fn role_of(role: Role, is_primary: bool) -> config::NodeRole {
    match role {
        Role::Primary | Role::Claiming | Role::TakingOver | Role::Sole => config::NodeRole::Primary,
        Role::Returning | Role::Backup | Role::Standby => config::NodeRole::Backup,
        Role::Joining if is_primary => config::NodeRole::Primary,
        Role::Joining => config::NodeRole::Backup,
    }
}

/// Sums over a service's connections.
#[derive(Default)]
struct Sums {
    counts: ConnectionCounts,
    reasons: BTreeMap<String, u64>,
    lag: Lag,
    largest_log: u64,
    slowed: u64,
}

impl Sums {
    fn over(node: &Node, now: Instant, index: ServiceIndex) -> Self {
        let mut sums = Self::default();
        for (_, connection) in node.service(index).table().iter() {
            match connection.protection() {
                Protection::Protected => sums.counts.protected += 1,
                Protection::Ambiguous => {
                    sums.counts.ambiguous += 1;
                    sums.add_reason(AMBIGUOUS, 1);
                }
                Protection::Unprotected(cause) => sums.add_unprotected(&cause.to_string(), 1),
            }
            let lag = lag(connection);
            sums.lag.unfollowed_bytes += lag.unfollowed_bytes;
            sums.lag.unacknowledged_bytes += lag.unacknowledged_bytes;
            sums.slowed += u64::from(connection.is_capped());
            sums.largest_log = sums.largest_log.max(connection.memory() as u64);
        }
        for (_, cause) in node.service(index).older(now) {
            sums.add_unprotected(&cause.to_string(), 1);
        }
        sums
    }

    fn add_unprotected(&mut self, reason: &str, count: u64) {
        self.counts.unprotected += count;
        self.add_reason(reason, count);
    }

    fn add_reason(&mut self, reason: &str, count: u64) {
        if count == 0 {
            return;
        }
        if let Some(known) = self.reasons.get_mut(reason) {
            *known += count;
            return;
        }
        let is_one_too_many = self.reasons.len() >= REASONS_MAX;
        let reason = if is_one_too_many { OTHERS } else { reason };
        *self.reasons.entry(reason.to_owned()).or_default() += count;
    }
}

/// Number of bytes of a stream that were logged in order.
fn bytes_of(stream: &StreamLog) -> u64 {
    stream.frontier().since(stream.start())
}

fn lag(connection: &Connection) -> Lag {
    let acknowledged = connection.input_acknowledged();
    Lag {
        unfollowed_bytes: connection.follower().behind(acknowledged),
        unacknowledged_bytes: connection.input().frontier().since(acknowledged),
    }
}

fn takeover(report: &proto::takeover::TakeoverReport) -> TakeoverStatus {
    TakeoverStatus {
        declared_ns: report.declared.as_nanos(),
        gate_closed_ns: report.gate_closed.as_nanos(),
        first_live_ns: report.first_live.map(Instant::as_nanos),
        last_live_ns: report.last_live.map(Instant::as_nanos),
        connections: report.connections as u64,
        restored: report.restored as u64,
        reset: report.reset as u64,
    }
}

fn counters(node: &Node, kernel: &LinuxKernel, index: ServiceIndex) -> BTreeMap<String, u64> {
    let mut counters: BTreeMap<String, u64> = match kernel.wire().counters(index) {
        Ok(values) => REASONS.iter().map(|&name| name.to_owned()).zip(values).collect(),
        Err(error) => {
            tracing::warn!(%error, "cannot read the wire's counters; the status lacks them");
            BTreeMap::new()
        }
    };
    let unfollowed = node.service(index).unfollowed();
    counters.insert("segments_malformed".into(), unfollowed.malformed);
    counters.insert("segments_of_unknown_connections".into(), unfollowed.unknown);
    counters.insert(
        "handshakes".into(),
        node.service(index).table().handshakes() as u64,
    );
    counters.extend(kernel.relay().counters(index));
    counters.extend(kernel.ordering.counters(index));
    let table = node.service(index).table();
    if table.config().keep_input {
        let (joined, given_up) = node.service(index).prefixes();
        counters.insert("older_protected_again".into(), joined);
        counters.insert("older_given_up".into(), given_up);
    }
    if table.config().policy == RestartPolicy::Snapshot {
        let has_restart_point = |connection: &Connection| connection.follower().has_restart_point();
        let kept = table
            .iter()
            .filter(|(_, connection)| has_restart_point(connection));
        counters.insert("connections_with_snapshot".into(), kept.count() as u64);
        counters.extend(kernel.exports.counters(index));
    }
    counters
}

/// The fate of the connections that were taken over.
pub fn restored(node: &Node, kernel: &LinuxKernel) -> RestoredConnections {
    let services = (0..).take(node.config().services.len());
    RestoredConnections {
        connections: services
            .flat_map(|index| kernel.relay().restored(index))
            .collect(),
    }
}

/// All connections that this node knows, service by service. For each service in this order: those in its table, older connections (without
/// a log), and relayed connections. If the node has a backup, relayed connections are left out, because they are on the backup's wire.
pub fn connections(node: &Node, kernel: &LinuxKernel) -> Connections {
    let now = linux::clock::now();
    let mut connections = Vec::new();
    for index in (0..).take(node.config().services.len()) {
        let name = kernel.service_name(index);
        for (_, connection) in node.service(index).table().iter() {
            let (protection, reason) = match connection.protection() {
                Protection::Protected => (control::ProtectionStatus::Protected, String::new()),
                Protection::Ambiguous => (control::ProtectionStatus::Ambiguous, AMBIGUOUS.to_owned()),
                Protection::Unprotected(cause) => (control::ProtectionStatus::Unprotected, cause.to_string()),
            };
            connections.push(ConnectionStatus {
                protection,
                reason,
                log_bytes: connection.memory() as u64,
                spilled_bytes: connection.spilled(),
                lag: lag(connection),
                ..unprotected(
                    name,
                    connection.client(),
                    "",
                    [bytes_of(connection.input()), bytes_of(connection.output())],
                )
            });
        }
        let older = node.service(index).older(now);
        connections
            .extend(older.map(|(client, cause)| unprotected(name, client, &cause.to_string(), [0, 0])));
        if ends_what_it_relays(node, now, index) {
            let of = node.service(index);
            let relayed = kernel.relay().clients(index).into_iter();
            connections.extend(
                relayed
                    .filter(|(client, ..)| !of.is_reversed_here(client))
                    .map(|(client, input, output)| unprotected(name, client, RELAYED, [input, output])),
            );
        }
    }
    Connections { connections }
}

/// Whether the connections that this node relays would end if this node failed. This is so if this node has no backup, or if this
/// node is the backup itself and relays a dead worker's connections. Otherwise these connections are on its backup's wire. Reversed
/// connections do not count: the primary follows them.
fn ends_what_it_relays(node: &Node, now: Instant, index: ServiceIndex) -> bool {
    node.simplex(now, index).is_some() || node.service(index).role() == Role::Backup
}

/// Makes the status of an unprotected connection, without log and lag.
fn unprotected(
    service: &str,
    client: SocketAddr,
    reason: &str,
    [input, output]: [u64; 2],
) -> ConnectionStatus {
    ConnectionStatus {
        service: service.to_owned(),
        client,
        protection: control::ProtectionStatus::Unprotected,
        reason: reason.to_owned(),
        in_offset: input,
        out_offset: output,
        log_bytes: 0,
        spilled_bytes: 0,
        lag: Lag::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_bounded_and_none_is_lost() {
        let mut sums = Sums::default();
        for number in 0..100 {
            sums.add_unprotected(&format!("replica: error {number}"), 1);
        }
        sums.add_unprotected("replica: error 0", 2);
        sums.add_unprotected(RELAYED, 0);
        assert_eq!(sums.reasons.len(), REASONS_MAX + 1);
        assert_eq!(sums.reasons["replica: error 0"], 3);
        assert_eq!(sums.reasons[OTHERS], 100 - REASONS_MAX as u64);
        assert_eq!(sums.reasons.values().sum::<u64>(), sums.counts.unprotected);
    }
}
