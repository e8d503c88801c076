//! The C interface and the example servers, compiled by the system's compiler.

mod agent;
mod program;

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent::{EXPORT, EXPORT_AND_WAIT, IMPORT, PlayedAgent, PlayedAnswer, PlayedRequest};
use program::{CProgram, CServer, run};

const NO_AGENT: &str = "";
/// How long a server may be silent.
const PATIENCE: Duration = Duration::from_secs(20);
const SNAPSHOT_MAX: usize = 16 << 20;

fn answer(status: u32, flag: u32, size: usize) -> PlayedAnswer {
    (status, flag, size, Vec::new())
}

/// What `tests/calls.c` prints for `calls`.
fn outcomes(program: &CProgram, agent: &Path, calls: &[&str]) -> String {
    let mut command = program.command(agent);
    command.args(calls);
    let output = run(command);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn calls_return_what_the_agent_answers() {
    let Some(program) = CProgram::compile("tests/calls.c") else {
        return;
    };
    let state = vec![3; 5];
    let agent = PlayedAgent::new(move |request| match (request.operation, request.size) {
        (EXPORT_AND_WAIT, size) => {
            assert_eq!(request.state, vec![1; size]);
            answer(0, u32::from(size > 0), 0)
        }
        (EXPORT, size) => {
            assert_eq!(request.state, vec![2; size]);
            answer(0, 1, 0)
        }
        (IMPORT, 0..5) => answer(5, 0, 5),
        (IMPORT, 5) => (0, 1, 5, state.clone()),
        _ => answer(0, 0, 0),
    });
    let maximum = format!("export:{SNAPSHOT_MAX}");
    let calls = [
        &maximum, "export:0", "nowait:9", "import:0", "import:4", "import:5", "import:6",
    ];
    let e = libc::ENOBUFS;
    let expected = format!("1 0\n0 0\n0 0\n-1 {e} 5 0\n-1 {e} 5 0\n1 0 5 15\n0 0 6 0\n");
    assert_eq!(outcomes(&program, &agent.path(), &calls), expected);
}

#[test]
fn each_failure_has_its_errno() {
    let Some(program) = CProgram::compile("tests/calls.c") else {
        return;
    };
    // The size of the state is the status of the answer.
    let agent = PlayedAgent::new(|request| answer(request.size as u32, 0, 1000));
    for (status, errno) in [
        (1, libc::EREMCHG),
        (2, libc::ENOTSUP),
        (3, libc::ENOTCONN),
        (4, libc::EMSGSIZE),
        (6, libc::ETIMEDOUT),
        (7, libc::EPROTO),
    ] {
        let calls = [
            format!("export:{status}"),
            format!("nowait:{status}"),
            format!("import:{status}"),
        ];
        let expected = format!("-1 {errno}\n-1 {errno}\n-1 {errno} {status} 0\n");
        assert_eq!(
            outcomes(&program, &agent.path(), &calls.each_ref().map(String::as_str)),
            expected
        );
    }
    let (fault, closed, size) = (libc::EFAULT, libc::EBADF, libc::EMSGSIZE);
    let too_large = format!("export:{}", SNAPSHOT_MAX + 1);
    let expected = format!("-1 {fault}\n").repeat(4) + &format!("-1 {closed}\n-1 {closed}\n-1 {size}\n");
    assert_eq!(
        outcomes(&program, &agent.path(), &["null", "closed", &too_large]),
        expected
    );
}

#[test]
fn without_an_agent_nothing_is_kept() {
    let Some(program) = CProgram::compile("tests/calls.c") else {
        return;
    };
    let calls = ["export:5", "nowait:5", "import:5"];
    assert_eq!(
        outcomes(&program, NO_AGENT.as_ref(), &calls),
        "0 0\n0 0\n0 0 5 0\n"
    );
}

/// A program in C does not ignore SIGPIPE.
#[test]
fn a_closed_stream_is_no_signal() {
    let Some(program) = CProgram::compile("tests/calls.c") else {
        return;
    };
    let agent = PlayedAgent::restarting(1, |_| answer(0, 1, 0));
    let calls = ["export:1"; 20];
    assert_eq!(outcomes(&program, &agent.path(), &calls), "1 0\n".repeat(20));
}

#[test]
fn a_child_process_has_a_stream_of_its_own() {
    let Some(program) = CProgram::compile("tests/calls.c") else {
        return;
    };
    // The answer's flag is the number of the stream, 0 or 1.
    let agent = PlayedAgent::new(|request| answer(0, request.stream as u32, 0));
    let calls = ["export:1", "export:1", "child/export:1", "export:1"];
    assert_eq!(outcomes(&program, &agent.path(), &calls), "0 0\n0 0\n1 0\n0 0\n");
}

/// A connection on which a silent server is an error.
fn connect(address: SocketAddr) -> TcpStream {
    let connection = TcpStream::connect(address).expect("the server listens");
    connection.set_read_timeout(Some(PATIENCE)).expect("a valid time");
    connection
}

/// Sends `input` to `address`, and reads until the server ends the connection.
fn converse(address: SocketAddr, input: &[u8]) -> Vec<u8> {
    let mut connection = connect(address);
    connection.write_all(input).expect("the server reads");
    read_to_end(&mut connection)
}

fn read_to_end(connection: &mut TcpStream) -> Vec<u8> {
    let mut output = Vec::new();
    connection.read_to_end(&mut output).expect("the server writes");
    output
}

/// A snapshot that a server exported, and what it had read and written then.
#[derive(Clone)]
struct RecordedSnapshot {
    state: Vec<u8>,
    input: usize,
    output: usize,
}

/// Starts a server of `command` and has it serve `input`. Then, for each snapshot that it exported, continues the connection from there.
/// Each continued connection must have the output that followed the snapshot. Returns the whole output and the snapshots.
fn continue_from_each_snapshot(
    command: impl FnOnce(&Path) -> Command,
    input: &[u8],
) -> (Vec<u8>, Vec<RecordedSnapshot>) {
    let snapshots = Arc::new(Mutex::new(Vec::new()));
    let restart_point = Arc::new(Mutex::new(None::<RecordedSnapshot>));
    let agent = PlayedAgent::new({
        let (snapshots, restart_point) = (Arc::clone(&snapshots), Arc::clone(&restart_point));
        move |PlayedRequest {
                  operation,
                  state,
                  input,
                  output,
                  ..
              }| {
            let point = restart_point.lock().expect("no panic");
            match (operation, &*point) {
                (IMPORT, Some(point)) => (0, 1, point.state.len(), point.state.clone()),
                (IMPORT, None) | (_, Some(_)) => answer(0, 0, 0),
                (_, None) => {
                    snapshots
                        .lock()
                        .expect("no panic")
                        .push(RecordedSnapshot { state, input, output });
                    answer(0, 1, 0)
                }
            }
        }
    });
    let server = CServer::start(command(&agent.path()));
    let output = converse(server.addresses[0], input);
    let snapshots = std::mem::take(&mut *snapshots.lock().expect("no panic"));
    for snapshot in &snapshots {
        *restart_point.lock().expect("no panic") = Some(snapshot.clone());
        let rest = converse(server.addresses[0], &input[snapshot.input..]);
        assert!(
            rest == output[snapshot.output..],
            "the rest after {} bytes of input and {} of output",
            snapshot.input,
            snapshot.output
        );
    }
    (output, snapshots)
}

/// A directory with a file of several blocks, a small one and an empty one.
fn served_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let large: Vec<u8> = (0..1_300_000).map(|at| (at % 251) as u8).collect();
    fs::write(directory.path().join("large"), large).expect("a file");
    fs::write(directory.path().join("small file"), "content").expect("a file");
    fs::write(directory.path().join("empty"), "").expect("a file");
    directory
}

