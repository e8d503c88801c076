//! Moves back to the primary, while the wire does not know whether the primary has started the connection, or speaks alone.

use super::*;
use crate::annex::DOUBT_MAX;

/// The wire's agent was away. If the primary speaks alone, it must find the connection on the annex.
#[test]
fn a_wire_in_doubt_lets_no_annex_drop_anything() {
    let mut wire = AnnexedWire::new();
    wire.move_there();
    wire.order_back();
    wire.now += wire.node.config().detector.agent_timeout;
    let mut early = wire.heartbeat(&[], false);
    early.echo = None;
    wire.node.handle_heartbeat(wire.now, early);
    let done = wire.restored(ServingNode::Primary);
    assert!(done.contains(&wire.guide(ANNEX)), "{done:?}");
    assert!(!done.contains(&wire.drop_at(ANNEX)), "{done:?}");
}

/// The wire has asked the primary to start a connection, and the link is lost. Nothing of the connection passes until the primary says whether
/// it has started it.
#[test]
fn a_start_whose_link_is_lost_is_asked_for() {
    let link = |is_up| ServiceInput::AnnexIsUp {
        node: ServingNode::Primary,
        is_up,
    };
    for lives in [true, false] {
        let mut wire = AnnexedWire::new();
        wire.move_back();
        let clients = vec![wire.client];
        assert_eq!(
            wire.node.service(0).unconfirmed(),
            clients,
            "the greeting names it"
        );
        let done = wire.put(link(false));
        assert!(
            done.contains(&ServiceAction::Reserve {
                clients: clients.clone()
            }),
            "{done:?}"
        );
        assert!(!wire.takes_over(&done), "{done:?}");
        let has = if lives { clients } else { Vec::new() };
        let inputs: Vec<_> = wire.node.service(0).on_link(ServingNode::Primary, has).collect();
        let done: Vec<_> = inputs.into_iter().flat_map(|input| wire.put(input)).collect();
        assert_eq!(wire.takes_over(&done), !lives, "{done:?}");
        assert_eq!(
            done.contains(&wire.guide(ServingNode::Primary)),
            lives,
            "{done:?}"
        );
    }
    let mut wire = AnnexedWire::new();
    wire.move_back();
    wire.speaks();
    let done = wire.put(link(false));
    assert!(
        !done
            .iter()
            .any(|action| matches!(action, ServiceAction::Reserve { .. }))
    );
}

/// The primary lives, but there is no link to it.
#[test]
fn a_start_does_not_stay_in_doubt() {
    let mut wire = AnnexedWire::new();
    wire.move_back();
    wire.put(ServiceInput::AnnexIsUp {
        node: ServingNode::Primary,
        is_up: false,
    });
    let mut done = Vec::new();
    let end = wire.now + DOUBT_MAX;
    while wire.now < end {
        assert_eq!(done, []);
        wire.now += std::time::Duration::from_millis(20);
        done = wire.hear(&[], false);
        done.retain(|action| matches!(action, ServiceAction::Elsewhere(_)));
    }
    assert_eq!(done, [wire.guide(ServingNode::Primary)]);
}
