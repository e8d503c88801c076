//! The keeper of a node dies, or it has no room for more connections. In both cases the node starts another keeper. The status shows a dead
//! keeper's connections as lost.

use std::fs::Permissions;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::daemon::{Daemon, pair};
use crate::lan::{HostNamespace, OperatorLan};

const ASK: &str = "GET / HTTP/1.1\r\n\r\n";
const REPLY: &str = "HTTP/1.1 204 No Content\r\n\r\n";
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A listener on port 80 of `namespace`. A listener that the caller has dropped can stay in the child that another test has
/// forked but that has not executed its program yet, so this waits while the port is in use.
pub fn listen(namespace: &HostNamespace) -> TcpListener {
    let until = Instant::now() + PATIENCE;
    loop {
        match namespace.run(|| TcpListener::bind("0.0.0.0:80")) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            bound => return bound.unwrap(),
        }
    }
}

/// The next connection of `listener`, with a timeout.
pub fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return stream;
            }
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ask(client: &mut TcpStream, server: &mut TcpStream) {
    client.write_all(ASK.as_bytes()).unwrap();
    hear(client, server);
}

/// Checks that the server gets the request and the client gets the reply.
fn hear(client: &mut TcpStream, server: &mut TcpStream) {
    let mut asked = Vec::new();
    while !asked.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        server.read_exact(&mut byte).unwrap();
        asked.push(byte[0]);
    }
    assert!(asked.starts_with(b"GET / HTTP/1.1\r\n")); // the header `Steadfast-Reexecuted` may follow
    server.write_all(REPLY.as_bytes()).unwrap();
    let mut reply = [0; REPLY.len()];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(reply, REPLY.as_bytes());
}

/// Kills the keeper and waits for another one.
fn replace_keeper(daemon: &Daemon<'_>) {
    let before = daemon.keeper().expect("there is one");
    kill(Pid::from_raw(before), Signal::SIGKILL).unwrap();
    let until = Instant::now() + PATIENCE;
    while daemon.keeper().is_none_or(|now| now == before) {
        let log = std::fs::read_to_string(&daemon.log).unwrap();
        assert!(Instant::now() < until, "no other keeper: {log}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_keeper_that_dies_is_replaced_and_what_it_had_is_not_shown_any_more() {
    let Some(lan) = OperatorLan::new("a_keeper_that_dies_is_replaced_and_what_it_had_is_not_shown_any_more")
    else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [mut one, two] = pair(&lan, dir.path(), "keeper");
    lan.stranger.ip("route add 10.0.0.100/32 dev eth0");
    let listeners = [listen(&lan.node), listen(&lan.peer)];
    let mut client = lan.stranger.run(|| TcpStream::connect("10.0.0.100:80").unwrap());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut server = accept(&listeners[0]);
    ask(&mut client, &mut server);
    two.wait_for(&["\"protected\":1"]);

    // Replace a keeper that has no connection yet: the takeover uses the new keeper.
    replace_keeper(&two);
    one.signal(Signal::SIGKILL);
    one.process.wait().unwrap();
    client.write_all(ASK.as_bytes()).unwrap();
    let mut survivor = accept(&listeners[1]);
    hear(&mut client, &mut survivor);
    two.wait_for(&["\"relayed\":1", "\"reasons\":{\"relayed; no backup\":1}"]);
    let address = format!("\"client\":\"{}\"", client.local_addr().unwrap());
    assert!(two.ask("connections").output.contains(&address));
    assert!(two.restored().contains("\"lives\":true"), "{}", two.restored());

    // The pair has a backup again, and the backup knows the connection.
    one.start_again();
    two.wait_for(&["\"mode\":\"duplex\"", "\"relayed\":1", "\"reasons\":{}"]);
    ask(&mut client, &mut survivor);
    one.wait_for(&["\"mode\":\"duplex\"", "\"protected\":1"]);
    let shown = two.ask("connections").output;
    assert!(!shown.contains(&address), "{shown}");

    // Replace a keeper that relays: its connections are lost, and the status says so.
    replace_keeper(&two);
    two.wait_for(&["\"relayed\":0", "\"relayed_ended_keeper_lost\":1"]);
    assert!(two.restored().contains("\"lives\":false"), "{}", two.restored());
    let lost = client
        .write_all(ASK.as_bytes())
        .and_then(|()| client.read(&mut [0; 1]));
    assert!(matches!(lost, Ok(0) | Err(_)), "{lost:?}");
}

/// Each relayed connection needs two descriptors of its keeper, and the number of descriptors of a process is limited.
#[test]
fn a_full_keeper_gets_another_one_beside_it() {
    const CLIENTS: usize = 70;
    let Some(lan) = OperatorLan::new("a_full_keeper_gets_another_one_beside_it") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [mut one, mut two] = pair(&lan, dir.path(), "full");
    // Limit the keeper to 600 descriptors. It reserves 500 of them (`DESCRIPTORS`) and needs two per connection, so it has room for fifty
    // connections.
    let limited = format!(
        "#!/bin/sh\nexec setpriv --bounding-set -sys_resource prlimit --nofile=600:600 {} \"$@\"\n",
        two.program.display()
    );
    two.program = dir.path().join("limited");
    std::fs::write(&two.program, limited).unwrap();
    std::fs::set_permissions(&two.program, Permissions::from_mode(0o755)).unwrap();
    two.signal(Signal::SIGTERM);
    two.process.wait().unwrap();
    two.start_again();
    let sockets = || {
        let entries = std::fs::read_dir(&two.state_dir).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names
            .filter(|name| name.starts_with("keeper") && name.ends_with(".sock"))
            .count()
    };
    let listeners = [listen(&lan.node), listen(&lan.peer)];
    for node in [&one, &two] {
        node.wait_for(&["\"mode\":\"duplex\""]);
    }
    lan.stranger.ip("route add 10.0.0.100/32 dev eth0");
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = lan.stranger.run(|| TcpStream::connect("10.0.0.100:80").unwrap());
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut server = accept(&listeners[0]);
            ask(&mut client, &mut server);
            (client, server)
        })
        .collect();
    two.wait_for(&[&format!("\"protected\":{CLIENTS}")]);
    assert_eq!(sockets(), 1);
    one.signal(Signal::SIGKILL);
    one.process.wait().unwrap();
    two.wait_for(&[&format!("\"relayed\":{CLIENTS}")]);
    assert_eq!(sockets(), 2);
    for (client, server) in &mut clients {
        client.write_all(ASK.as_bytes()).unwrap();
        *server = accept(&listeners[1]);
        hear(client, server);
    }
    let kept = format!("\"relayed_adopted\":{CLIENTS}");
    two.wait_for(&[&format!("\"relayed\":{CLIENTS}"), &kept]);
    drop(clients);
    two.wait_for(&["\"relayed\":0", &kept]);
    // The first keeper has no connection left, so it ends.
    let said = std::fs::read_to_string(&two.log).unwrap();
    assert!(said.contains("a retired keeper has no connection left"), "{said}");
}
