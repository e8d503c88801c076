//! Locks that show which process is alive. A process that may run only once holds a lock on a file that contains its process number.
//!
//! The kernel releases a lock when its holder dies, whatever the cause. So the number in an unlocked file is that of a dead process, and
//! the number in a locked file is that of the holder. There are short exceptions: a child that the holder is about to start also holds the
//! lock until it executes its program, and a process that checks the lock holds it for a moment. So a lock whose file names a dead
//! process, or no process yet, is retried for a while.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linux::own_file::OwnFile;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// Name of the daemon's lock file in the state directory.
pub const DAEMON: &str = "lock";

/// Name of the keeper's lock file in the same directory.
pub const KEEPER: &str = "keeper.lock";

/// How long to retry a lock whose file names a dead process, or none.
const PASSES_WITHIN: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A lock that this process holds until it is dropped.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    file: Flock<File>,
}

/// Why a lock could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the lock.
    #[error("process {pid} holds {}", path.display())]
    Held {
        /// The lock's file.
        path: PathBuf,
        /// The holder's process number. The file's text if it is not a number, and `(unknown)` if the file is empty.
        pid: String,
    },
    /// The kernel refuses.
    #[error("{step} {}: {source}", path.display())]
    Io {
        /// The step that failed.
        step: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Lock {
    /// Takes the lock `name` in `state_dir`. If the directory is missing, it is created with mode 0700.
    ///
    /// # Errors
    /// If another process holds the lock, or the kernel refuses.
    pub fn take(state_dir: &Path, name: &str) -> Result<Self, LockError> {
        let make = || DirBuilder::new().recursive(true).mode(0o700).create(state_dir);
        make().map_err(|source| LockError::Io {
            step: "make",
            path: state_dir.to_owned(),
            source,
        })?;
        let path = state_dir.join(name);
        let failed = |step| {
            let path = path.clone();
            move |source: io::Error| LockError::Io { step, path, source }
        };
        let until = Instant::now() + PASSES_WITHIN;
        loop {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path);
            let file = match Flock::lock(file.map_err(failed("open"))?, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                Err((_, Errno::EAGAIN)) => match living_holder(&path, until) {
                    None => continue,
                    Some(pid) => return Err(LockError::Held { path, pid }),
                },
                Err((_, errno)) => return Err(failed("lock")(errno.into())),
            };
            // The last holder may have removed the file between open and lock.
            let metadata = file.metadata().map_err(failed("look at"))?;
            if OwnFile::of(&path, &metadata).is_at(&path) {
                file.set_len(0).map_err(failed("write"))?;
                writeln!(&*file, "{}", std::process::id()).map_err(failed("write"))?;
                return Ok(Self { path, file });
            }
        }
    }

    /// The lock `name` in `state_dir`, if the previous program of this process held it and passed it on.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn inherited(state_dir: &Path, name: &str) -> Result<Option<Self>, LockError> {
        let path = state_dir.join(name);
        let failed = |source| LockError::Io {
            step: "inherit",
            path: path.clone(),
            source,
        };
        let Some(file) = linux::process::inherited(&path).map_err(failed)? else {
            return Ok(None);
        };
        match Flock::lock(File::from(file), FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Some(Self { path, file })),
            Err((_, errno)) => Err(failed(errno.into())),
        }
    }

    /// Sets whether the next program of this process (after `exec`) keeps the lock. The lock is never free in between.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn pass_on(&self, passes: bool) -> io::Result<()> {
        linux::process::pass_on(&*self.file, passes)
    }

    /// The number of the process that holds the lock `name` in `state_dir`; `None` if no process holds it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn holder(state_dir: &Path, name: &str) -> Result<Option<String>, LockError> {
        let path = state_dir.join(name);
        let failed = |source| LockError::Io {
            step: "open",
            path: path.clone(),
            source,
        };
        let until = Instant::now() + PASSES_WITHIN;
        loop {
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(failed(error)),
            };
            match Flock::lock(file, FlockArg::LockSharedNonblock) {
                Ok(_) => return Ok(None),
                Err((_, Errno::EAGAIN)) => {
                    if let Some(pid) = living_holder(&path, until) {
                        return Ok(Some(pid));
                    }
                }
                Err((_, errno)) => return Err(failed(errno.into())),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The file is removed while the lock is held. A process that opened the file earlier and then gets the lock finds that the path no
        // longer leads to this file, and tries again. `OwnFile` also finds a file that was renamed, as a retired keeper's lock file is.
        if let Ok(metadata) = self.file.metadata() {
            let _ = OwnFile::of(&self.path, &metadata).remove();
        }
    }
}

