//! Plays one run or many. Prints a line for each, and the command that repeats the first failure.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::play::{RunFacts, play};
use super::report::CrashReport;
use super::{CrashFault, CrashOptions, testbed};
use crate::LabOutcome;
use crate::node::Assume;

/// What `--json` prints.
#[derive(Serialize)]
struct Summary {
    #[serde(flatten)]
    report: CrashReport,
    runs: u32,
    runs_failed: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_failure: Option<FirstFailure>,
}

#[derive(Serialize)]
struct FirstFailure {
    seed: u64,
    /// The command that repeats this run alone.
    command: String,
}

/// Plays all runs of `options` and prints the findings.
///
/// # Errors
/// If a run could not be played, or stdout is gone.
pub fn run(options: &CrashOptions) -> Result<LabOutcome> {
    let first_seed = options.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let narrator = Narrator::new(options.repeat);
    let mut summary: Option<Summary> = None;
    for number in 0..options.repeat {
        let seed = first_seed.wrapping_add(u64::from(number));
        let name = format!("{}-{number}", std::process::id());
        let facts = play(options, seed, &name, &|act| narrator.act(number, act))?;
        let report = CrashReport::new(options, seed, &facts);
        if let Some(directory) = testbed::kept(options, &name) {
            keep(options, &directory, &facts, &report)?;
        }
        if options.repeat > 1 {
            narrator.line(&format!("{}/{} {}", number + 1, options.repeat, report.line()));
        }
        let failure = (!report.ok).then(|| FirstFailure {
            seed,
            command: command(options, seed),
        });
        summary = Some(match summary {
            None => Summary {
                report,
                runs: 1,
                runs_failed: u32::from(failure.is_some()),
                first_failure: failure,
            },
            Some(mut summary) => {
                summary.report.add(report);
                summary.runs += 1;
                summary.runs_failed += u32::from(failure.is_some());
                summary.first_failure = summary.first_failure.or(failure);
                summary
            }
        });
    }
    narrator.end();
    let mut summary = summary.expect("there is at least one run");
    if options.measure {
        summary.report.expect_short_stall();
    }
    print(options, &summary)?;
    Ok(if summary.report.ok && summary.runs_failed == 0 {
        LabOutcome::Held
    } else {
        LabOutcome::DidNotHold
    })
}

/// Prints that the case of `options` cannot happen, and why.
///
/// # Errors
/// If stdout is gone.
pub fn except(options: &CrashOptions, reason: &str) -> Result<LabOutcome> {
    let seed = options.seed.unwrap_or_default();
    let summary = Summary {
        report: CrashReport::exception(options, seed, reason),
        runs: 0,
        runs_failed: 0,
        first_failure: None,
    };
    print(options, &summary)?;
    Ok(LabOutcome::Held)
}

/// Adds the findings to the files of a run in `directory`. With several runs, keeps only the files of runs that failed.
fn keep(options: &CrashOptions, directory: &Path, facts: &RunFacts, report: &CrashReport) -> Result<()> {
    let failed = |what: &str| format!("{what} {}", directory.display());
    if options.repeat > 1 && report.ok {
        return fs::remove_dir_all(directory).with_context(|| failed("remove"));
    }
    let write = |name: &str, json: serde_json::Result<Vec<u8>>| -> Result<()> {
        Ok(fs::write(directory.join(name), json?)?)
    };
    write("facts.json", serde_json::to_vec(facts))
        .and_then(|()| write("report.json", serde_json::to_vec_pretty(report)))
        .with_context(|| failed("write to"))
}

fn print(options: &CrashOptions, summary: &Summary) -> Result<()> {
    let mut stdout = io::stdout().lock();
    if options.json {
        writeln!(stdout, "{}", serde_json::to_string(summary)?)?;
    } else {
        writeln!(stdout, "{}", summary.report.text())?;
        if let Some(failure) = &summary.first_failure {
            let (failed, runs) = (summary.runs_failed, summary.runs);
            writeln!(
                stdout,
                "{failed} of {runs} runs failed; the first again: {}",
                failure.command
            )?;
        }
    }
    Ok(stdout.flush()?)
}

