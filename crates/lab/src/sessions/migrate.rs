//! `steadfast-lab migrate`: sessions of unmodified clients move among three servers with different addresses, again and again.
//!
//! ```text
//!   curl or a stream's reader ── steadfast connect ──┬── steadfast accept, application   server a
//!                                                    ├── steadfast accept, application   server b
//!                                                    └── steadfast accept, application   server c
//! ```

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

use super::testbed::{CLIENTS, SERVERS, SessionsClient, SessionsSetting, SessionsTestbed};
use crate::bench::target::median;
use crate::run::{LAB_PROGRAMS, Lab, LabFindings, LabRun, RunOptions, check_machine, value_name};

/// Number of orders after which a move counts as failed.
const ATTEMPTS: u32 = 40;
/// Pause after an order that failed: the owner may have no snapshot yet.
const RETRY: Duration = Duration::from_millis(10);
/// Bytes that are transferred after the last move.
const TAIL: u64 = 1 << 20;
/// Maximum number of bytes that a client reads or writes at a time.
const PART: usize = 64 << 10;
/// Time between two chunks of 1 KB of the stream.
const STREAM_INTERVAL: Duration = Duration::from_millis(1);
/// How often a client looks whether it may go on.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Time limit for a transfer's progress to the next move, and for the rest of it after the last move.
const LIMIT: Duration = Duration::from_secs(60);

/// Move live sessions among three servers with different addresses, again and again; no client may notice.
///
/// An unmodified curl downloads a file from the sample file server, another one uploads a file, and a client reads the sample streaming server.
/// Each has one connection, through `steadfast connect`. Each session moves to one of the other two servers, as often as --moves says, by
/// the operator's command. The servers export their states (policy `snapshot`'s library). Each byte must arrive exactly once.
#[derive(Clone, Debug, Args)]
pub struct SessionMigrationOptions {
    /// Only this workload; default: all.
    #[arg(long, value_enum)]
    workload: Option<SessionWorkload>,
    /// Number of moves of each session.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    moves: u32,
    /// How states get to the next server: eager (servers push them beforehand), lazy (fetched from the old server) or client (kept by the proxy).
    #[arg(long, value_enum, default_value_t = TransferOption::Eager)]
    transfer: TransferOption,
    /// Milliseconds of the round-trip time between any two hosts; 0: that of the cables.
    #[arg(long, default_value_t = 0)]
    rtt: u64,
    #[command(flatten)]
    run: RunOptions,
}

/// What a session's client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionWorkload {
    /// curl downloads a file.
    Download,
    /// curl uploads a file.
    Upload,
    /// A client reads a stream, of which a server sends 1 KB at regular intervals.
    Stream,
}

/// How states get to the next server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferOption {
    Eager,
    Lazy,
    Client,
}

/// The results of all sessions.
#[derive(Serialize)]
pub struct MigrateFindings {
    migrations: u32,
    /// Clients whose connection ended early.
    resets_seen: u32,
    sessions: Vec<MigratedSession>,
}

/// The result of one session.
#[derive(Serialize)]
struct MigratedSession {
    ok: bool,
    workload: SessionWorkload,
    transfer: TransferOption,
    /// Moves by the proxy's log. A session may move elsewhere on its way to the server of an order.
    moves: u32,
    /// Orders that were repeated, because the session was not at their server afterwards.
    repeated_orders: u32,
    bytes: u64,
    /// Whether the bytes that arrived equal those that were sent.
    hashes_match: bool,
    /// Whether the connection ended before the last byte.
    ended_early: bool,
    /// Time of a move at the proxy.
    move_median_ms: f64,
    move_longest_ms: f64,
    /// Longest time without progress of the client.
    stall_ms: f64,
    violations: Vec<String>,
}

impl Lab for SessionMigrationOptions {
    type Part = SessionWorkload;
    type Findings = MigrateFindings;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn check_machine(&self) -> Result<()> {
        let needed = [("curl", "curl"), ("python3", "python3")];
        check_machine(
            LAB_PROGRAMS.into_iter().chain(needed),
            Some(self.run.daemon.path()?),
            100,
        )
    }

