//! Injects the same fault repeatedly in one run (`--rounds`). In each round one node fails and the other node goes on alone. Then the node
//! that failed comes back and becomes the wire, and every connection is protected again. The next fault hits the node that has the fault's
//! target role by then. With policy `replica` the returning server gets the state of the other server, and the clients connect anew. With
//! policy `replay` and `keep_input`, the returning node gets the connections' input.

use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::Signal;
use proto::Instant;

use super::facts::{CrashRound, RunFacts};
use super::play::{FAULT_MARGIN, STALL_WINDOW, move_away, wait_for_moment};
use super::random::RandomReplies;
use crate::client::{ClientOrder, ClientProcess};
use crate::clock::{ClockOffset, monotonic};
use crate::node::ReportedStatus;
use crate::pair::aftermath::Aftermath;
use crate::pair::clients::{begin, finish, measure};
use crate::pair::expect::{BACKUP, lost_at, of_service, speaking};
use crate::pair::fault::{CrashFault, CrashTarget};
use crate::pair::inject::{by_plan, inject, migrate, move_back, move_to_annex};
use crate::pair::integration::Integration;
use crate::pair::judged::JudgedRun;
use crate::pair::late::late_changes;
use crate::pair::survive::{flapping, survive};
use crate::pair::testbed::Testbed;
use crate::pair::work::{Moment, Work};
use crate::pair::{PairOptions, PolicyOption, reboot};
use crate::run::LabRun;
use judge::{Expectations, NodeChange};

/// Longest time for which a path must work again before its node returns, if the path failed several times (docs/paths.md, *Damping*).
const DAMPING_MAX: Duration = Duration::from_secs(32);
/// Time before each fault in which nothing disturbs the clients. The clients' waits in this time are compared with their waits around the
/// fault and the return.
const QUIET: Duration = Duration::from_millis(1000);
/// Time for which the survivor works alone.
const ALONE: Duration = Duration::from_millis(250);

/// A run in progress.
struct RoundsRun<'a> {
    options: &'a PairOptions,
    target: CrashTarget,
    testbed: Testbed,
    client: ClientProcess,
    /// The node that speaks.
    primary: usize,
    rounds: Vec<CrashRound>,
    role_changes: u64,
    problems: Vec<String>,
}

/// Plays `count` rounds.
///
/// # Errors
/// If the rounds could not be played to their end. A connection that fails is not an error.
pub fn play(options: &PairOptions, count: u32, run: &LabRun<'_>) -> Result<RunFacts> {
    let clock = ClockOffset::measure();
    let target = options.fault.target(options.node, run.seed)?;
    let work = Work::new(options, run.seed);
    let (testbed, client) = begin(options, &work, run)?;
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
            play.round(number, run)?;
            play.role_changes = play.testbed.epoch().saturating_sub(epoch);
            play.problems.extend(flapping(play.role_changes, number.into()));
        }
    }
    std::thread::sleep(QUIET);
    run.step("finish");
    play.conclude(&work, clock, run)
}

