//! `steadfast stage` on a host without an agent: requests, bad input, dead applications, and the end. With an agent and a backup:
//! `steadfast-lab crash --server cgi`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::keeper::PATIENCE;
use crate::lan::{PROGRAM, TestProcess, program};

/// A stage, and the listener of its application.
struct StageTestbed {
    process: TestProcess,
    address: SocketAddr,
    application: TcpListener,
    _dir: tempfile::TempDir,
}

fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn start(config: &Path) -> Child {
    program(PROGRAM.as_ref(), &["stage", "--config", config.to_str().unwrap()])
        .spawn()
        .unwrap()
}

impl StageTestbed {
    /// Starts a stage with these further settings.
    fn new(settings: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let application = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, behind) = (free_port(), application.local_addr().unwrap());
        let config = dir.path().join("stage.toml");
        let text = format!(
            "stage = ['{address}']\napplication = '{behind}'\nclient_address = false\nsnapshot_socket = ''\n{settings}"
        );
        fs::write(&config, text).unwrap();
        let process = TestProcess(start(&config));
        let testbed = Self {
            process,
            address,
            application,
            _dir: dir,
        };
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < until, "the stage never listened");
            std::thread::sleep(Duration::from_millis(5));
        }
        testbed
    }

    fn client(&self) -> TcpStream {
        let client = TcpStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }

    /// The application's end of the next connection.
    fn accept(&self) -> TcpStream {
        self.application.set_nonblocking(true).unwrap();
        let until = Instant::now() + PATIENCE;
        let stream = loop {
            match self.application.accept() {
                Ok((stream, _)) => break stream,
                Err(error) => assert!(
                    Instant::now() < until,
                    "no connection to the application: {error}"
                ),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn terminate(&self) {
        kill(Pid::from_raw(self.process.0.id() as i32), Signal::SIGTERM).unwrap();
    }
}

/// Reads a header section.
fn head(stream: &mut impl BufRead) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(
            stream.read_line(&mut head).unwrap(),
            0,
            "the stream ended after {head:?}"
        );
    }
    head
}