    fn parts(&self) -> Vec<SessionWorkload> {
        let all = SessionWorkload::value_variants().iter().copied();
        all.filter(|workload| self.workload.is_none_or(|only| only == *workload))
            .collect()
    }

    fn selection(&self, workload: SessionWorkload) -> Vec<(&'static str, String)> {
        vec![("workload", value_name(&workload))]
    }

    fn nothing(&self) -> MigrateFindings {
        MigrateFindings {
            migrations: 0,
            resets_seen: 0,
            sessions: Vec::new(),
        }
    }

    fn play(
        &self,
        workload: SessionWorkload,
        run: &LabRun<'_>,
        problems: &mut Vec<String>,
    ) -> Result<MigrateFindings> {
        let session = self.play_session(workload, run)?;
        let name = value_name(&workload);
        problems.extend(session.violations.iter().map(|one| format!("{name}: {one}")));
        Ok(MigrateFindings {
            migrations: session.moves,
            resets_seen: u32::from(session.ended_early),
            sessions: vec![session],
        })
    }
}

impl LabFindings for MigrateFindings {
    fn holds(&self) -> bool {
        self.sessions.iter().all(|session| session.ok)
    }

    fn add(&mut self, other: Self) {
        self.migrations += other.migrations;
        self.resets_seen += other.resets_seen;
        self.sessions.extend(other.sessions);
    }

    fn line(&self) -> String {
        let line = |session: &MigratedSession| {
            let outcome = if session.ok {
                "every byte arrived"
            } else {
                "FAILED"
            };
            format!(
                "{}: {} moves, {outcome}, {:.1} ms per move (longest {:.1} ms), longest stall {:.0} ms",
                value_name(&session.workload),
                session.moves,
                session.move_median_ms,
                session.move_longest_ms,
                session.stall_ms
            )
        };
        self.sessions.iter().map(line).collect::<Vec<_>>().join("; ")
    }
}

impl SessionMigrationOptions {
    fn play_session(&self, workload: SessionWorkload, run: &LabRun<'_>) -> Result<MigratedSession> {
        run.step("set up");
        let total = u64::from(self.moves + 1) * workload.step() + TAIL;
        let content = run.directory.join("content");
        let mut file = std::fs::File::create(&content)?;
        pattern::write(run.seed, total, &mut file).context("the content")?;
        let setting = SessionsSetting {
            servers: SERVERS.len(),
            rtt: Duration::from_millis(self.rtt),
            far: Duration::ZERO,
            service: format!("transfer = \"{}\"", value_name(&self.transfer)),
            application: workload.application(&run.directory),
        };
        let daemon = self.run.daemon.path()?;
        let testbed = SessionsTestbed::start((&run.name, &run.directory), &daemon, &setting, run.teardown)?;
        let flow = Arc::new(TransferProgress::default());
        let transfer = SessionTransfer {
            workload,
            seed: run.seed,
            total,
            flow: Arc::clone(&flow),
        };
        let client = transfer.start(&testbed)?;
        run.step("move");
        let mut random = Xoshiro256PlusPlus::seed_from_u64(run.seed);
        let (mut owner, mut orders, mut reached) = (0, 0, 0);
        for number in 0..self.moves {
            run.show(&format!("{number} of {}", self.moves));
            let before = flow.allowed.fetch_add(workload.step(), Ordering::Relaxed);
            client.wait_for(&flow, before + random.random_range(0..workload.step()))?;
            owner = (owner + random.random_range(1..SERVERS.len())) % SERVERS.len();
            let Some(needed) = move_to(&testbed, SERVERS[owner], &client)? else {
                break;
            };
            orders += needed;
            reached += 1;
        }
        flow.allowed.store(u64::MAX, Ordering::Relaxed);
        run.step("finish");
        let mut violations = Vec::new();
        let outcome = client.finish(&run.directory, total, &mut violations)?;
        if reached < self.moves {
            violations.push(format!(
                "only {reached} of {} orders were carried out",
                self.moves
            ));
        }
        let moves = testbed.moves();
        let took: Vec<_> = moves.iter().map(|one| one.took.as_secs_f64() * 1e3).collect();
        Ok(MigratedSession {
            ok: violations.is_empty(),
            workload,
            transfer: self.transfer,
            moves: u32::try_from(moves.len())?,
            repeated_orders: orders - reached,
            bytes: outcome.bytes,
            hashes_match: outcome.is_right,
            ended_early: outcome.ended_early,
            move_longest_ms: took.iter().copied().fold(0.0, f64::max),
            move_median_ms: median(took),
            stall_ms: outcome.stall.as_secs_f64() * 1e3,
            violations,
        })
    }
}

