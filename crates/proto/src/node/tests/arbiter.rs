//! Questions to the arbiter, and its verdicts.

use super::*;

/// A node whose arbiter does not answer may speak alone as long as its peer says that it is mute.
#[test]
fn a_mute_peer_stands_in_for_an_arbiter_that_is_away() {
    let mut two = Two::new(Arbiter::Witness);
    two.pass(SHORT);
    two.verdict = None;
    let now = two.now;
    two.nodes[1].handle(now, 0, ServiceInput::Leave(true));
    two.carry_out(1);
    two.pass(LONG * 5);
    let (gate, until) = two.gates[0];
    assert_eq!(gate, Gate::Sole);
    let until = until.expect("the arbiter has said nothing");
    assert!(until > two.now, "the peer goes on saying that it is mute");
    two.kill(1).pass(LONG);
    assert!(
        two.gates[0].1.is_some_and(|until| until < two.now),
        "it says nothing any more"
    );
    two.verdict = Some(ArbiterVerdict::Granted);
    two.pass(SHORT);
    assert_eq!(two.gates[0], (Gate::Sole, None));
}

/// The arbiter answers after the wire was told for which clients SYNs wait ([`ServiceAction::Hold`]). The gate must not be set again.
/// Otherwise the SYNs of all clients would wait for ever, because the wire is not told a second time.
#[test]
fn a_slow_arbiter_does_not_close_the_gate_again() {
    let mut two = Two::new(Arbiter::Witness);
    two.pass(SHORT);
    two.verdict = None;
    two.kill(0);
    two.network[1].clear();
    while two.gates[1].0 != Gate::Takeover {
        two.pass(BEAT);
    }
    let until = two.gates[1].1;
    assert!(until.is_some(), "it may speak until its lease ends");
    let epoch = two.nodes[1].service(0).epoch();
    let now = two.now;
    two.nodes[1].handle(
        now,
        0,
        ServiceInput::Verdict {
            epoch,
            verdict: ArbiterVerdict::Granted,
        },
    );
    two.pass(LONG);
    assert_eq!(two.gates[1], (Gate::Takeover, None));
    two.network[1].retain(|what| *what != "announce");
    assert_eq!(two.network[1], ["close the gate", "hold"]);
}

#[test]
fn a_claim_waits_for_a_slow_arbiter_in_peace() {
    let mut two = Two::new(Arbiter::Witness);
    two.pass(SHORT);
    two.verdict = None;
    two.kill(1).pass(LONG); // `run` panics if work stays due
    assert_eq!(two.nodes[0].service(0).role_and_epoch(), (Role::Claiming, 2));
    two.verdict = Some(ArbiterVerdict::Granted);
    assert_eq!(
        two.pass(LONG).nodes[0].service(0).role_and_epoch(),
        (Role::Sole, 3)
    );
}

/// The witness gave an epoch to an agent that died before the answer came. The next agent asks which epoch is written down, and the pair
/// goes on in that epoch or in a later one. So a node that is left alone later asks for a still later epoch, and is not refused.
#[test]
fn an_epoch_that_a_dead_agent_was_given_is_in_nobodys_way() {
    for (dead, lost) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut two = Two::new(Arbiter::Witness);
        two.pass(SHORT);
        assert_eq!(two.roles(), [(Role::Primary, 2), (Role::Backup, 2)]);
        two.asked[dead].clear();
        two.verdict = Some(ArbiterVerdict::Refused {
            epoch: 3,
            is_own: true,
        });
        two.replace(dead).run(dead);
        assert_eq!(two.asked[dead], [0], "it asks only which epoch is written down");
        two.verdict = Some(ArbiterVerdict::Granted);
        two.pass(LONG);
        let [one, other] = two.roles();
        assert_eq!([one.0, other.0], [Role::Primary, Role::Backup]);
        assert_eq!(one.1, other.1);
        assert!(one.1 >= 3, "{one:?}");
        assert!(two.alarms.iter().all(Vec::is_empty));
        two.kill(lost).pass(LONG);
        let (role, epoch) = two.nodes[1 - lost].service(0).role_and_epoch();
        assert_eq!(role, Role::Sole);
        assert!(epoch > 3, "{epoch} was given to {dead}");
    }
}

/// The witness gave an epoch to the peer's agent, which died before the answer came. A new agent of this node hears of that epoch from the
/// witness, and changes nothing. If the peer's next agent uses the epoch, the peer's word will say so.
#[test]
fn an_epoch_that_the_peer_was_given_deposes_nobody() {
    for dead in [0, 1] {
        let mut two = Two::new(Arbiter::Witness);
        two.pass(SHORT);
        two.verdict = Some(ArbiterVerdict::Refused {
            epoch: 3,
            is_own: false,
        });
        two.replace(dead).pass(SHORT);
        assert_eq!(two.roles(), [(Role::Primary, 2), (Role::Backup, 2)]);
    }
}

