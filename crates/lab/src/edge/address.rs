//! The addresses of a cluster of nodes between two edges, R1 and R2.
//!
//! A *string* is the way from R1 through one node to R2. Strings are numbered from 0, like their nodes. A *lane* is an R1 with the R2 that
//! is its peer. With one edge at each side there is only lane 0:
//!
//! ```text
//!  clients ────── R1 ──── string k ──── node k ──── string k ──── R2 ────── servers
//!  10.1.0.2, .3   10.1.0.1                                        10.2.0.1  10.2.0.2
//!            10.(11+k).0.1       10.(11+k).0.2
//!                                10.(21+k).0.2       10.(21+k).0.1
//! ```
//!
//! Lane 1 goes through the same nodes. Its strings have networks of their own: 10.(31+k).0 in place of 10.(11+k).0, and 10.(41+k).0 in
//! place of 10.(21+k).0. If there are two lanes, an outer router at each side has the address 10.1.0.1 or 10.2.0.1 in place of R1 or R2.
//! The network between an outer router (host 2) and the edge of lane l (host 1) is 10.(51+l).0 at the clients, 10.(61+l).0 at the servers.
//!
//! For IPv6, `fd` takes the place of `10.`: fd01::2 is the first client, fd11::1 is R1 on string 0. Nodes that translate addresses
//! replace a client's address by 10.9.0.1 or fd09::1.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Largest number of strings.
pub const STRINGS_MAX: usize = 4;
/// Number of client addresses. Without edges, routes choose the string by the client address, so several strings need several addresses.
pub const CLIENTS: usize = 2;
/// Names of the strings.
pub const STRING_NAMES: [&str; STRINGS_MAX] = ["a", "b", "c", "d"];

/// Number of the clients' network: the second byte of its IPv4 addresses. The next four constants are such numbers, too.
const CLIENTS_NET: u8 = 1;
const SERVERS_NET: u8 = 2;
const TRANSLATED_NET: u8 = 9;
const LEFT_NET: u8 = 11;
const RIGHT_NET: u8 = 21;
/// Difference between the numbers of a string's networks in lane 1 and in lane 0.
const LANE: u8 = 20;
/// Numbers of the networks between an outer router and the edge of lane 0: at the clients, at the servers.
const OUTER_NETS: [u8; 2] = [51, 61];

/// A host's IPv4 and IPv6 address in one of the networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterAddress {
    net: u8,
    host: u8,
}

impl ClusterAddress {
    /// The address of IP version 6 if `ipv6`, otherwise of version 4.
    pub fn ip(self, ipv6: bool) -> IpAddr {
        if ipv6 { self.v6().into() } else { self.v4().into() }
    }

    /// The IPv4 address.
    pub fn v4(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.net, 0, self.host)
    }

    /// The IPv6 address. It shows the network's number with the same digits as the IPv4 address: network 11 is fd11::.
    pub fn v6(self) -> Ipv6Addr {
        let digits = u16::from(self.net / 10) << 4 | u16::from(self.net % 10);
        Ipv6Addr::new(0xfd00 | digits, 0, 0, 0, 0, 0, 0, u16::from(self.host))
    }

    /// The IPv4 and the IPv6 network of the address, with their prefix lengths.
    pub fn networks(self) -> [String; 2] {
        let network = Self { host: 0, ..self };
        [format!("{}/24", network.v4()), format!("{}/64", network.v6())]
    }
}

/// The address of client number `index`, from 0.
pub const fn client(index: usize) -> ClusterAddress {
    ClusterAddress {
        net: CLIENTS_NET,
        host: 2 + index as u8,
    }
}

/// The servers' address.
pub const SERVER: ClusterAddress = ClusterAddress {
    net: SERVERS_NET,
    host: 2,
};

/// The gateways of the clients and of the servers: R1 and R2, or the outer routers if there are two lanes.
pub const OUTSIDE: [ClusterAddress; 2] = [
    ClusterAddress {
        net: CLIENTS_NET,
        host: 1,
    },
    ClusterAddress {
        net: SERVERS_NET,
        host: 1,
    },
];

/// The clients' address after translation by a node.
pub const TRANSLATED: ClusterAddress = ClusterAddress {
    net: TRANSLATED_NET,
    host: 1,
};

/// R1 (side 0) or R2 (side 1) of a lane, at its interface to string `index`.
pub const fn edge_end(index: usize, side: usize, lane: usize) -> ClusterAddress {
    ClusterAddress {
        net: string_net(index, side, lane),
        host: 1,
    }
}

/// The node of string `index`, at its interface to R1 (side 0) or R2 (side 1) of a lane.
pub const fn node_end(index: usize, side: usize, lane: usize) -> ClusterAddress {
    ClusterAddress {
        net: string_net(index, side, lane),
        host: 2,
    }
}

const fn string_net(index: usize, side: usize, lane: usize) -> u8 {
    index as u8 + LANE * lane as u8 + if side == 0 { LEFT_NET } else { RIGHT_NET }
}

/// R1 (side 0) or R2 (side 1) of a lane, at its interface to the outer router.
pub const fn outer_end(side: usize, lane: usize) -> ClusterAddress {
    ClusterAddress {
        net: OUTER_NETS[side] + lane as u8,
        host: 1,
    }
}

/// The outer router at the clients (side 0) or at the servers (side 1), at its interface to the edge of a lane.
pub const fn router_end(side: usize, lane: usize) -> ClusterAddress {
    ClusterAddress {
        net: OUTER_NETS[side] + lane as u8,
        host: 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_reads_as_documented() {
        assert_eq!(client(1).v4().to_string(), "10.1.0.3");
        assert_eq!(client(0).v6().to_string(), "fd01::2");
        assert_eq!(node_end(2, 1, 0).v4().to_string(), "10.23.0.2");
        assert_eq!(edge_end(0, 0, 0).v6().to_string(), "fd11::1");
        assert_eq!(edge_end(1, 1, 1).v4().to_string(), "10.42.0.1");
        assert_eq!(router_end(1, 1).v4().to_string(), "10.62.0.2");
        assert_eq!(SERVER.networks(), ["10.2.0.0/24", "fd02::/64"]);
    }
}
