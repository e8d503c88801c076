//! A node whose agent was away for the agent timeout doubts what it knows (`service/doubt.rs`).

use super::*;

/// The nodes' agent timeout. An agent that was away for this long is in doubt.
const AWAY: Duration = Duration::from_millis(500);

/// The wire was well all the time, so it has not taken over.
#[test]
fn a_primary_that_was_away_for_long_goes_on_once_its_wire_has_said_so() {
    let mut two = Two::new(Arbiter::FailStop);
    two.pass(SHORT);
    two.nodes[1].handle_timeout(two.now + BEAT);
    let said = std::iter::from_fn(|| two.nodes[1].poll_action()).collect::<Vec<_>>();
    let before = said.into_iter().find_map(|action| match action {
        Action::Send(heartbeat) => Some(heartbeat),
        _ => None,
    });
    two.now += AWAY;
    let now = two.now;
    two.nodes[0].handle_heartbeat(now, before.expect("it is due"));
    assert_eq!(gates(&mut two.nodes[0]), ["mute"], "that was said before");
    two.pass(SHORT);
    assert_eq!(two.roles(), [(Role::Primary, 2), (Role::Backup, 2)]);
    assert_eq!(two.gates[0].0, Gate::Primary);
    two.now += AWAY - BEAT * 2;
    two.nodes[0].handle_timeout(two.now);
    assert_eq!(gates(&mut two.nodes[0]), [""; 0], "nobody has missed it");
}

/// The wire left meanwhile, so it has not taken over either. The primary goes on alone, with its connections, when the wire has answered.
#[test]
fn a_primary_that_was_away_for_long_goes_on_alone_once_its_leaving_wire_has_answered() {
    let mut two = Two::new(Arbiter::FailStop);
    two.pass(SHORT).kill(0);
    let now = two.now;
    two.nodes[1].handle(now, 0, ServiceInput::Leave(true));
    let said = std::iter::from_fn(|| two.nodes[1].poll_action()).collect::<Vec<_>>();
    let leaves = said.into_iter().find_map(|action| match action {
        Action::Send(heartbeat) if heartbeat.services[0].leaves => Some(heartbeat),
        _ => None,
    });
    two.now += AWAY;
    two.runs[0] = true;
    let now = two.now;
    two.nodes[0].handle_heartbeat(now, leaves.expect("it says so"));
    assert_eq!(gates(&mut two.nodes[0]), ["mute"], "that was said before");
    let mut done = Vec::new();
    for _ in 0..4 {
        two.now += BEAT;
        let now = two.now;
        for index in [0, 1] {
            two.nodes[index].handle_timeout(now);
            let said: Vec<_> = std::iter::from_fn(|| two.nodes[index].poll_action()).collect();
            for action in said {
                match action {
                    Action::Send(heartbeat) => two.nodes[1 - index].handle_heartbeat(now, heartbeat),
                    Action::Service(_, ServiceAction::StandDown { .. }) if index == 0 => done.push("end"),
                    Action::Service(_, ServiceAction::Report(OperatorReport::Confirmed)) if index == 0 => {
                        done.push("confirmed")
                    }
                    _ => {}
                }
            }
        }
    }
    assert_eq!(done, ["confirmed"]);
    assert_eq!(two.roles()[0], (Role::Sole, 3));
}

