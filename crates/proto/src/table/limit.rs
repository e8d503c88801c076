//! The bound on all logs of a table together, and the changes to the windows of clients whose logs grow.

use std::net::SocketAddr;

use super::{ConnectionId, Table};
use crate::Instant;
use crate::connection::{CapChange, Connection};
use crate::spill::LogFull;
use crate::stream::Shelf;

impl Table {
    /// Copies the bytes that are still needed from the shelf, before it is cleared.
    pub fn keep(&mut self, shelf: &dyn Shelf) {
        for id in std::mem::take(&mut self.shelved) {
            self.change(id, |connection| connection.keep(shelf));
        }
    }

    /// Changes a connection, and then accounts for its memory. If the logs are over their bound and nothing can be given back,
    /// the connection may not grow.
    pub fn change(&mut self, id: ConnectionId, change: impl FnOnce(&mut Connection)) {
        self.change_at(id, None, change);
    }

    /// As [`change`](Self::change). `now` is the time when the packet that causes the change was logged, if a packet causes it. Returns
    /// `None` if there is no such connection.
    pub(super) fn change_at<R>(
        &mut self,
        id: ConnectionId,
        now: Option<Instant>,
        change: impl FnOnce(&mut Connection) -> R,
    ) -> Option<R> {
        let is_exhausted = self.is_exhausted && self.memory() > self.config.bytes_max;
        let Some(connection) = self.slots.get_mut(id) else {
            return self.lingering.change(id, change);
        };
        let before = connection.memory();
        let result = change(connection);
        if is_exhausted && connection.memory() > before {
            connection.hold(before, LogFull::Memory);
        }
        let client = connection.client();
        connection.judge_window(now, &mut |word| self.words.push_back((client, word)));
        self.memory = self.memory + connection.memory() as u64 - before as u64;
        self.share_out();
        Some(result)
    }

    /// The next change to a client's window.
    pub(crate) fn poll_word(&mut self) -> Option<(SocketAddr, CapChange)> {
        self.words.pop_front()
    }
}
