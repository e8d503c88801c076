//! The end of a process that serves in a runtime.

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

/// Completes at SIGTERM or SIGINT.
///
/// # Errors
/// If a signal cannot be caught.
pub fn stopped() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("catching SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("catching SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
