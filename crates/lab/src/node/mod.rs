//! A node of the pair: the real server, and the daemon that protects it.

mod agent;
mod arbiter;
mod configuration;
mod health;
mod log;
mod operator;
mod server;
mod software;
mod status;

pub use self::agent::{
    AgentProcess, AnnexSetup, HEARTBEAT_PORT, PairSetup, STATE, leftovers_of_nodes, write_key,
};
pub use self::arbiter::{ArbiterSetup, Assume, FenceSetup};
pub use self::log::{AtLimitOption, LogOptions};
pub use self::operator::Operator;
pub use self::server::{
    DATABASE_PORT, ExportSetup, PG_CHECK, PG_CLIENT, PatternFiles, SENT, ServerProcess, wait_listening,
};
pub use self::software::{DEBIAN_PYTHON, PSYCOPG, ServerSoftware, WEBSOCKETS};
pub use self::status::{ReportedConnection, ReportedService, ReportedStatus, ReportedTakeover};
