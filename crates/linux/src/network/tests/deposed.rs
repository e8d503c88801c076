//! The connections of a deposed node are destroyed, and the node sends no segment for them.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};

use socket2::{Domain, SockRef, Socket, Type};

use super::part::{PrimaryConnection, SERVICES, vips};
use super::*;
use crate::application::cookie;
use crate::packet_socket::{FRAME_MAX, PacketSocket, VIRTIO_HEADER};

/// The states of all TCP sockets of `service` except listeners, sorted.
fn states(node: &world::Namespace, service: SocketAddr) -> Vec<String> {
    let listing = node.command(&format!("ss -H -t -n -a state connected src {service}"));
    let state = |line: &str| line.split_ascii_whitespace().next().unwrap().to_owned();
    let mut states: Vec<_> = listing.lines().map(state).collect();
    states.sort();
    states
}

/// Connections whose server sockets are in many states. The client sockets are returned too, because they must stay
/// open as long as the server sockets.
fn connections(world: &RouterLan, listener: &TcpListener) -> Vec<PrimaryConnection> {
    let mut all: Vec<_> = (0..7)
        .map(|_| PrimaryConnection::begin(world, listener))
        .collect();
    all.iter_mut().for_each(PrimaryConnection::go_on);
    all[1].client.write_all(b"never read").unwrap();
    all[2].client.shutdown(Shutdown::Write).unwrap(); // CLOSE-WAIT
    all[3].server.shutdown(Shutdown::Write).unwrap(); // FIN-WAIT-2
    // TIME-WAIT
    all[4].server.shutdown(Shutdown::Write).unwrap();
    all[4].client.shutdown(Shutdown::Write).unwrap();
    // Numbers 5 and 6 have unsent output, because their clients read nothing. Number 6 also gets a FIN behind that output: FIN-WAIT-1.
    for full in [5, 6] {
        let server = &mut all[full].server;
        server.set_nonblocking(true).unwrap();
        while server.write(&[7; 65536]).is_ok() {}
    }
    all[6].server.shutdown(Shutdown::Write).unwrap();
    all
}

/// Number of TCP segments from a service's port that have come to `tap`. The count ends at a datagram that `node` sends for this purpose.
fn segments(tap: &PacketSocket, node: &world::Namespace) -> usize {
    node.run(|| {
        let last = std::net::UdpSocket::bind("10.0.0.3:0").unwrap();
        last.send_to(b"that is all", "10.0.0.1:9999").unwrap();
    });
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let (mut frame, mut count) = (vec![0; FRAME_MAX], 0);
    loop {
        assert!(std::time::Instant::now() < until, "the datagram did not come");
        let Some(length) = tap.receive(&mut frame).unwrap() else {
            continue;
        };
        let packet = &frame[VIRTIO_HEADER + 14..length];
        let (protocol, header) = match packet[0] >> 4 {
            4 => (packet[9], 20),
            6 => (packet[6], 40),
            _ => continue,
        };
        let port = u16::from_be_bytes([packet[header], packet[header + 1]]);
        match protocol {
            6 if port == 80 => count += 1,
            17 if packet.ends_with(b"that is all") => return count,
            _ => {}
        }
    }
}

