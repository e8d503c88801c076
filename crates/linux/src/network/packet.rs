//! The frames of neighbour discovery: ARP (RFC 826) and ICMPv6 (RFC 4861).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    const BROADCAST: Self = Self([0xff; 6]);
    const NONE: Self = Self([0; 6]);
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];

/// Hardware type Ethernet, protocol type IPv4, and the lengths of their addresses: 6 and 4 bytes.
const ARP_KIND: [u8; 6] = [0x00, 0x01, 0x08, 0x00, 6, 4];
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;

const ICMPV6: u8 = 58;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
/// Flag of a neighbour advertisement: the receiver replaces the address that it has cached.
const OVERRIDE: u32 = 0x2000_0000;

/// Frames that tell all neighbours, unasked, that `address` is at `mac`. For IPv4 there are two frames, a request and a reply. After a
/// cache entry has changed, Linux ignores replies for one second (`locktime`), except a reply whose target hardware address is the sender's
/// own address. So this reply has the sender's own address there.
pub(crate) fn announcements(mac: Mac, address: IpAddr) -> Vec<Vec<u8>> {
    match address {
        IpAddr::V4(v4) => vec![
            arp(mac, Mac::BROADCAST, ARP_REQUEST, v4, Mac::NONE, v4),
            arp(mac, Mac::BROADCAST, ARP_REPLY, v4, mac, v4),
        ],
        IpAddr::V6(v6) => {
            let body = neighbor_message(
                NEIGHBOR_ADVERTISEMENT,
                OVERRIDE,
                v6,
                Some((TARGET_LINK_ADDRESS, mac)),
            );
            vec![icmpv6(mac, v6, ALL_NODES, body)]
        }
    }
}

/// A frame that asks which node has `target`. `from` is the asker's address. Without `from` the frame is a probe, which a node sends
/// before it takes `target` (RFC 5227, RFC 4862).
pub(super) fn question(mac: Mac, from: Option<IpAddr>, target: IpAddr) -> Vec<u8> {
    match (target, from) {
        (IpAddr::V4(target), from) => {
            let from = match from {
                Some(IpAddr::V4(from)) => from,
                _ => Ipv4Addr::UNSPECIFIED,
            };
            arp(mac, Mac::BROADCAST, ARP_REQUEST, from, Mac::NONE, target)
        }
        (IpAddr::V6(target), Some(IpAddr::V6(from))) => {
            let body = neighbor_message(NEIGHBOR_SOLICITATION, 0, target, Some((SOURCE_LINK_ADDRESS, mac)));
            icmpv6(mac, from, solicited_node(target), body)
        }
        (IpAddr::V6(target), _) => {
            let body = neighbor_message(NEIGHBOR_SOLICITATION, 0, target, None);
            icmpv6(mac, Ipv6Addr::UNSPECIFIED, solicited_node(target), body)
        }
    }
}

/// The MAC and IP address of a node, if `frame` says that the node has this IP address. An announcement says this. So does an ARP question
/// that contains its asker's address.
pub(super) fn claim(frame: &[u8]) -> Option<(Mac, IpAddr)> {
    let source = mac_at(frame, 6)?;
    match frame.get(12..14)?.try_into().ok()? {
        ETHERTYPE_ARP => {
            let arp = frame.get(14..42)?;
            let claims = arp[..6] == ARP_KIND;
            let sender = Ipv4Addr::from(<[u8; 4]>::try_from(&arp[14..18]).ok()?);
            (claims && !sender.is_unspecified()).then_some((mac_at(arp, 8)?, sender.into()))
        }
        ETHERTYPE_IPV6 => {
            let (header, message) = frame.get(14..)?.split_at_checked(40)?;
            let advertises =
                header[6] == ICMPV6 && header[7] == 255 && *message.first()? == NEIGHBOR_ADVERTISEMENT;
            let target = Ipv6Addr::from(<[u8; 16]>::try_from(message.get(8..24)?).ok()?);
            advertises.then_some((source, target.into()))
        }
        _ => None,
    }
}

fn mac_at(bytes: &[u8], position: usize) -> Option<Mac> {
    Some(Mac(bytes.get(position..position + 6)?.try_into().ok()?))
}

