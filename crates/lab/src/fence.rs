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
    /// The switch's ports that its cables are in.
    #[arg(long = "port")]
    ports: Vec<String>,
    /// Milliseconds until the power is off, as with a management controller that is slow.
    #[arg(long, default_value_t = 0)]
    takes_ms: u64,
    /// Its own namespace.
    #[arg(long)]
    node: String,
}

/// The command that turns the power of node `node` off, whose cables are in `ports` of the switch; it `takes` so long.
///
/// # Errors
/// If this program does not know where it is itself.
pub fn command(switch: &Netns, ports: &[&str], node: &Netns, takes: Duration) -> Result<Vec<String>> {
    let lab = std::env::current_exe().context("find this program")?;
    let takes_ms = takes.as_millis().to_string();
    let fixed = [
        "--switch",
        switch.name(),
        "--node",
        node.name(),
        "--takes-ms",
        &takes_ms,
    ];
    let ports = ports.iter().flat_map(|port| ["--port", port]);
    let words = [FENCE].into_iter().chain(fixed).chain(ports);
    Ok([lab.display().to_string()]
        .into_iter()
        .chain(words.map(str::to_owned))
        .collect())
}

/// Cuts the cables, then kills every process, but captures, which watch from outside.
///
/// # Errors
/// If that is not possible: then the power is not off.
pub fn fence(options: &FenceOptions) -> Result<()> {
    let switch = Netns::open(&options.switch)?;
    // The order has left the node that gave it: its own end does not take it back.
    switch.enter()?;
    std::thread::sleep(Duration::from_millis(options.takes_ms));
    for port in &options.ports {
        switch.cable(port)?.pull()?;
    }
    let node = Netns::open(&options.node)?;
    process::kill_inside(&[node.inode()], is_capture, KILL_LIMIT).context("kill the node's processes")
}

fn is_capture(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "tcpdump")
}
