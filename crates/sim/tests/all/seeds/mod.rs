//! Simulated pairs whose options are drawn from a seed.

use std::ops::Range;
use std::time::Duration;

use proto::Instant;
pub use steadfast_sim::pair::draw::Draw;
use steadfast_sim::pair::{SimPair, SimPairConfig};

pub const MS: Duration = Duration::from_millis(1);

/// Time by which the pair has agreed on roles. Clients connect from then on.
pub const START: Duration = Duration::from_millis(50);

/// Time limit of a run. A client that is not done by then counts as a failure.
pub const LIMIT: Duration = Duration::from_secs(2000);

pub fn at(duration: Duration) -> Instant {
    Instant::ZERO + duration
}

/// A pair with connections that begin within `spread`.
pub fn drawn_pair(draw: &mut Draw, config: &SimPairConfig, connections: u64, spread: Duration) -> SimPair {
    let mut pair = SimPair::new(config);
    for _ in 0..connections {
        let begin = at(START + draw.time(spread));
        let talk = draw.talk(config.policy);
        pair.connect(begin, talk);
    }
    pair
}

/// Runs `test` with each seed of `seeds`. The environment variable SEED selects a single seed instead, and prints the trace of its run.
/// The variable SEEDS replaces the end of `seeds`. `test` returns the pair, and a list of what is wrong with the run.
pub fn for_seeds(name: &str, seeds: Range<u64>, mut test: impl FnMut(u64, bool) -> (SimPair, Vec<String>)) {
    let number = |variable| {
        let text = std::env::var(variable).ok()?;
        Some(
            text.parse::<u64>()
                .unwrap_or_else(|_| panic!("{variable} must be a number")),
        )
    };
    let one = number("SEED");
    let seeds = match (one, number("SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => seeds.start..count.unwrap_or(seeds.end),
    };
    let mut failures = 0;
    for seed in seeds {
        let (pair, complaints) = test(seed, one.is_some());
        if one.is_some() {
            println!("{}", pair.world.trace());
        }
        if !complaints.is_empty() {
            failures += 1;
            println!("seed {seed}: {complaints:#?}");
            println!("replay: SEED={seed} cargo test -p steadfast-sim {name} -- --exact --nocapture");
        }
    }
    assert_eq!(failures, 0, "number of failed seeds");
}
