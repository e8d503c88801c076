//! `steadfast-lab figure` and `merge`: draw the papers' figures with results of the simulator, the models and the kernel, and report which
//! of the papers' claims hold.
//!
//! A scenario file describes runs, runs give rows, and rows give figures and verdicts. Runs are independent of each other, so they are made
//! in parallel or, as shards, on different machines. The way in which runs are distributed does not change the figures.

mod catalogue;
mod chart;
mod claims;
mod draw;
mod judged;
mod kernel;
mod measured;
mod oracle;
mod palette;
mod place;
mod playable;
mod plot;
mod report;
mod results;
mod rows;
mod scenario;
mod shard;
mod sweep;
mod trace;
mod work;

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use self::catalogue::CatalogueEntry;
use self::chart::Figure;
use self::claims::FigureClaimVerdict;
pub use self::judged::JudgedMeasurements;
pub use self::measured::{rows_of_coral, rows_of_ft_tcp};
use self::results::Results;
use self::scenario::FigureScenario;
use self::shard::{Manifest, Shard};
pub use self::trace::{TraceOptions, trace};
use crate::run::{LabOutcome, WrongUse};

/// Draw figures as CSV and SVG: those of the HALR thesis, the same figures for today's hosts and on this machine's kernel, and those of the
/// papers on SCTP failover, Migratory TCP, FT-TCP and CoRAL. Several figures also get a report, with a verdict per claim.
#[derive(Clone, Debug, Args)]
pub struct FigureOptions {
    /// One figure: halr-7 to 9, halr-12 to 26, halr-15-17-near-sources, halr-15-17-1.5s, halr-15-17-1.5s-near-sources, halr-buffer-3000,
    /// today-12 to 14, today-16, today-22 to 26, unequal-2, unequal-4, caro-3 to 7, caro-4-low, caro-7-all-fail, caro-10 to 13,
    /// caro-three-paths, caro-cross, caro-short, caro-sync, caro-informed-90-90, -90-210 and -210-90, kernel-12 to 14, kernel-20 to 26,
    /// kernel-unequal-2, kernel-unequal-4, mtcp-6, mtcp-7, ft-tcp-2 to 4, ft-tcp-clients, ft-tcp-latency, ft-tcp-takeover, ft-tcp-stall,
    /// coral-2, coral-3, coral-throughput or coral-times. Or several: halr (all halr-…), today (all today-… and unequal-…), caro (all caro-…),
    /// all (these three), kernel (all kernel-…, each after the same figures of halr and of today), mtcp, ft-tcp, coral. The figures of kernel,
    /// mtcp, ft-tcp and coral need root and a quiet machine. Those of kernel and ft-tcp take about ten minutes per seed.
    name: String,
    /// Directory for the results; created if it does not exist.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Seeds per run: 1, 2, …
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Threads; default: one per CPU. Results do not depend on the number of threads.
    #[arg(long)]
    jobs: Option<NonZeroUsize>,
    /// Make only part I of N of the runs, 1 ≤ I ≤ N, and draw nothing: see `merge`.
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// A scenario file instead of the one that comes with the figure; for one figure only.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
}

/// Join the parts that `figure --shard` wrote, and draw.
#[derive(Clone, Debug, Args)]
pub struct MergeOptions {
    /// The directories that the shards got as `--out`, or the shards' own directories below them.
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Directory for the results; default: the first DIR.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Makes the runs and draws the figures.
///
/// # Errors
/// [`WrongUse`] for an unknown figure or an impossible scenario. Another error if a file cannot be written.
pub fn run(options: &FigureOptions) -> Result<LabOutcome> {
    let started = Instant::now();
    let figures = figures(&options.name)?;
    let manifest = manifest(options, &figures)?;
    let scenarios = manifest.scenarios()?;
    // If the directory cannot be written, fail before the runs are made.
    fs::create_dir_all(&options.out).with_context(|| options.out.display().to_string())?;
    let jobs = options.jobs.or_else(|| thread::available_parallelism().ok());
    let jobs = jobs.map_or(1, NonZeroUsize::get);
    let results = work::results(scenarios, options.seeds, options.shard, jobs)?;
    if let Some(shard) = options.shard {
        let directory = options.out.join(shard.directory());
        shard::write(&directory, &manifest, &results)?;
        say!("{}: part {shard} of the runs", directory.display());
        return Ok(LabOutcome::Held);
    }
    finish(&options.out, &manifest, &results, started.elapsed())
}

/// Joins shards and draws the figures.
///
/// # Errors
/// [`WrongUse`] if the shards do not belong together, or if a shard is missing. Another error if a file cannot be read or written.
pub fn merge(options: &MergeOptions) -> Result<LabOutcome> {
    let started = Instant::now();
    let (manifest, results) = shard::join(&options.directories)?;
    let out = options.out.as_ref().unwrap_or(&options.directories[0]);
    finish(out, &manifest, &results, started.elapsed())
}

fn figures(name: &str) -> Result<Vec<&'static CatalogueEntry>> {
    let figures = catalogue::named(name).ok_or_else(|| {
        let names: Vec<_> = catalogue::FIGURES.iter().map(|figure| figure.name).collect();
        WrongUse(format!(
            "no figure {name}; there are {}, halr, today, caro, kernel, mtcp, ft-tcp, coral, all",
            names.join(", ")
        ))
    })?;
    Ok(figures)
}

