//! From live sockets to the keeper: what it needs to go on, sent by a thread of its own, so that the next connection's
//! takeover does not wait for it.

use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use proto::Instant;
use proto::action::ServiceIndex;
use proto::connection::{Connection, Endpoint};
use proto::table::ConnectionId;

use crate::config::Config;
use crate::control::{self, ConnectionStatus};

/// A live connection on its way to the keeper.
pub struct Handover {
    /// Its service.
    pub service: ServiceIndex,
    /// The logs and the restart point.
    pub connection: Connection,
    /// Where the socket stands.
    pub endpoint: Endpoint,
    /// The client's connection.
    pub socket: OwnedFd,
    /// The replica's connection to the application.
    pub replica: Option<TcpStream>,
}

/// The live connections and the way to the keeper.
pub struct Relay {
    live: HashMap<(ServiceIndex, ConnectionId), (OwnedFd, Endpoint)>,
    taken: Vec<(ServiceIndex, SocketAddr, Instant)>,
    kept: Vec<Handover>,
}

impl Relay {
    pub fn new(_config: &Config) -> Self {
        Self { live: HashMap::new(), taken: Vec::new(), kept: Vec::new() }
    }
    pub fn start(&mut self, _config: &Config) -> anyhow::Result<()> {
        Ok(())
    }
    pub fn stop(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
    pub fn add_live(&mut self, service: ServiceIndex, id: ConnectionId, socket: OwnedFd, endpoint: Endpoint, at: Instant) {
        self.taken.push((service, endpoint.client, at));
        self.live.insert((service, id), (socket, endpoint));
    }
    pub fn take_live(&mut self, service: ServiceIndex, id: ConnectionId) -> Option<(OwnedFd, Endpoint)> {
        self.live.remove(&(service, id))
    }
    pub fn hand_over(&mut self, handover: Handover) {
        self.kept.push(handover);
    }
    pub fn ended(&self, _service: ServiceIndex) -> u64 {
        0
    }
    pub fn counters(&self, _service: ServiceIndex) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
    pub fn connections<'a>(&'a self, service: ServiceIndex, name: &'a str) -> impl Iterator<Item = ConnectionStatus> + 'a {
        self.taken.iter().filter(move |taken| taken.0 == service).map(move |&(_, client, at)| ConnectionStatus {
            service: name.to_owned(), client, protection: control::Protection::Unprotected,
            reason: "relayed".into(), in_offset: 0, out_offset: 0, log_bytes: 0, live_ns: Some(at.as_nanos()),
        })
    }
}
