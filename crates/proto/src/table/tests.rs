use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::action::ServiceAction;
use crate::follower::{Opaque, RestartPolicy};
use crate::packet::{Flags, TcpOptions};
use crate::restart::http::Volatile;
use crate::service::replica::follow_replica;
use crate::{Offset, Seq};

/// The client's sequence numbers begin at 0, the server's at 1000.
fn say(table: &mut Table, direction: Direction, flags: Flags, ack: u32, payload: &[u8]) -> TableChange {
    let (client, vip) = (([10, 0, 0, 1], 4000).into(), table.config().vip);
    let (source, destination, first) = match direction {
        Direction::In => (client, vip, 0),
        Direction::Out => (vip, client, 1000),
    };
    let segment = Segment {
        source,
        destination,
        seq: Seq(first + u32::from(!flags.syn)),
        ack: Seq(ack),
        flags,
        window: 1000,
        options: TcpOptions::default(),
        payload,
    };
    table.on_packet(Instant::ZERO, direction, &segment, None)
}

fn table() -> Table {
    Table::new(TableConfig::sample())
}

#[test]
fn a_handshake_that_is_over_takes_no_room() {
    let mut table = table();
    for _ in 0..100 {
        say(&mut table, Direction::In, Flags::SYN, 0, &[]);
        say(&mut table, Direction::Out, Flags::SYN_ACK, 1, &[]);
        say(&mut table, Direction::In, Flags::ACK, 1001, &[]);
        say(&mut table, Direction::Out, Flags::RST, 0, &[]);
    }
    assert_eq!((table.handshakes.len(), table.handshakes.places()), (0, 1));
}

/// A scanner sends its SYN again with the same sequence number, because it computes the number from the addresses. Another client's
/// handshake began before the scanner's, and never ends.
#[test]
fn a_handshake_that_is_begun_twice_opens_one_connection() {
    let mut table = table();
    let stranger = Segment {
        source: ([10, 0, 0, 9], 4000).into(),
        destination: table.config().vip,
        seq: Seq(7),
        ack: Seq(0),
        flags: Flags::SYN,
        window: 1000,
        options: TcpOptions::default(),
        payload: &[],
    };
    table.on_packet(Instant::ZERO, Direction::In, &stranger, None);
    for _ in 0..2 {
        say(&mut table, Direction::In, Flags::SYN, 0, &[]);
        say(&mut table, Direction::Out, Flags::SYN_ACK, 1, &[]);
        say(&mut table, Direction::In, Flags::RST, 0, &[]);
    }
    say(&mut table, Direction::In, Flags::SYN, 0, &[]);
    say(&mut table, Direction::Out, Flags::SYN_ACK, 1, &[]);
    assert_eq!(table.open_pending().len(), 1);
    assert_eq!(table.len(), 1);
}

/// The client's ACK, and data after it, may have passed unlogged in the gap.
#[test]
fn a_handshake_that_was_under_way_in_a_gap_of_the_log_opens_no_connection() {
    let mut table = table();
    say(&mut table, Direction::In, Flags::SYN, 0, &[]);
    say(&mut table, Direction::Out, Flags::SYN_ACK, 1, &[]);
    say(&mut table, Direction::In, Flags::ACK, 1001, &[]);
    assert_eq!(table.len(), 1);
    say(&mut table, Direction::In, Flags::SYN, 0, &[]);
    say(&mut table, Direction::Out, Flags::SYN_ACK, 1, &[]);
    table.forget_handshakes(); // this also removes the client's earlier connection
    say(&mut table, Direction::In, Flags::ACK, 1001, b"late");
    assert_eq!(table.len(), 0);
    assert_eq!(table.open_pending(), []);
}

/// A node took over the connection while it was half open, and still repeats the SYN-ACK. The node's new wire
/// sees a late copy of the SYN, then segments of the established connection, then the repeated SYN-ACK.
#[test]
fn a_late_syn_and_a_repeated_syn_ack_open_no_connection() {
    let mut table = table();
    say(&mut table, Direction::In, Flags::SYN, 0, &[]);
    say(&mut table, Direction::Out, Flags::ACK, 1, &[]);
    say(
        &mut table,
        Direction::In,
        Flags::ACK,
        1001,
        b"what the log does not begin with",
    );
    say(&mut table, Direction::Out, Flags::SYN_ACK, 1, &[]);
    say(&mut table, Direction::In, Flags::ACK, 1001, b"more");
    assert_eq!((table.len(), table.handshakes()), (0, 0));
    assert_eq!(table.open_pending(), []);
    // Here the SYN-ACK comes before the server's other segments. The next segment shows that the connection is older: it acknowledges
    // data, or carries data.
    for (acknowledged, said) in [(2, &b""[..]), (1, b"said")] {
        say(&mut table, Direction::In, Flags::SYN, 0, &[]);
        say(&mut table, Direction::Out, Flags::SYN_ACK, 1, &[]);
        say(&mut table, Direction::Out, Flags::ACK, acknowledged, said);
        assert_eq!(table.handshakes(), 0, "{acknowledged} {said:?}");
    }
}

