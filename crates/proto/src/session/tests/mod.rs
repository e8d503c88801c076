//! Both sides of sessions against each other, in simulated time.

mod world;

use std::time::Duration;

use super::certificate::{CertificateKey, SessionId};
use super::client::{ClientAction, ClientSession, SessionReport};
use super::client_phase::ClientPhase;
use super::frame::{
    AttachRequest, ClientFrame, CooperatingServer, ServerFrame, SessionCommit, SnapshotMark, StateTransfer,
};
use super::server::{ServerAction, ServerSession, ServerSessionConfig};
use crate::restart::replay::ReplayTracker;
use crate::{Instant, Offset};
use world::{SessionDice, SessionWorld, SimServer};

const TRANSFERS: [StateTransfer; 3] = [StateTransfer::Lazy, StateTransfer::Eager, StateTransfer::Client];

/// Longest time of a run, in milliseconds.
const RUN_MAX: u32 = 60_000;

fn moves(world: &SessionWorld) -> Vec<(String, String)> {
    let moved = world.reports.iter().filter_map(|report| match report {
        SessionReport::Moved { from, to, .. } => Some((from.clone(), to.clone())),
        _ => None,
    });
    moved.collect()
}

/// Runs until the client has all output. `faults` may interfere in each millisecond.
fn run(world: &mut SessionWorld, mut faults: impl FnMut(&mut SessionWorld, u32)) {
    for millis in 0..RUN_MAX {
        faults(world, millis);
        world.tick();
        world.check_output();
        if world.is_complete() || world.was_reset {
            break;
        }
    }
}

#[track_caller]
fn assert_complete(world: &SessionWorld, what: &str) {
    let (got, owner) = (world.output.len(), world.client.owner());
    let phase = world.client.phase();
    assert!(
        world.is_complete() && !world.was_reset,
        "{what}: {got} bytes, owner {owner}, {phase:?}, {:?}",
        &world.reports[world.reports.len().saturating_sub(8)..]
    );
}

#[test]
fn a_session_without_moves_is_carried() {
    for transfer in TRANSFERS {
        let mut world = SessionWorld::new(1, transfer, 2000);
        run(&mut world, |_, _| {});
        assert_complete(&world, "no fault");
        assert_eq!(moves(&world), []);
        for _ in 0..1000 {
            world.tick();
        }
        assert_eq!(world.client.phase(), ClientPhase::Over);
        assert!(
            world.servers.iter().all(|server| server.session.is_none()),
            "everything is forgotten"
        );
    }
}

#[test]
fn a_session_moves_there_and_back_many_times() {
    for transfer in TRANSFERS {
        let mut world = SessionWorld::new(2, transfer, 4000);
        run(&mut world, |world, millis| {
            if millis % 150 == 100 {
                let to = if world.client.owner() == "a" { "b" } else { "a" };
                let _ = world.client.order_move(world.now, Some(to));
            }
        });
        assert_complete(&world, "moves");
        let moves = moves(&world);
        assert!(moves.len() > 6, "{moves:?}");
        assert!(moves.iter().all(|(from, to)| from != to), "{moves:?}");
        assert_eq!(
            world.reports.len(),
            moves.len(),
            "no attempt fails: {:?}",
            world.reports
        );
        for _ in 0..1000 {
            world.tick();
        }
        let forgets = |server: &SimServer| server.session.is_none();
        assert!(world.servers.iter().all(forgets), "former owners forget it too");
    }
}

#[test]
fn a_crash_of_the_owner_is_survived_if_the_state_is_elsewhere() {
    for seed in 0..40 {
        for transfer in TRANSFERS {
            let mut world = SessionWorld::new(seed, transfer, 1500);
            let when = u32::try_from(SessionDice(seed).below(500)).unwrap() + 30;
            run(&mut world, |world, millis| {
                if millis == when {
                    let owner = world.owner().unwrap();
                    world.crash(owner);
                }
            });
            let is_safe = transfer != StateTransfer::Lazy;
            if is_safe || world.is_complete() {
                assert_complete(&world, &format!("seed {seed}, {transfer:?}"));
            } else {
                assert!(world.was_reset, "the client notices the loss");
            }
        }
    }
}

/// The bounds of the paper's Figure 6 at size 0, in round-trip times: between client and servers, and between servers.
#[test]
fn a_move_takes_two_round_trips_or_one() {
    for (transfer, tenths_max) in [
        (StateTransfer::Lazy, 26),
        (StateTransfer::Eager, 15),
        (StateTransfer::Client, 15),
    ] {
        let mut world = SessionWorld::new(5, transfer, 4000);
        world.one_way = Some(50);
        run(&mut world, |world, millis| {
            if millis == 1000 {
                world.client.order_move(world.now, Some("b")).unwrap();
            }
        });
        assert_complete(&world, "one move");
        let took = world.reports.iter().find_map(|report| match report {
            SessionReport::Moved { took, .. } => Some(took.as_millis()),
            _ => None,
        });
        let took = took.expect("it moves");
        assert!(
            took <= tenths_max * 10,
            "{transfer:?}: {took} ms, and a round trip takes 100 ms"
        );
    }
}

