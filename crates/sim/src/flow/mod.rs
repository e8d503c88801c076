//! The two ends of a flow as the papers' simulations have them: TCP without its bytes.
//!
//! A [`FlowSender`] transfers a number of bytes to a [`FlowReceiver`]. Both are plain machines: time and packets in, packets out. [`FlowConfig`]
//! holds what the RFCs leave open. [`Departures`] in it says where ns-2's one-way agents differ, so that results can be compared flow
//! by flow. [`crate::tcp`] is the other endpoint of this crate. It is complete and byte-exact, and serves to test what the product
//! does to real connections.

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

pub use config::{Departures, FlowConfig, FlowHandshake, Growth, InvalidFlowConfig, RtoConfig, TcpVariant};
pub use receiver::FlowReceiver;
pub use sender::{Counts, FlowSender};
