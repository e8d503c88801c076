//! eBPF objects, tc hooks and ring buffers, for the wire and for the edge.

pub(crate) mod checksum;
pub(crate) mod error;
pub(crate) mod hook;
pub(crate) mod layout;
pub(crate) mod object;
pub(crate) mod ring;
pub(crate) mod run;
