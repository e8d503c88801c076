//! The operator's command for a node that was deposed (`on_deposed`).

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A hook that takes longer is left alone, and said to.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

/// Runs `command` beside the agent; its outcome is logged. The name of the service is in `STEADFAST_SERVICE`.
pub fn run(service: &str, command: &[String]) {
    let Some((program, arguments)) = command.split_first() else {
        return;
    };
    let (service, program) = (service.to_owned(), program.clone());
    let mut command = Command::new(&program);
    command
        .args(arguments)
        .env("STEADFAST_SERVICE", &service)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let watch = move || {
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                tracing::error!(service, program, %error, "on_deposed cannot be run");
                return;
            }
        };
        let begun = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => {
                    tracing::info!(service, program, "on_deposed has run");
                    return;
                }
                Ok(Some(status)) => {
                    tracing::error!(service, program, %status, "on_deposed failed");
                    return;
                }
                Ok(None) if begun.elapsed() < PATIENCE => std::thread::sleep(POLL),
                Ok(None) => {
                    tracing::error!(service, program, "on_deposed still runs after {PATIENCE:?}");
                    return;
                }
                Err(error) => {
                    tracing::error!(service, program, %error, "on_deposed is lost");
                    return;
                }
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("hook".into()).spawn(watch) {
        tracing::error!(%error, "on_deposed cannot be run: no thread");
    }
}
