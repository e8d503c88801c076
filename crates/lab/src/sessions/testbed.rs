//! The programs: `steadfast connect` on the client's host, and `steadfast accept` beside an application on the others.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::network::{HOSTS, SessionsNetwork};
use crate::process::LoggedProcess;
use crate::teardown::Teardown;

const STREAM_SERVER: &str = include_str!("../../../../bindings/python/examples/stream_server.py");
const FILE_SERVER: &str = include_str!("../../../../bindings/python/examples/file_server.py");
const UPLOAD_SERVER: &str = include_str!("upload_server.py");
const TCP_SERVER: &str = include_str!("../../../../bindings/python/examples/tcp_server.py");
const SNAPSHOTS: &str = include_str!("../../../../bindings/python/steadfast.py");

/// Port at which servers accept sessions, and that of the application.
const PORTS: [u16; 2] = [7443, 7000];
/// Where client programs connect.
pub const CLIENTS: &str = "127.0.0.1:8080";
/// Time limit for a program to be ready.
const READY: Duration = Duration::from_secs(20);
/// Time limit for the client's next bytes.
const DATA_MAX: Duration = Duration::from_secs(30);

/// Names of the servers. A testbed has the first ones.
pub const SERVERS: [&str; 3] = ["a", "b", "c"];

/// What the programs are told.
#[derive(Clone, Debug)]
pub struct SessionsSetting {
    /// Number of servers.
    pub servers: usize,
    /// The round-trip time between any two hosts; zero: that of the cables.
    pub rtt: Duration,
    /// What this time is longer for server b.
    pub far: Duration,
    /// Further lines of the proxy's service.
    pub service: String,
    /// The application: its script, and the script's options.
    pub application: Vec<String>,
}

/// The running programs.
pub struct SessionsTestbed {
    network: SessionsNetwork,
    directory: PathBuf,
    daemon: PathBuf,
    proxy: LoggedProcess,
    _servers: Vec<LoggedProcess>,
}

/// A move of the session.
#[derive(Clone, Debug)]
pub struct SessionMove {
    /// Time from the request at the proxy until data could be exchanged again.
    pub took: Duration,
    /// The new owner.
    pub to: String,
}

/// One attempt to move the session.
#[derive(Clone, Copy, Debug)]
pub struct MoveAttempt {
    /// Time from the request at the proxy until data could be exchanged again. `None`: the session could not move there at once.
    pub took: Option<Duration>,
}

