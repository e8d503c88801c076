//! `steadfast run`.

use std::io;
use std::path::Path;

use tracing_subscriber::EnvFilter;

use super::check::load_and_check;
use super::{Config, Failure, LogFormat, Program};
use crate::lock::{self, Lock, LockError};

/// Checks everything, makes sure that no other daemon runs this node, and runs it.
pub(super) fn run(program: &Program, file: &Path, without_peer: bool, log: LogFormat) -> Result<(), Failure> {
    start_log(log)?;
    let node = Config::load(file)?.node;
    if let Some(pid) = Lock::holder(&node.state_dir, lock::DAEMON).map_err(Failure::failed)? {
        return Err(second(&node.name, &pid));
    }
    let config = load_and_check(program, file, without_peer)?;
    let lock = match Lock::take(&config.node.state_dir, lock::DAEMON) {
        Ok(lock) => lock,
        Err(LockError::Held { pid, .. }) => return Err(second(&node.name, &pid)),
        Err(error) => return Err(Failure::failed(error)),
    };
    (program.run)(&config, without_peer)?;
    drop(lock);
    Ok(())
}

fn second(node: &str, pid: &str) -> Failure {
    Failure::Use(format!(
        "node {node} is run by process {pid} already; a node has one daemon"
    ))
}

/// From here on events are written to stderr.
pub(super) fn start_log(format: LogFormat) -> Result<(), Failure> {
    let filter = match std::env::var("STEADFAST_LOG") {
        Ok(level) => EnvFilter::try_new(&level).map_err(|error| {
            Failure::Use(format!(
                "STEADFAST_LOG={level} is not a level of the log: {error}"
            ))
        })?,
        Err(_) => EnvFilter::new("info"),
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    let started = match format {
        LogFormat::Text => log.with_target(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| Failure::Failed(anyhow::anyhow!("starting the log: {error}")))
}
