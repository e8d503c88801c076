//! Sessions that move between servers: the proxy (`steadfast connect`) and a server's half (`steadfast accept`). `proto::session` decides;
//! docs/connect.md describes both.

mod cooperation;
mod exports;
mod half;
mod link;
mod pool;
mod program;
mod proxy;
mod watch;

use std::io;
use std::path::Path;
use std::rc::Rc;

use anyhow::Context as _;
use tokio::sync::Notify;

use crate::config::{AcceptSettings, ConnectSettings};
use crate::control::ControlServer;

/// File that marks a state directory as a proxy's.
const MARK: &str = "connect";

/// Whether `state_dir` is the state directory of a proxy.
pub fn is_proxy(state_dir: &Path) -> bool {
    state_dir.join(MARK).exists()
}

/// Removes the mark of a proxy.
///
/// # Errors
/// If the mark is there and cannot be removed.
pub fn leave_nothing(state_dir: &Path) -> io::Result<()> {
    match std::fs::remove_file(state_dir.join(MARK)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Runs a proxy until SIGTERM or SIGINT.
///
/// # Errors
/// The step of the start that failed.
pub fn run_proxy(settings: ConnectSettings) -> anyhow::Result<()> {
    let state_dir = settings.state_dir.clone();
    std::fs::write(state_dir.join(MARK), "").context("marking the state directory")?;
    let done = run(async {
        let (wakes, mut woken) = tokio::sync::mpsc::unbounded_channel();
        let (server, _, calls) = ControlServer::open(&state_dir, move || {
            let _ = wakes.send(()); // fails if the proxy has stopped
        })?;
        let called = Rc::new(Notify::new());
        let notified = Rc::clone(&called);
        tokio::task::spawn_local(async move {
            while woken.recv().await.is_some() {
                notified.notify_one();
            }
        });
        proxy::run(settings, calls, called, stopped()?).await?;
        drop(server);
        Ok(())
    });
    leave_nothing(&state_dir).context("removing the proxy's mark")?;
    done
}

/// Runs a server's half until SIGTERM or SIGINT.
///
/// # Errors
/// The step of the start that failed.
pub fn run_half(settings: AcceptSettings) -> anyhow::Result<()> {
    run(async { half::run(settings, stopped()?).await })
}

fn run(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    if let Err(error) = linux::process::raise_file_limit() {
        tracing::warn!(%error, "cannot raise the limit of open files; each session needs several descriptors");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime")?;
    tokio::task::LocalSet::new().block_on(&runtime, work)
}

/// Completes at SIGTERM or SIGINT.
fn stopped() -> anyhow::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("catching SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("catching SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
