//! `steadfast status` and `steadfast connections`.

use std::fmt::Write;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;

use serde::Serialize;

use super::node::folders;
use super::text::{Align, Table, bytes, milliseconds};
use super::{Failure, NodeOption};
use crate::config::STATE_ROOT;
use crate::control::{self, ClientError, Connections, Mode, Protection, ServiceStatus, Status};

pub(super) fn status(node: &NodeOption, json: bool) -> Result<(), Failure> {
    let status = control::status(&choose(node)?).map_err(no_answer)?;
    let now_ns = linux::clock::now().as_nanos();
    print(&if json {
        to_json(&status)
    } else {
        status_text(&status, now_ns)
    })
}

pub(super) fn connections(node: &NodeOption, json: bool) -> Result<(), Failure> {
    let connections = control::connections(&choose(node)?).map_err(no_answer)?;
    print(&if json {
        to_json(&connections)
    } else {
        connections_text(&connections)
    })
}

fn choose(node: &NodeOption) -> Result<std::path::PathBuf, Failure> {
    let root = Path::new(STATE_ROOT);
    let running = || {
        folders(root)
            .into_iter()
            .filter(|name| control::socket(&root.join(name)).exists())
            .collect()
    };
    Ok(node.choose(running)?.state_dir)
}

fn no_answer(error: ClientError) -> Failure {
    match error {
        ClientError::NoNode { .. } => Failure::Missing(vec![error.to_string()]),
        error => Failure::failed(error),
    }
}

/// To stdout; a reader who has seen enough is no error.
fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::failed(error)),
        _ => Ok(()),
    }
}

fn to_json(answer: &impl Serialize) -> String {
    serde_json::to_string(answer).expect("the answers have string keys only") + "\n"
}

/// The node for people; `now_ns` is of the clock of the takeovers' times.
pub(super) fn status_text(status: &Status, now_ns: u64) -> String {
    let Status { node, peer, services } = status;
    let alive = if peer.alive { "alive" } else { "SILENT" };
    let mut text = format!("node {node}, peer {} at {}: {alive}\n\n", peer.name, peer.address);
    let mut table = Table::new(&[
        ("SERVICE", Align::Left),
        ("ADDRESS", Align::Left),
        ("POLICY", Align::Left),
        ("ROLE", Align::Left),
        ("MODE", Align::Left),
        ("EPOCH", Align::Right),
        ("PROTECTED", Align::Right),
        ("UNPROTECTED", Align::Right),
        ("AMBIGUOUS", Align::Right),
        ("LOG", Align::Right),
        ("UNREAD", Align::Right),
    ]);
    for service in services {
        table.row([
            service.name.clone(),
            SocketAddr::new(service.address, service.port).to_string(),
            service.policy.to_string(),
            service.role.to_string(),
            match service.mode {
                Mode::Duplex => "duplex".to_owned(),
                Mode::Simplex => "SIMPLEX".to_owned(),
            },
            service.epoch.to_string(),
            service.connections.protected.to_string(),
            service.connections.unprotected.to_string(),
            service.connections.ambiguous.to_string(),
            bytes(service.log_bytes),
            bytes(service.ring_fill_bytes),
        ]);
    }
    text += &table.text();
    for service in services {
        text += &takeovers_text(service, now_ns);
        text += &counters_text(service);
    }
    text
}

fn takeovers_text(service: &ServiceStatus, now_ns: u64) -> String {
    if service.takeovers.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("DECLARED", Align::Right),
        ("GATE CLOSED", Align::Right),
        ("FIRST LIVE", Align::Right),
        ("LAST LIVE", Align::Right),
        ("CONNECTIONS", Align::Right),
        ("RESTORED", Align::Right),
        ("RESET", Align::Right),
        ("ENDED", Align::Right),
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
            takeover.ended.to_string(),
        ]);
    }
    format!("\ntakeovers of {}\n{}", service.name, table.text())
}

fn counters_text(service: &ServiceStatus) -> String {
    let mut table = Table::new(&[("COUNTER", Align::Left), ("COUNT", Align::Right)]);
    let mut any = false;
    for (name, count) in service.counters.iter().filter(|(_, count)| **count > 0) {
        table.row([name.clone(), count.to_string()]);
        any = true;
    }
    if any {
        format!("\ncounters of {}\n{}", service.name, table.text())
    } else {
        String::new()
    }
}

/// The connections for people.
pub(super) fn connections_text(connections: &Connections) -> String {
    let mut table = Table::new(&[
        ("SERVICE", Align::Left),
        ("CLIENT", Align::Left),
        ("PROTECTION", Align::Left),
        ("IN", Align::Right),
        ("OUT", Align::Right),
        ("LOG", Align::Right),
        ("RESTORED", Align::Left),
        ("REASON", Align::Left),
    ]);
    for connection in &connections.connections {
        table.row([
            connection.service.clone(),
            connection.client.to_string(),
            match connection.protection {
                Protection::Protected => "protected",
                Protection::Ambiguous => "AMBIGUOUS",
                Protection::Unprotected => "UNPROTECTED",
            }
            .to_owned(),
            connection.in_offset.to_string(),
            connection.out_offset.to_string(),
            bytes(connection.log_bytes),
            if connection.live_ns.is_some() { "yes" } else { "-" }.to_owned(),
            connection.reason.clone(),
        ]);
    }
    let mut text = table.text();
    let count = connections.connections.len();
    let _ = writeln!(text, "\n{count} connection{}", if count == 1 { "" } else { "s" });
    text
}
