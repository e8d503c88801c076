//! Requests of real clients to real servers. Some requests wait for 100 (Continue), some kill their server, and some are pipelined.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::daemon::{Daemon, PairSpec, pair_of};
use crate::keeper::PATIENCE;
use crate::lan::{CommandOutput, HostNamespace, OperatorLan, TestProcess};

/// A server with one process per connection. A process that holds back 100 (Continue) ends when the listener does.
const SERVER: &str = include_str!("server.py");

/// A server, and the directory in which it notes its requests.
struct RequestServer {
    _process: TestProcess,
    notes: PathBuf,
}

impl RequestServer {
    fn start(namespace: &HostNamespace, dir: &Path, node: &str) -> Self {
        let notes = dir.join(format!("notes-{node}"));
        fs::create_dir_all(&notes).unwrap();
        let _ = fs::remove_file(notes.join("asked"));
        let log = fs::File::create(notes.join("log")).unwrap();
        let mut python = Command::new("python3");
        python.args(["-c", SERVER]).arg(&notes).stderr(log);
        let _process = TestProcess(namespace.run(|| python.spawn().unwrap()));
        Self { _process, notes }
    }

    fn on_both(lan: &OperatorLan, dir: &Path) -> [Self; 2] {
        [
            Self::start(&lan.node, dir, "one"),
            Self::start(&lan.peer, dir, "two"),
        ]
    }

    /// A line for each request that the server has begun to execute: method, path, `Steadfast-Reexecuted` (or `new`).
    fn asked(&self) -> String {
        fs::read_to_string(self.notes.join("asked")).unwrap_or_default()
    }
}

/// A curl command that requests `path` from the service, over one connection.
fn curl(arguments: &[&str], path: &str) -> Command {
    let mut command = Command::new("curl");
    command
        .args(["--silent", "--show-error", "--max-time", "30"])
        .args(arguments)
        .arg(format!("http://10.0.0.100{path}"))
        .stdin(Stdio::null());
    command
}

