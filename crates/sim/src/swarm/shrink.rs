//! Finds the smallest scenario that still breaks the same rule.

use super::outcome::{RunOutcome, Violation};
use super::run::play;
use super::scenario::Scenario;

/// Maximum number of runs that are tried.
const TRIES_MAX: usize = 300;

/// Leaves out connections, faults and peculiarities step by step, as long as the same rule is broken. Returns the smallest scenario found,
/// with its outcome; `None` if `scenario` breaks no rule. If the scenario has a defect, each candidate must break no rule without the
/// defect.
pub fn shrink(scenario: &Scenario) -> Option<(Scenario, RunOutcome)> {
    let outcome = play(scenario);
    let rule = outcome.violations.first()?.rule.clone();
    let mut best = (scenario.clone(), outcome);
    let mut tries = 0;
    let mut attempt = |candidate: Scenario, best: &mut (Scenario, RunOutcome)| {
        tries += 1;
        if candidate == best.0 || tries > TRIES_MAX {
            return false;
        }
        let mut outcome = play(&candidate);
        let is_other = |violation: &Violation| violation.rule != rule;
        outcome.violations.sort_by_key(is_other); // violations of the rule come first
        let is_broken = outcome.violations.first().is_some_and(|first| !is_other(first))
            && (candidate.defect.is_none() || holds_without_defect(&candidate));
        if is_broken {
            *best = (candidate, outcome);
        }
        is_broken
    };
    loop {
        let mut is_smaller = false;
        let mut chunk = best.0.connections.len() / 2;
        while chunk > 0 {
            let mut at = 0;
            while at < best.0.connections.len() {
                let mut candidate = best.0.clone();
                let end = (at + chunk).min(candidate.connections.len());
                candidate.connections.drain(at..end);
                if attempt(candidate, &mut best) {
                    is_smaller = true;
                } else {
                    at += chunk;
                }
            }
            chunk /= 2;
        }
        for at in (0..best.0.faults.len()).rev() {
            let mut candidate = best.0.clone();
            candidate.faults.remove(at);
            is_smaller |= attempt(candidate, &mut best);
        }
        for candidate in best.0.plain() {
            is_smaller |= attempt(candidate, &mut best);
        }
        if !is_smaller {
            return Some(best);
        }
    }
}

/// Whether a scenario breaks no rule if its nodes have no defect.
pub fn holds_without_defect(scenario: &Scenario) -> bool {
    let sound = Scenario {
        defect: None,
        ..scenario.clone()
    };
    play(&sound).violations.is_empty()
}
