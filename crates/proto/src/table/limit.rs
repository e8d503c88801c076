//! What all logs of a table may cost together, and what is done about clients whose logs grow.

use std::net::SocketAddr;

use super::{ConnectionId, Table};
use crate::connection::Word;
use crate::stream::Shelf;

impl Table {
    /// The shelf will be cleared: copies from it what is still needed.
    pub fn keep(&mut self, shelf: &dyn Shelf) {
        for id in std::mem::take(&mut self.shelved) {
            let over = self.memory > self.config.bytes_max;
            if let Some(connection) = self.get_mut(id) {
                let before = connection.memory();
                connection.keep(shelf);
                if over && connection.memory() > before {
                    connection.hold(before);
                }
                self.account(id, before);
            }
        }
    }

    /// To be called after a connection was changed through [`get_mut`](Self::get_mut), with its memory before.
    pub fn account(&mut self, id: ConnectionId, before: usize) {
        let mut now = 0;
        if let Some(connection) = self.slots.get_mut(id) {
            let client = connection.client();
            connection.judge_window(None, &mut |word| self.words.push_back((client, word)));
            now = connection.memory();
        }
        self.memory = self.memory + now as u64 - before as u64;
    }

    /// The next thing that is to be done about a client's window.
    pub(crate) fn poll_word(&mut self) -> Option<(SocketAddr, Word)> {
        self.words.pop_front()
    }
}
