//! Tests of two nodes that hear each other, through failures and orders.

mod paths;

use std::net::SocketAddr;
use std::time::Duration;

use super::fixture::{self, BEAT};
use super::*;
use crate::action::{Action, ApplicationState, Gate, OperatorReport, ServiceAction};
use crate::orphans::TOLD_MAX;
use crate::packet::Segment;
use crate::path::Fitness;
use crate::role::Role;
use crate::service::InheritedService;
use crate::standing::{ArbiterVerdict, Standing, StandingBeat, StandingConfig};

/// Two nodes of one service; the first is the configured primary.
struct Two {
    now: Instant,
    nodes: [Node; 2],
    /// Whether each node runs.
    runs: [bool; 2],
    /// Whether they hear each other.
    hears: bool,
    /// Whether outside hosts answer a node that claims.
    outside: bool,
    paths: paths::Paths,
    /// The arbiter's answer to each question.
    verdict: Option<ArbiterVerdict>,
    gates: [(Gate, Option<Instant>); 2],
    /// Actions on each node's network.
    network: [Vec<&'static str>; 2],
    /// Epochs in which each node noticed two voices: both nodes had spoken alone.
    alarms: [Vec<u64>; 2],
    incarnations: u64,
    /// The epochs for which each node has asked the arbiter.
    asked: [Vec<u64>; 2],
}

impl Two {
    fn new(arbiter: Arbiter) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        Self {
            now,
            nodes: [true, false].map(|is_primary| node(is_primary, arbiter, 1, now)),
            runs: [true; 2],
            hears: true,
            outside: true,
            paths: paths::Paths::default(),
            verdict: Some(ArbiterVerdict::Granted),
            gates: [(Gate::Off, None); 2],
            network: [Vec::new(), Vec::new()],
            alarms: [Vec::new(), Vec::new()],
            incarnations: 1,
            asked: [Vec::new(), Vec::new()],
        }
    }

    fn roles(&self) -> [(Role, u64); 2] {
        [0, 1].map(|index| self.nodes[index].service(0).role_and_epoch())
    }

    /// Lets time pass, a heartbeat's interval at a time.
    fn pass(&mut self, time: Duration) -> &mut Self {
        let end = self.now + time;
        while self.now < end {
            self.now += BEAT;
            for index in 0..2 {
                if self.runs[index] {
                    self.run(index);
                }
            }
        }
        self
    }

    /// Carries out what is due on a node. Panics if further work stays due.
    fn run(&mut self, index: usize) {
        for _ in 0..4 {
            self.nodes[index].handle_timeout(self.now);
            self.carry_out(index);
            if self.nodes[index].poll_timeout() > self.now {
                return;
            }
        }
        panic!(
            "{:?}: work is still due after four rounds",
            self.nodes[index].service(0).role_and_epoch()
        );
    }

    fn carry_out(&mut self, index: usize) {
        let mut announced = false;
        while let Some(action) = self.nodes[index].poll_action() {
            let now = self.now;
            let Some(action) = self.nodes[index].admit(now, action) else {
                continue;
            };
            self.network[index].extend(match action {
                Action::Service(_, ServiceAction::Announce) => Some("announce"),
                Action::Service(_, ServiceAction::TakeAddress) => Some("take the address"),
                Action::Service(_, ServiceAction::Destroy { .. }) => Some("destroy"),
                Action::Service(_, ServiceAction::SetGate { gate: Gate::Sole, .. }) => Some("speak"),
                Action::Service(
                    _,
                    ServiceAction::SetGate {
                        gate: Gate::Takeover, ..
                    },
                ) => Some("close the gate"),
                Action::Service(_, ServiceAction::Hold { .. }) => Some("hold"),
                _ => None,
            });
            match action {
                Action::Service(_, ServiceAction::SetGate { gate, until, .. }) => {
                    self.gates[index] = (gate, until)
                }
                Action::Service(_, ServiceAction::Report(OperatorReport::TwoVoices { epoch, .. })) => {
                    self.alarms[index].push(epoch)
                }
                Action::Service(_, ServiceAction::SetUntil { until, .. }) => self.gates[index].1 = until,
                Action::Service(service, ServiceAction::Drain) => {
                    self.nodes[index].handle(now, service, ServiceInput::Drained)
                }
                Action::Service(_, ServiceAction::Announce) => announced = true,
                Action::Service(service, ServiceAction::Confirm { epoch }) => {
                    self.asked[index].push(epoch);
                    if let Some(verdict) = self.verdict {
                        self.nodes[index].handle(now, service, ServiceInput::Verdict { epoch, verdict });
                    }
                }
                Action::Service(_, ServiceAction::AskOutside { .. }) => self.ask_outside(index),
                Action::Send(heartbeat) if self.hears && self.runs[1 - index] => {
                    self.show(index);
                    self.nodes[1 - index].handle_heartbeat(now, heartbeat);
                    self.carry_out(1 - index);
                }
                _ => {}
            }
        }
        if announced && self.outside {
            self.nodes[index].handle(self.now, 0, ServiceInput::Reached);
            self.carry_out(index);
        }
    }

