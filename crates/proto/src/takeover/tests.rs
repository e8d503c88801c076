use std::fmt::Write;

use super::*;
use crate::connection::{Protection, UnprotectedCause};
use crate::diagram::{assert_shown, graphviz};
use crate::packet::{Checksum, Flags, Segment, TcpOptions};
use crate::table::{Direction, PENDING_MAX, TableChange, TableConfig};
use crate::{Offset, Seq};

const VIP: ([u8; 4], u16) = ([10, 0, 0, 100], 80);

fn table() -> Table {
    Table::new(TableConfig::sample())
}

/// A segment from or to the client of `port`. The clients' sequence numbers begin at 0, the server's at 1000.
fn say(table: &mut Table, port: u16, direction: Direction, flags: Flags) -> TableChange {
    say_with(table, port, direction, flags, b"")
}

fn say_with(table: &mut Table, port: u16, direction: Direction, flags: Flags, payload: &[u8]) -> TableChange {
    say_at(Instant::from_nanos(0), table, port, direction, flags, payload)
}

fn say_at(
    at: Instant,
    table: &mut Table,
    port: u16,
    direction: Direction,
    flags: Flags,
    payload: &[u8],
) -> TableChange {
    let client: SocketAddr = ([10, 0, 0, 1], port).into();
    let opening = u32::from(!flags.syn);
    let (source, destination, seq, ack) = match direction {
        Direction::In => (client, VIP.into(), opening, 1001),
        Direction::Out => (VIP.into(), client, 1000 + opening, 1),
    };
    let segment = Segment {
        source,
        destination,
        seq: Seq(seq),
        ack: Seq(ack),
        flags,
        window: 5000,
        options: TcpOptions::default(),
        payload,
    };
    table.on_packet(at, direction, &segment, None)
}

const NOW: Instant = Instant::from_nanos(1);

/// Begins a takeover whose log has been read to its end. Returns the takeover and its first actions.
fn begun(table: &mut Table) -> (Takeover, VecDeque<ServiceAction>) {
    let mut actions = VecDeque::new();
    let mut takeover = Takeover::begin(NOW, None);
    assert_eq!(
        takeover.pop_step(),
        Some((ServiceAction::Drain, Urgency::Hurried))
    );
    takeover.on_drained(NOW, table, &mut actions);
    (takeover, actions)
}

fn begin_handshake(table: &mut Table, port: u16) {
    say(table, port, Direction::In, Flags::SYN);
    say(table, port, Direction::Out, Flags::SYN_ACK);
}

fn open(table: &mut Table, port: u16) -> ConnectionId {
    begin_handshake(table, port);
    match say(table, port, Direction::In, Flags::ACK) {
        TableChange::Opened(id) => id,
        other => panic!("{other:?}"),
    }
}

/// The client has output that the log does not keep.
#[test]
fn a_connection_whose_output_was_too_much_is_reset_where_its_client_is() {
    let config = TableConfig {
        connection_bytes_max: 3000,
        ..table().config().clone()
    };
    let mut table = Table::new(config);
    open(&mut table, 1);
    for seq in (1001..20_001).step_by(1000) {
        let segment = Segment {
            source: VIP.into(),
            destination: ([10, 0, 0, 1], 1).into(),
            seq: Seq(seq),
            ack: Seq(1),
            flags: Flags::ACK,
            window: 1000,
            options: TcpOptions::default(),
            payload: &[7; 1000],
        };
        table.on_packet(Instant::from_nanos(0), Direction::Out, &segment, None);
    }
    let (takeover, _) = begun(&mut table);
    let refusals: Vec<_> = takeover.into_refusals().collect();
    let reset = Segment::parse(&refusals[0], Checksum::Trusted).expect("a packet");
    assert!(reset.flags.rst);
    assert_eq!(reset.seq, Seq(20_001));
}

/// It is unknown which of two different copies the receiver has taken.
#[test]
fn conflicting_copies_make_a_connection_ambiguous_and_a_takeover_resets_it() {
    let asked = (Direction::In, [b"GET /a", b"GET /a", b"GET /b"]);
    let replied = (Direction::Out, [b"HTTP/1", b"HTTP/1", b"HTTP/2"]);
    for (direction, copies) in [asked, replied] {
        let mut table = table();
        let id = open(&mut table, 1);
        if direction == Direction::Out {
            say_with(
                &mut table,
                1,
                Direction::In,
                Flags::ACK,
                b"GET / HTTP/1.1\r\n\r\n",
            );
        }
        for copy in copies {
            assert_eq!(table.get(id).unwrap().protection(), Protection::Protected);
            say_with(&mut table, 1, direction, Flags::ACK, copy);
        }
        assert_eq!(table.get(id).unwrap().protection(), Protection::Ambiguous);
        let (takeover, _) = begun(&mut table);
        let refusals: Vec<_> = takeover.into_refusals().collect();
        let reset = Segment::parse(&refusals[0], Checksum::Trusted).expect("a packet");
        assert!(reset.flags.rst);
    }
}

