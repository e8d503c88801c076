//! The operator's configuration, checked once and turned into types.
//!
//! The file is TOML and strict: an unknown key is an error. One reading reports all problems, each with file, line, field, what is wrong
//! and what is allowed. A [`Config`] that exists is consistent in itself; [`crate::environment`] checks whether this machine and its
//! network agree with it.

mod arbiter;
mod key;
mod log;
mod parse;
mod places;
mod problem;
mod relations;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::restart::http::{Reexecute, Volatile};
use serde::{Deserialize, Serialize};

pub use arbiter::{Arbiter, Fence, Witness};
pub use key::{Key, private};
pub use places::Places;
pub use problem::{ConfigError, Problem};

/// Where a node keeps its state unless `[node] state_dir` says otherwise: `/run/steadfast/<node>`.
pub const STATE_ROOT: &str = "/run/steadfast";

/// A node's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This node.
    pub node: Node,
    /// The other node of the pair.
    pub peer: Peer,
    /// The arbiter, which says whether this node may speak beyond its lease.
    pub arbiter: Arbiter,
    /// When the peer is declared dead.
    pub detector: Detector,
    /// Limits of the log.
    pub log: Log,
    /// Where metrics are served; nowhere if the table is absent.
    pub metrics: Option<Metrics>,
    /// The protected services; at least one.
    pub services: Vec<Service>,
    /// The line of each field in the file, for problems that are found later.
    pub places: Places,
}

/// `[node]`: this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// `name`: 1 to 32 letters, digits, `-` and `_`, beginning with a letter; it also names the node's nftables
    /// table and its directory of eBPF pins.
    pub name: String,
    /// `state_dir`: lock, control socket and undo journal. Default `/run/steadfast/<name>`.
    pub state_dir: PathBuf,
    /// `agent_timeout_ms`: how long this node's agent may be away (crash, upgrade) before the peer treats the node
    /// as dead, 50 to 60,000 ms. Default 1,000 ms.
    pub agent_timeout: Duration,
}

/// `[peer]`: the other node of the pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// `name`: as in the peer's own `[node] name`.
    pub name: String,
    /// `address`, or the first of `addresses`: on the service interface.
    pub address: IpAddr,
    /// `addresses`: 1 to 8 addresses of the peer. Each is a link of its own: every message goes to all of them, and the first copy that
    /// arrives counts. `address` is short for one.
    pub addresses: Vec<IpAddr>,
    /// `key_file`: a file with the secret that both nodes share, 32 bytes in hexadecimal digits. Messages to the
    /// peer are authenticated with it. Default: none, so messages are not authenticated.
    pub key_file: Option<PathBuf>,
    /// `port`: UDP, used by both nodes for heartbeats. Default 7400.
    pub port: u16,
}

/// `[detector]`: when the peer is declared dead. Default: 4 heartbeats of 20 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detector {
    /// `heartbeat_ms`: time between two heartbeats, 1 to 1,000 ms.
    pub heartbeat: Duration,
    /// `missed`: number of heartbeats in a row that must be missing, 2 to 100.
    pub missed: u32,
    /// `lease_ms`: how long after its last word a silent backup may still be taking over. A primary claims the VIP once 17/16 of this have
    /// passed since that word, and the backup's death is declared. 0 to 60,000 ms. Default 300 ms.
    pub lease: Duration,
}

/// `[log]`: limits of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// `ring_mb`: the kernel's ring for protected traffic behind its first 16 MiB, in bytes; a power of two. Default 64 MiB.
    pub ring_bytes: u32,
    /// `syn_ring_kb`: the separate ring for SYNs and unknown flows, in bytes; a power of two. Default 1 MiB.
    pub syn_ring_bytes: u32,
    /// `per_connection_mb`: bound of one connection's log, in bytes. Default 64 MiB.
    pub per_connection_bytes: u64,
    /// `total_mb`: bound of all logs of one service together, in bytes. Default 2 GiB.
    pub total_bytes: u64,
    /// `at_limit`: for the services that do not set it themselves.
    pub at_limit: AtLimit,
    /// `spill_dir`: directory for the (unnamed) files of services that spill. Default `/var/tmp`.
    pub spill_dir: PathBuf,
    /// `spill_mb`: bound of all files of one service together, in bytes. Default 8 GiB.
    pub spill_bytes: u64,
}

