//! Connections that are not HTTP are served but not protected, and the backup shows the reason. They end with a RST if their worker dies.

use std::io::{BufRead, BufReader, ErrorKind, Lines, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::daemon::pair;
use crate::lan::{CommandOutput, HostNamespace, OperatorLan, POLL, TestProcess};

/// A WebSocket handshake (RFC 6455 section 1.2).
const UPGRADE: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
const UPGRADED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
const ONLY_ONE: &str = "\"connections\":{\"protected\":0,\"unprotected\":1,\"ambiguous\":0}";

/// Starts openssl. The process is killed on drop.
fn openssl(namespace: &HostNamespace, dir: &Path, arguments: &str) -> TestProcess {
    let mut command = Command::new("openssl");
    command
        .args(arguments.split_ascii_whitespace())
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    TestProcess(namespace.run(|| command.spawn().unwrap()))
}

#[test]
fn what_is_not_http_is_shown_with_its_reason() {
    let Some(lan) = OperatorLan::new("what_is_not_http_is_shown_with_its_reason") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [_primary, backup] = pair(&lan, dir.path(), "opaque");
    lan.stranger.ip("route add 10.0.0.100/32 dev eth0");

    let listener = lan.node.run(|| TcpListener::bind("0.0.0.0:80").unwrap());
    let mut client = lan.stranger.run(|| TcpStream::connect("10.0.0.100:80").unwrap());
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(UPGRADE.as_bytes()).unwrap();
    server.read_exact(&mut [0; UPGRADE.len()]).unwrap();
    server.write_all(UPGRADED.as_bytes()).unwrap();
    client.read_exact(&mut [0; UPGRADED.len()]).unwrap();
    let reason = "the connection was upgraded to another protocol";
    backup.wait_for(&[ONLY_ONE, &format!("\"reasons\":{{\"{reason}\":1}}")]);
    let shown = backup.ask("connections").output;
    assert!(shown.contains(&format!("\"reason\":\"{reason}\"")), "{shown}");
    drop((client, server, listener)); // closes the client first
    backup.wait_for(&["\"protected\":0,\"unprotected\":0", "\"reasons\":{}"]);

    let mut certificate = Command::new("openssl");
    certificate.args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=a -keyout key.pem -out cert.pem".split(' '));
    let made = CommandOutput::of(certificate.current_dir(dir.path()));
    assert_eq!(made.code, 0, "{}", made.errors);
    let _server = openssl(
        &lan.node,
        dir.path(),
        "s_server -accept 80 -cert cert.pem -key key.pem",
    );
    let until = Instant::now() + Duration::from_secs(20);
    while lan.node.run(|| TcpStream::connect("127.0.0.1:80").is_err()) {
        assert!(Instant::now() < until, "openssl s_server does not listen");
        std::thread::sleep(POLL);
    }
    let _client = openssl(
        &lan.stranger,
        dir.path(),
        "s_client -connect 10.0.0.100:80 -brief",
    );
    let reason = "the connection is encrypted (TLS)";
    backup.wait_for(&[ONLY_ONE, &format!("\"reasons\":{{\"{reason}\":1}}")]);
}

/// A worker that accepts connections on port 80 beside other workers. It answers a WebSocket handshake with its argument.
const WORKER: &str = r"
import socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(('0.0.0.0', 80))
listener.listen()
print('ready', flush=True)
streams = []
while True:
    stream, _ = listener.accept()
    streams.append(stream)
    print('accepted', flush=True)
    asked = stream.recv(10000)
    stream.sendall(sys.argv[1].encode() if b'Upgrade' in asked else b'HTTP/1.1 204 No Content\r\n\r\n')
";

/// A process that runs [`WORKER`].
struct Worker {
    process: TestProcess,
    says: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(namespace: &HostNamespace) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", WORKER, UPGRADED]).stdout(Stdio::piped());
        let mut process = TestProcess(namespace.run(|| command.spawn().unwrap()));
        let mut says = BufReader::new(process.0.stdout.take().unwrap()).lines();
        assert_eq!(says.next().unwrap().unwrap(), "ready");
        Self { process, says }
    }
}

/// An upgraded connection cannot be continued after its worker's death, and the primary's kernel is not allowed to send the client a FIN or
/// a RST. So the backup resets the connection, although the primary lives.
#[test]
fn what_cannot_be_gone_on_with_ends_with_its_worker() {
    let Some(lan) = OperatorLan::new("what_cannot_be_gone_on_with_ends_with_its_worker") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [primary, backup] = pair(&lan, dir.path(), "worker");
    lan.stranger.ip("route add 10.0.0.100/32 dev eth0");
    let mut one = Worker::start(&lan.node);
    let mut client = lan.stranger.run(|| TcpStream::connect("10.0.0.100:80").unwrap());
    assert_eq!(one.says.next().unwrap().unwrap(), "accepted");
    client.write_all(UPGRADE.as_bytes()).unwrap();
    client.read_exact(&mut [0; UPGRADED.len()]).unwrap();
    backup.wait_for(&[ONLY_ONE]);
    let mut plain = lan.stranger.run(|| TcpStream::connect("10.0.0.100:80").unwrap());
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    plain.read_exact(&mut [0; 4]).unwrap();
    backup.wait_for(&["\"protected\":1,\"unprotected\":1"]);
    let _other = Worker::start(&lan.node);
    one.process.0.kill().unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let end = client.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    // The backup has adopted the worker's HTTP connection, and would lose this connection if the backup failed now.
    backup.wait_for(&["\"relayed\":1", "\"reasons\":{\"relayed; no backup\":1}"]);
    let shown = backup.ask("connections").output;
    assert!(
        shown.contains(&plain.local_addr().unwrap().to_string()),
        "{shown}"
    );
    // The primary still serves all other connections.
    primary.wait_for(&["\"peer_state\":\"backup\"", "\"role\":\"primary\""]);
}
