//! Parses the text of a configuration file into a [`Config`]. Each table of the file has its own function.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::annex::ANNEXES_MAX;
use proto::follower::RestartPolicy;
use proto::order::OnDivergence;
use proto::restart::http::{Reexecute, Volatile};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::draft::Draft;
use super::table::{
    ADDRESS, ConfigReader, ConfigTable, NAME, address, expected, integer, list, name, narrow, tables, text,
    unknown,
};
use super::{
    AfterTakeover, AnnexSettings, Commit, Config, ConfigError, CutReplies, DetectorSettings, HealthSettings,
    MetricsSettings, NodeFile, NodeSettings, OpaqueSetting, PeerSettings, PeerTransport, Problem,
    RecordedOrderSettings, STATE_ROOT, ServiceSettings, StateSyncSettings, arbiter, log, relations,
};

/// The file's tables, and the only top-level key (`assume`).
const TABLES: &[&str] = &[
    "assume", "node", "peer", "witness", "fence", "detector", "log", "metrics", "service",
];

const PEER_PORT: u64 = 7400;
const ANNEX_PORT: u64 = 7402;
const LINKS_MAX: usize = 8;
const PEERS_MAX: usize = 16;

const AGENT_TIMEOUT_MS: u64 = 1_000;

/// Detection takes 20 ms × 4 = 80 ms. Together with the takeover it stays below the client's smallest retransmission timeout (200 ms).
const HEARTBEAT_MS: u64 = 20;
const MISSED: u64 = 4;

const LEASE_MS: u64 = 300;

const HEALTH_INTERVAL_MS: u64 = 1_000;
const HEALTH_TIMEOUT_MS: u64 = 1_000;
const HEALTH_FAILURES: u64 = 3;

const STATE_SYNC_TIMEOUT_MS: u64 = 10_000;
const STATE_SYNC_HOLD_MS: u64 = 500;

/// Maximum length of a Unix socket's path in bytes: the size of `sun_path`, less its final zero.
const SOCKET_PATH: usize = 107;

/// Reads the whole file of a node.
pub(super) fn config(path: &Path, source: &str) -> Result<NodeFile, ConfigError> {
    let mut reading = ConfigReader::new(source);
    let document = read_document(&mut reading, path, source, TABLES)?;
    let root = document.get_ref();
    let node = node(&mut reading, root);
    let peers = peers(&mut reading, root);
    let arbiter = arbiter::arbiter(&mut reading, root);
    let detector = detector(&mut reading, root);
    let log = log::log(&mut reading, root);
    let metrics = metrics(&mut reading, root);
    let services = services(&mut reading, root);
    let (nodes, has_witness) = ((node.as_ref(), &peers[..]), root.contains_key("witness"));
    let drafts = relations::check(&mut reading, nodes, has_witness, detector, &log, services);
    reading.verdict(path)?;

    let peers: Option<Vec<_>> = peers.into_iter().collect();
    let (Some(node), Some(peers), Some(services)) = (node, peers, drafts) else {
        unreachable!("a field that could not be read is a problem");
    };
    let is_only = peers.len() == 1;
    let pairs = peers.into_iter().enumerate().map(|(index, peer)| {
        let of_pair = |service: &(usize, ServiceSettings)| service.0 == index;
        let own: Vec<_> = (0..services.len()).filter(|&at| of_pair(&services[at])).collect();
        Config {
            node: if is_only {
                node.clone()
            } else {
                node.beside(&peer.name)
            },
            arbiter: arbiter.clone(),
            detector,
            log: log.clone(),
            metrics: metrics.filter(|_| is_only),
            services: own.iter().map(|&at| services[at].1.clone()).collect(),
            places: if is_only {
                reading.places.clone()
            } else {
                reading.places.of_pair(index, &own)
            },
            peer,
        }
    });
    Ok(NodeFile {
        pairs: pairs.collect(),
        metrics,
        state_dir: node.state_dir,
        name: node.name,
    })
}

