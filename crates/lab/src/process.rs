//! Child processes of a run, and the processes in a network namespace.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use thiserror::Error;

/// Polling interval while waiting for a process.
const POLL: Duration = Duration::from_millis(2);
/// Number of lines from the end of a process's log that an error quotes.
const QUOTED_LINES: usize = 12;

/// A failure of a child process.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// The process could not be started.
    #[error("start {label}")]
    Start {
        /// The process.
        label: String,
        /// The cause.
        source: io::Error,
    },
    /// Sending a signal to the process, or waiting for it, failed.
    #[error("{step} {label}")]
    Control {
        /// The step that failed.
        step: &'static str,
        /// The process.
        label: String,
        /// The cause.
        source: io::Error,
    },
    /// The process ended unexpectedly.
    #[error("{label} ended unexpectedly ({status}){said}")]
    Ended {
        /// The process.
        label: String,
        /// The exit status of the process.
        status: ExitStatus,
        /// The last lines of the process' log, each after a line break. Empty if the log is empty.
        said: String,
    },
    /// The process did not perform the expected action in time.
    #[error("{label} did not {expected} within {limit:?}{said}")]
    Late {
        /// The process.
        label: String,
        /// The expected action.
        expected: String,
        /// The time limit.
        limit: Duration,
        /// The last lines of the process' log, each after a line break. Empty if the log is empty.
        said: String,
    },
}

/// A running child process. Its output goes to a log file. Dropping this value kills the process and its group.
#[derive(Debug)]
pub struct LoggedProcess {
    label: String,
    child: Child,
    log: PathBuf,
}

