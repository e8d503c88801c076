//! Waits until the survivor of a fault has taken over, and counts the role changes.

use std::time::Duration;

use anyhow::Result;
use proto::Instant;

use super::testbed::Testbed;
use crate::node::{ReportedConnection, ReportedStatus, ReportedTakeover};

/// Time limit for the survivor to restore or reset every connection.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(10);
/// Time between two status requests while connections are taken over. Each request takes 5 ms of CPU time in total, which slows the
/// takeover that is measured. The busy connections are taken over before the first request.
const PATIENT_POLL: Duration = Duration::from_millis(250);

/// Waits until node `index` has restored or reset every connection that it takes over since `fault_at`. With `of_some`, the node takes over
/// only some connections, not the service. Returns the node's takeovers, and the connections that the node has restored. Adds to `problems`
/// if the node does not take over.
///
/// # Errors
/// If the run is without steadfast.
pub fn survive(
    testbed: &Testbed,
    index: usize,
    fault_at: Instant,
    of_some: bool,
    problems: &mut Vec<String>,
) -> Result<(Vec<ReportedTakeover>, Vec<ReportedConnection>)> {
    let (agent, node) = (testbed.agent(index)?, &testbed.network.nodes[index]);
    let mut takeovers = Vec::new();
    let is_over = |status: &ReportedStatus| {
        takeovers = status.takeovers().to_vec();
        takeovers.retain(|takeover| takeover.declared_ns >= fault_at.as_nanos());
        (of_some || status.speaks()) && takeovers.last().is_some_and(ReportedTakeover::is_complete)
    };
    std::thread::sleep(PATIENT_POLL);
    let problem = agent.wait_for(node, "take over", (TAKEOVER_LIMIT, PATIENT_POLL), is_over);
    if problem.is_some() {
        problems.extend(problem);
        return Ok((takeovers, Vec::new()));
    }
    let connections = agent.restored(node).unwrap_or_else(|error| {
        problems.push(format!("{error:#}"));
        Vec::new()
    });
    Ok((takeovers, connections))
}

/// Largest number of role changes for one fault: one node goes on alone, then the other node becomes the wire again.
const ROLE_CHANGES_MAX: u64 = 2;

/// Returns a problem if the speaking node has changed more often than `faults` faults can explain.
pub fn flapping(role_changes: u64, faults: u64) -> Option<String> {
    (role_changes > faults * ROLE_CHANGES_MAX)
        .then(|| format!("the speaking node has changed {role_changes} times, for {faults} faults"))
}
