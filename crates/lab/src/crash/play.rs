//! One run from the first handshake to the last byte: load, fault, takeover, and the old primary's return.

use std::time::{Duration, Instant as Deadline};

use anyhow::{Context, Result, bail};
use proto::Instant;

use super::fault::power_off;
use super::stage::{Stage, service};
use super::work::{Moment, Work};
use super::{Options, Returning, Workload, baseline};
use crate::capture::Capture;
use crate::client::{ClientProcess, Event, Order, Report};
use crate::clock::{ClockOffset, monotonic};
use crate::emulator::Passed;
use crate::net::address::NODES;
use crate::node::{Connection, Takeover};
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
pub struct Facts {
    /// What the clients measured. Of its faults, number 0 is the fault, and number 1 the time before it.
    pub client: Report,
    /// When every connection was flowing.
    pub flowing_at: Instant,
    /// When the fault began.
    pub fault_at: Instant,
    /// The survivor's takeover.
    pub takeover: Option<Takeover>,
    /// The survivor's connections after the takeover.
    pub taken_over: Vec<Connection>,
    /// When the old primary's cable was plugged in again.
    pub returned_at: Option<Instant>,
    /// The captures.
    pub captures: Vec<Capture>,
    /// What the emulator passed on, to the router and to the client.
    pub emulated: Option<[Passed; 2]>,
    /// From the monotonic clock to that of the captures.
    pub clock: ClockOffset,
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
    let (takeover, taken_over) = survive(&stage)?;
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
    let emulated = stage.emulator.map(|emulator| emulator.finish()).transpose()?;
    Ok(Facts {
        client,
        flowing_at,
        fault_at,
        takeover,
        taken_over,
        returned_at,
        captures,
        emulated,
        clock,
    })
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

/// Waits until node b has taken over. Without steadfast: moves the address to it.
fn survive(stage: &Stage) -> Result<(Option<Takeover>, Vec<Connection>)> {
    let node = &stage.network.nodes[1];
    let Some([_, agent]) = &stage.agents else {
        std::thread::sleep(stage.pair.detection());
        let address = stage.pair.service.ip();
        baseline::hold(node, address)?;
        baseline::announce(node, &NODES[1], address)?;
        return Ok((None, Vec::new()));
    };
    let deadline = Deadline::now() + TAKEOVER_LIMIT;
    loop {
        let status = agent.status(node).context("ask the survivor")?;
        match status.last_takeover() {
            Some(takeover) if takeover.is_complete() => {
                return Ok((Some(takeover), agent.connections(node)?));
            }
            takeover if Deadline::now() > deadline => {
                tracing::warn!("no complete takeover after {TAKEOVER_LIMIT:?}: {status:?}");
                return Ok((takeover, Vec::new()));
            }
            _ => std::thread::sleep(POLL),
        }
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
