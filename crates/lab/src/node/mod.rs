//! A node of the pair: the real server, and the daemon that protects it.

mod agent;
mod arbiter;
mod configuration;
mod server;

pub use self::agent::{Agent, Connection, HEARTBEAT_PORT, Pair, Service, Status, Takeover};
pub use self::arbiter::{Arbiter, Assume};
pub use self::server::{Application, Content, Server};
