//! Multihomed SCTP (RFC 9260), without I/O: docs/sctp.md.
//!
//! The packets: [`packet`] has the common header, [`chunk`] the chunks, `parameter` the parameters of INIT and INIT ACK, and `cause` the
//! error causes. [`UserData`] may be a number of bytes without content, so that a simulator moves megabytes without a copy.

mod arrivals;
pub mod association;
mod auth;
mod cause;
pub mod chunk;
mod config;
mod congestion;
mod cookie;
mod data;
mod destination;
pub mod endpoint;
pub mod failover;
mod message;
mod mtu;
pub mod packet;
mod parameter;
mod paths;
mod reassembly;
mod registry;
mod rto;
mod secret;
mod send_queue;
mod sources;
mod state;
mod terms;
mod tlv;
mod tsn;
mod watch;

#[cfg(test)]
mod tests;

pub use auth::CallKey;
pub use cause::ErrorCause;
pub use config::{IdleDecay, InvalidSctp, RetransmissionPolicy, SctpConfig};
pub use congestion::PathWindow;
pub use data::UserData;
pub use destination::{Destination, DestinationCounts, PathId};
pub use message::SctpMessage;
pub use mtu::PathMtu;
pub use parameter::InitParameter;
pub use send_queue::RetransmitCause;
pub use sources::{PathSource, SourceTable};
pub use state::AssociationState;
pub use terms::PATHS_MAX;
pub use tlv::{MalformedSctp, UnknownReaction};
pub use tsn::{Ssn, Tsn};
pub use watch::HeartbeatWatch;
