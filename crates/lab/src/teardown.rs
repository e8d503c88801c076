//! Removes everything that a run has created, also after ^C, a panic, or SIGKILL of the lab or its parent.
//!
//! A second process, the **watchdog**, does the teardown in all cases. It runs the same binary and starts before
//! anything else. The lab announces through a pipe what it is about to create. When the lab's end of the pipe closes,
//! for whatever reason, the watchdog kills every process in the run's namespaces. Then it removes the announced files,
//! eBPF pins and namespaces, the last announced first.

use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use linux::netns::Netns;
use nix::mount::{MntFlags, umount2};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use thiserror::Error;

use crate::process;

/// The hidden subcommand that makes this binary a watchdog.
pub const WATCHDOG: &str = "watchdog";
/// Timeout for processes to end after SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// Pause before the second removal after a lab was killed. During the first removal, a child of the lab may still create an announced
/// resource.
const SETTLE: Duration = Duration::from_millis(200);

/// Something that must be gone after the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// A named network namespace, with all processes inside.
    Namespace(String),
    /// A file, or a directory with its contents, which may be eBPF pins.
    Path(PathBuf),
    /// A directory that other runs also use. It is removed once it is empty.
    Shared(PathBuf),
}

/// The messages from the lab to the watchdog, one JSON value per line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WatchdogMessage {
    WillCreate(Resource),
    /// The run is over, and no child is still running.
    Finished,
}

/// Why teardown cannot be guaranteed, or was not complete.
#[derive(Debug, Error)]
pub enum TeardownError {
    /// The watchdog did not start.
    #[error("start the watchdog")]
    Start(#[source] io::Error),
    /// The watchdog does not take messages.
    #[error("tell the watchdog of {resource:?}")]
    Tell {
        /// The resource that was about to be created.
        resource: Resource,
        /// Why the watchdog was not told.
        source: io::Error,
    },
    /// The watchdog could not remove everything. It has printed to stderr what remains.
    #[error("the watchdog could not remove everything ({0}); it says above what remains")]
    Incomplete(String),
}

/// Time limit for a teardown after a signal.
const INTERRUPTED_MAX: Duration = Duration::from_secs(60);

/// The lab's side of the pipe. Announced resources may exist as long as this value lives.
#[derive(Debug)]
pub struct Teardown {
    shared: Arc<TeardownState>,
    signals: Handle,
}

#[derive(Debug)]
struct TeardownState {
    watchdog: Mutex<Option<Watchdog>>,
    interrupted: AtomicBool,
}

#[derive(Debug)]
struct Watchdog {
    child: Child,
    pipe: ChildStdin,
}

impl Teardown {
    /// Starts the watchdog. From now on, ^C, SIGTERM and SIGHUP start the teardown and then end this process.
    ///
    /// # Errors
    /// If the watchdog or the thread that waits for signals cannot be started.
    pub fn start() -> Result<Self, TeardownError> {
        let binary = std::env::current_exe().map_err(TeardownError::Start)?;
        let mut child = Command::new(binary)
            .arg(WATCHDOG)
            // Neither ^C nor a signal to the lab's process group reaches the watchdog.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(TeardownError::Start)?;
        let pipe = child.stdin.take().expect("stdin is piped");
        let shared = Arc::new(TeardownState {
            watchdog: Mutex::new(Some(Watchdog { child, pipe })),
            interrupted: AtomicBool::new(false),
        });
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(TeardownError::Start)?;
        let handle = signals.handle();
        let interrupted = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                if let Some(signal) = signals.forever().next() {
                    interrupted.interrupt(signal);
                }
            })
            .map_err(TeardownError::Start)?;
        Ok(Self {
            shared,
            signals: handle,
        })
    }

    /// Announces `resource`. A resource may be created only after its announcement.
    ///
    /// # Errors
    /// If the watchdog has ended. Then nothing may be created.
    pub fn will_create(&self, resource: &Resource) -> Result<(), TeardownError> {
        let failed = |source| TeardownError::Tell {
            resource: resource.clone(),
            source,
        };
        match self.shared.lock().as_mut() {
            Some(watchdog) => watchdog
                .tell(&WatchdogMessage::WillCreate(resource.clone()))
                .map_err(failed),
            None => Err(failed(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Removes all announced resources, and waits until they are gone.
    ///
    /// # Errors
    /// If something could not be removed.
    pub fn finish(self) -> Result<(), TeardownError> {
        self.end()
    }

    fn end(&self) -> Result<(), TeardownError> {
        self.signals.close();
        let watchdog = self.shared.lock().take();
        if self.shared.interrupted.load(Ordering::SeqCst) {
            // The thread that handles signals is about to end the process, with the signal's exit code.
            std::thread::sleep(INTERRUPTED_MAX);
            std::process::exit(1);
        }
        watchdog.map_or(Ok(()), Watchdog::finish)
    }
}

impl Drop for Teardown {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!("{error}");
        }
    }
}

impl TeardownState {
    /// Locks the watchdog, also after a panic of another thread: teardown must still happen.
    fn lock(&self) -> MutexGuard<'_, Option<Watchdog>> {
        self.watchdog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn interrupt(&self, signal: i32) {
        let mut watchdog = self.lock();
        self.interrupted.store(true, Ordering::SeqCst);
        tracing::info!("interrupted: tearing down");
        if let Some(watchdog) = watchdog.take()
            && let Err(error) = watchdog.abandon()
        {
            tracing::error!("{error}");
        }
        std::process::exit(128 + signal);
    }
}

impl Watchdog {
    fn tell(&mut self, message: &WatchdogMessage) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.pipe.write_all(&line)
    }

    fn finish(mut self) -> Result<(), TeardownError> {
        // If the watchdog is gone, its exit status tells more than the error of this write.
        drop(self.tell(&WatchdogMessage::Finished));
        self.abandon()
    }

    fn abandon(self) -> Result<(), TeardownError> {
        let Self { mut child, pipe } = self;
        drop(pipe);
        match child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(TeardownError::Incomplete(status.to_string())),
            Err(error) => Err(TeardownError::Incomplete(error.to_string())),
        }
    }
}

