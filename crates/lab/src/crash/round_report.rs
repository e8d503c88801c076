//! The results of a run's rounds (`--rounds`).

use serde::Serialize;

use super::durations::{Durations, Felt, TakeoverCause};
use super::facts::{CrashRound, RunFacts};
use crate::client::Spread;
use crate::net::NODE_NAMES;

/// Result of one round. Durations are in milliseconds, over all connections.
#[derive(Clone, Debug, Serialize)]
pub struct RoundReport {
    /// Number of the round, from 1.
    round: usize,
    /// The node that the fault hit.
    node: &'static str,
    /// The node's role at the fault: `primary` or `wire`.
    was: &'static str,
    /// Number of connections for which the survivor spoke after a fault of the primary, as captured. 0 after a fault of the wire.
    connections_taken_over: u64,
    stall_ms: Option<Spread>,
    detection_ms: Option<Spread>,
    takeover_ms: Option<Spread>,
    restart_gap_ms: Option<Spread>,
    /// From the returning node's first heartbeat to the first segment that it forwarded, as captured.
    integration_ms: Option<f64>,
    /// From the return until every connection was protected again.
    protected_after_ms: Option<f64>,
    /// The longest wait of any connection while the node returned.
    integration_gap_ms: Option<f64>,
    /// The longest wait of any connection in the fault-free time before the fault.
    baseline_gap_ms: Option<f64>,
}

/// The results of all rounds of `facts`: a report for each round, and the durations of all rounds together.
pub fn add_to(facts: &RunFacts) -> (Vec<RoundReport>, Durations) {
    let mut all = Durations::default();
    // A reign is a period in which one node spoke. Each reign after the first began with the takeover of one round, in the rounds' order.
    let mut reigns = facts.judged.verdict.reigns.iter().skip(1);
    let mut reports = Vec::new();
    for (index, round) in facts.rounds.iter().enumerate() {
        let reign = round.was_primary.then(|| reigns.next()).flatten();
        if facts.judged.has_annexes {
            // The further reigns of this round: the second annex, if there is one, and the primary again.
            reigns.by_ref().take(round.moved_on_at.len() + 1).for_each(drop);
        }
        let durations = durations(facts, index, round);
        reports.push(RoundReport {
            round: index + 1,
            node: NODE_NAMES[round.node],
            was: if round.was_primary { "primary" } else { "wire" },
            connections_taken_over: reign.map_or(0, |reign| reign.taken_over),
            stall_ms: spread(&durations.stall),
            detection_ms: spread(&durations.detection),
            takeover_ms: spread(&durations.takeover),
            restart_gap_ms: spread(&durations.restart_gap),
            integration_ms: round.integration.ms(),
            protected_after_ms: round.integration.whole_after_ms(),
            integration_gap_ms: longest(&durations.integration_gap),
            baseline_gap_ms: longest(&durations.baseline_gap),
        });
        all.add(durations);
    }
    (reports, all)
}

impl RoundReport {
    /// Returns a problem if the round proves nothing: the primary failed, but no connection was taken over.
    pub fn problem(&self) -> Option<String> {
        (self.was == "primary" && self.connections_taken_over == 0).then(|| {
            format!(
                "round {}: the survivor never spoke for any connection",
                self.round
            )
        })
    }

    /// One line of text for a person.
    pub fn line(&self) -> String {
        let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
        format!(
            "round {}: fault at {} ({}), stall max {} ms; back: wire again after {} ms, all protected after {} ms, \
             longest gap {} ms (before the fault: {} ms)",
            self.round,
            self.node,
            self.was,
            ms(self.stall_ms.map(|spread| spread.max)),
            ms(self.integration_ms),
            ms(self.protected_after_ms),
            ms(self.integration_gap_ms),
            ms(self.baseline_gap_ms),
        )
    }
}

fn durations(facts: &RunFacts, index: usize, round: &CrashRound) -> Durations {
    // Each round has three measurements of the clients, in this order.
    let [fault, before, back] = [0, 1, 2].map(|told| 3 * index + told);
    let felt = Felt {
        client: &facts.client,
        idle: facts.idle,
    };
    let mut durations = Durations {
        stall: felt.waits(fault).collect(),
        integration: round.integration.ms().into_iter().collect(),
        integration_gap: felt.gaps(back).reduce(f64::max).into_iter().collect(),
        baseline_gap: felt.gaps(before).collect(),
        fault_free_gap: felt.waits(before).collect(),
        protected: round.protected_ms.clone(),
        ..Durations::default()
    };
    // Connections that have moved are not taken over when the service follows them.
    if round.was_primary && round.handed_over_at.is_none() {
        let cause = TakeoverCause {
            deadly_at: round.fault_at,
            told: fault,
            takeovers: &round.takeovers,
            taken_over: &round.taken_over,
        };
        durations.add_takeover(felt, cause);
    }
    durations
}

fn spread(values: &[f64]) -> Option<Spread> {
    Spread::of(values.iter().copied())
}

fn longest(values: &[f64]) -> Option<f64> {
    values.iter().copied().reduce(f64::max)
}
