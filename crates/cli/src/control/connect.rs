//! The status of a proxy and of a server's half, as the control socket gives it.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::MigrationStatus;

/// The status of a proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectStatus {
    /// Its name.
    pub name: String,
    /// Whether links are sealed with a key.
    pub sealed: bool,
    /// Its services, in the order of the configuration.
    pub services: Vec<ConnectServiceStatus>,
}

/// A service in a [`ConnectStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectServiceStatus {
    /// Its name.
    pub name: String,
    /// Address at which client programs connect.
    pub listen: SocketAddr,
    /// Its open sessions.
    pub sessions: Vec<SessionStatus>,
    /// Sessions that were opened.
    pub opened: u64,
    /// Plain connections: no server spoke the protocol.
    pub plain: u64,
    /// Client programs that were refused.
    pub refused: u64,
    /// Sessions that were lost.
    pub lost: u64,
    /// Bytes from client programs.
    pub sent_bytes: u64,
    /// Bytes to client programs.
    pub received_bytes: u64,
    /// What has become of moves. `stayed` counts attempts that failed.
    pub migrations: MigrationStatus,
}

/// A session in a [`ConnectServiceStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// The client program.
    pub client: SocketAddr,
    /// The server that owns the session.
    pub server: String,
    /// `served`, `moving`, `released` (a server is sought) or `seeking` (the owner is lost).
    pub phase: String,
    /// Bytes from the client program.
    pub sent_bytes: u64,
    /// Bytes to the client program.
    pub received_bytes: u64,
}

/// The status of a server's half.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptStatus {
    /// Its name among the cooperating servers.
    pub name: String,
    /// Whether links are sealed with a key.
    pub sealed: bool,
    /// Whether its sessions are asked to leave, and new ones are refused.
    pub draining: bool,
    /// Sessions that were refused.
    pub refused: u64,
    /// Its services, in the order of the configuration.
    pub services: Vec<AcceptServiceStatus>,
    /// All sessions of which it has something.
    pub sessions: Vec<AcceptedSessionStatus>,
}

/// A service in an [`AcceptStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptServiceStatus {
    /// Its name.
    pub name: String,
    /// Address of the application.
    pub application: SocketAddr,
    /// Sessions that began here.
    pub opened: u64,
    /// Sessions that came from another server, or came back.
    pub came: u64,
    /// Sessions that left: another server owns them, or the lease has ended.
    pub left: u64,
    /// Sessions that ended here.
    pub ended: u64,
    /// Attempts to connect to the application that failed.
    pub failed: u64,
    /// Bytes to the application.
    pub received_bytes: u64,
    /// Bytes from the application.
    pub sent_bytes: u64,
}

/// A session in an [`AcceptStatus`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedSessionStatus {
    /// Its identity, in hexadecimal.
    pub session: String,
    /// Its service. `None`: a copy of another server's session.
    pub service: Option<String>,
    /// The proxy's end of the link.
    pub proxy: Option<SocketAddr>,
    /// `owner`; `parked`: this server has been the owner, and keeps the state; `prepared`: this server can become the owner; `empty`: the
    /// state has not come yet; `copy`: this server keeps snapshots that the owner has pushed.
    pub state: String,
    /// The epoch in which this server owns the session, or has owned it last. Of a copy: the owner's epoch.
    pub epoch: u64,
    /// Number of snapshots that are kept.
    pub snapshots: u64,
    /// Bytes of the snapshots' states.
    pub snapshot_bytes: u64,
    /// Bytes of input and output that are kept.
    pub log_bytes: u64,
    /// End of the input, in bytes since the session's start.
    pub received_bytes: u64,
    /// End of the output, in bytes since the session's start.
    pub sent_bytes: u64,
}

impl AcceptStatus {
    /// Number of sessions that would be lost if the server stopped now: it owns them, or only it may have their state.
    pub fn sessions_here(&self) -> usize {
        let is_here =
            |session: &&AcceptedSessionStatus| ["owner", "parked"].contains(&session.state.as_str());
        self.sessions.iter().filter(is_here).count()
    }
}
