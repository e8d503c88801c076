//! A wire gets the primary's list of connections, in simulated time.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::connection::UnprotectedCause;
use crate::follower::RestartPolicy;
use crate::older::OLDER_MAX;
use crate::packet::{Flags, Segment, TcpOptions};
use crate::table::{Direction, Table, TableConfig};
use crate::{Instant, Seq};

const TERMS: Terms = Terms {
    mss: 1448,
    window_scale: Some((7, 7)),
    sack: true,
    timestamps: false,
    microseconds: false,
};

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn client(number: u32) -> SocketAddr {
    let [_, a, b, c] = number.to_be_bytes();
    match number % 2 {
        0 => ([10, a, b, c], 40_000).into(),
        _ => (
            std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, a.into(), b.into(), c.into()),
            40_000,
        )
            .into(),
    }
}

fn vip() -> SocketAddr {
    ([10, 0, 0, 100], 80).into()
}

/// A wire whose log begins at `millis`.
fn wire(policy: RestartPolicy, millis: u64) -> Table {
    let mut table = Table::new(TableConfig {
        vip: vip(),
        policy,
        ..TableConfig::sample()
    });
    table.set_wire(true);
    table.begin_census(at(millis));
    table
}

/// The connections of the primary's kernel, by client.
type KernelConnections = BTreeSet<SocketAddr>;

/// The page with which `kernel` answers.
fn page(kernel: &KernelConnections, query: PageQuery) -> CensusPage {
    let behind = kernel.iter().filter(|client| Some(**client) > query.after);
    let connections: Vec<_> = behind.take(PAGE_MAX).map(|client| (*client, TERMS)).collect();
    let last = connections.last().map(|(client, _)| *client);
    let is_last = kernel.last().copied() == last || connections.is_empty();
    CensusPage {
        query,
        connections,
        is_last,
    }
}

fn told(kernel: &KernelConnections, clients: &[SocketAddr]) -> Vec<(SocketAddr, Option<Terms>)> {
    let told = |client: &SocketAddr| (*client, kernel.contains(client).then_some(TERMS));
    clients.iter().map(told).collect()
}

/// Answers at once all questions asked during `millis`.
fn serve(table: &mut Table, kernel: &KernelConnections, millis: std::ops::Range<u64>) {
    for now in millis.map(at) {
        table.prove(now);
        while let Some(query) = table.poll_census(now) {
            table.on_page(page(kernel, query));
        }
        if let Some(clients) = table.poll_question(now) {
            told(kernel, &clients)
                .into_iter()
                .for_each(|told| table.on_told(told));
        }
    }
}

fn say(table: &mut Table, millis: u64, direction: Direction, client: SocketAddr, flags: Flags) {
    say_bytes(table, millis, (direction, client), flags, &[]);
}

fn say_bytes(
    table: &mut Table,
    millis: u64,
    (direction, client): (Direction, SocketAddr),
    flags: Flags,
    payload: &[u8],
) {
    let (source, destination) = match direction {
        Direction::In => (client, vip()),
        Direction::Out => (vip(), client),
    };
    let first = [0, 1000][usize::from(direction == Direction::Out)];
    let segment = Segment {
        source,
        destination,
        seq: Seq(first + u32::from(!flags.syn)),
        ack: Seq(if flags.ack { 1001 - first } else { 0 }),
        flags,
        window: 1000,
        options: TcpOptions::default(),
        payload,
    };
    table.on_packet(at(millis), direction, &segment, None);
}

fn connect(table: &mut Table, millis: u64, client: SocketAddr) {
    say(table, millis, Direction::In, client, Flags::SYN);
    say(table, millis, Direction::Out, client, Flags::SYN_ACK);
    say(table, millis, Direction::In, client, Flags::ACK);
}

const RST: Flags = Flags {
    ack: true,
    ..Flags::RST
};

fn shown(table: &Table, millis: u64) -> BTreeMap<SocketAddr, UnprotectedCause> {
    table.older(at(millis)).collect()
}

fn clients(range: std::ops::Range<u32>) -> KernelConnections {
    range.map(client).collect()
}