/// The client's `payload` at `seq`. The segment acknowledges the server's SYN (number 1000) and no further byte.
fn say_of_client(table: &mut Table, seq: u32, flags: Flags, payload: &[u8]) {
    let segment = Segment {
        source: ([10, 0, 0, 1], 1).into(),
        destination: VIP.into(),
        seq: Seq(seq),
        ack: Seq(1001),
        flags,
        window: 5000,
        options: TcpOptions::default(),
        payload,
    };
    table.on_packet(Instant::from_nanos(0), Direction::In, &segment, None);
}

/// Keepalive probes of some systems carry one arbitrary byte, at a sequence number that was acknowledged already (RFC 9293 §3.8.4). Copies
/// of bytes that are not acknowledged are compared, because the server may still take either copy.
#[test]
fn what_was_acknowledged_is_not_compared() {
    let mut table = table();
    let id = open(&mut table, 1);
    say_of_client(&mut table, 1, Flags::ACK, b"GET /a");
    let acknowledged = Segment {
        source: VIP.into(),
        destination: ([10, 0, 0, 1], 1).into(),
        seq: Seq(1001),
        ack: Seq(7),
        flags: Flags::ACK,
        window: 5000,
        options: TcpOptions::default(),
        payload: b"",
    };
    table.on_packet(Instant::from_nanos(0), Direction::Out, &acknowledged, None);
    let is_protected = |table: &Table| table.get(id).unwrap().protection() == Protection::Protected;
    say_of_client(&mut table, 6, Flags::ACK, b"\0");
    say_of_client(&mut table, 6, Flags::FIN_ACK, b"");
    say_of_client(&mut table, 1, Flags::ACK, b"POST /");
    assert!(is_protected(&table));
    say_of_client(&mut table, 4, Flags::ACK, b"???bcd");
    assert!(is_protected(&table));
    let input = table.get(id).unwrap().input();
    let kept: Vec<u8> = input.slices(Offset(0)..Offset(9)).flatten().copied().collect();
    assert_eq!(kept, b"GET /abcd");
    say_of_client(&mut table, 4, Flags::ACK, b"???bcX");
    assert!(!is_protected(&table));
}

/// Urgent data counts only if the server takes its segment.
#[test]
fn urgent_data_is_not_protected() {
    let urgent = Flags {
        urg: true,
        ..Flags::ACK
    };
    for direction in [Direction::In, Direction::Out] {
        let mut table = table();
        let id = open(&mut table, 1);
        say_of_client(&mut table, 50_000, urgent, b"!");
        assert_eq!(table.get(id).unwrap().protection(), Protection::Protected);
        say_with(&mut table, 1, direction, urgent, b"!");
        let cause = Protection::Unprotected(UnprotectedCause::Urgent);
        assert_eq!(table.get(id).unwrap().protection(), cause);
    }
}

/// A server answers with the Multipath TCP option only if it uses Multipath TCP on this connection. An offer of the client alone has no
/// effect.
#[test]
fn a_connection_of_several_paths_is_not_protected() {
    let several = TcpOptions {
        multipath: true,
        ..TcpOptions::default()
    };
    let mut table = table();
    for (port, (offered, agreed, later)) in (1..).zip([(1, 0, 0), (1, 1, 0), (1, 0, 1)]) {
        let client: SocketAddr = ([10, 0, 0, 1], port).into();
        let mut say = |from_client: bool, flags, seq, ack, says: i32| {
            let ends = [client, VIP.into()];
            let segment = Segment {
                source: ends[usize::from(!from_client)],
                destination: ends[usize::from(from_client)],
                seq: Seq(seq),
                ack: Seq(ack),
                flags,
                window: 5000,
                options: if says == 1 { several } else { TcpOptions::default() },
                payload: b"",
            };
            let direction = if from_client {
                Direction::In
            } else {
                Direction::Out
            };
            table.on_packet(Instant::from_nanos(0), direction, &segment, None)
        };
        say(true, Flags::SYN, 0, 0, offered);
        say(false, Flags::SYN_ACK, 1000, 1, agreed);
        say(true, Flags::ACK, 1, 1001, 0);
        say(false, Flags::ACK, 1001, 1, later);
        let id = table.find(client).expect("open");
        let expected = match agreed + later {
            0 => Protection::Protected,
            _ => Protection::Unprotected(UnprotectedCause::Multipath),
        };
        assert_eq!(table.get(id).unwrap().protection(), expected, "{port}");
    }
}

