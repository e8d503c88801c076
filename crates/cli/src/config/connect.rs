//! The configurations of a proxy (`steadfast connect`) and of a server's half (`steadfast accept`), docs/connect.md.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::session::frame::{CooperatingServer, StateTransfer};
use proto::session::policy::hysteresis::HysteresisConfig;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::parse::{LISTEN, listen, metrics, parse_document, snapshot_socket, state_dir, yes_or_no};
use super::table::{ConfigReader, ConfigTable, NAME, integer, list, name, narrow, tables, text};
use super::{ConfigError, MetricsSettings, STATE_ROOT, SecretKey, arbiter};

const PATIENCE_MS: u64 = 30_000;
const SAMPLE_MS: u64 = 100;
const LIMIT_MS: u64 = 1_000;
const RETRANSMISSIONS: u64 = 10;
const STRIKES: u64 = 2;
const HOLD_MS: u64 = 1_000;
const CERTIFICATE_HOURS: u64 = 24;
const LEASE_MS: u64 = 2_000;
const KEEP_S: u64 = 60;

/// When the sessions of a service move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchPolicy {
    /// Only the operator and the server move a session.
    Manual,
    /// The rate of the output drops.
    Rate {
        /// Time from one sample to the next.
        sample: Duration,
    },
    /// Responses come late.
    Response {
        /// The longest good response time.
        limit: Duration,
    },
    /// The next data comes late.
    Delay {
        /// The longest good interval.
        limit: Duration,
        /// The largest good variation of the interval.
        jitter: Option<Duration>,
    },
    /// The link loses segments.
    Retransmissions {
        /// The largest good number of retransmissions in an interval.
        most: u32,
        /// The interval.
        sample: Duration,
    },
}

/// The configuration of a proxy, consistent in itself.
#[derive(Clone, Debug)]
pub struct ConnectSettings {
    /// Its name on this host.
    pub name: String,
    /// The directory of its lock and control socket.
    pub state_dir: PathBuf,
    /// The key that seals links. Without it, links are not sealed.
    pub key: Option<[u8; 32]>,
    /// How long a server is sought for a session that has none.
    pub patience: Duration,
    /// Its services.
    pub services: Vec<ConnectService>,
    /// The address at which metrics are served; `None` if the table is absent.
    pub metrics: Option<MetricsSettings>,
}

/// A service of a proxy.
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

/// The configuration of a server's half, consistent in itself.
#[derive(Clone, Debug)]
pub struct AcceptSettings {
    /// The server's name among the cooperating ones.
    pub name: String,
    /// The directory of its lock and control socket.
    pub state_dir: PathBuf,
    /// Address at which proxies and servers connect.
    pub listen: SocketAddr,
    /// The key that seals links. Without it, links are not sealed.
    pub key: Option<[u8; 32]>,
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
    /// The address at which metrics are served; `None` if the table is absent.
    pub metrics: Option<MetricsSettings>,
}

impl ConnectSettings {
    /// Whether the file `path` is the configuration of a proxy.
    pub fn is_in(path: &Path) -> bool {
        has_key(path, "proxied")
    }

    /// Reads and checks the file `path`.
    ///
    /// # Errors
    /// All problems in the file, or that it cannot be read.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        load(path, proxy)
    }

    /// Checks `source`, the contents of the file `path`.
    ///
    /// # Errors
    /// All problems in the text.
    pub fn parse(path: &Path, source: &str) -> Result<Self, ConfigError> {
        parse(path, source, proxy)
    }
}

impl AcceptSettings {
    /// Whether the file `path` is the configuration of a server's half.
    pub fn is_in(path: &Path) -> bool {
        has_key(path, "accept")
    }

    /// Reads and checks the file `path`.
    ///
    /// # Errors
    /// All problems in the file, or that it cannot be read.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        load(path, half)
    }

    /// Checks `source`, the contents of the file `path`.
    ///
    /// # Errors
    /// All problems in the text.
    pub fn parse(path: &Path, source: &str) -> Result<Self, ConfigError> {
        parse(path, source, half)
    }
}

