//! Takeovers of many connections, tested through the actions that a node gives its caller.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::*;
use crate::Seq;
use crate::action::{Echo, Gate, Heartbeat, OperatorReport, ServiceAction, ServiceBeat, ServiceIndex};
use crate::connection::Connection;
use crate::follower::RestartPolicy;
use crate::migration::{MigrationBeat, MigrationOffer, OfferAnswer, OfferState};
use crate::node::fixture::{BEAT, at, beat, config, next_action};
use crate::orphans::Orphans;
use crate::packet::{Checksum, Flags, Segment, TcpOptions};
use crate::role::Role;
use crate::service::{InheritedService, ServiceInput};
use crate::table::{ConnectionId, Direction};
use crate::takeover::{HEAD_START_EACH, HEAD_START_MAX, PORTION, PORTION_EVERY};

/// Number of connections that a takeover plans when it begins. The others are planned one at a time.
const FIRST: usize = 64;

/// The wire of `services` services. It knows all their connections.
fn wire(services: u8) -> Node {
    wire_of(services, RestartPolicy::Http)
}

fn wire_of(services: u8, policy: RestartPolicy) -> Node {
    let mut config = config(false);
    let service = config.services.remove(0);
    config.services = (0..services)
        .map(|index| {
            let mut service = service.clone();
            service.table.vip = ([10, 0, 0, 100 + index], 80).into();
            service.table.policy = policy;
            service.found = Some(InheritedService::sample(Gate::Wire, 2));
            service
        })
        .collect();
    Node::new(config, at(0))
}

/// The wire logs a segment. The client's sequence numbers begin at 0, the server's at 1000. `seq` is relative to the sender's first number.
fn say(
    node: &mut Node,
    service: ServiceIndex,
    port: u16,
    direction: Direction,
    flags: Flags,
    (seq, payload): (u32, &[u8]),
) {
    let client: SocketAddr = ([10, 1, 0, 1], port).into();
    let (source, destination, seq, ack) = match direction {
        Direction::In => (client, node.service(service).vip(), seq, 1001),
        Direction::Out => (node.service(service).vip(), client, 1000 + seq, 1),
    };
    let segment = Segment {
        source,
        destination,
        seq: Seq(seq),
        ack: Seq(ack),
        flags,
        window: 1000,
        options: TcpOptions::default(),
        payload,
    };
    node.handle_packet(
        at(1),
        service,
        direction,
        &segment.emit(),
        Checksum::Unverified,
        None,
    );
}

/// Opens a connection for each of these clients. Each client has sent `request`.
fn open(
    node: &mut Node,
    service: ServiceIndex,
    ports: std::ops::RangeInclusive<u16>,
    request: &[u8],
) -> Vec<ConnectionId> {
    let mut opened = Vec::new();
    for port in ports {
        say(node, service, port, Direction::In, Flags::SYN, (0, b""));
        say(node, service, port, Direction::Out, Flags::SYN_ACK, (0, b""));
        say(node, service, port, Direction::In, Flags::ACK, (1, request));
        opened.extend(node.service(service).table().find(([10, 1, 0, 1], port).into()));
    }
    opened
}

/// The primary of all services says that it leaves. Its heartbeat echoes a heartbeat that the node sent at `now`.
fn leave(node: &mut Node, now: Instant) {
    leave_after(node, now, Some(now));
}

/// The primary of all services says that it leaves. The last heartbeat that it has heard was sent by the node at `echo`.
fn leave_after(node: &mut Node, now: Instant, echo: Option<Instant>) {
    node.handle_timeout(now);
    say_that_it_leaves(node, now, 1, echo);
}

fn say_that_it_leaves(node: &mut Node, now: Instant, sequence: u64, echo: Option<Instant>) {
    let beat = |service| ServiceBeat {
        leaves: true,
        ..beat(node.service(service).vip(), (Role::Primary, 2), true)
    };
    let heartbeat = Heartbeat {
        node: "alpha".to_owned(),
        incarnation: 1,
        sequence,
        sent: 0,
        echo: echo.map(|sent| Echo {
            incarnation: node.config().incarnation,
            sent: sent.as_nanos(),
        }),
        services: node.indices().map(beat).collect(),
    };
    node.handle_heartbeat(now, heartbeat);
}

