//! Connections of annexes that a primary carries after its wire has failed.

use super::*;
use crate::annex::{AnnexId, ServingNode};
use crate::carried::CLAIM_MAX;
use crate::migration::{OfferAnswer, OfferState};

const GAMMA: AnnexId = AnnexId(3);
const ANNEX: ServingNode = ServingNode::Annex(GAMMA);

fn client() -> SocketAddr {
    "10.0.0.1:4000".parse().unwrap()
}

impl Two {
    /// Gives an input to a node. Returns the steps that it orders for connections of annexes.
    fn put(&mut self, index: usize, input: ServiceInput) -> Vec<AnnexStep> {
        let now = self.now;
        self.nodes[index].handle(now, 0, input);
        self.carry_out(index);
        std::mem::take(&mut self.steps[index])
    }

    /// The wire has an annex, and has said that the annex has a connection.
    fn with_guest(knows_the_annex: bool) -> Self {
        let mut two = Self::new(Arbiter::FailStop);
        two.pass(SHORT);
        if knows_the_annex {
            let (node, is_up) = (ANNEX, true);
            two.put(1, ServiceInput::AnnexIsUp { node, is_up });
        }
        two.pass(SHORT);
        let (places, is_all) = (vec![(client(), ANNEX)], false);
        let steps = two.put(0, ServiceInput::LiveAt { places, is_all });
        assert_eq!(steps, [guide(ANNEX)]);
        assert_eq!(
            two.nodes[0].service(0).asks_with(),
            None,
            "the wire passes the packets"
        );
        two
    }

    /// The same, and then the wire fails.
    fn without_wire(knows_the_annex: bool) -> Self {
        let mut two = Self::with_guest(knows_the_annex);
        two.kill(1).pass(LONG);
        two
    }
}

fn guide(node: ServingNode) -> AnnexStep {
    let client = client();
    AnnexStep::Guide { client, node }
}

fn claimed(clients: Vec<SocketAddr>) -> ServiceInput {
    let annex = GAMMA;
    ServiceInput::Claimed { annex, clients }
}

#[test]
fn a_primary_that_is_alone_asks_the_annexes_with_the_number_that_it_has_heard() {
    let mut two = Two::without_wire(true);
    let (role, epoch) = two.roles()[0];
    assert_eq!(role, Role::Sole);
    let number = two.nodes[0].service(0).asks_with().expect("it asks");
    assert!(number.given > 0 && number.epoch < epoch, "the wire's: {number:?}");
    assert_eq!(
        two.nodes[0].service(0).take_back(),
        Some(0),
        "no wire of this epoch"
    );
    assert_eq!(two.put(0, claimed(vec![client()])), [guide(ANNEX)]);
    assert_eq!(two.nodes[0].service(0).guests().count(), 1);
    two.pass(CLAIM_MAX);
    assert_eq!(two.steps[0], [], "what is claimed is not lost");
    let (node, reason) = (ANNEX, "it has ended".to_owned());
    let lost = ServiceInput::RefusedAt {
        client: client(),
        node,
        reason,
    };
    assert_eq!(two.put(0, lost), [guide(ServingNode::Primary)]);
    assert_eq!(two.nodes[0].service(0).asks_with(), None);
}

#[test]
fn what_no_annex_claims_ends() {
    let mut two = Two::without_wire(true);
    two.pass(CLAIM_MAX);
    assert_eq!(std::mem::take(&mut two.steps[0]), [guide(ServingNode::Primary)]);
    let drop_at = AnnexStep::DropAt {
        client: client(),
        node: ANNEX,
    };
    assert_eq!(two.put(0, claimed(vec![client()])), [drop_at], "it is too late");
}

/// A wire that has said nothing of annexes may have taken connections back from them.
#[test]
fn a_primary_that_has_heard_no_number_asks_nobody() {
    let two = Two::without_wire(false);
    assert_eq!(two.roles()[0].0, Role::Sole);
    assert_eq!(two.nodes[0].service(0).asks_with(), None);
}

