//! `swarm` and `replay`: the pair in the simulator, under failures drawn from a seed (docs/swarm.md).

mod defect;
mod options;
mod report;
mod write;

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use sim::swarm::{play, play_traced, shrink};

use self::options::draw;
pub use self::options::{ReplayOptions, SwarmOptions};
use self::report::{Broken, SwarmReport};
use self::write::write;
use crate::recording;
use crate::run::{LabOutcome, WrongUse, conclude};

/// Maximum number of failed runs that are shrunk, that is, reduced to the smallest scenario that breaks the same rule.
const SHRUNK_MAX: usize = 5;

/// Runs the swarm.
///
/// # Errors
/// If a scenario cannot be written.
pub fn run(options: &SwarmOptions) -> Result<LabOutcome> {
    if let Some(defect) = options.defect {
        return defect::look_for(defect, options);
    }
    let before = cpu_seconds()?;
    let report = Mutex::new(SwarmReport::new(options.seed, options.runs));
    let next = AtomicU64::new(0);
    let progress = ProgressBar::new(options.runs); // on stderr, and only if stderr is a terminal
    thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= options.runs {
                        return;
                    }
                    let seed = options.seed.wrapping_add(index);
                    let outcome = play(&draw(seed, options.annexes));
                    let mut report = report.lock().expect("no run panics");
                    report.add(seed, outcome, options.annexes);
                    progress.inc(1);
                }
            });
        }
    });
    progress.finish_and_clear();
    let cpu = cpu_seconds()? - before;
    let mut report = report.into_inner().expect("no run panics");
    report.finish(cpu);
    for broken in report.violations.iter_mut().take(SHRUNK_MAX) {
        write_smallest(options, broken)?;
    }
    conclude(options.json, report.ok, &report, || {
        say!("{}", report.to_string().trim_end())
    })
}

fn cpu_seconds() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context("asking for the CPU time")?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(micros as f64 / 1e6)
}

fn write_smallest(options: &SwarmOptions, broken: &mut Broken) -> Result<()> {
    let Some((scenario, _)) = shrink(&draw(broken.seed, options.annexes)) else {
        return Ok(()); // the same seed broke no rule this time, so there is nothing to shrink
    };
    broken.replay = write(&options.out, &scenario)?;
    Ok(())
}

/// Replays one run.
///
/// # Errors
/// If the file is neither a scenario nor a recording.
pub fn replay(options: &ReplayOptions) -> Result<LabOutcome> {
    if let Some(file) = &options.file
        && recording::is_recording(file)?
    {
        if options.shrink {
            return Err(
                WrongUse("a recording cannot be made smaller: --shrink is for scenarios".into()).into(),
            );
        }
        return recording::replay(file, options.trace, options.json);
    }
    let mut scenario = match (&options.file, options.seed) {
        (Some(file), _) => {
            let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
            toml::from_str(&text).map_err(|error| WrongUse(format!("{}: {error}", file.display())))?
        }
        (None, seed) => draw(seed.unwrap_or_default(), options.annexes),
    };
    if options.shrink {
        match shrink(&scenario) {
            Some((smaller, _)) => scenario = smaller,
            None => return Err(WrongUse("the scenario breaks no rule: nothing to shrink".into()).into()),
        }
        say!(
            "{}",
            toml::to_string(&scenario)
                .context("writing a scenario")?
                .trim_end()
        );
    }
    let outcome = if options.trace {
        let (outcome, trace) = play_traced(&scenario);
        say!("{}", trace.trim_end());
        outcome
    } else {
        play(&scenario)
    };
    let ok = outcome.violations.is_empty();
    let mut report = SwarmReport::new(scenario.seed, 1);
    report.add(scenario.seed, outcome, options.annexes);
    report.finish(0.0);
    conclude(options.json, ok, &report, || eprint!("{report}"))
}
