//! The operator's command for a node that was deposed (`on_deposed`).

use std::time::Duration;

use crate::bounded::{self, CommandOutcome, LatePolicy};

/// How long to wait for a hook. A hook that takes longer goes on, and the log says so.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs `command` beside the agent; its outcome is logged. The name of the service is in `STEADFAST_SERVICE`.
pub fn run(service: &str, command: &[String]) {
    let Some(program) = command.first().cloned() else {
        return;
    };
    let (service, command) = (service.to_owned(), command.to_vec());
    let watch = move || {
        let environment = [("STEADFAST_SERVICE", service.as_str())];
        match bounded::run(&command, &environment, PATIENCE, LatePolicy::Leave) {
            Ok(CommandOutcome::Ended { status, .. }) if status.success() => {
                tracing::info!(service, program, "on_deposed has run");
            }
            Ok(CommandOutcome::Ended { status, .. }) => {
                tracing::error!(service, program, %status, "on_deposed failed");
            }
            Ok(CommandOutcome::Late) => {
                tracing::error!(service, program, "on_deposed still runs after {PATIENCE:?}");
            }
            Err(error) => tracing::error!(service, program, %error, "on_deposed cannot be run"),
        }
    };
    if let Err(error) = std::thread::Builder::new().name("hook".into()).spawn(watch) {
        tracing::error!(%error, "on_deposed cannot be run: no thread");
    }
}
