//! A server that forks for each connection is recorded by an agent. Its children, and the programs that they start, have streams of their own.
//! A second server plays the streams back, and sends the same bytes.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proto::order::frames::{
    ALONE, CHILD, HEAD, HELLO, PART, RECEIPT, RESUME, RESUMED, ROLE_PLAY, ROLE_RECORD, VERSION, frame,
    payload_len,
};
use proto::order::{SERVER_STREAM, StreamArrivals, StreamCause, StreamMerger};
use socket2::{Domain, Socket, Type};

#[path = "support/library.rs"]
mod library;
#[path = "support/python.rs"]
mod python;

use python::PythonServer;

/// A server whose children reply themselves, or start a shell that starts another program, as the client wants.
const SERVER: &str = "
import os, select, signal, socket, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.create_server(('0.0.0.0', int(sys.argv[1])))
while True:
    if 'poll' in sys.argv:
        select.select([listener], [], [])
    connection, _ = listener.accept()
    if os.fork() == 0:
        if connection.recv(1, socket.MSG_PEEK) == b'p':
            connection.recv(10)
            connection.sendall(f'{time.time_ns()} {os.urandom(4).hex()} {os.getpid()}'.encode())
            os._exit(0)
        for number in range(3):
            os.dup2(connection.fileno(), number)
        os.closerange(3, 2000)
        os.execl('/bin/sh', 'sh', '-c', 'read line; date +%s%N; echo $$ $line; /bin/date +%N')
    connection.close()
";

/// An agent that receives the streams of a server and of its children, and gives receipts for them. Or one that gives them back.
struct TestAgent {
    socket: PathBuf,
    record: Arc<TestRecord>,
    _directory: tempfile::TempDir,
}

#[derive(Default)]
struct TestRecord {
    /// Children get no receipts.
    is_mute: AtomicBool,
    streams: Mutex<TestStreams>,
}

#[derive(Default)]
struct TestStreams {
    merger: StreamMerger,
    sequence: Vec<u8>,
}

fn receive(mut library: &UnixStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; HEAD];
    library.read_exact(&mut head).ok()?;
    let mut payload = vec![0; payload_len(&head)];
    library.read_exact(&mut payload).ok()?;
    Some((head[0], payload))
}

fn send(mut library: &UnixStream, kind: u8, payload: &[u8]) {
    let _ = library.write_all(&frame(kind, payload)); // a child may have ended
}

fn number<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("long enough")
}

/// Takes a stream, and gives a receipt for each part of it.
fn take(library: &UnixStream, first: &(u8, Vec<u8>), record: &TestRecord, service: &[u8]) {
    let mut stream = SERVER_STREAM;
    if first.0 == HELLO {
        send(library, ROLE_RECORD, service);
        send(library, ALONE, &[]);
    } else {
        stream = u32::from_le_bytes(number(&first.1[1..]));
        let cause = StreamCause {
            parent: u32::from_le_bytes(number(&first.1[5..])),
            len: u64::from_le_bytes(number(&first.1[9..])),
        };
        assert!(
            record
                .streams
                .lock()
                .expect("no panic")
                .merger
                .open(stream, cause)
        );
    }
    while let Some((kind, payload)) = receive(library) {
        let mut streams = record.streams.lock().expect("no panic");
        if kind == PART {
            let part = streams.merger.add(stream, &payload);
            streams.sequence.extend(part);
        }
        let len = streams.merger.len(stream).to_le_bytes();
        drop(streams);
        match kind {
            PART => {
                while stream != SERVER_STREAM && record.is_mute.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                send(library, RECEIPT, &len);
            }
            RESUME => send(library, RESUMED, &len),
            _ => {}
        }
    }
}

/// Gives a stream back, and waits for its process to end.
fn give(library: &UnixStream, first: &(u8, Vec<u8>), streams: &Mutex<StreamArrivals>) {
    if first.0 == HELLO {
        send(library, ROLE_PLAY, &[0]);
        let record = streams.lock().expect("no panic").take(SERVER_STREAM);
        send(library, PART, &record);
    } else {
        let stream = u32::from_le_bytes(number(&first.1[1..]));
        let mut streams = streams.lock().expect("no panic");
        while let Some(event) = streams.take_event(stream) {
            send(library, PART, &event);
        }
    }
    while receive(library).is_some() {}
}

