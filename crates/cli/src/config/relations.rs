//! Checks that the fields of a configuration agree with each other.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use proto::annex::AnnexId;
use proto::follower::RestartPolicy;

use super::draft::Draft;
use super::peers;
use super::table::ConfigReader;
use super::{
    AnnexSettings, AtLimitSetting, DetectorSettings, LogSettings, NodeRole, NodeSettings, PeerSettings,
    ServiceSettings,
};

/// Reports every pair of fields that contradict each other. Returns the services, each with the index of its peer, or `None` if a field could
/// not be read.
pub(super) fn check(
    reading: &mut ConfigReader<'_>,
    (node, peers): (Option<&NodeSettings>, &[Option<PeerSettings>]),
    has_witness: bool,
    detector: DetectorSettings,
    log: &LogSettings,
    drafts: Vec<Draft>,
) -> Option<Vec<(usize, ServiceSettings)>> {
    limits(reading, node, detector, log);
    peers::names(reading, node, peers);
    let peer_of: Vec<_> = (0..)
        .zip(&drafts)
        .map(|(index, draft)| peers::of(reading, index, draft, peers))
        .collect();
    if peers.len() > 1 {
        peers::shares(reading, peers, &peer_of, &drafts);
    }
    let known = |index: usize| peers[peer_of[index]?].as_ref();
    let vips: Vec<IpAddr> = drafts.iter().filter_map(|draft| draft.address).collect();
    for (index, draft) in drafts.iter().enumerate() {
        alone(reading, index, draft, &vips, known(index));
        if draft.commit.is_direct() {
            direct(reading, index, draft);
            lease_and_limit(reading, index, draft, detector, log);
        }
    }
    for (index, draft) in drafts.iter().enumerate() {
        annexes(
            reading,
            (index, draft),
            (node, known(index)),
            has_witness,
            detector,
        );
    }
    pairwise(reading, &drafts);

    spilling(reading, log, &drafts);

    let mut services = Vec::new();
    for (index, draft) in drafts.into_iter().enumerate() {
        let peer = known(index);
        let role = role(reading, index, &draft, node, peer);
        let service = draft.finish(role, peer.map(|peer| peer.address), log.at_limit);
        services.push(peer_of[index].zip(service));
    }
    services.into_iter().collect()
}

fn limits(
    reading: &mut ConfigReader<'_>,
    node: Option<&NodeSettings>,
    detector: DetectorSettings,
    log: &LogSettings,
) {
    if let Some(node) = node
        && node.agent_timeout < detector.detection()
    {
        let what = format!(
            "is {} ms, shorter than detection (heartbeat_ms × missed = {} ms); allowed: at least that",
            node.agent_timeout.as_millis(),
            detector.detection().as_millis()
        );
        reading.problem("node.agent_timeout_ms", what);
    }
    if log.per_connection_bytes > log.total_bytes {
        let what = format!(
            "is {} MB, more than total_mb ({} MB); allowed: at most total_mb",
            log.per_connection_bytes >> 20,
            log.total_bytes >> 20
        );
        reading.problem("log.per_connection_mb", what);
    }
}

