//! A recorded server's output waits for the backup, as the agent reports it.

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use proto::order::frames::{ALONE, HEAD, HELLO, PART, RECEIPT, ROLE_RECORD, VERSION, frame, payload_len};

#[path = "support/library.rs"]
mod library;
#[path = "support/python.rs"]
mod python;

use python::PythonServer;

/// A server that echoes twice on one connection, and ends the connection.
const SERVER: &str = "
import socket, sys
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
connection, _ = listener.accept()
connection.sendall(connection.recv(10))
connection.sendall(connection.recv(10))
connection.shutdown(socket.SHUT_WR)
connection.recv(10)
";

fn send(mut library: &UnixStream, kind: u8, payload: &[u8]) {
    library
        .write_all(&frame(kind, payload))
        .expect("the library takes it");
}

fn receive(mut library: &UnixStream) -> (u8, Vec<u8>) {
    let mut head = [0; HEAD];
    library.read_exact(&mut head).expect("a frame");
    let mut payload = vec![0; payload_len(&head)];
    library.read_exact(&mut payload).expect("a frame");
    (head[0], payload)
}

/// Whether another frame comes within the time limit.
fn has_frame(library: &UnixStream) -> bool {
    let peeked = socket2::SockRef::from(library).peek(&mut [MaybeUninit::uninit()]);
    peeked.is_ok_and(|count| count > 0)
}

/// Whether the client has got a reply.
fn has_reply(client: &TcpStream) -> bool {
    client.set_nonblocking(true).expect("set");
    let got = client.peek(&mut [0]).is_ok();
    client.set_nonblocking(false).expect("set");
    got
}

#[test]
fn output_waits_for_its_receipt() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("order.sock");
    let agent = UnixListener::bind(&socket).expect("a socket");
    let setting = format!("agent:{}", socket.display());
    let Some(mut server) = PythonServer::start(SERVER, &setting) else {
        return;
    };
    let (library, _) = agent.accept().expect("the library comes");
    assert_eq!(receive(&library), (HELLO, vec![VERSION]));
    let service = Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    let service = [&service[..], &server.address.port().to_be_bytes()].concat();
    send(&library, ROLE_RECORD, &service);
    let mut client = server.connect();
    let patience = Some(Duration::from_secs(30));
    client.set_read_timeout(patience).expect("set");
    client.write_all(b"first").expect("sent");
    // The server waits for more input, so all of its record has been sent, and its reply is held.
    let mut arrived = 0;
    library
        .set_read_timeout(Some(Duration::from_millis(300)))
        .expect("set");
    while has_frame(&library) {
        let (kind, part) = receive(&library);
        assert_eq!(kind, PART);
        arrived += part.len() as u64;
    }
    assert!(arrived > 0);
    assert!(!has_reply(&client), "the backup has nothing");
    send(&library, RECEIPT, &1_u64.to_le_bytes());
    std::thread::sleep(Duration::from_millis(50));
    assert!(!has_reply(&client), "the backup has a part only");
    send(&library, RECEIPT, &arrived.to_le_bytes());
    let mut reply = [0; 5];
    client.read_exact(&mut reply).expect("a reply");
    assert_eq!(&reply, b"first");

    client.write_all(b"again").expect("sent");
    send(&library, ALONE, &[]);
    client
        .read_exact(&mut reply)
        .expect("without a backup, no reply waits");
    assert_eq!(&reply, b"again");
    assert_eq!(client.read(&mut reply).expect("the end"), 0);
    client.write_all(b"bye").expect("sent");
    assert!(server.process.wait().expect("the server ends").success());
}
