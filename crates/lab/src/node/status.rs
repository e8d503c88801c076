//! What a daemon says of itself, as far as the lab reads it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use proto::Instant;
use serde::{Deserialize, Serialize};

/// What the lab reads of `steadfast status --json`. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The services; the lab has one.
    pub services: Vec<Service>,
}

/// A service in [`Status`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Service {
    /// What the node is for it now.
    #[serde(default)]
    pub role: String,
    /// The same in detail.
    #[serde(default)]
    pub state: String,
    /// What it became lately, the latest last.
    #[serde(default)]
    pub history: Vec<StateSince>,
    /// `duplex` or `simplex`.
    pub mode: String,
    /// How often who speaks for it has changed.
    #[serde(default)]
    pub epoch: u64,
    /// How many connections are how well protected.
    pub connections: BTreeMap<String, u64>,
    /// Why those that are not protected are not, and how many.
    #[serde(default)]
    pub reasons: BTreeMap<String, u64>,
    /// Whether these are all.
    pub connections_complete: bool,
    /// The takeovers so far.
    pub takeovers: Vec<Takeover>,
    /// Whether the state of the replica's server is the primary's, of a wire that has to see to that.
    #[serde(default)]
    pub state_sync: Option<StateSync>,
    /// Bytes that the log takes.
    #[serde(default)]
    pub log_bytes: u64,
    /// Bytes of it that are in files.
    #[serde(default)]
    pub spilled_bytes: u64,
    /// Connections whose clients are slowed.
    #[serde(default)]
    pub slowed: u64,
    /// Bytes that are in the rings and not yet read.
    #[serde(default)]
    pub ring_fill_bytes: u64,
    /// What was counted, by reason.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
}

/// What a node became for a [`Service`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StateSince {
    /// When.
    pub at_ns: u64,
    /// What.
    pub state: String,
}

/// The state of a replica's server in [`Service`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StateSync {
    /// Whether it is the primary's.
    pub synced: bool,
    /// Why it is not, if that is known.
    pub error: Option<String>,
}

/// A takeover in [`Service`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Takeover {
    /// When the primary was declared dead.
    pub declared_ns: u64,
    /// When its packets were shut out.
    pub gate_closed_ns: Option<u64>,
    /// When the first connection could go on.
    pub first_live_ns: Option<u64>,
    /// When the last connection could go on.
    pub last_live_ns: Option<u64>,
    /// Connections that there were.
    pub connections: u64,
    /// Connections that go on.
    pub restored: u64,
    /// Connections that got a RST.
    pub reset: u64,
}

impl Takeover {
    /// Whether every connection has been decided.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.restored + self.reset >= self.connections
    }
}

/// What the lab reads of `steadfast connections --restored --json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Connection {
    /// The client's end.
    pub client: SocketAddr,
    /// When it could go on.
    pub live_ns: u64,
}

impl Status {
    /// When the node became that for the lab's service the last time.
    #[must_use]
    pub fn became(&self, state: &str) -> Option<Instant> {
        let history = &self.services.first()?.history;
        let since = history.iter().rfind(|since| since.state == state)?;
        Some(Instant::from_nanos(since.at_ns))
    }

    /// How often who speaks for the lab's service has changed.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.services.first().map_or(0, |service| service.epoch)
    }

    /// Whether every service is protected by both nodes.
    #[must_use]
    pub fn is_duplex(&self) -> bool {
        self.services.iter().all(|service| service.mode == "duplex")
    }

    /// Whether the node is the wire of every service.
    #[must_use]
    pub fn is_wire(&self) -> bool {
        self.services.iter().all(|service| service.state == "backup")
    }

    /// Whether no service's replica lacks the primary's state.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        let is_synced = |service: &Service| service.state_sync.as_ref().is_none_or(|sync| sync.synced);
        self.services.iter().all(is_synced)
    }

    /// Whether there are connections, each of them is known, and each would be continued.
    #[must_use]
    pub fn protects_all(&self) -> bool {
        let protects = |service: &Service| {
            let mut others = service
                .connections
                .iter()
                .filter(|(kind, _)| *kind != "protected");
            service.connections_complete
                && service.connections.get("protected") > Some(&0)
                && others.all(|(_, count)| *count == 0)
        };
        self.services.iter().all(protects)
    }

    /// Whether the node claims to speak for the lab's service.
    #[must_use]
    pub fn speaks(&self) -> bool {
        self.services.iter().any(|service| service.role == "primary")
    }

    /// Connections that its keeper has got so far.
    #[must_use]
    pub fn kept(&self) -> u64 {
        let counters = self.services.first().map(|service| &service.counters);
        counters
            .and_then(|counters| counters.get("relayed_adopted"))
            .copied()
            .unwrap_or(0)
    }

    /// Whether the node goes on alone, and has claimed the address if it had to.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.services.iter().all(|service| service.state == "sole")
    }

    /// The takeovers of the lab's service, in order of time.
    #[must_use]
    pub fn takeovers(&self) -> &[Takeover] {
        self.services.first().map_or(&[], |service| &service.takeovers)
    }
}
