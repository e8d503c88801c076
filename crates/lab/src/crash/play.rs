//! One run from the first handshake to the last byte: load, fault, takeover, and the old primary's return.

use std::time::{Duration, Instant as Deadline};

use anyhow::{Result, bail};
use proto::Instant;
use serde::{Serialize, Serializer};

use super::fault::power_off;
use super::stage::{Stage, service};
use super::work::{Moment, Work};
use super::{Options, Returning, Workload, baseline};
use crate::capture::Capture;
use crate::client::{ClientProcess, Event, Order, Report};
use crate::clock::{ClockOffset, monotonic};
use crate::emulator::{Emulator, Passed};
use crate::judge::{self, Closing, CommitMode, Expectations, Verdict, Wire};
use crate::net::address::{CLIENT, NODES};
use crate::node::{Connection, Status, Takeover};
use crate::teardown::Teardown;

/// How long all connections have to get their first byte.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// How long a run has to come to the moment of its fault.
const FAULT_LIMIT: Duration = Duration::from_secs(40);
/// How long the survivor has to decide every connection.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);
/// Waits that begin later after the fault are not its doing.
const STALL_WINDOW: Duration = Duration::from_millis(500);
/// The time before the fault in which a wait may already be the fault's.
const FAULT_MARGIN: Duration = Duration::from_millis(100);
/// How long each act after the takeover lasts.
const ACT: Duration = Duration::from_millis(250);
/// Beyond the plan's own deadline, to compute hashes and to report.
const REPORT_LIMIT: Duration = Duration::from_secs(60);

/// What a run has shown.
#[derive(Serialize)]
pub struct Facts {
    /// What the clients measured. Of its faults, number 0 is the fault, and number 1 the time before it.
    pub client: Report,
    /// When the fault began.
    #[serde(serialize_with = "as_nanos")]
    pub fault_at: Instant,
    /// The survivor's takeover.
    pub takeover: Option<Takeover>,
    /// The survivor's connections after the takeover.
    pub taken_over: Vec<Connection>,
    /// What the survivor did not do.
    pub problem: Option<String>,
    /// When the old primary's cable was plugged in again.
    #[serde(serialize_with = "as_optional_nanos")]
    pub returned_at: Option<Instant>,
    /// From the monotonic clock, which all other times here are of, to the wall clock of captures and verdict.
    pub clock: ClockOffset,
    /// The captures.
    pub captures: Vec<Capture>,
    /// What the emulator passed on, to the router and to the client.
    pub emulated: Option<[Passed; 2]>,
    /// What the judge says of the captures.
    pub verdict: Verdict,
}

/// Plays run `run` with the chances of `seed`; `tell` hears of each act.
///
/// # Errors
/// If the run could not be played to its end; that connections failed is no error.
pub fn play(options: &Options, seed: u64, run: &str, tell: &impl Fn(&str)) -> Result<Facts> {
    let teardown = Teardown::start()?;
    let facts = play_with(options, seed, run, tell, &teardown);
    tell("tear down");
    teardown.finish()?;
    facts
}

fn play_with(
    options: &Options,
    seed: u64,
    run: &str,
    tell: &impl Fn(&str),
    teardown: &Teardown,
) -> Result<Facts> {
    tell("set up");
    let clock = ClockOffset::measure();
    let work = Work::new(options, seed, service(options));
    let stage = Stage::set(options, &work, run, teardown)?;

    tell("connect");
    let mut command = stage.network.client.command(std::env::current_exe()?)?;
    command.arg(crate::CLIENT);
    let mut client = ClientProcess::start(command, &work.plan)?;
    client.wait_ready(READY_LIMIT)?;
    let flowing_at = monotonic();

    tell("load");
    wait_for_moment(&mut client, work.moment)?;
    tell("power off");
    let fault_at = power_off(
        &stage.network.nodes[0],
        &stage.network.cables[0],
        &stage.servers[0],
        &stage.captures.pids(),
        options.returning,
    )?;
    order_measurements(&mut client, flowing_at, fault_at)?;
    let survival = survive(&stage)?;
    let returned_at = if options.baseline {
        None
    } else {
        tell("the old primary returns");
        Some(bring_back(&stage, options.returning)?)
    };
    match options.workload {
        Workload::Download | Workload::Upload => {}
        Workload::Request => client.order(Order::Stop)?,
        Workload::Idle => client.order(Order::Wake)?,
    }

    tell("finish");
    let limit = Duration::from_millis(work.plan.deadline_ms) + REPORT_LIMIT;
    let client = client.finish(limit)?;
    let captures = stage.captures.stop()?;
    let emulated = stage.emulator.map(Emulator::finish).transpose()?;
    tell("judge");
    let verdict = judge::check(&captures, &expectations(options, clock.realtime_ns(fault_at)))?;
    Ok(Facts {
        client,
        fault_at,
        takeover: survival.takeover,
        taken_over: survival.taken_over,
        problem: survival.problem,
        returned_at,
        clock,
        captures,
        emulated,
        verdict,
    })
}

