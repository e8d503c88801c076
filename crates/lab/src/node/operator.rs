//! An operator's access to a daemon: the configuration file and the command line.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant as Deadline};

use anyhow::{Context, Result};
use linux::netns::Netns;
use serde::de::DeserializeOwned;

use super::status::ReportedStatus;
use crate::process::{self, LoggedProcess};

/// An operator's access to a daemon.
#[derive(Debug)]
pub struct Operator {
    /// The program.
    pub binary: PathBuf,
    /// The daemon's configuration file.
    pub configuration: PathBuf,
    /// The peer whose agent is asked, if the node has several.
    pub peer: Option<String>,
}

impl Operator {
    /// Starts the daemon in `node`. The file `label` in `directory` gets its output.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn run(&self, label: &str, node: &Netns, directory: &Path) -> Result<LoggedProcess> {
        let mut command = node.command(&self.binary)?;
        command.arg("run").arg("--config").arg(&self.configuration);
        Ok(LoggedProcess::start(label, command, directory)?)
    }

    /// Asks the daemon in `node` with the command `arguments`.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn ask<T: DeserializeOwned>(&self, arguments: &[&str], node: &Netns) -> Result<T> {
        let what = format!("steadfast {}", arguments.join(" "));
        let mut steadfast = node.command(&self.binary)?;
        steadfast.args(arguments).arg("--config").arg(&self.configuration);
        if let Some(peer) = &self.peer {
            steadfast.arg("--peer").arg(peer);
        }
        let answer = process::output(steadfast.arg("--json"), &what)?;
        serde_json::from_str(&answer).with_context(|| format!("the answer of {what}"))
    }

    /// Asks the daemon in `node` for its status.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn status(&self, node: &Netns) -> Result<ReportedStatus> {
        self.ask(&["status"], node)
    }

    /// Runs an operator's command in `node`, and waits until the command is done.
    ///
    /// # Errors
    /// If the command fails.
    pub fn order(&self, node: &Netns, command: &[&str]) -> Result<()> {
        let mut steadfast = node.command(&self.binary)?;
        process::output(steadfast.args(command), &format!("steadfast {command:?}"))?;
        Ok(())
    }

    /// Waits until the daemon in `node` reports a status that satisfies `is_right`. Asks every `poll`. If `limit` passes first, returns how long
    /// it waited, and the last status.
    pub fn wait_for(
        &self,
        node: &Netns,
        (limit, poll): (Duration, Duration),
        mut is_right: impl FnMut(&ReportedStatus) -> bool,
    ) -> Option<String> {
        let deadline = Deadline::now() + limit;
        loop {
            let status = self.status(node);
            if status.as_ref().is_ok_and(&mut is_right) {
                return None;
            }
            if Deadline::now() > deadline {
                let status = status.map_or_else(|error| format!("{error:#}"), |status| format!("{status:?}"));
                return Some(format!("after {limit:?}: {status}"));
            }
            std::thread::sleep(poll);
        }
    }
}
