//! Tests of orphans: connections whose worker process has died while its node lives.

use super::*;

/// The primary destroys an orphan's socket once the wire has confirmed the adoption, or once the wire is gone. In both
/// cases, the wire may have spoken for the orphan.
#[test]
fn what_a_dead_worker_leaves_is_destroyed_once_it_is_told() {
    let client: SocketAddr = "10.0.0.1:4000".parse().unwrap();
    for wire_dies in [false, true] {
        let mut two = Two::new(Arbiter::FailStop);
        two.pass(SHORT);
        two.hears = !wire_dies;
        let now = two.now;
        two.nodes[0].handle(now, 0, ServiceInput::Orphans(vec![client]));
        two.carry_out(0);
        two.pass(BEAT);
        if wire_dies {
            assert!(!two.network[0].contains(&"destroy"), "it may still be the wire");
            two.hears = true;
            two.kill(1).pass(LONG);
        }
        let destroyed = two.network[0].iter().filter(|what| **what == "destroy").count();
        assert_eq!(destroyed, 1, "the wire dies: {wire_dies}");
    }
}

/// A wire without a lease may not speak for single connections while the primary lives. So a dead worker counts as a dead server: the wire
/// takes over the whole service.
#[test]
fn without_a_lease_a_worker_that_dies_is_a_server_that_does() {
    for worker in [false, true] {
        let mut two = without_lease();
        let now = two.now;
        if worker {
            let client = "10.0.0.1:4000".parse().unwrap();
            two.nodes[0].handle(now, 0, ServiceInput::Orphans(vec![client]));
        } else {
            two.nodes[0].handle(now, 0, ServiceInput::Server(ApplicationState::Dead));
        }
        two.carry_out(0);
        two.pass(LONG);
        assert_eq!(
            two.roles(),
            [(Role::Backup, 4), (Role::Primary, 4)],
            "a worker: {worker}"
        );
    }
}

/// A backup reports how many orphans of the primary's earlier agent it has adopted. That count must not be applied to the new agent's
/// orphans.
#[test]
fn orphans_of_a_new_agent_are_told_though_as_many_were_adopted_before() {
    let mut two = Two::new(Arbiter::FailStop);
    two.pass(SHORT);
    let client = |number: u16| SocketAddr::from(([10, 0, 0, 1], number));
    let now = two.now;
    two.nodes[0].handle(now, 0, ServiceInput::Orphans(vec![client(1), client(2)]));
    two.carry_out(0);
    two.pass(SHORT);
    assert_eq!(two.network[0], ["destroy"]);
    two.replace(0);
    two.network[0].clear();
    two.nodes[0].handle(two.now, 0, ServiceInput::Orphans(vec![client(3)]));
    // The new agent's first heartbeat is lost. The backup's heartbeats in the meantime are meant for the earlier agent.
    two.hears = false;
    two.carry_out(0);
    let mut words = Vec::new();
    two.nodes[1].handle_timeout(two.now + BEAT);
    while let Some(action) = two.nodes[1].poll_action() {
        words.extend(match action {
            Action::Send(heartbeat) => Some(heartbeat),
            _ => None,
        });
    }
    two.now += BEAT;
    assert!(!words.is_empty());
    for word in words {
        two.nodes[0].handle_heartbeat(two.now, word);
    }
    two.carry_out(0);
    assert!(two.network[0].is_empty(), "{:?}", two.network[0]);
    two.hears = true;
    two.pass(SHORT);
    assert_eq!(two.network[0], ["destroy"], "it was told, and taken over");
    assert_eq!(two.nodes[1].service(0).takeovers().len(), 2);
}

/// Orphans belong to the log of one epoch. The wire of another epoch has another log, so it must not adopt them.
#[test]
fn orphans_of_an_earlier_epoch_are_not_taken_over() {
    let client: SocketAddr = "10.0.0.1:4000".parse().unwrap();
    let mut two = Two::new(Arbiter::FailStop);
    two.pass(SHORT);
    let mut late = bereft(&mut two, client);
    late.services[0].epoch -= 1;
    let now = two.now;
    two.nodes[1].handle_heartbeat(now, late.clone());
    assert!(!two.nodes[1].is_deciding());
    late.services[0].epoch += 1;
    two.nodes[1].handle_heartbeat(now, late);
    assert!(two.nodes[1].is_deciding());
}

#[test]
fn a_wire_that_is_deposed_gives_up_what_it_was_deciding() {
    let client: SocketAddr = "10.0.0.1:4000".parse().unwrap();
    let mut two = Two::new(Arbiter::FailStop);
    two.pass(SHORT);
    let heartbeat = bereft(&mut two, client);
    let now = two.now;
    two.nodes[1].handle_heartbeat(now, heartbeat.clone());
    assert!(two.nodes[1].is_deciding());
    let mut alone = heartbeat;
    alone.sequence += 1;
    (alone.services[0].role, alone.services[0].epoch) = (Role::Sole, 3);
    two.nodes[1].handle_heartbeat(now, alone);
    assert_eq!(
        two.nodes[1].service(0).role(),
        Role::Returning,
        "it stood down first"
    );
    assert!(!two.nodes[1].service(0).takes_over());
    assert_eq!(deposed(&mut two.nodes[1]), [false], "it was a wire");
}
