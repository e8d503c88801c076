//! `swarm --defect`: checks that the swarm finds a defect that was put into the nodes on purpose.

use anyhow::Result;
use indicatif::ProgressBar;
use sim::pair::Defect;
use sim::swarm::{Scenario, holds_without_defect, play, shrink};

use super::options::{SwarmOptions, draw};
use super::write::write;
use crate::run::LabOutcome;

/// Runs scenarios with a defect in the nodes until a scenario breaks a rule with the defect, but no rule without the defect.
pub(super) fn look_for(defect: Defect, options: &SwarmOptions) -> Result<LabOutcome> {
    let progress = ProgressBar::new(options.runs);
    let with_defect = |index: u64| {
        progress.inc(1);
        let mut scenario = draw(options.seed.wrapping_add(index), options.annexes);
        scenario.defect = Some(defect);
        scenario
    };
    let finds = |scenario: &Scenario| !play(scenario).violations.is_empty() && holds_without_defect(scenario);
    let found = (0..options.runs)
        .map(with_defect)
        .zip(1_u64..)
        .find(|(scenario, _)| finds(scenario));
    progress.finish_and_clear();
    let smallest = found.as_ref().and_then(|(scenario, _)| shrink(scenario));
    let replay = smallest
        .as_ref()
        .map(|(scenario, _)| write(&options.out, scenario))
        .transpose()?;
    let runs = found.as_ref().map_or(options.runs, |(_, runs)| *runs);
    let violations = smallest
        .map(|(_, outcome)| outcome.violations)
        .unwrap_or_default();
    if options.json {
        let report = serde_json::json!({
            "defect": defect, "seed": options.seed, "runs": runs, "found": found.is_some(), "replay": replay,
            "violations": violations,
        });
        say!("{report}");
    } else if let Some(replay) = replay {
        say!("found within {runs} runs from seed {}: {replay}", options.seed);
        if let Some(violation) = violations.first() {
            say!("  {}: {}", violation.rule, violation.what);
        }
    } else {
        say!("not found in {runs} runs from seed {}", options.seed);
    }
    Ok(LabOutcome::of(found.is_some()))
}
