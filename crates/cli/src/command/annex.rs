//! `steadfast annex`.

use std::path::Path;

use super::cli::SessionOptions;
use super::connect::alone;
use super::error::CommandError;
use super::log::start_log;
use super::stderr::tell;
use crate::annex;
use crate::config::AnnexFile;

/// Checks everything, and runs the annex of the file.
pub(super) fn run(options: &SessionOptions) -> Result<(), CommandError> {
    start_log(options.log_format)?;
    let file = AnnexFile::load(&options.config)?;
    alone(("annex", &file.name), &file.state_dir, || annex::run(&file))
}

/// Checks the file, and prints a line if it is all right.
pub(super) fn check(path: &Path) -> Result<(), CommandError> {
    let file = AnnexFile::load(path)?;
    tell(format_args!(
        "{}: annex {}, {} services: all right",
        path.display(),
        file.name,
        file.services.len()
    ));
    Ok(())
}