impl RoundsRun<'_> {
    fn round(&mut self, number: u32, run: &LabRun<'_>) -> Result<()> {
        run.step(&format!("round {number}: load"));
        let quiet_at = monotonic();
        wait_for_moment(&mut self.client, Moment::After(QUIET))?;
        if self.options.fault == CrashFault::MigrateBack {
            return self.there_and_back(number, quiet_at, run);
        }
        if self.options.fault == CrashFault::MigrateAnnex {
            return self.visit_annexes(number, quiet_at, run);
        }
        run.step(&format!("round {number}: fault"));
        let of_primary = |is_primary: bool| {
            if is_primary {
                self.primary
            } else {
                1 - self.primary
            }
        };
        let hit = of_primary(self.target == CrashTarget::Primary);
        // Whichever node is asked for a handover, the primary stops serving.
        let was_primary = self.target == CrashTarget::Primary || self.options.fault == CrashFault::Handover;
        let node = of_primary(was_primary);
        let kept = self.testbed.status(1 - node).map_or(0, |status| status.kept());
        let fault_at = inject(&self.testbed, self.options, CrashTarget::of(hit))?;
        let handed_over_at = self.hand_over_behind(node, kept)?;
        let (testbed, problems) = (&self.testbed, &mut self.problems);
        let (takeovers, taken_over) = if was_primary {
            survive(testbed, 1 - node, fault_at, false, problems)?
        } else {
            testbed.wait_for(1 - node, "go on alone", ReportedStatus::is_alone, problems)?;
            (Vec::new(), Vec::new())
        };
        self.primary = 1 - node;
        std::thread::sleep(ALONE);
        self.problems.extend(self.testbed.greet()?);
        run.step(&format!("round {number}: return"));
        // A node that gives its service to the other node becomes the wire at once.
        let gives = matches!(
            self.options.fault,
            CrashFault::Handover | CrashFault::KillServer | CrashFault::HangServer
        );
        let became_wire = handed_over_at.or(gives.then_some(fault_at));
        let mut integration = Integration::new(node, became_wire.unwrap_or_else(monotonic));
        bring_back(&mut self.testbed, self.options, node)?;
        let damping = if self.options.fault.cuts_path() {
            DAMPING_MAX
        } else {
            Duration::ZERO
        };
        integration.wait_duplex(&self.testbed, damping, &mut self.problems)?;
        if self.options.policy == PolicyOption::Replica {
            // A replica follows a connection only from its beginning.
            integration.wait_synced(&self.testbed, &mut self.problems)?;
            self.client.order(ClientOrder::Reconnect)?;
        }
        integration.wait_protected(&self.testbed, &mut self.problems)?;
        self.problems.extend(self.testbed.greet()?);
        measure(&mut self.client, fault_at, STALL_WINDOW)?;
        let quiet = fault_at.since(quiet_at).saturating_sub(FAULT_MARGIN);
        measure(&mut self.client, quiet_at, quiet)?;
        integration.measure(&mut self.client)?;
        self.rounds.push(CrashRound {
            node,
            was_primary,
            fault_at,
            moved_on_at: Vec::new(),
            handed_over_at,
            takeovers,
            taken_over,
            protected_ms: Vec::new(),
            integration,
        });
        Ok(())
    }

    /// With fault `migrate-back`: all connections move from the primary to its backup, and back as soon as they are protected there.
    fn there_and_back(&mut self, number: u32, quiet_at: Instant, run: &LabRun<'_>) -> Result<()> {
        let (there, back) = (self.primary, 1 - self.primary);
        run.step(&format!("round {number}: there"));
        let (moved_at, there_ms) = move_away(&self.testbed, self.options, &mut self.problems)?;
        std::thread::sleep(ALONE);
        run.step(&format!("round {number}: back"));
        let back_at = migrate(&self.testbed, back)?;
        let mut integration = Integration::new(back, back_at);
        integration.wait_duplex(&self.testbed, Duration::ZERO, &mut self.problems)?;
        integration.wait_protected(&self.testbed, &mut self.problems)?;
        let protected_ms = [Some(there_ms), integration.whole_after_ms()];
        self.problems.extend(self.testbed.greet()?);
        measure(&mut self.client, moved_at, STALL_WINDOW)?;
        let quiet = moved_at.since(quiet_at).saturating_sub(FAULT_MARGIN);
        measure(&mut self.client, quiet_at, quiet)?;
        integration.measure(&mut self.client)?;
        self.rounds.push(CrashRound {
            node: there,
            was_primary: true,
            fault_at: moved_at,
            moved_on_at: Vec::new(),
            handed_over_at: Some(back_at),
            takeovers: Vec::new(),
            taken_over: Vec::new(),
            protected_ms: protected_ms.into_iter().flatten().collect(),
            integration,
        });
        Ok(())
    }

    /// With fault `migrate-annex`: all connections move from the primary to an annex, to the other annex if there are two, and back.
    fn visit_annexes(&mut self, number: u32, quiet_at: Instant, run: &LabRun<'_>) -> Result<()> {
        run.step(&format!("round {number}: to the annex"));
        let moved_at = move_to_annex(&self.testbed, &mut self.problems)?;
        run.step(&format!("round {number}: back"));
        let mut moved_on_at = move_back(&self.testbed, ALONE, &mut self.problems)?;
        let back_at = moved_on_at.pop();
        let mut integration = Integration::new(BACKUP, back_at.unwrap_or(moved_at));
        integration.wait_protected(&self.testbed, &mut self.problems)?;
        self.problems.extend(self.testbed.greet()?);
        measure(&mut self.client, moved_at, STALL_WINDOW)?;
        let quiet = moved_at.since(quiet_at).saturating_sub(FAULT_MARGIN);
        measure(&mut self.client, quiet_at, quiet)?;
        integration.measure(&mut self.client)?;
        self.rounds.push(CrashRound {
            node: self.primary,
            was_primary: true,
            fault_at: moved_at,
            moved_on_at,
            handed_over_at: back_at,
            protected_ms: Vec::new(),
            takeovers: Vec::new(),
            taken_over: Vec::new(),
            integration,
        });
        Ok(())
    }

    /// With fault `migrate`: the connections have moved from `node` to its backup, which relays them and is still the wire. Lets the service
    /// follow them, so that they are protected again and can move back. `kept`: number of connections
    /// that the backup's keeper had received before. Returns the time just before the order.
    fn hand_over_behind(&mut self, node: usize, kept: u64) -> Result<Option<Instant>> {
        if self.options.fault != CrashFault::Migrate {
            return Ok(None);
        }
        let kept = kept + u64::from(self.options.connections);
        let relays = |status: &ReportedStatus| status.kept() >= kept;
        let what = "relay all connections, which were to move";
        self.testbed
            .wait_for(1 - node, what, relays, &mut self.problems)?;
        std::thread::sleep(ALONE);
        by_plan(&self.testbed, CrashFault::Handover, node).map(Some)
    }

    /// Lets the clients finish, and judges the captures.
    fn conclude(self, work: &Work, clock: ClockOffset, run: &LabRun<'_>) -> Result<RunFacts> {
        let Self {
            options,
            target,
            testbed,
            client,
            mut rounds,
            role_changes,
            mut problems,
            ..
        } = self;
        let last = rounds.last().and_then(|round| round.integration.settled_at());
        let settled_at = last.unwrap_or_else(monotonic);
        let client = finish(client, work)?;
        let late = late_changes(&testbed, settled_at);
        problems.extend(late.iter().filter_map(|one| one.problem(settled_at)));
        run.step("judge");
        let random = work.plan.random.then(|| {
            RandomReplies::compare(
                &client,
                &run.directory,
                options.policy == PolicyOption::Snapshot,
                &mut problems,
            )
        });
        let random = random.transpose()?;
        let (mut expected, mut changes) = judge_of(options, &rounds, clock, testbed.pair.detection());
        late.iter()
            .for_each(|one| one.tell(clock, &mut expected, &mut changes));
        let judged = JudgedRun::of(testbed, expected, &changes)?;
        let moves_to_annex = options.fault == CrashFault::MigrateAnnex;
        // With annexes, no node becomes the wire.
        for round in rounds.iter_mut().filter(|_| !moves_to_annex) {
            round.integration.find(&judged.survey, &judged.captures, clock)?;
        }
        let first = rounds.first();
        let fault_at = first.map_or_else(monotonic, |round| round.fault_at);
        let aftermath = Aftermath {
            deadly_at: first.filter(|round| round.was_primary).map(|_| fault_at),
            second_at: first.map(|round| round.integration.returned_at),
            takeovers: rounds.iter().flat_map(|round| round.takeovers.clone()).collect(),
            role_changes,
            problems,
            ..Aftermath::new(fault_at)
        };
        Ok(RunFacts {
            client,
            idle: work.plan.idle,
            target,
            aftermath,
            rounds,
            random,
            log: None,
            clock,
            judged,
        })
    }
}

