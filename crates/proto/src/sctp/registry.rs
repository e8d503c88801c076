//! Finds the association of a packet, and remembers which cookies must not make another association.
//!
//! ```text
//!   verification tag ───────────▶ association ◀─────────── confirmed address and port of the peer
//!          └── a tag that is no longer listed: its cookie counts as used until it is stale
//! ```
//!
//! An address that a peer only claims to have is not listed. Otherwise the peer could block the host that really has the address.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use rustc_hash::FxHashMap;

use crate::Instant;

/// Maximum number of cookies that are remembered as used.
const USED_COOKIES_MAX: usize = 4096;

/// Number of an association at its endpoint. The number is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AssociationId(pub(super) u64);

/// The keys of one association.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RegistryKeys {
    pub tag: u32,
    pub port: u16,
    /// The peer's confirmed addresses.
    pub addresses: Vec<IpAddr>,
}

/// The associations that have not ended, by their keys.
#[derive(Debug, Default)]
pub(super) struct AssociationRegistry {
    keys: FxHashMap<AssociationId, RegistryKeys>,
    by_tag: FxHashMap<u32, AssociationId>,
    /// Peers choose these keys, so the hash is seeded.
    by_peer: HashMap<(IpAddr, u16), AssociationId>,
    /// Tags that are no longer listed, and when the cookies that carry them are stale.
    used_cookies: VecDeque<(Instant, u32)>,
}

impl AssociationRegistry {
    /// The association with this tag.
    pub fn by_tag(&self, tag: u32) -> Option<AssociationId> {
        self.by_tag.get(&tag).copied()
    }

    /// The association that has one of these addresses of a peer (RFC 9260 §5.1.2, rule D).
    pub fn by_peer(&self, addresses: &[IpAddr], port: u16) -> Option<AssociationId> {
        let listed = |address: &IpAddr| self.by_peer.get(&(*address, port)).copied();
        addresses.iter().find_map(listed)
    }

    /// Lists an association under these keys instead of its earlier keys. Cookies with its old tag are stale from `until` on.
    pub fn list(&mut self, id: AssociationId, keys: RegistryKeys, until: Instant) {
        if self.keys.get(&id).is_some_and(|old| old.tag == keys.tag) {
            self.remove_addresses(id);
        } else {
            self.remove(id, until);
            self.by_tag.insert(keys.tag, id);
        }
        for address in &keys.addresses {
            self.by_peer.entry((*address, keys.port)).or_insert(id);
        }
        self.keys.insert(id, keys);
    }

    /// Forgets an association. Cookies with its tag are stale from `until` on.
    pub fn remove(&mut self, id: AssociationId, until: Instant) {
        self.remove_addresses(id);
        let Some(keys) = self.keys.remove(&id) else {
            return;
        };
        self.by_tag.remove(&keys.tag);
        if self.used_cookies.len() >= USED_COOKIES_MAX {
            self.used_cookies.pop_front();
        }
        self.used_cookies.push_back((until, keys.tag));
    }

    fn remove_addresses(&mut self, id: AssociationId) {
        let Some(keys) = self.keys.get(&id) else {
            return;
        };
        for address in &keys.addresses {
            let key = (*address, keys.port);
            if self.by_peer.get(&key) == Some(&id) {
                self.by_peer.remove(&key);
            }
        }
    }

    /// Whether a cookie with this tag made an association that has ended.
    pub fn is_used(&mut self, now: Instant, tag: u32) -> bool {
        while self.used_cookies.front().is_some_and(|(until, _)| now >= *until) {
            self.used_cookies.pop_front();
        }
        self.used_cookies.iter().any(|(_, used)| *used == tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_keys_replace_the_old_ones() {
        let mut registry = AssociationRegistry::default();
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let keys = |tag, last: &[u8]| RegistryKeys {
            tag,
            port: 7,
            addresses: last.iter().copied().map(address).collect(),
        };
        let (id, until) = (AssociationId(1), Instant::from_nanos(9));
        registry.list(id, keys(1, &[1, 2]), until);
        registry.list(id, keys(1, &[1, 3]), until);
        assert!(!registry.is_used(Instant::ZERO, 1));
        for tag in 2..10_000 {
            registry.list(id, keys(tag, &[1, 3]), until);
        }
        assert_eq!((registry.by_tag(9998), registry.by_tag(9999)), (None, Some(id)));
        assert_eq!(registry.by_peer(&[address(2)], 7), None);
        assert_eq!(registry.by_peer(&[address(2), address(3)], 7), Some(id));
        assert_eq!((registry.by_tag.len(), registry.by_peer.len()), (1, 2));
        assert_eq!(registry.used_cookies.len(), USED_COOKIES_MAX);
        registry.remove(id, until);
        assert!(registry.is_used(Instant::ZERO, 9999) && !registry.is_used(until, 9999));
        assert!(registry.keys.is_empty() && registry.by_tag.is_empty() && registry.by_peer.is_empty());
    }
}
