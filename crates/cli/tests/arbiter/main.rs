//! Tests of the arbiters and of the registry of annexes, with a real etcd and real fence commands.

mod etcd;
mod fence;
mod node;
mod proxy;
mod registry;
mod witness;
