//! Failures of a string and of an edge, as schedules of steps.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use linux::netns::{InterfaceControl, Netns};
use proto::Instant;
use serde::Serialize;

use super::daemon::{EDGE_PORT, EdgeDaemons};
use super::network::{EdgeTopology, SIDES, string_port};
use crate::clock::monotonic;
use crate::net::INTERFACE;
use crate::process;

/// A failure of the first string, of all strings, or of an edge of the first lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClusterFault {
    /// The node loses its power.
    #[default]
    PowerOff,
    /// The cable between R1 and the node is pulled.
    Cable,
    /// The node's kernel hangs: its interfaces stay up, and nothing passes or is answered.
    Freeze,
    /// The node passes nothing from R1 to R2, but everything from R2 to R1.
    OneWay,
    /// The node passes everything but heartbeats.
    HeartbeatsOnly,
    /// The cable is pulled and plugged in three times.
    Flap,
    /// The cables of all strings are pulled. After the failover time, only the second string's cable is plugged in again.
    Both,
    /// The cables of all strings are pulled, and all are plugged in again after the failover time.
    BothReturn,
    /// An edge loses its power.
    EdgePowerOff,
    /// The process of an edge is killed, and started again after the failover time.
    EdgeKill,
    /// The process of an edge is upgraded: it executes the program that is now at the path of its own binary.
    EdgeUpgrade,
}

/// The network and the daemons in which a failure is injected.
pub struct EdgeFaultTarget<'a> {
    pub network: &'a EdgeTopology,
    /// The daemons of each lane.
    pub daemons: &'a mut [EdgeDaemons],
    /// The edge that is hit by a failure of an edge: R1 (0) or R2 (1).
    pub side: usize,
    /// The directory of the daemons' files.
    pub directory: &'a Path,
}

/// A step of a schedule. The number is the index of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultStep {
    PowerOff(usize),
    Pull(usize),
    Plug(usize),
    Freeze(usize),
    LoseOneWay(usize),
    LoseHeartbeats(usize),
    PowerOffEdge,
    KillEdge,
    RestartEdge,
    UpgradeEdge,
}

/// Time limit for a node's processes to die.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// Time for which a flapping cable is pulled. Longer than a failure's detection.
const FLAP_DOWN: Duration = Duration::from_millis(120);
/// Time from one pull of a flapping cable to the next. Between two pulls, the cable is plugged in too briefly for its string to be trusted.
const FLAP_PERIOD: Duration = Duration::from_millis(300);
const FLAPS: u32 = 3;

impl ClusterFault {
    /// Whether the failure hits an edge and not a string.
    pub const fn is_of_edge(self) -> bool {
        matches!(self, Self::EdgePowerOff | Self::EdgeKill | Self::EdgeUpgrade)
    }

    /// Whether the edges move the first string's flows to another string after the failure. They do not if an edge itself fails, or if
    /// all strings are silent for the same time.
    pub const fn moves_flows(self) -> bool {
        !self.is_of_edge() && !matches!(self, Self::BothReturn)
    }

    /// Returns all steps, each with its time since the beginning of the failure. `failover` is the time until a string returns if all
    /// strings were cut, or until a killed edge starts again.
    fn steps(self, strings: usize, failover: Duration) -> Vec<(Duration, FaultStep)> {
        let now = Duration::ZERO;
        match self {
            Self::PowerOff => vec![(now, FaultStep::PowerOff(0))],
            Self::Cable => vec![(now, FaultStep::Pull(0))],
            Self::Freeze => vec![(now, FaultStep::Freeze(0))],
            Self::OneWay => vec![(now, FaultStep::LoseOneWay(0))],
            Self::HeartbeatsOnly => vec![(now, FaultStep::LoseHeartbeats(0))],
            Self::Flap => (0..FLAPS)
                .map(|turn| FLAP_PERIOD * turn)
                .flat_map(|at| [(at, FaultStep::Pull(0)), (at + FLAP_DOWN, FaultStep::Plug(0))])
                .collect(),
            Self::Both => (0..strings)
                .map(|string| (now, FaultStep::Pull(string)))
                .chain([(failover, FaultStep::Plug(1))])
                .collect(),
            Self::BothReturn => [
                (now, FaultStep::Pull as fn(usize) -> FaultStep),
                (failover, FaultStep::Plug),
            ]
            .into_iter()
            .flat_map(|(at, step)| (0..strings).map(move |string| (at, step(string))))
            .collect(),
            Self::EdgePowerOff => vec![(now, FaultStep::PowerOffEdge)],
            Self::EdgeKill => vec![(now, FaultStep::KillEdge), (failover, FaultStep::RestartEdge)],
            Self::EdgeUpgrade => vec![(now, FaultStep::UpgradeEdge)],
        }
    }

