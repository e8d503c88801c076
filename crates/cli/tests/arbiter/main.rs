//! The arbiters: they ask a real etcd and run real commands.

mod etcd;
mod fence;
mod node;
mod proxy;
mod witness;