/// What must be seen if a power failure at `fault_at_ns` (of the captures' clock) changes nothing for the clients.
fn expectations(options: &Options, fault_at_ns: u64) -> Expectations {
    let client = if options.ipv6 {
        CLIENT.v6.into()
    } else {
        CLIENT.v4.into()
    };
    let node_b = Wire {
        node: 1,
        from_ns: 0,
        until_ns: u64::MAX,
    };
    Expectations {
        service: service(options),
        clients: vec![client],
        macs: NODES.map(|node| node.mac),
        mode: CommitMode::Prs,
        wires: if options.baseline {
            Vec::new()
        } else {
            vec![node_b]
        },
        role_changes_ns: vec![fault_at_ns],
        closing: Closing::ClientFirst,
    }
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
                Some(Event::Progress {
                    bytes_received,
                    bytes_sent,
                }),
                Moment::AtBytes(bytes),
            ) if bytes_received.max(bytes_sent) >= bytes => return Ok(()),
            (Some(Event::Report(report)), _) => {
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

/// Asks for the stalls around the fault, and for the longest wait before it.
fn order_measurements(client: &mut ClientProcess, flowing_at: Instant, fault_at: Instant) -> Result<()> {
    let before = fault_at.since(flowing_at).saturating_sub(FAULT_MARGIN);
    for (at, window) in [(fault_at, STALL_WINDOW), (flowing_at, before)] {
        client.order(Order::Fault {
            at_ns: at.as_nanos(),
            window_ms: window.as_millis() as u64,
        })?;
    }
    Ok(())
}

/// How the survivor took over.
#[derive(Default)]
pub struct Survival {
    /// What it reports of its takeover.
    pub takeover: Option<Takeover>,
    taken_over: Vec<Connection>,
    problem: Option<String>,
}

/// Waits until node b has decided every connection. Without steadfast: moves the address to it.
pub fn survive(stage: &Stage) -> Result<Survival> {
    let node = &stage.network.nodes[1];
    let Some([_, agent]) = &stage.agents else {
        std::thread::sleep(stage.pair.detection());
        let address = stage.pair.service.ip();
        baseline::hold(node, address)?;
        baseline::announce(node, &NODES[1], address)?;
        return Ok(Survival::default());
    };
    let deadline = Deadline::now() + TAKEOVER_LIMIT;
    loop {
        let status = agent.status(node);
        let takeover = status.as_ref().ok().and_then(Status::last_takeover);
        if takeover.is_some_and(|takeover| takeover.is_complete()) {
            let connections = agent.connections(node);
            return Ok(Survival {
                takeover,
                problem: connections.as_ref().err().map(|error| format!("{error:#}")),
                taken_over: connections.unwrap_or_default(),
            });
        }
        if Deadline::now() > deadline {
            let said = agent.last_words();
            let problem =
                format!("node b has not taken over after {TAKEOVER_LIMIT:?}: {status:?}; it said:{said}");
            return Ok(Survival {
                takeover,
                problem: Some(problem),
                ..Survival::default()
            });
        }
        std::thread::sleep(POLL);
    }
}

/// Plugs the old primary's cable in again, while the clients go on with the new one. Returns when.
fn bring_back(stage: &Stage, returning: Returning) -> Result<Instant> {
    let returned_at = monotonic();
    stage.network.cables[0].plug()?;
    std::thread::sleep(ACT);
    if returning == Returning::Frozen {
        stage.servers[0].signal(nix::sys::signal::Signal::SIGKILL)?;
        std::thread::sleep(ACT);
    }
    Ok(returned_at)
}

fn as_nanos<S: Serializer>(instant: &Instant, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(instant.as_nanos())
}

fn as_optional_nanos<S: Serializer>(instant: &Option<Instant>, serializer: S) -> Result<S::Ok, S::Error> {
    instant.map(Instant::as_nanos).serialize(serializer)
}
