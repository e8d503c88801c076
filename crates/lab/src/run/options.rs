//! The options that every lab run has.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use crate::capture::SNAP_DEFAULT;

/// Options that all labs share.
#[derive(Clone, Debug, Args)]
pub struct RunOptions {
    /// Seed of all random choices, such as the data, the losses and the moment of the fault; default: a new seed each time.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Number of runs. Each run has a network of its own and the next seed.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub repeat: u32,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    /// Keep captures, logs and findings in this directory, one subdirectory for each network; with --repeat only those of runs that
    /// failed.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Bytes of each packet that the captures keep; 0 keeps all.
    #[arg(long, value_name = "BYTES", default_value_t = SNAP_DEFAULT)]
    pub snap: u32,
    #[command(flatten)]
    pub daemon: DaemonOption,
}

/// The program that is tested.
#[derive(Clone, Debug, Default, Args)]
pub struct DaemonOption {
    /// The daemon under test; default: `steadfast` beside this program.
    #[arg(long, value_name = "PATH")]
    pub steadfast: Option<PathBuf>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            seed: None,
            repeat: 1,
            json: false,
            keep: None,
            snap: SNAP_DEFAULT,
            daemon: DaemonOption::default(),
        }
    }
}

impl DaemonOption {
    /// The absolute path of the daemon's binary. Daemons are started in other working directories.
    ///
    /// # Errors
    /// If this program's own path or the working directory is unknown.
    pub fn path(&self) -> Result<PathBuf> {
        match &self.steadfast {
            Some(path) => std::path::absolute(path).with_context(|| path.display().to_string()),
            None => {
                let own = std::env::current_exe().context("find this program's directory")?;
                Ok(own.with_file_name("steadfast"))
            }
        }
    }
}
