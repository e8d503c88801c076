//! Faults that separate the nodes, or stop one of them, for a while.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;

use crate::net::NODE_NAMES;
use crate::net::switch::{self, Lost, ROUTER};
use crate::node::HEARTBEAT_PORT;
use crate::pair::testbed::Testbed;
use crate::process;

/// Time for which a flapping link is cut, and time for which it then works.
const FLAP: Duration = Duration::from_millis(150);
/// Number of times a flapping link is cut.
const FLAPS: u32 = 7;

/// A fault of the split experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitFault {
    /// No frame passes between the nodes; clients and witnesses reach both nodes.
    CutBetween,
    /// The nodes' heartbeats are lost; everything else passes between the nodes.
    CutControl,
    /// Clients do not reach the wire; the nodes hear each other.
    CutToClients,
    /// The primary reaches neither the router nor the wire; the primary still reaches the arbiter, and its carrier
    /// stays.
    PrimaryIsolated,
    /// The wire reaches neither the router nor the primary; the wire still reaches the arbiter, and its carrier stays.
    WireIsolated,
    /// No frame passes from the primary to the wire.
    OneWayFromPrimary,
    /// No frame passes from the wire to the primary.
    OneWayFromWire,
    /// The link between the nodes is cut and restored several times.
    Flap,
    /// All processes of the primary are stopped, and resumed later; the primary's kernel and cable keep working.
    PrimaryPaused,
    /// All processes of the wire are stopped, and resumed later; the wire's kernel and cable keep working.
    WirePaused,
    /// Only the primary's agent is stopped, and resumed later.
    PrimaryAgentPaused,
    /// Only the wire's agent is stopped, and resumed later.
    WireAgentPaused,
}

/// Ports of node a and node b at the switch.
const A: &str = NODE_NAMES[0];
const B: &str = NODE_NAMES[1];

impl SplitFault {
    /// Injects the fault, and ends it after `hold`.
    ///
    /// # Errors
    /// If something cannot be cut or stopped.
    pub fn play(self, testbed: &Testbed, hold: Duration) -> Result<()> {
        if self == Self::Flap {
            for _ in 0..FLAPS {
                cut(testbed, self)?;
                std::thread::sleep(FLAP);
                heal(testbed)?;
                std::thread::sleep(FLAP);
            }
            return Ok(());
        }
        let Some(sleepers) = self.sleepers(testbed)? else {
            cut(testbed, self)?;
            std::thread::sleep(hold);
            return heal(testbed);
        };
        signal(&sleepers, Signal::SIGSTOP)?;
        std::thread::sleep(hold);
        signal(&sleepers, Signal::SIGCONT)
    }

    /// The processes that the fault stops, if it stops any.
    fn sleepers(self, testbed: &Testbed) -> Result<Option<Vec<Pid>>> {
        let all = |index: usize| -> Result<_> {
            let mut pids = process::inside(&[testbed.network.nodes[index].inode()])?;
            let watching = testbed.captures.pids();
            pids.retain(|pid| !watching.contains(pid));
            Ok(Some(pids))
        };
        match self {
            Self::PrimaryPaused => all(0),
            Self::WirePaused => all(1),
            Self::PrimaryAgentPaused => Ok(Some(vec![testbed.agent(0)?.pid()])),
            Self::WireAgentPaused => Ok(Some(vec![testbed.agent(1)?.pid()])),
            Self::CutBetween
            | Self::CutControl
            | Self::CutToClients
            | Self::PrimaryIsolated
            | Self::WireIsolated
            | Self::OneWayFromPrimary
            | Self::OneWayFromWire
            | Self::Flap => Ok(None),
        }
    }

    /// The frames that the switch drops.
    fn lost(self) -> Vec<Lost> {
        let both = |one, other| [Lost::between(one, other), Lost::between(other, one)];
        match self {
            Self::CutBetween | Self::CutControl | Self::Flap => both(A, B).to_vec(),
            Self::CutToClients => both(B, ROUTER).to_vec(),
            Self::PrimaryIsolated => [both(A, B), both(A, ROUTER)].concat(),
            Self::WireIsolated => [both(A, B), both(B, ROUTER)].concat(),
            Self::OneWayFromPrimary => vec![Lost::between(A, B)],
            Self::OneWayFromWire => vec![Lost::between(B, A)],
            Self::PrimaryPaused | Self::WirePaused | Self::PrimaryAgentPaused | Self::WireAgentPaused => {
                Vec::new()
            }
        }
    }

    /// The only node that can serve the clients while the fault lasts, because clients do not reach the other node or its processes are
    /// stopped. `None` if both nodes can serve. The survivor must go on, and must never be fenced.
    pub fn survivor(self) -> Option<usize> {
        match self {
            Self::PrimaryIsolated | Self::PrimaryPaused => Some(1),
            Self::WireIsolated | Self::CutToClients | Self::WirePaused => Some(0),
            Self::CutBetween
            | Self::CutControl
            | Self::OneWayFromPrimary
            | Self::OneWayFromWire
            | Self::Flap
            | Self::PrimaryAgentPaused
            | Self::WireAgentPaused => None,
        }
    }

    /// Whether a living node is silent to its peer. Fail-stop assumes that this never happens. `links` is the number of
    /// links between the nodes. Isolation does not count, because a node that clients do not reach declares no peer
    /// dead.
    pub fn breaks_fail_stop(self, links: u8) -> bool {
        !self.nodes_hear_each_other(links) && !matches!(self, Self::PrimaryIsolated | Self::WireIsolated)
    }

    /// Whether the agents hear each other over one of their `links` while the fault lasts. Then neither node needs a fence.
    pub fn nodes_hear_each_other(self, links: u8) -> bool {
        match self {
            Self::CutToClients => true,
            Self::CutBetween
            | Self::CutControl
            | Self::PrimaryIsolated
            | Self::WireIsolated
            | Self::OneWayFromPrimary
            | Self::OneWayFromWire
            | Self::Flap => links > 1,
            Self::PrimaryPaused | Self::WirePaused | Self::PrimaryAgentPaused | Self::WireAgentPaused => {
                false
            }
        }
    }
}

fn cut(testbed: &Testbed, cut: SplitFault) -> Result<()> {
    let what = match cut {
        SplitFault::CutControl => format!("udp dport {HEARTBEAT_PORT} "),
        _ => String::new(),
    };
    switch::lose(&testbed.network.switch, &cut.lost(), &what)
}

fn heal(testbed: &Testbed) -> Result<()> {
    switch::pass(&testbed.network.switch)
}

fn signal(pids: &[Pid], signal: Signal) -> Result<()> {
    for &pid in pids {
        match kill(pid, signal) {
            // A process on a node that was fenced meanwhile no longer exists.
            Ok(()) | Err(nix::Error::ESRCH) => {}
            Err(errno) => return Err(errno).with_context(|| format!("send {signal} to {pid}")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_isolated_reaches_neither_peer_nor_router() {
        let lost = SplitFault::WireIsolated.lost();
        for other in [A, ROUTER] {
            assert!(lost.contains(&Lost::between(B, other)) && lost.contains(&Lost::between(other, B)));
        }
        assert_eq!(lost.len(), 4);
        assert_eq!(SplitFault::OneWayFromPrimary.lost(), [Lost::between(A, B)]);
    }
}