/// Checks that the connections of `listener` on the primary, in all states, are destroyed without a segment to the clients.
fn check(world: &RouterLan, network: &Network, listener: &TcpListener, service: SocketAddr) {
    let primary = &world.primary;
    primary.run(|| network.set_speak(service, true).unwrap());
    let mut all = connections(world, listener);
    let waiting = world.router.run(|| TcpStream::connect(service).unwrap()); // not accepted
    let there = [
        "CLOSE-WAIT",
        "ESTAB",
        "ESTAB",
        "ESTAB",
        "ESTAB",
        "FIN-WAIT-1",
        "FIN-WAIT-2",
        "TIME-WAIT",
    ];
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while states(primary, service) != there {
        assert!(
            std::time::Instant::now() < until,
            "{:?}",
            states(primary, service)
        );
    }

    primary.run(|| network.set_speak(service, false).unwrap());
    let tap = world.router.run(|| PacketSocket::open("port3").unwrap());
    segments(&tap, primary); // segments that were already under way do not count
    // Numbers 1 and 2 have something to read: bytes, and a FIN.
    assert_eq!(primary.run(|| sockets::destroy_unread(service).unwrap()), 2);
    let destroyed = primary.run(|| sockets::destroy(service).unwrap());
    assert_eq!(destroyed, there.len() - 2);
    assert_eq!(states(primary, service), [] as [&str; 0]);
    assert_eq!(primary.run(|| sockets::destroy(service).unwrap()), 0);
    // Further segments of the clients meet no socket.
    for conversation in &mut all[..2] {
        conversation.client.write_all(b"are you there?").unwrap();
    }
    assert_eq!(segments(&tap, primary), 0, "the deposed node sent a segment");
    let error = SockRef::from(&all[0].server).take_error().unwrap().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted);
    for conversation in &all {
        SockRef::from(&conversation.client)
            .set_linger(Some(std::time::Duration::ZERO))
            .unwrap();
    }
    drop(waiting);
    drop(listener.accept()); // the server's end of `waiting`, which was destroyed

    primary.run(|| network.set_speak(service, true).unwrap());
    PrimaryConnection::begin(world, listener).go_on(); // the listener is as it was
    primary.run(|| network.set_speak(service, false).unwrap());
    primary.run(|| sockets::destroy(service).unwrap());
}

#[test]
fn connections_in_any_state_end_in_silence() {
    let Some(world) = RouterLan::new("connections_in_any_state_end_in_silence") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let primary = &world.primary;
    let plan = plan(2, &SERVICES);
    let mut network = primary.run(|| set_up(&plan, &journal(dir.path())));
    primary.run(|| vips().map(|vip| network.assume(vip, NetworkPart::Alone).unwrap()));
    let services = SERVICES.map(|service| service.parse().unwrap());
    for service in services {
        let listener = primary.run(|| TcpListener::bind(service).unwrap());
        check(&world, &network, &listener, service);
    }
    primary.run(|| network.remove().unwrap());
}

#[test]
fn ipv4_connections_of_an_ipv6_listener_are_found_and_others_stay() {
    let Some(world) = RouterLan::new("ipv4_connections_of_an_ipv6_listener_are_found_and_others_stay") else {
        return;
    };
    let primary = &world.primary;
    let listener = primary.run(|| {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
        socket.set_only_v6(false).unwrap();
        socket
            .bind(&SocketAddr::new("::".parse().unwrap(), 80).into())
            .unwrap();
        socket.listen(16).unwrap();
        TcpListener::from(socket)
    });
    let others = primary.run(|| TcpListener::bind("10.0.0.3:81").unwrap());
    let mut other = PrimaryConnection::begin(&world, &others);
    for service in ["10.0.0.3:80", "[2001:db8::3]:80"] {
        let service = service.parse().unwrap();
        let mut all: Vec<_> = (0..3)
            .map(|_| PrimaryConnection::begin_at(&world, &listener, service))
            .collect();
        all.iter_mut().for_each(PrimaryConnection::go_on);
        // A destroyed socket keeps its number.
        let client = all[0].client.local_addr().unwrap();
        let server = all[0].server.try_clone().unwrap().into();
        let number = cookie(&server).unwrap();
        let destroyed = primary.run(|| sockets::destroy_clients(service, &[client]).unwrap());
        assert_eq!((destroyed, cookie(&server).unwrap()), (vec![number], number));
        assert_eq!(primary.run(|| sockets::destroy(service).unwrap()), 2);
        PrimaryConnection::begin_at(&world, &listener, service).go_on();
        primary.run(|| sockets::destroy(service).unwrap());
    }
    other.go_on();
}
