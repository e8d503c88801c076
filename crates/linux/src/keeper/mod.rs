//! The keeper: a minimal process that owns the sockets of restored connections and relays each to the local application.
//!
//! ```text
//!   client ⇄ restored socket ⇄ [ keeper: resume, then copy ] ⇄ socket from the client's address ⇄ application
//!                                    ▲ adopt(socket, plan, logged input)
//!                                  agent
//! ```
//!
//! It lives apart from the agent, so that the agent can crash or be upgraded while relayed connections go on. It decides
//! nothing: a [`Plan`] says how a connection goes on, [`proto::restart`] compares what the application says again.
//! A connection whose reply cannot be continued, or whose application fails, is reset: the client must see it.
//!
//! One thread. Each connection is a task that owns no buffer while it is idle; reading and writing share one buffer, and
//! only what a socket does not take at once is kept, and holds up its source.

mod channel;
mod client;
mod door;
mod filter;
mod flow;
mod input;
mod kept;
mod message;
mod relay;
mod serve;
mod status;
#[cfg(test)]
mod tests;
mod turns;

use std::path::PathBuf;
use std::time::Duration;

pub use client::{Client, ClientError};
pub use input::Input;
pub use message::{Adoption, Plan};
pub use serve::{KeeperError, run};
pub use status::{ConnectionStatus, EndedStatus, Ending, ServiceStatus, State, Status};

/// How the keeper works.
#[derive(Clone, Debug)]
pub struct Options {
    /// The control socket that agents connect to. Only its owner may.
    pub socket: PathBuf,
    /// Connect to the application from the client's address. Without it (tests) from an ordinary one.
    pub transparent: bool,
    /// How long the application may take to accept a connection; until then a refused one is tried again.
    pub connect_timeout: Duration,
    /// An idle connection is connected to the application when its client speaks, or after this: from then on the
    /// application's own idle timeout rules.
    pub idle: Duration,
    /// How long the client may be silent after its output has ended. The kernel's FIN_WAIT2 has the same bound.
    pub linger: Duration,
    /// The process ends after it has had no connection and no agent for this long.
    pub unused: Duration,
}

impl Options {
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