/// The connection is idle, and its slot in the table comes after slots that ended connections have freed.
#[test]
fn a_connection_is_restored_before_the_handshakes_of_a_flood() {
    let mut table = table();
    let left: Vec<_> = (1..=20).map(|port| open(&mut table, port)).collect();
    let idle = open(&mut table, 21);
    for id in left {
        table.remove(id);
    }
    let flood = 2 * u16::try_from(PENDING_MAX).expect("small");
    (100..100 + flood).for_each(|port| begin_handshake(&mut table, port));

    let (mut takeover, mut actions) = begun(&mut table);
    while plan_next(&mut takeover, &mut table, &mut actions) {}
    let restored = restored(&takeover);
    assert_eq!(restored.len(), 1 + PENDING_MAX);
    assert_eq!(restored[0], idle);
}

/// No SYN passes until the wire is told which clients are held. To keep this time short, the wire is told
/// after the first [`BEFORE_HOLD`] connections are planned.
#[test]
fn the_wire_is_told_who_is_held_before_the_rest_is_planned() {
    for someone_waits in [false, true] {
        let mut table = table();
        let opened: Vec<_> = (1..=100).map(|port| open(&mut table, port)).collect();
        for port in (1..=100).filter(|_| someone_waits) {
            say_with(&mut table, port, Direction::In, Flags::ACK, b"what?");
        }
        let (mut takeover, mut actions) = begun(&mut table);
        assert!(
            matches!(takeover.steps.back(), Some((ServiceAction::Hold { clients, .. }, _)) if clients.len() == 100)
        );
        assert_eq!(restored(&takeover), opened[..BEFORE_HOLD]);
        while plan_next(&mut takeover, &mut table, &mut actions) {}
        assert_eq!(restored(&takeover), opened);
    }
}

/// A client that sends something during the takeover is put before the idle connections.
#[test]
fn a_client_that_speaks_comes_next() {
    let mut table = table();
    let opened: Vec<_> = (1..=100).map(|port| open(&mut table, port)).collect();
    let (mut takeover, mut actions) = begun(&mut table);
    takeover.steps.clear();
    for who in [opened[98], opened[98], opened[3]] {
        takeover.hurry(who);
    }
    while plan_next(&mut takeover, &mut table, &mut actions) {}
    let next = restored(&takeover);
    assert_eq!(next[..2], [opened[98], opened[BEFORE_HOLD]]);
    assert_eq!(next.len(), 100 - BEFORE_HOLD);
}

/// Clients that speak need the CPUs, so the idle connections come in portions from then on. A dead worker's connections do not.
#[test]
fn idle_connections_come_in_portions_when_a_client_speaks() {
    let mut table = table();
    let opened: Vec<_> = (1..=200).map(|port| open(&mut table, port)).collect();
    let (mut takeover, mut actions) = begun(&mut table);
    takeover.steps.clear();
    assert!(plan_next(&mut takeover, &mut table, &mut actions));
    takeover.on_speaker(NOW, opened[198]);
    while plan_next(&mut takeover, &mut table, &mut actions) {}
    assert_eq!(restored(&takeover)[1], opened[198]);
    assert_eq!(restored(&takeover).len(), 2 + PORTION);
    assert_eq!(takeover.poll_timeout(), Some(NOW + PORTION_EVERY));
    takeover.on_timeout(NOW + PORTION_EVERY);
    while plan_next(&mut takeover, &mut table, &mut actions) {}
    assert_eq!(restored(&takeover).len(), 2 + 2 * PORTION);
}

/// A client that sends again and again causes no further work.
#[test]
fn who_speaks_is_put_forward_once() {
    let mut table = table();
    let opened: Vec<_> = (1..=100).map(|port| open(&mut table, port)).collect();
    let (mut takeover, _) = begun(&mut table);
    for _ in 0..1000 {
        takeover.hurry(opened[98]);
        takeover.hurry(opened[3]);
    }
    assert_eq!(takeover.hurried, [opened[98]]);
}

