//! Tests of two nodes that hear each other, through failures and orders.

mod annex;
mod arbiter;
mod carried;
mod direct;
mod doubt;
mod fence;
mod frozen;
mod immediate;
mod lease;
mod orphans;
mod paths;

use std::net::SocketAddr;
use std::time::Duration;

use super::fixture::{self, BEAT};
use super::*;
use crate::action::{Action, AnnexStep, ApplicationState, Gate, OperatorReport, ServiceAction};
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
    /// Whether the nodes hear each other.
    hears: bool,
    /// Whether outside hosts answer a node that claims.
    outside: bool,
    paths: paths::Paths,
    /// The arbiter's answer to each question.
    verdict: Option<ArbiterVerdict>,
    gates: [(Gate, Option<Instant>); 2],
    /// Until when each node's kernel lets a primary's output bypass the wire.
    direct: [Option<Instant>; 2],
    passes_unlogged: [bool; 2],
    /// Actions on each node's network.
    network: [Vec<&'static str>; 2],
    /// Steps that each node has ordered for connections of annexes.
    steps: [Vec<AnnexStep>; 2],
    /// Epochs in which each node noticed two voices: both nodes had spoken alone.
    alarms: [Vec<u64>; 2],
    incarnations: u64,
    kernel: frozen::FrozenSockets,
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
            direct: [None; 2],
            passes_unlogged: [false; 2],
            network: [Vec::new(), Vec::new()],
            steps: [Vec::new(), Vec::new()],
            alarms: [Vec::new(), Vec::new()],
            incarnations: 1,
            kernel: frozen::FrozenSockets::default(),
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
        while let Some(action) = fixture::next_action(&mut self.nodes[index]) {
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
                Action::Service(_, ServiceAction::Freeze { .. }) => Some("freeze"),
                Action::Service(_, ServiceAction::Thaw { .. }) => Some("thaw"),
                Action::Service(_, ServiceAction::Release { .. }) => Some("release"),
                Action::Service(_, ServiceAction::Transmit(_)) => Some("reset"),
                _ => None,
            });
            match action {
                Action::Service(_, ServiceAction::SetGate { gate, until, .. }) => {
                    self.gates[index] = (gate, until);
                    self.check_voices(index);
                }
                Action::Service(_, ServiceAction::SetDirect { until }) => self.direct[index] = until,
                Action::Service(_, ServiceAction::PassUnlogged { may }) => self.passes_unlogged[index] = may,
                Action::Service(_, ServiceAction::Report(OperatorReport::TwoVoices { epoch, .. })) => {
                    self.alarms[index].push(epoch)
                }
                Action::Service(_, ServiceAction::SetUntil { until, .. }) => self.gates[index].1 = until,
                Action::Service(service, ServiceAction::Drain) => {
                    self.nodes[index].handle(now, service, ServiceInput::Drained)
                }
                Action::Service(_, ServiceAction::Announce) => announced = true,
                Action::Service(_, ServiceAction::Thaw { clients }) => self.thaw(index, clients),
                Action::Service(_, ServiceAction::LookFor { clients }) => self.look_for(index, clients),
                Action::Service(service, ServiceAction::Confirm { epoch }) => {
                    self.asked[index].push(epoch);
                    if let Some(verdict) = self.verdict {
                        self.nodes[index].handle(now, service, ServiceInput::Verdict { epoch, verdict });
                    }
                }
                Action::Service(_, ServiceAction::AskOutside { .. }) => self.ask_outside(index),
                Action::Service(_, ServiceAction::Elsewhere(step)) => self.steps[index].push(step),
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

    /// A node's gate has changed: if the node speaks alone now, the other node's output must not bypass the wire any more.
    fn check_voices(&self, index: usize) {
        let other = 1 - index;
        let speaks = matches!(self.gates[index].0, Gate::Takeover | Gate::Sole);
        let bypasses = self.gates[other].0 == Gate::Primary && self.direct[other] > Some(self.now);
        assert!(!speaks || !bypasses, "two voices at {:?}", self.now);
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
    /// Replaces a node's agent by a new agent, which continues from the state that the old agent left.
    fn replace(&mut self, index: usize) -> &mut Self {
        self.replace_with(index, Vec::new())
    }

    /// As [`replace`](Self::replace). The old agent has frozen the sockets of these clients.
    fn replace_with(&mut self, index: usize, frozen: Vec<SocketAddr>) -> &mut Self {
        self.incarnations += 1;
        let (gate, until) = self.gates[index];
        let mut config = NodeConfig {
            incarnation: self.incarnations,
            ..self.nodes[index].config.clone()
        };
        config.services[0].found = Some(InheritedService {
            is_confirmed: until.is_none(),
            seen: self.now,
            frozen,
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

/// The primary may be serving alone because the wire promised to be silent. The wire cannot hear whether the primary serves alone. The wire
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

/// While the wire cannot hear the primary, the primary loses its power. With the power, it loses all connections that it may have served
/// alone.
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

/// The cut ends on all paths at the same moment, and an outside host answers before the peer's next heartbeat comes. During the cut,
/// clients have spoken with the peer only.
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

/// While the wire stood still, clients' packets came directly to the primary. These packets are in no log, so the wire must begin anew.
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

/// The peer died while no agent ran on this node. The new agent has never heard the peer, but still notices its silence.
#[test]
fn an_agent_that_goes_on_misses_a_peer_that_it_has_never_heard() {
    for arbiter in [Arbiter::FailStop, Arbiter::Witness, Arbiter::Fence] {
        for (dies, lives) in [(0, 1), (1, 0)] {
            let mut two = Two::new(arbiter);
            two.pass(SHORT).kill(dies).replace(lives).pass(SHORT * 3);
            let early = two.nodes[lives].service(0).role_and_epoch();
            assert_eq!(early.1, 2, "{arbiter:?}: waits for the other node, {early:?}");
            two.pass(LONG);
            assert_eq!(
                two.nodes[lives].service(0).role_and_epoch(),
                (Role::Sole, 3),
                "{arbiter:?}"
            );
        }
    }
}

/// An earlier agent died and left this gate.
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
        sends_directly: false,
    }
}

/// The standing of a new agent whose predecessor had `role` in epoch 4.
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
        direct: false,
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

/// A step failed on the primary and was repaired. Meanwhile its peer has become the wire, but in an older word the peer is still mute. If
/// the primary began again because of the older word, it could begin in the epoch that the wire already has.
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

/// The heartbeat in which the primary, in epoch 2, reports that the worker of `client` has died.
fn bereft(two: &mut Two, client: SocketAddr) -> crate::action::Heartbeat {
    let now = two.now;
    two.nodes[0].handle(now, 0, ServiceInput::Orphans(vec![client]));
    let told = std::iter::from_fn(|| two.nodes[0].poll_action()).find_map(|action| match action {
        Action::Send(heartbeat) => Some(heartbeat),
        _ => None,
    });
    told.expect("it is said at once")
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

/// The gates `Mute` and `Primary` that a node sets, and the ends of its connections, in order.
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
