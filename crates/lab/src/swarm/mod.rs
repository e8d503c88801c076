//! `swarm` and `replay`: the pair in the simulator, under failures drawn from a seed (docs/swarm.md).

mod defect;
mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result};
use clap::Args;
use indicatif::ProgressBar;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use sim::pair::Defect;
use sim::swarm::{Scenario, play, play_traced, shrink};

use crate::{LabOutcome, WrongUse, recording};
use report::{Broken, SwarmReport};

/// Break a simulated pair in all ways that seeds can think of, and check what it promises.
///
/// Run N of a swarm has the seed SEED + N. A run that breaks a promise is made as small as it can be and written to a file that
/// `replay` plays again.
#[derive(Clone, Debug, Args)]
pub struct SwarmOptions {
    /// The seed of the first run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many runs.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    runs: u64,
    /// Runs at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    jobs: u32,
    /// Put this defect into the nodes, and stop at the first run that finds it: what the checkers see, they must see here.
    #[arg(long, value_name = "NAME", value_parser = defect::parse)]
    defect: Option<Defect>,
    /// Where scenarios that break a promise are written.
    #[arg(long, default_value = "out/swarm")]
    out: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Play one run of the swarm again, or replay the recording of a daemon.
#[derive(Clone, Debug, Args)]
pub struct ReplayOptions {
    /// A scenario that the swarm has written, or a recording of `steadfast run --record`. The node must want the same actions again.
    #[arg(required_unless_present = "seed", conflicts_with = "seed")]
    file: Option<PathBuf>,
    /// The run of this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Make it as small as it can be, as long as it breaks the same promise, and print that scenario.
    #[arg(long)]
    shrink: bool,
    /// Print every packet, and everything that the nodes do.
    #[arg(long)]
    trace: bool,
    /// Print one JSON object instead of text.
    #[arg(long, conflicts_with_all = ["trace", "shrink"])]
    json: bool,
}

/// Maximum number of failed runs that are shrunk. The first ones tell most.
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
                    let outcome = play(&Scenario::draw(seed));
                    let mut report = report.lock().expect("no run panics");
                    report.add(seed, outcome);
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
        write_smallest(&options.out, broken)?;
    }
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{report}");
    }
    Ok(outcome(report.ok))
}

const fn outcome(ok: bool) -> LabOutcome {
    if ok {
        LabOutcome::Held
    } else {
        LabOutcome::DidNotHold
    }
}

fn cpu_seconds() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context("asking for the CPU time")?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(micros as f64 / 1e6)
}

fn write_smallest(directory: &Path, broken: &mut Broken) -> Result<()> {
    let Some((scenario, _)) = shrink(&Scenario::draw(broken.seed)) else {
        return Ok(()); // nothing is written: the seed alone replays the run
    };
    broken.replay = write(directory, &scenario)?;
    Ok(())
}

/// Writes a scenario, and returns the command that replays it.
fn write(directory: &Path, scenario: &Scenario) -> Result<String> {
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let path = directory.join(format!("seed-{}.toml", scenario.seed));
    let text = toml::to_string(scenario).context("writing a scenario")?;
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    Ok(format!("steadfast-lab replay {}", path.display()))
}

/// Replays one run.
///
/// # Errors
/// If the file is no scenario.
pub fn replay(options: &ReplayOptions) -> Result<LabOutcome> {
    if let Some(file) = &options.file
        && recording::is_recording(file)?
    {
        return recording::replay(file, options.trace, options.json);
    }
    let mut scenario = match (&options.file, options.seed) {
        (Some(file), _) => {
            let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
            toml::from_str(&text).map_err(|error| WrongUse(format!("{}: {error}", file.display())))?
        }
        (None, seed) => Scenario::draw(seed.unwrap_or_default()),
    };
    if options.shrink {
        match shrink(&scenario) {
            Some((smaller, _)) => scenario = smaller,
            None => return Err(WrongUse("it breaks no promise: nothing to shrink".into()).into()),
        }
        print!("{}", toml::to_string(&scenario).context("writing a scenario")?);
    }
    let outcome = if options.trace {
        let (outcome, trace) = play_traced(&scenario);
        print!("{trace}");
        outcome
    } else {
        play(&scenario)
    };
    let ok = outcome.violations.is_empty();
    let mut report = SwarmReport::new(scenario.seed, 1);
    report.add(scenario.seed, outcome);
    report.finish(0.0);
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        eprint!("{report}");
    }
    Ok(self::outcome(ok))
}
