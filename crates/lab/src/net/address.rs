//! The lab's address plan. It is the same in every run, so that a reader of a capture knows the addresses.
//!
//! ```text
//!  client ───── (wan emulator) ───── router ───── switch ──┬── node a
//!  10.1.0.2                 10.1.0.1   10.2.0.1            └── node b
//!  fd01::2                   fd01::1    fd02::1        10.2.0.10/.11, fd02::10/::11; VIP 10.2.0.100, fd02::100
//! ```
//!
//! Annexes, if a run has some, are at the same switch: 10.2.0.12/.13, fd02::12/::13.
//!
//! The nodes may have a second network between them: 10.4.0.10/.11, fd04::10/::11. No other host is connected to it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Prefix length of the client's and the nodes' IPv4 networks.
pub const PREFIX_V4: u8 = 24;
/// Prefix length of the client's and the nodes' IPv6 networks.
pub const PREFIX_V6: u8 = 64;

/// The IPv4 address, the IPv6 address and the MAC of one interface. The last bytes of the IPv4 address and of the MAC are written with
/// the same digits: 10.2.0.10 belongs to 02:00:00:00:00:10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddresses {
    /// IPv4 address.
    pub v4: Ipv4Addr,
    /// IPv6 address.
    pub v6: Ipv6Addr,
    /// Ethernet address, locally administered.
    pub mac: [u8; 6],
}

impl InterfaceAddresses {
    const fn new(v4: [u8; 4], v6: [u16; 2], mac: [u8; 2]) -> Self {
        Self {
            v4: Ipv4Addr::new(v4[0], v4[1], v4[2], v4[3]),
            v6: Ipv6Addr::new(v6[0], 0, 0, 0, 0, 0, 0, v6[1]),
            mac: [2, 0, 0, 0, mac[0], mac[1]],
        }
    }

    /// The address of IP version 6 if `ipv6`, otherwise of version 4.
    pub fn ip(&self, ipv6: bool) -> IpAddr {
        if ipv6 { self.v6.into() } else { self.v4.into() }
    }

    /// The MAC as `ip link` writes it.
    pub fn mac_text(&self) -> String {
        self.mac.map(|byte| format!("{byte:02x}")).join(":")
    }
}

/// The client.
pub const CLIENT: InterfaceAddresses = InterfaceAddresses::new([10, 1, 0, 2], [0xfd01, 2], [1, 2]);
/// The router's interface to the client.
pub const ROUTER_WAN: InterfaceAddresses = InterfaceAddresses::new([10, 1, 0, 1], [0xfd01, 1], [1, 1]);
/// The router's interface to the nodes.
pub const ROUTER_LAN: InterfaceAddresses = InterfaceAddresses::new([10, 2, 0, 1], [0xfd02, 1], [2, 1]);
/// Node a and node b.
pub const NODES: [InterfaceAddresses; 2] = [
    InterfaceAddresses::new([10, 2, 0, 10], [0xfd02, 0x10], [0, 0x10]),
    InterfaceAddresses::new([10, 2, 0, 11], [0xfd02, 0x11], [0, 0x11]),
];
/// Node a and node b on the second network.
pub const SECOND: [InterfaceAddresses; 2] = [
    InterfaceAddresses::new([10, 4, 0, 10], [0xfd04, 0x10], [4, 0x10]),
    InterfaceAddresses::new([10, 4, 0, 11], [0xfd04, 0x11], [4, 0x11]),
];
/// Witness hosts on the nodes' LAN.
pub const WITNESSES: [InterfaceAddresses; 3] = [
    InterfaceAddresses::new([10, 2, 0, 20], [0xfd02, 0x20], [0, 0x20]),
    InterfaceAddresses::new([10, 2, 0, 21], [0xfd02, 0x21], [0, 0x21]),
    InterfaceAddresses::new([10, 2, 0, 22], [0xfd02, 0x22], [0, 0x22]),
];
/// Annexes: nodes outside of the pair that take connections of the service.
pub const ANNEXES: [InterfaceAddresses; 2] = [
    InterfaceAddresses::new([10, 2, 0, 12], [0xfd02, 0x12], [0, 0x12]),
    InterfaceAddresses::new([10, 2, 0, 13], [0xfd02, 0x13], [0, 0x13]),
];
/// The service's virtual address.
pub const VIP_V4: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 100);
/// The service's virtual IPv6 address.
pub const VIP_V6: Ipv6Addr = Ipv6Addr::new(0xfd02, 0, 0, 0, 0, 0, 0, 0x100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_reads_as_documented() {
        assert_eq!(NODES[1].v4.to_string(), "10.2.0.11");
        assert_eq!(NODES[1].v6.to_string(), "fd02::11");
        assert_eq!(NODES[0].mac_text(), "02:00:00:00:00:10");
        assert_eq!(VIP_V6.to_string(), "fd02::100");
    }

    #[test]
    fn no_two_interfaces_share_a_mac() {
        let hosts = [CLIENT, ROUTER_WAN, ROUTER_LAN, NODES[0], NODES[1]];
        let all = [&hosts[..], &SECOND, &WITNESSES, &ANNEXES].concat();
        for (i, one) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|other| other.mac != one.mac), "{one:?}");
        }
    }
}