/// The judge's view of the rounds: the moments at which another node may speak, and the changes of the wire.
fn judge_of(
    options: &PairOptions,
    rounds: &[CrashRound],
    clock: ClockOffset,
    detection: Duration,
) -> (Expectations, Vec<NodeChange>) {
    let at = |round: &CrashRound| clock.realtime_ns(round.fault_at);
    let deadly = rounds.iter().filter(|round| round.was_primary);
    let may_speak_from = deadly.flat_map(|round| {
        let later = round.moved_on_at.iter().chain(&round.handed_over_at);
        [at(round)]
            .into_iter()
            .chain(later.map(|&at| clock.realtime_ns(at)))
    });
    let expected = Expectations {
        speaking: speaking(options),
        ..of_service(options, may_speak_from.collect())
    };
    let changes = rounds.iter().flat_map(|round| {
        let lost = (!round.was_primary).then(|| NodeChange::Lost {
            node: round.node,
            at_ns: lost_at(options.fault, at(round), detection),
        });
        let keeps_roles = matches!(options.fault, CrashFault::MigrateBack | CrashFault::MigrateAnnex);
        let returned = (!keeps_roles).then(|| round.integration.change(clock));
        lost.into_iter().chain(returned)
    });
    (expected, changes.collect())
}

/// Brings node `index` back after the fault: boots it, connects it again, or starts its agent or its server again.
fn bring_back(testbed: &mut Testbed, options: &PairOptions, index: usize) -> Result<()> {
    match options.fault {
        CrashFault::KillServer => testbed.start_server(index),
        CrashFault::HangServer => testbed.servers[index].signal(Signal::SIGCONT),
        CrashFault::CutServicePath => options.how.heal(&testbed.network, index),
        CrashFault::LinkDown | CrashFault::CutBackup => Ok(testbed.network.cables[index].plug()?),
        CrashFault::Stop => {
            testbed.agent_mut(index)?.wait_stopped()?;
            testbed.start_agent(index)
        }
        CrashFault::Handover | CrashFault::Migrate | CrashFault::MigrateBack | CrashFault::MigrateAnnex => {
            Ok(())
        }
        CrashFault::Drain => testbed.order(index, &["drain", &testbed.pair.names[index], "--off"]),
        _ => {
            reboot::boot(testbed, index)?;
            testbed.network.cables[index].plug()?;
            reboot::configure(testbed, index)?;
            testbed.start_agent(index)
        }
    }
}