/// The number of the process that holds the lock at `path`. The file's text if it is not a number, and `(unknown)` if the file is empty. If
/// the file names a dead process or is empty, and `until` has not come, waits a moment and returns `None`.
fn living_holder(path: &Path, until: Instant) -> Option<String> {
    let number = std::fs::read_to_string(path).unwrap_or_default();
    let number = number.trim();
    let is_dead = |number: i32| kill(Pid::from_raw(number), None) == Err(Errno::ESRCH);
    let may_pass = number.is_empty() || number.parse().is_ok_and(is_dead);
    if may_pass && Instant::now() < until {
        std::thread::sleep(LOOK_AGAIN);
        return None;
    }
    Some(if number.is_empty() { "(unknown)" } else { number }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_dead_holder_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DAEMON);
        let mut died = std::process::Command::new("true").spawn().unwrap();
        std::fs::write(&path, format!("{}\n", died.id())).unwrap();
        died.wait().unwrap();
        let child = Flock::lock(File::open(&path).unwrap(), FlockArg::LockExclusive).unwrap();
        std::thread::scope(|scope| {
            let held = scope.spawn(|| Lock::holder(dir.path(), DAEMON));
            let taken = scope.spawn(|| Lock::take(dir.path(), DAEMON));
            std::thread::sleep(10 * LOOK_AGAIN);
            assert!(!held.is_finished() && !taken.is_finished());
            drop(child);
            let own = std::process::id().to_string();
            assert!(held.join().unwrap().unwrap().is_none_or(|pid| pid == own));
            assert!(taken.join().unwrap().is_ok());
        });
    }

    #[test]
    fn a_lock_that_names_nobody_is_held_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DAEMON);
        std::fs::write(&path, "").unwrap();
        let _other = Flock::lock(File::open(&path).unwrap(), FlockArg::LockExclusive).unwrap();
        assert_eq!(
            Lock::holder(dir.path(), DAEMON).unwrap().as_deref(),
            Some("(unknown)")
        );
        assert!(Lock::take(dir.path(), DAEMON).is_err());
    }

    #[test]
    fn a_lock_has_one_holder_and_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = dir.path().join("a/b");
        assert_eq!(Lock::holder(&state_dir, DAEMON).unwrap(), None);
        let lock = Lock::take(&state_dir, DAEMON).unwrap();
        let own = std::process::id().to_string();
        assert_eq!(Lock::holder(&state_dir, DAEMON).unwrap(), Some(own.clone()));
        let error = Lock::take(&state_dir, DAEMON).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("process {own} holds {}/lock", state_dir.display())
        );
        assert!(
            Lock::take(&state_dir, KEEPER).is_ok(),
            "another lock is another matter"
        );
        drop(lock);
        assert_eq!(Lock::holder(&state_dir, DAEMON).unwrap(), None);
        assert!(!state_dir.join(DAEMON).exists());
    }

    #[test]
    fn only_a_lock_that_was_passed_on_is_inherited() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Lock::inherited(dir.path(), DAEMON).unwrap().is_none());
        let lock = Lock::take(dir.path(), DAEMON).unwrap();
        assert!(Lock::inherited(dir.path(), DAEMON).unwrap().is_none());
        lock.pass_on(true).unwrap();
        std::mem::forget(lock); // as exec does
        let lock = Lock::inherited(dir.path(), DAEMON).unwrap().unwrap();
        assert!(
            Lock::inherited(dir.path(), DAEMON).unwrap().is_none(),
            "it has an owner again"
        );
        assert!(
            Lock::take(dir.path(), DAEMON).is_err(),
            "it was held all the time"
        );
        drop(lock);
        assert!(!dir.path().join(DAEMON).exists());
    }

    #[test]
    fn a_renamed_lock_is_held_and_takes_along_its_own_file() {
        let dir = tempfile::tempdir().unwrap();
        let renamed = "keeper-1.lock";
        let old = Lock::take(dir.path(), KEEPER).unwrap();
        std::fs::rename(dir.path().join(KEEPER), dir.path().join(renamed)).unwrap();
        let _new = Lock::take(dir.path(), KEEPER).unwrap();
        assert!(Lock::holder(dir.path(), renamed).unwrap().is_some());
        drop(old);
        assert!(!dir.path().join(renamed).exists() && dir.path().join(KEEPER).exists());
    }

    #[test]
    fn a_dead_processs_number_counts_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(DAEMON), "1\n").unwrap();
        assert_eq!(Lock::holder(dir.path(), DAEMON).unwrap(), None);
        let _lock = Lock::take(dir.path(), DAEMON).unwrap();
        let number = std::fs::read_to_string(dir.path().join(DAEMON)).unwrap();
        assert_eq!(number, format!("{}\n", std::process::id()));
    }
}