/// What happens to a connection whose log is full (`at_limit`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtLimit {
    /// `"unprotect"`: its log is given up.
    #[default]
    Unprotect,
    /// `"spill"`: its input goes to a file; if that fails, it is unprotected.
    Spill,
    /// `"slow"`: its client is slowed before the log is full, if waiting helps; else it is unprotected.
    Slow,
}

/// `[metrics]`: the endpoint for Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// `listen`: address and TCP port of `/metrics`. An address that other hosts can reach is refused unless `remote = true` is set
    /// too, because every host that reaches it can read the metrics.
    pub listen: SocketAddr,
}

/// `[[service]]`: one protected service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// `name`: unique, spelled as a node's name.
    pub name: String,
    /// `address`: the virtual address (VIP).
    pub address: IpAddr,
    /// `port`: TCP.
    pub port: u16,
    /// `interface`: the network interface on which the VIP and the peer are.
    pub interface: String,
    /// `policy`: how the application goes on after a takeover.
    pub policy: Policy,
    /// This node's role, from `primary`, which names the node that runs the application.
    pub role: Role,
    /// `peer_address`: the peer on this service's interface, of the VIP's address family. Default `[peer] address`.
    pub peer_address: IpAddr,
    /// `application`: where the local application listens, other than the VIP. Default: the loopback address and
    /// the service's port.
    pub application: SocketAddr,
    /// `volatile_headers`: reply headers that may differ when a request is executed again, in lower case, in addition to those that always may
    /// (`age`, `connection`, `date`, `expires`, `keep-alive`, `server-timing`, `set-cookie`, `x-correlation-id`, `x-request-id`,
    /// `x-response-time`, `x-runtime`); `http` only. Default `["date"]`, which adds nothing.
    pub volatile_headers: Vec<String>,
    /// `reexecute`: which requests are executed again by the survivor though the dead server may have executed them:
    /// `"safe"` methods, `"idempotent"` ones and requests with an `Idempotency-Key`, `"all"`, or a list of methods and
    /// `"Idempotency-Key"`; `http` only. Default `"idempotent"`.
    pub reexecute: Reexecute,
    /// `cut_replies`: what the survivor's application is asked for when a reply was cut. `"rest"`: the missing part, if the reply takes
    /// ranges and a strong `ETag` identifies its content. `"whole"`: the whole reply again, which is compared. `http` only. Default `"rest"`.
    pub cut_replies: CutReplies,
    /// `after_takeover`: whether connections that were taken over stay relayed (`"keep"`), or end with their next reply
    /// (`"close"`), so that their clients connect anew to the application itself; `http` only. Default `"keep"`.
    pub after_takeover: AfterTakeover,
    /// `opaque`: what happens to connections that do not speak HTTP/1, or change to another protocol: they are `"unprotected"`, or
    /// followed by a `"replica"`; `http` only. Default `"unprotected"`.
    pub opaque: Opaque,
    /// `crash_exit_codes`: exit codes of the application that count as a crash, not as an orderly end. Default: none.
    pub crash_exit_codes: Vec<u8>,
    /// `commit`: which packets must be logged before which are released.
    pub commit: Commit,
    /// `at_limit`: what happens to a connection whose log is full. Default: `at_limit` of `[log]`.
    pub at_limit: AtLimit,
    /// `claim_ping`: hosts outside of the pair, of the VIP's family. A primary whose backup is gone speaks alone once they
    /// answer pings from the VIP; under fail-stop, for as long as the peer's silence counts as its death. Default: the gateways on the
    /// service interface.
    pub claim_ping: Vec<IpAddr>,
    /// `on_deposed`: a command and its arguments, run when the peer has taken over what this node served.
    pub on_deposed: Vec<String>,
    /// `state_sync` and its bounds; policy `replica` only. Default: none; then a server that has just started is assumed to have all
    /// state that matters.
    pub state_sync: Option<StateSync>,
    /// `[service.health]`: the health probe of the application. Default: none.
    pub health: Option<Health>,
}