/// Carries out the node's actions. Each restored connection takes `cost`. Returns each action, and whether the action could wait.
fn carry_out(node: &mut Node, now: &mut Instant, cost: Duration) -> Vec<(Action, bool)> {
    let mut done = Vec::new();
    let mut endpoints = HashMap::new();
    while let Some(action) = next_action(node) {
        let is_unhurried = node.is_unhurried();
        let Some(action) = node.admit(*now, action) else {
            continue;
        };
        done.push((action.clone(), is_unhurried));
        match action {
            Action::Service(service, ServiceAction::Restore { connection }) => {
                *now += cost;
                let entry = node.service(service).table().get(connection).expect("it is open");
                endpoints.insert((service, connection), entry.endpoint());
            }
            Action::Service(service, ServiceAction::Drain) => {
                node.handle(*now, service, ServiceInput::Drained)
            }
            Action::Service(service, ServiceAction::Activate { connection }) => {
                node.handle(*now, service, ServiceInput::Live { connection })
            }
            Action::Service(service, ServiceAction::HandOver { connection }) => {
                // A connection that is not in `endpoints` was restored before this call. Its socket has all output that is in the log.
                let restored = endpoints.remove(&(service, connection));
                let entry = node.service(service).table().get(connection);
                let Some(endpoint) = restored.or_else(|| entry.map(Connection::endpoint)) else {
                    continue; // it was refused
                };
                let taken = node.hand_over(*now, service, connection, &endpoint);
                assert!(taken.is_some(), "its socket has all that is in the log");
            }
            _ => {}
        }
    }
    done
}

fn restored(done: &[(Action, bool)]) -> Vec<(ServiceIndex, ConnectionId)> {
    let restored = done.iter().filter_map(|(action, _)| match *action {
        Action::Service(service, ServiceAction::Restore { connection }) => Some((service, connection)),
        _ => None,
    });
    restored.collect()
}

/// The primary leaves, and the log is read to its end.
fn leave_and_drain(node: &mut Node, now: Instant) {
    leave(node, now);
    let drained = std::iter::from_fn(|| node.poll_action()).find_map(|action| match action {
        Action::Service(service, ServiceAction::Drain) => Some(service),
        _ => None,
    });
    node.handle(now, drained.expect("it takes over"), ServiceInput::Drained);
}

/// The last connection to decide may be one of those that are planned one at a time. The takeover ends with that
/// connection, even if it cannot be restored.
#[test]
fn a_takeover_ends_when_its_last_connection_cannot_be_restored() {
    let mut node = wire(1);
    open(
        &mut node,
        0,
        1..=u16::try_from(FIRST).expect("few") + 1,
        b"\0\r\n\r\n",
    );
    let mut now = at(10);
    leave_and_drain(&mut node, now);
    assert_eq!(node.service(0).role(), Role::TakingOver);
    let done = carry_out(&mut node, &mut now, Duration::ZERO);
    assert_eq!(restored(&done), []);
    assert_eq!(node.service(0).role(), Role::Sole);
    assert_eq!(node.service(0).takeovers()[0].reset, FIRST + 1);
}

/// A client moves forward in the queue only by a segment that its connection accepts. Anybody can send other segments.
#[test]
fn only_what_is_taken_puts_a_client_forward() {
    let mut node = wire(1);
    // As many as come at once: when a client has spoken, the others come in portions.
    let all = u16::try_from(FIRST + PORTION).expect("few");
    let opened = open(&mut node, 0, 1..=all, b"");
    let mut now = at(10);
    leave_and_drain(&mut node, now);
    for (port, seq) in [(90, 5000), (95, 1)] {
        say(&mut node, 0, port, Direction::In, Flags::ACK, (seq, b"?"));
    }
    let restored = restored(&carry_out(&mut node, &mut now, Duration::ZERO));
    assert_eq!(restored[FIRST..][..2], [(0, opened[94]), (0, opened[FIRST])]);
    assert_eq!(restored.len(), opened.len());
}

