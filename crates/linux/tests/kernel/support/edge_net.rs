//! A cluster of two forwarding nodes between two edges, with a client and a server, each in a network namespace of its own.

use std::net::{IpAddr, SocketAddr};

use proto::edge::cache::CachePolicy;
use steadfast_linux::edge::{EdgePort, EdgeStringPort, EdgeWireOptions, EdgeWirePlan, Side};

use super::edge_on::{EdgeOn, edge_options, index_of, plan};
use super::lan::{Family, LanHost, is_root};

/// The cluster.
///
/// ```text
///             10.1       s0 ── 10.10 ── n0 ── 10.20 ── s0      10.2
///   client ── out  edge0                               edge1  out ── server
///                        s1 ── 10.11 ── n1 ── 10.21 ── s1
/// ```
///
/// A network 10.XX has the IPv6 network fdXX. In each of these networks, the client, the server and the nodes have the addresses 10.XX.0.1
/// and fdXX::1, and the edges have 10.XX.0.2 and fdXX::2. Exception: in network 10.30, edge 0 has 10.30.0.1.
pub struct EdgeNet {
    pub client: LanHost,
    pub server: LanHost,
    pub edges: [LanHost; 2],
    pub nodes: [LanHost; 2],
    /// VLAN id of the frames between the outside ports.
    vlan: Option<u16>,
}

fn small(number: usize) -> u8 {
    u8::try_from(number).expect("one of two")
}

/// The address in network `network` that ends in `last`.
pub fn at(family: Family, network: u8, last: u8) -> IpAddr {
    match family {
        Family::V4 => [10, network, 0, last].into(),
        Family::V6 => format!("fd{network:02}::{last}").parse().expect("digits"),
    }
}

/// Sets an interface of `host` up, and gives it its addresses in a network.
fn number(host: &LanHost, interface: &str, network: u8, last: u8) {
    host.ip(&format!(
        "link set {interface} up
         addr add {}/24 dev {interface}
         addr add {}/64 dev {interface} nodad",
        at(Family::V4, network, last),
        at(Family::V6, network, last)
    ));
}

/// A cable between two hosts.
fn cable(one: (&LanHost, &str), other: (&LanHost, &str)) {
    let (path, end) = (other.0.path(), other.1);
    one.0.ip(&format!(
        "link add {} type veth peer name {end} netns {path}",
        one.1
    ));
    other.0.ip(&format!("link set {end} up"));
    one.0.ip(&format!("link set {} up", one.1));
}

/// Adds a route of each family to network `to`, through the neighbour `last` in network `network`.
fn route(host: &LanHost, to: u8, network: u8, last: u8) {
    host.ip(&format!(
        "route add 10.{to}.0.0/24 via {}",
        at(Family::V4, network, last)
    ));
    host.ip6(&format!(
        "route add fd{to:02}::/64 via {}",
        at(Family::V6, network, last)
    ));
}

impl EdgeNet {
    /// The cluster for a test. `None`, with a message, if it cannot be made on this machine.
    pub fn new(test: &str) -> Option<Self> {
        Self::with(test, None)
    }

    /// Two edges whose outside ports are connected. The frames between these ports have a VLAN tag. The client is at the first string of
    /// the first edge, and the server at the first string of the second one, so that each edge gets frames that the other edge has tagged.
    /// The kernel needs no VLAN interfaces for this. ARP frames have no tag.
    ///
    /// ```text
    ///   client ── s0  edge0  out ── 10.30, tagged ── out  edge1  s0 ── server
    /// ```
    pub fn tagged(test: &str, vlan: u16) -> Option<Self> {
        Self::with(test, Some(vlan))
    }