/// The server has acknowledged the request, so no packet is under way. With `http` the request is not executed again; with
/// `replica` the replica has it already. Only the reply is missing.
#[test]
fn who_waits_for_nothing_but_a_reply_is_in_a_hurry() {
    let request = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi";
    for policy in [RestartPolicy::Http, RestartPolicy::Replica] {
        let config = TableConfig {
            policy,
            ..table().config().clone()
        };
        let mut table = Table::new(config);
        let opened: Vec<_> = (1..=100).map(|port| open(&mut table, port)).collect();
        say_with(&mut table, 99, Direction::In, Flags::ACK, request);
        let acknowledgement = Segment {
            source: VIP.into(),
            destination: ([10, 0, 0, 1], 99).into(),
            seq: Seq(1001),
            ack: Seq(1) + u32::try_from(request.len()).expect("short"),
            flags: Flags::ACK,
            window: 5000,
            options: TcpOptions::default(),
            payload: b"",
        };
        table.on_packet(NOW, Direction::Out, &acknowledgement, None);
        let asked = table.get_mut(opened[98]).expect("open");
        if let Some(replica) = asked.follower_mut().replica_mut() {
            replica.on_fed(Offset(request.len() as u64), false);
            replica.on_output(b"done");
            asked.release();
        }
        assert!(
            asked.is_quiet(&asked.endpoint()),
            "{policy:?}: its socket need not send anything"
        );
        assert!(asked.is_busy(), "{policy:?}");
        let (takeover, _) = begun(&mut table);
        assert_eq!(restored(&takeover)[..2], [opened[98], opened[0]], "{policy:?}");
        assert!(takeover.poll_timeout().is_some(), "the others wait");
    }
}

/// A client's wait before the takeover and its wait for its turn add up. So the client that has waited longest
/// comes first.
#[test]
fn who_has_waited_longest_comes_first() {
    let mut table = table();
    let opened: Vec<_> = (1..=3).map(|port| open(&mut table, port)).collect();
    for (port, at) in [(1, 30), (2, 10), (3, 20)] {
        let at = Instant::from_nanos(at);
        say_with(
            &mut table,
            port,
            Direction::In,
            Flags::ACK,
            b"GET / HTTP/1.1\r\n\r\n",
        );
        say_at(
            at,
            &mut table,
            port,
            Direction::Out,
            Flags::ACK,
            b"HTTP/1.1 200 OK\r\n",
        );
    }
    let (takeover, _) = begun(&mut table);
    assert_eq!(restored(&takeover), [opened[1], opened[2], opened[0]]);
}

/// The reply acknowledges the request. A client that has sent half a request sends the rest only after an acknowledgement.
#[test]
fn who_waits_for_a_reply_alone_is_not_woken() {
    for (said, is_quiet) in [
        ("GET / HTTP/1.1\r\n\r\n", true),
        ("GET / HTTP/1.1\r\n", false),
        ("PUT / HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf", false),
    ] {
        let mut table = table();
        let id = open(&mut table, 1);
        for direction in [Direction::In, Direction::Out] {
            say(&mut table, 1, direction, Flags::ACK);
        }
        let of = |table: &Table| {
            let connection = table.get(id).expect("open");
            connection.is_quiet(&connection.endpoint())
        };
        assert!(of(&table), "nothing is under way");
        say_with(&mut table, 1, Direction::In, Flags::ACK, said.as_bytes());
        assert_eq!(of(&table), is_quiet, "{said:?}");
        say_with(&mut table, 1, Direction::Out, Flags::ACK, b"HTTP/1.1 200 OK\r\n");
        assert!(!of(&table), "the client has not acknowledged the reply");
    }
}

/// The client is woken, because otherwise no packet would tell the restored socket that the client's window has opened again.
#[test]
fn a_client_whose_window_was_closed_is_asked() {
    let mut table = table();
    let id = open(&mut table, 1);
    say(&mut table, 1, Direction::Out, Flags::ACK);
    for window in [5000, 0, 5000] {
        let segment = Segment {
            source: ([10, 0, 0, 1], 1).into(),
            destination: VIP.into(),
            seq: Seq(1),
            ack: Seq(1001),
            flags: Flags::ACK,
            window,
            options: TcpOptions::default(),
            payload: b"",
        };
        table.on_packet(NOW, Direction::In, &segment, None);
        let connection = table.get(id).expect("open");
        assert_eq!(connection.is_quiet(&connection.endpoint()), window > 0);
    }
}

/// A connection that moves waits for its primary while its socket is there already. What the client says meanwhile is logged, and the socket
/// does not hear it. If the socket did not ask, it would wait for its first timeout.
#[test]
fn a_socket_that_has_missed_what_its_client_said_asks() {
    let said = |table: &mut Table, ack: u32, window: u16| {
        let segment = Segment {
            source: ([10, 0, 0, 1], 1).into(),
            destination: VIP.into(),
            seq: Seq(1),
            ack: Seq(ack),
            flags: Flags::ACK,
            window,
            options: TcpOptions::default(),
            payload: b"",
        };
        table.on_packet(NOW, Direction::In, &segment, None);
    };
    let mut table = table();
    let id = open(&mut table, 1);
    said(&mut table, 1001, 5000);
    say_with(&mut table, 1, Direction::Out, Flags::ACK, b"HTTP/1.1 200 OK\r\n");
    let unacknowledged = table.get(id).expect("open").endpoint();
    said(&mut table, 1018, 0);
    let closed = table.get(id).expect("open").endpoint();
    said(&mut table, 1018, 5000);
    let connection = table.get(id).expect("open");
    assert!(
        !connection.is_quiet(&unacknowledged),
        "it misses an acknowledgement"
    );
    assert!(!connection.is_quiet(&closed), "it misses that the window is open");
    assert!(connection.is_quiet(&connection.endpoint()), "it knows all");
}

