//! When connections that have moved from one node to the other are protected by the other node.

use std::time::Duration;

use anyhow::Result;
use proto::Instant;

use super::testbed::Testbed;
use super::{PairOptions, PolicyOption};
use crate::clock::{monotonic, ms};
use crate::node::ReportedStatus;

/// Time between two reads of the status.
const POLL: Duration = Duration::from_millis(10);

/// Whether connections can be protected after a move. Other policies cannot protect a connection whose beginning the log lacks.
pub fn is_possible(options: &PairOptions) -> bool {
    matches!(options.policy, PolicyOption::Http | PolicyOption::Snapshot)
}

/// A test of a node's status: whether the node, as the wire of `all` connections that have moved, protects those that are still open.
pub fn protects_moved(all: u64) -> impl FnMut(&ReportedStatus) -> bool {
    let mut knows_all = false;
    move |status| {
        knows_all |= status.connections() >= all;
        knows_all && status.protected() > 0 && status.protected() == status.connections()
    }
}

/// Reads the status of node `index` until the node protects the connections that were ordered to move at `moved_at`, but at most for `limit`.
/// Returns the milliseconds since the order. `None` if the connections are not protected within the limit.
///
/// # Errors
/// If the run is without steadfast.
pub fn watch(
    testbed: &Testbed,
    index: usize,
    options: &PairOptions,
    moved_at: Instant,
    limit: Duration,
) -> Result<Option<f64>> {
    let (agent, node) = (testbed.agent(index)?, &testbed.network.nodes[index]);
    let protects = protects_moved(options.connections.into());
    let problem = agent.wait_for(node, "protect what has moved", (limit, POLL), protects);
    let now = monotonic();
    Ok(problem.is_none().then(|| ms(moved_at.as_nanos(), now.as_nanos())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(protected: u64, unprotected: u64) -> ReportedStatus {
        let status = serde_json::json!({
            "services": [{
                "mode": "duplex",
                "connections": {"protected": protected, "unprotected": unprotected},
                "connections_complete": true,
                "takeovers": [],
            }],
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn moved_connections_are_protected_when_all_are_known_and_none_is_unprotected() {
        let mut protects = protects_moved(2);
        assert!(!protects(&status(0, 0)));
        assert!(!protects(&status(1, 0)), "one has not moved yet");
        assert!(!protects(&status(1, 1)));
        assert!(protects(&status(2, 0)));
        assert!(protects(&status(1, 0)), "the other one has ended");
        assert!(!protects(&status(0, 0)));
    }
}
