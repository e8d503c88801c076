//! Replays a recording of a daemon (`steadfast run --record`): a new node gets the same inputs and must want the same actions.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use agent::recording::{self, Difference, FORMAT, Replayed};
use anyhow::{Context, Result};
use serde::Serialize;

use crate::run::LabOutcome;

/// Number of characters of an action that are shown.
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

/// What `--json` prints.
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
    let shown = |action: &str| action.chars().take(SHOWN_MAX).collect::<String>();
    let replayed = recording::replay(&mut BufReader::new(open), |at, action| {
        if trace {
            println!("{:.6} {}", at.as_nanos() as f64 / 1e9, shown(action));
        }
    });
    let replayed = replayed.with_context(|| file.display().to_string())?;
    let ok = replayed.difference.is_none();
    if json {
        println!("{}", serde_json::to_string(&ReplayReport { ok, replayed })?);
    } else {
        let Replayed {
            entries,
            actions,
            difference,
        } = replayed;
        println!("{entries} entries, {actions} actions as recorded");
        if let Some(Difference {
            entry,
            at_ns,
            recorded,
            replayed,
        }) = difference
        {
            println!("entry {entry}, {:.6} s, is different", at_ns as f64 / 1e9);
            println!("  recorded: {}", shown(&recorded));
            println!("  replayed: {}", shown(&replayed));
        }
    }
    Ok(if ok {
        LabOutcome::Held
    } else {
        LabOutcome::DidNotHold
    })
}
