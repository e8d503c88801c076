//! One run from the first handshake to the last byte: the load, the fault, the events after the fault, and the verdict.

use std::time::{Duration, Instant as Deadline};

use anyhow::{Result, bail};
use proto::Instant;

use super::facts::{LogAtFault, RunFacts};
use super::random::RandomReplies;
use crate::client::{ClientEvent, ClientProcess};
use crate::clock::{ClockOffset, monotonic, ms};
use crate::pair::aftermath::follow;
use crate::pair::clients::{begin, finish, measure};
use crate::pair::expect::{changes, expectations};
use crate::pair::inject::{inject, migrate, move_to_annex};
use crate::pair::judged::JudgedRun;
use crate::pair::late::late_changes;
use crate::pair::protection::protects_moved;
use crate::pair::testbed::Testbed;
use crate::pair::work::{Moment, Work};
use crate::pair::{PairOptions, PolicyOption};
use crate::run::LabRun;

/// Time limit for a run to reach the moment of its fault.
const FAULT_LIMIT: Duration = Duration::from_secs(40);
/// A client's wait for bytes that begins within this time after an event is attributed to the event.
pub const STALL_WINDOW: Duration = Duration::from_millis(500);
/// A client's wait for bytes that begins within this time before the fault may last into the fault. So it does not count as fault-free.
pub const FAULT_MARGIN: Duration = Duration::from_millis(100);

/// Plays the run.
///
/// # Errors
/// If the run could not be played to its end. A connection that fails is not an error.
pub fn play(options: &PairOptions, run: &LabRun<'_>) -> Result<RunFacts> {
    let clock = ClockOffset::measure();
    let target = options.fault.target(options.node, run.seed)?;
    let work = Work::new(options, run.seed);
    let (mut testbed, mut client) = begin(options, &work, run)?;
    let flowing_at = monotonic();

    run.step("load");
    wait_for_moment(&mut client, work.moment)?;
    let at_limit = options.log.at_limit;
    let log = at_limit.map(|at_limit| LogAtFault::wait(&testbed, at_limit));
    let log = log.transpose()?;
    let epoch = testbed.epoch();
    let mut problems = Vec::new();
    let moved = move_first(&testbed, options, &mut problems, run)?;
    let (moved_at, protected_ms) = moved.unzip();
    run.step("fault");
    let cpu_before = testbed.daemons_cpu()?;
    let fault_at = inject(&testbed, options, target)?;
    measure(&mut client, fault_at, STALL_WINDOW)?;
    measure(
        &mut client,
        flowing_at,
        fault_at.since(flowing_at).saturating_sub(FAULT_MARGIN),
    )?;
    let mut aftermath = follow(&mut testbed, options, target, (fault_at, epoch), run)?;
    aftermath.daemons_cpu = aftermath.daemons_cpu.saturating_sub(cpu_before);
    aftermath.moved_at.extend(moved_at);
    aftermath.protected_ms.splice(0..0, protected_ms.flatten());
    aftermath.problems.extend(problems);
    if let Some(second_at) = aftermath.second_at {
        measure(&mut client, second_at, STALL_WINDOW)?;
    }
    if let Some(integration) = &aftermath.integration {
        integration.measure(&mut client)?;
    }
    run.step("finish");
    let client = finish(client, &work)?;
    let late = late_changes(&testbed, aftermath.settled_at);
    aftermath.role_changes = testbed.epoch().saturating_sub(epoch);
    let problems = late.iter().filter_map(|one| one.problem(aftermath.settled_at));
    aftermath.problems.extend(problems);
    run.step("judge");
    let random = work.plan.random.then(|| {
        RandomReplies::compare(
            &client,
            &run.directory,
            options.policy == PolicyOption::Snapshot,
            &mut aftermath.problems,
        )
    });
    let random = random.transpose()?;
    let mut expected = expectations(options, &aftermath, clock);
    let mut changes = changes(options, target, &aftermath, clock, testbed.pair.detection());
    late.iter()
        .for_each(|one| one.tell(clock, &mut expected, &mut changes));
    let judged = JudgedRun::of(testbed, expected, &changes)?;
    if let Some(integration) = &mut aftermath.integration {
        integration.find(&judged.survey, &judged.captures, clock)?;
    }
    Ok(RunFacts {
        client,
        idle: work.plan.idle,
        target,
        aftermath,
        rounds: Vec::new(),
        random,
        log,
        clock,
        judged,
    })
}

/// Moves the connections before a fault that needs it. Returns the time just before the order, and how long the connections were not protected.
fn move_first(
    testbed: &Testbed,
    options: &PairOptions,
    problems: &mut Vec<String>,
    run: &LabRun<'_>,
) -> Result<Option<(Instant, Option<f64>)>> {
    if options.fault.follows_a_move() {
        run.step("move");
        let (moved_at, protected_ms) = move_away(testbed, options, problems)?;
        return Ok(Some((moved_at, Some(protected_ms))));
    }
    if options.fault.begins_on_annex() {
        run.step("move");
        let moved_at = move_to_annex(testbed, problems)?;
        std::thread::sleep(STALL_WINDOW);
        return Ok(Some((moved_at, None))); // protected all the time
    }
    Ok(None)
}

/// Moves all connections from node a to node b, and waits until node a protects those that are still open. Returns the time just before the
/// order, and the milliseconds from then until they were protected.
///
/// # Errors
/// If the order fails, or if a connection stays.
pub fn move_away(
    testbed: &Testbed,
    options: &PairOptions,
    problems: &mut Vec<String>,
) -> Result<(Instant, f64)> {
    let moved_at = migrate(testbed, 0)?;
    let protects = protects_moved(options.connections.into());
    testbed.wait_for(0, "protect the connections that have moved", protects, problems)?;
    Ok((moved_at, ms(moved_at.as_nanos(), monotonic().as_nanos())))
}

/// Waits until `moment`. The clients must not end before it.
///
/// # Errors
/// If the clients end before `moment`, or do not transfer its bytes within `FAULT_LIMIT`.
pub fn wait_for_moment(client: &mut ClientProcess, moment: Moment) -> Result<()> {
    let limit = match moment {
        Moment::AtBytes(_) => FAULT_LIMIT,
        Moment::After(time) => time,
    };
    let deadline = Deadline::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Deadline::now());
        match (client.next_event(left)?, moment) {
            (
                Some(ClientEvent::Progress {
                    bytes_received,
                    bytes_sent,
                }),
                Moment::AtBytes(bytes),
            ) if bytes_received.max(bytes_sent) >= bytes => return Ok(()),
            (Some(ClientEvent::Report(report)), _) => {
                let first = report.connections.iter().find_map(|one| one.failure.as_ref());
                bail!(
                    "the clients were done before the fault (--megabytes makes them last longer); first failure: {first:?}"
                );
            }
            (Some(_), _) => {}
            (None, Moment::After(_)) => return Ok(()),
            (None, Moment::AtBytes(bytes)) => {
                bail!(
                    "after {limit:?} the clients had not yet carried {bytes} bytes, the moment of the fault"
                )
            }
        }
    }
}
