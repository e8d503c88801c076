//! `paths-cut`: a download over a tunnel with two paths, one of which is cut in the middle.
//!
//! The cut is silent: packets of the path are dropped where they arrive, and no carrier is lost.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::network::PathsNetwork;
use super::tunnel::{LISTEN, PathsTunnel, cut_first};
use crate::node::{PatternFiles, ServerProcess, ServerSoftware};
use crate::run::{DaemonOption, LabOutcome, conclude, in_memory};
use crate::teardown::Teardown;

/// A download over a tunnel with two paths, one of which is cut in the middle.
#[derive(Clone, Debug, Args)]
pub struct PathsCutOptions {
    /// Megabytes (10⁶ bytes) of the download.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(20..=10_000))]
    mb: u64,
    /// Milliseconds between the tunnel's heartbeats; 0: only timeouts of data find the cut.
    #[arg(long, default_value_t = 0)]
    watch_ms: u64,
    /// Milliseconds that the stall may take beyond its target: 1.2 retransmission timeouts, or 50 ms with heartbeats of 10 ms.
    #[arg(long, default_value_t = 100)]
    margin: u64,
    /// Seed of the content.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonOption,
}

/// Milliseconds, over the connections.
#[derive(Clone, Copy, Debug, Serialize)]
struct PathsSpread {
    median: f64,
    p99: f64,
    max: f64,
}

impl PathsSpread {
    fn one(value: Duration) -> Self {
        let millis = value.as_secs_f64() * 1e3;
        Self {
            median: millis,
            p99: millis,
            max: millis,
        }
    }
}

/// The findings.
#[derive(Debug, Serialize)]
struct PathsCutReport {
    ok: bool,
    seed: u64,
    bytes_expected: u64,
    bytes_received: u64,
    sha256_match: bool,
    connections: u32,
    connections_survived: u32,
    resets_seen: u32,
    violations: Vec<String>,
    /// Longest time without data after the cut, as the client saw it.
    stall_ms: PathsSpread,
    /// Longest time without data before the cut.
    baseline_gap_ms: PathsSpread,
    /// Retransmission timeout of the sender on the first path, just before the cut.
    rto_ms: f64,
    /// Longest stall that is allowed.
    stall_limit_ms: f64,
    /// Times that an end of the tunnel declared a path failed.
    path_switches: u32,
    mbit_per_s: f64,
}

/// Runs the lab.
///
/// # Errors
/// If a step fails. A connection that does not survive is no error.
pub fn run(options: &PathsCutOptions) -> Result<LabOutcome> {
    let daemon = options.daemon.path()?;
    let teardown = Teardown::start()?;
    let report = play(options, &daemon, &teardown);
    teardown.finish()?;
    let report = report?;
    conclude(options.json, report.ok, &report, || {
        say!(
            "{} bytes, contents {}, stall {:.0} ms (RTO {:.0} ms), {} path switches, {:.0} Mbit/s",
            report.bytes_received,
            if report.sha256_match { "intact" } else { "BROKEN" },
            report.stall_ms.max,
            report.rto_ms,
            report.path_switches,
            report.mbit_per_s
        );
    })
}

fn play(options: &PathsCutOptions, daemon: &Path, teardown: &Teardown) -> Result<PathsCutReport> {
    let name = format!("{}p", std::process::id());
    let directory = in_memory(&name, teardown)?;
    let network = PathsNetwork::build(&name, teardown)?;
    let bytes = options.mb * 1_000_000;
    let content = PatternFiles::generate(&directory, &[(options.seed, bytes)])?;
    let _server = ServerProcess::start(
        ServerSoftware::Nginx,
        &network.far,
        &directory,
        "nginx",
        &content,
        1,
    )?;
    let port = ServerSoftware::Nginx.port();
    let terms = (options.seed, options.watch_ms);
    let tunnel = PathsTunnel::start(&network, daemon, &directory, terms, port)?;
    let ask = || tunnel.rto(&network);
    let found = download(options, &network, bytes, ask)?;
    let path_switches = tunnel.path_switches();
    tunnel.stop()?;
    Ok(report(options, bytes, &found, path_switches))
}

