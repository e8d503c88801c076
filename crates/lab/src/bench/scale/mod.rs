//! `bench scale`: the cost of many connections, of many new connections, and of a flood.

mod churn;
mod content;
mod flood;
mod idle;
mod report;
mod saturate;
mod short;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use self::content::{SEED, SMALL_BYTES, small_path};
use self::flood::{Flood, FloodKind};
use self::report::{ScaleBenchReport, ScaleResults};
use super::calibration::Calibration;
use super::measure;
use super::options::BenchRunOptions;
use super::testbed::{BenchTestbed, BenchVariant, PATIENT, Serving};
use crate::node::PatternFiles;
use crate::run::{LabOutcome, conclude, in_memory};
use crate::teardown::Teardown;
use judge::CommitMode;

/// Bytes of a download beside a flood.
const BULK_BYTES: u64 = 1_000_000_000;
/// Time between the start of a flood and the start of the download. The flood fills the servers' backlog in this time.
const FLOOD_LEAD: Duration = Duration::from_millis(700);
/// Rate of a real server's link, in Mbit/s. The flood is measured on a link with this limit, and on a link without a limit.
const LINK_MBIT: u32 = 10_000;
/// Rate of the link for the flood without SYNs, in Mbit/s.
const STRAY_LINK_MBIT: u32 = 1_000;
/// Seconds per round for which new connections are offered.
const SHORT_SECONDS: f64 = 3.0;
/// Number of missed heartbeats in a default configuration. A failure is detected within 80 ms.
const MISSED_DEFAULT: u32 = 4;

/// Measure protection with many connections: during a SYN flood, during a flood of segments that belong to no connection,
/// with 3,000 new connections per second, through a takeover of thousands of idle connections, and during churn
/// (connections begin and end all the time).
///
/// Client, router and both nodes share this machine. Tests that compare with plain forwarding measure both in turns in
/// each round. Only the ratio of the two results is meaningful. A calibration of the machine is printed beside absolute
/// times. Memory is RssAnon.
#[derive(Clone, Debug, Args)]
pub struct ScaleBenchOptions {
    #[command(flatten)]
    common: BenchRunOptions,
    /// Run only these tests. Default: all. Saturation is separate: it runs if --saturate is given.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<ScaleTest>,
    /// Idle connections.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=16_000))]
    connections: u32,
    /// SYNs of the flood, per second.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    syns: u32,
    /// Segments per second of the flood without SYNs. If the lab cannot send that many, it sends as many as it can.
    #[arg(long, default_value_t = 150_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    strays: u32,
    /// New connections offered per second.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    new: u32,
    /// Minutes of churn. Growth of memory and of the tables is judged only in runs of at least 2.5 minutes, because the
    /// first 1.5 minutes are warm-up.
    #[arg(long, default_value_t = 0.2, value_parser = minutes)]
    minutes: f64,
    /// Minutes for which all CPUs are saturated beside an idle pair.
    #[arg(long, value_parser = minutes)]
    saturate: Option<f64>,
}

/// A test of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ScaleTest {
    /// Downloads beside a SYN flood, and without.
    Flood,
    /// Downloads on a link of 1 Gbit/s beside a flood of segments that belong to no connection, and without.
    Strays,
    /// Short connections.
    New,
    /// Idle connections and their takeover.
    Idle,
    /// Connections that come and go.
    Churn,
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes) if (0.05..=10_000.0).contains(&minutes) => Ok(minutes),
        _ => Err("minutes from 0.05 to 10000".into()),
    }
}

/// Runs the benchmark.
///
/// # Errors
/// If a step fails. A missed target is no error.
pub fn run(options: &ScaleBenchOptions) -> Result<LabOutcome> {
    linux::process::raise_file_limit().context("raise the limit of open files")?;
    let calibration = Calibration::measure();
    let daemon = options.common.daemon.path()?;
    let teardown = Teardown::start()?;
    let found = find(options, &daemon, &teardown);
    teardown.finish()?;
    let report = ScaleBenchReport::of(options.common.rounds, calibration, found?);
    conclude(options.common.json, report.ok, &report, || report.print())
}

/// Things that all testbeds of the benchmark share.
struct ScaleContext<'a> {
    content: PatternFiles,
    directory: PathBuf,
    daemon: &'a Path,
    teardown: &'a Teardown,
}

impl ScaleContext<'_> {
    fn testbed(&self, name: &str, variant: BenchVariant) -> Result<BenchTestbed> {
        let run = format!("{}{name}", std::process::id());
        let (content, teardown) = (&self.content, self.teardown);
        BenchTestbed::set(&run, variant, Serving::Files, content, self.daemon, teardown)
    }
}

