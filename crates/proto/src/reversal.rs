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

use std::collections::{BTreeSet, HashSet};
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
    /// Clients whose connections move to the other node. This node has released them, and has their sockets, which are frozen.
    frozen: BTreeSet<SocketAddr>,
    /// Clients whose frozen sockets have gone on since the log was last read to its end. The log may have segments of the time before.
    thawed: BTreeSet<SocketAddr>,
    /// On the primary: the backup is gone, so this node takes over what lives there as soon as no socket is frozen.
    takes: bool,
}

impl Reversed {
    /// As an earlier agent has left them.
    pub(crate) fn new(
        hash_seed: usize,
        here: impl IntoIterator<Item = SocketAddr>,
        there: impl IntoIterator<Item = SocketAddr>,
        frozen: impl IntoIterator<Item = SocketAddr>,
    ) -> Self {
        let empty = || ClientSet::with_hasher(FxSeededState::with_seed(hash_seed));
        let mut reversed = Self {
            here: empty(),
            there: empty(),
            due: Vec::new(),
            frozen: frozen.into_iter().collect(),
            thawed: BTreeSet::new(),
            takes: false,
        };
        reversed.here.extend(here);
        reversed.there.extend(there);
        reversed
    }

    /// The primary has released connections that are to be reversed.
    pub(crate) fn expect(&mut self, clients: Vec<SocketAddr>) {
        self.due.extend(clients);
    }

    /// Whether the connection of `client` is to be reversed as soon as it lives here.
    pub(crate) fn is_due(&self, client: &SocketAddr) -> bool {
        self.due.contains(client)
    }

    /// The expected connections live here now.
    pub(crate) fn begin(&mut self) {
        self.here.extend(self.due.drain(..));
    }

    /// The sockets of these clients' connections are frozen.
    pub(crate) fn freeze(&mut self, clients: &[SocketAddr]) {
        self.frozen.extend(clients);
    }

    /// Whether the socket of this client's connection is frozen.
    pub(crate) fn is_frozen(&self, client: &SocketAddr) -> bool {
        self.frozen.contains(client)
    }

    /// Whether any socket is frozen.
    pub(crate) fn has_frozen(&self) -> bool {
        !self.frozen.is_empty()
    }

    /// The frozen sockets of those of these clients' connections that have one go on. Returns them. With `is_here`, their segments pass the
    /// primary's log again.
    pub(crate) fn thaw(&mut self, clients: Vec<SocketAddr>, is_here: bool) -> Vec<SocketAddr> {
        let thawed = self.melt(clients);
        self.forget(&thawed);
        self.thawed.extend(&thawed);
        self.here.extend(thawed.iter().filter(|_| is_here));
        thawed
    }

    /// Whether the log may have segments of this client's connection from before its frozen socket went on.
    pub(crate) fn was_frozen(&self, client: &SocketAddr) -> bool {
        self.thawed.contains(client)
    }

    /// The log has been read to its end.
    pub(crate) fn on_drained(&mut self) {
        self.thawed.clear();
    }

    /// Which of these clients' connections had frozen sockets. They have none any more: they go on, or are destroyed.
    pub(crate) fn melt(&mut self, mut clients: Vec<SocketAddr>) -> Vec<SocketAddr> {
        clients.retain(|client| self.frozen.remove(client));
        clients
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

    /// The backup is gone. Returns the clients whose sockets are frozen.
    pub(crate) fn prepare_to_take(&mut self) -> Vec<SocketAddr> {
        self.takes = true;
        self.frozen.iter().copied().collect()
    }

    /// Whether this node can take over what lives on the backup, which is gone.
    pub(crate) fn can_take(&self) -> bool {
        self.takes && !self.has_frozen()
    }

    /// This node speaks alone now. Returns the clients whose connections it must take over.
    pub(crate) fn take_there(&mut self) -> Vec<SocketAddr> {
        self.takes = false;
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

    /// This node takes over the service, and what lives here with it. Returns the clients whose sockets are frozen.
    pub(crate) fn take_here(&mut self) -> Vec<SocketAddr> {
        let frozen = std::mem::take(&mut self.frozen);
        self.clear();
        self.frozen = frozen;
        self.frozen.iter().copied().collect()
    }

    /// The nodes' roles have changed.
    pub(crate) fn clear(&mut self) {
        self.here.clear();
        self.there.clear();
        self.due.clear();
        self.frozen.clear();
        self.thawed.clear();
        self.takes = false;
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
        let mut reversed = Reversed::new(1, [], [], []);
        reversed.expect(vec![client(1), client(2)]);
        assert!(!reversed.has_here());
        assert!(reversed.is_due(&client(1)));
        reversed.begin();
        assert!(!reversed.is_due(&client(1)));
        reversed.forget(&[client(1)]);
        assert!(!reversed.is_here(&client(1)) && reversed.is_here(&client(2)));
    }

    #[test]
    fn ended_connections_do_not_accumulate() {
        let mut reversed = Reversed::new(1, [], [], []);
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