/// Checks the annexes of a service.
fn annexes(
    reading: &mut ConfigReader<'_>,
    (index, draft): (usize, &Draft),
    (node, peer): (Option<&NodeSettings>, Option<&PeerSettings>),
    has_witness: bool,
    detector: DetectorSettings,
) {
    let registers = draft.registered_annexes == Some(true);
    if registers && !has_witness {
        let what = "needs [witness], the etcd cluster in which annexes register";
        reading.problem(&format!("service[{index}].registered_annexes"), what);
    }
    if draft.annexes.is_empty() && !registers {
        return;
    }
    let field = if draft.annexes.is_empty() {
        "registered_annexes"
    } else {
        "annex"
    };
    let place = |at: usize, key: &str| format!("service[{index}].annex[{at}].{key}");
    if draft.policy.is_some_and(|policy| !policy.moves_to_annex()) {
        let what = "annexes do not belong to policy = \"replica\"";
        reading.problem(&format!("service[{index}].{field}"), what);
    }
    if draft.commit.is_direct() {
        let what = "annexes need commit = \"prs\"";
        reading.problem(&format!("service[{index}].{field}"), what);
    }
    if detector.lease.is_zero() {
        reading.problem(
            "detector.lease_ms",
            "is 0, but a service has annexes; allowed: 1 or more",
        );
    }
    if peer.is_some_and(|peer| peer.key_file.is_none()) {
        let what =
            "is missing, but a service has annexes, which accept orders over the network; allowed: a key";
        reading.problem("peer.key_file", what);
    }
    for (at, annex) in draft.annexes.iter().enumerate() {
        let Some(annex) = annex else { continue };
        let is_same = |other: &Option<AnnexSettings>| {
            let id = |one: &AnnexSettings| AnnexId::of(&one.name);
            other.as_ref().is_some_and(|other| id(other) == id(annex))
        };
        if draft.annexes[..at].iter().any(is_same) {
            let what = format!(
                "{:?} names another annex too, or has the same hash as its name",
                annex.name
            );
            reading.problem(&place(at, "name"), what);
        }
        let nodes = [node.map(|node| &node.name), peer.map(|peer| &peer.name)];
        if nodes.contains(&Some(&annex.name)) {
            reading.problem(&place(at, "name"), "is a node of the pair; allowed: another node");
        }
        if draft
            .address
            .is_some_and(|vip| vip.is_ipv4() != annex.address.is_ipv4())
        {
            reading.problem(&place(at, "address"), "is not of the VIP's address family");
        }
    }
}

/// `spill_dir` and `spill_mb` may be set only if a service spills, or if there is no service.
fn spilling(reading: &mut ConfigReader<'_>, log: &LogSettings, drafts: &[Draft]) {
    let spills = |draft: &Draft| draft.at_limit.unwrap_or(log.at_limit) == AtLimitSetting::Spill;
    if drafts.is_empty() || drafts.iter().any(spills) {
        return;
    }
    for key in ["log.spill_dir", "log.spill_mb"] {
        if reading.places.has(key) {
            reading.problem(key, "is of no use: no service has at_limit = \"spill\"");
        }
    }
}

/// Checks that keys that belong to one policy are not with another one.
fn keys_of_policies(reading: &mut ConfigReader<'_>, field: &dyn Fn(&str) -> String, draft: &Draft) {
    use RestartPolicy::{Http, Replay, Replica, Snapshot};
    let keys = [
        ("volatile_headers", draft.volatile_headers.is_some(), Http),
        ("reexecute", draft.reexecute.is_some(), Http),
        ("cut_replies", draft.cut_replies.is_some(), Http),
        ("after_takeover", draft.after_takeover.is_some(), Http),
        ("opaque", draft.opaque.is_some(), Http),
        ("state_sync", draft.state_sync.is_some(), Replica),
        ("recorded_order", draft.recorded_order.is_some(), Replica),
        ("staged_application", draft.staged_application.is_some(), Snapshot),
        ("keep_input", draft.keep_input.is_some(), Replay),
    ];
    for (key, _, only) in keys.into_iter().filter(|&(_, is_there, _)| is_there) {
        if draft.policy.is_some_and(|policy| policy != only) {
            let name = match only {
                Http => "http",
                Replica => "replica",
                Replay => "replay",
                Snapshot => "snapshot",
            };
            reading.problem(&field(key), format!("belongs to policy = \"{name}\" only"));
        }
    }
    if draft.keep_input == Some(true) && draft.commit.is_direct() {
        reading.problem(&field("keep_input"), "needs commit = \"prs\"");
    }
    // Otherwise nobody compares the replica's output, so a divergence would go unnoticed.
    if draft.recorded_order.is_some() && draft.commit.is_direct() {
        reading.problem(&field("recorded_order"), "needs commit = \"prs\"");
    }
}