/// Moves, links that break or stand still, and crashes, all at random.
fn play(seed: u64, transfer: StateTransfer, crashes: u32) -> SessionWorld {
    let mut world = SessionWorld::new(seed, transfer, 2500);
    let mut dice = SessionDice(seed ^ 0xabcd);
    let mut left = crashes;
    let mut revive_at = [0_u32; 3];
    run(&mut world, |world, millis| {
        for (at, due) in revive_at.iter_mut().enumerate() {
            if *due == millis && millis > 0 {
                world.revive(at);
            }
        }
        if !(20..=4000).contains(&millis) {
            return; // later, the network works, and everything comes to an end
        }
        match dice.below(400) {
            0..4 => drop(world.client.order_move(world.now, None)),
            4..6 => world.break_link(),
            6..8 => world.stop_link(),
            8 if left > 0 && millis > 100 => {
                let at = usize::try_from(dice.below(3)).unwrap();
                if !world.servers[at].is_dead {
                    left -= 1;
                    world.crash(at);
                    revive_at[at] = millis + 1 + u32::try_from(dice.below(3000)).unwrap();
                }
            }
            _ => {}
        }
    });
    world
}

/// Each tick checks that at most one application runs, and that the client gets each byte once.
#[test]
fn one_server_owns_a_session_whatever_fails() {
    for seed in 0..60 {
        for transfer in TRANSFERS {
            let world = play(seed, transfer, 0);
            assert_complete(&world, &format!("no crash, seed {seed}, {transfer:?}"));
            let world = play(seed, transfer, 1);
            if transfer != StateTransfer::Lazy {
                assert_complete(&world, &format!("one crash, seed {seed}, {transfer:?}"));
            }
            play(seed, transfer, 4);
        }
    }
}

#[test]
fn a_server_whose_application_is_not_there_passes_the_session_on() {
    for transfer in TRANSFERS {
        let mut world = SessionWorld::new(3, transfer, 1500);
        world.servers[1].refuses = true;
        run(&mut world, |world, millis| {
            if millis == 100 {
                world.client.order_move(world.now, Some("b")).unwrap();
            }
        });
        assert_complete(&world, "refused");
        assert_ne!(world.client.owner(), "b");
    }
}

#[test]
fn output_that_differs_ends_the_session() {
    let mut world = SessionWorld::new(4, StateTransfer::Lazy, 1500);
    world.interval = u64::MAX; // no snapshot: everything is repeated
    let mut changed = false;
    for millis in 0..RUN_MAX {
        if millis == 200 {
            world.client.order_move(world.now, Some("b")).unwrap();
        }
        world.tick();
        if let (Some(application), false) = (&mut world.servers[1].application, changed) {
            changed = true;
            application.answer_differently();
        }
        if world.was_reset || world.is_complete() {
            break;
        }
    }
    assert!(changed && world.was_reset, "the client is not given other bytes");
}

/// The messages to servers, and the other actions.
fn actions(session: &mut ClientSession) -> Vec<ClientAction> {
    std::iter::from_fn(|| session.poll_action()).collect()
}

#[test]
fn a_new_session_that_a_server_refuses_is_opened_at_another_one() {
    let now = Instant::ZERO;
    let mut session = ClientSession::open(now, 1, "web", StateTransfer::Lazy, Duration::from_secs(1));
    session.on_client_data(b"early");
    session.on_client_end();
    let sent = actions(&mut session);
    session.handle_frame(now, 1, ServerFrame::Refused("full".into()));
    assert_eq!(
        actions(&mut session),
        [
            ClientAction::CloseLink(1),
            ClientAction::OpenElsewhere("full".into())
        ]
    );
    session.on_link_lost(now, 1);
    assert_eq!(session.phase(), ClientPhase::Served, "another server is sought");
    session.open_elsewhere(now, 2);
    let again = actions(&mut session).into_iter().map(|action| match action {
        ClientAction::Send(2, frame) => ClientAction::Send(1, frame),
        other => other,
    });
    assert_eq!(again.collect::<Vec<_>>(), sent, "the new server gets everything");
    session.handle_frame(now, 2, ServerFrame::Refused("full".into()));
    session.on_refused_everywhere("full");
    assert_eq!(session.phase(), ClientPhase::Over);
    session.open_elsewhere(now, 3);
    assert_eq!(actions(&mut session).last(), Some(&ClientAction::CloseLink(3)));
}

/// An order without a name goes to one server after another, if they refuse.
#[test]
fn a_session_that_is_to_leave_asks_all_servers_in_turn() {
    let now = Instant::ZERO;
    let mut session = ClientSession::open(now, 1, "web", StateTransfer::Lazy, Duration::from_secs(1));
    let server = |name: &str| CooperatingServer {
        name: name.into(),
        address: "127.0.0.1:7443".parse().unwrap(),
    };
    let (certificate, secret) = CertificateKey::new([7; 32]).issue(SessionId([1; 16]), "web", 1);
    let opened = ServerFrame::Opened {
        certificate,
        secret,
        servers: ["a", "b", "c"].map(server).into(),
        owner: "b".into(),
        lease_ms: 1000,
    };
    session.handle_frame(now, 1, opened);
    let asked = ["c", "a", "c"].map(|wanted| {
        session.order_move(now, None).unwrap();
        let asked = actions(&mut session).into_iter().find_map(|action| match action {
            ClientAction::Connect { attempt, server } => Some((attempt, server.name)),
            _ => None,
        });
        let (attempt, name) = asked.unwrap();
        session.on_connect_failed(now, attempt, "refused");
        (name, wanted)
    });
    assert!(asked.iter().all(|(name, wanted)| name == wanted), "{asked:?}");
}

