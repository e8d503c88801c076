//! Servers whose order cannot be recorded: the agent names the reason in its status, and the server goes on.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::daemon::{Daemon, PairSpec, pair_of};
use crate::keeper::PATIENCE;
use crate::lan::{HostNamespace, OperatorLan};
use crate::sessions::Running;

#[path = "../../../../bindings/tests/libraries.rs"]
mod libraries;

/// A server that answers its first client with the bytes that it gets.
const STATIC: &str = r"
#include <arpa/inet.h>
#include <unistd.h>
int main(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(80)};
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 8)) return 1;
    int client = accept(listener, 0, 0);
    char bytes[64];
    for (ssize_t got; (got = read(client, bytes, sizeof bytes)) > 0;)
        if (write(client, bytes, got) != got) return 2;
    return 0;
}
";
/// The same server. At the word `ring` it makes an io_uring.
const RING: &str = "
import ctypes, os, socket
listener = socket.create_server(('0.0.0.0', 80))
client, _ = listener.accept()
while received := client.recv(64):
    if received == b'ring':
        SYS_io_uring_setup = 425
        ring = ctypes.CDLL(None).syscall(SYS_io_uring_setup, 1, ctypes.create_string_buffer(120))
        if ring < 0:
            received = b'none'
    client.sendall(received)
";

/// A pair whose service has recorded order, on a LAN. `PEER` in the socket's name tells the nodes' sockets apart.
fn recorded_pair<'a>(lan: &'a OperatorLan, dir: &Path, test: &str) -> [Daemon<'a>; 2] {
    let service = format!("recorded_order = \"{}/order-PEER.sock\"", dir.display());
    let kind = PairSpec {
        policy: "replica",
        service: &service,
        ..PairSpec::default()
    };
    let pair = pair_of(lan, dir, test, &kind);
    lan.stranger.ip("route add 10.0.0.100/32 dev eth0");
    pair
}

/// Starts a server with the library that records, on both nodes.
fn serve(lan: &OperatorLan, dir: &Path, command: &dyn Fn() -> Command) -> [Running; 2] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/preload");
    let library = libraries::build("steadfast-order", &root, "libsteadfast_order.so");
    let start = |host: &HostNamespace, peer: u8| {
        let mut command = command();
        let socket = dir.join(format!("order-{peer}.sock"));
        command
            .env("LD_PRELOAD", &library)
            .env("STEADFAST_ORDER", format!("agent:{}", socket.display()))
            .stdin(Stdio::null());
        Running(host.run(|| command.spawn().unwrap()))
    };
    [start(&lan.node, 3), start(&lan.peer, 2)]
}

fn connect(lan: &OperatorLan) -> TcpStream {
    let to = SocketAddr::from(([10, 0, 0, 100], 80));
    let client = lan
        .stranger
        .run(|| TcpStream::connect_timeout(&to, PATIENCE))
        .unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

#[track_caller]
fn exchange(client: &mut TcpStream, word: &str) -> String {
    client.write_all(word.as_bytes()).unwrap();
    let mut answer = vec![0; word.len()];
    client.read_exact(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

fn compiled(dir: &Path) -> PathBuf {
    let (source, program) = (dir.join("echo.c"), dir.join("echo"));
    fs::write(&source, STATIC).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-static", "-O1", "-o"]).arg(&program).arg(&source);
    assert!(compiler.status().unwrap().success());
    program
}

#[test]
fn a_server_that_is_linked_statically_has_no_recorded_order_and_says_so() {
    let test = "a_server_that_is_linked_statically_has_no_recorded_order_and_says_so";
    let Some(lan) = OperatorLan::new(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let pair = recorded_pair(&lan, dir.path(), "static");
    let program = compiled(dir.path());
    let _servers = serve(&lan, dir.path(), &|| Command::new(&program));
    for daemon in &pair {
        daemon.wait_for(&[
            "\"activity\":\"off\"",
            "cannot be recorded: it is linked statically, so it loads no library",
            "\"order_without_library\":1",
        ]);
    }
    pair[0].wait_for(&["\"application\":\"alive\""]);
    assert_eq!(exchange(&mut connect(&lan), "hello"), "hello");
}

#[test]
fn a_server_that_makes_an_io_uring_is_recorded_no_longer() {
    let Some(lan) = OperatorLan::new("a_server_that_makes_an_io_uring_is_recorded_no_longer") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [primary, backup] = recorded_pair(&lan, dir.path(), "ring");
    let _servers = serve(&lan, dir.path(), &|| {
        let mut python = Command::new("/usr/bin/python3");
        python.args(["-c", RING]);
        python
    });
    primary.wait_for(&["\"activity\":\"records\"", "\"application\":\"alive\""]);
    backup.wait_for(&["\"activity\":\"plays\"", "\"application\":\"alive\""]);
    let mut client = connect(&lan);
    assert_eq!(exchange(&mut client, "hello"), "hello");
    backup.wait_for(&["\"protected\":1"]);
    if exchange(&mut client, "ring") == "none" {
        eprintln!(
            "skipped: a_server_that_makes_an_io_uring_is_recorded_no_longer: this kernel forbids io_uring"
        );
        return;
    }
    primary.wait_for(&["\"activity\":\"off\"", "the server uses io_uring"]);
    backup.wait_for(&["\"activity\":\"off\"", "the server uses io_uring"]);
    assert_eq!(exchange(&mut client, "again"), "again", "the server goes on");
}
