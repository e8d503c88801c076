//! If the network of one service can no longer be set up, only this service fails. If a router replaces another, the nodes ping the new
//! router as their outside host.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::daemon::{Daemon, PairSpec, pair_of};
use crate::keeper::PATIENCE;
use crate::lan::{CommandOutput, HostNamespace, OperatorLan, POLL, TestProcess, steadfast};

/// A second service on the second LAN. Its primary is the first service's backup.
const SECOND: &str = r#"
            [[service]]
            name = "second"
            address = "10.1.0.100"
            port = 81
            interface = "eth1"
            policy = "http"
            primary = "sf-test-apart-two"
            peer_address = "10.1.0.PEER"
            claim_ping = ["10.1.0.4"]
"#;

fn serve(namespace: &HostNamespace, dir: &Path, port: &str) -> TestProcess {
    let mut python = Command::new("python3");
    python
        .args(["-m", "http.server", port, "--protocol", "HTTP/1.1", "--directory"])
        .arg(dir)
        .stderr(Stdio::null())
        .stdout(Stdio::null());
    let server = TestProcess(namespace.run(|| python.spawn().unwrap()));
    // A node that has just started takes its application for alive until it looks for the first time.
    let until = Instant::now() + PATIENCE;
    while let Err(error) = namespace.run(|| TcpStream::connect(format!("127.0.0.1:{port}"))) {
        assert!(Instant::now() < until, "port {port}: {error}");
        std::thread::sleep(POLL);
    }
    server
}

/// Gets the page over a connection that remains open.
fn get(client: &mut BufReader<TcpStream>) -> String {
    let request = b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n";
    client.get_mut().write_all(request).unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        assert!(
            client.read_line(&mut line).unwrap() > 0,
            "the connection has ended"
        );
        match line.trim_end().split_once(": ") {
            Some(("Content-Length", value)) => length = value.parse().unwrap(),
            Some(_) => {}
            None if line == "\r\n" => break,
            None => assert!(line.starts_with("HTTP/1.1 200 "), "{line}"),
        }
    }
    let mut body = vec![0; length];
    client.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

fn connect(lan: &OperatorLan, address: &str) -> BufReader<TcpStream> {
    let until = Instant::now() + PATIENCE;
    loop {
        match lan.stranger.run(|| TcpStream::connect(address)) {
            Ok(client) => {
                client.set_read_timeout(Some(PATIENCE)).unwrap();
                return BufReader::new(client);
            }
            Err(error) => assert!(Instant::now() < until, "{address}: {error}"),
        }
        std::thread::sleep(POLL);
    }
}

fn hand_over(namespace: &HostNamespace, daemon: &Daemon<'_>, service: &str) {
    let words = ["handover", service, "--config", daemon.config.to_str().unwrap()];
    let outcome = namespace.run(|| CommandOutput::of(&mut steadfast(&words)));
    assert_eq!(outcome.code, 0, "{}", outcome.errors);
}

/// Waits until a service's status satisfies `is_so`, and returns the status.
pub fn wait_for(daemon: &Daemon<'_>, service: usize, is_so: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let CommandOutput { output, errors, .. } = daemon.ask("status");
        let status = serde_json::from_str::<Value>(&output).unwrap_or_default();
        let status = status["services"][service].clone();
        if is_so(&status) {
            return status;
        }
        let log = || std::fs::read_to_string(&daemon.log).unwrap();
        assert!(Instant::now() < until, "{status}{errors}{}", log());
        std::thread::sleep(POLL);
    }
}

