//! The operator's settings, as types.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use proto::follower::RestartPolicy;
use proto::order::OnDivergence;
use proto::restart::http::{Reexecute, Volatile};
use serde::{Deserialize, Serialize};

use super::arbiter::ArbiterSettings;
use super::places::Places;
use super::problem::Problem;

/// Parent of the nodes' default state directories: `/run/steadfast/<node>`, unless `[node] state_dir` is set.
pub const STATE_ROOT: &str = "/run/steadfast";

/// The folder in a node's state directory with the agents' state directories, if the node has several peers.
pub const PEERS_DIR: &str = "peers";

/// A node's configuration for one pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This node.
    pub node: NodeSettings,
    /// The other node of the pair.
    pub peer: PeerSettings,
    /// The arbiter, which says whether this node may speak beyond its lease.
    pub arbiter: ArbiterSettings,
    /// When the peer is declared dead.
    pub detector: DetectorSettings,
    /// Limits of the log.
    pub log: LogSettings,
    /// The address at which the agent serves metrics; `None` if the table is absent, or if the node has several peers: the supervisor then
    /// serves the metrics of all agents.
    pub metrics: Option<MetricsSettings>,
    /// The protected services; at least one.
    pub services: Vec<ServiceSettings>,
    /// The line of each field in the file, for problems that are found later.
    pub places: Places,
}

/// `[node]`: this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// `name`: 1 to 32 letters, digits, `-` and `_`, beginning with a letter.
    pub name: String,
    /// The name of the agent's nftables table and of its directory of eBPF pins: the node's name, or, if the node has several peers, the
    /// node's name, `-`, and the peer's name.
    pub instance: String,
    /// `state_dir`: lock, control socket and undo journal. Default `/run/steadfast/<name>`. If the node has several peers, the agent for a
    /// peer has the folder `peers/<peer>` in it.
    pub state_dir: PathBuf,
    /// `agent_timeout_ms`: how long this node's agent may be away (crash, upgrade) before the peer treats the node
    /// as dead, 50 to 60,000 ms. Default 1,000 ms.
    pub agent_timeout: Duration,
    /// `snapshot_socket`: the Unix socket at which applications of services with policy `snapshot` export and import their state. Default
    /// `/run/steadfast/snapshots.sock`.
    pub snapshot_socket: PathBuf,
}

/// `[peer]`: the other node of the pair. A node with several peers has a table `[[peer]]` for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// `name`: as in the peer's own `[node] name`.
    pub name: String,
    /// `address`, or the first of `addresses`: the peer's address on the service interface.
    pub address: IpAddr,
    /// `addresses`: 1 to 8 addresses of the peer. Each is a link of its own: every heartbeat goes to all of them, and the first copy that
    /// arrives counts. `transport` says how other messages travel. `address` is the short form for a single address.
    pub addresses: Vec<IpAddr>,
    /// `key_file`: a file with the secret that both nodes share, 32 bytes in hexadecimal digits. Messages to the
    /// peer are authenticated with it. Default: none, so messages are not authenticated.
    pub key_file: Option<PathBuf>,
    /// `port`: UDP, used by both nodes for heartbeats. Default 7400.
    pub port: u16,
    /// `transport`: how questions and answers travel. Default: `datagrams`.
    pub transport: PeerTransport,
    /// `annex_port`: TCP, used by both nodes for connections that move back to the primary from an annex. Default 7402.
    pub annex_port: u16,
}

/// `[peer] transport`. Heartbeats are datagrams over every link in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerTransport {
    /// `datagrams`: each message once over every link. A node that gets no answer asks again.
    #[default]
    Datagrams,
    /// `sctp`: each message over one link, in an SCTP association whose paths are the links. If a link is cut, SCTP retransmits the lost
    /// data over another link. Both nodes need this value. While there is no association, messages are datagrams.
    Sctp,
}

/// `[detector]`: when the peer is declared dead. Default: 4 heartbeats of 20 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetectorSettings {
    /// `heartbeat_ms`: time between two heartbeats, 1 to 1,000 ms.
    pub heartbeat: Duration,
    /// `missed`: number of heartbeats in a row that must be missing, 2 to 100.
    pub missed: u32,
    /// `lease_ms`: how long a silent backup may still be taking over, counted from its last message. The primary claims the VIP when 17/16
    /// of this time have passed and the backup is declared dead. 0 to 60,000 ms. Default 300 ms.
    pub lease: Duration,
}

