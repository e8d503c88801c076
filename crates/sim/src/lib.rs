//! The deterministic packet-level world in which the protocols are tested.
//!
//! * [`link`] decides when a packet arrives at the far end of a cable, or why it does not.
//! * [`tcp`] is one end of a TCP connection.
//! * [`world`] lets nodes send each other packets through cables, event by event, from a seed.
//! * [`host`] and [`router`] are the nodes that every scenario needs. [`exchange`] is an application that checks the bytes that it
//!   receives.
//! * [`net`] and [`flow`] are a second, faster engine for the papers' figures: TCP without payload bytes. [`scenario`] holds the papers'
//!   networks.
//! * [`multipath`] joins two hosts by several paths, on which SCTP runs.
//! * [`pair`] puts two nodes, their agents and their applications into the world. [`swarm`] runs the pair under failures drawn
//!   from a seed.
#![forbid(unsafe_code)]

pub mod exchange;
pub mod flow;
pub mod host;
pub mod link;
pub mod multipath;
pub mod net;
mod notation;
pub mod pair;
pub mod router;
pub mod scenario;
pub mod swarm;
pub mod tcp;
pub mod world;
