//! What all logs of a table may cost together, and what is done about clients whose logs grow.

use std::net::SocketAddr;

use super::{ConnectionId, Table};
use crate::Instant;
use crate::connection::{Connection, Word};
use crate::spill::Full;
use crate::stream::Shelf;

impl Table {
    /// The shelf will be cleared: copies from it what is still needed.
    pub fn keep(&mut self, shelf: &dyn Shelf) {
        for id in std::mem::take(&mut self.shelved) {
            self.change(id, |connection| connection.keep(shelf));
        }
    }

    /// Changes a connection, which may take other memory afterwards: but not more if all together have too much, and nobody can give back.
    pub fn change(&mut self, id: ConnectionId, change: impl FnOnce(&mut Connection)) {
        self.change_at(id, None, change);
    }

    /// The same by a packet of `now`, if it is one. `None`: there is no such connection.
    pub(super) fn change_at<R>(
        &mut self,
        id: ConnectionId,
        now: Option<Instant>,
        change: impl FnOnce(&mut Connection) -> R,
    ) -> Option<R> {
        let is_exhausted = self.is_exhausted && self.memory > self.config.bytes_max;
        let Some(connection) = self.slots.get_mut(id) else {
            return self.change_lingering(id, change);
        };
        let before = connection.memory();
        let result = change(connection);
        if is_exhausted && connection.memory() > before {
            connection.hold(before, Full::Memory);
        }
        let client = connection.client();
        connection.judge_window(now, &mut |word| self.words.push_back((client, word)));
        self.memory = self.memory + connection.memory() as u64 - before as u64;
        self.share_out();
        Some(result)
    }

    /// The next thing that is to be done about a client's window.
    pub(crate) fn poll_word(&mut self) -> Option<(SocketAddr, Word)> {
        self.words.pop_front()
    }
}
