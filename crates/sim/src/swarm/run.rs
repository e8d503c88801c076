//! Plays one scenario. In the safety phase the faults are injected. Then everything is mended, and the liveness phase follows. If the pair
//! has recovered, one node finally loses its power for good.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use proto::Instant;
use proto::standing::ArbiterVerdict;

use super::fault::{FaultKind, Mend, PlannedFault};
use super::outage::PathWatch;
use super::outcome::{RunOutcome, Violation};
use super::phase::{Observer, PairPhase};
use super::scenario::Scenario;
use super::silence::Silences;
use super::verdict::{self, Failures};
use crate::pair::arbiter::{RunningFence, TimedAnswer};
use crate::pair::draw::Draw;
use crate::pair::{SimClient, SimPair, Station};

/// Longest time that a fault waits for its phase.
const WAIT_MAX: Duration = Duration::from_millis(1_200);
/// Time that a fenced node is off.
const FENCED: Duration = Duration::from_millis(400);
/// A failure does not count as the cause of an event that happens longer than this after the failure's end.
const CALM: Duration = Duration::from_secs(1);
/// Time from the end of the last fault until everything is mended.
const AFTERMATH: Duration = Duration::from_millis(200);
/// A new client connects this long after the mending. In the last phase, a new client connects this long after the phase begins; the power
/// failure comes [`UNDER_WAY`] after the phase begins. Before this time, [`SwarmRun::wait`] does not check its condition.
const SETTLING: Duration = Duration::from_secs(3);
/// After the mending, the cables go on losing packets for this time. If the pair recovers sooner, the losses go on until this long after
/// the last phase begins.
const LOSSY: Duration = Duration::from_secs(15);
/// Time limit for the recovery after the mending, and for the last phase. A client without SACK whose window is two segments waits for a
/// timeout after each loss. A restored socket's first timeout is 3 s, and each timeout doubles the next one. If the acknowledgement of a
/// segment is lost, the segment is retransmitted, and the sender's next round-trip sample includes the whole timeout (RFC 7323 §4.3).
/// Because of the doubling, the timer that runs when the losses end may run for about as long again as the losses lasted. So the losses
/// must end well before this limit.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// One client connects this long before the last power failure, so that its connection is under way then.
const UNDER_WAY: Duration = Duration::from_millis(40);
/// Time between two checks of a condition.
const LOOK: Duration = Duration::from_millis(20);

/// Plays a scenario. A panic counts as a broken rule.
pub fn play(scenario: &Scenario) -> RunOutcome {
    let play_on = || SwarmRun::new(scenario).play_on();
    catch_unwind(AssertUnwindSafe(play_on)).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| cause.downcast_ref().copied()).unwrap_or("");
        RunOutcome {
            violations: vec![Violation::new("panic", text.to_owned())],
            ..RunOutcome::default()
        }
    })
}

/// Plays a scenario and also returns the trace: one line per packet and per action of the nodes.
pub fn play_traced(scenario: &Scenario) -> (RunOutcome, String) {
    let mut run = SwarmRun::new(scenario);
    run.pair.world.record();
    let outcome = run.play_on();
    (outcome, run.pair.world.trace().to_owned())
}

struct SwarmRun<'a> {
    scenario: &'a Scenario,
    pair: SimPair,
    observer: Observer,
    phase: PairPhase,
    mends: Vec<(Instant, Mend)>,
    /// Ends of the faults that were injected.
    ends: Vec<Instant>,
    /// Beginning and end of each fault that is a failure, not an order to move connections.
    failures: Vec<(Instant, Instant)>,
    /// When the agents did not hear each other.
    silences: Silences,
    /// Watch of a path that broke while nothing else failed.
    watch: Option<PathWatch>,
    /// Violations so far, and when each was seen.
    seen: Vec<(Instant, Violation)>,
    /// When fences switched nodes off, and which nodes: 0 or 1.
    fenced: Vec<(Instant, usize)>,
    outcome: RunOutcome,
}

