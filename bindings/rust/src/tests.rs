//! The library against a fake agent: a thread that takes requests one by one, and answers as a test says.

use std::ffi::OsString;
use std::fs;
use std::io::{self, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use crate::agent::{self, EXPORT, EXPORT_AND_WAIT, HEADER, IMPORT, MAGIC, SnapshotAgent};
use crate::{FIRST_BUFFER, SNAPSHOT_MAX, SnapshotError, import_growing};

/// A request as the agent receives it.
#[derive(Debug, PartialEq, Eq)]
struct ReceivedRequest {
    operation: u32,
    size: u64,
    state: Vec<u8>,
    /// Inode of the descriptor that came with the first byte.
    inode: u64,
}

fn inode(descriptor: RawFd) -> u64 {
    fs::metadata(format!("/proc/self/fd/{descriptor}"))
        .expect("an open descriptor")
        .ino()
}

/// The next request on `stream`. `None`: the library has closed it.
fn receive(stream: &mut UnixStream) -> Option<ReceivedRequest> {
    let mut header = [0; HEADER];
    let mut space = nix::cmsg_space!([RawFd; 2]);
    let mut slices = [IoSliceMut::new(&mut header)];
    let received = recvmsg::<()>(
        stream.as_raw_fd(),
        &mut slices,
        Some(&mut space),
        MsgFlags::empty(),
    )
    .expect("a request");
    let descriptors: Vec<_> = received
        .cmsgs()
        .expect("control messages")
        .flat_map(|control| match control {
            ControlMessageOwned::ScmRights(descriptors) => descriptors,
            _ => Vec::new(),
        })
        .collect();
    let bytes = received.bytes;
    if bytes == 0 {
        return None;
    }
    stream
        .read_exact(&mut header[bytes..])
        .expect("the rest of the header");
    let [descriptor] = descriptors[..] else {
        panic!("{} descriptors", descriptors.len());
    };
    let inode = inode(descriptor);
    nix::unistd::close(descriptor).expect("an open descriptor");
    assert_eq!(header[..4], MAGIC.to_ne_bytes());
    let operation = u32::from_ne_bytes(header[4..8].try_into().expect("4 bytes"));
    let size = u64::from_ne_bytes(header[8..].try_into().expect("8 bytes"));
    let mut state = Vec::new();
    if operation != IMPORT {
        stream.take(size).read_to_end(&mut state).expect("the state");
    }
    Some(ReceivedRequest {
        operation,
        size,
        state,
        inode,
    })
}

fn answer(mut stream: &UnixStream, status: u32, flag: u32, size: usize, state: &[u8]) {
    let header = [status.to_ne_bytes(), flag.to_ne_bytes()].concat();
    let bytes = [&header, &(size as u64).to_ne_bytes()[..], state].concat();
    stream.write_all(&bytes).expect("the library reads");
}

/// A fake agent's thread, an agent that reaches it, and a TCP connection.
struct SnapshotTestbed {
    thread: JoinHandle<()>,
    agent: SnapshotAgent,
    connection: TcpStream,
    _directory: tempfile::TempDir,
}

impl SnapshotTestbed {
    fn new(script: impl FnOnce(UnixListener) + Send + 'static) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("agent.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        Self {
            thread: thread::spawn(move || script(listener)),
            agent: SnapshotAgent::new(Some(path), Arc::default()),
            connection: tcp_connection(),
            _directory: directory,
        }
    }

    /// An agent that gives the same answer to each request.
    fn answering(status: u32, flag: u32, size: usize) -> Self {
        Self::new(move |listener| {
            let mut stream = accept(&listener);
            while receive(&mut stream).is_some() {
                answer(&stream, status, flag, size, &[]);
            }
        })
    }

    fn export(&mut self, state: &[u8], waits: bool) -> Result<bool, SnapshotError> {
        self.agent.export(self.connection.as_fd(), state, waits)
    }

    fn import(&mut self) -> Result<Option<Vec<u8>>, SnapshotError> {
        import_growing(&mut self.agent, self.connection.as_fd())
    }

    /// Closes the agent's stream, and waits for the thread with its assertions.
    fn finish(self) {
        drop(self.agent);
        self.thread.join().expect("the fake agent's assertions");
    }
}

fn accept(listener: &UnixListener) -> UnixStream {
    listener.accept().expect("the library connects").0
}

fn tcp_connection() -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection")
}

