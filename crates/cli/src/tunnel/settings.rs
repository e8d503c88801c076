//! The configuration of a tunnel, from its command line or its file.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use linux::sctp::{SCTP_UDP_PORT, SctpWire, WirePlan};
use proto::sctp::failover::{FailoverPolicy, temporary::DormantAction};
use proto::sctp::{HeartbeatWatch, SctpConfig};
use proto::tunnel::{SERVICE_MAX, TunnelRole};
use serde::Deserialize;

use crate::config::{STATE_ROOT, SecretKey};

/// SCTP port of both ends.
const SCTP_PORT: u16 = 9899;

/// A tunnel's file, or its command line in the same form.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct TunnelFile {
    /// The tunnel's name on this host.
    pub name: Option<String>,
    /// The directory of the tunnel's lock and control socket.
    pub state_dir: Option<PathBuf>,
    /// Local addresses, one per path.
    pub via: Vec<IpAddr>,
    /// The serving end: its addresses or its name, and its UDP port. Given at the opening end only.
    #[serde(default)]
    pub to: Vec<String>,
    /// Local UDP port; 0 means raw IP.
    pub udp_port: Option<u16>,
    /// File with the key that both ends share.
    pub key_file: Option<PathBuf>,
    /// Services.
    pub service: Vec<TunnelService>,
    /// Maximum number of connections at a time.
    pub connections: Option<u16>,
    /// Receive window of each connection, in KiB: the local program may leave this much unread.
    pub window_kb: Option<u32>,
    /// Largest IP packet of the local links.
    pub mtu: Option<u32>,
    /// Milliseconds between heartbeats that find failures fast; 3 missed heartbeats are a failure. 0: only timeouts find failures.
    pub watch_ms: Option<u64>,
    /// Least retransmission timeout, milliseconds.
    pub rto_min_ms: Option<u64>,
    /// Path.Max.Retrans (RFC 9260).
    pub path_max_retrans: Option<u32>,
    /// The policy by which data moves to another path, and back.
    pub failover: Option<TunnelFailover>,
    /// If the primary path has more timeouts in a row than this number, data leaves the path for good (CPT). Only the policies `dormant-…`
    /// have it.
    pub change_over: Option<u32>,
    /// Metrics for Prometheus.
    pub metrics: Option<TunnelMetrics>,
}

/// A failover policy (docs/sctp.md).
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum TunnelFailover {
    /// Data leaves a failed path and returns when the path answers. If all paths have failed, each timeout moves the data to the next path.
    #[default]
    DormantHop,
    /// As `DormantHop`, but if all paths have failed, data stays on the path that failed last.
    DormantLastDest,
    /// As `DormantHop`, but if all paths have failed, data returns to the primary path.
    DormantPrimary,
    /// Data leaves a path at its first timeout (paper, Figure 13).
    Proposed,
    /// A path with errors gets no data while another path has no errors (RFC 7829).
    PotentiallyFailed,
    /// As `DormantHop`, but a path that is measured to be better becomes the primary path for good.
    Informed,
}

impl TunnelFailover {
    /// The policy for `proto::sctp`. Only the policies `Dormant…` use `change_over`.
    const fn policy(self, change_over: Option<u32>) -> FailoverPolicy {
        let dormant = match self {
            Self::DormantHop => DormantAction::Hop,
            Self::DormantLastDest => DormantAction::LastDest,
            Self::DormantPrimary => DormantAction::Primary,
            Self::Proposed => return FailoverPolicy::Proposed,
            Self::PotentiallyFailed => return FailoverPolicy::PotentiallyFailed { max_retrans: 0 },
            Self::Informed => return FailoverPolicy::Informed,
        };
        FailoverPolicy::Temporary { dormant, change_over }
    }
}

/// The table of a tunnel's metrics.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct TunnelMetrics {
    /// Address and TCP port of `/metrics`.
    pub listen: SocketAddr,
    /// Allows an address that other hosts can reach.
    #[serde(default)]
    pub remote: bool,
}

/// A TCP service.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct TunnelService {
    /// Its name, the same at both ends.
    pub name: String,
    /// Address at which clients connect, at the opening end.
    pub listen: Option<SocketAddr>,
    /// Address of the server, at the serving end.
    pub connect: Option<SocketAddr>,
}

