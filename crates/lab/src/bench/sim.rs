//! `bench sim`: compares CPU time and peak memory of our simulator and of ns-2. Both run the same bulk transfers over TCP and over SCTP, in
//! turns.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use ::sim::scenario::dumbbell::Dumbbell;
use ::sim::scenario::multipath::MultipathTransfer;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::run::{LabOutcome, conclude};

/// The hidden subcommand that runs a program and reports the program's CPU time and peak memory.
pub const MEASURE: &str = "bench-measure";
/// The hidden subcommand that runs TCP transfers in our simulator.
pub const DUMBBELL: &str = "bench-dumbbell";

/// The hidden subcommand that runs one transfer over SCTP in our simulator.
pub const SCTP: &str = "bench-sctp";

/// Promised minimum for the TCP transfers: our packets per CPU second divided by ns-2's.
const RATIO_MIN: f64 = 5.0;
const DUMBBELL_TCL: &str = include_str!("dumbbell.tcl");
/// Promised minimum for one transfer of 80 MiB over SCTP: our packets per CPU second divided by ns-2's.
const SCTP_RATIO_MIN: f64 = 3.0;
const SCTP_TCL: &str = include_str!("sctp.tcl");

/// Simulate the same bulk transfers with ns-2 and with our simulator, and compare CPU time and memory.
#[derive(Clone, Debug, Args)]
pub struct SimBenchOptions {
    /// Number of rounds. Each round runs both simulators once; their order changes. The report has the median CPU time and the highest peak
    /// memory.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Number of flows. Each has its own two hosts, and all share one bottleneck.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    flows: u32,
    /// Data packets per flow.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    packets: u64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// The flows and packets of one simulation.
#[derive(Clone, Debug, Args)]
pub struct DumbbellOptions {
    flows: u32,
    packets: u64,
}

/// A program and its arguments.
#[derive(Clone, Debug, Args)]
pub struct MeasureOptions {
    #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Resources that a simulation used.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Used {
    /// Data packets that the simulation's senders sent.
    packets: u64,
    /// CPU time, user and system, in seconds.
    cpu_s: f64,
    /// Peak memory, in bytes.
    peak_rss_bytes: u64,
}

/// Packets and CPU time of the round with the median CPU time, and the peak memory of all rounds.
#[derive(Clone, Copy, Debug, Serialize)]
struct SimulatorCost {
    packets: u64,
    cpu_s: f64,
    packets_per_cpu_s: f64,
    peak_rss_bytes: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PeakRss {
    steadfast: u64,
    ns2: u64,
}

/// The cost of one transfer over SCTP.
#[derive(Clone, Copy, Debug, Serialize)]
struct SctpCost {
    steadfast: SimulatorCost,
    ns2: SimulatorCost,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct SimBenchReport {
    ok: bool,
    /// For the TCP transfers: simulated data packets per CPU second, as a multiple of ns-2's.
    ratio_vs_ns2: f64,
    /// For one transfer over SCTP: simulated data packets per CPU second, as a multiple of ns-2's.
    sctp_ratio_vs_ns2: f64,
    peak_rss_bytes: PeakRss,
    steadfast: SimulatorCost,
    ns2: SimulatorCost,
    sctp: SctpCost,
    rounds: u32,
    flows: u32,
}

/// Runs the benchmark.
///
/// # Errors
/// If ns-2 is not installed, or if a simulation fails.
pub fn run(options: &SimBenchOptions) -> Result<LabOutcome> {
    find_ns2()?;
    let ourselves = std::env::current_exe()?;
    let (flows, packets) = (options.flows.to_string(), options.packets.to_string());
    let script = script(DUMBBELL_TCL)?;
    let (here, there) = in_turns(
        options.rounds,
        || measured(&ourselves, &[DUMBBELL.as_ref(), flows.as_ref(), packets.as_ref()]),
        || {
            measured(
                Path::new("ns"),
                &[script.path(), flows.as_ref(), packets.as_ref()],
            )
        },
    )?;
    let script = self::script(SCTP_TCL)?;
    let sctp = in_turns(
        options.rounds,
        || measured(&ourselves, &[SCTP.as_ref()]),
        || measured(Path::new("ns"), &[script.path()]),
    )?;
    let report = report(options, (&here, &there), (&sctp.0, &sctp.1))?;
    conclude(options.json, report.ok, &report, || print(&report))
}

/// A script for ns-2, in a file.
fn script(text: &str) -> Result<NamedTempFile> {
    let mut script = NamedTempFile::with_suffix(".tcl").context("write the script for ns-2")?;
    script.write_all(text.as_bytes())?;
    Ok(script)
}

/// Runs both simulators once per round, in changing order. Returns the resources that our simulator and ns-2 used.
fn in_turns(
    rounds: u32,
    ours: impl Fn() -> Result<Used>,
    theirs: impl Fn() -> Result<Used>,
) -> Result<(Vec<Used>, Vec<Used>)> {
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        if round % 2 == 0 {
            there.push(theirs()?);
            here.push(ours()?);
        } else {
            here.push(ours()?);
            there.push(theirs()?);
        }
    }
    Ok((here, there))
}

fn find_ns2() -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join("ns").is_file());
    ensure!(
        found,
        "ns-2 is not installed: there is no program `ns` (Debian: apt-get install ns2)"
    );
    Ok(())
}

