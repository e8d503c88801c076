//! Replays a recording of a daemon (`steadfast run --record`): a new node gets the same inputs and must request the same actions.

use std::fs::File;
use std::io::{BufReader, Read, Write as _};
use std::path::Path;

use agent::recording::{self, FORMAT, Replayed};
use anyhow::{Context, Result};
use serde::Serialize;

use crate::run::{LabOutcome, conclude};

/// Maximum number of characters of an action that are shown.
const SHOWN_MAX: usize = 400;

/// Whether a file is a recording.
///
/// # Errors
/// If the file cannot be opened.
pub fn is_recording(file: &Path) -> Result<bool> {
    let mut first = Vec::new();
    let open = File::open(file).with_context(|| file.display().to_string())?;
    open.take(FORMAT.len() as u64)
        .read_to_end(&mut first)
        .with_context(|| file.display().to_string())?;
    Ok(first == FORMAT)
}

/// The JSON object of a replay.
#[derive(Serialize)]
struct ReplayReport {
    ok: bool,
    #[serde(flatten)]
    replayed: Replayed,
}

/// Replays a recording. With `trace`, prints each action.
///
/// # Errors
/// If the file is no recording.
pub fn replay(file: &Path, trace: bool, json: bool) -> Result<LabOutcome> {
    let open = File::open(file).with_context(|| file.display().to_string())?;
    let mut stdout = std::io::stdout().lock();
    let replayed = recording::replay(&mut BufReader::new(open), |at, action| {
        if trace {
            writeln!(stdout, "{:.6} {}", at.as_nanos() as f64 / 1e9, shown(action))?;
        }
        Ok(())
    });
    let replayed = replayed.with_context(|| file.display().to_string())?;
    let ok = replayed.difference.is_none();
    let report = ReplayReport { ok, replayed };
    conclude(json, ok, &report, || print(&report.replayed))
}

fn print(replayed: &Replayed) {
    say!(
        "{} entries, {} actions as recorded",
        replayed.entries,
        replayed.actions
    );
    if let Some(difference) = &replayed.difference {
        let seconds = difference.at_ns as f64 / 1e9;
        say!("entry {}, {seconds:.6} s, is different", difference.entry);
        say!("  recorded: {}", shown(&difference.recorded));
        say!("  replayed: {}", shown(&difference.replayed));
    }
}

/// The beginning of an action's text.
fn shown(action: &str) -> String {
    action.chars().take(SHOWN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_told_from_a_scenario_and_a_broken_one_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str, content: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, content).expect("written");
            path
        };
        assert!(!is_recording(&file("scenario.toml", b"seed = 1\n")).expect("read"));
        assert!(!is_recording(&file("empty", b"")).expect("read"));
        let broken = file("a.recording", &[FORMAT, &[0xff; 4]].concat());
        assert!(is_recording(&broken).expect("read"));
        let error = format!("{:#}", replay(&broken, false, false).expect_err("it is broken"));
        assert!(
            error.contains("a.recording: an entry of 4294967295 bytes"),
            "{error}"
        );
    }
}
