//! An agent for a server that starts other processes, and its clients.

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

use super::python::PythonServer;

/// An agent that receives the streams of a server and of its children, and gives receipts for them. Or one that gives them back.
pub struct TestAgent {
    socket: PathBuf,
    pub record: Arc<TestRecord>,
    _directory: tempfile::TempDir,
}

#[derive(Default)]
pub struct TestRecord {
    /// Children get no receipts.
    pub is_mute: AtomicBool,
    streams: Mutex<TestStreams>,
}

#[derive(Default)]
pub struct TestStreams {
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
    /// Starts an agent. `given`: the sequence of a record that it gives back.
    pub fn start(given: Option<Vec<u8>>, service: Vec<u8>) -> Self {
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

    /// The setting of a server with this agent.
    pub fn setting(&self) -> String {
        format!("agent:{}", self.socket.display())
    }

    /// The sequence of the streams that were recorded.
    pub fn sequence(&self) -> Vec<u8> {
        self.record.streams.lock().expect("no panic").sequence.clone()
    }
}

/// An address of this machine that is not a loopback address: on a backup, connections from those are not ordered.
pub fn own_address() -> Option<IpAddr> {
    let probe = UdpSocket::bind("0.0.0.0:0").ok()?;
    probe.connect("192.0.2.1:9").ok()?;
    Some(probe.local_addr().ok()?.ip())
}

/// Sends `line` from `client`.
pub fn say(server: &PythonServer, client: SocketAddr, line: &str) -> TcpStream {
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
pub fn ask(server: &PythonServer, client: SocketAddr, line: &str) -> String {
    let mut stream = say(server, client, line);
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("a reply");
    reply
}

/// The address of a service as the agent tells it.
pub fn service_at(address: SocketAddr) -> Vec<u8> {
    let ip = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    [&ip[..], &address.port().to_be_bytes()].concat()
}
