//! Connections that move to an annex and back, as the wire's node sees them.

mod relinked;
mod starts;

use std::net::SocketAddr;

use crate::action::{Action, AnnexStep, Echo, Gate, Heartbeat, OperatorReport, ServiceAction, ServiceBeat};
use crate::annex::{AnnexId, ServingNode};
use crate::census::{ClientTerms, Terms};
use crate::connection::UnprotectedCause;
use crate::export::{ExportPlace, PartReceipt, SnapshotPart};
use crate::follower::RestartPolicy;
use crate::migration::{MigrationBeat, MigrationOffer, OfferState};
use crate::node::Node;
use crate::node::fixture::{at, beat, config, next_action};
use crate::orphans::Orphans;
use crate::packet::{Checksum, Flags, Segment, TcpOptions};
use crate::restart::snapshot::SnapshotStanding;
use crate::role::Role;
use crate::service::{InheritedService, ServiceInput};
use crate::table::Direction;
use crate::{Instant, Seq};

const GAMMA: AnnexId = AnnexId(3);
const ANNEX: ServingNode = ServingNode::Annex(GAMMA);
/// The number of the latest snapshot of a node that makes a socket.
const EXPORTED: u64 = 40;

/// The wire, its primary's heartbeats, and a client that has sent a request.
struct AnnexedWire {
    node: Node,
    now: Instant,
    heard: u64,
    client: SocketAddr,
    /// The new node of a connection cannot start its socket.
    fails_to_start: bool,
    /// The take-back of which the primary has heard.
    take_back: Option<u64>,
}

impl AnnexedWire {
    fn new() -> Self {
        Self::with_policy(RestartPolicy::Http)
    }

    fn with_policy(policy: RestartPolicy) -> Self {
        let mut config = config(false);
        config.services[0].table.policy = policy;
        config.services[0].found = Some(InheritedService::sample(Gate::Wire, 2));
        let mut wire = Self {
            node: Node::new(config, at(0)),
            now: at(10),
            heard: 0,
            client: ([10, 1, 0, 1], 4000).into(),
            fails_to_start: false,
            take_back: Some(0),
        };
        wire.say(Direction::In, Flags::SYN, (0, b""));
        wire.say(Direction::Out, Flags::SYN_ACK, (0, b""));
        wire.say(Direction::In, Flags::ACK, (1, b"GET / HTTP/1.1\r\n\r\n"));
        wire.hear(&[], false);
        wire.put(ServiceInput::AnnexIsUp {
            node: ANNEX,
            is_up: true,
        });
        wire.put(ServiceInput::AnnexIsUp {
            node: ServingNode::Primary,
            is_up: true,
        });
        wire
    }