/// Waits until the service answers and both nodes are duplex.
fn wait_for_service(lan: &OperatorLan, pair: &[Daemon<'_>; 2]) {
    lan.stranger.ip("route replace 10.0.0.100/32 dev eth0");
    let until = Instant::now() + PATIENCE;
    let is_there = || {
        let mut command = curl(&["--max-time", "1"], "/");
        lan.stranger.run(|| CommandOutput::of(&mut command)).code == 0
    };
    while !is_there() {
        assert!(Instant::now() < until, "the service never answered");
    }
    for node in pair {
        node.wait_for(&[
            "\"mode\":\"duplex\"",
            "\"application\":\"alive\",\"peer_application\":\"alive\"",
        ]);
    }
}

fn power_off(lan: &OperatorLan, primary: &mut Daemon<'_>) {
    lan.stranger.ip("link set port2 down");
    primary.signal(Signal::SIGKILL);
    primary.process.wait().unwrap();
}

/// The primary loses its power before its server sends 100 (Continue). The survivor's server sends it.
#[test]
fn a_client_that_waits_for_100_continue_is_told_by_the_survivor() {
    let Some(lan) = OperatorLan::new("a_client_that_waits_for_100_continue_is_told_by_the_survivor") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut pair = pair_of(&lan, dir.path(), "continue", &PairSpec::default());
    let servers = RequestServer::on_both(&lan, dir.path());
    wait_for_service(&lan, &pair);
    let upload = dir.path().join("upload");
    fs::write(&upload, b"0123456789abcdef".repeat(20_000)).unwrap();
    let mut command = curl(
        &[
            "--verbose",
            "--header",
            "Expect: 100-continue",
            "--expect100-timeout",
            "30",
            "--upload-file",
            upload.to_str().unwrap(),
        ],
        "/upload",
    );
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let waiting = lan.stranger.run(|| command.spawn().unwrap());
    let until = Instant::now() + PATIENCE;
    while !servers[0].asked().contains("/upload") {
        assert!(Instant::now() < until, "the primary's server was never asked");
        std::thread::sleep(Duration::from_millis(5));
    }
    pair[1].wait_for(&["\"protected\":1"]);
    fs::write(servers[1].notes.join("welcome"), "").unwrap();
    power_off(&lan, &mut pair[0]);
    let output = waiting.wait_with_output().unwrap();
    let heard = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{heard}");
    assert_eq!(heard.matches("HTTP/1.1 100 Continue").count(), 1, "{heard}");
    let mut sum = Command::new("sha256sum");
    let sum = CommandOutput::of(sum.arg(&upload)).output;
    let (sum, _) = sum.split_once(' ').unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{sum} 1"));
}

/// A request kills the process that executes it. The backup's server executes the request again if the configuration allows this.
#[test]
fn a_request_that_kills_its_server_is_executed_again_if_it_may_be() {
    let Some(lan) = OperatorLan::new("a_request_that_kills_its_server_is_executed_again_if_it_may_be") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    for (service, method, again) in [
        ("", "PUT", true),
        ("", "POST", false),
        ("reexecute = \"safe\"", "PUT", false),
        ("reexecute = [\"POST\"]", "POST", true),
    ] {
        let kind = PairSpec {
            service,
            ..PairSpec::default()
        };
        let pair = pair_of(&lan, dir.path(), "again", &kind);
        let servers = RequestServer::on_both(&lan, dir.path());
        wait_for_service(&lan, &pair);
        let arguments = ["--include", "--request", method, "--data", "x"];
        let reply = lan
            .stranger
            .run(|| CommandOutput::of(&mut curl(&arguments, "/deadly-once")));
        assert_eq!(reply.code, 0, "{service} {method}: {}", reply.errors);
        let asked = servers.each_ref().map(|server| {
            let asked = server.asked();
            asked.lines().filter(|line| line.contains("deadly")).count()
        });
        if again {
            assert!(
                reply.output.ends_with(" 1"),
                "{service} {method}: {}",
                reply.output
            );
            assert_eq!(asked, [1, 1], "{service} {method}");
        } else {
            assert!(
                reply.output.starts_with("HTTP/1.1 503 "),
                "{service} {method}: {}",
                reply.output
            );
            assert!(reply.output.contains("Retry-After: 1\r\n"), "{}", reply.output);
            assert_eq!(asked, [1, 0], "{service} {method}");
        }
    }
}

#[test]
fn a_request_that_kills_both_servers_is_quarantined() {
    let Some(lan) = OperatorLan::new("a_request_that_kills_both_servers_is_quarantined") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let pair = pair_of(&lan, dir.path(), "poison", &PairSpec::default());
    let servers = RequestServer::on_both(&lan, dir.path());
    wait_for_service(&lan, &pair);
    let reply = lan
        .stranger
        .run(|| CommandOutput::of(&mut curl(&["--include"], "/deadly")));
    assert_eq!(reply.code, 0, "{}", reply.errors);
    assert!(reply.output.starts_with("HTTP/1.1 503 "), "{}", reply.output);
    assert!(reply.output.contains("Retry-After: 1\r\n"), "{}", reply.output);
    pair[1].wait_for(&["\"relayed_requests_quarantined\":1"]);
    let asked = servers.each_ref().map(RequestServer::asked);
    assert!(asked[0].ends_with("GET /deadly new\n"), "{asked:?}");
    assert!(asked[1].ends_with("GET /deadly 1\n"), "{asked:?}");
    assert_eq!(asked.concat().matches("deadly").count(), 2, "{asked:?}");
    let log = fs::read_to_string(pair[1].state_dir.join("keeper.log")).unwrap();
    assert!(
        log.contains("quarantined") && log.contains("GET /deadly"),
        "{log}"
    );
    // Other clients are still served by the primary.
    let other = lan
        .stranger
        .run(|| CommandOutput::of(&mut curl(&["--fail"], "/")));
    assert_eq!(other.code, 0, "{}", other.errors);
    assert!(servers[0].asked().ends_with("GET / new\n"));
    pair[0].wait_for(&["\"role\":\"primary\"", "\"mode\":\"duplex\""]);
}

/// Starts an nginx with one process, which serves the files in `dir/www`.
fn nginx(namespace: &HostNamespace, dir: &Path, node: &str) -> RequestServer {
    let notes = dir.join(format!("nginx-{node}"));
    fs::create_dir_all(&notes).unwrap();
    let config = notes.join("nginx.conf");
    let text = format!(
        "user root; daemon off; master_process off; pid {0}/pid; error_log {0}/log;
        events {{}}
        http {{ access_log {0}/asked; server {{ listen 80; root {1}; }} }}",
        notes.display(),
        dir.join("www").display()
    );
    fs::write(&config, text).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-c").arg(&config).stderr(Stdio::null());
    let _process = TestProcess(namespace.run(|| command.spawn().unwrap()));
    RequestServer { _process, notes }
}

/// The client sends six requests in one write. The primary loses its power while it sends the third reply. The client's receive
/// buffer is small, so most of the reply has not been sent by then.
#[test]
fn pipelined_requests_are_answered_in_order_by_two_nginx() {
    const LENGTH: usize = 1_500_000;
    let Some(lan) = OperatorLan::new("pipelined_requests_are_answered_in_order_by_two_nginx") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let www = dir.path().join("www");
    fs::create_dir(&www).unwrap();
    fs::write(www.join("index.html"), "").unwrap();
    let content = |number: u8| -> Vec<u8> {
        let numbers = (0..LENGTH).map(|i| (i % 251) as u8 ^ (i / 251) as u8 ^ number);
        numbers.collect()
    };
    for number in 1..=6 {
        fs::write(www.join(number.to_string()), content(number)).unwrap();
    }
    let mut pair = pair_of(&lan, dir.path(), "pipe", &PairSpec::default());
    let buffers = "4096 65536 65536";
    lan.stranger
        .run(|| fs::write("/proc/sys/net/ipv4/tcp_rmem", buffers).unwrap());
    let servers = [
        nginx(&lan.node, dir.path(), "one"),
        nginx(&lan.peer, dir.path(), "two"),
    ];
    wait_for_service(&lan, &pair);
    let mut client = lan.stranger.run(|| TcpStream::connect("10.0.0.100:80").unwrap());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let requests: String = (1..=6)
        .map(|number| format!("GET /{number} HTTP/1.1\r\nHost: x\r\n\r\n"))
        .collect();
    client.write_all(requests.as_bytes()).unwrap();
    for number in 1..=6 {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{number}: {head}");
        let mut body = vec![0; LENGTH];
        let (first, rest) = body.split_at_mut(LENGTH / 3);
        client.read_exact(first).unwrap();
        if number == 3 {
            pair[1].wait_for(&["\"protected\":1"]);
            power_off(&lan, &mut pair[0]);
        }
        client.read_exact(rest).unwrap();
        assert!(body == content(number), "{number}");
    }
    pair[1].wait_for(&["\"relayed\":1"]);
    let asked = servers[1].asked();
    assert!(asked.contains("\"GET /6 HTTP/1.1\" 200"), "{asked}");
}
