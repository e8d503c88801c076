//! Failures of a string, as schedules of steps.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use linux::netns::{InterfaceControl, Netns};
use proto::Instant;
use serde::Serialize;

use super::daemon::EDGE_PORT;
use super::network::{EdgeTopology, SIDES};
use crate::clock::monotonic;
use crate::process;

/// A failure of the first string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StringFault {
    /// The node loses its power.
    #[default]
    PowerOff,
    /// The cable between R1 and the node is pulled.
    Cable,
    /// The node's kernel hangs: its interfaces stay up, and nothing passes or is answered.
    Freeze,
    /// The node passes nothing from R1 to R2, but everything back.
    OneWay,
    /// The node passes everything but heartbeats.
    HeartbeatsOnly,
    /// The cable is pulled and plugged in three times.
    Flap,
    /// All cables are pulled. Only the second string's cable is plugged in again, after the failover time.
    Both,
}

/// A step of a schedule. The number is that of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultStep {
    PowerOff(usize),
    Pull(usize),
    Plug(usize),
    Freeze(usize),
    LoseOneWay(usize),
    LoseHeartbeats(usize),
}

/// Time limit for a node's processes to die.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// Time for which a flapping cable is pulled. Longer than a failure's detection.
const FLAP_DOWN: Duration = Duration::from_millis(120);
/// Time from one pull of a flapping cable to the next. The cable is not plugged in for long enough to be trusted.
const FLAP_PERIOD: Duration = Duration::from_millis(300);
const FLAPS: u32 = 3;

impl StringFault {
    /// All steps, with their times after the failure's beginning. `failover` is how long all strings are gone, if all are.
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
        }
    }

    /// Carries out the schedule. Returns the time just before its first step.
    ///
    /// # Errors
    /// If a step fails.
    pub fn inject(self, network: &EdgeTopology, failover: Duration) -> Result<Instant> {
        let begun = monotonic();
        for (at, step) in self.steps(network.nodes.len(), failover) {
            std::thread::sleep((begun + at).since(monotonic()));
            step.take(network).with_context(|| format!("{step:?}"))?;
        }
        Ok(begun)
    }
}

impl FaultStep {
    fn take(self, network: &EdgeTopology) -> Result<()> {
        let all = |controls: &[InterfaceControl; 2], act: fn(&InterfaceControl) -> _| {
            controls.iter().try_for_each(act)
        };
        match self {
            Self::PowerOff(string) => {
                all(&network.interfaces[string], InterfaceControl::pull)?;
                let inode = network.nodes[string].inode();
                process::kill_inside(&[inode], |_| false, KILL_LIMIT)?;
            }
            Self::Pull(string) => all(&network.cables[string], InterfaceControl::pull)?,
            Self::Plug(string) => all(&network.cables[string], InterfaceControl::plug)?,
            Self::Freeze(string) => freeze(&network.nodes[string])?,
            Self::LoseOneWay(string) => {
                let [left, right] = SIDES;
                drop_forwarded(&network.nodes[string], &format!("iifname {left} oifname {right}"))?;
            }
            Self::LoseHeartbeats(string) => {
                drop_forwarded(&network.nodes[string], &format!("udp dport {EDGE_PORT}"))?;
            }
        }
        Ok(())
    }
}

/// Makes `node` drop all packets, and answer no ARP request.
fn freeze(node: &Netns) -> Result<()> {
    nft(
        node,
        "table inet freeze { chain early { type filter hook prerouting priority -400\ndrop\n}\n}\n",
    )?;
    // 8: no reply for any local address.
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
        let steps = StringFault::Flap.steps(2, Duration::from_secs(3));
        assert_eq!(steps.len(), 6);
        assert_eq!(steps[5], (Duration::from_millis(720), FaultStep::Plug(0)));
    }

    #[test]
    fn one_string_comes_back_after_all_were_gone() {
        let steps = StringFault::Both.steps(2, Duration::from_secs(3));
        let now = Duration::ZERO;
        assert_eq!(steps[..2], [(now, FaultStep::Pull(0)), (now, FaultStep::Pull(1))]);
        assert_eq!(steps[2], (Duration::from_secs(3), FaultStep::Plug(1)));
    }
}
