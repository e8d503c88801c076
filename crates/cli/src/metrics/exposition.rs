//! Converts a [`NodeStatus`] into Prometheus' text exposition format 0.0.4. docs/operating.md says what each metric means.

use std::collections::BTreeMap;

use proto::action::ApplicationState as Application;
use proto::path::Reachability;
use proto::role::Role as State;

use super::page::{MetricsPage, number, seconds, yes};
use crate::control::{
    AnnexStatus, NodeStatus, OrderActivity, PeerStatus, RingStatus, ServiceMode, ServiceStatus,
    TakeoverStatus, WitnessStatus,
};

/// Entries of [`ServiceStatus::counters`] that can also decrease. The page shows them as gauges, not in `steadfast_events_total`.
const NO_COUNTERS: [&str; 3] = ["handshakes", "relayed_live", "relayed_input_kept"];

/// The page of metrics for `status`.
pub fn exposition(status: &NodeStatus) -> String {
    let page = MetricsPage::new();
    add(&page, status);
    page.text()
}

/// The page of metrics of a node with several peers: of each agent the name, and its status unless it does not answer. The label `pair` has
/// the name.
pub fn exposition_of_pairs(agents: &[(String, Option<NodeStatus>)]) -> String {
    let page = MetricsPage::new();
    page.gauge(
        "steadfast_agent_up",
        "Whether the agent for this pair answers.",
        &["pair"],
        agents
            .iter()
            .map(|(name, status)| (vec![name.as_str()], yes(status.is_some()))),
    );
    for (name, status) in agents {
        if let Some(status) = status {
            add(&page.of_pair(name), status);
        }
    }
    page.text()
}

fn add(page: &MetricsPage, status: &NodeStatus) {
    node(page, status);
    peer(page, &status.peer);
    witness(page, status.witness.as_ref());
    roles(page, &status.services);
    leases(page, &status.services);
    paths(page, &status.services);
    connections(page, &status.services);
    migrations(page, &status.services);
    replicas(page, &status.services);
    logs(page, &status.services);
    takeovers(page, &status.services);
}

impl MetricsPage {
    /// A gauge with one sample for each service, except services for which `read` returns `None`.
    fn each(
        &self,
        name: &str,
        help: &str,
        services: &[ServiceStatus],
        read: impl Fn(&ServiceStatus) -> Option<f64>,
    ) {
        let sample = |service| Some((name_of(service), read(service)?));
        self.gauge(name, help, &["service"], services.iter().filter_map(sample));
    }
}

fn annex_of<'a>(service: &'a ServiceStatus, annex: &'a AnnexStatus) -> Vec<&'a str> {
    vec![&service.name, &annex.name]
}

fn name_of(service: &ServiceStatus) -> Vec<&str> {
    vec![&service.name]
}

fn node(page: &MetricsPage, status: &NodeStatus) {
    let names = vec![status.node.as_str(), &status.peer.name, env!("CARGO_PKG_VERSION")];
    page.gauge(
        "steadfast_node_info",
        "This node, its peer, and the version that this node runs.",
        &["node", "peer", "version"],
        [(names, 1.0)],
    );
    let rings = [
        ("connections", status.rings.connections),
        ("opening", status.rings.opening),
    ];
    let ring = |name: &str, help: &str, read: fn(RingStatus) -> f64| {
        let samples = rings.map(|(ring, status)| (vec![ring], read(status)));
        page.gauge(name, help, &["ring"], samples);
    };
    ring(
        "steadfast_ring_fill_bytes",
        "Bytes that the wire has logged and the agent has not read yet.",
        |ring| number(ring.fill_bytes),
    );
    ring(
        "steadfast_ring_size_bytes",
        "Bytes that fit into the ring.",
        |ring| number(ring.size_bytes),
    );
    ring(
        "steadfast_ring_fill_ratio",
        "Filled share of the ring, 0 to 1.",
        |ring| number(ring.fill_bytes) / number(ring.size_bytes.max(1)),
    );
}

