//! Runs an operator's command, and never waits much longer than the command's time limit.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

const POLL: Duration = Duration::from_millis(10);
/// How long to wait for a killed process. A process in state D (a disk or a server does not answer) takes longer.
const DEATH_WITHIN: Duration = Duration::from_secs(1);
/// Maximum number of late runs of one command that have not ended. At this number the command is not run again. With [`LatePolicy::Leave`],
/// a late run is counted only if the kernel had not started it in time.
const UNDEAD_MAX: usize = 4;
/// How long after the command's end to wait for the end of its stderr. Bounded, because its children may still hold stderr open.
const STDERR_WITHIN: Duration = Duration::from_millis(100);
/// Maximum number of bytes of stderr that are kept.
const KEPT_MAX: usize = 4096;

/// Treatment of a command that takes too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatePolicy {
    /// Leave it alone.
    Leave,
    /// Kill it, and all processes of its group.
    Kill,
}

/// How a run ended.
#[derive(Debug)]
pub enum CommandOutcome {
    /// The command ended by itself.
    Ended {
        /// Its exit status.
        status: ExitStatus,
        /// The beginning of its stderr; empty with [`LatePolicy::Leave`].
        stderr: String,
    },
    /// The command took too long.
    Late,
}

/// Number of late runs that have not ended, by command. There are three cases: the killed process does not end; the kernel has not read the
/// program yet; or the kernel read it too late, and with [`LatePolicy::Leave`] the process still runs. A thread waits for each run.
static UNDEAD: Mutex<BTreeMap<Vec<String>, usize>> = Mutex::new(BTreeMap::new());

/// Runs `command`, a program and its arguments, with this process's environment and `environment`. The command's stdout is dropped. The
/// command's stderr goes into the outcome with [`LatePolicy::Kill`], else to this process's stderr.
///
/// # Errors
/// If the command cannot be run, or if too many late runs of it have not ended. With [`LatePolicy::Leave`], a late run counts only if the
/// kernel had not started it in time.
pub fn run(
    command: &[String],
    environment: &[(&str, &str)],
    limit: Duration,
    late: LatePolicy,
) -> io::Result<CommandOutcome> {
    run_unless(|| false, command, environment, limit, late)
}

/// As [`run`], but the command also counts as late as soon as `is_void` returns true.
///
/// # Errors
/// If the command cannot be run, or if too many late runs of it have not ended. With [`LatePolicy::Leave`], a late run counts only if the
/// kernel had not started it in time.
pub fn run_unless(
    is_void: impl Fn() -> bool,
    words: &[String],
    environment: &[(&str, &str)],
    limit: Duration,
    late: LatePolicy,
) -> io::Result<CommandOutcome> {
    let (program, arguments) = words
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "an empty command"))?;
    if undead(words) >= UNDEAD_MAX {
        let why = format!("{UNDEAD_MAX} late runs of this command have not ended");
        return Err(io::Error::other(why));
    }
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if late == LatePolicy::Kill {
        command.process_group(0).stderr(Stdio::piped());
    }
    let begun = Instant::now();
    let is_late = || begun.elapsed() >= limit || is_void();
    let Some(mut child) = start(command, words, late, is_late)? else {
        return Ok(CommandOutcome::Late);
    };
    let said = child.stderr.take().map(CapturedStderr::on).transpose()?;
    loop {
        if let Some(status) = child.try_wait()? {
            let stderr = said.map_or_else(String::new, |said| said.text());
            return Ok(CommandOutcome::Ended { status, stderr });
        }
        if is_late() {
            if late == LatePolicy::Kill {
                kill(child, words, kill_group)?;
            }
            return Ok(CommandOutcome::Late);
        }
        std::thread::sleep(POLL);
    }
}

/// Starts `command` on a thread of its own, because the kernel reads the program's file before `spawn` returns: a disk or a server that
/// does not answer would block the caller. `None`: the command is late. If the command begins after all, it is killed or left alone, as
/// `late` says.
fn start(
    mut command: Command,
    words: &[String],
    late: LatePolicy,
    is_late: impl Fn() -> bool,
) -> io::Result<Option<Child>> {
    let (started, start) = sync_channel(0);
    let owned = words.to_vec();
    let spawn = move || {
        // The channel has no buffer: if the receiver has given up, `send` returns the process to this thread.
        let Err(SendError(spawned)) = started.send(command.spawn()) else {
            return;
        };
        let ended = spawned.and_then(|mut child| match late {
            LatePolicy::Kill => kill(child, &owned, kill_group),
            LatePolicy::Leave => child.wait().map(drop),
        });
        tracing::warn!(
            program = owned[0],
            ?ended,
            "the kernel was late to start a command, which has ended by now, was killed, or could not be started"
        );
        forget_undead(&owned);
    };
    std::thread::Builder::new().name("start".into()).spawn(spawn)?;
    loop {
        match start.recv_timeout(POLL) {
            Ok(spawned) => return spawned.map(Some),
            Err(RecvTimeoutError::Timeout) if !is_late() => {}
            Err(_) => break,
        }
    }
    tracing::error!(
        program = words[0],
        "the kernel has not started the command yet (a disk or a server that does not answer?); a thread waits for it"
    );
    count_undead(words);
    drop(start);
    Ok(None)
}

