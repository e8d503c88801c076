//! Processes that die on a node that has taken connections over: there, the application is behind the relay. The swarm's judge decides which
//! connections must go on.

use proto::follower::RestartPolicy;
use steadfast_sim::swarm::{FaultKind, FaultTarget, PairPhase, PlannedFault, Scenario, play};

/// Number of scenarios that are drawn.
const SEEDS: u64 = 100;
const POLICIES: [RestartPolicy; 3] = [
    RestartPolicy::Http,
    RestartPolicy::Replay,
    RestartPolicy::Snapshot,
];

/// A scenario in which these faults hit a pair that is duplex, one after the other. `None` if this seed draws another policy.
fn scenario(seed: u64, faults: &[(FaultKind, FaultTarget)]) -> Option<Scenario> {
    let mut scenario = Scenario::draw(seed);
    if !POLICIES.contains(&scenario.policy) {
        return None;
    }
    scenario.lease_us = scenario.lease_us.max(300_000);
    for (number, connection) in (0..).zip(&mut scenario.connections) {
        (connection.at_us, connection.requests) = (number * 20_000, 6);
    }
    let planned = |(number, &(kind, target)): (u64, &(FaultKind, FaultTarget))| PlannedFault {
        during: Some(PairPhase::Duplex),
        after_us: 100_000 + (seed * 7919 + number * 104_729) % 400_000,
        kind,
        target,
        length_us: 50_000,
        detail: seed * 977 + number,
    };
    scenario.faults = (0..).zip(faults).map(planned).collect();
    Some(scenario)
}

/// Plays the faults in all scenarios. Returns the number of connections that have moved, and of those that went on to their ends.
fn play_all(faults: &[(FaultKind, FaultTarget)]) -> (usize, usize) {
    let (mut moved, mut completed) = (0, 0);
    for seed in 0..SEEDS {
        let Some(scenario) = scenario(seed, faults) else {
            continue;
        };
        let outcome = play(&scenario);
        assert_eq!(outcome.violations, [], "seed {seed}, {faults:?}");
        moved += outcome.migrated;
        completed += outcome.connections - outcome.orphaned;
    }
    println!("{moved} connections moved, {completed} completed");
    (moved, completed)
}

#[test]
fn servers_die_in_turns() {
    let (_, completed) = play_all(&[(FaultKind::Server, FaultTarget::Speaker); 4]);
    assert!(completed > 0);
}

/// The connections whose process has died move back.
#[test]
fn processes_of_reversed_connections_die() {
    let migrate = (FaultKind::Migrate, FaultTarget::Speaker);
    let (there, _) = play_all(&[migrate]);
    for death in [FaultKind::Worker, FaultKind::Server] {
        let (moved, _) = play_all(&[migrate, (death, FaultTarget::Other)]);
        assert!(moved > there && there > 0, "{moved} {there}");
    }
}