fn peer(page: &MetricsPage, peer: &PeerStatus) {
    page.gauge(
        "steadfast_peer_alive",
        "Whether the peer's heartbeats arrive.",
        &[],
        [(vec![], yes(peer.alive))],
    );
    page.gauge(
        "steadfast_peer_heartbeat_age_seconds",
        "Time since the peer's last heartbeat; absent before the first.",
        &[],
        peer.heartbeat_age_ns.map(|age| (vec![], seconds(age))),
    );
    let links: Vec<_> = peer
        .links
        .iter()
        .map(|link| (link.address.to_string(), link.heard_age_ns))
        .collect();
    page.gauge(
        "steadfast_peer_link_age_seconds",
        "Time since the peer was heard over the link; infinite before the first time.",
        &["address"],
        links
            .iter()
            .map(|(address, age)| (vec![address.as_str()], age.map_or(f64::INFINITY, seconds))),
    );
    let channel = peer.channel.as_ref();
    page.gauge(
        "steadfast_peer_channel_established",
        "1 if the SCTP association with the peer is established, otherwise 0; absent without `transport = \"sctp\"`.",
        &[],
        channel.map(|channel| (vec![], yes(channel.established))),
    );
    page.gauge(
        "steadfast_peer_channel_overdue",
        "1 if the peer has been heard for 10 s and there is still no SCTP association with it, otherwise 0.",
        &[],
        channel.map(|channel| (vec![], yes(channel.overdue))),
    );
    page.counter(
        "steadfast_peer_channel_associations_total",
        "SCTP associations with the peer since the agent's start.",
        &[],
        channel.map(|channel| (vec![], number(channel.associations))),
    );
    page.counter(
        "steadfast_peer_refused_total",
        "Datagrams from the peer's addresses that this node refused, by reason.",
        &["reason"],
        peer.refused
            .iter()
            .map(|(reason, &count)| (vec![reason.as_str()], number(count))),
    );
}

/// Adds no sample if there is no witness.
fn witness(page: &MetricsPage, witness: Option<&WitnessStatus>) {
    page.gauge(
        "steadfast_witness_reachable",
        "1 if the witness answered the last question, otherwise 0; absent without a witness.",
        &[],
        witness.map(|witness| (vec![], yes(witness.reachable))),
    );
    page.gauge(
        "steadfast_witness_answer_age_seconds",
        "Time since the witness's last answer; absent before the first.",
        &[],
        witness.and_then(|witness| Some((vec![], seconds(witness.answer_age_ns?)))),
    );
    page.gauge(
        "steadfast_witness_epoch",
        "The latest epoch that the witness granted, by service and by the node that has it.",
        &["service", "owner"],
        witness.iter().flat_map(|witness| {
            let owners = witness.owners.iter();
            owners.map(|(service, at)| (vec![service.as_str(), at.owner.as_str()], number(at.epoch)))
        }),
    );
}

fn roles(page: &MetricsPage, services: &[ServiceStatus]) {
    let states = State::ALL.map(|state| (state, state.to_string()));
    page.gauge(
        "steadfast_service_state",
        "State of this node for the service: 1 for its current state, 0 for the others.",
        &["service", "state"],
        services.iter().flat_map(|service| {
            states.iter().map(move |(state, name)| {
                let is = yes(*state == service.state);
                (vec![service.name.as_str(), name.as_str()], is)
            })
        }),
    );
    page.each(
        "steadfast_service_duplex",
        "1 if both nodes do their part, so that the next failure is masked, otherwise 0.",
        services,
        |service| Some(yes(service.mode == ServiceMode::Duplex)),
    );
    page.gauge(
        "steadfast_service_simplex",
        "1 with the reason why the service is simplex; absent while it is duplex.",
        &["service", "reason"],
        services.iter().filter_map(|service| {
            Some((
                vec![service.name.as_str(), service.simplex_reason.as_deref()?],
                1.0,
            ))
        }),
    );
    page.each(
        "steadfast_service_failed",
        "1 if a step of this node's network setup failed, so that the service is mute here, otherwise 0.",
        services,
        |service| Some(yes(service.failure.is_some())),
    );
    page.each(
        "steadfast_service_epoch",
        "The service's epoch. Grows by one when a pair begins, when a node begins to speak alone, and when a node that \
         came back is accepted as the wire.",
        services,
        |service| Some(number(service.epoch)),
    );
    let applications = [
        (Application::Alive, "alive"),
        (Application::Dead, "dead"),
        (Application::Hung, "hung"),
    ];
    page.gauge(
        "steadfast_application_state",
        "State of the service's application on this node: 1 for its current state, 0 for the others.",
        &["service", "state"],
        services.iter().flat_map(|service| {
            applications.map(|(state, name)| {
                let is = yes(service.application == state);
                (vec![service.name.as_str(), name], is)
            })
        }),
    );
}

