//! Limits of the daemons' logs.

use clap::{Args, ValueEnum};
use serde::Serialize;

/// The table `[log]` of both nodes. An option that is not given keeps the daemon's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args, Serialize)]
pub struct LogOptions {
    /// Largest size of the log of one connection, in megabytes (2²⁰ bytes); default: the daemon's.
    #[arg(long = "log-mb", value_name = "MB", value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub log_mb: Option<u32>,
    /// Size of the kernel's second ring, in megabytes (2²⁰ bytes), a power of two; default: the daemon's. The first ring has 16 MiB.
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ring_mb: Option<u32>,
    /// Treatment of a connection whose log is full; default: the daemon's.
    #[arg(long, value_enum)]
    pub at_limit: Option<AtLimitOption>,
}

/// Treatment of a connection whose log is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AtLimitOption {
    /// The connection is no longer protected.
    Unprotect,
    /// Further input of the connection goes to a file.
    Spill,
    /// The connection's client is slowed before the log is full.
    Slow,
}

impl LogOptions {
    /// The table `[log]` of the daemon's configuration. Empty if no limit is set.
    pub(super) fn table(self) -> String {
        let mut table = String::new();
        if let Some(megabytes) = self.log_mb {
            table += &format!("per_connection_mb = {megabytes}\n");
        }
        if let Some(megabytes) = self.ring_mb {
            table += &format!("ring_mb = {megabytes}\n");
        }
        if let Some(at_limit) = self.at_limit {
            let name = match at_limit {
                AtLimitOption::Unprotect => "unprotect",
                AtLimitOption::Spill => "spill",
                AtLimitOption::Slow => "slow",
            };
            table += &format!("at_limit = \"{name}\"\n");
        }
        if table.is_empty() {
            return table;
        }
        format!("\n[log]\n{table}")
    }
}
