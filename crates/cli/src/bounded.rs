//! Running an operator's command without ever waiting for it longer than said.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

const POLL: Duration = Duration::from_millis(10);
/// So long after the command's end what it wrote is waited for: others may still hold its stderr.
const STDERR_WITHIN: Duration = Duration::from_millis(100);
/// Of the first line so much is kept.
const LINE_MAX: u64 = 1024;

/// What to do with a command that takes too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Leave it alone.
    Leave,
    /// Kill it, and all processes of its group.
    Kill,
}

/// How it ended.
#[derive(Debug)]
pub enum Outcome {
    /// By itself.
    Ended {
        /// So.
        status: ExitStatus,
        /// The first line of what it wrote to stderr, if that was listened to.
        stderr: String,
    },
    /// It took too long.
    Late,
}

/// Runs `command`, a program and its arguments, with `environment` added to this process's own. What it prints is dropped; what it
/// writes to stderr goes where this process's goes, or, if it is killed when it is late, to its outcome.
///
/// # Errors
/// If it cannot be run.
pub fn run(
    command: &[String],
    environment: &[(&str, &str)],
    limit: Duration,
    late: Late,
) -> io::Result<Outcome> {
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "an empty command"))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if late == Late::Kill {
        command.process_group(0).stderr(Stdio::piped());
    }
    let mut child = command.spawn()?;
    let first_line = child.stderr.take().map(first_line).transpose()?;
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            let stderr = first_line.and_then(|line| line.recv_timeout(STDERR_WITHIN).ok());
            let stderr = stderr.unwrap_or_default();
            return Ok(Outcome::Ended { status, stderr });
        }
        if begun.elapsed() >= limit {
            if late == Late::Kill {
                kill(&mut child)?;
            }
            return Ok(Outcome::Late);
        }
        std::thread::sleep(POLL);
    }
}

/// Kills the group that `child` leads; it has not been waited for, so the number is still its own.
fn kill(child: &mut Child) -> io::Result<()> {
    let group = Pid::from_raw(i32::try_from(child.id()).expect("a process's number"));
    killpg(group, Signal::SIGKILL)?;
    child.wait().map(drop)
}

/// Reads `from` to its end, so that who writes is never held up, and gives the first line.
fn first_line(from: impl Read + Send + 'static) -> io::Result<Receiver<String>> {
    let (line, lines) = channel();
    std::thread::Builder::new().name("stderr".into()).spawn(move || {
        let mut from = BufReader::new(from);
        let mut first = Vec::new();
        let _ = from.by_ref().take(LINE_MAX).read_until(b'\n', &mut first);
        // Nobody waits for it any more if the command was late.
        let _ = line.send(String::from_utf8_lossy(&first).trim_end().to_owned());
        let _ = io::copy(&mut from, &mut io::sink());
    })?;
    Ok(lines)
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
        match run(&shell(script), &[("X", "it")], LONG, Late::Kill).unwrap() {
            Outcome::Ended { status, stderr } => {
                assert_eq!((status.code(), stderr.as_str()), (Some(3), "it is wrong"));
            }
            Outcome::Late => panic!("it has a minute"),
        }
    }

    #[test]
    fn one_that_writes_much_is_not_held_up() {
        let script = "dd if=/dev/zero bs=1M count=4 1>&2";
        let outcome = run(&shell(script), &[], LONG, Late::Kill).unwrap();
        assert!(
            matches!(outcome, Outcome::Ended { status, .. } if status.success()),
            "{outcome:?}"
        );
    }

    #[test]
    fn one_that_is_late_is_killed_with_its_children() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = format!("sleep 1000 & echo $! >{}; wait", file.path().display());
        // So long that the child has certainly been started.
        let outcome = run(&shell(&script), &[], Duration::from_secs(1), Late::Kill).unwrap();
        assert!(matches!(outcome, Outcome::Late), "{outcome:?}");
        let child = std::fs::read_to_string(file.path()).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", child.trim()));
        // Whoever adopts it may take a moment to wait for it.
        let begun = Instant::now();
        while state().is_ok_and(|state| !state.contains(") Z ")) {
            assert!(begun.elapsed() < LONG, "process {child} is forgotten");
            std::thread::sleep(POLL);
        }
    }

    #[test]
    fn what_is_not_there_cannot_be_run() {
        assert!(run(&["/nowhere".to_owned()], &[], LONG, Late::Leave).is_err());
        assert!(run(&[], &[], LONG, Late::Leave).is_err());
    }
}
