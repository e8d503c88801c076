//! Commit mode `immediate`: when a wire passes packets unlogged, and what that does to the connections.

use std::net::SocketAddr;

use super::*;
use crate::Seq;
use crate::connection::{Protection, UnprotectedCause};
use crate::follower::RestartPolicy;
use crate::packet::{Checksum, Flags, Segment, TcpOptions};
use crate::table::Direction;

/// Sets the commit mode of a node: `immediate`, or `pr`.
fn set_mode(two: &mut Two, index: usize, is_immediate: bool) {
    let table = &mut two.nodes[index].config.services[0].table;
    (table.sends_directly, table.is_immediate) = (true, is_immediate);
    table.policy = RestartPolicy::Replay;
}

/// A pair whose nodes have these modes.
fn two(is_immediate: [bool; 2]) -> Two {
    let mut two = Two::new(Arbiter::FailStop);
    for (index, is_immediate) in is_immediate.into_iter().enumerate() {
        set_mode(&mut two, index, is_immediate);
        two.nodes[index] = Node::new(two.nodes[index].config.clone(), two.now);
    }
    two
}

#[test]
fn only_the_wire_of_a_pair_in_which_both_nodes_have_the_mode_passes_packets_unlogged() {
    for (modes, passes) in [
        ([true, true], [false, true]),
        ([false, true], [false, false]),
        ([true, false], [false, false]),
        ([false, false], [false, false]),
    ] {
        let mut two = two(modes);
        two.pass(LONG);
        assert_eq!(two.passes_unlogged, passes, "{modes:?}");
        assert_eq!(two.roles(), [(Role::Primary, 2), (Role::Backup, 2)]);
        assert!(two.direct[0].is_some(), "each of the modes sends output directly");
    }
}

#[test]
fn a_wire_that_takes_over_and_a_primary_that_changed_its_mode_end_it() {
    let mut two = self::two([true, true]);
    two.pass(SHORT).kill(0).pass(LONG);
    assert_eq!(two.roles()[1], (Role::Sole, 3));
    assert!(!two.passes_unlogged[1]);

    let mut two = self::two([true, true]);
    two.pass(SHORT);
    set_mode(&mut two, 0, false);
    two.replace(0).pass(SHORT);
    assert_eq!(two.roles(), [(Role::Primary, 2), (Role::Backup, 2)]);
    assert!(!two.passes_unlogged[1]);
}

/// A new agent of the wire has not heard what the primary's mode is now.
#[test]
fn a_new_agent_of_the_wire_begins_without_it() {
    let mut two = two([true, true]);
    two.pass(SHORT).replace(1);
    two.hears = false;
    two.carry_out(1);
    assert!(!two.passes_unlogged[1]);
    two.hears = true;
    two.pass(SHORT);
    assert!(two.passes_unlogged[1]);
}

fn say(two: &mut Two, (source, destination): (SocketAddr, SocketAddr), flags: Flags, (seq, ack): (u32, u32)) {
    let segment = Segment {
        source,
        destination,
        seq: Seq(seq),
        ack: Seq(ack),
        flags,
        window: 1000,
        options: TcpOptions::default(),
        payload: &[],
    };
    let (now, node) = (two.now, &mut two.nodes[1]);
    let direction = if destination == node.service(0).vip() {
        Direction::In
    } else {
        Direction::Out
    };
    node.handle_packet(now, 0, direction, &segment.emit(), Checksum::Unverified, None);
}

/// Opens a connection through the wire.
fn open(two: &mut Two, client: SocketAddr) {
    let vip = two.nodes[1].service(0).vip();
    say(two, (client, vip), Flags::SYN, (0, 0));
    say(two, (vip, client), Flags::SYN_ACK, (1000, 1));
    say(two, (client, vip), Flags::ACK, (1, 1001));
}

fn protection(two: &Two, client: SocketAddr) -> Protection {
    let table = two.nodes[1].service(0).table();
    let id = table.find(client).expect("open");
    table.get(id).expect("open").protection()
}

/// Only when the log is read for the takeover, the wire hears of what passed just before the gate closed.
#[test]
fn a_takeover_says_why_too() {
    let mut two = two([true, true]);
    two.pass(SHORT);
    let client = SocketAddr::from(([192, 0, 2, 1], 4000));
    open(&mut two, client);
    two.kill(0);
    for _ in 0..100 {
        two.now += BEAT;
        let now = two.now;
        two.nodes[1].handle_timeout(now);
        while let Some(action) = fixture::next_action(&mut two.nodes[1]) {
            let drains = matches!(action, Action::Service(_, ServiceAction::Drain));
            if drains && two.nodes[1].service(0).role() == Role::TakingOver {
                two.nodes[1].handle(now, 0, ServiceInput::Server(ApplicationState::Alive)); // any event
                two.nodes[1].handle(now, 0, ServiceInput::LogGap);
                let unprotected = Protection::Unprotected(UnprotectedCause::LogWasFull);
                assert_eq!(protection(&two, client), unprotected);
                return;
            }
        }
    }
    panic!("no takeover: {:?}", two.roles());
}

#[test]
fn connections_that_were_open_when_packets_passed_unlogged_are_unprotected_and_say_why() {
    for (modes, cause) in [
        ([true, true], UnprotectedCause::LogWasFull),
        ([false, true], UnprotectedCause::LogGap),
    ] {
        let mut two = two(modes);
        two.pass(SHORT);
        let [before, after] = [4000, 4001].map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
        open(&mut two, before);
        assert_eq!(protection(&two, before), Protection::Protected);
        let now = two.now;
        two.nodes[1].handle(now, 0, ServiceInput::LogGap);
        open(&mut two, after);
        let unprotected = Protection::Unprotected(cause);
        assert_eq!(protection(&two, before), unprotected);
        assert_eq!(
            protection(&two, after),
            Protection::Protected,
            "it began after the gap"
        );
        let names_the_mode = unprotected.to_string().contains("commit mode immediate");
        assert_eq!(names_the_mode, modes[0], "{unprotected}");
    }
}
