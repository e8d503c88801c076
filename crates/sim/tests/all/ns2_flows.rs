//! The cluster of the HALR thesis §7.2 against ns-2, flow by flow: completion time and number of timeouts.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ns2::{number, rows, variant};
use steadfast_sim::scenario::FlowResult;
use steadfast_sim::scenario::cluster::{ClusterScenario, thesis_tcp};

fn run(
    name: &str,
    segments: &str,
    failover: &str,
    change: impl FnOnce(&mut ClusterScenario),
) -> Vec<FlowResult> {
    let mut cluster = ClusterScenario {
        tcp: thesis_tcp(variant(name)),
        segments: segments.parse().unwrap(),
        failover: Duration::from_secs_f64(number(failover)),
        ..ClusterScenario::default()
    };
    change(&mut cluster);
    cluster.run().unwrap()
}

/// Compares each run in the file. In 95 % of a run's flows, the completion time must agree within 2 % or 20 ms, and the number of
/// timeouts must be equal.
fn compare(file: &str, change: impl Fn(&mut ClusterScenario)) {
    let mut runs: BTreeMap<[String; 3], Vec<Vec<String>>> = BTreeMap::new();
    for row in rows(file) {
        let key = [row[0].clone(), row[1].clone(), row[2].clone()];
        runs.entry(key).or_default().push(row);
    }
    let mut failed = Vec::new();
    for ([variant, segments, failover], expected) in runs {
        let phases = expected.iter().filter_map(|row| row.get(8)?.parse().ok());
        let phases = phases.map(Duration::from_nanos).collect();
        let flows = run(&variant, &segments, &failover, |cluster| {
            change(cluster);
            cluster.phases = phases;
            cluster.last_arrival = expected
                .last()
                .map(|row| Duration::from_secs_f64(number(&row[3])) + cluster.gap / 2);
        });
        assert_eq!(flows.len(), expected.len());
        let mut worst = Vec::new();
        for (row, flow) in expected.iter().zip(&flows) {
            let (theirs, ours) = (number(&row[4]), flow.completion_s().unwrap_or(f64::INFINITY));
            let timeouts: u32 = row[5].parse().unwrap();
            let difference = (ours - theirs).abs();
            if difference > (0.02 * theirs).max(0.02) || timeouts != flow.timeouts {
                worst.push((difference, row.join(","), ours, flow.timeouts));
            }
        }
        worst.sort_by(|a, b| b.0.total_cmp(&a.0));
        let agreeing = expected.len() - worst.len();
        println!(
            "{file} {variant} {segments} segments, {failover} s: {agreeing} of {}",
            expected.len()
        );
        if agreeing * 100 < expected.len() * 95 {
            worst.truncate(5);
            failed.push(format!("{variant} {segments} {failover}: {agreeing}: {worst:#?}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn flows_of_10_segments_agree() {
    compare("flows10_minrto1.csv", |_| ());
}

#[test]
fn flows_of_10_segments_agree_with_the_cluster_near_the_sources() {
    compare("flows10_minrto1.5_nearsrc.csv", |cluster| {
        cluster.tcp.rto.min = Duration::from_millis(1500);
        cluster.source_delay = Duration::from_millis(1);
        cluster.destination_delay = Duration::from_millis(46);
    });
}

#[test]
fn flows_of_1000_segments_agree() {
    compare("flows1000_minrto1.csv", |_| ());
}

/// With a minimum timeout of 200 ms, the timeout follows the measured round trip, so the phase of each flow's clock matters. The file has
/// ns-2's phases, and with these phases all flows agree.
#[test]
fn flows_with_a_least_timeout_of_200_ms_agree() {
    compare("flows_minrto0.2.csv", |cluster| {
        cluster.tcp.rto.min = Duration::from_millis(200);
    });
}

/// Figures 15 to 17 without HALR: fractions within 0.05.
#[test]
fn fractions_of_flows_by_timeouts_agree() {
    let mut worst = (0.0_f64, String::new());
    for row in rows("timeouts_minrto1.csv") {
        let flows = run(&row[0], "1000", &row[1], |cluster| {
            cluster.last_arrival = Some(cluster.failover_at);
        });
        for (count, expected) in row[3..8].iter().enumerate() {
            let matching = flows.iter().filter(|flow| flow.timeouts.min(4) as usize == count);
            let fraction = matching.count() as f64 / flows.len() as f64;
            let difference = (fraction - number(expected)).abs();
            if difference > worst.0 {
                worst = (difference, format!("{row:?}: {count} timeouts in {fraction}"));
            }
        }
    }
    println!("largest difference {:.3}", worst.0);
    assert!(worst.0 <= 0.05, "{worst:?}");
}

/// With random losses only the means can be compared. The mean completion times agree within three standard errors of their difference. The
/// mean numbers of timeouts agree within 0.15.
#[test]
fn means_under_random_loss_agree() {
    for row in rows("random_loss.csv") {
        let mut flows = Vec::new();
        for seed in 1..=3 {
            flows.extend(run(&row[0], "300", "0", |cluster| {
                cluster.loss = number(&row[1]);
                cluster.seed = seed;
            }));
        }
        assert_eq!(flows.len(), row[2].parse::<usize>().unwrap());
        let mean = |value: fn(&FlowResult) -> f64| flows.iter().map(value).sum::<f64>() / flows.len() as f64;
        let completion = mean(|flow| flow.completion_s().unwrap_or(f64::INFINITY));
        let timeouts = mean(|flow| f64::from(flow.timeouts));
        println!(
            "{} {}: mean completion {completion:.3} s, ns-2 {} ± {}; mean timeouts {timeouts:.3}, ns-2 {}",
            row[0], row[1], row[3], row[4], row[5]
        );
        let error = 3.0 * std::f64::consts::SQRT_2 * number(&row[4]);
        assert!((completion - number(&row[3])).abs() < error, "{row:?}");
        assert!((timeouts - number(&row[5])).abs() < 0.15, "{row:?}: {timeouts}");
    }
}
