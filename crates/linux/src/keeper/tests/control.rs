//! Tests of the keeper's control socket: agents that connect, disconnect and hand over connections. Also tests of several keepers and of
//! the keeper's end.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept, bind, listen, socket};

use super::lab::*;
use crate::keeper::{
    Adoption, AdoptionPlan, ConnectionEnding, KeeperClient, KeeperClientError, KeeperConnectionStatus,
    KeeperStatus, serve,
};
use crate::keeper::{KeeperOptions, LoggedInput};

#[test]
fn connections_go_on_when_the_agent_is_gone_and_another_one_finds_them() {
    let mut lab = KeeperLab::new();
    let (address, _application) = application(|mut stream| {
        let request = read_exactly(&mut stream, 4);
        say(&mut stream, request);
    });
    let connection = connection();
    let adoption = adoption(7, &connection, address, idle());
    let mut client = lab.adopt(adoption, connection, &[]);
    lab.agent = None;
    say(&mut client, "echo");
    assert_eq!(read_exactly(&mut client, 4), b"echo");
    let another = KeeperClient::connect(&lab.path());
    lab.agent = Some(another.unwrap());
    assert_eq!(lab.status().services["web"].adopted, 1);
}

#[test]
fn an_unused_keeper_ends_and_takes_its_socket_along() {
    let mut lab = KeeperLab::with(|options| options.unused = Duration::from_secs(1));
    let connection = connection();
    let adoption = adoption(1, &connection, nobody(), AdoptionPlan::Silent);
    let client = lab.adopt(adoption, connection, &[]);
    lab.agent = None;
    end(&client);
    lab.join();
    assert!(!lab.path().exists());
}

#[test]
fn a_retired_keeper_goes_on_beside_a_new_one_and_takes_along_what_is_its_own() {
    let echo = |mut stream: std::net::TcpStream| {
        for _ in 0..2 {
            let request = read_exactly(&mut stream, 4);
            say(&mut stream, request);
        }
    };
    let brief = |options: &mut KeeperOptions| options.unused = Duration::from_secs(1);
    let mut old = KeeperLab::with(brief);
    let (address, _old_application) = application(echo);
    let of_old = connection();
    let plan = adoption(1, &of_old, address, idle());
    let mut first = old.adopt(plan, of_old, &[]);
    say(&mut first, "old1");
    assert_eq!(read_exactly(&mut first, 4), b"old1");

    let path = old.path();
    let retired = path.with_file_name("keeper-1");
    std::fs::rename(&path, &retired).unwrap();
    let mut new = KeeperLab::at(&path, brief);
    let (address, _new_application) = application(echo);
    let of_new = connection();
    let plan = adoption(2, &of_new, address, idle());
    let mut second = new.adopt(plan, of_new, &[]);
    for (client, words) in [(&mut first, "old2"), (&mut second, "new1")] {
        say(client, words);
        assert_eq!(read_exactly(client, 4), words.as_bytes());
    }
    let numbers = |status: KeeperStatus| status.connections.iter().map(|one| one.id).collect::<Vec<_>>();
    assert_eq!((numbers(old.status()), numbers(new.status())), (vec![1], vec![2]));
    assert!(KeeperClient::connect(&retired).is_ok(), "a later agent finds it");

    end(&first);
    old.ended(1);
    old.agent = None;
    old.join();
    assert!(
        !retired.exists() && path.exists(),
        "it removed only its own socket"
    );
    say(&mut second, "new2");
    assert_eq!(read_exactly(&mut second, 4), b"new2");
    end(&second);
    new.ended(2);
    new.agent = None;
    new.join();
    assert!(!path.exists());
}

