//! Output that bypasses the wire (commit mode `pr`): the primary's lease, and the backup's wait.

use super::*;

/// The lease, and the time for which the backup waits.
const LEASE: Duration = Duration::from_millis(300);
const WAIT: Duration = Duration::from_micros(318_750);

fn two(arbiter: Arbiter) -> Two {
    let mut two = Two::new(arbiter);
    for index in 0..2 {
        let mut config = two.nodes[index].config.clone();
        config.services[0].table.sends_directly = true;
        two.nodes[index] = Node::new(config, two.now);
    }
    two
}

/// Whether a node's kernel lets its output bypass the wire now.
fn sends_directly(two: &Two, index: usize) -> bool {
    two.gates[index].0 == Gate::Primary && two.direct[index].is_some_and(|until| two.now < until)
}

#[test]
fn the_lease_goes_on_while_the_backup_answers_and_ends_before_it_takes_over() {
    let mut two = two(Arbiter::FailStop);
    two.pass(SHORT);
    assert!(sends_directly(&two, 0) && two.direct[1].is_none());
    for _ in 0..50 {
        two.pass(BEAT);
        assert!(sends_directly(&two, 0), "at {:?}", two.now);
    }
    // The kernel goes on sending when its agent has died, until the lease ends.
    let silent = two.now;
    two.kill(0);
    while two.roles()[1].0 == Role::Backup {
        two.pass(BEAT);
    }
    let until = two.direct[0].expect("it had a lease");
    assert!(until <= silent + LEASE && two.now >= silent + WAIT, "{until:?}");
    assert!(two.now < silent + WAIT + BEAT * 2, "it waits no longer");
    assert_eq!(two.gates[1].0, Gate::Takeover);
}

#[test]
fn without_the_mode_on_both_nodes_nothing_bypasses_the_wire() {
    for only in [0, 1] {
        let mut two = Two::new(Arbiter::FailStop);
        let mut config = two.nodes[only].config.clone();
        config.services[0].table.sends_directly = true;
        two.nodes[only] = Node::new(config, two.now);
        two.pass(LONG);
        assert_eq!(two.direct, [None, None]);
        assert_eq!(two.roles(), [(Role::Primary, 2), (Role::Backup, 2)]);
    }
}

/// The primary stops before it says so. Then the backup need not wait.
#[test]
fn a_handover_waits_for_nothing_but_the_word() {
    for asked in [0, 1] {
        let mut two = two(Arbiter::FailStop);
        two.pass(SHORT);
        let (epoch, now) = (two.nodes[0].service(0).epoch(), two.now);
        two.nodes[asked].handle_handover(now, 0).unwrap();
        two.carry_out(asked);
        two.pass(BEAT * 3);
        assert_eq!(two.nodes[1].service(0).epoch(), epoch + 1, "asked of {asked}");
        two.pass(SHORT);
        assert_eq!(two.roles(), [(Role::Backup, 4), (Role::Primary, 4)]);
        assert!(sends_directly(&two, 1) && !sends_directly(&two, 0));
    }
}

/// The backup may not rely on its own lease, which is over when the wait is: it asks when the primary falls silent.
#[test]
fn with_an_arbiter_the_backup_asks_at_the_start_of_the_wait() {
    for arbiter in [Arbiter::Witness, Arbiter::Fence] {
        let mut two = two(arbiter);
        two.pass(SHORT);
        let silent = two.now;
        two.kill(0);
        if arbiter == Arbiter::Fence {
            two.gates[0].0 = Gate::Off; // its kernel is off before the fence's command succeeds
        }
        two.pass(SHORT);
        assert_eq!(two.asked[1].last(), Some(&3), "{arbiter:?}");
        while two.roles()[1].0 == Role::Backup {
            two.pass(BEAT);
        }
        let waited = two.now >= silent + WAIT;
        assert_eq!(
            waited,
            arbiter == Arbiter::Witness,
            "the fence has switched the primary off"
        );
        assert!(two.now < silent + WAIT + BEAT * 2);
    }
}

/// The arbiter has given the backup the epoch, and then the primary is heard again. Only the backup can go on: the primary stops sending
/// directly, and says so.
#[test]
fn a_primary_that_is_heard_again_too_late_gives_way() {
    let mut two = two(Arbiter::Witness);
    two.pass(SHORT);
    two.hears = false;
    two.pass(SHORT);
    assert_eq!(two.roles()[1], (Role::Backup, 2), "it waits");
    assert_eq!(two.asked[1].last(), Some(&3));
    two.hears = true;
    two.pass(SHORT);
    assert!(two.nodes[1].service(0).epoch() >= 3, "{:?}", two.roles());
    assert!(!sends_directly(&two, 0));
    two.pass(LONG);
    assert_eq!(two.roles(), [(Role::Backup, 4), (Role::Primary, 4)]);
}

/// A new agent of the backup does not know what the earlier one has granted. A new agent of the primary ends the earlier one's lease.
#[test]
fn new_agents_keep_to_it() {
    let mut two = two(Arbiter::FailStop);
    two.pass(SHORT).replace(1);
    let replaced = two.now;
    two.kill(0);
    while two.roles()[1].0 == Role::Backup {
        two.pass(BEAT);
    }
    assert!(two.now >= replaced + WAIT);

    let mut two = self::two(Arbiter::FailStop);
    two.pass(SHORT).replace(0);
    two.run(0);
    assert_eq!(two.direct[0], None, "no echo of its own heartbeats has come");
    two.pass(SHORT);
    assert!(sends_directly(&two, 0));
}

/// The clock stood still, so the lease may be over.
#[test]
fn a_pause_ends_the_lease_until_the_backup_has_answered_again() {
    let mut two = two(Arbiter::FailStop);
    two.pass(SHORT);
    two.hears = false;
    let now = two.now;
    two.nodes[0].handle_pause(now);
    two.carry_out(0);
    assert!(!sends_directly(&two, 0));
    two.hears = true;
    two.pass(BEAT * 3);
    assert!(sends_directly(&two, 0));
}
