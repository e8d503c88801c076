//! Every fault of the swarm's catalogue, at every step of a migration. The swarm's judge decides: no two nodes have a connection, and none is
//! lost, but for the cases that docs/migration.md names.

use proto::follower::RestartPolicy;
use steadfast_sim::swarm::{FaultKind, FaultTarget, PairPhase, PlannedFault, RunOutcome, Scenario, play};

/// Time within which a migration takes all of its steps, in microseconds: a few heartbeats.
const WINDOW_US: u64 = 80_000;
/// The policies, each with the first seed of its scenarios.
const POLICIES: [(RestartPolicy, u64); 4] = [
    (RestartPolicy::Http, 0),
    (RestartPolicy::Replica, 1000),
    (RestartPolicy::Replay, 2000),
    (RestartPolicy::Snapshot, 3000),
];

/// A scenario in which connections are ordered to move, and one fault comes `after_us` later.
fn interrupted(
    policy: RestartPolicy,
    seed: u64,
    kind: FaultKind,
    target: FaultTarget,
    after_us: u64,
) -> Scenario {
    let mut scenario = Scenario::draw(seed);
    (scenario.policy, scenario.opaque, scenario.state_sync) = (policy, false, None);
    scenario.lease_us = scenario.lease_us.max(300_000);
    // Nodes judge their paths, so that paths may fail.
    (scenario.outside, scenario.service_link) = (true, true);
    for (number, connection) in (0..).zip(&mut scenario.connections) {
        (connection.at_us, connection.requests) = (number * 20_000, 6);
    }
    let planned = |during, after_us, kind, target, length_us| PlannedFault {
        during,
        after_us,
        kind,
        target,
        length_us,
        detail: seed * 977 + after_us,
    };
    let ordered = 200_000 + seed % 100 * 4_000;
    scenario.faults = vec![
        planned(
            Some(PairPhase::Duplex),
            ordered,
            FaultKind::Migrate,
            FaultTarget::Speaker,
            1_000,
        ),
        planned(None, after_us, kind, target, 700_000),
    ];
    scenario
}

/// Plays each fault, at each node, at times that are `step_us` apart, in scenarios of each policy. Returns the number of connections that have
/// moved, and the number of runs in which none has.
fn play_steps(seeds: u64, step_us: u64) -> (usize, usize) {
    let (mut moved, mut unmoved) = (0, 0);
    for (policy, first) in POLICIES {
        for seed in first..first + seeds {
            for kind in FaultKind::ALL {
                for target in [FaultTarget::Speaker, FaultTarget::Other] {
                    // Each fault has steps of its own, so few runs meet many steps.
                    let offset = (kind as u64 * 7919 + seed * 104_729 + target as u64 * 523) % step_us;
                    for after_us in (offset..WINDOW_US).step_by(usize::try_from(step_us).unwrap()) {
                        let scenario = interrupted(policy, seed, kind, target, after_us);
                        let RunOutcome {
                            violations, migrated, ..
                        } = play(&scenario);
                        let what =
                            format!("{policy:?}, seed {seed}: {kind:?} of {target:?} after {after_us} us");
                        assert_eq!(violations, [], "{what}");
                        moved += migrated;
                        unmoved += usize::from(migrated == 0);
                    }
                }
            }
        }
    }
    (moved, unmoved)
}

#[test]
fn a_fault_at_any_step_of_a_migration_leaves_one_owner() {
    let (moved, unmoved) = play_steps(1, WINDOW_US);
    println!("{moved} connections moved; none moved in {unmoved} runs");
    assert!(moved > 0 && unmoved > 0, "{moved} {unmoved}");
}

/// Many steps. Takes minutes.
#[test]
#[ignore = "takes minutes"]
fn faults_at_many_steps_of_many_migrations_leave_one_owner() {
    let (moved, unmoved) = play_steps(4, 2_000);
    println!("{moved} connections moved; none moved in {unmoved} runs");
}