/// The list of the new wire does not name what the last one had.
#[test]
fn a_primary_with_a_new_wire_asks_the_annexes_too() {
    let mut two = Two::with_guest(true);
    let number = two.nodes[0].service(0).take_back();
    two.kill(1).start(1).pass(LONG);
    let was_alone = |two: &Two| {
        two.nodes[0]
            .service(0)
            .roles()
            .any(|since| since.role == Role::Sole)
    };
    assert!(!was_alone(&two));
    assert_eq!(two.roles().map(|(role, _)| role), [Role::Primary, Role::Backup]);
    let (places, is_all) = (Vec::new(), true);
    assert_eq!(two.put(0, ServiceInput::LiveAt { places, is_all }), []);
    let asks_with = two.nodes[0].service(0).asks_with();
    assert!(number.is_some() && asks_with.map(|one| one.given) == number);
    let offered: Vec<_> = two.nodes[0].service(0).offered_guests().collect();
    assert_eq!(offered, [(client(), GAMMA)]);
    assert_eq!(two.put(0, claimed(vec![client()])), [guide(ANNEX)]);
}

/// An annex answers while the primary misses its wire again.
#[test]
fn a_primary_that_claims_believes_its_annexes() {
    let mut two = Two::without_wire(true);
    two.put(0, claimed(vec![client()]));
    two.start(1).pass(LONG);
    two.kill(1);
    while two.roles()[0].0 == Role::Primary {
        two.pass(Duration::from_millis(1));
    }
    assert_eq!(two.roles()[0].0, Role::Claiming);
    assert_eq!(two.put(0, claimed(vec![client()])), [guide(ANNEX)]);
}

/// The wire waits until the primary has heard of a take-back.
#[test]
fn the_primary_hears_of_a_take_back() {
    let mut two = Two::without_wire(true);
    let before = two.nodes[0].service(0).take_back();
    two.start(1).pass(LONG);
    assert_eq!(two.roles().map(|(role, _)| role), [Role::Primary, Role::Backup]);
    assert_eq!(
        two.nodes[0].service(0).take_back(),
        None,
        "a new wire, without annexes"
    );
    let (node, is_up) = (ANNEX, true);
    two.put(1, ServiceInput::AnnexIsUp { node, is_up });
    two.pass(SHORT);
    let heard = two.nodes[0].service(0).take_back();
    assert!(heard.is_some() && heard != before);
    assert_eq!(heard, two.nodes[1].service(0).take_back());
}

/// The wire's next list does not name the connection as an annex's. Without this, the primary would stop following it.
#[test]
fn a_connection_that_moves_to_the_wire_is_on_no_annex() {
    let mut two = Two::with_guest(true);
    let (clients, until) = (vec![client()], two.now + LONG);
    let annex = None;
    two.put(
        0,
        ServiceInput::Migrate {
            clients,
            annex,
            until,
        },
    );
    let offers = two.nodes[0].service(0).migration_beat().offers;
    two.now += BEAT;
    let now = two.now;
    two.nodes[1].handle_timeout(now);
    let mut heartbeat = two.heartbeat(1);
    let answers = offers.iter().map(|offer| OfferAnswer {
        number: offer.number,
        state: OfferState::Prepared,
    });
    let migration = heartbeat.services[0].migration.get_or_insert_default();
    migration.answers = answers.collect();
    two.nodes[0].handle_heartbeat(now, heartbeat);
    two.carry_out(0);
    let offers = two.nodes[0].service(0).migration_beat().offers;
    assert!(offers.iter().all(|offer| offer.is_released && offer.reverses));
    assert_eq!(std::mem::take(&mut two.steps[0]), [guide(ServingNode::Primary)]);
    let (places, is_all) = (Vec::new(), true);
    assert_eq!(two.put(0, ServiceInput::LiveAt { places, is_all }), []);
}
