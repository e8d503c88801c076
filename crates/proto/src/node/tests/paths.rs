//! Paths that break while both nodes live and hear each other over another link.

use super::*;
use crate::path::Reachability;
use crate::service::PathFault;

/// State of the service's network.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// A link between the nodes lies on the service's network.
    has_link: bool,
    /// For each node, whether its frames to the other node are lost.
    mute: [bool; 2],
    /// Whether outside hosts answer each node, if there are any.
    answers: Option<[bool; 2]>,
}

impl Two {
    /// A duplex pair with two links, one of them on the service's network. Outside hosts answer both nodes.
    fn with_paths(arbiter: Arbiter) -> Self {
        let mut two = Self::new(arbiter);
        two.paths.answers = Some([true; 2]);
        two.link(true);
        two.pass(LONG);
        assert_eq!(two.roles(), DUPLEX);
        two.asked = [Vec::new(), Vec::new()];
        two
    }

    fn link(&mut self, has_link: bool) {
        self.paths.has_link = has_link;
        for node in &mut self.nodes {
            node.handle(self.now, 0, ServiceInput::HasLink(has_link));
        }
    }

    /// Shows the peer that this node's heartbeat also comes over the service's network, if this network works.
    pub(super) fn show(&mut self, index: usize) {
        if self.paths.has_link && !self.paths.mute[index] {
            self.nodes[1 - index].handle(self.now, 0, ServiceInput::Sign { at: self.now });
        }
    }

    pub(super) fn ask_outside(&mut self, index: usize) {
        match self.paths.answers {
            Some(answers) if answers[index] => {
                self.nodes[index].handle(self.now, 0, ServiceInput::Outside { asked: self.now });
                self.carry_out(index);
            }
            Some(_) => {}
            None => self.nodes[index].handle(self.now, 0, ServiceInput::NoOutside),
        }
    }

    /// Plugs in or pulls the node's cable to the service's network.
    fn set_cable(&mut self, index: usize, is_in: bool) -> &mut Self {
        self.paths.mute = [!is_in; 2];
        if let Some(answers) = &mut self.paths.answers {
            answers[index] = is_in;
        }
        self
    }

    fn fault(&self, index: usize) -> Option<PathFault> {
        self.nodes[index].service(0).path(self.now).fault
    }

    fn changes(&self) -> [usize; 2] {
        [0, 1].map(|index| self.nodes[index].service(0).roles().count())
    }
}

const DUPLEX: [(Role, u64); 2] = [(Role::Primary, 2), (Role::Backup, 2)];
/// Time until a broken path is acted on: the patience, plus heartbeats for what the nodes tell each other.
const DETECTED: Duration = Duration::from_millis(120);
const ARBITERS: [Arbiter; 3] = [Arbiter::FailStop, Arbiter::Fence, Arbiter::Witness];

#[test]
fn the_cable_of_either_node_is_pulled_and_the_other_one_goes_on() {
    for arbiter in ARBITERS {
        for cut in 0..2 {
            let mut two = Two::with_paths(arbiter);
            let went_on = 1 - cut;
            two.outside = cut == 1; // the primary claims
            two.set_cable(cut, false).pass(DETECTED);
            assert_eq!(
                two.nodes[went_on].service(0).role_and_epoch(),
                (Role::Sole, 3),
                "{arbiter:?} {cut}"
            );
            assert_eq!(
                two.nodes[cut].service(0).role_and_epoch(),
                (Role::Standby, 3),
                "{arbiter:?} {cut}"
            );
            let stays = two.pass(LONG * 5).roles();
            assert_eq!(stays[went_on], (Role::Sole, 3), "{arbiter:?} {cut}");
            assert_eq!(
                stays[cut],
                (Role::Standby, 3),
                "{arbiter:?} {cut}: it knows that its path is broken"
            );
            assert_eq!(two.fault(cut), Some(PathFault::Own));
            assert_eq!(two.fault(went_on), Some(PathFault::Peer));
            let gate = if went_on == 1 { Gate::Takeover } else { Gate::Sole };
            assert_eq!(two.gates[went_on], (gate, None), "{arbiter:?} {cut}");
            assert_eq!(two.gates[cut].0, Gate::Mute);
            two.set_cable(cut, true).pass(LONG * 2);
            let mut whole = [(Role::Backup, 4); 2];
            whole[went_on] = (Role::Primary, 4);
            assert_eq!(two.roles(), whole, "{arbiter:?} {cut}");
            assert_eq!(two.fault(0).or(two.fault(1)), None);
            assert_eq!(two.alarms, [[0; 0]; 2]);
        }
    }
}