fn file_server(program: &CProgram, agent: &Path, directory: &Path, addresses: &[&str]) -> Command {
    let mut command = program.command(agent);
    command.arg(directory).args(addresses);
    command
}

/// Conversations with a file server, in whichever language: its input, which then ends, and its output.
fn conversations() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/file_server.json");
    let text = fs::read_to_string(path).expect("the conversations");
    let all: Vec<serde_json::Value> = serde_json::from_str(&text).expect("a list");
    let field = |each: &serde_json::Value, name| each[name].as_str().expect("a string").to_owned();
    let mut all: Vec<_> = all
        .iter()
        .map(|each| (field(each, "input"), field(each, "output")))
        .collect();
    let bad = all.iter().find(|(_, output)| output.starts_with("HTTP/1.1 400"));
    let bad = bad.expect("a malformed request").1.clone();
    for length in [1024, 9000] {
        all.push((
            format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(length)),
            bad.clone(),
        ));
    }
    all
}

#[test]
fn the_file_server_answers_as_http_asks() {
    let Some(program) = CProgram::compile("examples/file_server.c") else {
        return;
    };
    let directory = served_directory();
    let mut addresses = vec!["127.0.0.1:0"];
    if TcpListener::bind("[::1]:0").is_ok() {
        addresses.push("[::1]:0");
    }
    let command = file_server(&program, NO_AGENT.as_ref(), directory.path(), &addresses);
    let server = CServer::start(command);
    assert_eq!(server.addresses.len(), addresses.len());
    for address in &server.addresses {
        for (input, expected) in conversations() {
            let mut connection = connect(*address);
            connection.write_all(input.as_bytes()).expect("the server reads");
            connection.shutdown(Shutdown::Write).expect("an open connection");
            let output = read_to_end(&mut connection);
            assert_eq!(String::from_utf8_lossy(&output), expected, "{input:?}");
        }
    }
}