/// The command that plays only the run with `seed`.
fn command(options: &CrashOptions, seed: u64) -> String {
    let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
        value().map_or_else(String::new, |value| value.get_name().to_owned())
    };
    let mut command = format!(
        "steadfast-lab crash --policy {} --workload {} --fault {} --returning {} --connections {} --seed {seed}",
        name(&|| options.policy.to_possible_value()),
        name(&|| options.workload.to_possible_value()),
        name(&|| options.fault.to_possible_value()),
        name(&|| options.returning.to_possible_value()),
        options.connections,
    );
    if options.assume != Assume::FailStop {
        let assume = name(&|| options.assume.to_possible_value());
        command += &format!(" --assume {assume} --members {}", options.members);
    }
    if let Some(server) = options.server {
        command += &format!(" --server {}", name(&|| server.to_possible_value()));
    }
    if let Some(node) = options.node {
        command += &format!(" --node {}", name(&|| node.to_possible_value()));
    }
    if options.fault == CrashFault::CutServicePath {
        command += &format!(" --how {}", name(&|| options.how.to_possible_value()));
    }
    if options.links > 1 {
        let first = name(&|| options.first_link.to_possible_value());
        command += &format!(" --links {} --first-link {first}", options.links);
    }
    let mut add = |option: &str, value: Option<&dyn std::fmt::Display>| {
        if let Some(value) = value {
            // Writing to a String does not fail.
            let _ = write!(command, " --{option} {value}");
        }
    };
    if options.busy < options.connections {
        add("busy", Some(&options.busy));
    }
    add("rounds", options.rounds.as_ref().map(|value| value as _));
    add("megabytes", options.megabytes.as_ref().map(|value| value as _));
    if options.request_mb > 1 {
        add("request-mb", Some(&options.request_mb));
    }
    add("log-mb", options.log.log_mb.as_ref().map(|value| value as _));
    let at_limit = options
        .log
        .at_limit
        .map(|at_limit| name(&|| at_limit.to_possible_value()));
    add("at-limit", at_limit.as_ref().map(|value| value as _));
    add("rtt", options.way.rtt_ms.as_ref().map(|value| value as _));
    add("rate", options.way.rate_mbit.as_ref().map(|value| value as _));
    add("loss", options.way.loss_percent.as_ref().map(|value| value as _));
    let steadfast = options.steadfast.as_deref().map(Path::display);
    add("steadfast", steadfast.as_ref().map(|value| value as _));
    for (option, is_set) in [
        ("then-power-off", options.then_power_off),
        ("without-state-sync", options.without_state_sync),
        ("ipv6", options.ipv6),
        ("baseline", options.baseline),
    ] {
        if is_set {
            command += &format!(" --{option}");
        }
    }
    command + " --keep /tmp/steadfast-crash"
}

/// Shows the progress on stderr: a bar at a terminal, else a line for each run.
struct Narrator {
    bar: Option<ProgressBar>,
}

impl Narrator {
    fn new(runs: u32) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(u64::from(runs));
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
            bar.set_style(style.expect("the template is right"));
            bar
        });
        Self { bar }
    }

    fn act(&self, run: u32, act: &str) {
        tracing::debug!(run, "{act}");
        if let Some(bar) = &self.bar {
            bar.set_position(u64::from(run));
            bar.set_message(act.to_owned());
        }
    }

    fn line(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CrashCli {
        #[command(flatten)]
        options: CrashOptions,
    }

    #[test]
    fn the_replay_command_asks_for_the_same_run() {
        let asked = "lab --policy replica --workload upload --fault flush-tc --node backup --then-power-off --rtt 20 \
                     --loss 0.1 --assume etcd --members 3 --repeat 50 --connections 7 --busy 3 --ipv6 --without-state-sync \
                     --log-mb 2 --at-limit spill --request-mb 8";
        let options = CrashCli::parse_from(asked.split_whitespace()).options;
        let again = command(&options, 9);
        let replayed = CrashCli::parse_from(again.split(' ').skip(1)).options;
        assert_eq!(replayed.seed, Some(9));
        assert_eq!(replayed.repeat, 1);
        assert_eq!(replayed.way, options.way);
        assert_eq!(
            (replayed.policy, replayed.workload),
            (options.policy, options.workload)
        );
        assert_eq!((replayed.connections, replayed.busy, replayed.ipv6), (7, 3, true));
        assert_eq!((replayed.fault, replayed.node), (options.fault, options.node));
        assert_eq!((replayed.assume, replayed.members), (options.assume, 3));
        assert!(replayed.then_power_off && replayed.without_state_sync);
        assert_eq!((replayed.log, replayed.request_mb), (options.log, 8));
        assert_eq!(replayed.megabytes, None);
    }

    #[test]
    fn the_replay_command_cuts_the_same_path() {
        let asked = "lab --fault cut-service-path --how uplink --links 2 --first-link other";
        let options = CrashCli::parse_from(asked.split_whitespace()).options;
        let again = command(&options, 9);
        let replayed = CrashCli::parse_from(again.split(' ').skip(1)).options;
        assert_eq!((replayed.fault, replayed.how), (options.fault, options.how));
        assert_eq!((replayed.links, replayed.first_link), (2, options.first_link));
    }
}
