//! The plan with which an edge's data path is loaded.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use proto::edge::cache::{CachePolicy, SecondPacket};

/// The port away from the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgePort {
    /// Index of the interface.
    pub ifindex: u32,
    /// VLAN id of the clients' frames that are steered; `None`: untagged frames.
    pub vlan: Option<u16>,
}

/// An edge's port to a string, and the addresses of the string's node at that port. Frames at this port have no VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeStringPort {
    /// Index of the interface.
    pub ifindex: u32,
    /// Next hop of IPv4 packets. `None`: IPv4 packets go to this machine's stack.
    pub next_hop_v4: Option<Ipv4Addr>,
    /// Next hop of IPv6 packets. `None`: IPv6 packets go to this machine's stack.
    pub next_hop_v6: Option<Ipv6Addr>,
}

/// The side of a destination, seen from the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// On the side of the outside port. Packets from strings are forwarded to this port.
    Outside,
    /// Behind the cluster. Packets from outside are steered into a string.
    Inside,
    /// This machine, or a host that is reached without the cluster. Packets to it go to this machine's stack.
    Local,
}

/// Ports and settings of an edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeWirePlan {
    /// The port away from the cluster.
    pub outside: EdgePort,
    /// The ports of the strings, in the order of their numbers.
    pub strings: Vec<EdgeStringPort>,
    /// The side of destinations that are in no subnet of [`EdgeWire::set_subnets`](super::EdgeWire::set_subnets).
    pub default_side: Side,
    /// The packets that are copied for the cache; `None`: none.
    pub policy: Option<CachePolicy>,
    /// The cache's second packet.
    pub second: SecondPacket,
}

/// Sizes and settings of an edge's data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeWireOptions {
    /// Maximum number of flows. Beyond it, the least recently used flow is replaced.
    pub flows_max: u32,
    /// Size in bytes of the ring of copies. A power of two and a multiple of the page size.
    pub ring_bytes: u32,
    /// When the agent has been away for longer than this, no packet is dropped and no window is capped.
    pub agent_timeout: Duration,
}
