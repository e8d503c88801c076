//! Tests of when a node asks the fence to switch its peer off.

use super::*;

/// Only a silent peer is fenced. Planned changes of roles fence no node.
#[test]
fn a_fence_is_for_the_silent() {
    let mut two = Two::new(Arbiter::Fence);
    two.pass(SHORT);
    for asked in [0, 1] {
        let now = two.now;
        two.nodes[asked].handle_handover(now, 0).unwrap();
        two.carry_out(asked);
        two.pass(LONG);
    }
    assert_eq!(two.asked, [[], []], "handed over");
    for part in [Role::Primary, Role::Backup] {
        let leaves = usize::from(two.roles()[1].0 == part);
        for is_gone in [true, false] {
            let now = two.now;
            two.nodes[leaves].handle(now, 0, ServiceInput::Leave(is_gone));
            two.carry_out(leaves);
            two.pass(LONG);
            let (gate, until) = two.gates[1 - leaves];
            assert!(gate == Gate::Wire || until.is_none(), "{gate:?} until {until:?}");
        }
        let roles = two.roles().map(|(role, _)| role);
        assert!(
            roles.contains(&Role::Primary) && roles.contains(&Role::Backup),
            "{roles:?}"
        );
        assert_eq!(two.asked, [[], []], "a {part:?} left, and came back");
    }
    let epoch = two.roles()[0].1;
    let speaker = usize::from(two.roles()[1].0 == Role::Primary);
    two.kill(1 - speaker).pass(LONG);
    assert_eq!(
        two.nodes[speaker].service(0).role_and_epoch(),
        (Role::Sole, epoch + 1)
    );
    assert_eq!(two.asked[speaker], [epoch + 1], "silence");
    two.replace(speaker).pass(LONG);
    assert_eq!(two.asked[speaker], [epoch + 1], "the agent before it had asked");
}

/// The peer returned, but for a moment it did not know whether its path works, so it reported that it leaves. It had sent this report
/// before it heard that this node consents.
#[test]
fn a_mute_peer_is_not_fenced_at_once() {
    let now = Instant::from_nanos(1_000_000_000);
    let config = StandingConfig {
        is_primary: true,
        arbiter: Arbiter::Fence,
        lease: Duration::ZERO,
        fence_delay: Duration::ZERO,
        sends_directly: false,
    };
    let left = crate::standing::InheritedStanding {
        role: Role::Primary,
        epoch: 4,
        is_confirmed: true,
    };
    let mut standing = Standing::new(config, Some(left), now);
    let word = |role, epoch, leaves| StandingBeat {
        role,
        epoch,
        leaves,
        yields: false,
        echo: None,
        direct: false,
    };
    assert!(standing.on_word(now, &word(Role::Standby, 3, true)).is_some());
    assert_eq!((standing.role(), standing.ask(now)), (Role::Claiming, None));
    assert!(
        standing
            .on_word(now + BEAT, &word(Role::Backup, 4, false))
            .is_some()
    );
    assert_eq!(standing.role(), Role::Primary);
    assert!(standing.on_word(now, &word(Role::Standby, 3, true)).is_some());
    assert_eq!(standing.ask(now + SHORT), Some(5), "it stays mute");
}

/// The wire asked for the right to speak, and the fence's command failed. Then the wire left, because its path broke. Then a primary
/// without a lease asks the fence to switch the wire off. If the wire takes its part again meanwhile, its old request must not make the
/// fence switch the primary off as well.
#[test]
fn a_wire_that_had_left_does_not_fence_because_of_an_older_wish() {
    let now = Instant::from_nanos(1_000_000_000);
    let mut standing = left(Role::Backup, Arbiter::Fence, Duration::ZERO, now);
    standing.set_path(now, Fitness::WHOLE, true);
    let beat = |role, yields, echo| StandingBeat {
        yields,
        echo,
        ..word(role, 4)
    };
    standing.on_word(now, &beat(Role::Primary, false, Some(now + SHORT)));
    let now = now + Duration::from_secs(1);
    assert_eq!(standing.on_word(now, &beat(Role::Primary, true, None)), None);
    assert_eq!(standing.ask(now), Some(5));
    assert_eq!(standing.on_verdict(now, 5, ArbiterVerdict::Failed), None);
    assert_eq!(standing.set_leaves(now, true), None);
    let later = now + Duration::from_secs(2);
    assert_eq!(standing.on_word(later, &beat(Role::Claiming, false, None)), None);
    assert_eq!(standing.set_leaves(later, false), None);
    assert_eq!(standing.ask(later + Duration::from_secs(1)), None);
}