/// If the replica sends output on a connection, the client has a request that the primary has not answered.
#[test]
fn what_a_replica_says_in_a_takeover_puts_its_client_forward() {
    let mut node = wire_of(1, RestartPolicy::Replica);
    let opened = open(&mut node, 0, 1..=100, b"");
    let mut now = at(10);
    leave_and_drain(&mut node, now);
    node.handle_replica_output(0, opened[98], Some(b"done"));
    node.handle_replica_output(0, opened[97], Some(b""));
    let restored = restored(&carry_out(&mut node, &mut now, Duration::ZERO));
    assert_eq!(restored[FIRST..][..2], [(0, opened[98]), (0, opened[FIRST])]);
}

/// Whether `action` is a step of taking over a connection.
fn is_step(action: &Action) -> bool {
    let Action::Service(_, action) = action else {
        return false;
    };
    matches!(
        action,
        ServiceAction::Drain
            | ServiceAction::Restore { .. }
            | ServiceAction::MakeReady { .. }
            | ServiceAction::Activate { .. }
            | ServiceAction::HandOver { .. }
    )
}

/// Under `fail-stop` the primary may have gone on alone while the wire's agent was away. Only a fresh heartbeat of the primary shows
/// whether it has.
#[test]
fn what_was_logged_before_a_long_absence_is_taken_over_if_the_primary_has_confirmed_it() {
    for is_confirmed in [true, false] {
        let mut node = wire(1);
        let opened = open(&mut node, 0, 1..=3, b"");
        node.handle_timeout(at(10));
        let mut now = at(10) + node.config().detector.agent_timeout;
        leave_after(&mut node, now, is_confirmed.then_some(now));
        if !is_confirmed {
            assert_eq!(node.service(0).role(), Role::Backup, "the word may be old");
            for _ in 0..=node.config().detector.missed {
                now += BEAT;
                node.handle_timeout(now);
            }
        }
        let done = carry_out(&mut node, &mut now, Duration::ZERO);
        assert_eq!(restored(&done).len(), if is_confirmed { opened.len() } else { 0 });
        assert_eq!(node.service(0).role(), Role::Sole);
    }
}

/// At `now` the node hears a heartbeat of the primary. The heartbeat reports that the process that served `clients` has died, and echoes
/// the heartbeat that the node sent at `echo`.
fn tell_orphans(node: &mut Node, now: Instant, sequence: u64, echo: Instant, clients: &[SocketAddr]) {
    let orphans = Orphans {
        first: 0,
        clients: clients.to_vec(),
    };
    tell(node, now, sequence, echo, |beat| beat.orphans = orphans);
}

/// At `now` the node hears a heartbeat of the primary, with this change. The heartbeat echoes the one that the node sent at `echo`.
fn tell(node: &mut Node, now: Instant, sequence: u64, echo: Instant, change: impl FnOnce(&mut ServiceBeat)) {
    let mut beat = beat(node.service(0).vip(), (Role::Primary, 2), true);
    change(&mut beat);
    let heartbeat = Heartbeat {
        node: "alpha".to_owned(),
        incarnation: 1,
        sequence,
        sent: 0,
        echo: Some(Echo {
            incarnation: node.config().incarnation,
            sent: echo.as_nanos(),
        }),
        services: vec![beat],
    };
    node.handle_heartbeat(now, heartbeat);
}

fn clients(ports: std::ops::RangeInclusive<u16>) -> Vec<SocketAddr> {
    ports.map(|port| ([10, 1, 0, 1], port).into()).collect()
}

fn beat_of(offers: Vec<MigrationOffer>, answers: Vec<OfferAnswer>) -> MigrationBeat {
    MigrationBeat {
        offers,
        answers,
        leads_first: true,
    }
}

