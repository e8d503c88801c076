//! Plays one scenario: a safety phase, in which the faults strike, then everything is mended, then a liveness phase; and then one
//! node loses its power for good.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use proto::Instant;

use super::fault::{Fault, Kind, Mend};
use super::phase::{Observer, Phase};
use super::scenario::Scenario;
use super::verdict::{self, Violation};
use crate::pair::draw::Draw;
use crate::pair::{Scene, Station, Talk};

/// A fault waits so long for its phase at most.
const WAIT_MAX: Duration = Duration::from_millis(1_200);
/// A node that was fenced is off for so long.
const FENCED: Duration = Duration::from_millis(400);
/// From the end of the last fault to the mending of all.
const AFTERMATH: Duration = Duration::from_millis(200);
/// From then on to a new client's connection; and from the last power failure to another one's.
const SETTLING: Duration = Duration::from_secs(3);
/// Within this time after the mending everything is as it should be: three times the longest wait of a client, whose timeout has
/// doubled while nobody answered.
const RECOVERY_MAX: Duration = Duration::from_secs(30);
/// A client that is under way at the last power failure has come so long before it.
const UNDER_WAY: Duration = Duration::from_millis(40);
/// How often it is looked whether it is.
const LOOK: Duration = Duration::from_millis(20);

/// What was found out.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Broken promises.
    pub violations: Vec<Violation>,
    /// What struck, and what the pair was at then.
    pub strikes: Vec<(Kind, Phase)>,
    /// What the pair was at when something struck while something else was not mended yet.
    pub doubles: Vec<Phase>,
    /// Both nodes spoke, and the configuration allows that (`assume = "fail-stop"` under a failure of another kind).
    pub was_split: bool,
    /// Connections that no node could go on with any more.
    pub orphaned: usize,
    /// Connections for which a node spoke by its lease, and failed before anybody knew.
    pub lent_in_vain: usize,
    /// Connections for which a node spoke by a lease that its clock had outlasted, while the other one spoke.
    pub outlasted: usize,
    /// All connections.
    pub connections: usize,
    /// The simulated time.
    pub time: Duration,
}

/// Plays it. What panics has broken a promise, too.
pub fn play(scenario: &Scenario) -> Outcome {
    let play_on = || Run::new(scenario).play_on();
    catch_unwind(AssertUnwindSafe(play_on)).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| cause.downcast_ref().copied()).unwrap_or("");
        Outcome {
            violations: vec![Violation::new("panic", text.to_owned())],
            ..Outcome::default()
        }
    })
}

/// Plays it and returns the trace, too: one line per packet and per thing that the nodes do.
pub fn play_traced(scenario: &Scenario) -> (Outcome, String) {
    let mut run = Run::new(scenario);
    run.scene.world.record();
    let outcome = run.play_on();
    (outcome, run.scene.world.trace().to_owned())
}

