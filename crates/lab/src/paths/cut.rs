//! `paths-cut`: a download over a tunnel with two paths, one of which is cut in the middle.
//!
//! The cut is silent: packets of the path are dropped where they arrive, and no carrier is lost.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::network::PathsNetwork;
use super::tunnel::{LISTEN, PathsTunnel, cut_first};
use crate::client::Spread;
use crate::node::{PatternFiles, ServerProcess, ServerSoftware};
use crate::run::{LAB_PROGRAMS, Lab, LabFindings, LabRun, RunOptions, check_machine};

/// From this number of runs on, the median of the stalls must be within the target without the margin.
const JUDGED_RUNS: usize = 5;

/// A download over a tunnel with two paths, one of which is cut in the middle.
///
/// The limit for the stall is 1.2 retransmission timeouts (or 50 ms with heartbeats of 10 ms) plus the margin. With `--repeat 5` and more,
/// the median of the stalls must be within the limit without the margin.
#[derive(Clone, Debug, Args)]
pub struct PathsCutOptions {
    /// Megabytes (10⁶ bytes) of the download.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(20..=10_000))]
    mb: u64,
    /// Milliseconds between the tunnel's heartbeats; 0: only timeouts of data find the cut.
    #[arg(long, default_value_t = 0)]
    watch_ms: u64,
    /// Milliseconds by which the stall may exceed its target. The target is 1.2 retransmission timeouts, or 50 ms with heartbeats of 10 ms.
    #[arg(long, default_value_t = 100)]
    margin: u64,
    #[command(flatten)]
    run: RunOptions,
}

/// The findings of all runs. Spreads are over the runs.
#[derive(Debug, Default, Serialize)]
pub struct PathsCutFindings {
    bytes_expected: u64,
    bytes_received: u64,
    sha256_match: bool,
    connections: u32,
    connections_survived: u32,
    resets_seen: u32,
    violations: Vec<String>,
    /// Longest time without data after the cut, as the client saw it.
    stall_ms: Option<Spread>,
    /// From the cut until the sending end declared the path failed.
    detection_ms: Option<Spread>,
    /// The part of the stall after this.
    restart_gap_ms: Option<Spread>,
    /// Longest time without data before the cut.
    baseline_gap_ms: Option<Spread>,
    /// Retransmission timeout of the sender on the first path, just before the cut.
    rto_ms: Option<Spread>,
    /// Longest stall that is allowed, with the margin.
    stall_limit_ms: Option<Spread>,
    /// Number of times that an end of the tunnel declared a path failed.
    path_switches: u32,
    mbit_per_s: Option<Spread>,
    #[serde(skip)]
    runs: Vec<PathsCutRun>,
}

/// The times of one run, in milliseconds, and its throughput.
#[derive(Clone, Copy, Debug)]
struct PathsCutRun {
    stall_ms: f64,
    detection_ms: Option<f64>,
    baseline_gap_ms: f64,
    rto_ms: f64,
    target_ms: f64,
    limit_ms: f64,
    mbit_per_s: f64,
}

impl Lab for PathsCutOptions {
    type Part = ();
    type Findings = PathsCutFindings;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn check_machine(&self) -> Result<()> {
        let needed = LAB_PROGRAMS
            .into_iter()
            .chain([("nginx", "nginx-light"), ("curl", "curl")]);
        check_machine(needed, Some(self.run.daemon.path()?), 1)
    }

    fn parts(&self) -> Vec<()> {
        vec![()]
    }

    fn nothing(&self) -> PathsCutFindings {
        PathsCutFindings {
            sha256_match: true,
            ..PathsCutFindings::default()
        }
    }

    fn play(&self, (): (), run: &LabRun<'_>, problems: &mut Vec<String>) -> Result<PathsCutFindings> {
        run.step("set up");
        let network = PathsNetwork::build(&run.name, run.teardown)?;
        let bytes = self.mb * 1_000_000;
        let content = PatternFiles::generate(&run.directory, &[(run.seed, bytes)])?;
        let server = ServerSoftware::Nginx;
        let _server = ServerProcess::start(server, &network.far, &run.directory, "nginx", &content, 1)?;
        let daemon = self.run.daemon.path()?;
        let terms = (run.seed, self.watch_ms);
        let tunnel = PathsTunnel::start(&network, &daemon, &run.directory, terms, server.port())?;
        run.step("download");
        let found = download(run.seed, &network, bytes, || tunnel.rto(&network))?;
        let path_switches = tunnel.path_switches();
        let detection = tunnel.detection(found.cut_at);
        tunnel.stop()?;
        let findings = self.findings(run.seed, bytes, &found, path_switches, detection);
        problems.extend(findings.violations.iter().cloned());
        Ok(findings)
    }

    fn conclude(&self, findings: &PathsCutFindings, problems: &mut Vec<String>) -> Result<()> {
        let targets = findings.runs.iter().map(|run| run.target_ms);
        if let (Some(stall), Some(target)) = (findings.stall_ms, Spread::of(targets))
            && findings.runs.len() >= JUDGED_RUNS
            && stall.median > target.median
        {
            problems.push(format!(
                "half of the stalls were longer than {:.0} ms; the target is {:.0} ms",
                stall.median, target.median
            ));
        }
        Ok(())
    }
}

