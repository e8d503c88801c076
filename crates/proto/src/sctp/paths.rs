//! All destinations of a peer, and which of them is used (RFC 9260 §6.4).

use std::net::IpAddr;

use super::config::SctpConfig;
use super::destination::{Destination, PathId, PathTimeout};
use crate::Instant;

/// The destinations. There is at least one.
#[derive(Debug)]
pub(super) struct PathTable {
    all: Vec<Destination>,
    primary: PathId,
    current: PathId,
}

impl PathTable {
    /// The peer's addresses. The first one is the primary destination. `threshold`: [`Destination::new`].
    pub fn new(config: &SctpConfig, addresses: &[IpAddr], threshold: u32, now: Instant) -> Self {
        let destination = |address: &IpAddr| Destination::new(config, *address, threshold, now);
        Self {
            all: addresses.iter().map(destination).collect(),
            primary: PathId(0),
            current: PathId(0),
        }
    }

    /// All destinations.
    pub fn all(&self) -> &[Destination] {
        &self.all
    }

    /// All destinations, to be changed.
    pub fn all_mut(&mut self) -> &mut [Destination] {
        &mut self.all
    }

    /// A destination.
    pub fn get(&self, path: PathId) -> &Destination {
        &self.all[path.index()]
    }

    /// A destination, to be changed.
    pub fn get_mut(&mut self, path: PathId) -> &mut Destination {
        &mut self.all[path.index()]
    }

    /// All numbers.
    pub fn ids(&self) -> impl Iterator<Item = PathId> + use<> {
        // `terms::PATHS_MAX` is below 256.
        (0..self.all.len()).map(|index| PathId(index as u8))
    }

    /// The destination with this address.
    pub fn find(&self, address: IpAddr) -> Option<PathId> {
        let index = self.all.iter().position(|path| path.address() == address)?;
        Some(PathId(index as u8))
    }

    /// The primary destination.
    pub const fn primary(&self) -> PathId {
        self.primary
    }

    /// The destination of new data.
    pub const fn current(&self) -> PathId {
        self.current
    }

    /// Makes `path` the primary destination.
    pub fn set_primary(&mut self, path: PathId) {
        self.primary = path;
        self.choose();
    }

    /// The next destination after `path`, in a ring.
    pub fn after(&self, path: PathId) -> PathId {
        PathId(((path.index() + 1) % self.all.len()) as u8)
    }

    /// The next usable destination after `path`, in a ring. If no other is usable: the next one that belongs to the peer.
    pub fn alternate(&self, path: PathId) -> PathId {
        let others =
            || (1..self.all.len()).map(|step| PathId(((path.index() + step) % self.all.len()) as u8));
        let usable = others().find(|next| self.get(*next).is_usable());
        let known = || others().find(|next| self.get(*next).is_confirmed());
        usable.or_else(known).unwrap_or(path)
    }

    /// Something sent to `path` was not acknowledged in time.
    pub fn on_error(&mut self, path: PathId) -> PathTimeout {
        let timeout = self.get_mut(path).on_error();
        if timeout == PathTimeout::Failed {
            self.choose();
        }
        timeout
    }

    /// Something sent to `path` was acknowledged. Returns whether the destination had failed.
    pub fn on_heard(&mut self, path: PathId) -> bool {
        let had_failed = self.get_mut(path).on_heard();
        if had_failed {
            self.choose();
        }
        had_failed
    }

    /// Chooses the destination of new data: the primary if it is usable, else the one in use, else the next usable one. If none is usable,
    /// the one in use stays.
    fn choose(&mut self) {
        if self.get(self.primary).is_usable() {
            self.current = self.primary;
        } else if !self.get(self.current).is_usable() {
            self.current = self.alternate(self.current);
        }
    }
}