#[test]
fn the_agent_receives_the_state_and_the_socket_itself() {
    let (sender, requests) = std::sync::mpsc::channel();
    let mut testbed = SnapshotTestbed::new(move |listener| {
        let mut stream = accept(&listener);
        while let Some(request) = receive(&mut stream) {
            let flag = u32::from(request.operation == EXPORT_AND_WAIT);
            sender.send(request).expect("the test listens");
            answer(&stream, 0, flag, 0, &[]);
        }
    });
    let large: Vec<u8> = (0..SNAPSHOT_MAX).map(|at| (at % 251) as u8).collect();
    assert!(testbed.export(b"state", true).expect("kept"));
    assert!(!testbed.export(&large, false).expect("accepted"));
    assert!(!testbed.export(&[], false).expect("accepted"));
    assert_eq!(testbed.import().expect("a new connection"), None);

    let inode = inode(testbed.connection.as_raw_fd());
    let exported = |operation, state: &[u8]| ReceivedRequest {
        operation,
        size: state.len() as u64,
        state: state.to_vec(),
        inode,
    };
    let import = ReceivedRequest {
        operation: IMPORT,
        size: FIRST_BUFFER as u64,
        state: Vec::new(),
        inode,
    };
    let expected = [
        exported(EXPORT_AND_WAIT, b"state"),
        exported(EXPORT, &large),
        exported(EXPORT, &[]),
        import,
    ];
    testbed.finish();
    assert!(requests.iter().eq(expected));
}

#[test]
fn each_status_is_an_error_of_its_own() {
    let outcome = |status, size| {
        let mut testbed = SnapshotTestbed::answering(status, 0, size);
        let outcome = testbed.export(b"state", true).expect_err("an error");
        testbed.finish();
        outcome
    };
    assert!(matches!(outcome(1, 0), SnapshotError::Emigrated));
    assert!(matches!(outcome(2, 0), SnapshotError::NotProtected));
    assert!(matches!(outcome(3, 0), SnapshotError::Closed));
    assert!(matches!(
        outcome(4, 1000),
        SnapshotError::TooLarge { limit: 1000 }
    ));
    assert!(matches!(outcome(6, 0), SnapshotError::TimedOut));
    assert!(matches!(outcome(7, 0), SnapshotError::Protocol));
    assert!(matches!(outcome(8, 0), SnapshotError::Protocol));
}

#[test]
fn a_large_state_is_imported_with_a_second_request() {
    let state: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
    let sent = state.clone();
    let mut testbed = SnapshotTestbed::new(move |listener| {
        let mut stream = accept(&listener);
        for room in [FIRST_BUFFER, sent.len()] {
            assert_eq!(receive(&mut stream).expect("a request").size, room as u64);
            if room < sent.len() {
                answer(&stream, 5, 0, sent.len(), &[]);
            } else {
                answer(&stream, 0, 1, sent.len(), &sent);
            }
        }
    });
    assert!(testbed.import().expect("a state") == Some(state));
    testbed.finish();
}

#[test]
fn an_import_does_not_believe_impossible_sizes() {
    for (status, size) in [(0, FIRST_BUFFER + 1), (5, FIRST_BUFFER), (5, SNAPSHOT_MAX + 1)] {
        let mut testbed = SnapshotTestbed::answering(status, 1, size);
        assert!(matches!(testbed.import(), Err(SnapshotError::Protocol)));
        testbed.finish();
    }
}

#[test]
fn a_state_above_the_limit_does_not_reach_the_agent() {
    let mut testbed = SnapshotTestbed::new(drop);
    let outcome = testbed.export(&vec![0; SNAPSHOT_MAX + 1], true);
    assert!(matches!(
        outcome,
        Err(SnapshotError::TooLarge { limit: SNAPSHOT_MAX })
    ));
    testbed.finish();
}

#[test]
fn a_request_that_a_restart_breaks_is_made_again() {
    let mut testbed = SnapshotTestbed::new(|listener| {
        // The first agent dies at once. The second one dies in its answer's header, and the third one in the imported state.
        drop(accept(&listener));
        let mut stream = accept(&listener);
        receive(&mut stream).expect("a request");
        stream.write_all(&[0; 5]).expect("the library reads");
        drop(stream);
        let mut stream = accept(&listener);
        receive(&mut stream).expect("a request");
        answer(&stream, 0, 1, 5, b"st");
        drop(stream);
        // The fourth one serves two requests on one stream, and dies while the library has no request.
        let mut stream = accept(&listener);
        for _ in 0..2 {
            receive(&mut stream).expect("a request");
            answer(&stream, 0, 1, 5, b"state");
        }
        drop(stream);
        let mut stream = accept(&listener);
        assert_eq!(receive(&mut stream).expect("a request").state, b"last");
        answer(&stream, 0, 1, 0, &[]);
    });
    for _ in 0..2 {
        assert_eq!(testbed.import().expect("a state").as_deref(), Some(&b"state"[..]));
    }
    assert!(testbed.export(b"last", true).expect("kept"));
    testbed.finish();
}