/// The rest of what a stream says.
fn rest(mut stream: impl Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn requests_share_a_connection_to_the_application() {
    let testbed = StageTestbed::new("");
    let mut client = testbed.client();
    client
        .write_all(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    let mut application = BufReader::new(testbed.accept());
    let mut replies = BufReader::new(client.try_clone().unwrap());
    for number in ["1", "2"] {
        assert!(head(&mut application).starts_with(&format!("GET /{number} ")));
        let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}");
        let (first, second) = reply.split_at(20);
        application.get_mut().write_all(first.as_bytes()).unwrap();
        // Nothing leaves before the reply is complete.
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(client.peek(&mut [0]).is_err(), "a part of the reply has left");
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        application.get_mut().write_all(second.as_bytes()).unwrap();
        assert!(head(&mut replies).contains("200 OK"));
        let mut body = [0];
        replies.read_exact(&mut body).unwrap();
        assert_eq!(&body, number.as_bytes());
    }
    drop(application);
    client.write_all(b"GET /3 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(
        head(&mut BufReader::new(testbed.accept())).starts_with("GET /3 "),
        "a new connection"
    );
}

#[test]
fn a_request_is_sent_again_if_the_application_closes_the_connection_that_it_came_on() {
    const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let testbed = StageTestbed::new("");
    let mut client = testbed.client();
    client.write_all(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut application = BufReader::new(testbed.accept());
    head(&mut application);
    application.get_mut().write_all(REPLY).unwrap();
    let mut replies = BufReader::new(client.try_clone().unwrap());
    head(&mut replies);

    client.write_all(b"GET /2 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(
        application.get_mut().peek(&mut [0]).is_ok(),
        "the request comes on it"
    );
    drop(application); // with a request that it has not read: a RST
    let mut application = BufReader::new(testbed.accept());
    let again = head(&mut application);
    assert!(
        again.starts_with("GET /2 ") && again.contains("Steadfast-Reexecuted"),
        "{again}"
    );
    application.get_mut().write_all(REPLY).unwrap();
    assert!(head(&mut replies).contains("200 OK"));
}

#[test]
fn a_long_reply_streams() {
    let testbed = StageTestbed::new("reply_kb = 64\n");
    let mut client = testbed.client();
    client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut application = BufReader::new(testbed.accept());
    head(&mut application);
    let body = vec![b'x'; 3_000_000];
    let writer = std::thread::spawn(move || {
        let application = application.get_mut();
        let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        application.write_all(head.as_bytes()).unwrap();
        application.write_all(&body).unwrap();
    });
    let said = rest(client);
    writer.join().unwrap();
    assert_eq!(said.split_once("\r\n\r\n").unwrap().1.len(), 3_000_000);
}

#[test]
fn a_dead_application_leaves_a_503_which_a_client_that_sends_can_read() {
    let testbed = StageTestbed::new("");
    let mut client = testbed.client();
    client
        .write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n\r\n")
        .unwrap();
    let sent = vec![0; 1_000_000];
    client.write_all(&sent).unwrap();
    let mut application = BufReader::new(testbed.accept());
    head(&mut application);
    application
        .get_mut()
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Le")
        .unwrap();
    drop(application); // with input that it has not read: a RST
    drop(testbed.application);
    let mut replies = BufReader::new(client.try_clone().unwrap());
    assert!(head(&mut replies).starts_with("HTTP/1.1 503 "));
    // The client has not read the reply yet when it sends the rest.
    for _ in 0..7 {
        client.write_all(&sent).unwrap();
    }
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(replies), "");

    let mut client = TcpStream::connect(testbed.address).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(
        rest(client).starts_with("HTTP/1.1 503 "),
        "it is not there at all"
    );
}

#[test]
fn the_metrics_count_what_happens() {
    let metrics = free_port();
    let testbed = StageTestbed::new(&format!("[metrics]\nlisten = '{metrics}'\n"));
    let mut client = testbed.client();
    client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    drop(testbed.accept()); // no reply
    assert!(rest(client).starts_with("HTTP/1.1 503 "));
    let until = Instant::now() + PATIENCE;
    let has = |page: &str, line: &str| page.lines().any(|one| one == line);
    loop {
        let mut scrape = TcpStream::connect(metrics).unwrap();
        scrape
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .unwrap();
        let page = rest(scrape);
        if has(&page, "steadfast_stage_unanswered_total 1") && has(&page, "steadfast_stage_connections 0") {
            return;
        }
        assert!(Instant::now() < until, "{page}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn bad_input_is_answered_and_silence_is_bounded() {
    let testbed = StageTestbed::new("client_s = 1\nidle_s = 1\napplication_s = 1\n");
    for bad in [
        "\0\x01\x02\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\n\r\n",
    ] {
        let mut client = testbed.client();
        client.write_all(bad.as_bytes()).unwrap();
        let said = rest(client);
        assert!(said.starts_with("HTTP/1.1 400 "), "{bad:?}: {said}");
    }
    let mut client = testbed.client();
    let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(70_000));
    let _ = client.write_all(long.as_bytes()); // fails if the stage has answered meanwhile
    assert!(rest(&client).starts_with("HTTP/1.1 400 "));
    assert_eq!(rest(testbed.client()), "", "a client that says nothing");
    let mut client = testbed.client();
    client.write_all(b"GET / HT").unwrap();
    assert!(
        client.read(&mut [0]).is_err(),
        "a client that stops within its request is reset"
    );
    let mut client = testbed.client();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let silent = testbed.accept();
    assert!(
        rest(client).starts_with("HTTP/1.1 503 "),
        "an application that says nothing"
    );
    drop(silent);
}

/// Idle connections end in order, and replies that are under way are completed.
#[test]
fn a_stage_ends_in_order() {
    let testbed = StageTestbed::new("");
    let idle = testbed.client();
    let mut busy = testbed.client();
    busy.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut application = BufReader::new(testbed.accept());
    head(&mut application);
    testbed.terminate();
    assert_eq!(rest(idle), "");
    assert!(TcpStream::connect(testbed.address).is_err(), "it still listens");
    application
        .get_mut()
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        .unwrap();
    assert!(rest(busy).ends_with("\r\n\r\nok"));
    let mut process = testbed.process;
    let (sender, ended): (_, Receiver<_>) = channel();
    std::thread::spawn(move || sender.send(process.0.wait().unwrap()));
    assert!(ended.recv_timeout(PATIENCE).unwrap().success());
}

/// An application that never ends its reply does not keep the stage for ever.
#[test]
fn the_end_is_bounded() {
    let testbed = StageTestbed::new("stop_s = 1\n");
    let mut busy = testbed.client();
    busy.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let application = testbed.accept();
    testbed.terminate();
    assert!(busy.read(&mut [0]).is_err(), "a RST, not the end of a cut reply");
    let mut process = testbed.process;
    assert!(process.0.wait().unwrap().success());
    drop(application);
}