impl SessionsTestbed {
    /// Starts everything. `name` is the run's name on this machine.
    ///
    /// # Errors
    /// The step that failed.
    pub fn start(
        (name, directory): (&str, &Path),
        daemon: &Path,
        setting: &SessionsSetting,
        teardown: &Teardown,
    ) -> Result<Self> {
        let network = SessionsNetwork::build(name, setting.servers, (setting.rtt, setting.far), teardown)?;
        let directory = directory.join(name);
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        let write = |name: &str, text: &str| -> Result<PathBuf> {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| path.display().to_string())?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            Ok(path)
        };
        for (script, text) in [
            ("stream_server.py", STREAM_SERVER),
            ("file_server.py", FILE_SERVER),
            ("upload_server.py", UPLOAD_SERVER),
            ("tcp_server.py", TCP_SERVER),
            ("steadfast.py", SNAPSHOTS),
        ] {
            write(script, text)?;
        }
        let key = write("key", &"7".repeat(64))?;
        let [accept, application] = PORTS;
        let mut servers = Vec::new();
        let (names, addresses) = (&SERVERS[..setting.servers], &HOSTS[1..=setting.servers]);
        for (place, server) in names.iter().enumerate() {
            let host = &network.hosts[place + 1];
            let exports = directory.join(format!("{server}.exports"));
            let mut text = format!(
                "name = \"{server}\"\naccept = \"{}:{accept}\"\nkey_file = {key:?}\ncertificate_key_file = {key:?}\nlease_ms = 10000\n\
                 state_dir = {:?}\nsnapshot_socket = {exports:?}\n[[service]]\nname = \"lab\"\nconnect = \"{}:{application}\"\n",
                HOSTS[place + 1],
                directory.join(format!("{server}.state")),
                HOSTS[place + 1],
            );
            for (name, address) in names.iter().zip(addresses) {
                text += &format!("[[server]]\nname = \"{name}\"\naddress = \"{address}:{accept}\"\n");
            }
            let file = write(&format!("{server}.toml"), &text)?;
            let mut half = host.command(daemon)?;
            half.args(["accept", "--config"]).arg(&file);
            servers.push(started(&format!("half-{server}"), half, &directory)?);
            let mut python = host.command("python3")?;
            let (script, options) = setting.application.split_first().context("the application")?;
            python.arg(directory.join(script)).args(options);
            python.arg(format!("{}:{application}", HOSTS[place + 1]));
            python.env("STEADFAST_SNAPSHOTS", &exports);
            servers.push(started(&format!("application-{server}"), python, &directory)?);
        }
        let addresses: Vec<_> = addresses
            .iter()
            .map(|host| format!("\"{host}:{accept}\""))
            .collect();
        let text = format!(
            "name = \"lab\"\nstate_dir = {:?}\nkey_file = {key:?}\n[[proxied]]\nname = \"lab\"\nlisten = \"{CLIENTS}\"\nservers = [{}]\n{}\n",
            directory.join("proxy.state"),
            addresses.join(", "),
            setting.service
        );
        let file = write("proxy.toml", &text)?;
        let mut proxy = network.hosts[0].command(daemon)?;
        proxy.args(["connect", "--config"]).arg(&file);
        let proxy = started("proxy", proxy, &directory)?;
        Ok(Self {
            network,
            directory,
            daemon: daemon.to_owned(),
            proxy,
            _servers: servers,
        })
    }

    /// A client program's connection to the service.
    ///
    /// # Errors
    /// If the proxy does not accept it.
    pub fn connect(&self) -> Result<SessionsClient> {
        self.connect_to(CLIENTS)
    }

    /// A command on the client's host.
    ///
    /// # Errors
    /// If the host's namespace cannot be used.
    pub fn client_command(&self, program: &str) -> Result<std::process::Command> {
        Ok(self.network.hosts[0].command(program)?)
    }

    /// A connection to the application of the first server, without a session.
    ///
    /// # Errors
    /// If the server does not accept it.
    pub fn connect_plainly(&self) -> Result<SessionsClient> {
        self.connect_to(&format!("{}:{}", HOSTS[1], PORTS[1]))
    }

    fn connect_to(&self, address: &str) -> Result<SessionsClient> {
        let stream = self.network.hosts[0].run(|| TcpStream::connect(address))??;
        stream.set_read_timeout(Some(DATA_MAX))?;
        Ok(SessionsClient { stream })
    }

    /// The time for opening a TCP connection from the client's host to a server: one round trip, with what the kernels need.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn round_trip(&self) -> Result<Duration> {
        let address = format!("{}:{}", HOSTS[1], PORTS[1]);
        self.network.hosts[0]
            .run(|| {
                let begun = Instant::now();
                TcpStream::connect(address).map(|_| begun.elapsed())
            })?
            .context("the time of a round trip")
    }

    /// Moves the session to this server by the operator's command.
    ///
    /// # Errors
    /// If the command could not be run.
    pub fn migrate(&self, to: &str) -> Result<MoveAttempt> {
        let before = self.moves().len();
        let is_done = self.order(to)?;
        let took = match &self.moves()[before..] {
            [one] if is_done && one.to == to => Some(one.took),
            _ => None,
        };
        Ok(MoveAttempt { took })
    }

    /// Gives the operator's command to move the session to this server. Returns whether the command says that the session has moved there. It
    /// may have moved elsewhere on its way.
    ///
    /// # Errors
    /// If the command could not be run.
    pub fn order(&self, to: &str) -> Result<bool> {
        let mut command = self.network.hosts[0].command(&self.daemon)?;
        command.args(["migrate", "lab", "--to", to, "--json", "--config"]);
        let output = command.arg(self.directory.join("proxy.toml")).output()?;
        Ok(output.status.success())
    }

    /// All moves so far, by the proxy's log.
    pub fn moves(&self) -> Vec<SessionMove> {
        let log = self.proxy.output();
        let moved = log.lines().filter(|line| line.contains("a session has moved"));
        let field = |line: &str, name: &str| {
            let value = line.split(name).nth(1)?.split_whitespace().next()?;
            Some(value.trim_matches('"').to_owned())
        };
        let read = |line: &str| {
            Some(SessionMove {
                took: Duration::from_micros(field(line, "took_us=")?.parse().ok()?),
                to: field(line, " to=")?,
            })
        };
        moved.filter_map(read).collect()
    }
}

/// Starts a program, and waits until it says that it is ready.
fn started(label: &str, mut command: std::process::Command, directory: &Path) -> Result<LoggedProcess> {
    command.env("NO_COLOR", "1");
    let mut process = LoggedProcess::start(label, command, directory)?;
    process.wait_until("be ready", READY, |process| process.output().contains("ready"))?;
    Ok(process)
}

/// A client of the streaming server.
pub struct SessionsClient {
    stream: TcpStream,
}

impl SessionsClient {
    /// Asks for a stream of this many bytes, in chunks of 1 KB, one in each interval.
    ///
    /// # Errors
    /// If the connection has failed.
    pub fn ask(&mut self, bytes: u64, interval: Duration) -> Result<()> {
        let text = format!("STREAM {bytes} 1024 {}\n", interval.as_micros());
        Ok(self.stream.write_all(text.as_bytes())?)
    }

    /// Reads what has come, and compares it with the stream from `at` on. Returns the number of bytes; 0 is the stream's end.
    ///
    /// # Errors
    /// If nothing comes in time, or the bytes are others.
    pub fn read(&mut self, at: u64) -> Result<u64> {
        let mut buffer = [0; 16 << 10];
        let count = self.stream.read(&mut buffer).context("the stream")?;
        ensure!(
            Self::is_stream(at, &buffer[..count]),
            "the stream's bytes from {at} on are others"
        );
        Ok(count as u64)
    }

    /// Whether the streaming server sends these bytes from `at` on.
    pub fn is_stream(at: u64, bytes: &[u8]) -> bool {
        let is_expected = |(byte, at): (&u8, u64)| u64::from(*byte) == (at * 31 + 7) % 251;
        bytes.iter().zip(at..).all(is_expected)
    }

    /// The connection itself.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// The same connection, for another thread.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn another(&self) -> Result<Self> {
        Ok(Self {
            stream: self.stream.try_clone()?,
        })
    }

    /// Ends both directions.
    pub fn close(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both); // fails if the connection has ended
    }
}
