//! Multihomed SCTP (RFC 9260), without I/O: docs/sctp.md.
//!
//! [`packet`] has the common header, [`chunk`] the chunks, `parameter` the parameters of INIT and INIT ACK, `cause` the error causes.
//! [`UserData`] may be counted only, so that a simulator moves megabytes without a copy.

mod cause;
pub mod chunk;
mod data;
pub mod packet;
mod parameter;
#[cfg(test)]
mod tests;
mod tlv;
mod tsn;

pub use cause::ErrorCause;
pub use data::UserData;
pub use parameter::InitParameter;
pub use tlv::{MalformedSctp, UnknownReaction};
pub use tsn::{Ssn, Tsn};
