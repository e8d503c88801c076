//! Plays a short swarm, and checks that the swarm's checkers notice known defects.

use std::collections::BTreeSet;

use proto::follower::RestartPolicy;
use steadfast_sim::pair::{Defect, SimArbiterKind, SimCommit, SimStateSync};
use steadfast_sim::swarm::{
    CONNECTIONS_MIN, FAULTS_MIN, FaultKind, FaultTarget, PairPhase, PlannedFault, Scenario, play, shrink,
};

/// Runs of the short swarm.
const RUNS: u64 = 100;
/// Runs of the short swarm with each of the commit modes `pr` and `immediate`.
const DIRECT_RUNS: usize = 50;
/// Maximum number of runs that aim at each defect. If no run breaks a rule, the checkers cannot see the defect, and the test fails.
const SEEDS: u64 = 60;
/// The test stops playing runs of a defect when this many runs have noticed the defect.
const NOTICED: usize = 8;

#[test]
fn a_short_swarm_breaks_no_promise() {
    for seed in 0..RUNS {
        let scenario = Scenario::draw(seed);
        assert!(scenario.connections.len() as u64 >= CONNECTIONS_MIN);
        assert!(scenario.faults.len() as u64 >= FAULTS_MIN);
        let outcome = play(&scenario);
        assert_eq!(outcome.violations, [], "steadfast-lab replay --seed {seed}");
    }
}

