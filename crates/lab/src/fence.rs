//! The lab's fence: turns a node's power off when the other node's daemon asks for it.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use linux::netns::Netns;
use nix::unistd::Pid;

use crate::process;

/// The hidden subcommand.
pub const FENCE: &str = "fence";
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Which node.
#[derive(Clone, Debug, Args)]
pub struct FenceOptions {
    /// The switch's namespace.
    #[arg(long)]
    switch: String,
    /// The switch's port that its cable is in.
    #[arg(long)]
    port: String,
    /// Its own namespace.
    #[arg(long)]
    node: String,
}

/// The command that turns the power of node `node` off.
///
/// # Errors
/// If this program does not know where it is itself.
pub fn command(switch: &Netns, port: &str, node: &Netns) -> Result<Vec<String>> {
    let lab = std::env::current_exe().context("find this program")?;
    let words = [
        FENCE,
        "--switch",
        switch.name(),
        "--port",
        port,
        "--node",
        node.name(),
    ];
    Ok([lab.display().to_string()]
        .into_iter()
        .chain(words.map(str::to_owned))
        .collect())
}

/// Cuts the cable, then kills every process, but captures, which watch from outside.
///
/// # Errors
/// If that is not possible: then the power is not off.
pub fn fence(options: &FenceOptions) -> Result<()> {
    Netns::open(&options.switch)?.cable(&options.port)?.pull()?;
    let node = Netns::open(&options.node)?;
    process::kill_inside(&[node.inode()], is_capture, KILL_LIMIT).context("kill the node's processes")
}

fn is_capture(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "tcpdump")
}
