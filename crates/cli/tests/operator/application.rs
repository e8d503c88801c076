//! Tests of a backup whose application is not running, of an application that exits with a crash code, and of a primary that claims the VIP
//! because its wire is gone.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::daemon::{PairSpec, pair, pair_of};
use crate::failure::wait_for;
use crate::keeper::{PATIENCE, accept, listen};
use crate::lan::{CommandOutput, OperatorLan, steadfast};

/// The application was never started on the backup. No process has died, so the wire has counted no death.
#[test]
fn a_backup_without_its_application_protects_nobody() {
    let Some(lan) = OperatorLan::new("a_backup_without_its_application_protects_nobody") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = pair(&lan, dir.path(), "absent");
    let _serves = listen(&lan.node);
    let reason = "the application on the backup is dead: nobody listens";
    for node in [&one, &two] {
        node.wait_for(&[
            "\"mode\":\"simplex\"",
            &format!("\"simplex_reason\":\"{reason}\""),
        ]);
    }
    one.wait_for(&["\"application\":\"alive\",\"peer_application\":\"dead\""]);
    let order = |words: &[&str]| {
        let words = [words, &["--config", one.config.to_str().unwrap()]].concat();
        lan.node.run(|| CommandOutput::of(&mut steadfast(&words)))
    };
    let refused = order(&["handover", "web"]);
    assert_eq!(refused.code, 1, "{}", refused.errors);
    assert!(refused.errors.contains(reason), "{}", refused.errors);

    let would_go_on = listen(&lan.peer);
    for node in [&one, &two] {
        node.wait_for(&[
            "\"mode\":\"duplex\"",
            "\"application\":\"alive\",\"peer_application\":\"alive\"",
        ]);
    }
    // `order` names the configuration file, because the state directory is not the default one.
    let name = "sf-test-absent-one";
    let drained = order(&["drain", name]);
    assert_eq!(drained.code, 0, "{}", drained.errors);
    two.wait_for(&["\"simplex_reason\":\"this node serves alone\""]);
    let other = order(&["drain", "sf-test-absent-two"]);
    assert_eq!(other.code, 2, "{}", other.errors);
    assert_eq!(order(&["drain", name, "--off"]).code, 0);
    two.wait_for(&["\"mode\":\"duplex\"", "\"role\":\"primary\""]);
    drop(would_go_on); // the primary's application was stopped on purpose, so nothing happens
    std::thread::sleep(Duration::from_millis(1500));
    two.wait_for(&["\"mode\":\"duplex\"", "\"application\":\"alive\""]);
}

/// A server that accepts one connection at a port, receives a request, and exits.
const EXITS: &str = "import os, socket, sys
listener = socket.create_server(('', int(sys.argv[1])))
server = listener.accept()[0]
server.recv(100)
os._exit(7)";

/// An exit code that means a crash for one service's application is an orderly end for the other's.
#[test]
fn an_application_that_exits_with_a_crash_code_of_its_own_has_crashed() {
    let Some(lan) = OperatorLan::new("an_application_that_exits_with_a_crash_code_of_its_own_has_crashed")
    else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let kind = PairSpec {
        service: r#"
            crash_exit_codes = [3, 7]
            [[service]]
            name = "other"
            address = "10.0.0.100"
            port = 81
            interface = "eth0"
            policy = "http"
            primary = "sf-test-exits-one"
            crash_exit_codes = [3]
            "#,
        ..PairSpec::default()
    };
    let [_one, two] = pair_of(&lan, dir.path(), "exits", &kind);
    lan.stranger.ip("route replace 10.0.0.100/32 dev eth0");
    let would_go_on = [80, 81].map(|port| lan.peer.run(|| TcpListener::bind(("0.0.0.0", port)).unwrap()));
    for (service, port, crashes) in [(1, 81, false), (0, 80, true)] {
        let mut python = Command::new("python3");
        python.args(["-c", EXITS, &port.to_string()]);
        let mut application = lan.node.run(|| python.spawn().unwrap());
        let until = Instant::now() + PATIENCE;
        let mut client = loop {
            match lan.stranger.run(|| TcpStream::connect(("10.0.0.100", port))) {
                Ok(client) => break client,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        wait_for(&two, service, |status| {
            status["mode"] == "duplex" && status["connections"]["protected"] == 1
        });
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut heard = Vec::new();
        let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
        if crashes {
            let mut server = accept(&would_go_on[service]);
            server.read_exact(&mut [0; 16]).unwrap();
            server.write_all(reply).unwrap();
            drop(server);
        }
        client.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, if crashes { &reply[..] } else { b"" }, "port {port}");
        assert_eq!(application.wait().unwrap().code(), Some(7));
    }
}

/// Until an outside host answers, the primary may itself be cut off. So its claim is not complete, and it serves nobody.
#[test]
fn a_vip_is_claimed_when_one_of_several_outside_hosts_answers() {
    let Some(lan) = OperatorLan::new("a_vip_is_claimed_when_one_of_several_outside_hosts_answers") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let kind = PairSpec {
        service: r#"claim_ping = ["10.0.0.77", "10.0.0.78"]"#,
        ..PairSpec::default()
    };
    let [one, two] = pair_of(&lan, dir.path(), "claim", &kind);
    lan.peer.ip("link set eth0 down");
    let claims = "\"simplex_reason\":\"the backup is gone; this node claims the VIP\"";
    one.wait_for(&[claims]);
    // Without an answer, the node must not serve alone. Six seconds are enough for a restart, for the end of the lease, and for another
    // detection of the peer's death.
    std::thread::sleep(Duration::from_secs(6));
    one.wait_for(&[claims]);
    lan.stranger.ip("addr add 10.0.0.78/24 dev eth0");
    one.wait_for(&["\"simplex_reason\":\"this node serves alone\""]);
    lan.peer.ip("link set eth0 up");
    two.wait_for(&["\"peer_state\":\"primary\"", "\"role\":\"backup\""]);
}
