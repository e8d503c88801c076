//! Tests with many simultaneous connections to an application whose accept queue is short.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::lab::*;
use crate::keeper::ConnectionEnding;

const GET: &str = "GET / HTTP/1.1\r\n\r\n";
const CLIENTS: u64 = 60;

/// Number of connections that came to a full accept queue, over all listeners of this network namespace.
fn overflows() -> u64 {
    let text = fs::read_to_string("/proc/self/net/netstat").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut both = names.split(' ').zip(values.split(' '));
    let (_, value) = both.find(|(name, _)| *name == "ListenOverflows").unwrap();
    value.parse().unwrap()
}

/// A listener with this backlog.
fn listen(backlog: i32) -> (Socket, SocketAddr) {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener
        .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    listener.listen(backlog).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    (listener, address)
}

#[test]
fn nobody_is_lost_in_a_short_queue() {
    let (listener, address) = listen(2);
    let server = thread::spawn(move || {
        let mut served = Vec::new();
        for _ in 0..CLIENTS {
            thread::sleep(Duration::from_millis(2)); // a slow server
            let mut stream = listener.accept().unwrap().0.into();
            assert_eq!(read_request(&mut stream), GET);
            say(&mut stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            served.push(stream);
        }
    });
    let before = overflows();
    let mut lab = KeeperLab::new();
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|id| {
            let connection = connection();
            lab.adopt(adoption(id, &connection, address, idle()), connection, &[])
        })
        .collect();
    for client in &mut clients {
        say(client, GET);
    }
    for client in &mut clients {
        assert!(read_request(client).starts_with("HTTP/1.1 200 "));
    }
    server.join().unwrap();
    assert_eq!(overflows(), before);
}

/// An application that has stopped accepting connections counts as unreachable.
#[test]
fn a_queue_that_stays_full_is_not_waited_for_for_ever() {
    let (_listener, address) = listen(1);
    let mut lab = KeeperLab::with(|options| options.connect_timeout = Duration::from_millis(50));
    let clients: Vec<_> = (0..6)
        .map(|id| {
            let connection = connection();
            let mut client = lab.adopt(adoption(id, &connection, address, idle()), connection, &[]);
            say(&mut client, GET);
            client
        })
        .collect();
    // The kernel's accept queue has room for one connection more than its backlog of 1. So at most the first two connections are accepted.
    for id in 2..6 {
        assert_eq!(
            lab.ended(id).ending,
            ConnectionEnding::ApplicationUnreachable,
            "{id}"
        );
    }
    drop(clients);
}