/// `[log]`: limits of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// `ring_mb`: size in bytes of the kernel's second ring for protected traffic, which is used when the first ring, of 16 MiB, is full. A
    /// power of two. Default 64 MiB.
    pub ring_bytes: u32,
    /// `syn_ring_kb`: size in bytes of the separate ring for SYNs, SYN-ACKs and strangers' segments. A power of two. Default 1 MiB.
    pub syn_ring_bytes: u32,
    /// `per_connection_mb`: bound of one connection's log, in bytes. Default 64 MiB.
    pub per_connection_bytes: u64,
    /// `total_mb`: bound of all logs of one service together, in bytes. Default 2 GiB.
    pub total_bytes: u64,
    /// `at_limit`: the value for services that do not set `at_limit` themselves.
    pub at_limit: AtLimitSetting,
    /// `spill_dir`: directory for the (unnamed) files of services that spill. Default `/var/tmp`.
    pub spill_dir: PathBuf,
    /// `spill_mb`: bound of all files of one service together, in bytes. Default 8 GiB.
    pub spill_bytes: u64,
}

/// Treatment of a connection whose log is full (`at_limit`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtLimitSetting {
    /// `"unprotect"`: the connection's log is given up, so the connection is unprotected.
    #[default]
    Unprotect,
    /// `"spill"`: the connection's input goes to a file. If that fails, the connection is unprotected.
    Spill,
    /// `"slow"`: the client is slowed before the log is full, if waiting helps. Otherwise the connection is unprotected.
    Slow,
}

/// `[metrics]`: the endpoint for Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsSettings {
    /// `listen`: address and TCP port of `/metrics`. An address that other hosts can reach is refused unless `remote = true` is set
    /// too, because every host that reaches it can read the metrics.
    pub listen: SocketAddr,
}

/// `[[service]]`: one protected service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSettings {
    /// `name`: unique, spelled as a node's name.
    pub name: String,
    /// `address`: the virtual address (VIP).
    pub address: IpAddr,
    /// `port`: TCP.
    pub port: u16,
    /// `interface`: the network interface on which the VIP and the peer are.
    pub interface: String,
    /// `policy`: how the application goes on after a takeover.
    pub policy: RestartPolicy,
    /// This node's role. The key `primary` names the node that runs the application.
    pub role: NodeRole,
    /// `peer_address`: the peer's address on this service's interface, of the VIP's address family. Default `[peer] address`.
    pub peer_address: IpAddr,
    /// `application`: address and port at which the local application listens. It must not be at a VIP. Default: the loopback
    /// address and the service's port.
    pub application: SocketAddr,
    /// `staged_application`: address and port at which the application behind `steadfast stage` listens; `snapshot` only. The node leads
    /// its replies to clients' addresses back to the stage. Default: none.
    pub staged_application: Option<SocketAddr>,
    /// `volatile_headers`: names, in lower case, of reply headers that may differ when a request is executed again. These headers may
    /// always differ: `age`, `connection`, `date`, `expires`, `keep-alive`, `server-timing`, `set-cookie`, `x-correlation-id`,
    /// `x-request-id`, `x-response-time`, `x-runtime`. `http` only. Default `["date"]`, which adds nothing.
    pub volatile_headers: Vec<String>,
    /// `reexecute`: which requests the survivor executes again although the dead server may have executed them. `"safe"`: requests with
    /// safe methods. `"idempotent"`: requests with idempotent methods or with an `Idempotency-Key`. `"all"`: all requests. Or a list of
    /// methods and `"Idempotency-Key"`. `http` only. Default `"idempotent"`.
    pub reexecute: Reexecute,
    /// `cut_replies`: what the survivor's application is asked for when a reply was cut. `"rest"`: the missing part, if the reply takes
    /// ranges and a strong `ETag` identifies its content. `"whole"`: the whole reply, which is compared with the known part. `http` only.
    /// Default `"rest"`.
    pub cut_replies: CutReplies,
    /// `after_takeover`: whether connections that were taken over stay relayed (`"keep"`), or end with their next reply
    /// (`"close"`), so that their clients connect anew to the application itself; `http` only. Default `"keep"`.
    pub after_takeover: AfterTakeover,
    /// `opaque`: what happens to connections that do not speak HTTP/1, or change to another protocol. `"unprotected"`: they are not
    /// protected. `"replica"`: a replica follows them. `http` only. Default `"unprotected"`.
    pub opaque: OpaqueSetting,
    /// `crash_exit_codes`: exit codes of the application that count as a crash, not as an orderly end. Default: none.
    pub crash_exit_codes: Vec<u8>,
    /// `commit`: which packets must be logged before other packets may be released.
    pub commit: Commit,
    /// `at_limit`: what happens to a connection whose log is full. Default: `at_limit` of `[log]`.
    pub at_limit: AtLimitSetting,
    /// `keep_input`: the survivor of a takeover keeps the input of the connections that it relays, so that the other node can protect them
    /// when it has come back; policy `replay` only, with `commit = "prs"`. Default: false.
    pub keep_input: bool,
    /// `claim_ping`: hosts outside of the pair, of the VIP's address family. After its backup is gone, a primary speaks alone once these
    /// hosts answer pings from the VIP. Under fail-stop, they must answer for as long as it takes to declare a silent peer dead. Default:
    /// the gateways on the service interface.
    pub claim_ping: Vec<IpAddr>,
    /// `on_deposed`: a command and its arguments. It runs when the peer has taken over the service from this node.
    pub on_deposed: Vec<String>,
    /// `state_sync` and its time limits; policy `replica` only. Default: none. Without this setting, a server that has just started is
    /// assumed to have all state that matters.
    pub state_sync: Option<StateSyncSettings>,
    /// `recorded_order` and `on_divergence`; policy `replica` only. Default: none.
    pub recorded_order: Option<RecordedOrderSettings>,
    /// `[service.health]`: the health probe of the application. Default: none.
    pub health: Option<HealthSettings>,
    /// `[[service.annex]]`: nodes outside of the pair that may take connections of the service; not with policy `replica`. Default: none.
    pub annexes: Vec<AnnexSettings>,
    /// `registered_annexes`: annexes that have registered in the witness's etcd may take connections of the service, too (docs/registry.md).
    /// Default: false.
    pub registered_annexes: bool,
}

