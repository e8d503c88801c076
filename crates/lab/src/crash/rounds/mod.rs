//! The same fault repeatedly in one run. In each round a node is gone, the other goes on alone, the node comes back and becomes
//! the wire, and every connection is protected again. The next round hits the node that then has the role that the fault targets. With
//! policy `replica` the returning server gets the state of the other server, and the clients connect anew.

mod report;

use std::time::{Duration, Instant as Deadline};

use anyhow::{Result, bail};
use proto::Instant;
use serde::Serialize;

pub use self::report::{RoundReport, add_to};

use super::aftermath::{flapping, told};
use super::expect::{BACKUP, lost_at, of_service};
use super::fault::{CrashFault, CrashTarget};
use super::inject::{by_plan, power_off};
use super::integration::{Integration, wait_for};
use super::play::{self, RunFacts, STALL_WINDOW, as_nanos};
use super::testbed::{Testbed, service};
use super::work::Work;
use super::{CrashOptions, PolicyOption, Returning, reboot};
use crate::client::{ClientEvent, ClientOrder, ClientProcess};
use crate::clock::{ClockOffset, monotonic};
use crate::emulator::Emulator;
use crate::judge::{self, NodeChange, Survey};
use crate::node::{ReportedConnection, ReportedStatus, ReportedTakeover};
use crate::teardown::Teardown;

/// Time before each fault in which nothing disturbs the clients. Their waits around the fault and the return are compared with their waits
/// in this time.
const QUIET: Duration = Duration::from_millis(1000);
/// Time for which the survivor works alone.
const ALONE: Duration = Duration::from_millis(250);
/// Time limit for the survivor to decide every connection.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// One round.
#[derive(Serialize)]
pub struct CrashRound {
    /// The node that was hit.
    pub node: usize,
    /// Whether the node was the primary. If not, it was the wire.
    pub was_primary: bool,
    /// When the fault happened.
    #[serde(serialize_with = "as_nanos")]
    pub fault_at: Instant,
    /// The survivor's takeovers in this round.
    pub takeovers: Vec<ReportedTakeover>,
    /// The survivor's connections after the takeovers.
    pub taken_over: Vec<ReportedConnection>,
    /// How the node came back.
    pub integration: Integration,
}

/// A run in progress.
struct RoundsRun<'a> {
    options: &'a CrashOptions,
    target: CrashTarget,
    testbed: Testbed,
    client: ClientProcess,
    /// The node that speaks.
    primary: usize,
    rounds: Vec<CrashRound>,
    role_changes: u64,
    problems: Vec<String>,
}

/// Plays `count` rounds. `seed` decides the random choices. Calls `tell` with the name of each step.
///
/// # Errors
/// If the rounds could not be played to their end. A connection that fails is not an error.
pub fn play(
    options: &CrashOptions,
    count: u32,
    seed: u64,
    run: &str,
    tell: &impl Fn(&str),
    teardown: &Teardown,
) -> Result<RunFacts> {
    let clock = ClockOffset::measure();
    let target = options.fault.target(options.node, seed)?;
    let work = Work::new(options, seed, service(options));
    let (testbed, client) = play::begin(options, &work, run, tell, teardown)?;
    let epoch = testbed.epoch();
    let mut play = RoundsRun {
        options,
        target,
        testbed,
        client,
        primary: 1 - BACKUP,
        rounds: Vec::new(),
        role_changes: 0,
        problems: Vec::new(),
    };
    for number in 1..=count {
        // The rounds after a failed round would show nothing.
        if play.problems.is_empty() {
            play.round(number, tell)?;
            play.role_changes = play.testbed.epoch().saturating_sub(epoch);
            play.problems.extend(flapping(play.role_changes, number.into()));
        }
    }
    std::thread::sleep(QUIET);
    tell("finish");
    play.conclude(&work, clock, tell)
}