/// Two acknowledgements reached the wire in the other order. The client may have both, and may fill the larger window.
#[test]
fn a_late_acknowledgement_takes_no_window_back() {
    let mut table = table();
    let id = open(&mut table, 1);
    say_of_client(&mut table, 1, Flags::ACK, b"GET / HTTP/1.1\r\n");
    let edge = |table: &Table| {
        let endpoint = table.get(id).expect("open").endpoint();
        (endpoint.receive_window_from, endpoint.receive_window)
    };
    for (ack, window, promised) in [
        (1, 600, (1, 5000)), // the handshake promised more
        (17, 8000, (17, 8000)),
        (17, 100, (17, 8000)),
        (9, 108, (17, 8000)),
        (17, 9000, (17, 9000)),
    ] {
        acknowledge(&mut table, ack, window);
        assert_eq!(edge(&table), (Seq(promised.0), promised.1), "{ack} {window}");
    }
    say_of_client(&mut table, 17, Flags::ACK, b"Host: x\r\n\r\n");
    let connection = table.get(id).expect("open");
    let woken = wake(connection, 0, NOW);
    let woken = Segment::parse(&woken[0], Checksum::Trusted).expect("a packet");
    assert_eq!((woken.ack, woken.window), (Seq(28), 9000 - 11));
}

/// The client has acknowledged more since a socket was made for it elsewhere. The socket must learn it, also if the client has all output.
#[test]
fn what_wakes_a_client_begins_before_its_latest_acknowledgement() {
    let mut table = table();
    let id = open(&mut table, 1);
    say_with(&mut table, 1, Direction::Out, Flags::ACK, b"0123456789");
    let made_from = table.get(id).expect("open").endpoint();
    let woken = |acknowledged| {
        let woken = wake_from((&made_from, b"0123456789"), Seq(acknowledged), 0, NOW);
        let segments = woken.into_iter().map(|packet| {
            let segment = Segment::parse(&packet, Checksum::Trusted).expect("a packet");
            (
                segment.seq.0,
                String::from_utf8_lossy(segment.payload).into_owned(),
            )
        });
        segments.collect::<Vec<_>>()
    };
    let ack = (1011, String::new());
    assert_eq!(woken(1001), [ack.clone(), (1001, "0123456789".to_owned())]);
    assert_eq!(woken(1005), [ack.clone(), (1004, "3456789".to_owned())]);
    assert_eq!(woken(1011), [ack.clone(), (1010, "9".to_owned())]);
    assert_eq!(woken(1012), [ack], "the client has the FIN, too");
}

/// The server's acknowledgement `ack` with its `window`, to the client of port 1.
fn acknowledge(table: &mut Table, ack: u32, window: u16) {
    let segment = Segment {
        source: VIP.into(),
        destination: ([10, 0, 0, 1], 1).into(),
        seq: Seq(1001),
        ack: Seq(ack),
        flags: Flags::ACK,
        window,
        options: TcpOptions::default(),
        payload: b"",
    };
    table.on_packet(NOW, Direction::Out, &segment, None);
}

/// Connections whose clients wait for an answer are restored first. All other connections are restored a moment later, because these
/// answers need the CPUs.
#[test]
fn who_waits_has_a_head_start() {
    let mut table = table();
    let opened: Vec<_> = (1..=200).map(|port| open(&mut table, port)).collect();
    let (mut takeover, mut actions) = begun(&mut table);
    assert_eq!(takeover.poll_timeout(), None, "nobody waits");
    while plan_next(&mut takeover, &mut table, &mut actions) {}
    assert_eq!(restored(&takeover), opened);

    for port in [199, 200] {
        say_with(&mut table, port, Direction::In, Flags::ACK, b"what?");
    }
    let (mut takeover, mut actions) = begun(&mut table);
    assert_eq!(restored(&takeover)[..2], opened[198..], "they come first");
    assert!(!plan_next(&mut takeover, &mut table, &mut actions));
    takeover.hurry(opened[150]);
    assert!(
        plan_next(&mut takeover, &mut table, &mut actions),
        "a client that speaks does not wait"
    );
    assert!(!plan_next(&mut takeover, &mut table, &mut actions));
    let due = takeover.poll_timeout().expect("the others wait");
    assert_eq!(due, NOW + 2 * HEAD_START_EACH);
    takeover.on_timeout(NOW + HEAD_START_EACH);
    assert!(!plan_next(&mut takeover, &mut table, &mut actions));
    takeover.on_timeout(due);
    assert!(plan_next(&mut takeover, &mut table, &mut actions));
}

