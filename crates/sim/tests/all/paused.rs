//! A hypervisor pauses the wire's machine, and the machine's clock with it. How long does a lease that has ended still look valid?

use std::time::Duration;

use crate::seeds::*;
use proto::Instant;
use proto::follower::RestartPolicy;
use steadfast_sim::pair::{SimArbiterKind, SimPair, SimPairConfig, Station};

/// Time for which the lease still looks valid after the end of a pause of two seconds. The peer is not heard from the beginning of the
/// pause on, and the arbiter answers late. `counter_goes_on`: whether the machine's time-stamp counter runs during the pause.
fn outlasts_by(counter_goes_on: bool) -> Duration {
    let mut config = SimPairConfig::quiet(7, RestartPolicy::Http);
    config.arbiter = Some((SimArbiterKind::Witness, MS * 1_000));
    let mut pair = SimPair::new(&config);
    let (paused, resumed) = (at(Duration::from_secs(5)), at(Duration::from_secs(7)));
    pair.cut(pair.heartbeats, paused, at(Duration::from_secs(12)));
    let backup = pair.backup;
    pair.world.at(paused, move |world| {
        world.with(backup, |station: &mut Station, now| {
            station.machine_mut().halt(now, resumed, counter_goes_on)
        })
    });
    let is_over = |pair: &SimPair, now: Instant| {
        let station = pair.backup();
        let until = station.core().service(0).right_ends_at().expect("a lease");
        station.machine().time(now) >= until
    };
    pair.world.run_until(paused);
    assert!(
        !is_over(&pair, paused),
        "the wire has no lease when the pause begins"
    );
    let over = (0..1_000).map(|millis| resumed + MS * millis).find(|&now| {
        pair.world.run_until(now);
        is_over(&pair, now)
    });
    over.expect("the lease does not end within 1 s").since(resumed)
}

#[test]
fn a_counter_that_goes_on_ends_the_lease_at_once() {
    assert!(outlasts_by(true) <= MS * 20, "{:?}", outlasts_by(true));
}

/// The counter stops during the pause, so the machine cannot notice the pause. The lease lasts for the time that was left when the pause
/// began.
#[test]
fn without_one_the_lease_lasts_as_long_as_it_had_to_run() {
    let by = outlasts_by(false);
    assert!(MS * 100 < by && by <= MS * 300, "{by:?}");
}