#[test]
fn a_keeper_of_another_version_is_told_from_a_broken_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keeper");
    let flags = SockFlag::SOCK_CLOEXEC;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    let mut agent = KeeperClient::connect(&path).unwrap();
    assert_eq!(agent.pid().unwrap(), nix::unistd::getpid());
    // SAFETY: the kernel has just made this descriptor for us.
    let other = unsafe { OwnedFd::from_raw_fd(accept(listener.as_raw_fd()).unwrap()) };
    nix::unistd::write(&other, b"SFK\xffno idea what you want").unwrap();
    assert!(agent.status().unwrap_err().is_other_version());
    drop(other);
    assert!(!agent.status().unwrap_err().is_other_version());
}

/// Without a limit, this test would not end.
#[test]
fn a_keeper_that_accepts_nobody_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keeper");
    let listener = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    let mut agents = Vec::new();
    let error = loop {
        match KeeperClient::connect(&path) {
            Ok(agent) => agents.push(agent),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(
            error,
            KeeperClientError::Channel {
                step: "connecting",
                ..
            }
        ),
        "{error}"
    );
    assert!(!agents.is_empty());
}

#[test]
fn what_two_keepers_tell_adds_up() {
    let mut labs = [KeeperLab::new(), KeeperLab::new()];
    let mut sum = KeeperStatus::default();
    let mut clients = Vec::new();
    for (lab, id) in labs.iter_mut().zip([10, 20]) {
        let [lives, ends] = [connection(), connection()];
        let plan = adoption(id, &lives, nobody(), idle());
        clients.push(lab.adopt(plan, lives, &[]));
        let plan = adoption(id + 1, &ends, nobody(), AdoptionPlan::Silent);
        drop(lab.adopt(plan, ends, &[]));
        lab.ended(id + 1);
        sum.add(lab.status());
    }
    let sums = &sum.services["web"];
    assert_eq!((sums.adopted, sums.live), (4, 2));
    assert_eq!(sums.ended, [(ConnectionEnding::Closed, 2)].into());
    let ids =
        |connections: &[KeeperConnectionStatus]| connections.iter().map(|one| one.id).collect::<Vec<_>>();
    assert_eq!(ids(&sum.connections), [10, 20]);
    assert_eq!(sum.ended.iter().map(|one| one.id).collect::<Vec<_>>(), [11, 21]);
    let past = sum.of_the_past();
    assert_eq!((past.services["web"].adopted, past.services["web"].live), (4, 0));
    assert!(past.connections.is_empty() && past.ended.len() == 2);
}

#[test]
fn a_stopped_keeper_resets_what_it_has() {
    let mut lab = KeeperLab::new();
    let connection = connection();
    let adoption = adoption(1, &connection, nobody(), idle());
    let mut client = lab.adopt(adoption, connection, &[]);
    lab.agent.take().unwrap().stop().unwrap();
    assert!(is_reset(&read_to_end(&mut client)));
    lab.join();
}

#[test]
fn what_does_not_fit_is_refused_and_stays_with_the_agent() {
    let mut lab = KeeperLab::new();
    let (first, second) = (connection(), connection());
    let plan = adoption(1, &first, nobody(), idle());
    let restored = second.restored.as_fd();
    lab.agent()
        .adopt(&plan, first.restored.as_fd(), None, &LoggedInput::default())
        .unwrap();
    for (replica, reason) in [
        (None, "there is a connection 1 already"),
        (Some(restored), "the sockets do not fit the plan"),
    ] {
        lab.agent()
            .adopt(&plan, restored, replica, &LoggedInput::default())
            .unwrap();
        let refused = lab.agent().settle();
        assert!(
            matches!(&refused, Err(KeeperClientError::Refused(why)) if why.ends_with(reason)),
            "{refused:?}"
        );
    }
    let connections = lab.status().connections;
    assert_eq!((connections.len(), connections[0].id), (1, 1));
}