#[test]
fn whoever_is_there_is_shown_and_silent_until_it_speaks() {
    for policy in [RestartPolicy::Http, RestartPolicy::Replica] {
        let mut table = wire(policy, 0);
        let kernel = clients(0..100);
        assert!(!table.is_census_complete());
        serve(&mut table, &kernel, 0..1);
        assert!(table.is_census_complete());
        assert_eq!(
            shown(&table, 1).keys().copied().collect::<KernelConnections>(),
            kernel
        );
        assert!(
            shown(&table, 1)
                .values()
                .all(|cause| *cause == UnprotectedCause::Silent(policy))
        );
        say(&mut table, 2, Direction::Out, client(7), Flags::ACK);
        assert_eq!(shown(&table, 2)[&client(7)], UnprotectedCause::Older(policy));
        assert_eq!(shown(&table, 2).len(), 100);
    }
}

#[test]
fn an_empty_list_is_complete() {
    let mut table = wire(RestartPolicy::Http, 0);
    serve(&mut table, &KernelConnections::new(), 0..1);
    assert!(table.is_census_complete());
    assert!(shown(&table, 1).is_empty());
}

#[test]
fn a_page_that_is_lost_is_asked_for_again_and_then_less_often() {
    let mut table = wire(RestartPolicy::Http, 0);
    let asked: Vec<u64> = (0..4000)
        .filter(|millis| table.poll_census(at(*millis)).is_some())
        .collect();
    assert_eq!(asked[..3], [0, 50, 100]);
    assert_eq!(asked.len(), 20 + 3, "{asked:?}");
    assert!(!table.is_census_complete());
    serve(&mut table, &clients(0..100), 5000..5001);
    assert!(table.is_census_complete());
    assert_eq!(table.poll_census(at(9000)), None);
}

/// Each page may be lost, come twice, or come late, after other pages.
#[test]
fn pages_that_are_lost_doubled_or_late_change_nothing() {
    for seed in 0..200_u64 {
        let mut table = wire(RestartPolicy::Http, 0);
        let kernel = clients(0..200);
        let mut under_way: Vec<(u64, CensusPage)> = Vec::new();
        let mut chance = seed;
        for millis in 0..10_000 {
            if let Some(query) = table.poll_census(at(millis)) {
                for _ in 0..2 {
                    chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    if chance >> 62 != 0 {
                        under_way.push((millis + (chance >> 40) % 200, page(&kernel, query)));
                    }
                }
            }
            let arrived = under_way.extract_if(.., |(due, _)| *due <= millis);
            arrived.for_each(|(_, page)| table.on_page(page));
        }
        assert!(table.is_census_complete(), "seed {seed}");
        assert_eq!(shown(&table, 0).len(), 200, "seed {seed}");
    }
}

#[test]
fn a_page_of_an_earlier_census_or_of_nobody_s_question_does_not_count() {
    let mut table = wire(RestartPolicy::Http, 0);
    let early = table.poll_census(at(0)).expect("the first question");
    table.begin_census(at(10));
    table.on_page(page(&clients(0..3), early));
    assert!(!table.is_census_complete() && shown(&table, 10).is_empty());

    assert_eq!(
        table.poll_census(at(49)),
        None,
        "the primary was asked just before"
    );
    let query = table.poll_census(at(50)).expect("the first question");
    let stuck = CensusPage {
        query,
        connections: Vec::new(),
        is_last: false,
    };
    table.on_page(stuck);
    assert!(!table.is_census_complete());
    assert_eq!(table.poll_census(at(50)), None, "this page leads nowhere");
    let elsewhere = PageQuery {
        after: Some(client(1)),
        ..query
    };
    table.on_page(page(&clients(0..3), elsewhere));
    assert!(!table.is_census_complete() && shown(&table, 10).is_empty());
    table.set_wire(false);
    table.on_page(page(&clients(0..3), query));
    assert!(shown(&table, 50).is_empty(), "this node is not the wire now");
}

