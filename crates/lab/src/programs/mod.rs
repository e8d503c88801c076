//! `steadfast-lab programs`: real clients and real servers, unmodified, through a power failure or another fault.

mod again;
mod unrecorded;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant as Deadline};

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::clock::ClockOffset;
use crate::emulator::WanOptions;
use crate::node::{DEBIAN_PYTHON, ReportedStatus, ServerSoftware, WEBSOCKETS};
use crate::pair::aftermath::{Aftermath, follow};
use crate::pair::expect::{BACKUP, changes, expectations};
use crate::pair::fault::{CrashFault, CrashTarget, Sequel};
use crate::pair::inject::inject;
use crate::pair::judged::JudgedRun;
use crate::pair::testbed::Testbed;
use crate::pair::work::Work;
use crate::pair::{LanOptions, PairOptions, PolicyOption, WorkloadOption};
use crate::process::LoggedProcess;
use crate::run::{Lab, LabFindings, LabRun, Needed, RunOptions, WrongUse, value_name};
use judge::{Closing, Finding};

/// Rate of the emulated path to the client. Each download takes about two seconds, so that the fault hits its middle.
const RATE_MBIT: f64 = 400.0;
const RTT_MS: f64 = 4.0;
const MEGABYTES: u32 = 100;
/// Arguments of redis-benchmark. The fault hits after its first report, while it still writes.
const BENCHMARK: [&str; 9] = ["-t", "set,get", "-n", "20000", "-c", "10", "-d", "1024", "-q"];
/// The WebSocket client. Its exchange takes some seconds; the fault hits in the middle.
const TALK: &str = include_str!("talk.py");
const MESSAGES: usize = 200;
/// The clients that share keys. They pause in the middle, so that the data of both nodes can be compared. The fault hits after the pause.
const KEYS: &str = include_str!("keys.py");
const KEYS_MOMENT: Duration = Duration::from_millis(500);
/// How long these clients work after their pause, in seconds: until the survivor of a power failure has taken over, or until the nodes have
/// said that they go on without a record.
const KEYS_SECONDS: u32 = 3;
const KEYS_SECONDS_UNRECORDED: u32 = 10;
/// Time limit for the backup's server to have the same data as the primary's. Shorter than the clients' pause.
const DIGEST_LIMIT: Duration = Duration::from_millis(1500);
/// Time limit for a client.
const LIMIT: Duration = Duration::from_secs(60);
/// The client of the streaming server. The stream takes some seconds; the fault hits in the middle.
const WATCH: &str = include_str!("watch.py");
/// The client of the FTP server.
const FTP: &str = include_str!("ftp.py");
const LINES: usize = 200;
const POLL: Duration = Duration::from_millis(10);

/// Turn off the primary's power while real, unmodified clients and servers work. With --fault: another fault.
///
/// curl and wget download a file from nginx, Apache httpd, lighttpd and Python's http.server. redis-benchmark writes and reads
/// in redis. A client and a server made with Python's websockets talk to each other (`opaque = "replica"`). Each client must end as if
/// nothing had happened: exit code 0, and for a download the file's SHA-256. No client may connect a second time.
#[derive(Clone, Debug, Args)]
pub struct ProgramsOptions {
    /// Only this server; default: all.
    #[arg(long, value_enum)]
    server: Option<ServerSoftware>,
    /// Only this client; default: all.
    #[arg(long, value_enum)]
    client: Option<ClientSoftware>,
    /// Play the clients that share keys without recorded order. Shows that recorded order is necessary, so the run is expected to fail (exit
    /// code 1).
    #[arg(long)]
    without_recorded_order: bool,
    /// With clients that share keys: after the takeover, node a comes back, both servers are started again, and the clients work through a
    /// power failure of node b.
    #[arg(long)]
    again: bool,
    /// With clients that share keys: another fault than a power failure (kill-agent, upgrade or handover). The clients must notice nothing, and
    /// the nodes must say why they go on without a record, and that they protect none of these connections.
    #[arg(long, value_enum, default_value_t)]
    fault: CrashFault,
    /// With --fault: the node that the fault hits; default: the seed decides.
    #[arg(long, value_enum)]
    node: Option<CrashTarget>,
    /// With --server diverging-stream: what diverges is in the client's data. Shows that policy trust-log does not continue such a connection,
    /// so the run is expected to fail (exit code 1).
    #[arg(long)]
    visibly: bool,
    /// With --server diverging-stream: policy unprotect instead of trust-log. Node b must say that it has diverged and protects nothing. Then
    /// its agent is killed, which the client must not notice.
    #[arg(long)]
    unprotect: bool,
    #[command(flatten)]
    lan: LanOptions,
    #[command(flatten)]
    run: RunOptions,
}

