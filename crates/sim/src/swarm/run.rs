//! Plays one scenario: a safety phase, in which the faults strike, then everything is mended, then a liveness phase.

use std::net::SocketAddr;
use std::time::Duration;

use proto::Instant;
use proto::follower::Policy;

use super::fault::{Fault, Kind, Mend};
use super::phase::{Observer, Phase};
use super::scenario::Scenario;
use super::verdict::{self, Violation};
use crate::pair::draw::Draw;
use crate::pair::{Scene, Talk};

/// A fault waits so long for its phase at most.
const WAIT_MAX: Duration = Duration::from_millis(1_200);
/// From the last fault to the mending of all.
const AFTERMATH: Duration = Duration::from_millis(200);
/// From then on to a new client's connection.
const SETTLING: Duration = Duration::from_secs(3);
/// Within this time after the mending everything is as it should be: three times the longest wait of a client, whose timeout has
/// doubled while nobody answered.
const RECOVERY_MAX: Duration = Duration::from_secs(30);
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
    /// All connections.
    pub connections: usize,
    /// The simulated time.
    pub time: Duration,
}

/// Plays it.
pub fn play(scenario: &Scenario) -> Outcome {
    let mut run = Run::new(scenario);
    run.to_the_end()
}

/// Plays it and returns the trace, too: one line per packet and per thing that the nodes do.
pub fn play_traced(scenario: &Scenario) -> (Outcome, String) {
    let mut run = Run::new(scenario);
    run.scene.world.record();
    let outcome = run.to_the_end();
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

    fn to_the_end(&mut self) -> Outcome {
        for fault in &self.scenario.faults {
            if fault.during.is_some() {
                let deadline = self.now() + WAIT_MAX;
                self.advance(deadline, fault.during);
            }
            let moment = self.now() + Duration::from_micros(fault.after_us);
            self.advance(moment, None);
            self.strike(fault);
        }
        let moment = self.now() + AFTERMATH;
        self.advance(moment, None);
        self.mend_all();
        self.recover();
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
            let (observer, seen) = (&mut self.observer, &mut self.phase);
            let (world, judge) = self.scene.world_and_judge();
            let is_over = world.run_while(limit, |world| {
                *seen = observer.look(world, judge.borrow().has_handshakes());
                Some(*seen) != phase
            });
            if !is_over {
                return;
            }
            world.run_until(limit);
            let now = limit;
            let (due, later) = std::mem::take(&mut self.mends)
                .into_iter()
                .partition(|(at, _)| *at <= now);
            self.mends = later;
            let due: Vec<(Instant, Mend)> = due;
            due.iter().for_each(|(_, mend)| mend.carry_out(&mut self.scene));
            if limit == until {
                return;
            }
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

    fn mend_all(&mut self) {
        let mends = std::mem::take(&mut self.mends);
        mends.iter().for_each(|(_, mend)| mend.carry_out(&mut self.scene));
        let end = self.ends.iter().fold(self.now(), |end, one| end.max(*one));
        self.scene.world.run_until(end);
    }

    /// Waits until all is as it should be, for some time.
    fn recover(&mut self) {
        let begin = self.now();
        let talk = Draw::new(self.scenario.seed).talk_of(Policy::Http, 1, 1_000, false);
        let talk = match (self.scenario.policy, talk) {
            (Policy::Http, talk) => talk,
            (Policy::Replica, _) => Draw::new(self.scenario.seed).talk_of(Policy::Replica, 1, 1_000, false),
        };
        self.scene.connect(begin + SETTLING, talk);
        while self.now() < begin + RECOVERY_MAX {
            let next = self.now() + LOOK;
            self.scene.world.run_until(next);
            if self.now() > begin + SETTLING && verdict::is_recovered(&self.scene) {
                break;
            }
        }
        let last = self.now() + LOOK * 10; // what comes after the end
        self.scene.world.run_until(last);
    }
}

/// The clients' addresses, in the order of the scenario's connections; one more follows, which connects when all is mended.
pub(super) fn clients(scene: &Scene) -> impl Iterator<Item = (usize, SocketAddr, Option<(&Talk, &crate::tcp::Endpoint)>)> {
    (0..scene.count()).map(|index| (index, Scene::client_of(index), scene.talk(index)))
}
