//! `steadfast-lab crash`: its options, and its implementation of [`Lab`].

use anyhow::Result;
use clap::Args;

use super::report::CrashFindings;
use super::{play, rounds};
use crate::pair::fault::Sequel;
use crate::pair::{PairOptions, PolicyOption};
use crate::run::{Lab, LabRun, RunOptions, WrongUse};

/// Let something fail under load, and say whether every connection survived.
///
/// Clients talk through a router to a virtual address that two nodes protect: node a, the primary, and node b, the backup. The default
/// fault looks like a power failure of node a: its cable is cut, its server is stopped, and its other processes are killed. Node b must go
/// on with every connection as if nothing had happened. A little later node a's cable is plugged in again. At this moment node a still has
/// its old sockets. Then its old server is killed, and a new server and a new agent start. Node a must become the wire of the connections
/// that go on, and disturb no client. With --rounds N, the same fault is played N times in all. Each time it hits the node that has the
/// targeted role by then. The other faults and what must follow them are in docs/faults.md. Clients check every byte; a judge reads
/// captures taken at the client, the router and both nodes.
///
/// Prints what was found. With --json, prints one JSON object on stdout; its field `ok` says the same as the exit code. Some combinations
/// of options cannot be played, for example the crash of a worker with a server that has no workers. Such a run is an exception: it is
/// printed with its reason and counted, but it is no failure. If a run fails, its seed and the command that repeats it are printed, and
/// --keep DIR keeps its captures and logs.
#[derive(Clone, Debug, Args)]
pub struct CrashOptions {
    #[command(flatten)]
    pair: PairOptions,
    /// A benchmark: the command also fails if the connections at work wait too long. The 99th percentile of (stall − detection) over all
    /// runs must be within a limit (`busy_stall`, docs/faults.md). This may fail on a machine that does other work at the same time.
    #[arg(long)]
    measure: bool,
}

impl Lab for CrashOptions {
    type Part = ();
    type Findings = CrashFindings;

    fn options(&self) -> &RunOptions {
        &self.pair.run
    }

    fn check(&self) -> Result<()> {
        let pair = &self.pair;
        pair.check()?;
        let sequel = pair.sequel(pair.fault.target(pair.node, 0)?);
        let is_takeover = sequel == Sequel::Takeover || pair.then().is_some();
        if self.measure && pair.policy == PolicyOption::Replay {
            return Err(WrongUse("--measure goes with the policies http and replica only".to_owned()).into());
        }
        if self.measure && !is_takeover && !pair.is_measured_claim(sequel) {
            let needs = "--measure needs a fault after which the other node takes over, such as power-off; or cut-service-path of the \
                         backup with --links 2 and without --rounds";
            return Err(WrongUse(needs.to_owned()).into());
        }
        Ok(())
    }

    fn exception(&self) -> Option<&'static str> {
        self.pair.exception()
    }

    fn check_machine(&self) -> Result<()> {
        self.pair.check_machine(&[])
    }

    fn parts(&self) -> Vec<()> {
        vec![()]
    }

    fn nothing(&self) -> CrashFindings {
        CrashFindings::empty(&self.pair)
    }

    fn play(&self, (): (), run: &LabRun<'_>, problems: &mut Vec<String>) -> Result<CrashFindings> {
        let facts = match self.pair.rounds {
            Some(count) => rounds::play(&self.pair, count, run)?,
            None => play::play(&self.pair, run)?,
        };
        run.keep("facts.json", &facts)?;
        Ok(CrashFindings::new(&self.pair, &facts, problems))
    }

    fn conclude(&self, findings: &CrashFindings, problems: &mut Vec<String>) -> Result<()> {
        if self.measure {
            problems.extend(findings.broken_limit());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::fault::{CrashFault, CrashTarget};
    use crate::pair::{LanOptions, WorkloadOption};

    #[test]
    fn the_claim_of_what_a_living_wire_gives_up_is_measured() {
        let fits = |fault, node, links, rounds| {
            let pair = PairOptions {
                fault,
                node: Some(node),
                lan: LanOptions {
                    links,
                    ..LanOptions::default()
                },
                rounds,
                ..PairOptions::new(WorkloadOption::Request, 1)
            };
            let options = CrashOptions { pair, measure: true };
            options.check().is_ok()
        };
        for node in [CrashTarget::Primary, CrashTarget::Backup] {
            assert!(fits(CrashFault::CutServicePath, node, 2, None));
        }
        // With one link, the cut also silences the wire's heartbeats. Then the wire's lease must end before the claim.
        assert!(!fits(CrashFault::CutServicePath, CrashTarget::Backup, 1, None));
        assert!(!fits(CrashFault::KillBackup, CrashTarget::Backup, 2, None));
        assert!(!fits(CrashFault::CutServicePath, CrashTarget::Backup, 2, Some(2)));
    }
}
