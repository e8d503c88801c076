//! An agent that fails to start changes nothing, and the next agent must still know for how long no agent was running. An agent continues
//! when nobody reads its stderr.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::daemon::{Daemon, PairSpec, pair, pair_of};
use crate::failure::wait_for;
use crate::keeper::{PATIENCE, accept, listen};
use crate::lan::{HostNamespace, OperatorLan, POLL};

const ASK: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
const REPLY: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";
/// Pause between two failed starts, as in the systemd unit.
const RESTART: Duration = Duration::from_millis(100);

/// Occupies the port of a node's heartbeats, so that the agent fails late in its start.
fn occupy(node: &HostNamespace) -> UdpSocket {
    let until = Instant::now() + PATIENCE;
    loop {
        match node.run(|| UdpSocket::bind("0.0.0.0:7400")) {
            Ok(socket) => return socket,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(RESTART);
    }
}

/// Starts an agent and waits until it fails.
fn fail_to_start(daemon: &mut Daemon<'_>) {
    daemon.start_again();
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = daemon.process.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < until, "the agent has started");
        std::thread::sleep(POLL);
    };
    assert!(!status.success(), "{status}");
    std::thread::sleep(RESTART);
}

fn exchange(client: &mut TcpStream, server: &mut TcpStream) {
    client.write_all(ASK).unwrap();
    answer(client, server);
}

fn answer(client: &mut TcpStream, server: &mut TcpStream) {
    server.read_exact(&mut [0; ASK.len()]).unwrap();
    server.write_all(REPLY).unwrap();
    client.read_exact(&mut [0; REPLY.len()]).unwrap();
}

/// While the primary's agent fails to start, the backup takes over and then loses its power. The client has received more than the
/// primary's old sockets have sent, so these sockets must end silently before the primary speaks alone.
#[test]
fn starts_that_fail_do_not_hide_how_long_the_primary_was_without_an_agent() {
    let Some(lan) =
        OperatorLan::new("starts_that_fail_do_not_hide_how_long_the_primary_was_without_an_agent")
    else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [mut one, mut two] = pair(&lan, dir.path(), "starts");
    lan.stranger.ip("route add 10.0.0.100/32 dev eth0");
    let listeners = [listen(&lan.node), listen(&lan.peer)];
    let mut client = lan.stranger.run(|| TcpStream::connect("10.0.0.100:80").unwrap());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut old = accept(&listeners[0]);
    exchange(&mut client, &mut old);
    two.wait_for(&["\"protected\":1"]);

    one.signal(Signal::SIGKILL);
    one.process.wait().unwrap();
    let occupant = occupy(&lan.node);
    let until = Instant::now() + PATIENCE;
    while !two.ask("status").output.contains("\"state\":\"sole\"") {
        assert!(Instant::now() < until, "the backup has not taken over in time");
        fail_to_start(&mut one);
    }
    client.write_all(ASK).unwrap(); // the keeper connects to the application only when it has input
    let mut survivor = accept(&listeners[1]);
    answer(&mut client, &mut survivor);
    lan.stranger.ip("link set port3 down");
    two.signal(Signal::SIGKILL);
    two.process.wait().unwrap();
    fail_to_start(&mut one);
    drop(occupant);
    one.start_again();
    one.wait_for(&["\"state\":\"sole\""]);
    one.wait_for_line("the other node may have gone on alone", 1);
    let end = old.read(&mut [0; 1]).map_err(|error| error.kind());
    assert!(
        !matches!(end, Err(ErrorKind::WouldBlock)),
        "the primary's old socket lives: {end:?}"
    );
    client.write_all(ASK).unwrap();
    let end = client.read(&mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    let mut client = lan.stranger.run(|| TcpStream::connect("10.0.0.100:80").unwrap());
    exchange(&mut client, &mut accept(&listeners[0]));
}

/// The wire's agent fails to start, so nothing reads the wire's packet log. Packets pass unlogged when the packet log is full.
#[test]
fn starts_that_fail_do_not_keep_a_full_log_closed() {
    let Some(lan) = OperatorLan::new("starts_that_fail_do_not_keep_a_full_log_closed") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let kind = PairSpec {
        agent_timeouts_ms: [60_000, 2000], // the primary waits for its wire
        ..PairSpec::default()
    };
    let [_one, mut two] = pair_of(&lan, dir.path(), "closed", &kind);
    lan.stranger.ip("route add 10.0.0.100/32 dev eth0");
    let listener = listen(&lan.node);
    let mut client = lan.stranger.run(|| TcpStream::connect("10.0.0.100:80").unwrap());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut server = accept(&listener);
    server.set_write_timeout(Some(PATIENCE)).unwrap();
    exchange(&mut client, &mut server);
    two.signal(Signal::SIGKILL);
    two.process.wait().unwrap();
    let occupant = occupy(&lan.peer);
    let body = vec![7; 40 << 20]; // more than the ring holds
    std::thread::scope(|scope| {
        let whole = scope.spawn(|| {
            let mut reply = vec![0; body.len()];
            client.read_exact(&mut reply).map_err(|error| error.kind())
        });
        scope.spawn(|| server.write_all(&body));
        while !whole.is_finished() {
            fail_to_start(&mut two);
        }
        assert_eq!(whole.join().unwrap(), Ok(()), "the reply has not passed");
    });
    drop(occupant);
    two.start_again();
    wait_for(&two, 0, |status| {
        status["connections"]["unprotected"] == 1 && status["connections_complete"] == true
    });
}

/// Starts the second node's agent again with its stderr connected to `log`. The pair must work, and the agent must end when it is told to.
fn log_to(test: &str, nodes: &str, log: Stdio, meanwhile: impl FnOnce()) {
    let Some(lan) = OperatorLan::new(test) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [one, mut two] = pair(&lan, dir.path(), nodes);
    two.signal(Signal::SIGKILL);
    two.process.wait().unwrap();
    two.start_logging_to(log);
    two.wait_for(&["\"peer_state\":\"primary\"", "\"state\":\"backup\""]);
    one.wait_for(&["\"mode\":\"duplex\""]);
    assert_eq!(two.process.try_wait().unwrap(), None, "the agent has ended");
    meanwhile();
    two.signal(Signal::SIGTERM);
    let status = two.process.wait().unwrap();
    assert!(status.success(), "{status}");
}

/// The reader of the agent's stderr (for example the journal) has died, so each write to stderr fails.
#[test]
fn an_agent_whose_log_has_lost_its_reader_goes_on() {
    let (reader, log) = io::pipe().unwrap();
    drop(reader);
    log_to(
        "an_agent_whose_log_has_lost_its_reader_goes_on",
        "unread",
        log.into(),
        || {},
    );
}

#[test]
fn an_agent_whose_log_is_full_goes_on_and_says_what_is_lost() {
    const NAME: &str = "an_agent_whose_log_is_full_goes_on_and_says_what_is_lost";
    const CAPACITY: usize = 16 * 4096; // pipe(7)
    let (mut reader, mut log) = io::pipe().unwrap();
    log.write_all(&[b'\n'; CAPACITY]).unwrap();
    let mut emptied = reader.try_clone().unwrap();
    log_to(NAME, "full", log.into(), || {
        emptied.read_exact(&mut [0; CAPACITY]).unwrap();
    });
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("lines of the log are lost"), "{rest}");
}
