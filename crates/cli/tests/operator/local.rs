//! Clients that run on the nodes themselves. The servers are real redis servers, one on each node.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::daemon::{Daemon, PairSpec, pair_of};
use crate::keeper::PATIENCE;
use crate::lan::{CommandOutput, HostNamespace, OperatorLan, POLL, TestProcess, steadfast};

const V4: &str = "10.0.0.100";
const V6: &str = "2001:db8::100";

/// A second service, whose primary is the other node: each node is the wire of one service and the primary of the other.
fn second_service(test: &str) -> String {
    format!(
        r#"
        [[service]]
        name = "web6"
        address = "{V6}"
        port = 80
        interface = "eth0"
        policy = "replica"
        primary = "sf-test-{test}-two"
        peer_address = "2001:db8::PEER"
        "#
    )
}

/// Two nodes, each with a redis that serves both services.
struct RedisPair<'a> {
    pair: [Daemon<'a>; 2],
    _servers: [TestProcess; 2],
}

impl<'a> RedisPair<'a> {
    fn new(lan: &'a OperatorLan, dir: &Path, test: &str) -> Self {
        let nodes = [&lan.node, &lan.peer];
        let servers = nodes.map(|node| redis(node, dir));
        let kind = PairSpec {
            policy: "replica",
            service: &second_service(test),
            ..PairSpec::default()
        };
        let pair = pair_of(lan, dir, test, &kind);
        for daemon in &pair {
            daemon.wait_for(&["\"role\":\"primary\"", "\"role\":\"backup\""]);
        }
        lan.stranger.ip(&format!("route add {V4}/32 dev eth0"));
        lan.stranger.ip(&format!("-6 route add {V6}/128 dev eth0"));
        Self {
            pair,
            _servers: servers,
        }
    }
}

/// Starts redis at port 80 of all addresses of a node.
fn redis(namespace: &HostNamespace, dir: &Path) -> TestProcess {
    let mut server = Command::new("redis-server");
    server.args([
        "--port",
        "80",
        "--bind",
        "*",
        "-::*",
        "--protected-mode",
        "no",
        "--save",
        "",
    ]);
    server.args(["--logfile", "redis.log"]).current_dir(dir);
    TestProcess(namespace.run(|| server.spawn().expect("redis-server can be run")))
}

/// The answer that `redis-cli` on a node gets from `host`.
fn ask(namespace: &HostNamespace, host: &str, arguments: &[&str]) -> String {
    let mut client = Command::new("timeout");
    client.args(["10", "redis-cli", "-h", host, "-p", "80"]);
    let CommandOutput { output, errors, .. } = namespace.run(|| CommandOutput::of(client.args(arguments)));
    format!("{}{}", output.trim(), errors.trim())
}

/// Waits until redis gives this answer.
#[track_caller]
fn wait_for_answer(namespace: &HostNamespace, host: &str, arguments: &[&str], answer: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let found = ask(namespace, host, arguments);
        if found == answer {
            return;
        }
        assert!(Instant::now() < until, "{arguments:?}: {found}, not {answer}");
        std::thread::sleep(POLL);
    }
}

/// A client that stays connected.
struct RedisClient(TcpStream);

