//! Multihomed SCTP and its tunnel on real networks (docs/tunnel.md).
//!
//! ```text
//!   near: curl ─▶ steadfast tunnel 10.1.0.1 ─── p0 ─── 10.1.0.2 steadfast tunnel ─▶ nginx :far
//!                                  10.2.0.1 ─── p1 ─── 10.2.0.2
//! ```

pub mod bench;
mod carrier;
pub mod cut;
mod figures;
mod network;
pub mod peer;
pub mod programs;
pub mod tcp;
mod tunnel;
