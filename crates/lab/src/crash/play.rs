//! One run from the first handshake to the last byte: load, fault, what follows it, and the verdict.

use std::collections::BTreeMap;
use std::time::{Duration, Instant as Deadline};

use anyhow::{Context, Result, bail};
use proto::Instant;
use serde::{Serialize, Serializer};

use super::aftermath::follow;
use super::expect::{BACKUP, changes, expectations};
use super::inject::inject;
use super::integration::Integration;
use super::rounds::{self, CrashRound};
use super::testbed::{Testbed, service};
use super::work::{Moment, Work};
use super::{CrashOptions, CrashTarget};
use crate::capture::Capture;
use crate::client::{ClientEvent, ClientOrder, ClientProcess, ClientReport};
use crate::clock::{ClockOffset, monotonic};
use crate::emulator::{Emulator, Passed};
use crate::judge::{self, JudgeVerdict, Survey};
use crate::node::{AtLimitOption, ReportedConnection, ReportedTakeover};
use crate::teardown::Teardown;

/// Time limit for all connections to get their first byte: a fixed part, and a part for each connection.
const READY_LIMIT: Duration = Duration::from_secs(20);
const READY_LIMIT_EACH: Duration = Duration::from_millis(4);
/// Time limit for a run to reach the moment of its fault.
const FAULT_LIMIT: Duration = Duration::from_secs(40);
/// Time limit for a log to reach its limit after that, and the time between two checks.
const LIMIT_PATIENCE: Duration = Duration::from_secs(10);
const LIMIT_POLL: Duration = Duration::from_millis(10);
/// Text in the reason of a connection that is unprotected because its log is full.
const AT_LIMIT: &str = "the log reached its limit";
/// Time after an event in which a wait that begins is attributed to the event.
pub const STALL_WINDOW: Duration = Duration::from_millis(500);
/// Time before the fault in which a wait that begins may already be caused by the fault.
pub const FAULT_MARGIN: Duration = Duration::from_millis(100);
/// Time beyond the plan's own deadline, for the clients to compute hashes and to report.
const REPORT_LIMIT: Duration = Duration::from_secs(60);

/// Numbers under which the clients measure the fault, the time before it, the event after it, and a node's return.
/// With rounds, each round has three numbers: the fault, the time before it, the return.
pub const FAULT: usize = 0;
pub const BEFORE: usize = 1;
pub const AFTER: usize = 2;
pub const RETURN: usize = 3;

/// The results of a run.
#[derive(Serialize)]
pub struct RunFacts {
    /// What the clients measured.
    pub client: ClientReport,
    /// Number of idle connections if others are at work. They are the first ones.
    pub idle: usize,
    /// The node that the fault hit.
    pub target: CrashTarget,
    /// When the fault began.
    #[serde(serialize_with = "as_nanos")]
    pub fault_at: Instant,
    /// When the fault that makes node b take over began.
    #[serde(serialize_with = "as_optional_nanos")]
    pub deadly_at: Option<Instant>,
    /// When node a began to claim the address because its wire is gone, if it did.
    #[serde(serialize_with = "as_optional_nanos")]
    pub claimed_at: Option<Instant>,
    /// When the event after the fault began, if there was one.
    #[serde(serialize_with = "as_optional_nanos")]
    pub second_at: Option<Instant>,
    /// The survivor's takeovers.
    pub takeovers: Vec<ReportedTakeover>,
    /// The survivor's connections after the takeover.
    pub taken_over: Vec<ReportedConnection>,
    /// The return of a node after the fault, if one came back.
    pub integration: Option<Integration>,
    /// The rounds, if the run has rounds.
    pub rounds: Vec<CrashRound>,
    /// Number of times the speaking node has changed since the fault.
    pub role_changes: u64,
    /// The log just before the fault, if the run is about its limit.
    pub log: Option<LogAtFault>,
    /// Things that the daemons failed to do, or did without reason.
    pub problems: Vec<String>,
    /// Offset from the monotonic clock to the wall clock. The captures and the verdict have wall-clock times; all other times here are
    /// monotonic.
    pub clock: ClockOffset,
    /// The captures.
    pub captures: Vec<Capture>,
    /// Packets that the emulator passed on, to the router and to the client.
    pub emulated: Option<[Passed; 2]>,
    /// The judge's verdict on the captures.
    pub verdict: JudgeVerdict,
}

/// State of the wire's logs just before a fault.
#[derive(Clone, Debug, Serialize)]
pub struct LogAtFault {
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// Bytes in files.
    pub spilled_bytes: u64,
    /// Connections whose clients are slowed.
    pub slowed: u64,
    /// Number of connections for each state of protection.
    pub connections: BTreeMap<String, u64>,
    /// Number of unprotected connections for each reason.
    pub reasons: BTreeMap<String, u64>,
}

impl LogAtFault {
    /// Waits until the status shows the `at_limit` action in progress, or for [`LIMIT_PATIENCE`]. One look is not enough, because the
    /// clients may run in step. At one moment all of them are below their limits, and at another all are between two requests.
    fn wait(testbed: &Testbed, at_limit: AtLimitOption) -> Result<Self> {
        let deadline = Deadline::now() + LIMIT_PATIENCE;
        loop {
            let log = Self::of(testbed)?;
            if log.shows(at_limit) || Deadline::now() > deadline {
                return Ok(log);
            }
            std::thread::sleep(LIMIT_POLL);
        }
    }

    /// Whether the `at_limit` action was in progress.
    #[must_use]
    pub fn shows(&self, at_limit: AtLimitOption) -> bool {
        match at_limit {
            AtLimitOption::Spill => self.spilled_bytes > 0,
            AtLimitOption::Slow => self.slowed > 0,
            AtLimitOption::Unprotect => self.reasons.keys().any(|reason| reason.contains(AT_LIMIT)),
        }
    }

