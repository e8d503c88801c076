//! Servers whose order cannot be recorded: the library says why, and the server goes on.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PYTHON: &str = "/usr/bin/python3";
/// A server with one connection, which it serves by the statements after these.
const BEGINNING: &str = "
import select, socket, sys, threading
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
connection, _ = listener.accept()
def echo():
    connection.sendall(connection.recv(10))
";

#[path = "playback/library.rs"]
mod library;

/// What the library says of a server that ends with `statements`.
fn said(statements: &str) -> Option<String> {
    if !Path::new(PYTHON).exists() {
        println!("skipped: no {PYTHON}");
        return None;
    }
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("bound");
    drop(free);
    let server = Command::new(PYTHON)
        .args([
            "-c",
            &format!("{BEGINNING}{statements}"),
            &address.port().to_string(),
        ])
        .env("LD_PRELOAD", library::path())
        .env("STEADFAST_ORDER", "record:/dev/null")
        .stderr(Stdio::piped())
        .spawn()
        .expect("the server starts");
    let begun = Instant::now();
    let mut client = loop {
        match TcpStream::connect(address) {
            Ok(client) => break client,
            Err(error) if begun.elapsed() > Duration::from_secs(30) => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    client.write_all(b"hello").expect("sent");
    let mut reply = [0; 5];
    client.read_exact(&mut reply).expect("the server goes on");
    assert_eq!(&reply, b"hello");
    let output = server.wait_with_output().expect("the server ends");
    Some(String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn a_server_that_cannot_be_recorded_says_why_and_goes_on() {
    let cases = [
        ("echo()", ""),
        (
            "poll = select.poll(); poll.register(connection); poll.poll(); echo()",
            "the server calls poll for a connection of the service",
        ),
        (
            "thread = threading.Thread(target=echo); thread.start(); thread.join(); connection.fileno(); listener.close()",
            "a thread other than the first has used a connection of the service",
        ),
        (
            "select.select([connection], [], []); echo()",
            "the server calls select",
        ),
        (
            "connection.recvmsg(0); connection.sendmsg([connection.recv(10)])",
            "the server calls recvmsg",
        ),
        ("echo(); connection.shutdown(socket.SHUT_WR)", ""),
        (
            "epoll = select.epoll(); epoll.register(connection, select.EPOLLIN | select.EPOLLET); epoll.poll(); echo()",
            "the server uses EPOLLET or EPOLLONESHOT",
        ),
    ];
    for (statements, reason) in cases {
        let Some(said) = said(statements) else {
            return;
        };
        let expected = match reason {
            "" => String::new(),
            reason => format!("steadfast-order: recording has ended: {reason}\n"),
        };
        assert_eq!(said, expected, "{statements}");
    }
}
