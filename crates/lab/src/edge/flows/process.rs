//! Starts a measuring client and receives its report.

use std::io::{Read, Write};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use linux::netns::Netns;

use super::plan::{FlowPlan, FlowReport};

/// The hidden subcommand that makes this binary a measuring client.
pub const FLOWS: &str = "flows";

/// A running client. It is killed on drop.
pub struct FlowProcess {
    child: Child,
}

impl FlowProcess {
    /// Starts a client on `host` and sends it `plan`.
    ///
    /// # Errors
    /// If the client does not start.
    pub fn start(host: &Netns, plan: &FlowPlan) -> Result<Self> {
        let mut command = host.command(std::env::current_exe()?)?;
        let mut child = command
            .arg(FLOWS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the measuring client")?;
        let mut input = child.stdin.take().context("its standard input")?;
        input.write_all(&serde_json::to_vec(plan)?)?;
        Ok(Self { child })
    }

    /// Waits until the plan is carried out.
    ///
    /// # Errors
    /// If the client fails.
    pub fn finish(mut self) -> Result<FlowReport> {
        let mut text = String::new();
        let output = self.child.stdout.as_mut().context("its standard output")?;
        output.read_to_string(&mut text)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "the measuring client ended with {status}");
        serde_json::from_str(&text).context("the measuring client's report")
    }
}

impl Drop for FlowProcess {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}
