//! The configuration of an annex (`steadfast annex`), docs/annex.md.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use proto::follower::RestartPolicy;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::draft::Draft;
use super::parse::{
    INTERFACE, LISTEN, application, health, interface, listen, parse_document, policy, snapshot_socket,
    state_dir,
};
use super::table::{ADDRESS, ConfigReader, ConfigTable, NAME, address, integer, name, narrow, tables, text};
use super::{ConfigError, EtcdSettings, HealthSettings, STATE_ROOT, SecretKey, arbiter};

/// The configuration of an annex, consistent in itself.
#[derive(Clone, Debug)]
pub struct AnnexFile {
    /// `annex`: its name, as in the pair's files.
    pub name: String,
    /// `state_dir`: lock, undo journals and the keeper's socket. Default `/run/steadfast/<annex>`.
    pub state_dir: PathBuf,
    /// `listen`: where the pair's nodes connect.
    pub listen: SocketAddr,
    /// `key_file`: the pair's key.
    pub key: SecretKey,
    /// `snapshot_socket`: the Unix socket at which applications of services with policy `snapshot` export and import their state. Default
    /// `/run/steadfast/snapshots.sock`.
    pub snapshot_socket: PathBuf,
    /// `[registry]`: the etcd cluster in which the annex registers. Default: none.
    pub registry: Option<RegistrySettings>,
    /// The services.
    pub services: Vec<AnnexService>,
}

/// `[registry]`: where an annex registers, so that the pair's nodes need not name it (docs/registry.md).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrySettings {
    /// `kind`, `endpoints`, `ca`, `cert`, `key`, `user`, `password`, `cluster`, `timeout_ms`: as in `[witness]` of the pair's files.
    pub etcd: EtcdSettings,
    /// `address`: where the pair's nodes reach `listen`. Required if `listen` has no address. Default: `listen`.
    pub address: SocketAddr,
}

/// A service of an annex.
#[derive(Clone, Debug)]
pub struct AnnexService {
    /// `name`.
    pub name: String,
    /// `address` and `port`: the VIP.
    pub vip: SocketAddr,
    /// `interface`: the network interface on which the pair's nodes are.
    pub interface: String,
    /// `policy`: the restart policy, as in the pair's files. Only `snapshot` makes a difference here. Default `http`.
    pub policy: RestartPolicy,
    /// `application`: where the local application listens.
    pub application: SocketAddr,
    /// `[service.health]`: the health probe of the application. Default: none.
    pub health: Option<HealthSettings>,
}

impl AnnexFile {
    /// Whether the file `path` is the configuration of an annex.
    pub fn is_in(path: &Path) -> bool {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let (document, _) = DeTable::parse_recoverable(&text);
        document.get_ref().contains_key("annex")
    }

    /// Reads and checks the file `path`.
    ///
    /// # Errors
    /// All problems in the file, or that it cannot be read.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::unreadable(path, &error))?;
        Self::parse(path, &text)
    }

    /// Checks `source`, the contents of the file `path`.
    ///
    /// # Errors
    /// All problems in the text.
    pub fn parse(path: &Path, source: &str) -> Result<Self, ConfigError> {
        let mut reading = ConfigReader::new(source);
        let document = parse_document(&mut reading, path, source)?;
        let settings = file(&mut reading, document.get_ref());
        reading.verdict(path)?;
        Ok(settings.expect("a field that could not be read is a problem"))
    }
}

fn file(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> Option<AnnexFile> {
    let mut table = ConfigTable::top(reading, root);
    let own_name = table.required("annex", NAME, name);
    let at = table.required("listen", LISTEN, listen);
    let state_dir = table.optional("state_dir", state_dir);
    let socket = table.optional("snapshot_socket", snapshot_socket);
    let key = table.required("key_file", "the path of the pair's key", |value| {
        SecretKey::read(&arbiter::file(value)?)
    });
    table.leave(&["service", "registry"]);
    table.end();
    let registry = registry(reading, root, at);
    let place = ("service", 1..=usize::MAX, "one table [[service]] or more");
    let services = tables(reading, root, place, service);
    let services: Vec<_> = services.into_iter().collect::<Option<_>>()?;
    for (index, one) in services.iter().enumerate() {
        let is_same = |other: &AnnexService| other.vip == one.vip || other.name == one.name;
        if services[..index].iter().any(is_same) {
            let what = "has the name, or the address and port, of an earlier service";
            reading.problem(&format!("service[{index}]"), what);
        }
    }
    let name = own_name?;
    Some(AnnexFile {
        state_dir: state_dir.unwrap_or_else(|| Path::new(STATE_ROOT).join(&name)),
        name,
        listen: at?,
        key: key?,
        registry: registry?,
        snapshot_socket: socket.unwrap_or_else(|| Path::new(STATE_ROOT).join("snapshots.sock")),
        services,
    })
}

/// `None` if the table is wrong, `Some(None)` if it is absent.
fn registry(
    reading: &mut ConfigReader<'_>,
    root: &DeTable<'_>,
    listens: Option<SocketAddr>,
) -> Option<Option<RegistrySettings>> {
    let Some(value) = root.get("registry") else {
        return Some(None);
    };
    let mut table = ConfigTable::begin(reading, "registry".to_owned(), Some(value));
    let etcd = arbiter::etcd(&mut table);
    let address = table.optional("address", reached);
    let listens = listens.filter(|at| !at.ip().is_unspecified() && !at.ip().is_loopback());
    let place = address.or(listens);
    if place.is_none() && !table.has("address") {
        let what = "is missing, but listen has no address that the pair's nodes could use";
        table.problem("address", what);
    }
    table.end();
    let (etcd, address) = (etcd?, place?);
    Some(Some(RegistrySettings { etcd, address }))
}

/// Reads the address at which other machines reach a listener.
fn reached(value: &DeValue<'_>) -> Result<SocketAddr, String> {
    let at = listen(value)?;
    if at.ip().is_unspecified() || at.ip().is_loopback() {
        return Err(format!(
            "is \"{at}\", which other machines cannot reach; allowed: {LISTEN}"
        ));
    }
    Ok(at)
}

fn service(
    reading: &mut ConfigReader<'_>,
    index: usize,
    value: &Spanned<DeValue<'_>>,
) -> Option<AnnexService> {
    let mut table = ConfigTable::begin(reading, format!("service[{index}]"), Some(value));
    let name = table.required("name", NAME, name);
    let vip = table.required("address", ADDRESS, address);
    let port = table.required("port", "an integer from 1 to 65535", integer(1..=65_535));
    let interface = table.required("interface", INTERFACE, interface);
    let policy = table.optional("policy", hosted_policy);
    let application = table.optional("application", application);
    let health = table.table("health", health);
    table.end();
    let (vip, port): (IpAddr, u16) = (vip?, narrow(port?));
    Some(AnnexService {
        name: name?,
        vip: (vip, port).into(),
        interface: interface?,
        policy: policy.unwrap_or(RestartPolicy::Http),
        application: application.unwrap_or_else(|| Draft::default_application(vip, port)),
        health,
    })
}

/// A policy with which connections move to annexes.
fn hosted_policy(value: &DeValue<'_>) -> Result<RestartPolicy, String> {
    const ALLOWED: &str = "\"http\", \"replay\" or \"snapshot\"";
    match policy(value) {
        Ok(policy) if policy.moves_to_annex() => Ok(policy),
        Ok(_) | Err(_) => text(ALLOWED, |_| None)(value),
    }
}
