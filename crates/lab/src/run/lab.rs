//! The interface of a lab, and the loop over its runs.

use anyhow::Result;

use super::directory::LabRun;
use super::options::RunOptions;
use super::outcome::{LabOutcome, conclude};
use super::progress::Progress;
use super::report::{LabFindings, LabReport};

/// A lab: the options of one command, and how a run with them is played.
pub trait Lab {
    /// One part of a run, which has a network of its own.
    type Part: Copy;
    /// The findings of one part, or of all parts together.
    type Findings: LabFindings;

    /// The options that every lab has.
    fn options(&self) -> &RunOptions;

    /// Checks that the options fit together.
    ///
    /// # Errors
    /// [`super::WrongUse`] if they do not.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The reason why a run with these options cannot happen, if it cannot.
    fn exception(&self) -> Option<&'static str> {
        None
    }

    /// Checks that this machine has everything that a run needs.
    ///
    /// # Errors
    /// [`super::outcome::Missing`] if the machine lacks something.
    fn check_machine(&self) -> Result<()>;

    /// The parts of a run, in the order in which they are played.
    fn parts(&self) -> Vec<Self::Part>;

    /// The options, with their values, that select only `part`. Empty if a run has only one part, or if no options can select `part`.
    fn selection(&self, _part: Self::Part) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The findings before the first run.
    fn nothing(&self) -> Self::Findings;

    /// Plays `part` and judges it. Adds to `problems` what the daemons or the clients failed to do.
    ///
    /// # Errors
    /// If the part could not be played to its end. A connection that fails is not an error.
    fn play(&self, part: Self::Part, run: &LabRun<'_>, problems: &mut Vec<String>) -> Result<Self::Findings>;

    /// Checks the findings of all runs together. Adds each violation to `problems`.
    ///
    /// # Errors
    /// If a file cannot be written.
    fn conclude(&self, _findings: &Self::Findings, _problems: &mut Vec<String>) -> Result<()> {
        Ok(())
    }
}

/// Plays all runs of `lab` and prints what they found.
///
/// # Errors
/// If the options do not fit together, if the machine lacks something, if a part could not be played to its end, or if a file could not be
/// written. An exception ([`Lab::exception`]) is not an error: the report names it.
pub fn run(lab: &impl Lab) -> Result<LabOutcome> {
    lab.check()?;
    let options = lab.options();
    let first_seed = options.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let mut report = LabReport::new(lab.nothing(), first_seed);
    if let Some(reason) = lab.exception() {
        report.except(reason);
    } else {
        lab.check_machine()?;
        play(lab, first_seed, &mut report)?;
    }
    conclude(options.json, report.ok(), &report, || say!("{}", report.text()))
}

fn play<L: Lab>(lab: &L, first_seed: u64, report: &mut LabReport<L::Findings>) -> Result<()> {
    let (options, parts) = (lab.options(), lab.parts());
    let total = options.repeat * parts.len() as u32;
    let progress = Progress::new(total, options.json);
    let seeds = (0..options.repeat).map(|turn| first_seed.wrapping_add(u64::from(turn)));
    let all = seeds.flat_map(|seed| parts.iter().map(move |&part| (seed, part)));
    for (number, (seed, part)) in (0..).zip(all) {
        let selection = lab.selection(part);
        let mut problems = Vec::new();
        let found = LabRun::play(options, (number, seed, &selection), &progress, |run| {
            let findings = lab.play(part, run, &mut problems)?;
            let report = LabReport::of_run(findings, problems, seed, selection.clone());
            run.keep("report.json", &report)?;
            Ok(report)
        })?;
        if options.repeat > 1 && found.ok() {
            LabRun::forget(options, number, &selection)?;
        }
        if total > 1 {
            progress.line(&format!("{}/{total} {}", number + 1, found.line()));
        }
        report.add(found);
    }
    progress.end();
    report.conclude(|findings, problems| lab.conclude(findings, problems))
}