fn leases(page: &MetricsPage, services: &[ServiceStatus]) {
    page.each(
        "steadfast_lease_seconds",
        "The lease as configured. A primary may claim the VIP once its wire is declared dead and 17/16 of the lease have \
         passed since the wire was last heard.",
        services,
        |service| Some(seconds(service.lease.configured_ns)),
    );
    page.each(
        "steadfast_lease_left_seconds",
        "Time until this node may claim the VIP, if the wire stays silent; absent if this node has nothing to claim.",
        services,
        |service| service.lease.left_ns.map(seconds),
    );
    page.each(
        "steadfast_may_speak_seconds",
        "Time for which this node may still speak if it hears nothing more; 0 if it must ask the arbiter first. Absent if the \
         right to speak has no end, and on nodes that are neither the wire nor alone.",
        services,
        |service| service.lease.may_speak_ns.map(seconds),
    );
}

/// Counts by reason, with each number in a reason replaced by `N`, so that the number of label values stays bounded.
fn by_kind(reasons: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut kinds = BTreeMap::new();
    for (reason, count) in reasons {
        let is_number = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
        let words: Vec<_> = reason
            .split(' ')
            .map(|word| if is_number(word) { "N" } else { word })
            .collect();
        *kinds.entry(words.join(" ")).or_default() += count;
    }
    kinds
}

fn paths(page: &MetricsPage, services: &[ServiceStatus]) {
    page.each(
        "steadfast_service_path_works",
        "1 if no part of the service's path is known to be broken, otherwise 0.",
        services,
        |service| Some(yes(service.path.fault.is_none())),
    );
    let reached = |outside| match outside {
        Reachability::Unknown => None,
        Reachability::Reached | Reachability::Suspected => Some(1.0),
        Reachability::Lost => Some(0.0),
    };
    let samples = services.iter().flat_map(|service| {
        let nodes = [("own", service.path.outside), ("peer", service.path.peer_outside)];
        nodes.map(|(node, outside)| Some((vec![service.name.as_str(), node], reached(outside)?)))
    });
    page.gauge(
        "steadfast_service_outside_reached",
        "1 if outside hosts answer a node through the service's interface, or if their answer is only late; 0 if they do not \
         answer; absent if none has ever answered.",
        &["service", "node"],
        samples.flatten(),
    );
    let losses = services
        .iter()
        .map(|service| (name_of(service), number(service.path.losses)));
    page.counter(
        "steadfast_service_path_losses_total",
        "Number of times that the service's path broke since the agent's start.",
        &["service"],
        losses,
    );
}

