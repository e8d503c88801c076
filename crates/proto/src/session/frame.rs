//! The messages on a link between a client's proxy and a server, and between two servers. `steadfast` turns them into bytes.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::certificate::{Certificate, CertificateProof, SessionId, SessionSecret};
use crate::Offset;
use crate::restart::replay::Repetition;
use crate::restart::snapshot::Snapshot;

/// Where a session's state is for its next owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StateTransfer {
    /// The next owner fetches it from the present one. If the present owner fails, the session ends.
    #[default]
    Lazy,
    /// The owner pushes each snapshot to its cooperating servers. The session survives the owner's failure.
    Eager,
    /// The client's proxy keeps the snapshots. The session survives the failure of all servers that it has used.
    Client,
}

/// A snapshot without its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotMark {
    /// Its number. 0 is the session's start, which has no state.
    pub number: u64,
    /// End of the input that it covers.
    pub input: Offset,
    /// End of the output that it covers.
    pub output: Offset,
}

impl SnapshotMark {
    /// The mark of this snapshot.
    pub const fn of(snapshot: &Snapshot) -> Self {
        Self {
            number: snapshot.number,
            input: snapshot.input,
            output: snapshot.output,
        }
    }

    /// The snapshot with this mark and this state.
    pub const fn with_state(self, state: Arc<[u8]>) -> Snapshot {
        Snapshot {
            number: self.number,
            input: self.input,
            output: self.output,
            state,
        }
    }
}

/// A server that can take sessions over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CooperatingServer {
    /// Its name.
    pub name: String,
    /// Where it accepts sessions.
    pub address: SocketAddr,
}

/// Messages of a client's proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientFrame {
    /// A new session with this service.
    Open {
        /// The service's name.
        service: String,
        /// Where the session's state is kept.
        transfer: StateTransfer,
    },
    /// The server is to prepare itself to own the session.
    Attach(AttachRequest),
    /// The server owns the session from now on.
    Commit(SessionCommit),
    /// Input from the client program.
    Data {
        /// Offset of the first byte.
        at: Offset,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The input ends here.
    End(Offset),
    /// The client program's socket has taken the output up to here.
    Ack {
        /// End of this output.
        output: Offset,
        /// Number of the proxy's restart point.
        point: u64,
    },
    /// Answer to a ping.
    Pong(u64),
    /// The server is to stop the session's application, and to keep the state.
    Release,
    /// The server can forget the session: it has ended, or has another owner.
    Close,
}

/// The wish to move a session to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachRequest {
    /// The right to it.
    pub certificate: Certificate,
    /// The proof for this link and epoch.
    pub proof: CertificateProof,
    /// The session's next epoch, if the proxy commits.
    pub epoch: u64,
    /// The session's present epoch.
    pub current: u64,
    /// The server that owns the session in the present epoch.
    pub owner: String,
    /// Whether the server is to fetch the state from the owner.
    pub fetches: bool,
    /// Where the session's state is kept.
    pub transfer: StateTransfer,
    /// The proxy's restart point.
    pub point: SnapshotMark,
}

/// The proxy's decision that a server owns the session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCommit {
    /// The session's epoch from now on.
    pub epoch: u64,
    /// End of the output that the proxy has.
    pub received: Offset,
    /// The output after the server's restart point that the proxy has, and that the application repeats.
    pub repetition: Repetition,
    /// The restart point's state, if the proxy keeps it.
    #[serde(with = "crate::whole::optional")]
    pub state: Option<Arc<[u8]>>,
}

/// What a prepared server would go on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionBasis {
    /// The state of the owner, which runs no application any more, or of the server itself. It is the last state of all epochs up to this
    /// one.
    Last(u64),
    /// A snapshot that the owner pushed, or that the proxy has. The owner may be running.
    Copy,
}

/// A server's offer to own a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyOffer {
    /// The epoch of the request.
    pub epoch: u64,
    /// What the server would go on from.
    pub basis: SessionBasis,
    /// The restart point.
    pub point: SnapshotMark,
    /// The input that the server needs begins here.
    pub input: Offset,
    /// The server can send output from here on.
    pub output: Offset,
    /// The application runs, so it repeats nothing.
    pub runs: bool,
}

/// Messages of a server to a client's proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerFrame {
    /// The session is open.
    Opened {
        /// The right to move the session.
        certificate: Certificate,
        /// What proves this right.
        secret: SessionSecret,
        /// The servers to which the session can move.
        servers: Vec<CooperatingServer>,
        /// This server's name.
        owner: String,
        /// For how long the server owns the session after it has sent a message that was answered, in milliseconds.
        lease_ms: u64,
    },
    /// The server is prepared.
    Ready(ReadyOffer),
    /// The server does not do what was asked, for this reason.
    Refused(String),
    /// Output from the application.
    Data {
        /// Offset of the first byte.
        at: Offset,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The output ends here.
    End(Offset),
    /// The application's socket has taken the input up to here.
    Ack(Offset),
    /// A snapshot from which the session can go on elsewhere.
    Snapshot {
        /// The snapshot.
        mark: SnapshotMark,
        /// Its state, if the proxy is to keep it.
        #[serde(with = "crate::whole::optional")]
        state: Option<Arc<[u8]>>,
    },
    /// Asks for a pong.
    Ping(u64),
    /// The session's application does not run any more, and all its output was sent before.
    Released,
    /// The server has too much to do: the session should move.
    Shed,
    /// The application has aborted the session.
    Reset,
}

/// All that the next owner needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionBundle {
    /// It is the last state of all epochs up to this one.
    pub epoch: u64,
    /// The restart point.
    pub point: Snapshot,
    /// The input after the restart point.
    #[serde(with = "serde_bytes")]
    pub input: Vec<u8>,
    /// End of the input, if the client program has ended it.
    pub input_end: Option<Offset>,
    /// Where the output before the restart point begins that the proxy may not have.
    pub output_from: Offset,
    /// This output.
    #[serde(with = "serde_bytes")]
    pub output: Vec<u8>,
    /// End of the output, if the application has ended it.
    pub output_end: Option<Offset>,
    /// The application has closed its connection in order. Then `output` has all of the output, and no application is started.
    pub is_done: bool,
}

/// Messages between two servers. One server asks, and the other one answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CooperationFrame {
    /// First message of a server that asks.
    Hello(CertificateProof),
    /// Asks for a session's state, for this epoch.
    Fetch(SessionId, u64),
    /// Answer: the state, or why there is none.
    Bundle(Result<Box<SessionBundle>, String>),
    /// A snapshot of a session.
    Push {
        /// The session.
        session: SessionId,
        /// The session's epoch.
        epoch: u64,
        /// The snapshot.
        snapshot: Snapshot,
        /// Number of the proxy's restart point. Earlier snapshots can be forgotten.
        point: u64,
    },
    /// Answer: the snapshot is kept.
    Kept,
    /// The session has ended.
    Ended(SessionId),
}
