//! `paths-programs`: real programs, unmodified, over a tunnel with two paths. The first path is cut in the middle of their work.
//!
//! [`TunnelProgram`] describes each program: its requirements, the commands of its server and its client, and whether its progress can be
//! seen.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use linux::netns::Netns;
use serde::Serialize;

use super::network::PathsNetwork;
use super::tunnel::{LISTEN, PathsTunnel, cut_first};
use crate::database;
use crate::node::wait_listening;
use crate::process::{LoggedProcess, output};
use crate::run::{
    LAB_PROGRAMS, Lab, LabFindings, LabRun, Needed, RunOptions, check_machine, require_nothing, value_name,
};

/// Time limit for a client.
const LIMIT: Duration = Duration::from_secs(120);
/// Duration of iperf3's measurement, in seconds.
const MEASURED_S: &str = "4";
/// Time from the start of iperf3's measurement to the cut.
const MEASURED_HALF: Duration = Duration::from_secs(2);
/// Bytes of a line of the content: 96 hexadecimal digits and the line break.
const LINE: usize = 97;

/// Run real, unmodified programs over a tunnel with two paths, and cut the first one in the middle of their work.
///
/// ssh sends a file to `cat` at the other host and gets it back at the same time. rsync gets a file from its daemon. psql loads a table
/// from a file and writes it to another file, in one session. iperf3 measures four streams in each direction. Each program must end as
/// if nothing had happened: exit code 0, and every byte as it was.
#[derive(Clone, Debug, Args)]
pub struct PathsProgramsOptions {
    /// Only this program; default: all.
    #[arg(long, value_enum)]
    program: Option<TunnelProgram>,
    /// Megabytes (10⁶ bytes) of the file.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    mb: u64,
    /// Milliseconds between the tunnel's heartbeats; 0: only timeouts of data find the cut.
    #[arg(long, default_value_t = 0)]
    watch_ms: u64,
    #[command(flatten)]
    run: RunOptions,
}

/// A real program with its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TunnelProgram {
    Ssh,
    Rsync,
    Psql,
    Iperf3,
}

/// The results of all programs.
#[derive(Serialize)]
pub struct PathsProgramsFindings {
    programs: Vec<TunnelProgramResult>,
}

/// Result of one program.
#[derive(Serialize)]
struct TunnelProgramResult {
    ok: bool,
    program: TunnelProgram,
    /// The client's exit code. `None` if a signal or the time limit ended the client.
    exit_code: Option<i32>,
    /// Whether the received bytes equal those that were sent. For iperf3: whether data arrived until the end.
    sha256_match: bool,
    /// Longest time without progress of the client after the cut. `None`: the program does not show its progress.
    stall_ms: Option<f64>,
    /// Number of times that an end of the tunnel declared a path failed.
    path_switches: u32,
    violations: Vec<String>,
}

impl Lab for PathsProgramsOptions {
    type Part = TunnelProgram;
    type Findings = PathsProgramsFindings;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn check_machine(&self) -> Result<()> {
        let parts = self.parts();
        let needed = parts.iter().flat_map(|program| program.needs().iter().copied());
        check_machine(
            LAB_PROGRAMS.into_iter().chain(needed),
            Some(self.run.daemon.path()?),
            100,
        )?;
        if parts.contains(&TunnelProgram::Psql) {
            return require_nothing(database::missing());
        }
        Ok(())
    }

    fn parts(&self) -> Vec<TunnelProgram> {
        let all = TunnelProgram::value_variants().iter().copied();
        all.filter(|program| self.program.is_none_or(|only| only == *program))
            .collect()
    }

    fn selection(&self, program: TunnelProgram) -> Vec<(&'static str, String)> {
        vec![("program", value_name(&program))]
    }

    fn nothing(&self) -> PathsProgramsFindings {
        PathsProgramsFindings { programs: Vec::new() }
    }

    fn play(
        &self,
        program: TunnelProgram,
        run: &LabRun<'_>,
        problems: &mut Vec<String>,
    ) -> Result<PathsProgramsFindings> {
        let result = self.play_program(program, run)?;
        let name = value_name(&program);
        problems.extend(result.violations.iter().map(|one| format!("{name}: {one}")));
        Ok(PathsProgramsFindings {
            programs: vec![result],
        })
    }
}

