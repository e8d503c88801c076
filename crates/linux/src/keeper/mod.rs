//! The keeper: a minimal process that owns the sockets of restored connections and relays each to the local application.
//!
//! ```text
//!   client ⇄ restored socket ⇄ [ keeper: resume, then copy ] ⇄ socket from the client's address ⇄ application
//!                                    ▲ adopt(socket, plan, logged input)
//!                                  agent
//! ```
//!
//! The keeper is a process of its own, so that the agent can crash or be upgraded while relayed connections go on. The keeper decides
//! nothing. An [`AdoptionPlan`] says how a connection goes on. [`proto::restart`] compares the application's repeated output with the
//! logged output. A connection whose reply cannot be continued, or whose application fails, is reset, so that the client notices the
//! failure.
//!
//! The keeper has one thread, and each connection is a task. All tasks read and write through one shared buffer, so an idle task has no
//! buffer of its own. If a socket does not take all bytes, the task keeps the rest, and does not read from the other socket until the rest
//! is written.

mod channel;
mod client;
mod door;
mod filter;
mod flow;
mod input;
mod kept;
mod message;
mod news;
mod prefix;
mod relay;
mod sent;
mod serve;
mod status;
#[cfg(test)]
mod tests;
mod turns;

use std::path::PathBuf;
use std::time::Duration;

pub use client::{KeeperClient, KeeperClientError};
pub use input::LoggedInput;
pub use message::{Adoption, AdoptionPlan, KeepInput};
pub use serve::{KeeperError, run};
pub use status::{
    ConnectionEnding, EndedStatus, KeeperConnectionStatus, KeeperServiceStatus, KeeperStatus, RelayState,
};

/// Options of the keeper.
#[derive(Clone, Debug)]
pub struct KeeperOptions {
    /// The control socket that agents connect to. Only the owner of its file may connect.
    pub socket: PathBuf,
    /// Whether to connect to the application from the client's address. If false (in tests), the kernel chooses the
    /// address.
    pub transparent: bool,
    /// How long the application may take to accept a connection. Within this time, a connection that the application
    /// refuses is tried again.
    pub connect_timeout: Duration,
    /// The keeper connects to the application for an idle client when the client sends something, or after this time at the latest. From
    /// then on, the application's own idle timeout applies.
    pub idle: Duration,
    /// How long the client may be silent after the output to it has ended. The kernel bounds FIN_WAIT2 by the same time. If a connection
    /// fails while output is unacknowledged, the keeper delays the reset until all output is acknowledged, or until the client has
    /// acknowledged nothing for this long.
    pub linger: Duration,
    /// The process ends after it has had no connection and no agent for this long.
    pub unused: Duration,
}

impl KeeperOptions {
    /// The defaults, serving at `socket`.
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            transparent: true,
            connect_timeout: Duration::from_secs(3),
            idle: Duration::from_secs(30),
            linger: Duration::from_secs(60),
            unused: Duration::from_secs(10),
        }
    }
}