/// A real client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientSoftware {
    Curl,
    Wget,
    /// curl that downloads a file with a password. The server's challenge is random (recorded order).
    CurlDigest,
    RedisBenchmark,
    Websockets,
    /// Four connections that change the same keys (recorded order).
    SharedKeys,
    /// Reads a stream of lines with the time and random numbers (recorded order).
    Watch,
    /// smbclient that downloads a file (recorded order).
    Smbclient,
    /// Logs in to an FTP server, and reads listings over the control connection (recorded order).
    Ftp,
}

/// All pairs of server and client that are played.
const PROGRAMS: [(ServerSoftware, ClientSoftware); 17] = [
    (ServerSoftware::Nginx, ClientSoftware::Curl),
    (ServerSoftware::Nginx, ClientSoftware::Wget),
    (ServerSoftware::Apache, ClientSoftware::Curl),
    (ServerSoftware::Apache, ClientSoftware::Wget),
    (ServerSoftware::Lighttpd, ClientSoftware::Curl),
    (ServerSoftware::Lighttpd, ClientSoftware::Wget),
    (ServerSoftware::DigestLighttpd, ClientSoftware::CurlDigest),
    (ServerSoftware::Python, ClientSoftware::Curl),
    (ServerSoftware::Python, ClientSoftware::Wget),
    (ServerSoftware::Redis, ClientSoftware::RedisBenchmark),
    (ServerSoftware::Redis, ClientSoftware::SharedKeys),
    (ServerSoftware::Stream, ClientSoftware::Watch),
    (ServerSoftware::DivergingStream, ClientSoftware::Watch),
    (ServerSoftware::Inetd, ClientSoftware::Watch),
    (ServerSoftware::Vsftpd, ClientSoftware::Ftp),
    (ServerSoftware::Samba, ClientSoftware::Smbclient),
    (ServerSoftware::Websockets, ClientSoftware::Websockets),
];

/// The results of all clients.
#[derive(Serialize)]
pub struct ProgramsFindings {
    #[serde(flatten)]
    lan: LanOptions,
    programs: Vec<ProgramResult>,
}

/// Result of one client.
#[derive(Serialize)]
pub struct ProgramResult {
    ok: bool,
    server: ServerSoftware,
    client: ClientSoftware,
    /// `None` if a signal or the time limit ended the client.
    exit_code: Option<i32>,
    /// The client's output, if it failed.
    said: Option<String>,
    /// For a download: whether the received file equals the server's.
    sha256_match: Option<bool>,
    connections_taken_over: u64,
    /// RSTs of the service, as captured at the client.
    resets_seen: u64,
    violations: Vec<Finding>,
    unproven: Vec<String>,
    problems: Vec<String>,
}

impl ProgramsOptions {
    /// The run of a client with `server`.
    fn pair(&self, server: ServerSoftware, client: ClientSoftware) -> PairOptions {
        let needs_order = client.needs_order();
        let is_replica = server == ServerSoftware::Redis || needs_order;
        let way = WanOptions {
            rtt_ms: Some(RTT_MS),
            rate_mbit: Some(RATE_MBIT),
            loss_percent: None,
        };
        let server = match server {
            ServerSoftware::DivergingStream if self.visibly => ServerSoftware::VisiblyDivergingStream,
            _ => server,
        };
        PairOptions {
            run: self.run.clone(),
            lan: self.lan,
            unprotects: self.unprotect,
            fault: if self.unprotect {
                CrashFault::KillBackup
            } else {
                self.fault
            },
            node: self.node,
            policy: if is_replica {
                PolicyOption::Replica
            } else {
                PolicyOption::Http
            },
            server: Some(server),
            recorded_order: needs_order && !self.without_recorded_order,
            megabytes: Some(if client.downloads() { MEGABYTES } else { 1 }),
            way: if is_replica && !client.downloads() {
                WanOptions::default()
            } else {
                way
            },
            ..PairOptions::new(WorkloadOption::Download, 1)
        }
    }
}

