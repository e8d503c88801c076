//! The network for tests of sessions: `steadfast connect` on the third host of the LAN, and `steadfast accept` beside the sample servers of
//! `bindings/` on the two others.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lan::{CommandOutput, HostNamespace, OperatorLan, POLL, steadfast};

pub const PATIENCE: Duration = Duration::from_secs(30);
/// Where client programs connect, on the client's host.
pub const CLIENTS: &str = "127.0.0.1:8080";
/// Where the applications listen, on either server.
const APPLICATION: &str = "127.0.0.1:7000";
/// Where the halves and the proxy serve their metrics.
pub const METRICS: &str = "127.0.0.1:9464";
const SERVERS: [&str; 2] = ["a", "b"];
const ADDRESSES: [&str; 2] = ["10.0.0.2:7443", "10.0.0.3:7443"];

/// A process that is killed when the test ends.
pub struct Running(pub Child);

impl Running {
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

pub struct SessionTestbed {
    pub lan: OperatorLan,
    dir: tempfile::TempDir,
    pub halves: Vec<Running>,
    pub applications: Vec<Running>,
    pub proxy: Option<Running>,
    /// Further settings of the halves.
    pub of_halves: String,
}

impl SessionTestbed {
    pub fn new(test: &str) -> Option<Self> {
        Some(Self {
            lan: OperatorLan::new(test)?,
            dir: tempfile::tempdir().unwrap(),
            halves: Vec::new(),
            applications: Vec::new(),
            proxy: None,
            of_halves: String::new(),
        })
    }

