//! A run without steadfast: the virtual address is an ordinary address, moved as keepalived would move it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use etherparse::PacketBuilder;
use linux::netns::Netns;
use linux::packet_socket::{PacketSocket, VIRTIO_HEADER};

use crate::net::address::InterfaceAddresses;
use crate::net::{INTERFACE, batch};

const BROADCAST: [u8; 6] = [0xff; 6];
/// Multicast address of all nodes on the link (RFC 4291, section 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Ethernet address of [`ALL_NODES`] (RFC 2464, section 7).
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// Adds `address` to `node`.
///
/// # Errors
/// The error message of `ip`.
pub fn hold(node: &Netns, address: IpAddr) -> Result<()> {
    let (length, nodad) = match address {
        IpAddr::V4(_) => (32, ""),
        IpAddr::V6(_) => (128, " nodad"),
    };
    let command = format!("addr add {address}/{length} dev {INTERFACE}{nodad}");
    Ok(batch(Some(node.name()), &[command])?)
}

/// Announces to the LAN that `address` is now at `node`, whose interface is `endpoint`.
///
/// # Errors
/// If the announcement cannot be sent.
pub fn announce(node: &Netns, endpoint: &InterfaceAddresses, address: IpAddr) -> Result<()> {
    let frame = match address {
        IpAddr::V4(address) => gratuitous_arp(endpoint.mac, address),
        IpAddr::V6(address) => unsolicited_advertisement(endpoint.mac, address)?,
    };
    let frame = [&[0; VIRTIO_HEADER][..], &frame].concat();
    let socket = node.run(|| PacketSocket::open(INTERFACE))??;
    socket.send(&frame).context("announce the address")?;
    Ok(())
}

/// An ARP announcement in the request form. It updates neighbours that already know the address (RFC 5227, section 3).
fn gratuitous_arp(mac: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    const ETHERNET_IPV4_REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
    [
        &BROADCAST[..],
        &mac,
        &[0x08, 0x06],
        &ETHERNET_IPV4_REQUEST,
        &mac,
        &address.octets(),
        &[0; 6],
        &address.octets(),
    ]
    .concat()
}

/// A neighbour advertisement with the override flag (RFC 4861, section 4.4).
fn unsolicited_advertisement(mac: [u8; 6], address: Ipv6Addr) -> Result<Vec<u8>> {
    const ADVERTISEMENT: u8 = 136;
    const OVERRIDE: [u8; 4] = [0x20, 0, 0, 0];
    const TARGET_MAC: [u8; 2] = [2, 1];
    let payload = [&address.octets()[..], &TARGET_MAC, &mac].concat();
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(mac, ALL_NODES_MAC)
        .ipv6(address.octets(), ALL_NODES.octets(), 255)
        .icmpv6_raw(ADVERTISEMENT, 0, OVERRIDE)
        .write(&mut frame, &payload)
        .context("build a neighbour advertisement")?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x11];

    #[test]
    fn a_gratuitous_arp_asks_for_its_own_address() {
        let frame = gratuitous_arp(MAC, Ipv4Addr::new(10, 2, 0, 100));
        assert_eq!(frame.len(), 42);
        assert_eq!(frame[28..32], frame[38..42]);
        assert_eq!(frame[22..28], MAC);
    }

    #[test]
    fn an_advertisement_names_its_target_and_mac() {
        let vip: Ipv6Addr = "fd02::100".parse().unwrap();
        let frame = unsolicited_advertisement(MAC, vip).unwrap();
        assert_eq!(frame.len(), 14 + 40 + 8 + 16 + 8);
        assert_eq!(frame[62..78], vip.octets());
        assert_eq!(frame[80..86], MAC);
    }
}
