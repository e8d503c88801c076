//! The keeper's report on its connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// The keeper's report: sums over all connections, the live connections, and the connections that ended last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperStatus {
    /// Sums, by service.
    pub services: BTreeMap<String, KeeperServiceStatus>,
    /// The live connections, sorted by id for each keeper.
    pub connections: Vec<KeeperConnectionStatus>,
    /// The connections that ended last, at most [`ENDED_MAX`], oldest first for each keeper.
    pub ended: Vec<EndedStatus>,
}

impl KeeperStatus {
    /// Adds another keeper's report.
    pub fn add(&mut self, other: Self) {
        for (name, theirs) in other.services {
            let sums = self.services.entry(name).or_default();
            sums.adopted += theirs.adopted;
            sums.live += theirs.live;
            sums.refused += theirs.refused;
            sums.quarantined += theirs.quarantined;
            sums.kept += theirs.kept;
            sums.kept_given_up += theirs.kept_given_up;
            sums.to_application += theirs.to_application;
            sums.to_client += theirs.to_client;
            for (ending, count) in theirs.ended {
                *sums.ended.entry(ending).or_default() += count;
            }
        }
        self.connections.extend(other.connections);
        self.ended.extend(other.ended);
        let too_many = self.ended.len().saturating_sub(ENDED_MAX);
        self.ended.drain(..too_many);
    }

    /// This status without the list of live connections.
    #[must_use]
    pub fn sums(&self) -> Self {
        Self {
            services: self.services.clone(),
            connections: Vec::new(),
            ended: self.ended.clone(),
        }
    }

    /// Adds `count` connections of `service` that were given to this keeper but are not in its report.
    pub fn add_unseen(&mut self, service: &str, count: u64) {
        let sums = self.services.entry(service.to_owned()).or_default();
        sums.adopted += count;
        sums.live += count;
    }

    /// The status to report after the keeper died: its live connections count as ended by [`ConnectionEnding::KeeperLost`].
    #[must_use]
    pub fn of_the_past(mut self) -> Self {
        self.connections.clear();
        for sums in self.services.values_mut().filter(|sums| sums.live > 0) {
            *sums.ended.entry(ConnectionEnding::KeeperLost).or_default() += std::mem::take(&mut sums.live);
            sums.kept = 0;
        }
        self
    }
}

/// The keeper's report for an asker that knows an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StatusUpdate {
    /// The report's number.
    pub number: u64,
    /// Whether the report names all live connections, because the keeper cannot tell what has changed.
    pub is_whole: bool,
    /// The connections that have ended since the report that the asker knows.
    pub gone: Vec<u64>,
    /// The report. Among the live connections, it has only those that have begun or changed.
    pub changed: KeeperStatus,
}

/// The last report that an asker has got, as a whole.
#[derive(Debug, Default)]
pub(super) struct KnownStatus {
    number: u64,
    connections: BTreeMap<u64, KeeperConnectionStatus>,
}

impl KnownStatus {
    /// The report's number. 0: none is known.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Takes the next report. Returns it as a whole.
    pub fn take(&mut self, update: StatusUpdate) -> KeeperStatus {
        let StatusUpdate {
            number,
            is_whole,
            gone,
            mut changed,
        } = update;
        self.number = number;
        if is_whole {
            self.connections.clear();
        }
        let named = changed.connections.into_iter();
        self.connections.extend(named.map(|one| (one.id, one)));
        for id in gone {
            self.connections.remove(&id);
        }
        changed.connections = self.connections.values().cloned().collect();
        changed
    }
}

/// Maximum number of ended connections that are listed.
pub const ENDED_MAX: usize = 256;

/// Sums over the connections of one service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperServiceStatus {
    /// Connections adopted so far.
    pub adopted: u64,
    /// Live connections.
    pub live: u64,
    /// Number of connections that ended, by the kind of ending.
    pub ended: BTreeMap<ConnectionEnding, u64>,
    /// Requests that were answered 503: they may have been executed and must not be executed again, or the application could not be
    /// reached.
    pub refused: u64,
    /// Requests during whose second execution the application failed. They are not executed a third time.
    pub quarantined: u64,
    /// Live connections whose whole input is kept.
    pub kept: u64,
    /// Connections whose input was given up, because it reached a limit.
    pub kept_given_up: u64,
    /// Bytes passed to the application on connections that have ended.
    pub to_application: u64,
    /// Bytes passed to clients on connections that have ended.
    pub to_client: u64,
}

/// A live connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperConnectionStatus {
    /// The number given in the adoption.
    pub id: u64,
    /// The service's name.
    pub service: String,
    /// The client.
    pub client: SocketAddr,
    /// The state of the connection's relay.
    pub state: RelayState,
    /// Bytes passed to the application, logged ones included.
    pub to_application: u64,
    /// Bytes passed to the client.
    pub to_client: u64,
    /// The SYN-ACK given in the adoption, as long as the client has sent nothing.
    pub syn_ack: Option<Vec<u8>>,
}

/// The state of a connection's relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayState {
    /// No reply is owed. The relay connects to the application when the client sends something.
    Idle,
    /// Connecting to the application.
    Connecting,
    /// The application repeats the part of a reply that the client already has.
    Resuming,
    /// Bytes pass both ways.
    Relaying,
    /// One direction has ended.
    HalfClosed,
}

/// A connection that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedStatus {
    /// The number given in the adoption.
    pub id: u64,
    /// The service's name.
    pub service: String,
    /// The client.
    pub client: SocketAddr,
    /// How the connection ended.
    pub ending: ConnectionEnding,
    /// Why it ended, as a phrase. Empty if the end was normal.
    pub reason: String,
    /// Bytes passed to the application.
    pub to_application: u64,
    /// Bytes passed to the client.
    pub to_client: u64,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionEnding {
    /// Both sides closed.
    Closed,
    /// The client reset the connection, or cannot be reached.
    ClientLost,
    /// The output to the client had ended, and then the client sent nothing, not even its FIN, for too long.
    Lingered,
    /// The relay could not connect to the application. The client got a reset.
    ApplicationUnreachable,
    /// The application reset its connection. The client got a reset too.
    ApplicationLost,
    /// The regenerated reply differed from the logged one. The client got a reset.
    Mismatch,
    /// The keeper failed, for example with its own sockets or the logged input. The client got a reset.
    Failed,
    /// The keeper was stopped. The client got a reset.
    Stopped,
    /// The keeper was killed, or no keeper could be started. The client gets a reset when it sends something.
    KeeperLost,
    /// The application did not generate again what the client already has (`proto::restart::catch_up`). The client got a reset.
    NeverCaughtUp,
}

impl ConnectionEnding {
    /// Whether the client gets a reset.
    pub const fn is_reset(self) -> bool {
        match self {
            Self::Closed | Self::ClientLost | Self::Lingered => false,
            Self::ApplicationUnreachable
            | Self::ApplicationLost
            | Self::Mismatch
            | Self::Failed
            | Self::Stopped
            | Self::KeeperLost
            | Self::NeverCaughtUp => true,
        }
    }
}
