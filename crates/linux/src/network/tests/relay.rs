//! A relayed connection reaches the application with its client's address.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::*;

/// A connection to `application` from `client`, an address that this machine does not have.
fn relay(client: SocketAddr, application: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::for_address(client), Type::STREAM, None).unwrap();
    match client {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true).unwrap(),
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true).unwrap(),
    }
    socket.set_mark(RELAY_MARK).unwrap();
    socket.bind(&client.into()).unwrap();
    socket
        .connect_timeout(&application.into(), Duration::from_secs(5))
        .unwrap();
    socket.into()
}

/// Sends seven bytes from `client` to the application and back. Returns the client's address that the application sees.
fn exchange(listener: &TcpListener, mut client: TcpStream) -> SocketAddr {
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let (mut accepted, seen) = listener.accept().unwrap();
    client.write_all(b"request").unwrap();
    let mut word = [0; 7];
    accepted.read_exact(&mut word).unwrap();
    accepted.write_all(&word).unwrap();
    client.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"request");
    seen
}

/// Sets up a relay to `application`, and relays a connection of `client`. If the application is `reachable` from outside, a neighbour
/// connects to it directly, too.
fn check(client: &str, vip: &str, application: &str, reachable: bool) {
    let Some(world) = RouterLan::new("relay") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (client, application): (SocketAddr, SocketAddr) =
        (client.parse().unwrap(), application.parse().unwrap());
    let mut plan = plan(3, &[vip]);
    plan.services[0].application = application;
    let before = world.backup.dump();
    let journal = journal(dir.path());
    let network = || set_up(&plan, &journal);
    let listener = world.backup.run(|| {
        drop(network());
        let listener = TcpListener::bind(application).unwrap();
        assert_eq!(exchange(&listener, relay(client, application)), client);
        listener
    });
    if reachable {
        let neighbour = world.router.run(|| TcpStream::connect(application).unwrap());
        let address = neighbour.local_addr().unwrap();
        assert_eq!(exchange(&listener, neighbour), address);
    }
    world.backup.run(|| network().remove().unwrap());
    assert_same(&before, &world.backup.dump());
}

#[test]
fn to_an_application_at_loopback() {
    check("198.51.100.7:5555", "10.0.0.100:80", "127.0.0.1:80", false);
}

#[test]
fn to_an_application_at_loopback_ipv6() {
    check("[2001:db8:1::7]:5555", "[2001:db8::100]:80", "[::1]:80", false);
}

#[test]
fn to_an_application_at_the_nodes_own_address_beside_others() {
    check("198.51.100.7:5555", "10.0.0.100:80", "10.0.0.2:8080", true);
}

#[test]
fn to_an_application_at_the_nodes_own_address_beside_others_ipv6() {
    check(
        "[2001:db8:1::7]:5555",
        "[2001:db8::100]:80",
        "[2001:db8::2]:8080",
        true,
    );
}

#[test]
fn of_a_client_on_the_same_lan() {
    check("10.0.0.1:5555", "10.0.0.100:80", "127.0.0.1:80", false);
    check("10.0.0.1:5555", "10.0.0.100:80", "10.0.0.2:8080", true);
}
