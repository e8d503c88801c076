//! The status of a proxy, as the control socket gives it.

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