/// SEED is the first seed, and SEEDS the number of runs.
#[test]
#[ignore = "takes minutes"]
fn a_long_swarm_breaks_no_promise() {
    let number = |variable, default| {
        let text = std::env::var(variable).ok();
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let first = number("SEED", 1_000);
    let mut broken = 0;
    for seed in first..first + number("SEEDS", 1_000) {
        if let Some(violation) = play(&Scenario::draw(seed)).violations.first() {
            println!("seed {seed}: {violation:?}");
            broken += 1;
        }
    }
    assert_eq!(broken, 0, "steadfast-lab replay --seed N");
}

/// Commit mode `pr`: copies of the output may be lost, and the survivor generates the output again.
#[test]
fn a_short_swarm_past_the_wire_breaks_no_promise() {
    let drawn = (0..).map(Scenario::draw);
    let past_the_wire = drawn.filter(|scenario| scenario.commit == SimCommit::Pr);
    for scenario in past_the_wire.take(DIRECT_RUNS) {
        let outcome = play(&scenario);
        let seed = scenario.seed;
        assert_eq!(outcome.violations, [], "steadfast-lab replay --seed {seed}");
    }
}

/// Commit mode `immediate`: packets pass unlogged while the log is full, and the connections that lack them are reset at a takeover.
#[test]
fn a_short_swarm_with_full_logs_breaks_no_promise() {
    let drawn = (0..).map(Scenario::draw);
    let immediate = drawn.filter(|scenario| scenario.commit == SimCommit::Immediate);
    let mut runs_with_gaps = 0;
    for scenario in immediate.take(DIRECT_RUNS) {
        let outcome = play(&scenario);
        let seed = scenario.seed;
        assert_eq!(outcome.violations, [], "steadfast-lab replay --seed {seed}");
        runs_with_gaps += usize::from(outcome.unlogged > 0);
    }
    assert!(
        runs_with_gaps > DIRECT_RUNS / 4,
        "packets passed unlogged in only {runs_with_gaps} runs"
    );
}

#[test]
fn a_run_is_the_same_again() {
    let play = |seed| {
        let outcome = play(&Scenario::draw(seed));
        (outcome.injected, outcome.orphaned, outcome.time)
    };
    for seed in 0..5 {
        assert_eq!(play(seed), play(seed), "seed {seed}");
    }
}

fn fault(
    kind: FaultKind,
    target: FaultTarget,
    during: Option<PairPhase>,
    after_ms: u64,
    length_ms: u64,
) -> PlannedFault {
    PlannedFault {
        during,
        after_us: after_ms * 1000,
        kind,
        target,
        length_us: length_ms * 1000,
        detail: 0,
    }
}

/// The scenario of a seed. With [`Defect::SendDirectlyOn`], output bypasses the wire, and downloads are under way: a primary that does not
/// hear the clients any more repeats its segments.
fn drawn_for(defect: Defect, seed: u64) -> Scenario {
    let mut scenario = Scenario::draw(seed);
    if defect == Defect::SendDirectlyOn {
        (scenario.policy, scenario.opaque) = (RestartPolicy::Replica, false);
        (scenario.commit, scenario.lease_us) = (SimCommit::Pr, 300_000);
        for (number, connection) in (0..).zip(&mut scenario.connections) {
            (connection.at_us, connection.requests) = (number * 40_000, 4);
            connection.bytes_max = 60_000;
        }
    }
    scenario
}

/// A scenario in which a node with this defect can break a rule.
fn aimed(defect: Defect, seed: u64) -> Scenario {
    let mut scenario = drawn_for(defect, seed);
    let moment = 300 + seed * 7;
    let first = |kind, target, length| fault(kind, target, Some(PairPhase::Duplex), moment, length);
    let crash = first(FaultKind::Crash, FaultTarget::Speaker, 400);
    let between = first(FaultKind::Between, FaultTarget::Speaker, 900);
    scenario.defect = Some(defect);
    scenario.arbiter = Some(SimArbiterKind::Witness);
    scenario.faults = match defect {
        Defect::ReleaseUnlogged => {
            scenario.nodes.ring_bytes = 3_000;
            vec![crash]
        }
        Defect::IgnoreVerdict | Defect::SendDirectlyOn => vec![between],
        Defect::ReleaseInput => {
            (scenario.policy, scenario.opaque) = (RestartPolicy::Replica, false);
            scenario.state_sync = Some(SimStateSync {
                hold_us: 300_000,
                prepare_us: 10_000,
                failures: 0,
            });
            vec![crash]
        }
        // The arbiter does not answer the node that took over, and confirms the other node.
        Defect::SpeakOn => vec![
            PlannedFault {
                detail: 5,
                ..first(FaultKind::Arbiter, FaultTarget::Speaker, 1_500)
            },
            fault(FaultKind::Between, FaultTarget::Speaker, None, 0, 1_200),
        ],
        // The primary speaks until the gate is closed. Slow agents take a while to close it.
        Defect::SkipDrains => {
            (scenario.nodes.nap_us, scenario.nodes.slowness) = (4_000, 50);
            for (number, connection) in (0..).zip(&mut scenario.connections) {
                (connection.at_us, connection.requests) = (number * 60_000, 4);
                connection.bytes_max = 8_000;
            }
            vec![first(FaultKind::Handover, FaultTarget::Speaker, 0)]
        }
        Defect::LeaseFromHearing => vec![
            first(FaultKind::Pause, FaultTarget::Other, 600),
            fault(
                FaultKind::Between,
                FaultTarget::Other,
                None,
                100 + seed * 8 % 400,
                900,
            ),
        ],
        Defect::IgnoreEpoch => {
            scenario.arbiter = None;
            vec![first(FaultKind::Pause, FaultTarget::Other, 700)]
        }
        // First the other node does not hear the returning node. Then neither node hears the other.
        Defect::WithoutConsent => {
            let from_a = |cable: u64| PlannedFault {
                detail: cable * 2 + 1,
                ..fault(FaultKind::OneWay, FaultTarget::Other, None, 0, 2_000)
            };
            for (number, connection) in (0..).zip(&mut scenario.connections) {
                (connection.at_us, connection.requests) = (number * 120_000, 4);
            }
            vec![
                crash,
                from_a(1),
                from_a(2),
                fault(FaultKind::Between, FaultTarget::Other, None, 700, 1_000),
            ]
        }
        Defect::DeathSpeaks => vec![first(FaultKind::Worker, FaultTarget::Speaker, 400)],
        _ => vec![crash],
    };
    scenario
}

/// The rules that are broken in the first [`NOTICED`] runs that notice the defect. A run notices the defect if it breaks a rule with the
/// defect, and no rule without the defect.
fn broken_by(defect: Defect) -> BTreeSet<String> {
    let noticed = (0..SEEDS).filter_map(|seed| {
        let mut scenario = aimed(defect, seed);
        let broken = play(&scenario).violations;
        scenario.defect = None;
        (!broken.is_empty() && play(&scenario).violations.is_empty()).then_some(broken)
    });
    let broken = noticed.take(NOTICED).flatten();
    broken.map(|violation| violation.rule).collect()
}

#[test]
fn every_defect_of_a_node_is_noticed_and_every_property_has_its_checker() {
    let (mut all, mut hidden) = (BTreeSet::new(), Vec::new());
    for defect in Defect::NODE.into_iter().chain([Defect::TimestampBehind]) {
        let rules = broken_by(defect);
        println!("{defect:?}: {rules:?}");
        hidden.extend(rules.is_empty().then_some(defect));
        all.extend(rules);
    }
    assert_eq!(hidden, [], "defects that were not noticed in {SEEDS} runs each");
    for rule in [
        "input commit",
        "output commit",
        "open commit",
        "no step back",
        "one voice",
        "liveness",
    ] {
        assert!(all.contains(rule), "no defect broke the rule {rule:?}: {all:?}");
    }
}

#[test]
fn a_failure_is_made_small() {
    let mut scenario = Scenario::draw(3);
    scenario.policy = RestartPolicy::Http;
    scenario.defect = Some(Defect::ForgetSyn);
    let (small, outcome) = shrink(&scenario).expect("every handshake breaks a rule");
    assert!(
        small.connections.len() <= 1 && small.faults.is_empty(),
        "{small:?}"
    );
    assert_eq!(outcome.violations[0].rule, "open commit");
}