/// The wire has taken over, and then lost its power. It comes back, or does not.
#[test]
fn a_primary_that_was_away_for_long_forgets_what_its_wire_does_not_confirm() {
    for comes_back in [true, false] {
        let mut two = Two::new(Arbiter::FailStop);
        two.pass(SHORT).kill(0).pass(LONG);
        assert_eq!(two.nodes[1].service(0).role_and_epoch(), (Role::Sole, 3));
        two.kill(1);
        two.replace(0);
        let mut config = two.nodes[0].config().clone();
        config.services[0].found.as_mut().expect("replaced").seen = two.now - AWAY;
        two.nodes[0] = Node::new(config, two.now);
        if comes_back {
            two.start(1);
        }
        let (mut done, end) = (Vec::new(), two.now + LONG * 2);
        while two.now < end {
            two.now += BEAT;
            let now = two.now;
            two.nodes[0].handle_timeout(now);
            if comes_back {
                two.nodes[1].handle_timeout(now);
                let said: Vec<_> = std::iter::from_fn(|| two.nodes[1].poll_action()).collect();
                for action in said {
                    if let Action::Send(heartbeat) = action {
                        two.nodes[0].handle_heartbeat(now, heartbeat);
                    }
                }
            }
            while let Some(action) = two.nodes[0].poll_action() {
                match action {
                    Action::Service(_, ServiceAction::SetGate { gate, .. }) => done.push(format!("{gate:?}")),
                    Action::Service(_, ServiceAction::StandDown { is_deposed, .. }) => {
                        done.push(format!("end {is_deposed}"))
                    }
                    Action::Send(heartbeat) if comes_back => two.nodes[1].handle_heartbeat(now, heartbeat),
                    Action::Service(_, ServiceAction::Announce) => {
                        two.nodes[0].handle(now, 0, ServiceInput::Reached)
                    }
                    _ => {}
                }
            }
        }
        let begun = ["Mute", "Mute", "end false", "Primary"];
        assert_eq!(done[..4], begun, "comes back: {comes_back}");
        assert_eq!(
            two.nodes[0].service(0).role(),
            if comes_back { Role::Primary } else { Role::Sole }
        );
    }
}

/// The primary's agent was stopped, and the wire took over. Then the wire's agent was stopped too, but its kernel goes on speaking.
#[test]
fn a_primary_in_doubt_waits_for_its_peers_agent_while_that_kernel_answers() {
    for answers in [true, false] {
        let mut two = Two::new(Arbiter::FailStop);
        two.pass(SHORT).kill(0).pass(LONG);
        assert_eq!(two.nodes[1].service(0).role_and_epoch(), (Role::Sole, 3));
        two.kill(1); // the first node, whose agent was stopped, goes on
        assert_waits_for_agent(&mut two, answers);
    }
}

/// Some answers of the peer's kernel are lost or late. Only after the agent timeout without an answer does the peer count as dead.
#[test]
fn a_primary_in_doubt_misses_answers_for_the_agent_timeout() {
    let mut two = Two::new(Arbiter::FailStop);
    two.pass(SHORT).kill(0).pass(LONG).kill(1);
    pass_alone(&mut two, true, LONG * 2);
    let agent_timeout = two.nodes[0].config().detector.agent_timeout;
    pass_alone(&mut two, false, agent_timeout * 9 / 10);
    assert_eq!(
        two.nodes[0].service(0).role(),
        Role::Primary,
        "it may still answer"
    );
    pass_alone(&mut two, false, LONG);
    assert_eq!(two.nodes[0].service(0).role(), Role::Sole, "it is dead");
}

/// The wire took over because it judged the primary's path to be broken. The wire's agent was stopped before it told the primary, but the
/// wire's kernel goes on speaking.
#[test]
fn a_primary_waits_for_its_wires_agent_while_that_kernel_answers() {
    for answers in [true, false] {
        let mut two = Two::new(Arbiter::FailStop);
        two.pass(SHORT).kill(1);
        assert_waits_for_agent(&mut two, answers);
    }
    let mut two = Two::new(Arbiter::Witness);
    two.pass(SHORT).kill(1);
    pass_alone(&mut two, true, LONG * 2);
    assert_eq!(
        two.nodes[0].service(0).role(),
        Role::Claiming,
        "the witness knows"
    );
}

/// The first node, a primary, hears nothing of the other node's agent. If the other node's kernel answers, the first node waits for 10 s
/// before it goes on alone.
#[track_caller]
fn assert_waits_for_agent(two: &mut Two, answers: bool) {
    assert!(pass_alone(two, answers, LONG * 2));
    let waits = if answers { Role::Primary } else { Role::Sole };
    assert_eq!(
        two.nodes[0].service(0).role(),
        waits,
        "the kernel answers: {answers}"
    );
    if answers {
        assert!(pass_alone(two, answers, LONG * 5), "it is asked all the time");
        assert_eq!(two.nodes[0].service(0).role_and_epoch(), (Role::Primary, 2));
        pass_alone(two, answers, LONG * 5);
        assert_eq!(two.nodes[0].service(0).role(), Role::Sole, "not for ever");
    }
}

