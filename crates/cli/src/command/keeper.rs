//! `steadfast keeper`, which the daemon starts: the process that owns the sockets of relayed connections.

use std::path::{Path, PathBuf};

use linux::keeper::{self, Options};

use super::run::start_log;
use super::{Failure, LogFormat};
use crate::lock::{self, Lock, LockError};

/// Keeps connections until it is stopped, or has no connection and no agent. Its lock shows `cleanup` that it is alive.
pub(super) fn keep(socket: PathBuf, state_dir: &Path) -> Result<(), Failure> {
    start_log(LogFormat::Text)?;
    let lock = Lock::take(state_dir, lock::KEEPER).map_err(|error| match error {
        LockError::Held { .. } => Failure::Use(error.to_string()),
        error => Failure::failed(error),
    })?;
    keeper::run(Options::new(socket)).map_err(Failure::failed)?;
    drop(lock);
    Ok(())
}