#[test]
fn a_service_whose_interface_is_gone_fails_alone_and_comes_back_with_it() {
    let Some(lan) = OperatorLan::new("a_service_whose_interface_is_gone_fails_alone_and_comes_back_with_it")
    else {
        return;
    };
    lan.add_second();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("page"), "a page").unwrap();
    let _servers = [&lan.node, &lan.peer].map(|node| ["80", "81"].map(|port| serve(node, dir.path(), port)));
    let kind = PairSpec {
        service: SECOND,
        ..PairSpec::default()
    };
    let [one, two] = pair_of(&lan, dir.path(), "apart", &kind);
    let is_duplex = |status: &Value| {
        let (mode, failure) = (&status["mode"], &status["failure"]);
        mode == "duplex" && failure.is_null() && status["application"] == "alive"
    };
    for (node, service) in [(&one, 0), (&one, 1), (&two, 0), (&two, 1)] {
        wait_for(node, service, is_duplex);
    }
    for (vip, interface) in [("10.0.0.100", "eth0"), ("10.1.0.100", "eth1")] {
        lan.stranger
            .ip(&format!("route replace {vip}/32 dev {interface}"));
    }
    // The other node takes over a connection. From now on, that node's keeper relays the connection.
    let mut client = connect(&lan, "10.0.0.100:80");
    assert_eq!(get(&mut client), "a page");
    hand_over(&lan.peer, &two, "web");
    assert_eq!(get(&mut client), "a page");
    wait_for(&two, 0, |status| is_duplex(status) && status["relayed"] == 1);

    // The primary loses its interface, so the wire takes over. The primary has to undo its network set-up, although the interface no longer
    // exists. It need not set up anything there, because the wire continues alone.
    lan.peer.ip("link delete eth1");
    wait_for(&one, 1, |status| status["state"] == "sole");
    wait_for(&two, 1, |status| status["path"]["carrier"] == false);
    assert_eq!(get(&mut connect(&lan, "10.1.0.100:81")), "a page");
    assert_eq!(
        get(&mut client),
        "a page",
        "the other service's connection goes on"
    );
    wait_for(&two, 0, is_duplex);

    // An interface gets its address some time after its cable, for example by DHCP. Until then the kernel uses another interface's address.
    let (asks, before) = ("asked through new sockets", two.says("asked through new sockets"));
    lan.plug_in_without_address(&lan.peer, 3);
    two.wait_for_line(asks, before + 1);
    lan.peer.ip("addr add 10.1.0.3/24 dev eth1");
    for (node, service) in [(&one, 1), (&two, 1), (&two, 0)] {
        wait_for(node, service, is_duplex);
    }

    // The daemon notices by the new index that an interface was removed and created again at once. (The interface may
    // be set up again between two looks at the status, so check the log. Every log line about a new index has these words.)
    let failure = "was made anew";
    let before = two.says(failure);
    lan.peer.ip("link delete eth1");
    lan.plug_in_second(&lan.peer, 3);
    two.wait_for_line(failure, before + 1);
    assert_eq!(
        get(&mut client),
        "a page",
        "the other service's connection goes on"
    );
    for (node, service) in [(&one, 1), (&two, 1), (&two, 0)] {
        wait_for(node, service, is_duplex);
    }
    let mut other = connect(&lan, "10.1.0.100:81");
    assert_eq!(get(&mut other), "a page", "through the wire at the new interface");
    wait_for(&two, 1, |status| status["connections"]["protected"] == 1);
    hand_over(&lan.peer, &two, "second");
    assert_eq!(get(&mut other), "a page");
    assert_eq!(get(&mut client), "a page");
}

/// Waits until a node's status has this state of the path to its outside hosts.
fn wait_for_outside(daemon: &Daemon<'_>, outside: &str) {
    wait_for(daemon, 0, |status| status["path"]["outside"] == outside);
}

/// Without `claim_ping`, the outside hosts are the interface's current gateways, not the gateways at the agent's start.
#[test]
fn a_router_that_takes_the_place_of_another_is_asked() {
    let Some(lan) = OperatorLan::new("a_router_that_takes_the_place_of_another_is_asked") else {
        return;
    };
    let nodes = [&lan.node, &lan.peer];
    for node in nodes {
        node.ip("route add default via 10.0.0.4");
    }
    let dir = tempfile::tempdir().unwrap();
    let pair = pair_of(&lan, dir.path(), "router", &PairSpec::default());
    for daemon in &pair {
        wait_for_outside(daemon, "reached");
    }
    lan.stranger.ip("addr del 10.0.0.4/24 dev eth0");
    for daemon in &pair {
        wait_for_outside(daemon, "lost");
    }
    lan.stranger.ip("addr add 10.0.0.5/24 dev eth0");
    for node in nodes {
        node.ip("route replace default via 10.0.0.5");
    }
    for daemon in &pair {
        wait_for_outside(daemon, "reached");
    }
}
