//! What `bench coral` measures, and how: the throughput of plain servers and of a pair, and power-offs of pairs.

use std::path::Path;

use anyhow::{Context, Result};
use indicatif::ProgressBar;

use super::measure::{self, Requests};
use super::testbed::{BenchTestbed, BenchVariant, STAGED, Serving};
use crate::crash::{StagedSample, staged_sample};
use crate::node::PatternFiles;
use crate::run::{DaemonOption, in_memory};
use crate::teardown::Teardown;

/// Request for a reply of 1 KB.
const PATH: &str = "/random.cgi?1000";
/// Clients, as in the paper. Each sends a request after the reply to the request before.
const CLIENTS: u32 = 8;
const REQUEST_SECONDS: u32 = 4;
/// Variants whose throughput is measured: a plain server with half of the CPUs, one with all CPUs, and the pair.
pub const SERVERS: [&str; SERVER_COUNT] = ["one plain server", "two plain servers", "pair"];
pub const SERVER_COUNT: usize = 3;

/// All measurements.
pub struct CoralMeasured {
    /// Requests to each of [`SERVERS`], for each round.
    pub requests: [Vec<Requests>; SERVER_COUNT],
    /// One power-off for each round.
    pub failures: Vec<StagedSample>,
}

/// Measures in this number of rounds. The power-offs have the seeds from `first_seed` on. `run` begins the names of all networks but those of
/// the power-offs.
///
/// # Errors
/// If a step fails.
pub fn measure(rounds: u32, first_seed: u64, run: &str, daemon: &DaemonOption) -> Result<CoralMeasured> {
    let binary = daemon.path()?;
    let teardown = Teardown::start()?;
    let requests = measure_servers(rounds, run, &binary, &teardown);
    teardown.finish()?;
    let requests = requests?;
    let failures = (0..rounds).map(|round| {
        staged_sample(first_seed + u64::from(round), daemon)
            .with_context(|| format!("power-off {}", round + 1))
    });
    Ok(CoralMeasured {
        requests,
        failures: failures.collect::<Result<_>>()?,
    })
}

/// Measures the throughput of all servers, in turns.
fn measure_servers(
    rounds: u32,
    run: &str,
    daemon: &Path,
    teardown: &Teardown,
) -> Result<[Vec<Requests>; SERVER_COUNT]> {
    let directory = in_memory(&format!("coral-{run}"), teardown)?;
    let content = PatternFiles::generate(&directory, &[])?;
    let set = |variant: BenchVariant, name: &str| {
        let run = format!("{run}{name}");
        BenchTestbed::set(&run, variant, Serving::Random, &content, daemon, teardown)
    };
    let testbeds = [
        set(BenchVariant::Forwarding, "o")?,
        set(BenchVariant::Forwarding, "t")?,
        set(STAGED, "s")?,
    ];
    let cpus = std::thread::available_parallelism()?.get();
    for server in &testbeds[0].servers {
        server.use_cpus(0..(cpus / 2).max(1))?;
    }
    let mut samples = [const { Vec::new() }; SERVER_COUNT];
    let progress = ProgressBar::new(u64::from(rounds));
    for round in 0..rounds as usize {
        for turn in 0..SERVER_COUNT {
            let index = (turn + round) % SERVER_COUNT;
            let testbed = &testbeds[index];
            let client = &testbed.network.client;
            samples[index].push(measure::requests(
                client,
                testbed.service,
                PATH,
                CLIENTS,
                REQUEST_SECONDS,
            )?);
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(samples)
}
