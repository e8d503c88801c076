//! How long a node may speak by its lease.

use super::*;

/// Without a lease every right comes from the arbiter.
#[test]
fn without_a_lease_a_promise_gives_no_right() {
    let mut two = Two::new(Arbiter::Witness);
    for index in 0..2 {
        let mut config = two.nodes[index].config.clone();
        config.lease = Duration::ZERO;
        two.nodes[index] = Node::new(config, two.now);
    }
    two.pass(SHORT);
    two.verdict = None;
    let now = two.now;
    two.nodes[1].handle(now, 0, ServiceInput::Leave(true));
    two.carry_out(1);
    two.pass(LONG);
    assert_eq!(two.roles(), [(Role::Claiming, 2), (Role::Backup, 2)]);
    assert_eq!(two.gates.map(|(gate, _)| gate), [Gate::Primary, Gate::Wire]);
    two.verdict = Some(ArbiterVerdict::Granted);
    two.pass(SHORT + BEAT);
    assert_eq!(two.roles(), [(Role::Sole, 3), (Role::Standby, 3)]);
}

/// A wire speaks for the connections of dead workers beside a living primary. The test checks when the wire's right to speak for them ends.
#[test]
fn a_wire_may_speak_only_as_long_as_its_primary_has_heard_it() {
    let lease = Duration::from_millis(300);
    for arbiter in [Arbiter::Witness, Arbiter::Fence, Arbiter::FailStop] {
        let mut two = Two::new(arbiter);
        two.pass(LONG);
        let (gate, until) = two.gates[1];
        assert_eq!((gate, until.is_some()), (Gate::Wire, true), "{arbiter:?}");
        assert_eq!(
            two.nodes.each_ref().map(|node| node.service(0).right_ends_at()),
            [None, until]
        );
        assert!(until.is_none_or(|until| two.now < until && until <= two.now + lease));
        let cut_at = two.now;
        two.hears = false;
        two.pass(BEAT * 3);
        assert!(two.gates[1].1.is_none_or(|until| until <= cut_at + lease));
    }
}

/// A hypervisor has paused the wire's machine, and its clock stood still. By that clock the lease still runs.
#[test]
fn a_wire_that_was_paused_has_no_lease_until_its_peer_has_heard_it_again() {
    let mut two = Two::new(Arbiter::Witness);
    two.pass(LONG);
    two.nodes[0].handle_timeout(two.now + BEAT);
    let late = two.heartbeat(0);
    let now = two.now;
    two.nodes[1].handle_pause(now);
    two.carry_out(1);
    assert_eq!(two.gates[1], (Gate::Wire, Some(Instant::ZERO)));
    // This heartbeat waited in the machine's socket, and echoes a heartbeat from before the pause.
    two.nodes[1].handle_heartbeat(now, late);
    two.carry_out(1);
    assert_eq!(two.gates[1], (Gate::Wire, Some(Instant::ZERO)));
    two.pass(BEAT * 2);
    assert!(two.gates[1].1.is_some_and(|until| until > two.now));
}

/// Before the wire's agent died, it may have said that it leaves, and that word may still be on its way. So what the primary heard from
/// the earlier agent gives the new agent no lease.
#[test]
fn a_new_agent_of_the_wire_has_no_lease_until_its_peer_has_heard_it() {
    let mut two = Two::new(Arbiter::Witness);
    two.pass(LONG);
    two.nodes[0].handle_timeout(two.now + BEAT);
    let late = two.heartbeat(0);
    two.replace(1);
    let now = two.now;
    two.nodes[1].handle_heartbeat(now, late);
    assert_eq!(two.nodes[1].service(0).right_ends_at(), Some(Instant::ZERO));
    two.pass(BEAT * 2);
    assert!(two.nodes[1].service(0).right_ends_at() > Some(two.now));
}

/// The wire's agent stands still. The primary sends a heartbeat that says that the primary leaves. The heartbeat waits in the socket of the
/// wire's agent. The primary hears nothing from the wire, and goes on alone. Then the wire's agent continues, and reads the old heartbeat.
#[test]
fn a_wire_that_stood_still_does_not_follow_an_old_word() {
    for arbiter in [Arbiter::FailStop, Arbiter::Witness] {
        let mut two = Two::new(arbiter);
        two.pass(LONG).kill(1);
        let now = two.now;
        two.nodes[0].handle(now, 0, ServiceInput::Leave(true));
        let late = two.heartbeat(0);
        two.pass(LONG);
        assert_eq!(
            two.nodes[0].service(0).role_and_epoch(),
            (Role::Sole, 3),
            "{arbiter:?}"
        );
        two.runs[1] = true;
        two.verdict = Some(ArbiterVerdict::Refused {
            epoch: 3,
            is_own: false,
        });
        let now = two.now;
        two.nodes[1].handle_heartbeat(now, late);
        two.carry_out(1);
        assert_eq!(
            two.nodes[1].service(0).role_and_epoch(),
            (Role::Backup, 2),
            "{arbiter:?}"
        );
        two.pass(LONG);
        assert_eq!(two.roles()[0].0, Role::Sole, "{arbiter:?}");
        assert_eq!(two.alarms, [vec![], vec![]], "{arbiter:?}");
    }
}

/// The wire's agent was stopped between its decision to take over and its first step, and the primary claimed the VIP meanwhile.
#[test]
fn a_takeover_that_began_too_late_gives_way_to_a_claim() {
    for wire in [0, 1] {
        let (mut two, primary) = (Two::new(Arbiter::FailStop), 1 - wire);
        two.pass(LONG);
        if wire == 0 {
            let now = two.now;
            two.nodes[0].handle_handover(now, 0).unwrap();
            two.carry_out(0);
            two.pass(LONG);
        }
        let epoch = two.nodes[wire].service(0).epoch();
        two.kill(wire);
        let now = two.now;
        two.nodes[wire].handle_handover(now, 0).unwrap();
        two.pass(LONG);
        assert_eq!(
            two.nodes[primary].service(0).role_and_epoch(),
            (Role::Sole, epoch + 1)
        );
        two.runs[wire] = true;
        // The wire carries out its earlier decision now, so the primary hears of a takeover.
        two.carry_out(wire);
        assert_eq!(
            two.nodes[primary].service(0).role_and_epoch(),
            (Role::Sole, epoch + 1)
        );
        two.pass(LONG);
        assert_eq!(
            two.nodes[primary].service(0).role_and_epoch(),
            (Role::Primary, epoch + 2)
        );
        assert_eq!(
            two.nodes[wire].service(0).role_and_epoch(),
            (Role::Backup, epoch + 2)
        );
    }
}