/// An acknowledgement of the client's earlier connection comes late.
#[test]
fn what_acknowledges_something_else_ends_no_handshake() {
    let mut table = table();
    say(&mut table, Direction::In, Flags::SYN, 0, &[]);
    say(&mut table, Direction::Out, Flags::ACK, u32::MAX - 5, &[]);
    say(&mut table, Direction::Out, Flags::SYN_ACK, 1, &[]);
    say(&mut table, Direction::Out, Flags::ACK, 1, &[]); // answers a segment that the server did not accept
    say(&mut table, Direction::In, Flags::ACK, 1001, b"hello");
    assert_eq!(table.len(), 1);
}

/// The client is a scanner, or it has closed meanwhile. No node continues this handshake.
#[test]
fn a_client_that_refuses_the_answer_has_no_handshake() {
    let mut table = table();
    say(&mut table, Direction::In, Flags::SYN, 0, &[]);
    assert_eq!(
        say(&mut table, Direction::In, Flags::RST, 0, &[]),
        TableChange::Unknown,
        "there is no SYN-ACK to refuse"
    );
    say(&mut table, Direction::Out, Flags::SYN_ACK, 1, &[]);
    assert_eq!(
        say(&mut table, Direction::In, Flags::RST, 0, &[]),
        TableChange::Handshake
    );
    assert_eq!(table.open_pending(), []);
}

/// A health check that only tests whether a server listens sends such a reset.
#[test]
fn a_reset_that_completes_the_handshake_ends_the_connection() {
    for policy in [RestartPolicy::Http, RestartPolicy::Replica] {
        let config = table().config().clone();
        let mut table = Table::new(TableConfig { policy, ..config });
        say(&mut table, Direction::In, Flags::SYN, 0, &[]);
        say(&mut table, Direction::Out, Flags::SYN_ACK, 1, &[]);
        let reset = Flags {
            rst: true,
            ..Flags::ACK
        };
        let change = say(&mut table, Direction::In, reset, 1001, &[]);
        assert!(matches!(change, TableChange::Ended(_)), "{change:?}");
        assert_eq!(table.len(), 0);
        let mut actions = VecDeque::new();
        follow_replica(&mut table, change, &mut actions);
        assert!(
            matches!(actions.make_contiguous(), [ServiceAction::CloseReplica { .. }]),
            "{actions:?}"
        );
    }
}

/// The agent reads the whole connection from the log before the connection's replica is connected. The replica must still get the input,
/// because the client has seen the answer.
#[test]
fn a_connection_that_is_over_waits_for_its_replica() {
    for is_answered in [true, false] {
        let policy = RestartPolicy::Replica;
        let config = table().config().clone();
        let mut table = Table::new(TableConfig { policy, ..config });
        say(&mut table, Direction::In, Flags::SYN, 0, &[]);
        say(&mut table, Direction::Out, Flags::SYN_ACK, 1, &[]);
        let mut actions = VecDeque::new();
        let mut id = None;
        for (direction, flags, ack, payload) in [
            (Direction::In, Flags::ACK, 1001, &b"SET"[..]),
            (Direction::Out, Flags::FIN_ACK, 4, b"OK"),
            (Direction::In, Flags::FIN_ACK, 1004, b"SET"),
            (Direction::Out, Flags::ACK, 5, b""),
        ] {
            let change = say(&mut table, direction, flags, ack, payload);
            follow_replica(&mut table, change, &mut actions);
            id = table.find(([10, 0, 0, 1], 4000).into()).or(id);
        }
        assert_eq!((table.len(), table.take_left()), (0, Vec::new()));
        assert!(
            matches!(
                actions.make_contiguous(),
                [
                    ServiceAction::OpenReplica { .. },
                    ServiceAction::FeedReplica { .. }
                ]
            ),
            "{actions:?}"
        );
        let id = id.expect("it was open");
        assert!(table.get(id).is_none(), "no takeover would restore it");
        let input = table.followed(id).expect("it waits").input();
        let kept: Vec<u8> = input.slices(Offset(0)..Offset(3)).flatten().copied().collect();
        assert_eq!(kept, b"SET");
        if is_answered {
            table.change(id, |connection| {
                let replica = connection.follower_mut().replica_mut().expect("its own");
                replica.on_fed(Offset(3), true);
                replica.on_output(b"O");
            });
            assert_eq!(table.take_left(), [], "the replica has not sent all its output");
            table.change(id, |connection| {
                let replica = connection.follower_mut().replica_mut().expect("its own");
                replica.on_output(b"K");
            });
        } else {
            let end = Instant::from_nanos(10_000_000_000);
            assert_eq!(table.expire_lingering(end - Duration::from_secs(1)), 0);
            assert_eq!(table.take_left(), []);
            assert_eq!(table.expire_lingering(end), 3, "bytes the replica missed");
        }
        assert_eq!(table.take_left(), [id]);
        assert_eq!(table.memory(), 0);
    }
}

