//! After a takeover, recorded order begins again: node a comes back, and both servers are started again. Then node b fails.

use anyhow::Result;

use crate::node::ReportedStatus;
use crate::pair::PairOptions;
use crate::pair::aftermath::Aftermath;
use crate::pair::fault::CrashTarget;
use crate::pair::inject::inject;
use crate::pair::survive::survive;
use crate::pair::testbed::Testbed;
use crate::run::LabRun;

/// Node a has come back with a new server. Starts the server of node b again, and waits until its record is taken and played back. No agent
/// is started again for that.
pub(super) fn begin_again(
    testbed: &mut Testbed,
    options: &PairOptions,
    aftermath: &mut Aftermath,
    run: &LabRun<'_>,
) -> Result<()> {
    let problems = &mut aftermath.problems;
    testbed.wait_for(1, "say that it has no record", does("off"), problems)?;
    testbed.wait_for(0, "wait for a record", does("waits"), problems)?;
    run.step("restart");
    testbed.restart_server(1)?;
    testbed.wait_for(0, "play the record back", does("plays"), problems)?;
    testbed.wait_for(1, "record", does("records"), problems)?;
    for index in [0, 1] {
        testbed.wait_for(index, "be duplex", ReportedStatus::is_duplex, problems)?;
    }
    for index in [0, 1] {
        let node = &testbed.network.nodes[index];
        testbed.servers[index].wait_listening(node, options.application().port())?;
    }
    Ok(())
}

/// Node b's power goes off, and node a takes over.
pub(super) fn fail_again(
    testbed: &Testbed,
    options: &PairOptions,
    aftermath: &mut Aftermath,
    run: &LabRun<'_>,
) -> Result<()> {
    run.step("second fault");
    let fault_at = inject(testbed, options, CrashTarget::of(1))?;
    let (takeovers, taken_over) = survive(testbed, 0, fault_at, false, &mut aftermath.problems)?;
    aftermath.moved_at.extend(aftermath.deadly_at.replace(fault_at));
    aftermath.takeovers.extend(takeovers);
    aftermath.taken_over.extend(taken_over);
    aftermath.problems.extend(testbed.greet()?);
    Ok(())
}

fn does(activity: &str) -> impl FnMut(&ReportedStatus) -> bool {
    move |status| status.order_activity() == Some(activity)
}
