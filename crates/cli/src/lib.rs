//! The daemon and the operator's view of it: configuration, commands, the control socket and the agent.

mod annex;
pub mod arbiter;
mod bounded;
pub mod command;
pub mod config;
pub mod connect;
pub mod control;
pub mod daemon;
pub mod edge;
pub mod environment;
mod keepers;
pub mod lock;
pub mod metrics;
mod program;
pub mod registry;
pub mod stage;
mod stop;
mod supervisor;
pub mod tunnel;
mod wakeup;