/// Time passes for the first node only. `answers`: whether the other node's kernel answers probes. Returns whether the first node sent a
/// probe.
fn pass_alone(two: &mut Two, answers: bool, time: Duration) -> bool {
    let end = two.now + time;
    let mut was_asked = false;
    while two.now < end {
        two.now += BEAT / 2;
        let now = two.now;
        two.nodes[0].handle_timeout(now);
        while let Some(action) = two.nodes[0].poll_action() {
            match action {
                Action::Probe => {
                    was_asked = true;
                    if answers {
                        two.nodes[0].handle_answer(now);
                    }
                }
                Action::Service(_, ServiceAction::Announce) => {
                    two.nodes[0].handle(now, 0, ServiceInput::Reached)
                }
                _ => {}
            }
        }
    }
    was_asked
}

/// A witness remembers which node has spoken. A fence leaves no other node that could have spoken.
#[test]
fn an_arbiter_leaves_no_doubt() {
    for arbiter in [Arbiter::Witness, Arbiter::Fence] {
        let mut two = Two::new(arbiter);
        two.pass(SHORT);
        two.now += AWAY;
        two.nodes[0].handle_timeout(two.now);
        assert_eq!(gates(&mut two.nodes[0]), [""; 0], "{arbiter:?}");
    }
}

/// The earlier agent died after closing the gate, but before ending the connections.
#[test]
fn who_finds_its_gate_mute_ends_what_is_behind_it() {
    let mut config = fixture::config(true);
    config.services[0].found = Some(InheritedService::sample(Gate::Mute, 3));
    assert_eq!(gates(&mut Node::new(config, Instant::ZERO)), ["end"]);
}

/// The earlier agent was in doubt, and died before the other node had answered. The new agent starts a moment later and must doubt, too.
#[test]
fn a_doubt_outlives_the_agent_that_had_it() {
    for (gate, role) in [(Gate::Mute, Role::Primary), (Gate::Wire, Role::Backup)] {
        let mut config = fixture::config(gate == Gate::Mute);
        config.services[0].found = Some(InheritedService {
            doubted: Some(gate == Gate::Mute),
            ..InheritedService::sample(gate, 3)
        });
        let mut node = Node::new(config, Instant::ZERO);
        assert_eq!(node.service(0).role_and_epoch(), (role, 3));
        let done: Vec<_> = std::iter::from_fn(|| node.poll_action()).collect();
        let told = |action: &Action| {
            matches!(
                action,
                Action::Service(_, ServiceAction::Report(OperatorReport::Doubted { .. }))
            )
        };
        let told = done.iter().position(told).expect("it doubts, too");
        let closed = |action: &Action| {
            matches!(
                action,
                Action::Service(_, ServiceAction::SetGate { gate: Gate::Mute, .. })
            )
        };
        let closed = done.iter().position(closed);
        let is_primary = role == Role::Primary;
        assert_eq!(closed.is_some(), is_primary);
        assert!(
            closed.is_none_or(|closed| closed > told),
            "the reason is known before"
        );
    }
}

/// A wire in doubt was deposed. Its agent died after it had closed the gate, but before it reported its new role.
#[test]
fn a_wires_doubt_makes_no_primary() {
    let mut config = fixture::config(false);
    config.services[0].found = Some(InheritedService {
        doubted: Some(false),
        ..InheritedService::sample(Gate::Mute, 3)
    });
    assert_eq!(
        Node::new(config, Instant::ZERO).service(0).role_and_epoch(),
        (Role::Standby, 3)
    );
}

/// When the wire says that it leaves, the primary goes on alone, even if the wire speaks for some connections. So the wire must stop
/// speaking before it says that it leaves.
#[test]
fn a_wire_is_silent_before_it_says_that_it_leaves() {
    for arbiter in [Arbiter::FailStop, Arbiter::Witness] {
        let mut two = Two::new(arbiter);
        two.pass(SHORT);
        let now = two.now;
        two.nodes[1].handle(now, 0, ServiceInput::Leave(true));
        let wanted: Vec<_> = std::iter::from_fn(|| two.nodes[1].poll_action()).collect();
        let ends = |action: &Action| matches!(action, Action::Service(_, ServiceAction::SetUntil { until: Some(until), .. }) if *until <= now);
        let end = wanted.iter().position(ends).expect("its right ends");
        let says =
            |action: &Action| matches!(action, Action::Send(heartbeat) if heartbeat.services[0].leaves);
        assert!(
            wanted.iter().position(says).expect("it leaves") > end,
            "{wanted:?}"
        );
        // The primary's answer does not give the right to speak back.
        two.nodes[0].handle_timeout(now + BEAT);
        while let Some(action) = two.nodes[0].poll_action() {
            if let Action::Send(heartbeat) = action {
                two.nodes[1].handle_heartbeat(now + BEAT, heartbeat);
            }
        }
        assert!(
            two.nodes[1]
                .service(0)
                .right_ends_at()
                .is_some_and(|until| until <= now)
        );
    }
}