impl ProgramsOptions {
    /// Checks the fault, and the options that it needs.
    fn check_fault(&self) -> Result<(), WrongUse> {
        let wrong = |reason: &str| Err(WrongUse(reason.to_owned()));
        if self.fault == CrashFault::PowerOff {
            return if self.node.is_some() {
                wrong("--node needs --fault")
            } else {
                Ok(())
            };
        }
        if !unrecorded::FAULTS.contains(&self.fault) {
            return wrong("--fault: only power-off, kill-agent, upgrade and handover");
        }
        if self.client != Some(ClientSoftware::SharedKeys) || self.without_recorded_order || self.again {
            return wrong("--fault needs --client shared-keys with recorded order, without --again");
        }
        self.fault.target(self.node, 0).map(drop)
    }
}

impl Lab for ProgramsOptions {
    type Part = (ServerSoftware, ClientSoftware);
    type Findings = ProgramsFindings;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn check(&self) -> Result<()> {
        if self.parts().is_empty() {
            return Err(WrongUse("this client does not talk to this server".to_owned()).into());
        }
        if self.again && (self.client != Some(ClientSoftware::SharedKeys) || self.without_recorded_order) {
            return Err(WrongUse("--again needs --client shared-keys with recorded order".to_owned()).into());
        }
        self.check_fault()?;
        if self.server != Some(ServerSoftware::DivergingStream) {
            for (option, is_given) in [("--visibly", self.visibly), ("--unprotect", self.unprotect)] {
                if is_given {
                    return Err(WrongUse(format!("{option} needs --server diverging-stream")).into());
                }
            }
        }
        Ok(())
    }

    fn check_machine(&self) -> Result<()> {
        let mut parts = self.parts().into_iter();
        parts.try_for_each(|(server, client)| self.pair(server, client).check_machine(&[client.needs()]))
    }

    fn parts(&self) -> Vec<(ServerSoftware, ClientSoftware)> {
        let is_asked_for = |&(server, client): &(ServerSoftware, ClientSoftware)| {
            self.server.is_none_or(|asked| asked == server) && self.client.is_none_or(|asked| asked == client)
        };
        PROGRAMS.into_iter().filter(is_asked_for).collect()
    }

    fn selection(&self, (server, client): (ServerSoftware, ClientSoftware)) -> Vec<(&'static str, String)> {
        vec![("server", value_name(&server)), ("client", value_name(&client))]
    }

    fn nothing(&self) -> ProgramsFindings {
        ProgramsFindings {
            lan: self.lan,
            programs: Vec::new(),
        }
    }

    fn play(
        &self,
        (server, client): (ServerSoftware, ClientSoftware),
        run: &LabRun<'_>,
        problems: &mut Vec<String>,
    ) -> Result<ProgramsFindings> {
        let result = play(&self.pair(server, client), client, self.again, run)?;
        let of = |problem: &String| format!("{} from {}: {problem}", client.name(), server.name());
        problems.extend(result.problems.iter().map(of));
        Ok(ProgramsFindings {
            programs: vec![result],
            ..self.nothing()
        })
    }
}

impl LabFindings for ProgramsFindings {
    fn holds(&self) -> bool {
        self.programs.iter().all(|result| result.ok)
    }

    fn add(&mut self, other: Self) {
        self.programs.extend(other.programs);
    }

    fn line(&self) -> String {
        match &self.programs[..] {
            [result] => result.line(),
            results => {
                let held = results.iter().filter(|result| result.ok).count();
                format!("{held} of {} clients noticed nothing", results.len())
            }
        }
    }
}

