//! What all logs of a table may cost together.

use super::{Connection, ConnectionId, Table};
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
        let now = self.get(id).map_or(0, Connection::memory);
        self.memory = self.memory + now as u64 - before as u64;
    }
}
