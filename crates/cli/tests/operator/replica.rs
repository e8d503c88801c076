//! Connections with a replica. In some tests, one side has closed when the primary loses its power, and the replica continues the
//! connection. In other tests, the replica is behind, or its server was started again.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::daemon::{Daemon, PairSpec, pair_of};
use crate::keeper::{PATIENCE, accept, listen};
use crate::lan::{CommandOutput, OperatorLan, POLL};

/// A connected client of a replicated service, and the server's connection on each node.
struct ReplicatedPair<'a> {
    lan: &'a OperatorLan,
    pair: [Daemon<'a>; 2],
    client: TcpStream,
    servers: [TcpStream; 2],
    _listeners: [TcpListener; 2],
}

impl<'a> ReplicatedPair<'a> {
    fn new(lan: &'a OperatorLan, dir: &std::path::Path, test: &str) -> Self {
        Self::of(lan, dir, test, "")
    }

    /// As [`new`](Self::new), with the lines `log` in the configuration's `[log]` table.
    fn of(lan: &'a OperatorLan, dir: &std::path::Path, test: &str, log: &str) -> Self {
        let kind = PairSpec {
            policy: "replica",
            log,
            ..PairSpec::default()
        };
        let pair = pair_of(lan, dir, test, &kind);
        lan.stranger.ip("route add 10.0.0.100/32 dev eth0");
        let listeners = [listen(&lan.node), listen(&lan.peer)];
        let client = lan.stranger.run(|| TcpStream::connect("10.0.0.100:80").unwrap());
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let servers = listeners.each_ref().map(accept);
        pair[1].wait_for(&["\"protected\":1"]);
        Self {
            lan,
            pair,
            client,
            servers,
            _listeners: listeners,
        }
    }

    /// Sends a request and checks that both servers receive it.
    fn ask(&mut self, request: &[u8]) {
        self.client.write_all(request).unwrap();
        for server in &mut self.servers {
            let mut heard = vec![0; request.len()];
            server.read_exact(&mut heard).unwrap();
            assert_eq!(heard, request);
        }
    }

    /// Both servers send `reply`, and the client receives it once.
    fn reply(&mut self, reply: &[u8]) {
        for server in &mut self.servers {
            server.write_all(reply).unwrap();
        }
        self.hear(reply);
    }

    fn hear(&mut self, said: &[u8]) {
        let mut heard = vec![0; said.len()];
        self.client.read_exact(&mut heard).unwrap();
        assert_eq!(heard, said);
    }

    fn hear_the_end(&mut self) {
        assert_eq!(self.client.read(&mut [0]).unwrap(), 0);
    }

    /// Cuts off and kills the primary. Waits until the backup serves alone. Checks that it has restored the connection.
    fn power_off(&mut self) {
        self.lan.stranger.ip("link set port2 down");
        self.pair[0].signal(Signal::SIGKILL);
        self.pair[0].process.wait().unwrap();
        self.pair[1].wait_for(&["\"role\":\"primary\"", "\"mode\":\"simplex\""]);
        let restored = self.pair[1].restored();
        assert!(restored.contains("\"lives\":true"), "{restored}");
    }