impl ClientSoftware {
    fn name(self) -> &'static str {
        match self {
            Self::Curl => "curl",
            Self::Wget => "wget",
            Self::CurlDigest => "curl-digest",
            Self::RedisBenchmark => "redis-benchmark",
            Self::Websockets => "websockets",
            Self::SharedKeys => "shared-keys",
            Self::Watch => "watch",
            Self::Ftp => "ftp",
            Self::Smbclient => "smbclient",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Curl | Self::Wget | Self::RedisBenchmark | Self::Smbclient => self.name(),
            Self::CurlDigest => Self::Curl.name(),
            Self::Websockets | Self::SharedKeys | Self::Watch | Self::Ftp => DEBIAN_PYTHON,
        }
    }

    /// The program in PATH or the file that the client needs, and the Debian package that contains it.
    fn needs(self) -> Needed {
        match self {
            Self::Curl | Self::Wget | Self::CurlDigest | Self::Smbclient => (self.program(), self.program()),
            Self::RedisBenchmark => (self.program(), "redis-tools"),
            Self::SharedKeys => ("redis-cli", "redis-tools"),
            Self::Watch | Self::Ftp => (DEBIAN_PYTHON, "python3"),
            Self::Websockets => (WEBSOCKETS, "python3-websockets"),
        }
    }

    /// Whether the server's output depends on more than the client's own input.
    fn needs_order(self) -> bool {
        match self {
            Self::CurlDigest | Self::SharedKeys | Self::Watch | Self::Ftp | Self::Smbclient => true,
            Self::Curl | Self::Wget | Self::RedisBenchmark | Self::Websockets => false,
        }
    }

    fn downloads(self) -> bool {
        match self {
            Self::Curl | Self::Wget | Self::CurlDigest | Self::Smbclient => true,
            Self::RedisBenchmark | Self::Websockets | Self::SharedKeys | Self::Watch | Self::Ftp => false,
        }
    }

    /// Adds the arguments for the client's work at `service`: a download of `file`, or an exchange. With these arguments, the client does
    /// not try a second time.
    fn arguments(
        self,
        command: &mut Command,
        (service, fault): (SocketAddr, CrashFault),
        file: &str,
        received: &Path,
    ) {
        let url = format!("http://{service}/{file}");
        if self == Self::CurlDigest {
            command.args(["--digest", "--user", "lab:word"]);
        }
        match self {
            Self::Curl | Self::CurlDigest => command
                .args(["--silent", "--show-error", "--fail", "--output"])
                .arg(received)
                .arg(url),
            Self::Wget => command
                .args(["--no-verbose", "--tries=1", "-O"])
                .arg(received)
                .arg(url),
            Self::RedisBenchmark => command
                .args(["-h", &service.ip().to_string(), "-p", &service.port().to_string()])
                .args(BENCHMARK),
            Self::Websockets => command
                .args(["-c", TALK])
                .args([format!("ws://{service}/"), MESSAGES.to_string()]),
            Self::Smbclient => command
                .args(["--no-pass", "--port", &service.port().to_string()])
                .arg(format!("//{}/files", service.ip()))
                .arg("--command")
                .arg(format!("get {file} {}", received.display())),
            Self::Ftp => command
                .args(["-c", FTP])
                .args([service.ip().to_string(), service.port().to_string()])
                .arg(LINES.to_string()),
            Self::Watch => command
                .args(["-c", WATCH])
                .args([service.ip().to_string(), service.port().to_string()])
                .arg(LINES.to_string()),
            Self::SharedKeys => command
                .args(["-c", KEYS])
                .args([service.ip().to_string(), service.port().to_string()])
                .arg(keys_seconds(fault).to_string()),
        };
    }
}

impl ProgramResult {
    fn line(&self) -> String {
        let mut line = format!(
            "{} from {}: exit code {}",
            self.client.name(),
            self.server.name(),
            self.exit_code
                .map_or_else(|| "none".to_owned(), |code| code.to_string()),
        );
        if let Some(is_same) = self.sha256_match {
            line += if is_same {
                ", sha256 as on the server"
            } else {
                ", sha256 DIFFERENT"
            };
        }
        let found = self
            .violations
            .iter()
            .map(|one| format!("{:?}: {}: {}", one.rule, one.what, one.packet));
        for problem in self
            .said
            .iter()
            .cloned()
            .chain(found)
            .chain(self.unproven.iter().cloned())
        {
            line += &format!("\n  {problem}");
        }
        line
    }
}