/// `[[service.annex]]`: a node outside of the pair that may take connections of a service (docs/annex.md).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnexSettings {
    /// `name`: unique among the service's annexes, and neither this node's name nor the peer's.
    pub name: String,
    /// `address`: where `steadfast annex` listens on that node, on the service interface.
    pub address: SocketAddr,
}

/// The order of the primary's calls is recorded, and the replica's server plays it back (docs/recorded-order.md).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedOrderSettings {
    /// `recorded_order`: the Unix socket at which the library in the service's server reaches the agent.
    pub socket: PathBuf,
    /// `recorded_order_user`: the user that may connect to the socket besides root, who always may. Default: none.
    pub user: Option<String>,
    /// `recorded_order_program`: the server's executable file. Other programs get no role. Default: any program of an allowed user.
    pub program: Option<PathBuf>,
    /// `on_divergence`: `unprotect` (default) or `trust-log`.
    pub on_divergence: OnDivergence,
}

/// How a replica's server gets the primary's state when its node comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSyncSettings {
    /// `state_sync`: a command and its arguments, run on the node that is the wire.
    pub command: Vec<String>,
    /// `state_sync_timeout_ms`: time limit for the part of the copy during which clients are served, 100 to 3,600,000 ms. Default
    /// 10,000 ms.
    pub timeout: Duration,
    /// `state_sync_hold_ms`: time limit for the rest of the copy, while the clients' input is held, 10 to 10,000 ms. Default 500 ms.
    pub hold: Duration,
}

/// `[service.health]`: a question that a working application answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthSettings {
    /// `interval_ms`: time between two questions, 10 to 60,000 ms. Default 1,000 ms.
    pub interval: Duration,
    /// `timeout_ms`: how long an answer may take, 1 to 60,000 ms. Default 1,000 ms.
    pub timeout: Duration,
    /// `failures`: number of failed questions in a row after which the application counts as hung, 1 to 100. Default 3.
    pub failures: u32,
    /// `send`: text that is sent on a new connection to the application. Default nothing.
    pub send: String,
    /// `expect`: how the answer begins. Default: nothing, so an accepted connection is enough.
    pub expect: String,
}

