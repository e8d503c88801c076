//! `steadfast keeper`, which the daemon starts: the process that owns the sockets of relayed connections.

use std::path::{Path, PathBuf};

use linux::keeper::{self, KeeperOptions};

use super::cli::LogFormat;
use super::error::CommandError;
use super::log::start_log;
use crate::lock::{self, Lock, LockError};

/// Runs the keeper until it is stopped, or until it has neither a connection nor an agent. The keeper's lock tells `steadfast cleanup` that
/// the keeper is alive.
pub(super) fn keep(socket: PathBuf, state_dir: &Path) -> Result<(), CommandError> {
    start_log(LogFormat::Text)?;
    let lock = Lock::take(state_dir, lock::KEEPER).map_err(|error| match error {
        LockError::Held { .. } => CommandError::Use(error.to_string()),
        error => CommandError::failed(error),
    })?;
    keeper::run(KeeperOptions::new(socket)).map_err(CommandError::failed)?;
    drop(lock);
    Ok(())
}
