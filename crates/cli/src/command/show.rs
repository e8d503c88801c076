//! `steadfast status` and `steadfast connections`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use proto::action::ApplicationState;
use proto::role::Role;
use serde::Serialize;

use super::cli::NodeOption;
use super::error::CommandError;
use super::node::{LocalNode, folders};
use super::stderr::tell;
use super::text::{Align, TextTable, bytes, fold, milliseconds};
use crate::config::{Commit, FOR_MEASURING, NodeRole, STATE_ROOT};
use crate::control::{
    self, AnnexStatus, ArbiterKind, Connections, ControlClientError, LeaseStatus, LinkStatus, NodeStatus,
    OrderActivity, OwnerStatus, PathStatus, PeerStatus, ProtectionStatus, RecordedOrderStatus,
    RegistryStatus, RestoredConnections, RingStatus, ServiceMode, ServiceStatus, StateSince, StateSyncStatus,
    WitnessStatus,
};

/// Maximum number of states shown of a node's history.
const HISTORY_SHOWN: usize = 4;

pub(super) fn status(node: &NodeOption, json: bool) -> Result<(), CommandError> {
    let agents = choose(node)?;
    let [state_dir] = agents.as_slice() else {
        let now_ns = linux::clock::now().as_nanos();
        return show_each(&agents, json, control::status, |status| {
            status_text(status, now_ns)
        });
    };
    if crate::edge::is_edge(state_dir) {
        let status = control::edge_status(state_dir).map_err(no_answer)?;
        return print(&if json {
            to_json(&status)
        } else {
            super::edge::status_text(&status)
        });
    }
    if crate::annex::is_annex(state_dir) {
        let status = control::annex_status(state_dir).map_err(no_answer)?;
        return print(&if json {
            to_json(&status)
        } else {
            super::annex::status_text(&status)
        });
    }
    if crate::tunnel::is_tunnel(state_dir) {
        let status = control::tunnel_status(state_dir).map_err(no_answer)?;
        return print(&if json {
            to_json(&status)
        } else {
            super::tunnel::status_text(&status)
        });
    }
    if crate::connect::is_proxy(state_dir) {
        let status = control::connect_status(state_dir).map_err(no_answer)?;
        return print(&if json {
            to_json(&status)
        } else {
            super::connect::proxy_text(&status)
        });
    }
    if crate::connect::is_half(state_dir) {
        let status = control::accept_status(state_dir).map_err(no_answer)?;
        return print(&if json {
            to_json(&status)
        } else {
            super::connect::half_text(&status)
        });
    }
    let status = control::status(state_dir).map_err(no_answer)?;
    let now_ns = linux::clock::now().as_nanos();
    print(&if json {
        to_json(&status)
    } else {
        status_text(&status, now_ns)
    })
}

pub(super) fn connections(node: &NodeOption, json: bool) -> Result<(), CommandError> {
    show_each(&choose(node)?, json, control::connections, connections_text)
}

pub(super) fn restored(node: &NodeOption, json: bool) -> Result<(), CommandError> {
    let now_ns = linux::clock::now().as_nanos();
    let text = |restored: &RestoredConnections| restored_text(restored, now_ns);
    show_each(&choose(node)?, json, control::restored, text)
}

/// Asks each agent, and prints the answers one after the other. As JSON: the answer of the only agent, or an object with the answers of all. An
/// agent that does not answer is told on stderr, and the command fails after the others' answers.
fn show_each<T: Serialize>(
    agents: &[PathBuf],
    json: bool,
    ask: impl Fn(&Path) -> Result<T, ControlClientError>,
    text: impl Fn(&T) -> String,
) -> Result<(), CommandError> {
    if let [state_dir] = agents {
        let answer = ask(state_dir).map_err(no_answer)?;
        return print(&if json { to_json(&answer) } else { text(&answer) });
    }
    let mut failure = None;
    let mut answers = Vec::new();
    for state_dir in agents {
        match ask(state_dir) {
            Ok(answer) => answers.push(answer),
            Err(error) => {
                tell(format_args!("{error}"));
                failure = Some(no_answer(error));
            }
        }
    }
    if json {
        print(&to_json(&BTreeMap::from([("pairs", &answers)])))?;
    } else {
        let texts: Vec<_> = answers.iter().map(text).collect();
        print(&texts.join("\n"))?;
    }
    failure.map_or(Ok(()), Err)
}

