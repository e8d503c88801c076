//! The agent of a node: what it does on its kernel, and in which order.
//!
//! `proto` decides, and a [`Kernel`] carries out single steps. This crate lies between the two. It puts a connection's
//! steps in order, from the log to the relay, and gives the node the result of each step before the node's next action.
//! The daemon runs the agent on Linux, the simulator on a simulated kernel. So the swarm tests the sequence that the
//! daemon carries out.
//!
//! ```text
//!   proto::node::Node ── Action ──▶ Executor ── one step ──▶ Kernel (Linux | simulated)
//!          ▲                           │                        │
//!          └────── ServiceInput ───────┴──── result, log ◀──────┘
//! ```

mod connection;
mod core;
mod executor;
mod kernel;
pub mod recording;
mod turn;

pub use crate::core::Core;
pub use executor::{Executor, check_log, feed_replica};
pub use kernel::{Kernel, LogReader, MessageToPeer, SyncRun, Written};
pub use turn::{TurnStep, is_superseded};