/// A new agent asks once, for the epoch in which it speaks. It does not ask which epoch is written down.
#[test]
fn a_new_agent_of_who_speaks_alone_takes_the_first_yes() {
    let mut two = Two::new(Arbiter::Witness);
    two.pass(SHORT);
    two.verdict = None;
    two.kill(0).pass(LONG);
    assert_eq!(two.nodes[1].service(0).role_and_epoch(), (Role::Sole, 3));
    two.asked[1].clear();
    two.verdict = Some(ArbiterVerdict::Granted);
    two.replace(1).pass(LONG);
    assert_eq!(two.asked[1], [3]);
    assert_eq!(two.gates[1].1, None);
}

/// Node 1 spoke alone in epoch 3, lost its power, and has forgotten that epoch. Node 0 was away meanwhile. It hears of
/// epoch 3 late, and returns in that epoch. The two nodes must become a pair again all the same. (Swarm, seed 1118525.)
#[test]
fn who_returns_to_a_life_that_is_forgotten_is_taken() {
    let mut two = Two::new(Arbiter::Fence);
    two.pass(SHORT);
    two.kill(0).pass(LONG);
    assert_eq!(two.nodes[1].service(0).role_and_epoch(), (Role::Sole, 3));
    two.start(0);
    let mut late = None;
    two.nodes[1].handle_timeout(two.now + BEAT);
    while let Some(action) = two.nodes[1].poll_action() {
        if let Action::Send(heartbeat) = action {
            late = Some(heartbeat);
        }
    }
    let now = two.now;
    two.nodes[0].handle_heartbeat(now, late.expect("it speaks"));
    assert_eq!(two.nodes[0].service(0).role_and_epoch(), (Role::Returning, 3));
    two.start(1); // it has forgotten its epoch
    let standing = Standing::new(
        StandingConfig {
            is_primary: false,
            arbiter: Arbiter::Fence,
            lease: Duration::from_millis(300),
            fence_delay: Duration::ZERO,
            sends_directly: false,
        },
        Some(crate::standing::InheritedStanding {
            role: Role::Sole,
            epoch: 2,
            is_confirmed: true,
        }),
        now,
    );
    two.nodes[1].services[0].set_standing(standing);
    two.pass(LONG);
    assert_eq!(two.roles(), [(Role::Backup, 4), (Role::Primary, 4)]);
}

/// The arbiter gave the next epoch to the primary's earlier agent, which died before the answer came. So the wire is refused.
#[test]
fn a_primary_whose_wire_was_refused_goes_on_alone() {
    let mut two = Two::new(Arbiter::Witness);
    two.pass(SHORT);
    two.runs[0] = false;
    two.verdict = Some(ArbiterVerdict::Refused {
        epoch: 3,
        is_own: false,
    });
    two.pass(LONG);
    assert_eq!(two.nodes[1].service(0).role_and_epoch(), (Role::Standby, 3));
    two.runs[0] = true;
    two.verdict = Some(ArbiterVerdict::Granted);
    two.pass(LONG);
    assert_eq!(two.roles(), [(Role::Primary, 4), (Role::Backup, 4)]);
}

#[test]
fn cut_apart_with_an_arbiter_only_one_speaks() {
    let mut two = Two::new(Arbiter::Witness);
    two.pass(SHORT);
    two.hears = false;
    two.verdict = None; // the arbiter is slow
    two.pass(SHORT);
    assert_eq!(two.nodes[1].service(0).role_and_epoch(), (Role::Sole, 3));
    let (gate, until) = two.gates[1];
    assert_eq!(gate, Gate::Takeover);
    assert!(until.is_some_and(|until| until <= two.now + Duration::from_millis(300)));
    two.verdict = Some(ArbiterVerdict::Granted);
    two.pass(SHORT + BEAT);
    assert_eq!(two.gates[1], (Gate::Takeover, None), "confirmed");
    two.verdict = Some(ArbiterVerdict::Refused {
        epoch: 3,
        is_own: false,
    });
    two.pass(LONG);
    assert_eq!(
        two.nodes[0].service(0).role_and_epoch(),
        (Role::Standby, 3),
        "the other has the epoch"
    );
    assert_eq!(two.gates[0].0, Gate::Mute);
    two.hears = true;
    assert_eq!(two.pass(SHORT).roles(), [(Role::Backup, 4), (Role::Primary, 4)]);
}

