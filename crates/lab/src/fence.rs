//! The lab's fence command: simulates a power cut of a node when the other node's daemon asks for it.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use linux::netns::Netns;
use nix::unistd::Pid;

use crate::clock::monotonic;
use crate::process;

/// The hidden subcommand.
pub const FENCE: &str = "fence";
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// The node to fence, and how.
#[derive(Clone, Debug, Args)]
pub struct FenceOptions {
    /// The switch's namespace.
    #[arg(long)]
    switch: String,
    /// The switch's port of one of the node's cables; given once per cable.
    #[arg(long = "port")]
    ports: Vec<String>,
    /// Milliseconds until the power is off. This simulates a slow management controller.
    #[arg(long, default_value_t = 0)]
    takes_ms: u64,
    /// The node's namespace.
    #[arg(long)]
    node: String,
    /// File that gets a line when the command starts.
    #[arg(long)]
    journal: PathBuf,
}

/// The command that turns off the power of `node`, whose cables are in `ports` of `switch`. The command appends the time of its start to
/// `journal`, waits for `takes`, and then cuts the power.
///
/// # Errors
/// If the path of this program is unknown, or if the path of `journal` is not UTF-8.
pub fn command(
    switch: &Netns,
    ports: &[&str],
    node: &Netns,
    takes: Duration,
    journal: &Path,
) -> Result<Vec<String>> {
    let lab = std::env::current_exe().context("find this program")?;
    let takes_ms = takes.as_millis().to_string();
    let journal = journal.to_str().context("the journal's path is not UTF-8")?;
    let fixed = [
        "--switch",
        switch.name(),
        "--node",
        node.name(),
        "--takes-ms",
        &takes_ms,
        "--journal",
        journal,
    ];
    let ports = ports.iter().flat_map(|port| ["--port", port]);
    let words = [FENCE].into_iter().chain(fixed).chain(ports);
    Ok([lab.display().to_string()]
        .into_iter()
        .chain(words.map(str::to_owned))
        .collect())
}

/// Cuts the node's cables, then kills every process in the node's namespace except tcpdump: a capture is an observer and not part of the
/// node.
///
/// # Errors
/// If a step fails; the power may then still be on.
pub fn fence(options: &FenceOptions) -> Result<()> {
    let started_ns = monotonic().as_nanos();
    let mut journal = File::options().create(true).append(true).open(&options.journal)?;
    // One write, so that the lines of two commands do not mix.
    journal.write_all(format!("{started_ns} {}\n", options.node).as_bytes())?;
    let switch = Netns::open(&options.switch)?;
    // This process starts in the namespace of the node that ordered the fence. If that node dies, the lab kills all processes in its
    // namespace. So continue in the switch's namespace.
    switch.enter()?;
    std::thread::sleep(Duration::from_millis(options.takes_ms));
    for port in &options.ports {
        switch.cable(port)?.pull()?;
    }
    let node = Netns::open(&options.node)?;
    process::kill_inside(&[node.inode()], is_capture, KILL_LIMIT).context("kill the node's processes")
}

/// The entries of `journal`, one per started command: the time of the start in nanoseconds of the monotonic clock, and the namespace of
/// the fenced node. Without a journal no command has started.
///
/// # Errors
/// If the journal cannot be read or is garbled.
pub fn read_journal(journal: &Path) -> Result<Vec<(u64, String)>> {
    let text = match fs::read_to_string(journal) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| journal.display().to_string())?,
    };
    let entry = |line: &str| {
        let (at_ns, node) = line.split_once(' ')?;
        Some((at_ns.parse().ok()?, node.to_owned()))
    };
    text.lines()
        .map(|line| entry(line).with_context(|| format!("fence journal: {line}")))
        .collect()
}

fn is_capture(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "tcpdump")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_says_which_node_was_fenced_and_when() {
        let directory = tempfile::tempdir().unwrap();
        let journal = directory.path().join("fences");
        assert_eq!(read_journal(&journal).unwrap(), []);
        fs::write(&journal, "17 sf-b\n18 sf-a\n").unwrap();
        let entries = [(17, "sf-b".to_owned()), (18, "sf-a".to_owned())];
        assert_eq!(read_journal(&journal).unwrap(), entries);
        fs::write(&journal, "soon sf-b\n").unwrap();
        assert!(read_journal(&journal).is_err());
    }
}
