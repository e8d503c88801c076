//! The upgrade in place: the program file that is now at this program's path (the *successor*) takes over the same process.
//!
//! ```text
//!  SIGUSR2 ─▶ checking ── fit ──▶ due ── settled ──▶ exec: the successor goes on with what is pinned
//!                 └─ unfit ─┐       └─ too late ─┐
//!                           ▼                    ▼
//!                          logged; everything goes on as before
//! ```
//!
//! Before the exec, the successor itself checks whether it could go on (`check-config --in-place`), because only the successor knows what
//! it can adopt. The node's lock is passed on, so no other daemon and no `cleanup` can take the lock in between.

use std::ffi::CString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Error};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, execv};
use signal_hook::consts::SIGUSR2;

use super::start::Start;
use crate::bounded::{self, CommandOutcome, LatePolicy};
use crate::config::{Config, SecretKey};
use crate::lock::Lock;
use crate::program;
use crate::wakeup::Wakeup;

/// How long the successor's check may take.
const CHECK_MAX: Duration = Duration::from_secs(30);
/// How long to wait for takeovers and role changes to be decided before the upgrade is refused.
const SETTLE_MAX: Duration = Duration::from_secs(10);

/// A request for an upgrade in place, and its progress.
pub struct Upgrade<'a> {
    asked: Arc<AtomicBool>,
    state: UpgradeState,
    agreed: FixedSettings,
    file: &'a Path,
    peer: Option<&'a str>,
    lock: &'a Lock,
}

enum UpgradeState {
    None,
    Checking(Receiver<Result<(), String>>),
    /// The successor is fit. The upgrade is refused if the node does not settle by this time.
    Due(Instant),
}

/// Configuration that a running daemon cannot change: the node's name and files, and what the node shares with the peer. The successor
/// itself checks its configuration against the pinned wire and the network's journal.
#[derive(Clone, PartialEq, Eq)]
struct FixedSettings {
    name: String,
    state_dir: PathBuf,
    peer: String,
    port: u16,
    key: Option<SecretKey>,
}

impl<'a> Upgrade<'a> {
    /// Listens for SIGUSR2, which wakes the agent through `wakeup`.
    ///
    /// # Errors
    /// If signals cannot be caught, or the key cannot be read.
    pub fn new(start: &Start<'a>, wakeup: &Wakeup) -> anyhow::Result<Self> {
        program::path().context("finding this program")?; // now, before another file replaces it
        let asked = wakeup.on_signals(&[SIGUSR2]).context("catching SIGUSR2")?;
        unblock_signal()?;
        Ok(Self {
            asked,
            state: UpgradeState::None,
            agreed: FixedSettings::of(start.config).map_err(Error::msg)?,
            file: start.file,
            peer: start.peer,
            lock: start.lock,
        })
    }

    /// Whether to upgrade now. `is_settled` says that nothing would be left half done.
    pub fn is_due(&mut self, is_settled: bool) -> bool {
        match &self.state {
            UpgradeState::None if self.asked.swap(false, Ordering::Relaxed) => self.state = self.check(),
            UpgradeState::None => {}
            UpgradeState::Checking(verdict) => match verdict.try_recv() {
                Ok(Ok(())) => self.state = UpgradeState::Due(Instant::now() + SETTLE_MAX),
                Ok(Err(why)) => self.refuse(&why),
                Err(TryRecvError::Disconnected) => self.refuse("its check has failed"),
                Err(TryRecvError::Empty) => {}
            },
            UpgradeState::Due(_) if is_settled => {
                self.state = UpgradeState::None;
                return true;
            }
            UpgradeState::Due(deadline) if Instant::now() > *deadline => {
                self.refuse("a takeover, or a change of roles, is still being decided");
            }
            UpgradeState::Due(_) => {}
        }
        false
    }

    fn refuse(&mut self, why: &str) {
        tracing::error!(why, "not upgraded; the running program continues");
        self.state = UpgradeState::None;
    }

    /// Starts the successor's check on a thread of its own.
    fn check(&self) -> UpgradeState {
        let (sender, verdict) = channel();
        let (file, agreed) = (self.file.to_owned(), self.agreed.clone());
        let peer = self.peer.map(str::to_owned);
        let check = move || {
            // Fails only if the agent has ended.
            let _ = sender.send(
                agreed
                    .compare(&file, peer.as_deref())
                    .and_then(|()| ask_successor(&file, peer.as_deref())),
            );
        };
        if let Err(error) = std::thread::Builder::new().name("upgrade".into()).spawn(check) {
            tracing::error!(%error, "the successor is not checked: no thread"); // the channel closes, which counts as a failed check
        }
        UpgradeState::Checking(verdict)
    }

