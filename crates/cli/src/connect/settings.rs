//! The configurations of a proxy (`steadfast connect`) and of a server's half (`steadfast accept`).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::session::certificate::SESSION_SERVICE_MAX;
use proto::session::frame::{CooperatingServer, StateTransfer};
use proto::session::policy::hysteresis::HysteresisConfig;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::link::LinkKey;
use super::watch::WatchPolicy;
use crate::config::{STATE_ROOT, SecretKey};

/// The file of a proxy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectFile {
    /// The proxy's name on this host.
    name: String,
    /// The directory of its lock and control socket.
    state_dir: Option<PathBuf>,
    /// File with the key that proxies and servers share.
    key_file: Option<PathBuf>,
    /// How long a server is sought for a session that has none.
    patience_ms: Option<u64>,
    /// Services. The key differs from that of the other files, so that a file says what it is for.
    proxied: Vec<ProxiedService>,
}

/// A service of a proxy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProxiedService {
    name: String,
    listen: SocketAddr,
    servers: Vec<SocketAddr>,
    plain: Option<SocketAddr>,
    #[serde(default)]
    transfer: StateTransfer,
    #[serde(default)]
    policy: PolicyName,
    sample_ms: Option<u64>,
    limit_ms: Option<u64>,
    jitter_ms: Option<u64>,
    retransmissions: Option<u32>,
    strikes: Option<u32>,
    hold_ms: Option<u64>,
    #[serde(default)]
    group: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum PolicyName {
    #[default]
    Manual,
    Rate,
    Response,
    Delay,
    Retransmissions,
}

/// The file of a server's half.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptFile {
    /// The server's name among the cooperating ones.
    name: String,
    /// Address at which proxies and servers connect.
    accept: SocketAddr,
    /// File with the key that proxies and servers share.
    key_file: Option<PathBuf>,
    /// File with the key that only the servers share.
    certificate_key_file: PathBuf,
    certificate_hours: Option<u64>,
    snapshot_socket: Option<PathBuf>,
    lease_ms: Option<u64>,
    keep_s: Option<u64>,
    shed_above: Option<usize>,
    /// The cooperating servers, this one included.
    server: Vec<CooperatingServer>,
    service: Vec<AcceptedService>,
}

/// A service of a server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AcceptedService {
    name: String,
    connect: SocketAddr,
}

/// A checked configuration of a proxy.
#[derive(Clone, Debug)]
pub struct ConnectSettings {
    /// Its name on this host.
    pub name: String,
    /// The directory of its lock and control socket.
    pub state_dir: PathBuf,
    /// The key that seals links.
    pub key: Option<LinkKey>,
    /// How long a server is sought for a session that has none.
    pub patience: Duration,
    /// Its services.
    pub services: Vec<ConnectService>,
}

/// A checked service of a proxy.
#[derive(Clone, Debug)]
pub struct ConnectService {
    /// Its name.
    pub name: String,
    /// Address at which client programs connect.
    pub listen: SocketAddr,
    /// Servers that may open sessions, in order.
    pub servers: Vec<SocketAddr>,
    /// Address of the plain service.
    pub plain: Option<SocketAddr>,
    /// Where the state is kept.
    pub transfer: StateTransfer,
    /// When sessions move.
    pub policy: WatchPolicy,
    /// The policy's hysteresis.
    pub hysteresis: HysteresisConfig,
    /// The sessions of one client host move together.
    pub group: bool,
}

