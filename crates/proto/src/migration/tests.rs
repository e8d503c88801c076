use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::diagram::{assert_shown, graphviz};

/// As many connections as may be offered at a time.
const MANY: u16 = OFFERS_MAX as u16;

fn client(number: u16) -> SocketAddr {
    ([10, 0, 0, 1], 4000 + number).into()
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

fn ordered(clients: std::ops::Range<u16>) -> OutgoingMigrations {
    let mut outgoing = OutgoingMigrations::new(Instant::ZERO, OFFERS_MAX);
    outgoing.order(clients.map(client), None, at(1000));
    outgoing
}

#[test]
fn a_connection_moves_step_by_step() {
    let (mut outgoing, mut incoming) = (ordered(0..1), IncomingMigrations::default());
    assert_eq!(incoming.hear(&outgoing.offers()), HeardOffers::default());
    assert_eq!(
        incoming.choose(|_| Err(OfferObstacle::Now("it writes".to_owned()))),
        []
    );
    assert_eq!(outgoing.on_answers(&incoming.answers()), HeardAnswers::default());
    assert_eq!(incoming.choose(|_| Ok(())), [client(0)]);
    assert_eq!(incoming.answers(), [], "it is being prepared");
    incoming.on_restored(client(0));
    let released = HeardAnswers {
        released: vec![client(0)],
        has_changed: true,
        ..HeardAnswers::default()
    };
    assert_eq!(outgoing.on_answers(&incoming.answers()), released);
    assert_eq!(
        outgoing.on_answers(&incoming.answers()),
        HeardAnswers::default(),
        "once"
    );
    let heard = incoming.hear(&outgoing.offers());
    assert_eq!(heard.released, [client(0)]);
    assert_eq!(incoming.hear(&outgoing.offers()), HeardOffers::default(), "once");
    incoming.on_decided(client(0));
    let moved = HeardAnswers {
        moved: vec![client(0)],
        has_changed: true,
        ..HeardAnswers::default()
    };
    assert_eq!(outgoing.on_answers(&incoming.answers()), moved);
    assert_eq!((outgoing.report().moved, outgoing.report().pending), (1, 0));
    assert_eq!(incoming.hear(&outgoing.offers()), HeardOffers::default());
    assert_eq!(incoming.answers(), []);
}

#[test]
fn what_cannot_move_in_time_stays_and_says_why() {
    let (mut outgoing, mut incoming) = (ordered(0..MANY + 28), IncomingMigrations::default());
    assert_eq!(outgoing.offers().len(), OFFERS_MAX);
    incoming.hear(&outgoing.offers());
    incoming.choose(|of| {
        if of.client == client(0) {
            Ok(())
        } else {
            Err(OfferObstacle::Now("it writes".to_owned()))
        }
    });
    incoming.on_restored(client(0));
    outgoing.on_answers(&incoming.answers());
    assert!(!outgoing.on_timeout(at(999)));
    assert_eq!(outgoing.poll_timeout(), Some(at(1000)));
    assert!(outgoing.on_timeout(at(1000)));
    let report = outgoing.report();
    assert_eq!(
        (report.pending, report.stayed),
        (1, u64::from(MANY) + 27),
        "the released one is the backup's"
    );
    assert_eq!(report.refusals.len(), REFUSALS_MAX);
    let reasons: Vec<_> = report.refusals.iter().map(|(_, why)| why.as_str()).collect();
    assert!(reasons.contains(&"it writes"), "{reasons:?}");
    assert_eq!(incoming.hear(&outgoing.offers()).released, [client(0)]);
}

const PHASES: [IncomingPhase; 7] = [
    IncomingPhase::Unknown,
    IncomingPhase::Waiting,
    IncomingPhase::Preparing,
    IncomingPhase::Prepared,
    IncomingPhase::Taking,
    IncomingPhase::Taken,
    IncomingPhase::Refused,
];
const EVENTS: [IncomingEvent; 7] = [
    IncomingEvent::Chosen,
    IncomingEvent::Restored,
    IncomingEvent::Impeded,
    IncomingEvent::Failed,
    IncomingEvent::Released,
    IncomingEvent::Decided,
    IncomingEvent::Missing,
];

#[test]
fn the_table_of_incoming_phases() {
    let row = |phase: IncomingPhase| {
        let cells = EVENTS.map(|event| format!("{event:?} {:?}", phase.after(event)));
        format!("{phase:?}: {}\n", cells.join(", "))
    };
    insta::assert_snapshot!(PHASES.map(row).concat(), @r"
    Unknown: Chosen Unknown, Restored Unknown, Impeded Unknown, Failed Unknown, Released Unknown, Decided Taken, Missing Refused
    Waiting: Chosen Preparing, Restored Waiting, Impeded Waiting, Failed Refused, Released Refused, Decided Waiting, Missing Waiting
    Preparing: Chosen Preparing, Restored Prepared, Impeded Waiting, Failed Refused, Released Preparing, Decided Prepared, Missing Preparing
    Prepared: Chosen Prepared, Restored Prepared, Impeded Waiting, Failed Refused, Released Taking, Decided Prepared, Missing Prepared
    Taking: Chosen Taking, Restored Taking, Impeded Taking, Failed Taking, Released Taking, Decided Taken, Missing Taking
    Taken: Chosen Taken, Restored Taken, Impeded Taken, Failed Taken, Released Taken, Decided Taken, Missing Taken
    Refused: Chosen Refused, Restored Refused, Impeded Refused, Failed Refused, Released Refused, Decided Refused, Missing Refused
    ");
}

#[test]
fn the_documents_show_the_table_of_incoming_phases() {
    let leads = |phase: IncomingPhase, event: IncomingEvent| {
        let next = phase.after(event);
        (next != phase).then(|| (next, format!("{event:?}")))
    };
    let graph = graphviz("migration", (&PHASES, &[]), &EVENTS, leads);
    assert_shown("migration", &graph);
}

#[test]
fn a_bereft_connection_comes_first_and_moves_or_is_lost() {
    let (mut outgoing, mut incoming) = (ordered(0..MANY + 2), IncomingMigrations::default());
    outgoing.order_bereft(&[client(0), client(MANY + 1), client(MANY + 5)], at(3000));
    let bereft = |offers: &[MigrationOffer]| -> Vec<_> {
        let bereft = offers.iter().filter(|offer| offer.is_bereft);
        bereft.map(|offer| offer.client).collect()
    };
    assert_eq!(bereft(&outgoing.offers()), [client(0)], "no place is free");
    incoming.hear(&outgoing.offers());
    let chosen = incoming.choose(|of| match of.client {
        of_client if of_client == client(0) => Err(OfferObstacle::Ever("its log has a gap".to_owned())),
        _ => Err(OfferObstacle::Now("it writes".to_owned())),
    });
    assert_eq!(chosen, []);
    outgoing.on_answers(&incoming.answers());
    assert_eq!(outgoing.take_lost(), [client(0)]);
    assert_eq!(outgoing.take_lost(), []);
    assert_eq!(
        bereft(&outgoing.offers()),
        [client(MANY + 1), client(MANY + 5)],
        "before the others, and once"
    );
    incoming.hear(&outgoing.offers());
    assert!(incoming.is_bereft(&client(MANY + 5)) && !incoming.is_bereft(&client(1)));
    incoming.choose(|of| match of.client {
        of_client if of_client == client(MANY + 5) => Ok(()),
        _ => Err(OfferObstacle::Now("it writes".to_owned())),
    });
    incoming.on_restored(client(MANY + 5));
    assert_eq!(
        outgoing.on_answers(&incoming.answers()).released,
        [client(MANY + 5)]
    );
    outgoing.on_timeout(at(2999));
    assert_eq!(outgoing.take_lost(), []);
    outgoing.withdraw();
    assert_eq!(outgoing.take_lost(), [client(MANY + 1)]);
    outgoing.give_up();
    assert_eq!(outgoing.take_lost(), [], "the other node has it");
}

#[test]
fn a_silent_backup_is_named_as_the_reason() {
    let mut outgoing = ordered(0..MANY + 1);
    outgoing.on_timeout(at(1000));
    let reasons: Vec<_> = outgoing
        .report()
        .refusals
        .into_iter()
        .map(|(_, why)| why)
        .collect();
    assert_eq!(reasons[0], "its turn had not come when the time was over");
    assert_eq!(reasons[1], "the backup has not answered");
}

#[test]
fn a_node_with_many_services_offers_fewer_connections() {
    let mut outgoing = OutgoingMigrations::new(Instant::ZERO, offers_max(SERVICES_FEW + 1));
    outgoing.order((0..MANY).map(client), None, at(1000));
    assert_eq!(outgoing.offers().len(), OFFERS_MAX_OF_MANY);
    assert_eq!(offers_max(SERVICES_FEW), OFFERS_MAX);
}

#[test]
fn what_cannot_move_lets_others_pass() {
    let (mut outgoing, mut incoming) = (ordered(0..MANY + 2), IncomingMigrations::default());
    incoming.hear(&outgoing.offers());
    incoming.choose(|of| {
        if of.client == client(3) {
            Ok(())
        } else {
            Err(OfferObstacle::Now("it writes".to_owned()))
        }
    });
    outgoing.on_answers(&incoming.answers());
    let offered: Vec<_> = outgoing.offers().iter().map(|offer| offer.client).collect();
    assert_eq!(offered.len(), OFFERS_MAX);
    for waited in [client(MANY), client(MANY + 1), client(3)] {
        assert!(offered.contains(&waited), "{waited} is offered");
    }
    outgoing.on_timeout(at(1000));
    let report = outgoing.report();
    assert!(
        report.refusals.iter().any(|(_, why)| why == "it writes"),
        "{report:?}"
    );
}

#[test]
fn a_withdrawn_offer_is_given_back() {
    let (mut outgoing, mut incoming) = (ordered(0..2), IncomingMigrations::default());
    incoming.hear(&outgoing.offers());
    assert_eq!(incoming.choose(|_| Ok(())).len(), 2);
    incoming.on_restored(client(1));
    incoming.on_failed(client(0), "no socket".to_owned(), true);
    outgoing.give_up();
    assert_eq!(incoming.hear(&outgoing.offers()).withdrawn, [client(1)]);
    assert_eq!(outgoing.report().stayed, 2);
}

/// The offers of an owner that freezes the sockets of what it has released.
fn frozen(outgoing: &OutgoingMigrations) -> Vec<MigrationOffer> {
    let mut offers = outgoing.offers();
    for offer in &mut offers {
        offer.is_frozen = offer.is_released;
    }
    offers
}

/// A connection that is prepared on one node, and released by the other.
fn released() -> (OutgoingMigrations, IncomingMigrations) {
    let (mut outgoing, mut incoming) = (ordered(0..1), IncomingMigrations::default());
    incoming.hear(&outgoing.offers());
    incoming.choose(|_| Ok(()));
    incoming.on_restored(client(0));
    assert_eq!(outgoing.on_answers(&incoming.answers()).released, [client(0)]);
    (outgoing, incoming)
}

/// Its agent was started again before it heard of the release.
#[test]
fn what_the_other_node_does_not_have_stays() {
    let (mut outgoing, _) = released();
    let mut incoming = IncomingMigrations::default();
    assert_eq!(incoming.hear(&frozen(&outgoing)).unknown, [client(0)]);
    assert_eq!(incoming.hear(&frozen(&outgoing)), HeardOffers::default(), "once");
    assert_eq!(incoming.answers(), []);
    incoming.on_looked_for(client(0), false);
    let answered = outgoing.on_answers(&incoming.answers());
    assert_eq!((answered.refused, answered.moved), (vec![client(0)], vec![]));
    assert_eq!((outgoing.report().stayed, outgoing.report().pending), (1, 0));
}

/// Its agent was started again after it had taken the connection.
#[test]
fn what_the_other_node_has_has_moved() {
    let (mut outgoing, _) = released();
    let mut incoming = IncomingMigrations::default();
    incoming.hear(&frozen(&outgoing));
    incoming.on_looked_for(client(0), true);
    let answered = outgoing.on_answers(&incoming.answers());
    assert_eq!((answered.refused, answered.moved), (vec![], vec![client(0)]));
}

/// The owner's agent was started again after the release. The other node has prepared the connection for the earlier agent.
#[test]
fn a_new_agent_goes_on_with_what_was_released() {
    let (_, mut incoming) = released();
    let mut outgoing = OutgoingMigrations::new(at(10), OFFERS_MAX);
    outgoing.resume([client(0)]);
    incoming.doubt();
    assert!(incoming.is_unconfirmed());
    assert_eq!(incoming.hear(&frozen(&outgoing)).released, [client(0)]);
    assert!(!incoming.is_unconfirmed());
    incoming.on_decided(client(0));
    assert_eq!(outgoing.on_answers(&incoming.answers()).moved, [client(0)]);
}

/// An owner that cannot freeze its socket has destroyed it, so nobody else has the connection.
#[test]
fn what_is_not_frozen_cannot_be_refused() {
    let (mut outgoing, _) = released();
    let mut incoming = IncomingMigrations::default();
    assert_eq!(incoming.hear(&outgoing.offers()), HeardOffers::default());
    assert_eq!(outgoing.on_answers(&incoming.answers()).moved, [client(0)]);
}

/// Both sides, with a network that loses, repeats and overtakes heartbeats. Never do both nodes have a connection.
#[derive(Clone, Debug)]
enum Turn {
    ToBackup(bool),
    ToPrimary(bool),
    Prepare(u16),
    Fail(u16),
    Decide,
    Expire,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = prop_oneof![
        any::<bool>().prop_map(Turn::ToBackup),
        any::<bool>().prop_map(Turn::ToPrimary),
        (0..3u16).prop_map(Turn::Prepare),
        (0..3u16).prop_map(Turn::Fail),
        Just(Turn::Decide),
        Just(Turn::Expire),
    ];
    prop::collection::vec(turn, 0..60)
}

proptest! {
    #[test]
    fn one_node_has_each_connection(turns in turns()) {
        let (mut outgoing, mut incoming) = (ordered(0..3), IncomingMigrations::default());
        let (mut primary, mut backup) = (BTreeSet::from([0, 1, 2].map(client)), BTreeSet::new());
        let mut prepared = BTreeSet::new();
        for turn in turns {
            match turn {
                Turn::ToBackup(arrives) => if arrives {
                    let heard = incoming.hear(&outgoing.offers());
                    for gone in heard.withdrawn {
                        prepared.remove(&gone);
                    }
                    for released in heard.released {
                        prop_assert!(prepared.remove(&released), "it was prepared");
                        prop_assert!(!primary.contains(&released), "the primary has let it go");
                        backup.insert(released);
                    }
                },
                Turn::ToPrimary(arrives) => if arrives {
                    for released in outgoing.on_answers(&incoming.answers()).released {
                        prop_assert!(prepared.contains(&released), "the backup can go on");
                        primary.remove(&released);
                    }
                },
                Turn::Prepare(number) => {
                    let one = client(number);
                    let chosen = incoming.choose(|of| if of.client == one { Ok(()) } else { Err(OfferObstacle::Now("later".to_owned())) });
                    for chosen in chosen {
                        prepared.insert(chosen);
                        incoming.on_restored(chosen);
                    }
                }
                Turn::Fail(number) => {
                    let one = client(number);
                    let chosen = incoming.choose(|of| if of.client == one { Ok(()) } else { Err(OfferObstacle::Now("later".to_owned())) });
                    chosen.into_iter().for_each(|chosen| incoming.on_failed(chosen, "no".to_owned(), number == 0));
                }
                Turn::Decide => backup.iter().for_each(|&client| incoming.on_decided(client)),
                Turn::Expire => drop(outgoing.on_timeout(at(2000))),
            }
            prop_assert!(primary.is_disjoint(&backup), "both have a connection");
        }
        // With a network that works, everything comes to an end.
        outgoing.on_timeout(at(2000));
        for _ in 0..4 {
            for released in incoming.hear(&outgoing.offers()).released {
                backup.insert(released);
            }
            backup.iter().for_each(|&client| incoming.on_decided(client));
            for released in outgoing.on_answers(&incoming.answers()).released {
                primary.remove(&released);
            }
        }
        prop_assert_eq!(outgoing.report().pending, 0);
        prop_assert_eq!(primary.len() + backup.len(), 3, "each connection has a node");
    }
}
