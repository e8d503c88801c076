//! Connections of annexes that a primary has carried, or whose wire has a new agent: the wire passes them and protects them again. And
//! processes that die during a move (docs/annex.md).

use std::time::Duration;

use proto::follower::RestartPolicy;
use steadfast_sim::pair::{CarriedCounts, SimPair, SimPairConfig};
use steadfast_sim::swarm::{FaultKind, FaultTarget, PairPhase, PlannedFault, Scenario, play};

use crate::seeds::*;

const PATIENCE: Duration = Duration::from_millis(300);
/// The annex there is.
const GAMMA: usize = 0;

fn planned(kind: FaultKind, target: FaultTarget, after_ms: u64, length_ms: u64, detail: u64) -> PlannedFault {
    PlannedFault {
        during: None,
        after_us: after_ms * 1_000,
        kind,
        target,
        length_us: length_ms * 1_000,
        detail,
    }
}

/// Connections with many short requests move to an annex. Then these faults come.
fn moved(seed: u64, policy: RestartPolicy, faults: impl IntoIterator<Item = PlannedFault>) -> Scenario {
    let mut scenario = Scenario::with_annexes(seed);
    (scenario.annexes, scenario.policy, scenario.service_link) = (1, policy, false);
    for (number, connection) in (0..).zip(&mut scenario.connections) {
        (connection.at_us, connection.requests, connection.bytes_max) = (number * 20_000, 150, 2_000);
    }
    let mut there = planned(FaultKind::AnnexMove, FaultTarget::Speaker, 200, 1, seed * 977);
    there.during = Some(PairPhase::Duplex);
    scenario.faults = vec![there];
    scenario.faults.extend(faults);
    scenario
}

/// Plays scenarios, none of which may break a rule. Returns what became of connections without a wire.
fn play_all(scenarios: impl Iterator<Item = Scenario>) -> CarriedCounts {
    let mut sum = CarriedCounts::default();
    for scenario in scenarios {
        let outcome = play(&scenario);
        let text = toml::to_string(&scenario).unwrap();
        assert_eq!(outcome.violations, [], "{text}");
        let one = outcome.carried;
        sum.alone += one.alone;
        sum.behind_wire += one.behind_wire;
        sum.handed_over += one.handed_over;
        sum.protected_again += one.protected_again;
    }
    println!("{sum:?}");
    sum
}

#[test]
fn a_new_wire_passes_and_protects_what_the_primary_has_carried() {
    let scenarios = (0..30).map(|seed| {
        let policy = [RestartPolicy::Http, RestartPolicy::Snapshot][usize::try_from(seed % 2).unwrap()];
        let wire = planned(FaultKind::Crash, FaultTarget::Other, 100 + seed * 7, 600, seed);
        let annex = planned(FaultKind::AnnexCrash, FaultTarget::Speaker, 2_000, 600, seed);
        moved(seed, policy, [wire, annex])
    });
    let sum = play_all(scenarios);
    assert!(sum.alone > 0 && sum.handed_over > 0, "{sum:?}");
    assert!(sum.protected_again > 0, "{sum:?}");
}

/// The wire is back before the primary speaks alone: it restarts within 10 to 126 ms, and the primary needs about 110 ms. The primary asks the
/// annex for its connections, and the new wire learns them.
#[test]
fn a_wire_that_is_back_at_once_passes_what_the_annex_has() {
    let scenarios = (0..30).map(|seed| {
        let policy = [RestartPolicy::Http, RestartPolicy::Snapshot][usize::try_from(seed % 2).unwrap()];
        let wire = planned(
            FaultKind::Crash,
            FaultTarget::Other,
            100 + seed * 7,
            10 + seed * 4,
            seed,
        );
        moved(seed, policy, [wire])
    });
    let sum = play_all(scenarios);
    assert!(sum.handed_over > 0, "{sum:?}");
}

/// The kernels go on while there is no agent. The next one asks the annex about the connections.
#[test]
fn a_wires_new_agent_protects_the_connections_of_annexes_again() {
    let scenarios = (0..30).map(|seed| {
        let policy = [RestartPolicy::Http, RestartPolicy::Snapshot][usize::try_from(seed % 2).unwrap()];
        let agent = planned(FaultKind::Agent, FaultTarget::Other, 100 + seed * 7, 100, seed);
        let annex = planned(FaultKind::AnnexCrash, FaultTarget::Speaker, 1_000, 600, seed);
        moved(seed, policy, [agent, annex])
    });
    let sum = play_all(scenarios);
    assert!(sum.protected_again > 0, "{sum:?}");
}

