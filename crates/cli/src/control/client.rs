//! The operator's side of the control socket.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::line::LineStream;
use super::{
    AcceptStatus, AnnexDaemonStatus, ConnectStatus, Connections, ControlRequest, EdgeStatus, NodeStatus,
    Order, Response, RestoredConnections, TunnelStatus, socket,
};

/// Timeout for the whole exchange. Longer than the node's own limit, so that the node's error arrives.
const DEADLINE: Duration = Duration::from_secs(10);

/// Maximum length of an answer, in bytes: about a million connections.
const ANSWER: usize = 256 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlClientError {
    /// The socket cannot be connected: no node listens, or this process may not open the socket (`source`).
    #[error("cannot reach steadfast at {}: {source}", path.display())]
    NoNode {
        /// The socket.
        path: PathBuf,
        /// Why the connection failed.
        source: io::Error,
    },
    /// The connection failed.
    #[error("control socket {}: {source}", path.display())]
    Connection {
        /// The socket.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The answer is not in the format of this program's version.
    #[error("the answer of {} is not understood: {source}", path.display())]
    Answer {
        /// The socket.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The node refuses the request.
    #[error("the node answers: {0}")]
    Refused(String),
}

/// Asks the node with this state directory for its status.
///
/// # Errors
/// If there is no such node, or it does not answer properly.
pub fn status(state_dir: &Path) -> Result<NodeStatus, ControlClientError> {
    ask(state_dir, ControlRequest::Status)
}

/// Asks the node with this state directory for its connections.
///
/// # Errors
/// If there is no such node, or it does not answer properly.
pub fn connections(state_dir: &Path) -> Result<Connections, ControlClientError> {
    ask(state_dir, ControlRequest::Connections)
}

/// Asks the node with this state directory about the connections that it has taken over.
///
/// # Errors
/// If there is no such node, or it does not answer properly.
pub fn restored(state_dir: &Path) -> Result<RestoredConnections, ControlClientError> {
    ask(state_dir, ControlRequest::Restored)
}

/// Asks the edge with this state directory for its status.
///
/// # Errors
/// If there is no such edge, or it does not answer properly.
pub fn edge_status(state_dir: &Path) -> Result<EdgeStatus, ControlClientError> {
    ask(state_dir, ControlRequest::Edge)
}

/// Asks the annex with this state directory for its status.
///
/// # Errors
/// If there is no such annex, or it does not answer properly.
pub fn annex_status(state_dir: &Path) -> Result<AnnexDaemonStatus, ControlClientError> {
    ask(state_dir, ControlRequest::Annex)
}

/// Asks the tunnel with this state directory for its status.
///
/// # Errors
/// If there is no such tunnel, or it does not answer properly.
pub fn tunnel_status(state_dir: &Path) -> Result<TunnelStatus, ControlClientError> {
    ask(state_dir, ControlRequest::Tunnel)
}

/// Asks the proxy with this state directory for its status.
///
/// # Errors
/// If there is no such proxy, or it does not answer properly.
pub fn connect_status(state_dir: &Path) -> Result<ConnectStatus, ControlClientError> {
    ask(state_dir, ControlRequest::Connect)
}

/// Asks the server's half with this state directory for its status.
///
/// # Errors
/// If there is no such half, or it does not answer properly.
pub fn accept_status(state_dir: &Path) -> Result<AcceptStatus, ControlClientError> {
    ask(state_dir, ControlRequest::Accept)
}

/// Gives an order to the node with this state directory. The node has begun to carry it out when this returns.
///
/// # Errors
/// If there is no such node, or it does not answer properly, or refuses the order.
pub fn order(state_dir: &Path, order: Order) -> Result<(), ControlClientError> {
    ask(state_dir, ControlRequest::Order(order))
}

fn ask<T: DeserializeOwned>(state_dir: &Path, request: ControlRequest) -> Result<T, ControlClientError> {
    let path = socket(state_dir);
    let stream = match UnixStream::connect(&path) {
        Ok(stream) => stream,
        Err(source) => return Err(ControlClientError::NoNode { path, source }),
    };
    let request = serde_json::to_vec(&request).expect("a request has string keys only");
    let mut stream = LineStream::new(stream, DEADLINE);
    let line = match stream.write(request).and_then(|()| stream.read(ANSWER)) {
        Ok(line) => line,
        Err(source) => return Err(ControlClientError::Connection { path, source }),
    };
    match serde_json::from_slice(&line) {
        Ok(Response::Ok(answer)) => Ok(answer),
        Ok(Response::Error(error)) => Err(ControlClientError::Refused(error)),
        Err(source) => Err(ControlClientError::Answer { path, source }),
    }
}
