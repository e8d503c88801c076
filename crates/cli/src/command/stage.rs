//! `steadfast stage`.

use std::path::Path;

use super::cli::SessionOptions;
use super::error::CommandError;
use super::log::start_log;
use super::stderr::tell;
use crate::stage::{self, StageSettings};

/// Checks everything, and runs the stage of the file.
pub(super) fn run(options: &SessionOptions) -> Result<(), CommandError> {
    start_log(options.log_format)?;
    let settings = StageSettings::load(&options.config).map_err(CommandError::Use)?;
    stage::run(settings).map_err(CommandError::Failed)
}

/// Checks the file, and prints a line if it is all right.
pub(super) fn check(file: &Path) -> Result<(), CommandError> {
    let settings = StageSettings::load(file).map_err(CommandError::Use)?;
    tell(format_args!(
        "{}: stage before {}, {} addresses: all right",
        file.display(),
        settings.application,
        settings.listen.len()
    ));
    Ok(())
}