    fn of(testbed: &Testbed) -> Result<Self> {
        let status = testbed.status(BACKUP)?;
        let service = status
            .services
            .into_iter()
            .next()
            .context("there is no service")?;
        Ok(Self {
            memory_bytes: service.log_bytes,
            spilled_bytes: service.spilled_bytes,
            slowed: service.slowed,
            connections: service.connections,
            reasons: service.reasons,
        })
    }
}

/// Plays the run named `run`. `seed` decides its random choices. Calls `tell` with the name of each step.
///
/// # Errors
/// If the run could not be played to its end. A connection that fails is not an error.
pub fn play(options: &CrashOptions, seed: u64, run: &str, tell: &impl Fn(&str)) -> Result<RunFacts> {
    let teardown = Teardown::start()?;
    let facts = match options.rounds {
        Some(count) => rounds::play(options, count, seed, run, tell, &teardown),
        None => play_with(options, seed, run, tell, &teardown),
    };
    tell("tear down");
    teardown.finish()?;
    facts
}

fn play_with(
    options: &CrashOptions,
    seed: u64,
    run: &str,
    tell: &impl Fn(&str),
    teardown: &Teardown,
) -> Result<RunFacts> {
    let clock = ClockOffset::measure();
    let target = options.fault.target(options.node, seed)?;
    let work = Work::new(options, seed, service(options));
    let (mut testbed, mut client) = begin(options, &work, run, tell, teardown)?;
    let flowing_at = monotonic();

    tell("load");
    wait_for_moment(&mut client, work.moment)?;
    let at_limit = options.log.at_limit;
    let log = at_limit.map(|at_limit| LogAtFault::wait(&testbed, at_limit));
    let log = log.transpose()?;
    let epoch = testbed.epoch();
    tell("fault");
    let fault_at = inject(&testbed, options, target)?;
    measure(&mut client, fault_at, STALL_WINDOW)?;
    measure(
        &mut client,
        flowing_at,
        fault_at.since(flowing_at).saturating_sub(FAULT_MARGIN),
    )?;
    let mut aftermath = follow(&mut testbed, options, target, (fault_at, epoch), tell)?;
    if let Some(second_at) = aftermath.second_at {
        measure(&mut client, second_at, STALL_WINDOW)?;
    }
    if let Some(integration) = &aftermath.integration {
        integration.measure(&mut client)?;
    }
    tell("finish");
    let client = finish(client, &work)?;
    let detection = testbed.pair.detection();
    let captures = testbed.captures.stop()?;
    let emulated = testbed.emulator.map(Emulator::finish).transpose()?;
    tell("judge");
    let mut expected = expectations(options, &aftermath, clock);
    let survey = Survey::of(&captures, &expected)?;
    if !options.baseline {
        expected.wires = survey.wires(BACKUP, &changes(options, target, &aftermath, clock, detection));
    }
    if let Some(integration) = &mut aftermath.integration {
        integration.find(&survey, &captures, clock)?;
    }
    let verdict = judge::check(&captures, &expected)?;
    Ok(RunFacts {
        client,
        idle: work.plan.idle,
        target,
        fault_at,
        deadly_at: aftermath.deadly_at,
        claimed_at: aftermath.claimed_at,
        second_at: aftermath.second_at,
        takeovers: aftermath.takeovers,
        taken_over: aftermath.taken_over,
        integration: aftermath.integration,
        rounds: Vec::new(),
        role_changes: aftermath.role_changes,
        log,
        problems: aftermath.problems,
        clock,
        captures,
        emulated,
        verdict,
    })
}

/// Sets up the testbed and lets the clients connect.
///
/// # Errors
/// Names the step that failed.
pub fn begin(
    options: &CrashOptions,
    work: &Work,
    run: &str,
    tell: &impl Fn(&str),
    teardown: &Teardown,
) -> Result<(Testbed, ClientProcess)> {
    tell("set up");
    let testbed = Testbed::set(options, work, run, teardown)?;
    tell("connect");
    let mut command = testbed.network.client.command(std::env::current_exe()?)?;
    command.arg(crate::CLIENT);
    let mut client = ClientProcess::start(command, &work.plan)?;
    client.wait_ready(READY_LIMIT + READY_LIMIT_EACH * options.connections)?;
    Ok((testbed, client))
}

/// Lets the clients finish their work.
///
/// # Errors
/// If they do not report.
pub fn finish(mut client: ClientProcess, work: &Work) -> Result<ClientReport> {
    for order in [ClientOrder::Stop, ClientOrder::Wake] {
        client.order(order)?;
    }
    client.finish(Duration::from_millis(work.plan.deadline_ms) + REPORT_LIMIT)
}

fn wait_for_moment(client: &mut ClientProcess, moment: Moment) -> Result<()> {
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

/// Asks the clients for the longest wait that begins within `window` after `at`.
///
/// # Errors
/// If the clients cannot be told.
pub fn measure(client: &mut ClientProcess, at: Instant, window: Duration) -> Result<()> {
    client.order(ClientOrder::Fault {
        at_ns: at.as_nanos(),
        window_ms: window.as_millis() as u64,
        clips: false,
    })
}

/// Nanoseconds of the monotonic clock.
pub fn as_nanos<S: Serializer>(instant: &Instant, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(instant.as_nanos())
}

/// Nanoseconds of the monotonic clock, or null.
pub fn as_optional_nanos<S: Serializer>(instant: &Option<Instant>, serializer: S) -> Result<S::Ok, S::Error> {
    instant.map(Instant::as_nanos).serialize(serializer)
}