#[test]
fn the_file_server_goes_on_from_each_snapshot() {
    let Some(program) = CProgram::compile("examples/file_server.c") else {
        return;
    };
    let directory = served_directory();
    // The requests are larger than the server's buffer, so a snapshot's input may end within a request.
    let mut input = "GET /large HTTP/1.1\r\n\r\nHEAD /large HTTP/1.1\r\n\r\n".to_owned();
    for number in 0..60 {
        let name = ["none", "empty", "small%20file"][number % 3];
        write!(
            input,
            "GET /{name} HTTP/1.1\r\nPadding: {}\r\n\r\n",
            "a".repeat(5 * number)
        )
        .expect("memory");
    }
    input += "GET /large HTTP/1.1\r\nConnection: close\r\n\r\n";

    let command = |agent: &Path| file_server(&program, agent, directory.path(), &["127.0.0.1:0"]);
    let (output, snapshots) = continue_from_each_snapshot(command, input.as_bytes());
    assert!(output.len() > 2_600_000);
    // Four blocks of each large file are followed by another one, and there are 63 requests.
    assert_eq!(snapshots.len(), 2 * 4 + 63);
    assert!(snapshots.iter().any(|snapshot| snapshot.input < input.len()));
}

#[test]
fn the_stream_server_goes_on_from_each_snapshot() {
    let Some(program) = CProgram::compile("examples/stream_server.c") else {
        return;
    };
    let command = |agent: &Path| {
        let mut command = program.command(agent);
        command.args(["-k", "3", "-s", "100000", "127.0.0.1:0"]);
        command
    };
    let (output, snapshots) = continue_from_each_snapshot(command, b"STREAM 10100 1000 100\n");
    assert!(
        output
            .iter()
            .copied()
            .eq((0..10100).map(|at| ((at * 31 + 7) % 251) as u8))
    );
    let places: Vec<_> = snapshots
        .iter()
        .map(|snapshot| (snapshot.output, snapshot.state.len()))
        .collect();
    assert_eq!(places, [(3000, 100_000), (6000, 100_000), (9000, 100_000)]);
    let (output, snapshots) = continue_from_each_snapshot(command, b"STREAM -1 1000 100\n");
    assert!(output.is_empty() && snapshots.is_empty());
}

#[test]
fn the_file_server_leaves_an_emigrated_connection_in_silence() {
    let Some(program) = CProgram::compile("examples/file_server.c") else {
        return;
    };
    let directory = served_directory();
    let agent = PlayedAgent::new(|request| answer(u32::from(request.operation != IMPORT), 0, 0));
    let server = CServer::start(file_server(
        &program,
        &agent.path(),
        directory.path(),
        &["127.0.0.1:0"],
    ));
    let output = converse(server.addresses[0], b"GET /large HTTP/1.1\r\n\r\n");
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 1300000\r\n\r\n";
    assert_eq!(output.len(), head.len() + 256 * 1024);
    let mut said = String::new();
    server.stop().read_to_string(&mut said).expect("UTF-8");
    assert_eq!(said, "");
}
