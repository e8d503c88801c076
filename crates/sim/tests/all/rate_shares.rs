//! The rate control of `steadfast edge` (`docs/rate-control.md`) with today's hosts: shares, queue, drops and throughput from 2 s after the
//! failover on. `cargo test -p steadfast-sim --test all rate_shares -- --nocapture` prints the numbers of that document.

use std::time::Duration;

use proto::Instant;
use steadfast_sim::flow::FlowConfig;
use steadfast_sim::scenario::edge::Sharing;
use steadfast_sim::scenario::rate::{RateResult, RateScenario};

/// The judged bins of half a second: from 2 s to 12 s after the failover. After that, the first flows are complete.
const JUDGED: std::ops::Range<usize> = 20..40;

/// Two strings. The second string fails. The first string is left, and has one `ratio`-th of the second string's rate.
fn strings(ratio: u64, seed: u64, jitter_ms: u64) -> RateScenario {
    RateScenario {
        tcp: FlowConfig::linux(),
        rate_bits_per_s: [100_000_000 / ratio, 100_000_000],
        jitter: Duration::from_millis(jitter_ms),
        end: Duration::from_secs(28),
        seed,
        ..RateScenario::default()
    }
}

/// Endless flows, `flows` per string, with this round trip.
fn endless(ratio: u64, seed: u64, flows: u32, round_trip: Duration) -> RateScenario {
    let delay = (round_trip / 20).min(Duration::from_millis(1));
    RateScenario {
        flows,
        segments: 100_000,
        gap: Duration::from_millis(20),
        delay,
        source_delay: round_trip / 2 - delay * 3,
        ..strings(ratio, seed, 10)
    }
}

/// A run from 2 s to 12 s after the failover.
#[derive(Debug)]
struct Shares {
    /// Jain's index of the bytes that each flow got in the whole time. Only flows that were active throughout count.
    jain: f64,
    /// Mean of Jain's index in each half second.
    jain_of_bins: f64,
    drops: u64,
    queue_max: usize,
    /// Mb/s on the string.
    throughput: f64,
}

fn jain(shares: &[u64]) -> f64 {
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    (shares.iter().sum::<u64>() as f64).powi(2) / (squares * shares.len() as f64)
}

fn judged(at: Instant) -> bool {
    let half_seconds = at.since(Instant::ZERO).as_secs_f64() * 2.0 - 0.01;
    half_seconds > JUDGED.start as f64 && half_seconds < JUDGED.end as f64
}

fn shares(rate: &RateScenario, sharing: Option<Sharing>) -> Shares {
    let rate = RateScenario {
        sharing,
        ..rate.clone()
    };
    let result: RateResult = rate.run().expect("a network");
    let bins = &result.shares[JUDGED];
    let whole = |flow: usize| bins.iter().map(|bin| bin[flow]).sum::<Option<u64>>();
    let wholes: Vec<u64> = (0..result.flows.len()).filter_map(whole).collect();
    let of_bin = |bin: &Vec<Option<u64>>| jain(&bin.iter().flatten().copied().collect::<Vec<_>>());
    let judged_bins = || result.bins.iter().filter(|bin| judged(bin.end));
    let queue = result.queue.iter().filter(|(at, _)| judged(*at));
    Shares {
        jain: jain(&wholes),
        jain_of_bins: bins.iter().map(of_bin).sum::<f64>() / bins.len() as f64,
        drops: judged_bins().map(|bin| bin.overflows).sum(),
        queue_max: queue.map(|(_, packets)| *packets).max().unwrap_or_default(),
        throughput: judged_bins().map(|bin| bin.sent[0]).sum::<u64>() as f64 * 8e-6 / 10.0,
    }
}

/// Plays the runs of one line of the document. Returns the worst values, and the smallest throughput relative to the same run without rate
/// control.
fn worst(name: &str, runs: &[RateScenario], sharing: Sharing) -> (Shares, f64) {
    let mut worst: Option<(Shares, f64)> = None;
    for run in runs {
        let with = shares(run, Some(sharing));
        let part = with.throughput / shares(run, None).throughput;
        worst = Some(match worst {
            None => (with, part),
            Some((other, least)) => (
                Shares {
                    jain: with.jain.min(other.jain),
                    jain_of_bins: with.jain_of_bins.min(other.jain_of_bins),
                    drops: with.drops.max(other.drops),
                    queue_max: with.queue_max.max(other.queue_max),
                    throughput: with.throughput.min(other.throughput),
                },
                part.min(least),
            ),
        });
    }
    let (all, part) = worst.expect("runs");
    println!(
        "{name}: Jain {:.4}, in half seconds {:.4}; queue {}, drops {}; {:.1} Mb/s, {part:.3} of the throughput without rate control",
        all.jain, all.jain_of_bins, all.queue_max, all.drops, all.throughput
    );
    (all, part)
}

#[test]
fn shares_are_equal_whatever_part_of_the_strings_is_left() {
    for ratio in [1, 2, 4] {
        let runs: Vec<_> = [(1, 0), (2, 0), (3, 0), (101, 250), (102, 250), (103, 250)]
            .map(|(seed, jitter_ms)| strings(ratio, seed, jitter_ms))
            .into();
        let (all, part) = worst(&format!("{ratio}:1"), &runs, Sharing::today());
        assert!(all.jain >= 0.99 && all.jain_of_bins >= 0.99, "{all:?}");
        assert!(all.drops == 0 && all.queue_max <= 600, "{all:?}");
        assert!(part >= 0.95, "{part}");
        let (thesis, _) = worst(
            &format!("{ratio}:1, the thesis' rule"),
            &runs[..3],
            Sharing::default(),
        );
        assert!(thesis.jain_of_bins < all.jain_of_bins && thesis.queue_max > 2 * all.queue_max);
    }
}

/// Hosts and queues make up a larger part of a short round trip than the path does.
#[test]
fn short_round_trips_keep_their_throughput() {
    for (micros, flows) in [(400, 1), (400, 2), (400, 50), (1000, 1), (1000, 2), (1000, 50)] {
        let of = |ratio| endless(ratio, 104, flows, Duration::from_micros(micros));
        let name = format!("{} flows, {micros} µs", 2 * flows);
        let (all, part) = worst(&name, &[of(1), of(2), of(4)], Sharing::today());
        assert!(
            part >= 0.95 && all.drops == 0 && all.queue_max <= 600,
            "{all:?} {part}"
        );
    }
}

/// A known limit. The windows of few flows are large, and a flow that lost packets needs seconds to open its congestion window again. The
/// other flows get the bandwidth that this flow does not use.
#[test]
fn few_flows_share_less_equally() {
    let runs = [105, 106, 107].map(|seed| RateScenario {
        gap: Duration::from_millis(250),
        jitter: Duration::from_millis(100),
        ..endless(1, seed, 5, Duration::from_millis(98))
    });
    let (all, part) = worst("10 flows", &runs, Sharing::today());
    assert!(all.jain > 0.9 && all.drops == 0 && part >= 0.95, "{all:?} {part}");
}
