//! Tests the judge: for each known defect of a takeover, the judge must notice at least one takeover that the defect breaks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::seeds::*;
use proto::follower::RestartPolicy;
use steadfast_sim::pair::{Costs, Defect};

/// Number of takeovers to try for each defect. If the judge finds nothing in all of them, the test fails.
const SEEDS: u64 = 400;

/// Whether the judge finds something wrong in the takeover of this seed with `defect`. A failed assertion also counts.
fn is_noticed(seed: u64, defect: Option<Defect>) -> bool {
    let play = || {
        let mut draw = Draw::new(seed);
        let policy = draw.pick(&[RestartPolicy::Http, RestartPolicy::Replica]);
        let mut config = draw.config(seed, policy);
        config.defect = defect;
        config.costs = Costs::measured(draw.pick(&[10, 100, 300])); // with slow steps, many packets arrive between two steps
        let mut pair = drawn_pair(&mut draw, &config, 6, 200 * MS);
        let moment = START + draw.time(Duration::from_millis(400));
        let (lan, beats) = (pair.lan, pair.heartbeats);
        let back = moment + 80 * MS;
        pair.cut(beats, at(moment), at(back + Duration::from_secs(2)));
        if draw.chance(0.5) {
            pair.cut(lan, at(moment), at(back));
        }
        !pair.run(at(Duration::from_secs(20))).is_empty()
    };
    catch_unwind(AssertUnwindSafe(play)).unwrap_or(true)
}

#[test]
fn every_defect_is_noticed() {
    for defect in Defect::TAKEOVER {
        let seed = (0..SEEDS).find(|&seed| is_noticed(seed, Some(defect)) && !is_noticed(seed, None));
        assert!(seed.is_some(), "{defect:?} was not noticed in {SEEDS} takeovers");
    }
}
