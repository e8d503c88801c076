//! Errors of loading, attaching and controlling eBPF programs.

use std::path::PathBuf;

use thiserror::Error;

/// An error of loading, attaching or controlling eBPF programs.
#[derive(Debug, Error)]
pub enum WireError {
    /// A call into libbpf or the kernel failed.
    #[error("{step}: {source}")]
    Bpf {
        /// The step that failed.
        step: String,
        /// The kernel's answer.
        source: libbpf_rs::Error,
    },
    /// A system call failed.
    #[error("{step}: {source}")]
    Io {
        /// The step that failed.
        step: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// Pinned objects of an earlier run exist.
    #[error("{0} exists: an earlier daemon of this node left it; run `steadfast cleanup` first")]
    Leftover(PathBuf),
    /// This daemon cannot adopt the pinned objects of an earlier run.
    #[error("{} is of an earlier daemon of this node and does not fit: {why}; run `steadfast cleanup` first", pin_dir.display())]
    Unfit {
        /// The directory of the earlier run's pins.
        pin_dir: PathBuf,
        /// How the pinned objects differ from the objects that this daemon needs.
        why: String,
    },
}

pub(crate) trait WireStep<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, WireError>;
}

impl<T> WireStep<T> for Result<T, libbpf_rs::Error> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, WireError> {
        self.map_err(|source| WireError::Bpf { step: step(), source })
    }
}

impl<T> WireStep<T> for Result<T, std::io::Error> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, WireError> {
        self.map_err(|source| WireError::Io { step: step(), source })
    }
}