/// The state directories of the agents that `node` names.
pub(super) fn choose(node: &NodeOption) -> Result<Vec<PathBuf>, CommandError> {
    let root = Path::new(STATE_ROOT);
    let is_running = |name: &String| {
        let agents = LocalNode::usual(name.clone()).agents();
        agents
            .iter()
            .any(|agent| control::socket(&agent.state_dir).exists())
    };
    let running = || folders(root).into_iter().filter(is_running).collect();
    let agents = node.agents(running)?;
    Ok(agents.into_iter().map(|agent| agent.state_dir).collect())
}

/// The state directory of the agent that `node` names and that has the service `name`.
pub(super) fn choose_agent_of(node: &NodeOption, name: &str) -> Result<PathBuf, CommandError> {
    let mut agents = choose(node)?;
    if agents.len() == 1 {
        return Ok(agents.remove(0));
    }
    for state_dir in agents {
        let status = control::status(&state_dir).map_err(no_answer)?;
        if service_named(&status, name).is_ok() {
            return Ok(state_dir);
        }
    }
    Err(CommandError::Use(format!(
        "no agent of the node has a service {name}"
    )))
}

pub(super) fn no_answer(error: ControlClientError) -> CommandError {
    match error {
        ControlClientError::NoNode { .. } => CommandError::Missing(vec![error.to_string()]),
        error => CommandError::failed(error),
    }
}

/// The status of the service `name` in the node's `status`.
pub(super) fn service_named<'a>(
    status: &'a NodeStatus,
    name: &str,
) -> Result<&'a ServiceStatus, CommandError> {
    let mut services = status.services.iter();
    services
        .find(|service| service.name == name)
        .ok_or_else(|| CommandError::Use(format!("node {} has no service {name}", status.node)))
}

/// Prints to stdout. A reader that closes the pipe early is no error.
fn print(text: &str) -> Result<(), CommandError> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CommandError::failed(error)),
        _ => Ok(()),
    }
}

fn to_json(answer: &impl Serialize) -> String {
    serde_json::to_string(answer).expect("the answers have string keys only") + "\n"
}

/// The node's status as text. `now_ns` is the current time, of the same clock as the takeovers' times.
pub(super) fn status_text(status: &NodeStatus, now_ns: u64) -> String {
    let NodeStatus {
        node,
        peer,
        services,
        rings,
        arbiter,
        witness,
    } = status;
    let mut head = format!("node {node}, {}\n", peer_text(peer));
    head += &links_text(peer);
    head += &arbiter_text(*arbiter, witness.as_ref());
    head += &format!(
        "rings: connections {}, SYNs {}\n",
        ring_text(rings.connections),
        ring_text(rings.opening)
    );
    let mut text: String = head.lines().map(|line| fold(line, 4)).collect();
    let mut roles = TextTable::new(&[
        ("SERVICE", Align::Left),
        ("ADDRESS", Align::Left),
        ("POLICY", Align::Left),
        ("ROLE", Align::Left),
        ("MODE", Align::Left),
        ("EPOCH", Align::Right),
        ("APPLICATION", Align::Left),
    ]);
    let mut counts = TextTable::new(&[
        ("SERVICE", Align::Left),
        ("PROTECTED", Align::Right),
        ("UNPROTECTED", Align::Right),
        ("AMBIGUOUS", Align::Right),
        ("LOG", Align::Right),
        ("UNREAD", Align::Right),
    ]);
    for service in services {
        roles.row([
            service.name.clone(),
            SocketAddr::new(service.address, service.port).to_string(),
            service.policy.to_string(),
            service.state.to_string(),
            match service.mode {
                ServiceMode::Duplex => "duplex".to_owned(),
                ServiceMode::Simplex => "SIMPLEX".to_owned(),
            },
            service.epoch.to_string(),
            application_text(service.application).to_owned(),
        ]);
        counts.row([
            service.name.clone(),
            service.connections.protected.to_string(),
            service.connections.unprotected.to_string(),
            service.connections.ambiguous.to_string(),
            bytes(service.log_bytes),
            bytes(service.ring_fill_bytes),
        ]);
    }
    for table in [roles.fitted(), counts.fitted()] {
        text += &format!("\n{table}");
    }
    for service in services {
        text += &details_text(service, now_ns);
        text += &takeovers_text(service, now_ns);
        text += &counters_text(service);
    }
    text
}

