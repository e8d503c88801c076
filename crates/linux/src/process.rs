//! Settings of this process: priority, limit of open files, files across `exec`, and freed memory. Also the kernel's random numbers.

use std::fs;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Gives the calling thread, and all threads that it starts later, precedence over ordinary processes. The agent must
/// send heartbeats and read the rings even when every CPU is busy.
///
/// # Errors
/// The error of `setpriority(2)`, which needs CAP_SYS_NICE.
pub fn take_precedence() -> io::Result<()> {
    // SAFETY: no memory is involved.
    let outcome = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Reverts [`take_precedence`] for the calling thread. The thread inherited the precedence, but its work is less urgent.
///
/// # Errors
/// The error of `setpriority(2)`.
pub fn yield_precedence() -> io::Result<()> {
    // SAFETY: no memory is involved; 0 is the calling thread.
    let outcome = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Gives the calling thread real-time priority (SCHED_FIFO): it precedes all ordinary threads. Use this only for a thread that sleeps
/// nearly always.
///
/// # Errors
/// The error of `sched_setscheduler(2)`, which needs CAP_SYS_NICE or a real-time limit.
pub fn run_in_real_time() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads `parameters`; 0 is the calling thread.
    let outcome = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Raises the limit of open files to the kernel's maximum (`fs.nr_open`), or to the hard limit if the process may not exceed that.
/// Each relayed connection takes two files.
///
/// # Errors
/// The error of `setrlimit(2)`, or of reading the limits.
pub fn raise_file_limit() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open")?;
    let most = most.trim().parse().unwrap_or(hard).max(hard);
    if setrlimit(Resource::RLIMIT_NOFILE, most, most).is_err() {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(())
}

/// How many files the process may have open.
///
/// # Errors
/// The error of `getrlimit(2)`.
pub fn file_limit() -> io::Result<usize> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(usize::try_from(soft).unwrap_or(usize::MAX))
}

/// Sets whether `file` stays open for the program that replaces this one in this process (`exec`). By default, `exec` closes the file.
///
/// # Errors
/// The error of `fcntl(2)`.
pub fn pass_on(file: impl AsFd, passes: bool) -> io::Result<()> {
    let flags = if passes {
        FdFlag::empty()
    } else {
        FdFlag::FD_CLOEXEC
    };
    fcntl(file, FcntlArg::F_SETFD(flags))?;
    Ok(())
}

/// The open file at `path`, if the previous program in this process [passed it on](pass_on). The file is then marked to be closed at the
/// next `exec`, so a second call does not find it.
///
/// # Errors
/// If the open files cannot be looked at.
pub fn inherited(path: &Path) -> io::Result<Option<OwnedFd>> {
    let file = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    let wanted = match file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        wanted => wanted?,
    };
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let Some(raw) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<RawFd>().ok())
        else {
            continue;
        };
        // SAFETY: no memory is involved; for a closed descriptor the call returns -1.
        let flags = unsafe { libc::fcntl(raw, libc::F_GETFD) };
        let is_ours = flags == -1 || flags & libc::FD_CLOEXEC != 0;
        if is_ours || !file(&entry.path()).is_ok_and(|found| found == wanted) {
            continue;
        }
        // SAFETY: files that this program opened have FD_CLOEXEC. So the previous program opened this file, and nothing here owns it.
        let owned = unsafe { OwnedFd::from_raw_fd(raw) };
        pass_on(&owned, false)?;
        return Ok(Some(owned));
    }
    Ok(None)
}

/// Keeps freed memory for the next log instead of giving it back to the kernel at once. Under load, logs grow and shrink by megabytes every
/// millisecond. Without this setting, the page faults would cost more than the logging.
pub fn keep_freed_memory() {
    // SAFETY: plain settings of the C library's allocator, made before threads are started.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_MAX);
        libc::mallopt(libc::M_TOP_PAD, TOP_PAD);
    }
}

const KEPT_MAX: libc::c_int = 256 << 20;
const TOP_PAD: libc::c_int = 1 << 20;

/// Fills a slice with random bytes of the kernel.
///
/// # Errors
/// If the kernel does not give enough bytes.
pub fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    // SAFETY: the kernel writes at most as many bytes as the slice has.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match usize::try_from(got) {
        Ok(got) if got == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// A number that nobody outside this process can guess.
pub fn random_seed() -> usize {
    use std::hash::{BuildHasher, RandomState};
    // Any bits will do.
    RandomState::new().hash_one(0) as usize
}