/// A checked configuration.
#[derive(Debug)]
pub struct TunnelSettings {
    /// The tunnel's name on this host.
    pub name: String,
    /// The directory of the tunnel's lock and control socket. `None` if the file sets neither a name nor a state directory. Then the tunnel
    /// has no control socket.
    pub state_dir: Option<PathBuf>,
    /// The address at which metrics are served; `None` if the table is absent.
    pub metrics: Option<SocketAddr>,
    /// Role of this end.
    pub role: TunnelRole,
    /// Addresses and ports of the sockets.
    pub plan: WirePlan,
    /// SCTP parameters.
    pub sctp: SctpConfig,
    /// Addresses of the serving end.
    pub peer: Vec<IpAddr>,
    /// The serving end's SCTP port.
    pub peer_port: u16,
    /// The shared key.
    pub key: Option<[u8; 32]>,
    /// Services, each with the address at which this end listens (opening end) or to which it connects (serving end).
    pub services: Vec<(String, SocketAddr)>,
    /// Maximum number of connections that an association can have at a time.
    pub connections: u16,
    /// Receive window of each connection, in bytes: the local program may leave this much unread.
    pub window: u32,
}

impl TunnelFile {
    /// Reads a file.
    ///
    /// # Errors
    /// A message with the file's path and the place of the fault.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Whether the file configures a tunnel.
    pub fn is_in(path: &Path) -> bool {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let (document, _) = toml::de::DeTable::parse_recoverable(&text);
        document.get_ref().contains_key("via")
    }