/// A connection that moves is prepared, and nothing more, until the primary has released it. A wire answers for connections that it has, so
/// that a client whose connection is gone learns of it.
#[test]
fn what_is_released_moves_here_and_what_is_withdrawn_is_given_back() {
    let mut node = wire(1);
    let opened = open(&mut node, 0, 1..=2, b"");
    let clients = clients(1..=2);
    let mut now = at(10);
    node.handle_timeout(now);
    let offer = |number: u64, is_released| MigrationOffer {
        number,
        client: clients[usize::try_from(number).expect("small")],
        is_released,
        is_frozen: false,
        reverses: false,
        annex: None,
        is_bereft: false,
    };
    let beat = |offers| {
        let answers = Vec::new();
        |beat: &mut ServiceBeat| beat.migration = Some(beat_of(offers, answers))
    };
    tell(
        &mut node,
        now,
        1,
        now,
        beat(vec![offer(0, false), offer(1, false)]),
    );
    let prepared = carry_out(&mut node, &mut now, Duration::ZERO);
    let of = |done: &[(Action, bool)]| -> Vec<ServiceAction> {
        let services = done.iter().filter_map(|(action, _)| match action {
            Action::Service(_, action) => Some(action.clone()),
            _ => None,
        });
        services.collect()
    };
    let reserved = ServiceAction::Reserve {
        clients: clients.clone(),
    };
    assert!(of(&prepared).contains(&reserved), "{prepared:?}");
    assert_eq!(restored(&prepared).len(), 2);
    let speaks = |action: &ServiceAction| matches!(action, ServiceAction::Activate { .. });
    assert!(!of(&prepared).iter().any(speaks), "{prepared:?}");

    tell(&mut node, now, 2, now, beat(vec![offer(0, true)]));
    let taken = of(&carry_out(&mut node, &mut now, Duration::ZERO));
    let (connection, client) = (opened[1], clients[1]);
    assert!(taken.contains(&ServiceAction::GiveBack { connection, client }));
    let active: Vec<_> = taken.iter().filter(|action| speaks(action)).collect();
    assert_eq!(
        active,
        [&ServiceAction::Activate {
            connection: opened[0]
        }]
    );

    for (port, is_answered) in [(1, true), (2, false)] {
        say(&mut node, 0, port, Direction::In, Flags::ACK, (1_000_000, b"x"));
        let said = of(&carry_out(&mut node, &mut now, Duration::ZERO));
        let answers = |action: &ServiceAction| matches!(action, ServiceAction::Transmit(_));
        assert_eq!(said.iter().any(answers), is_answered, "{port}: {said:?}");
    }
}

/// Only the primary has the log of a reversed connection. If its process dies on the backup, the primary must take the connection, or it ends.
#[test]
fn a_reversed_connection_whose_process_dies_is_offered_and_ends_if_it_is_refused() {
    let mut node = wire(1);
    open(&mut node, 0, 1..=2, b"");
    let clients = clients(1..=2);
    let mut now = at(10);
    node.handle_timeout(now);
    let offers = |is_released| {
        let offer = |(number, &client)| MigrationOffer {
            number,
            client,
            is_released,
            is_frozen: false,
            reverses: number == 0,
            annex: None,
            is_bereft: false,
        };
        (0..).zip(&clients).map(offer).collect()
    };
    let say = |offers, answers| |beat: &mut ServiceBeat| beat.migration = Some(beat_of(offers, answers));
    tell(&mut node, now, 1, now, say(offers(false), Vec::new()));
    carry_out(&mut node, &mut now, Duration::ZERO);
    tell(&mut node, now, 2, now, say(offers(true), Vec::new()));
    carry_out(&mut node, &mut now, Duration::ZERO);
    tell(&mut node, now, 3, now, say(Vec::new(), Vec::new()));
    node.handle(now, 0, ServiceInput::Orphans(clients.clone()));
    let offered = node.service(0).migration_beat().offers;
    let [offer] = offered[..] else {
        panic!("{offered:?}: the primary has the log of one of them only")
    };
    assert_eq!((offer.client, offer.is_bereft), (clients[0], true));
    let refused = OfferAnswer {
        number: offer.number,
        state: OfferState::Refused("its log has a gap".to_owned()),
    };
    tell(&mut node, now, 4, now, say(Vec::new(), vec![refused]));
    let done = carry_out(&mut node, &mut now, Duration::ZERO);
    let ended = Action::Service(
        0,
        ServiceAction::ShowEnds {
            clients: vec![clients[0]],
        },
    );
    assert!(done.iter().any(|(action, _)| *action == ended), "{done:?}");
}

