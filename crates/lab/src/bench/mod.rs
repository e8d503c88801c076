//! `steadfast-lab bench`: the cost of protection, as ratios within one run.

mod calibration;
mod commit;
mod coral;
pub mod coral_samples;
mod edge;
mod ft_tcp;
pub mod ft_tcp_samples;
pub mod load;
pub mod measure;
mod options;
mod order;
pub mod outage;
mod pair;
mod scale;
pub mod sim;
mod spread;
pub mod target;
mod testbed;

pub use self::testbed::{SINK_PORT, start_sink};

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::run::LabOutcome;

/// Measure against a baseline in the same run, and say whether the targets are met.
#[derive(Clone, Debug, Args)]
pub struct BenchOptions {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Clone, Debug, Subcommand)]
enum Subject {
    Coral(coral::CoralBenchOptions),
    Edge(edge::EdgeBenchOptions),
    FtTcp(ft_tcp::FtTcpBenchOptions),
    Order(order::OrderBenchOptions),
    Migrate(crate::sessions::bench::MigrateBenchOptions),
    Paths(crate::paths::bench::PathsBenchOptions),
    Pair(pair::PairBenchOptions),
    Scale(scale::ScaleBenchOptions),
    Sim(sim::SimBenchOptions),
}

/// Runs a benchmark.
///
/// # Errors
/// If it could not be run to its end.
pub fn run(options: &BenchOptions) -> Result<LabOutcome> {
    match &options.subject {
        Subject::Coral(coral) => coral::run(coral),
        Subject::Edge(edge) => edge::run(edge),
        Subject::FtTcp(ft_tcp) => ft_tcp::run(ft_tcp),
        Subject::Order(order) => order::run(order),
        Subject::Migrate(migrate) => crate::sessions::bench::run(migrate),
        Subject::Paths(paths) => crate::paths::bench::run(paths),
        Subject::Pair(pair) => pair::run(pair),
        Subject::Scale(scale) => scale::run(scale),
        Subject::Sim(sim) => sim::run(sim),
    }
}