/// How many late runs of a command have not ended.
fn undead(command: &[String]) -> usize {
    let undead = UNDEAD.lock().unwrap_or_else(PoisonError::into_inner);
    undead.get(command).copied().unwrap_or(0)
}

fn count_undead(command: &[String]) {
    let mut undead = UNDEAD.lock().unwrap_or_else(PoisonError::into_inner);
    *undead.entry(command.to_vec()).or_default() += 1;
}

fn forget_undead(command: &[String]) {
    let mut undead = UNDEAD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Entry::Occupied(mut count) = undead.entry(command.to_vec()) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// Kills the process group that `child` leads, by `send_kill`, and waits for the child. If that takes too long, a thread waits instead.
fn kill(
    mut child: Child,
    command: &[String],
    send_kill: impl Fn(&Child) -> io::Result<()>,
) -> io::Result<()> {
    send_kill(&child)?;
    let begun = Instant::now();
    while begun.elapsed() < DEATH_WITHIN {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
    let process = child.id();
    tracing::error!(
        process,
        "the command was killed, but the kernel does not let it end (state D?); a thread waits for it"
    );
    let command = command.to_vec();
    count_undead(&command);
    let reap = move || {
        let ended = child.wait();
        forget_undead(&command);
        tracing::warn!(process, ?ended, "the killed command has ended");
    };
    // If no thread can be started, a zombie stays, and the run stays counted.
    std::thread::Builder::new().name("reaper".into()).spawn(reap)?;
    Ok(())
}

/// Kills the group that `child` leads. The child has not been reaped, so its number cannot belong to another process.
fn kill_group(child: &Child) -> io::Result<()> {
    let group = Pid::from_raw(i32::try_from(child.id()).expect("a process's number"));
    Ok(killpg(group, Signal::SIGKILL)?)
}

/// A command's stderr so far.
struct CapturedStderr {
    kept: Arc<Mutex<Vec<u8>>>,
    end: Receiver<()>,
}

impl CapturedStderr {
    /// Reads `from` to its end, so that the writer never blocks, and keeps the beginning.
    fn on(mut from: impl Read + Send + 'static) -> io::Result<Self> {
        let kept = Arc::<Mutex<Vec<u8>>>::default();
        let (ended, end) = channel();
        let keeps = Arc::clone(&kept);
        std::thread::Builder::new().name("stderr".into()).spawn(move || {
            let mut buffer = [0; KEPT_MAX];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                let mut kept = keeps.lock().unwrap_or_else(PoisonError::into_inner);
                let room = KEPT_MAX - kept.len();
                kept.extend_from_slice(&buffer[..count.min(room)]);
            }
            // Fails if the command was late: then nobody waits for this.
            let _ = ended.send(());
        })?;
        Ok(Self { kept, end })
    }

    fn text(&self) -> String {
        let _ = self.end.recv_timeout(STDERR_WITHIN);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> [String; 3] {
        ["sh", "-c", script].map(str::to_owned)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_command_ends_by_itself() {
        let script = "echo \"$X is\" wrong >&2; echo more >&2; exit 3";
        match run(&shell(script), &[("X", "it")], LONG, LatePolicy::Kill).unwrap() {
            CommandOutcome::Ended { status, stderr } => {
                assert_eq!((status.code(), stderr.as_str()), (Some(3), "it is wrong\nmore"));
            }
            CommandOutcome::Late => panic!("it has a minute"),
        }
    }

    #[test]
    fn one_that_writes_much_is_not_held_up() {
        let script = "dd if=/dev/zero bs=1M count=4 1>&2";
        let outcome = run(&shell(script), &[], LONG, LatePolicy::Kill).unwrap();
        assert!(
            matches!(outcome, CommandOutcome::Ended { status, .. } if status.success()),
            "{outcome:?}"
        );
    }

    #[test]
    fn one_that_is_late_is_killed_with_its_children() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = format!("sleep 1000 & echo $! >{}; wait", file.path().display());
        // Long enough for the child to have been started.
        let outcome = run(&shell(&script), &[], Duration::from_secs(1), LatePolicy::Kill).unwrap();
        assert!(matches!(outcome, CommandOutcome::Late), "{outcome:?}");
        let child = std::fs::read_to_string(file.path()).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", child.trim()));
        // The process that adopts the child may take a moment to reap it.
        let begun = Instant::now();
        while state().is_ok_and(|state| !state.contains(") Z ")) {
            assert!(begun.elapsed() < LONG, "process {child} lives on");
            std::thread::sleep(POLL);
        }
    }

    /// Imitates a process in state D, which ignores every signal.
    #[test]
    fn one_that_does_not_end_is_left_to_a_thread_and_few_are() {
        let mut groups = Vec::new();
        let stuck = ["true".to_owned(), "stuck".to_owned()];
        for count in 1..=UNDEAD_MAX {
            let child = Command::new("sleep")
                .arg("1000")
                .process_group(0)
                .spawn()
                .unwrap();
            groups.push(Pid::from_raw(i32::try_from(child.id()).unwrap()));
            kill(child, &stuck, |_| Ok(())).unwrap(); // `kill` returns although the child has not ended
            assert_eq!(undead(&stuck), count);
        }
        let refused = run(&stuck, &[], LONG, LatePolicy::Kill).unwrap_err();
        assert!(refused.to_string().starts_with("4 late runs"), "{refused}");
        groups
            .into_iter()
            .for_each(|group| killpg(group, Signal::SIGKILL).unwrap());
        let begun = Instant::now();
        while undead(&stuck) > 0 {
            assert!(begun.elapsed() < LONG, "they are waited for");
            std::thread::sleep(POLL);
        }
        assert!(run(&stuck, &[], LONG, LatePolicy::Kill).is_ok());
    }

    /// Makes a file that nobody can open while the returned child lives, as if its disk did not answer: the child has a lease on the file.
    /// The kernel takes a lease back after 45 s (`fs.lease-break-time`). A file that is open for writing cannot be run. If this process
    /// wrote the file, the children of other tests could inherit the open file for a moment. So the child writes it.
    fn lease(path: &str, contents: &str) -> Child {
        let script = "import fcntl, os, signal, sys
with open(sys.argv[1], 'w') as file:
    file.write(sys.argv[2])
os.chmod(sys.argv[1], 0o755)
file = os.open(sys.argv[1], os.O_RDONLY)
fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG) # sent when somebody waits for the file; not SIGIO, which kills
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('leased', flush=True)
signal.pause()";
        let mut python = Command::new("python3")
            .args(["-c", script, path, contents])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 6];
        python.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(&said, b"leased");
        python
    }

    /// The kernel reads the program before it reports the process as started.
    #[test]
    fn one_that_cannot_be_read_is_late_and_few_are() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        let has_run = directory.path().join("has_run");
        let command = [path.to_str().unwrap().to_owned()];
        let contents = format!("#!/bin/sh\n: >{}\nsleep 1000\n", has_run.display());
        let mut python = lease(&command[0], &contents);
        let begun = Instant::now();
        for count in 1..=UNDEAD_MAX {
            let outcome = run(&command, &[], POLL, LatePolicy::Kill).unwrap();
            assert!(matches!(outcome, CommandOutcome::Late), "{outcome:?}");
            assert_eq!(undead(&command), count);
        }
        let refused = run(&command, &[], LONG, LatePolicy::Kill).unwrap_err();
        assert!(refused.to_string().starts_with("4 late runs"), "{refused}");
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "nobody waits for the disk"
        );
        assert!(!has_run.exists());
        // The child must be killed. A closed pipe could not tell it to end: the late commands' processes are forked already and have
        // inherited the pipe, so the pipe would stay open.
        python.kill().unwrap();
        python.wait().unwrap();
        while undead(&command) > 0 {
            assert!(begun.elapsed() < LONG, "those that begin late are killed");
            std::thread::sleep(POLL);
        }
        // It can be run again.
        let outcome = run(&command, &[], Duration::from_secs(1), LatePolicy::Kill).unwrap();
        assert!(matches!(outcome, CommandOutcome::Late), "{outcome:?}");
        assert!(has_run.exists());
    }

    #[test]
    fn what_is_not_there_cannot_be_run() {
        assert!(run(&["/nowhere".to_owned()], &[], LONG, LatePolicy::Leave).is_err());
        assert!(run(&[], &[], LONG, LatePolicy::Leave).is_err());
    }
}
