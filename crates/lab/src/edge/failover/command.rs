//! Implements [`Lab`] for the command `edge-failover`.

use anyhow::Result;

use super::options::{APPLICATION, EdgeFailoverOptions};
use super::play;
use super::report::EdgeFailoverFindings;
use crate::edge::variant::EdgeVariant;
use crate::run::{LAB_PROGRAMS, Lab, LabRun, Needed, RunOptions, WrongUse, check_machine};

/// Programs that nodes with address translation need.
const NAT_PROGRAMS: [Needed; 1] = [("conntrackd", "conntrackd")];

impl Lab for EdgeFailoverOptions {
    type Part = EdgeVariant;
    type Findings = EdgeFailoverFindings;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn check(&self) -> Result<()> {
        let wrong = |text: &str| Err(WrongUse(text.to_owned()).into());
        if self.nat && self.baseline {
            return wrong("--nat: without edges, conntrackd is not told to take over");
        }
        if self.baseline && (self.edges > 1 || !self.fault.moves_flows()) {
            return wrong(
                "--baseline: possible only for the failure of a string, with --edges 1; the lab itself changes the routes",
            );
        }
        if self.nat && self.strings > 2 {
            return wrong("--nat: conntrackd synchronizes two nodes; use --strings 2");
        }
        Ok(())
    }

    fn check_machine(&self) -> Result<()> {
        let own: &[Needed] = if self.nat && !self.without_conntrackd {
            &NAT_PROGRAMS
        } else {
            &[]
        };
        let needed = [&LAB_PROGRAMS[..], &[APPLICATION.needs()], own].concat();
        let daemon = (!self.baseline).then(|| self.run.daemon.path()).transpose()?;
        check_machine(needed, daemon, self.connections())
    }

    fn parts(&self) -> Vec<EdgeVariant> {
        if self.fault.is_of_edge() {
            return vec![EdgeVariant::With];
        }
        EdgeVariant::of_run(self.baseline, self.only)
    }

    fn selection(&self, part: EdgeVariant) -> Vec<(&'static str, String)> {
        part.selection()
    }

    fn nothing(&self) -> EdgeFailoverFindings {
        EdgeFailoverFindings::empty(self)
    }

    fn play(
        &self,
        part: EdgeVariant,
        run: &LabRun<'_>,
        problems: &mut Vec<String>,
    ) -> Result<EdgeFailoverFindings> {
        play::play(self, part, run, problems)
    }
}
