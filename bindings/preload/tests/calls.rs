//! A server that uses less usual calls is recorded, and another one plays its record back while its client sends everything at once.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

#[path = "support/library.rs"]
mod library;
#[path = "support/python.rs"]
mod python;

use python::PythonServer;

/// Replies with parts of a file, with the number of bytes that wait, with random numbers, and with values of a coarse clock.
const SERVER: &str = "
import ctypes, fcntl, os, select, socket, sys, termios, time
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
connection, _ = listener.accept()
file = os.open(sys.argv[2], os.O_RDONLY)
head = connection.recv(3, socket.MSG_PEEK)
assert connection.recv(3) == head
os.sendfile(connection.fileno(), file, 1, 3)
os.sendfile(connection.fileno(), file, None, 2)
os.sendfile(connection.fileno(), file, None, 2)
coarse = lambda: time.clock_gettime_ns(6) // 1000
clocks = [coarse(), coarse()]
select.select([connection], [], [])
time.sleep(0.1)
waiting = fcntl.ioctl(connection, termios.FIONREAD, b'....')
number = ctypes.CDLL(None).arc4random()
error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
clocks += [coarse()]
connection.sendall(f'{int.from_bytes(waiting, sys.byteorder)} {number} {error} {clocks}'.encode())
while connection.recv(4, socket.MSG_TRUNC):
    connection.sendall(b'.')
";

/// Connects from `client`, whose port may have been used just now.
fn connect(server: &PythonServer, client: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("set");
    socket.bind(&client.into()).expect("the address is free");
    while socket.connect(&server.address.into()).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    TcpStream::from(socket)
}

/// What the server says. `at_once`: the client sends all of its input before it reads.
fn said(setting: &str, address: SocketAddr, file: &str, at_once: bool) -> (String, String) {
    let mut server = PythonServer::start_at(SERVER, address, setting, &[file]);
    let mut client = connect(&server, "127.0.0.3:17340".parse().expect("an address"));
    client.write_all(b"abc").expect("sent");
    let mut reply = [0; 7];
    if at_once {
        client.write_all(b"more").expect("sent");
        client.write_all(b"and the rest").expect("sent");
    }
    client.read_exact(&mut reply).expect("parts of the file");
    let mut all = String::from_utf8(reply.to_vec()).expect("text");
    if !at_once {
        client.write_all(b"more").expect("sent");
        std::thread::sleep(std::time::Duration::from_millis(300));
        client.write_all(b"and the rest").expect("sent");
    }
    client.shutdown(Shutdown::Write).expect("connected");
    client.read_to_string(&mut all).expect("the rest");
    let mut errors = String::new();
    let said = server
        .process
        .stderr
        .take()
        .map(|mut said| said.read_to_string(&mut errors));
    said.expect("piped").expect("text");
    server.process.wait().expect("it ends");
    (all, errors)
}

#[test]
fn less_usual_calls_are_played_back() {
    let Some(address) = PythonServer::free_address() else {
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let [file, record] = ["file", "record"].map(|name| directory.path().join(name).display().to_string());
    std::fs::write(&file, "0123456789").expect("written");
    let (recorded, errors) = said(&format!("record:{record}"), address, &file, false);
    assert_eq!(errors, "");
    assert!(recorded.starts_with("12301234 "), "{recorded}");
    let (played, errors) = said(&format!("play:{record}"), address, &file, true);
    assert_eq!(played, recorded, "{errors}");
    let (plain, _) = said("", address, &file, true);
    assert_ne!(plain, recorded);

    std::fs::write(&file, "012").expect("written");
    let (_, errors) = said(&format!("play:{record}"), address, &file, true);
    assert!(errors.contains("the file has fewer bytes here"), "{errors}");
}