/// The idle connections are restored in portions, because busy connections still need the CPUs.
#[test]
fn the_others_come_in_portions_after_it() {
    let mut table = table();
    let opened: Vec<_> = (1..=200).map(|port| open(&mut table, port)).collect();
    say_with(&mut table, 200, Direction::In, Flags::ACK, b"what?");
    let (mut takeover, mut actions) = begun(&mut table);
    let mut due = takeover.poll_timeout().expect("they wait");
    let mut left = opened.len() - BEFORE_HOLD;
    while left > 0 {
        let before = restored(&takeover).len();
        takeover.on_timeout(due);
        while plan_next(&mut takeover, &mut table, &mut actions) {}
        let portion = restored(&takeover).len() - before;
        assert_eq!(portion, left.min(PORTION));
        left -= portion;
        if left == opened.len() - BEFORE_HOLD - PORTION {
            takeover.hurry(opened[150]);
            assert!(
                plan_next(&mut takeover, &mut table, &mut actions),
                "a client that speaks does not wait"
            );
            left -= 1;
        }
        let next = takeover.poll_timeout();
        assert_eq!(next, (left > 0).then_some(due + PORTION_EVERY));
        due = next.unwrap_or(due);
    }
    assert_eq!(restored(&takeover).len(), opened.len());
}

fn plan_next(takeover: &mut Takeover, table: &mut Table, actions: &mut VecDeque<ServiceAction>) -> bool {
    takeover.plan_hurried(table, actions) || takeover.plan_unhurried(table, actions)
}

/// The connections whose restoration is planned.
fn restored(takeover: &Takeover) -> Vec<ConnectionId> {
    let restored = takeover.steps.iter().filter_map(|(step, _)| match step {
        ServiceAction::Restore { connection } => Some(*connection),
        _ => None,
    });
    restored.collect()
}

#[test]
fn a_worker_that_crashes_for_ever_leaves_a_few_reports_and_their_sums() {
    let mut reports = Reports::default();
    for count in 0..1000 {
        reports.push(TakeoverReport {
            declared: Instant::from_nanos(count),
            gate_closed: Instant::ZERO,
            first_live: None,
            last_live: None,
            decided: Instant::ZERO,
            connections: 3,
            restored: 2,
            reset: 1,
            live: Vec::new(),
        });
    }
    let last: Vec<_> = reports
        .last()
        .iter()
        .map(|report| report.declared.as_nanos())
        .collect();
    assert_eq!(last, (1000 - REPORTS_MAX as u64..1000).collect::<Vec<_>>());
    let (takeovers, restored, reset) = (1000, 2000, 1000);
    let sums = TakeoverSums {
        takeovers,
        restored,
        reset,
    };
    assert_eq!(reports.sums(), sums);
}