#[test]
fn ten_thousand_are_counted_and_bounded() {
    let mut table = wire(RestartPolicy::Http, 0);
    let many = clients(0..10_000);
    serve(&mut table, &many, 0..1);
    assert!(table.is_census_complete());
    assert_eq!(shown(&table, 1).len(), 10_000);

    let bound = u32::try_from(OLDER_MAX).expect("fits");
    let mut table = wire(RestartPolicy::Http, 0);
    serve(&mut table, &clients(0..bound + 1000), 0..1);
    assert!(table.is_census_complete());
    assert_eq!(shown(&table, 1).len(), OLDER_MAX);
}

#[test]
fn who_came_after_the_log_is_never_taken_for_older() {
    let mut table = wire(RestartPolicy::Http, 0);
    let query = table.poll_census(at(0)).expect("a question");
    connect(&mut table, 1, client(1)); // new
    connect(&mut table, 1, client(2)); // and gone before the answer comes
    say(&mut table, 2, Direction::In, client(2), RST);
    table.on_page(page(&clients(0..3), query));
    let is_older = |table: &Table, millis| shown(table, millis).into_keys().collect::<KernelConnections>();
    assert_eq!(is_older(&table, 3), clients(0..1));
    serve(&mut table, &clients(0..2), 3..4000);
    assert_eq!(is_older(&table, 4000), clients(0..1));
    assert_eq!(table.len(), 1);
}

/// The client of an older connection resets it and connects again from the same port, while the answer is under way.
#[test]
fn the_port_of_an_older_one_is_used_again() {
    for is_noted in [false, true] {
        let mut table = wire(RestartPolicy::Http, 0);
        if is_noted {
            say(&mut table, 0, Direction::Out, client(1), Flags::ACK);
        }
        let query = table.poll_census(at(0)).expect("a question");
        say(&mut table, 1, Direction::In, client(1), RST);
        connect(&mut table, 2, client(1));
        table.on_page(page(&clients(1..2), query));
        assert!(shown(&table, 3).is_empty(), "it is known");
        assert_eq!(table.len(), 1);
    }
}

/// An answer to a question asked before an older connection ended must not bring the connection back.
#[test]
fn what_ended_since_the_question_has_ended() {
    let mut table = wire(RestartPolicy::Http, 0);
    let query = table.poll_census(at(0)).expect("a question");
    say(&mut table, 1, Direction::Out, client(1), Flags::ACK);
    say(&mut table, 2, Direction::In, client(1), RST);
    table.on_page(page(&clients(1..2), query));
    assert!(shown(&table, 3).is_empty());
}

/// The primary refuses a RST, so the connection goes on, silently.
#[test]
fn what_has_ended_only_as_it_seems_is_shown_again() {
    let mut table = wire(RestartPolicy::Http, 0);
    let kernel = clients(1..2);
    serve(&mut table, &kernel, 0..1);
    say(&mut table, 2, Direction::In, client(1), RST);
    assert!(shown(&table, 3).is_empty());
    serve(&mut table, &kernel, 3..2200);
    assert_eq!(shown(&table, 2200).len(), 1);
}

#[test]
fn whoever_is_gone_without_a_word_is_shown_no_more_and_who_stays_is() {
    for policy in [RestartPolicy::Http, RestartPolicy::Replica] {
        let mut table = wire(policy, 0);
        let mut kernel = clients(0..100);
        serve(&mut table, &kernel, 0..1000);
        kernel.retain(|one| *one != client(50));
        serve(&mut table, &kernel, 1000..3500);
        let left = shown(&table, 3500);
        assert_eq!(left.keys().copied().collect::<KernelConnections>(), kernel);
        serve(&mut table, &kernel, 3500..120_000);
        assert_eq!(shown(&table, 120_000), left);
    }
}

/// The client of an older connection begins a new one while the question is open. The answer is about the old connection.
#[test]
fn a_late_denial_does_not_hit_the_next_connection() {
    let mut table = wire(RestartPolicy::Http, 0);
    serve(&mut table, &clients(1..2), 0..1);
    let asked = table.poll_question(at(3000)).expect("it is silent");
    connect(&mut table, 3001, client(1));
    table.on_told((asked[0], None));
    assert_eq!(table.len(), 1);
    say(&mut table, 3002, Direction::In, client(1), RST);
    // The wire missed the beginning of the client's next connection, as can happen in a flood.
    say(&mut table, 3003, Direction::Out, client(1), Flags::ACK);
    table.on_told((asked[0], None));
    assert_eq!(shown(&table, 3004).len(), 1);
}

