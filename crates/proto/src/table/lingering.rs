//! Connections that have ended, but whose replicas have not been given all input yet, or have not answered it. Their clients have
//! seen the primary's answers, so the replicas' server must get the requests too. Even a connection that was read from the log in one
//! go, from its beginning to its end, lingers.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::{ConnectionId, Table};
use crate::Instant;
use crate::connection::Connection;

/// Longest time that an ended connection waits for its replica. It is limited because the replica's server may not respond at all.
const LINGER_MAX: Duration = Duration::from_secs(10);
/// The lingering logs together may hold this fraction (1/SHARE) of the table's bound. The open connections share the rest.
const SHARE: u64 = 4;

/// The lingering connections of one table.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    by_id: HashMap<ConnectionId, Box<Connection>>,
    /// The connections with their times of end, in that order. Some of them no longer linger.
    order: VecDeque<(Instant, ConnectionId)>,
    memory: u64,
    /// Connections that have stopped lingering since the last call of [`Table::take_left`].
    left: Vec<ConnectionId>,
    /// Bytes that replicas did not get since the last call of [`Table::expire_lingering`].
    missed: u64,
}

impl Lingering {
    /// Memory held by these connections, in bytes.
    pub(super) const fn memory(&self) -> u64 {
        self.memory
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.by_id.get(&id).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.by_id.get_mut(&id).map(Box::as_mut)
    }

    fn remove(&mut self, id: ConnectionId) -> Option<Box<Connection>> {
        self.by_id.remove(&id)
    }
}

impl Table {
    /// Takes an ended connection out of the table, and keeps it here while its replica is behind.
    pub(super) fn let_go(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.remove(id) else { return };
        if !connection.is_owed_to_replica() {
            return;
        }
        let memory = connection.memory() as u64;
        self.lingering.memory += memory;
        self.memory += memory;
        self.lingering.by_id.insert(id, connection);
        self.lingering.order.push_back((now, id));
    }

    /// A connection that may have a replica: open or lingering.
    pub fn followed(&self, id: ConnectionId) -> Option<&Connection> {
        self.slots.get(id).or_else(|| self.lingering.get(id))
    }

    /// A connection that may have a replica, for changes that do not affect its memory.
    pub(crate) fn followed_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.slots.get_mut(id).or_else(|| self.lingering.get_mut(id))
    }

    /// Whether this ended connection waits for its replica.
    pub fn lingers(&self, id: ConnectionId) -> bool {
        self.lingering.get(id).is_some()
    }

    /// Changes a lingering connection, accounts for its memory, and forgets the connection if its replica has caught up.
    pub(super) fn change_lingering<R>(
        &mut self,
        id: ConnectionId,
        change: impl FnOnce(&mut Connection) -> R,
    ) -> Option<R> {
        let connection = self.lingering.get_mut(id)?;
        let before = connection.memory() as u64;
        let result = change(connection);
        let (after, is_owed) = (connection.memory() as u64, connection.is_owed_to_replica());
        self.lingering.memory = self.lingering.memory + after - before;
        self.memory = self.memory + after - before;
        if !is_owed {
            self.forget_lingering(id);
        }
        Some(result)
    }

    /// Forgets connections that have lingered too long or hold too much. Returns the bytes that their replicas did not get.
    pub fn expire_lingering(&mut self, now: Instant) -> u64 {
        self.bound_lingering();
        while let Some(&(since, id)) = self.lingering.order.front()
            && !(self.lingers(id) && now.since(since) < LINGER_MAX)
        {
            self.miss_oldest();
        }
        std::mem::take(&mut self.lingering.missed)
    }

    /// Forgets the oldest lingering connections until the others fit their share.
    pub(super) fn bound_lingering(&mut self) {
        while self.lingering.memory > self.config.bytes_max / SHARE && !self.lingering.order.is_empty() {
            self.miss_oldest();
        }
    }

    fn miss_oldest(&mut self) {
        if let Some((_, id)) = self.lingering.order.pop_front() {
            self.lingering.missed += self.lingering.get(id).map_or(0, Connection::unfed);
            self.forget_lingering(id);
        }
    }

    fn forget_lingering(&mut self, id: ConnectionId) {
        if let Some(connection) = self.lingering.remove(id) {
            let memory = connection.memory() as u64;
            self.lingering.memory -= memory;
            self.memory -= memory;
            self.lingering.left.push(id);
        }
    }

    /// The connections whose replicas are no longer needed, since the last call.
    pub(crate) fn take_left(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.lingering.left)
    }
}
