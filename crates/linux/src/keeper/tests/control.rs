//! Agents come and go.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use super::lab::*;
use crate::keeper::Options;
use crate::keeper::{Client, ClientError, Ending, Plan, serve};

#[test]
fn connections_go_on_when_the_agent_is_gone_and_another_one_finds_them() {
    let mut lab = Lab::new();
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
    let another = Client::connect(&lab.path());
    lab.agent = Some(another.unwrap());
    assert_eq!(lab.status().services["web"].adopted, 1);
}

#[test]
fn an_unused_keeper_ends_and_takes_its_socket_along() {
    let mut lab = Lab::with(|options| options.unused = Duration::from_secs(1));
    let connection = connection();
    let adoption = adoption(1, &connection, nobody(), Plan::Silent);
    let client = lab.adopt(adoption, connection, &[]);
    lab.agent = None;
    end(&client);
    lab.join();
    assert!(!lab.path().exists());
}

#[test]
fn a_stopped_keeper_resets_what_it_has() {
    let mut lab = Lab::new();
    let connection = connection();
    let adoption = adoption(1, &connection, nobody(), idle());
    let mut client = lab.adopt(adoption, connection, &[]);
    lab.agent.take().unwrap().stop().unwrap();
    assert!(is_reset(&read_to_end(&mut client)));
    lab.join();
}

#[test]
fn what_does_not_fit_is_refused_and_stays_with_the_agent() {
    let mut lab = Lab::new();
    let (first, second) = (connection(), connection());
    let plan = adoption(1, &first, nobody(), idle());
    let restored = second.restored.as_fd();
    lab.agent()
        .adopt(plan.clone(), first.restored.as_fd(), None, &[])
        .unwrap();
    for (replica, reason) in [
        (None, "there is a connection 1 already"),
        (Some(restored), "the sockets do not fit the plan"),
    ] {
        lab.agent().adopt(plan.clone(), restored, replica, &[]).unwrap();
        let refused = lab.agent().settle();
        assert!(
            matches!(&refused, Err(ClientError::Refused(why)) if why.ends_with(reason)),
            "{refused:?}"
        );
    }
    let connections = lab.status().connections;
    assert_eq!((connections.len(), connections[0].id), (1, 1));
}

#[test]
fn what_an_agent_gave_before_it_died_is_kept() {
    let mut lab = Lab::new();
    let connections: Vec<_> = (0..40).map(|_| connection()).collect();
    let mut agent = Client::connect(&lab.path()).unwrap();
    for (id, connection) in (1..).zip(&connections) {
        let adoption = adoption(id, connection, nobody(), idle());
        agent
            .adopt(adoption, connection.restored.as_fd(), None, &[])
            .unwrap();
    }
    drop(agent); // it has read no answer
    let deadline = Instant::now() + PATIENCE;
    while lab.status().connections.len() < connections.len() {
        assert!(Instant::now() < deadline, "{:?}", lab.status().connections.len());
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn only_one_keeper_serves_at_a_path_and_a_dead_one_is_replaced() {
    let lab = Lab::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut options = Options::new(lab.path());
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
    let options = Options::new(directory.path().join("keeper"));
    runtime
        .block_on(serve::serve(options, std::future::ready(())))
        .unwrap();
}

#[test]
fn endings_are_counted_and_the_last_remembered() {
    let mut lab = Lab::new();
    for id in 0..300 {
        let connection = connection();
        let adoption = adoption(id, &connection, nobody(), Plan::Silent);
        drop(lab.adopt(adoption, connection, &[]));
        lab.ended(id);
    }
    let status = lab.status();
    assert_eq!(status.services["web"].ended, [(Ending::Closed, 300)].into());
    assert_eq!((status.ended.len(), status.ended[0].id), (256, 44));
}
