//! The registry of annexes in etcd (docs/registry.md).
//!
//! ```text
//! /<cluster>/annexes/<annex>   {"version", "address", "services", "tag"}   with an etcd lease: the annex is there
//! ```
//!
//! An annex keeps its key ([`registrar`]). The pair's nodes read all keys with those of the witness ([`crate::arbiter`]), and take what
//! belongs to their services ([`entry`]). `proto::annex_list` decides what follows from it.

pub mod entry;
pub mod registrar;