    fn with(test: &str, vlan: Option<u16>) -> Option<Self> {
        if !is_root(test) {
            return None;
        }
        let [client, server, edge0, edge1, node0, node1] = [1, 2, 3, 4, 5, 6].map(LanHost::new);
        let net = Self {
            client,
            server,
            edges: [edge0, edge1],
            nodes: [node0, node1],
            vlan,
        };
        for host in net.edges.iter().chain(&net.nodes) {
            host.sysctl("ipv4/ip_forward", "1");
            host.sysctl("ipv6/conf/all/forwarding", "1");
        }
        let port = if vlan.is_some() { "s0" } else { "out" };
        for (end, edge, network) in [(&net.client, 0, 1), (&net.server, 1, 2)] {
            cable((end, "eth0"), (&net.edges[edge], port));
            number(end, "eth0", network, 1);
            number(&net.edges[edge], port, network, 2);
            route(end, 3 - network, network, 2);
        }
        if vlan.is_some() {
            net.connect_edges();
        } else {
            for (string, node) in net.nodes.iter().enumerate() {
                net.connect(string, node, 0);
                net.connect(string, node, 1);
            }
            route(&net.edges[0], 2, 10, 1); // for packets that the data path passes to the stack
            route(&net.edges[1], 1, 20, 1);
        }
        for host in [&net.client, &net.server]
            .into_iter()
            .chain(&net.edges)
            .chain(&net.nodes)
        {
            host.wait_for_addresses();
        }
        Some(net)
    }

    /// Connects a node to an edge.
    fn connect(&self, string: usize, node: &LanHost, edge: usize) {
        let network = 10 + 10 * small(edge) + small(string);
        let (near, far) = (format!("s{string}"), format!("e{edge}"));
        cable((&self.edges[edge], &near), (node, &far));
        number(&self.edges[edge], &near, network, 2);
        number(node, &far, network, 1);
        route(node, 1 + small(edge), network, 2);
    }

    /// Connects the outside ports of both edges. The second string of each edge leads nowhere.
    fn connect_edges(&self) {
        cable((&self.edges[0], "out"), (&self.edges[1], "out"));
        for (edge, host) in self.edges.iter().enumerate() {
            number(host, "out", 30, 1 + small(edge));
            route(host, 2 - small(edge), 30, 2 - small(edge));
            cable((host, "s1"), (&self.nodes[edge], "e0"));
        }
    }

    /// The plan of an edge.
    pub fn plan(&self, edge: usize, policy: Option<CachePolicy>) -> EdgeWirePlan {
        let host = &self.edges[edge];
        let first = match self.vlan {
            None => 10 + 10 * small(edge),
            Some(_) => 1 + small(edge), // the client or the server itself
        };
        let strings = (0..2).map(|string| {
            let next_hop = Family::BOTH.map(|family| at(family, first + string, 1));
            let [IpAddr::V4(v4), IpAddr::V6(v6)] = next_hop else {
                unreachable!("one of each family")
            };
            EdgeStringPort {
                ifindex: index_of(host, &format!("s{string}")),
                next_hop_v4: Some(v4),
                next_hop_v6: Some(v6),
            }
        });
        let outside = EdgePort {
            ifindex: index_of(host, "out"),
            vlan: self.vlan,
        };
        plan(outside, strings.collect(), policy)
    }

    /// The data path of an edge, with all slots given to the first string.
    pub fn edge_on(&self, edge: usize, policy: Option<CachePolicy>) -> EdgeOn {
        self.edge_with(edge, policy, &edge_options())
    }

    /// As [`edge_on`](Self::edge_on), with other options.
    pub fn edge_with(&self, edge: usize, policy: Option<CachePolicy>, options: &EdgeWireOptions) -> EdgeOn {
        let on = EdgeOn::new(&self.edges[edge], &self.plan(edge, policy), options);
        self.set_subnets(&on, edge);
        on
    }

    pub fn set_subnets(&self, on: &EdgeOn, edge: usize) {
        // Number of the network behind the strings. Normally, this is the other edge's outside network. If the outside ports are connected,
        // this is the network of the host at this edge's first string.
        let inside = if self.vlan.is_some() {
            1 + small(edge)
        } else {
            2 - small(edge)
        };
        let mut subnets = Vec::new();
        for family in Family::BOTH {
            let prefix = if family == Family::V4 { 24 } else { 64 };
            subnets.push((at(family, inside, 0), prefix, Side::Inside));
            let bits = if family == Family::V4 { 32 } else { 128 };
            let own = if self.vlan.is_some() { inside } else { 3 - inside };
            for network in [own, 10, 11, 20, 21] {
                subnets.push((at(family, network, 2), bits, Side::Local));
                if network >= 10 {
                    subnets.push((at(family, network, 1), bits, Side::Local));
                }
            }
        }
        on.set_subnets(&subnets).expect("subnets");
    }

    /// An address of the server.
    pub fn server_at(family: Family, port: u16) -> SocketAddr {
        (at(family, 2, 1), port).into()
    }
}
