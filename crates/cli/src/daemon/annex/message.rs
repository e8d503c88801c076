//! Messages between a wire and a node that takes connections of its service (docs/annex.md), over a link ([`super::super::sealed`]).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use proto::connection::Endpoint;
use serde::{Deserialize, Serialize};

use crate::daemon::relay::PlannedContent;

/// Wakes the loop of an agent.
pub type WakeAgent = Arc<dyn Fn() + Send + Sync>;

/// Marks a link of this version.
pub const MAGIC: [u8; 4] = *b"SFA2";
/// The only kind of frame.
pub const MESSAGE: u8 = 1;

/// From the wire.
#[derive(Debug, Serialize, Deserialize)]
pub enum AnnexRequest {
    /// The first message.
    Hello(WireHello),
    /// Make a socket.
    Restore {
        /// From this state.
        endpoint: Box<Endpoint>,
        /// The output that the client has not acknowledged.
        output: Vec<u8>,
        /// The wire's clock, in nanoseconds.
        now: u64,
    },
    /// Let the socket speak, and give it to the relay.
    Start(Box<StartRequest>),
    /// Close the socket without sending anything.
    Drop(SocketAddr),
    /// The wire lives.
    Ping,
}

/// Lets a socket speak.
#[derive(Debug, Serialize, Deserialize)]
pub struct StartRequest {
    /// The client.
    pub client: SocketAddr,
    /// The input that was logged since the socket was made.
    pub late: Vec<u8>,
    /// The socket need not send anything at once.
    pub is_quiet: bool,
    /// How the application's side goes on.
    pub content: PlannedContent,
}

/// Says who the wire is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WireHello {
    /// The service.
    pub vip: SocketAddr,
    /// The wire's MAC address on the service interface.
    pub mac: [u8; 6],
    /// The wire's address on the service interface, of the VIP's family.
    pub address: IpAddr,
    /// The clients whose connections the receiver has. It drops all others.
    pub guests: Vec<SocketAddr>,
}

/// To the wire.
#[derive(Debug, Serialize, Deserialize)]
pub enum AnnexReply {
    /// The answer to `Hello`.
    Welcome {
        /// The sender's MAC address on the service interface.
        mac: [u8; 6],
    },
    /// The socket is made.
    Restored(SocketAddr),
    /// The connection cannot be had, or is lost.
    Refused {
        /// The client.
        client: SocketAddr,
        /// Why.
        reason: String,
    },
    /// The socket speaks, and has woken its client.
    Live(SocketAddr),
    /// The answer to `Ping`.
    Pong,
}