/// Output of the primary reached the log only after the restored socket was made. The new application's next output would get the sequence
/// numbers of that output.
#[test]
fn a_socket_that_lacks_output_of_the_log_is_not_gone_on_with() {
    let mut table = table();
    let id = open(&mut table, 1);
    say_of_client(&mut table, 1, Flags::ACK, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    let has = table.get(id).unwrap().endpoint();
    assert_eq!(table.get(id).unwrap().restarts_on(&has), Ok(()));
    say_with(&mut table, 1, Direction::Out, Flags::ACK, b"HTTP/1.1 200 OK\r\n");
    let connection = table.get(id).unwrap();
    assert_eq!(connection.restarts(), Ok(()));
    assert!(connection.restarts_on(&has).is_err());
    assert_eq!(connection.restarts_on(&connection.endpoint()), Ok(()));
}

/// The server's `payload` at `seq`, to the client of port 1.
fn say_of_server(table: &mut Table, seq: u32, flags: Flags, payload: &[u8]) {
    let segment = Segment {
        source: VIP.into(),
        destination: ([10, 0, 0, 1], 1).into(),
        seq: Seq(seq),
        ack: Seq(1),
        flags,
        window: 5000,
        options: TcpOptions::default(),
        payload,
    };
    table.on_packet(Instant::from_nanos(0), Direction::Out, &segment, None);
}

/// A middle segment of the reply is missing from the log, but the reply's tail and the server's FIN are there. The regenerated reply fills
/// the hole, and ends the connection where the FIN stands.
#[test]
fn a_connection_goes_on_though_its_end_is_behind_a_hole() {
    for (head, left, is_the_end) in [
        ("Content-Length: 200\r\nConnection: close\r\n", 200, true),
        ("Connection: close\r\n", 200, true),
        // The first of these heads tells the client that the connection stays open, unless the request asked for the end. The second head
        // tells the client that more bytes follow. The FIN contradicts both.
        ("Content-Length: 200\r\n", 200, false),
        ("Content-Length: 300\r\nConnection: close\r\n", 200, false),
    ] {
        for asks_for_the_end in [false, true] {
            let mut table = table();
            let id = open(&mut table, 1);
            let request = if asks_for_the_end {
                "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            } else {
                "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
            };
            say_of_client(&mut table, 1, Flags::ACK, request.as_bytes());
            let head = format!("HTTP/1.1 200 OK\r\n{head}\r\n");
            let body = 1001 + u32::try_from(head.len()).expect("short");
            say_of_server(&mut table, 1001, Flags::ACK, head.as_bytes());
            say_of_server(&mut table, body + left / 2, Flags::FIN_ACK, &[7; 100]);
            let connection = table.get(id).unwrap();
            let goes_on = connection.restarts_on(&connection.endpoint());
            if is_the_end || asks_for_the_end && head.contains(": 200") {
                assert_eq!(connection.protection(), Protection::Protected, "{head}");
                assert_eq!(goes_on, Ok(()), "{head}");
            } else {
                assert!(goes_on.is_err(), "{head}");
            }
        }
    }
}

/// The log keeps no bytes of a connection that is given up. Both streams are still followed, so that the connection's end is noticed and a
/// RST has a valid sequence number.
#[test]
fn a_connection_that_is_given_up_with_holes_is_still_followed() {
    let given_up = || {
        let mut table = table();
        let id = open(&mut table, 1);
        say_of_client(&mut table, 2, Flags::ACK, b"ET /");
        say_of_server(&mut table, 1101, Flags::ACK, &[7; 100]);
        table.change(id, |connection| connection.unprotect(UnprotectedCause::LogGap));
        say_of_client(&mut table, 6, Flags::ACK, b" HTTP");
        say_of_server(&mut table, 1201, Flags::ACK, &[7; 100]);
        assert_eq!(table.memory(), 0);
        (table, id)
    };
    let (takeover, _) = begun(&mut given_up().0);
    let refusals: Vec<_> = takeover.into_refusals().collect();
    let reset = Segment::parse(&refusals[0], Checksum::Trusted).expect("a packet");
    assert!(reset.flags.rst);
    assert_eq!(reset.seq, Seq(1301));

    for is_hole_filled in [false, true] {
        let (mut table, id) = given_up();
        if is_hole_filled {
            say_of_client(&mut table, 1, Flags::ACK, b"G");
        } else {
            say_of_client(&mut table, 11, Flags::RST, b"");
            assert!(
                table.get(id).is_some(),
                "the server expects another sequence number"
            );
            let acknowledges = Segment {
                source: VIP.into(),
                destination: ([10, 0, 0, 1], 1).into(),
                seq: Seq(1301),
                ack: Seq(11),
                flags: Flags::ACK,
                window: 5000,
                options: TcpOptions::default(),
                payload: b"",
            };
            table.on_packet(NOW, Direction::Out, &acknowledges, None);
        }
        say_of_client(&mut table, 11, Flags::RST, b"");
        assert!(table.get(id).is_none(), "{is_hole_filled}");
    }
}

/// A client that signs its segments accepts only signed segments. Only the old socket has the key, so a restored socket cannot sign.
#[test]
fn a_connection_whose_segments_are_signed_is_not_protected() {
    let signed = TcpOptions {
        signature: true,
        ..TcpOptions::default()
    };
    for (port, is_offered, is_agreed) in [
        (1, false, false),
        (2, true, false),
        (3, false, true),
        (4, true, true),
    ] {
        let mut table = table();
        let client: SocketAddr = ([10, 0, 0, 1], port).into();
        let mut say = |direction, flags, seq, ack, is_signed: bool| {
            let (source, destination) = match direction {
                Direction::In => (client, VIP.into()),
                Direction::Out => (VIP.into(), client),
            };
            let segment = Segment {
                source,
                destination,
                seq: Seq(seq),
                ack: Seq(ack),
                flags,
                window: 5000,
                options: if is_signed { signed } else { TcpOptions::default() },
                payload: b"",
            };
            table.on_packet(Instant::from_nanos(0), direction, &segment, None)
        };
        say(Direction::In, Flags::SYN, 0, 0, is_offered);
        say(Direction::Out, Flags::SYN_ACK, 1000, 1, is_agreed);
        say(Direction::In, Flags::ACK, 1, 1001, is_offered);
        let id = table.find(client).expect("open");
        let expected = if is_offered || is_agreed {
            Protection::Unprotected(UnprotectedCause::Signed)
        } else {
            Protection::Protected
        };
        assert_eq!(table.get(id).unwrap().protection(), expected, "{port}");
    }
}

#[test]
fn the_whole_table_of_phases() {
    use TakeoverEvent::{AllDecided, DrainBegun, Drained};
    use TakeoverPhase::{Decided, Deciding, Draining, GateClosed};
    let mut table = String::new();
    for phase in [GateClosed, Draining, Deciding, Decided] {
        for event in [DrainBegun, Drained, AllDecided] {
            writeln!(table, "{phase:?}, {event:?}: {:?}", phase.after(event)).expect("text");
        }
    }
    insta::assert_snapshot!(table, @r"
    GateClosed, DrainBegun: Draining
    GateClosed, Drained: GateClosed
    GateClosed, AllDecided: GateClosed
    Draining, DrainBegun: Draining
    Draining, Drained: Deciding
    Draining, AllDecided: Draining
    Deciding, DrainBegun: Deciding
    Deciding, Drained: Deciding
    Deciding, AllDecided: Decided
    Decided, DrainBegun: Decided
    Decided, Drained: Decided
    Decided, AllDecided: Decided
    ");
}

#[test]
fn the_whole_table_of_the_pace() {
    use IdlePace::{Portion, Resting, Unlimited};
    use PaceEvent::{Planned, PlannedLast, Spoken, Timer};
    let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
    let until = at(150);
    let portion = |left| Portion { left, next: at(154) };
    let mut table = String::new();
    for pace in [Unlimited, Resting { until }, portion(2), portion(1)] {
        for event in [Timer(at(149)), Timer(until), Planned, PlannedLast, Spoken(until)] {
            writeln!(table, "{pace:?}, {event:?}: {:?}", pace.after(event)).expect("text");
        }
    }
    let table = table.replace("Instant(", "").replace("000000)", " ms");
    insta::assert_snapshot!(table, @r"
    Unlimited, Timer(149 ms): Unlimited
    Unlimited, Timer(150 ms): Unlimited
    Unlimited, Planned: Unlimited
    Unlimited, PlannedLast: Unlimited
    Unlimited, Spoken(150 ms): Portion { left: 32, next: 154 ms }
    Resting { until: 150 ms }, Timer(149 ms): Resting { until: 150 ms }
    Resting { until: 150 ms }, Timer(150 ms): Portion { left: 32, next: 154 ms }
    Resting { until: 150 ms }, Planned: Resting { until: 150 ms }
    Resting { until: 150 ms }, PlannedLast: Resting { until: 150 ms }
    Resting { until: 150 ms }, Spoken(150 ms): Resting { until: 150 ms }
    Portion { left: 2, next: 154 ms }, Timer(149 ms): Portion { left: 2, next: 154 ms }
    Portion { left: 2, next: 154 ms }, Timer(150 ms): Portion { left: 2, next: 154 ms }
    Portion { left: 2, next: 154 ms }, Planned: Portion { left: 1, next: 154 ms }
    Portion { left: 2, next: 154 ms }, PlannedLast: Portion { left: 2, next: 154 ms }
    Portion { left: 2, next: 154 ms }, Spoken(150 ms): Portion { left: 2, next: 154 ms }
    Portion { left: 1, next: 154 ms }, Timer(149 ms): Portion { left: 1, next: 154 ms }
    Portion { left: 1, next: 154 ms }, Timer(150 ms): Portion { left: 1, next: 154 ms }
    Portion { left: 1, next: 154 ms }, Planned: Resting { until: 154 ms }
    Portion { left: 1, next: 154 ms }, PlannedLast: Portion { left: 1, next: 154 ms }
    Portion { left: 1, next: 154 ms }, Spoken(150 ms): Portion { left: 1, next: 154 ms }
    ");
}

#[test]
fn the_documents_show_the_table_of_phases() {
    use TakeoverEvent::{AllDecided, DrainBegun, Drained};
    use TakeoverPhase::{Decided, Deciding, Draining, GateClosed};
    let leads = |phase: TakeoverPhase, event: TakeoverEvent| {
        let next = phase.after(event);
        (next != phase).then(|| (next, format!("{event:?}")))
    };
    let phases = [GateClosed, Draining, Deciding, Decided];
    let graph = graphviz(
        "takeover",
        (&phases, &[]),
        &[DrainBegun, Drained, AllDecided],
        leads,
    );
    assert_shown("takeover", &graph);
}
