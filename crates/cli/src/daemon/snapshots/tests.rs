use std::io::{IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream as Application;
use std::process::Command;
use std::sync::mpsc::Receiver;

use linux::application::UNSENT_MAX;
use linux::peer_process::PeerProcess;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use proto::Seq;
use proto::export::{ExportOutcome, ExportPlace, STATE_MAX};
use socket2::SockRef;

use super::waiting::{ImportCounter, MovedConnections};
use super::*;
use crate::control::{Call, ControlServer, ExportRequest};

/// A server of snapshots for one service, with an agent that the test plays.
struct ServerTestbed {
    directory: tempfile::TempDir,
    calls: Receiver<Call>,
    application: TcpStream,
    client: TcpStream,
    moved: MovedConnections,
    asker: Asker,
    _control: ControlServer,
}

impl ServerTestbed {
    fn new() -> Self {
        Self::with_application(false)
    }

    /// `is_relayed`: the connection comes to the application from a keeper.
    fn with_application(is_relayed: bool) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (control, asker, calls) = ControlServer::open(directory.path(), || ()).expect("a control socket");
        let own_asker = asker.clone();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let vip = listener.local_addr().expect("bound");
        let client = TcpStream::connect(vip).expect("connected");
        let (application, _) = listener.accept().expect("accepted");
        let other: SocketAddr = "127.0.0.1:1".parse().expect("an address");
        let service = SnapshotService {
            index: 3,
            vip: if is_relayed { other } else { vip },
            application: if is_relayed { vip } else { other },
        };
        let moved = MovedConnections::default();
        let server = Arc::new(SnapshotServer {
            services: vec![service],
            state_dir: directory.path().to_owned(),
            asker,
            receiving: Semaphore::new(RECEIVING_MAX),
            imported: ImportCounter::default(),
            moved: moved.clone(),
            set_hidden: Arc::new(|_, _, _| ()),
            stream_starts: Box::new(|_, _| Ok(Some(STARTS))),
            relayed_starts: Arc::new(|_, _| Ok(None)), // no keeper has it
        });
        let path = directory.path().join("snapshots.sock");
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                accept(&open(&path).expect("a socket"), server).await;
            });
        });
        Self {
            directory,
            calls,
            application,
            client,
            moved,
            asker: own_asker,
            _control: control,
        }
    }

    fn connect(&self) -> Application {
        let path = self.directory.path().join("snapshots.sock");
        loop {
            match Application::connect(&path) {
                Ok(stream) => return stream,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Answers the next call as the agent does, and returns its request.
    fn answer(&self, outcome: ExportOutcome) -> ExportRequest {
        match self.calls.recv().expect("the server asks") {
            Call::Export(request, reply) => {
                reply.send(outcome).expect("the server waits");
                request
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Sends a request with the descriptor of `connection`.
fn ask(server: &mut Application, operation: u32, size: usize, state: &[u8], connection: Option<&TcpStream>) {
    let mut head = Vec::new();
    head.extend(0x3153_4653_u32.to_ne_bytes());
    head.extend(operation.to_ne_bytes());
    head.extend((size as u64).to_ne_bytes());
    let descriptors: Vec<_> = connection
        .iter()
        .map(|connection| connection.as_raw_fd())
        .collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let rights = if descriptors.is_empty() {
        &rights[..0]
    } else {
        &rights[..]
    };
    sendmsg::<()>(
        server.as_raw_fd(),
        &[IoSlice::new(&head)],
        rights,
        MsgFlags::empty(),
        None,
    )
    .expect("sent");
    server.write_all(state).expect("sent");
}

/// The status, the flag and the size of the next answer.
fn hear(server: &mut Application) -> (u32, u32, u64) {
    let mut head = [0; 16];
    server.read_exact(&mut head).expect("an answer");
    let number = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
    (
        number(0),
        number(4),
        u64::from_ne_bytes(head[8..].try_into().unwrap()),
    )
}

/// The sequence numbers of the first bytes.
const STARTS: (Seq, Seq) = (Seq(u32::MAX - 100), Seq(5_000));

fn place(read: u32, written: u32) -> ExportPlace {
    ExportPlace {
        input: STARTS.0 + read,
        output: STARTS.1 + written,
    }
}

#[test]
fn an_export_has_the_offsets_of_its_connection() {
    let mut testbed = ServerTestbed::new();
    testbed.client.write_all(&[1; 1000]).unwrap();
    testbed.application.read_exact(&mut [0; 300]).unwrap();
    testbed.application.write_all(&[2; 70]).unwrap();
    let mut server = testbed.connect();
    let outcomes = [
        (ExportOutcome::Kept, (0, 1, 0)),
        (ExportOutcome::NotKept("no backup".into()), (0, 0, 0)),
        (ExportOutcome::Moved, (1, 0, 0)),
        (ExportOutcome::TimedOut, (6, 0, 0)),
    ];
    for (outcome, answer) in outcomes {
        ask(&mut server, 1, 5, b"state", Some(&testbed.application));
        let ExportRequest { service, call } = testbed.answer(outcome);
        assert_eq!(
            (service, call.waits, &*call.state),
            (3, true, b"state".as_slice())
        );
        assert_eq!(call.client, testbed.client.local_addr().unwrap());
        assert_eq!(call.place, place(300, 70));
        assert_eq!(hear(&mut server), answer);
    }
    testbed.application.write_all(&[2; 30]).unwrap();
    ask(&mut server, 2, 0, b"", Some(&testbed.application));
    let request = testbed.answer(ExportOutcome::Kept);
    assert!(!request.call.waits);
    assert_eq!(request.call.place, place(300, 100));
    assert_eq!(hear(&mut server), (0, 1, 0));
}

#[test]
fn bad_requests_have_an_answer() {
    let mut testbed = ServerTestbed::new();
    let mut server = testbed.connect();
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpStream::connect(stranger.local_addr().unwrap()).unwrap();
    ask(&mut server, 1, 1, b"a", Some(&other));
    assert_eq!(hear(&mut server), (2, 0, 0), "of no service");
    let large = vec![0; STATE_MAX + 1];
    ask(&mut server, 1, large.len(), &large, Some(&testbed.application));
    assert_eq!(hear(&mut server), (4, 0, STATE_MAX as u64));
    ask(&mut server, 3, 100, b"", Some(&testbed.application));
    assert_eq!(
        hear(&mut server),
        (0, 0, 0),
        "the client has connected to this node itself"
    );
    let ahead = SockRef::from(&testbed.application).tcp_notsent_lowat();
    assert_eq!(
        ahead.unwrap(),
        UNSENT_MAX,
        "it writes only a bounded amount ahead"
    );
    // The application ends its output, so a restarted one could not go on.
    testbed.application.shutdown(Shutdown::Write).unwrap();
    testbed.client.read_to_end(&mut Vec::new()).unwrap();
    for (has_moved, status) in [(false, 3), (true, 1)] {
        ask(&mut server, 1, 1, b"a", Some(&testbed.application));
        match testbed.calls.recv().unwrap() {
            Call::HasMoved(3, reply) => reply.send(has_moved).unwrap(),
            call => panic!("{call:?}"),
        }
        assert_eq!(hear(&mut server), (status, 0, 0));
    }
    for (operation, connection) in [(9, Some(&testbed.application)), (1, None)] {
        let mut server = testbed.connect();
        ask(&mut server, operation, 0, b"", connection);
        assert_eq!(hear(&mut server), (7, 0, 0));
        assert_eq!(server.read(&mut [0]).unwrap(), 0, "the server hangs up");
    }
}

/// A single connection has moved while its service has not. The application learns this from each later call.
#[test]
fn calls_on_a_connection_that_has_moved_say_so() {
    let mut testbed = ServerTestbed::new();
    let mut server = testbed.connect();
    let descriptor = testbed.application.try_clone().unwrap().into();
    testbed
        .moved
        .note([linux::application::cookie(&descriptor).unwrap()]);
    testbed.application.shutdown(Shutdown::Both).unwrap();
    testbed.client.read_to_end(&mut Vec::new()).unwrap();
    for operation in [1, 2, 3] {
        let (size, state): (_, &[u8]) = if operation == 3 { (9, b"") } else { (1, b"a") };
        ask(&mut server, operation, size, state, Some(&testbed.application));
        assert_eq!(hear(&mut server), (1, 0, 0), "operation {operation}");
    }
}

/// A connection that a keeper relayed here moves on. Its application must not believe that it goes on without a backup.
#[test]
fn a_call_on_a_relayed_connection_that_moves_says_so() {
    let testbed = ServerTestbed::with_application(true);
    let mut server = testbed.connect();
    let client = testbed.client.local_addr().unwrap();
    ask(&mut server, 1, 1, b"a", Some(&testbed.application));
    assert_eq!(hear(&mut server), (0, 0, 0), "a local program's own");
    testbed.moved.leave(3, &[client]);
    ask(&mut server, 1, 1, b"a", Some(&testbed.application));
    assert_eq!(hear(&mut server), (1, 0, 0), "it has moved");
    testbed.moved.arrive(3, client);
    ask(&mut server, 1, 1, b"a", Some(&testbed.application));
    assert_eq!(hear(&mut server), (0, 0, 0), "a new one");
}

/// An application that cannot be told the outcome asks the next agent.
#[test]
fn a_request_is_cut_if_the_agent_stops() {
    let testbed = ServerTestbed::new();
    let mut server = testbed.connect();
    ask(&mut server, 1, 1, b"a", Some(&testbed.application));
    drop(testbed.calls.recv().unwrap());
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
}

/// If the application dies while it sends its state, its kernel must close the connection, and not this process: only then does the kernel
/// know that a death ends the connection.
#[test]
fn the_server_lets_the_connection_go_before_the_state_has_come() {
    let mut testbed = ServerTestbed::new();
    let mut server = testbed.connect();
    ask(&mut server, 1, 1000, b"the beginning", Some(&testbed.application));
    drop(testbed.application);
    let patience = server::STATE_TIME / 2; // the server waits longer than this for the rest of the state
    testbed.client.set_read_timeout(Some(patience)).unwrap();
    assert_eq!(testbed.client.read(&mut [0]).unwrap(), 0, "nobody else has it");
}

/// A process that has been killed.
fn dead_process() -> PeerProcess {
    let mut process = Command::new("sleep").arg("1000").spawn().expect("started");
    let found = PeerProcess::find(i32::try_from(process.id()).expect("small"));
    process.kill().expect("killed");
    process.wait().expect("reaped");
    found.expect("it ran")
}

/// A descriptor may be the connection's last one, because its application was killed after it had sent the request.
#[test]
fn the_server_hides_the_end_of_a_dead_applications_connection() {
    for is_dead in [false, true] {
        let testbed = ServerTestbed::new();
        let client = testbed.client.local_addr().expect("connected");
        let (hide, hidden) = std::sync::mpsc::channel();
        let own = i32::try_from(std::process::id()).expect("small");
        let process = if is_dead {
            dead_process()
        } else {
            PeerProcess::find(own).expect("it runs")
        };
        let closing = server::LastClose {
            service: 3,
            client,
            process: Arc::new(process),
            set_hidden: Arc::new(move |service, client, is_hidden| {
                hide.send((service, client, is_hidden)).expect("the test listens");
            }),
            asker: testbed.asker.clone(),
        };
        closing.close(testbed.application.into());
        let changes: Vec<_> = hidden.iter().collect();
        if is_dead {
            assert_eq!(changes, [(3, client, true)]);
            assert!(matches!(testbed.calls.recv(), Ok(Call::Died(3, of)) if of == client));
        } else {
            assert_eq!(changes, [(3, client, true), (3, client, false)]);
            let told = testbed.calls.try_recv();
            assert!(told.is_err(), "the application has closed it itself");
        }
    }
}
