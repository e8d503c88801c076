//! What the swarm has found, made small: each scenario breaks a promise if its defect is put back, and none without it.

use steadfast_sim::pair::Defect;
use steadfast_sim::swarm::{Scenario, play};

/// A scenario as the swarm has written it, `seed-N.toml` by its seed.
macro_rules! scenario {
    ($seed:literal) => {
        toml::from_str::<Scenario>(include_str!(concat!("swarm_found/seed-", $seed, ".toml"))).expect($seed)
    };
}

/// None of the scenarios breaks a promise, but each does if `defect` is put back.
#[track_caller]
fn is_cured(defect: Defect, scenarios: impl IntoIterator<Item = Scenario>) {
    for mut scenario in scenarios {
        let seed = scenario.seed;
        assert_eq!(play(&scenario).violations, [], "seed {seed}");
        scenario.defect = Some(defect);
        assert_ne!(play(&scenario).violations, [], "seed {seed} with {defect:?}");
    }
}

/// The primary's agent had heard that a worker died, and died itself before the backup knew. Its successor told nobody: the clients
/// waited for ever.
#[test]
fn orphans_outlive_the_agent_that_was_to_tell_of_them() {
    is_cured(
        Defect::ForgetOrphans,
        [
            scenario!("1101087"),
            scenario!("1104511"),
            scenario!("1118234"),
            scenario!("20272957"),
            scenario!("31421162"),
            scenario!("31431253"),
            scenario!("58008073"),
        ],
    );
}

/// Under `fail-stop`: the primary's agent was away for so long that the backup took over; that one lost its power. The old primary's
/// sockets went on where they had stopped.
#[test]
fn who_was_away_for_long_does_not_trust_its_gate() {
    is_cured(Defect::TrustGate, [scenario!("20263429")]);
}

/// The wire had taken connections over, its agent died, and the primary went on alone. A new agent answered what was logged before it
/// heard of that.
#[test]
fn a_new_wire_says_nothing_before_the_primary_has_answered() {
    is_cured(Defect::TrustLease, [scenario!("31440390"), scenario!("58021796")]);
}

/// A wire that had taken connections over was drained. It spoke for them by its lease, while the primary went on alone.
#[test]
fn a_wire_that_leaves_is_silent_first() {
    is_cured(Defect::LeaveLate, [scenario!("58020452")]);
}

/// A SYN came late, and then a SYN-ACK that was repeated by a node that had taken the connection over: the wire thought that the
/// connection began there.
#[test]
fn a_late_handshake_opens_nothing() {
    is_cured(Defect::TrustSyn, [scenario!("58031096")]);
}

/// A slow survivor's lease was over before it had decided: the primary claimed, and both applications executed a request. Nor does
/// what the survivor's guard keeps back contradict anybody.
#[test]
fn who_may_not_speak_any_more_has_nothing_executed() {
    let scenario = scenario!("58016449");
    assert_eq!(play(&scenario).violations, []);
}