/// Checks one service by itself.
fn alone(
    reading: &mut ConfigReader<'_>,
    index: usize,
    draft: &Draft,
    vips: &[IpAddr],
    peer: Option<&PeerSettings>,
) {
    let field = |key: &str| format!("service[{index}].{key}");
    keys_of_policies(reading, &field, draft);
    let Some(vip) = draft.address else { return };
    if let Some(host) = draft
        .claim_ping
        .iter()
        .find(|host| host.is_ipv4() != vip.is_ipv4() || **host == vip)
    {
        let what = format!(
            "{host} cannot answer a ping from {vip}; allowed: other hosts' {} addresses",
            family(vip)
        );
        reading.problem(&field("claim_ping"), what);
    }
    let is_a_link = peer.is_some_and(|peer| peer.addresses.contains(&vip));
    if is_a_link || draft.peer_address == Some(vip) {
        reading.problem(
            &field("address"),
            format!("{vip} is the peer's own address; allowed: a free address"),
        );
    }
    if let Some(address) = draft.peer_address.or(peer.map(|peer| peer.address))
        && address.is_ipv4() != vip.is_ipv4()
    {
        let what = format!(
            "the peer's address {address} and the service's address {vip} are of different families; allowed: the \
             peer's {} address on the service's interface",
            family(vip)
        );
        reading.problem(&field("peer_address"), what);
    }
    let applications = [
        ("application", draft.application),
        ("staged_application", draft.staged_application),
    ];
    for (key, application) in applications {
        if let Some(application) = application {
            place_of_application(reading, &field(key), application, vip, vips);
        }
    }
}

/// Checks the settings that a service needs whose output bypasses the wire.
fn lease_and_limit(
    reading: &mut ConfigReader<'_>,
    index: usize,
    draft: &Draft,
    detector: DetectorSettings,
    log: &LogSettings,
) {
    let (field, mode) = (format!("service[{index}].commit"), draft.commit.name());
    if detector.lease.is_zero() {
        let what = format!("{mode:?} needs a lease, but lease_ms is 0; allowed: \"prs\", or a longer lease");
        reading.problem(&field, what);
    }
    if draft.at_limit.unwrap_or(log.at_limit) == AtLimitSetting::Slow {
        let what = format!(
            "{mode:?} cannot slow clients, because the wire does not see the windows that the primary offers; allowed: \"prs\", \
             or another at_limit"
        );
        reading.problem(&field, what);
    }
}

/// Checks a service whose output bypasses the wire.
fn direct(reading: &mut ConfigReader<'_>, index: usize, draft: &Draft) {
    let regenerates = |policy| matches!(policy, RestartPolicy::Replica | RestartPolicy::Replay);
    if let Some(policy) = draft.policy
        && !regenerates(policy)
    {
        let what = format!(
            "{:?} needs an application that generates the output again, but the policy is {policy}; allowed: \"prs\", or \
             policy = \"replica\" or \"replay\"",
            draft.commit.name()
        );
        reading.problem(&format!("service[{index}].commit"), what);
    }
}

/// Checks the address of a local application.
fn place_of_application(
    reading: &mut ConfigReader<'_>,
    field: &str,
    application: SocketAddr,
    vip: IpAddr,
    vips: &[IpAddr],
) {
    if vips.contains(&application.ip()) {
        let what = format!(
            "{application} is at a service's address, where relayed connections would collide with the clients' \
             own; allowed: another address of this node, such as loopback"
        );
        reading.problem(field, what);
    }
    if application.is_ipv4() != vip.is_ipv4() {
        let what = format!(
            "{application} and the service's address {vip} are of different families; allowed: an {} address",
            family(vip)
        );
        reading.problem(field, what);
    }
}