    /// The heartbeat that a node sends next. It does not arrive yet.
    fn heartbeat(&mut self, index: usize) -> Heartbeat {
        let mut actions = std::iter::from_fn(|| self.nodes[index].poll_action());
        let sent = actions.find_map(|action| match action {
            Action::Send(heartbeat) => Some(heartbeat),
            _ => None,
        });
        sent.expect("it is time for a heartbeat")
    }

    fn kill(&mut self, index: usize) -> &mut Self {
        self.runs[index] = false;
        self
    }

    /// Starts a node that has forgotten everything.
    fn start(&mut self, index: usize) -> &mut Self {
        self.incarnations += 1;
        let arbiter = self.nodes[index].config.arbiter;
        self.nodes[index] = node(index == 0, arbiter, self.incarnations, self.now);
        self.runs[index] = true;
        self
    }
}

impl Two {
    /// Replaces a node's agent by a new one, which goes on with what the old one left.
    fn replace(&mut self, index: usize) -> &mut Self {
        self.incarnations += 1;
        let (gate, until) = self.gates[index];
        let mut config = NodeConfig {
            incarnation: self.incarnations,
            ..self.nodes[index].config.clone()
        };
        config.services[0].found = Some(InheritedService {
            is_confirmed: until.is_none(),
            seen: self.now,
            ..InheritedService::sample(gate, self.nodes[index].service(0).epoch())
        });
        self.nodes[index] = Node::new(config, self.now);
        self.runs[index] = true;
        self
    }
}

fn node(is_primary: bool, arbiter: Arbiter, incarnation: u64, now: Instant) -> Node {
    let config = NodeConfig {
        incarnation,
        arbiter,
        ..fixture::config(is_primary)
    };
    Node::new(config, now)
}

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(1);

#[test]
fn whoever_comes_back_becomes_the_wire_in_turn() {
    let mut two = Two::new(Arbiter::FailStop);
    assert_eq!(two.pass(SHORT).roles(), [(Role::Primary, 2), (Role::Backup, 2)]);
    let mut epoch = 2;
    for round in 0..6 {
        let (dies, lives) = (round % 2, 1 - round % 2);
        two.kill(dies).pass(LONG);
        epoch += 1;
        assert_eq!(
            two.nodes[lives].service(0).role_and_epoch(),
            (Role::Sole, epoch),
            "round {round}"
        );
        two.start(dies).pass(SHORT);
        epoch += 1;
        assert_eq!(
            two.nodes[lives].service(0).role_and_epoch(),
            (Role::Primary, epoch),
            "round {round}"
        );
        assert_eq!(
            two.nodes[dies].service(0).role_and_epoch(),
            (Role::Backup, epoch),
            "round {round}"
        );
        assert_eq!(two.gates[lives].0, Gate::Primary);
        assert_eq!(two.gates[dies].0, Gate::Wire);
    }
}

#[test]
fn a_backup_that_dies_and_comes_back_is_the_wire_again() {
    let mut two = Two::new(Arbiter::FailStop);
    two.pass(SHORT).kill(1).pass(LONG);
    assert_eq!(two.nodes[0].service(0).role_and_epoch(), (Role::Sole, 3));
    two.start(1).pass(SHORT);
    assert_eq!(two.roles(), [(Role::Primary, 4), (Role::Backup, 4)]);
}

#[test]
fn a_primary_that_begins_anew_is_taken_over_from_at_once() {
    let mut two = Two::new(Arbiter::FailStop);
    two.pass(SHORT);
    assert_eq!(
        two.start(0).pass(BEAT * 2).roles(),
        [(Role::Backup, 4), (Role::Primary, 4)]
    );
    assert_eq!(
        two.nodes[1].service(0).takeovers().len(),
        1,
        "its connections are here only"
    );
}

