//! Messages between a wire and a node that takes connections of its service (docs/annex.md), over a link ([`super::super::sealed`]).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use proto::annex::AnnexId;
use proto::connection::Endpoint;
use proto::hosting::HostGreeting;
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
    /// To an annex: the number of the wire's last take-back (`proto::carried`).
    TakeBack(u64),
    /// To the primary: where connections live. `None`: on the primary, or nowhere.
    Lives {
        /// Clients, and the annexes that have their connections.
        places: Vec<(SocketAddr, Option<AnnexId>)>,
        /// These are all that do not live on the primary.
        is_all: bool,
    },
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
    /// What the receiver decides about.
    pub greeting: HostGreeting,
}

/// To the wire.
#[derive(Debug, Serialize, Deserialize)]
pub enum AnnexReply {
    /// The answer to `Hello`.
    Welcome {
        /// The sender's MAC address on the service interface.
        mac: [u8; 6],
        /// The clients whose connections it has.
        has: Vec<SocketAddr>,
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
    /// There is no socket of this client any more.
    Dropped(SocketAddr),
    /// The socket speaks, and has woken its client.
    Live(SocketAddr),
    /// The answer to `Ping`.
    Pong,
}