/// The primary may have gone on alone while the wire had no agent.
#[test]
fn a_wires_new_agent_answers_for_nobody_before_its_primary_has_answered() {
    let client: SocketAddr = "10.0.0.1:4000".parse().unwrap();
    let mut two = Two::new(Arbiter::FailStop);
    two.pass(SHORT).replace(1);
    let mut config = two.nodes[1].config().clone();
    config.services[0].found.as_mut().expect("replaced").taken = vec![client];
    two.nodes[1] = Node::new(config, two.now);
    let segment = Segment {
        source: client,
        destination: two.nodes[1].service(0).vip(),
        seq: crate::Seq(1),
        ack: crate::Seq(1),
        flags: crate::packet::Flags::ACK,
        window: 1000,
        options: crate::packet::TcpOptions::default(),
        payload: b"more",
    };
    let is_answered = |two: &mut Two| {
        let (now, packet) = (two.now, segment.emit());
        two.nodes[1].handle_packet(now, 0, Direction::In, &packet, Checksum::Unverified, None);
        let mut said = std::iter::from_fn(|| two.nodes[1].poll_action());
        said.any(|action| matches!(action, Action::Service(_, ServiceAction::Transmit(_))))
    };
    assert!(!is_answered(&mut two));
    two.pass(SHORT);
    assert!(is_answered(&mut two));
    two.kill(0).pass(BEAT * 3);
    two.now += Duration::from_millis(300);
    assert!(!is_answered(&mut two), "it has said nothing for a lease");
}

/// The earlier agent died before the backup heard of the orphans.
#[test]
fn orphans_that_were_found_are_told() {
    let client: SocketAddr = "10.0.0.1:4000".parse().unwrap();
    for (gate, is_told) in [(Gate::Primary, true), (Gate::Sole, false), (Gate::Wire, false)] {
        let mut config = fixture::config(true);
        config.services[0].found = Some(InheritedService {
            orphans: vec![client],
            ..InheritedService::sample(gate, 2)
        });
        let mut node = Node::new(config, Instant::ZERO);
        node.handle(Instant::ZERO, 0, ServiceInput::Orphans(vec![client])); // the ring of deaths has the same orphan
        node.handle_timeout(Instant::ZERO);
        let said = std::iter::from_fn(|| node.poll_action()).filter_map(|action| match action {
            Action::Send(heartbeat) => Some(heartbeat.services[0].orphans.clients.clone()),
            _ => None,
        });
        let expected = if is_told { vec![client] } else { vec![] };
        assert_eq!(said.last().expect("it is due"), expected, "{gate:?}");
        assert_eq!(
            node.is_deciding(),
            is_told,
            "{gate:?}: a successor would have to tell it"
        );
    }
}

/// The length of a heartbeat is bounded. Even if many workers of many services die at once, a heartbeat reports at most [`TOLD_MAX`]
/// orphans in all, and some of each service.
#[test]
fn a_heartbeat_tells_of_a_few_orphans_of_all_services_together() {
    let mut config = fixture::config(true);
    let service = config.services[0].clone();
    config.services = (0..8)
        .map(|port| {
            let mut service = service.clone();
            service.table.vip.set_port(80 + port);
            service.found = Some(InheritedService::sample(Gate::Primary, 2));
            service
        })
        .collect();
    let mut node = Node::new(config, Instant::ZERO);
    for index in 0..8 {
        let clients = (1..=300).map(|port| SocketAddr::from(([10, 0, 0, 1], port)));
        node.handle(Instant::ZERO, index, ServiceInput::Orphans(clients.collect()));
    }
    node.handle_timeout(Instant::ZERO);
    let mut last = Vec::new();
    while let Some(action) = node.poll_action() {
        let Action::Send(heartbeat) = action else { continue };
        let counts = heartbeat.services.iter().map(|beat| beat.orphans.clients.len());
        last = counts.collect();
        assert!(last.iter().sum::<usize>() <= TOLD_MAX, "{last:?}");
    }
    assert_eq!(last, [TOLD_MAX / 8; 8]);
}
