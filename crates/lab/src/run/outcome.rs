//! How a command of the lab ends.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

/// The result of a lab. An error means that the lab could not reach a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabOutcome {
    Held,
    DidNotHold,
}

/// Options that do not fit together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongUse(pub String);

/// Requirements of a lab that this machine does not meet. Each item says what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("cannot run here:{}", .0.iter().map(|one| format!("\n  - {one}")).collect::<String>())]
pub struct Missing(pub Vec<String>);

/// The exit code of wrong use or input. clap exits with the same code.
pub const WRONG_USE: u8 = 2;
/// The exit code when the run is impossible on this machine.
const CANNOT_RUN: u8 = 3;
/// The exit code when a step of the lab failed, for example because a program did not start or a file could not be written.
const LAB_FAILED: u8 = 4;

impl LabOutcome {
    /// `Held` if `ok`.
    pub fn of(ok: bool) -> Self {
        if ok { Self::Held } else { Self::DidNotHold }
    }
}

/// Prints `report` as one JSON object if `json`, otherwise calls `print_text`. Returns the outcome for `ok`.
///
/// # Errors
/// If stdout is gone.
pub fn conclude(
    json: bool,
    ok: bool,
    report: &impl Serialize,
    print_text: impl FnOnce(),
) -> Result<LabOutcome> {
    if json {
        writeln!(std::io::stdout(), "{}", serde_json::to_string(report)?)?;
    } else {
        print_text();
    }
    Ok(LabOutcome::of(ok))
}

/// Prints the error, if `result` is one. Returns the exit code of the command.
pub fn exit_code(result: Result<LabOutcome>) -> ExitCode {
    match result {
        Ok(LabOutcome::Held) => ExitCode::SUCCESS,
        Ok(LabOutcome::DidNotHold) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("steadfast-lab: {error:#}");
            ExitCode::from(if error.is::<WrongUse>() {
                WRONG_USE
            } else if error.is::<Missing>() {
                CANNOT_RUN
            } else {
                LAB_FAILED
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_missing_is_said_at_once() {
        let text = Missing(vec!["root".to_owned(), "nginx".to_owned()]).to_string();
        assert_eq!(text, "cannot run here:\n  - root\n  - nginx");
    }
}
