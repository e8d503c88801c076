//! The configuration of a stage.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::restart::http::{Reexecute, StageRules};
use serde::Deserialize;

/// Largest `reply_kb`. With the request's header and the input of later requests, a point still fits into a snapshot of 16 MiB.
const REPLY_KB_MAX: u64 = (16 << 10) - 256;

/// The file of a stage.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageFile {
    /// Addresses at which clients' connections arrive. The key differs from that of the other files, so that a file says what it is for.
    stage: Vec<SocketAddr>,
    application: SocketAddr,
    client_address: Option<bool>,
    snapshot_socket: Option<PathBuf>,
    reexecute: Option<ReexecuteSetting>,
    reply_kb: Option<u64>,
    memory_mb: Option<u64>,
    connections_max: Option<u64>,
    idle_s: Option<u64>,
    client_s: Option<u64>,
    application_s: Option<u64>,
    connect_ms: Option<u64>,
    linger_s: Option<u64>,
    stop_s: Option<u64>,
    metrics: Option<StageMetrics>,
}

/// The table `metrics`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StageMetrics {
    listen: SocketAddr,
    #[serde(default)]
    remote: bool,
}

/// `reexecute`: the name of a rule, or a list of methods.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum ReexecuteSetting {
    Rule(String),
    Methods(Vec<String>),
}

/// A checked configuration of a stage.
#[derive(Clone, Debug)]
pub struct StageSettings {
    /// Addresses at which clients' connections arrive.
    pub listen: Vec<SocketAddr>,
    /// The application's address.
    pub application: SocketAddr,
    /// The stage connects to the application from the client's address.
    pub has_client_address: bool,
    /// The socket at which the agent takes snapshots. `None`: there is no agent, and nothing is exported.
    pub snapshot_socket: Option<PathBuf>,
    /// The largest reply that waits until the backup has all of it, and the requests that may be executed again.
    pub rules: StageRules,
    /// Memory for the requests and replies of all connections that are longer than 64 KiB, in bytes.
    pub memory: usize,
    /// Maximum number of connections.
    pub connections_max: usize,
    /// How long a connection may be without a request.
    pub idle: Duration,
    /// How long a client may send nothing within a request's header, or take nothing of a reply.
    pub client_time: Duration,
    /// How long neither side may send anything while a reply is awaited.
    pub application_time: Duration,
    /// Time for a connection to the application.
    pub connect_time: Duration,
    /// How long a client may send bytes after the stage has ended the connection.
    pub linger: Duration,
    /// How long connections may last after SIGTERM.
    pub stop_time: Duration,
    /// The address at which metrics are served. `None`: they are not served.
    pub metrics: Option<SocketAddr>,
}

impl StageSettings {
    /// Reads and checks the file of a stage.
    ///
    /// # Errors
    /// A message with the file's path and the place of the fault.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Whether the file configures a stage.
    pub fn is_in(path: &Path) -> bool {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let (document, _) = toml::de::DeTable::parse_recoverable(&text);
        document.get_ref().contains_key("stage")
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: StageFile = toml::from_str(text).map_err(|error| error.to_string())?;
        if file.stage.is_empty() {
            return Err("stage: at least one address is needed".to_owned());
        }
        if file.stage.contains(&file.application) {
            return Err(format!(
                "application: {} is an address of the stage itself",
                file.application
            ));
        }
        let has_client_address = file.client_address.unwrap_or(true);
        let other = file
            .stage
            .iter()
            .find(|listen| listen.is_ipv4() != file.application.is_ipv4());
        if let (true, Some(listen)) = (has_client_address, other) {
            return Err(format!(
                "stage: {listen} and the application {} are of different families; a client's address cannot be kept; allowed: the \
                 application's family, or client_address = false",
                file.application
            ));
        }
        let kib = |field, value, usual, max| number(field, value, usual, 1..=max).map(|value| value << 10);
        let seconds = |field, value, usual| number(field, value, usual, 1..=86_400).map(Duration::from_secs);
        let limit = kib("reply_kb", file.reply_kb, 2048, REPLY_KB_MAX)?;
        let memory = kib("memory_mb", file.memory_mb, 1024, 1 << 20)? << 10;
        if memory < room(limit) {
            return Err(format!(
                "memory_mb: {} MiB are needed for one reply of reply_kb = {}",
                room(limit).div_ceil(1 << 20),
                limit >> 10
            ));
        }
        Ok(Self {
            listen: file.stage,
            application: file.application,
            has_client_address,
            snapshot_socket: match file.snapshot_socket {
                Some(path) => (!path.as_os_str().is_empty()).then_some(path),
                None => Some("/run/steadfast/snapshots.sock".into()),
            },
            rules: StageRules {
                reexecute: reexecute(file.reexecute)?,
                limit: as_usize(limit),
            },
            memory: as_usize(memory),
            connections_max: as_usize(number(
                "connections_max",
                file.connections_max,
                16_384,
                1..=1 << 20,
            )?),
            idle: seconds("idle_s", file.idle_s, 75)?,
            client_time: seconds("client_s", file.client_s, 60)?,
            application_time: seconds("application_s", file.application_s, 300)?,
            connect_time: number("connect_ms", file.connect_ms, 5000, 1..=600_000)
                .map(Duration::from_millis)?,
            linger: seconds("linger_s", file.linger_s, 5)?,
            stop_time: seconds("stop_s", file.stop_s, 30)?,
            metrics: file.metrics.map(metrics).transpose()?,
        })
    }
}

