//! The protocols of Steadfast as pure state machines.
//!
//! Nothing here does I/O, reads a clock or starts a thread. Time and bytes go in by `handle_*`; ordered actions come out by `poll_action`.
//! The daemon carries out the actions in the Linux kernel. The simulator carries out the actions in its simulated world. Both run the same
//! code.
#![forbid(unsafe_code)]

pub mod accept;
pub mod action;
pub mod annex;
pub mod annex_list;
pub mod anti_replay;
pub mod application;
pub mod carried;
pub mod census;
pub mod channel;
mod claim;
mod clients;
pub mod connection;
pub mod detector;
#[cfg(test)]
mod diagram;
mod doubt;
pub mod edge;
pub mod export;
pub mod follower;
pub mod hosting;
pub mod learn;
pub mod migration;
pub mod node;
pub mod older;
pub mod order;
pub mod orphans;
pub mod packet;
pub mod path;
pub mod pause;
pub mod rate;
pub mod restart;
mod reversal;
pub mod role;
pub mod sctp;
pub mod seq;
pub mod service;
mod serving;
pub mod session;
pub mod spill;
pub mod standing;
pub mod state_sync;
pub mod stream;
pub mod table;
pub mod takeover;
pub mod time;
pub mod tunnel;
pub mod whole;

pub use seq::{Offset, Seq};
pub use time::Instant;
