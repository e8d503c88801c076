//! A node of the pair: the real server, and the daemon that protects it.

mod agent;
mod arbiter;
mod configuration;
mod log;
mod server;
mod status;

pub use self::agent::{AgentProcess, HEARTBEAT_PORT, PairSetup};
pub use self::arbiter::{ArbiterSetup, Assume, FenceSetup};
pub use self::log::{AtLimitOption, LogOptions};
pub use self::server::{DEBIAN_PYTHON, PatternFiles, ServerProcess, ServerSoftware, WEBSOCKETS};
pub use self::status::{ReportedConnection, ReportedService, ReportedStatus, ReportedTakeover};