/// The wire must not adopt orphans after its lease has ended, not even under `fail-stop`: the primary may have gone on alone since then.
#[test]
fn a_dead_workers_connections_wait_until_the_primary_has_heard_the_wire_again() {
    let mut node = wire(1);
    let opened = open(&mut node, 0, 1..=3, b"GET / HTTP/1.1\r\n\r\n");
    let mut now = at(10);
    node.handle_timeout(now);
    tell_orphans(&mut node, now, 1, now, &clients(1..=3));
    // The agent is stopped when it is about to take the first connection's second step.
    let mut done = Vec::new();
    let stopped = loop {
        let action = node.poll_action().expect("there is more to do");
        match action {
            Action::Service(_, ServiceAction::MakeReady { .. }) => break action,
            Action::Service(service, ServiceAction::Drain) => {
                node.handle(now, service, ServiceInput::Drained)
            }
            _ => {}
        }
        done.push((action, false));
    };
    assert_eq!(restored(&done), [(0, opened[0])]);
    now = at(400);
    assert_eq!(node.admit(now, stopped.clone()), None);
    let is_step = |(action, _): &(Action, bool)| is_step(action);
    assert!(!carry_out(&mut node, &mut now, Duration::ZERO).iter().any(is_step));
    node.handle_timeout(now);
    assert!(!carry_out(&mut node, &mut now, Duration::ZERO).iter().any(is_step));
    now = at(420);
    tell_orphans(&mut node, now, 2, at(410), &clients(1..=3));
    let done = carry_out(&mut node, &mut now, Duration::ZERO);
    let steps: Vec<_> = done.iter().filter(|done| is_step(done)).collect();
    assert_eq!(steps[0].0, stopped, "it goes on where it was");
    assert!(!node.is_deciding());
    assert_eq!(restored(&done), [(0, opened[1]), (0, opened[2])]);
}

/// Under `fail-stop` the primary may have gone on alone while the wire's agent was away. This holds even if the agent had begun to take
/// over.
#[test]
fn a_takeover_that_was_interrupted_waits_for_the_primarys_word() {
    for heard in [None, Some(false), Some(true)] {
        let mut node = wire(1);
        let opened = open(&mut node, 0, 1..=3, b"");
        let mut now = at(10);
        leave_and_drain(&mut node, now);
        let first = std::iter::from_fn(|| node.poll_action()).find(is_step);
        assert!(matches!(
            first,
            Some(Action::Service(_, ServiceAction::Restore { .. }))
        ));
        now += node.config().detector.agent_timeout;
        let stopped = first.expect("it restores the first connection");
        assert_eq!(node.admit(now, stopped), None, "{heard:?}");
        if let Some(is_fresh) = heard {
            say_that_it_leaves(&mut node, now, 2, is_fresh.then_some(now));
        } else {
            node.handle_timeout(now);
        }
        let done = carry_out(&mut node, &mut now, Duration::ZERO);
        let is_step = |(action, _): &(Action, bool)| is_step(action);
        assert_eq!(done.iter().any(is_step), heard == Some(true), "{heard:?}");
        let mut all = restored(&done);
        for _ in 0..=node.config().detector.missed {
            now += BEAT;
            node.handle_timeout(now);
            all.extend(restored(&carry_out(&mut node, &mut now, Duration::ZERO)));
        }
        assert_eq!(
            all.len(),
            if heard == Some(false) { 0 } else { opened.len() },
            "{heard:?}"
        );
        assert_eq!(node.service(0).role(), Role::Sole);
    }
}