fn play(
    options: &PairOptions,
    client: ClientSoftware,
    again: bool,
    run: &LabRun<'_>,
) -> Result<ProgramResult> {
    let clock = ClockOffset::measure();
    let work = Work::new(options, run.seed);
    run.step("set up");
    let mut testbed = Testbed::set(options, &work, run)?;
    let (seed, length) = work.files()[0];
    let received = testbed.directory.join("received");
    let start = |testbed: &Testbed, label: &str| -> Result<LoggedProcess> {
        let mut command = testbed.network.client.command(client.program())?;
        let file = pattern::file_name(seed, length);
        client.arguments(&mut command, (options.service(), options.fault), &file, &received);
        Ok(LoggedProcess::start(label, command, &testbed.directory)?)
    };
    let mut process = start(&testbed, client.name())?;
    run.step("load");
    wait_for_moment(client, &mut process, &received, length)?;
    let mut problems = Vec::new();
    if options.unprotects {
        unrecorded::check_divergence(&testbed, &mut problems)?;
    } else {
        problems.extend(wait_for_protection(&testbed, &mut process));
    }
    let unequal = (client == ClientSoftware::SharedKeys)
        .then(|| compare_data(&testbed, &mut process))
        .transpose()?
        .flatten();
    let diverges = options.application().diverges();
    let undiverged = (options.recorded_order && !options.unprotects)
        .then(|| compare_divergences(&testbed, diverges))
        .flatten();
    let epoch = testbed.epoch();
    run.step("fault");
    let target = options.fault.target(options.node, run.seed)?;
    let fault_at = inject(&testbed, options, target)?;
    let mut aftermath = follow(&mut testbed, options, target, (fault_at, epoch), run)?;
    if unrecorded::FAULTS.contains(&options.fault) {
        run.step("record");
        unrecorded::check(&testbed, options.fault, target, &mut aftermath.problems)?;
    }
    aftermath.problems.extend(problems);
    aftermath.problems.extend(unequal);
    aftermath.problems.extend(undiverged);
    let mut status = process.wait(LIMIT);
    if again && status.as_ref().is_ok_and(std::process::ExitStatus::success) {
        again::begin_again(&mut testbed, options, &mut aftermath, run)?;
        process = start(&testbed, "again")?;
        wait_for_moment(client, &mut process, &received, length)?;
        aftermath.problems.extend(compare_data(&testbed, &mut process)?);
        again::fail_again(&testbed, options, &mut aftermath, run)?;
        status = process.wait(LIMIT);
    }
    let said = status.as_ref().err().map(|error| format!("{error:#}"));
    let exit_code = status.ok().and_then(|status| status.code());
    let sha256_match = client
        .downloads()
        .then(|| pattern::digest(&received))
        .transpose()?
        .map(|(_, sha256)| sha256 == pattern::sha256(seed, length, length));
    let said = said.or_else(|| (exit_code != Some(0)).then(|| process.last_words()));
    judge(
        (options, target),
        client,
        testbed,
        aftermath,
        clock,
        (exit_code, said, sha256_match),
    )
}

/// How long the clients that share keys work after their pause, in seconds.
fn keys_seconds(fault: CrashFault) -> u32 {
    if fault == CrashFault::PowerOff {
        KEYS_SECONDS
    } else {
        KEYS_SECONDS_UNRECORDED
    }
}

/// Judges the captures and sums up the run.
fn judge(
    (options, target): (&PairOptions, CrashTarget),
    client: ClientSoftware,
    testbed: Testbed,
    aftermath: Aftermath,
    clock: ClockOffset,
    (exit_code, said, sha256_match): (Option<i32>, Option<String>, Option<bool>),
) -> Result<ProgramResult> {
    let mut expected = expectations(options, &aftermath, clock);
    expected.closing = Closing::Either;
    let detection = testbed.pair.detection();
    let changes = changes(options, target, &aftermath, clock, detection);
    let verdict = JudgedRun::of(testbed, expected, &changes)?.verdict;
    let mut shown = ProgramResult {
        ok: false,
        server: options.application(),
        client,
        exit_code,
        said,
        sha256_match,
        connections_taken_over: verdict.connections_taken_over,
        resets_seen: verdict.resets_to_client,
        violations: verdict.violations,
        unproven: verdict.unproven,
        problems: aftermath.problems,
    };
    if shown.connections_taken_over == 0 && options.sequel(target) == Sequel::Takeover {
        shown
            .problems
            .push("node b never spoke for any connection".to_owned());
    }
    shown.ok = shown.exit_code == Some(0)
        && shown.sha256_match != Some(false)
        && shown.resets_seen == 0
        && shown.violations.is_empty()
        && shown.unproven.is_empty()
        && shown.problems.is_empty();
    Ok(shown)
}