    /// The tunnel's name, and the directory of its state.
    ///
    /// # Errors
    /// If the name is not allowed.
    pub fn place(&self) -> Result<(String, PathBuf), String> {
        let name = self.name.clone().unwrap_or_else(|| "tunnel".to_owned());
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
            return Err(format!(
                "name: {name:?}: allowed are 1 to 64 letters, digits, '-' and '_'"
            ));
        }
        let state_dir = self.state_dir.clone();
        let state_dir = state_dir.unwrap_or_else(|| Path::new(STATE_ROOT).join(&name));
        Ok((name, state_dir))
    }

    /// Checks everything.
    ///
    /// # Errors
    /// A message that names the field and its allowed values.
    pub fn check(&self) -> Result<TunnelSettings, String> {
        let role = if self.to.is_empty() {
            TunnelRole::Serving
        } else {
            TunnelRole::Opening
        };
        let services = self.services(role)?;
        let (peer, peer_udp_port) = self.peer()?;
        let key = self.key_file.as_deref().map(SecretKey::read).transpose();
        let key = key.map_err(|error| format!("key_file: {error}"))?;
        let outside = services
            .iter()
            .map(|(_, address)| address.ip())
            .chain(self.via.iter().copied())
            .find(|address| !address.is_loopback());
        if let (None, Some(address)) = (&key, outside) {
            return Err(format!(
                "key_file is missing, and {address} is no loopback address: without a key everybody on the way could read and write"
            ));
        }
        if self.via.is_empty() || self.via.len() > 8 {
            return Err(format!(
                "via: allowed are 1 to 8 addresses, not {}",
                self.via.len()
            ));
        }
        let twice = (1..self.via.len()).find(|place| self.via[..*place].contains(&self.via[*place]));
        if let Some(place) = twice {
            return Err(format!("via: {} is named twice", self.via[place]));
        }
        let connections = self.connections.unwrap_or(256);
        if connections == 0 || connections > 16_000 {
            return Err(format!("connections: allowed are 1 to 16000, not {connections}"));
        }
        let window = self.window_kb.unwrap_or(1024);
        if !(64..=65_536).contains(&window) {
            return Err(format!("window_kb: allowed are 64 to 65536, not {window}"));
        }
        let plan = WirePlan {
            addresses: self.via.clone(),
            udp_port: self.udp_port.unwrap_or(SCTP_UDP_PORT),
            peer_udp_port,
            port: SCTP_PORT,
            associations_max: if role == TunnelRole::Serving { 16 } else { 0 },
        };
        let sctp = self.sctp(&plan, connections);
        if self.change_over.is_some() && !matches!(sctp.failover, FailoverPolicy::Temporary { .. }) {
            return Err("change_over: only the failover policies dormant-… have it".to_owned());
        }
        sctp.check().map_err(|error| error.to_string())?;
        let (name, state_dir) = self.place()?;
        Ok(TunnelSettings {
            name,
            state_dir: (self.name.is_some() || self.state_dir.is_some()).then_some(state_dir),
            metrics: self.listens()?,
            role,
            plan,
            sctp,
            peer,
            peer_port: SCTP_PORT,
            key: key.map(|key| *key.bytes()),
            services,
            connections,
            window: window << 10,
        })
    }

    /// The address of the metrics.
    fn listens(&self) -> Result<Option<SocketAddr>, String> {
        let Some(metrics) = &self.metrics else {
            return Ok(None);
        };
        let listen = metrics.listen;
        if !metrics.remote && !listen.ip().to_canonical().is_loopback() {
            return Err(format!(
                "metrics.listen: {listen} can be reached from other hosts, and metrics are given to whoever asks; allowed: a loopback \
                 address, such as 127.0.0.1:{}, or remote = true in the same table",
                listen.port()
            ));
        }
        Ok(Some(listen))
    }

    fn services(&self, role: TunnelRole) -> Result<Vec<(String, SocketAddr)>, String> {
        let (field, other) = match role {
            TunnelRole::Opening => ("listen", "connect"),
            TunnelRole::Serving => ("connect", "listen"),
        };
        let mut services: Vec<(String, SocketAddr)> = Vec::new();
        for service in &self.service {
            let (address, wrong) = match role {
                TunnelRole::Opening => (service.listen, service.connect),
                TunnelRole::Serving => (service.connect, service.listen),
            };
            let name = &service.name;
            let (Some(address), None) = (address, wrong) else {
                return Err(format!(
                    "service {name}: this end needs `{field}` and no `{other}`"
                ));
            };
            if name.is_empty() || name.len() > SERVICE_MAX || services.iter().any(|(known, _)| known == name)
            {
                return Err(format!(
                    "service {name:?}: allowed are different names of 1 to {SERVICE_MAX} bytes"
                ));
            }
            if address.port() == 0 {
                return Err(format!(
                    "service {name}: {field}: allowed are ports from 1 to 65535"
                ));
            }
            services.push((name.clone(), address));
        }
        if services.is_empty() {
            return Err("service: at least one is needed".to_owned());
        }
        Ok(services)
    }

    /// The addresses of the serving end and its UDP port.
    fn peer(&self) -> Result<(Vec<IpAddr>, u16), String> {
        let (mut peer, mut port) = (Vec::new(), SCTP_UDP_PORT);
        for text in &self.to {
            let found = text
                .to_socket_addrs()
                .map_err(|error| format!("to: {text}: {error}; allowed: HOST:PORT"))?;
            for address in found {
                let has_family = self.via.iter().any(|via| via.is_ipv4() == address.is_ipv4());
                if has_family && !peer.contains(&address.ip()) {
                    peer.push(address.ip());
                }
                port = address.port();
            }
            if port == 0 {
                return Err(format!("to: {text}: allowed are ports from 1 to 65535"));
            }
        }
        peer.truncate(8);
        if !self.to.is_empty() && peer.is_empty() {
            return Err("to: no address has the family of an address of `via`".to_owned());
        }
        Ok((peer, port))
    }

    fn sctp(&self, plan: &WirePlan, connections: u16) -> SctpConfig {
        let mut sctp = SctpConfig::wire(SctpWire::lower_headers(plan));
        sctp.outbound_streams = connections + 1;
        sctp.inbound_streams = connections + 1;
        sctp.path_mtu = self.mtu.unwrap_or(1500);
        sctp.path_max_retrans = self.path_max_retrans.unwrap_or(0);
        sctp.rto_min = Duration::from_millis(self.rto_min_ms.unwrap_or(200));
        sctp.failover = self.failover.unwrap_or_default().policy(self.change_over);
        sctp.watch = self
            .watch_ms
            .filter(|millis| *millis > 0)
            .map(|millis| HeartbeatWatch {
                interval: Duration::from_millis(millis),
                missed: 3,
            });
        sctp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<TunnelSettings, String> {
        toml::from_str::<TunnelFile>(text)
            .map_err(|error| error.to_string())?
            .check()
    }

    const OPENING: &str =
        "via = ['127.0.0.1']\nto = ['127.0.0.2:9899']\n[[service]]\nname = 'web'\nlisten = '127.0.0.1:80'\n";

    #[test]
    fn an_opening_end_is_read() {
        let settings = check(OPENING).unwrap();
        assert_eq!(
            (settings.role, settings.plan.associations_max),
            (TunnelRole::Opening, 0)
        );
        assert_eq!(settings.peer, ["127.0.0.2".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn without_a_key_only_loopback_is_allowed() {
        for text in [
            OPENING.replace("'127.0.0.1:80'", "'0.0.0.0:80'"),
            OPENING.replace("['127.0.0.1']", "['10.0.0.1']"),
            "via = ['127.0.0.2']\n[[service]]\nname = 'web'\nconnect = '10.0.0.1:80'\n".to_owned(),
        ] {
            assert!(
                check(&text).unwrap_err().contains("key_file is missing"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_failover_policy_is_chosen_by_its_name() {
        let of = |text: &str| check(&format!("{text}\n{OPENING}")).unwrap().sctp.failover;
        let temporary = |dormant, change_over| FailoverPolicy::Temporary { dormant, change_over };
        assert_eq!(of(""), temporary(DormantAction::Hop, None));
        assert_eq!(
            of("failover = 'dormant-last-dest'\nchange_over = 4"),
            temporary(DormantAction::LastDest, Some(4))
        );
        assert_eq!(
            of("failover = 'dormant-primary'"),
            temporary(DormantAction::Primary, None)
        );
        assert_eq!(of("failover = 'proposed'"), FailoverPolicy::Proposed);
        let doubtful = FailoverPolicy::PotentiallyFailed { max_retrans: 0 };
        assert_eq!(of("failover = 'potentially-failed'"), doubtful);
        assert_eq!(of("failover = 'informed'"), FailoverPolicy::Informed);
    }

    #[test]
    fn a_name_gives_the_place_of_the_state() {
        let settings = check(&format!("name = 'north'\n{OPENING}")).unwrap();
        let expected = Path::new(STATE_ROOT).join("north");
        assert_eq!(
            (settings.name.as_str(), settings.state_dir),
            ("north", Some(expected))
        );
        assert_eq!(check(OPENING).unwrap().state_dir, None);
    }

    #[test]
    fn faults_name_their_field() {
        for (text, word) in [
            (format!("name = '../x'\n{OPENING}"), "name"),
            (
                format!("{OPENING}[metrics]\nlisten = '0.0.0.0:9466'\n"),
                "metrics.listen",
            ),
            (format!("colour = 1\n{OPENING}"), "colour"),
            (OPENING.replace("listen", "connect"), "needs `listen`"),
            (format!("window_kb = 1\n{OPENING}"), "window_kb"),
            (format!("failover = 'hop'\n{OPENING}"), "dormant-hop"),
            (
                format!("failover = 'informed'\nchange_over = 3\n{OPENING}"),
                "change_over",
            ),
            (format!("connections = 0\n{OPENING}"), "connections"),
            (OPENING.replace("127.0.0.2:9899", "127.0.0.2"), "HOST:PORT"),
            (
                OPENING.replace("127.0.0.2:9899", "127.0.0.2:0"),
                "to: 127.0.0.2:0: allowed are ports",
            ),
            (
                OPENING.replace("127.0.0.1:80", "127.0.0.1:0"),
                "listen: allowed are ports",
            ),
            (
                OPENING.replace("['127.0.0.1']", "['127.0.0.1', '127.0.0.1']"),
                "127.0.0.1 is named twice",
            ),
            (
                format!("{OPENING}[[service]]\nname = 'web'\nlisten = '127.0.0.1:81'\n"),
                "different names",
            ),
        ] {
            let error = check(&text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