fn has_key(path: &Path, key: &str) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let (document, _) = DeTable::parse_recoverable(&text);
    document.get_ref().contains_key(key)
}

/// Reads one kind of file. Returns nothing if a field could not be read, which is a problem then.
type FileReader<T> = fn(&mut ConfigReader<'_>, &DeTable<'_>) -> Option<T>;

fn load<T>(path: &Path, read: FileReader<T>) -> Result<T, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|error| ConfigError::unreadable(path, &error))?;
    parse(path, &text, read)
}

fn parse<T>(path: &Path, source: &str, read: FileReader<T>) -> Result<T, ConfigError> {
    let mut reading = ConfigReader::new(source);
    let document = parse_document(&mut reading, path, source)?;
    let settings = read(&mut reading, document.get_ref());
    reading.verdict(path)?;
    Ok(settings.expect("a field that could not be read is a problem"))
}

fn proxy(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> Option<ConnectSettings> {
    let mut table = ConfigTable::top(reading, root);
    let name = table.required("name", NAME, name);
    let state_dir = table.optional("state_dir", state_dir);
    let key = table.optional("key_file", key);
    let patience = millis(&mut table, "patience_ms", 100..=3_600_000, PATIENCE_MS);
    table.leave(&["proxied", "metrics"]);
    table.end();
    let allowed = ("proxied", 1..=usize::MAX, "one table [[proxied]] or more");
    let services = tables(reading, root, allowed, proxied);
    let metrics = metrics(reading, root);
    let name_of = |service: &Option<ConnectService>| service.as_ref().map(|one| one.name.clone());
    check_names(reading, "proxied", services.iter().map(name_of));
    let servers = services.iter().flatten().flat_map(|service| &service.servers);
    check_key(
        reading,
        key.is_some() || root.contains_key("key_file"),
        servers.copied(),
    );
    let name = name?;
    Some(ConnectSettings {
        state_dir: state_dir.unwrap_or_else(|| Path::new(STATE_ROOT).join(&name)),
        name,
        key,
        patience,
        services: services.into_iter().collect::<Option<_>>()?,
        metrics,
    })
}

fn proxied(
    reading: &mut ConfigReader<'_>,
    index: usize,
    value: &Spanned<DeValue<'_>>,
) -> Option<ConnectService> {
    let mut table = ConfigTable::begin(reading, format!("proxied[{index}]"), Some(value));
    let name = table.required("name", NAME, name);
    let at = table.required("listen", LISTEN, listen);
    let servers = table.required("servers", SERVERS, servers);
    let plain = table.optional("plain", listen);
    let transfer = table.optional("transfer", transfer).unwrap_or_default();
    let policy = policy(&mut table);
    let strikes = table.optional("strikes", integer(1..=1_000)).unwrap_or(STRIKES);
    let hold = millis(&mut table, "hold_ms", 0..=3_600_000, HOLD_MS);
    let group = table.optional("group", yes_or_no).unwrap_or(false);
    table.end();
    Some(ConnectService {
        name: name?,
        listen: at?,
        servers: servers?,
        plain,
        transfer,
        policy,
        hysteresis: HysteresisConfig {
            strikes: narrow(strikes),
            hold,
        },
        group,
    })
}

const SERVERS: &str = "an array of \"ADDRESS:PORT\" with one element or more";

fn servers(value: &DeValue<'_>) -> Result<Vec<SocketAddr>, String> {
    let servers = list(listen)(value)?;
    if servers.is_empty() {
        return Err(format!("is empty; allowed: {SERVERS}"));
    }
    Ok(servers)
}

fn transfer(value: &DeValue<'_>) -> Result<StateTransfer, String> {
    text("\"lazy\", \"eager\" or \"client\"", |name| match name {
        "lazy" => Some(StateTransfer::Lazy),
        "eager" => Some(StateTransfer::Eager),
        "client" => Some(StateTransfer::Client),
        _ => None,
    })(value)
}

/// Reads the policy and its keys. Keys of other policies have no effect.
fn policy(table: &mut ConfigTable<'_, '_>) -> WatchPolicy {
    let allowed = "\"manual\", \"rate\", \"response\", \"delay\" or \"retransmissions\"";
    let names = ["manual", "rate", "response", "delay", "retransmissions"];
    let known = |name: &str| names.into_iter().find(|known| *known == name);
    let name = table.optional("policy", text(allowed, known));
    let sample = millis(table, "sample_ms", 1..=60_000, SAMPLE_MS);
    let limit = millis(table, "limit_ms", 1..=600_000, LIMIT_MS);
    let jitter = table
        .optional("jitter_ms", integer(1..=600_000))
        .map(Duration::from_millis);
    let most = table.optional("retransmissions", integer(0..=1_000_000));
    match name.unwrap_or("manual") {
        "rate" => WatchPolicy::Rate { sample },
        "response" => WatchPolicy::Response { limit },
        "delay" => WatchPolicy::Delay { limit, jitter },
        "retransmissions" => WatchPolicy::Retransmissions {
            most: narrow(most.unwrap_or(RETRANSMISSIONS)),
            sample,
        },
        _ => WatchPolicy::Manual,
    }
}

fn half(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> Option<AcceptSettings> {
    let mut table = ConfigTable::top(reading, root);
    let own_name = table.required("name", NAME, name);
    let accept = table.required("accept", LISTEN, listen);
    let state_dir = table.optional("state_dir", state_dir);
    let key_of_links = table.optional("key_file", key);
    let certificate_key = table.required(
        "certificate_key_file",
        "the path of the key that only the servers share",
        key,
    );
    let hours = table.optional("certificate_hours", integer(1..=87_600));
    let socket = table.optional("snapshot_socket", snapshot_socket);
    let lease = millis(&mut table, "lease_ms", 100..=600_000, LEASE_MS);
    let keep = table.optional("keep_s", integer(1..=86_400)).unwrap_or(KEEP_S);
    let shed_above = table.optional("shed_above", integer(0..=1_000_000));
    table.leave(&["server", "service", "metrics"]);
    table.end();
    let one = 1..=usize::MAX;
    let servers = tables(
        reading,
        root,
        ("server", one.clone(), "one table [[server]] or more"),
        cooperating,
    );
    let services = tables(
        reading,
        root,
        ("service", one, "one table [[service]] or more"),
        accepted,
    );
    let metrics = metrics(reading, root);
    let name_of = |server: &Option<CooperatingServer>| server.as_ref().map(|one| one.name.clone());
    check_names(reading, "server", servers.iter().map(name_of));
    let name_of = |service: &Option<(String, SocketAddr)>| service.as_ref().map(|(name, _)| name.clone());
    check_names(reading, "service", services.iter().map(name_of));
    check_key(reading, root.contains_key("key_file"), accept);
    let is_listed = |name: &String| servers.iter().flatten().any(|server| server.name == *name);
    if let Some(name) = own_name
        .as_ref()
        .filter(|name| !is_listed(name) && servers.iter().all(Option::is_some))
    {
        reading.problem(
            "server",
            format!("lacks this server, {name}; allowed: all cooperating servers, the same list everywhere"),
        );
    }
    let name = own_name?;
    Some(AcceptSettings {
        state_dir: state_dir.unwrap_or_else(|| Path::new(STATE_ROOT).join(&name)),
        name,
        listen: accept?,
        key: key_of_links,
        certificate_key: certificate_key?,
        certificate_life: Duration::from_secs(3600 * hours.unwrap_or(CERTIFICATE_HOURS)),
        snapshot_socket: socket.unwrap_or_else(|| Path::new(STATE_ROOT).join("snapshots.sock")),
        lease,
        keep: Duration::from_secs(keep),
        shed_above: shed_above.map_or(usize::MAX, narrow),
        servers: servers.into_iter().collect::<Option<_>>()?,
        services: services.into_iter().collect::<Option<_>>()?,
        metrics,
    })
}

fn cooperating(
    reading: &mut ConfigReader<'_>,
    index: usize,
    value: &Spanned<DeValue<'_>>,
) -> Option<CooperatingServer> {
    let mut table = ConfigTable::begin(reading, format!("server[{index}]"), Some(value));
    let name = table.required("name", NAME, name);
    let address = table.required("address", LISTEN, listen);
    table.end();
    Some(CooperatingServer {
        name: name?,
        address: address?,
    })
}

fn accepted(
    reading: &mut ConfigReader<'_>,
    index: usize,
    value: &Spanned<DeValue<'_>>,
) -> Option<(String, SocketAddr)> {
    let mut table = ConfigTable::begin(reading, format!("service[{index}]"), Some(value));
    let name = table.required("name", NAME, name);
    let connect = table.required("connect", LISTEN, listen);
    table.end();
    Some((name?, connect?))
}

/// Reads a time in milliseconds.
fn millis(
    table: &mut ConfigTable<'_, '_>,
    key: &'static str,
    range: std::ops::RangeInclusive<u64>,
    default: u64,
) -> Duration {
    Duration::from_millis(table.optional(key, integer(range)).unwrap_or(default))
}

/// Reads the key in the file that the value names.
fn key(value: &DeValue<'_>) -> Result<[u8; 32], String> {
    let key = SecretKey::read(&arbiter::file(value)?)?;
    Ok(*key.bytes())
}

/// Without a key, only loopback addresses are allowed.
fn check_key(reading: &mut ConfigReader<'_>, has_key: bool, addresses: impl IntoIterator<Item = SocketAddr>) {
    let outside = addresses
        .into_iter()
        .find(|address| !address.ip().to_canonical().is_loopback());
    if let Some(address) = outside.filter(|_| !has_key) {
        let what = format!(
            "is missing, and {address} is no loopback address: everybody on the way could read and write; allowed: the path of the key \
             that proxies and servers share"
        );
        reading.problem("key_file", what);
    }
}

/// No two tables have the same name.
fn check_names(reading: &mut ConfigReader<'_>, key: &str, names: impl Iterator<Item = Option<String>>) {
    let mut known = std::collections::BTreeSet::new();
    for (index, name) in names.enumerate() {
        if let Some(name) = name.filter(|name| !known.insert(name.clone())) {
            reading.problem(
                &format!("{key}[{index}].name"),
                format!("{name:?} is the name of two tables; allowed: each name once"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROXY: &str =
        "name = 'p'\n[[proxied]]\nname = 'web'\nlisten = '127.0.0.1:80'\nservers = ['127.0.0.2:7443']\n";

    fn connect(text: &str) -> Result<ConnectSettings, String> {
        ConnectSettings::parse(Path::new("p.toml"), text).map_err(|error| error.to_string())
    }

    fn accept(text: &str) -> Result<AcceptSettings, String> {
        AcceptSettings::parse(Path::new("a.toml"), text).map_err(|error| error.to_string())
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
    fn faults_of_a_proxy_name_line_and_field() {
        for (text, wanted) in [
            (
                PROXY.replace("'p'", "'../p'"),
                "p.toml:1: name: is \"../p\"; allowed: 1 to 32",
            ),
            (
                PROXY.replace("name = 'p'\n", ""),
                "p.toml:1: name: is missing; allowed: 1 to 32",
            ),
            (
                PROXY.replace("127.0.0.2", "10.0.0.2"),
                "p.toml:1: key_file: is missing, and 10.0.0.2:7443 is no",
            ),
            (
                format!("{PROXY}colour = 1\n"),
                "p.toml:6: proxied[0].colour: unknown key; allowed here: name,",
            ),
            (
                format!("colour = 1\n{PROXY}"),
                "p.toml:1: colour: unknown key; allowed here: name,",
            ),
            (
                format!("{PROXY}policy = 'luck'\n"),
                "p.toml:6: proxied[0].policy: is \"luck\"; allowed: \"manual\"",
            ),
            (
                format!("{PROXY}hold_ms = 9999999\n"),
                "p.toml:6: proxied[0].hold_ms: is 9999999; allowed: an integer",
            ),
            (
                format!("{PROXY}strikes = 0\n"),
                "p.toml:6: proxied[0].strikes: is 0; allowed: an integer from 1",
            ),
            (
                PROXY.replace("['127.0.0.2:7443']", "[]"),
                "p.toml:5: proxied[0].servers: is empty; allowed: an array",
            ),
            (
                "name = 'p'\n".to_owned(),
                "p.toml:1: proxied: is missing; allowed: one table [[proxied]] or more",
            ),
            (
                format!(
                    "{PROXY}[[proxied]]\nname = 'web'\nlisten = '127.0.0.1:81'\nservers = ['127.0.0.2:7443']\n"
                ),
                "p.toml:7: proxied[1].name: \"web\" is the name of two tables; allowed: each name once",
            ),
            (format!("{PROXY}["), "p.toml:6: not TOML"),
        ] {
            let error = connect(&text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        let both = connect(&format!("{PROXY}strikes = 0\ngroup = 1\n")).unwrap_err();
        assert_eq!(both.lines().count(), 2, "{both}");
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
            line.starts_with('[')
                || name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
        };
        let line = |line: &str| format!("{}\n", line.strip_prefix('#').filter(is_setting).unwrap_or(line));
        let whole = |text: &str| text.lines().map(line).collect::<String>();
        let example = with_key(include_str!("../../../../packaging/connect.toml"));
        for text in [whole(&example), example] {
            connect(&text).unwrap();
        }
        let example = with_key(include_str!("../../../../packaging/accept.toml"));
        for text in [whole(&example), example] {
            accept(&text).unwrap();
        }
    }

    #[test]
    fn faults_of_a_server_name_line_and_field() {
        let key = key();
        let usual = format!(
            "name = 'a'\naccept = '127.0.0.1:7443'\ncertificate_key_file = {:?}\n[[server]]\nname = 'a'\naddress = '127.0.0.1:7443'\n\
             [[service]]\nname = 'web'\nconnect = '127.0.0.1:80'\n",
            key.path()
        );
        let settings = accept(&usual).unwrap();
        assert_eq!(settings.lease, Duration::from_secs(2));
        assert_eq!(settings.state_dir, Path::new(STATE_ROOT).join("a"));
        for (text, wanted) in [
            (
                usual.replace("name = 'a'\naccept", "name = 'b'\naccept"),
                "a.toml:4: server: lacks this server, b; allowed: all cooperating servers",
            ),
            (
                usual.replace("127.0.0.1:7443'\ncert", "10.0.0.1:7443'\ncert"),
                "a.toml:1: key_file: is missing, and 10.0.0.1:7443 is no loopback address",
            ),
            (
                format!("lease_ms = 1\n{usual}"),
                "a.toml:1: lease_ms: is 1; allowed: an integer from 100 to 600000",
            ),
            (
                usual.replace("certificate_key_file = ", "certificate_key_file = '/no/file' # "),
                "a.toml:3: certificate_key_file: /no/file cannot be read",
            ),
            (
                usual.replace("connect = ", "connects = "),
                "a.toml:9: service[0].connects: unknown key; allowed here: name, connect",
            ),
            (
                format!("{usual}[metrics]\nlisten = '10.0.0.1:9464'\n"),
                "a.toml:11: metrics.listen: 10.0.0.1:9464 can be reached",
            ),
        ] {
            let error = accept(&text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
