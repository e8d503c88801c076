//! `assume`, `[witness]`, `[fence]`: the arbiter, which says whether this node may speak beyond its lease.

use std::path::PathBuf;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::table::{ConfigReader, ConfigTable, integer, list, name, text};

const WITNESS_TIMEOUT_MS: u64 = 1_000;
const FENCE_TIMEOUT_MS: u64 = 10_000;
const CLUSTER: &str = "steadfast";
/// Maximum number of endpoints. No etcd cluster needs more members.
const ENDPOINTS_MAX: usize = 9;

/// The arbiter, which says whether this node may speak beyond its lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ArbiterSettings {
    /// `assume = "fail-stop"`, the default: a silent node counts as dead (the assumption of the CoRAL paper).
    #[default]
    FailStop,
    /// `[witness]`
    Witness(EtcdSettings),
    /// `[fence]`
    Fence(FenceSettings),
}

/// An etcd cluster: `[witness]` of a node, which gives each epoch to one node, or `[registry]` of an annex.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdSettings {
    /// `endpoints`: URLs of the cluster's members, all `https://` or all `http://`.
    pub endpoints: Vec<String>,
    /// `ca`: a PEM file with the certificates of the authorities that signed the members' certificates. Required with `https://`.
    pub ca: Option<PathBuf>,
    /// `cert`, `key`: PEM files with this node's certificate and private key, if the members require a client certificate.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// `user`, `password`: needed if etcd's own authentication is on.
    pub user: Option<(String, String)>,
    /// `cluster`: all keys are below `/<cluster>/`. Default `steadfast`.
    pub cluster: String,
    /// `timeout_ms`: 50 to 60,000 ms, default 1,000 ms. An answer that takes longer counts as no answer.
    pub timeout: Duration,
}

/// `[fence]`: a command that makes sure that the peer is off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceSettings {
    /// `command`: a program and its arguments.
    pub command: Vec<String>,
    /// `timeout_ms`: 50 to 600,000 ms, default 10,000 ms. A command that takes longer is killed, and counts as failed.
    pub timeout: Duration,
    /// `delay_ms`: how long this node waits before it runs the command, up to 600,000 ms, default 0. If both nodes live but do not hear
    /// each other, the node with the shorter delay goes on. The longer delay must exceed the time that the other node's command takes.
    pub delay: Duration,
}

impl EtcdSettings {
    /// Whether the connections to the cluster's members are encrypted. This is the same for all members.
    pub fn is_private(&self) -> bool {
        self.endpoints.iter().all(|url| url.starts_with(HTTPS))
    }
}

impl std::fmt::Debug for EtcdSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdSettings")
            .field("endpoints", &self.endpoints)
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