impl LabFindings for PathsCutFindings {
    fn holds(&self) -> bool {
        self.sha256_match && self.connections == self.connections_survived && self.violations.is_empty()
    }

    fn add(&mut self, other: Self) {
        self.bytes_expected += other.bytes_expected;
        self.bytes_received += other.bytes_received;
        self.sha256_match &= other.sha256_match;
        self.connections += other.connections;
        self.connections_survived += other.connections_survived;
        self.resets_seen += other.resets_seen;
        self.violations.extend(other.violations);
        self.path_switches += other.path_switches;
        self.runs.extend(other.runs);
        self.spread();
    }

    fn line(&self) -> String {
        let text = |spread: Option<Spread>| {
            let text = |Spread { median, max, .. }| format!("{median:.0}/{max:.0}");
            spread.map_or_else(|| "–".to_owned(), text)
        };
        format!(
            "{} bytes, contents {}, stall {} ms (found after {}, RTO {}, median/max), {} path switches, {} Mbit/s",
            self.bytes_received,
            if self.sha256_match { "intact" } else { "BROKEN" },
            text(self.stall_ms),
            text(self.detection_ms),
            text(self.rto_ms),
            self.path_switches,
            text(self.mbit_per_s)
        )
    }
}

impl PathsCutFindings {
    /// Computes the spreads.
    fn spread(&mut self) {
        let of = |value: fn(&PathsCutRun) -> f64| Spread::of(self.runs.iter().map(value));
        self.stall_ms = of(|run| run.stall_ms);
        self.baseline_gap_ms = of(|run| run.baseline_gap_ms);
        let found = || {
            self.runs
                .iter()
                .filter_map(|run| Some((run.detection_ms?, run.stall_ms)))
        };
        let gaps = found().map(|(detection, stall)| (stall - detection).max(0.0));
        self.restart_gap_ms = Spread::of(gaps);
        self.detection_ms = Spread::of(found().map(|(detection, _)| detection));
        self.rto_ms = of(|run| run.rto_ms);
        self.stall_limit_ms = of(|run| run.limit_ms);
        self.mbit_per_s = of(|run| run.mbit_per_s);
    }
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
    cut_at: SystemTime,
    took: Duration,
}

/// Downloads with curl, and cuts the first path when a third of the file has arrived. Calls `ask_rto` just before the cut.
fn download(
    seed: u64,
    network: &PathsNetwork,
    bytes: u64,
    ask_rto: impl Fn() -> Result<Duration>,
) -> Result<PathsDownload> {
    let file = pattern::file_name(seed, bytes);
    let mut command: Command = network.near.command("curl")?;
    command.args(["--silent", "--show-error", "--fail", "--max-time", "120"]);
    command
        .arg(format!("http://{LISTEN}/{file}"))
        .stdout(Stdio::piped());
    let begun = Instant::now();
    let mut child = command.spawn().context("start curl")?;
    let mut output = child.stdout.take().context("curl's output")?;
    let (mut hash, mut received, mut buffer) = (Sha256::new(), 0_u64, vec![0; 1 << 16]);
    let (mut last, mut is_cut, mut cut_at) = (Instant::now(), false, SystemTime::now());
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
            (last, cut_at) = (Instant::now(), SystemTime::now());
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
        cut_at,
        took: begun.elapsed(),
    })
}

impl PathsCutOptions {
    fn findings(
        &self,
        seed: u64,
        bytes: u64,
        found: &PathsDownload,
        path_switches: u32,
        detection: Option<Duration>,
    ) -> PathsCutFindings {
        let sha256_match = found.sha256 == pattern::sha256(seed, bytes, bytes);
        let mut violations = Vec::new();
        if !found.is_whole {
            violations.push(format!("curl failed after {} bytes", found.received));
        }
        if path_switches == 0 {
            violations.push("no end noticed the cut".to_owned());
        }
        let target = match self.watch_ms {
            0 => found.rto.mul_f64(1.2),
            // Five heartbeat intervals: three for the missed heartbeats, and two for the time until the tunnel notices.
            millis => Duration::from_millis(5 * millis),
        };
        let limit = target + Duration::from_millis(self.margin);
        if found.gap_after > limit {
            violations.push(format!(
                "the download stood still for {:?}, more than {limit:?}",
                found.gap_after
            ));
        }
        let survived = sha256_match && found.is_whole && found.received == bytes;
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let mut findings = PathsCutFindings {
            bytes_expected: bytes,
            bytes_received: found.received,
            sha256_match,
            connections: 1,
            connections_survived: u32::from(survived),
            resets_seen: u32::from(!found.is_whole),
            violations,
            path_switches,
            runs: vec![PathsCutRun {
                stall_ms: millis(found.gap_after),
                detection_ms: detection.map(millis),
                baseline_gap_ms: millis(found.gap_before),
                rto_ms: millis(found.rto),
                target_ms: millis(target),
                limit_ms: millis(limit),
                mbit_per_s: found.received as f64 * 8.0 / 1e6 / found.took.as_secs_f64(),
            }],
            ..PathsCutFindings::default()
        };
        findings.spread();
        findings
    }
}
