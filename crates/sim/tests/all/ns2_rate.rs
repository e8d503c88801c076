//! Compares the simulator with ns-2: the throughput, the queue, and the number of surges of drops. The scenario is the HALR thesis' cluster
//! with two strings (§7.4), without rate control.

use crate::ns2::{number, rows};
use proto::Instant;
use steadfast_sim::scenario::rate::{RateResult, RateScenario};

/// Whether the time `at`, in seconds, is within the 20 s after the failover's end. The failover ends at 8 s, when the flows are moved.
fn watched(at: f64) -> bool {
    at > 8.01 && at < 28.01
}

fn seconds(at: Instant) -> f64 {
    at.since(Instant::ZERO).as_secs_f64()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0, 0.0), |(count, sum), value| (count + 1, sum + value));
    sum / f64::from(count)
}

/// Number of surges of drops. `bins`: for each bin, its time in seconds and its number of drops. A bin with drops begins a new surge if the
/// previous bin with drops is more than 0.5 s older. (The code compares with 0.55 s, because times are rounded and a bin is 0.1 s long.)
fn surges(bins: impl Iterator<Item = (f64, u64)>) -> usize {
    let mut last = f64::NEG_INFINITY;
    let mut count = 0;
    for (at, _) in bins.filter(|(_, drops)| *drops > 0) {
        count += usize::from(at - last > 0.55);
        last = at;
    }
    count
}

/// The results of ns-2: mean throughput in Mb/s, mean queue in packets, number of surges.
fn theirs(buffer: usize) -> (f64, f64, usize) {
    let bins = rows(&format!("rate_b{buffer}_bins.csv"));
    let queue = rows(&format!("rate_b{buffer}_queue.csv"));
    let bins: Vec<_> = bins.iter().filter(|row| watched(number(&row[0]))).collect();
    let queue = queue.iter().filter(|row| watched(number(&row[0])));
    (
        mean(bins.iter().map(|row| number(&row[5]))),
        mean(queue.map(|row| number(&row[1]))),
        surges(bins.iter().map(|row| (number(&row[0]), row[6].parse().unwrap()))),
    )
}

fn ours(result: &RateResult) -> (f64, f64, usize) {
    const WIRE_BYTES_PER_DATA_BYTE: f64 = 1500.0 / 1460.0; // the receivers of ns-2 count headers, ours do not
    let bins: Vec<_> = result
        .bins
        .iter()
        .filter(|bin| watched(seconds(bin.end)))
        .collect();
    let queue = result.queue.iter().filter(|(at, _)| watched(seconds(*at)));
    let delivered = |bytes: [u64; 2]| (bytes[0] + bytes[1]) as f64 * WIRE_BYTES_PER_DATA_BYTE * 8e-5;
    (
        mean(bins.iter().map(|bin| delivered(bin.delivered))),
        mean(queue.map(|(_, waiting)| *waiting as f64)),
        surges(bins.iter().map(|bin| (seconds(bin.end), bin.overflows))),
    )
}

fn compare(buffer: usize) {
    let result = RateScenario {
        buffer_packets: buffer - 1,
        ..RateScenario::default()
    }
    .run()
    .unwrap();
    assert!(result.flows.iter().all(|flow| flow.result.end.is_some()));
    let (theirs, ours) = (theirs(buffer), ours(&result));
    println!("buffer {buffer}: (Mb/s, packets, surges) ns-2 {theirs:?}, here {ours:?}");
    assert!(
        (ours.0 / theirs.0 - 1.0).abs() <= 0.01,
        "throughput {theirs:?} {ours:?}"
    );
    assert!(
        (ours.1 / theirs.1 - 1.0).abs() <= 0.10,
        "queue {theirs:?} {ours:?}"
    );
    assert!(ours.2.abs_diff(theirs.2) <= 1, "surges {theirs:?} {ours:?}");
}

#[test]
fn a_buffer_of_750_packets_agrees() {
    compare(750);
}

#[test]
fn a_buffer_of_1500_packets_agrees() {
    compare(1500);
}