/// Orders the session to this server until it is there. Returns the number of orders. `None`: it does not go there, or has ended.
fn move_to(testbed: &SessionsTestbed, to: &str, client: &TransferClient) -> Result<Option<u32>> {
    for orders in 1..=ATTEMPTS {
        if client.has_ended() {
            break;
        }
        testbed.order(to)?;
        if testbed.moves().last().is_some_and(|last| last.to == to) {
            return Ok(Some(orders));
        }
        std::thread::sleep(RETRY);
    }
    Ok(None)
}

impl SessionWorkload {
    /// Bytes that the client may transfer for each move, which begins somewhere in them. A server exports several states meanwhile.
    const fn step(self) -> u64 {
        match self {
            Self::Download => 512 << 10,
            Self::Upload => 256 << 10,
            Self::Stream => 64 << 10,
        }
    }

    /// The application's script and its options. All servers have the file with the content, and store uploads in the same file.
    fn application(self, directory: &Path) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        match self {
            Self::Download => vec!["file_server.py".to_owned(), path(directory)],
            Self::Upload => vec!["upload_server.py".to_owned(), path(&directory.join("received"))],
            Self::Stream => ["stream_server.py", "-k", "4"].map(str::to_owned).to_vec(),
        }
    }
}

/// How far a client is, and how far it may go, in bytes.
#[derive(Default)]
struct TransferProgress {
    done: AtomicU64,
    allowed: AtomicU64,
}

/// One transfer.
struct SessionTransfer {
    workload: SessionWorkload,
    seed: u64,
    total: u64,
    flow: Arc<TransferProgress>,
}

/// What a client has transferred.
struct Transferred {
    bytes: u64,
    /// Whether these are the right bytes.
    is_right: bool,
    ended_early: bool,
    /// Longest time without progress, apart from the time in which it was not allowed to go on.
    stall: Duration,
}

/// A client at work.
struct TransferClient {
    workload: SessionWorkload,
    curl: Option<Child>,
    work: JoinHandle<Transferred>,
}

impl SessionTransfer {
    fn start(self, testbed: &SessionsTestbed) -> Result<TransferClient> {
        let workload = self.workload;
        let mut curl = testbed.client_command("curl")?;
        curl.args(["--silent", "--show-error", "--fail"]);
        let (curl, work) = match workload {
            SessionWorkload::Download => {
                curl.arg(format!("http://{CLIENTS}/content"));
                let mut curl = piped(curl)?;
                let output = curl.stdout.take().context("curl's output")?;
                (Some(curl), std::thread::spawn(move || self.read(output)))
            }
            SessionWorkload::Upload => {
                curl.args(["--header", "Expect:", "--upload-file", "-"]);
                curl.arg(format!("http://{CLIENTS}/content"));
                let mut curl = piped(curl)?;
                let input = curl.stdin.take().context("curl's input")?;
                (Some(curl), std::thread::spawn(move || self.write(input)))
            }
            SessionWorkload::Stream => {
                let mut client = testbed.connect()?;
                client.ask(self.total, STREAM_INTERVAL)?;
                (None, std::thread::spawn(move || self.read(client.into_stream())))
            }
        };
        Ok(TransferClient { workload, curl, work })
    }