fn metrics(StageMetrics { listen, remote }: StageMetrics) -> Result<SocketAddr, String> {
    if remote || listen.ip().to_canonical().is_loopback() {
        return Ok(listen);
    }
    Err(format!(
        "metrics.listen: {listen} can be reached from other hosts, and metrics are given to whoever asks; allowed: a loopback address, or \
         remote = true in the same table"
    ))
}

/// Memory that one request and its reply may take, in bytes: the request, the reply twice, and the encoded point.
pub const fn room(limit: u64) -> u64 {
    4 * limit
}

fn as_usize(value: u64) -> usize {
    usize::try_from(value).expect("64-bit machines")
}

fn number(field: &str, value: Option<u64>, usual: u64, bounds: RangeInclusive<u64>) -> Result<u64, String> {
    let value = value.unwrap_or(usual);
    if bounds.contains(&value) {
        return Ok(value);
    }
    Err(format!(
        "{field}: allowed are {} to {}, not {value}",
        bounds.start(),
        bounds.end()
    ))
}

fn reexecute(setting: Option<ReexecuteSetting>) -> Result<Reexecute, String> {
    match setting {
        None => Ok(Reexecute::IDEMPOTENT),
        Some(ReexecuteSetting::Rule(name)) => match name.as_str() {
            "safe" => Ok(Reexecute::SAFE),
            "idempotent" => Ok(Reexecute::IDEMPOTENT),
            "all" => Ok(Reexecute::ALL),
            other => Err(format!(
                "reexecute: is {other:?}; allowed: \"safe\", \"idempotent\", \"all\" or a list of methods and \"Idempotency-Key\""
            )),
        },
        Some(ReexecuteSetting::Methods(names)) => Reexecute::of(names.iter().map(String::as_str))
            .map_err(|name| format!("reexecute: {name:?} is no method of RFC 9110 or 5789, in capitals")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALLEST: &str = "stage = ['127.0.0.1:80']\napplication = '127.0.0.1:8080'\n";

    /// The example is right as it is, and with every setting that a comment holds. Its comments show the defaults.
    #[test]
    fn the_example_is_right() {
        let example = include_str!("../../../../packaging/stage.toml");
        let is_setting = |line: &&str| {
            let name = line.split_once(" = ").map(|(name, _)| name);
            name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
        };
        let line = |line: &str| format!("{}\n", line.strip_prefix('#').filter(is_setting).unwrap_or(line));
        let whole: String = example.lines().map(line).collect();
        let settings = whole
            .lines()
            .filter(|line| !line.starts_with('#') && line.contains(" = "));
        assert_eq!(settings.count(), 14);
        let shown = format!("{:?}", StageSettings::parse(&whole).unwrap());
        assert_eq!(shown, format!("{:?}", StageSettings::parse(example).unwrap()));
    }

    #[test]
    fn faults_name_their_field() {
        for (text, word) in [
            (
                "reply_kb = 16384\n",
                "reply_kb: allowed are 1 to 16128, not 16384",
            ),
            ("memory_mb = 4\n", "memory_mb: 8 MiB are needed"),
            ("idle_s = 0\n", "idle_s"),
            ("reexecute = 'none'\n", "reexecute: is \"none\""),
            ("reexecute = ['get']\n", "reexecute: \"get\" is no method"),
            ("idle_ms = 4\n", "unknown field"),
            (
                "[metrics]\nlisten = '10.0.0.1:9464'\n",
                "metrics.listen: 10.0.0.1:9464 can be reached",
            ),
            ("[metrics]\nport = 9464\n", "unknown field"),
        ] {
            let error = StageSettings::parse(&format!("{SMALLEST}{text}")).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
        let own = SMALLEST.replace(":8080", ":80");
        assert!(
            StageSettings::parse(&own)
                .unwrap_err()
                .contains("the stage itself")
        );
        let other = SMALLEST.replace("127.0.0.1:8080", "[::1]:8080");
        assert!(
            StageSettings::parse(&other)
                .unwrap_err()
                .contains("different families")
        );
        StageSettings::parse(&format!("{other}client_address = false\n")).unwrap();
        let remote = format!("{SMALLEST}[metrics]\nlisten = '10.0.0.1:9464'\nremote = true\n");
        assert!(StageSettings::parse(&remote).unwrap().metrics.is_some());
        let without = StageSettings::parse(&format!("{SMALLEST}snapshot_socket = ''\n")).unwrap();
        assert_eq!(without.snapshot_socket, None);
    }
}
