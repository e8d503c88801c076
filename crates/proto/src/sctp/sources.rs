//! The local end of a path: which of this host's addresses sends to an address of the peer, and to which UDP port (RFC 6951 §5.4).
//!
//! ```text
//!   the peer's address was heard before ──▶ the local address at which its last packet arrived, and that packet's source port
//!   else ─────────────────────────────────▶ the local address with the longest common prefix; the peer's last byte decides among equals
//! ```

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Maximum number of remembered peer addresses. The address learnt first is forgotten first, and is learnt again from its next packet.
const LEARNT_MAX: usize = 1024;

/// A local address by its number, and the peer's UDP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSource {
    /// Number of the local address.
    pub local: usize,
    /// The peer's UDP port. Meaningless without encapsulation.
    pub port: u16,
}

/// The local addresses of an endpoint, and the sources learnt for the addresses of its peers.
#[derive(Debug)]
pub struct SourceTable {
    local: Vec<IpAddr>,
    port: u16,
    // Peers choose their addresses, so the hash is seeded.
    learnt: HashMap<IpAddr, PathSource>,
    order: VecDeque<IpAddr>,
}

impl SourceTable {
    /// A table that has learnt nothing yet. `port` is the UDP port of peers that were not heard yet.
    pub fn new(local: Vec<IpAddr>, port: u16) -> Self {
        Self {
            local,
            port,
            learnt: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// The endpoint accepted a packet from `peer`. Packets to `peer` now have this source.
    pub fn on_heard(&mut self, peer: IpAddr, source: PathSource) {
        if let Some(known) = self.learnt.get_mut(&peer) {
            *known = source;
            return;
        }
        if self.order.len() >= LEARNT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.learnt.remove(&oldest);
        }
        self.order.push_back(peer);
        self.learnt.insert(peer, source);
    }

    /// The source of packets to `peer`. `None` if no local address has the same family as `peer`.
    pub fn source(&self, peer: IpAddr) -> Option<PathSource> {
        if let Some(known) = self.learnt.get(&peer) {
            return Some(*known);
        }
        let prefixes = self.local.iter().map(|local| common_prefix(*local, peer));
        let longest = prefixes.clone().max().flatten()?;
        let equals: Vec<usize> = prefixes
            .enumerate()
            .filter_map(|(at, prefix)| (prefix == Some(longest)).then_some(at))
            .collect();
        // The last byte spreads the peers: even addresses of one provider differ in it.
        let chosen = usize::from(last_byte(peer)) % equals.len();
        let local = equals[chosen];
        Some(PathSource {
            local,
            port: self.port,
        })
    }
}

/// Number of bits at the beginning in which two addresses of the same family are equal.
fn common_prefix(one: IpAddr, other: IpAddr) -> Option<u32> {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => Some((one.to_bits() ^ other.to_bits()).leading_zeros()),
        (IpAddr::V6(one), IpAddr::V6(other)) => Some((one.to_bits() ^ other.to_bits()).leading_zeros()),
        _ => None,
    }
}

fn last_byte(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(address) => address.octets()[15],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn table() -> SourceTable {
        SourceTable::new(vec![ip("10.1.0.1"), ip("10.2.0.1"), ip("fd01::1")], 9899)
    }

    #[test]
    fn the_nearest_address_of_the_family_sends() {
        let table = table();
        let local = |peer| table.source(ip(peer)).map(|source| source.local);
        assert_eq!(
            [local("10.1.0.2"), local("10.2.0.9"), local("fd09::1")],
            [Some(0), Some(1), Some(2)]
        );
        assert_eq!(
            SourceTable::new(vec![ip("10.1.0.1")], 1).source(ip("fd00::1")),
            None
        );
    }

    #[test]
    fn far_addresses_are_spread() {
        let table = table();
        let local = |peer| table.source(ip(peer)).map(|source| source.local);
        assert_ne!(local("192.0.2.1"), local("192.0.2.2"));
    }

    #[test]
    fn the_answer_goes_where_the_packet_came_to() {
        let mut table = table();
        let source = PathSource { local: 1, port: 777 };
        table.on_heard(ip("10.1.0.2"), source);
        assert_eq!(table.source(ip("10.1.0.2")), Some(source));
        for last in 0..5000_u32 {
            table.on_heard(IpAddr::from(last.to_be_bytes()), source);
        }
        assert_eq!((table.learnt.len(), table.order.len()), (LEARNT_MAX, LEARNT_MAX));
    }
}
