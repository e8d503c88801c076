//! Implements [`Lab`] for `steadfast-lab edge-rate`.

use anyhow::Result;

use super::options::{APPLICATION, EdgeRateOptions};
use super::play;
use super::report::EdgeRateFindings;
use crate::edge::variant::EdgeVariant;
use crate::run::{LAB_PROGRAMS, Lab, LabRun, RunOptions, check_machine};

impl Lab for EdgeRateOptions {
    type Part = EdgeVariant;
    type Findings = EdgeRateFindings;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn check_machine(&self) -> Result<()> {
        let needed = [&LAB_PROGRAMS[..], &[APPLICATION.needs()]].concat();
        let daemon = (!self.baseline).then(|| self.run.daemon.path()).transpose()?;
        check_machine(needed, daemon, self.flows)
    }

    fn parts(&self) -> Vec<EdgeVariant> {
        EdgeVariant::of_run(self.baseline, self.only)
    }

    fn selection(&self, part: EdgeVariant) -> Vec<(&'static str, String)> {
        part.selection()
    }

    fn nothing(&self) -> EdgeRateFindings {
        EdgeRateFindings::empty(self)
    }

    fn play(
        &self,
        part: EdgeVariant,
        run: &LabRun<'_>,
        problems: &mut Vec<String>,
    ) -> Result<EdgeRateFindings> {
        play::play(self, part, run, problems)
    }
}