/// The wire fails again soon after it has come back, when connections may be on their way from the primary to it.
#[test]
fn a_wire_that_fails_again_leaves_the_connections_to_the_annex() {
    let scenarios = (0..30).map(|seed| {
        let wire = |after_ms| planned(FaultKind::Crash, FaultTarget::Other, after_ms, 300, seed);
        moved(seed, RestartPolicy::Http, [wire(100), wire(400 + seed * 13)])
    });
    let sum = play_all(scenarios);
    assert!(sum.alone > 0 && sum.handed_over > 0, "{sum:?}");
}

/// A pair with an annex, and eight clients.
fn annexed(seed: u64, policy: RestartPolicy) -> (SimPair, Draw) {
    let mut draw = Draw::new(seed);
    let lan = SimPairConfig::quiet(seed, policy).lan;
    let mut config = draw.config(seed, policy);
    (config.annexes, config.own_path, config.lan) = (1, Some(config.path.clone()), lan);
    let mut pair = drawn_pair(&mut draw, &config, 8, 200 * MS);
    if std::env::var_os("SEED").is_some() {
        pair.world.record();
    }
    (pair, draw)
}

/// The application of an annex exports its states, and the wire goes on from them when the annex dies.
#[test]
fn an_annex_exports_states() {
    let (mut kept, mut imported) = (0, 0);
    for_seeds("annex_again::an_annex_exports_states", 0..60, |seed, _| {
        let (mut pair, mut draw) = annexed(seed, RestartPolicy::Snapshot);
        let moment = START + draw.time(200 * MS);
        pair.migrate_to(at(moment), 0..8, GAMMA, PATIENCE);
        pair.lose_annex(at(moment + 100 * MS + draw.time(400 * MS)), GAMMA);
        let complaints = pair.run(at(LIMIT));
        kept += pair.annex(GAMMA).snapshot_counts().0;
        imported += pair.backup().machine().snapshot_counts().1;
        (pair, complaints)
    });
    println!("{kept} states of annexes kept, {imported} imported");
    assert!(
        kept > 0 && imported > 0 || std::env::var_os("SEED").is_some(),
        "{kept} {imported}"
    );
}

const POLICIES: [RestartPolicy; 3] = [
    RestartPolicy::Http,
    RestartPolicy::Replay,
    RestartPolicy::Snapshot,
];

/// Processes of the primary die while their connections move to an annex. One node has each connection afterwards.
#[test]
fn a_worker_dies_during_a_move() {
    for_seeds("annex_again::a_worker_dies_during_a_move", 0..150, |seed, _| {
        let (mut pair, mut draw) = annexed(seed, POLICIES[usize::try_from(seed % 3).unwrap()]);
        let moment = START + draw.time(400 * MS);
        pair.migrate_to(at(moment), 0..8, GAMMA, PATIENCE);
        let spread = draw.pick(&[2 * MS, 10 * MS, 50 * MS]);
        pair.kill_worker(at(moment + draw.time(spread)), 0..8);
        let complaints = pair.run(at(LIMIT));
        (pair, complaints)
    });
}

/// Processes on an annex die, also while their connections move back. The wire takes them over.
#[test]
fn processes_of_an_annex_die() {
    for_seeds("annex_again::processes_of_an_annex_die", 0..150, |seed, _| {
        let (mut pair, mut draw) = annexed(seed, POLICIES[usize::try_from(seed % 3).unwrap()]);
        let moment = START + draw.time(300 * MS);
        pair.migrate_to(at(moment), 0..8, GAMMA, PATIENCE);
        let later = moment + 50 * MS + draw.time(100 * MS);
        if draw.chance(0.6) {
            pair.migrate_guests(at(later), 0..8, None, PATIENCE);
        }
        let spread = draw.pick(&[2 * MS, 10 * MS, 50 * MS]);
        pair.kill_annex_worker(at(later + draw.time(spread)), GAMMA, 0..8);
        let complaints = pair.run(at(LIMIT));
        (pair, complaints)
    });
}
