//! Sessions of unmodified client programs between two servers with different addresses: `steadfast connect` on the third host of the LAN, and
//! `steadfast accept` beside the sample servers of `bindings/` on the two others.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lan::{CommandOutput, HostNamespace, OperatorLan, POLL, steadfast};

const PATIENCE: Duration = Duration::from_secs(30);
/// Where client programs connect, on the client's host.
const CLIENTS: &str = "127.0.0.1:8080";
/// Where the applications listen, on either server.
const APPLICATION: &str = "127.0.0.1:7000";
const SERVERS: [&str; 2] = ["a", "b"];
const ADDRESSES: [&str; 2] = ["10.0.0.2:7443", "10.0.0.3:7443"];

/// A process that is killed when the test ends.
struct Running(Child);

impl Running {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

struct SessionTestbed {
    lan: OperatorLan,
    dir: tempfile::TempDir,
    halves: Vec<Running>,
    applications: Vec<Running>,
    proxy: Option<Running>,
}

impl SessionTestbed {
    fn new(test: &str) -> Option<Self> {
        Some(Self {
            lan: OperatorLan::new(test)?,
            dir: tempfile::tempdir().unwrap(),
            halves: Vec::new(),
            applications: Vec::new(),
            proxy: None,
        })
    }

    fn host(&self, server: usize) -> &HostNamespace {
        [&self.lan.node, &self.lan.peer][server]
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn key(&self, name: &str) -> PathBuf {
        self.lan.file(name, &"7".repeat(64), 0o600)
    }

    fn spawn(&self, host: &HostNamespace, name: &str, mut command: Command) -> Running {
        let log = File::create(self.path(name)).unwrap();
        command
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .stdin(Stdio::null());
        command.env("NO_COLOR", "1");
        Running(host.run(|| command.spawn().unwrap()))
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    #[track_caller]
    fn wait_until(&self, event: &str, mut happened: impl FnMut() -> bool) {
        let since = Instant::now();
        while !happened() {
            let logs =
                ["proxy.log", "half0.log", "half1.log", "app0.log", "app1.log"].map(|name| self.log(name));
            assert!(
                since.elapsed() < PATIENCE,
                "{event}: {}\n{logs:#?}",
                self.status()
            );
            std::thread::sleep(POLL);
        }
    }

    /// Starts the half of a server.
    fn start_half(&mut self, server: usize) {
        let (key, certificates) = (self.key("key"), self.key("certificates"));
        let socket = self.path(&format!("exports{server}.sock"));
        let mut text = format!(
            "name = \"{}\"\naccept = \"{}\"\nkey_file = {key:?}\ncertificate_key_file = {certificates:?}\nlease_ms = 1000\n\
             snapshot_socket = {socket:?}\n[[service]]\nname = \"web\"\nconnect = \"{APPLICATION}\"\n",
            SERVERS[server], ADDRESSES[server]
        );
        for (name, address) in SERVERS.iter().zip(ADDRESSES) {
            text += &format!("[[server]]\nname = \"{name}\"\naddress = \"{address}\"\n");
        }
        let file = self.lan.file(&format!("half{server}.toml"), &text, 0o600);
        let log = format!("half{server}.log");
        let half = self.spawn(
            self.host(server),
            &log,
            steadfast(&["accept", "--config", file.to_str().unwrap()]),
        );
        self.halves.push(half);
        self.wait_until("the half", || self.log(&log).contains("ready"));
    }

    /// Starts a sample server of `bindings/python` on a server.
    fn start_application(&mut self, server: usize, script: &str, arguments: &[&str]) {
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/python");
        let mut command = Command::new("python3");
        command
            .arg(python.join("examples").join(script))
            .args(arguments)
            .arg(APPLICATION);
        command.env("PYTHONPATH", &python);
        command.env("STEADFAST_SNAPSHOTS", self.path(&format!("exports{server}.sock")));
        let log = format!("app{server}.log");
        let application = self.spawn(self.host(server), &log, command);
        self.applications.push(application);
        self.wait_until("the application", || self.log(&log).contains("ready"));
    }

    fn config(&self) -> String {
        self.path("proxy.toml").to_str().unwrap().to_owned()
    }

    /// Starts the proxy, with `more` in its service.
    fn start_proxy(&mut self, more: &str) {
        let key = self.key("key");
        let state_dir = self.path("state");
        let text = format!(
            "name = \"sf-test-proxy\"\nstate_dir = {state_dir:?}\nkey_file = {key:?}\n[[proxied]]\nname = \"web\"\nlisten = \"{CLIENTS}\"\n\
             servers = [\"{}\", \"{}\"]\n{more}\n",
            ADDRESSES[0], ADDRESSES[1]
        );
        fs::write(self.config(), text).unwrap();
        let command = steadfast(&["connect", "--config", &self.config()]);
        self.proxy = Some(self.spawn(&self.lan.stranger, "proxy.log", command));
        self.wait_until("the proxy", || self.log("proxy.log").contains("ready"));
    }

    fn start_all(&mut self, script: &str, arguments: &[&str], more: &str) {
        for server in 0..2 {
            self.start_half(server);
            self.start_application(server, script, arguments);
        }
        self.start_proxy(more);
    }

    fn status(&self) -> Value {
        let command = &mut steadfast(&["status", "--json", "--config", &self.config()]);
        let outcome = self.lan.stranger.run(|| CommandOutput::of(command));
        let mut status: Value = serde_json::from_str(&outcome.output).unwrap_or_default();
        status["services"][0].take()
    }

    fn migrate(&self, to: &str) -> CommandOutput {
        let arguments = ["migrate", "web", "--to", to, "--json", "--config", &self.config()];
        self.lan
            .stranger
            .run(|| CommandOutput::of(&mut steadfast(&arguments)))
    }

    /// Downloads a file with curl at this rate.
    fn curl(&self, rate: &str, name: &str) -> Child {
        let mut command = Command::new("curl");
        command.args([
            "--silent",
            "--show-error",
            "--fail",
            "--max-time",
            "60",
            "--limit-rate",
            rate,
        ]);
        command.args([
            "--output",
            self.path("got").to_str().unwrap(),
            &format!("http://{CLIENTS}/{name}"),
        ]);
        self.lan
            .stranger
            .run(|| command.stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Waits for curl, and compares what it got.
    #[track_caller]
    fn finish(&self, curl: Child, contents: &[u8]) {
        let done = curl.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&done.stderr);
        let logs = ["proxy.log", "half0.log", "half1.log"].map(|name| self.log(name));
        assert!(done.status.success(), "{error}\n{logs:#?}");
        assert!(fs::read(self.path("got")).unwrap() == contents, "other bytes");
    }

    /// Writes a file that is served.
    fn file(&self, length: usize) -> Vec<u8> {
        let block = |number: usize| format!("{number:015}\n").into_bytes();
        let contents: Vec<u8> = (0..length / 16).flat_map(block).collect();
        fs::create_dir_all(self.path("files")).unwrap();
        fs::write(self.path("files/file"), &contents).unwrap();
        contents
    }
}

fn moved(status: &Value) -> u64 {
    status["migrations"]["moved"].as_u64().unwrap_or(0)
}

#[test]
fn a_download_moves_there_and_back_many_times() {
    for transfer in ["lazy", "eager", "client"] {
        let Some(mut testbed) = SessionTestbed::new("a_download_moves_there_and_back_many_times") else {
            return;
        };
        let contents = testbed.file(24 << 20);
        let files = testbed.path("files").to_str().unwrap().to_owned();
        testbed.start_all("file_server.py", &[&files], &format!("transfer = \"{transfer}\""));
        let curl = testbed.curl("6M", "file");
        testbed.wait_until("data", || {
            testbed.status()["sessions"][0]["received_bytes"].as_u64() > Some(1 << 20)
        });
        for to in ["b", "a"].repeat(4) {
            let outcome = testbed.migrate(to);
            assert_eq!(
                outcome.code,
                0,
                "{transfer}: {}{}\n{}",
                outcome.output,
                outcome.errors,
                testbed.log("proxy.log")
            );
            assert_eq!(testbed.status()["sessions"][0]["server"], to);
        }
        assert_eq!(moved(&testbed.status()), 8);
        testbed.finish(curl, &contents);
        testbed.wait_until("the end", || {
            testbed.status()["sessions"] == serde_json::json!([])
        });
    }
}

#[test]
fn a_download_survives_the_death_of_its_server() {
    for transfer in ["eager", "client"] {
        let Some(mut testbed) = SessionTestbed::new("a_download_survives_the_death_of_its_server") else {
            return;
        };
        let contents = testbed.file(16 << 20);
        let files = testbed.path("files").to_str().unwrap().to_owned();
        testbed.start_all("file_server.py", &[&files], &format!("transfer = \"{transfer}\""));
        let curl = testbed.curl("4M", "file");
        testbed.wait_until("data", || {
            testbed.status()["sessions"][0]["received_bytes"].as_u64() > Some(4 << 20)
        });
        assert_eq!(testbed.status()["sessions"][0]["server"], "a");
        testbed.lan.stranger.ip("link set port2 down"); // nobody hears the host any more
        testbed.halves[0].kill();
        testbed.applications[0].kill();
        testbed.wait_until("the move", || testbed.status()["sessions"][0]["server"] == "b");
        testbed.finish(curl, &contents);
    }
}

#[test]
fn a_dead_server_ends_a_session_whose_state_only_it_has() {
    let Some(mut testbed) = SessionTestbed::new("a_dead_server_ends_a_session_whose_state_only_it_has")
    else {
        return;
    };
    testbed.file(16 << 20);
    let files = testbed.path("files").to_str().unwrap().to_owned();
    testbed.start_all("file_server.py", &[&files], "transfer = \"lazy\"");
    let text = fs::read_to_string(testbed.config()).unwrap();
    testbed.proxy = None;
    fs::write(testbed.config(), format!("patience_ms = 1500\n{text}")).unwrap();
    let command = steadfast(&["connect", "--config", &testbed.config()]);
    testbed.proxy = Some(testbed.spawn(&testbed.lan.stranger, "proxy.log", command));
    testbed.wait_until("the proxy", || testbed.log("proxy.log").contains("ready"));
    let curl = testbed.curl("4M", "file");
    testbed.wait_until("data", || {
        testbed.status()["sessions"][0]["received_bytes"].as_u64() > Some(1 << 20)
    });
    testbed.halves[0].kill();
    testbed.applications[0].kill();
    let done = curl.wait_with_output().unwrap();
    assert_eq!(
        done.status.code(),
        Some(56),
        "curl is told that the connection was reset"
    );
    assert_eq!(testbed.status()["lost"], 1);
}

#[test]
fn a_server_that_does_not_speak_the_protocol_gets_plain_tcp() {
    let Some(mut testbed) = SessionTestbed::new("a_server_that_does_not_speak_the_protocol_gets_plain_tcp")
    else {
        return;
    };
    let listener = testbed.host(0).run(|| TcpListener::bind("10.0.0.2:80").unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all).unwrap();
    });
    testbed.start_proxy("plain = \"10.0.0.2:80\"");
    let mut client = testbed.lan.stranger.run(|| TcpStream::connect(CLIENTS).unwrap());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"only these bytes").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "only these bytes");
    server.join().unwrap();
    let status = testbed.status();
    assert_eq!((&status["plain"], &status["opened"]), (&1.into(), &0.into()));
}

#[test]
fn a_stream_leaves_a_server_that_becomes_slow() {
    let Some(mut testbed) = SessionTestbed::new("a_stream_leaves_a_server_that_becomes_slow") else {
        return;
    };
    let more = "policy = \"rate\"\nsample_ms = 50\nhold_ms = 300\ntransfer = \"eager\"";
    testbed.start_all("stream_server.py", &["-k", "4"], more);
    let mut client = testbed.lan.stranger.run(|| TcpStream::connect(CLIENTS).unwrap());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"STREAM 1024000 1024 4000\n").unwrap();
    let mut got = vec![0; 200_000];
    client.read_exact(&mut got).unwrap();
    assert_eq!(testbed.status()["sessions"][0]["server"], "a");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(testbed.applications[0].0.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), 1_024_000);
    let expected = |at: usize| u8::try_from((at * 31 + 7) % 251).unwrap();
    assert!(got.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
    assert!(moved(&testbed.status()) >= 1);
}