/// Checks the services against each other.
fn pairwise(reading: &mut ConfigReader<'_>, drafts: &[Draft]) {
    let mut names: HashMap<&str, usize> = HashMap::new();
    let mut listeners: HashMap<(IpAddr, u16), usize> = HashMap::new();
    let mut applications: HashMap<SocketAddr, usize> = HashMap::new();
    let mut vips: HashMap<IpAddr, usize> = HashMap::new();
    for (index, draft) in drafts.iter().enumerate() {
        if let Some(name) = &draft.name
            && let Some(first) = first(&mut names, name.as_str(), index)
        {
            let what = format!("{name:?} is the name of service[{first}] too; names must be unique");
            reading.problem(&format!("service[{index}].name"), what);
        }
        let Some(vip) = draft.address else { continue };
        if let Some(first) = first(&mut vips, vip, index) {
            same_place(reading, index, draft, first, &drafts[first]);
        }
        let Some(port) = draft.port else { continue };
        if let Some(first) = first(&mut listeners, (vip, port), index) {
            let what = format!(
                "{} is service[{first}] too; allowed: another address or port",
                SocketAddr::new(vip, port)
            );
            reading.problem(&format!("service[{index}].port"), what);
            continue;
        }
        let application = draft
            .application
            .unwrap_or_else(|| Draft::default_application(vip, port));
        if draft.staged_application == Some(application) {
            let what =
                format!("{application} is the address of the stage itself; allowed: another address or port");
            reading.problem(&format!("service[{index}].staged_application"), what);
        }
        if let Some(staged) = draft.staged_application
            && let Some(first) = first(&mut applications, staged, index)
        {
            let what = format!(
                "{staged} is also an application of service[{first}]; allowed: another address or port"
            );
            reading.problem(&format!("service[{index}].staged_application"), what);
        }
        if let Some(first) = first(&mut applications, application, index) {
            let allowed = match vip {
                IpAddr::V4(_) => format!("another local address, such as 127.0.0.2:{port}"),
                IpAddr::V6(_) => "another port of ::1".to_owned(), // IPv6 has one loopback address
            };
            let what = format!(
                "{application} is also the application of service[{first}]: relayed connections of one client to \
                 both services could have the same addresses and ports; allowed: {allowed}"
            );
            reading.problem(&format!("service[{index}].application"), what);
        }
    }
}

/// Checks that two services with the same VIP agree. They always move together, because an address is on one interface of one node.
fn same_place(reading: &mut ConfigReader<'_>, index: usize, draft: &Draft, first: usize, other: &Draft) {
    let mut agree = |key: &str, agrees: bool| {
        if !agrees {
            let what =
                format!("differs from service[{first}], which has the same address; the two must agree");
            reading.problem(&format!("service[{index}].{key}"), what);
        }
    };
    agree("interface", draft.interface == other.interface);
    agree("peer", draft.peer == other.peer);
    agree("primary", draft.primary == other.primary);
    agree("peer_address", draft.peer_address == other.peer_address);
}

/// The index of the first service with this `key`, unless it is `index` itself.
fn first<K: std::hash::Hash + Eq>(seen: &mut HashMap<K, usize>, key: K, index: usize) -> Option<usize> {
    let first = *seen.entry(key).or_insert(index);
    (first != index).then_some(first)
}

fn role(
    reading: &mut ConfigReader<'_>,
    index: usize,
    draft: &Draft,
    node: Option<&NodeSettings>,
    peer: Option<&PeerSettings>,
) -> Option<NodeRole> {
    let primary = draft.primary.as_ref()?;
    let (node, peer) = (node?, peer?);
    if *primary == node.name {
        return Some(NodeRole::Primary);
    }
    if *primary == peer.name {
        return Some(NodeRole::Backup);
    }
    let what = format!(
        "is {primary:?}; allowed: {:?} (this node) or {:?} (its peer)",
        node.name, peer.name
    );
    reading.problem(&format!("service[{index}].primary"), what);
    None
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}
