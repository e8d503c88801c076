//! The manual pages, generated from the `--help` texts.

use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};

use super::cli::Cli;
use super::error::CommandError;

/// Writes one page per command into the directory `out`. Creates the directory if it is missing.
pub(super) fn write(out: &Path) -> Result<(), CommandError> {
    let write = || {
        std::fs::create_dir_all(out)?;
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        pages(&command, out)
    };
    Ok(write().with_context(|| format!("writing the manual pages into {}", out.display()))?)
}

/// Writes the pages of `command` and of all its subcommands that are not hidden, in the section for system administration (8).
fn pages(command: &Command, out: &Path) -> std::io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        pages(below, out)?;
    }
    clap_mangen::Man::new(command.clone())
        .section("8")
        .generate_to(out)?;
    Ok(())
}