/// Parses the file as TOML. Records top-level keys that are not in `tables` as problems.
///
/// # Errors
/// All places where the file is not TOML.
pub(super) fn read_document<'a>(
    reading: &mut ConfigReader<'_>,
    path: &Path,
    source: &'a str,
    tables: &[&str],
) -> Result<Spanned<DeTable<'a>>, ConfigError> {
    let document = parse_document(reading, path, source)?;
    for (key, _) in document.get_ref() {
        if !tables.contains(&key.get_ref().as_ref()) {
            unknown(reading, key.get_ref(), key.span().start, tables);
        }
    }
    Ok(document)
}

/// Parses the file as TOML.
///
/// # Errors
/// All places where the file is not TOML.
pub(super) fn parse_document<'a>(
    reading: &mut ConfigReader<'_>,
    path: &Path,
    source: &'a str,
) -> Result<Spanned<DeTable<'a>>, ConfigError> {
    let (document, errors) = DeTable::parse_recoverable(source);
    for error in errors {
        let line = reading.line(error.span().map_or(0, |span| span.start));
        let what = format!("not TOML: {}", error.message().trim_end());
        reading.problems.push(Problem {
            line,
            field: String::new(),
            what,
        });
    }
    reading.verdict(path)?;
    Ok(document)
}