/// A download as its client saw it.
struct PathsDownload {
    received: u64,
    sha256: String,
    is_whole: bool,
    gap_before: Duration,
    gap_after: Duration,
    /// The retransmission timeout before the cut.
    rto: Duration,
    took: Duration,
}

/// Downloads with curl, and cuts the first path when a third has arrived. `rto` is asked just before.
fn download(
    options: &PathsCutOptions,
    network: &PathsNetwork,
    bytes: u64,
    ask_rto: impl Fn() -> Result<Duration>,
) -> Result<PathsDownload> {
    let file = pattern::file_name(options.seed, bytes);
    let mut command: Command = network.near.command("curl")?;
    command.args(["--silent", "--show-error", "--fail", "--max-time", "120"]);
    command
        .arg(format!("http://{LISTEN}/{file}"))
        .stdout(Stdio::piped());
    let begun = Instant::now();
    let mut child = command.spawn().context("start curl")?;
    let mut output = child.stdout.take().context("curl's output")?;
    let (mut hash, mut received, mut buffer) = (Sha256::new(), 0_u64, vec![0; 1 << 16]);
    let (mut last, mut is_cut) = (Instant::now(), false);
    let (mut gap_before, mut gap_after, mut rto) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    loop {
        let length = output.read(&mut buffer).context("read curl's output")?;
        let now = Instant::now();
        let gap = if is_cut { &mut gap_after } else { &mut gap_before };
        // The first byte waits for the server, not for the network.
        if received > 0 && length > 0 {
            *gap = (*gap).max(now - last);
        }
        last = now;
        if length == 0 {
            break;
        }
        hash.update(&buffer[..length]);
        received += length as u64;
        if !is_cut && received > bytes / 3 {
            is_cut = true;
            rto = ask_rto()?;
            cut_first(network)?;
            last = Instant::now();
        }
    }
    let status = child.wait().context("wait for curl")?;
    Ok(PathsDownload {
        received,
        sha256: pattern::hex(&hash.finalize()),
        is_whole: status.success(),
        gap_before,
        gap_after,
        rto,
        took: begun.elapsed(),
    })
}

fn report(
    options: &PathsCutOptions,
    bytes: u64,
    found: &PathsDownload,
    path_switches: u32,
) -> PathsCutReport {
    let sha256_match = found.sha256 == pattern::sha256(options.seed, bytes, bytes);
    let mut violations = Vec::new();
    if !found.is_whole {
        violations.push(format!("curl failed after {} bytes", found.received));
    }
    if path_switches == 0 {
        violations.push("no end noticed the cut".to_owned());
    }
    let target = match options.watch_ms {
        0 => found.rto.mul_f64(1.2),
        // Three missed heartbeats, and the time to notice the last one.
        millis => Duration::from_millis(5 * millis),
    };
    let limit = target + Duration::from_millis(options.margin);
    if found.gap_after > limit {
        violations.push(format!(
            "the download stood still for {:?}, more than {limit:?}",
            found.gap_after
        ));
    }
    let survived = sha256_match && found.is_whole && found.received == bytes;
    PathsCutReport {
        ok: survived && violations.is_empty(),
        seed: options.seed,
        bytes_expected: bytes,
        bytes_received: found.received,
        sha256_match,
        connections: 1,
        connections_survived: u32::from(survived),
        resets_seen: u32::from(!found.is_whole),
        violations,
        stall_ms: PathsSpread::one(found.gap_after),
        baseline_gap_ms: PathsSpread::one(found.gap_before),
        rto_ms: found.rto.as_secs_f64() * 1e3,
        stall_limit_ms: limit.as_secs_f64() * 1e3,
        path_switches,
        mbit_per_s: found.received as f64 * 8.0 / 1e6 / found.took.as_secs_f64(),
    }
}
