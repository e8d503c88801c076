//! The log of the commands that run until they are told to end: `run`, `edge`, `tunnel` and `keeper`.

use std::io;
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;

use super::cli::LogFormat;
use super::error::CommandError;
use super::stderr::LossyLog;

/// Starts writing log events to stderr.
pub(super) fn start_log(format: LogFormat) -> Result<(), CommandError> {
    let filter = match std::env::var("STEADFAST_LOG") {
        Ok(level) => EnvFilter::try_new(&level).map_err(|error| {
            CommandError::Use(format!(
                "STEADFAST_LOG={level} is not a level of the log: {error}"
            ))
        })?,
        Err(_) => EnvFilter::new("info"),
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // If nobody reads stderr any more, an event is lost. By default, tracing would report the loss on stderr with `eprintln!`,
        // which panics.
        .log_internal_errors(false)
        .with_writer(Mutex::new(LossyLog::new(io::stderr(), format)));
    let started = match format {
        LogFormat::Text => log.with_target(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| CommandError::Failed(anyhow::anyhow!("starting the log: {error}")))
}
