//! The configuration of an edge (`docs/edge.md`).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::edge::cache::{CachePolicy, SecondPacket};
use proto::edge::switch::CapConfig;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::parse::{INTERFACE, interface, metrics, read_document, state_dir, yes_or_no};
use super::table::{
    ADDRESS, ConfigReader, ConfigTable, NAME, address, expected, integer, list, name, narrow, tables, text,
};
use super::{ConfigError, MetricsSettings, Places, STATE_ROOT, arbiter};

/// The file's tables.
const TABLES: &[&str] = &[
    "edge",
    "outside",
    "inside",
    "string",
    "heartbeat",
    "failover",
    "recovery",
    "rate",
    "metrics",
];
/// Number of strings of an edge.
const STRINGS: std::ops::RangeInclusive<usize> = 2..=8;

const AGENT_TIMEOUT_MS: u64 = 1_000;
const PORT: u64 = 7_401;
/// Three heartbeats fit into the thesis' shortest failover, 50 ms.
const HEARTBEAT_MS: u64 = 10;
const SUSPECT_AFTER: u64 = 2;
const FAILED_AFTER: u64 = 3;
/// Packets are always cached: a failover may be over before the second missing heartbeat (`docs/edge.md`).
const CACHING_AFTER: u64 = 0;
const MAX_MB: u64 = 64;
const MAX_PACKETS: u64 = 200_000;
/// Default limit of what policy `all` caches of one connection. The receive window of most connections is smaller.
const MAX_CONNECTION_KB: u64 = 1024;
const MAX_CONNECTIONS: u64 = 262_144;
/// ρ of the rate control (`docs/rate-control.md`).
const UTILIZATION: f64 = 0.97;
/// w of the rate control.
const WEIGHT: f64 = 1.0;
/// Two segments of 1460 bytes, rounded up to a multiple of 128. So rounding down by the usual window scale (7) leaves at least two
/// segments.
const MIN_WINDOW: u64 = 2_944;

/// An edge's configuration, consistent in itself.
#[derive(Clone, Debug)]
pub struct EdgeSettings {
    /// The edge's name.
    pub name: String,
    /// The name of the edge on the other side of the cluster.
    pub peer: String,
    /// The file with the key that both edges share.
    pub key_file: PathBuf,
    /// The directory of the edge's lock and control socket.
    pub state_dir: PathBuf,
    /// If the agent has been away for longer than this, a held string counts as down, and no window is capped.
    pub agent_timeout: Duration,
    /// Number of flows for which the table has room.
    pub max_connections: u32,
    /// The port away from the cluster.
    pub outside: PortSettings,
    /// The VLAN of the clients' frames at the outside port; `None`: frames without a tag.
    pub outside_vlan: Option<u16>,
    /// Destinations behind the outside port. Empty: all destinations that are not inside.
    pub outside_subnets: Vec<Subnet>,
    /// Destinations behind the other edge. Empty: all destinations that are not outside.
    pub inside_subnets: Vec<Subnet>,
    /// The strings.
    pub strings: Vec<StringSettings>,
    /// Detection.
    pub heartbeat: HeartbeatSettings,
    /// Shortest time from the declaration of a failure until flows move.
    pub failover_delay: Duration,
    /// Command that must succeed before flows move; empty: none.
    pub failover_command: Vec<String>,
    /// Local recovery, if it is on.
    pub recovery: Option<CacheSettings>,
    /// Rate control, if it is on.
    pub rate: Option<CapConfig>,
    /// The address at which metrics are served; `None` if the table is absent.
    pub metrics: Option<MetricsSettings>,
    /// The line of each field.
    pub places: Places,
}

/// A port of the switch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortSettings {
    /// The network interface.
    pub interface: String,
}

