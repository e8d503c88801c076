//! The operator's face of Steadfast: configuration, commands and the control socket of the daemon.

pub mod config;
pub mod control;