/// Runs the requested tests. The tests that compare with plain forwarding share two testbeds and are run in turns ([`take_rounds`]). Each
/// other test has a testbed of its own.
fn find(options: &ScaleBenchOptions, daemon: &Path, teardown: &Teardown) -> Result<ScaleResults> {
    let directory = in_memory(&format!("scale-{}", std::process::id()), teardown)?;
    let files = [(SEED, SMALL_BYTES), (SEED, BULK_BYTES)];
    let place = ScaleContext {
        content: PatternFiles::generate(&directory, &files)?,
        directory,
        daemon,
        teardown,
    };
    let progress = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{elapsed} {msg}")?);
    progress.enable_steady_tick(Duration::from_millis(500));
    let asked = |part: ScaleTest| options.only.is_empty() || options.only.contains(&part);
    let mut found = ScaleResults::default();
    if asked(ScaleTest::Flood) || asked(ScaleTest::Strays) || asked(ScaleTest::New) {
        take_rounds(options, &place, &asked, &progress, &mut found)?;
    }
    if asked(ScaleTest::Idle) {
        progress.set_message(format!("{} idle connections", options.connections));
        found.idle = Some(idle::run(&place.testbed("i", PATIENT)?, options.connections)?);
    }
    if asked(ScaleTest::Churn) {
        let testbed = place.testbed("c", PATIENT)?;
        let tell = |seconds| progress.set_message(format!("churn, {seconds} s of {} min", options.minutes));
        found.churn = Some(churn::run(&testbed, options.minutes, tell)?);
    }
    if let Some(minutes) = options.saturate {
        let missed = MISSED_DEFAULT;
        let testbed = place.testbed(
            "s",
            BenchVariant::Steadfast {
                missed,
                policy: "http",
                commit: CommitMode::Prs,
            },
        )?;
        let tell = |seconds| progress.set_message(format!("saturated, {seconds} s of {minutes} min"));
        found.saturated = Some(saturate::run(&testbed, minutes, &place.directory, tell)?);
    }
    progress.finish_and_clear();
    Ok(found)
}

/// Builds both variants side by side and measures them in turns.
fn take_rounds(
    options: &ScaleBenchOptions,
    place: &ScaleContext<'_>,
    asked: &impl Fn(ScaleTest) -> bool,
    progress: &ProgressBar,
    found: &mut ScaleResults,
) -> Result<()> {
    let testbeds = [
        place.testbed("f", BenchVariant::Forwarding)?,
        place.testbed("p", PATIENT)?,
    ];
    for testbed in &testbeds {
        flood::swallow_answers(&testbed.network.router)?;
    }
    let became = last_changes(&testbeds[1])?;
    let mut is_whole = true;
    for round in 0..options.common.rounds {
        for turn in 0..2 {
            let index = (turn + round as usize) % 2;
            let (testbed, rounds) = (&testbeds[index], &mut found.rounds[index]);
            let tell = |what| progress.set_message(format!("round {}, {what}", round + 1));
            if asked(ScaleTest::New) {
                tell("new connections");
                let small = small_path();
                let what = (small.as_str(), SMALL_BYTES);
                let client = &testbed.network.client;
                let shorts = short::run(client, testbed.service, what, options.new, SHORT_SECONDS)?;
                rounds.new.push(shorts);
            }
            if asked(ScaleTest::Flood) {
                tell("download");
                rounds.quiet.push(download(testbed)?);
                tell("download beside a flood");
                let flood = (FloodKind::Syn, options.syns);
                let (syns, flooded) = flooded_download(testbed, flood, round)?;
                rounds.syns.push(syns);
                rounds.flooded.push(flooded);
                tell("download beside a flood on a link of 10 Gbit/s");
                testbed.shape(Some(LINK_MBIT))?;
                let outcome = flooded_download(testbed, flood, round);
                testbed.shape(None)?;
                let (syns, flooded) = outcome?;
                rounds.link_syns.push(syns);
                rounds.link_flooded.push(flooded);
            }
            if asked(ScaleTest::Strays) {
                tell("download beside strays on a link of 1 Gbit/s");
                testbed.shape(Some(STRAY_LINK_MBIT))?;
                let outcome = flooded_download(testbed, (FloodKind::Stray, options.strays), round);
                testbed.shape(None)?;
                let (strays, flooded) = outcome?;
                rounds.strays.push(strays);
                rounds.stray_flooded.push(flooded);
            }
            is_whole &= testbeds[1].is_duplex()?;
        }
    }
    found.is_whole = Some(is_whole && last_changes(&testbeds[1])? == became);
    Ok(())
}

/// Returns the time at which each node took its present role, in nanoseconds.
fn last_changes(testbed: &BenchTestbed) -> Result<[Option<u64>; 2]> {
    let [a, b] = [testbed.status(0)?, testbed.status(1)?];
    Ok([a, b].map(|service| service.history.last().map(|since| since.at_ns)))
}

/// Runs a download during a flood. Returns the flood's segments per second and the download's rate in 10⁹ bytes per second.
fn flooded_download(testbed: &BenchTestbed, flood: (FloodKind, u32), seed: u32) -> Result<(f64, f64)> {
    let flood = Flood::start(&testbed.network.client, testbed.service, flood, u64::from(seed))?;
    std::thread::sleep(FLOOD_LEAD);
    let reached = download(testbed);
    Ok((flood.stop()?, reached?))
}

/// Downloads the large file. Returns the rate in 10⁹ bytes per second.
fn download(testbed: &BenchTestbed) -> Result<f64> {
    let path = format!("/{}", pattern::file_name(SEED, BULK_BYTES));
    let bulk = measure::download(&testbed.network.client, testbed.service, &path)?;
    Ok(bulk.gb_per_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_sane() {
        assert_eq!(minutes("0.2"), Ok(0.2));
        for wrong in ["0", "-1", "NaN", "x", "1e9"] {
            assert!(minutes(wrong).is_err(), "{wrong}");
        }
    }
}