impl RoundsRun<'_> {
    fn round(&mut self, number: u32, tell: &impl Fn(&str)) -> Result<()> {
        tell(&format!("round {number}: load"));
        let quiet_at = monotonic();
        self.rest()?;
        tell(&format!("round {number}: fault"));
        let was_primary = self.target == CrashTarget::Primary;
        let node = if was_primary {
            self.primary
        } else {
            1 - self.primary
        };
        let fault_at = inject(&self.testbed, self.options, node)?;
        let (takeovers, taken_over) = self.survive(1 - node, fault_at, was_primary)?;
        self.primary = 1 - node;
        std::thread::sleep(ALONE);
        self.problems.extend(self.testbed.greet(self.options)?);
        tell(&format!("round {number}: return"));
        let mut integration = Integration::new(node, monotonic());
        bring_back(&mut self.testbed, self.options, node)?;
        integration.wait_duplex(&self.testbed, &mut self.problems)?;
        if self.options.policy == PolicyOption::Replica {
            // A replica follows a connection only from its beginning.
            integration.wait_synced(&self.testbed, &mut self.problems)?;
            self.client.order(ClientOrder::Reconnect)?;
        }
        integration.wait_protected(&self.testbed, &mut self.problems)?;
        self.problems.extend(self.testbed.greet(self.options)?);
        play::measure(&mut self.client, fault_at, STALL_WINDOW)?;
        let quiet = fault_at.since(quiet_at).saturating_sub(play::FAULT_MARGIN);
        play::measure(&mut self.client, quiet_at, quiet)?;
        integration.measure(&mut self.client)?;
        self.rounds.push(CrashRound {
            node,
            was_primary,
            fault_at,
            takeovers,
            taken_over,
            integration,
        });
        Ok(())
    }

    /// Leaves the clients undisturbed for a while. They must not end meanwhile.
    fn rest(&mut self) -> Result<()> {
        let deadline = Deadline::now() + QUIET;
        loop {
            let left = deadline.saturating_duration_since(Deadline::now());
            match self.client.next_event(left)? {
                None => return Ok(()),
                Some(ClientEvent::Report(report)) => {
                    let first = report.connections.iter().find_map(|one| one.failure.as_ref());
                    bail!("the clients were done before the fault; first failure: {first:?}");
                }
                Some(_) if left.is_zero() => return Ok(()),
                Some(_) => {}
            }
        }
    }

    /// Waits until node `index` goes on alone. If the fault hit the primary (`takes_over`), returns the takeovers of node `index` since
    /// `fault_at`, and its connections.
    fn survive(
        &mut self,
        index: usize,
        fault_at: Instant,
        takes_over: bool,
    ) -> Result<(Vec<ReportedTakeover>, Vec<ReportedConnection>)> {
        if !takes_over {
            wait_for(
                &self.testbed,
                index,
                ReportedStatus::is_alone,
                "go on alone",
                &mut self.problems,
            )?;
            return Ok((Vec::new(), Vec::new()));
        }
        let deadline = Deadline::now() + TAKEOVER_LIMIT;
        loop {
            let status = self.testbed.status(index);
            let takeovers: Vec<_> = status.as_ref().map_or_else(
                |_| Vec::new(),
                |status| {
                    let since = |takeover: &&ReportedTakeover| takeover.declared_ns >= fault_at.as_nanos();
                    status.takeovers().iter().filter(since).copied().collect()
                },
            );
            let speaks = status.as_ref().is_ok_and(ReportedStatus::speaks);
            if speaks && takeovers.last().is_some_and(ReportedTakeover::is_complete) {
                let connections = self
                    .testbed
                    .agent(index)?
                    .restored(&self.testbed.network.nodes[index]);
                let connections = connections.unwrap_or_else(|error| {
                    self.problems.push(format!("{error:#}"));
                    Vec::new()
                });
                return Ok((takeovers, connections));
            }
            if Deadline::now() > deadline {
                let (name, said) = (
                    &self.testbed.pair.names[index],
                    self.testbed.agent(index)?.last_words(),
                );
                let status = told(&status);
                self.problems.push(format!(
                    "{name} has not taken over after {TAKEOVER_LIMIT:?}: {status}; it said:{said}"
                ));
                return Ok((takeovers, Vec::new()));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Lets the clients finish, and judges the captures.
    fn conclude(self, work: &Work, clock: ClockOffset, tell: &impl Fn(&str)) -> Result<RunFacts> {
        let Self {
            options,
            target,
            testbed,
            client,
            mut rounds,
            role_changes,
            problems,
            ..
        } = self;
        let client = play::finish(client, work)?;
        let detection = testbed.pair.detection();
        let captures = testbed.captures.stop()?;
        let emulated = testbed.emulator.map(Emulator::finish).transpose()?;
        tell("judge");
        let at = |round: &CrashRound| clock.realtime_ns(round.fault_at);
        let deadly = rounds.iter().filter(|round| round.was_primary);
        let mut expected = of_service(options, deadly.map(at).collect());
        let survey = Survey::of(&captures, &expected)?;
        let changes = rounds.iter().flat_map(|round| {
            let lost = (!round.was_primary).then(|| NodeChange::Lost {
                node: round.node,
                at_ns: lost_at(options.fault, at(round), detection),
            });
            lost.into_iter().chain([round.integration.change(clock)])
        });
        expected.wires = survey.wires(BACKUP, &changes.collect::<Vec<_>>());
        for round in &mut rounds {
            round.integration.find(&survey, &captures, clock)?;
        }
        let verdict = judge::check(&captures, &expected)?;
        let first = rounds.first();
        Ok(RunFacts {
            target,
            fault_at: first.map_or_else(monotonic, |round| round.fault_at),
            deadly_at: first
                .filter(|round| round.was_primary)
                .map(|round| round.fault_at),
            claimed_at: None,
            second_at: first.map(|round| round.integration.returned_at),
            takeovers: rounds.iter().flat_map(|round| round.takeovers.clone()).collect(),
            taken_over: Vec::new(),
            integration: None,
            idle: work.plan.idle,
            client,
            rounds,
            role_changes,
            log: None,
            problems,
            clock,
            captures,
            emulated,
            verdict,
        })
    }
}

/// Injects the fault into node `index`. Returns the time just before the fault.
fn inject(testbed: &Testbed, options: &CrashOptions, index: usize) -> Result<Instant> {
    match options.fault {
        CrashFault::LinkDown | CrashFault::CutBackup => {
            let moment = monotonic();
            testbed.network.cables[index].pull()?;
            Ok(moment)
        }
        CrashFault::CutServicePath => {
            let moment = monotonic();
            options.how.cut(&testbed.network, index)?;
            Ok(moment)
        }
        CrashFault::Stop => {
            let moment = monotonic();
            testbed.agent(index)?.stop()?;
            Ok(moment)
        }
        CrashFault::Handover | CrashFault::Drain => by_plan(testbed, options.fault, index),
        // A power failure. The node's server is killed, because a machine that boots has no stopped server.
        _ => power_off(testbed, index, Returning::Killed),
    }
}

/// Brings node `index` back after the fault: boots it, connects it again, or starts its agent again.
fn bring_back(testbed: &mut Testbed, options: &CrashOptions, index: usize) -> Result<()> {
    match options.fault {
        CrashFault::CutServicePath => options.how.heal(&testbed.network, index),
        CrashFault::LinkDown | CrashFault::CutBackup => Ok(testbed.network.cables[index].plug()?),
        CrashFault::Stop => {
            testbed.agent_mut(index)?.wait_stopped()?;
            testbed.start_agent(index)
        }
        CrashFault::Handover => Ok(()),
        CrashFault::Drain => testbed.order(index, &["drain", &testbed.pair.names[index], "--off"]),
        _ => {
            reboot::boot(testbed, index)?;
            testbed.network.cables[index].plug()?;
            reboot::configure(testbed, index)?;
            testbed.start_agent(index)
        }
    }
}