#[test]
fn a_handover_makes_both_change_places() {
    for asked in [0, 1] {
        let mut two = Two::new(Arbiter::FailStop);
        two.pass(SHORT);
        let now = two.now;
        two.nodes[asked].handle_handover(now, 0).unwrap();
        two.carry_out(asked);
        assert_eq!(two.pass(SHORT).roles(), [(Role::Backup, 4), (Role::Primary, 4)]);
        assert_eq!(
            two.pass(LONG).roles(),
            [(Role::Backup, 4), (Role::Primary, 4)],
            "once only"
        );
    }
}

#[test]
fn who_leaves_has_no_part_until_told_so() {
    for (leaves, stays) in [(0, 1), (1, 0)] {
        let mut two = Two::new(Arbiter::FailStop);
        two.pass(SHORT);
        assert_eq!(two.nodes[leaves].would_be_lost(two.now, 0), None);
        let now = two.now;
        two.nodes[leaves].handle(now, 0, ServiceInput::Leave(true));
        two.carry_out(leaves);
        two.pass(LONG);
        assert_eq!(two.nodes[stays].service(0).role_and_epoch(), (Role::Sole, 3));
        assert_eq!(two.nodes[leaves].service(0).role_and_epoch(), (Role::Standby, 3));
        assert_eq!(two.nodes[leaves].simplex(two.now, 0), Some(Simplex::Left));
        assert_eq!(
            two.nodes[stays].would_be_lost(two.now, 0),
            Some(OrderRefusal::Simplex(Simplex::Sole))
        );
        let now = two.now;
        two.nodes[leaves].handle(now, 0, ServiceInput::Leave(false));
        two.carry_out(leaves);
        two.pass(SHORT);
        assert_eq!(two.nodes[stays].service(0).role_and_epoch(), (Role::Primary, 4));
        assert_eq!(two.nodes[leaves].service(0).role_and_epoch(), (Role::Backup, 4));
    }
}

/// The primary's packets pass through the wire until the primary may send them itself. The wire's promise stands in for the arbiter.
#[test]
fn a_wire_that_leaves_is_missed_by_nobody() {
    for arbiter in [Arbiter::FailStop, Arbiter::Witness] {
        let mut two = Two::new(arbiter);
        two.outside = false; // no outside host needs to answer: the wire has promised
        two.pass(SHORT);
        two.verdict = None;
        let now = two.now;
        two.nodes[1].handle(now, 0, ServiceInput::Leave(true));
        two.carry_out(1);
        two.pass(SHORT);
        assert_eq!(two.roles(), [(Role::Sole, 3), (Role::Standby, 3)], "{arbiter:?}");
        let done = &two.network[0];
        let speaks = done.iter().position(|what| *what == "speak").expect("it speaks");
        assert!(
            done[..speaks].iter().all(|what| *what == "announce") && speaks > 0,
            "{done:?}"
        );
        assert_eq!(done[speaks + 1], "take the address");
    }
}

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

/// The arbiter answers after the wire was told which clients are held. The gate must not be set again, or every SYN would wait for ever.
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
/// moves past that epoch. So a node that is left alone later is not refused.
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
        assert_eq!(two.asked[dead], [0], "it says nothing alone by asking");
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

/// The witness gave an epoch to the peer's agent, which died before the answer came. This node's agent died, too. The peer's next agent
/// moves past that epoch.
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

#[test]
fn nothing_is_given_to_an_application_that_does_not_serve() {
    for server in [ApplicationState::Dead, ApplicationState::Hung] {
        let mut two = Two::new(Arbiter::FailStop);
        two.pass(SHORT);
        let now = two.now;
        two.nodes[1].handle(now, 0, ServiceInput::Server(server));
        two.carry_out(1);
        let refusal = Some(OrderRefusal::Simplex(Simplex::Server(server)));
        assert_eq!(
            [0, 1].map(|node| two.nodes[node].handle_handover(now, 0).err()),
            [refusal; 2]
        );
        assert_eq!(two.nodes[0].would_be_lost(now, 0), refusal);
        assert_eq!(two.nodes[1].would_be_lost(now, 0), None, "the wire is not needed");
    }
}

#[test]
fn a_backup_that_takes_its_leave_back_is_the_wire_as_before() {
    for arbiter in [Arbiter::FailStop, Arbiter::Fence, Arbiter::Witness] {
        let mut two = Two::new(arbiter);
        two.pass(SHORT);
        two.hears = false;
        let now = two.now;
        for leaves in [true, false] {
            two.nodes[1].handle(now, 0, ServiceInput::Leave(leaves));
            two.carry_out(1);
        }
        assert_eq!(two.nodes[1].service(0).role(), Role::Backup);
        assert_eq!(two.gates[1].0, Gate::Wire, "{arbiter:?}: clients are served");
        two.hears = true;
        assert_eq!(two.pass(SHORT).roles(), [(Role::Primary, 2), (Role::Backup, 2)]);
        assert!(!two.nodes[1].service(0).is_in_doubt(), "{arbiter:?}");
    }
}