fn peer_text(peer: &PeerStatus) -> String {
    let alive = if peer.alive { "alive" } else { "SILENT" };
    let heard = peer.heartbeat_age_ns.map_or_else(
        || "no heartbeat yet".to_owned(),
        |age| format!("last heartbeat {} ago", milliseconds(age)),
    );
    let key = if peer.authenticated {
        ""
    } else {
        ", not authenticated"
    };
    format!("peer {} at {}: {alive}, {heard}{key}", peer.name, peer.address)
}

/// The links, the channel and the refused datagrams; empty if there is one link, no channel, and no datagram was refused.
fn links_text(peer: &PeerStatus) -> String {
    let mut text = String::new();
    if peer.links.len() > 1 {
        let link = |link: &LinkStatus| {
            let heard = link.heard_age_ns.map_or_else(
                || "never heard".to_owned(),
                |age| format!("heard {} ago", milliseconds(age)),
            );
            format!("{} {heard}", link.address)
        };
        let links: Vec<_> = peer.links.iter().map(link).collect();
        let _ = writeln!(text, "links: {}", links.join("; "));
    }
    if let Some(channel) = &peer.channel {
        let away = channel.paths.iter().filter(|path| !path.usable);
        let away: Vec<_> = away.map(|path| path.address.to_string()).collect();
        let _ = match (channel.established, away.is_empty()) {
            (false, _) if channel.overdue => {
                let reason = "the peer is heard, but does not answer";
                writeln!(text, "channel: OVERDUE: {reason}; messages are datagrams")
            }
            (false, _) => writeln!(text, "channel: NOT ESTABLISHED, messages are datagrams"),
            (true, true) => writeln!(text, "channel: established, {} paths", channel.paths.len()),
            (true, false) => {
                let (paths, away) = (channel.paths.len(), away.join(", "));
                writeln!(text, "channel: established, {paths} paths; no answer from {away}")
            }
        };
    }
    if !peer.refused.is_empty() {
        let refused = peer
            .refused
            .iter()
            .map(|(reason, count)| format!("{reason} {count}"));
        let _ = writeln!(
            text,
            "refused datagrams: {}",
            refused.collect::<Vec<_>>().join(", ")
        );
    }
    text
}

/// The arbiter, which gives the right to speak; empty under fail-stop.
fn arbiter_text(arbiter: ArbiterKind, witness: Option<&WitnessStatus>) -> String {
    let Some(witness) = witness else {
        return match arbiter {
            ArbiterKind::Fence => "right to speak: the fence command\n".to_owned(),
            ArbiterKind::FailStop | ArbiterKind::Etcd => String::new(),
        };
    };
    let age = witness.answer_age_ns.map_or_else(
        || "never heard".to_owned(),
        |age| format!("last answer {} ago", milliseconds(age)),
    );
    let mut text = match &witness.error {
        Some(error) => format!("witness: NOT REACHABLE, {age} ({error})\n"),
        None => format!("witness: reachable, {age}; nodes: {}\n", witness.nodes.join(", ")),
    };
    for (service, OwnerStatus { epoch, owner }) in &witness.owners {
        let _ = writeln!(text, "witness: {service}: epoch {epoch} is {owner}'s");
    }
    text
}

fn ring_text(ring: RingStatus) -> String {
    let percent = u128::from(ring.fill_bytes) * 100 / u128::from(ring.size_bytes.max(1));
    let (fill, size) = (bytes(ring.fill_bytes), bytes(ring.size_bytes));
    format!("{fill} of {size} ({percent} %)")
}

fn application_text(application: ApplicationState) -> &'static str {
    match application {
        ApplicationState::Alive => "alive",
        ApplicationState::Dead => "DEAD",
        ApplicationState::Hung => "HUNG",
    }
}

/// The commit mode; `None` if it is the default.
fn commit_text(commit: Commit) -> Option<String> {
    match commit {
        Commit::Prs => None,
        Commit::Pr => Some("pr: output goes straight to the clients".to_owned()),
        Commit::Immediate => Some(format!("IMMEDIATE, {FOR_MEASURING}")),
    }
}