impl RedisClient {
    fn connect(namespace: &HostNamespace, vip: &str) -> Self {
        let vip = SocketAddr::new(vip.parse().unwrap(), 80);
        let stream = namespace.run(|| TcpStream::connect_timeout(&vip, PATIENCE).unwrap());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    #[track_caller]
    fn ask(&mut self, request: &str, reply: &str) {
        self.0.write_all(format!("{request}\r\n").as_bytes()).unwrap();
        let mut heard = vec![0; reply.len() + 2];
        self.0.read_exact(&mut heard).unwrap();
        assert_eq!(String::from_utf8_lossy(&heard), format!("{reply}\r\n"));
    }

    fn name(&self) -> String {
        self.0.local_addr().unwrap().to_string()
    }
}

#[test]
fn a_program_on_a_node_is_a_client_like_any_other() {
    let Some(lan) = OperatorLan::new("a_program_on_a_node_is_a_client_like_any_other") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let testbed = RedisPair::new(&lan, dir.path(), "local");
    let everybody = [
        ("stranger", &lan.stranger),
        ("one", &lan.node),
        ("two", &lan.peer),
    ];
    let mut clients = Vec::new();
    for vip in [V4, V6] {
        for (name, namespace) in everybody {
            let key = format!("{vip} {name}");
            assert_eq!(ask(namespace, vip, &["SET", &key, name]), "OK", "{key}");
            for (reader, from) in everybody {
                assert_eq!(ask(from, vip, &["GET", &key]), name, "{key}, read by {reader}");
            }
            let mut client = RedisClient::connect(namespace, vip);
            client.ask(&format!("SET {vip}-{name} stays"), "+OK");
            clients.push((format!("{vip}-{name}"), client));
        }
    }
    for daemon in &testbed.pair {
        daemon.wait_for(&["\"protected\":3"]);
    }
    // The replicas must have all writes that the primaries have accepted.
    for (key, _) in &clients {
        for node in [&lan.node, &lan.peer] {
            wait_for_answer(node, "127.0.0.1", &["GET", key], "stays");
        }
    }
}

/// A client on the backup's node keeps its connection while that node takes over, serves alone, gets a wire again and hands over.
#[test]
fn a_client_on_a_node_outlives_every_change_of_its_roles() {
    let Some(lan) = OperatorLan::new("a_client_on_a_node_outlives_every_change_of_its_roles") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut testbed = RedisPair::new(&lan, dir.path(), "roles");
    let before = [V4, V6].map(|vip| RedisClient::connect(&lan.peer, vip));
    let mut clients = Vec::from(before);
    for (client, vip) in clients.iter_mut().zip([V4, V6]) {
        client.ask(&format!("INCR {vip}"), ":1");
    }
    let [one, two] = &mut testbed.pair;
    two.wait_for(&["\"protected\":1"]);

    lan.stranger.ip("link set port2 down");
    one.signal(Signal::SIGKILL);
    one.process.wait().unwrap();
    two.wait_for(&["\"mode\":\"simplex\""]);
    for (client, vip) in clients.iter_mut().zip([V4, V6]) {
        client.ask(&format!("INCR {vip}"), ":2");
        assert_eq!(ask(&lan.peer, vip, &["INCR", &format!("alone {vip}")]), "1");
    }
    clients.extend([V4, V6].map(|vip| RedisClient::connect(&lan.peer, vip)));

    lan.stranger.ip("link set port2 up");
    one.start_again();
    // The two services become duplex at different moments.
    let until = Instant::now() + PATIENCE;
    while one.ask("status").output.matches("\"mode\":\"duplex\"").count() < 2 {
        assert!(Instant::now() < until, "{}", one.ask("status").output);
        std::thread::sleep(POLL);
    }
    clients.extend([V4, V6].map(|vip| RedisClient::connect(&lan.peer, vip)));
    for client in &mut clients {
        client.ask("PING", "+PONG");
    }
    let logged = one.ask("connections").output;
    for client in &clients {
        assert!(logged.contains(&client.name()), "{}: {logged}", client.name());
    }
    one.wait_for(&["\"protected\":1"]);
    for service in ["web", "web6"] {
        let config = one.config.to_str().unwrap();
        let mut handover = steadfast(&["handover", service, "--config", config]);
        let CommandOutput { code, errors, .. } = lan.node.run(|| CommandOutput::of(&mut handover));
        assert_eq!(code, 0, "{errors}");
    }
    two.wait_for(&["\"peer_state\":\"primary\""]);
    for client in clients.iter_mut().rev().take(2) {
        client.ask("PING", "+PONG"); // these two began while the wire ran, so they are protected
    }
    for vip in [V4, V6] {
        assert_eq!(ask(&lan.peer, vip, &["PING"]), "PONG");
    }
}

/// Clients whose packets would bypass the wire are refused at once, and the log says so.
#[test]
fn what_would_come_past_the_wire_is_refused_at_once() {
    let Some(lan) = OperatorLan::new("what_would_come_past_the_wire_is_refused_at_once") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let testbed = RedisPair::new(&lan, dir.path(), "past");
    for (number, (node, daemon)) in [&lan.node, &lan.peer].into_iter().zip(&testbed.pair).enumerate() {
        // A client whose own address is the VIP.
        for vip in [V4, V6] {
            let address = |port| socket2::SockAddr::from(SocketAddr::new(vip.parse().unwrap(), port));
            let socket = node.run(|| {
                let domain = address(0).domain();
                socket2::Socket::new(domain, socket2::Type::STREAM, None).unwrap()
            });
            socket.bind(&address(0)).unwrap();
            let refused = socket.connect(&address(80)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{vip}");
        }
        daemon.wait_for_line("refused", 1);
        // A client in a container behind the node.
        let container = lan.behind(node, number);
        for vip in [V4, V6] {
            let to = SocketAddr::new(vip.parse().unwrap(), 80);
            let refused = container.run(|| TcpStream::connect_timeout(&to, PATIENCE).unwrap_err());
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{vip}");
        }
    }
}

/// A program connects an IPv6 socket to an IPv4 address, as Java does.
#[test]
fn a_socket_of_ipv6_reaches_a_service_of_ipv4() {
    let Some(lan) = OperatorLan::new("a_socket_of_ipv6_reaches_a_service_of_ipv4") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let testbed = RedisPair::new(&lan, dir.path(), "mapped");
    let mapped = format!("::ffff:{V4}");
    let mut clients = [&lan.node, &lan.peer].map(|node| RedisClient::connect(node, &mapped));
    for (number, client) in clients.iter_mut().enumerate() {
        client.ask("INCR mapped", &format!(":{}", number + 1));
    }
    testbed.pair[1].wait_for(&["\"protected\":2"]);
}

/// The result of a connect to `vip` with a socket of this protocol.
fn connect_by(
    namespace: &HostNamespace,
    protocol: socket2::Protocol,
    vip: &str,
) -> std::io::Result<TcpStream> {
    let vip = SocketAddr::new(vip.parse().unwrap(), 80);
    namespace.run(|| {
        let domain = socket2::Domain::for_address(vip);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(protocol))?;
        socket.connect_timeout(&vip.into(), PATIENCE)?;
        Ok(socket.into())
    })
}

/// Both ends fall back to plain TCP, so the wire sees the whole connection.
#[test]
fn a_socket_of_multipath_tcp_on_a_node_is_a_client_like_any_other() {
    let Some(lan) = OperatorLan::new("a_socket_of_multipath_tcp_on_a_node_is_a_client_like_any_other") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let testbed = RedisPair::new(&lan, dir.path(), "paths");
    let mut clients = Vec::new();
    for (number, node) in [&lan.node, &lan.peer].into_iter().enumerate() {
        for vip in [V4, V6] {
            let mut client = RedisClient(connect_by(node, socket2::Protocol::MPTCP, vip).unwrap());
            client.ask(&format!("INCR {vip}"), &format!(":{}", number + 1));
            clients.push(client);
        }
    }
    for daemon in &testbed.pair {
        daemon.wait_for(&["\"protected\":2"]);
    }
}

/// Segments must fit the interface's present MTU and come from an address that the node still has.
#[test]
fn clients_on_a_node_follow_its_interface() {
    let Some(lan) = OperatorLan::new("clients_on_a_node_follow_its_interface") else {
        return;
    };
    lan.peer.ip("addr del 10.0.0.3/24 dev eth0");
    lan.peer.ip("addr add 10.0.0.33/32 dev eth0");
    lan.peer.ip("addr add 10.0.0.3/24 dev eth0");
    let dir = tempfile::tempdir().unwrap();
    let _testbed = RedisPair::new(&lan, dir.path(), "follow");
    let client = RedisClient::connect(&lan.peer, V4);
    assert_eq!(client.0.local_addr().unwrap().ip().to_string(), "10.0.0.33");
    let wait_for = |what: &str, is_so: &dyn Fn(&TcpStream) -> bool| {
        let until = Instant::now() + PATIENCE;
        loop {
            let vip = SocketAddr::new(V4.parse().unwrap(), 80);
            let client = lan.peer.run(|| TcpStream::connect_timeout(&vip, PATIENCE));
            if client.as_ref().is_ok_and(is_so) {
                return;
            }
            assert!(Instant::now() < until, "{what}: {client:?}");
            std::thread::sleep(POLL);
        }
    };
    lan.peer.ip("addr del 10.0.0.33/32 dev eth0");
    wait_for("from the address that is left", &|client| {
        client.local_addr().unwrap().ip().to_string() == "10.0.0.3"
    });
    lan.peer.ip("link set eth0 mtu 1400");
    wait_for("short segments", &|client| {
        socket2::SockRef::from(client).tcp_mss().unwrap() <= 1360
    });
}

/// A primary that does not know whether the other node has gone on alone serves no client, although this primary has the VIP.
#[test]
fn a_client_on_a_mute_node_is_refused_at_once() {
    let Some(lan) = OperatorLan::new("a_client_on_a_mute_node_is_refused_at_once") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut testbed = RedisPair::new(&lan, dir.path(), "mute");
    let [one, two] = &mut testbed.pair;
    two.signal(Signal::SIGSTOP);
    one.signal(Signal::SIGKILL);
    one.process.wait().unwrap();
    std::thread::sleep(Duration::from_millis(2100)); // longer than an agent may be away
    one.start_again();
    one.wait_for_line("this node is mute", 1);
    let refused = connect_by(&lan.node, socket2::Protocol::TCP, V4).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    one.wait_for_line("or this node sent them while it is mute", 1);
    two.signal(Signal::SIGCONT);
    one.wait_for(&["\"role\":\"primary\"", "\"peer_state\":\"backup\""]);
    RedisClient::connect(&lan.node, V4).ask("PING", "+PONG");
}

/// A short connection may end before its replica gets any input. The replica must still get that input, because the client has seen the
/// answers.
#[test]
fn short_connections_reach_the_replica() {
    let Some(lan) = OperatorLan::new("short_connections_reach_the_replica") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let _testbed = RedisPair::new(&lan, dir.path(), "short");
    for number in 0..50 {
        let key = format!("short {number}");
        assert_eq!(ask(&lan.stranger, V4, &["SET", &key, "stays"]), "OK");
    }
    for number in 0..50 {
        let key = format!("short {number}");
        wait_for_answer(&lan.peer, "127.0.0.1", &["GET", &key], "stays");
    }
}
