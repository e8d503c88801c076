//! Connections that have ended before their replicas have received and answered all input. Their clients have seen the primary's answers,
//! so the replicas' server must get the requests too. A connection also lingers if the agent reads the connection's first and last packet
//! from the wire's ring in one batch, before the replica is connected.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::slots::ConnectionId;
use crate::Instant;
use crate::connection::Connection;

/// Longest time that an ended connection waits for its replica. The wait is limited because the replica's server may not respond at all.
const LINGER_MAX: Duration = Duration::from_secs(10);
/// The lingering connections together may hold 1/SHARE of the table's memory limit. The open connections share the rest.
const SHARE: u64 = 4;

/// The lingering connections of one table.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    by_id: HashMap<ConnectionId, Box<Connection>>,
    /// The connections and when they ended, oldest first. Some of them no longer linger.
    order: VecDeque<(Instant, ConnectionId)>,
    memory: u64,
    /// Connections that have stopped lingering since the last call of [`Lingering::take_left`].
    left: Vec<ConnectionId>,
    /// Bytes that replicas will not get, because connections were forgotten since the last call of [`Lingering::expire`].
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

    /// Keeps an ended connection while its replica is behind.
    pub(super) fn add(&mut self, now: Instant, id: ConnectionId, connection: Box<Connection>) {
        if connection.is_owed_to_replica() {
            self.memory += connection.memory() as u64;
            self.by_id.insert(id, connection);
            self.order.push_back((now, id));
        }
    }

    /// Changes a connection, accounts for its memory, and forgets the connection if its replica has caught up.
    pub(super) fn change<R>(
        &mut self,
        id: ConnectionId,
        change: impl FnOnce(&mut Connection) -> R,
    ) -> Option<R> {
        let connection = self.get_mut(id)?;
        let before = connection.memory() as u64;
        let result = change(connection);
        let (after, is_owed) = (connection.memory() as u64, connection.is_owed_to_replica());
        self.memory = self.memory + after - before;
        if !is_owed {
            self.forget(id);
        }
        Some(result)
    }

    /// Forgets connections that have lingered too long, and the oldest ones while all together exceed their share of `bytes_max`, the
    /// table's memory limit. Returns the bytes that their replicas did not get.
    pub(super) fn expire(&mut self, now: Instant, bytes_max: u64) -> u64 {
        self.bound(bytes_max);
        while let Some(&(since, id)) = self.order.front()
            && !(self.get(id).is_some() && now.since(since) < LINGER_MAX)
        {
            self.miss_oldest();
        }
        std::mem::take(&mut self.missed)
    }

    /// Forgets the oldest connections until the others fit their share of `bytes_max`.
    pub(super) fn bound(&mut self, bytes_max: u64) {
        while self.memory > bytes_max / SHARE && !self.order.is_empty() {
            self.miss_oldest();
        }
    }

    fn miss_oldest(&mut self) {
        if let Some((_, id)) = self.order.pop_front() {
            self.missed += self.get(id).map_or(0, Connection::unfed);
            self.forget(id);
        }
    }

    fn forget(&mut self, id: ConnectionId) {
        if let Some(connection) = self.by_id.remove(&id) {
            self.memory -= connection.memory() as u64;
            self.left.push(id);
        }
    }

    /// The connections that have stopped lingering since the last call. Their replicas are no longer needed.
    pub(super) fn take_left(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.left)
    }
}
