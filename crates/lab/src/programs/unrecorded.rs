//! A fault after which both servers go on without recorded order: what the nodes must say then.

use anyhow::Result;

use crate::node::ReportedStatus;
use crate::pair::expect::BACKUP;
use crate::pair::fault::{CrashFault, CrashTarget};
use crate::pair::testbed::Testbed;

/// The state of a node's record, and a part of its reason.
type ExpectedOrder = (&'static str, &'static str);

/// A new agent finds a server that had its role from the earlier agent.
const OF_EARLIER_AGENT: ExpectedOrder = (
    "off",
    "has no role from this agent: it got none, or had it from an earlier agent",
);

/// The faults after which a run can look at recorded order, besides a power failure.
pub(super) const FAULTS: [CrashFault; 3] = [CrashFault::KillAgent, CrashFault::Upgrade, CrashFault::Handover];

/// What nodes a and b say of the record after `fault` has hit `target` (docs/recorded-order.md, *When a record begins and ends*).
fn expected(fault: CrashFault, target: CrashTarget) -> [ExpectedOrder; 2] {
    match (fault, target) {
        (CrashFault::Handover, _) => [
            ("off", "this node has become the backup"),
            ("off", "the record has ended with the takeover"),
        ],
        (_, CrashTarget::Primary) => [
            OF_EARLIER_AGENT,
            (
                "off",
                "the primary: the record has ended, because the primary's server or its agent was started again",
            ),
        ],
        (_, CrashTarget::Backup) => [("waits", "the link to the backup is broken"), OF_EARLIER_AGENT],
        (_, CrashTarget::Both) => [OF_EARLIER_AGENT; 2],
    }
}

/// Adds to `problems` if node b does not say that its server has diverged (`unprotect`), or if it protects a connection nevertheless.
pub(super) fn check_divergence(testbed: &Testbed, problems: &mut Vec<String>) -> Result<()> {
    let says = |status: &ReportedStatus| status.order_is("off", "the server has diverged from the record");
    testbed.wait_for(BACKUP, "say that its server has diverged", says, problems)?;
    let what = "say that it protects none of the connections";
    testbed.wait_for(BACKUP, what, ReportedStatus::protects_none, problems)
}

/// Adds to `problems` if a node does not say why the record is off, or if a connection counts as protected although its replica goes on without
/// a record. The clients are at work, and share keys.
pub(super) fn check(
    testbed: &Testbed,
    fault: CrashFault,
    target: CrashTarget,
    problems: &mut Vec<String>,
) -> Result<()> {
    for (index, (activity, reason)) in expected(fault, target).into_iter().enumerate() {
        let what = format!("say of its record: {activity}, {reason}");
        let says = |status: &ReportedStatus| status.order_is(activity, reason);
        testbed.wait_for(index, &what, says, problems)?;
    }
    // A handover makes node a the wire.
    let wire = if fault == CrashFault::Handover {
        1 - BACKUP
    } else {
        BACKUP
    };
    let what = "say that it protects none of the connections, and why";
    testbed.wait_for(wire, what, ReportedStatus::protects_none, problems)
}
