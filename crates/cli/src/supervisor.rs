//! The supervisor of a node with several peers: one agent process for each peer.
//!
//! ```text
//!  steadfast run ──┬── steadfast run --peer b      agent of the pair a, b
//!   (supervisor)   └── steadfast run --peer c      agent of the pair a, c
//! ```
//!
//! So an agent that fails takes no other pair with it, and each pair works as on a node with one peer. The agents' locks say which of them
//! run. So a supervisor that was started again, or upgraded in place, finds the agents of its predecessor and leaves them alone.

use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, execv};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR2};

use crate::config::{Config, NodeFile};
use crate::control;
use crate::daemon::{ask_successor, block_signal, unblock_signal, wait_for_inherited_children};
use crate::lock::{self, Lock};
use crate::metrics;
use crate::program;
use crate::wakeup::Wakeup;

/// Time between two looks at the agents.
const LOOK: Duration = Duration::from_millis(50);
/// Pause before an agent is started again. Shorter than the time for which a peer waits for an agent (`agent_timeout_ms`).
const PAUSE: Duration = Duration::from_millis(100);
/// Pause before an agent is started again whose last runs were shorter than [`BRIEF`].
const PAUSE_LONG: Duration = Duration::from_secs(1);
const BRIEF: Duration = Duration::from_secs(5);
/// Number of brief runs in a row after which the pause is long.
const BRIEF_MAX: u32 = 2;
/// Time limit for all agents to stop. Longer than an agent waits for its peer.
const STOP_MAX: Duration = Duration::from_secs(12);

/// The agent for one peer.
struct SupervisedAgent {
    config: Config,
    /// The process, if this program has started it.
    child: Option<Child>,
    started: Instant,
    /// Number of its last runs that were brief.
    brief: u32,
    /// When the agent may be started.
    due: Instant,
}

/// Runs the agents of `node` until SIGTERM or SIGINT, and then until all have stopped. On SIGUSR2, each agent upgrades in place, and so does
/// this process. The caller must have blocked SIGUSR2.
///
/// # Errors
/// If the supervisor cannot be set up, or if an agent does not stop.
pub fn run(node: NodeFile, file: &Path, lock: &Lock) -> anyhow::Result<()> {
    wait_for_inherited_children();
    program::path().context("finding this program")?; // now, before another file replaces it
    let wakeup = Wakeup::new().context("making the wake-up pipe")?;
    let stop = wakeup
        .on_signals(&[SIGTERM, SIGINT])
        .context("catching signals")?;
    let upgrade = wakeup.on_signals(&[SIGUSR2]).context("catching SIGUSR2")?;
    unblock_signal()?;
    if let Some(metrics) = node.metrics {
        let pairs: Vec<_> = node.pairs.iter().map(|pair| pair.node.clone()).collect();
        let page = move || {
            let status = |pair: &crate::config::NodeSettings| {
                (pair.instance.clone(), control::status(&pair.state_dir).ok())
            };
            Ok(metrics::exposition_of_pairs(
                &pairs.iter().map(status).collect::<Vec<_>>(),
            ))
        };
        metrics::serve(metrics.listen, page)?;
    }
    let now = Instant::now();
    let agents = node.pairs.into_iter().map(|config| SupervisedAgent {
        config,
        child: None,
        started: now,
        brief: 0,
        due: now,
    });
    let mut agents: Vec<_> = agents.collect();
    tracing::info!(
        node = node.name,
        peers = agents.len(),
        "supervising one agent for each peer"
    );
    while !stop.swap(false, Ordering::Relaxed) {
        agents.iter_mut().for_each(SupervisedAgent::keep_running);
        if upgrade.swap(false, Ordering::Relaxed) {
            for agent in &agents {
                agent.signal(Signal::SIGUSR2);
            }
            let Err(error) = replace(file, lock);
            tracing::error!(
                error = format!("{error:#}"),
                "the supervisor is not upgraded; it continues"
            );
            unblock_signal()?;
        }
        wakeup.wait(&[], LOOK);
        wakeup.clear();
    }
    stop_all(&mut agents, &stop, &wakeup)
}