/// The lease ends before the adoption is decided, and the primary is dead. The takeover takes each connection over exactly once.
#[test]
fn an_adoption_that_waits_becomes_part_of_the_takeover_of_all() {
    let mut node = wire(1);
    let opened = open(&mut node, 0, 1..=3, b"GET / HTTP/1.1\r\n\r\n");
    let mut now = at(10);
    node.handle_timeout(now);
    tell_orphans(&mut node, now, 1, now, &clients(1..=2));
    let mut done = Vec::new();
    while restored(&done).is_empty() {
        let action = node.poll_action().expect("there is more to do");
        if let Action::Service(service, ServiceAction::Drain) = action {
            node.handle(now, service, ServiceInput::Drained);
        }
        done.push((action, false));
    }
    now = at(400);
    while node.service(0).role() != Role::Sole && now < at(2000) {
        now += BEAT / 2;
        node.handle_timeout(now);
        done.extend(carry_out(&mut node, &mut now, Duration::ZERO));
    }
    let mut taken = restored(&done);
    taken.sort_unstable();
    assert_eq!(taken, [(0, opened[0]), (0, opened[1]), (0, opened[2])]);
    assert_eq!(node.service(0).role_and_epoch(), (Role::Sole, 3));
    let gate = done
        .iter()
        .position(|(action, _)| matches!(action, Action::Service(_, ServiceAction::SetGate { .. })));
    let ready = done
        .iter()
        .position(|(action, _)| matches!(action, Action::Service(_, ServiceAction::MakeReady { .. })));
    assert!(gate < ready, "steps continue only behind the gate: {done:?}");
}

/// Only the five steps for an idle connection can wait. On an idle connection neither the client nor the server waits for anything.
#[test]
fn what_can_wait_is_said_of_each_action() {
    let mut node = wire(1);
    let idle = open(&mut node, 0, 1..=10, b"");
    open(&mut node, 0, 11..=20, b"GET / HTTP/1.1\r\n\r\n");
    let mut now = at(10);
    leave(&mut node, now);
    let mut done = carry_out(&mut node, &mut now, Duration::ZERO);
    now = at(200);
    node.handle_timeout(now);
    done.extend(carry_out(&mut node, &mut now, Duration::ZERO));
    assert_eq!(restored(&done).len(), 20);
    let last = done
        .iter()
        .rfind(|(action, _)| !matches!(action, Action::Service(_, ServiceAction::AskOutside { .. })));
    assert!(matches!(last, Some((Action::Send(_), false))), "it has decided");
    let can_wait = done.into_iter().filter(|(_, can_wait)| *can_wait);
    let can_wait: Vec<_> = can_wait.map(|(action, _)| action).collect();
    let steps = |&connection: &ConnectionId| {
        let service = 0;
        [
            Action::Service(service, ServiceAction::Restore { connection }),
            Action::Service(service, ServiceAction::MakeReady { connection }),
            Action::Service(service, ServiceAction::Drain),
            Action::Service(service, ServiceAction::Activate { connection }),
            Action::Service(service, ServiceAction::HandOver { connection }),
        ]
    };
    assert_eq!(can_wait, idle.iter().flat_map(steps).collect::<Vec<_>>());
}

/// The steps of the first connections are planned before the node may carry them out. A client that speaks meanwhile must not wait.
#[test]
fn a_client_that_speaks_before_its_planned_steps_makes_them_urgent() {
    for speaks in [false, true] {
        let mut node = wire(1);
        open(&mut node, 0, 1..=1, b"");
        let now = at(10);
        leave_and_drain(&mut node, now);
        if speaks {
            say(
                &mut node,
                0,
                1,
                Direction::In,
                Flags::ACK,
                (1, b"GET / HTTP/1.1\r\n\r\n"),
            );
        }
        let mut can_wait = Vec::new();
        while let Some(action) = node.poll_action() {
            if is_step(&action) {
                can_wait.push(node.is_unhurried());
            }
            node.admit(now, action).expect("it may speak");
        }
        assert!(can_wait[0], "planned while the connection was idle");
        assert!(
            can_wait[1..5].iter().all(|can_wait| *can_wait != speaks),
            "{can_wait:?}"
        );
    }
}

