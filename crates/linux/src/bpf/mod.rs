//! What the wire and the edge have in common: eBPF objects, tc hooks, ring buffers.

pub(crate) mod checksum;
pub(crate) mod error;
pub(crate) mod hook;
pub(crate) mod layout;
pub(crate) mod object;
pub(crate) mod ring;
pub(crate) mod run;