/// A node's role for a service, in the operator's terms. In the configuration: the role when the pair first meets. In the status: the
/// present role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeRole {
    /// Runs the application.
    Primary,
    /// Is the wire, and takes over.
    Backup,
}

impl fmt::Display for NodeRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Primary => "primary",
            Self::Backup => "backup",
        })
    }
}

/// The part of a cut reply for which the survivor's application is asked (`cut_replies`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CutReplies {
    /// The part that the client does not have, if this part can be requested.
    #[default]
    Rest,
    /// The whole reply.
    Whole,
}

/// Treatment of connections that were taken over (`after_takeover`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterTakeover {
    /// They are relayed until they end.
    #[default]
    Keep,
    /// The next reply that can carry `Connection: close` carries it and ends the connection.
    Close,
}

/// Treatment of connections that do not speak HTTP/1 (`opaque`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpaqueSetting {
    /// They are served, but end when their node dies.
    #[default]
    Unprotected,
    /// They are protected as with policy `replica`, from the point at which the other protocol begins.
    Replica,
}

/// The packets that must be logged before other packets may be released (`commit`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Commit {
    /// Both directions pass the wire (FT-TCP's PRS).
    #[default]
    Prs,
    /// Input passes the wire. Output goes straight to the clients, and the backup's application generates it again (FT-TCP's PR,
    /// docs/commit-modes.md).
    Pr,
    /// As `Pr`, and packets for which the log has no room pass unlogged (FT-TCP's *immediate*). For measuring: a byte that a client has sent
    /// and that was acknowledged may be lost.
    Immediate,
}

/// What the operator must know of [`Commit::Immediate`].
pub const FOR_MEASURING: &str = "for measuring: packets pass unlogged while the log is full, so a client's byte may be lost after it was \
                                 acknowledged";

impl Commit {
    /// Whether output goes straight to the clients.
    pub fn is_direct(self) -> bool {
        self != Self::Prs
    }

    /// Its name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prs => "prs",
            Self::Pr => "pr",
            Self::Immediate => "immediate",
        }
    }
}

/// A node's file: the node with its pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFile {
    /// The node's name.
    pub name: String,
    /// The node's state directory.
    pub state_dir: PathBuf,
    /// One configuration for each peer, in the order of the file. At least one.
    pub pairs: Vec<Config>,
    /// The address at which metrics are served; `None` if the table is absent.
    pub metrics: Option<MetricsSettings>,
}

impl NodeSettings {
    /// The settings of the agent for the peer `peer`, if the node has several.
    #[must_use]
    pub fn beside(&self, peer: &str) -> Self {
        Self {
            instance: format!("{}-{peer}", self.name),
            state_dir: self.state_dir.join(PEERS_DIR).join(peer),
            ..self.clone()
        }
    }

    /// Whether the node has several peers.
    pub fn has_several_peers(&self) -> bool {
        self.instance != self.name
    }
}

impl ServiceSettings {
    /// The header fields of `volatile_headers`, and those that are always volatile.
    ///
    /// # Panics
    /// If a header frames or identifies a reply. No [`Config`] that was read has such a header.
    pub fn volatile(&self) -> Volatile {
        Volatile::with(self.volatile_headers.iter().map(String::as_str)).expect("checked when it was read")
    }
}

impl Config {
    /// The peer's addresses to which heartbeats go: those in `[peer]`, and the peer's address on each service's interface.
    pub fn links(&self) -> Vec<IpAddr> {
        let mut links = self.peer.addresses.clone();
        for service in &self.services {
            if !links.contains(&service.peer_address) {
                links.push(service.peer_address);
            }
        }
        links
    }

    /// A problem of the field `field` (`peer.address`, `service[0].interface`) that is found after reading. `what` says what is wrong.
    pub fn problem(&self, field: &str, what: impl Into<String>) -> Problem {
        Problem {
            line: self.places.line(field),
            field: self.places.name(field),
            what: what.into(),
        }
    }
}

impl DetectorSettings {
    /// The longest time between a death and its declaration: `heartbeat` × `missed`.
    pub fn detection(&self) -> Duration {
        self.heartbeat * self.missed
    }
}
