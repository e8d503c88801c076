//! SCTP over several paths, compared with the paper (Caro, Amer, Stewart, "Rethinking End-to-End Failover with Transport Layer
//! Multihoming"). The module `ns2_multipath` compares it with ns-2's results.

use std::time::Duration;

use model::caro::failure_detection_s;
use proptest::prelude::*;
use steadfast_sim::multipath::{PathConfig, PathCutTime};
use steadfast_sim::scenario::multipath::{MultipathPolicy, MultipathTransfer, TransferResult};
use steadfast_sim::scenario::timeouts::FailureDetection;

pub fn path(delay_ms: u64, loss_percent: u32) -> PathConfig {
    PathConfig {
        delay: Duration::from_millis(delay_ms),
        loss: f64::from(loss_percent) / 100.0,
        ..PathConfig::default()
    }
}

/// The results of a transfer with several seeds.
fn runs(scenario: &MultipathTransfer, seeds: u64) -> Vec<TransferResult> {
    let run = |seed| {
        MultipathTransfer {
            seed,
            ..scenario.clone()
        }
        .run()
    };
    (1..=seeds)
        .map(|seed| run(seed).expect("a valid scenario"))
        .collect()
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

pub fn seconds(result: &TransferResult) -> f64 {
    result.from_init_s.expect("a complete transfer")
}

/// Permanent failovers from 90 ms and 5 % loss to an alternate path of 210 ms (paper, section IV.2). A row of `ns2` has the loss of the
/// alternate path in percent, CPT, and the mean time of ten transfers in seconds with its standard error in ns-2 (release 3.8, from
/// Debian's package ns2).
#[test]
fn a_permanent_failover_to_a_longer_path_takes_as_long_as_in_ns2() {
    let ns2 = [
        (0, 0, 333.0, 12.0),
        (1, 0, 980.0, 10.0),
        (5, 0, 1720.0, 59.0),
        (0, 5, 1024.0, 3.0),
        (1, 5, 1025.0, 3.0),
        (5, 5, 1024.0, 4.0),
    ];
    for (alternate, change_over, wanted, error) in ns2 {
        let scenario = MultipathTransfer {
            paths: vec![path(25, 5), path(85, alternate)],
            path_max_retrans: 0,
            change_over: Some(change_over),
            is_release_38: true,
            ..MultipathTransfer::default()
        };
        let times: Vec<_> = runs(&scenario, 10).iter().map(seconds).collect();
        let took = mean(times.iter().copied());
        let variance = mean(times.iter().map(|time| (time - took).powi(2))) / 9.0;
        let bound = 3.0 * (variance + error * error).sqrt();
        assert!(
            (took - wanted).abs() < bound,
            "{alternate} {change_over}: {took}, ns-2 {wanted}, bound {bound}"
        );
    }
}

/// Paper, section III.2: with a loss of 3 %, nearly every transfer with PMR = 0 has spurious failovers (ns-2: 6.1 per transfer). With PMR =
/// 1, few transfers have spurious failovers (paper 9 %, ns-2 14 %). With PMR = 5, no transfer has them.
#[test]
fn spurious_failovers_are_as_frequent_as_in_ns2() {
    let failovers = |path_max_retrans| {
        let scenario = MultipathTransfer {
            paths: vec![path(25, 3), path(25, 5)],
            path_max_retrans,
            ..MultipathTransfer::default()
        };
        let results = runs(&scenario, 20);
        let spurious = results.iter().filter(|result| result.failovers > 0).count();
        (
            spurious,
            mean(results.iter().map(|result| f64::from(result.failovers))),
        )
    };
    let (spurious, count) = failovers(0);
    assert!(
        spurious >= 19 && (4.5..8.5).contains(&count),
        "{spurious} of 20, {count} each"
    );
    assert!(failovers(1).0 <= 7);
    assert_eq!(failovers(5).0, 0);
}

/// The detection times are those of the paper (sections II and III.2) and of the closed form.
#[test]
fn a_failure_is_detected_when_the_closed_form_says() {
    for (path_max_retrans, rto_min, paper) in [
        (5, 1, 63.0),
        (5, 60, 360.0),
        (3, 1, 15.0),
        (6, 1, 123.0),
        (0, 1, 1.0),
    ] {
        assert_eq!(failure_detection_s(path_max_retrans, rto_min as f64, 60.0), paper);
        let detection = FailureDetection {
            path_max_retrans,
            rto: Duration::from_secs(rto_min),
        };
        let took = detection.run().expect("valid").expect("a failure").as_secs_f64();
        // The first timer began up to a round trip before the cut. The timer also covers a second chunk, whose SACK may be delayed.
        assert!(
            (took - paper).abs() < 0.5,
            "PMR {path_max_retrans}: {took}, {paper}"
        );
    }
}

/// The time that a cut of the primary path adds to a transfer, in seconds.
fn delay_by_a_cut(policy: MultipathPolicy, path_max_retrans: u32) -> f64 {
    let whole = MultipathTransfer {
        bytes: 20_000_000,
        policy,
        path_max_retrans,
        ..MultipathTransfer::default()
    };
    let mut cut = whole.clone();
    cut.paths[0].cuts = vec![PathCutTime {
        from: Duration::from_secs(10),
        until: Duration::from_secs(100_000),
    }];
    seconds(&cut.run().expect("valid")) - seconds(&whole.run().expect("valid"))
}

/// Paper, section V: the proposed mechanism does not wait for the detection of the failure.
#[test]
fn the_proposed_mechanism_and_rfc_7829_do_not_wait_for_the_detection() {
    let waiting = delay_by_a_cut(MultipathPolicy::DormantHop, 5);
    assert!((55.0..70.0).contains(&waiting), "{waiting}");
    for (policy, path_max_retrans) in [
        (MultipathPolicy::Proposed, 5),
        (MultipathPolicy::PotentiallyFailed, 5),
        (MultipathPolicy::DormantHop, 0),
    ] {
        let moving = delay_by_a_cut(policy, path_max_retrans);
        assert!((0.5..4.0).contains(&moving), "{policy:?}: {moving}");
    }
}

/// Paper, section IV: a permanent failover helps if the alternate path is better, and harms if it is worse; an informed failover only
/// helps.
#[test]
fn an_informed_failover_gains_where_cpt_gains_and_loses_nothing_where_cpt_loses() {
    let time = |policy, change_over, alternate: &PathConfig| {
        let scenario = MultipathTransfer {
            bytes: 20_000_000,
            paths: vec![path(25, 5), alternate.clone()],
            path_max_retrans: 0,
            policy,
            change_over,
            ..MultipathTransfer::default()
        };
        mean(runs(&scenario, 5).iter().map(seconds))
    };
    let (hop, informed) = (MultipathPolicy::DormantHop, MultipathPolicy::Informed);
    let (better, worse) = (path(25, 0), path(85, 5));
    let temporary = time(hop, None, &better);
    assert!(time(hop, Some(0), &better) < 0.5 * temporary);
    assert!(time(informed, None, &better) < 0.5 * temporary);
    let temporary = time(hop, None, &worse);
    assert!(time(hop, Some(0), &worse) > 1.2 * temporary);
    assert!(time(informed, None, &worse) < 1.05 * temporary);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let scenario = MultipathTransfer {
        bytes: 1_000_000,
        paths: vec![path(25, 5), path(85, 5)],
        path_max_retrans: 0,
        ..MultipathTransfer::default()
    };
    assert_eq!(runs(&scenario, 3), runs(&scenario, 3));
    let other = MultipathTransfer {
        seed: 9,
        ..scenario.clone()
    };
    assert_ne!(other.run(), scenario.run());
}

#[test]
fn an_invalid_network_is_refused() {
    let none = MultipathTransfer {
        paths: Vec::new(),
        ..MultipathTransfer::default()
    };
    let message = none.run().map_err(|error| error.to_string());
    assert_eq!(message, Err("there must be 1 to 8 paths, not 0".to_owned()));
    let certain = MultipathTransfer {
        paths: vec![path(25, 101)],
        ..MultipathTransfer::default()
    };
    assert!(certain.run().is_err());
}

fn policies() -> impl Strategy<Value = MultipathPolicy> {
    prop::sample::select(vec![
        MultipathPolicy::DormantLastDest,
        MultipathPolicy::DormantPrimary,
        MultipathPolicy::DormantHop,
        MultipathPolicy::Proposed,
        MultipathPolicy::PotentiallyFailed,
        MultipathPolicy::Informed,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every policy delivers every byte, over one to four paths that lose packets and are cut one after the other.
    #[test]
    fn every_policy_delivers_everything(
        policy in policies(),
        path_max_retrans in 0..6_u32,
        change_over in prop::option::of(0..4_u32),
        losses in prop::collection::vec(0..10_u32, 1..5),
        is_release_38 in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut paths: Vec<PathConfig> = losses.iter().map(|loss| path(25, *loss)).collect();
        let count = paths.len() as u64;
        for (number, path) in (0..).zip(&mut paths) {
            // The paths are cut in turn, each for three seconds. Between two cuts, all paths work for one second.
            let cut = |round: u64| {
                let from = Duration::from_secs(4 * (round * count + number) + 2);
                PathCutTime { from, until: from + Duration::from_secs(3) }
            };
            path.cuts = (0..10).map(cut).collect();
        }
        let scenario = MultipathTransfer {
            bytes: 3_000_000,
            paths,
            path_max_retrans,
            policy,
            change_over,
            is_release_38,
            seed,
            ..MultipathTransfer::default()
        };
        let result = scenario.run().expect("valid");
        prop_assert_eq!(result.delivered, 3_000_000);
        prop_assert!(result.from_init_s.is_some());
    }
}
