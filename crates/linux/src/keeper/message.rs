//! The messages between agent and keeper.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use proto::Seq;
use proto::connection::OutputEnd;
use proto::restart::prefix::{KeepLimits, PrefixAnswer, PrefixAsk};
use proto::restart::{http, replay, replica};
use serde::{Deserialize, Serialize};

use super::status::StatusUpdate;

/// A restored connection that the keeper is to own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adoption {
    /// Unique among the connections of one keeper.
    pub id: u64,
    /// The service's name.
    pub service: String,
    /// The client.
    pub client: SocketAddr,
    /// The VIP and port.
    pub vip: SocketAddr,
    /// The address at which the local application listens.
    pub application: SocketAddr,
    /// How the application's side goes on.
    pub plan: AdoptionPlan,
    /// Whether the old server received and acknowledged the client's FIN. If so, the input ends with the logged input, although the kernel
    /// of this node does not know of that FIN.
    pub input_ended: bool,
    /// Whether the server's FIN was sent. After a FIN, output must not be sent. The keeper sends an unacknowledged FIN again at once. If
    /// the FIN was acknowledged, the keeper closes the socket without sending anything, because the kernel does not know of that FIN.
    pub output: OutputEnd,
    /// Number of output bytes, counted from the first one that the client is to get, that the socket must take as already sent: the client
    /// may have them (commit mode `pr`).
    pub sent_before: u64,
    /// How much of the connection's input the keeper may keep for a node that becomes the cold backup. `None`: nothing is kept. Only with a
    /// plan that begins at the connection's start.
    pub keep: Option<KeepInput>,
    /// The SYN-ACK, if the client has sent nothing since. Until the client sends something, the keeper keeps the
    /// SYN-ACK for a later agent.
    pub syn_ack: Option<Vec<u8>>,
}

/// How much input the keeper may keep for all connections of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepInput {
    /// In memory.
    pub limits: KeepLimits,
    /// The directory for files with input beyond that, and the most bytes that these files may hold. `None`: nothing is kept beyond that.
    pub files: Option<(PathBuf, u64)>,
}

/// How the application's side of a connection goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdoptionPlan {
    /// A fresh application connection gets the logged input from the restart point on, then what the client sends.
    Http {
        /// The part of the reply that the client already has.
        resume: http::HttpResume,
        /// Header fields that may differ.
        volatile: http::Volatile,
        /// Whether to make the client use a new connection. The next reply that can be the last one says
        /// `Connection: close`, and this connection ends after that reply.
        closes: bool,
    },
    /// The replica's connection goes on. The replica gets the logged input that it has not been fed yet, then what the client sends.
    Replica {
        /// Whether the replica's or the primary's output is ahead, and by which bytes.
        resume: replica::ReplicaResume,
    },
    /// A fresh application connection gets the logged input from the restart point on, then what the client sends.
    Replay {
        /// The output that the application must repeat.
        resume: replay::Repetition,
        /// The output that the application must repeat before that.
        earlier: Option<replay::EarlierOutput>,
        /// The state that the application imports first. `None`: the restart point is the connection's start.
        #[serde(with = "proto::whole::optional")]
        state: Option<Arc<[u8]>>,
        /// The sequence numbers of the first byte that the application reads and of the first one that it writes.
        begins_at: (Seq, Seq),
    },
    /// Nothing is to be relayed any more: the output ends, and what the client still sends is dropped.
    Silent,
}

impl AdoptionPlan {
    /// Whether the application gets new input from the client after the logged input.
    pub(super) const fn takes_input(&self) -> bool {
        match self {
            Self::Http { resume, .. } => resume.takes_input(),
            Self::Replica { .. } | Self::Replay { .. } => true,
            Self::Silent => false,
        }
    }
}

/// A message from the agent. For the agent, `A` is a reference to an [`Adoption`], so the agent still has the adoption after it has sent
/// the message. If one keeper cannot take the connection, the agent can give the connection to another keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum KeeperRequest<A = Adoption> {
    /// The message carries the client's socket, the replica's socket if the plan has one, and the logged input as a blob.
    Adopt(Box<A>),
    /// Asks for a report. `known`: number of the last report that the asker has got from this keeper, or 0.
    Status {
        known: u64,
    },
    /// Asks where an application's reading and writing began in the client's streams. `peer` as for `Import`.
    Begin {
        peer: SocketAddr,
        application: SocketAddr,
    },
    /// Asks for the state that the application is to import for one connection. `peer` is the remote address that the application sees:
    /// the keeper's address and port.
    Import {
        peer: SocketAddr,
        application: SocketAddr,
    },
    /// Asks for kept input of a connection of this service.
    Prefix {
        service: String,
        ask: PrefixAsk,
    },
    Stop,
}

/// A message to the agent, one for each request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum KeeperAnswer {
    Adopted,
    Refused(String),
    Status(StatusUpdate),
    /// The sequence numbers of the first byte that the application has read and of the first one that it has written. `None`: the keeper
    /// has no such connection, or its application has not begun at a restart point.
    Begin(Option<(Seq, Seq)>),
    /// The state. `None`: the keeper has no such connection, or it began without a state.
    State(#[serde(with = "proto::whole::optional")] Option<Arc<[u8]>>),
    /// The kept input. `None`: the keeper has no such connection.
    Prefix(Option<PrefixAnswer>),
    Stopping,
}