fn log_text(service: &ServiceStatus) -> String {
    let log = [
        service.log_bytes,
        service.log_limit_bytes,
        service.connection_log_bytes,
        service.connection_log_limit_bytes,
    ];
    let [log, limit, largest, largest_limit] = log.map(bytes);
    format!("{log} of {limit}; the largest log of one connection: {largest} of {largest_limit}")
}

/// A text for each annex of the service that this node knows of, as the wire, or as a primary that carries.
fn shown_annexes(service: &ServiceStatus) -> impl Iterator<Item = String> {
    let annexes = service.annexes.iter();
    let known = annexes.filter(|annex| annex.is_up || annex.connections > 0 || service.registry.is_some());
    known.map(|annex| {
        // Only the wire, and a primary that carries, have links to annexes.
        let is = if annex.is_up {
            "is there"
        } else if service.state == Role::Primary {
            "is known"
        } else {
            "is NOT THERE"
        };
        let number = number_of_connections(annex.connections);
        format!("{} {is}, {number}{}", annex.name, source_text(annex, service))
    })
}

/// From where this node knows an annex, if annexes may register.
fn source_text(annex: &AnnexStatus, service: &ServiceStatus) -> String {
    let (Some(address), Some(_)) = (annex.address, &service.registry) else {
        return String::new();
    };
    let source = match (annex.is_configured, annex.is_registered) {
        (true, true) => "configured and registered",
        (true, false) => "configured",
        (false, true) => "registered",
        (false, false) => "NOT REGISTERED any more",
    };
    format!("; at {address}, {source}")
}

/// The state of the list of registered annexes, for the operator.
fn registry_texts(registry: &RegistryStatus) -> impl Iterator<Item = String> {
    let stale = registry.is_stale.then(|| {
        let since = registry.read_age_ns.map_or_else(
            || "it has not been read yet".to_owned(),
            |age| format!("it was last read {} s ago", age / 1_000_000_000),
        );
        format!("the list of registered annexes is STALE: {since}; known annexes stay")
    });
    let error = registry.error.iter();
    let error = error.map(|error| format!("the list of registered annexes is not taken over: {error}"));
    let problems = registry.problems.iter().cloned();
    stale.into_iter().chain(error).chain(problems)
}

/// A number of connections, as text.
fn number_of_connections(count: u64) -> String {
    format!("{count} connection{}", if count == 1 { "" } else { "s" })
}

/// The details of a service that do not fit into its line of the table.
fn details_text(service: &ServiceStatus, now_ns: u64) -> String {
    let mut text = format!("\n{} in detail\n", service.name);
    let mut line = |what: &str, how: String| text += &fold(&format!("{what:<13}  {how}"), 15);
    if let Some(reason) = &service.simplex_reason {
        line("simplex", reason.clone());
    }
    if let Some(why) = &service.failure {
        line("FAILED", why.clone());
    }
    if let Some(mode) = commit_text(service.commit) {
        line("commit mode", mode);
    }
    if !service.history.is_empty() {
        line("history", history_text(&service.history, now_ns));
    }
    if let (Some(state), Some(application)) = (service.peer_state, service.peer_application) {
        let application = application_text(application);
        line("peer", format!("{state}; its application: {application}"));
    }
    line("path", path_text(&service.path));
    line("log", log_text(service));
    if service.spill_limit_bytes > 0 {
        let [spilled, limit] = [service.spilled_bytes, service.spill_limit_bytes].map(bytes);
        line("in files", format!("{spilled} of {limit}"));
    }
    if service.slowed > 0 {
        line(
            "slowed",
            format!("{} clients, whose logs are nearly full", service.slowed),
        );
    }
    let lag = [service.lag.unfollowed_bytes, service.lag.unacknowledged_bytes];
    let [unfollowed, unacknowledged] = lag.map(bytes);
    line(
        "lag",
        format!("{unfollowed} not followed, {unacknowledged} of input not acknowledged by the primary"),
    );
    if let Some(text) = lease_text(&service.lease, service.state) {
        line("lease", text);
    }
    if let Some(sync) = &service.state_sync {
        line("replica", state_sync_text(sync));
    }
    if let Some(order) = &service.recorded_order {
        line("order", recorded_order_text(order, service.role));
    }
    if service.reversed > 0 {
        let moved = number_of_connections(service.reversed);
        line("moved", format!("{moved} to the backup; the primary logs them"));
    }
    for annex in shown_annexes(service) {
        line("annex", annex);
    }
    for what in service.registry.iter().flat_map(registry_texts) {
        line("ANNEXES", what);
    }
    if service.relayed > 0 {
        let kept = service.counters.get("relayed_input_kept");
        let kept = kept.map(|kept| format!("; the input of {kept} is kept for the other node"));
        let relayed = number_of_connections(service.relayed);
        line("relayed", relayed + &kept.unwrap_or_default());
    }
    if !service.connections_complete {
        let others =
            "perhaps more than shown: the primary has not told this node yet which clients are connected";
        line("not protected", others.to_owned());
    }
    for (reason, count) in &service.reasons {
        line("not protected", format!("{count}: {reason}"));
    }
    text
}

