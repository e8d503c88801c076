//! The options that several benchmarks share.

use clap::Args;

use crate::run::DaemonOption;

/// Options that `bench edge`, `bench pair` and `bench scale` share.
#[derive(Clone, Debug, Args)]
pub struct BenchRunOptions {
    /// Number of rounds. Each round measures every variant once; the order of the variants changes. Medians are reported.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub daemon: DaemonOption,
}
