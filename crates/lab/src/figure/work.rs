//! Executes runs in parallel, with a progress bar. The results do not depend on the number of threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use super::results::Results;
use super::rows::Rows;
use super::scenario::FigureScenario;
use super::shard::Shard;
use super::sweep::SweepRun;

/// Executes the runs of `scenarios`, or only the part in `shard`, on `jobs` threads.
///
/// # Errors
/// If a run fails.
pub fn results(
    scenarios: Vec<(String, FigureScenario)>,
    seeds: u64,
    shard: Option<Shard>,
    jobs: usize,
) -> Result<Results> {
    let mut runs: Vec<(usize, SweepRun)> = Vec::new();
    for (index, (_, scenario)) in scenarios.iter().enumerate() {
        runs.extend(scenario.runs(1..=seeds).into_iter().map(|run| (index, run)));
    }
    let runs: Vec<_> = (0..)
        .zip(runs)
        .filter(|(number, _)| shard.is_none_or(|shard| shard.has(*number)))
        .map(|(_, run)| run)
        .collect();
    let mut results = Results::default();
    let names: Vec<_> = scenarios.iter().map(|(name, _)| name.clone()).collect();
    for (name, scenario) in scenarios {
        results.scenarios.insert(name, (scenario, Rows::default()));
    }
    for ((index, _), rows) in runs.iter().zip(play(&runs, jobs)?) {
        let (_, all) = results
            .scenarios
            .get_mut(&names[*index])
            .context("its scenario")?;
        all.append(rows);
    }
    Ok(results)
}

/// Executes the runs. Returns the rows of each run, in the order of `runs`.
fn play(runs: &[(usize, SweepRun)], jobs: usize) -> Result<Vec<Rows>> {
    let bar = ProgressBar::new(runs.len() as u64).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {elapsed} ({eta} left)")
            .context("the progress bar's template")?,
    );
    let next = AtomicUsize::new(0);
    let played: Vec<Mutex<Option<Result<Rows>>>> = runs.iter().map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for _ in 0..jobs.min(runs.len()) {
            scope.spawn(|| {
                while let Some(((_, run), slot)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    runs.get(index).zip(played.get(index))
                } {
                    let rows = run.play();
                    *slot.lock().expect("no thread panics while it holds this lock") = Some(rows);
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let rows = played.into_iter().map(|slot| {
        let rows = slot.into_inner().ok().flatten();
        rows.context("a run was not executed")?
    });
    rows.collect()
}