    /// Waits until the client's socket is in one of these states, as `ss` names them. Fails if the socket was reset.
    #[track_caller]
    fn wait_for_client(&self, states: &[&str]) {
        let filter = format!(
            "dst 10.0.0.100 and sport = :{}",
            self.client.local_addr().unwrap().port()
        );
        let until = Instant::now() + PATIENCE;
        loop {
            let mut ss = Command::new("ss");
            ss.args(["-Htan", &filter]);
            let shown = self.lan.stranger.run(|| CommandOutput::of(&mut ss)).output;
            let state = shown.split_whitespace().next().unwrap_or("gone");
            assert!(self.client.take_error().unwrap().is_none(), "it was reset");
            if states.contains(&state) {
                return;
            }
            assert!(Instant::now() < until, "{state}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The server sends its last reply, then shuts its socket down in the directions `closes`. The client closes long after
/// the takeover.
fn close_late(test: &str, closes: Shutdown) {
    let Some(lan) = OperatorLan::new(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut testbed = ReplicatedPair::new(&lan, dir.path(), &format!("fin-{closes:?}").to_lowercase());
    testbed.ask(b"QUIT\r\n");
    testbed.reply(b"+OK\r\n");
    for server in &testbed.servers {
        server.shutdown(closes).unwrap();
    }
    testbed.hear_the_end();
    testbed.pair[1].wait_for(&["\"protected\":1"]);
    testbed.power_off();
    testbed.wait_for_client(&["CLOSE-WAIT"]);
    if closes == Shutdown::Write {
        testbed.client.write_all(b"thanks").unwrap();
        testbed.servers[1].read_exact(&mut [0; 6]).unwrap();
    }
    testbed.client.shutdown(Shutdown::Write).unwrap();
    testbed.wait_for_client(&["gone"]);
}

/// After QUIT, Redis closes first.
#[test]
fn a_server_that_has_closed_first_is_not_reset_by_a_takeover() {
    close_late(
        "a_server_that_has_closed_first_is_not_reset_by_a_takeover",
        Shutdown::Both,
    );
}

#[test]
fn a_server_that_only_says_no_more_listens_on_after_a_takeover() {
    close_late(
        "a_server_that_only_says_no_more_listens_on_after_a_takeover",
        Shutdown::Write,
    );
}

#[test]
fn a_client_that_has_closed_first_gets_the_whole_reply() {
    let Some(lan) = OperatorLan::new("a_client_that_has_closed_first_gets_the_whole_reply") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut testbed = ReplicatedPair::new(&lan, dir.path(), "eof");
    testbed.ask(b"sort these\n");
    testbed.client.shutdown(Shutdown::Write).unwrap();
    for server in &mut testbed.servers {
        assert_eq!(server.read(&mut [0]).unwrap(), 0, "the server reads a FIN");
    }
    testbed.reply(b"one ");
    testbed.pair[1].wait_for(&["\"protected\":1"]);
    testbed.power_off();
    testbed.wait_for_client(&["FIN-WAIT-2"]);
    testbed.servers[1].write_all(b"two").unwrap();
    testbed.hear(b"two");
    testbed.servers[1].shutdown(Shutdown::Both).unwrap();
    testbed.hear_the_end();
    testbed.wait_for_client(&["TIME-WAIT", "gone"]);
}

#[test]
fn the_lag_is_what_one_server_lacks_of_the_other() {
    let Some(lan) = OperatorLan::new("the_lag_is_what_one_server_lacks_of_the_other") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut testbed = ReplicatedPair::new(&lan, dir.path(), "lag");
    let lag = |unfollowed: u32, unacknowledged: u32| {
        format!("\"lag\":{{\"unfollowed_bytes\":{unfollowed},\"unacknowledged_bytes\":{unacknowledged}}}")
    };
    testbed.ask(b"PING\r\n");
    testbed.servers[0].write_all(&[b'x'; 700]).unwrap();
    testbed.hear(&[b'x'; 700]);
    testbed.pair[1].wait_for(&[&lag(700, 0)]);
    testbed.servers[1].write_all(&[b'x'; 300]).unwrap();
    testbed.pair[1].wait_for(&[&lag(400, 0)]);
    testbed.servers[1].write_all(&[b'x'; 400]).unwrap();
    testbed.pair[1].wait_for(&[&lag(0, 0), "\"protected\":1"]);
    // The primary does not acknowledge input that it does not get.
    for rule in [
        "add table ip deaf",
        "add chain ip deaf input { type filter hook input priority -10; }",
        "add rule ip deaf input tcp dport 80 drop",
    ] {
        let mut nft = Command::new("nft");
        let done = lan.node.run(|| CommandOutput::of(nft.args(rule.split(' '))));
        assert_eq!(done.code, 0, "{}", done.errors);
    }
    testbed.client.write_all(&[b'y'; 200]).unwrap();
    testbed.pair[1].wait_for(&[&lag(0, 200)]);
}

/// Size of an upload to a slow replica, in bytes: several times the size of its log and of all buffers.
const UPLOAD: usize = 24 << 20;

fn upload() -> Vec<u8> {
    (0..UPLOAD).map(|i| (i % 251) as u8 ^ (i >> 13) as u8).collect()
}

/// Reads the whole upload, with a `pause` after each piece, and sends a reply. `None` if the connection ends before the upload is complete.
fn receive(server: &mut TcpStream, pause: Duration) -> Option<Vec<u8>> {
    let mut received = vec![0; UPLOAD];
    for piece in received.chunks_mut(256 << 10) {
        server.read_exact(piece).ok()?;
        std::thread::sleep(pause);
    }
    server.write_all(b"+OK\r\n").ok()?;
    Some(received)
}

/// The replica reads more slowly than the client writes and the primary reads. `at_limit` is the configured treatment of a full log. If the
/// connection stays protected, the slow replica continues it after a failure.
fn upload_to_a_slow_replica(test: &str, at_limit: &str, shows: fn(&Value) -> bool, is_protected: bool) {
    let Some(lan) = OperatorLan::new(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let log = format!("per_connection_mb = 1\nat_limit = {at_limit:?}");
    let mut testbed = ReplicatedPair::of(&lan, dir.path(), &format!("slow-{at_limit}"), &log);
    let [mut fast, mut slow] = testbed
        .servers
        .each_ref()
        .map(|server| server.try_clone().unwrap());
    let mut client = testbed.client.try_clone().unwrap();
    let [fast, slow, reply] = std::thread::scope(|scope| {
        let fast = scope.spawn(move || receive(&mut fast, Duration::ZERO));
        let slow = scope.spawn(move || receive(&mut slow, Duration::from_millis(40)));
        let client = scope.spawn(move || {
            client.set_write_timeout(Some(PATIENCE)).ok()?;
            // Write at half a gigabit per second. Without this limit the upload would end before the client could be slowed.
            for piece in upload().chunks(64 << 10) {
                client.write_all(piece).ok()?;
                std::thread::sleep(Duration::from_millis(1));
            }
            let mut reply = vec![0; 5];
            client.read_exact(&mut reply).ok().map(|()| reply)
        });
        let until = Instant::now() + PATIENCE;
        loop {
            let status: Value = serde_json::from_str(&testbed.pair[1].ask("status").output).unwrap();
            if shows(&status["services"][0]) {
                break;
            }
            assert!(Instant::now() < until, "{status}");
            std::thread::sleep(POLL);
        }
        if is_protected {
            testbed.power_off();
            testbed.servers[0].shutdown(Shutdown::Both).unwrap();
        }
        [fast, slow, client].map(|thread| thread.join().unwrap())
    });
    let serves = if is_protected { slow } else { fast };
    assert!(serves.is_some_and(|received| received == upload()), "{at_limit}");
    assert_eq!(reply.as_deref(), Some(&b"+OK\r\n"[..]), "{at_limit}");
}

#[test]
fn the_client_of_a_slow_replica_is_slowed() {
    let slowed = |service: &Value| service["slowed"] == 1 && service["connections"]["protected"] == 1;
    upload_to_a_slow_replica("the_client_of_a_slow_replica_is_slowed", "slow", slowed, true);
}

#[test]
fn what_a_slow_replica_has_not_read_goes_to_a_file() {
    let spilled = |service: &Value| {
        let bytes = service["spilled_bytes"].as_u64().unwrap();
        bytes > 4 << 20 && service["connections"]["protected"] == 1
    };
    let test = "what_a_slow_replica_has_not_read_goes_to_a_file";
    upload_to_a_slow_replica(test, "spill", spilled, true);
}

#[test]
fn a_replica_that_is_too_slow_protects_nobody() {
    let given_up = |service: &Value| {
        let reasons = service["reasons"].as_object().unwrap();
        reasons
            .keys()
            .any(|reason| reason.contains("the log reached its limit"))
    };
    let test = "a_replica_that_is_too_slow_protects_nobody";
    upload_to_a_slow_replica(test, "unprotect", given_up, false);
}

/// The hook copied the primary's state to a server that has ended since. A service manager may start another server before the agent
/// checks. So the agent compares the listening sockets with the ones that it saw at the copy.
#[test]
fn a_server_that_was_started_again_is_copied_to_again() {
    let Some(lan) = OperatorLan::new("a_server_that_was_started_again_is_copied_to_again") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let hook = format!(
        "state_sync = [\"sh\", \"-c\", \"echo $STEADFAST_PHASE >> {}\"]",
        ran.display()
    );
    let kind = PairSpec {
        policy: "replica",
        service: &hook,
        ..PairSpec::default()
    };
    let [primary, old] = [listen(&lan.node), listen(&lan.peer)];
    let pair = pair_of(&lan, dir.path(), "again", &kind);
    lan.stranger.ip("route add 10.0.0.100/32 dev eth0");
    let connect = || lan.stranger.run(|| TcpStream::connect("10.0.0.100:80").unwrap());
    let copies = || std::fs::read_to_string(&ran).unwrap().matches("finish").count();
    pair[1].wait_for(&["\"synced\":true"]);
    let before = copies();
    let first = connect();
    let followed = [accept(&primary), accept(&old)];
    pair[1].wait_for(&["\"protected\":1"]);
    drop((followed, old, first));
    let new = listen(&lan.peer);
    let second = connect();
    let served = accept(&primary);
    let until = Instant::now() + PATIENCE;
    while copies() == before {
        assert!(Instant::now() < until, "nothing was copied to the new server");
        std::thread::sleep(POLL);
    }
    pair[1].wait_for(&["\"synced\":true"]);
    let third = connect();
    let _followed = [accept(&primary), accept(&new)];
    pair[1].wait_for(&["\"protected\":1"]);
    drop((second, third, served));
}
