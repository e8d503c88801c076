//! Who is alive: a process that is one of its kind holds a lock with its number in it.
//!
//! The kernel releases the lock when its holder dies, whatever it dies of, so a number in a file that nobody holds is
//! of a dead process, and a number in one that is held is not of somebody else.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// The lock of the daemon, in its state directory.
pub const DAEMON: &str = "lock";

/// The lock of the keeper, there too.
pub const KEEPER: &str = "keeper.lock";

/// A lock that this process holds until it is dropped.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: Flock<File>,
}

/// Why a lock could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("process {pid} holds {}", path.display())]
    Held {
        /// The lock's file.
        path: PathBuf,
        /// Its holder's number, or what stands in its place.
        pid: String,
    },
    /// The kernel refuses.
    #[error("{step} {}: {source}", path.display())]
    Io {
        /// What was to be done.
        step: &'static str,
        /// With what.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
}

impl Lock {
    /// Takes the lock `name` in `state_dir`, which is made if it is missing (for root only).
    ///
    /// # Errors
    /// If another process holds it, or the kernel refuses.
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
        loop {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path);
            let file = match Flock::lock(file.map_err(failed("open"))?, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                Err((_, Errno::EAGAIN)) => {
                    return Err(LockError::Held {
                        pid: number(&path),
                        path,
                    });
                }
                Err((_, errno)) => return Err(failed("lock")(errno.into())),
            };
            // Its last holder may have removed it in between.
            let same = match std::fs::metadata(&path) {
                Ok(there) => there.ino() == file.metadata().map_err(failed("look at"))?.ino(),
                Err(_) => false,
            };
            if same {
                file.set_len(0).map_err(failed("write"))?;
                writeln!(&*file, "{}", std::process::id()).map_err(failed("write"))?;
                return Ok(Self { path, _file: file });
            }
        }
    }

    /// The number of the process that holds the lock `name` in `state_dir`; nothing if none does.
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
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(_) => Ok(None),
            Err((_, Errno::EAGAIN)) => Ok(Some(number(&path))),
            Err((_, errno)) => Err(failed(errno.into())),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is held: whoever opened it before sees that it is another one than at the path now.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn number(path: &Path) -> String {
    match std::fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => text.trim().to_owned(),
        _ => "(unknown)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_dead_processs_number_counts_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(DAEMON), "1\n").unwrap();
        assert_eq!(Lock::holder(dir.path(), DAEMON).unwrap(), None);
        let _lock = Lock::take(dir.path(), DAEMON).unwrap();
        let number = std::fs::read_to_string(dir.path().join(DAEMON)).unwrap();
        assert_eq!(number, format!("{}\n", std::process::id()));
    }
}
