//! `bench paths`: one association of ours against one of usrsctp, in the same network.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;

use super::network::PathsNetwork;
use super::peer::SCTP_PEER_PORT;
use crate::process::{self, LoggedProcess};
use crate::run::{LabOutcome, conclude, in_memory};
use crate::teardown::Teardown;

/// The program of the other stack.
const USRSCTP: &str = include_str!("../../../linux/tests/support/usrsctp_peer.c");
/// Time for one transfer.
const PATIENCE: Duration = Duration::from_secs(300);
/// Bytes of a message.
const MESSAGE: usize = 16_000;

/// Throughput and CPU time of one SCTP association over UDP, against usrsctp.
///
/// The two stacks take turns in the same network: two namespaces and a veth cable. One end sends messages of 16,000 bytes, and both ends' CPU
/// time counts. A target is reached by the medians over the rounds.
#[derive(Clone, Debug, Args)]
pub struct PathsBenchOptions {
    /// Megabytes (10⁶ bytes) of each transfer.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    mb: u64,
    /// Rounds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PathsBenchSample {
    mbit_per_s: f64,
    cpu_s_per_gb: f64,
}

#[derive(Debug, Serialize)]
struct PathsBenchReport {
    ok: bool,
    rounds: u32,
    throughput_ratio_vs_usrsctp: f64,
    cpu_per_gb_ratio_vs_usrsctp: f64,
    steadfast: PathsBenchSample,
    usrsctp: PathsBenchSample,
}

/// Runs the benchmark.
///
/// # Errors
/// If a step fails. A missed target is no error.
pub fn run(options: &PathsBenchOptions) -> Result<LabOutcome> {
    let teardown = Teardown::start()?;
    let samples = measure_all(options, &teardown);
    teardown.finish()?;
    let [steadfast, usrsctp] = samples?.map(|samples| median(&samples));
    let throughput = steadfast.mbit_per_s / usrsctp.mbit_per_s;
    let cpu = steadfast.cpu_s_per_gb / usrsctp.cpu_s_per_gb;
    let report = PathsBenchReport {
        ok: throughput >= 1.0 && cpu <= 1.0,
        rounds: options.rounds,
        throughput_ratio_vs_usrsctp: throughput,
        cpu_per_gb_ratio_vs_usrsctp: cpu,
        steadfast,
        usrsctp,
    };
    conclude(options.json, report.ok, &report, || {
        say!("throughput {throughput:.2} times usrsctp's, CPU per GB {cpu:.2} times: {report:?}");
    })
}

fn measure_all(options: &PathsBenchOptions, teardown: &Teardown) -> Result<[Vec<PathsBenchSample>; 2]> {
    let name = format!("{}p", std::process::id());
    let directory = in_memory(&name, teardown)?;
    let network = PathsNetwork::build(&name, teardown)?;
    let usrsctp = compile(&directory)?;
    let own = std::env::current_exe().context("this program's path")?;
    let mut samples = [Vec::new(), Vec::new()];
    for round in 0..options.rounds {
        for (turn, samples) in samples.iter_mut().enumerate() {
            let label = format!("{round}-{turn}");
            let program = if turn == 0 { &own } else { &usrsctp };
            samples.push(transfer(
                options,
                &network,
                program,
                turn == 0,
                &label,
                &directory,
            )?);
        }
    }
    Ok(samples)
}

/// Compiles usrsctp's program.
fn compile(directory: &Path) -> Result<PathBuf> {
    let (source, program) = (directory.join("usrsctp.c"), directory.join("usrsctp"));
    std::fs::write(&source, USRSCTP).with_context(|| source.display().to_string())?;
    let mut command = Command::new("cc");
    command
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(&source)
        .args(["-lusrsctp", "-lpthread"]);
    process::output(&mut command, "cc (needs libusrsctp-dev)")?;
    Ok(program)
}

fn transfer(
    options: &PathsBenchOptions,
    network: &PathsNetwork,
    program: &Path,
    is_own: bool,
    label: &str,
    directory: &Path,
) -> Result<PathsBenchSample> {
    let bytes = (options.mb * 1_000_000).to_string();
    let message = MESSAGE.to_string();
    let words = |listens: bool| -> Vec<String> {
        let words: Vec<&str> = match (is_own, listens) {
            (true, true) => vec![
                "sctp-peer",
                "--bytes",
                &bytes,
                "--message",
                &message,
                "--via",
                "10.1.0.2",
            ],
            (true, false) => {
                vec![
                    "sctp-peer",
                    "--bytes",
                    &bytes,
                    "--message",
                    &message,
                    "--via",
                    "10.1.0.1",
                    "--to",
                    "10.1.0.2",
                ]
            }
            (false, true) => vec!["listen", "sink", &bytes, &message, "9899", "9899"],
            (false, false) => vec!["connect", "source", &bytes, &message, "9899", "9899"],
        };
        let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        if !is_own {
            words.extend([SCTP_PEER_PORT.to_string(), "1".to_owned(), "10.1.0.2".to_owned()]);
        }
        words
    };
    let mut command = network.far.command(program)?;
    command.args(words(true));
    let mut sink = LoggedProcess::start(&format!("sink-{label}"), command, directory)?;
    sink.wait_until("be ready", PATIENCE, |process| process.output().contains("ready"))?;
    let mut command = network.near.command(program)?;
    command.args(words(false));
    let mut source = LoggedProcess::start(&format!("source-{label}"), command, directory)?;
    source.wait(PATIENCE)?;
    sink.wait(PATIENCE)?;
    let [from, to] = [&source, &sink].map(|process| figures(&process.output()));
    let (from, to) = (from?, to?);
    let gb = options.mb as f64 / 1e3;
    Ok(PathsBenchSample {
        mbit_per_s: gb * 8e3 / (to[2] / 1e3),
        cpu_s_per_gb: (from[3] + to[3]) / 1e3 / gb,
    })
}

/// The last line of an end.
fn figures(output: &str) -> Result<[f64; 4]> {
    let line = output.lines().last().unwrap_or_default();
    let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let numbers: [f64; 4] = numbers
        .try_into()
        .ok()
        .with_context(|| format!("an end said: {output}"))?;
    ensure!(numbers[1] == 0.0, "the content differs: {line}");
    Ok(numbers)
}

fn median(samples: &[PathsBenchSample]) -> PathsBenchSample {
    let of = |read: fn(&PathsBenchSample) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(read).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    PathsBenchSample {
        mbit_per_s: of(|sample| sample.mbit_per_s),
        cpu_s_per_gb: of(|sample| sample.cpu_s_per_gb),
    }
}
