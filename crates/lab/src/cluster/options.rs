//! The command's options.

use clap::Args;

use crate::node::{Assume, ServerSoftware};
use crate::run::RunOptions;

/// Run several services on a ring of nodes, and turn one node's power off under load.
///
/// Node k is the primary of service k and the backup of service k−1. So each service has a pair of nodes, and each node is in two pairs. One
/// daemon serves both peers, with an agent process for each. Each service has a LAN of its own. Clients send requests to all services. With
/// etcd, one of its three members is killed first. Then one agent of a node is killed, its daemon is upgraded in place, and its supervisor is
/// killed and started again. Then this node is drained under load, and returns as the wire of its services. Then a node loses its power. Each
/// service of this node must continue on the other node of the service's pair. The other node must take over if the lost node was the
/// service's primary at that moment, or serve without a wire if the lost node was the wire. No connection of any service may be lost.
#[derive(Clone, Debug, Args)]
pub struct ClusterOptions {
    /// Number of nodes. There are as many services.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=5))]
    pub nodes: u8,
    /// Number of the node that is drained under load, and returns, before the power failure.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=4))]
    pub drain: u8,
    /// Number of the node that loses its power.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=4))]
    pub off: u8,
    /// The arbiter. It decides which node of a pair may speak when the two nodes do not hear each other.
    #[arg(long, value_enum, default_value_t = Assume::Etcd)]
    pub assume: Assume,
    /// Number of connections of each service.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=500))]
    pub connections: u16,
    #[command(flatten)]
    pub run: RunOptions,
}

/// The server on every node.
pub const APPLICATION: ServerSoftware = ServerSoftware::Nginx;