#[test]
fn an_agent_that_starts_late_is_found() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("agent.sock");
    let mut agent = SnapshotAgent::new(Some(path.clone()), Arc::default());
    let late = thread::spawn(move || {
        // A socket file without a listener refuses connections.
        drop(UnixListener::bind(&path).expect("a socket"));
        thread::sleep(Duration::from_millis(50));
        fs::remove_file(&path).expect("the socket");
        thread::sleep(Duration::from_millis(50));
        let mut stream = accept(&UnixListener::bind(&path).expect("a socket"));
        receive(&mut stream).expect("a request");
        answer(&stream, 0, 1, 0, &[]);
    });
    let is_kept = agent.export(tcp_connection().as_fd(), b"state", true);
    assert!(is_kept.expect("kept"));
    late.join().expect("the fake agent's assertions");
}

#[test]
fn an_agent_that_stays_away_is_an_error() {
    let mut agent = SnapshotAgent::new(Some(PathBuf::from("/nonexistent/agent.sock")), Arc::default());
    agent.patience = Duration::from_millis(50);
    match agent.export(tcp_connection().as_fd(), b"state", true) {
        Err(SnapshotError::NoAgent(error)) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
        outcome => panic!("{outcome:?}"),
    }
}

/// The first call waits for an agent that may be restarting. If it has waited in vain, the next exports do not wait, in whichever thread they
/// are made, until the agent is there again. An import waits, because without its state a connection must be closed.
#[test]
fn exports_do_not_wait_again_for_an_agent_that_is_gone() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("agent.sock");
    let is_gone = Arc::default();
    let agent = |patience| {
        let mut agent = SnapshotAgent::new(Some(path.clone()), Arc::clone(&is_gone));
        agent.patience = patience;
        agent
    };
    let connection = tcp_connection();
    let outcome = agent(Duration::from_millis(50)).export(connection.as_fd(), b"state", true);
    assert!(matches!(outcome, Err(SnapshotError::NoAgent(_))), "{outcome:?}");
    let listener = thread::scope(|threads| {
        let mut patient = agent(Duration::MAX / 4);
        let connection = connection.as_fd();
        // This time is beyond the clock's range, so a call that waited would panic.
        let exported = threads.spawn(move || patient.export(connection, b"state", true));
        let outcome = exported.join().expect("the call");
        assert!(matches!(outcome, Err(SnapshotError::NoAgent(_))), "{outcome:?}");
        UnixListener::bind(&path).expect("a socket")
    });
    let mut patient = agent(Duration::from_secs(60));
    let server = thread::spawn(move || {
        let mut stream = accept(&listener);
        receive(&mut stream).expect("a request");
        answer(&stream, 0, 1, 0, &[]);
    });
    assert!(patient.export(connection.as_fd(), b"state", true).expect("kept"));
    server.join().expect("the fake agent's assertions");
    assert!(
        !is_gone.load(std::sync::atomic::Ordering::Relaxed),
        "it is there again"
    );
}

#[test]
fn a_refusal_counts_even_if_the_agent_has_not_read_the_state() {
    let mut testbed = SnapshotTestbed::new(|listener| {
        let stream = accept(&listener);
        answer(&stream, 7, 0, 0, &[]);
    });
    let outcome = testbed.export(&vec![0; 4 << 20], true);
    assert!(matches!(outcome, Err(SnapshotError::Protocol)), "{outcome:?}");
    testbed.finish();
}

#[test]
fn without_an_agent_nothing_is_kept_and_each_connection_is_new() {
    assert_eq!(agent::path(Some(OsString::new())), None);
    assert_eq!(agent::path(None), Some("/run/steadfast/snapshots.sock".into()));
    assert_eq!(
        agent::path(Some("/agent.sock".into())),
        Some("/agent.sock".into())
    );

    let mut agent = SnapshotAgent::new(None, Arc::default());
    let connection = tcp_connection();
    assert!(
        !agent
            .export(connection.as_fd(), b"state", true)
            .expect("not kept")
    );
    assert_eq!(import_growing(&mut agent, connection.as_fd()).expect("new"), None);
}