/// The arbiter gave the epoch to the wire's earlier agent, which died before the answer came.
#[test]
fn a_wire_goes_on_whose_primary_was_refused() {
    let mut two = without_lease();
    two.runs[1] = false;
    two.verdict = Some(ArbiterVerdict::Refused {
        epoch: 3,
        is_own: false,
    });
    two.pass(LONG);
    assert_eq!(two.nodes[0].service(0).role_and_epoch(), (Role::Standby, 3));
    let mut config = NodeConfig {
        incarnation: 2,
        ..two.nodes[1].config.clone()
    };
    config.services[0].found = Some(InheritedService::sample(Gate::Wire, 2));
    two.nodes[1] = Node::new(config, two.now);
    two.runs[1] = true;
    two.verdict = Some(ArbiterVerdict::Granted);
    assert_eq!(two.pass(LONG).roles(), [(Role::Backup, 4), (Role::Primary, 4)]);
}

/// The peer said that it was starting, and then got epoch 2 from the witness. When this node learns of epoch 2, the peer may already speak
/// in that epoch. So this node must not begin because of the peer's old word. It begins when a later word shows that the peer is still
/// starting.
#[test]
fn a_node_that_starts_does_not_begin_by_a_word_from_before_the_written_epoch() {
    let now = Instant::from_nanos(1_000_000_000);
    let config = standing_config(true, Arbiter::Witness, Duration::ZERO, Duration::ZERO);
    let mut standing = Standing::new(config, None, now);
    assert_eq!(standing.ask(now), Some(0));
    let written = ArbiterVerdict::Refused {
        epoch: 2,
        is_own: false,
    };
    assert_eq!(standing.on_verdict(now + SHORT, 0, written), None);
    let joining = |echo| StandingBeat {
        echo: Some(echo),
        ..word(Role::Joining, 0)
    };
    assert_eq!(standing.on_word(now + SHORT * 2, &joining(now)), None);
    standing.on_word(now + SHORT * 2, &joining(now + SHORT));
    assert_eq!((standing.role(), standing.epoch()), (Role::Primary, 3));
}

#[test]
fn a_backup_without_a_lease_asks_before_it_speaks() {
    let mut two = Two::new(Arbiter::Witness);
    two.pass(SHORT);
    // The wire's agent was away for longer than its lease, and so was the primary's.
    two.runs = [false; 2];
    two.now += LONG;
    two.runs[1] = true;
    two.verdict = None;
    two.pass(LONG);
    assert_eq!(two.nodes[1].service(0).role_and_epoch(), (Role::Backup, 2));
    two.verdict = Some(ArbiterVerdict::Granted);
    two.pass(SHORT + BEAT);
    assert_eq!(two.nodes[1].service(0).role_and_epoch(), (Role::Sole, 3));
    assert_eq!(two.gates[1], (Gate::Takeover, None));
}

#[test]
fn a_wire_that_was_paused_asks_before_it_takes_over() {
    let mut two = Two::new(Arbiter::Witness);
    two.pass(LONG).kill(0);
    two.verdict = None;
    let now = two.now;
    two.nodes[1].handle_pause(now);
    two.pass(BEAT * 8);
    assert_eq!(two.roles()[1], (Role::Backup, 2), "by its clock the lease lasts");
    two.verdict = Some(ArbiterVerdict::Granted);
    two.pass(SHORT + BEAT);
    assert_eq!(two.nodes[1].service(0).role_and_epoch(), (Role::Sole, 3));
}

/// The survivor speaks by its lease, and the arbiter has not answered.
#[test]
fn a_survivor_that_was_paused_falls_silent_until_the_arbiter_answers() {
    let mut two = Two::new(Arbiter::Witness);
    two.pass(LONG).kill(0);
    two.verdict = None;
    two.pass(BEAT * 6);
    assert_eq!(two.nodes[1].service(0).epoch(), 3, "it has taken over");
    assert!(two.gates[1].1.is_some_and(|until| until > two.now));
    let now = two.now;
    two.nodes[1].handle_pause(now);
    two.carry_out(1);
    assert_eq!(two.gates[1].1, Some(Instant::ZERO));
    two.verdict = Some(ArbiterVerdict::Granted);
    two.pass(SHORT + BEAT);
    assert_eq!(two.gates[1].1, None);
}

/// The survivor asks the arbiter as soon as it may speak. If it dies before the arbiter knows of the takeover, no node knows what the
/// survivor has sent.
#[test]
fn the_arbiter_is_asked_the_moment_it_may_speak() {
    let mut two = Two::new(Arbiter::Witness);
    two.pass(SHORT);
    let (wire, mut wanted) = (&mut two.nodes[1], Vec::new());
    for beats in 1..=5 {
        wire.handle_timeout(two.now + BEAT * beats);
        wanted.extend(std::iter::from_fn(|| wire.poll_action()));
    }
    let opens = |action: &Action| {
        matches!(
            action,
            Action::Service(
                _,
                ServiceAction::SetGate {
                    gate: Gate::Takeover,
                    ..
                }
            )
        )
    };
    let opened = wanted.iter().position(opens).expect("it takes over");
    let next = &wanted[opened + 1];
    assert!(
        matches!(next, Action::Service(_, ServiceAction::Confirm { epoch: 3, .. })),
        "{next:?}"
    );
}
