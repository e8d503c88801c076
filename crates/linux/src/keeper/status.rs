//! What the keeper tells about its connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// All connections, past and present.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Sums, by service.
    pub services: BTreeMap<String, ServiceStatus>,
    /// The connections that live, by number.
    pub connections: Vec<ConnectionStatus>,
    /// The last ones that ended, at most [`ENDED_MAX`], oldest first.
    pub ended: Vec<EndedStatus>,
}

impl Status {
    /// Adds what another keeper tells about its connections.
    pub fn add(&mut self, other: Self) {
        for (name, theirs) in other.services {
            let sums = self.services.entry(name).or_default();
            sums.adopted += theirs.adopted;
            sums.live += theirs.live;
            sums.refused += theirs.refused;
            sums.quarantined += theirs.quarantined;
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

    /// The same without the connections one by one.
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

    /// The status to report when the keeper is gone, and its connections with it.
    #[must_use]
    pub fn of_the_past(mut self) -> Self {
        self.connections.clear();
        for sums in self.services.values_mut().filter(|sums| sums.live > 0) {
            *sums.ended.entry(Ending::KeeperLost).or_default() += std::mem::take(&mut sums.live);
        }
        self
    }
}

/// How many ended connections are remembered one by one.
pub const ENDED_MAX: usize = 256;

/// Sums over the connections of one service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Connections adopted so far.
    pub adopted: u64,
    /// Those that live.
    pub live: u64,
    /// Those that ended, and how.
    pub ended: BTreeMap<Ending, u64>,
    /// Requests that were answered 503, since they may have been executed and must not be again.
    pub refused: u64,
    /// Requests on which the application failed when they were executed again; not executed a third time.
    pub quarantined: u64,
    /// Bytes passed to the application, of connections that ended.
    pub to_application: u64,
    /// Bytes passed to clients, of connections that ended.
    pub to_client: u64,
}

/// A connection that lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// As adopted.
    pub id: u64,
    /// The service's name.
    pub service: String,
    /// The client.
    pub client: SocketAddr,
    /// What it is at.
    pub state: State,
    /// Bytes passed to the application, logged ones included.
    pub to_application: u64,
    /// Bytes passed to the client.
    pub to_client: u64,
    /// As adopted, while the client has said nothing.
    pub syn_ack: Option<Vec<u8>>,
}

/// What a connection is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing is owed; the application is asked when the client speaks.
    Idle,
    /// Connecting to the application.
    Connecting,
    /// The application says again what the client has.
    Resuming,
    /// Bytes pass both ways.
    Relaying,
    /// One direction has ended.
    HalfClosed,
}

/// A connection that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedStatus {
    /// As adopted.
    pub id: u64,
    /// The service's name.
    pub service: String,
    /// The client.
    pub client: SocketAddr,
    /// How.
    pub ending: Ending,
    /// Why, as a phrase; empty if it ended as connections do.
    pub reason: String,
    /// Bytes passed to the application.
    pub to_application: u64,
    /// Bytes passed to the client.
    pub to_client: u64,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Both sides closed.
    Closed,
    /// The client reset it, or cannot be reached.
    ClientLost,
    /// The client was silent for too long after its output had ended.
    Lingered,
    /// The application could not be connected to: reset.
    ApplicationUnreachable,
    /// The application reset it: so was the client.
    ApplicationLost,
    /// The regenerated reply was another one: reset.
    Mismatch,
    /// The keeper could not go on by itself (its own sockets, the logged input): reset.
    Failed,
    /// The keeper was stopped: reset.
    Stopped,
    /// The keeper was killed, or there was none to be had: reset when the client says something.
    KeeperLost,
}

impl Ending {
    /// The client saw a reset.
    pub const fn is_reset(self) -> bool {
        match self {
            Self::Closed | Self::ClientLost | Self::Lingered => false,
            Self::ApplicationUnreachable
            | Self::ApplicationLost
            | Self::Mismatch
            | Self::Failed
            | Self::Stopped
            | Self::KeeperLost => true,
        }
    }
}