/// The primary may be serving alone because the wire promised to be silent, and the wire cannot hear that. The wire
/// neither replaces nor fences the primary.
#[test]
fn a_backup_that_takes_its_leave_back_takes_over_from_nobody_that_has_not_confirmed() {
    for arbiter in [Arbiter::FailStop, Arbiter::Fence, Arbiter::Witness] {
        let mut two = Two::new(arbiter);
        two.pass(SHORT);
        two.asked = [Vec::new(), Vec::new()];
        let now = two.now;
        two.nodes[1].handle(now, 0, ServiceInput::Leave(true));
        two.carry_out(1);
        two.hears = false;
        two.nodes[1].handle(now, 0, ServiceInput::Leave(false));
        two.carry_out(1);
        two.pass(LONG);
        assert_eq!(two.roles(), [(Role::Sole, 3), (Role::Standby, 2)], "{arbiter:?}");
        assert_eq!(two.asked[1], [0; 0], "{arbiter:?}");
        two.hears = true;
        assert_eq!(two.pass(SHORT).roles(), [(Role::Primary, 4), (Role::Backup, 4)]);
    }
}

/// Meanwhile the primary has lost its power, and with it all connections that it may have served alone.
#[test]
fn a_backup_that_takes_its_leave_back_and_finds_a_new_peer_begins_anew_with_it() {
    for arbiter in [Arbiter::FailStop, Arbiter::Fence, Arbiter::Witness] {
        let mut two = Two::new(arbiter);
        two.pass(SHORT);
        two.hears = false;
        let now = two.now;
        for leaves in [true, false] {
            two.nodes[1].handle(now, 0, ServiceInput::Leave(leaves));
            two.carry_out(1);
        }
        two.start(0);
        two.hears = true;
        two.pass(LONG);
        let roles = two.roles().map(|(role, _)| role);
        assert_eq!(roles, [Role::Primary, Role::Backup], "{arbiter:?}");
    }
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

/// Under `fail-stop` silence counts as death. If the silent node lives, two voices are reported.
#[test]
fn two_voices_are_noticed_once_and_end() {
    let mut two = Two::new(Arbiter::FailStop);
    two.pass(SHORT);
    two.hears = false;
    two.pass(LONG);
    assert_eq!(two.roles(), [(Role::Sole, 3), (Role::Sole, 3)]);
    two.hears = true;
    two.pass(LONG);
    assert_eq!(two.alarms.iter().flatten().collect::<Vec<_>>(), [&3]);
    assert_eq!(two.roles(), [(Role::Primary, 4), (Role::Backup, 4)]);
}

/// The cut ends everywhere at once, and an outside host answers before the peer's next heartbeat comes. During
/// the cut, clients have spoken with the peer only.
#[test]
fn who_was_cut_off_hears_the_peer_before_it_speaks() {
    let mut two = Two::new(Arbiter::FailStop);
    two.pass(SHORT);
    (two.hears, two.outside) = (false, false);
    two.pass(LONG);
    assert_eq!(two.roles(), [(Role::Claiming, 2), (Role::Sole, 3)]);
    let now = two.now;
    two.nodes[0].handle(now, 0, ServiceInput::Reached);
    two.carry_out(0);
    (two.hears, two.outside) = (true, true);
    two.pass(SHORT);
    assert_eq!(two.roles(), [(Role::Backup, 4), (Role::Primary, 4)]);
    assert!(!two.network[0].contains(&"speak"));
    assert!(two.alarms.iter().all(Vec::is_empty), "{:?}", two.alarms);
}

/// Packets that came straight to the primary are in no log, so the wire must begin anew.
#[test]
fn a_wire_that_is_back_after_an_answer_begins_anew() {
    let mut two = Two::new(Arbiter::FailStop);
    two.pass(SHORT);
    two.runs[1] = false; // the node stands still
    while !two.network[0].contains(&"announce") {
        two.pass(BEAT);
    }
    assert_eq!(two.nodes[0].service(0).role_and_epoch(), (Role::Claiming, 2));
    two.runs[1] = true;
    two.pass(BEAT);
    assert!(two.network[0].contains(&"speak"));
    two.pass(SHORT);
    assert_eq!(two.roles(), [(Role::Primary, 4), (Role::Backup, 4)]);
}

/// Two nodes whose wire has no lease, so it asks the arbiter before it speaks.
fn without_lease() -> Two {
    let mut two = Two::new(Arbiter::Witness);
    for is_primary in [true, false] {
        let config = NodeConfig {
            arbiter: Arbiter::Witness,
            lease: Duration::ZERO,
            ..fixture::config(is_primary)
        };
        two.nodes[usize::from(!is_primary)] = Node::new(config, two.now);
    }
    two.pass(SHORT);
    assert_eq!(two.roles(), [(Role::Primary, 2), (Role::Backup, 2)]);
    two
}

/// A wire without a lease has no right to speak for some connections beside a living primary. So a dead worker counts as a dead server:
/// the wire takes over the whole service.
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

/// The peer died while no agent ran here. The new agent has never heard the peer, but still notices its silence.
#[test]
fn an_agent_that_goes_on_misses_a_peer_that_it_has_never_heard() {
    for arbiter in [Arbiter::FailStop, Arbiter::Witness, Arbiter::Fence] {
        for (dies, lives) in [(0, 1), (1, 0)] {
            let mut two = Two::new(arbiter);
            two.pass(SHORT).kill(dies).replace(lives).pass(SHORT * 3);
            let early = two.nodes[lives].service(0).role_and_epoch();
            assert_eq!(early.1, 2, "{arbiter:?}: it gives the other one time, {early:?}");
            two.pass(LONG);
            assert_eq!(
                two.nodes[lives].service(0).role_and_epoch(),
                (Role::Sole, 3),
                "{arbiter:?}"
            );
        }
    }
}

/// The earlier agent closed the gate and died before all connections were decided.
#[test]
fn an_agent_that_goes_on_alone_has_the_right_to_speak_at_once() {
    for (gate, may_speak) in [
        (Gate::Takeover, true),
        (Gate::Sole, true),
        (Gate::Primary, true),
        (Gate::Wire, false),
        (Gate::Mute, false),
    ] {
        let mut config = fixture::config(false);
        config.services[0].found = Some(InheritedService::sample(gate, 3));
        let mut node = Node::new(config, Instant::ZERO);
        let says = std::iter::from_fn(|| node.poll_action());
        let is_allowed = says
            .into_iter()
            .any(|action| matches!(action, Action::Service(_, ServiceAction::AllowSpeech)));
        assert_eq!(is_allowed, may_speak, "{gate:?}");
    }
}

/// A backup reports how many orphans it has adopted from the earlier agent. That count must not be applied to the new agent's orphans.
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

/// Only a silent peer is fenced. Planned changes of roles fence no node.
#[test]
fn a_fence_is_for_the_silent() {
    let mut two = Two::new(Arbiter::Fence);
    two.pass(SHORT);
    for asked in [0, 1] {
        let now = two.now;
        two.nodes[asked].handle_handover(now, 0).unwrap();
        two.carry_out(asked);
        two.pass(LONG);
    }
    assert_eq!(two.asked, [[], []], "handed over");
    for part in [Role::Primary, Role::Backup] {
        let leaves = usize::from(two.roles()[1].0 == part);
        for is_gone in [true, false] {
            let now = two.now;
            two.nodes[leaves].handle(now, 0, ServiceInput::Leave(is_gone));
            two.carry_out(leaves);
            two.pass(LONG);
            let (gate, until) = two.gates[1 - leaves];
            assert!(gate == Gate::Wire || until.is_none(), "{gate:?} until {until:?}");
        }
        let roles = two.roles().map(|(role, _)| role);
        assert!(
            roles.contains(&Role::Primary) && roles.contains(&Role::Backup),
            "{roles:?}"
        );
        assert_eq!(two.asked, [[], []], "a {part:?} left, and came back");
    }
    let epoch = two.roles()[0].1;
    let speaker = usize::from(two.roles()[1].0 == Role::Primary);
    two.kill(1 - speaker).pass(LONG);
    assert_eq!(
        two.nodes[speaker].service(0).role_and_epoch(),
        (Role::Sole, epoch + 1)
    );
    assert_eq!(two.asked[speaker], [epoch + 1], "silence");
    two.replace(speaker).pass(LONG);
    assert_eq!(two.asked[speaker], [epoch + 1], "the agent before it had asked");
}

/// The peer returned, but for a moment it did not know whether its path works. It said so before it heard the consent.
#[test]
fn a_mute_peer_is_not_fenced_at_once() {
    let now = Instant::from_nanos(1_000_000_000);
    let config = StandingConfig {
        is_primary: true,
        arbiter: Arbiter::Fence,
        lease: Duration::ZERO,
        fence_delay: Duration::ZERO,
    };
    let left = crate::standing::InheritedStanding {
        role: Role::Primary,
        epoch: 4,
        is_confirmed: true,
    };
    let mut standing = Standing::new(config, Some(left), now);
    let word = |role, epoch, leaves| StandingBeat {
        role,
        epoch,
        leaves,
        yields: false,
        echo: None,
    };
    assert!(standing.on_word(now, &word(Role::Standby, 3, true)).is_some());
    assert_eq!((standing.role(), standing.ask(now)), (Role::Claiming, None));
    assert!(
        standing
            .on_word(now + BEAT, &word(Role::Backup, 4, false))
            .is_some()
    );
    assert_eq!(standing.role(), Role::Primary);
    assert!(standing.on_word(now, &word(Role::Standby, 3, true)).is_some());
    assert_eq!(standing.ask(now + SHORT), Some(5), "it stays mute");
}

/// The wire asked for the right to speak, and the fence's command failed. Then the wire left, because its path broke. A primary that has no
/// lease then has the wire fenced. A wire that takes its part again meanwhile must not have the primary fenced, too.
#[test]
fn a_wire_that_had_left_does_not_fence_because_of_an_older_wish() {
    let now = Instant::from_nanos(1_000_000_000);
    let mut standing = left(Role::Backup, Arbiter::Fence, Duration::ZERO, now);
    standing.set_path(now, Fitness::WHOLE, true);
    let beat = |role, yields, echo| StandingBeat {
        yields,
        echo,
        ..word(role, 4)
    };
    standing.on_word(now, &beat(Role::Primary, false, Some(now + SHORT)));
    let now = now + Duration::from_secs(1);
    assert_eq!(standing.on_word(now, &beat(Role::Primary, true, None)), None);
    assert_eq!(standing.ask(now), Some(5));
    assert_eq!(standing.on_verdict(now, 5, ArbiterVerdict::Failed), None);
    assert_eq!(standing.set_leaves(now, true), None);
    let later = now + Duration::from_secs(2);
    assert_eq!(standing.on_word(later, &beat(Role::Claiming, false, None)), None);
    assert_eq!(standing.set_leaves(later, false), None);
    assert_eq!(standing.ask(later + Duration::from_secs(1)), None);
}

fn standing_config(
    is_primary: bool,
    arbiter: Arbiter,
    lease: Duration,
    fence_delay: Duration,
) -> StandingConfig {
    StandingConfig {
        is_primary,
        arbiter,
        lease,
        fence_delay,
    }
}

/// The standing of a new agent whose predecessor left this role, in epoch 4.
fn left(role: Role, arbiter: Arbiter, fence_delay: Duration, now: Instant) -> Standing {
    let lease = Duration::from_millis(300);
    let found = crate::standing::InheritedStanding {
        role,
        epoch: 4,
        is_confirmed: true,
    };
    let config = standing_config(role == Role::Primary, arbiter, lease, fence_delay);
    Standing::new(config, Some(found), now)
}

/// The peer's word about its role, without an echo. A peer in the role `Primary` also yields.
fn word(role: Role, epoch: u64) -> StandingBeat {
    StandingBeat {
        role,
        epoch,
        leaves: false,
        yields: role == Role::Primary,
        echo: None,
    }
}

#[test]
fn a_deposed_primary_returns_when_its_last_packets_have_arrived() {
    let now = Instant::from_nanos(1_000_000_000);
    for role in [Role::Sole, Role::Primary] {
        let mut standing = left(Role::Primary, Arbiter::Witness, Duration::ZERO, now);
        standing.on_word(now, &word(Role::Sole, 5));
        assert_eq!(standing.role(), Role::Standby);
        assert_eq!(standing.on_word(now + BEAT * 2, &word(role, 5)), None);
        standing.on_word(now + BEAT * 3, &word(role, 5));
        assert_eq!(standing.role(), Role::Returning);
    }
}

/// A wire whose agent was stopped reads what its primary said meanwhile: first that it yields, then that it claims the
/// VIP. A primary that claims may already have asked the fence to switch the wire off.
#[test]
fn a_wire_delays_its_fence_when_the_primary_claims() {
    let started = Instant::from_nanos(1_000_000_000);
    let now = started + LONG; // any promise of an earlier agent has ended
    let claims = word(Role::Claiming, 4);
    let read = |words: &[StandingBeat]| {
        let mut standing = left(Role::Backup, Arbiter::Fence, LONG, started);
        for word in words {
            assert_eq!(standing.on_word(now, word), None, "it has no lease");
        }
        standing
    };
    let yields = word(Role::Primary, 4);
    assert_eq!(read(&[yields]).ask(now), Some(5));

    let mut standing = read(&[yields, claims]);
    assert_eq!(standing.ask(now), None);
    standing.on_word(now + SHORT, &claims);
    assert_eq!(
        standing.ask(now + LONG),
        Some(5),
        "the delay is over, and its words do not begin it anew"
    );

    // A primary that claims may wait for a long time. It may fall silent after it has asked the fence.
    let mut standing = read(&[yields, claims]);
    let silent = now + LONG * 2;
    assert_eq!(standing.on_silent(silent), None);
    assert_eq!(standing.ask(silent), None, "silence begins the delay anew");
    standing.on_silent(silent + SHORT);
    assert_eq!(standing.ask(silent + LONG), Some(5), "once");
}

/// A primary failed at a step, and its peer has become its wire meanwhile. In an older word, the peer is still mute. If the primary began
/// again by that word, the wire could get the epoch in which it begins.
#[test]
fn a_failed_primary_does_not_begin_by_a_word_from_before() {
    let now = Instant::from_nanos(1_000_000_000);
    let mut standing = left(Role::Primary, Arbiter::Witness, Duration::ZERO, now);
    standing.set_failed(now + SHORT, true);
    assert_eq!(standing.set_failed(now + SHORT, false), None);
    let mute = |echo| StandingBeat {
        echo,
        ..word(Role::Standby, 3)
    };
    assert_eq!(standing.on_word(now + SHORT * 2, &mute(None)), None);
    assert_eq!(standing.on_word(now + SHORT * 2, &mute(Some(now))), None);
    standing.on_word(now + SHORT * 2, &mute(Some(now + SHORT)));
    assert_eq!((standing.role(), standing.epoch()), (Role::Primary, 5));
}

/// The peer got an epoch from the witness after it had said that it was starting. A node that knows of that epoch must not begin in a later
/// one: the witness would give it the epoch after that.
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

/// The peer may be about to fence this node, and has not been heard by this agent yet.
#[test]
fn a_new_agent_waits_out_its_fence_delay() {
    let started = Instant::from_nanos(1_000_000_000);
    let config = standing_config(false, Arbiter::Fence, Duration::from_millis(300), LONG);
    let found = crate::standing::InheritedStanding {
        role: Role::Sole,
        epoch: 4,
        is_confirmed: false,
    };
    let mut standing = Standing::new(config, Some(found), started);
    assert_eq!(standing.ask(started + LONG - SHORT), None);
    assert_eq!(standing.ask(started + LONG), Some(4));
}

/// A promise counts only while the wire keeps it.
#[test]
fn a_wire_that_left_and_is_back_is_fenced_when_it_is_silent() {
    let mut two = Two::new(Arbiter::Fence);
    two.pass(SHORT);
    two.outside = false; // the claim cannot succeed
    let now = two.now;
    two.nodes[1].handle(now, 0, ServiceInput::Leave(true));
    two.carry_out(1);
    assert_eq!(two.nodes[0].service(0).role(), Role::Claiming);
    two.replace(1).run(1);
    assert_eq!(two.roles(), [(Role::Primary, 2), (Role::Backup, 2)]);
    two.outside = true;
    two.pass(LONG);
    let roles = two.roles();
    assert_eq!(roles.map(|(role, _)| role), [Role::Primary, Role::Backup]);
    assert_eq!(two.asked[0], []);
    two.kill(1).pass(LONG);
    assert_eq!(
        two.nodes[0].service(0).role_and_epoch(),
        (Role::Sole, roles[0].1 + 1)
    );
    assert_eq!(two.asked[0], [roles[0].1 + 1]);
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

/// A wire speaks for the connections of dead workers beside a living primary. The test checks when its right to
/// do so ends.
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

/// The wire's agent may have said that it leaves before it died, and that word may still be on its way. So a new agent has no lease by what
/// the primary heard from the earlier one.
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

/// The wire's agent stood still, and the primary went on alone meanwhile. Before that, the primary had sent a heartbeat that said that it
/// leaves. This heartbeat waited in the socket of the wire's agent.
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

#[test]
fn a_wire_that_was_paused_asks_before_it_takes_over() {
    let mut two = Two::new(Arbiter::Witness);
    two.pass(LONG).kill(0);
    two.verdict = None;
    let now = two.now;
    two.nodes[1].handle_pause(now);
    two.pass(BEAT * 8);
    assert_eq!(two.roles()[1], (Role::Backup, 2), "its lease would last still");
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

#[test]
fn who_has_just_come_is_answered_at_once() {
    let mut two = Two::new(Arbiter::FailStop);
    two.pass(SHORT);
    let said = |node: &mut Node| {
        let actions = std::iter::from_fn(|| node.poll_action());
        actions.filter(|action| matches!(action, Action::Send(_))).count()
    };
    let mut new = node(false, Arbiter::FailStop, 7, two.now);
    new.handle_timeout(two.now);
    let hello = std::iter::from_fn(|| new.poll_action()).find_map(|action| match action {
        Action::Send(heartbeat) => Some(heartbeat),
        _ => None,
    });
    let hello = hello.expect("it says that it is there");
    let now = two.now;
    two.nodes[0].handle_heartbeat(now, hello.clone());
    assert!(said(&mut two.nodes[0]) > 0);
    two.nodes[0].handle_heartbeat(now, hello);
    assert_eq!(said(&mut two.nodes[0]), 0, "it is known now");
}

/// The heartbeat of a primary of epoch 2 that has lost a worker.
fn bereft(two: &mut Two, client: SocketAddr) -> crate::action::Heartbeat {
    let now = two.now;
    two.nodes[0].handle(now, 0, ServiceInput::Orphans(vec![client]));
    let told = std::iter::from_fn(|| two.nodes[0].poll_action()).find_map(|action| match action {
        Action::Send(heartbeat) => Some(heartbeat),
        _ => None,
    });
    told.expect("it is said at once")
}

/// A wire of another epoch has another log.
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

/// For each `StandDown` of `node`, whether the node had served.
fn deposed(node: &mut Node) -> Vec<bool> {
    let wanted = std::iter::from_fn(|| node.poll_action());
    wanted
        .filter_map(|action| match action {
            Action::Service(_, ServiceAction::StandDown { is_deposed, .. }) => Some(is_deposed),
            _ => None,
        })
        .collect()
}

#[test]
fn only_who_has_served_is_deposed() {
    let mut two = Two::new(Arbiter::FailStop);
    two.pass(SHORT);
    let (now, mut alone) = (two.now, bereft(&mut two, "10.0.0.1:4000".parse().unwrap()));
    (alone.sequence, alone.incarnation) = (alone.sequence + 1, alone.incarnation + 1);
    (alone.services[0].role, alone.services[0].epoch) = (Role::Sole, 3);
    let mut new = Node::new(two.nodes[1].config().clone(), now);
    new.handle_heartbeat(now, alone.clone());
    assert_eq!(deposed(&mut new), [false], "it was off");
    alone.services[0].configured_primary = false;
    two.nodes[0].handle_heartbeat(now, alone);
    assert_eq!(deposed(&mut two.nodes[0]), [true]);
}

/// The gates that a node sets, and the ends of its connections, in order.
fn gates(node: &mut Node) -> Vec<&'static str> {
    let wanted = std::iter::from_fn(|| node.poll_action());
    wanted
        .filter_map(|action| match action {
            Action::Service(_, ServiceAction::SetGate { gate: Gate::Mute, .. }) => Some("mute"),
            Action::Service(
                _,
                ServiceAction::SetGate {
                    gate: Gate::Primary, ..
                },
            ) => Some("primary"),
            Action::Service(_, ServiceAction::StandDown { .. }) => Some("end"),
            _ => None,
        })
        .collect()
}

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

/// The wire took over, and then its agent was stopped too. Its kernel goes on speaking.
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

/// Some answers of the other kernel are lost or late. It is not dead because of that.
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

/// The wire took over by its own judgement of the paths, and its agent was stopped before it said so. Its kernel goes on speaking.
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

/// The first node, a primary, hears nothing of the other agent. If that node's kernel answers, the first node waits for 10 s.
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

/// Time passes for the first node only. `answers` says whether the other node's kernel answers it. Returns whether it was asked.
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

/// When the wire says that it leaves, the primary goes on alone, even if the wire speaks for some connections. So the wire must be silent
/// before it says so.
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
        // The primary's answer does not give the right back.
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

/// The length of a heartbeat is bounded. Even if many workers of many services die at once, a heartbeat tells of a few orphans, and of
/// some of each service.
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