/// Whether clients reach the nodes.
fn path_text(path: &PathStatus) -> String {
    let hears = |hears: Option<bool>| match hears {
        None => "no link to the peer here",
        Some(true) => "the peer is heard here",
        Some(false) => "the peer is NOT HEARD here",
    };
    let fault = path
        .fault
        .as_ref()
        .map_or_else(|| "works".to_owned(), |fault| format!("BROKEN: {fault}"));
    let losses = match path.losses {
        0 => String::new(),
        losses => format!("; it broke {losses} times"),
    };
    format!(
        "{fault} (outside hosts from here: {}, from the peer: {}; {}{losses})",
        path.outside,
        path.peer_outside,
        hears(path.hears_peer)
    )
}

/// The lease as text. For a primary: when it may claim the VIP. For a backup: how long it may take over without asking the arbiter. For
/// other roles: how long the node may speak.
pub(super) fn lease_text(lease: &LeaseStatus, state: Role) -> Option<String> {
    let configured = milliseconds(lease.configured_ns);
    if let Some(left) = lease.left_ns.map(milliseconds) {
        return Some(format!(
            "the VIP may be claimed in {left} if the wire is silent (lease {configured})"
        ));
    }
    let left = lease.may_speak_ns?;
    let is_over = left == 0;
    let left = milliseconds(left);
    Some(match (state, is_over) {
        (Role::Backup, true) => "over: a takeover has to ask the arbiter first".to_owned(),
        (Role::Backup, false) => {
            format!(
                "for {left}, a takeover may begin without asking the arbiter if nothing more is heard (lease {configured})"
            )
        }
        (_, true) => "over: silent until the arbiter answers".to_owned(),
        (_, false) => {
            format!("this node may speak for {left} more without the arbiter's answer (lease {configured})")
        }
    })
}

/// The last states that a node had for a service, the present one first.
fn history_text(history: &[StateSince], now_ns: u64) -> String {
    let state = |since: &StateSince| {
        let seconds = now_ns.saturating_sub(since.at_ns) / 1_000_000_000;
        format!("{} {seconds} s ago", since.state)
    };
    let states: Vec<_> = history.iter().rev().take(HISTORY_SHOWN).map(state).collect();
    states.join(", before that ")
}

fn recorded_order_text(order: &RecordedOrderStatus, role: NodeRole) -> String {
    let seconds = order.age_ns / 1_000_000_000;
    let what = match (order.activity, role) {
        (OrderActivity::Records, _) => {
            return format!("recorded for {seconds} s; the backup takes the record");
        }
        (OrderActivity::Plays, _) => return format!("played back for {seconds} s"),
        (OrderActivity::Waits, NodeRole::Primary) => "recorded, but NOT FOLLOWED",
        (OrderActivity::Waits, NodeRole::Backup) => "WAITS for a record",
        (OrderActivity::Off, _) => "OFF",
    };
    let begins = match (order.activity, role) {
        (OrderActivity::Off, NodeRole::Primary) => {
            "; begins when this node's server is started again with the library"
        }
        (OrderActivity::Off, NodeRole::Backup) => {
            "; begins when both nodes' servers are started again with the library"
        }
        _ => "",
    };
    format!("{what} for {seconds} s: {}{begins}", order.reason)
}

