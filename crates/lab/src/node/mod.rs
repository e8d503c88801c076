//! A node of the pair: the real server, and the daemon that protects it.

mod agent;
mod arbiter;
mod configuration;
mod log;
mod server;
mod status;

pub use self::agent::{Agent, HEARTBEAT_PORT, Pair};
pub use self::arbiter::{Arbiter, Assume, Fence};
pub use self::log::{AtLimit, Log};
pub use self::server::{Application, Content, DEBIAN_PYTHON, Server, WEBSOCKETS};
pub use self::status::{Connection, Service, Status, Takeover};