    pub fn host(&self, server: usize) -> &HostNamespace {
        [&self.lan.node, &self.lan.peer][server]
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn key(&self, name: &str) -> PathBuf {
        self.lan.file(name, &"7".repeat(64), 0o600)
    }

    pub fn spawn(&self, host: &HostNamespace, name: &str, mut command: Command) -> Running {
        let log = File::create(self.path(name)).unwrap();
        command
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .stdin(Stdio::null());
        command.env("NO_COLOR", "1");
        Running(host.run(|| command.spawn().unwrap()))
    }

    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    #[track_caller]
    pub fn wait_until(&self, event: &str, mut happened: impl FnMut() -> bool) {
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
    pub fn start_half(&mut self, server: usize) {
        let (key, certificates) = (self.key("key"), self.key("certificates"));
        let socket = self.path(&format!("exports{server}.sock"));
        let (state_dir, more) = (self.path(&format!("half{server}")), &self.of_halves);
        let mut text = format!(
            "name = \"{}\"\naccept = \"{}\"\nkey_file = {key:?}\ncertificate_key_file = {certificates:?}\nlease_ms = 1000\n\
             state_dir = {state_dir:?}\nsnapshot_socket = {socket:?}\n{more}\n[metrics]\nlisten = \"{METRICS}\"\n[[service]]\nname = \"web\"\nconnect = \"{APPLICATION}\"\n",
            SERVERS[server], ADDRESSES[server]
        );
        for (name, address) in SERVERS.iter().zip(ADDRESSES) {
            text += &format!("[[server]]\nname = \"{name}\"\naddress = \"{address}\"\n");
        }
        let file = self.half_config(server);
        fs::write(&file, text).unwrap();
        let log = format!("half{server}.log");
        let half = self.spawn(self.host(server), &log, steadfast(&["accept", "--config", &file]));
        self.halves.push(half);
        self.wait_until("the half", || self.log(&log).contains("ready"));
    }

    /// Starts a sample server of `bindings/python` on a server.
    pub fn start_application(&mut self, server: usize, script: &str, arguments: &[&str]) {
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/python");
        let mut command = Command::new("python3");
        command
            .arg(python.join("examples").join(script))
            .args(arguments)
            .arg(APPLICATION);
        let modules = [python.clone(), python.join("examples")];
        command.env("PYTHONPATH", std::env::join_paths(modules).unwrap());
        command.env("STEADFAST_SNAPSHOTS", self.path(&format!("exports{server}.sock")));
        let log = format!("app{server}.log");
        let application = self.spawn(self.host(server), &log, command);
        self.applications.push(application);
        self.wait_until("the application", || self.log(&log).contains("ready"));
    }

    pub fn half_config(&self, server: usize) -> String {
        self.path(&format!("half{server}.toml"))
            .to_str()
            .unwrap()
            .to_owned()
    }

    /// Runs a command on a server, with the half's configuration.
    pub fn at_half(&self, server: usize, arguments: &[&str]) -> CommandOutput {
        let config = self.half_config(server);
        let arguments = [arguments, &["--config", &config]].concat();
        self.host(server)
            .run(|| CommandOutput::of(&mut steadfast(&arguments)))
    }

    pub fn half_status(&self, server: usize) -> Value {
        let outcome = self.at_half(server, &["status", "--json"]);
        serde_json::from_str(&outcome.output).unwrap_or_else(|error| panic!("{error}: {}", outcome.errors))
    }

    /// The page of metrics of the program on this host.
    pub fn metrics(&self, host: &HostNamespace) -> String {
        let mut command = Command::new("curl");
        command.args(["--silent", "--fail", &format!("http://{METRICS}/metrics")]);
        host.run(|| CommandOutput::of(&mut command)).output
    }

    pub fn config(&self) -> String {
        self.path("proxy.toml").to_str().unwrap().to_owned()
    }

    /// Starts the proxy, with `more` in its service.
    pub fn start_proxy(&mut self, more: &str) {
        let key = self.key("key");
        let state_dir = self.path("state");
        let text = format!(
            "name = \"sf-test-proxy\"\nstate_dir = {state_dir:?}\nkey_file = {key:?}\n[metrics]\nlisten = \"{METRICS}\"\n[[proxied]]\nname = \"web\"\nlisten = \"{CLIENTS}\"\n\
             servers = [\"{}\", \"{}\"]\n{more}\n",
            ADDRESSES[0], ADDRESSES[1]
        );
        fs::write(self.config(), text).unwrap();
        let command = steadfast(&["connect", "--config", &self.config()]);
        self.proxy = Some(self.spawn(&self.lan.stranger, "proxy.log", command));
        self.wait_until("the proxy", || self.log("proxy.log").contains("ready"));
    }

    pub fn start_all(&mut self, script: &str, arguments: &[&str], more: &str) {
        for server in 0..2 {
            self.start_half(server);
            self.start_application(server, script, arguments);
        }
        self.start_proxy(more);
    }

    pub fn status(&self) -> Value {
        let command = &mut steadfast(&["status", "--json", "--config", &self.config()]);
        let outcome = self.lan.stranger.run(|| CommandOutput::of(command));
        let mut status: Value = serde_json::from_str(&outcome.output).unwrap_or_default();
        let service = status.pointer_mut("/services/0");
        service.map(Value::take).unwrap_or_default()
    }

    pub fn migrate(&self, to: &str) -> CommandOutput {
        let arguments = ["migrate", "web", "--to", to, "--json", "--config", &self.config()];
        self.lan
            .stranger
            .run(|| CommandOutput::of(&mut steadfast(&arguments)))
    }

    /// Downloads the file with curl at this rate, and writes it to `got`.
    pub fn curl(&self, rate: &str, got: &str) -> Child {
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
            self.path(got).to_str().unwrap(),
            &format!("http://{CLIENTS}/file"),
        ]);
        self.lan
            .stranger
            .run(|| command.stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Waits for curl, and compares what it got.
    #[track_caller]
    pub fn finish(&self, curl: Child, got: &str, contents: &[u8]) {
        let done = curl.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&done.stderr);
        let logs = ["proxy.log", "half0.log", "half1.log"].map(|name| self.log(name));
        assert!(done.status.success(), "{error}\n{logs:#?}");
        assert!(fs::read(self.path(got)).unwrap() == contents, "other bytes");
    }

    /// Writes a file that is served.
    pub fn file(&self, length: usize) -> Vec<u8> {
        let block = |number: usize| format!("{number:015}\n").into_bytes();
        let contents: Vec<u8> = (0..length / 16).flat_map(block).collect();
        fs::create_dir_all(self.path("files")).unwrap();
        fs::write(self.path("files/file"), &contents).unwrap();
        contents
    }
}

/// Number of moves, by the proxy's status.
pub fn moved(status: &Value) -> u64 {
    status["migrations"]["moved"].as_u64().unwrap_or(0)
}