/// The nodes hear each other, so they need no arbiter to agree.
#[test]
fn a_path_moves_the_service_though_the_arbiter_is_away() {
    for arbiter in [Arbiter::Fence, Arbiter::Witness] {
        for cut in 0..2 {
            let mut two = Two::with_paths(arbiter);
            let went_on = 1 - cut;
            two.verdict = None;
            two.outside = cut == 1;
            two.set_cable(cut, false).pass(DETECTED);
            assert_eq!(
                two.nodes[went_on].service(0).role_and_epoch(),
                (Role::Sole, 3),
                "{arbiter:?} {cut}"
            );
            two.pass(LONG * 5);
            let until = two.gates[went_on].1;
            assert!(
                until.is_none_or(|until| until > two.now),
                "{arbiter:?} {cut}: {until:?}"
            );
            two.set_cable(cut, true).pass(LONG * 2);
            assert!(
                two.nodes[0].is_duplex(two.now, 0),
                "{arbiter:?} {cut}: {:?}",
                two.roles()
            );
        }
    }
}

/// A cable is out for a moment while the arbiter is away. Whatever the primary has begun, one of the nodes serves in the end.
#[test]
fn a_short_loss_of_the_wires_path_ends_in_a_whole_pair_though_the_arbiter_is_away() {
    for outside in [true, false] {
        let mut two = Two::with_paths(Arbiter::Witness);
        (two.verdict, two.outside) = (None, outside);
        two.set_cable(1, false).pass(SHORT);
        two.set_cable(1, true).pass(LONG * 10);
        let [one, other] = two.roles().map(|(role, _)| role);
        let serves = [Role::Primary, Role::Claiming].contains(&one) && other == Role::Backup;
        assert!(serves, "{outside}: {:?}", two.roles());
        assert_eq!(
            two.gates.map(|(gate, _)| gate),
            [Gate::Primary, Gate::Wire],
            "{outside}"
        );
    }
}

/// A primary claims, but clients turn out not to reach it, so the wire that gave way takes over. (With a witness, the primary has been
/// given the epoch meanwhile, and goes on claiming.)
#[test]
fn a_wire_that_gave_way_in_vain_takes_over() {
    for arbiter in [Arbiter::FailStop, Arbiter::Fence] {
        let mut two = Two::with_paths(arbiter);
        two.outside = false;
        two.set_cable(1, false).pass(DETECTED);
        assert_eq!(
            two.roles(),
            [(Role::Claiming, 2), (Role::Backup, 2)],
            "{arbiter:?}"
        );
        // The broken path was the primary's all the time.
        two.paths.answers = Some([false, true]);
        two.pass(LONG * 3);
        let [one, other] = two.roles().map(|(role, _)| role);
        assert_eq!((one, other), (Role::Standby, Role::Sole), "{arbiter:?}");
    }
}

/// If hosts stop answering both nodes, the paths are not at fault. The death of a node is still noticed.
#[test]
fn hosts_that_are_gone_keep_nobody_from_taking_over() {
    for arbiter in ARBITERS {
        for dead in 0..2 {
            let mut two = Two::with_paths(arbiter);
            two.paths.answers = Some([false; 2]);
            two.pass(LONG);
            assert_eq!(two.roles(), DUPLEX);
            two.kill(dead).pass(LONG * 5);
            assert_eq!(
                two.nodes[1 - dead].service(0).role(),
                Role::Sole,
                "{arbiter:?} {dead}"
            );
        }
    }
}

#[test]
fn nobody_is_fenced_while_the_nodes_agree() {
    for cut in 0..2 {
        let mut two = Two::with_paths(Arbiter::Fence);
        two.set_cable(cut, false).pass(LONG * 3);
        assert_eq!(two.asked, [[0; 0]; 2], "{cut}");
    }
}

#[test]
fn one_direction_is_enough_to_cut_a_node_off() {
    for arbiter in ARBITERS {
        // Node `cut` cannot be heard, or cannot hear. In both cases no outside host answers this node.
        for (cut, mute) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut two = Two::with_paths(arbiter);
            two.paths.mute[mute] = true;
            two.paths.answers = Some([cut != 0, cut != 1]);
            two.pass(DETECTED);
            assert_eq!(
                two.nodes[1 - cut].service(0).role(),
                Role::Sole,
                "{arbiter:?} {cut} {mute}"
            );
            assert_eq!(
                two.nodes[cut].service(0).role(),
                Role::Standby,
                "{arbiter:?} {cut} {mute}"
            );
        }
    }
}

#[test]
fn a_router_that_the_backup_has_lost_is_the_primarys() {
    let mut two = Two::with_paths(Arbiter::Witness);
    two.paths.answers = Some([true, false]);
    two.pass(Duration::from_millis(600));
    assert_eq!(two.roles(), [(Role::Sole, 3), (Role::Standby, 3)]);
    two.paths.answers = Some([true; 2]);
    two.pass(LONG * 2);
    assert_eq!(two.roles(), [(Role::Primary, 4), (Role::Backup, 4)]);
}

