//! Takeover times of single runs, for benchmarks.

use anyhow::{Context, Result, ensure};
use proto::Instant;

use super::play::play;
use crate::pair::{PairOptions, WorkloadOption};
use crate::run::{DaemonOption, LabRun, Progress};

/// Times from the declaration of the primary's death until connections were live, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct TakeoverSample {
    /// Time until the first connection was live.
    pub first_live_ms: f64,
    /// Time until the last connection was live.
    pub last_live_ms: f64,
    /// Number of restored connections.
    pub restored: u64,
}

/// Rate and size of a busy download. It takes about three seconds.
const RATE_MBIT: f64 = 1000.0;
const MEGABYTES: u32 = 350;

/// Plays one power-off of the primary, with `connections` connections to nginx.
///
/// # Errors
/// If the run could not be played, or a connection was lost.
pub fn sample(
    workload: WorkloadOption,
    connections: u32,
    seed: u64,
    daemon: &DaemonOption,
) -> Result<TakeoverSample> {
    let mut options = PairOptions::new(workload, connections);
    options.run.daemon = daemon.clone();
    if workload == WorkloadOption::Download {
        // At full speed the download of one connection would end before the fault.
        options.way.rate_mbit = Some(RATE_MBIT);
        options.megabytes = Some(MEGABYTES);
    }
    options.check_machine(&[])?;
    let number = seed as u32;
    let facts = LabRun::play(&options.run, (number, seed, &[]), &Progress::hidden(), |run| {
        play(&options, run)
    })?;
    let takeover = facts.aftermath.takeovers.last().context("no takeover was seen")?;
    ensure!(
        facts.client.survivors() == facts.client.connections.len(),
        "a connection was lost"
    );
    let since = |at_ns: Option<u64>| {
        let declared = Instant::from_nanos(takeover.declared_ns);
        let after = at_ns.map(|at_ns| Instant::from_nanos(at_ns).since(declared).as_secs_f64() * 1e3);
        after.with_context(|| format!("no connection was live: {takeover:?}"))
    };
    Ok(TakeoverSample {
        first_live_ms: since(takeover.first_live_ns)?,
        last_live_ms: since(takeover.last_live_ns)?,
        restored: takeover.restored,
    })
}
