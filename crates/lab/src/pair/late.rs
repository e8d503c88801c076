//! Changes of roles that no event of a run explains. On a busy machine, a node that is late can be declared dead. This breaks no rule if the
//! nodes still speak one after the other. So the judge is told of these changes, and the run reports each of them as a problem.

use judge::{Expectations, NodeChange};
use proto::Instant;

use super::testbed::Testbed;
use crate::clock::{ClockOffset, ms};
use crate::net::NODE_NAMES;
use crate::node::ReportedStatus;

/// A change of a node's role after the last event of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateChange {
    /// Index of the node.
    node: usize,
    at: Instant,
    kind: LateKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LateKind {
    /// The wire takes over from the primary.
    TakesOver,
    /// The primary goes on without the wire.
    Claims,
    /// The node becomes the wire.
    Returns,
}

impl LateKind {
    /// The change that begins with this state, if it concerns the judge.
    fn of(state: &str) -> Option<Self> {
        match state {
            "takingover" => Some(Self::TakesOver),
            "claiming" => Some(Self::Claims),
            "returning" => Some(Self::Returns),
            _ => None,
        }
    }
}

/// The changes of both nodes' roles since `since`, as far as the nodes can be asked, in order of time.
pub fn late_changes(testbed: &Testbed, since: Instant) -> Vec<LateChange> {
    let statuses = [0, 1].map(|node| testbed.status(node).ok());
    among(&statuses, since)
}

fn among(statuses: &[Option<ReportedStatus>; 2], since: Instant) -> Vec<LateChange> {
    let mut changes = Vec::new();
    for (node, status) in statuses.iter().enumerate() {
        let states = status.iter().flat_map(|status| status.states_since(since));
        changes.extend(states.filter_map(|(at, state)| {
            let kind = LateKind::of(state)?;
            Some(LateChange { node, at, kind })
        }));
    }
    changes.sort_by_key(|change| change.at);
    changes
}

impl LateChange {
    /// The problem that the run reports, if a node went on alone.
    pub fn problem(&self, since: Instant) -> Option<String> {
        let does = match self.kind {
            LateKind::TakesOver => "took over",
            LateKind::Claims => "went on without its wire",
            LateKind::Returns => return None,
        };
        let (name, after_ms) = (NODE_NAMES[self.node], ms(since.as_nanos(), self.at.as_nanos()));
        Some(format!(
            "node {name} {does} {after_ms:.0} ms after the last event of the run, without a fault"
        ))
    }

    /// Tells the judge. `changes` say which node may be the wire.
    pub fn tell(&self, clock: ClockOffset, expected: &mut Expectations, changes: &mut Vec<NodeChange>) {
        let at_ns = clock.realtime_ns(self.at);
        match self.kind {
            LateKind::TakesOver => expected.role_changes_ns.push(at_ns),
            LateKind::Claims => changes.push(NodeChange::Lost {
                node: 1 - self.node,
                at_ns,
            }),
            LateKind::Returns => changes.push(NodeChange::Returned {
                node: self.node,
                at_ns,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(history: &str) -> Option<ReportedStatus> {
        let text = format!(
            r#"{{"services": [{{"mode": "duplex", "connections": {{}}, "connections_complete": true, "takeovers": [],
                "history": [{history}]}}]}}"#
        );
        Some(serde_json::from_str(&text).expect("a status"))
    }

    fn state(at_ns: u64, state: &str) -> String {
        format!(r#"{{"at_ns": {at_ns}, "state": "{state}"}}"#)
    }

    /// Node a, which has become the wire, takes over at 2 ms. Node b comes back at 5 ms. What was before 1 ms belongs to the run.
    #[test]
    fn the_judge_is_told_of_a_takeover_that_no_fault_explains() {
        let of_a = [
            state(500_000, "returning"),
            state(600_000, "backup"),
            state(2_000_000, "takingover"),
        ];
        let of_b = [state(400_000, "takingover"), state(5_000_000, "returning")];
        let since = Instant::from_nanos(1_000_000);
        let late = among(&[status(&of_a.join(",")), status(&of_b.join(","))], since);
        let problems: Vec<_> = late.iter().filter_map(|change| change.problem(since)).collect();
        assert_eq!(
            problems,
            ["node a took over 1 ms after the last event of the run, without a fault"]
        );
        let kinds: Vec<_> = late.iter().map(|change| (change.node, change.kind)).collect();
        assert_eq!(kinds, [(0, LateKind::TakesOver), (1, LateKind::Returns)]);
    }

    #[test]
    fn a_node_that_cannot_be_asked_has_no_changes() {
        assert_eq!(among(&[None, None], Instant::ZERO), []);
    }
}