#[test]
fn a_router_that_the_primary_has_lost_is_shown_and_changes_nothing() {
    let mut two = Two::with_paths(Arbiter::Witness);
    two.paths.answers = Some([false, true]);
    two.pass(LONG);
    assert_eq!(two.roles(), DUPLEX);
    let why = two.nodes[0].simplex(two.now, 0);
    assert_eq!(
        why,
        Some(Simplex::Path(PathFault::Own)),
        "the backup's failure is not masked"
    );
    let order = two.nodes[0].handle_handover(two.now, 0);
    assert_eq!(
        order,
        Err(OrderRefusal::Simplex(Simplex::Path(PathFault::Own))),
        "it could not be the wire"
    );
}

#[test]
fn nothing_moves_when_nobody_reaches_the_outside() {
    for mute in [[false; 2], [true; 2]] {
        let mut two = Two::with_paths(Arbiter::FailStop);
        two.paths.answers = Some([false; 2]);
        two.paths.mute = mute;
        two.pass(LONG * 3);
        assert_eq!(two.roles(), DUPLEX);
        assert_eq!(
            two.nodes[1].simplex(two.now, 0),
            Some(Simplex::Path(PathFault::Both))
        );
        two.paths = Paths {
            has_link: true,
            answers: Some([true; 2]),
            ..Paths::default()
        };
        assert_eq!(two.pass(LONG).roles(), DUPLEX, "{mute:?}");
        assert!(two.nodes[1].is_duplex(two.now, 0));
    }
}

#[test]
fn a_path_that_flickers_moves_the_service_once() {
    for cut in 0..2 {
        let mut two = Two::with_paths(Arbiter::Witness);
        let before = two.changes();
        for _ in 0..40 {
            two.set_cable(cut, false).pass(SHORT);
            two.set_cable(cut, true).pass(SHORT);
        }
        let after = two.changes();
        let moved = [0, 1].map(|index| after[index] - before[index]);
        assert!(moved.into_iter().all(|moved| moved <= 2), "{cut}: {moved:?}");
        two.pass(LONG * 40);
        assert!(two.nodes[0].is_duplex(two.now, 0), "{cut}: {:?}", two.roles());
    }
}

#[test]
fn a_short_break_is_none() {
    let mut two = Two::with_paths(Arbiter::FailStop);
    for cut in [0, 1, 0, 1] {
        two.set_cable(cut, false).pass(BEAT * 2);
        two.set_cable(cut, true).pass(BEAT * 2);
    }
    assert_eq!(two.roles(), DUPLEX);
}

#[test]
fn packets_of_the_peer_stand_in_for_its_heartbeats() {
    let mut two = Two::with_paths(Arbiter::FailStop);
    two.paths.mute = [true; 2]; // heartbeats are lost in a full queue
    for _ in 0..50 {
        two.pass(BEAT);
        let now = two.now;
        for node in &mut two.nodes {
            node.handle(now, 0, ServiceInput::Sign { at: now });
        }
    }
    assert_eq!(two.roles(), DUPLEX);
}

#[test]
fn a_node_that_is_cut_off_from_all_asks_no_arbiter_and_takes_nobody_for_dead() {
    for arbiter in ARBITERS {
        let mut two = Two::with_paths(arbiter);
        two.hears = false;
        two.set_cable(1, false).pass(LONG * 3);
        assert_eq!(two.asked[1], [0; 0], "{arbiter:?}");
        assert_eq!(two.roles(), [(Role::Sole, 3), (Role::Backup, 2)], "{arbiter:?}");

        let mut two = Two::with_paths(arbiter);
        two.hears = false;
        two.outside = false;
        two.set_cable(0, false).pass(LONG * 3);
        assert_eq!(two.asked[0], [0; 0], "{arbiter:?}");
        assert_eq!(two.roles(), [(Role::Claiming, 2), (Role::Sole, 3)], "{arbiter:?}");
    }
}

/// With every heartbeat, the primary repeats that it yields. These heartbeats do not start the fence delay.
#[test]
fn a_primary_that_yields_is_fenced_without_a_wait() {
    let mut two = Two::with_paths(Arbiter::Fence);
    for node in &mut two.nodes {
        let mut config = node.config.clone();
        (config.fence_delay, config.lease) = (LONG, Duration::ZERO);
        *node = Node::new(config, two.now);
    }
    two.link(true);
    two.pass(LONG);
    let now = two.now;
    two.nodes[0].handle(now, 0, ServiceInput::Leave(true));
    two.carry_out(0);
    two.pass(SHORT);
    assert_eq!(two.nodes[1].service(0).role(), Role::Sole);
}

