//! The two ends of a TCP flow. As in the papers' simulations, bytes are only counted: packets carry no data.
//!
//! A [`FlowSender`] transfers a number of bytes to a [`FlowReceiver`]. Both are state machines without I/O: they take the time and packets,
//! and return packets. [`FlowConfig`] holds what the RFCs leave open. Its [`Departures`] are the points in which ns-2's one-way agents
//! differ from the RFCs. If all departures are set, a run can be compared with ns-2 flow by flow. [`crate::tcp`] is this crate's other TCP
//! endpoint. It is complete and byte-exact. Tests use it to check what the product does to real connections.

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