impl LoggedProcess {
    /// Starts `command`; stdout and stderr go to `DIRECTORY/LABEL.log`. The command must be made by [`linux::netns::Netns::command`], so
    /// that it leads a process group and dies with the calling thread.
    ///
    /// # Errors
    /// If the log cannot be made or the program cannot be started.
    pub fn start(label: &str, mut command: Command, directory: &Path) -> Result<Self, ProcessError> {
        let failed = |source| ProcessError::Start {
            label: label.to_owned(),
            source,
        };
        let log = directory.join(format!("{label}.log"));
        let output = File::create(&log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(failed)?;
        Ok(Self {
            label: label.to_owned(),
            child,
            log,
        })
    }

    /// The process' name in errors.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// The process' output so far.
    pub fn output(&self) -> String {
        fs::read(&self.log).map_or_else(
            |_| String::new(),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }

    /// Sends `signal` to the process and to the other processes of its group.
    ///
    /// # Errors
    /// If the kernel refuses. A process that has already ended is no error.
    pub fn signal(&self, signal: Signal) -> Result<(), ProcessError> {
        match killpg(self.pid(), signal) {
            Ok(()) | Err(nix::Error::ESRCH) => Ok(()),
            Err(errno) => Err(self.control("send a signal to", errno.into())),
        }
    }

    /// Waits until `done` returns true.
    ///
    /// # Errors
    /// If the process ends first, or `limit` passes. The error quotes the end of the process' log.
    pub fn wait_until(
        &mut self,
        expected: &str,
        limit: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<(), ProcessError> {
        let deadline = Instant::now() + limit;
        while !done(self) {
            if let Some(status) = self.status()? {
                return Err(ProcessError::Ended {
                    label: self.label.clone(),
                    status,
                    said: self.last_words(),
                });
            }
            if Instant::now() > deadline {
                return Err(self.late(expected, limit));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits for the process to end.
    ///
    /// # Errors
    /// If `limit` passes first.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus, ProcessError> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.status()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(self.late("end", limit));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Whether the process has ended.
    ///
    /// # Errors
    /// If the kernel refuses to tell the status.
    pub fn has_ended(&mut self) -> Result<bool, ProcessError> {
        Ok(self.status()?.is_some())
    }

    fn status(&mut self) -> Result<Option<ExitStatus>, ProcessError> {
        let status = self.child.try_wait();
        status.map_err(|source| self.control("wait for", source))
    }

    fn control(&self, step: &'static str, source: io::Error) -> ProcessError {
        ProcessError::Control {
            step,
            label: self.label.clone(),
            source,
        }
    }

    fn late(&self, expected: &str, limit: Duration) -> ProcessError {
        ProcessError::Late {
            label: self.label.clone(),
            expected: expected.to_owned(),
            limit,
            said: self.last_words(),
        }
    }

    /// The last lines of the process' output, each after a line break. A progress report that overwrites its line is one line for each
    /// state.
    pub fn last_words(&self) -> String {
        let output = self.output();
        let lines: Vec<_> = output
            .split(['\n', '\r'])
            .map(str::trim_end)
            .filter(|line| !line.is_empty())
            .collect();
        let last = &lines[lines.len().saturating_sub(QUOTED_LINES)..];
        last.iter().map(|line| format!("\n    {line}")).collect()
    }
}

impl Drop for LoggedProcess {
    fn drop(&mut self) {
        // If the process has ended, an earlier call may have reaped it. Its process id may belong to another process by now.
        if let Ok(None) = self.child.try_wait() {
            if let Err(error) = self.signal(Signal::SIGKILL) {
                tracing::warn!("{error}");
            }
            if let Err(error) = self.child.wait() {
                tracing::warn!("wait for {}: {error}", self.label);
            }
        }
    }
}

/// Runs `command` and waits for its end. Returns its output on stdout. `what` is the command's name in errors.
///
/// # Errors
/// If the command cannot be run, or fails. If it fails, the error contains its output on stderr.
pub fn output(command: &mut Command, what: &str) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("run {what}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{what}: {}: {}",
        output.status,
        said.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Copies a program's file in a separate process. If this process wrote the copy itself, a child that another thread forks at that time
/// would inherit the open file until its own exec. Executing a file that is open for writing fails (ETXTBSY).
///
/// # Errors
/// If the file cannot be copied.
pub fn copy_program(from: &Path, to: &Path) -> anyhow::Result<()> {
    output(Command::new("cp").args([from, to]), "copy the program").map(drop)
}

/// The processes that live in the network namespaces with these inode numbers.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn inside(namespaces: &[u64]) -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Neither a process that has ended meanwhile nor a zombie has a namespace.
        let namespace = fs::metadata(format!("/proc/{pid}/ns/net")).map(|link| link.ino());
        if namespace.is_ok_and(|inode| namespaces.contains(&inode)) {
            found.push(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

/// The child processes that the main thread of `parent` has started and `parent` has not waited for.
///
/// # Errors
/// If `parent` has ended.
pub fn children(parent: Pid) -> io::Result<Vec<Pid>> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
    Ok(pids.map(Pid::from_raw).collect())
}

/// Private memory of `process`, in bytes: heap and stacks, without files and shared memory (RssAnon).
///
/// # Errors
/// If the process has ended.
pub fn anonymous_memory(process: Pid) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let kilobytes = status.lines().find_map(|line| {
        let text = line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB")?;
        text.parse::<u64>().ok()
    });
    let none = || io::Error::new(io::ErrorKind::InvalidData, "no RssAnon: it has ended");
    Ok(kilobytes.ok_or_else(none)? * 1024)
}

/// Clock ticks per second in `/proc` (USER_HZ): 100 on every Linux that Rust runs on.
pub const TICKS_PER_S: u64 = 100;
/// Flag of a kernel thread (PF_KTHREAD in the kernel's include/linux/sched.h).
pub const KERNEL_THREAD: u64 = 0x0020_0000;

/// What `/proc/PID/stat` says about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    pub parent: u32,
    pub is_kernel_thread: bool,
    /// CPU time of its threads.
    pub cpu: Duration,
    /// CPU time of its dead children.
    pub cpu_of_children: Duration,
}

impl ProcessStat {
    /// Reads the contents of `/proc/PID/stat` (proc_pid_stat(5)).
    pub fn parse(stat: &str) -> Option<Self> {
        // The second field is the name in parentheses. The name may contain parentheses and spaces.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        // state ppid pgrp session tty_nr tpgid flags minflt cminflt majflt cmajflt utime stime cutime cstime
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let time = |first: usize| {
            let ticks = number(first)? + number(first + 1)?;
            Some(Duration::from_millis(ticks * 1000 / TICKS_PER_S))
        };
        Some(Self {
            parent: number(1)?.try_into().ok()?,
            is_kernel_thread: number(6)? & KERNEL_THREAD != 0,
            cpu: time(11)?,
            cpu_of_children: time(13)?,
        })
    }
}

/// All processes, by their PIDs.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn processes() -> io::Result<HashMap<u32, ProcessStat>> {
    let mut processes = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process that has ended meanwhile has no file. Its parent has its CPU time.
        let stat = fs::read_to_string(entry.path().join("stat"));
        if let Some(process) = stat.ok().as_deref().and_then(ProcessStat::parse) {
            processes.insert(pid, process);
        }
    }
    Ok(processes)
}

/// Whether process `pid` is one of `roots` or a descendant of one.
pub fn is_below(processes: &HashMap<u32, ProcessStat>, pid: u32, roots: &[u32]) -> bool {
    let mut line = std::iter::successors(Some(pid), |pid| processes.get(pid).map(|one| one.parent));
    line.any(|ancestor| roots.contains(&ancestor))
}

/// Number of open sockets of `process`.
///
/// # Errors
/// If the process has ended.
pub fn sockets(process: Pid) -> io::Result<usize> {
    let mut count = 0;
    for descriptor in fs::read_dir(format!("/proc/{process}/fd"))? {
        // A descriptor that was closed meanwhile does not count.
        let target = fs::read_link(descriptor?.path());
        count += usize::from(target.is_ok_and(|target| target.to_string_lossy().starts_with("socket:")));
    }
    Ok(count)
}

/// Kills every process in these network namespaces except those that `spare` selects. Repeats SIGKILL until none is left.
///
/// # Errors
/// If `/proc` cannot be read, or a process is still there after `limit`.
pub fn kill_inside(namespaces: &[u64], spare: impl Fn(Pid) -> bool, limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        let mut alive = inside(namespaces)?;
        alive.retain(|&pid| !spare(pid));
        if alive.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let message = format!("processes {alive:?} survive SIGKILL");
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        for pid in alive {
            match kill(pid, Signal::SIGKILL) {
                Ok(()) | Err(nix::Error::ESRCH) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group_leader(program: &str, arguments: &[&str]) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        command
    }

    #[test]
    fn a_process_that_ends_too_early_is_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let command = group_leader("sh", &["-c", "echo no such luck; exit 3"]);
        let mut process = LoggedProcess::start("server", command, directory.path()).unwrap();
        let error = process
            .wait_until("listen", Duration::from_secs(10), |_| false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("server ended unexpectedly"), "{error}");
        assert!(error.contains("no such luck"), "{error}");
    }

    #[test]
    fn memory_that_is_used_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        // The kernel's number may lag behind what the process says.
        let wait_for = |label, script: &str, expected: fn(u64) -> bool| {
            let command = group_leader("sh", &["-c", script]);
            let mut process = LoggedProcess::start(label, command, directory.path()).unwrap();
            let seen = |process: &LoggedProcess| {
                process.output().ends_with('\n') && anonymous_memory(process.pid()).is_ok_and(expected)
            };
            process
                .wait_until("have the memory that it uses", Duration::from_secs(60), seen)
                .unwrap();
        };
        wait_for("small", "echo ready; sleep 1000", |memory| memory < 16 << 20);
        let text = "text=$(head -c 32M /dev/zero | tr '\\0' x)";
        let script = format!("{text}; echo ready; sleep 1000; echo $text");
        wait_for("large", &script, |memory| memory >= 32 << 20);
    }

    #[test]
    fn what_proc_says_of_a_process_is_understood() {
        let stat = "77 (a (b) c) S 1 77 77 0 -1 2097152 100 0 0 0 250 50 30 20 20 0 1 0 100 1000 10";
        let expected = ProcessStat {
            parent: 1,
            is_kernel_thread: true,
            cpu: Duration::from_secs(3),
            cpu_of_children: Duration::from_millis(500),
        };
        assert_eq!(ProcessStat::parse(stat), Some(expected));
        assert_eq!(ProcessStat::parse("77 (a) S 1"), None);
        let own = ProcessStat::parse(&fs::read_to_string("/proc/self/stat").unwrap()).unwrap();
        assert_eq!(Pid::from_raw(own.parent as i32), Pid::parent());
    }

    #[test]
    fn a_process_that_does_not_end_is_late() {
        let directory = tempfile::tempdir().unwrap();
        let command = group_leader("sleep", &["1000"]);
        let mut process = LoggedProcess::start("sleeper", command, directory.path()).unwrap();
        let error = process.wait(Duration::from_millis(10)).unwrap_err();
        assert!(matches!(error, ProcessError::Late { .. }), "{error}");
    }

    #[test]
    fn dropping_kills_the_whole_group() {
        let directory = tempfile::tempdir().unwrap();
        let command = group_leader("sh", &["-c", "sleep 1000 & echo $!; wait"]);
        let mut process = LoggedProcess::start("parent", command, directory.path()).unwrap();
        let limit = Duration::from_secs(10);
        process
            .wait_until("print", limit, |process| process.output().ends_with('\n'))
            .unwrap();
        let grandchild = Pid::from_raw(process.output().trim().parse().unwrap());
        drop(process);
        let gone = || {
            let stat = fs::read_to_string(format!("/proc/{grandchild}/stat"));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        let deadline = Instant::now() + limit;
        while !gone() {
            assert!(Instant::now() < deadline, "{grandchild} survived");
            std::thread::sleep(POLL);
        }
    }

    #[test]
    fn children_and_sockets_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let command = group_leader("sh", &["-c", "sleep 1000 & echo $!; wait"]);
        let mut process = LoggedProcess::start("parent", command, directory.path()).unwrap();
        let limit = Duration::from_secs(10);
        process
            .wait_until("print", limit, |process| process.output().ends_with('\n'))
            .unwrap();
        let child = Pid::from_raw(process.output().trim().parse().unwrap());
        assert_eq!(children(process.pid()).unwrap(), [child]);
        assert_eq!(sockets(child).unwrap(), 0);
        let _pair = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(sockets(Pid::this()).unwrap() >= 2);
    }

    #[test]
    fn this_process_lives_in_its_own_namespace() {
        let here = fs::metadata("/proc/self/ns/net").unwrap().ino();
        assert!(inside(&[here]).unwrap().contains(&Pid::this()));
        assert!(!inside(&[1]).unwrap().contains(&Pid::this()));
    }
}
