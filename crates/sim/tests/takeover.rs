//! Takeovers.
mod swarm;

use proto::follower::Policy;
use std::time::Duration;
use swarm::*;

#[test]
fn power_off() {
    for_seeds("power_off", 0..400, |seed, record| {
        let mut draw = Draw::new(seed);
        let policy = draw.pick(&[Policy::Http, Policy::Replica]);
        let config = draw.config(seed, policy);
        let count = 1 + draw.below(8);
        let mut scene = scene(&mut draw, &config, count, 200 * MS);
        if record {
            scene.world.record();
            println!("{config:#?}");
        }
        let moment = START + draw.time(Duration::from_millis(500));
        scene.power_off(at(moment));
        let complaints = scene.run(at(LIMIT));
        (scene, complaints)
    });
}
