//! Counters of the edges that show a defect when they grow.

use std::time::Duration;

use crate::edge::daemon::ReportedEdge;

/// Time after the failover until both edges agree about every flow. Each edge moves flows within a heartbeat of the other edge, and packets
/// that were on their way have arrived.
pub const AGREED_AFTER: Duration = Duration::from_secs(1);

/// Names the counters that have grown although they should not. `agreed` is the status of the edges after [`AGREED_AFTER`], `end` is the
/// status of the same edges at the end of the run.
pub fn counter_problems(agreed: &[ReportedEdge], end: &[ReportedEdge]) -> Vec<String> {
    let mut problems = Vec::new();
    for (agreed, end) in agreed.iter().zip(end) {
        // While the flows move, one edge may already use the new string.
        let other = end
            .counter("other_string")
            .saturating_sub(agreed.counter("other_string"));
        if other > 0 {
            problems.push(format!(
                "{}: {other} packets came out of a string that is not their flow's string, after both edges had moved the flows",
                end.edge
            ));
        }
        let lost = end.counter("copy_lost");
        if lost > 0 {
            problems.push(format!("{}: {lost} copies for the cache were lost", end.edge));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(other_string: u64, copy_lost: u64) -> [ReportedEdge; 1] {
        let counters = [("other_string", other_string), ("copy_lost", copy_lost)];
        [ReportedEdge {
            edge: "r1".to_owned(),
            counters: counters
                .map(|(name, count)| (name.to_owned(), count.into()))
                .into(),
            ..ReportedEdge::default()
        }]
    }

    #[test]
    fn edges_may_disagree_only_while_flows_move() {
        assert!(counter_problems(&edge(7, 0), &edge(7, 0)).is_empty());
        let problems = counter_problems(&edge(7, 0), &edge(9, 0));
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("r1: 2 packets"), "{problems:?}");
    }

    #[test]
    fn no_copy_may_be_lost() {
        let problems = counter_problems(&edge(0, 3), &edge(0, 3));
        assert_eq!(problems, ["r1: 3 copies for the cache were lost"]);
    }
}
