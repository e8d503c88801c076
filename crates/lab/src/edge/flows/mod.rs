//! A client that measures flows: each flow is one connection with one transfer, and begins at its own time.
//!
//! The process gets a [`FlowPlan`] on standard input and prints a [`FlowReport`]. Content is a [`pattern`]. The client compares each byte
//! of a download. The lab checks the content of the files that uploads leave at the server.

mod client;
mod plan;
mod process;

pub use client::main;
pub use plan::{FlowOutcome, FlowPlan, FlowReport, PlannedFlow, TransferDirection};
pub use process::{FLOWS, FlowProcess};