#[test]
fn what_an_agent_gave_before_it_died_is_kept() {
    let mut lab = KeeperLab::new();
    let connections: Vec<_> = (0..40).map(|_| connection()).collect();
    let mut agent = KeeperClient::connect(&lab.path()).unwrap();
    for (id, connection) in (1..).zip(&connections) {
        let adoption = adoption(id, connection, nobody(), idle());
        agent
            .adopt(
                &adoption,
                connection.restored.as_fd(),
                None,
                &LoggedInput::default(),
            )
            .unwrap();
    }
    drop(agent); // the agent has read no answer
    let deadline = Instant::now() + PATIENCE;
    while lab.status().connections.len() < connections.len() {
        assert!(Instant::now() < deadline, "{:?}", lab.status().connections.len());
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn another_agent_finds_the_syn_ack_of_a_client_that_has_said_nothing() {
    let mut lab = KeeperLab::new();
    let (address, _application) = application(|mut stream| {
        let request = read_exactly(&mut stream, 4);
        say(&mut stream, request);
    });
    let connection = connection();
    let syn_ack = Some(b"a packet".to_vec());
    let adoption = Adoption {
        syn_ack: syn_ack.clone(),
        ..adoption(7, &connection, address, idle())
    };
    let mut client = lab.adopt(adoption, connection, &[]);
    lab.agent = Some(KeeperClient::connect(&lab.path()).unwrap());
    assert_eq!(lab.status().connections[0].syn_ack, syn_ack);
    say(&mut client, "echo");
    assert_eq!(read_exactly(&mut client, 4), b"echo");
    assert_eq!(
        lab.status().connections[0].syn_ack,
        None,
        "the client has answered"
    );
}

#[test]
fn only_one_keeper_serves_at_a_path_and_a_dead_one_is_replaced() {
    let lab = KeeperLab::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut options = KeeperOptions::new(lab.path());
    options.unused = Duration::ZERO;
    let second = runtime.block_on(serve::serve(options.clone(), std::future::pending()));
    assert!(second.is_err_and(|error| error.to_string().contains("another keeper")));
    drop(lab);

    let directory = tempfile::tempdir().unwrap();
    options.socket = directory.path().join("keeper");
    drop(std::os::unix::net::UnixListener::bind(&options.socket).unwrap());
    assert!(options.socket.exists());
    runtime
        .block_on(serve::serve(options, std::future::pending()))
        .unwrap();
}

#[test]
fn a_terminated_keeper_ends() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let options = KeeperOptions::new(directory.path().join("keeper"));
    runtime
        .block_on(serve::serve(options, std::future::ready(())))
        .unwrap();
}

#[test]
fn endings_are_counted_and_the_last_remembered() {
    let mut lab = KeeperLab::new();
    for id in 0..300 {
        let connection = connection();
        let adoption = adoption(id, &connection, nobody(), AdoptionPlan::Silent);
        drop(lab.adopt(adoption, connection, &[]));
        lab.ended(id);
    }
    let status = lab.status();
    assert_eq!(
        status.services["web"].ended,
        [(ConnectionEnding::Closed, 300)].into()
    );
    assert_eq!((status.ended.len(), status.ended[0].id), (256, 44));
}

/// The keeper tells an agent that asks again only of the changes.
#[test]
fn an_agent_that_asks_again_gets_a_whole_status() {
    let mut lab = KeeperLab::new();
    let adopted = |lab: &mut KeeperLab, id| {
        let ends = connection();
        lab.adopt(adoption(id, &ends, nobody(), idle()), ends, &[])
    };
    let mut clients: Vec<_> = (1..=3).map(|id| adopted(&mut lab, id)).collect();
    assert_eq!(lab.status().connections.len(), 3);
    drop(clients.remove(1));
    clients.push(adopted(&mut lab, 4));
    lab.ended(2);
    let known = lab.status();
    let fresh = KeeperClient::connect(&lab.path()).unwrap().status().unwrap();
    assert_eq!(known, fresh);
    let ids: Vec<_> = known.connections.iter().map(|one| one.id).collect();
    assert_eq!(ids, [1, 3, 4]);
}