/// A connection's replica is opened once, even if the segment that completes the handshake also shows that a replica is
/// needed.
#[test]
fn a_replica_is_opened_once() {
    for (policy, is_opaque) in [(RestartPolicy::Replica, false), (RestartPolicy::Http, true)] {
        let opaque = is_opaque.then(|| {
            let (bound, volatile) = (1000, Volatile::default());
            Arc::new(Opaque { bound, volatile })
        });
        let config = table().config().clone();
        let mut table = Table::new(TableConfig {
            policy,
            opaque,
            ..config
        });
        say(&mut table, Direction::In, Flags::SYN, 0, &[]);
        say(&mut table, Direction::Out, Flags::SYN_ACK, 1, &[]);
        let mut actions = VecDeque::new();
        for _ in 0..3 {
            let change = say(&mut table, Direction::In, Flags::ACK, 1001, b"\0\0");
            follow_replica(&mut table, change, &mut actions);
        }
        assert!(
            matches!(actions.make_contiguous(), [ServiceAction::OpenReplica { .. }]),
            "{actions:?}"
        );
    }
}

/// A client comes again from the port of an earlier connection whose end the wire has not seen. The earlier connection's replica must be
/// closed, because it uses the same address.
#[test]
fn a_connection_that_another_one_replaces_is_over() {
    let mut table = table();
    for round in 0..3 {
        say(&mut table, Direction::In, Flags::SYN, 0, &[]);
        say(&mut table, Direction::Out, Flags::SYN_ACK, 1, &[]);
        let before = table.find(([10, 0, 0, 1], 4000).into());
        say(&mut table, Direction::In, Flags::ACK, 1001, &[]);
        assert_eq!(table.take_gone(), Vec::from_iter(before), "{round}");
        assert_eq!(table.len(), 1);
    }
}

/// A wire may adopt connections of dying workers for months. It keeps nothing of adopted connections that have ended.
#[test]
fn what_a_socket_had_is_forgotten_with_it() {
    let mut table = table();
    for round in 0..4 {
        say(&mut table, Direction::In, Flags::SYN, 0, &[]);
        say(&mut table, Direction::Out, Flags::SYN_ACK, 1, &[]);
        say(&mut table, Direction::In, Flags::ACK, 1001, &[]);
        let client = ([10, 0, 0, 1], 4000).into();
        assert!(
            !table.ended.is_handed_over(client),
            "the client has begun a new connection"
        );
        table.hand_over(table.find(client).expect("open"));
        assert_eq!(
            say(&mut table, Direction::In, Flags::ACK, 1001, &[]),
            TableChange::Old
        );
        if round % 2 == 0 {
            continue;
        }
        table.forget_socket(client);
        assert_eq!(
            say(&mut table, Direction::In, Flags::ACK, 1001, &[]),
            TableChange::Unknown
        );
        assert!(!table.ended.is_handed_over(client));
    }
}

/// A SYN carries data, which the server accepts or ignores. If the server accepts the data, the table does not know the new connection.
/// Otherwise the table opens the new connection as usual. The client's earlier connection never remains, whether it was open or handed over
/// to a socket.
#[test]
fn data_in_a_syn_makes_a_connection_unknown_if_it_is_taken() {
    for handed_over in [false, true] {
        for taken in [false, true] {
            let mut table = table();
            say(&mut table, Direction::In, Flags::SYN, 0, &[]);
            say(&mut table, Direction::Out, Flags::SYN_ACK, 1, &[]);
            let opened = say(&mut table, Direction::In, Flags::ACK, 1001, &[]);
            assert!(matches!(opened, TableChange::Opened(_)), "{opened:?}");
            if handed_over {
                table.hand_over(table.find(([10, 0, 0, 1], 4000).into()).expect("open"));
            }
            say(&mut table, Direction::In, Flags::SYN, 0, b"early");
            let acknowledges = if taken { 6 } else { 1 };
            say(&mut table, Direction::Out, Flags::SYN_ACK, acknowledges, &[]);
            let change = say(&mut table, Direction::In, Flags::ACK, 1001, &[]);
            assert_eq!(change == TableChange::Unknown, taken, "{change:?}");
            assert_eq!(table.len(), usize::from(!taken));
            assert_eq!(table.open_pending(), []);
        }
    }
}
