//! What separates the nodes, or lets one of them sleep, for a while.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;

use crate::crash::stage::Stage;
use crate::node::HEARTBEAT_PORT;
use crate::process;

/// How long it lasts: more than a death takes to be declared, with a lease and an agent's timeout besides.
pub const HOLD: Duration = Duration::from_millis(2000);
/// How long a link that flaps is cut, and whole again, and how often.
const FLAP: Duration = Duration::from_millis(150);
const FLAPS: u32 = 7;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitFault {
    /// No frame passes between the nodes; clients and witnesses reach both.
    CutBetween,
    /// Their heartbeats are lost, everything else passes between them.
    CutControl,
    /// Clients do not reach the wire; the nodes hear each other.
    CutToClients,
    /// No frame passes from the primary to the wire.
    OneWayFromPrimary,
    /// No frame passes from the wire to the primary.
    OneWayFromWire,
    /// The link between the nodes is cut and whole again, several times.
    Flap,
    /// All processes of the primary are stopped, and go on later; its kernel and its cable work on.
    PrimaryPaused,
    /// The same of the wire.
    WirePaused,
    /// Only the primary's agent is stopped, and goes on later.
    PrimaryAgentPaused,
    /// The same of the wire's.
    WireAgentPaused,
}

/// The ports of the switch.
const A: &str = "a";
const B: &str = "b";
const ROUTER: &str = "router";

impl SplitFault {
    /// Lets it happen, and ends it.
    ///
    /// # Errors
    /// If something cannot be cut or stopped.
    pub fn play(self, stage: &Stage) -> Result<()> {
        if self == Self::Flap {
            for _ in 0..FLAPS {
                cut(stage, self)?;
                std::thread::sleep(FLAP);
                heal(stage)?;
                std::thread::sleep(FLAP);
            }
            return Ok(());
        }
        let Some(sleepers) = self.sleepers(stage)? else {
            cut(stage, self)?;
            std::thread::sleep(HOLD);
            return heal(stage);
        };
        signal(&sleepers, Signal::SIGSTOP)?;
        std::thread::sleep(HOLD);
        signal(&sleepers, Signal::SIGCONT)
    }

    /// The processes that it stops, if it stops any.
    fn sleepers(self, stage: &Stage) -> Result<Option<Vec<Pid>>> {
        let all = |index: usize| -> Result<_> {
            let mut pids = process::inside(&[stage.network.nodes[index].inode()])?;
            let watching = stage.captures.pids();
            pids.retain(|pid| !watching.contains(pid));
            Ok(Some(pids))
        };
        match self {
            Self::PrimaryPaused => all(0),
            Self::WirePaused => all(1),
            Self::PrimaryAgentPaused => Ok(Some(vec![stage.agent(0)?.pid()])),
            Self::WireAgentPaused => Ok(Some(vec![stage.agent(1)?.pid()])),
            Self::CutBetween
            | Self::CutControl
            | Self::CutToClients
            | Self::OneWayFromPrimary
            | Self::OneWayFromWire
            | Self::Flap => Ok(None),
        }
    }

    /// Between which ports of the switch nothing passes any more, each as from and to; and what alone is meant, if not all.
    fn paths(self) -> (&'static [(&'static str, &'static str)], String) {
        let all = String::new();
        match self {
            Self::CutBetween | Self::Flap => (&[(A, B), (B, A)], all),
            Self::CutControl => (&[(A, B), (B, A)], format!("udp dport {HEARTBEAT_PORT} ")),
            Self::CutToClients => (&[(ROUTER, B), (B, ROUTER)], all),
            Self::OneWayFromPrimary => (&[(A, B)], all),
            Self::OneWayFromWire => (&[(B, A)], all),
            Self::PrimaryPaused | Self::WirePaused | Self::PrimaryAgentPaused | Self::WireAgentPaused => {
                (&[], all)
            }
        }
    }

    /// The commands of `nft` that cut.
    fn commands(self) -> String {
        let (paths, what) = self.paths();
        let rules = paths
            .iter()
            .map(|(from, to)| format!("iifname \"{from}\" oifname \"{to}\" {what}drop\n"));
        format!(
            "table bridge cut {{ chain forward {{ type filter hook forward priority 0;\n{}}}\n}}\n",
            rules.collect::<String>()
        )
    }
}

fn cut(stage: &Stage, cut: SplitFault) -> Result<()> {
    nft(stage, &cut.commands())
}

fn heal(stage: &Stage) -> Result<()> {
    nft(stage, "delete table bridge cut\n")
}

/// Runs `commands` in the switch.
fn nft(stage: &Stage, commands: &str) -> Result<()> {
    let mut nft = stage.network.switch.command("nft")?;
    let output = nft.arg(commands).output().context("run nft")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "nft {commands}: {}", said.trim());
    Ok(())
}

fn signal(pids: &[Pid], signal: Signal) -> Result<()> {
    for &pid in pids {
        match kill(pid, signal) {
            // One that has been fenced meanwhile does not go on.
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
    fn one_way_leaves_the_other_open() {
        let text = SplitFault::OneWayFromPrimary.commands();
        assert!(text.contains("iifname \"a\" oifname \"b\" drop"), "{text}");
        assert!(!text.contains("iifname \"b\""), "{text}");
        assert!(SplitFault::CutControl.commands().contains("udp dport 7400 drop"));
    }
}