fn connections(page: &MetricsPage, services: &[ServiceStatus]) {
    page.gauge(
        "steadfast_connections",
        "Connections by protection. Protected connections would continue if the primary failed now; others would be lost. \
         Ambiguous: conflicting copies of the same bytes were seen.",
        &["service", "protection"],
        services.iter().flat_map(|service| {
            let counts = service.connections;
            let by = [
                ("protected", counts.protected),
                ("ambiguous", counts.ambiguous),
                ("unprotected", counts.unprotected),
            ];
            by.map(|(protection, count)| (vec![service.name.as_str(), protection], number(count)))
        }),
    );
    page.each(
        "steadfast_connections_complete",
        "0 on a wire until the primary has listed the connected clients, otherwise 1. While it is 0, connections may be missing \
         from the counts, and the missing connections are not protected.",
        services,
        |service| Some(yes(service.connections_complete)),
    );
    let reasons: Vec<_> = services.iter().map(|service| by_kind(&service.reasons)).collect();
    page.gauge(
        "steadfast_connections_not_protected",
        "Connections that would be lost if the primary failed now, by reason; N in a reason stands for a number.",
        &["service", "reason"],
        services.iter().zip(&reasons).flat_map(|(service, reasons)| {
            reasons
                .iter()
                .map(|(reason, &count)| (vec![service.name.as_str(), reason.as_str()], number(count)))
        }),
    );
    page.each(
        "steadfast_relayed_connections",
        "Connections that were taken over and that the keeper relays.",
        services,
        |service| Some(number(service.relayed)),
    );
    page.each(
        "steadfast_relayed_connections_kept",
        "Relayed connections whose whole input is kept, so that the other node can protect them again.",
        services,
        |service| service.counters.get("relayed_input_kept").copied().map(number),
    );
    page.each(
        "steadfast_handshakes",
        "Handshakes under way.",
        services,
        |service| service.counters.get("handshakes").copied().map(number),
    );
    page.counter(
        "steadfast_events_total",
        "Packets, relayed connections and their requests, by outcome.",
        &["service", "event"],
        services.iter().flat_map(|service| {
            let counters = service.counters.iter();
            counters
                .filter(|(event, _)| !NO_COUNTERS.contains(&event.as_str()))
                .map(|(event, &count)| (vec![service.name.as_str(), event.as_str()], number(count)))
        }),
    );
}

fn migrations(page: &MetricsPage, services: &[ServiceStatus]) {
    page.each(
        "steadfast_connections_to_migrate",
        "Connections that were ordered to move to the other node, and have not moved yet.",
        services,
        |service| Some(number(service.migrations.pending as u64)),
    );
    page.each(
        "steadfast_reversed_connections",
        "Connections whose application is on the backup, while the primary logs them.",
        services,
        |service| Some(number(service.reversed)),
    );
    let annexes = |read: fn(&AnnexStatus) -> f64| {
        services.iter().flat_map(move |service| {
            let of_annex = move |annex| (annex_of(service, annex), read(annex));
            service.annexes.iter().map(of_annex)
        })
    };
    let labels = ["service", "annex"];
    page.gauge(
        "steadfast_annex_up",
        "Whether the annex can take connections of the service, as its wire knows.",
        &labels,
        annexes(|annex| f64::from(u8::from(annex.is_up))),
    );
    page.gauge(
        "steadfast_annex_connections",
        "Connections of the service that live on the annex.",
        &labels,
        annexes(|annex| number(annex.connections)),
    );
    page.each(
        "steadfast_annex_list_stale",
        "Whether the list of registered annexes was last read too long ago. Known annexes stay.",
        services,
        |service| Some(f64::from(u8::from(service.registry.as_ref()?.is_stale))),
    );
    page.each(
        "steadfast_annex_list_problems",
        "Entries of annexes that cannot be used, as far as they are shown.",
        services,
        |service| Some(number(service.registry.as_ref()?.problems.len() as u64)),
    );
    page.counter(
        "steadfast_migrations_total",
        "Connections that were ordered to move to the other node, by outcome: moved, or stayed here.",
        &["service", "outcome"],
        services.iter().flat_map(|service| {
            let outcomes = [
                ("moved", service.migrations.moved),
                ("stayed", service.migrations.stayed),
            ];
            outcomes.map(|(outcome, count)| (vec![service.name.as_str(), outcome], number(count)))
        }),
    );
}

