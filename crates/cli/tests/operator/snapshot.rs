//! Policy `snapshot`: a server exports its state for a connection, and after a takeover the other node's server imports it. The tests are the
//! servers, and speak to the agents as the libraries in `bindings/` do.

use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use crate::daemon::{Daemon, PairSpec, pair_of, snapshot_socket};
use crate::keeper::{PATIENCE, accept, listen};
use crate::lan::{CommandOutput, OperatorLan, steadfast};

const EXPORT: u32 = 1;
const EXPORT_WITHOUT_WAITING: u32 = 2;
const IMPORT: u32 = 3;

/// The status, the flag, the size and the state of an agent's answer.
type SnapshotAnswer = (u32, u32, u64, Vec<u8>);

/// Asks the agent of `daemon` about `connection`.
fn ask(
    daemon: &Daemon<'_>,
    operation: u32,
    size: usize,
    state: &[u8],
    connection: &TcpStream,
) -> SnapshotAnswer {
    let mut agent = UnixStream::connect(snapshot_socket(&daemon.state_dir)).expect("an agent");
    agent.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head = Vec::new();
    head.extend(0x3153_4653_u32.to_ne_bytes());
    head.extend(operation.to_ne_bytes());
    head.extend((size as u64).to_ne_bytes());
    let descriptors = [connection.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(
        agent.as_raw_fd(),
        &[IoSlice::new(&head)],
        &rights,
        MsgFlags::empty(),
        None,
    )
    .unwrap();
    agent.write_all(state).unwrap();
    let mut head = [0; 16];
    agent.read_exact(&mut head).expect("an answer");
    let number = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
    let size = u64::from_ne_bytes(head[8..].try_into().unwrap());
    let has_state = operation == IMPORT && number(0) == 0 && number(4) == 1;
    let mut state = vec![
        0;
        if has_state {
            usize::try_from(size).unwrap()
        } else {
            0
        }
    ];
    agent.read_exact(&mut state).expect("the state");
    (number(0), number(4), size, state)
}

fn export(daemon: &Daemon<'_>, state: &[u8], connection: &TcpStream) -> SnapshotAnswer {
    ask(daemon, EXPORT, state.len(), state, connection)
}

/// The answer to an export that the backup keeps.
fn kept() -> SnapshotAnswer {
    (0, 1, 0, Vec::new())
}

fn hear(stream: &mut TcpStream, expected: &str) {
    let mut heard = vec![0; expected.len()];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(String::from_utf8_lossy(&heard), expected);
}

fn say(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
}

/// A pair with policy `snapshot`, a client, and the primary's connection to it.
struct SnapshotPair<'a> {
    lan: &'a OperatorLan,
    pair: [Daemon<'a>; 2],
    listeners: [TcpListener; 2],
    client: TcpStream,
    server: TcpStream,
}

impl<'a> SnapshotPair<'a> {
    fn new(lan: &'a OperatorLan, dir: &Path, test: &str) -> Self {
        let kind = PairSpec {
            policy: "snapshot",
            ..PairSpec::default()
        };
        let pair = pair_of(lan, dir, test, &kind);
        lan.stranger.ip("route add 10.0.0.100/32 dev eth0");
        let listeners = [listen(&lan.node), listen(&lan.peer)];
        let client = lan.stranger.run(|| TcpStream::connect("10.0.0.100:80").unwrap());
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let server = accept(&listeners[0]);
        pair[1].wait_for(&["\"protected\":1"]);
        Self {
            lan,
            pair,
            listeners,
            client,
            server,
        }
    }

    /// Cuts off and kills the primary. Returns the survivor's connection.
    fn power_off(&mut self) -> TcpStream {
        self.lan.stranger.ip("link set port2 down");
        self.pair[0].signal(Signal::SIGKILL);
        self.pair[0].process.wait().unwrap();
        let survivor = accept(&self.listeners[1]);
        self.pair[1].wait_for(&["\"role\":\"primary\"", "\"mode\":\"simplex\""]);
        survivor
    }
}

#[test]
fn a_server_goes_on_from_its_last_state() {
    let Some(lan) = OperatorLan::new("a_server_goes_on_from_its_last_state") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut testbed = SnapshotPair::new(&lan, dir.path(), "snap-on");
    let SnapshotPair {
        pair, client, server, ..
    } = &mut testbed;
    assert_eq!(
        ask(&pair[0], IMPORT, 100, b"", server),
        (0, 0, 0, Vec::new()),
        "a new connection"
    );
    say(client, "hello");
    hear(server, "hello");
    say(server, "first reply;");
    assert_eq!(export(&pair[0], b"state 1", server), kept());
    hear(client, "first reply;");
    say(client, "again and more");
    hear(server, "again");
    say(server, "second");
    let large: Vec<u8> = (0..1_000_000_u32).map(|at| (at / 9) as u8).collect();
    assert_eq!(export(&pair[0], &large, server), kept());
    say(server, " reply;");
    hear(client, "second reply;");
    hear(server, " and ");
    pair[1].wait_for(&["\"connections_with_snapshot\":1"]);
    pair[0].wait_for(&["\"snapshots_kept\":2"]);

    let mut survivor = testbed.power_off();
    let SnapshotPair { pair, client, .. } = &mut testbed;
    let (status, flag, size, _) = ask(&pair[1], IMPORT, 99, b"", &survivor);
    assert_eq!((status, flag, size), (5, 0, 1_000_000), "the buffer is too small");
    // The keeper has the state, so the agent may die.
    pair[1].signal(Signal::SIGKILL);
    pair[1].process.wait().unwrap();
    pair[1].start_again();
    pair[1].wait_for(&["\"role\":\"primary\""]);
    assert_eq!(
        ask(&pair[1], IMPORT, large.len(), b"", &survivor),
        (0, 1, 1_000_000, large)
    );
    pair[1].wait_for(&["\"snapshots_imported\":1"]);
    hear(&mut survivor, " and more");
    say(&mut survivor, " reply;");
    say(&mut survivor, "third");
    hear(client, "third");
    say(client, "!");
    hear(&mut survivor, "!");
    // No backup would keep it.
    assert_eq!(export(&pair[1], b"state 3", &survivor), (0, 0, 0, Vec::new()));
}

/// A server that says something else after the snapshot would contradict what the client has.
#[test]
fn a_server_that_does_not_repeat_its_output_ends_the_connection() {
    let Some(lan) = OperatorLan::new("a_server_that_does_not_repeat_its_output_ends_the_connection") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut testbed = SnapshotPair::new(&lan, dir.path(), "snap-bad");
    let SnapshotPair {
        pair, client, server, ..
    } = &mut testbed;
    assert_eq!(export(&pair[0], b"state", server), kept());
    say(server, "one");
    hear(client, "one");
    let mut survivor = testbed.power_off();
    say(&mut survivor, "two and more");
    assert!(testbed.client.read(&mut [0]).is_err(), "a reset");
}

/// The state is lost with the primary if the call did not wait and the wire never got it, but the connection goes on from its start.
#[test]
fn without_a_snapshot_a_server_gets_the_connection_from_its_start() {
    let Some(lan) = OperatorLan::new("without_a_snapshot_a_server_gets_the_connection_from_its_start") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut testbed = SnapshotPair::new(&lan, dir.path(), "snap-none");
    let SnapshotPair { client, server, .. } = &mut testbed;
    say(client, "hello");
    hear(server, "hello");
    say(server, "rep");
    hear(client, "rep");
    let mut survivor = testbed.power_off();
    let SnapshotPair { pair, client, .. } = &mut testbed;
    assert_eq!(ask(&pair[1], IMPORT, 100, b"", &survivor), (0, 0, 0, Vec::new()));
    hear(&mut survivor, "hello");
    say(&mut survivor, "reply");
    hear(client, "ly");
}

/// The other node serves the connection after a handover.
#[test]
fn a_connection_that_has_moved_has_no_state_here() {
    let Some(lan) = OperatorLan::new("a_connection_that_has_moved_has_no_state_here") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut testbed = SnapshotPair::new(&lan, dir.path(), "snap-moved");
    let SnapshotPair {
        pair,
        client,
        server,
        listeners,
        ..
    } = &mut testbed;
    say(client, "hello");
    hear(server, "hello");
    let without_waiting = ask(&pair[0], EXPORT_WITHOUT_WAITING, 5, b"state", server);
    assert_eq!(without_waiting, kept(), "it is accepted");
    pair[1].wait_for(&["\"connections_with_snapshot\":1"]);
    let config = pair[0].config.to_str().unwrap();
    let mut handover = steadfast(&["handover", "web", "--config", config]);
    let handed_over = lan.node.run(|| CommandOutput::of(&mut handover));
    assert_eq!(handed_over.code, 0, "{}", handed_over.errors);
    let mut next = accept(&listeners[1]);
    assert_eq!(ask(&pair[1], IMPORT, 5, b"", &next), (0, 1, 5, b"state".to_vec()));
    say(&mut next, "on");
    hear(client, "on");
    pair[0].wait_for(&["\"role\":\"backup\""]);
    assert_eq!(export(&pair[0], b"late", server), (1, 0, 0, Vec::new()));
}