/// The actions of a session at a server.
fn server_actions(session: &mut ServerSession) -> Vec<ServerAction> {
    std::iter::from_fn(|| session.poll_action()).collect()
}

/// The request of a proxy whose session moves from server a to a server in epoch 2.
fn attach_request(transfer: StateTransfer, point: SnapshotMark) -> AttachRequest {
    let (certificate, secret) = CertificateKey::new([7; 32]).issue(SessionId([1; 16]), "web", 1);
    AttachRequest {
        proof: secret.prove(&[0; 32], 2),
        certificate,
        epoch: 2,
        current: 1,
        owner: "a".into(),
        fetches: transfer == StateTransfer::Lazy,
        transfer,
        point,
    }
}

/// With eager transfer, the new owner pushes its restart point: the old owner may have stopped before each server had it. It also says that
/// no earlier snapshot is needed. Otherwise the other servers would keep these until they have no room.
#[test]
fn a_new_owner_pushes_its_restart_point() {
    let now = Instant::ZERO;
    let config = ServerSessionConfig {
        lease: Duration::from_secs(1),
        keep: Duration::from_secs(1),
    };
    let mark = SnapshotMark {
        number: 7,
        input: Offset(3),
        output: Offset(5),
    };
    let snapshot = mark.with_state(b"state".as_slice().into());
    let mut owner = ServerSession::empty(now, config, StateTransfer::Eager);
    let request = attach_request(StateTransfer::Eager, mark);
    owner.handle_attach(now, 1, request, Some(snapshot.clone()));
    let commit = SessionCommit {
        epoch: 2,
        received: Offset(5),
        repetition: ReplayTracker::new().repetition(),
        state: None,
    };
    owner.handle_frame(now, 1, ClientFrame::Commit(commit));
    assert!(owner.phase().runs());
    let push = ServerAction::Push { snapshot, point: 7 };
    assert!(server_actions(&mut owner).contains(&push));
}

/// An application that has ended its output, and reads on, goes on elsewhere: it gets the input after its last snapshot.
#[test]
fn an_application_that_has_ended_its_output_moves() {
    let now = Instant::ZERO;
    let config = ServerSessionConfig {
        lease: Duration::from_secs(1),
        keep: Duration::from_secs(1),
    };
    let opened = ServerFrame::Ping(0); // the first message does not matter here
    let mut old = ServerSession::open(now, config, StateTransfer::Lazy, 1, opened);
    let data = |at, bytes: &[u8]| ClientFrame::Data {
        at: Offset(at),
        bytes: bytes.to_vec(),
    };
    old.handle_frame(now, 1, data(0, b"abc"));
    old.on_application_took(now, 3);
    old.on_export(now, b"state".as_slice().into(), (2, 0)).unwrap();
    old.on_application_data(now, b"hello");
    old.on_application_end(now);
    let bundle = old.handle_fetch(now, 2).unwrap();
    assert!(server_actions(&mut old).contains(&ServerAction::StopApplication));

    let mut new = ServerSession::empty(now, config, StateTransfer::Lazy);
    let request = attach_request(StateTransfer::Lazy, SnapshotMark::default());
    new.handle_attach(now, 1, request, None);
    new.on_fetched(now, 2, bundle);
    let mut said = ReplayTracker::new();
    said.on_output(b"hello");
    let commit = SessionCommit {
        epoch: 2,
        received: Offset(5),
        repetition: said.repetition(),
        state: None,
    };
    new.handle_frame(now, 1, ClientFrame::Commit(commit));
    new.handle_frame(now, 1, data(3, b"def"));
    let done = server_actions(&mut new);
    let to_application = done
        .iter()
        .filter(|action| !matches!(action, ServerAction::Send(..)));
    let expected = [
        ServerAction::Fetch {
            owner: "a".into(),
            epoch: 2,
        },
        ServerAction::StartApplication(Some(b"state".as_slice().into())),
        ServerAction::ToApplication(b"c".to_vec()),
        ServerAction::ToApplication(b"def".to_vec()),
    ];
    assert_eq!(to_application.cloned().collect::<Vec<_>>(), expected);
    assert!(done.contains(&ServerAction::Send(1, ServerFrame::End(Offset(5)))));
    new.on_application_data(now, b"hello");
    new.on_application_end(now);
    assert!(new.phase().runs(), "the repeated output is the same");
    new.on_application_data(now, b"!");
    assert!(!new.phase().runs(), "nothing comes behind the end");
}
