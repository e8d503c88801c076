//! One side has closed, the other one has not, and the primary loses its power: its replica goes on where it was.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::daemon::{Daemon, Kind, pair_of};
use crate::keeper::{PATIENCE, accept, listen};
use crate::lan::{Lan, Outcome};

/// A client of a replicated service, connected, and what serves it on each node.
struct Scene<'a> {
    lan: &'a Lan,
    pair: [Daemon<'a>; 2],
    client: TcpStream,
    servers: [TcpStream; 2],
    _listeners: [TcpListener; 2],
}

impl<'a> Scene<'a> {
    fn new(lan: &'a Lan, dir: &std::path::Path, test: &str) -> Self {
        let kind = Kind {
            policy: "replica",
            ..Kind::default()
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

    /// Both servers hear this.
    fn ask(&mut self, request: &[u8]) {
        self.client.write_all(request).unwrap();
        for server in &mut self.servers {
            let mut heard = vec![0; request.len()];
            server.read_exact(&mut heard).unwrap();
            assert_eq!(heard, request);
        }
    }

    /// Both servers say this, and the client hears it.
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

    /// The primary is gone, and the backup has decided everything.
    fn power_off(&mut self) {
        self.lan.stranger.ip("link set port2 down");
        self.pair[0].signal(Signal::SIGKILL);
        self.pair[0].process.wait().unwrap();
        self.pair[1].wait_for(&["\"role\":\"primary\"", "\"mode\":\"simplex\""]);
        let restored = self.pair[1].restored();
        assert!(restored.contains("\"lives\":true"), "{restored}");
    }

    /// Waits until the client's socket is in one of these states, as `ss` names them; it was not reset.
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
            let shown = self.lan.stranger.run(|| Outcome::of(&mut ss)).output;
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

/// The server says its last word and `closes`, and the client closes long after the takeover.
fn close_late(test: &str, closes: Shutdown) {
    let Some(lan) = Lan::new(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut scene = Scene::new(&lan, dir.path(), &format!("fin-{closes:?}").to_lowercase());
    scene.ask(b"QUIT\r\n");
    scene.reply(b"+OK\r\n");
    for server in &scene.servers {
        server.shutdown(closes).unwrap();
    }
    scene.hear_the_end();
    scene.pair[1].wait_for(&["\"protected\":1"]);
    scene.power_off();
    scene.wait_for_client(&["CLOSE-WAIT"]);
    if closes == Shutdown::Write {
        scene.client.write_all(b"thanks").unwrap();
        scene.servers[1].read_exact(&mut [0; 6]).unwrap();
    }
    scene.client.shutdown(Shutdown::Write).unwrap();
    scene.wait_for_client(&["gone"]);
}

/// As Redis does it after QUIT.
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
    let Some(lan) = Lan::new("a_client_that_has_closed_first_gets_the_whole_reply") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut scene = Scene::new(&lan, dir.path(), "eof");
    scene.ask(b"sort these\n");
    scene.client.shutdown(Shutdown::Write).unwrap();
    for server in &mut scene.servers {
        assert_eq!(server.read(&mut [0]).unwrap(), 0, "it hears the end");
    }
    scene.reply(b"one ");
    scene.pair[1].wait_for(&["\"protected\":1"]);
    scene.power_off();
    scene.wait_for_client(&["FIN-WAIT-2"]);
    scene.servers[1].write_all(b"two").unwrap();
    scene.hear(b"two");
    scene.servers[1].shutdown(Shutdown::Both).unwrap();
    scene.hear_the_end();
    scene.wait_for_client(&["TIME-WAIT", "gone"]);
}