/// Runs a program as the only child of a new process ([`MEASURE`]). Therefore RUSAGE_CHILDREN in the new process is the usage of that
/// program alone.
fn measured(program: &Path, arguments: &[&Path]) -> Result<Used> {
    let output = Command::new(std::env::current_exe()?)
        .args([MEASURE, "--"])
        .arg(program)
        .args(arguments)
        .output()
        .with_context(|| program.display().to_string())?;
    ensure!(
        output.status.success(),
        "{}: {}",
        program.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_slice(&output.stdout).context("the measured program's report")
}

/// Runs the program and prints [`Used`] as JSON. The program must print the number of packets that it sent, and nothing else.
///
/// # Errors
/// If the program fails or prints anything else.
pub fn measure(options: &MeasureOptions) -> Result<()> {
    let (program, arguments) = options.command.split_first().context("a program")?;
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| program.clone())?;
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if !output.status.success() {
        bail!("{program}: {} {}", text.trim(), errors.trim());
    }
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    let used = Used {
        packets: text
            .trim()
            .parse()
            .with_context(|| format!("{program} printed {text:?}"))?,
        cpu_s: seconds(usage.user_time()) + seconds(usage.system_time()),
        peak_rss_bytes: u64::try_from(usage.max_rss())? * 1024,
    };
    say!("{}", serde_json::to_string(&used)?);
    Ok(())
}

/// Runs the simulation and prints how many packets were sent.
///
/// # Errors
/// If there are no packets.
pub fn dumbbell(options: &DumbbellOptions) -> Result<()> {
    let dumbbell = Dumbbell {
        flows: options.flows,
        segments: options.packets,
        ..Dumbbell::default()
    };
    let flows = dumbbell.run()?;
    say!("{}", flows.iter().map(|flow| flow.segments).sum::<u64>());
    Ok(())
}

/// Runs one transfer of 80 MiB over SCTP and prints how many packets with data were sent.
///
/// # Errors
/// If the network's configuration is invalid.
pub fn sctp() -> Result<()> {
    say!("{}", MultipathTransfer::default().run()?.packets);
    Ok(())
}

/// The costs of our simulator (`here`) and of ns-2 (`there`), and our packets per CPU second as a multiple of ns-2's.
fn compare(here: &[Used], there: &[Used]) -> Result<(SimulatorCost, SimulatorCost, f64)> {
    let (steadfast, ns2) = (side(here), side(there));
    let difference = steadfast.packets as f64 / ns2.packets as f64 - 1.0;
    ensure!(
        difference.abs() < 0.01,
        "not the same simulation: {} packets here, {} in ns-2",
        steadfast.packets,
        ns2.packets
    );
    Ok((
        steadfast,
        ns2,
        steadfast.packets_per_cpu_s / ns2.packets_per_cpu_s,
    ))
}