    /// Carries out the schedule. Returns the time just before its first step.
    ///
    /// # Errors
    /// If a step fails.
    pub fn inject(self, target: &mut EdgeFaultTarget<'_>, failover: Duration) -> Result<Instant> {
        let begun = monotonic();
        for (at, step) in self.steps(target.network.nodes.len(), failover) {
            std::thread::sleep((begun + at).since(monotonic()));
            step.take(target).with_context(|| format!("{step:?}"))?;
        }
        Ok(begun)
    }
}

impl FaultStep {
    fn take(self, target: &mut EdgeFaultTarget<'_>) -> Result<()> {
        let network = target.network;
        let all = |controls: &[InterfaceControl], act: fn(&InterfaceControl) -> _| {
            controls.iter().try_for_each(act)
        };
        match self {
            Self::PowerOff(string) => {
                all(&network.interfaces[string], InterfaceControl::pull)?;
                let inode = network.nodes[string].inode();
                process::kill_inside(&[inode], |_| false, KILL_LIMIT)?;
            }
            Self::Pull(string) => all(&network.cables[0][string], InterfaceControl::pull)?,
            Self::Plug(string) => all(&network.cables[0][string], InterfaceControl::plug)?,
            Self::Freeze(string) => freeze(&network.nodes[string])?,
            Self::LoseOneWay(string) => {
                let [left, right] = SIDES;
                drop_forwarded(
                    &network.nodes[string],
                    &format!("iifname {left}* oifname {right}*"),
                )?;
            }
            Self::LoseHeartbeats(string) => {
                drop_forwarded(&network.nodes[string], &format!("udp dport {EDGE_PORT}"))?;
            }
            Self::PowerOffEdge => {
                power_off_edge(network, target.side)?;
                target.daemons[0].kill(target.side)?;
            }
            Self::KillEdge => target.daemons[0].kill(target.side)?,
            Self::RestartEdge => target.daemons[0].restart(target.side, network, target.directory)?,
            Self::UpgradeEdge => target.daemons[0].upgrade(target.side)?,
        }
        Ok(())
    }
}

/// Takes the power from an edge of the first lane: the other ends of its cables lose their signals, and its processes die.
fn power_off_edge(network: &EdgeTopology, side: usize) -> Result<()> {
    let edge = &network.lanes[0][side];
    let strings = (0..network.nodes.len()).map(string_port);
    let ports: Vec<_> = [INTERFACE.to_owned()]
        .into_iter()
        .chain(strings)
        .map(|port| edge.cable(&port))
        .collect::<Result<_, _>>()?;
    let cables = network.cables[0].iter().flatten().filter(|_| side == 0);
    cables.chain(&ports).try_for_each(InterfaceControl::pull)?;
    process::kill_inside(&[edge.inode()], |_| false, KILL_LIMIT)?;
    Ok(())
}

/// Makes `node` drop all packets, and answer no ARP request.
fn freeze(node: &Netns) -> Result<()> {
    nft(
        node,
        "table inet freeze { chain early { type filter hook prerouting priority -400\ndrop\n}\n}\n",
    )?;
    // The value 8 means: answer no ARP request for any local address.
    node.run(|| std::fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", "8"))??;
    Ok(())
}

fn drop_forwarded(node: &Netns, what: &str) -> Result<()> {
    let rule = format!(
        "table inet cut {{ chain forward {{ type filter hook forward priority 0\n{what} drop\n}}\n}}\n"
    );
    nft(node, &rule)
}

/// Runs `commands` of nft in `place`.
///
/// # Errors
/// If nft refuses.
pub fn nft(place: &Netns, commands: &str) -> Result<()> {
    process::output(place.command("nft")?.arg(commands), &format!("nft {commands}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flapping_cable_ends_plugged_in() {
        let steps = ClusterFault::Flap.steps(2, Duration::from_secs(3));
        assert_eq!(steps.len(), 6);
        assert_eq!(steps[5], (Duration::from_millis(720), FaultStep::Plug(0)));
    }

    #[test]
    fn one_string_comes_back_after_all_were_gone() {
        let steps = ClusterFault::Both.steps(2, Duration::from_secs(3));
        let now = Duration::ZERO;
        assert_eq!(steps[..2], [(now, FaultStep::Pull(0)), (now, FaultStep::Pull(1))]);
        assert_eq!(steps[2], (Duration::from_secs(3), FaultStep::Plug(1)));
    }

    #[test]
    fn all_strings_come_back_after_all_were_gone() {
        let steps = ClusterFault::BothReturn.steps(2, Duration::from_secs(3));
        let (now, end) = (Duration::ZERO, Duration::from_secs(3));
        assert_eq!(steps[..2], [(now, FaultStep::Pull(0)), (now, FaultStep::Pull(1))]);
        assert_eq!(steps[2..], [(end, FaultStep::Plug(0)), (end, FaultStep::Plug(1))]);
    }
}