impl LabFindings for PathsProgramsFindings {
    fn holds(&self) -> bool {
        self.programs.iter().all(|result| result.ok)
    }

    fn add(&mut self, other: Self) {
        self.programs.extend(other.programs);
    }

    fn line(&self) -> String {
        let line = |result: &TunnelProgramResult| {
            let stall = result
                .stall_ms
                .map_or_else(String::new, |stall| format!(", longest stall {stall:.0} ms"));
            let outcome = if result.ok { "every byte arrived" } else { "FAILED" };
            format!("{}: {outcome}{stall}", value_name(&result.program))
        };
        self.programs.iter().map(line).collect::<Vec<_>>().join("; ")
    }
}

/// Files and hosts of one program's run.
struct ProgramTestbed<'a> {
    network: &'a PathsNetwork,
    directory: &'a Path,
    /// The file that the program moves, and the file into which the program writes what arrives.
    content: PathBuf,
    received: PathBuf,
}

impl PathsProgramsOptions {
    fn play_program(&self, program: TunnelProgram, run: &LabRun<'_>) -> Result<TunnelProgramResult> {
        run.step("set up");
        let network = PathsNetwork::build(&run.name, run.teardown)?;
        let testbed = ProgramTestbed {
            network: &network,
            directory: &run.directory,
            content: run.directory.join("content"),
            received: run.directory.join("received"),
        };
        let bytes = write_content(&testbed.content, run.seed, self.mb * 1_000_000)?;
        let command = program.server(&testbed)?;
        let mut server = LoggedProcess::start("server", command, testbed.directory)?;
        program.wait_ready(&mut server, &network.far)?;
        let daemon = self.run.daemon.path()?;
        let terms = (run.seed, self.watch_ms);
        let tunnel = PathsTunnel::start(&network, &daemon, testbed.directory, terms, program.port())?;
        run.step("work");
        let mut client = LoggedProcess::start("client", program.client(&testbed)?, testbed.directory)?;
        let begun = Instant::now();
        client.wait_until("get to the middle of its work", LIMIT, |_| match program {
            TunnelProgram::Iperf3 => begun.elapsed() >= MEASURED_HALF,
            TunnelProgram::Ssh | TunnelProgram::Rsync | TunnelProgram::Psql => {
                length(&testbed.received) > bytes / 3
            }
        })?;
        run.step("cut");
        cut_first(&network)?;
        let mut violations = Vec::new();
        if program.shows_progress() && length(&testbed.received) >= bytes {
            violations.push("the work was done before the path was cut; move more (--mb)".to_owned());
        }
        let mut result = judge(program, &testbed, client, violations)?;
        result.path_switches = tunnel.path_switches();
        if result.path_switches == 0 {
            result.violations.push("no end noticed the cut".to_owned());
        }
        result.ok = result.violations.is_empty();
        tunnel.stop()?;
        Ok(result)
    }
}

/// Waits for the client's end, and checks its exit code and the received file.
fn judge(
    program: TunnelProgram,
    testbed: &ProgramTestbed<'_>,
    mut client: LoggedProcess,
    mut violations: Vec<String>,
) -> Result<TunnelProgramResult> {
    let stall = wait_for_progress(&mut client, &testbed.received)?;
    let status = client.wait(LIMIT);
    let exit_code = status.as_ref().ok().and_then(std::process::ExitStatus::code);
    if exit_code != Some(0) {
        violations.push(format!(
            "the client ended with {status:?}:{}",
            client.last_words()
        ));
    }
    let sha256_match = match program {
        TunnelProgram::Iperf3 => flowed_until_the_end(&client.output()),
        TunnelProgram::Ssh | TunnelProgram::Rsync | TunnelProgram::Psql => {
            pattern::digest(&testbed.received)? == pattern::digest(&testbed.content)?
        }
    };
    if !sha256_match {
        let what = match program {
            TunnelProgram::Iperf3 => "iperf3 moved no data in its last interval, or reported an error",
            TunnelProgram::Ssh | TunnelProgram::Rsync | TunnelProgram::Psql => {
                "the received file differs from the sent file"
            }
        };
        violations.push(what.to_owned());
    }
    Ok(TunnelProgramResult {
        ok: false,
        program,
        exit_code,
        sha256_match,
        stall_ms: program.shows_progress().then_some(stall.as_secs_f64() * 1e3),
        path_switches: 0,
        violations,
    })
}

