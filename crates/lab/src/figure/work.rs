//! Executes runs in parallel. Shows a progress bar on a terminal. Without a terminal, prints progress lines. The results do not depend on
//! the number of threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

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

/// Prints a progress line after each twentieth of the runs. Used if there is no terminal for a progress bar.
fn tell(done: u64, all: u64, elapsed: Duration) {
    let part = |done: u64| done * 20 / all.max(1);
    if part(done) != part(done.saturating_sub(1)) {
        eprintln!("{done}/{all} runs, {} s", elapsed.as_secs());
    }
}

/// Executes the runs: first the simulator's runs in parallel, then the kernel's runs one at a time. Returns the rows of each run, in the
/// order of `runs`.
fn play(runs: &[(usize, SweepRun)], jobs: usize) -> Result<Vec<Rows>> {
    let (real, simulated): (Vec<_>, Vec<_>) =
        (0..runs.len()).partition(|index| runs[*index].1.is_on_kernel());
    if !real.is_empty() {
        super::kernel::check_machine()?;
    }
    let bar = ProgressBar::new(runs.len() as u64).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {elapsed} ({eta} left)")
            .context("the progress bar's template")?,
    );
    let next = AtomicUsize::new(0);
    let played: Vec<Mutex<Option<Result<Rows>>>> = runs.iter().map(|_| Mutex::new(None)).collect();
    let play_one = |index: usize| {
        let rows = runs[index].1.play();
        let mut slot = played[index]
            .lock()
            .expect("no thread panics while it holds this lock");
        *slot = Some(rows);
        bar.inc(1);
        if bar.is_hidden() {
            tell(bar.position(), runs.len() as u64, bar.elapsed());
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs.min(simulated.len()) {
            scope.spawn(|| {
                while let Some(index) = simulated.get(next.fetch_add(1, Ordering::Relaxed)) {
                    play_one(*index);
                }
            });
        }
    });
    real.into_iter().for_each(play_one);
    bar.finish_and_clear();
    let rows = played.into_iter().map(|slot| {
        let rows = slot.into_inner().ok().flatten();
        rows.context("a run was not executed")?
    });
    rows.collect()
}
