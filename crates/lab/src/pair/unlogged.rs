//! Packets that a wire passed unlogged because its rings were full, and the connections that are unprotected for that reason.

use std::time::{Duration, Instant as Deadline};

use anyhow::Result;
use serde::Serialize;

use super::testbed::Testbed;
use crate::node::ReportedStatus;

/// Longest time until the wire's agent has said that connections are unprotected.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two reads of the status.
const POLL: Duration = Duration::from_millis(20);

/// The daemon's counter of these packets.
const COUNTER: &str = "passed_unlogged";
/// Text in the reason of a connection that is unprotected because such packets passed with commit mode `immediate`.
const LOG_WAS_FULL: &str = "unlogged while the log was full";

/// What a wire says of these packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnloggedPackets {
    /// Number of packets.
    pub packets: u64,
    /// Number of connections that are unprotected for this reason.
    pub unprotected: u64,
}

impl UnloggedPackets {
    /// Reads node b's status until it shows such packets and connections, but at most for [`PATIENCE`].
    ///
    /// # Errors
    /// If the agent does not answer.
    pub fn wait(testbed: &Testbed) -> Result<Self> {
        let deadline = Deadline::now() + PATIENCE;
        loop {
            let found = Self::of(&testbed.status(1)?);
            if found.problem().is_none() || Deadline::now() > deadline {
                return Ok(found);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Reads the numbers from the wire's status.
    fn of(status: &ReportedStatus) -> Self {
        let mut found = Self::default();
        for service in &status.services {
            found.packets += service.counters.get(COUNTER).copied().unwrap_or(0);
            let because = service.reasons.iter();
            let because = because.filter(|(reason, _)| reason.contains(LOG_WAS_FULL));
            found.unprotected += because.map(|(_, count)| count).sum::<u64>();
        }
        found
    }

    /// Adds the numbers of another run.
    pub fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.unprotected += other.unprotected;
    }

    /// Returns a problem if no packet has passed unlogged, or if no connection is unprotected for this reason.
    pub fn problem(self) -> Option<&'static str> {
        if self.packets == 0 {
            Some("no packet passed unlogged: the rings were not full")
        } else if self.unprotected == 0 {
            Some("packets passed unlogged, but no connection is unprotected for this reason")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_shows_a_full_ring_only_if_packets_passed_and_connections_say_so() {
        let found = |packets: u64, reason: &str| {
            let status = serde_json::json!({
                "services": [{
                    "mode": "duplex",
                    "connections": {"unprotected": 3},
                    "connections_complete": true,
                    "takeovers": [],
                    "reasons": {reason: 3},
                    "counters": {"passed_unlogged": packets},
                }],
            });
            UnloggedPackets::of(&serde_json::from_value(status).unwrap())
        };
        let right = "packets may have passed unlogged while the log was full (commit mode immediate)";
        let all = found(7, right);
        assert_eq!((all.packets, all.unprotected, all.problem()), (7, 3, None));
        assert!(found(0, right).problem().is_some());
        assert!(found(7, "older than the wire").problem().is_some());
    }
}
