//! The names of interfaces and nodes.

/// The interface of the client and of each node.
pub const INTERFACE: &str = "eth0";
/// The interface of each node on the second network.
pub const SECOND_INTERFACE: &str = "eth1";
/// The router's interface towards the nodes.
pub const ROUTER_LAN_INTERFACE: &str = "lan";
/// The emulator's interface towards the client.
pub const WAN_CLIENT_INTERFACE: &str = "client";
/// The emulator's interface towards the router.
pub const WAN_ROUTER_INTERFACE: &str = "router";
/// The nodes' names in namespaces and at the switch's ports.
pub const NODE_NAMES: [&str; 2] = ["a", "b"];
/// The annexes' names in namespaces and at the switch's ports.
pub const ANNEX_NAMES: [&str; 2] = ["c", "d"];