fn manifest(options: &FigureOptions, figures: &[&CatalogueEntry]) -> Result<Manifest> {
    let scenario = match &options.scenario {
        None => None,
        Some(file) => {
            let [figure] = figures else {
                return Err(
                    WrongUse(format!("--scenario is for one figure, not for {}", options.name)).into(),
                );
            };
            let text = fs::read_to_string(file)
                .map_err(|error| WrongUse(format!("{}: the file cannot be read: {error}", file.display())))?;
            let parsed = FigureScenario::parse(file, &text)?;
            let ours = catalogue::file(figure.scenario).context("a figure's scenario")?;
            let needed = FigureScenario::parse(Path::new(ours.name), ours.text)?;
            if std::mem::discriminant(&parsed) != std::mem::discriminant(&needed) {
                return Err(WrongUse(format!(
                    "{}:1: {} is drawn from a scenario of another kind, like scenarios/{}.toml",
                    file.display(),
                    figure.name,
                    ours.name
                ))
                .into());
            }
            Some(text)
        }
    };
    Ok(Manifest {
        name: options.name.clone(),
        seeds: options.seeds,
        shard: options.shard,
        scenario,
    })
}

/// Writes a figure as CSV and as SVG. Returns the SVG document.
fn save(figure: &Figure, out: &Path) -> Result<String> {
    let svg = draw::svg(figure)?;
    write(&out.join(format!("{}.csv", figure.name)), &figure.csv()?)?;
    write(&out.join(format!("{}.svg", figure.name)), svg.as_bytes())?;
    Ok(svg)
}

/// Writes rows, figures and report, and prints the verdicts.
fn finish(out: &Path, manifest: &Manifest, results: &Results, took: Duration) -> Result<LabOutcome> {
    let entries = figures(&manifest.name)?;
    let figures = draw_all(&entries, results);
    let runs = out.join("runs");
    fs::create_dir_all(&runs).with_context(|| runs.display().to_string())?;
    for (name, (_, rows)) in &results.scenarios {
        rows.write(&runs, name)?;
    }
    let mut drawn = Vec::new();
    for figure in &figures {
        drawn.push(save(figure, out)?);
    }
    let names: Vec<_> = entries.iter().map(|entry| entry.name).collect();
    // Claims hold for our own scenarios only, not for the user's file.
    let judged = if manifest.scenario.is_some() {
        Vec::new()
    } else {
        let mut judged = claims::judge(results, &names);
        // The runs of one figure cannot answer claims that need the runs of another figure.
        if entries.len() == 1 {
            judged.retain(|judged| judged.verdict != FigureClaimVerdict::NotRun);
        }
        judged
    };
    if entries.len() > 1 {
        let html = report::html(&figures, &drawn, &judged, manifest.seeds);
        write(&out.join("report.html"), html.as_bytes())?;
    }
    report::print(&judged);
    say!(
        "{} figures, {} seeds, {:.1} s: {}",
        figures.len(),
        manifest.seeds,
        took.as_secs_f64(),
        out.display()
    );
    let surprising = judged
        .iter()
        .any(|judged| judged.verdict == FigureClaimVerdict::Surprising);
    Ok(LabOutcome::of(!surprising))
}

fn draw_all(entries: &[&CatalogueEntry], results: &Results) -> Vec<Figure> {
    let mut figures = Vec::new();
    for entry in entries {
        let Some((scenario, rows)) = results.scenarios.get(entry.scenario) else {
            continue;
        };
        let panels = (entry.draw)(scenario, rows, entry.marks);
        if panels.is_empty() {
            tracing::warn!("{}: not drawn, because the runs gave no data for it", entry.name);
            continue;
        }
        figures.push(Figure {
            name: entry.name,
            title: entry.title,
            panels,
        });
    }
    figures
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

/// Names of the scenarios that `figures` or the figures' claims need, without duplicates.
fn scenario_names(figures: &[&CatalogueEntry]) -> Vec<&'static str> {
    let of = |figure: &&CatalogueEntry| std::iter::once(figure.scenario).chain(figure.also.iter().copied());
    let mut names: Vec<_> = figures.iter().flat_map(of).collect();
    names.sort_unstable();
    names.dedup();
    names
}

impl Manifest {
    /// The scenarios that the manifest's figures are drawn from, with their names.
    fn scenarios(&self) -> Result<Vec<(String, FigureScenario)>> {
        let figures = figures(&self.name)?;
        let names = match (&self.scenario, figures.as_slice()) {
            (None, _) => scenario_names(&figures),
            (Some(_), [figure]) => vec![figure.scenario],
            (Some(_), _) => bail!(
                "the user's scenario file replaces one scenario, but there are {} figures",
                figures.len()
            ),
        };
        names
            .into_iter()
            .map(|name| {
                let ours = catalogue::file(name).context("a figure's scenario")?;
                let text = self.scenario.as_deref().unwrap_or(ours.text);
                Ok((name.to_owned(), FigureScenario::parse(Path::new(name), text)?))
            })
            .collect()
    }
}

#[cfg(test)]
mod changes;
#[cfg(test)]
mod measured_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod visible;
