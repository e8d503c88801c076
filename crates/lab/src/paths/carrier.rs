//! Programs that carry a TCP connection between the two hosts for `bench paths`: `steadfast tunnel` over both paths, or one ssh tunnel per
//! path.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use linux::netns::Netns;

use super::network::PathsNetwork;
use super::programs::{SSH_OPTIONS, sshd};
use super::tcp::TCP_PEER_PORT;
use super::tunnel::{LISTEN, PathsTunnel};
use crate::node::wait_listening;
use crate::process::{self, LoggedProcess, ProcessStat};

/// Port of the ssh tunnel over the first path, on the near host. The tunnel over the second path has the next port.
const SSH_LISTEN: u16 = 5101;
/// Time limit for an ssh client to log in. On a busy machine this takes many seconds.
const LOGIN_LIMIT: Duration = Duration::from_secs(60);
/// What an ssh client prints when it listens at its port.
const LOGGED_IN: &str = "logged-in";

/// A kind of carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarrierKind {
    /// `steadfast tunnel` over both paths.
    Tunnel,
    /// An ssh tunnel over each path. A connection uses one of them.
    Ssh,
}

impl CarrierKind {
    /// Port on the near host's loopback at which a client connects.
    pub const fn port(self) -> u16 {
        match self {
            Self::Tunnel => LISTEN.port(),
            Self::Ssh => SSH_LISTEN,
        }
    }
}

/// The running programs of a carrier. Dropping this value kills them.
pub enum Carrier {
    Tunnel { _tunnel: PathsTunnel },
    Ssh { _processes: Vec<LoggedProcess> },
}

impl Carrier {
    /// Starts the programs, and waits until clients can connect. The connections lead to [`TCP_PEER_PORT`] of the far host's loopback.
    ///
    /// # Errors
    /// The step that failed.
    pub fn start(kind: CarrierKind, network: &PathsNetwork, daemon: &Path, directory: &Path) -> Result<Self> {
        Ok(match kind {
            CarrierKind::Tunnel => Self::Tunnel {
                _tunnel: PathsTunnel::start(network, daemon, directory, (1, 0), TCP_PEER_PORT)?,
            },
            CarrierKind::Ssh => Self::Ssh {
                _processes: ssh_tunnels(network, directory)?,
            },
        })
    }
}

/// Starts an sshd on the far host, and an ssh client per path on the near host. An ssh client ends when its peer is silent for three seconds,
/// so that a user notices a cut path.
fn ssh_tunnels(network: &PathsNetwork, directory: &Path) -> Result<Vec<LoggedProcess>> {
    let (near, far) = (&network.near, &network.far);
    let mut server = LoggedProcess::start("sshd", sshd(far, directory, "0.0.0.0")?, directory)?;
    wait_listening(&mut server, far, 22)?;
    let mut processes = vec![server];
    for path in 0..2_u16 {
        let port = SSH_LISTEN + path;
        let mut command = near.command("ssh")?;
        command
            .args(SSH_OPTIONS.split(' '))
            .args(["-o", "ExitOnForwardFailure=yes", "-o", "PermitLocalCommand=yes"])
            .args(["-o", &format!("LocalCommand=echo {LOGGED_IN}")])
            .args(["-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=3"])
            .arg("-i")
            .arg(directory.join("ssh-key"))
            .arg("-L")
            .arg(format!("127.0.0.1:{port}:127.0.0.1:{TCP_PEER_PORT}"))
            .args(["-N", &format!("root@10.{}.0.2", path + 1)]);
        let mut client = LoggedProcess::start(&format!("ssh-{path}"), command, directory)?;
        // A connection to the port would reach the receiver, which takes only one.
        client.wait_until("log in", LOGIN_LIMIT, |client| {
            client.output().contains(LOGGED_IN)
        })?;
        processes.push(client);
    }
    Ok(processes)
}

/// CPU time and memory of all processes on some hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostsUsage {
    pub cpu: Duration,
    /// Peak memory of the process that used most, in kilobytes.
    pub memory_kb: u64,
}

impl HostsUsage {
    /// What the processes on these hosts have used so far. Processes that have ended do not count.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn of(hosts: &[&Netns]) -> Result<Self> {
        let namespaces: Vec<_> = hosts.iter().map(|host| host.inode()).collect();
        let mut all = Self::default();
        for pid in process::inside(&namespaces).context("the hosts' processes")? {
            let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}"));
            // A process may end at any time.
            let (Ok(stat), Ok(status)) = (read("stat"), read("status")) else {
                continue;
            };
            let stat = ProcessStat::parse(&stat).with_context(|| format!("/proc/{pid}/stat: {stat}"))?;
            all.cpu += stat.cpu;
            // A process that is ending has no memory any more.
            all.memory_kb = all.memory_kb.max(peak_kb(&status).unwrap_or(0));
        }
        Ok(all)
    }
}

/// Peak memory in the contents of `/proc/PID/status`.
fn peak_kb(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_memory_is_read_from_proc() {
        assert_eq!(
            peak_kb("Name:\ta\nVmHWM:\t    5120 kB\nVmRSS:\t 1 kB\n"),
            Some(5120)
        );
        assert_eq!(peak_kb("Name:\ta\n"), None);
        assert!(peak_kb(&fs::read_to_string("/proc/self/status").unwrap()).unwrap() > 1000);
    }
}