#[test]
fn a_node_waits_before_it_has_its_peer_fenced() {
    let mut two = Two::with_paths(Arbiter::Fence);
    for node in &mut two.nodes {
        let mut config = node.config.clone();
        config.fence_delay = LONG;
        *node = Node::new(config, two.now);
    }
    two.link(true);
    two.pass(LONG);
    two.kill(1).pass(LONG);
    assert_eq!(
        (two.asked[0].len(), two.nodes[0].service(0).role()),
        (0, Role::Claiming)
    );
    two.pass(LONG);
    assert_eq!(two.nodes[0].service(0).role(), Role::Sole);
}

/// The fence's command may take longer than the fenced node takes to boot. If the booted node were accepted as the wire too early, the
/// fence would switch the wire off. The other node would find the wire silent and fence it again, for ever.
#[test]
fn a_peer_that_comes_back_while_it_is_being_fenced_is_not_counted_on_before_that_is_over() {
    let mut two = Two::with_paths(Arbiter::Fence);
    two.verdict = None;
    two.kill(1).pass(LONG);
    assert!(!two.asked[0].is_empty());
    two.start(1).link(true);
    two.pass(LONG);
    assert_eq!(two.roles().map(|(role, _)| role), [Role::Sole, Role::Returning]);
    let (now, epoch) = (two.now, two.asked[0][0]);
    two.kill(1);
    two.nodes[0].handle(
        now,
        0,
        ServiceInput::Verdict {
            epoch,
            verdict: ArbiterVerdict::Granted,
        },
    );
    two.verdict = Some(ArbiterVerdict::Granted);
    two.pass(SHORT).start(1).link(true);
    two.pass(LONG);
    assert_eq!(two.roles().map(|(role, _)| role), [Role::Primary, Role::Backup]);
}

#[test]
fn where_no_link_tells_the_nodes_meet_unless_one_has_lost_the_outside() {
    for cut in 0..2 {
        let mut two = Two::with_paths(Arbiter::FailStop);
        two.link(false);
        two.set_cable(cut, false).pass(Duration::from_millis(700));
        assert_eq!(two.nodes[1 - cut].service(0).role(), Role::Sole, "{cut}");
    }
}

#[test]
fn a_carrier_that_is_lost_needs_no_further_proof() {
    let mut two = Two::with_paths(Arbiter::FailStop);
    let now = two.now;
    two.nodes[0].handle_carrier(now, 0, false);
    assert_eq!(two.nodes[0].service(0).path(now).own.outside, Reachability::Lost);
    assert_eq!(two.fault(0), Some(PathFault::NoCarrier));
}

/// Commit mode `pr`. The backup does not take over, because its own path works.
#[test]
fn a_primary_that_reaches_no_client_sends_through_the_wire() {
    let mut two = Two::new(Arbiter::FailStop);
    for index in 0..2 {
        let mut config = two.nodes[index].config.clone();
        config.services[0].table.sends_directly = true;
        two.nodes[index] = Node::new(config, two.now);
    }
    two.link(true);
    let is_direct = |two: &Two| two.direct[0].is_some_and(|until| two.now < until);
    for reaches in [true, false, true] {
        two.paths.answers = Some([reaches, true]);
        two.pass(LONG);
        assert_eq!((is_direct(&two), two.roles()), (reaches, DUPLEX));
    }
    let now = two.now;
    two.nodes[0].handle_carrier(now, 0, false);
    two.carry_out(0);
    assert!(!is_direct(&two), "at once");
}

/// Neither the order of the starts nor the choice of the configured primary may matter.
#[test]
fn a_pair_that_starts_with_a_broken_path_serves_on_the_other_node() {
    for arbiter in ARBITERS {
        for cut in 0..2 {
            let mut two = Two::new(arbiter);
            two.paths.answers = Some([true; 2]);
            two.set_cable(cut, false);
            two.link(true);
            for index in 0..2 {
                two.nodes[index].handle_carrier(two.now, 0, index != cut);
            }
            two.pass(LONG * 3);
            assert_eq!(
                two.nodes[1 - cut].service(0).role(),
                Role::Sole,
                "{arbiter:?} {cut}: {:?}",
                two.roles()
            );
            assert!(
                !two.nodes[cut].service(0).role().may_speak(),
                "{arbiter:?} {cut}: {:?}",
                two.roles()
            );
            for index in 0..2 {
                let now = two.now;
                two.nodes[index].handle_carrier(now, 0, true);
            }
            two.set_cable(cut, true).pass(LONG * 3);
            assert!(
                two.nodes[0].is_duplex(two.now, 0),
                "{arbiter:?} {cut}: {:?}",
                two.roles()
            );
        }
    }
}