/// A string.
#[derive(Clone, Debug)]
pub struct StringSettings {
    /// Its name, the same at both edges.
    pub name: String,
    /// The port.
    pub port: PortSettings,
    /// This edge's address on the string.
    pub address: IpAddr,
    /// The other edge's address on the string.
    pub peer_address: IpAddr,
    /// The string's node for IPv4 packets: the next hop.
    pub next_hop_v4: Option<std::net::Ipv4Addr>,
    /// The string's node for IPv6 packets: the next hop.
    pub next_hop_v6: Option<std::net::Ipv6Addr>,
    /// Its rate in each direction, in Mbit/s.
    pub mbit: f64,
    /// Its share of new flows; 0: standby.
    pub weight: f64,
}

/// How failures are detected.
#[derive(Clone, Copy, Debug)]
pub struct HeartbeatSettings {
    /// Time between two heartbeats.
    pub interval: Duration,
    /// Number of missing heartbeats after which a string is suspected.
    pub suspect_after: u32,
    /// Number of missing heartbeats after which a string has failed.
    pub failed_after: u32,
    /// UDP port.
    pub port: u16,
}

/// Policy and bounds of the cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheSettings {
    /// The packets that are cached.
    pub policy: CachePolicy,
    /// The packet that is cached of a connection in addition to its lowest packet.
    pub second: SecondPacket,
    /// Whether packets are cached even while no string is suspected.
    pub is_always: bool,
    /// Limit of the bytes of cached packets, of all strings together.
    pub max_bytes: usize,
    /// Limit of the number of cached packets, of all strings together.
    pub max_packets: usize,
    /// Limit of the bytes of one connection's cached packets. The lowest packet alone may be larger.
    pub max_connection_bytes: usize,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// The first address.
    pub address: IpAddr,
    /// Number of leading bits that all its addresses share.
    pub prefix: u8,
}

/// The IPv4-mapped IPv6 addresses (RFC 4291 section 2.5.5.2).
const MAPPED: Subnet = Subnet {
    address: IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0)),
    prefix: 96,
};

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Subnet {
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let (address, prefix) = (address.parse::<IpAddr>().ok()?, prefix.parse().ok()?);
        let subnet = Self { address, prefix };
        let bits = if address.is_ipv4() { 32 } else { 128 };
        // The data path has IPv4 addresses as IPv4-mapped IPv6 addresses, so a subnet of these would be a subnet of IPv4 as well.
        let is_mapped = subnet.overlaps(&MAPPED);
        (prefix <= bits && subnet.bits(bits.into()) == subnet.bits(u32::from(prefix)) && !is_mapped)
            .then_some(subnet)
    }

    /// The first `count` bits of the subnet's address, at the top of the number. The other bits are zero.
    fn bits(&self, count: u32) -> u128 {
        let number = match self.address {
            IpAddr::V4(v4) => u128::from(u32::from(v4)) << 96,
            IpAddr::V6(v6) => u128::from(v6),
        };
        let mask = u128::MAX.checked_shl(128 - count).unwrap_or(0);
        number & mask
    }

    /// Whether some address is in both subnets.
    pub fn overlaps(&self, other: &Self) -> bool {
        let common = u32::from(self.prefix.min(other.prefix));
        self.address.is_ipv4() == other.address.is_ipv4() && self.bits(common) == other.bits(common)
    }
}

impl EdgeSettings {
    /// All ports: the outside port, then the ports of the strings.
    pub fn ports(&self) -> impl Iterator<Item = &PortSettings> {
        std::iter::once(&self.outside).chain(self.strings.iter().map(|string| &string.port))
    }

    /// Whether the file `path` is the configuration of an edge, and not of a node.
    pub fn is_in(path: &Path) -> bool {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let (document, _) = DeTable::parse_recoverable(&text);
        document.get_ref().contains_key("edge")
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
        let document = read_document(&mut reading, path, source, TABLES)?;
        let settings = settings(&mut reading, document.get_ref());
        reading.verdict(path)?;
        Ok(settings.expect("a field that could not be read is a problem"))
    }
}

