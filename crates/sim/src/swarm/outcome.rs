//! The result of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::fault::FaultKind;
use super::phase::PairPhase;
use crate::pair::CarriedCounts;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Name of the broken rule.
    pub rule: String,
    /// When and how the rule was broken.
    pub what: String,
}

impl Violation {
    pub(super) fn new(rule: &str, what: String) -> Self {
        Self {
            rule: rule.to_owned(),
            what,
        }
    }

    /// Parses a line of the judge: time, client, rule, description.
    pub(super) fn of_judge(line: &str) -> Self {
        let rule = line.split(": ").nth(1).unwrap_or("judge");
        Self::new(rule, line.to_owned())
    }
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct RunOutcome {
    /// Broken rules, in the order in which they were broken. Violations that are found only at the end of the run come last.
    pub violations: Vec<Violation>,
    /// The faults that were injected, and the phase of the pair at each injection.
    pub injected: Vec<(FaultKind, PairPhase)>,
    /// The phase at each fault that was injected while another fault was not mended yet.
    pub doubles: Vec<PairPhase>,
    /// Both nodes spoke, and the configuration allows that (`assume = "fail-stop"` with nodes that do not hear each other).
    pub was_split: bool,
    /// Number of connections that at some time no node could continue, and that did not complete.
    pub orphaned: usize,
    /// Number of connections for which a node sent segments only by its lease, and the other node does not know these segments. Either the
    /// sending node lost its power, or the other node continued without them.
    pub lent_in_vain: usize,
    /// Number of connections for which a node spoke after its lease was over, because its clock had stood still, while the other node went
    /// on.
    pub outlasted: usize,
    /// Number of mutual fencings: a fence switched off a node whose own fence had just switched off the other node.
    pub mutual_fences: usize,
    /// Number of all connections.
    pub connections: usize,
    /// Number of snapshots that backups kept, and number of states that applications imported, as the machines have counted since their
    /// last boot.
    pub snapshots: (u64, u64),
    /// Number of connections that backups took by order, as the machines have counted since their last boot.
    pub migrated: usize,
    /// Number of connections that annexes have started, and that moved back from annexes to the primary.
    pub annexed: (usize, usize),
    /// Counts for connections that annexes had without a wire.
    pub carried: CarriedCounts,
    /// Number of packets that wires have passed unlogged, as the machines have counted since their last boot.
    pub unlogged: u64,
    /// Simulated time of the run.
    pub time: Duration,
}
