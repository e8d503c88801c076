//! Labs of `steadfast edge`: clients, two edges with a cluster of forwarding nodes between them, and servers.
//!
//! [`failover`] and [`rate`] are labs, which [`crate::run`] runs. They share the network, the daemons, the failures, the measuring client
//! and the reading of captures.

pub mod address;
pub mod capture;
pub mod daemon;
pub mod failover;
pub mod fault;
pub mod flows;
pub mod nat;
pub mod network;
pub mod rate;
pub mod trace;
pub mod variant;
