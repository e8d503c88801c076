//! `steadfast tunnel`.

use std::path::Path;

use super::cli::LogFormat;
use super::error::CommandError;
use super::run::start_log;
use crate::tunnel::{self, TunnelFile};

/// Runs the tunnel of a file.
pub(super) fn run_file(file: &Path, log: LogFormat) -> Result<(), CommandError> {
    run(&TunnelFile::read(file).map_err(CommandError::Use)?, log)
}

/// Checks everything, and runs the tunnel.
pub(super) fn run(file: &TunnelFile, log: LogFormat) -> Result<(), CommandError> {
    start_log(log)?;
    let settings = file.check().map_err(CommandError::Use)?;
    tunnel::run(&settings).map_err(CommandError::Failed)
}
