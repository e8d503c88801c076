//! The manual pages, from the same words as `--help`.

use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;

use super::{Cli, Failure};

/// Writes one page per command into `out`, which is made if it is missing.
pub(super) fn write(out: &Path) -> Result<(), Failure> {
    let write = || {
        std::fs::create_dir_all(out)?;
        clap_mangen::generate_to(Cli::command(), out)
    };
    Ok(write().with_context(|| format!("writing the manual pages into {}", out.display()))?)
}
