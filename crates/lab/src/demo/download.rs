//! One download with its fault, and what a capture at the client shows of it.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant as Deadline};

use anyhow::{Context, Result};
use proto::Instant;
use serde::Serialize;

use crate::clock::{ClockOffset, ms};
use crate::net::address::CLIENT;
use crate::node::ReportedTakeover;
use crate::pair::PairOptions;
use crate::pair::aftermath::Aftermath;
use crate::pair::fault::CrashTarget;
use crate::pair::inject::inject;
use crate::pair::testbed::Testbed;
use crate::pair::work::Work;
use crate::run::LabRun;
use crate::timeline::{Curves, PartKind, TimelinePanel, TimelinePart};
use judge::{Capture, Point};

/// Local port of curl. Fixed, so that its connection is found in the captures.
const CLIENT_PORT: u16 = 40_000;
/// After the fault, a download that gets no byte for this long counts as hanging.
const HANGING: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(20);

/// Result of a download, with or without Steadfast.
#[derive(Debug, Serialize)]
pub struct DownloadResult {
    /// Whether every byte came.
    pub complete: bool,
    /// Number of bytes received.
    pub bytes: u64,
    /// Size of the file in bytes.
    pub bytes_expected: u64,
    /// SHA-256 of the received bytes.
    pub sha256: String,
    /// Whether this is the SHA-256 of the file on the server.
    pub sha256_match: bool,
    /// curl's error message, if it failed.
    pub error: Option<String>,
    /// Length of the wait that the fault caused: the longest time between two new bytes around the fault.
    pub stall_ms: Option<f64>,
    /// Time from the fault to its declaration.
    pub detection_ms: Option<f64>,
    /// Time from the declaration until the survivor could continue the connection.
    pub takeover_ms: Option<f64>,
    /// Time between the moment when the survivor could continue and the first new byte after the stall.
    pub restart_gap_ms: Option<f64>,
    /// The longest gap before the fault.
    pub baseline_gap_ms: Option<f64>,
    /// The download's panel on the timeline page.
    #[serde(skip)]
    pub panel: TimelinePanel,
}

impl DownloadResult {
    /// The checksum, and the stall in its parts, as text for a person.
    pub fn text(&self) -> String {
        let verdict = if self.sha256_match {
            "as on the server"
        } else {
            "DIFFERENT from the server's"
        };
        let mut text = format!("  sha256 {} ({verdict})", self.sha256);
        let Some(stall) = self.stall_ms else { return text };
        let [detection, takeover, gap, before] = [
            self.detection_ms,
            self.takeover_ms,
            self.restart_gap_ms,
            self.baseline_gap_ms,
        ]
        .map(Option::unwrap_or_default);
        let whole = detection + takeover + gap;
        text += &format!(
            "\n  stall at the client: {stall:.1} ms (longest gap before the fault: {before:.1} ms)\n  from the fault to the survivor's first \
             byte: {whole:.1} ms = detection {detection:.1} + takeover {takeover:.2} + restart gap {gap:.1}"
        );
        if whole > stall {
            let received = whole - stall;
            text += &format!(
                "\n  during the first {received:.1} ms of this time, the client still received what was under way"
            );
        }
        text
    }
}

/// Plays the download.
///
/// # Errors
/// If it could not be played. A download that fails is not an error.
pub fn play(options: &PairOptions, run: &LabRun<'_>) -> Result<DownloadResult> {
    let clock = ClockOffset::measure();
    let work = Work::new(options, run.seed);
    run.step("set up");
    let testbed = Testbed::set(options, &work, run)?;
    let service = options.service();
    let (seed, length) = work.files()[0];
    let received = testbed.directory.join("received");
    let mut curl = Curl::start(&testbed, service, &pattern::file_name(seed, length), &received)?;
    let variant = variant(options.baseline);
    let show = |curl: &Curl, what: &str| {
        let percent = curl.received() * 100 / length;
        run.show(&format!("{variant}: {percent} %{what}"));
    };
    while curl.received() < length / 2 && curl.is_running()? {
        show(&curl, "");
        std::thread::sleep(POLL);
    }
    let fault_at = inject(&testbed, options, CrashTarget::Primary)?;
    let mut aftermath = Aftermath::new(fault_at);
    aftermath.survive(&testbed, false)?;
    let takeover = aftermath.takeovers.last().copied();
    let mut moved = (curl.received(), Deadline::now());
    while curl.is_running()? && moved.1.elapsed() < HANGING {
        show(&curl, ", the primary's power is off");
        let now = curl.received();
        if now > moved.0 {
            moved = (now, Deadline::now());
        }
        std::thread::sleep(POLL);
    }
    let error = curl.end()?;
    let captures = testbed.captures.stop()?;
    let client = SocketAddr::new(CLIENT.ip(options.lan.ipv6), CLIENT_PORT);
    let capture = captures
        .iter()
        .find(|capture| capture.point == Point::Client)
        .context("no capture")?;
    let facts = DownloadFacts {
        clock,
        fault_at,
        takeover,
        error,
        content: (seed, length),
    };
    facts.shown(options.baseline, &received, capture, service, client)
}

/// A running curl.
struct Curl {
    child: Child,
    output: PathBuf,
}

impl Curl {
    fn start(testbed: &Testbed, service: SocketAddr, file: &str, output: &Path) -> Result<Self> {
        let mut command: Command = testbed.network.client.command("curl")?;
        command.args([
            "--silent",
            "--show-error",
            "--fail",
            "--local-port",
            &CLIENT_PORT.to_string(),
        ]);
        command
            .arg("--output")
            .arg(output)
            .arg(format!("http://{service}/{file}"));
        let child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("start curl")?;
        Ok(Self {
            child,
            output: output.to_owned(),
        })
    }

