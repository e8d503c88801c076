//! The deterministic packet-level world in which the protocols are tested.
//!
//! * [`link`] says when a packet arrives at the far end of a cable, or why it does not.
//! * [`tcp`] is one end of a TCP connection.
//! * [`world`] lets nodes send each other packets through cables, event by event, from a seed.
//! * [`host`], [`router`] are the nodes every scenario needs; [`exchange`] is an application that checks its bytes.
//! * [`net`], [`flow`] are the other half: a faster engine, and TCP without its bytes, for the papers' figures;
//!   [`scenario`] holds their networks.
//! * [`pair`] puts two nodes, their agents and their applications into the world; [`swarm`] breaks it in all ways that a seed can
//!   think of.
#![forbid(unsafe_code)]

pub mod exchange;
pub mod flow;
pub mod host;
pub mod link;
pub mod net;
mod notation;
pub mod pair;
pub mod router;
pub mod scenario;
pub mod swarm;
pub mod tcp;
pub mod world;
