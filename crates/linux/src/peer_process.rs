//! The process at the other end of a Unix socket: whether it still has its files.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};

/// A task with this bit in its flags (`/proc/PID/stat`) has begun to exit.
const PF_EXITING: u64 = 4;
/// Place of the flags among the fields of `/proc/PID/stat` behind the program's name.
const FLAGS: usize = 6;

/// A process. While this value exists, the process' number means no other process, or the process is known to have ended.
pub struct PeerProcess {
    pid: i32,
    handle: OwnedFd,
}

impl PeerProcess {
    /// The process that has connected to this end of a Unix socket.
    ///
    /// # Errors
    /// If the process has ended, or lives in a PID namespace that this process does not see.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        Self::find(getsockopt(&socket, sockopt::PeerCredentials)?.pid())
    }

    /// The process with this number.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn find(pid: i32) -> io::Result<Self> {
        // SAFETY: the call has no pointers.
        let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if handle < 0 {
            return Err(io::Error::last_os_error());
        }
        let handle = RawFd::try_from(handle).map_err(io::Error::other)?;
        Ok(Self {
            pid,
            // SAFETY: the kernel has just made this descriptor for us.
            handle: unsafe { OwnedFd::from_raw_fd(handle) },
        })
    }

    /// Whether the process has ended or is ending. Before a kernel closes a process' files, this is true.
    pub fn is_ending(&self) -> bool {
        // The order matters: if the process has not ended when it is asked second, its number meant this process before.
        let ends = self.all_tasks_exit();
        ends || self.has_ended()
    }

    fn has_ended(&self) -> bool {
        let mut handle = [PollFd::new(self.handle.as_fd(), PollFlags::POLLIN)];
        poll(&mut handle, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Whether all threads exit. The first thread is looked at first: while it lives, the process has its files.
    fn all_tasks_exit(&self) -> bool {
        let directory = format!("/proc/{}", self.pid);
        if !exits(&format!("{directory}/stat")) {
            return false;
        }
        let Ok(tasks) = fs::read_dir(format!("{directory}/task")) else {
            return true;
        };
        let mut tasks = tasks.flatten();
        tasks.all(|task| exits(&format!("{}/stat", task.path().display())))
    }
}

/// Whether the task with this `stat` file has begun to exit. A task whose file is gone has exited, or its process has.
fn exits(stat: &str) -> bool {
    let Ok(stat) = fs::read_to_string(stat) else {
        return true;
    };
    let behind_name = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    let flags = behind_name.split_whitespace().nth(FLAGS);
    let flags = flags.and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_EXITING != 0)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    fn started(program: &str, arguments: &[&str]) -> (Child, PeerProcess) {
        let child = Command::new(program)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let process = PeerProcess::find(i32::try_from(child.id()).expect("small")).expect("it runs");
        (child, process)
    }

    #[test]
    fn a_process_is_ending_from_its_death_on() {
        let (mut child, process) = started("sleep", &["1000"]);
        assert!(!process.is_ending());
        child.kill().expect("killed");
        let until = Instant::now() + Duration::from_secs(10);
        while !process.is_ending() {
            assert!(Instant::now() < until);
        }
        child.wait().expect("reaped");
        assert!(process.is_ending(), "its number is free now");
        PeerProcess::find(i32::try_from(child.id()).expect("small"))
            .err()
            .expect("no such process");
    }

    /// The first thread of a process may exit before the others. The process has its files until the last thread exits.
    #[test]
    fn a_process_without_its_first_thread_is_not_ending() {
        let program = "import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
print('ready', flush=True)
ctypes.CDLL(None).pthread_exit(None)";
        let (mut child, process) = started("python3", &["-c", program]);
        let mut line = String::new();
        let output = child.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let first = format!("/proc/{}/stat", child.id());
        let until = Instant::now() + Duration::from_secs(10);
        while !exits(&first) {
            assert!(Instant::now() < until);
        }
        assert!(!process.is_ending());
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert!(process.is_ending());
    }
}