#[test]
fn many_silent_ones_are_asked_about_at_a_gentle_pace() {
    let mut table = wire(RestartPolicy::Replica, 0);
    let kernel = clients(0..10_000);
    serve(&mut table, &kernel, 0..1);
    let mut asked = BTreeMap::new();
    for millis in (2000..22_000).step_by(4) {
        if let Some(clients) = table.poll_question(at(millis)) {
            for told in told(&kernel, &clients) {
                *asked.entry(told.0).or_insert(0) += 1;
                table.on_told(told);
            }
        }
    }
    assert_eq!(asked.len(), 10_000, "every client is asked about");
    let questions = asked.values().sum::<usize>().div_ceil(QUESTION_MAX);
    assert!(questions <= 20_000 / 50 + 1, "{questions}");
}

/// A handshake began before the log. The wire sees only its last segment.
#[test]
fn whose_handshake_was_under_way_is_asked_about() {
    for policy in [RestartPolicy::Http, RestartPolicy::Replica] {
        let mut table = wire(policy, 0);
        serve(&mut table, &KernelConnections::new(), 0..1);
        say(&mut table, 5, Direction::In, client(1), Flags::ACK);
        serve(&mut table, &clients(1..2), 5..6);
        assert_eq!(shown(&table, 6).len(), 1);
        say(&mut table, 7, Direction::In, client(3), Flags::ACK);
        serve(&mut table, &clients(1..2), 7..8);
        assert_eq!(shown(&table, 8).len(), 1, "a stranger");
    }
}

#[test]
fn microseconds_are_not_learnt() {
    let mut table = wire(RestartPolicy::Http, 0);
    let query = table.poll_census(at(0)).expect("a question");
    let mut page = page(&clients(1..2), query);
    page.connections[0].1.microseconds = true;
    table.on_page(page);
    let cause = shown(&table, 1)[&client(1)].to_string();
    assert!(cause.ends_with("its timestamps count microseconds"), "{cause}");
}

/// Clients vanish and their server gives up without a packet. Silent clients, and a client that has reconnected, stay.
#[test]
fn who_has_vanished_is_forgotten_and_who_is_silent_is_not() {
    for policy in [RestartPolicy::Http, RestartPolicy::Replica] {
        let mut table = wire(policy, 0);
        serve(&mut table, &KernelConnections::new(), 0..1);
        for number in 0..200 {
            connect(&mut table, 10, client(number));
        }
        let mut kernel = clients(100..200);
        serve(&mut table, &kernel, 11..50_000);
        assert_eq!(
            table.len(),
            200,
            "a client that was silent only briefly is not asked about"
        );
        connect(&mut table, 60_000, client(0));
        kernel.insert(client(0));
        serve(&mut table, &kernel, 60_000..80_000);
        let left: KernelConnections = table.iter().map(|(_, connection)| connection.client()).collect();
        assert_eq!(left, kernel);
        assert_eq!(table.take_gone().len(), 100);
        assert_eq!(shown(&table, 80_000), BTreeMap::new());
    }
}

/// An answer describes the moment of the question. The answer ends neither the client's next connection nor a connection that sends again.
#[test]
fn an_answer_about_what_was_before_ends_nobody() {
    for speaks in [false, true] {
        let mut table = wire(RestartPolicy::Http, 0);
        serve(&mut table, &KernelConnections::new(), 0..1);
        connect(&mut table, 10, client(0));
        let asked = table.poll_question(at(70_000)).expect("it may have vanished");
        if speaks {
            let to = (Direction::Out, client(0));
            say_bytes(&mut table, 70_001, to, Flags::ACK, b"a word");
        } else {
            connect(&mut table, 70_001, client(0));
        }
        table.take_gone();
        told(&KernelConnections::new(), &asked)
            .into_iter()
            .for_each(|told| table.on_told(told));
        assert_eq!((table.len(), table.take_gone().len()), (1, 0), "{speaks}");
    }
}