fn node(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> Option<NodeSettings> {
    let mut table = ConfigTable::begin(reading, "node".to_owned(), root.get("node"));
    let name = table.required("name", NAME, name);
    let timeout = table
        .optional("agent_timeout_ms", integer(50..=60_000))
        .unwrap_or(AGENT_TIMEOUT_MS);
    let state_dir = table.optional("state_dir", state_dir);
    let snapshot_socket = table.optional("snapshot_socket", snapshot_socket);
    table.end();
    let name = name?;
    let state_dir = state_dir.unwrap_or_else(|| Path::new(STATE_ROOT).join(&name));
    Some(NodeSettings {
        instance: name.clone(),
        name,
        state_dir,
        agent_timeout: Duration::from_millis(timeout),
        snapshot_socket: snapshot_socket.unwrap_or_else(|| Path::new(STATE_ROOT).join("snapshots.sock")),
    })
}

/// Reads the path of a state directory. There must be room for the control socket's name behind it.
pub(super) fn state_dir(value: &DeValue<'_>) -> Result<PathBuf, String> {
    socket_path("/control.sock.new", value)
}

/// Reads the path of a socket for snapshots.
pub(super) fn snapshot_socket(value: &DeValue<'_>) -> Result<PathBuf, String> {
    socket_path(".new", value)
}

/// Reads a path that is valid for a Unix socket with `ending` behind it.
fn socket_path(ending: &str, value: &DeValue<'_>) -> Result<PathBuf, String> {
    let longest = SOCKET_PATH - ending.len();
    let allowed = format!("an absolute path of at most {longest} bytes");
    let fits = |path: &str| (path.starts_with('/') && path.len() <= longest).then(|| PathBuf::from(path));
    text(&allowed, fits)(value)
}

/// Reads `[peer]`, or the tables `[[peer]]`. Each peer whose table is wrong is `None`.
fn peers(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> Vec<Option<PeerSettings>> {
    let value = root.get("peer");
    if value.is_some_and(|value| value.get_ref().is_array()) {
        let place = ("peer", 1..=PEERS_MAX, "1 to 16 tables [[peer]]");
        return tables(reading, root, place, |reading, index, value| {
            peer(reading, format!("peer[{index}]"), Some(value))
        });
    }
    vec![peer(reading, "peer".to_owned(), value)]
}

fn peer(
    reading: &mut ConfigReader<'_>,
    place: String,
    value: Option<&Spanned<DeValue<'_>>>,
) -> Option<PeerSettings> {
    let mut table = ConfigTable::begin(reading, place, value);
    let name = table.required("name", NAME, name);
    let addresses = if table.has("addresses") {
        if table.has("address") {
            table.problem(
                "addresses",
                "cannot be together with address; allowed: one of the two",
            );
        }
        table.optional("address", address);
        table.optional("addresses", links)
    } else {
        let address = table.required("address", ADDRESS, address);
        table.optional("addresses", links);
        address.map(|address| vec![address])
    };
    let port = table.optional("port", integer(1..=65_535)).unwrap_or(PEER_PORT);
    let key_file = table.optional("key_file", arbiter::file);
    let annex_port = table
        .optional("annex_port", integer(1..=65_535))
        .unwrap_or(ANNEX_PORT);
    let transport = table.optional("transport", text("\"datagrams\" or \"sctp\"", transport));
    table.end();
    let addresses = addresses?;
    Some(PeerSettings {
        name: name?,
        address: addresses[0],
        addresses,
        port: narrow(port),
        key_file,
        transport: transport.unwrap_or_default(),
        annex_port: narrow(annex_port),
    })
}

fn transport(name: &str) -> Option<PeerTransport> {
    match name {
        "datagrams" => Some(PeerTransport::Datagrams),
        "sctp" => Some(PeerTransport::Sctp),
        _ => None,
    }
}

/// Reads the peer's addresses. No address may occur twice.
fn links(value: &DeValue<'_>) -> Result<Vec<IpAddr>, String> {
    let links = list(address)(value)?;
    let each_once = links.iter().collect::<BTreeSet<_>>().len() == links.len();
    if (1..=LINKS_MAX).contains(&links.len()) && each_once {
        Ok(links)
    } else {
        Err(format!("allowed: 1 to {LINKS_MAX} addresses, each once"))
    }
}

fn detector(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> DetectorSettings {
    let mut table = ConfigTable::begin(reading, "detector".to_owned(), root.get("detector"));
    let heartbeat = table
        .optional("heartbeat_ms", integer(1..=1_000))
        .unwrap_or(HEARTBEAT_MS);
    let missed = table.optional("missed", integer(2..=100)).unwrap_or(MISSED);
    let lease = table
        .optional("lease_ms", integer(0..=60_000))
        .unwrap_or(LEASE_MS);
    table.end();
    DetectorSettings {
        heartbeat: Duration::from_millis(heartbeat),
        missed: narrow(missed),
        lease: Duration::from_millis(lease),
    }
}

pub(super) fn metrics(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> Option<MetricsSettings> {
    let value = root.get("metrics")?;
    let mut table = ConfigTable::begin(reading, "metrics".to_owned(), Some(value));
    let listen = table.required("listen", LISTEN, listen);
    let remote = table.optional("remote", yes_or_no).unwrap_or(false);
    if let Some(listen) = listen.filter(|listen| !remote && !listen.ip().to_canonical().is_loopback()) {
        let what = format!(
            "{listen} can be reached from other hosts, and metrics are given to whoever asks; allowed: a loopback \
             address, such as 127.0.0.1:{}, or remote = true in the same table",
            listen.port()
        );
        table.problem("listen", what);
    }
    table.end();
    Some(MetricsSettings { listen: listen? })
}

pub(super) const LISTEN: &str = "\"ADDRESS:PORT\" or \"[ADDRESS]:PORT\"";

pub(super) fn listen(value: &DeValue<'_>) -> Result<SocketAddr, String> {
    let fits = |at: &SocketAddr| !at.ip().is_multicast() && at.port() != 0;
    text(LISTEN, |text| text.parse().ok().filter(fits))(value)
}

pub(super) fn yes_or_no(value: &DeValue<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| expected("true or false", value))
}

fn services(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> Vec<Draft> {
    let place = ("service", 1..=usize::MAX, "one table [[service]] or more");
    tables(reading, root, place, service)
}

fn service(reading: &mut ConfigReader<'_>, index: usize, value: &Spanned<DeValue<'_>>) -> Draft {
    let mut table = ConfigTable::begin(reading, format!("service[{index}]"), Some(value));
    let draft = Draft {
        name: table.required("name", NAME, name),
        address: table.required("address", ADDRESS, address),
        port: table
            .required("port", "an integer from 1 to 65535", integer(1..=65_535))
            .map(narrow),
        interface: table.required("interface", INTERFACE, interface),
        policy: table.required("policy", POLICIES, policy),
        peer: table.optional("peer", name),
        primary: table.required("primary", "the name of this node or of its peer", name),
        peer_address: table.optional("peer_address", address),
        application: table.optional("application", application),
        staged_application: table.optional("staged_application", application),
        volatile_headers: table.optional("volatile_headers", list(header)),
        reexecute: table.optional("reexecute", reexecute),
        cut_replies: table.optional("cut_replies", cut_replies),
        after_takeover: table.optional("after_takeover", after_takeover),
        opaque: table.optional("opaque", opaque),
        crash_exit_codes: table
            .optional("crash_exit_codes", list(integer(1..=255)))
            .map_or_else(Vec::new, |codes| codes.into_iter().map(narrow).collect()),
        commit: table.optional("commit", commit).unwrap_or(Commit::Prs),
        at_limit: table.optional("at_limit", log::at_limit),
        keep_input: table.optional("keep_input", yes_or_no),
        claim_ping: table.optional("claim_ping", list(address)).unwrap_or_default(),
        on_deposed: table
            .optional("on_deposed", list(text("a string", |word| Some(word.to_owned()))))
            .unwrap_or_default(),
        state_sync: state_sync(&mut table),
        recorded_order: recorded_order(&mut table),
        health: table.table("health", health),
        registered_annexes: table.optional("registered_annexes", yes_or_no),
        annexes: table.tables("annex", 0..=ANNEXES_MAX, annex),
    };
    table.end();
    draft
}

fn state_sync(table: &mut ConfigTable<'_, '_>) -> Option<StateSyncSettings> {
    let has_command = table.has("state_sync");
    let command = table.optional("state_sync", arbiter::command);
    let mut bound = |key: &'static str, range, default| {
        if table.has(key) && !has_command {
            table.problem(key, "is of no use without state_sync");
        }
        Duration::from_millis(table.optional(key, integer(range)).unwrap_or(default))
    };
    let timeout = bound("state_sync_timeout_ms", 100..=3_600_000, STATE_SYNC_TIMEOUT_MS);
    let hold = bound("state_sync_hold_ms", 10..=10_000, STATE_SYNC_HOLD_MS);
    command.map(|command| StateSyncSettings {
        command,
        timeout,
        hold,
    })
}

fn recorded_order(table: &mut ConfigTable<'_, '_>) -> Option<RecordedOrderSettings> {
    let has_socket = table.has("recorded_order");
    let socket = table.optional("recorded_order", snapshot_socket);
    for key in ["on_divergence", "recorded_order_user", "recorded_order_program"] {
        if table.has(key) && !has_socket {
            table.problem(key, "is of no use without recorded_order");
        }
    }
    let user = text("the name of a user", |name| {
        (!name.is_empty()).then(|| name.to_owned())
    });
    let user = table.optional("recorded_order_user", user);
    let program = text("an absolute path", |path| {
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    let program = table.optional("recorded_order_program", program);
    let on_divergence = table.optional("on_divergence", on_divergence).unwrap_or_default();
    socket.map(|socket| RecordedOrderSettings {
        socket,
        user,
        program,
        on_divergence,
    })
}

pub(super) fn health(table: &mut ConfigTable<'_, '_>) -> HealthSettings {
    let millis = |value: Option<u64>, default| Duration::from_millis(value.unwrap_or(default));
    let words = || text("a string", |word| Some(word.to_owned()));
    HealthSettings {
        interval: millis(
            table.optional("interval_ms", integer(10..=60_000)),
            HEALTH_INTERVAL_MS,
        ),
        timeout: millis(
            table.optional("timeout_ms", integer(1..=60_000)),
            HEALTH_TIMEOUT_MS,
        ),
        failures: narrow(
            table
                .optional("failures", integer(1..=100))
                .unwrap_or(HEALTH_FAILURES),
        ),
        send: table.optional("send", words()).unwrap_or_default(),
        expect: table.optional("expect", words()).unwrap_or_default(),
    }
}

fn annex(table: &mut ConfigTable<'_, '_>) -> Option<AnnexSettings> {
    let name = table.required("name", NAME, name);
    let address = table.required("address", LISTEN, listen);
    Some(AnnexSettings {
        name: name?,
        address: address?,
    })
}

pub(super) const INTERFACE: &str = "the name of a network interface, 1 to 15 characters, not lo";

pub(super) fn interface(value: &DeValue<'_>) -> Result<String, String> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == ':';
    let fits = |name: &str| {
        (1..=15).contains(&name.len()) && !name.contains(odd) && !["lo", ".", ".."].contains(&name)
    };
    text(INTERFACE, |name| fits(name).then(|| name.to_owned()))(value)
}

const POLICIES: &str = "\"http\", \"replica\", \"replay\" or \"snapshot\"";

pub(super) fn policy(value: &DeValue<'_>) -> Result<RestartPolicy, String> {
    match value.as_str() {
        Some("http") => Ok(RestartPolicy::Http),
        Some("replica") => Ok(RestartPolicy::Replica),
        Some("replay") => Ok(RestartPolicy::Replay),
        Some("snapshot") => Ok(RestartPolicy::Snapshot),
        _ => text(POLICIES, |_| None)(value),
    }
}

fn commit(value: &DeValue<'_>) -> Result<Commit, String> {
    match value.as_str() {
        Some("prs") => Ok(Commit::Prs),
        Some("pr") => Ok(Commit::Pr),
        Some("immediate") => Ok(Commit::Immediate),
        _ => text("\"prs\", \"pr\", \"immediate\"", |_| None)(value),
    }
}

pub(super) fn application(value: &DeValue<'_>) -> Result<SocketAddr, String> {
    let fits = |at: &SocketAddr| !at.ip().is_unspecified() && !at.ip().is_multicast() && at.port() != 0;
    let allowed = "\"ADDRESS:PORT\" or \"[ADDRESS]:PORT\" with an address of this node";
    text(allowed, |text| text.parse().ok().filter(fits))(value)
}

fn reexecute(value: &DeValue<'_>) -> Result<Reexecute, String> {
    let rule = "\"safe\", \"idempotent\", \"all\" or an array of methods and \"Idempotency-Key\"";
    let element = "a method of RFC 9110 or 5789 but CONNECT, in capitals, or \"Idempotency-Key\"";
    match value {
        DeValue::Array(_) => {
            let fits = |name: &str| Reexecute::of([name]).is_ok().then(|| name.to_owned());
            let names = list(text(element, fits))(value)?;
            Reexecute::of(names.iter().map(String::as_str)).map_err(str::to_owned)
        }
        _ => text(rule, |name| match name {
            "safe" => Some(Reexecute::SAFE),
            "idempotent" => Some(Reexecute::IDEMPOTENT),
            "all" => Some(Reexecute::ALL),
            _ => None,
        })(value),
    }
}

fn cut_replies(value: &DeValue<'_>) -> Result<CutReplies, String> {
    text("\"rest\" or \"whole\"", |name| match name {
        "rest" => Some(CutReplies::Rest),
        "whole" => Some(CutReplies::Whole),
        _ => None,
    })(value)
}

fn on_divergence(value: &DeValue<'_>) -> Result<OnDivergence, String> {
    text("\"unprotect\" or \"trust-log\"", |name| match name {
        "unprotect" => Some(OnDivergence::Unprotect),
        "trust-log" => Some(OnDivergence::TrustLog),
        _ => None,
    })(value)
}

fn after_takeover(value: &DeValue<'_>) -> Result<AfterTakeover, String> {
    text("\"keep\" or \"close\"", |name| match name {
        "keep" => Some(AfterTakeover::Keep),
        "close" => Some(AfterTakeover::Close),
        _ => None,
    })(value)
}

fn opaque(value: &DeValue<'_>) -> Result<OpaqueSetting, String> {
    text("\"unprotected\" or \"replica\"", |name| match name {
        "unprotected" => Some(OpaqueSetting::Unprotected),
        "replica" => Some(OpaqueSetting::Replica),
        _ => None,
    })(value)
}

fn header(value: &DeValue<'_>) -> Result<String, String> {
    // RFC 9110 section 5.6.2: token
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let fits = |name: &str| !name.is_empty() && name.chars().all(token) && Volatile::with([name]).is_ok();
    text(
        "the name of an HTTP header that neither frames nor identifies the reply",
        |name| fits(name).then(|| name.to_ascii_lowercase()),
    )(value)
}