/// After the connections that are planned at the start, those with waiting clients come first, even if their service comes after the
/// service with idle connections.
#[test]
fn nobody_waits_for_the_idle_connections_of_another_service() {
    let mut node = wire(2);
    let idle = open(&mut node, 0, 1..=200, b"");
    let waiting = open(&mut node, 1, 1..=100, b"GET / HTTP/1.1\r\n\r\n");
    let mut now = at(10);
    leave(&mut node, now);
    let restored = restored(&carry_out(&mut node, &mut now, Duration::ZERO));
    let first = idle[..FIRST].iter().map(|&id| (0, id));
    let expected = first.chain(waiting.into_iter().map(|id| (1, id)));
    let expected: Vec<_> = expected.chain(idle[FIRST..].iter().map(|&id| (0, id))).collect();
    assert_eq!(restored, expected);
}

/// The keeper has yet to take many connections. A client that speaks now would wait for those that are restored before its own.
#[test]
fn idle_connections_wait_while_the_keeper_is_behind() {
    let mut node = wire(1);
    let idle = open(&mut node, 0, 1..=200, b"");
    let mut now = at(10);
    node.set_behind(true);
    leave(&mut node, now);
    let first = restored(&carry_out(&mut node, &mut now, Duration::ZERO));
    assert_eq!(first.len(), FIRST);
    assert_eq!(
        node.poll_timeout(),
        now + LOOK_AGAIN,
        "the keeper takes them soon"
    );

    let request = (1, &b"GET / HTTP/1.1\r\n\r\n"[..]);
    say(&mut node, 0, 150, Direction::In, Flags::ACK, request);
    let hurried = restored(&carry_out(&mut node, &mut now, Duration::ZERO));
    assert_eq!(hurried, [(0, idle[149])]);

    node.set_behind(false);
    node.handle_timeout(now + LOOK_AGAIN);
    let next = restored(&carry_out(&mut node, &mut now, Duration::ZERO));
    assert_eq!(next.len(), PORTION, "a client has spoken");
}

/// The node handles verdicts, heartbeats and leases in time, even while it takes over thousands of connections.
#[test]
fn a_takeover_of_thousands_leaves_time_for_what_comes_meanwhile() {
    const COST: Duration = Duration::from_micros(50);
    let mut node = wire(1);
    open(&mut node, 0, 1..=500, b"");
    open(&mut node, 0, 501..=1000, b"GET / HTTP/1.1\r\n\r\n");
    let declared = at(10);
    leave(&mut node, declared);
    let (mut now, mut said, mut taken) = (declared, Vec::new(), 0);
    loop {
        let began = now;
        let done = carry_out(&mut node, &mut now, COST);
        let first = if taken == 0 { COST * 64 } else { Duration::ZERO };
        let busy = now.since(began);
        assert!(busy <= first + TURN_MAX + COST, "{taken}: {busy:?}");
        said.extend(done.iter().filter_map(|(action, _)| match action {
            Action::Send(heartbeat) => Some(heartbeat.sent),
            _ => None,
        }));
        taken += restored(&done).len();
        if taken == 1000 {
            break;
        }
        now = now.max(node.poll_timeout());
        node.handle_timeout(now);
    }
    let portions = u32::try_from(500 / PORTION).expect("few");
    let work = HEAD_START_MAX.min(HEAD_START_EACH * 500) + (PORTION_EVERY + COST) * portions + COST * 500;
    let slack = TURN_MAX + COST;
    assert!(now.since(declared) <= work + slack, "it goes on at once: {now:?}");
    let silent = said.windows(2).map(|pair| pair[1] - pair[0]).max();
    let silent = Duration::from_nanos(silent.expect("it says that it is there"));
    assert!(silent <= BEAT + slack, "{silent:?}");
    assert!(node.poll_timeout() > now, "nothing is left to be done at once");
}

