//! `steadfast cleanup`: finds and removes what a dead daemon left.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use anyhow::Context;
use linux::network;
use linux::wire;

use super::cli::NodeOption;
use super::error::CommandError;
use super::node::{LocalNode, folders};
use super::stderr::tell;
use crate::config::{PEERS_DIR, STATE_ROOT};
use crate::control;
use crate::keepers;
use crate::lock::{self, Lock, LockError};

/// Cleans up after the node that `node` names, or after all dead nodes if `all` is set.
pub(super) fn cleanup(node: &NodeOption, all: bool) -> Result<(), CommandError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(CommandError::Missing(vec!["root".to_owned()]));
    }
    let traces = traces().map_err(CommandError::failed)?;
    if !all {
        let is_told = node.config.is_some();
        let node = node.choose(|| nodes(traces))?;
        if !is_told && !node.state_dir.is_dir() {
            return Err(CommandError::Use(is_elsewhere(&node)));
        }
        return clean_up_all(&node);
    }
    for node in nodes(traces).into_iter().map(LocalNode::usual) {
        if !node.state_dir.is_dir() {
            tell(format_args!("{}: left alone", is_elsewhere(&node)));
            continue;
        }
        for agent in with_agents(&node) {
            if let Some(pid) = clean_up_after(&agent)? {
                tell(format_args!(
                    "node {}: alive, process {pid}: left alone",
                    agent.name
                ));
            }
        }
    }
    Ok(())
}

/// Cleans up after `node`, and after its agents if it has several peers.
fn clean_up_all(node: &LocalNode) -> Result<(), CommandError> {
    for agent in with_agents(node) {
        if let Some(pid) = clean_up_after(&agent)? {
            return Err(CommandError::Use(format!(
                "node {} is alive, process {pid}: stop it first",
                agent.name
            )));
        }
    }
    Ok(())
}

/// The agents of a node with several peers, and then the node itself, whose supervisor has a lock, too.
fn with_agents(node: &LocalNode) -> Vec<LocalNode> {
    let mut all = node.agents();
    if all[0] != *node {
        all.push(node.clone());
    }
    all
}

/// The names in `traces`, without those of the agents of nodes with several peers, and of the services of annexes.
fn nodes(mut traces: BTreeSet<String>) -> BTreeSet<String> {
    let of_nodes: Vec<_> = traces.iter().cloned().map(LocalNode::usual).collect();
    for node in of_nodes {
        for guard in crate::annex::guards(&node.name, &node.state_dir) {
            traces.remove(&guard);
        }
        for agent in node.agents().into_iter().filter(|agent| *agent != node) {
            traces.remove(&agent.name);
        }
    }
    traces
}

/// The error for a node whose state is elsewhere. Only the lock, which is in the state directory, shows whether the node is alive.
fn is_elsewhere(node: &LocalNode) -> String {
    let LocalNode { name, state_dir } = node;
    let state_dir = state_dir.display();
    format!(
        "node {name}: its state is not in {state_dir}, so it may be alive: name its configuration with --config FILE"
    )
}

/// The names of all nodes that have left a trace.
fn traces() -> Result<BTreeSet<String>, network::NetworkError> {
    let mut names = folders(Path::new(STATE_ROOT));
    names.extend(folders(Path::new(wire::PIN_ROOT)));
    names.extend(folders(Path::new(linux::edge::EDGE_PIN_ROOT)));
    names.extend(network::guarded_nodes()?);
    Ok(names)
}

/// Cleans up after a dead node. If the node is alive, returns its daemon's process number.
fn clean_up_after(node: &LocalNode) -> Result<Option<String>, CommandError> {
    let lock = match Lock::take(&node.state_dir, lock::DAEMON) {
        Ok(lock) => lock,
        Err(LockError::Held { pid, .. }) => return Ok(Some(pid)),
        Err(error) => return Err(CommandError::failed(error)),
    };
    remove(node)?;
    drop(lock);
    // Fails if the directory has files that are not the daemon's. They stay.
    let _ = std::fs::remove_dir(node.state_dir.join(PEERS_DIR));
    let _ = std::fs::remove_dir(&node.state_dir);
    tell(format_args!("node {}: nothing is left of it", node.name));
    Ok(None)
}

/// Removes all that the node left, in the order of a regular stop. Relayed connections end first, while the guards still work. The VIPs
/// are removed before the wire, and the nftables guard last.
fn remove(node: &LocalNode) -> anyhow::Result<()> {
    crate::edge::leave_nothing(&node.name, &node.state_dir)?;
    crate::tunnel::leave_nothing(&node.state_dir).context("removing the tunnel's mark")?;
    crate::connect::leave_nothing(&node.state_dir).context("removing the proxy's mark")?;
    keepers::end_all(&node.state_dir)?;
    crate::annex::leave_nothing(&node.name, &node.state_dir)?;
    let journal = network::journal(&node.state_dir);
    let interfaces = interfaces(node, &journal)?;
    network::undo(&journal).context("restoring the network")?;
    for interface in interfaces {
        wire::detach(interface.index).with_context(|| format!("detaching from {}", interface.name))?;
    }
    wire::detach_loopback(&node.name).context("detaching from lo")?;
    wire::remove_pins(&Path::new(wire::PIN_ROOT).join(&node.name)).context("removing the eBPF pins")?;
    network::remove_guard(&node.name).context("removing the guard")?;
    keepers::remove_files(&node.state_dir)?;
    crate::daemon::annex::lists::forget(&node.state_dir).context("removing the list of annexes")?;
    let socket = control::socket(&node.state_dir);
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", socket.display()))
        }
        _ => Ok(()),
    }
}

/// The interfaces to which the node's wire may be attached. The journal names them. If the journal is lost and only this node has pins, the
/// result is all interfaces. If other nodes have pins too, the result is empty, because another node's wire may be attached to an
/// interface.
fn interfaces(node: &LocalNode, journal: &Path) -> anyhow::Result<Vec<network::Interface>> {
    let mut interfaces = network::interfaces()?;
    let pins = folders(Path::new(wire::PIN_ROOT));
    match network::begun(journal)? {
        Some(plan) => {
            interfaces.retain(|interface| plan.services.iter().any(|s| s.interface == interface.name))
        }
        None if pins.iter().eq([&node.name]) => {}
        None => interfaces.clear(),
    }
    Ok(interfaces)
}