fn settings(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> Option<EdgeSettings> {
    let own = own(reading, root);
    let outside = outside(reading, root);
    let inside_subnets = inside(reading, root);
    let strings = strings(reading, root);
    let heartbeat = heartbeat(reading, root);
    let (failover_delay, failover_command) = failover(reading, root);
    let recovery = recovery(reading, root, heartbeat);
    let rate = rate(reading, root);
    let metrics = metrics(reading, root);
    check_strings(reading, outside.as_ref().map(|(port, ..)| port), &strings);
    let outside_subnets = outside.as_ref().map_or(&[][..], |(.., subnets)| subnets);
    check_subnets(reading, outside_subnets, &inside_subnets);
    let own = own?;
    let (outside, outside_vlan, outside_subnets) = outside?;
    Some(EdgeSettings {
        name: own.name,
        peer: own.peer,
        key_file: own.key_file,
        state_dir: own.state_dir,
        agent_timeout: own.agent_timeout,
        max_connections: own.max_connections,
        outside,
        outside_vlan,
        outside_subnets,
        inside_subnets,
        strings: strings.into_iter().collect::<Option<_>>()?,
        heartbeat,
        failover_delay,
        failover_command,
        recovery,
        rate,
        metrics,
        places: std::mem::take(&mut reading.places),
    })
}

/// The table `[edge]`.
struct OwnTable {
    name: String,
    peer: String,
    key_file: PathBuf,
    state_dir: PathBuf,
    agent_timeout: Duration,
    max_connections: u32,
}

fn own(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> Option<OwnTable> {
    let mut table = ConfigTable::begin(reading, "edge".to_owned(), root.get("edge"));
    let own_name = table.required("name", NAME, name);
    let peer = table.required("peer", NAME, name);
    if own_name.is_some() && own_name == peer {
        table.problem("peer", "is this edge itself; allowed: the name of the other edge");
    }
    let key_file = table.required(
        "key_file",
        "the path of the key that both edges share",
        arbiter::file,
    );
    let state_dir = table.optional("state_dir", state_dir);
    let timeout = table.optional("agent_timeout_ms", integer(50..=60_000));
    let connections = table.optional("max_connections", integer(1_024..=16_777_216));
    table.end();
    let name = own_name?;
    Some(OwnTable {
        state_dir: state_dir.unwrap_or_else(|| Path::new(STATE_ROOT).join(&name)),
        name,
        peer: peer?,
        key_file: key_file?,
        agent_timeout: Duration::from_millis(timeout.unwrap_or(AGENT_TIMEOUT_MS)),
        max_connections: narrow(connections.unwrap_or(MAX_CONNECTIONS)),
    })
}

/// The port, its VLAN, and its subnets.
type OutsideTable = (PortSettings, Option<u16>, Vec<Subnet>);

fn outside(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> Option<OutsideTable> {
    let mut table = ConfigTable::begin(reading, "outside".to_owned(), root.get("outside"));
    let port = port(&mut table);
    let vlan = table.optional("vlan", integer(1..=4_094)).map(narrow);
    let subnets = table.optional("subnets", list(subnet)).unwrap_or_default();
    table.end();
    Some((port?, vlan, subnets))
}

fn inside(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> Vec<Subnet> {
    let mut table = ConfigTable::begin(reading, "inside".to_owned(), root.get("inside"));
    let subnets = table.optional("subnets", list(subnet)).unwrap_or_default();
    table.end();
    subnets
}

fn subnet(value: &DeValue<'_>) -> Result<Subnet, String> {
    text(
        "\"ADDRESS/PREFIX\" whose bits after the prefix are zero, and which contains no IPv4-mapped IPv6 address (::ffff:0:0/96)",
        Subnet::parse,
    )(value)
}

fn port(table: &mut ConfigTable<'_, '_>) -> Option<PortSettings> {
    let interface = table.required("interface", INTERFACE, interface);
    Some(PortSettings {
        interface: interface?,
    })
}

fn strings(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> Vec<Option<StringSettings>> {
    tables(
        reading,
        root,
        ("string", STRINGS, "2 to 8 tables [[string]]"),
        string,
    )
}

fn string(
    reading: &mut ConfigReader<'_>,
    index: usize,
    value: &Spanned<DeValue<'_>>,
) -> Option<StringSettings> {
    let mut table = ConfigTable::begin(reading, format!("string[{index}]"), Some(value));
    let name = table.required("name", NAME, name);
    let port = port(&mut table);
    let own = table.required("address", ADDRESS, address);
    let peer = table.required("peer_address", ADDRESS, address);
    if let (Some(own), Some(peer)) = (own, peer)
        && (own.is_ipv4() != peer.is_ipv4() || own == peer)
    {
        table.problem(
            "peer_address",
            "allowed: another address of the same family as address",
        );
    }
    let v4 = table.optional("next_hop", text("an IPv4 address", |text| text.parse().ok()));
    let v6 = table.optional("next_hop6", text("an IPv6 address", |text| text.parse().ok()));
    let (missing, family) = match own {
        Some(IpAddr::V6(_)) => (v6.is_none(), "next_hop6"),
        _ => (v4.is_none(), "next_hop"),
    };
    if missing && !table.has(family) {
        table.problem(
            family,
            "is missing; allowed: the address of the string's node, as this edge sees it",
        );
    }
    let mbit = table.required("mbit", "a number of Mbit/s from 0.001", number(0.001..=1e7));
    let weight = table.optional("weight", number(0.0..=1e6)).unwrap_or(1.0);
    table.end();
    Some(StringSettings {
        name: name?,
        port: port?,
        address: own?,
        peer_address: peer?,
        next_hop_v4: v4,
        next_hop_v6: v6,
        mbit: mbit?,
        weight,
    })
}

/// Reads an integer or a decimal number within `range`.
fn number(range: std::ops::RangeInclusive<f64>) -> impl Fn(&DeValue<'_>) -> Result<f64, String> {
    let allowed = format!("a number up to {}", range.end());
    move |value| {
        let number = match value {
            DeValue::Integer(integer) => {
                let whole = u32::from_str_radix(integer.as_str(), integer.radix());
                whole.ok().map(f64::from)
            }
            DeValue::Float(float) => float.as_str().replace('_', "").parse().ok(),
            other => return Err(expected(&allowed, other)),
        };
        number
            .filter(|number| range.contains(number))
            .ok_or_else(|| format!("is out of range; allowed: {allowed}, at least {}", range.start()))
    }
}

fn heartbeat(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> HeartbeatSettings {
    let mut table = ConfigTable::begin(reading, "heartbeat".to_owned(), root.get("heartbeat"));
    let interval = table.optional("interval_ms", integer(1..=10_000));
    let suspect = table.optional("suspect_after", integer(1..=100));
    let failed = table
        .optional("failed_after", integer(2..=100))
        .unwrap_or(FAILED_AFTER);
    let suspect = suspect.unwrap_or(SUSPECT_AFTER);
    if suspect >= failed {
        table.problem(
            "suspect_after",
            format!("is {suspect}; allowed: less than failed_after, which is {failed}"),
        );
    }
    let port = table.optional("port", integer(1..=65_535)).unwrap_or(PORT);
    table.end();
    HeartbeatSettings {
        interval: Duration::from_millis(interval.unwrap_or(HEARTBEAT_MS)),
        suspect_after: narrow(suspect),
        failed_after: narrow(failed),
        port: narrow(port),
    }
}

fn failover(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> (Duration, Vec<String>) {
    let mut table = ConfigTable::begin(reading, "failover".to_owned(), root.get("failover"));
    let delay = table.optional("delay_ms", integer(0..=600_000)).unwrap_or(0);
    let command = table.optional("command", arbiter::command).unwrap_or_default();
    table.end();
    (Duration::from_millis(delay), command)
}

const SECOND_PACKETS: &str = "\"newest\" or \"acknowledgement\"";
const POLICIES: &str = "\"syn\", \"lowest\", \"all\" or \"none\"";

fn recovery(
    reading: &mut ConfigReader<'_>,
    root: &DeTable<'_>,
    heartbeat: HeartbeatSettings,
) -> Option<CacheSettings> {
    let mut table = ConfigTable::begin(reading, "recovery".to_owned(), root.get("recovery"));
    let policy = text(POLICIES, |name| match name {
        "syn" => Some(Some(CachePolicy::Syn)),
        "lowest" => Some(Some(CachePolicy::Lowest)),
        "all" => Some(Some(CachePolicy::All)),
        "none" => Some(None),
        _ => None,
    });
    let policy = table
        .optional("policy", policy)
        .unwrap_or(Some(CachePolicy::Lowest));
    let second = text(SECOND_PACKETS, |name| match name {
        "newest" => Some(SecondPacket::Newest),
        "acknowledgement" => Some(SecondPacket::Acknowledgement),
        _ => None,
    });
    let second = table.optional("second", second).unwrap_or_default();
    let suspect = u64::from(heartbeat.suspect_after);
    let after = table
        .optional("caching_after", integer(0..=100))
        .unwrap_or(CACHING_AFTER);
    if after != 0 && after != suspect {
        table.problem(
            "caching_after",
            format!("is {after}; allowed: 0 (always), or heartbeat.suspect_after, which is {suspect}"),
        );
    }
    let megabytes = table.optional("max_mb", integer(1..=65_536)).unwrap_or(MAX_MB);
    let packets = table.optional("max_packets", integer(1..=100_000_000));
    let connection = table.optional("max_connection_kb", integer(1..=1_048_576));
    table.end();
    Some(CacheSettings {
        policy: policy?,
        second,
        is_always: after == 0,
        max_bytes: narrow(megabytes << 20),
        max_packets: narrow(packets.unwrap_or(MAX_PACKETS)),
        max_connection_bytes: narrow(connection.unwrap_or(MAX_CONNECTION_KB) << 10),
    })
}

fn rate(reading: &mut ConfigReader<'_>, root: &DeTable<'_>) -> Option<CapConfig> {
    let mut table = ConfigTable::begin(reading, "rate".to_owned(), root.get("rate"));
    let is_enabled = table.optional("enabled", yes_or_no).unwrap_or(true);
    let rtt = table.optional("rtt_ms", number(0.01..=60_000.0));
    let utilization = table.optional("utilization", number(0.1..=1.0));
    let window = table.optional("min_window", integer(1..=1_073_741_824));
    table.end();
    is_enabled.then(|| CapConfig {
        utilization: utilization.unwrap_or(UTILIZATION),
        weight: WEIGHT,
        round_trip: rtt.map(|ms| Duration::from_secs_f64(ms / 1e3)),
        min_window: narrow(window.unwrap_or(MIN_WINDOW)),
    })
}

fn check_strings(
    reading: &mut ConfigReader<'_>,
    outside: Option<&PortSettings>,
    strings: &[Option<StringSettings>],
) {
    let mut names = BTreeSet::new();
    let mut ports: BTreeSet<_> = outside.into_iter().collect();
    let mut addresses = BTreeSet::new();
    for (index, string) in strings.iter().enumerate() {
        let Some(string) = string else { continue };
        if !names.insert(&string.name) {
            let what = format!("is {:?} again; allowed: a name of its own", string.name);
            reading.problem(&format!("string[{index}].name"), what);
        }
        if !ports.insert(&string.port) {
            let what = format!(
                "{} is another port already; allowed: a port of its own",
                string.port.interface
            );
            reading.problem(&format!("string[{index}].interface"), what);
        }
        for (field, address) in [("address", string.address), ("peer_address", string.peer_address)] {
            if !addresses.insert(address) {
                let what = format!("is {address} again; allowed: an address of its own");
                reading.problem(&format!("string[{index}].{field}"), what);
            }
        }
    }
}

fn check_subnets(reading: &mut ConfigReader<'_>, outside: &[Subnet], inside: &[Subnet]) {
    if outside.is_empty() && inside.is_empty() {
        let what = "is missing; allowed: the subnets behind the other edge. Or name those behind the outside port in outside.subnets";
        reading.problem("inside.subnets", what);
    }
    let all: Vec<_> = outside
        .iter()
        .map(|subnet| ("outside.subnets", subnet))
        .chain(inside.iter().map(|subnet| ("inside.subnets", subnet)))
        .collect();
    for (index, (field, subnet)) in all.iter().enumerate() {
        for (other_field, other) in &all[..index] {
            if subnet.overlaps(other) {
                let what = format!(
                    "{subnet} overlaps {other} of {other_field}; allowed: subnets that do not overlap"
                );
                reading.problem(field, what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[edge]
name = "r1"
peer = "r2"
key_file = "/etc/steadfast/edge.key"

[outside]
interface = "eth0"

[inside]
subnets = ["10.2.0.0/16", "fd00:2::/48"]

[[string]]
name = "a"
interface = "eth1"
address = "10.11.0.1"
peer_address = "10.21.0.1"
next_hop = "10.11.0.2"
mbit = 100

[[string]]
name = "b"
interface = "eth2"
address = "10.12.0.1"
peer_address = "10.22.0.1"
next_hop = "10.12.0.2"
next_hop6 = "fd00:12::2"
mbit = 33.5
weight = 0
"#;

    /// A text in [`GOOD`], its replacement, and the expected error.
    const PROBLEMS: &[(&str, &str, &str)] = &[
        (
            "fd00:2::/48",
            "10.2.3.0/24",
            "e.toml:11: inside.subnets: 10.2.3.0/24 overlaps 10.2.0.0/16",
        ),
        (
            "interface = \"eth0\"",
            "interface = \"eth0\"\nsubnets = [\"10.2.128.0/17\"]",
            "e.toml:12: inside.subnets: 10.2.0.0/16 overlaps 10.2.128.0/17 of outside.subnets",
        ),
        (
            "fd00:2::/48",
            "::ffff:10.2.0.0/112",
            "e.toml:11: inside.subnets: element 1 is \"::ffff:10.2.0.0/112\"; allowed: \"ADDRESS/PREFIX\"",
        ),
        (
            "fd00:2::/48",
            "::/0",
            "e.toml:11: inside.subnets: element 1 is \"::/0\"; allowed: \"ADDRESS/PREFIX\"",
        ),
        (
            "10.2.0.0/16",
            "10.2.0.1/16",
            "e.toml:11: inside.subnets: element 0 is \"10.2.0.1/16\"",
        ),
        (
            "subnets = [\"10.2.0.0/16\", \"fd00:2::/48\"]",
            "",
            "e.toml:10: inside.subnets: is missing",
        ),
        (
            "interface = \"eth2\"",
            "interface = \"eth1\"",
            "e.toml:23: string[1].interface: eth1 is another port",
        ),
        (
            "name = \"b\"",
            "name = \"a\"",
            "e.toml:22: string[1].name: is \"a\" again",
        ),
        (
            "key_file = \"/etc/steadfast/edge.key\"\n",
            "",
            "e.toml:2: edge.key_file: is missing",
        ),
        (
            "next_hop = \"10.11.0.2\"\n",
            "",
            "e.toml:13: string[0].next_hop: is missing",
        ),
        (
            "mbit = 100",
            "mbit = 0",
            "e.toml:19: string[0].mbit: is out of range",
        ),
        (
            "mbit = 100",
            "mbit = 1e-300",
            "e.toml:19: string[0].mbit: is out of range",
        ),
        (
            "mbit = 100",
            "mbit = \"fast\"",
            "e.toml:19: string[0].mbit: is of type string",
        ),
        (
            "interface = \"eth0\"",
            "interface = \"eth0\"\nvlan = 4095",
            "e.toml:9: outside.vlan: is 4095",
        ),
        (
            "interface = \"eth2\"",
            "interface = \"eth2\"\nvlan = 7",
            "e.toml:24: string[1].vlan: unknown key",
        ),
        (
            "peer = \"r2\"",
            "peer = \"r1\"",
            "e.toml:4: edge.peer: is this edge itself",
        ),
        (
            "[inside]",
            "[rate]\nspeed = 1\n[inside]",
            "e.toml:11: rate.speed: unknown key",
        ),
        (
            "[inside]",
            "[recovery]\ncaching_after = 3\n[inside]",
            "e.toml:11: recovery.caching_after: is 3",
        ),
        (
            "[inside]",
            "[recovery]\nsecond = \"oldest\"\n[inside]",
            "e.toml:11: recovery.second: is \"oldest\"",
        ),
        (
            "[inside]",
            "[heartbeat]\nsuspect_after = 3\n[inside]",
            "e.toml:11: heartbeat.suspect_after: is 3",
        ),
        (
            "10.21.0.1",
            "10.11.0.1",
            "e.toml:17: string[0].peer_address: allowed: another address",
        ),
        (
            "[inside]",
            "[metrics]\nlisten = \"0.0.0.0:9465\"\n[inside]",
            "e.toml:11: metrics.listen: 0.0.0.0:9465 can be reached from other hosts",
        ),
    ];

    fn parse(text: &str) -> Result<EdgeSettings, String> {
        EdgeSettings::parse(Path::new("e.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_short_file_is_enough() {
        let settings = parse(GOOD).unwrap();
        assert_eq!(settings.state_dir, Path::new("/run/steadfast/r1"));
        assert_eq!(settings.heartbeat.interval, Duration::from_millis(10));
        assert!(settings.recovery.unwrap().is_always);
        let late = format!("{GOOD}[recovery]\ncaching_after = 2\n");
        assert!(!parse(&late).unwrap().recovery.unwrap().is_always);
        assert_eq!(settings.outside_vlan, None);
        let tagged = GOOD.replace("interface = \"eth0\"", "interface = \"eth0\"\nvlan = 7");
        assert_eq!(parse(&tagged).unwrap().outside_vlan, Some(7));
        assert!((settings.strings[1].mbit - 33.5).abs() < 1e-9);
        assert!(settings.rate.is_some());
        assert_eq!(settings.metrics, None);
        let listen = "127.0.0.1:9465".parse().unwrap();
        let text = format!("{GOOD}[metrics]\nlisten = \"{listen}\"\n");
        assert_eq!(parse(&text).unwrap().metrics, Some(MetricsSettings { listen }));
    }

    #[test]
    fn the_example_has_the_defaults() {
        let example = include_str!("../../../../packaging/edge.toml");
        let settings = parse(example).unwrap();
        // The example with its commented-out keys, which have their default values.
        let is_key = |line: &&str| line.starts_with("# ") && line.contains(" = ") || line.starts_with("# [");
        let whole: String = example
            .lines()
            .map(|line| if is_key(&line) { &line[2..] } else { line })
            .filter(|line| !line.starts_with("command") && !line.starts_with("vlan"))
            .map(|line| format!("{line}\n"))
            .collect();
        let mut written = parse(&whole).unwrap();
        written.places = settings.places.clone();
        written.rate = written.rate.map(|cap| CapConfig {
            round_trip: None,
            ..cap
        });
        written.strings[0].next_hop_v6 = None;
        assert!(written.metrics.take().is_some());
        assert_eq!(format!("{written:?}"), format!("{settings:?}"));
    }

    #[test]
    fn each_problem_is_named_with_file_line_and_field() {
        for (good, bad, expected) in PROBLEMS {
            assert!(GOOD.contains(good), "{good}");
            let error = parse(&GOOD.replacen(good, bad, 1)).unwrap_err();
            assert!(error.contains(expected), "{bad:?}\n{error}");
        }
        let one = GOOD.split("[[string]]\nname = \"b\"").next().unwrap();
        assert!(
            parse(one)
                .unwrap_err()
                .contains("string: there are 1; allowed: 2 to 8")
        );
    }
}
