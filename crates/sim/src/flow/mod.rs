//! The two ends of a TCP flow. As in the papers' simulations, the flow's bytes are counted, but do not exist.
//!
//! A [`FlowSender`] transfers a number of bytes to a [`FlowReceiver`]. Both are plain machines: time and packets in,
//! packets out. [`FlowConfig`] holds what the RFCs leave open. Its [`Departures`] are the points in which ns-2's
//! one-way agents differ from the RFCs. With them set, a run can be compared with ns-2 flow by flow. [`crate::tcp`] is
//! the other endpoint of this crate. It is complete and byte-exact, and serves to test what the product does to real
//! connections.

mod config;
mod cubic;
mod packet;
mod prr;
mod rack;
mod rack_state;
mod ranges;
mod receiver;
mod reno;
mod rto;
mod sack;
mod scoreboard;
pub mod seconds;
mod sender;

pub use config::{Departures, FlowConfig, FlowHandshake, Growth, InvalidFlowConfig, RtoConfig, TcpVariant};
pub use packet::{FlowDirection, FlowFlags, FlowId, FlowPacket, HEADER, Sack};
pub use receiver::FlowReceiver;
pub use sender::{Counts, FlowSender};