impl TestAgent {
    fn start(given: Option<Vec<u8>>, service: Vec<u8>) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("order.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let record = Arc::<TestRecord>::default();
        let streams = given.map(|sequence| {
            let mut arrivals = StreamArrivals::default();
            assert!(arrivals.add(&sequence));
            Arc::new(Mutex::new(arrivals))
        });
        let records = Arc::clone(&record);
        std::thread::spawn(move || {
            for library in listener.incoming().flatten() {
                let (records, streams, service) = (Arc::clone(&records), streams.clone(), service.clone());
                std::thread::spawn(move || {
                    let first = receive(&library).expect("a first frame");
                    assert!([HELLO, CHILD].contains(&first.0) && first.1[0] == VERSION);
                    match streams {
                        Some(streams) => give(&library, &first, &streams),
                        None => take(&library, &first, &records, &service),
                    }
                });
            }
        });
        Self {
            socket,
            record,
            _directory: directory,
        }
    }

    fn setting(&self) -> String {
        format!("agent:{}", self.socket.display())
    }
}

/// An address of this machine that is not a loopback address: on a backup, connections from those are not ordered.
fn own_address() -> Option<IpAddr> {
    let probe = UdpSocket::bind("0.0.0.0:0").ok()?;
    probe.connect("192.0.2.1:9").ok()?;
    Some(probe.local_addr().ok()?.ip())
}

/// Sends `line` from `client`.
fn say(server: &PythonServer, client: SocketAddr, line: &str) -> TcpStream {
    // It listens now. This connection is not the service's, so it is not recorded.
    let local = SocketAddr::from(([127, 0, 0, 2], server.address.port()));
    drop(server.connect_at(local));
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("set");
    socket.bind(&client.into()).expect("the address is free");
    socket.connect(&server.address.into()).expect("connected");
    let mut stream = TcpStream::from(socket);
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("set");
    stream.write_all(line.as_bytes()).expect("sent");
    stream
}

/// Sends `line` from `client`, and returns the reply.
fn ask(server: &PythonServer, client: SocketAddr, line: &str) -> String {
    let mut stream = say(server, client, line);
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("a reply");
    reply
}

/// What the server says to both kinds of clients. `setting`: what the library does.
fn replies(server: &PythonServer, ip: IpAddr, port: u16) -> [String; 2] {
    let client = |number: u16| SocketAddr::new(ip, port + number);
    [ask(server, client(0), "p\n"), ask(server, client(1), "shell\n")]
}

/// The address of a service as the agent tells it.
fn service_at(address: SocketAddr) -> Vec<u8> {
    let ip = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    [&ip[..], &address.port().to_be_bytes()].concat()
}

fn check(mode: &str, port: u16) {
    let Some(ip) = own_address() else {
        println!("skipped: no address besides loopback addresses");
        return;
    };
    let Some(address) = PythonServer::free_address() else {
        return;
    };
    let service = service_at(address);
    let agent = TestAgent::start(None, service.clone());
    let recorded = PythonServer::start_at(SERVER, address, &agent.setting(), &[mode]);
    let said = replies(&recorded, ip, port);
    let errors = recorded.end();
    assert_eq!(errors, "");
    assert_eq!(said[0].split(' ').count(), 3, "{said:?}");
    assert_eq!(said[1].lines().count(), 3, "{said:?}");
    let sequence = std::mem::take(&mut agent.record.streams.lock().expect("no panic").sequence);

    let replica = TestAgent::start(Some(sequence), service);
    let played = PythonServer::start_at(SERVER, address, &replica.setting(), &[mode]);
    let repeated = replies(&played, ip, port);
    let errors = played.end();
    assert_eq!(repeated, said, "{errors}");

    let plain = PythonServer::start_at(SERVER, address, "", &[mode]);
    let other = replies(&plain, ip, port);
    plain.end();
    assert!(other[0] != said[0] && other[1] != said[1]);
}

#[test]
fn children_of_a_played_back_server_send_the_same() {
    check("accept", 17_310);
}

#[test]
fn so_do_those_of_a_server_that_waits_with_select() {
    check("poll", 17_320);
}

#[test]
fn output_of_a_childs_program_waits_for_its_receipts() {
    let (Some(ip), Some(address)) = (own_address(), PythonServer::free_address()) else {
        return;
    };
    let agent = TestAgent::start(None, service_at(address));
    let server = PythonServer::start_at(SERVER, address, &agent.setting(), &["accept"]);
    agent.record.is_mute.store(true, Ordering::Relaxed);
    let mut client = say(&server, SocketAddr::new(ip, 17_330), "shell\n");
    client
        .set_read_timeout(Some(Duration::from_millis(300)))
        .expect("set");
    assert!(
        client.read(&mut [0]).is_err(),
        "the backup lacks what the output depends on"
    );
    agent.record.is_mute.store(false, Ordering::Relaxed);
    client
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("set");
    let mut reply = String::new();
    client.read_to_string(&mut reply).expect("a reply");
    assert_eq!(reply.lines().count(), 3, "{reply}");
    assert_eq!(server.end(), "");
}
