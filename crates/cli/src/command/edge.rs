//! `steadfast edge`, and the status of an edge.

use std::ffi::CString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use super::cli::LogFormat;
use super::error::CommandError;
use super::log::start_log;
use super::stderr::tell;
use super::text::{Align, TextTable, bytes, fold};
use crate::bounded::{self, CommandOutcome, LatePolicy};
use crate::config::{ConfigError, EdgeSettings};
use crate::control::{EdgeStatus, StringStatus};
use crate::daemon;
use crate::edge::{self, EdgeEnd};
use crate::lock::{self, Lock, LockError};

/// How long the successor's check of the configuration may take. The successor is the program that replaces this one. During the check, the
/// edge's loop waits, and its threads repeat the last heartbeats for at most `agent_timeout_ms`.
const CHECK_MAX: Duration = Duration::from_millis(500);

/// Checks the file, and prints a line if it is all right.
pub(super) fn check(file: &Path) -> Result<(), CommandError> {
    let settings = load_and_check(file)?;
    tell(format_args!(
        "{}: edge {}, {} strings: all right",
        file.display(),
        settings.name,
        settings.strings.len()
    ));
    Ok(())
}

/// Checks everything, makes sure that no other daemon runs this edge, and runs it.
pub(super) fn run(file: &Path, log: LogFormat) -> Result<(), CommandError> {
    daemon::block_signal()?;
    start_log(log)?;
    crate::program::path().context("finding this program")?; // now, before another file replaces it
    let settings = load_and_check(file)?;
    let lock = match Lock::take(&settings.state_dir, lock::DAEMON) {
        Ok(lock) => lock,
        Err(LockError::Held { pid, .. }) => {
            let name = &settings.name;
            return Err(CommandError::Use(format!(
                "edge {name} is run by process {pid} already; an edge has one daemon"
            )));
        }
        Err(error) => return Err(CommandError::failed(error)),
    };
    let end = edge::run(file, &settings, || successor_fits(file))?;
    drop(lock);
    match end {
        EdgeEnd::Stopped => {
            let _ = std::fs::remove_dir(&settings.state_dir); // files that are not the edge's stay
            Ok(())
        }
        EdgeEnd::Succeeded => Err(succeed()?.into()),
    }
}

fn load_and_check(file: &Path) -> Result<EdgeSettings, CommandError> {
    let settings = EdgeSettings::load(file)?;
    let missing = edge::missing();
    if !missing.is_empty() {
        return Err(CommandError::Missing(missing));
    }
    edge::check(file, &settings).map_err(|error| match error.downcast::<ConfigError>() {
        Ok(wrong) => wrong.into(),
        Err(error) => CommandError::Failed(error),
    })?;
    Ok(settings)
}

/// Lets the successor check the configuration, as the successor would at its start. The successor is the file that is now at this program's
/// path: a package may have replaced the file since this program started.
fn successor_fits(file: &Path) -> Result<(), String> {
    let program = crate::program::path().map_err(|error| error.to_string())?;
    let words = [
        program.as_os_str(),
        "edge".as_ref(),
        "--check".as_ref(),
        "--config".as_ref(),
        file.as_os_str(),
    ];
    let command: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).to_vec();
    match bounded::run(&command, &[], CHECK_MAX, LatePolicy::Kill) {
        Ok(CommandOutcome::Ended { status, .. }) if status.success() => Ok(()),
        Ok(CommandOutcome::Ended { stderr, .. }) => Err(stderr),
        Ok(CommandOutcome::Late) => Err(format!("its check takes longer than {CHECK_MAX:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Executes the successor in this process, with the same arguments. Returns only if that fails.
fn succeed() -> anyhow::Result<anyhow::Error> {
    daemon::block_signal()?; // the successor unblocks SIGUSR2 when it can handle it
    let program = crate::program::path().context("finding this program")?;
    let arguments: Vec<_> = std::env::args_os()
        .map(|argument| CString::new(argument.as_bytes()).expect("an argument has no zero byte"))
        .collect();
    let path = CString::new(program.as_os_str().as_bytes())?;
    let error = nix::unistd::execv(&path, &arguments).expect_err("it returns only if it fails");
    Ok(anyhow::Error::new(error).context(format!("executing {}", program.display())))
}

/// The status as text.
pub(super) fn status_text(status: &EdgeStatus) -> String {
    let head = format!(
        "edge {}, other edge {}: {} flows, round trip {:.1} ms",
        status.edge, status.peer, status.flows, status.rtt_ms
    );
    let mut text = fold(&head, 4) + "\n";
    let mut table = TextTable::new(&[
        ("STRING", Align::Left),
        ("STATE", Align::Left),
        ("HEARD", Align::Left),
        ("EPOCH", Align::Right),
        ("ACTIVE", Align::Right),
        ("CACHED", Align::Right),
        ("SENT AGAIN", Align::Right),
        ("CAP", Align::Right),
    ]);
    for string in &status.strings {
        table.row(row(string));
    }
    text += &table.fitted();
    for (title, counts) in [
        ("counters", &status.counters),
        ("refused heartbeats", &status.refused),
    ] {
        let counts: Vec<_> = counts
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        if !counts.is_empty() {
            let _ = write!(text, "\n{}", fold(&format!("{title}: {}", counts.join(", ")), 4));
        }
    }
    text
}

fn row(string: &StringStatus) -> [String; 8] {
    [
        string.name.clone(),
        match string.state.as_str() {
            "up" => "up".to_owned(),
            other => other.to_uppercase(),
        },
        if string.heard { "yes" } else { "NO" }.to_owned(),
        string.epoch.to_string(),
        string.active.to_string(),
        bytes(string.cached_bytes),
        (string.resent_entering + string.resent_leaving).to_string(),
        string.cap.map_or_else(|| "-".to_owned(), |cap| bytes(cap.into())),
    ]
}
