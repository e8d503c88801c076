//! `steadfast run`.

use std::path::Path;

use super::check::load_and_check;
use super::cli::LogFormat;
use super::entry::Program;
use super::error::CommandError;
use super::log::start_log;
use crate::config::Config;
use crate::daemon::{self, RecordingTarget, Start};
use crate::lock::{self, Lock, LockError};

/// Checks the configuration, the machine and its network. Then takes the node's lock, so that no other daemon runs this node, and runs the
/// node. After an upgrade in place, this process already has the lock. It then loads the configuration without checking the machine and its
/// network again.
pub(super) fn run(
    program: &Program,
    file: &Path,
    without_peer: bool,
    log: LogFormat,
    record: Option<RecordingTarget>,
) -> Result<(), CommandError> {
    daemon::block_signal()?;
    start_log(log)?;
    let node = Config::load(file)?.node;
    let inherited = Lock::inherited(&node.state_dir, lock::DAEMON).map_err(CommandError::failed)?;
    if inherited.is_none()
        && let Some(pid) = Lock::holder(&node.state_dir, lock::DAEMON).map_err(CommandError::failed)?
    {
        return Err(second(&node.name, &pid));
    }
    let config = match &inherited {
        Some(_) => Config::load(file)?, // this program's `check-config --in-place` has just checked the machine and its network
        None => load_and_check(program, file, without_peer)?,
    };
    let lock = match inherited.map_or_else(|| Lock::take(&node.state_dir, lock::DAEMON), Ok) {
        Ok(lock) => lock,
        Err(LockError::Held { pid, .. }) => return Err(second(&node.name, &pid)),
        Err(error) => return Err(CommandError::failed(error)),
    };
    (program.run)(&Start {
        config: &config,
        file,
        without_peer,
        lock: &lock,
        record,
    })?;
    drop(lock);
    Ok(())
}

fn second(node: &str, pid: &str) -> CommandError {
    CommandError::Use(format!(
        "node {node} is run by process {pid} already; a node has one daemon"
    ))
}