impl<'a> SwarmRun<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let mut pair = SimPair::new(&scenario.pair_config());
        for connection in &scenario.connections {
            let mut draw = Draw::new(connection.seed);
            let talk = draw.talk_of(
                scenario.policy,
                connection.requests,
                connection.bytes_max,
                connection.half_closes,
            );
            pair.connect(Instant::ZERO + Duration::from_micros(connection.at_us), talk);
        }
        let late_start = Duration::from_micros(scenario.nodes.late_start_us);
        let backup = pair.backup;
        pair.world.with(backup, |station: &mut Station, now| {
            station.machine_mut().freeze(now + late_start)
        });
        Self {
            observer: Observer::new(&pair),
            scenario,
            pair,
            phase: PairPhase::Pairing,
            mends: Vec::new(),
            ends: Vec::new(),
            failures: Vec::new(),
            silences: Silences::new(scenario.service_link),
            watch: None,
            seen: Vec::new(),
            fenced: Vec::new(),
            outcome: RunOutcome::default(),
        }
    }

    fn play_on(&mut self) -> RunOutcome {
        for fault in &self.scenario.faults {
            if fault.during.is_some() {
                let deadline = self.now() + WAIT_MAX;
                self.advance(deadline, fault.during);
            }
            let moment = self.now() + Duration::from_micros(fault.after_us);
            self.advance(moment, None);
            self.inject(fault);
        }
        let end = self.ends.iter().fold(self.now(), |end, one| end.max(*one));
        self.advance(end + AFTERMATH, None);
        self.mend_all();
        if self.recover() {
            self.lose_one();
        }
        let mut outcome = std::mem::take(&mut self.outcome);
        let seen = std::mem::take(&mut self.seen);
        let failures = Failures {
            silences: &self.silences,
            all: &self.failures,
        };
        verdict::judge(self.scenario, &self.pair, failures, seen, &mut outcome);
        outcome.annexed = self.pair.judge().annexed();
        outcome.carried = self.pair.judge().carried();
        outcome.time = self.now().since(Instant::ZERO);
        for station in self.pair.stations() {
            let (kept, imported) = station.machine().snapshot_counts();
            outcome.snapshots.0 += kept;
            outcome.snapshots.1 += imported;
            outcome.migrated += station.machine().migrated();
            outcome.unlogged += station.machine().unlogged();
        }
        outcome
    }

    fn now(&self) -> Instant {
        self.pair.world.now()
    }

    /// Advances the world until `until`, or until the pair is in `phase`.
    fn advance(&mut self, until: Instant, phase: Option<PairPhase>) {
        loop {
            let due = self.mends.iter().map(|(at, _)| *at).min();
            let limit = due.map_or(until, |due| due.min(until));
            let limit = if self.watch.is_some() {
                limit.min(self.now() + LOOK)
            } else {
                limit
            };
            if !self.run_until(limit, phase) {
                return;
            }
            let now = self.now();
            if let Some(watch) = self.watch.take() {
                let (watch, wrong) = watch.look(&self.pair, now);
                self.watch = watch;
                self.seen.extend(wrong.map(|wrong| (now, wrong)));
            }
            let (due, later) = std::mem::take(&mut self.mends)
                .into_iter()
                .partition(|(at, _)| *at <= now);
            self.mends = later;
            let due: Vec<(Instant, Mend)> = due;
            due.iter().for_each(|(_, mend)| mend.carry_out(&mut self.pair));
            if now >= until {
                return;
            }
        }
    }

    /// As [`advance`](Self::advance), but mends nothing. Carries out the fences that are due. Returns false if the pair reached `phase`.
    fn run_until(&mut self, until: Instant, phase: Option<PairPhase>) -> bool {
        loop {
            let (observer, seen, arbiter) = (&mut self.observer, &mut self.phase, self.pair.arbiter.clone());
            let fences = || {
                let arbiter = arbiter.as_ref()?.borrow();
                let due = arbiter.fences.iter().map(|fence| fence.due).min()?;
                Some((arbiter.fences.len(), due))
            };
            let planned = fences();
            let limit = planned.map_or(until, |(_, due)| due.min(until));
            let (world, judge) = self.pair.world_and_judge();
            let is_over = world.run_while(limit, |world| {
                *seen = observer.look(world, judge.borrow().has_handshakes());
                Some(*seen) != phase && fences() == planned
            });
            if is_over {
                world.run_until(limit);
                self.fence();
                if limit == until {
                    return true;
                }
            } else if Some(self.phase) == phase {
                return false;
            }
        }
    }

    /// Carries out the fence commands that are due: switches the other node off for some time, and answers. In every second run the
    /// power switch carries out its order even if the node that gave the order is off by then.
    fn fence(&mut self) {
        let now = self.now();
        let Some(arbiter) = self.pair.arbiter.clone() else {
            return;
        };
        let is_ordered = (self.scenario.seed >> 1).is_multiple_of(2);
        let nodes = [self.pair.primary, self.pair.backup];
        let is_due = |fence: &mut RunningFence| fence.due <= now;
        let due: Vec<RunningFence> = arbiter.borrow_mut().fences.extract_if(.., is_due).collect();
        for mut fence in due {
            let number = fence.question.node;
            let (asker, other) = (nodes[number], nodes[1 - number]);
            let lives = self.pair.world.is_powered(asker);
            if !lives && !is_ordered {
                continue;
            }
            let station: &Station = self.pair.world.node(asker);
            if lives && station.machine().stands_still(now) {
                fence.due = now + LOOK;
                arbiter.borrow_mut().fences.push(fence); // the command stands still with its node
                continue;
            }
            let verdict = if lives && station.machine().is_cut_off() {
                ArbiterVerdict::Failed
            } else {
                ArbiterVerdict::Granted
            };
            let hears = lives && station.machine().agent_number() == fence.agent;
            if verdict == ArbiterVerdict::Granted && self.pair.world.is_powered(other) {
                self.note_mutual(1 - number, lives);
                self.pair.lose_power(other);
                self.fenced.push((now, 1 - number));
                self.mends.push((now + FENCED, Mend::Boot(other)));
            }
            if hears {
                let epoch = fence.question.epoch;
                let answer = TimedAnswer {
                    at: now,
                    epoch,
                    verdict,
                };
                let tell = |station: &mut Station, _| station.machine_mut().expect_verdict(answer);
                self.pair.world.with(asker, tell);
            }
        }
    }

    /// Called when the other node's fence command switches off node `number`. `lives`: whether the other node, which gave the command,
    /// still has power. Counts a mutual fencing if the other node has no power and was itself fenced less than [`FENCED`] ago. A single
    /// failure must not cause a mutual fencing if one node delays its fence for longer than the other node's command takes.
    fn note_mutual(&mut self, number: usize, lives: bool) {
        let now = self.now();
        let was_fenced = |(at, who): &(Instant, usize)| *who != number && now.since(*at) < FENCED;
        if lives || !self.fenced.iter().any(was_fenced) {
            return;
        }
        self.outcome.mutual_fences += 1;
        let recent = self.ends.iter().filter(|end| **end + CALM > now).count();
        if self.scenario.fence_delay_us > self.scenario.arbiter_delay_us && recent <= 1 {
            let what = format!("both nodes were fenced at {now:?}");
            self.seen.push((now, Violation::new("mutual fencing", what)));
        }
    }

    fn inject(&mut self, fault: &PlannedFault) {
        let now = self.now();
        if self.ends.iter().any(|end| *end > now) {
            self.outcome.doubles.push(self.phase);
        }
        self.outcome.injected.push((fault.kind, self.phase));
        let last = self.ends.iter().max().copied();
        self.watch = PathWatch::of(fault, self.scenario, self.phase, last, now);
        self.silences.add(fault, now);
        let end = now + fault.length();
        self.ends.push(end);
        if !matches!(fault.kind, FaultKind::AnnexMove | FaultKind::Migrate) {
            self.failures.push((now, end));
        }
        let mends = fault.inject(&mut self.pair, self.scenario.connections.len());
        self.mends.extend(mends.into_iter().map(|mend| (end, mend)));
    }

    /// Mends everything now. A node that a fence has switched off boots at once.
    fn mend_all(&mut self) {
        let mends = std::mem::take(&mut self.mends);
        mends.iter().for_each(|(_, mend)| mend.carry_out(&mut self.pair));
    }

    /// Waits until the pair has recovered, for at most [`RECOVERY_MAX`]. Meanwhile a new client connects. Returns whether the pair has
    /// recovered.
    fn recover(&mut self) -> bool {
        let begin = self.now();
        let talk = SimClient::plain(self.scenario.policy, 1_000);
        self.pair.connect(begin + SETTLING, talk);
        let is_recovered = self.wait(begin, verdict::is_recovered);
        let not_whole = verdict::not_whole(&self.pair);
        self.seen.extend(not_whole.map(|wrong| (self.now(), wrong)));
        is_recovered
    }

    /// One node loses its power and does not come back. A client that is under way must continue, and a later client must be served.
    fn lose_one(&mut self) {
        let nodes = [self.pair.primary, self.pair.backup];
        let node = nodes[usize::from(self.scenario.seed % 2 == 1)];
        let plain = |bytes| SimClient::plain(self.scenario.policy, bytes);
        let (under_way, later) = (plain(200_000), plain(1_001));
        let begin = self.now();
        self.pair.connect(begin, under_way);
        self.advance(begin + UNDER_WAY, None);
        self.pair.lose_power(node);
        self.pair.connect(begin + SETTLING, later);
        self.wait(begin, verdict::is_served);
    }

    /// Waits until `is_so` holds and still holds 200 ms later, but not for longer than [`RECOVERY_MAX`] after `begin`. Returns whether
    /// `is_so` held both times.
    fn wait(&mut self, begin: Instant, is_so: impl Fn(&SimPair) -> bool) -> bool {
        while self.now() < begin + RECOVERY_MAX {
            self.advance(self.now() + LOOK, None);
            if self.now() > begin + LOSSY {
                self.pair.end_losses();
            }
            if self.now() > begin + SETTLING && is_so(&self.pair) {
                self.advance(self.now() + LOOK * 10, None);
                if is_so(&self.pair) {
                    return true;
                }
            }
        }
        false
    }
}