/// Waits until the client is in the middle of its work.
fn wait_for_moment(
    client: ClientSoftware,
    process: &mut LoggedProcess,
    received: &Path,
    length: u64,
) -> Result<()> {
    let is_there = |process: &LoggedProcess| {
        std::thread::sleep(POLL);
        match client {
            ClientSoftware::RedisBenchmark => reports_requests(&process.output()),
            ClientSoftware::SharedKeys => process.output().lines().any(|line| line == "pause"),
            ClientSoftware::Watch | ClientSoftware::Ftp => process.output().lines().count() > LINES / 2,
            ClientSoftware::Websockets => process.output().lines().count() > MESSAGES / 2,
            ClientSoftware::Curl
            | ClientSoftware::Wget
            | ClientSoftware::CurlDigest
            | ClientSoftware::Smbclient => received.metadata().is_ok_and(|file| file.len() > length / 2),
        }
    };
    Ok(process.wait_until("get to the middle of its work", LIMIT, is_there)?)
}

/// Whether redis-benchmark has reported a rate, four times a second. Its very first report, before a request, has none.
fn reports_requests(output: &str) -> bool {
    let mut rates = output.split("rps=").skip(1);
    rates.any(|rate| !rate.starts_with("0.0 "))
}

/// Waits until node b reports that all connections of the client are protected. If node b never reports this, returns a problem with the
/// reasons.
fn wait_for_protection(testbed: &Testbed, client: &mut LoggedProcess) -> Option<String> {
    let mut reasons = BTreeMap::new();
    let is_protected = |_: &LoggedProcess| {
        std::thread::sleep(POLL);
        let status = testbed.status(BACKUP).ok();
        let said = status.iter().flat_map(|status| &status.services);
        reasons.extend(said.flat_map(|service| service.reasons.clone()));
        status.is_some_and(|status| status.protects_all())
    };
    let waited = client.wait_until("become protected", LIMIT, is_protected);
    waited
        .err()
        .map(|error| format!("node b never protected all connections of the client: {reasons:?}; {error}"))
}

/// Returns a problem if node b's server diverges from its record although it must not, or does not although it must.
fn compare_divergences(testbed: &Testbed, diverges: bool) -> Option<String> {
    let counted = |status: &ReportedStatus| {
        let counters = &status.services.first()?.counters;
        counters.get("order_divergences").copied()
    };
    let begun = Deadline::now();
    loop {
        let status = testbed.status(BACKUP).ok();
        let count = status.as_ref().and_then(counted);
        let follows = status.is_some_and(|status| status.order_activity() == Some("plays"));
        if follows && count.is_some_and(|count| (count > 0) == diverges) {
            return None;
        }
        if !diverges || begun.elapsed() > DIGEST_LIMIT {
            return Some(format!(
                "node b plays a record: {follows}; divergences: {count:?}"
            ));
        }
        std::thread::sleep(POLL);
    }
}

/// Waits until both nodes' servers have the same data, while the clients pause. Then waits until the clients work again. Returns a problem
/// if the data differ.
fn compare_data(testbed: &Testbed, client: &mut LoggedProcess) -> Result<Option<String>> {
    let begun = Deadline::now();
    let digests = || -> Result<[String; 2]> { Ok([digest(testbed, 0)?, digest(testbed, 1)?]) };
    let mut last = digests()?;
    while last[0] != last[1] && begun.elapsed() < DIGEST_LIMIT {
        std::thread::sleep(POLL);
        last = digests()?;
    }
    let works = |process: &LoggedProcess| process.output().lines().any(|line| line == "work");
    client.wait_until("work again", LIMIT, works)?;
    std::thread::sleep(KEYS_MOMENT);
    let [of_a, of_b] = last;
    Ok((of_a != of_b).then(|| format!("the nodes' data differ: DEBUG DIGEST is {of_a} and {of_b}")))
}

/// Redis' digest of all data of node `index`. The administrator's socket is in the server's directory.
fn digest(testbed: &Testbed, index: usize) -> Result<String> {
    let output = Command::new("redis-cli")
        .args(["-s", "redis.sock", "DEBUG", "DIGEST"])
        .current_dir(testbed.server_directory(index))
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