/// Output of the primary reaches the log only after the connection was restored: before the restored socket goes live, or after. The socket
/// lacks this output, and the new application would send other bytes in its place.
#[test]
fn a_socket_that_lacks_output_is_not_gone_on_with() {
    for late in [None, Some("activate"), Some("hand over")] {
        let mut node = wire(1);
        let id = open(&mut node, 0, 1..=1, b"GET / HTTP/1.1\r\n\r\n")[0];
        let now = at(10);
        leave(&mut node, now);
        let say_late = |node: &mut Node, step| {
            if late == Some(step) {
                say(
                    node,
                    0,
                    1,
                    Direction::Out,
                    Flags::ACK,
                    (1, b"HTTP/1.1 200 OK\r\n"),
                );
            }
        };
        let (mut endpoint, mut done) = (None, Vec::new());
        while let Some(action) = node.poll_action() {
            let action = node.admit(now, action).expect("it may speak");
            match action {
                Action::Service(_, ServiceAction::Restore { .. }) => {
                    endpoint = node.service(0).table().get(id).map(Connection::endpoint)
                }
                Action::Service(_, ServiceAction::Drain) => node.handle(now, 0, ServiceInput::Drained),
                Action::Service(_, ServiceAction::Activate { .. }) => {
                    say_late(&mut node, "activate");
                    let endpoint = endpoint.as_ref().expect("it was restored");
                    let connection = node.service(0).table().get(id).expect("it is open");
                    match connection.late_input(endpoint).map(drop) {
                        Ok(()) => {
                            done.push("live");
                            node.handle(now, 0, ServiceInput::Live { connection: id });
                        }
                        Err(reason) => node.handle(
                            now,
                            0,
                            ServiceInput::Unrestorable {
                                connection: id,
                                reason,
                            },
                        ),
                    }
                }
                Action::Service(_, ServiceAction::HandOver { .. }) => {
                    say_late(&mut node, "hand over");
                    let endpoint = endpoint.as_ref().expect("it was restored");
                    done.extend(node.hand_over(now, 0, id, endpoint).map(|_| "handed over"));
                }
                Action::Service(_, ServiceAction::Report(OperatorReport::Unrestorable { .. })) => {
                    done.push("refused")
                }
                Action::Service(_, ServiceAction::Transmit(packet)) => {
                    let reset = Segment::parse(&packet, Checksum::Unverified).expect("a packet");
                    assert_eq!((reset.flags.rst, reset.seq), (true, Seq(1018)));
                    done.push("reset");
                }
                _ => {}
            }
        }
        let expected: &[_] = match late {
            None => &["live", "handed over"],
            Some("activate") => &["refused", "reset"],
            Some(_) => &["live", "refused", "reset"],
        };
        assert_eq!(done, expected, "{late:?}");
        assert_eq!(node.service(0).role(), Role::Sole);
    }
}

/// The agent was away, so the primary may have gone on alone and sent more than the log shows. So the wire continues no connection, not
/// even one whose handshake was under way.
#[test]
fn a_wire_in_doubt_continues_nothing() {
    for is_in_doubt in [false, true] {
        let mut node = wire(1);
        open(&mut node, 0, 1..=2, b"GET / HTTP/1.1\r\n\r\n");
        say(&mut node, 0, 3, Direction::In, Flags::SYN, (0, b""));
        say(&mut node, 0, 3, Direction::Out, Flags::SYN_ACK, (0, b""));
        let mut now = at(10);
        if is_in_doubt {
            now += node.config().detector.agent_timeout;
        }
        let mut done = Vec::new();
        while node.service(0).role() != Role::Sole && now < at(4000) {
            now += BEAT / 2;
            node.handle_timeout(now);
            done.extend(carry_out(&mut node, &mut now, Duration::ZERO));
        }
        assert_eq!(node.service(0).role(), Role::Sole);
        assert_eq!(restored(&done).len(), if is_in_doubt { 0 } else { 3 });
    }
}