/// A checked configuration of a server's half.
#[derive(Clone, Debug)]
pub struct AcceptSettings {
    /// The server's name among the cooperating ones.
    pub name: String,
    /// Address at which proxies and servers connect.
    pub listen: SocketAddr,
    /// The key that seals links.
    pub key: Option<LinkKey>,
    /// The key that signs certificates.
    pub certificate_key: [u8; 32],
    /// How long a certificate is valid.
    pub certificate_life: Duration,
    /// The socket at which applications export and import their state.
    pub snapshot_socket: PathBuf,
    /// For how long a proxy's answer lets this server own a session.
    pub lease: Duration,
    /// For how long a state is kept that nobody asks for.
    pub keep: Duration,
    /// With more sessions than this, new ones are asked to move away.
    pub shed_above: usize,
    /// The cooperating servers, this one included.
    pub servers: Vec<CooperatingServer>,
    /// The services: name, and the application's address.
    pub services: Vec<(String, SocketAddr)>,
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn key(
    file: Option<&Path>,
    addresses: impl IntoIterator<Item = SocketAddr>,
) -> Result<Option<LinkKey>, String> {
    let key = file.map(SecretKey::read).transpose();
    let key = key.map_err(|error| format!("key_file: {error}"))?;
    let outside = addresses.into_iter().find(|address| !address.ip().is_loopback());
    match (key, outside) {
        (None, Some(address)) => Err(format!(
            "key_file is missing, and {address} is no loopback address: without a key everybody on the way could read and write"
        )),
        (key, _) => Ok(key.map(|key| *key.bytes())),
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > SESSION_SERVICE_MAX || !name.chars().all(fits) {
        return Err(format!(
            "name: {name:?}: allowed are 1 to {SESSION_SERVICE_MAX} letters, digits, '-' and '_'"
        ));
    }
    Ok(())
}

/// A number of milliseconds within bounds.
fn millis(
    field: &str,
    value: Option<u64>,
    usual: u64,
    bounds: std::ops::RangeInclusive<u64>,
) -> Result<Duration, String> {
    let value = value.unwrap_or(usual);
    if bounds.contains(&value) {
        return Ok(Duration::from_millis(value));
    }
    Err(format!(
        "{field}: allowed are {} to {}, not {value}",
        bounds.start(),
        bounds.end()
    ))
}

impl ConnectSettings {
    /// Reads and checks the file of a proxy.
    ///
    /// # Errors
    /// A message with the file's path and the place of the fault.
    pub fn load(path: &Path) -> Result<Self, String> {
        let file: ConnectFile = read(path)?;
        check_connect(file).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Whether the file configures a proxy.
    pub fn is_in(path: &Path) -> bool {
        has_key(path, "proxied")
    }
}

impl AcceptSettings {
    /// Reads and checks the file of a server's half.
    ///
    /// # Errors
    /// A message with the file's path and the place of the fault.
    pub fn load(path: &Path) -> Result<Self, String> {
        let file: AcceptFile = read(path)?;
        check_accept(file).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Whether the file configures a server's half.
    pub fn is_in(path: &Path) -> bool {
        has_key(path, "accept")
    }
}

fn has_key(path: &Path, key: &str) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let (document, _) = toml::de::DeTable::parse_recoverable(&text);
    document.get_ref().contains_key(key)
}

fn check_connect(file: ConnectFile) -> Result<ConnectSettings, String> {
    check_name(&file.name)?;
    let addresses = file
        .proxied
        .iter()
        .flat_map(|service| service.servers.iter().copied());
    let key = key(file.key_file.as_deref(), addresses)?;
    if file.proxied.is_empty() {
        return Err("proxied: at least one service is needed".to_owned());
    }
    let services = file.proxied.into_iter().map(|service| {
        let name = service.name.clone();
        check_proxied(service).map_err(|error| format!("proxied {name}: {error}"))
    });
    Ok(ConnectSettings {
        state_dir: file
            .state_dir
            .unwrap_or_else(|| Path::new(STATE_ROOT).join(&file.name)),
        name: file.name,
        key,
        patience: millis("patience_ms", file.patience_ms, 30_000, 100..=3_600_000)?,
        services: services.collect::<Result<_, _>>()?,
    })
}

fn check_proxied(service: ProxiedService) -> Result<ConnectService, String> {
    check_name(&service.name)?;
    if service.servers.is_empty() {
        return Err("servers: at least one address is needed".to_owned());
    }
    let sample = millis("sample_ms", service.sample_ms, 100, 1..=60_000)?;
    let limit = millis("limit_ms", service.limit_ms, 1000, 1..=600_000)?;
    let jitter = service
        .jitter_ms
        .map(|value| millis("jitter_ms", Some(value), value, 1..=600_000));
    let policy = match service.policy {
        PolicyName::Manual => WatchPolicy::Manual,
        PolicyName::Rate => WatchPolicy::Rate { sample },
        PolicyName::Response => WatchPolicy::Response { limit },
        PolicyName::Delay => WatchPolicy::Delay {
            limit,
            jitter: jitter.transpose()?,
        },
        PolicyName::Retransmissions => WatchPolicy::Retransmissions {
            most: service.retransmissions.unwrap_or(10),
            sample,
        },
    };
    let strikes = service.strikes.unwrap_or(2);
    if strikes == 0 {
        return Err("strikes: allowed are numbers from 1 on".to_owned());
    }
    Ok(ConnectService {
        hysteresis: HysteresisConfig {
            strikes,
            hold: millis("hold_ms", service.hold_ms, 1000, 0..=3_600_000)?,
        },
        name: service.name,
        listen: service.listen,
        servers: service.servers,
        plain: service.plain,
        transfer: service.transfer,
        policy,
        group: service.group,
    })
}

fn check_accept(file: AcceptFile) -> Result<AcceptSettings, String> {
    check_name(&file.name)?;
    let key = key(file.key_file.as_deref(), [file.accept])?;
    let certificate_key = SecretKey::read(&file.certificate_key_file)
        .map_err(|error| format!("certificate_key_file: {error}"))?;
    if !file.server.iter().any(|server| server.name == file.name) {
        return Err(format!(
            "server: the list lacks this server, {}; all cooperating servers have the same list",
            file.name
        ));
    }
    if file.service.is_empty() {
        return Err("service: at least one is needed".to_owned());
    }
    for service in &file.service {
        check_name(&service.name).map_err(|error| format!("service: {error}"))?;
    }
    let services = file
        .service
        .into_iter()
        .map(|service| (service.name, service.connect));
    Ok(AcceptSettings {
        listen: file.accept,
        key,
        certificate_key: *certificate_key.bytes(),
        certificate_life: Duration::from_secs(3600 * file.certificate_hours.unwrap_or(24)),
        snapshot_socket: file
            .snapshot_socket
            .unwrap_or_else(|| Path::new(STATE_ROOT).join("snapshots.sock")),
        lease: millis("lease_ms", file.lease_ms, 2000, 100..=600_000)?,
        keep: Duration::from_secs(file.keep_s.unwrap_or(60)),
        shed_above: file.shed_above.unwrap_or(usize::MAX),
        servers: file.server,
        services: services.collect(),
        name: file.name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROXY: &str =
        "name = 'p'\n[[proxied]]\nname = 'web'\nlisten = '127.0.0.1:80'\nservers = ['127.0.0.2:7443']\n";

    fn connect(text: &str) -> Result<ConnectSettings, String> {
        check_connect(toml::from_str(text).map_err(|error| error.to_string())?)
    }

    #[test]
    fn a_proxy_is_read_with_its_defaults() {
        let settings = connect(PROXY).unwrap();
        let service = &settings.services[0];
        assert_eq!(
            (service.transfer, service.policy),
            (StateTransfer::Lazy, WatchPolicy::Manual)
        );
        assert_eq!(settings.state_dir, Path::new(STATE_ROOT).join("p"));
        let more = format!("{PROXY}transfer = 'eager'\npolicy = 'delay'\nlimit_ms = 30\njitter_ms = 5\n");
        let service = connect(&more).unwrap().services.remove(0);
        let expected = WatchPolicy::Delay {
            limit: Duration::from_millis(30),
            jitter: Some(Duration::from_millis(5)),
        };
        assert_eq!(
            (service.transfer, service.policy),
            (StateTransfer::Eager, expected)
        );
    }

    #[test]
    fn faults_of_a_proxy_name_their_field() {
        for (text, word) in [
            (PROXY.replace("'p'", "'../p'"), "name"),
            (PROXY.replace("127.0.0.2", "10.0.0.2"), "key_file is missing"),
            (format!("{PROXY}colour = 1\n"), "colour"),
            (format!("{PROXY}policy = 'luck'\n"), "policy"),
            (format!("{PROXY}hold_ms = 9999999\n"), "hold_ms"),
            (format!("{PROXY}strikes = 0\n"), "strikes"),
            (PROXY.replace("['127.0.0.2:7443']", "[]"), "servers"),
        ] {
            let error = connect(&text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    fn key() -> tempfile::NamedTempFile {
        use std::os::unix::fs::PermissionsExt;
        let key = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(key.path(), "7".repeat(64)).unwrap();
        std::fs::set_permissions(key.path(), PermissionsExt::from_mode(0o600)).unwrap();
        key
    }

    /// The examples are right as they are, and with every setting that a comment holds.
    #[test]
    fn the_examples_are_right() {
        let key = key();
        let paths = ["/etc/steadfast/sessions.key", "/etc/steadfast/certificates.key"];
        let with_key = |text: &str| {
            let here = key.path().to_str().unwrap();
            paths
                .iter()
                .fold(text.to_owned(), |text, path| text.replace(path, here))
        };
        let is_setting = |line: &&str| {
            let name = line.split_once(" = ").map(|(name, _)| name);
            name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
        };
        let line = |line: &str| format!("{}\n", line.strip_prefix('#').filter(is_setting).unwrap_or(line));
        let whole = |text: &str| text.lines().map(line).collect::<String>();
        let example = with_key(include_str!("../../../../packaging/connect.toml"));
        for text in [whole(&example), example] {
            connect(&text).unwrap();
        }
        let example = with_key(include_str!("../../../../packaging/accept.toml"));
        for text in [whole(&example), example] {
            check_accept(toml::from_str(&text).unwrap()).unwrap();
        }
    }

    #[test]
    fn faults_of_a_server_name_their_field() {
        let key = key();
        let usual = format!(
            "name = 'a'\naccept = '127.0.0.1:7443'\ncertificate_key_file = {:?}\n[[server]]\nname = 'a'\naddress = '127.0.0.1:7443'\n\
             [[service]]\nname = 'web'\nconnect = '127.0.0.1:80'\n",
            key.path()
        );
        let load = |text: &str| check_accept(toml::from_str(text).map_err(|error| error.to_string())?);
        assert_eq!(load(&usual).unwrap().lease, Duration::from_secs(2));
        for (text, word) in [
            (
                usual.replace("name = 'a'\naccept", "name = 'b'\naccept"),
                "lacks this server",
            ),
            (
                usual.replace("127.0.0.1:7443'\ncert", "10.0.0.1:7443'\ncert"),
                "key_file is missing",
            ),
            (format!("lease_ms = 1\n{usual}"), "lease_ms"),
            (
                usual.replace("certificate_key_file = ", "certificate_key_file = '/no/file' # "),
                "certificate_key_file",
            ),
        ] {
            let error = load(&text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