/// The watchdog's main function: reads stdin until it closes, then removes every announced resource. True if nothing remains.
pub fn watch() -> bool {
    // A signal that is sent to many processes must not end the teardown.
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&ignored)) {
            eprintln!("steadfast-lab watchdog: ignore signal {signal}: {error}");
        }
    }
    let mut resources = Vec::new();
    let mut finished = false;
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(WatchdogMessage::WillCreate(resource)) => resources.push(resource),
            Ok(WatchdogMessage::Finished) => finished = true,
            Err(error) => eprintln!("steadfast-lab watchdog: {line:?}: {error}"),
        }
    }
    if !finished {
        remove_all(&resources);
        std::thread::sleep(SETTLE);
    }
    let failures = remove_all(&resources);
    for failure in &failures {
        eprintln!("steadfast-lab watchdog: {failure}");
    }
    failures.is_empty()
}

/// Removes those of `resources` that exist: processes first, then resources in reverse order. Returns what could not be removed.
fn remove_all(resources: &[Resource]) -> Vec<String> {
    let mut failures = Vec::new();
    let names = || {
        resources.iter().filter_map(|resource| match resource {
            Resource::Namespace(name) => Some(name.as_str()),
            Resource::Path(_) | Resource::Shared(_) => None,
        })
    };
    let inodes: Vec<_> = names()
        .filter_map(|name| Netns::open(name).ok())
        .map(|namespace| namespace.inode())
        .collect();
    if let Err(error) = process::kill_inside(&inodes, |_| false, KILL_LIMIT) {
        failures.push(format!("kill the processes of the run: {error}"));
    }
    for resource in resources.iter().rev() {
        let (what, removed) = match resource {
            Resource::Namespace(name) => (format!("namespace {name}"), remove_namespace(name)),
            Resource::Path(path) => (path.display().to_string(), remove_path(path)),
            Resource::Shared(path) => (path.display().to_string(), remove_if_empty(path)),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                failures.push(format!("remove {what}: {error}"));
            }
            _ => {}
        }
    }
    failures
}

/// Removes a namespace as `ip netns del` does.
fn remove_namespace(name: &str) -> io::Result<()> {
    let path = Netns::path_of(name);
    match umount2(&path, MntFlags::MNT_DETACH) {
        // The namespace was never created, or its file was made but nothing is mounted on it yet.
        Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    std::fs::remove_file(path)
}

fn remove_path(path: &Path) -> io::Result<()> {
    if path.symlink_metadata()?.is_dir() {
        std::fs::remove_dir_all(path)
    } else {
        std::fs::remove_file(path)
    }
}

fn remove_if_empty(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_announced_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let [gone, file, kept] = ["gone", "file", "kept"].map(|name| directory.path().join(name));
        std::fs::create_dir_all(gone.join("deep")).unwrap();
        std::fs::write(gone.join("deep/pin"), "").unwrap();
        std::fs::write(&file, "").unwrap();
        std::fs::write(&kept, "").unwrap();
        let never_created = directory.path().join("never");
        let resources = [gone.clone(), never_created, file.clone()].map(Resource::Path);
        assert_eq!(remove_all(&resources), Vec::<String>::new());
        assert!(!gone.exists() && !file.exists() && kept.exists());
    }

    #[test]
    fn a_shared_directory_goes_with_the_last_thing_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let shared = directory.path().join("shared");
        std::fs::create_dir_all(shared.join("ours")).unwrap();
        std::fs::create_dir_all(shared.join("another's")).unwrap();
        let run = [
            Resource::Shared(shared.clone()),
            Resource::Path(shared.join("ours")),
        ];
        assert_eq!(remove_all(&run), Vec::<String>::new());
        assert!(shared.join("another's").exists() && !shared.join("ours").exists());
        std::fs::remove_dir(shared.join("another's")).unwrap();
        assert_eq!(remove_all(&run), Vec::<String>::new());
        assert!(!shared.exists());
    }

    #[test]
    fn a_namespace_that_was_never_made_is_no_failure() {
        let resource = Resource::Namespace("sf-never-made".to_owned());
        assert_eq!(remove_all(&[resource]), Vec::<String>::new());
    }

    #[test]
    fn messages_survive_the_pipe() {
        let message = WatchdogMessage::WillCreate(Resource::Path("/run/x".into()));
        let line = serde_json::to_string(&message).unwrap();
        let WatchdogMessage::WillCreate(resource) = serde_json::from_str(&line).unwrap() else {
            panic!("{line}");
        };
        assert_eq!(resource, Resource::Path("/run/x".into()));
    }
}
