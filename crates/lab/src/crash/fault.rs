//! The power of a node goes off, and comes back.

use std::time::Duration;

use anyhow::{Context, Result};
use linux::netns::{Cable, Netns};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpgid};
use proto::Instant;

use super::Returning;
use crate::clock::monotonic;
use crate::node::Server;
use crate::process;

const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Turns off the power of `node`: its cable is cut, then every process is killed, but those in `spared` (which watch
/// from outside), and the `server` if it shall return frozen. Returns the moment before the cut.
///
/// # Errors
/// If the cable cannot be cut or a process cannot be killed.
pub fn power_off(
    node: &Netns,
    cable: &Cable,
    server: &Server,
    spared: &[Pid],
    returning: Returning,
) -> Result<Instant> {
    let moment = monotonic();
    cable.pull()?;
    let is_frozen = match returning {
        Returning::Frozen => {
            server.signal(Signal::SIGSTOP)?;
            true
        }
        Returning::Killed => false,
    };
    let is_server = |pid| getpgid(Some(pid)).is_ok_and(|group| group == server.pid());
    let spare = |pid| spared.contains(&pid) || (is_frozen && is_server(pid));
    process::kill_inside(&[node.inode()], spare, KILL_LIMIT).context("kill the node's processes")?;
    Ok(moment)
}