fn replicas(page: &MetricsPage, services: &[ServiceStatus]) {
    page.each(
        "steadfast_state_synced",
        "1 if the replica's server has the same state as the primary's server, otherwise 0.",
        services,
        |service| service.state_sync.as_ref().map(|sync| yes(sync.synced)),
    );
    page.each(
        "steadfast_state_missed_bytes",
        "Bytes that connections without a replica have sent since the primary's state was copied.",
        services,
        |service| {
            let sync = service.state_sync.as_ref();
            sync.map(|sync| number(sync.missed_bytes))
        },
    );
    page.each(
        "steadfast_recorded_order",
        "1 if this node's server is recorded and its backup takes the record, or if it plays a record back; otherwise 0.",
        services,
        |service| {
            let order = service.recorded_order.as_ref();
            order.map(|order| yes(matches!(order.activity, OrderActivity::Records | OrderActivity::Plays)))
        },
    );
}

fn logs(page: &MetricsPage, services: &[ServiceStatus]) {
    page.each(
        "steadfast_log_bytes",
        "Bytes of the logs of all connections of the service.",
        services,
        |service| Some(number(service.log_bytes)),
    );
    page.each(
        "steadfast_log_limit_bytes",
        "Maximum of steadfast_log_bytes.",
        services,
        |service| Some(number(service.log_limit_bytes)),
    );
    page.each(
        "steadfast_connection_log_bytes",
        "Bytes of the largest log of one connection.",
        services,
        |service| Some(number(service.connection_log_bytes)),
    );
    page.each(
        "steadfast_connection_log_limit_bytes",
        "Maximum size of the log of one connection.",
        services,
        |service| Some(number(service.connection_log_limit_bytes)),
    );
    page.each(
        "steadfast_spilled_bytes",
        "Bytes of the logs of the service that are in files.",
        services,
        |service| Some(number(service.spilled_bytes)),
    );
    page.each(
        "steadfast_spill_limit_bytes",
        "Maximum of steadfast_spilled_bytes; 0 if nothing goes to files.",
        services,
        |service| Some(number(service.spill_limit_bytes)),
    );
    page.each(
        "steadfast_slowed_connections",
        "Connections whose clients are slowed because their logs are nearly full.",
        services,
        |service| Some(number(service.slowed)),
    );
    page.each(
        "steadfast_unfollowed_bytes",
        "Bytes that the primary has accepted or sent and that a replica has not read or sent yet; 0 without a replica.",
        services,
        |service| Some(number(service.lag.unfollowed_bytes)),
    );
    page.each(
        "steadfast_unacknowledged_input_bytes",
        "Bytes of the in-logs that the primary has not acknowledged yet.",
        services,
        |service| Some(number(service.lag.unacknowledged_bytes)),
    );
}

/// Reads a metric's value from a takeover's report.
type MetricReader<T> = fn(&TakeoverStatus) -> T;

fn takeovers(page: &MetricsPage, services: &[ServiceStatus]) {
    page.counter(
        "steadfast_takeovers_total",
        "Takeovers since the agent's start.",
        &["service"],
        services
            .iter()
            .map(|service| (name_of(service), number(service.takeover_sums.takeovers))),
    );
    page.counter(
        "steadfast_takeover_connections_total",
        "Connections that takeovers restored or reset since the agent's start, by outcome.",
        &["service", "outcome"],
        services.iter().flat_map(|service| {
            let sums = service.takeover_sums;
            let outcomes = [("restored", sums.restored), ("reset", sums.reset)];
            outcomes.map(|(outcome, sum)| (vec![service.name.as_str(), outcome], number(sum)))
        }),
    );
    let steps: [(&str, MetricReader<Option<u64>>); 3] = [
        ("gate_closed", |takeover| Some(takeover.gate_closed_ns)),
        ("first_live", |takeover| takeover.first_live_ns),
        ("last_live", |takeover| takeover.last_live_ns),
    ];
    page.gauge(
        "steadfast_last_takeover_seconds",
        "Time from the declaration of the primary's failure to a step of the last takeover.",
        &["service", "step"],
        services.iter().flat_map(|service| {
            let last = service.takeovers.last();
            steps.into_iter().filter_map(move |(step, read)| {
                let (last, name) = (last?, service.name.as_str());
                let took = read(last)?.saturating_sub(last.declared_ns);
                Some((vec![name, step], seconds(took)))
            })
        }),
    );
}