    /// Executes the program at this program's path in this process. Returns only on failure, with the reason.
    pub fn make_way(&self) -> Error {
        let Err(error) = self.exec();
        // No case is known in which this call fails. If it did, programs that are started later would inherit the lock.
        let _ = self.lock.pass_on(false);
        if let Err(error) = unblock_signal() {
            tracing::error!(
                error = format!("{error:#}"),
                "SIGUSR2 stays blocked; no further upgrade in place is possible"
            );
        }
        error
    }

    fn exec(&self) -> anyhow::Result<std::convert::Infallible> {
        let path = program::path()?;
        let program = CString::new(path.as_os_str().as_bytes())?;
        let arguments: Vec<CString> = std::env::args_os()
            .map(|argument| CString::new(argument.into_vec()))
            .collect::<Result<_, _>>()?;
        block_signal()?;
        tracing::info!(program = %path.display(), "executing the program now installed at this path");
        // The last step before exec, so that no command that another thread starts inherits the lock.
        self.lock.pass_on(true).context("passing on the lock")?;
        Ok(execv(&program, &arguments)?)
    }
}

impl FixedSettings {
    fn of(config: &Config) -> Result<Self, String> {
        let key = config.peer.key_file.as_deref().map(SecretKey::read).transpose()?;
        Ok(Self {
            name: config.node.name.clone(),
            state_dir: config.node.state_dir.clone(),
            peer: config.peer.name.clone(),
            port: config.peer.port,
            key,
        })
    }

    /// Fails with the first field that differs in `file`. A file that this program cannot read is accepted, because the successor may be
    /// able to read it.
    fn compare(&self, file: &Path, peer: Option<&str>) -> Result<(), String> {
        let Some(other) = Config::load(file, peer)
            .ok()
            .and_then(|config| Self::of(&config).ok())
        else {
            return Ok(());
        };
        let pairs = [
            ("[node] name", self.name == other.name),
            ("[node] state_dir", self.state_dir == other.state_dir),
            ("[peer] name", self.peer == other.peer),
            ("[peer] port", self.port == other.port),
            ("[peer] key_file", self.key == other.key),
        ];
        match pairs.iter().find(|(_, is_same)| !is_same) {
            None => Ok(()),
            Some((field, _)) => Err(format!(
                "{}: {field} differs from the running daemon's; to change it, stop the daemon",
                file.display()
            )),
        }
    }
}

/// Asks the program at this program's path whether it could go on here with the configuration in `file`. Lowers the priority of the calling
/// thread.
pub(crate) fn ask_successor(file: &Path, peer: Option<&str>) -> Result<(), String> {
    let path = program::path().map_err(|error| error.to_string())?;
    // The check must take no CPU time from the agent or the application.
    let _ = linux::process::yield_precedence();
    let text = |path: &Path| {
        path.to_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("{}: not UTF-8", path.display()))
    };
    let mut command = vec![
        text(path)?,
        "check-config".into(),
        "--in-place".into(),
        "--config".into(),
        text(file)?,
    ];
    if let Some(peer) = peer {
        command.extend(["--peer".to_owned(), peer.to_owned()]);
    }
    tracing::info!(
        program = command[0],
        "asked for an upgrade in place: checking the program file that is now at this path"
    );
    match bounded::run(&command, &[], CHECK_MAX, LatePolicy::Kill) {
        Ok(CommandOutcome::Ended { status, .. }) if status.success() => Ok(()),
        Ok(CommandOutcome::Ended { status, stderr }) => Err(format!(
            "{} cannot take over this process ({status}): {stderr}",
            command[0]
        )),
        Ok(CommandOutcome::Late) => Err(format!("{} has not checked within {CHECK_MAX:?}", command[0])),
        Err(error) => Err(format!("{} cannot be run: {error}", command[0])),
    }
}

/// Reaps the children that the previous program of this process left, such as its keeper, when they end. Must be called before this
/// program has children of its own.
pub fn wait_for_inherited_children() {
    let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    for child in children
        .split_ascii_whitespace()
        .filter_map(|pid| pid.parse().ok())
    {
        let wait = move || waitpid(Pid::from_raw(child), None);
        // Without a thread, a zombie stays, which is harmless.
        let _ = std::thread::Builder::new().name("child".into()).spawn(wait);
    }
}

/// Blocks SIGUSR2 until the daemon handles it: without a handler, the signal would end the process. A successor and the threads started
/// meanwhile inherit the block; other programs do not.
///
/// # Errors
/// If the kernel refuses.
pub fn block_signal() -> anyhow::Result<()> {
    signal().thread_block().context("blocking SIGUSR2")
}

/// Unblocks SIGUSR2.
///
/// # Errors
/// The kernel's error.
pub(crate) fn unblock_signal() -> anyhow::Result<()> {
    signal().thread_unblock().context("unblocking SIGUSR2")
}

fn signal() -> SigSet {
    SigSet::from_iter([Signal::SIGUSR2])
}