impl TunnelProgram {
    /// The programs in PATH and the files that this program needs, with their Debian packages.
    fn needs(self) -> &'static [Needed] {
        match self {
            Self::Ssh => &[("ssh", "openssh-client"), ("/usr/sbin/sshd", "openssh-server")],
            Self::Rsync => &[("rsync", "rsync")],
            Self::Psql => &[("psql", "postgresql-client"), ("setpriv", "util-linux")],
            Self::Iperf3 => &[("iperf3", "iperf3")],
        }
    }

    /// The port of the program's server.
    const fn port(self) -> u16 {
        match self {
            Self::Ssh => 22,
            Self::Rsync => 873,
            Self::Psql => 5432,
            Self::Iperf3 => 5201,
        }
    }

    /// Whether the received file grows while the client works.
    const fn shows_progress(self) -> bool {
        !matches!(self, Self::Iperf3)
    }

    /// Prepares the server and returns its command.
    fn server(self, testbed: &ProgramTestbed<'_>) -> Result<Command> {
        let (host, directory) = (&testbed.network.far, testbed.directory);
        match self {
            Self::Ssh => sshd(host, directory, "127.0.0.1"),
            Self::Rsync => {
                let file = directory.join("rsyncd.conf");
                let text = format!(
                    "use chroot = no\nuid = 0\ngid = 0\nport = {}\n[files]\npath = {}\n",
                    self.port(),
                    directory.display()
                );
                write(&file, &text)?;
                let mut command = host.command("rsync")?;
                command
                    .args(["--daemon", "--no-detach", "--address=127.0.0.1"])
                    .arg(format!("--config={}", file.display()));
                Ok(command)
            }
            Self::Psql => database::server(host, directory, self.port(), &[]),
            Self::Iperf3 => {
                let mut command = host.command("iperf3")?;
                command.args(["--server", "--forceflush", "--bind", "127.0.0.1"]);
                Ok(command)
            }
        }
    }

    /// Waits until the server can be reached. For iperf3, reads the server's output: iperf3 would take a test connection for a client.
    fn wait_ready(self, server: &mut LoggedProcess, host: &Netns) -> Result<()> {
        match self {
            Self::Iperf3 => Ok(server.wait_until("listen", LIMIT, |server| {
                server.output().contains("Server listening")
            })?),
            Self::Psql => database::wait_ready(server),
            Self::Ssh | Self::Rsync => wait_listening(server, host, self.port()),
        }
    }

    /// The client's command. The client connects to [`LISTEN`], and does not try a second time.
    fn client(self, testbed: &ProgramTestbed<'_>) -> Result<Command> {
        let host = &testbed.network.near;
        let (address, port) = (LISTEN.ip().to_string(), LISTEN.port().to_string());
        let (content, received) = (testbed.content.display(), testbed.received.display());
        let mut command;
        match self {
            Self::Ssh => {
                // The shell only redirects stdin and stdout.
                command = host.command("sh")?;
                let key = testbed.directory.join("ssh-key");
                command.arg("-c").arg(format!(
                    "exec ssh {SSH_OPTIONS} -i {} -p {port} root@{address} cat < {content} > {received}",
                    key.display()
                ));
            }
            Self::Rsync => {
                command = host.command("rsync")?;
                command
                    .arg("--inplace")
                    .arg(format!("rsync://{address}:{port}/files/content"))
                    .arg(&testbed.received);
            }
            Self::Psql => {
                command = host.command("psql")?;
                command.args(["-h", &address, "-p", &port, "-U", "lab", "-d", "postgres"]);
                command.args(["--no-psqlrc", "-v", "ON_ERROR_STOP=1"]);
                command.args(["-c", "create table lines (line text)"]);
                command.arg("-c").arg(format!("\\copy lines from '{content}'"));
                command.arg("-c").arg(format!("\\copy lines to '{received}'"));
            }
            Self::Iperf3 => {
                command = host.command("iperf3")?;
                command.args(["--client", &address, "--port", &port, "--time", MEASURED_S]);
                command.args(["--parallel", "4", "--bidir", "--json"]);
            }
        }
        Ok(command)
    }
}

/// Options of an ssh client that does not use the user's files.
pub const SSH_OPTIONS: &str =
    "-F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null";

