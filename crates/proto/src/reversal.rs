//! Reversed connections: after a connection has moved to the backup ([`crate::migration`]), the two nodes' parts are exchanged for it. Its
//! application is on the backup, and the primary is its wire: the primary's kernel logs each of its segments, then sends it on
//! (docs/migration.md). So the connection is protected, and can move back. The address stays where it is.
//!
//! ```text
//!  client ──▶ backup's kernel ──▶ [ primary: log ] ──▶ backup: socket       input
//!  client ◀── backup's kernel ◀── [ primary: log ] ◀── backup: socket       output
//! ```
//!
//! If a node fails, the other one has all connections: the primary takes over what was reversed, once it speaks alone; the backup takes
//! over the service, and its own sockets just go on without the detour.

use std::collections::HashSet;
use std::net::SocketAddr;

use rustc_hash::FxSeededState;

/// Number of clients that the primary follows for the backup before it looks which of their connections have ended.
const MANY: usize = 4096;

type ClientSet = HashSet<SocketAddr, FxSeededState>;

/// The reversed connections of a service, as one node knows them. At most one of the sets is used at a time.
#[derive(Debug)]
pub(crate) struct Reversed {
    /// On the backup: clients whose connections live here. Their segments pass the primary's log.
    here: ClientSet,
    /// On the primary: clients whose connections live on the backup. Their segments are logged here.
    there: ClientSet,
    /// On the backup: clients whose connections are to be reversed as soon as they live here.
    due: Vec<SocketAddr>,
}

impl Reversed {
    /// As an earlier agent has left them.
    pub(crate) fn new(
        hash_seed: usize,
        here: impl IntoIterator<Item = SocketAddr>,
        there: impl IntoIterator<Item = SocketAddr>,
    ) -> Self {
        let empty = || ClientSet::with_hasher(FxSeededState::with_seed(hash_seed));
        let mut reversed = Self {
            here: empty(),
            there: empty(),
            due: Vec::new(),
        };
        reversed.here.extend(here);
        reversed.there.extend(there);
        reversed
    }

    /// The primary has released connections that are to be reversed.
    pub(crate) fn expect(&mut self, clients: Vec<SocketAddr>) {
        self.due.extend(clients);
    }

    /// The expected connections live here now. Returns their clients.
    pub(crate) fn begin(&mut self) -> Vec<SocketAddr> {
        self.here.extend(&self.due);
        std::mem::take(&mut self.due)
    }

    /// These connections move to the backup, and this node follows them from now on. Returns earlier clients that need not be followed any
    /// more, because `is_open` says that their connections have ended.
    pub(crate) fn follow(
        &mut self,
        clients: &[SocketAddr],
        is_open: impl Fn(SocketAddr) -> bool,
    ) -> Vec<SocketAddr> {
        let mut ended = Vec::new();
        if self.there.len() + clients.len() > MANY {
            ended.extend(self.there.iter().copied().filter(|&client| !is_open(client)));
            self.forget(&ended);
        }
        self.there.extend(clients);
        ended
    }

    /// Whether this client's connection lives here, and passes the primary's log.
    pub(crate) fn is_here(&self, client: &SocketAddr) -> bool {
        self.here.contains(client)
    }

    /// Whether connections live here whose segments pass the primary's log.
    pub(crate) fn has_here(&self) -> bool {
        !self.here.is_empty()
    }

    /// Number of reversed connections.
    pub(crate) fn len(&self) -> usize {
        self.here.len() + self.there.len()
    }

    /// Whether this node logs the segments of connections that live on the backup.
    pub(crate) fn has_there(&self) -> bool {
        !self.there.is_empty()
    }

    /// This node speaks alone now. Returns the clients whose connections it must take over.
    pub(crate) fn take_there(&mut self) -> Vec<SocketAddr> {
        let mut clients: Vec<_> = self.there.drain().collect();
        clients.sort_unstable();
        clients
    }

    /// The connections of these clients are not reversed any more: they have ended, or have moved back.
    pub(crate) fn forget(&mut self, clients: &[SocketAddr]) {
        for client in clients {
            self.here.remove(client);
            self.there.remove(client);
        }
    }

    /// The nodes' roles have changed.
    pub(crate) fn clear(&mut self) {
        self.here.clear();
        self.there.clear();
        self.due.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: usize) -> SocketAddr {
        let port = u16::try_from(number % 50_000).unwrap() + 1000;
        ([10, 0, 0, u8::try_from(number / 50_000).unwrap()], port).into()
    }

    #[test]
    fn what_is_expected_is_reversed_once() {
        let mut reversed = Reversed::new(1, [], []);
        reversed.expect(vec![client(1), client(2)]);
        assert!(!reversed.has_here());
        assert_eq!(reversed.begin(), [client(1), client(2)]);
        assert_eq!(reversed.begin(), []);
        reversed.forget(&[client(1)]);
        assert!(!reversed.is_here(&client(1)) && reversed.is_here(&client(2)));
    }

    #[test]
    fn ended_connections_do_not_accumulate() {
        let mut reversed = Reversed::new(1, [], []);
        for number in 0..MANY {
            assert_eq!(reversed.follow(&[client(number)], |_| false), []);
        }
        let lives = client(7);
        let ended = reversed.follow(&[client(MANY)], |client| client == lives);
        assert_eq!(ended.len(), MANY - 1);
        let mut left = [lives, client(MANY)];
        left.sort_unstable();
        assert_eq!(reversed.take_there(), left);
        assert!(!reversed.has_there());
    }
}
