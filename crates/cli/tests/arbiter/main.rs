//! Tests of the arbiters with a real etcd and real fence commands.

mod etcd;
mod fence;
mod node;
mod proxy;
mod witness;