    /// The wire logs a segment. The client's sequence numbers begin at 0, the server's at 1000.
    fn say(
        &mut self,
        direction: Direction,
        flags: Flags,
        (seq, payload): (u32, &[u8]),
    ) -> Vec<ServiceAction> {
        let vip = self.node.service(0).vip();
        let (source, destination, seq, ack) = match direction {
            Direction::In => (self.client, vip, seq, 1001),
            Direction::Out => (vip, self.client, 1000 + seq, 1),
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
        let packet = segment.emit();
        self.node
            .handle_packet(self.now, 0, direction, &packet, Checksum::Unverified, None);
        self.carry_out()
    }

    fn put(&mut self, input: ServiceInput) -> Vec<ServiceAction> {
        self.node.handle(self.now, 0, input);
        self.carry_out()
    }

    /// The primary's heartbeat.
    fn hear(&mut self, offers: &[MigrationOffer], leaves: bool) -> Vec<ServiceAction> {
        self.node.handle_timeout(self.now);
        let heartbeat = self.heartbeat(offers, leaves);
        self.node.handle_heartbeat(self.now, heartbeat);
        self.carry_out()
    }

    fn heartbeat(&mut self, offers: &[MigrationOffer], leaves: bool) -> Heartbeat {
        self.heard += 1;
        let service = ServiceBeat {
            leaves,
            take_back: self.take_back,
            migration: Some(MigrationBeat {
                offers: offers.to_vec(),
                ..MigrationBeat::default()
            }),
            ..beat(self.node.service(0).vip(), (Role::Primary, 2), true)
        };
        Heartbeat {
            node: "alpha".to_owned(),
            incarnation: 1,
            sequence: self.heard,
            sent: 0,
            echo: Some(Echo {
                incarnation: self.node.config().incarnation,
                sent: self.now.as_nanos(),
            }),
            services: vec![service],
        }
    }

    /// Carries out the node's actions, and returns those for the service.
    fn carry_out(&mut self) -> Vec<ServiceAction> {
        let mut done = Vec::new();
        while let Some(action) = next_action(&mut self.node) {
            let Some(Action::Service(_, action)) = self.node.admit(self.now, action) else {
                continue;
            };
            match action {
                ServiceAction::Drain => self.node.handle(self.now, 0, ServiceInput::Drained),
                ServiceAction::Elsewhere(AnnexStep::StartAt { node, .. }) if self.fails_to_start => {
                    let (client, reason) = (self.client, "its input is too long".to_owned());
                    let refused = ServiceInput::RefusedAt { client, node, reason };
                    self.node.handle(self.now, 0, refused);
                }
                ServiceAction::Elsewhere(AnnexStep::StartAt { connection, .. }) => {
                    self.node
                        .handle(self.now, 0, ServiceInput::StartedAt { connection });
                }
                _ => {}
            }
            done.push(action);
        }
        done
    }

    fn offer(&self, is_released: bool) -> MigrationOffer {
        MigrationOffer {
            number: 7,
            client: self.client,
            is_released,
            is_frozen: false,
            reverses: false,
            annex: Some(GAMMA),
            is_bereft: false,
        }
    }

    /// What the next heartbeat answers to the offer.
    fn answer(&self) -> Option<OfferState> {
        let beat = self.node.service(0).migration_beat();
        beat.answers.into_iter().next().map(|answer| answer.state)
    }

    fn restored(&mut self, node: ServingNode) -> Vec<ServiceAction> {
        let (client, exported) = (self.client, EXPORTED);
        self.put(ServiceInput::RestoredAt {
            client,
            node,
            exported,
        })
    }

    /// The snapshot with this number, after the request and before the reply.
    fn part(&self, number: u64) -> SnapshotPart {
        SnapshotPart {
            number,
            client: self.client,
            place: ExportPlace {
                input: Seq(19),
                output: Seq(1001),
            },
            size: 1,
            at: 0,
            bytes: vec![7],
        }
    }

    fn receipt(&self, number: u64, standing: SnapshotStanding) -> PartReceipt {
        PartReceipt {
            number,
            client: self.client,
            arrived: 1,
            standing: Some(standing),
        }
    }

    fn refused(&mut self, node: ServingNode) -> Vec<ServiceAction> {
        let (client, reason) = (self.client, "no memory".to_owned());
        self.put(ServiceInput::RefusedAt { client, node, reason })
    }

    fn dropped(&mut self, node: ServingNode) -> Vec<ServiceAction> {
        let client = self.client;
        self.put(ServiceInput::DroppedAt { client, node })
    }

    /// Moves the connection to the annex.
    fn move_there(&mut self) {
        self.hear(&[self.offer(false)], false);
        self.restored(ANNEX);
        self.hear(&[self.offer(true)], false);
        assert_eq!(self.guests(), [(self.client, GAMMA)]);
        self.hear(&[], false);
    }

    /// Moves the connection to the annex and back. The primary has not said that it has started it.
    fn move_back(&mut self) {
        self.move_there();
        self.order_back();
        self.restored(ServingNode::Primary);
        self.dropped(ANNEX);
        assert_eq!(self.guests(), []);
    }

    /// The primary says that it has started the connection.
    fn speaks(&mut self) {
        let (client, node) = (self.client, ServingNode::Primary);
        self.put(ServiceInput::SpeaksAt { client, node });
    }

    /// Whether the wire takes over the connection.
    fn takes_over(&self, done: &[ServiceAction]) -> bool {
        let clients = vec![self.client];
        done.contains(&ServiceAction::Hold { clients })
    }

    fn guests(&self) -> Vec<(SocketAddr, AnnexId)> {
        self.node.service(0).guests().collect()
    }

    fn order_back(&mut self) -> Vec<ServiceAction> {
        self.put(ServiceInput::Migrate {
            clients: vec![self.client],
            annex: None,
            until: self.now + std::time::Duration::from_secs(10),
        })
    }

    fn guide(&self, node: ServingNode) -> ServiceAction {
        let client = self.client;
        ServiceAction::Elsewhere(AnnexStep::Guide { client, node })
    }

    fn drop_at(&self, node: ServingNode) -> ServiceAction {
        let client = self.client;
        ServiceAction::Elsewhere(AnnexStep::DropAt { client, node })
    }
}

/// The places of these actions in `done`, in this order.
#[track_caller]
fn in_order(done: &[ServiceAction], expected: &[&dyn Fn(&ServiceAction) -> bool]) {
    let mut rest = done.iter();
    for (index, is_it) in expected.iter().enumerate() {
        assert!(rest.any(is_it), "action {index} of {done:?}");
    }
}

/// The connection is reserved, the log read, the socket made; only then does the primary hear that it may release the connection. Then the
/// packets go to the annex before the log is read, so the annex gets each byte from the one or the other.
#[test]
fn a_connection_moves_to_an_annex() {
    let mut wire = AnnexedWire::new();
    let done = wire.hear(&[wire.offer(false)], false);
    in_order(
        &done,
        &[
            &|action| matches!(action, ServiceAction::Reserve { .. }),
            &|action| *action == ServiceAction::Drain,
            &|action| matches!(action, ServiceAction::Elsewhere(AnnexStep::RestoreAt { node, .. }) if *node == ANNEX),
        ],
    );
    assert_eq!(wire.answer(), None, "the primary must not let go yet");
    wire.restored(ANNEX);
    assert_eq!(wire.answer(), Some(OfferState::Prepared));
    let done = wire.hear(&[wire.offer(true)], false);
    let guide = wire.guide(ANNEX);
    in_order(
        &done,
        &[
            &|action| *action == guide,
            &|action| *action == ServiceAction::Drain,
            &|action| matches!(action, ServiceAction::Elsewhere(AnnexStep::StartAt { node, .. }) if *node == ANNEX),
        ],
    );
    assert_eq!(wire.answer(), Some(OfferState::Taken));
    assert_eq!(wire.guests(), [(wire.client, GAMMA)]);
    assert!(
        wire.node.service(0).table().find(wire.client).is_some(),
        "it is followed"
    );
}

/// Nobody speaks for the connection before the annex has dropped it. Otherwise, the primary could find it on the annex, if the wire fails.
#[test]
fn a_connection_moves_back_when_the_annex_has_dropped_it() {
    let mut wire = AnnexedWire::new();
    wire.move_there();
    wire.order_back();
    let done = wire.restored(ServingNode::Primary);
    assert_eq!(done, [wire.drop_at(ANNEX)]);
    let done = wire.dropped(ANNEX);
    let guide = wire.guide(ServingNode::Primary);
    in_order(
        &done,
        &[
            &|action| *action == guide,
            &|action| *action == ServiceAction::Drain,
            &|action| matches!(action, ServiceAction::Elsewhere(AnnexStep::StartAt { node, .. }) if *node == ServingNode::Primary),
        ],
    );
    assert_eq!(wire.guests(), []);
    assert_eq!(wire.node.service(0).migrations().moved, 1);
}

/// The primary still has an order for a connection that has moved to an annex meanwhile. If the wire took it, the annex would keep its socket.
#[test]
fn what_an_annex_has_cannot_be_offered_by_the_primary() {
    for annex in [None, Some(GAMMA)] {
        let mut wire = AnnexedWire::new();
        wire.move_there();
        let late = MigrationOffer {
            number: 8,
            annex,
            ..wire.offer(false)
        };
        let done = wire.hear(&[late], false);
        assert!(
            !done
                .iter()
                .any(|action| matches!(action, ServiceAction::Reserve { .. })),
            "{done:?}"
        );
        assert_eq!(
            wire.answer(),
            Some(OfferState::Waiting("it is on an annex".to_owned()))
        );
        assert_eq!(wire.guests(), [(wire.client, GAMMA)]);
    }
}

/// The annex dies while the primary still has such an order. The wire takes the connection over, so it cannot take it from the primary.
#[test]
fn what_is_taken_back_from_an_annex_cannot_be_offered_by_the_primary() {
    let mut wire = AnnexedWire::new();
    wire.move_there();
    let late = MigrationOffer {
        number: 8,
        annex: None,
        ..wire.offer(false)
    };
    wire.hear(std::slice::from_ref(&late), false);
    wire.put(ServiceInput::AnnexIsUp {
        node: ANNEX,
        is_up: false,
    });
    let done = wire.hear(std::slice::from_ref(&late), false);
    assert!(
        !done.iter().any(|action| matches!(
            action,
            ServiceAction::Reserve { .. } | ServiceAction::Restore { .. }
        )),
        "{done:?}"
    );
    let taken = "the other node takes it over from an annex".to_owned();
    assert_eq!(wire.answer(), Some(OfferState::Waiting(taken)));
    wire.take_back = wire.node.service(0).take_back();
    let done = wire.hear(&[late], false);
    assert!(wire.takes_over(&done), "{done:?}");
    let is_prepared = |state| matches!(state, OfferState::Prepared | OfferState::Taken);
    assert!(!wire.answer().is_some_and(is_prepared));
}

/// The annex dies when the primary has been told that it may let go. If the primary has done so, nobody else has the connection.
#[test]
fn what_is_released_to_a_dead_annex_is_taken_over() {
    let mut wire = AnnexedWire::new();
    wire.hear(&[wire.offer(false)], false);
    wire.restored(ANNEX);
    let is_up = false;
    let node = ANNEX;
    wire.put(ServiceInput::AnnexIsUp { node, is_up });
    assert_eq!(wire.answer(), Some(OfferState::Prepared));
    let client = wire.client;
    let done = wire.hear(&[wire.offer(true)], false);
    assert!(
        done.contains(&ServiceAction::Hold {
            clients: vec![client]
        }),
        "{done:?}"
    );
    assert_eq!(wire.guests(), []);
}

#[test]
fn what_an_annex_refuses_stays() {
    let mut wire = AnnexedWire::new();
    wire.hear(&[wire.offer(false)], false);
    let done = wire.refused(ANNEX);
    assert!(done.contains(&wire.guide(ServingNode::Primary)), "{done:?}");
    assert_eq!(wire.answer(), Some(OfferState::Refused("no memory".to_owned())));

    let mut wire = AnnexedWire::new();
    wire.move_there();
    wire.order_back();
    let done = wire.refused(ServingNode::Primary);
    assert!(done.contains(&wire.guide(ANNEX)), "{done:?}");
    assert_eq!(wire.guests(), [(wire.client, GAMMA)]);
    assert_eq!(wire.node.service(0).migrations().stayed, 1);
}

/// The annex has dropped the connection, and its new node cannot have it: the wire takes it over.
#[test]
fn what_an_annex_has_dropped_does_not_stay_there() {
    let mut wire = AnnexedWire::new();
    wire.move_there();
    wire.order_back();
    wire.restored(ServingNode::Primary);
    wire.refused(ServingNode::Primary);
    let is_held = |action: &ServiceAction| matches!(action, ServiceAction::Hold { .. });
    let done = wire.dropped(ANNEX);
    assert!(
        !done.iter().any(is_held),
        "the primary has not heard of it: {done:?}"
    );
    assert_eq!(wire.guests(), []);
    wire.take_back = wire.node.service(0).take_back();
    assert!(wire.hear(&[], false).iter().any(is_held));
}

/// The annex was slow to answer an earlier request to drop a socket, and has the connection now.
#[test]
fn a_late_answer_takes_a_connection_back_with_a_number() {
    let mut wire = AnnexedWire::new();
    wire.move_there();
    let before = wire.node.service(0).take_back();
    let done = wire.dropped(ANNEX);
    assert!(done.contains(&wire.drop_at(ANNEX)), "{done:?}");
    let is_held = |action: &ServiceAction| matches!(action, ServiceAction::Hold { .. });
    assert!(!done.iter().any(is_held), "{done:?}");
    assert!(wire.node.service(0).take_back() > before);
}

/// An annex that is silent before it has dropped a connection may go on with it. So the connection does not move on: the wire takes it over when
/// the primary has heard of it.
#[test]
fn what_a_silent_annex_has_not_dropped_does_not_move_on() {
    let mut wire = AnnexedWire::new();
    wire.move_there();
    wire.order_back();
    wire.restored(ServingNode::Primary);
    let done = wire.put(ServiceInput::AnnexIsUp {
        node: ANNEX,
        is_up: false,
    });
    assert!(done.contains(&wire.drop_at(ServingNode::Primary)), "{done:?}");
    assert!(!done.contains(&wire.guide(ServingNode::Primary)), "{done:?}");
    wire.take_back = wire.node.service(0).take_back();
    let is_held = |action: &ServiceAction| matches!(action, ServiceAction::Hold { .. });
    assert!(wire.hear(&[], false).iter().any(is_held));
}

#[test]
fn a_withdrawn_offer_leaves_the_connection_with_the_primary() {
    let mut wire = AnnexedWire::new();
    wire.hear(&[wire.offer(false)], false);
    wire.restored(ANNEX);
    let done = wire.hear(&[], false);
    let (dropped, guide) = (wire.drop_at(ANNEX), wire.guide(ServingNode::Primary));
    in_order(&done, &[&|action| *action == dropped, &|action| *action == guide]);
    assert_eq!(wire.guests(), []);
    // A late answer finds nothing to do but to drop the socket.
    assert_eq!(wire.restored(ANNEX), [dropped]);
}

#[test]
fn a_socket_that_is_not_made_in_time_is_given_up() {
    let mut wire = AnnexedWire::new();
    wire.hear(&[wire.offer(false)], false);
    wire.now = at(1005);
    let done = wire.hear(&[wire.offer(false)], false);
    assert!(!done.contains(&wire.guide(ServingNode::Primary)), "{done:?}");
    wire.now = at(1010);
    wire.node.handle_timeout(wire.now);
    let done = wire.carry_out();
    assert!(done.contains(&wire.guide(ServingNode::Primary)), "{done:?}");
}

/// The wire takes over what a silent annex has. What was not released is the primary's.
#[test]
fn a_silent_annexes_connections_are_taken_over() {
    let silent = ServiceInput::AnnexIsUp {
        node: ANNEX,
        is_up: false,
    };
    let mut wire = AnnexedWire::new();
    wire.move_there();
    let held = ServiceAction::Hold {
        clients: vec![wire.client],
    };
    let done = wire.put(silent.clone());
    let (reported, dropped) = (
        |action: &ServiceAction| {
            matches!(
                action,
                ServiceAction::Report(OperatorReport::LeftAnnex { connections: 1, .. })
            )
        },
        wire.drop_at(ANNEX),
    );
    in_order(
        &done,
        &[
            &reported,
            &|action| matches!(action, ServiceAction::Reserve { .. }),
            &|action| *action == dropped,
        ],
    );
    // The primary does not know yet that the annex must not go on.
    assert!(!wire.hear(&[], false).contains(&held));
    wire.take_back = wire.node.service(0).take_back();
    let done = wire.hear(&[], false);
    in_order(
        &done,
        &[
            &|action| *action == held,
            &|action| matches!(action, ServiceAction::Restore { .. }),
            &|action| matches!(action, ServiceAction::Activate { .. }),
        ],
    );
    assert_eq!(wire.guests(), []);

    let mut wire = AnnexedWire::new();
    wire.hear(&[wire.offer(false)], false);
    let done = wire.put(silent);
    assert!(done.contains(&wire.guide(ServingNode::Primary)), "{done:?}");
    assert!(!done.contains(&held), "{done:?}");
}

/// The annex was greeted before the wire took over what it had, and answers afterwards.
#[test]
fn what_was_taken_over_from_an_annex_is_not_adopted_from_it() {
    let mut wire = AnnexedWire::new();
    wire.move_there();
    wire.put(ServiceInput::AnnexIsUp {
        node: ANNEX,
        is_up: false,
    });
    wire.take_back = wire.node.service(0).take_back();
    let done = wire.hear(&[], false);
    let connection = done.iter().find_map(|action| match action {
        ServiceAction::Activate { connection, .. } => Some(*connection),
        _ => None,
    });
    let connection = connection.unwrap_or_else(|| panic!("{done:?}"));
    let endpoint = wire.node.service(0).table().get(connection).unwrap().endpoint();
    wire.put(ServiceInput::Live { connection });
    let taken = wire.node.hand_over(wire.now, 0, connection, &endpoint);
    assert!(taken.is_some());
    wire.carry_out();
    assert_eq!(
        wire.node.service(0).table().find(wire.client),
        None,
        "it is relayed"
    );
    let has = vec![wire.client];
    let inputs: Vec<_> = wire.node.service(0).on_link(ANNEX, has).collect();
    let done: Vec<_> = inputs.into_iter().flat_map(|input| wire.put(input)).collect();
    assert!(done.contains(&wire.drop_at(ANNEX)), "{done:?}");
    assert!(!done.contains(&wire.guide(ANNEX)), "{done:?}");
    assert_eq!(wire.guests(), []);
}

/// The annex falls silent after the primary has released the connection, and before its socket was started: only the wire has it.
#[test]
fn what_nobody_has_any_more_is_taken_over() {
    let mut wire = AnnexedWire::new();
    wire.hear(&[wire.offer(false)], false);
    wire.restored(ANNEX);
    wire.fails_to_start = true;
    let done = wire.hear(&[wire.offer(true)], false);
    let held = ServiceAction::Hold {
        clients: vec![wire.client],
    };
    in_order(
        &done,
        &[
            &|action| matches!(action, ServiceAction::Elsewhere(AnnexStep::StartAt { .. })),
            &|action| *action == held,
            &|action| matches!(action, ServiceAction::Restore { .. }),
        ],
    );
    assert_eq!(wire.answer(), Some(OfferState::Taken));
}

/// As [`what_nobody_has_any_more_is_taken_over`], on the way back: the primary has lost its wire for a moment, and has dropped the socket.
#[test]
fn what_the_primary_cannot_start_is_taken_over() {
    let mut wire = AnnexedWire::new();
    wire.move_back();
    let done = wire.refused(ServingNode::Primary);
    assert!(wire.takes_over(&done), "{done:?}");
    let mut wire = AnnexedWire::new();
    wire.move_back();
    wire.speaks();
    let done = wire.refused(ServingNode::Primary);
    assert!(!wire.takes_over(&done), "a late refusal: {done:?}");
}

/// The annex was asked to drop the connection. It may have done so, so its socket must not be trusted with the connection again.
#[test]
fn what_an_annex_was_asked_to_drop_does_not_stay_there() {
    let mut wire = AnnexedWire::new();
    wire.move_there();
    wire.order_back();
    assert_eq!(wire.restored(ServingNode::Primary), [wire.drop_at(ANNEX)]);
    let done = wire.put(ServiceInput::AnnexIsUp {
        node: ServingNode::Primary,
        is_up: false,
    });
    assert!(!done.contains(&wire.guide(ANNEX)), "{done:?}");
    let done = wire.dropped(ANNEX);
    assert!(wire.takes_over(&done), "{done:?}");
}

/// A new agent of the primary knows nothing of its predecessor's offers.
#[test]
fn a_new_agent_of_the_primary_keeps_what_was_not_released() {
    let mut wire = AnnexedWire::new();
    wire.hear(&[wire.offer(false)], false);
    wire.node.handle_timeout(wire.now);
    let heartbeat = Heartbeat {
        node: "alpha".to_owned(),
        incarnation: 2,
        sequence: 1,
        sent: 0,
        echo: None,
        services: Vec::new(),
    };
    wire.node.handle_heartbeat(wire.now, heartbeat);
    let done = wire.carry_out();
    assert!(done.contains(&wire.guide(ServingNode::Primary)), "{done:?}");
}

/// The client's next connection is the primary's.
#[test]
fn a_connection_that_ends_leaves_the_annex() {
    let mut wire = AnnexedWire::new();
    wire.move_there();
    let done = wire.say(Direction::Out, Flags::RST, (1, b""));
    assert!(done.contains(&wire.guide(ServingNode::Primary)), "{done:?}");
    assert_eq!(wire.guests(), []);
}

/// A primary that leaves is taken over as a whole: annexes included.
#[test]
fn a_takeover_of_the_service_takes_the_annexes_connections() {
    let mut wire = AnnexedWire::new();
    wire.move_there();
    let done = wire.hear(&[], true);
    let dropped = wire.drop_at(ANNEX);
    in_order(
        &done,
        &[
            &|action| {
                matches!(
                    action,
                    ServiceAction::SetGate {
                        gate: Gate::Takeover,
                        ..
                    }
                )
            },
            &|action| *action == dropped,
            &|action| matches!(action, ServiceAction::Restore { .. }),
        ],
    );
    assert_eq!(wire.guests(), []);
}

/// Without their wire, the connections of annexes would end. So a wire that is to leave brings them back first.
#[test]
fn a_wire_brings_guests_back_before_it_leaves() {
    let mut wire = AnnexedWire::new();
    wire.move_there();
    let is_told = |wire: &AnnexedWire| wire.node.service(0).beat(Orphans::default(), None).leaves;
    let done = wire.put(ServiceInput::Leave(true));
    assert!(
        done.iter().any(|action| matches!(
            action,
            ServiceAction::Elsewhere(AnnexStep::RestoreAt {
                node: ServingNode::Primary,
                ..
            })
        )),
        "{done:?}"
    );
    assert!(!is_told(&wire));
    wire.restored(ServingNode::Primary);
    wire.dropped(ANNEX);
    assert_eq!(wire.guests(), []);
    assert!(is_told(&wire));

    // A primary that does not answer is not waited for without end.
    let mut wire = AnnexedWire::new();
    wire.move_there();
    wire.put(ServiceInput::AnnexIsUp {
        node: ServingNode::Primary,
        is_up: false,
    });
    wire.put(ServiceInput::Leave(true));
    assert!(!is_told(&wire));
    wire.now = at(3100);
    wire.hear(&[], false);
    assert!(is_told(&wire));
}

/// Only the node that has the connection may say where its application goes on.
#[test]
fn snapshots_count_if_they_come_from_the_connections_node() {
    let mut wire = AnnexedWire::with_policy(RestartPolicy::Snapshot);
    let part = |wire: &AnnexedWire, number| ServiceInput::Part(wire.part(number));
    let part_at = |wire: &AnnexedWire, annex, number| ServiceInput::PartAt {
        annex,
        part: wire.part(number),
    };
    let kept = |wire: &AnnexedWire, number| wire.receipt(number, SnapshotStanding::Kept);
    assert_eq!(wire.put(part_at(&wire, GAMMA, 900)), [], "the primary's");
    let done = wire.put(part(&wire, 900));
    assert_eq!(done, [ServiceAction::SendReceipt(kept(&wire, 900))]);

    wire.move_there();
    assert_eq!(wire.put(part(&wire, 901)), [], "the annex's");
    assert_eq!(wire.put(part_at(&wire, AnnexId(4), 901)), [], "another annex's");
    let at_annex = |receipt| {
        let annex = GAMMA;
        ServiceAction::Elsewhere(AnnexStep::Receipt { annex, receipt })
    };
    let done = wire.put(part_at(&wire, GAMMA, EXPORTED + 1));
    assert_eq!(done, [at_annex(kept(&wire, EXPORTED + 1))]);

    wire.order_back();
    wire.restored(ServingNode::Primary);
    let done = wire.put(part_at(&wire, GAMMA, EXPORTED + 2));
    assert_eq!(
        done,
        [at_annex(kept(&wire, EXPORTED + 2))],
        "it has not dropped the connection"
    );
    wire.dropped(ANNEX);
    assert_eq!(
        wire.put(part_at(&wire, GAMMA, EXPORTED + 3)),
        [],
        "the primary's again"
    );
    let [ServiceAction::SendReceipt(receipt)] = &wire.put(part(&wire, EXPORTED))[..] else {
        panic!("no receipt");
    };
    let standing = receipt.standing.as_ref();
    assert!(
        matches!(standing, Some(SnapshotStanding::Unfit(_))),
        "from before: {standing:?}"
    );
    let done = wire.put(part(&wire, EXPORTED + 1));
    assert_eq!(done, [ServiceAction::SendReceipt(kept(&wire, EXPORTED + 1))]);
}

fn told(client: SocketAddr, terms: Option<Terms>) -> Vec<ClientTerms> {
    vec![(client, terms)]
}

/// The wire asks now and then whether silent connections still exist. The primary does not know those of annexes.
#[test]
fn an_annex_is_asked_about_its_silent_connections() {
    let mut wire = AnnexedWire::new();
    wire.move_there();
    let mut asked = Vec::new();
    let until = wire.now + std::time::Duration::from_secs(90);
    while wire.now < until {
        wire.now += std::time::Duration::from_millis(20);
        asked.extend(wire.hear(&[], false));
    }
    let clients = vec![wire.client];
    let ask = ServiceAction::Elsewhere(AnnexStep::Ask {
        annex: GAMMA,
        clients,
    });
    assert!(asked.contains(&ask));
    assert!(
        !asked
            .iter()
            .any(|action| matches!(action, ServiceAction::Ask { .. }))
    );
    let is_followed = |wire: &AnnexedWire| wire.node.service(0).table().find(wire.client).is_some();
    wire.put(ServiceInput::Told(told(wire.client, None)));
    assert!(is_followed(&wire), "the primary does not know");
    wire.put(ServiceInput::ToldAt {
        annex: GAMMA,
        told: told(wire.client, None),
    });
    assert!(!is_followed(&wire), "the annex knows");
}

/// The primary has carried the annex's connections while there was no wire. They are older than the new wire's log.
#[test]
fn a_new_wire_takes_over_what_the_primary_has_carried_and_learns_it() {
    let mut wire = AnnexedWire::new();
    let (logged, carried) = (wire.client, SocketAddr::from(([10, 1, 0, 1], 4001)));
    let annex = GAMMA;
    let done = wire.put(ServiceInput::Claimed {
        annex,
        clients: vec![logged, carried],
    });
    assert!(
        done.contains(&wire.drop_at(ANNEX)),
        "{done:?}: it has begun after the annex's"
    );
    let (client, node, clients) = (carried, ANNEX, vec![carried]);
    assert!(done.contains(&ServiceAction::Elsewhere(AnnexStep::Guide { client, node })));
    assert!(done.contains(&ServiceAction::Elsewhere(AnnexStep::Ask { annex, clients })));
    assert_eq!(wire.guests(), [(carried, GAMMA)]);

    let is_older = |wire: &AnnexedWire| {
        let mut older = wire.node.service(0).table().older(wire.now);
        older.any(|(client, cause)| client == carried && !matches!(cause, UnprotectedCause::NotLearnt(_)))
    };
    assert!(!is_older(&wire));
    let terms = Terms {
        mss: 1460,
        window_scale: None,
        sack: true,
        timestamps: false,
        microseconds: false,
    };
    wire.put(ServiceInput::ToldAt {
        annex,
        told: told(carried, Some(terms)),
    });
    assert!(is_older(&wire), "it is learnt from its next request on");
    wire.put(ServiceInput::ToldAt {
        annex,
        told: told(carried, None),
    });
    assert_eq!(wire.guests(), [], "it has ended, which no log shows");
}
