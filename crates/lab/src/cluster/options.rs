//! The command's options.

use clap::Args;

use crate::node::{Assume, ServerSoftware};
use crate::run::RunOptions;

/// Pair services across several nodes, and turn one node's power off under load.
///
/// Node k is the primary of service k and the backup of service k−1. Each pair has a LAN of its own and a daemon of its own on both
/// nodes, since a daemon has one peer. Clients send requests to all services. With etcd, one of its three members is
/// killed first. Then a node is drained under load, and returns as the wire of its services. Then a node loses its
/// power. Its peers must take over each service of which that node was the primary at that moment, and continue its
/// other services without a wire. No connection of any service may be lost.
#[derive(Clone, Debug, Args)]
pub struct ClusterOptions {
    /// Nodes, each with a service.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=5))]
    pub nodes: u8,
    /// The node that is drained under load and returns, before the power failure.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=4))]
    pub drain: u8,
    /// The node whose power goes off.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=4))]
    pub off: u8,
    /// The arbiter, which decides which node of a pair may speak when they do not hear each other.
    #[arg(long, value_enum, default_value_t = Assume::Etcd)]
    pub assume: Assume,
    /// Connections of each service.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=500))]
    pub connections: u16,
    #[command(flatten)]
    pub run: RunOptions,
}

/// The server on every node.
pub const APPLICATION: ServerSoftware = ServerSoftware::Nginx;
