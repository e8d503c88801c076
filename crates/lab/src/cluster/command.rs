//! Implements [`Lab`] for `steadfast-lab cluster`.

use anyhow::Result;

use super::options::{APPLICATION, ClusterOptions};
use super::play;
use super::report::ClusterFindings;
use crate::node::Assume;
use crate::run::{LAB_PROGRAMS, Lab, LabRun, RunOptions, WrongUse, check_machine};

impl Lab for ClusterOptions {
    type Part = ();
    type Findings = ClusterFindings;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn check(&self) -> Result<()> {
        for (option, node) in [("--off", self.off), ("--drain", self.drain)] {
            if node >= self.nodes {
                return Err(WrongUse(format!("{option}: there is no such node")).into());
            }
        }
        if matches!(self.assume, Assume::Fence | Assume::SlowFence) {
            let allowed = "--assume: a cluster is played with fail-stop or etcd";
            return Err(WrongUse(allowed.to_owned()).into());
        }
        Ok(())
    }

    fn check_machine(&self) -> Result<()> {
        let own = [APPLICATION.needs()];
        let needed = [&LAB_PROGRAMS[..], &own, self.assume.needs()].concat();
        let connections = u32::from(self.connections) * u32::from(self.nodes);
        check_machine(needed, Some(self.run.daemon.path()?), connections)
    }

    fn parts(&self) -> Vec<()> {
        vec![()]
    }

    fn nothing(&self) -> ClusterFindings {
        ClusterFindings::empty(self)
    }

    fn play(&self, (): (), run: &LabRun<'_>, problems: &mut Vec<String>) -> Result<ClusterFindings> {
        play::play(self, run, problems)
    }
}