fn stop_all(agents: &mut [SupervisedAgent], stop: &Arc<AtomicBool>, wakeup: &Wakeup) -> anyhow::Result<()> {
    let deadline = Instant::now() + STOP_MAX;
    stop.store(true, Ordering::Relaxed);
    loop {
        // A second signal makes the agents stop at once.
        if stop.swap(false, Ordering::Relaxed) {
            for agent in &mut *agents {
                agent.signal(Signal::SIGTERM);
            }
        }
        let left: Vec<_> = agents
            .iter_mut()
            .filter_map(|agent| agent.is_there().then(|| agent.config.peer.name.clone()))
            .collect();
        if left.is_empty() {
            tracing::info!("all agents have stopped");
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!(
                "the agents for {} have not stopped within {STOP_MAX:?}",
                left.join(", ")
            );
        }
        wakeup.wait(&[], LOOK);
        wakeup.clear();
    }
}

impl SupervisedAgent {
    /// The process number of the agent, if one runs.
    fn pid(&self) -> Option<Pid> {
        let holder = Lock::holder(&self.config.node.state_dir, lock::DAEMON).ok()??;
        holder.parse().ok().map(Pid::from_raw)
    }

    /// Whether an agent runs, or is being started. Reaps one that has ended.
    fn is_there(&mut self) -> bool {
        if let Some(child) = &mut self.child {
            match child.try_wait() {
                Ok(None) => return true,
                Ok(Some(status)) => {
                    let peer = &self.config.peer.name;
                    tracing::warn!(peer, %status, "an agent has ended");
                    let is_brief = self.started.elapsed() < BRIEF;
                    self.brief = if is_brief { self.brief + 1 } else { 0 };
                    let is_often = self.brief >= BRIEF_MAX;
                    self.due = Instant::now() + if is_often { PAUSE_LONG } else { PAUSE };
                }
                Err(error) => tracing::error!(%error, "cannot wait for an agent"),
            }
            self.child = None;
        }
        self.pid().is_some()
    }

    fn keep_running(&mut self) {
        if self.is_there() || Instant::now() < self.due {
            return;
        }
        self.started = Instant::now();
        let peer = &self.config.peer.name;
        match self.start() {
            Ok(child) => {
                tracing::info!(peer, pid = child.id(), "an agent is started");
                self.child = Some(child);
            }
            Err(error) => {
                tracing::error!(peer, %error, "cannot start an agent; trying again");
                self.due = Instant::now() + PAUSE_LONG;
            }
        }
    }

    /// Starts an agent with this program's own arguments.
    fn start(&self) -> std::io::Result<Child> {
        let peer: [OsString; 2] = ["--peer".into(), self.config.peer.name.clone().into()];
        Command::new(program::path()?)
            .args(std::env::args_os().skip(1).chain(peer))
            .spawn()
    }

    /// Sends a signal to the agent. It may have ended already.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            let _ = kill(pid, signal);
        }
    }
}

/// Executes the program at this program's path in this process, if it could go on with the configuration in `file`. Returns only on failure,
/// with the reason.
fn replace(file: &Path, lock: &Lock) -> anyhow::Result<Infallible> {
    // On a thread of its own, because the question lowers its priority.
    let fitness = std::thread::scope(|scope| scope.spawn(|| ask_successor(file, None)).join());
    fitness
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        .map_err(anyhow::Error::msg)?;
    let path = CString::new(program::path()?.as_os_str().as_bytes())?;
    let arguments: Vec<CString> = std::env::args_os()
        .map(|argument| CString::new(argument.into_vec()))
        .collect::<Result<_, _>>()?;
    block_signal()?;
    lock.pass_on(true).context("passing on the lock")?;
    let Err(error) = execv(&path, &arguments);
    let _ = lock.pass_on(false);
    Err(error.into())
}