struct Run<'a> {
    scenario: &'a Scenario,
    scene: Scene,
    observer: Observer,
    phase: Phase,
    mends: Vec<(Instant, Mend)>,
    /// When the faults that have struck end.
    ends: Vec<Instant>,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let mut scene = Scene::new(&scenario.scene());
        for connection in &scenario.connections {
            let mut draw = Draw::new(connection.seed);
            let talk = draw.talk_of(
                scenario.policy,
                connection.requests,
                connection.bytes_max,
                connection.half_closes,
            );
            scene.connect(Instant::ZERO + Duration::from_micros(connection.at_us), talk);
        }
        let late_start = Duration::from_micros(scenario.nodes.late_start_us);
        let backup = scene.backup;
        scene.world.with(backup, |station: &mut Station, now| {
            station.freeze(now + late_start)
        });
        Self {
            observer: Observer::new(&scene),
            scenario,
            scene,
            phase: Phase::Pairing,
            mends: Vec::new(),
            ends: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    fn play_on(&mut self) -> Outcome {
        for fault in &self.scenario.faults {
            if fault.during.is_some() {
                let deadline = self.now() + WAIT_MAX;
                self.advance(deadline, fault.during);
            }
            let moment = self.now() + Duration::from_micros(fault.after_us);
            self.advance(moment, None);
            self.strike(fault);
        }
        let end = self.ends.iter().fold(self.now(), |end, one| end.max(*one));
        self.advance(end + AFTERMATH, None);
        self.mend_all();
        if self.recover() {
            self.lose_one();
        }
        let mut outcome = std::mem::take(&mut self.outcome);
        verdict::judge(self.scenario, &self.scene, &mut outcome);
        outcome.time = self.now().since(Instant::ZERO);
        outcome
    }

    fn now(&self) -> Instant {
        self.scene.world.now()
    }

    /// Lets things happen until then, or until the pair is at `phase`.
    fn advance(&mut self, until: Instant, phase: Option<Phase>) {
        loop {
            let due = self.mends.iter().map(|(at, _)| *at).min();
            let limit = due.map_or(until, |due| due.min(until));
            if !self.run_until(limit, phase) {
                return;
            }
            let now = self.now();
            let (due, later) = std::mem::take(&mut self.mends)
                .into_iter()
                .partition(|(at, _)| *at <= now);
            self.mends = later;
            let due: Vec<(Instant, Mend)> = due;
            due.iter().for_each(|(_, mend)| mend.carry_out(&mut self.scene));
            if now >= until {
                return;
            }
        }
    }

    /// The same, without mending anything; false if the pair came to `phase`.
    fn run_until(&mut self, until: Instant, phase: Option<Phase>) -> bool {
        loop {
            let (observer, seen, arbiter) = (&mut self.observer, &mut self.phase, self.scene.arbiter.clone());
            let fences = || {
                arbiter
                    .as_ref()
                    .is_some_and(|arbiter| !arbiter.borrow().fences.is_empty())
            };
            let (world, judge) = self.scene.world_and_judge();
            let is_over = world.run_while(until, |world| {
                *seen = observer.look(world, judge.borrow().has_handshakes());
                Some(*seen) != phase && !fences()
            });
            if is_over {
                world.run_until(until);
                return true;
            }
            if !fences() {
                return false;
            }
            self.fence();
        }
    }

    /// Switches off who is to be switched off, for some time, and says that it is done.
    fn fence(&mut self) {
        let now = self.now();
        let Some(arbiter) = self.scene.arbiter.clone() else {
            return;
        };
        let questions = std::mem::take(&mut arbiter.borrow_mut().fences);
        for question in questions {
            let nodes = [self.scene.primary, self.scene.backup];
            let (asker, other) = (nodes[question.node], nodes[1 - question.node]);
            if !self.scene.world.is_powered(asker) {
                continue;
            }
            if self.scene.world.is_powered(other) {
                self.scene.lose_power(other);
                self.mends.push((now + FENCED, Mend::Boot(other)));
            }
            let answer = arbiter.borrow().fenced(now, question);
            let tell = |station: &mut Station, _| station.expect_verdict(answer);
            self.scene.world.with(asker, tell);
        }
    }

    fn strike(&mut self, fault: &Fault) {
        let now = self.now();
        if self.ends.iter().any(|end| *end > now) {
            self.outcome.doubles.push(self.phase);
        }
        self.outcome.strikes.push((fault.kind, self.phase));
        let end = now + fault.length();
        self.ends.push(end);
        let mends = fault.strike(&mut self.scene, self.scenario.connections.len());
        self.mends.extend(mends.into_iter().map(|mend| (end, mend)));
    }

    /// What fences have switched off boots at once.
    fn mend_all(&mut self) {
        let mends = std::mem::take(&mut self.mends);
        mends.iter().for_each(|(_, mend)| mend.carry_out(&mut self.scene));
    }

    /// Waits until all is as it should be, for some time; a new client comes, too. Whether it is.
    fn recover(&mut self) -> bool {
        let begin = self.now();
        let talk = Talk::plain(self.scenario.policy, 1_000);
        self.scene.connect(begin + SETTLING, talk);
        let is_recovered = self.wait(begin + SETTLING, begin + RECOVERY_MAX, verdict::is_recovered);
        let violations = &mut self.outcome.violations;
        violations.extend(verdict::not_whole(&self.scene));
        is_recovered
    }

    /// One node of the two loses its power and does not come back: who is under way goes on, and who comes later is served.
    fn lose_one(&mut self) {
        let nodes = [self.scene.primary, self.scene.backup];
        let node = nodes[usize::from(self.scenario.seed % 2 == 1)];
        let plain = |bytes| Talk::plain(self.scenario.policy, bytes);
        let (under_way, later) = (plain(200_000), plain(1_001));
        let begin = self.now();
        self.scene.connect(begin, under_way);
        self.advance(begin + UNDER_WAY, None);
        self.scene.lose_power(node);
        self.scene.connect(begin + SETTLING, later);
        self.wait(begin + SETTLING, begin + RECOVERY_MAX, verdict::is_served);
    }

    /// Waits until `is_so`, after `begin` and before `end`, and a little longer for what comes after the end. Whether it is so.
    fn wait(&mut self, begin: Instant, end: Instant, is_so: impl Fn(&Scene) -> bool) -> bool {
        while self.now() < end {
            self.advance(self.now() + LOOK, None);
            if self.now() > begin && is_so(&self.scene) {
                self.advance(self.now() + LOOK * 10, None);
                if is_so(&self.scene) {
                    return true;
                }
            }
        }
        false
    }
}

/// The clients' addresses, in the order of the scenario's connections. Those follow who come when all is mended: one, one more before a
/// node loses its power for good, one after that.
pub(super) fn clients(
    scene: &Scene,
) -> impl Iterator<Item = (usize, SocketAddr, Option<(&Talk, &crate::tcp::Endpoint)>)> {
    (0..scene.count()).map(|index| (index, Scene::client_of(index), scene.talk(index)))
}
