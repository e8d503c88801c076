//! New links to an annex in the place of links that have ended, maybe because only the wire's agent stood still.

use super::*;

impl AnnexedWire {
    /// There is a new link to the annex.
    fn relinked(&mut self, has: &[SocketAddr]) -> Vec<ServiceAction> {
        let inputs: Vec<_> = self.node.service(0).on_link(ANNEX, has.to_vec()).collect();
        inputs.into_iter().flat_map(|input| self.put(input)).collect()
    }
}

#[test]
fn what_an_annex_has_stays_there() {
    let mut wire = AnnexedWire::new();
    wire.move_there();
    let client = wire.client;
    assert_eq!(wire.relinked(&[client]), []);
    assert_eq!(wire.guests(), [(client, GAMMA)]);
}

/// Its process has died while there was no link. No annex can speak for the connection, so the wire need not wait for the primary.
#[test]
fn what_an_annex_does_not_have_any_more_is_taken_over() {
    let mut wire = AnnexedWire::new();
    wire.move_there();
    let done = wire.relinked(&[]);
    assert!(wire.takes_over(&done), "{done:?}");
    assert_eq!(wire.guests(), []);
}

#[test]
fn what_an_annex_has_taken_from_elsewhere_is_dropped() {
    let mut wire = AnnexedWire::new();
    wire.move_back();
    wire.speaks();
    let done = wire.relinked(&[wire.client]);
    assert_eq!(done, [wire.drop_at(ANNEX)]);
}

/// The wire cannot tell it from one that the primary has carried, until the annex answers the order to drop it.
#[test]
fn what_has_ended_meanwhile_is_forgotten_when_it_is_dropped() {
    let mut wire = AnnexedWire::new();
    wire.move_there();
    wire.say(Direction::Out, Flags::RST, (1, b""));
    let done = wire.relinked(&[wire.client]);
    assert!(done.contains(&wire.guide(ANNEX)), "{done:?}");
    let done = wire.dropped(ANNEX);
    assert_eq!(done, [wire.drop_at(ANNEX), wire.guide(ServingNode::Primary)]);
    assert_eq!(wire.guests(), []);
}

/// The annex has dropped the socket that it had made.
#[test]
fn a_move_to_the_annex_begins_again() {
    let mut wire = AnnexedWire::new();
    wire.hear(&[wire.offer(false)], false);
    let done = wire.relinked(&[]);
    let guide = wire.guide(ServingNode::Primary);
    in_order(
        &done,
        &[
            &|action| *action == guide,
            &|action| matches!(action, ServiceAction::Reserve { .. }),
            &|action| matches!(action, ServiceAction::Elsewhere(AnnexStep::RestoreAt { node, .. }) if *node == ANNEX),
        ],
    );
}

/// The primary may have released it.
#[test]
fn a_prepared_connection_is_taken_over_if_its_socket_is_gone() {
    let mut wire = AnnexedWire::new();
    wire.hear(&[wire.offer(false)], false);
    wire.restored(ANNEX);
    assert_eq!(wire.relinked(&[]), []);
    wire.hear(&[wire.offer(true)], false);
    let done = wire.refused(ANNEX);
    assert!(wire.takes_over(&done), "{done:?}");
}

/// The annex was asked to drop it.
#[test]
fn a_connection_on_its_way_from_the_annex_moves_on_when_the_annex_has_dropped_it() {
    let moving = || {
        let mut wire = AnnexedWire::new();
        wire.move_there();
        wire.order_back();
        wire.restored(ServingNode::Primary);
        wire
    };
    let moves_on = |wire: &mut AnnexedWire, done: Vec<ServiceAction>| {
        assert!(done.contains(&wire.guide(ServingNode::Primary)), "{done:?}");
        assert!(!wire.takes_over(&done), "{done:?}");
        assert_eq!(wire.node.service(0).unconfirmed(), [wire.client]);
    };
    let mut wire = moving();
    let done = wire.relinked(&[]);
    moves_on(&mut wire, done);

    let mut wire = moving();
    let done = wire.relinked(&[wire.client]);
    assert_eq!(done, [wire.drop_at(ANNEX)]);
    let done = wire.dropped(ANNEX);
    moves_on(&mut wire, done);
}