/// A wire whose agent was stopped reads what its primary said meanwhile: first that the primary yields, then that the primary claims the
/// VIP. A primary that claims may already have asked the fence to switch the wire off.
#[test]
fn a_wire_delays_its_fence_when_the_primary_claims() {
    let started = Instant::from_nanos(1_000_000_000);
    let now = started + LONG; // any promise of an earlier agent has ended
    let claims = word(Role::Claiming, 4);
    let read = |words: &[StandingBeat]| {
        let mut standing = left(Role::Backup, Arbiter::Fence, LONG, started);
        for word in words {
            assert_eq!(standing.on_word(now, word), None, "it has no lease");
        }
        standing
    };
    let yields = word(Role::Primary, 4);
    assert_eq!(read(&[yields]).ask(now), Some(5));

    let mut standing = read(&[yields, claims]);
    assert_eq!(standing.ask(now), None);
    standing.on_word(now + SHORT, &claims);
    assert_eq!(
        standing.ask(now + LONG),
        Some(5),
        "the delay is over, and later words do not restart it"
    );

    // A primary that claims may wait for a long time. It may fall silent after it has asked the fence.
    let mut standing = read(&[yields, claims]);
    let silent = now + LONG * 2;
    assert_eq!(standing.on_silent(silent), None);
    assert_eq!(standing.ask(silent), None, "silence begins the delay anew");
    standing.on_silent(silent + SHORT);
    assert_eq!(standing.ask(silent + LONG), Some(5), "once");
}

/// The peer may be about to fence this node, and has not been heard by this agent yet.
#[test]
fn a_new_agent_waits_out_its_fence_delay() {
    let started = Instant::from_nanos(1_000_000_000);
    let config = standing_config(false, Arbiter::Fence, Duration::from_millis(300), LONG);
    let found = crate::standing::InheritedStanding {
        role: Role::Sole,
        epoch: 4,
        is_confirmed: false,
    };
    let mut standing = Standing::new(config, Some(found), started);
    assert_eq!(standing.ask(started + LONG - SHORT), None);
    assert_eq!(standing.ask(started + LONG), Some(4));
}

/// A promise counts only while the wire keeps it.
#[test]
fn a_wire_that_left_and_is_back_is_fenced_when_it_is_silent() {
    let mut two = Two::new(Arbiter::Fence);
    two.pass(SHORT);
    two.outside = false; // the claim cannot succeed
    let now = two.now;
    two.nodes[1].handle(now, 0, ServiceInput::Leave(true));
    two.carry_out(1);
    assert_eq!(two.nodes[0].service(0).role(), Role::Claiming);
    two.replace(1).run(1);
    assert_eq!(two.roles(), [(Role::Primary, 2), (Role::Backup, 2)]);
    two.outside = true;
    two.pass(LONG);
    let roles = two.roles();
    assert_eq!(roles.map(|(role, _)| role), [Role::Primary, Role::Backup]);
    assert_eq!(two.asked[0], []);
    two.kill(1).pass(LONG);
    assert_eq!(
        two.nodes[0].service(0).role_and_epoch(),
        (Role::Sole, roles[0].1 + 1)
    );
    assert_eq!(two.asked[0], [roles[0].1 + 1]);
}