/// How a replica's server gets the primary's state when its node comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSync {
    /// `state_sync`: a command and its arguments, run on the node that is the wire.
    pub command: Vec<String>,
    /// `state_sync_timeout_ms`: how long it may take while clients go on, 100 to 3,600,000 ms. Default 10,000 ms.
    pub timeout: Duration,
    /// `state_sync_hold_ms`: how long it may take while what clients send is held, 10 to 10,000 ms. Default 500 ms.
    pub hold: Duration,
}

/// `[service.health]`: a question that a working application answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// `interval_ms`: time between two questions, 10 to 60,000 ms. Default 1,000 ms.
    pub interval: Duration,
    /// `timeout_ms`: how long an answer may take, 1 to 60,000 ms. Default 1,000 ms.
    pub timeout: Duration,
    /// `failures`: number of questions in a row that must fail, 1 to 100. Default 3.
    pub failures: u32,
    /// `send`: text that is sent on a new connection to the application. Default nothing.
    pub send: String,
    /// `expect`: how the answer begins. Default: nothing, so an accepted connection is enough.
    pub expect: String,
}

/// A node's role for a service when the pair first meets, and later its role in the operator's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Runs the application.
    Primary,
    /// Is the wire, and takes over.
    Backup,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Primary => "primary",
            Self::Backup => "backup",
        })
    }
}

/// How the application goes on after a takeover (`policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// It runs on the primary; unanswered requests are executed again on the survivor (CoRAL).
    Http,
    /// It runs on both nodes and is deterministic per connection (FT-TCP's hot backup).
    Replica,
}

/// What the survivor's application is asked for when a reply was cut (`cut_replies`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CutReplies {
    /// For the part that the client does not have, where that is possible.
    #[default]
    Rest,
    /// For all of it.
    Whole,
}

/// What happens to connections that were taken over (`after_takeover`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterTakeover {
    /// They are relayed until they end.
    #[default]
    Keep,
    /// The next reply that can carry `Connection: close` does so, and ends them.
    Close,
}

/// What happens to connections that do not speak HTTP/1 (`opaque`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Opaque {
    /// They are served, and end with their node.
    #[default]
    Unprotected,
    /// As with policy `replica`, from where the other protocol begins.
    Replica,
}

/// Which packets must be logged before which are released (`commit`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Both directions pass the wire (FT-TCP's PRS).
    Prs,
}

impl Service {
    /// The header fields of `volatile_headers`, and those that are always volatile.
    ///
    /// # Panics
    /// If a header frames or identifies a reply. No [`Config`] that was read has such a header.
    pub fn volatile(&self) -> Volatile {
        Volatile::with(self.volatile_headers.iter().map(String::as_str)).expect("checked when it was read")
    }
}

impl Config {
    /// The peer's addresses that heartbeats go to: those of `[peer]`, and the one on each service's interface.
    pub fn links(&self) -> Vec<IpAddr> {
        let mut links = self.peer.addresses.clone();
        for service in &self.services {
            if !links.contains(&service.peer_address) {
                links.push(service.peer_address);
            }
        }
        links
    }

    /// Reads and checks the file `path`.
    ///
    /// # Errors
    /// All problems in the file, or that it cannot be read.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::unreadable(path, &error))?;
        Self::parse(path, &text)
    }

    /// Checks `text`, the contents of the file `path`.
    ///
    /// # Errors
    /// All problems in the text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        parse::config(path, text)
    }

    /// `problem` as an error of the field `field` (`peer.address`, `service[0].interface`), found after reading.
    pub fn problem(&self, field: &str, what: impl Into<String>) -> Problem {
        Problem {
            line: self.places.line(field),
            field: field.to_owned(),
            what: what.into(),
        }
    }
}

impl Detector {
    /// The longest time between a death and its declaration: `heartbeat` × `missed`.
    pub fn detection(&self) -> Duration {
        self.heartbeat * self.missed
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Http => "http",
            Self::Replica => "replica",
        })
    }
}
