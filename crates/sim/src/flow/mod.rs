//! The two ends of a flow as the papers' simulations have them: TCP without its bytes.
//!
//! A [`Sender`] transfers a number of bytes to a [`Receiver`]. Both are plain machines: time and packets in, packets
//! out. [`Config`] holds what the RFCs leave open, and, in [`Departures`], where ns-2's one-way agents do otherwise, so
//! that results can be compared flow by flow. [`crate::tcp`] is the other endpoint of this crate, whole and byte-exact, for
//! what the product does to real connections.

mod config;
mod cubic;
mod prr;
mod rack;
mod ranges;
mod receiver;
mod reno;
mod rto;
mod sack;
mod scoreboard;
pub mod seconds;
mod sender;

pub use config::{Config, Departures, Growth, Handshake, InvalidConfig, RtoConfig, Variant};
pub use receiver::Receiver;
pub use sender::{Counts, Sender};