/// The command of an sshd that listens at `address` and lets root log in with a key. The keys are in `directory`.
///
/// # Errors
/// If the keys or the configuration cannot be made.
pub fn sshd(host: &Netns, directory: &Path, address: &str) -> Result<Command> {
    for name in ["ssh-host-key", "ssh-key"] {
        if directory.join(name).exists() {
            continue;
        }
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
        output(keygen.arg(directory.join(name)), "ssh-keygen")?;
    }
    let file = directory.join("sshd_config");
    let at = |name: &str| directory.join(name).display().to_string();
    let text = format!(
        "ListenAddress {address}:22\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nPermitRootLogin yes\n\
         UsePAM no\nPidFile none\n",
        at("ssh-host-key"),
        at("ssh-key.pub")
    );
    write(&file, &text)?;
    // sshd needs the empty directory /run/sshd. Here this directory is in a private tmpfs, which is gone when sshd ends.
    let mut command = host.command("unshare")?;
    let script = "mount -t tmpfs none /run && mkdir /run/sshd && exec /usr/sbin/sshd -D -e -f \"$0\"";
    command.args(["--mount", "sh", "-c", script]).arg(file);
    Ok(command)
}

/// Writes whole lines of hexadecimal digits, at most `bytes` bytes. The digits depend on the seed. Returns the number of written bytes.
fn write_content(path: &Path, seed: u64, bytes: u64) -> Result<u64> {
    let lines = bytes / LINE as u64;
    let mut digits = [0; (LINE - 17) / 2];
    pattern::fill(seed, 0, &mut digits);
    let digits = pattern::hex(&digits);
    let write = || -> std::io::Result<()> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        for line in 0..lines {
            writeln!(file, "{line:016x}{digits}")?;
        }
        file.flush()
    };
    write().with_context(|| format!("write {}", path.display()))?;
    Ok(lines * LINE as u64)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())
}

fn length(path: &Path) -> u64 {
    path.metadata().map_or(0, |file| file.len())
}

/// Waits until the client ends. Returns the longest time in which the file did not grow.
fn wait_for_progress(client: &mut LoggedProcess, received: &Path) -> Result<Duration> {
    let (mut last, mut at, mut stall) = (length(received), Instant::now(), Duration::ZERO);
    let begun = at;
    while !client.has_ended()? && begun.elapsed() < LIMIT {
        let now = length(received);
        if now > last {
            (last, stall) = (now, stall.max(at.elapsed()));
            at = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(stall)
}

/// Whether the report of iperf3 shows data in its last interval, in both directions.
fn flowed_until_the_end(report: &str) -> bool {
    let Ok(report) = serde_json::from_str::<serde_json::Value>(report) else {
        return false;
    };
    let last = report["intervals"].as_array().and_then(|all| all.last());
    let flowed = |sum: &str| last.is_some_and(|last| last[sum]["bytes"].as_f64() > Some(0.0));
    flowed("sum") && flowed("sum_bidir_reverse") && report["error"].is_null()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_lines_of_one_length_and_differs_by_seed() {
        let directory = tempfile::tempdir().unwrap();
        let of = |seed| {
            let path = directory.path().join("content");
            let bytes = write_content(&path, seed, 10_000).unwrap();
            let text = fs::read_to_string(path).unwrap();
            assert_eq!((text.len() as u64, bytes), (103 * 97, 103 * 97));
            text
        };
        let text = of(1);
        let is_right = |line: &str| line.len() == LINE - 1 && line.chars().all(|c| c.is_ascii_hexdigit());
        assert!(text.lines().all(is_right));
        assert!(text != of(2) && text == of(1));
    }

    #[test]
    fn a_report_of_iperf3_without_data_at_the_end_is_noticed() {
        let report = |last: [u64; 2], error: &str| {
            format!(
                "{{\"intervals\": [{{\"sum\": {{\"bytes\": 5}}}}, {{\"sum\": {{\"bytes\": {}}}, \
                 \"sum_bidir_reverse\": {{\"bytes\": {}}}}}]{error}}}",
                last[0], last[1]
            )
        };
        assert!(flowed_until_the_end(&report([1, 2], "")));
        assert!(!flowed_until_the_end(&report([0, 2], "")));
        assert!(!flowed_until_the_end(&report([1, 0], "")));
        assert!(!flowed_until_the_end(&report([1, 2], ", \"error\": \"gone\"")));
        assert!(!flowed_until_the_end("iperf3: not JSON"));
    }
}
