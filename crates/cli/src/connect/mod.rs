//! Sessions that move between servers: the proxy (`steadfast connect`) and a server's half (`steadfast accept`). `proto::session` decides;
//! docs/connect.md describes both.

mod calls;
mod cooperation;
mod exports;
mod half;
mod link;
mod pool;
mod program;
mod proxy;
mod table;
mod watch;

use std::io;
use std::path::Path;

use anyhow::Context as _;
use calls::ControlCalls;

use crate::config::{AcceptSettings, ConnectSettings, MetricsSettings};
use crate::control::Asker;
use crate::metrics;
use crate::stop::stopped;

/// File that marks a state directory as a proxy's.
const PROXY_MARK: &str = "connect";
/// File that marks a state directory as a server's half.
const HALF_MARK: &str = "accept";

/// Whether `state_dir` is the state directory of a proxy.
pub fn is_proxy(state_dir: &Path) -> bool {
    state_dir.join(PROXY_MARK).exists()
}

/// Whether `state_dir` is the state directory of a server's half.
pub fn is_half(state_dir: &Path) -> bool {
    state_dir.join(HALF_MARK).exists()
}

/// Removes the mark of a proxy or of a server's half.
///
/// # Errors
/// If the mark is there and cannot be removed.
pub fn leave_nothing(state_dir: &Path) -> io::Result<()> {
    for mark in [PROXY_MARK, HALF_MARK] {
        match std::fs::remove_file(state_dir.join(mark)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Runs a proxy until SIGTERM or SIGINT.
///
/// # Errors
/// The step of the start that failed.
pub fn run_proxy(settings: ConnectSettings) -> anyhow::Result<()> {
    let (state_dir, listen) = (settings.state_dir.clone(), settings.metrics);
    let page = |asker: &Asker| Ok(metrics::proxy_exposition(&asker.connect()?));
    run(&state_dir, PROXY_MARK, (listen, page), |calls| {
        proxy::run(settings, calls)
    })
}

/// Runs a server's half until SIGTERM or SIGINT.
///
/// # Errors
/// The step of the start that failed.
pub fn run_half(settings: AcceptSettings) -> anyhow::Result<()> {
    let (state_dir, listen) = (settings.state_dir.clone(), settings.metrics);
    let page = |asker: &Asker| Ok(metrics::half_exposition(&asker.accept()?));
    run(&state_dir, HALF_MARK, (listen, page), |calls| {
        half::run(settings, calls)
    })
}

/// Makes a page of metrics.
type MetricsPageOf = fn(&Asker) -> Result<String, String>;

/// Marks the state directory, opens the control socket, serves the metrics, and does the work until SIGTERM or SIGINT.
fn run<W: Future<Output = anyhow::Result<()>>>(
    state_dir: &Path,
    mark: &str,
    (listen, page): (Option<MetricsSettings>, MetricsPageOf),
    work: impl FnOnce(ControlCalls) -> W,
) -> anyhow::Result<()> {
    if let Err(error) = linux::process::raise_file_limit() {
        tracing::warn!(%error, "cannot raise the limit of open files; each session needs several descriptors");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime")?;
    std::fs::write(state_dir.join(mark), "").context("marking the state directory")?;
    let done = tokio::task::LocalSet::new().block_on(&runtime, async {
        let (server, asker, calls) = ControlCalls::open(state_dir)?;
        if let Some(metrics) = listen {
            metrics::serve(metrics.listen, move || page(&asker))?;
        }
        let stop = stopped()?;
        let done = tokio::select! {
            done = work(calls) => done,
            () = stop => Ok(()),
        };
        drop(server);
        done
    });
    leave_nothing(state_dir).context("removing the mark")?;
    done
}