fn arp(mac: Mac, to: Mac, operation: u16, from: Ipv4Addr, target_mac: Mac, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet(to, mac, ETHERTYPE_ARP);
    frame.extend(ARP_KIND);
    frame.extend(operation.to_be_bytes());
    frame.extend(mac.0);
    frame.extend(from.octets());
    frame.extend(target_mac.0);
    frame.extend(target.octets());
    frame
}

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (high & 0xff), low)
}

fn neighbor_message(kind: u8, flags: u32, target: Ipv6Addr, option: Option<(u8, Mac)>) -> Vec<u8> {
    // Type, code, and two bytes for the checksum, which `icmpv6` fills in.
    let mut body = vec![kind, 0, 0, 0];
    body.extend(flags.to_be_bytes());
    body.extend(target.octets());
    if let Some((kind, mac)) = option {
        body.extend([kind, 1]);
        body.extend(mac.0);
    }
    body
}

/// A frame with the ICMPv6 message `body`, whose checksum it fills in. `to` must be a multicast address.
fn icmpv6(mac: Mac, from: Ipv6Addr, to: Ipv6Addr, mut body: Vec<u8>) -> Vec<u8> {
    let length = u16::try_from(body.len()).expect("a neighbour message is short");
    let mut pseudo_header = Vec::new();
    pseudo_header.extend(from.octets());
    pseudo_header.extend(to.octets());
    pseudo_header.extend(u32::from(length).to_be_bytes());
    pseudo_header.extend(u32::from(ICMPV6).to_be_bytes());
    let checksum = checksum(&[&pseudo_header, &body]);
    body[2..4].copy_from_slice(&checksum.to_be_bytes());

    let [.., a, b, c, d] = to.octets();
    let mut frame = ethernet(Mac([0x33, 0x33, a, b, c, d]), mac, ETHERTYPE_IPV6);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([ICMPV6, 255]);
    frame.extend(from.octets());
    frame.extend(to.octets());
    frame.extend(body);
    frame
}

fn ethernet(to: Mac, from: Mac, ethertype: [u8; 2]) -> Vec<u8> {
    [&to.0[..], &from.0, &ethertype].concat()
}

/// The Internet checksum (RFC 1071) of `parts`, each of even length.
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks_exact(2));
    let mut sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded to 16 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 7]);

    #[test]
    fn announcements_claim_their_address() {
        for address in ["10.0.0.100", "2001:db8::100"] {
            let address: IpAddr = address.parse().unwrap();
            for frame in announcements(MAC, address) {
                assert_eq!(claim(&frame), Some((MAC, address)));
                for length in 0..frame.len().min(42) {
                    assert_eq!(claim(&frame[..length]), None, "cut to {length} bytes");
                }
            }
        }
    }

    #[test]
    fn questions_claim_nothing_for_the_target() {
        let (v4, v6) = ("10.0.0.100".parse().unwrap(), "2001:db8::100".parse().unwrap());
        let own = "10.0.0.3".parse().unwrap();
        assert_eq!(claim(&question(MAC, None, v4)), None);
        assert_eq!(claim(&question(MAC, Some(own), v4)), Some((MAC, own)));
        assert_eq!(claim(&question(MAC, None, v6)), None);
        assert_eq!(claim(&question(MAC, Some("fe80::1".parse().unwrap()), v6)), None);
    }

    #[test]
    fn an_icmpv6_checksum_sums_up() {
        let frame = question(
            MAC,
            Some("fe80::1".parse().unwrap()),
            "2001:db8::1:100".parse().unwrap(),
        );
        // With a right checksum, the words of the pseudo header and of the message add up to all ones.
        let length = u32::try_from(frame.len() - 54).unwrap().to_be_bytes();
        assert_eq!(
            checksum(&[&frame[22..54], &length, &[0, 0, 0, ICMPV6], &frame[54..]]),
            0
        );
        assert_eq!(
            frame[..6],
            [0x33, 0x33, 0xff, 1, 1, 0],
            "the solicited-node group's address"
        );
    }

    #[test]
    fn a_mac_is_written_as_usual() {
        assert_eq!(MAC.to_string(), "02:00:00:00:00:07");
    }
}