    /// Waits until more than `at` bytes are allowed. Returns how many, and whether it had to wait.
    fn wait(&self, at: u64) -> (u64, bool) {
        let mut has_waited = false;
        loop {
            let allowed = self.flow.allowed.load(Ordering::Relaxed);
            if allowed > at {
                return (allowed - at, has_waited);
            }
            has_waited = true;
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn read(self, mut from: impl Read) -> Transferred {
        let mut buffer = vec![0; PART];
        let mut done = Transferred::nothing();
        let mut last = None;
        loop {
            let (room, has_waited) = self.wait(done.bytes);
            let begun = last.filter(|_| !has_waited).unwrap_or_else(Instant::now);
            let room = usize::try_from(room).map_or(PART, |room| room.min(PART));
            let Ok(count @ 1..) = from.read(&mut buffer[..room]) else {
                return done;
            };
            let now = Instant::now();
            last = Some(now);
            done.stall = done.stall.max(now - begun);
            done.is_right &= self.is_right(done.bytes, &buffer[..count]);
            done.bytes += count as u64;
            self.flow.done.store(done.bytes, Ordering::Relaxed);
        }
    }

    fn write(self, mut to: impl std::io::Write) -> Transferred {
        let mut buffer = vec![0; PART];
        let mut done = Transferred::nothing();
        while done.bytes < self.total {
            let (room, _) = self.wait(done.bytes);
            let part = room.min(self.total - done.bytes).min(PART as u64) as usize;
            pattern::fill(self.seed, done.bytes, &mut buffer[..part]);
            let begun = Instant::now();
            if to.write_all(&buffer[..part]).and_then(|()| to.flush()).is_err() {
                return done;
            }
            done.stall = done.stall.max(begun.elapsed());
            done.bytes += part as u64;
            self.flow.done.store(done.bytes, Ordering::Relaxed);
        }
        done
    }

    fn is_right(&self, at: u64, bytes: &[u8]) -> bool {
        match self.workload {
            SessionWorkload::Stream => SessionsClient::is_stream(at, bytes),
            SessionWorkload::Download | SessionWorkload::Upload => {
                pattern::check(self.seed, at, bytes).is_ok()
            }
        }
    }
}

fn piped(mut command: Command) -> Result<Child> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().context("start curl")
}

impl Transferred {
    const fn nothing() -> Self {
        Self {
            bytes: 0,
            is_right: true,
            ended_early: false,
            stall: Duration::ZERO,
        }
    }
}

impl TransferClient {
    fn has_ended(&self) -> bool {
        self.work.is_finished()
    }

    /// Waits until the transfer has got this far, or has ended.
    fn wait_for(&self, flow: &TransferProgress, bytes: u64) -> Result<()> {
        let until = Instant::now() + LIMIT;
        while flow.done.load(Ordering::Relaxed) < bytes && !self.has_ended() {
            ensure!(
                Instant::now() < until,
                "the transfer makes no progress for {LIMIT:?}"
            );
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Waits for the end of the transfer, and checks that every byte has arrived. Adds to `violations` what is wrong.
    fn finish(self, directory: &Path, total: u64, violations: &mut Vec<String>) -> Result<Transferred> {
        let until = Instant::now() + LIMIT;
        while !self.work.is_finished() {
            if Instant::now() > until {
                let stopped = self.curl.map(|mut curl| curl.kill());
                bail!(
                    "{}: the transfer does not end within {LIMIT:?} ({stopped:?})",
                    value_name(&self.workload)
                );
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let Ok(mut done) = self.work.join() else {
            bail!("the client's thread has failed");
        };
        done.ended_early = done.bytes < total;
        let mut said = String::new();
        if let Some(curl) = self.curl {
            let output = curl.wait_with_output().context("wait for curl")?;
            said = String::from_utf8_lossy(&output.stdout).into_owned();
            if !output.status.success() {
                done.ended_early = true;
                let errors = String::from_utf8_lossy(&output.stderr);
                violations.push(format!("curl ended with {}: {}", output.status, errors.trim()));
            }
        }
        done.is_right &= done.bytes == total;
        if self.workload == SessionWorkload::Upload {
            let received = directory.join("received");
            done.is_right &= said.trim() == total.to_string();
            done.is_right &= pattern::digest(&received)? == pattern::digest(&directory.join("content"))?;
        }
        if !done.is_right {
            let bytes = done.bytes;
            violations.push(format!(
                "{bytes} of {total} bytes were transferred, or not all are the same; curl got: {said:?}"
            ));
        }
        Ok(done)
    }
}