/// Makes the report. In `tcp` and in `sctp`, the first slice is what our simulator used, the second one what ns-2 used.
fn report(
    options: &SimBenchOptions,
    tcp: (&[Used], &[Used]),
    sctp: (&[Used], &[Used]),
) -> Result<SimBenchReport> {
    let (steadfast, ns2, ratio_vs_ns2) = compare(tcp.0, tcp.1)?;
    let (sctp_here, sctp_there, sctp_ratio_vs_ns2) = compare(sctp.0, sctp.1)?;
    let has_less_memory = steadfast.peak_rss_bytes < ns2.peak_rss_bytes;
    Ok(SimBenchReport {
        ok: ratio_vs_ns2 >= RATIO_MIN && sctp_ratio_vs_ns2 >= SCTP_RATIO_MIN && has_less_memory,
        ratio_vs_ns2,
        sctp_ratio_vs_ns2,
        peak_rss_bytes: PeakRss {
            steadfast: steadfast.peak_rss_bytes,
            ns2: ns2.peak_rss_bytes,
        },
        steadfast,
        ns2,
        sctp: SctpCost {
            steadfast: sctp_here,
            ns2: sctp_there,
        },
        rounds: options.rounds,
        flows: options.flows,
    })
}

/// Summarises `rounds`, which must not be empty.
fn side(rounds: &[Used]) -> SimulatorCost {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(|a, b| a.cpu_s.total_cmp(&b.cpu_s));
    let median = &sorted[sorted.len() / 2];
    SimulatorCost {
        packets: median.packets,
        cpu_s: median.cpu_s,
        packets_per_cpu_s: median.packets as f64 / median.cpu_s,
        peak_rss_bytes: rounds.iter().map(|used| used.peak_rss_bytes).max().unwrap_or(0),
    }
}

fn print(report: &SimBenchReport) {
    say!(
        "{} flow(s), {} data packets, {} rounds",
        report.flows,
        report.steadfast.packets,
        report.rounds
    );
    say!(
        "{:10} {:>8} {:>16} {:>12}",
        "",
        "CPU s",
        "packets/CPU s",
        "peak memory"
    );
    for (name, side) in [
        ("steadfast", &report.steadfast),
        ("ns-2", &report.ns2),
        ("SCTP here", &report.sctp.steadfast),
        ("SCTP ns-2", &report.sctp.ns2),
    ] {
        say!(
            "{name:10} {:8.3} {:16.0} {:9.1} MB",
            side.cpu_s,
            side.packets_per_cpu_s,
            side.peak_rss_bytes as f64 / 1e6
        );
    }
    let verdict = if report.ok { "holds" } else { "does not hold" };
    say!(
        "ratio_vs_ns2 {:.1} (at least {RATIO_MIN}, and less memory), sctp_ratio_vs_ns2 {:.1} (at least {SCTP_RATIO_MIN}): {verdict}",
        report.ratio_vs_ns2,
        report.sctp_ratio_vs_ns2
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(packets: u64, cpu_s: f64, peak_rss_bytes: u64) -> Used {
        Used {
            packets,
            cpu_s,
            peak_rss_bytes,
        }
    }

    fn options() -> SimBenchOptions {
        SimBenchOptions {
            rounds: 3,
            flows: 1,
            packets: 100,
            json: false,
        }
    }

    #[test]
    fn medians_decide_and_more_memory_does_not_hold() {
        let there = [used(100, 1.0, 15), used(100, 9.0, 15), used(100, 0.9, 15)];
        let here = [used(100, 0.1, 5), used(100, 0.01, 6), used(100, 5.0, 5)];
        let (sctp_here, sctp_there) = ([used(10, 0.01, 5)], [used(10, 0.031, 15)]);
        let report = |here: &[Used], sctp: &[Used]| {
            super::report(&options(), (here, &there), (sctp, &sctp_there)).unwrap()
        };
        let usual = report(&here, &sctp_here);
        assert!(usual.ok && (usual.ratio_vs_ns2 - 10.0).abs() < 1e-9);
        assert!((usual.sctp_ratio_vs_ns2 - 3.1).abs() < 1e-9);
        assert_eq!(usual.peak_rss_bytes.steadfast, 6);
        let more = [used(100, 0.1, 16)];
        assert!(!report(&more, &sctp_here).ok);
        let slower = [used(100, 0.21, 5)];
        assert!(!report(&slower, &sctp_here).ok);
        assert!(!report(&here, &[used(10, 0.011, 5)]).ok);
    }

    #[test]
    fn different_simulations_are_not_compared() {
        let error = compare(&[used(98, 0.1, 5)], &[used(100, 1.0, 15)]).unwrap_err();
        assert!(error.to_string().contains("not the same"));
    }
}