    fn received(&self) -> u64 {
        fs::metadata(&self.output).map_or(0, |file| file.len())
    }

    fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Ends curl. Returns its error message if it failed, or a message that it was still waiting.
    fn end(mut self) -> Result<Option<String>> {
        let hung = self.is_running()?;
        if hung {
            self.child.kill()?;
        }
        let output = self.child.wait_with_output()?;
        Ok(match (hung, output.status.success()) {
            (true, _) => Some(format!("curl received nothing for {} s", HANGING.as_secs())),
            (false, true) => None,
            (false, false) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        })
    }
}

/// The facts of a download after its end.
struct DownloadFacts {
    clock: ClockOffset,
    fault_at: Instant,
    takeover: Option<ReportedTakeover>,
    error: Option<String>,
    /// The seed and the length of the file.
    content: (u64, u64),
}

impl DownloadFacts {
    fn shown(
        self,
        baseline: bool,
        received: &Path,
        capture: &Capture,
        service: SocketAddr,
        client: SocketAddr,
    ) -> Result<DownloadResult> {
        let curves = Curves::read(capture, service, client)?;
        let fault_ns = self.clock.realtime_ns(self.fault_at);
        let (seed, length) = self.content;
        let (bytes, sha256) = pattern::digest(received)?;
        let sha256_match = bytes == length && sha256 == pattern::sha256(seed, length, length);
        let complete = self.error.is_none() && bytes == length;
        let stall = complete.then(|| DownloadWait::find(&curves, fault_ns)).flatten();
        let parts = self
            .takeover
            .filter(|_| complete)
            .map_or_else(Vec::new, |takeover| {
                self.parts(&takeover, fault_ns, stall.map_or(fault_ns, |stall| stall.to_ns))
            });
        let part = |kind| {
            let part = parts.iter().find(|part: &&TimelinePart| part.kind == kind)?;
            Some(ms(part.from_ns, part.to_ns))
        };
        let outcome = match &self.error {
            None if sha256_match => "complete, sha256 matches".to_owned(),
            None => "complete, but the contents differ".to_owned(),
            Some(error) => error.clone(),
        };
        Ok(DownloadResult {
            complete,
            bytes,
            bytes_expected: length,
            sha256,
            sha256_match,
            stall_ms: stall.map(|stall| ms(stall.from_ns, stall.to_ns)),
            detection_ms: part(PartKind::Detection),
            takeover_ms: part(PartKind::Takeover),
            restart_gap_ms: part(PartKind::RestartGap),
            baseline_gap_ms: longest_gap(&curves, fault_ns),
            panel: TimelinePanel {
                heading: variant(baseline).to_owned(),
                outcome,
                good: sha256_match,
                fault_ns,
                stall_ms: stall.map(|stall| ms(stall.from_ns, stall.to_ns)),
                parts: parts.clone(),
                curves,
            },
            error: self.error,
        })
    }

    /// The parts of the time from the fault to the first byte after the stall, divided at the times that the daemon reports.
    fn parts(&self, takeover: &ReportedTakeover, fault_ns: u64, end_ns: u64) -> Vec<TimelinePart> {
        let wall = |at_ns: u64| self.clock.realtime_ns(Instant::from_nanos(at_ns));
        let declared = wall(takeover.declared_ns);
        let Some(live) = takeover.first_live_ns.map(wall) else {
            return Vec::new();
        };
        let part = |kind, from_ns, to_ns| TimelinePart { kind, from_ns, to_ns };
        vec![
            part(PartKind::Detection, fault_ns, declared),
            part(PartKind::Takeover, declared, live),
            part(PartKind::RestartGap, live, end_ns.max(live)),
        ]
    }
}

/// The name of a download.
pub fn variant(baseline: bool) -> &'static str {
    if baseline {
        "without Steadfast"
    } else {
        "with Steadfast"
    }
}

/// A wait of the client: the time between two new bytes.
#[derive(Clone, Copy)]
struct DownloadWait {
    from_ns: u64,
    to_ns: u64,
}

impl DownloadWait {
    /// The longest wait that began within [`AROUND_NS`] before or after the fault, and ended after the fault.
    fn find(curves: &Curves, fault_ns: u64) -> Option<Self> {
        let pairs = curves.sent.windows(2).map(|pair| Self {
            from_ns: pair[0].at_ns,
            to_ns: pair[1].at_ns,
        });
        let around = fault_ns.saturating_sub(AROUND_NS)..fault_ns + AROUND_NS;
        pairs
            .filter(|wait| around.contains(&wait.from_ns) && wait.to_ns > fault_ns)
            .max_by_key(|wait| wait.to_ns - wait.from_ns)
    }
}

/// Maximum time between the fault and the beginning of the wait that it causes, in nanoseconds. The wait may begin after the fault,
/// because packets that were under way still arrive. The fault does not cause waits that begin later.
const AROUND_NS: u64 = 200_000_000;

fn longest_gap(curves: &Curves, fault_ns: u64) -> Option<f64> {
    let before = curves.sent.windows(2).filter(|pair| pair[1].at_ns < fault_ns);
    before
        .map(|pair| ms(pair[0].at_ns, pair[1].at_ns))
        .max_by(f64::total_cmp)
}
