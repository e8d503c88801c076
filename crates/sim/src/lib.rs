//! The deterministic packet-level world in which the protocols are tested.
//!
//! [`link`] says when a packet arrives at the far end of a cable, or why it does not.
#![forbid(unsafe_code)]

pub mod link;
