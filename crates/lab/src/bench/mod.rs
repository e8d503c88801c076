//! `steadfast-lab bench`: the cost of protection, as ratios within one run.

mod calibration;
pub mod load;
mod measure;
mod pair;
mod promise;
mod scale;
mod scene;
pub mod sim;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::LabOutcome;

/// Measure against a baseline in the same run, and say whether the promised ratios hold.
#[derive(Clone, Debug, Args)]
pub struct BenchOptions {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Clone, Debug, Subcommand)]
enum Subject {
    Pair(pair::PairBenchOptions),
    Scale(scale::ScaleBenchOptions),
    Sim(sim::SimBenchOptions),
}

/// What all benchmarks can be told.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Rounds; each measures every variant once, in changing order. Medians are reported.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// The daemon under test; default: `steadfast` beside this program.
    #[arg(long, value_name = "PATH")]
    steadfast: Option<PathBuf>,
}

impl Common {
    /// The daemon under test.
    fn daemon(&self) -> Result<PathBuf> {
        Ok(match &self.steadfast {
            Some(path) => std::path::absolute(path)?,
            None => std::env::current_exe()?.with_file_name("steadfast"),
        })
    }
}

/// Runs a benchmark.
///
/// # Errors
/// If it could not be run to its end.
pub fn run(options: &BenchOptions) -> Result<LabOutcome> {
    match &options.subject {
        Subject::Pair(pair) => pair::run(pair),
        Subject::Scale(scale) => scale::run(scale),
        Subject::Sim(sim) => sim::run(sim),
    }
}
