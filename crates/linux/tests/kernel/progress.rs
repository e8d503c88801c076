//! How far an application has read and written a connection, as the kernel says.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;

use crate::support::lan::is_root;
use steadfast_linux::application::{ProgressError, SequenceNumbers, progress};

/// A server's connection, and its client.
fn connection(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).expect("a listener");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    (listener.accept().expect("accepted").0, client)
}

/// Bytes read and written, for a copy of the descriptor, as an application sends it.
fn progress_of(server: &TcpStream) -> (u64, u64) {
    let copy = OwnedFd::from(server.try_clone().expect("a copy"));
    let progress = progress(&copy).expect("a connection");
    assert_eq!(progress.local, server.local_addr().expect("connected"));
    assert_eq!(progress.peer, server.peer_addr().expect("connected"));
    (progress.read, progress.written)
}

#[test]
fn unread_and_unacknowledged_bytes_count_where_they_belong() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (mut server, mut client) = connection(address);
        assert_eq!(progress_of(&server), (0, 0));
        client.write_all(&[1; 5_000]).expect("sent");
        server.read_exact(&mut [0; 1_234]).expect("received");
        assert_eq!(progress_of(&server), (1_234, 0));
        // The client does not read, so most of this stays in the server's queue.
        server.set_nonblocking(true).expect("set");
        let mut written = 0;
        while let Ok(count) = server.write(&[2; 65_536]) {
            written += count as u64;
        }
        assert!(written > 100_000);
        assert_eq!(progress_of(&server), (1_234, written));
        let reader = thread::spawn(move || {
            client.shutdown(Shutdown::Write).expect("shut down");
            let mut taken = vec![0; 50_000];
            client.read_exact(&mut taken).expect("received");
            client
        });
        let client = reader.join().expect("no panic");
        assert_eq!(
            progress_of(&server),
            (1_234, written),
            "the client's FIN has come"
        );
        server.set_nonblocking(false).expect("set");
        server.read_exact(&mut [0; 3_766]).expect("received");
        assert_eq!(
            progress_of(&server),
            (5_000, written),
            "the FIN has not been read"
        );
        assert_eq!(server.read(&mut [0; 1]).expect("the end"), 0);
        assert_eq!(progress_of(&server), (5_000, written), "the FIN has been read");
        drop(client);
    }
}

/// The bytes arrive all the time while the application asks.
#[test]
fn data_that_arrives_meanwhile_is_not_counted_as_read() {
    let (server, mut client) = connection("127.0.0.1:0");
    let sender = thread::spawn(move || {
        for _ in 0..2_000 {
            client.write_all(&[0; 500]).expect("sent");
        }
        client
    });
    while !sender.is_finished() {
        assert_eq!(progress_of(&server), (0, 0));
    }
    sender.join().expect("no panic");
}

#[test]
fn other_sockets_have_no_progress() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let file = std::fs::File::open("/dev/null").expect("a file");
    for other in [OwnedFd::from(listener), OwnedFd::from(udp), OwnedFd::from(file)] {
        assert!(matches!(progress(&other), Err(ProgressError::NotAConnection)));
    }
    let (server, client) = connection("127.0.0.1:0");
    let own = server.local_addr().expect("connected");
    server.shutdown(Shutdown::Write).expect("shut down");
    let ended = |server: &TcpStream| {
        let copy = OwnedFd::from(server.try_clone().expect("a copy"));
        matches!(progress(&copy), Err(ProgressError::Ended(local)) if local == own)
    };
    assert!(ended(&server), "it has ended its output");
    drop(client);
    assert!(ended(&server));
}

/// The numbers are those of the handshake, also long after it, with a FIN of the client, and on a socket of both families.
#[test]
fn streams_begin_behind_the_initial_sequence_numbers() {
    if !is_root("streams_begin_behind_the_initial_sequence_numbers") {
        return;
    }
    let numbers = SequenceNumbers::load().expect("the program loads");
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (mut server, mut client) = connection(address);
        let (local, peer) = (
            server.local_addr().expect("connected"),
            server.peer_addr().expect("connected"),
        );
        let at_first = numbers
            .stream_starts(local, peer)
            .expect("asked")
            .expect("there is a connection");
        // The client's socket counts the same streams the other way round. Its count of acknowledged bytes includes its SYN.
        let of_client = numbers
            .stream_starts(peer, local)
            .expect("asked")
            .expect("there is a connection");
        assert_eq!((of_client.0, of_client.1 + 1), (at_first.1, at_first.0));
        client.write_all(&[1; 70_000]).expect("sent");
        server.read_exact(&mut [0; 70_000]).expect("received");
        server.write_all(&[2; 30_000]).expect("sent");
        client.read_exact(&mut [0; 30_000]).expect("received");
        client.shutdown(Shutdown::Write).expect("shut down");
        assert_eq!(server.read(&mut [0]).expect("the end"), 0);
        let later = numbers
            .stream_starts(local, peer)
            .expect("asked")
            .expect("there is a connection");
        assert_eq!((later.0, later.1), at_first);
    }
    let nobody = "127.0.0.1:1".parse().expect("an address");
    assert_eq!(numbers.stream_starts(nobody, nobody).expect("asked"), None);
}
