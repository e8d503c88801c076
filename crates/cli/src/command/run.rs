//! `steadfast run`.

use std::path::Path;

use super::check::{check_here, warnings};
use super::cli::LogFormat;
use super::entry::Program;
use super::error::CommandError;
use super::log::start_log;
use crate::config::{Config, NodeFile, NodeSettings};
use crate::daemon::{self, RecordingTarget, Start};
use crate::lock::{self, Lock, LockError};
use crate::supervisor;

/// Runs the node, or, if the node has several peers, the agent for the peer that is named. If none is named, supervises the agents.
pub(super) fn run(
    program: &Program,
    (file, peer): (&Path, Option<&str>),
    without_peer: bool,
    log: LogFormat,
    record: Option<RecordingTarget>,
) -> Result<(), CommandError> {
    daemon::block_signal()?;
    start_log(log)?;
    let node = NodeFile::load(file)?;
    if node.pairs.len() > 1 && peer.is_none() {
        return supervise(program, file, node, without_peer);
    }
    let config = node.pair(file, peer)?;
    let lock = take_lock(&config.node, || check_here(program, file, &config, without_peer))?;
    (program.run)(&Start {
        config: &config,
        file,
        peer,
        without_peer,
        lock: &lock,
        record,
    })?;
    drop(lock);
    Ok(())
}

fn supervise(program: &Program, file: &Path, node: NodeFile, without_peer: bool) -> Result<(), CommandError> {
    let check = |config: &Config| warnings(program, file, config, without_peer).map(drop); // each agent prints its own
    let settings = NodeSettings {
        state_dir: node.state_dir.clone(),
        ..node.pairs[0].node.clone()
    };
    let lock = take_lock(&settings, || {
        // An agent that runs already has checked its own part.
        let is_idle =
            |config: &&Config| matches!(Lock::holder(&config.node.state_dir, lock::DAEMON), Ok(None));
        node.pairs.iter().filter(is_idle).try_for_each(check)
    })?;
    supervisor::run(node, file, &lock)?;
    drop(lock);
    Ok(())
}

/// Takes the lock of the daemon, so that no other daemon runs here, after `check`, which checks the machine and its network. After an upgrade in
/// place, this process already has the lock. Then nothing is checked, because `check-config --in-place` of this program has just done it.
fn take_lock(
    node: &NodeSettings,
    check: impl FnOnce() -> Result<(), CommandError>,
) -> Result<Lock, CommandError> {
    let second = |pid: &str| {
        CommandError::Use(format!(
            "node {} is run by process {pid} already; a node has one daemon",
            node.name
        ))
    };
    let inherited = Lock::inherited(&node.state_dir, lock::DAEMON).map_err(CommandError::failed)?;
    if let Some(lock) = inherited {
        return Ok(lock);
    }
    if let Some(pid) = Lock::holder(&node.state_dir, lock::DAEMON).map_err(CommandError::failed)? {
        return Err(second(&pid));
    }
    check()?;
    match Lock::take(&node.state_dir, lock::DAEMON) {
        Ok(lock) => Ok(lock),
        Err(LockError::Held { pid, .. }) => Err(second(&pid)),
        Err(error) => Err(CommandError::failed(error)),
    }
}