/// Reads `assume`, `[witness]` and `[fence]`. At most one of them may be present.
pub(super) fn arbiter(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> ArbiterSettings {
    let assume = root.get("assume");
    if let Some(value) = assume {
        let line = reading.line(value.span().start);
        reading.places.insert("assume".to_owned(), line);
        if value.get_ref().as_str() != Some("fail-stop") {
            reading.problem("assume", "allowed: \"fail-stop\"");
        }
    }
    let witness = witness(reading, root);
    let fence = fence(reading, root);
    let there = [
        ("assume", assume.is_some()),
        ("witness", witness.is_some()),
        ("fence", fence.is_some()),
    ];
    let mut there = there.into_iter().filter(|&(_, is_there)| is_there);
    if let (Some((first, _)), Some((second, _))) = (there.next(), there.next()) {
        let what = format!("cannot be together with {first}; allowed: one of assume, [witness] and [fence]");
        reading.problem(second, what);
    }
    let witness = witness.flatten().map(ArbiterSettings::Witness);
    let fence = fence.flatten().map(ArbiterSettings::Fence);
    witness.or(fence).unwrap_or_default()
}

/// `None` if the table is absent, `Some(None)` if it is wrong.
fn witness(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> Option<Option<EtcdSettings>> {
    let value = root.get("witness")?;
    let mut table = ConfigTable::begin(reading, "witness".to_owned(), Some(value));
    let witness = etcd(&mut table);
    table.end();
    Some(witness)
}

/// Reads the keys that say how to reach an etcd cluster. `None` if one is wrong.
pub(super) fn etcd(table: &mut ConfigTable<'_, '_>) -> Option<EtcdSettings> {
    let kind = table.required("kind", "\"etcd\"", |value| {
        text("\"etcd\"", |kind| (kind == "etcd").then_some(()))(value)
    });
    let endpoints = table.required("endpoints", ENDPOINTS, endpoints);
    let ca = table.optional("ca", file);
    let cert = table.optional("cert", file);
    let key = table.optional("key", file);
    let user = table.optional("user", text("a string", word));
    let password = table.optional("password", text("a string", word));
    let cluster = table.optional("cluster", name);
    let timeout = table
        .optional("timeout_ms", integer(50..=60_000))
        .unwrap_or(WITNESS_TIMEOUT_MS);
    both(table, ("cert", cert.is_some()), ("key", key.is_some()));
    both(table, ("user", user.is_some()), ("password", password.is_some()));
    let are_private = endpoints.as_ref().map(|all| all[0].starts_with(HTTPS));
    let has_files = ca.is_some() || cert.is_some();
    match are_private {
        Some(true) if ca.is_none() => {
            table.problem("ca", "is missing; allowed: a PEM file, with https:// endpoints")
        }
        Some(false) if has_files => table.problem(
            "endpoints",
            "are http://, where ca and cert have no use; allowed: https:// endpoints with ca, or http:// without ca and cert",
        ),
        _ => {}
    }
    let etcd = |endpoints| EtcdSettings {
        endpoints,
        ca,
        identity: cert.zip(key),
        user: user.zip(password),
        cluster: cluster.unwrap_or_else(|| CLUSTER.to_owned()),
        timeout: Duration::from_millis(timeout),
    };
    kind.and(endpoints).map(etcd)
}

/// Reports a problem if only one of two keys that belong together is present.
fn both(
    table: &mut ConfigTable<'_, '_>,
    (first, has_first): (&str, bool),
    (second, has_second): (&str, bool),
) {
    if has_first != has_second {
        let (missing, there) = if has_first {
            (second, first)
        } else {
            (first, second)
        };
        table.problem(missing, format!("is missing; {there} is of no use without it"));
    }
}

fn fence(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> Option<Option<FenceSettings>> {
    let value = root.get("fence")?;
    let mut table = ConfigTable::begin(reading, "fence".to_owned(), Some(value));
    let command = table.required("command", COMMAND, command);
    let timeout = table
        .optional("timeout_ms", integer(50..=600_000))
        .unwrap_or(FENCE_TIMEOUT_MS);
    let delay = table.optional("delay_ms", integer(0..=600_000)).unwrap_or(0);
    table.end();
    let [timeout, delay] = [timeout, delay].map(Duration::from_millis);
    Some(command.map(|command| FenceSettings {
        command,
        timeout,
        delay,
    }))
}

const COMMAND: &str = "an array of a program and its arguments";

/// Reads a program and its arguments.
pub(super) fn command(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let words = list(text("a string", word))(value)?;
    match words.first() {
        Some(program) if !program.is_empty() => Ok(words),
        _ => Err(format!("names no program; allowed: {COMMAND}")),
    }
}

const ENDPOINTS: &str = "an array of 1 to 9 URLs, all \"https://HOST:PORT\" or all \"http://HOST:PORT\"";
const HTTPS: &str = "https://";

fn endpoints(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let endpoints = list(text("\"https://HOST:PORT\" or \"http://HOST:PORT\"", endpoint))(value)?;
    let private = endpoints.iter().filter(|url| url.starts_with(HTTPS)).count();
    let are_alike = private == 0 || private == endpoints.len();
    if (1..=ENDPOINTS_MAX).contains(&endpoints.len()) && are_alike {
        Ok(endpoints)
    } else {
        Err(format!("has {} URLs; allowed: {ENDPOINTS}", endpoints.len()))
    }
}

fn endpoint(url: &str) -> Option<String> {
    let parsed: hyper::Uri = url.parse().ok()?;
    let has_scheme = matches!(parsed.scheme_str(), Some("http" | "https"));
    let is_plain = matches!(parsed.path(), "" | "/") && parsed.query().is_none();
    (has_scheme && is_plain && parsed.port().is_some()).then(|| url.to_owned())
}

/// Reads the path of a file.
pub(super) fn file(value: &DeValue<'_>) -> Result<PathBuf, String> {
    text("an absolute path", |path| {
        path.starts_with('/').then(|| path.into())
    })(value)
}

// `text` requires a function that returns an `Option`.
fn word(word: &str) -> Option<String> {
    Some(word.to_owned())
}