fn state_sync_text(sync: &StateSyncStatus) -> String {
    let error = sync
        .error
        .as_ref()
        .map_or_else(String::new, |error| format!("; {error}"));
    match sync.missed_bytes {
        _ if !sync.synced => format!("its state is NOT the primary's ({}){error}", sync.state),
        0 => "its state is the primary's".to_owned(),
        missed => format!(
            "its state is the primary's, except for changes that older connections have made since ({} of input)",
            bytes(missed)
        ),
    }
}

fn takeovers_text(service: &ServiceStatus, now_ns: u64) -> String {
    if service.takeovers.is_empty() {
        return String::new();
    }
    let mut table = TextTable::new(&[
        ("DECLARED", Align::Right),
        ("GATE CLOSED", Align::Right),
        ("FIRST LIVE", Align::Right),
        ("LAST LIVE", Align::Right),
        ("CONNECTIONS", Align::Right),
        ("RESTORED", Align::Right),
        ("RESET", Align::Right),
    ]);
    for takeover in &service.takeovers {
        let after = |time: u64| format!("+{}", milliseconds(time.saturating_sub(takeover.declared_ns)));
        let or_never = |time: Option<u64>| time.map_or_else(|| "-".to_owned(), after);
        table.row([
            format!(
                "{} s ago",
                now_ns.saturating_sub(takeover.declared_ns) / 1_000_000_000
            ),
            after(takeover.gate_closed_ns),
            or_never(takeover.first_live_ns),
            or_never(takeover.last_live_ns),
            takeover.connections.to_string(),
            takeover.restored.to_string(),
            takeover.reset.to_string(),
        ]);
    }
    format!("\ntakeovers of {}\n{}", service.name, table.fitted())
}

fn counters_text(service: &ServiceStatus) -> String {
    let mut table = TextTable::new(&[("COUNTER", Align::Left), ("COUNT", Align::Right)]);
    let mut any = false;
    for (name, count) in service.counters.iter().filter(|(_, count)| **count > 0) {
        table.row([name.clone(), count.to_string()]);
        any = true;
    }
    if any {
        format!("\ncounters of {}\n{}", service.name, table.fitted())
    } else {
        String::new()
    }
}

/// The connections as text.
pub(super) fn connections_text(connections: &Connections) -> String {
    let mut table = TextTable::new(&[
        ("SERVICE", Align::Left),
        ("CLIENT", Align::Left),
        ("PROTECTION", Align::Left),
        ("IN", Align::Right),
        ("OUT", Align::Right),
        ("LOG", Align::Right),
        ("UNFOLLOWED", Align::Right),
        ("UNACKED", Align::Right),
        ("REASON", Align::Left),
    ]);
    for connection in &connections.connections {
        table.row([
            connection.service.clone(),
            connection.client.to_string(),
            match connection.protection {
                ProtectionStatus::Protected => "protected",
                ProtectionStatus::Ambiguous => "AMBIGUOUS",
                ProtectionStatus::Unprotected => "UNPROTECTED",
            }
            .to_owned(),
            connection.in_offset.to_string(),
            connection.out_offset.to_string(),
            bytes(connection.log_bytes),
            bytes(connection.lag.unfollowed_bytes),
            bytes(connection.lag.unacknowledged_bytes),
            connection.reason.clone(),
        ]);
    }
    counted(&table, connections.connections.len())
}

/// The connections that were taken over, as text.
pub(super) fn restored_text(restored: &RestoredConnections, now_ns: u64) -> String {
    let mut table = TextTable::new(&[
        ("SERVICE", Align::Left),
        ("CLIENT", Align::Left),
        ("RESTORED", Align::Right),
        ("NOW", Align::Left),
        ("REASON", Align::Left),
    ]);
    for connection in &restored.connections {
        table.row([
            connection.service.clone(),
            connection.client.to_string(),
            format!(
                "{} s ago",
                now_ns.saturating_sub(connection.live_ns) / 1_000_000_000
            ),
            if connection.lives { "relayed" } else { "ended" }.to_owned(),
            connection.reason.clone(),
        ]);
    }
    counted(&table, restored.connections.len())
}

fn counted<const N: usize>(table: &TextTable<N>, count: usize) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{}\n{count} connection{s}\n", table.text())
}
